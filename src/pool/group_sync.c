/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Syncs of groups/, and what deleted groups have left. Happy path: an fsync of the directory makes
 * durable what was named or unlinked in it before; then the members of what was unlinked, which are
 * nobody's any more, are renamed to the trash, and then their group's file goes. Where there is not
 * one log (sync.h), members and file of a new group had a sync of their own before the commit. It
 * fails with what fsync and the renames fail with. A repeat makes up for it, or the next deletion
 * of a group, or the next load.
 */
#include "pool/group_sync.h"

#include "pool/group_file.h"
#include "pool/private.h"
#include "pool/sync.h"
#include "pool/trash.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define sync_of(op_ptr) container_of(op_ptr, struct pool_group_sync, op)

int group_sync_dir(struct op *op, struct pool *pool, uint64_t *ret_removed)
{
	*ret_removed = pool->groups.removed;
	io_uring_prep_fsync(op_sqe(op), pool->fds[POOL_FD_GROUPS], 0);
	return op_submit(op);
}

void group_sync_done(struct pool *pool, uint64_t removed)
{
	if (pool->groups.removed_durable < removed)
		pool->groups.removed_durable = removed;
}

struct pool *pools_group_removal_unsynced(const struct pools *pools, const char *id)
{
	struct record_id parsed;
	if (record_id_parse(id, &parsed) < 0)
		return NULL;
	struct pool *pool = pools_by_uuid8(pools, parsed.pool);
	if (pool == NULL)
		return NULL;
	const struct pool_groups *groups = &pool->groups;
	bool over = groups->removed_durable == groups->removed && list_empty(&groups->unswept);
	return over ? NULL : pool;
}

static int ready_run(struct op *op)
{
	return pool_check_ready(sync_of(op)->pool, &op->err);
}

static int directory_run(struct op *op)
{
	return group_sync_dir(op, sync_of(op)->pool, &sync_of(op)->removed);
}

static int directory_end(struct op *op, int res)
{
	struct pool_group_sync *s = sync_of(op);
	if (res < 0)
		return op_fail_sys(op, res,
			"making durable in pool %s what an earlier call changed", s->pool->name);
	group_sync_done(s->pool, s->removed);
	if (s->group != NULL)
		s->group->unsynced = false;
	return 0;
}

/* ---- the members of what was deleted ---- */

static bool sweep_done(struct op *op)
{
	const struct pool_group_sync *s = sync_of(op);
	return s->group != NULL || list_empty(&s->pool->groups.unswept);
}

static int sweep_one(const struct pool_group_sync *s, const struct pool_group *group)
{
	int r = 0;
	for (unsigned i = 0; i < group->count; i++) {
		char name[TRASH_NAME_BYTES];
		struct record_id id;
		if (record_id_parse(group->members[i], &id) < 0)
			continue;
		pool_random_hex(name, TRASH_NAME_BYTES - 1);
		if (renameat2(s->snapshots_fd, id.key, s->trash_fd, name, RENAME_NOREPLACE) < 0 &&
			errno != ENOENT)
			r = -errno;
	}
	return r;
}

/* No member has a name any more, durably so before the file that says what they were goes. */
static int drop_files(const struct pool_group_sync *s)
{
	int r = 0;
	if (!s->one_log && (fsync(s->trash_fd) < 0 || fsync(s->snapshots_fd) < 0))
		return -errno;
	for (unsigned i = 0; i < s->count; i++) {
		char name[GROUP_ASIDE_BYTES];
		const struct pool_group *group = s->swept[i];
		group_aside_name(GROUP_GONE, group->random, group->key, name);
		if (unlinkat(s->groups_fd, name, 0) < 0 && errno != ENOENT)
			r = -errno;
	}
	return r;
}

/* No group is freed before the pool is closed, and one that is gone never changes. */
static int sweep_job(void *arg)
{
	const struct pool_group_sync *s = arg;
	int r = 0;
	for (unsigned i = 0; i < s->count; i++) {
		int one = sweep_one(s, s->swept[i]);
		r = one < 0 ? one : r;
	}
	return r == 0 ? drop_files(s) : r;
}

static int sweep_run(struct op *op)
{
	struct pool_group_sync *s = sync_of(op);
	const struct list *unswept = &s->pool->groups.unswept;
	unsigned count = 0;
	list_for_each (l, unswept)
		count++;
	s->swept = calloc(count, sizeof(struct pool_group *));
	if (s->swept == NULL)
		return op_fail_sys(op, -ENOMEM, "deleting group snapshots");
	list_for_each (l, unswept)
		s->swept[s->count++] = container_of(l, struct pool_group, link);
	s->snapshots_fd = s->pool->fds[POOL_FD_SNAPSHOTS];
	s->trash_fd = s->pool->fds[POOL_FD_TRASH];
	s->groups_fd = s->pool->fds[POOL_FD_GROUPS];
	s->one_log = pool_one_log(&s->pool->features);
	return op_work(op, sweep_job, s);
}

static int sweep_end(struct op *op, int res)
{
	struct pool_group_sync *s = sync_of(op);
	if (res < 0)
		return op_fail_sys(op, res,
			"moving the members of deleted group snapshots to the trash of pool %s",
			s->pool->name);
	/* Another sweep may have been as quick: they go from the list once or twice. */
	for (unsigned i = 0; i < s->count; i++) {
		list_remove(&s->swept[i]->link);
		list_push(&s->pool->groups.dead, &s->swept[i]->link);
	}
	pool_trash_kick(s->pool);
	return 0;
}

static const struct op_step sync_steps[] = {
	{"ready", .run = ready_run},
	{"directory", .run = directory_run, .end = directory_end},
	{"sweep", .run = sweep_run, .end = sweep_end, .done = sweep_done},
	{NULL},
};

void pool_group_sync_init(struct pool_group_sync *s, struct reactor *reactor, struct pool *pool,
	struct pool_group *group)
{
	*s = (struct pool_group_sync){.pool = pool, .group = group};
	op_init(&s->op, reactor, "group_sync", sync_steps, NULL);
	s->op.lane = pool->lane;
}

void pool_group_sync_free(struct pool_group_sync *s)
{
	free(s->swept);
	s->swept = NULL;
	s->count = 0;
}
