/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The room of a raw pool. Thick volumes take what they are promised, but for those whose first
 * NodeStage takes it (record.h: unformatted); neither overcommit nor the reserve counts for them.
 * Free is what the area has free, and what the trash has, for that will be free when it is
 * overwritten; and what the thin pool has and does not use, for thin volumes alone.
 *
 *   thin:  (free + allocated by thin volumes that share nothing - reserve - promised to thick ones)
 *              * overcommit - sizes of thin volumes - reserved
 *   thick: free in the area - reserved and owed - what thin volumes may come to need of it
 *
 * What thin volumes have of their template's is counted once for each of them, and is there once:
 * so what they have allocated is never more than what is in use in the thin pool, less templates.
 * These are free: they go where room is short (thin_steps.c).
 */
#include "pool/raw.h"

#include "pool/private.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

void pool_raw_free(struct pool_raw *raw)
{
	if (raw == NULL)
		return;
	area_free(raw->area);
	if (raw->disk != NULL)
		disk_unref(raw->disk);
	thin_templates_free(&raw->thin.templates);
	free(raw);
}

/* ---- room ---- */

uint64_t pool_raw_bytes(const struct record *rec)
{
	if (!record_allocates(rec))
		return 0;
	return (record_image_bytes(rec) + IMAGE_MAP_ALIGN - 1) / IMAGE_MAP_ALIGN * IMAGE_MAP_ALIGN;
}

static uint64_t minus(uint64_t a, uint64_t b)
{
	return a > b ? a - b : 0;
}

/* Of the area, for thick volumes and for the thin pool to grow by. */
static uint64_t area_left(const struct pool *pool)
{
	return area_free_bytes(pool->raw->area) + pool->raw->dirty_bytes;
}

/* For thin volumes alone. */
static uint64_t thin_left(const struct pool *pool)
{
	return thin_unused_bytes(pool) + pool->raw->thin.templates.bytes;
}

uint64_t pool_raw_free_bytes(const struct pool *pool)
{
	return area_left(pool) + thin_left(pool);
}

static uint64_t promised_thick(const struct pool *pool)
{
	return minus(pool->reserved_bytes, pool->reserved_thin_bytes) + pool->sum_owed;
}

/* What thin volumes have already of what they were promised. */
static uint64_t thin_own(const struct pool *pool)
{
	const struct pool_thin *thin = &pool->raw->thin;
	uint64_t used = minus(thin_used_bytes(pool), thin->templates.bytes);
	return thin->looked && used < pool->sum_thin_own ? used : pool->sum_thin_own;
}

/* What the thin pool has to be grown by yet, for its volumes to have what they were promised. */
static uint64_t thin_owed(const struct pool *pool)
{
	double promised = (double)(pool->sum_thin_size + pool->reserved_thin_bytes);
	uint64_t needs = (uint64_t)(promised / pool->overcommit);
	return minus(needs, thin_own(pool) + thin_left(pool));
}

/* The most that one thick volume can have, of what nobody has reserved. Only what is free counts
 * for how many pieces there would be: what is dirty may join some of them. */
static uint64_t left_bytes(const struct pool *pool)
{
	const struct pool_raw *raw = pool->raw;
	uint64_t left = minus(area_left(pool), promised_thick(pool) + thin_owed(pool));
	uint64_t takeable = area_takeable_bytes(raw->area);
	if (raw->unread[0] != '\0')
		return 0;
	return raw->dirty_bytes == 0 && takeable < left ? takeable : left;
}

/* What thin volumes may be promised in all. */
static uint64_t most_thin(const struct pool *pool)
{
	uint64_t total = area_total_bytes(pool->raw->area);
	uint64_t kept = total / 100 * pool->reserve_pct;
	if (pool->raw->thin.life == THIN_NONE)
		kept += thin_metadata_bytes(total);
	uint64_t has = pool_raw_free_bytes(pool) + thin_own(pool);
	double space = (double)minus(has, kept + promised_thick(pool)) * pool->overcommit;
	return space < 9e18 ? (uint64_t)space : (uint64_t)9e18;
}

static uint64_t left_thin(const struct pool *pool)
{
	if (pool->raw->unread[0] != '\0')
		return 0;
	return minus(most_thin(pool), pool->sum_thin_size + pool->reserved_thin_bytes);
}

