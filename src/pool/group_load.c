/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loading groups: the files of groups/ are read, and each member looks for its own. A member whose
 * group's file says that it is being made or was deleted is left from an attempt or a deletion cut
 * short: it goes to the trash, and afterwards the file. Nothing else says that a group is not: a
 * member of which there is no file at all is quarantined, because somebody has removed that, or has
 * brought back a part of the pool. A directory groups/ that is not there is made, unless there are
 * members.
 *
 * How it can fail: a member cannot be moved to the trash. Then the pool is not loaded, and a later
 * look tries again.
 */
#include "pool/group_load.h"

#include "base/buf.h"
#include "pool/group.h"
#include "pool/group_file.h"
#include "pool/trash.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool is_member(const struct pool_found *f)
{
	return f->kind == RECORD_SNAPSHOT && f->rec != NULL && f->rec->group[0] != '\0';
}

static void quarantine(struct pool_found *f, const char *why)
{
	record_free(f->rec);
	f->rec = NULL;
	f->why = why;
}

/* ---- the directory ---- */

static int open_null(struct group_load *l)
{
	l->fds[POOL_FD_GROUPS] = open("/dev/null", O_RDONLY | O_CLOEXEC);
	return l->fds[POOL_FD_GROUPS] < 0 ? -errno : 0;
}

