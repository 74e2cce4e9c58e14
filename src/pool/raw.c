/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The room of a raw pool. All volumes are thick, so what is promised is what is taken, but for
 * volumes whose first NodeStage takes it (record.h: unformatted). There is no overcommit and no
 * reserve. Free is what the area has free, and what the trash has, for that will be free when it is
 * overwritten.
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
	free(raw);
}

/* ---- room ---- */

uint64_t pool_raw_bytes(const struct record *rec)
{
	if (!record_allocates(rec))
		return 0;
	return (record_image_bytes(rec) + IMAGE_MAP_ALIGN - 1) / IMAGE_MAP_ALIGN * IMAGE_MAP_ALIGN;
}

uint64_t pool_raw_free_bytes(const struct pool *pool)
{
	const struct pool_raw *raw = pool->raw;
	return area_free_bytes(raw->area) + raw->dirty_bytes;
}

/* The most that one volume can have, of what nobody has reserved. Only what is free counts for how
 * many pieces there would be: what is dirty may join some of them. */
static uint64_t left_bytes(const struct pool *pool)
{
	const struct pool_raw *raw = pool->raw;
	uint64_t free_bytes = pool_raw_free_bytes(pool);
	uint64_t promised = pool->reserved_bytes + pool->sum_owed;
	uint64_t left = free_bytes > promised ? free_bytes - promised : 0;
	uint64_t takeable = area_takeable_bytes(raw->area);
	if (raw->unread[0] != '\0')
		return 0;
	return raw->dirty_bytes == 0 && takeable < left ? takeable : left;
}

void pool_raw_room(const struct pool *pool, struct pool_room *ret)
{
	uint64_t left = left_bytes(pool) / POOL_SIZE_ALIGN * POOL_SIZE_ALIGN;
	*ret = (struct pool_room){
		.capacity_bytes = area_total_bytes(pool->raw->area),
		.free_bytes = pool_raw_free_bytes(pool),
		.provisioned_bytes = pool->sum_size,
		.allocated_bytes = pool->sum_allocated,
		.available_bytes = left,
		.available_thick_bytes = left,
		.zeroing_bytes = pool->raw->dirty_bytes,
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
	uint64_t left = left_bytes(pool), free_bytes = pool_raw_free_bytes(pool);
	unsigned long long need_mib = (bytes + (1 << 20) - 1) >> 20;
	if (raw->dirty_bytes == 0 && free_bytes >= bytes + pool->reserved_bytes + pool->sum_owed)
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

int pool_raw_reserve(struct pool_admission *a, struct err *err)
{
	struct pool *pool = a->pool;
	if (pool->raw->unread[0] != '\0')
		return pool_raw_refuse_unread(pool, err);
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