void pool_raw_room(const struct pool *pool, struct pool_room *ret)
{
	*ret = (struct pool_room){
		.capacity_bytes = area_total_bytes(pool->raw->area),
		.free_bytes = pool_raw_free_bytes(pool),
		.provisioned_bytes = pool->sum_size,
		.allocated_bytes = pool->sum_allocated,
		.available_bytes = left_thin(pool) / POOL_SIZE_ALIGN * POOL_SIZE_ALIGN,
		.available_thick_bytes = left_bytes(pool) / POOL_SIZE_ALIGN * POOL_SIZE_ALIGN,
		.zeroing_bytes = pool->raw->dirty_bytes,
		.thin_bytes = image_map_bytes(&pool->raw->thin.data),
		.thin_used_bytes = thin_used_bytes(pool),
	};
}

int pool_raw_refuse_unread(const struct pool *pool, struct err *err)
{
	return err_set(err, ERR_DATA_LOSS,
		"pool %s gives nothing out: the map of %s cannot be read, so what it occupies on the "
		"disks is not known: look at it with ringvol check",
		pool->name, pool->raw->unread);
}

int pool_raw_refuse_full(const struct pool *pool, uint64_t bytes, struct err *err)
{
	const struct pool_raw *raw = pool->raw;
	uint64_t left = left_bytes(pool), free_bytes = area_left(pool);
	unsigned long long need_mib = (bytes + (1 << 20) - 1) >> 20;
	if (raw->dirty_bytes == 0 && free_bytes >= bytes + promised_thick(pool) + thin_owed(pool))
		return err_set(err, ERR_NO_ROOM,
			"pool %s has %llu MiB free, in %u pieces; a volume takes %d at most, which "
			"is %llu MiB, and %llu MiB are needed: delete volumes, or add a disk with "
			"'ringvol pool grow'",
			pool->name, (unsigned long long)(free_bytes >> 20),
			area_free_extents(raw->area), IMAGE_MAP_PIECES_MAX,
			(unsigned long long)(left >> 20), need_mib);
	return err_set(err, ERR_NO_ROOM,
		"pool %s has %llu MiB left, %llu MiB are needed: delete volumes, or add a disk "
		"with 'ringvol pool grow'",
		pool->name, (unsigned long long)(left >> 20), need_mib);
}

/* As in a directory pool: what has promised more than it has takes nothing on. */
static int reserve_thin(struct pool_admission *a, struct err *err)
{
	struct pool *pool = a->pool;
	uint64_t most = most_thin(pool), left = left_thin(pool);
	uint64_t promised = pool->sum_thin_size + pool->reserved_thin_bytes;
	if (promised > most)
		return err_set(err, ERR_NO_ROOM,
			"pool %s has promised its thin volumes %llu MiB more than it has, as snapshots or thick volumes hold it: delete volumes or snapshots, add a disk with 'ringvol pool grow', or raise overcommit",
			pool->name, (unsigned long long)((promised - most + (1 << 20) - 1) >> 20));
	if (a->bytes > left)
		return err_set(err, ERR_NO_ROOM,
			"pool %s has %llu MiB left to promise to thin volumes, %llu MiB are needed: delete volumes or snapshots, add a disk with 'ringvol pool grow', or raise overcommit",
			pool->name, (unsigned long long)(left >> 20),
			(unsigned long long)((a->bytes + (1 << 20) - 1) >> 20));
	pool->reserved_bytes += a->bytes;
	pool->reserved_thin_bytes += a->bytes;
	a->reserved = a->bytes;
	return 0;
}

int pool_raw_reserve(struct pool_admission *a, struct err *err)
{
	struct pool *pool = a->pool;
	if (pool->raw->unread[0] != '\0')
		return pool_raw_refuse_unread(pool, err);
	if (!a->thick)
		return reserve_thin(a, err);
	if (a->bytes > left_bytes(pool))
		return pool_raw_refuse_full(pool, a->bytes, err);
	pool->reserved_bytes += a->bytes;
	a->reserved = a->bytes;
	return 0;
}

/* ---- who waits ---- */

void pool_raw_wake(struct pool *pool)
{
	struct list woken;
	if (pool->raw == NULL)
		return;
	list_init(&woken);
	list_splice(&woken, &pool->raw->waiting);
	for (struct list *l; (l = list_pop(&woken)) != NULL;)
		op_complete(container_of(l, struct pool_raw_wait, link)->op, 0);
}

/* ---- errors ---- */

int pool_fail_sys(const struct pool *pool, struct err *err, int res, const char *fmt, ...)
{
	char what[256];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(what, sizeof(what), fmt, ap);
	va_end(ap);
	if (pool->raw == NULL || res != -ENOSPC)
		return err_sys(err, res, "%s", what);
	err_set(err, ERR_NO_ROOM,
		"%s: the records of pool %s are full, the small file system on its first disk: "
		"delete volumes",
		what, pool->name);
	return res;
}
