/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pieces of a raw pool's disks. Happy path: the area has enough that is free, which is zeros. A
 * create that finds enough free bytes and too few zeroed ones waits for the trash, and looks again
 * whenever some was given back. It never waits for what nobody is overwriting: a reclaim of the
 * trash that ends without having given anything back ends the wait, too.
 */
#include "pool/raw_take.h"

#include "pool/private.h"
#include "pool/trash.h"

#include <errno.h>

/* The trash has what is missing, unless nobody can overwrite it. */
static int wait_for_zeros(struct op *op, struct pool *pool, struct pool_raw_wait *wait)
{
	struct pool_raw *raw = pool->raw;
	bool waited = wait->op != NULL;
	if (pool->pools->draining)
		return op_fail(op, ERR_UNAVAILABLE,
			"pool %s overwrites deleted volumes to make room, and the driver shuts down; try again",
			pool->name);
	if (raw->overlaps)
		return op_fail(op, ERR_UNAVAILABLE,
			"pool %s has %llu MiB of deleted volumes that are not overwritten, because the maps of two images have the same pieces: look at them with ringvol check",
			pool->name, (unsigned long long)(raw->dirty_bytes >> 20));
	if (waited && pool->trash == NULL && raw->dirty_bytes >= wait->dirty_bytes)
		return op_fail(op, ERR_UNAVAILABLE,
			"pool %s has %llu MiB of deleted volumes that cannot be overwritten now: look for errors of its disks in the kernel log, and for devices that somebody has open",
			pool->name, (unsigned long long)(raw->dirty_bytes >> 20));
	wait->op = op;
	/* One that runs may not have met all there is. */
	wait->dirty_bytes = pool->trash == NULL ? raw->dirty_bytes : UINT64_MAX;
	pool_trash_kick(pool);
	list_push(&raw->waiting, &wait->link);
	return op_wait(op);
}

static int take(struct op *op, struct pool *pool, uint64_t bytes, struct pool_raw_wait *wait,
	struct image_map *map)
{
	struct pool_raw *raw = pool->raw;
	int r = pool_check_ready(pool, &op->err);
	if (r < 0)
		return r;
	if (raw->unread[0] != '\0')
		return pool_raw_refuse_unread(pool, &op->err);
	r = bytes == 0 ? 0 : area_take(raw->area, bytes, map);
	if ((r == -ENOSPC || r == -E2BIG) && raw->dirty_bytes > 0)
		return wait_for_zeros(op, pool, wait);
	if (r == -ENOSPC || r == -E2BIG)
		return pool_raw_refuse_full(pool, bytes, &op->err);
	return r < 0 ? op_fail_sys(op, r, "taking %llu MiB of pool %s",
			       (unsigned long long)(bytes >> 20), pool->name)
		     : 0;
}

int pool_raw_take(struct op *op, struct pool *pool, uint64_t bytes, struct pool_raw_wait *wait,
	struct image_map *map)
{
	*wait = (struct pool_raw_wait){0};
	return take(op, pool, bytes, wait, map);
}

int pool_raw_take_end(struct op *op, struct pool *pool, uint64_t bytes, struct pool_raw_wait *wait,
	struct image_map *map, int res)
{
	return res < 0 ? res : take(op, pool, bytes, wait, map);
}
