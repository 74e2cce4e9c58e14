/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keeping the thin pool of a raw pool: made when the first thin volume wants it, active after a
 * load, with room ahead of who writes, failing or waiting as the area has room or has none, and
 * taken away when no file has an id any more. One operation at a time a pool, from the loop.
 */
#ifndef RINGVOL_POOL_THIN_KEEP_H
#define RINGVOL_POOL_THIN_KEEP_H

#include "base/list.h"
#include "pool/pool.h"
#include "reactor/op.h"

/* A wait for the thin pool to be there and active. Embed it. */
struct thin_wait {
	struct list link;
	struct op *op;
};
/* For a step's run() and end(): makes or activates it if need be. ERR_UNAVAILABLE: it is being
 * checked, or cannot be used, and why; ERR_PRECONDITION: the kernel has no dm-thin; ERR_NO_ROOM. */
int thin_want(struct op *op, struct pool *pool, struct thin_wait *wait);
int thin_want_end(struct op *op, struct pool *pool, struct thin_wait *wait, int res);

/* The same for the bytes that a volume or snapshot has in it: what takes no writes may be read. */
bool thin_use_done(const struct pool_object *object);
int thin_use_end(struct op *op, struct pool *pool, struct thin_wait *wait, int res);

/* A load has ended well, or something has changed that it goes by: it looks at once. */
void thin_keep_kick(struct pool *pool);
/* Whether its operation runs. */
bool thin_keep_busy(const struct pool *pool);
/* The driver shuts down: who waits is told. */
void thin_keep_drain(struct pool *pool);
/* The pool is being freed, after the loop: what is not in use is taken away. Blocking. */
void thin_keep_close(struct pool *pool);

#endif
