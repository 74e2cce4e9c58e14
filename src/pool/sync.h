/* SPDX-License-Identifier: Apache-2.0 */
/* Making changes durable, and doing so again where an earlier sync failed. */
#ifndef RINGVOL_POOL_SYNC_H
#define RINGVOL_POOL_SYNC_H

#include "base/list.h"
#include "pool/pool.h"
#include "reactor/op.h"

/* One operation's wait for a directory to be durable. Embed it. */
struct pool_sync_wait {
	struct list link;
	struct op *op;
	bool alone; /* a sync of its own, which nobody shares */
	int fd;
	uint64_t removed; /* removals before it */
};

/*
 * Makes up for the sync that a build or a removal ended without. Until this has succeeded, a client
 * that repeats its call must not be told that what it asks for is done. Needed where
 * object->unsynced, or where pools_removal_unsynced() names a pool.
 */
struct pool_resync {
	struct op op;
	struct pool *pool;
	enum record_kind kind;
	struct pool_object *object; /* NULL: removals are made durable */
	/* private */
	struct pool_sync_wait sync;
	int dirfd;
	const char *key;
};
void pool_resync_init(struct pool_resync *s, struct reactor *reactor, struct pool *pool,
	enum record_kind kind, struct pool_object *object);
/* The pool of an id that names nothing in it any more, if the removal may not be durable yet; NULL:
 * it is. */
struct pool *pools_removal_unsynced(
	const struct pools *pools, enum record_kind kind, const char *id);

/* ---- for the files of src/pool ---- */

void pool_sync_open(struct pool *pool);
/* True where a sync of a directory makes all earlier changes of the file system durable. */
bool pool_one_log(const struct fs_features *features);
/* True: no other operation changes the pool. Then pool_sync_call() can follow the change in the
 * same trip to a thread, on what is noted here. */
bool pool_sync_alone(struct pool *pool, enum record_kind kind, struct pool_sync_wait *wait);
int pool_sync_call(const struct pool_sync_wait *wait);
/* Makes what was changed in volumes/ or snapshots/ durable: a wait of the current step of `op`. */
int pool_sync_dir(
	struct op *op, struct pool *pool, enum record_kind kind, struct pool_sync_wait *wait);
/* In the end() of a removal's sync that succeeded. */
void pool_sync_removed(struct pool *pool, enum record_kind kind, const struct pool_sync_wait *wait);

#endif
