/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A group: snapshots of several volumes of one pool, of one moment, made and deleted together. Its
 * members are snapshots like others, whose records name the group. They count only while there is
 * the file that lists them:
 *
 *   groups/<key>   name, time and members of a group, as text (group_file.h)
 *
 * It gets that name when all members have theirs, which is the commit of all at once. Before, and
 * after the group was deleted, it has another one, and a load sends its members to the trash: an
 * attempt cut short has left them, or a deletion. Members of a group that has no file at all are
 * quarantined, as that may have been lost. A group that lacks a member is damaged, and said to be
 * so: it is never shown as a smaller one.
 */
#ifndef RINGVOL_POOL_GROUP_H
#define RINGVOL_POOL_GROUP_H

#include "pool/pool.h"

enum {
	POOL_GROUP_MEMBERS_MAX = 128,
	POOL_GROUPS_MAX = 10000, /* of one pool; then ERR_NO_ROOM */
};

struct pool_group {
	struct list link; /* of those that are gone */
	struct pool *pool;
	char key[RECORD_KEY_MAX];
	const char *why; /* static: what is wrong with its file; NULL: nothing */
	char name[RECORD_NAME_MAX + 1];
	char random[9];
	uint64_t created_ns;
	bool found;    /* group_load.c's */
	bool unsynced; /* its creation is not known to be durable: group_sync.h */
	unsigned count;
	char (*members)[RECORD_ID_MAX]; /* ids of snapshots */
};

/* By id. *ret is set only with 0. Errors as pools_find_id(): ERR_DATA_LOSS: its file is damaged. */
int pools_find_group(
	const struct pools *pools, const char *id, struct pool_group **ret, struct err *err);
/* Of the first pool that has one of that name, maybe a damaged one; NULL: none has. */
struct pool_group *pools_find_group_name(const struct pools *pools, const char *name);
/* In the order of keys, the first behind after_key ("": the first of all); NULL at the end. */
struct pool_group *pool_next_group(const struct pool *pool, const char *after_key);
void pool_group_id(const struct pool_group *group, char ret_id[RECORD_ID_MAX]);
/* The snapshot. NULL: it is gone, or its record is damaged; *ret_why says so (static). */
struct pool_object *pool_group_member(
	const struct pool_group *group, unsigned i, const char **ret_why);
/* 0, or ERR_DATA_LOSS: a member is missing or not whole. */
int pool_group_check(const struct pool_group *group, struct err *err);

/* ---- for the files of src/pool ---- */

/* With room for so many members; NULL: out of memory. */
struct pool_group *pool_group_new(const char *key, unsigned members);
/* Takes the group; -ENOMEM. */
int pool_group_insert(struct pool *pool, struct pool_group *group);
/* Out of the pool, and put aside until the pool is closed. */
void pool_group_put_aside(struct pool_group *group);
/* The same of one that was deleted: group_sync.h sweeps its members. */
void pool_group_deleted(struct pool_group *group);
struct pool_group *pool_group_find(const struct pool *pool, const char *key);
void pool_group_free(struct pool_group *group); /* NULL is legal */
void pool_groups_close(struct pool *pool);

#endif
