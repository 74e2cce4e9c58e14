/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Deleting a group. Happy path: every member is looked up and its image locked, so that it is
 * attached nowhere -> the file of the group is renamed (group_file.h), which is the commit -> that
 * is made durable, the images are renamed to the trash, and the file goes (group_sync.c). Before
 * the commit a failure lets go of the locks and nothing has happened. After it nothing of the group
 * is in the index.
 */
#include "pool/group_remove.h"

#include "base/fd.h"
#include "blockio/image.h"
#include "pool/group_file.h"
#include "pool/index.h"
#include "pool/private.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* A member that is to go. */
struct pool_group_victim {
	struct pool_object *object; /* out of the index after the commit, and put aside */
	char key[RECORD_KEY_MAX];
	int fd; /* locked */
};

#define remove_of(op_ptr) container_of(op_ptr, struct pool_group_remove, op)

static int fail_sys(struct op *op, int res, const char *what)
{
	const struct pool_group_remove *r = remove_of(op);
	return res < 0 ? op_fail_sys(op, res, "%s group snapshot %s in pool %s", what,
				 r->group->name, r->pool->name)
		       : 0;
}

/* ---- who ---- */

static bool is_quarantined(const struct pool_group *group, unsigned i)
{
	struct record_id id;
	if (record_id_parse(group->members[i], &id) < 0)
		return false;
	const struct pool_object *o = pool_index_find(group->pool, RECORD_SNAPSHOT, id.key);
	return o != NULL && o->rec == NULL;
}

static int find_members(struct op *op)
{
	struct pool_group_remove *r = remove_of(op);
	const struct pool_group *group = r->group;
	r->victims = calloc(group->count, sizeof(*r->victims));
	if (r->victims == NULL)
		return fail_sys(op, -ENOMEM, "deleting");
	for (unsigned i = 0; i < group->count; i++) {
		const char *why;
		struct pool_object *o = pool_group_member(group, i, &why);
		if (o == NULL && is_quarantined(group, i))
			return op_fail(op, ERR_DATA_LOSS,
				"group snapshot %s in pool %s is not deleted, as its member %s is quarantined: %s; see ringvol check",
				group->name, r->pool->name, group->members[i], why);
		if (o == NULL)
			continue; /* gone */
		struct pool_group_victim *v = &r->victims[r->count++];
		*v = (struct pool_group_victim){.object = o, .fd = -1};
		strcpy(v->key, o->key);
	}
	return 0;
}

static int begin_run(struct op *op)
{
	struct pool_group_remove *r = remove_of(op);
	int res = pool_check_ready(r->pool, &op->err);
	if (res == 0)
		res = find_members(op);
	if (res < 0)
		return res;
	r->snapshots_fd = r->pool->fds[POOL_FD_SNAPSHOTS];
	r->groups_fd = r->pool->fds[POOL_FD_GROUPS];
	return pool_op_begin(r->pool, &op->err);
}

static int begin_undo(struct op *op)
{
	pool_op_finish(remove_of(op)->pool);
	return 0;
}

/* ---- locks ---- */

/* What another node copies has a second name, and we have it open for that (hold.h): it stays. */
static bool held_for_copy(int fd)
{
	struct stat st;
	return fstat(fd, &st) == 0 && st.st_nlink > 1;
}

static int lock_one(const struct pool_group_remove *r, struct pool_group_victim *v)
{
	v->fd = openat(r->snapshots_fd, v->key, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	if (v->fd < 0)
		return errno == ENOENT ? 0 : -errno;
	int res = image_lock(v->fd);
	return res == 1 ? (held_for_copy(v->fd) ? 0 : -EWOULDBLOCK) : res;
}

static void unlock_all(struct pool_group_remove *r)
{
	for (unsigned i = 0; i < r->count; i++)
		fd_close(&r->victims[i].fd);
}

static int lock_call(struct op *op)
{
	struct pool_group_remove *r = remove_of(op);
	int res = 0;
	for (unsigned i = 0; res == 0 && i < r->count; i++)
		res = lock_one(r, &r->victims[i]);
	if (res < 0)
		unlock_all(r);
	return res;
}

static int lock_end(struct op *op, int res)
{
	if (res == -EWOULDBLOCK)
		return op_fail(op, ERR_PRECONDITION,
			"an image of group snapshot %s is attached to a device or open in another process: losetup -j and fuser name who has it",
			remove_of(op)->group->name);
	return fail_sys(op, res, "locking the images of");
}

static int lock_undo(struct op *op)
{
	unlock_all(remove_of(op));
	return 0;
}

/* ---- the commit ---- */

/* It says from then on that the group is deleted, until no member has a name any more. Where there
 * is no room for that name the file goes at once: what is deleted is to make room. */
static int unlink_call(struct op *op)
{
	const struct pool_group_remove *r = remove_of(op);
	char name[GROUP_ASIDE_BYTES];
	group_aside_name(GROUP_GONE, r->group->random, r->group->key, name);
	int res = renameat(r->groups_fd, r->group->key, r->groups_fd, name) < 0 ? -errno : 0;
	if (res == -ENOSPC || res == -EDQUOT)
		res = unlinkat(r->groups_fd, r->group->key, 0) < 0 ? -errno : 0;
	return res == -ENOENT ? 0 : res;
}

static void leave_index(struct pool_object *o)
{
	char family[RECORD_ID_MAX], id[RECORD_ID_MAX];
	struct pool *pool = o->pool;
	strcpy(family, pool_family(o->rec));
	pool_object_id(o, id);
	pool_index_remove(o);
	list_push(&pool->dead, &pool_entry(o)->link);
	/* It may have been of a family, or the founder of one. */
	pool_family_update(pool, family);
	pool_family_update(pool, id);
}

static int unlink_end(struct op *op, int res)
{
	struct pool_group_remove *r = remove_of(op);
	if (res < 0)
		return fail_sys(op, res, "deleting the file of");
	for (unsigned i = 0; i < r->count; i++)
		leave_index(r->victims[i].object);
	pool_group_deleted(r->group);
	/* The trash has its own look at who has an image open. */
	unlock_all(r);
	r->pool->groups.removed++;
	pool_op_finish(r->pool);
	return 0;
}

static int sync_run(struct op *op)
{
	struct pool_group_remove *r = remove_of(op);
	pool_group_sync_init(&r->sync, op->reactor, r->pool, NULL);
	return op_child(op, &r->sync.op);
}

static const struct op_step remove_steps[] = {
	{"begin", .run = begin_run, .undo = begin_undo},
	{"lock", .call = lock_call, .end = lock_end, .undo = lock_undo},
	{"unlink", .call = unlink_call, .end = unlink_end, .flags = OP_COMMIT},
	{"sync", .run = sync_run},
	{NULL},
};

void pool_group_remove_init(
	struct pool_group_remove *r, struct reactor *reactor, struct pool_group *group)
{
	*r = (struct pool_group_remove){.group = group, .pool = group->pool};
	op_init(&r->op, reactor, "group_remove", remove_steps, NULL);
	r->op.lane = r->pool->lane;
}

void pool_group_remove_free(struct pool_group_remove *r)
{
	unlock_all(r);
	free(r->victims);
	r->victims = NULL;
	r->count = 0;
	pool_group_sync_free(&r->sync);
}