static int open_dir(struct group_load *l)
{
	l->fds[POOL_FD_GROUPS] = openat(l->fds[POOL_FD_ROOT], pool_dir_names[POOL_FD_GROUPS],
		O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	return l->fds[POOL_FD_GROUPS] < 0 ? -errno : 0;
}

/* Durable before anything is named in it: a directory that is lost would quarantine members. */
static int make_dir(struct group_load *l)
{
	int root = l->fds[POOL_FD_ROOT];
	if (mkdirat(root, pool_dir_names[POOL_FD_GROUPS], 0700) < 0) {
		l->dir = GROUPS_UNMADE;
		return errno == EROFS || errno == ENOSPC || errno == EDQUOT ? open_null(l) : -errno;
	}
	int r = open_dir(l);
	if (r == 0 && (fsync(l->fds[POOL_FD_GROUPS]) < 0 || fsync(root) < 0))
		r = -errno;
	return r;
}

static int find_dir(struct group_load *l)
{
	int r = open_dir(l);
	if (r != -ENOENT)
		return r;
	for (size_t i = 0; i < l->found_count; i++)
		if (is_member(&l->found[i])) {
			l->dir = GROUPS_LOST;
			quarantine(&l->found[i], "it is of a group, and the pool has lost its "
						 "directory groups/");
		}
	return l->dir == GROUPS_LOST || l->read_only ? open_null(l) : make_dir(l);
}

/* ---- the files ---- */

/* A group that is not there. */
struct group_aside_file {
	char random[9], key[RECORD_KEY_MAX];
	char name[GROUP_ASIDE_BYTES];
};

static int read_aside(struct group_load *l, const char *name)
{
	struct group_aside_file aside;
	if (!group_aside_parse(name, aside.random, aside.key))
		return 0;
	snprintf(aside.name, sizeof(aside.name), "%s", name);
	if (array_grow(&l->aside, &l->aside_cap, l->aside_count, sizeof(aside)) < 0)
		return -ENOMEM;
	l->aside[l->aside_count++] = aside;
	return 0;
}

static int read_one(void *arg, const char *name)
{
	struct group_load *l = arg;
	struct pool_group *group;
	if (!record_key_valid(name))
		return read_aside(l, name);
	int r = group_read(l->fds[POOL_FD_GROUPS], name, &group);
	if (r == 0)
		list_push(l->groups, &group->link);
	return r == -ENOENT ? 0 : r;
}

static int compare_keys(const void *a, const void *b)
{
	const struct pool_group *const *x = a, *const *y = b;
	return strcmp((*x)->key, (*y)->key);
}

static int sort_groups(struct group_load *l)
{
	list_for_each (link, l->groups) {
		if (array_grow(&l->sorted, &l->cap, l->count, sizeof(struct pool_group *)) < 0)
			return -ENOMEM;
		l->sorted[l->count++] = container_of(link, struct pool_group, link);
	}
	if (l->count > 0)
		qsort(l->sorted, l->count, sizeof(struct pool_group *), compare_keys);
	return 0;
}

static const struct pool_group *find_group(const struct group_load *l, const char *key)
{
	struct pool_group want, *at = &want;
	strcpy(want.key, key);
	struct pool_group **found = l->count == 0
					    ? NULL
					    : bsearch(&at, l->sorted, l->count,
						      sizeof(struct pool_group *), compare_keys);
	return found == NULL ? NULL : *found;
}

static bool lists(const struct pool_group *group, const struct pool_found *f)
{
	struct record_id id;
	for (unsigned i = 0; i < group->count; i++)
		if (record_id_parse(group->members[i], &id) == 0 && strcmp(id.key, f->key) == 0 &&
			strcmp(id.random, f->rec->random) == 0)
			return true;
	return false;
}

/* ---- the members ---- */

static bool is_aside(const struct group_load *l, const struct record_id *id)
{
	for (size_t i = 0; i < l->aside_count; i++)
		if (strcmp(l->aside[i].random, id->random) == 0 &&
			strcmp(l->aside[i].key, id->key) == 0)
			return true;
	return false;
}

/* Whether its group is not there, for certain. */
static bool is_orphan(const struct group_load *l, struct pool_found *f)
{
	struct record_id id;
	if (record_id_parse(f->rec->group, &id) < 0 || strcmp(id.pool, l->uuid8) != 0) {
		quarantine(f, "its record names a group that is none of this pool");
		return false;
	}
	const struct pool_group *group = find_group(l, id.key);
	bool its = group != NULL && (group->why != NULL || strcmp(group->random, id.random) == 0);
	if (!its && is_aside(l, &id))
		return true;
	if (!its)
		quarantine(f, "the file of its group is missing in groups/");
	else if (group->why == NULL && !lists(group, f))
		quarantine(f, "its group does not list it");
	return false;
}

static int drop(const struct group_load *l, struct pool_found *f)
{
	char name[TRASH_NAME_BYTES];
	pool_random_hex(name, TRASH_NAME_BYTES - 1);
	int r = renameat2(
		l->fds[POOL_FD_SNAPSHOTS], f->key, l->fds[POOL_FD_TRASH], name, RENAME_NOREPLACE);
	if (r < 0 && errno != EROFS && errno != ENOENT)
		return -errno;
	record_free(f->rec);
	f->rec = NULL;
	return 0;
}

/* Their members are in the trash: durably so before the last that says what they were is gone. What
 * cannot be done now the next load does. */
static void drop_aside(const struct group_load *l)
{
	if (l->aside_count == 0 || l->read_only)
		return;
	if (!l->one_log &&
		(fsync(l->fds[POOL_FD_TRASH]) < 0 || fsync(l->fds[POOL_FD_SNAPSHOTS]) < 0))
		return;
	for (size_t i = 0; i < l->aside_count; i++)
		(void)unlinkat(l->fds[POOL_FD_GROUPS], l->aside[i].name, 0);
}

int group_load_run(struct group_load *l)
{
	int r = find_dir(l);
	if (r == 0 && l->dir == GROUPS_THERE)
		r = fd_each_name(l->fds[POOL_FD_GROUPS], read_one, l);
	if (r == -ENOTDIR) /* there can be none */
		r = 0;
	if (r == 0)
		r = sort_groups(l);
	size_t kept = 0;
	for (size_t i = 0; i < l->found_count; i++) {
		struct pool_found *f = &l->found[i];
		bool orphan = r == 0 && is_member(f) && is_orphan(l, f);
		int dropped = orphan ? drop(l, f) : 0;
		r = dropped < 0 ? dropped : r;
		if (!orphan || dropped < 0)
			l->found[kept++] = *f;
	}
	l->found_count = kept;
	if (r == 0)
		drop_aside(l);
	free(l->sorted);
	free(l->aside);
	return r;
}

/* ---- taking over ---- */

static bool is_same(const struct pool_group *a, const struct pool_group *b)
{
	return a->why == b->why && strcmp(a->random, b->random) == 0;
}

/* False: out of memory. */
static bool adopt_one(struct pool *pool, struct pool_group *found)
{
	struct pool_group *known = pool_group_find(pool, found->key);
	if (known != NULL && is_same(known, found)) {
		known->found = true;
		pool_group_free(found);
		return true;
	}
	if (known != NULL)
		pool_group_put_aside(known);
	found->found = true;
	if (pool_group_insert(pool, found) == 0)
		return true;
	pool_group_free(found);
	return false;
}

bool group_load_adopt(struct pool *pool, struct list *groups)
{
	bool complete = true;
	for (size_t i = 0; i < pool->groups.count; i++)
		pool->groups.at[i]->found = false;
	for (struct list *l; (l = list_pop(groups)) != NULL;)
		complete &= adopt_one(pool, container_of(l, struct pool_group, link));
	for (size_t i = pool->groups.count; i-- > 0;)
		if (!pool->groups.at[i]->found)
			pool_group_put_aside(pool->groups.at[i]);
	return complete;
}
