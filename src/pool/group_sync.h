/* SPDX-License-Identifier: Apache-2.0 */
/* What follows the commit of a creation or a deletion, or makes up for it where that ended without.
 * Until it has succeeded, a client that repeats its call must not be told that what it asks for is
 * done. */
#ifndef RINGVOL_POOL_GROUP_SYNC_H
#define RINGVOL_POOL_GROUP_SYNC_H

#include "pool/group.h"
#include "reactor/op.h"

struct pool_group_sync {
	struct op op;
	struct pool *pool;
	/* NULL: deletions are made durable, and then the members of what was deleted are moved to
	 * the trash. */
	struct pool_group *group;
	/* private */
	uint64_t removed;
	struct pool_group **swept;
	unsigned count;
	int snapshots_fd, trash_fd, groups_fd;
	bool one_log;
};
/* Needed where group->unsynced, or where pools_group_removal_unsynced() names a pool. */
void pool_group_sync_init(struct pool_group_sync *s, struct reactor *reactor, struct pool *pool,
	struct pool_group *group);
void pool_group_sync_free(struct pool_group_sync *s); /* what is left after the end */
/* The pool of an id that names no group in it any more, if the deletion may not be durable or not
 * be over yet; NULL: it is. */
struct pool *pools_group_removal_unsynced(const struct pools *pools, const char *id);

/* ---- for the files of src/pool ---- */

/* A wait of the current step: syncs groups/. Removals up to *ret_removed are durable then. */
int group_sync_dir(struct op *op, struct pool *pool, uint64_t *ret_removed);
/* In that step's end(), when it succeeded. */
void group_sync_done(struct pool *pool, uint64_t removed);

#endif
