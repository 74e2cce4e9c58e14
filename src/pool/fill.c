/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether a pool's file system is full or nearly, for who asks after health: owns the last numbers
 * seen (by a measure, or by the look that each pool gets every POOL_CHECK_MS) and since when it is
 * so. Admission does not go by this: it has its own accounts (room.c). Cannot fail.
 */
#include "pool/private.h"

enum {
	/* Percent free. Below the default reserve of 5%, so that a pool whose promises are within
	 * its space is not called nearly full when its volumes use what they were promised. */
	NEARLY_PCT = 3,
	ROOMY_PCT = 4, /* and to leave that again, so that it does not flap */
	FULL_SHARE = 256,
	FULL_BYTES_MAX = 16 << 20,
};

/* File systems keep a little for themselves: writes fail somewhat before nothing is free. */
static uint64_t full_below(uint64_t capacity)
{
	uint64_t share = capacity / FULL_SHARE;
	return share < FULL_BYTES_MAX ? share : FULL_BYTES_MAX;
}

static enum pool_fill_level level_of(enum pool_fill_level was, uint64_t capacity, uint64_t free)
{
	uint64_t full = full_below(capacity) * (was == POOL_FULL ? 2 : 1);
	uint64_t nearly = capacity / 100 * (was == POOL_ROOMY ? NEARLY_PCT : ROOMY_PCT);
	if (capacity == 0)
		return POOL_ROOMY;
	return free < full ? POOL_FULL : free < nearly ? POOL_NEARLY_FULL : POOL_ROOMY;
}

void pool_fill_see(struct pool *pool, uint64_t capacity_bytes, uint64_t free_bytes)
{
	struct pool_fill *fill = &pool->fill;
	enum pool_fill_level level = level_of(fill->level, capacity_bytes, free_bytes);
	if (level != fill->level)
		fill->since_ns = ring_now_ns(pool->pools->reactor->ring);
	fill->level = level;
	fill->capacity_bytes = capacity_bytes;
	fill->free_bytes = free_bytes;
}

const struct pool_fill *pool_fill(const struct pool *pool)
{
	return &pool->fill;
}
