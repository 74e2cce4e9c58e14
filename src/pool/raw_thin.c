/* SPDX-License-Identifier: Apache-2.0 */
/* What is known of a thin pool. Nothing here blocks. */
#include "pool/raw_thin.h"

#include "disk/mapped.h"
#include "disk/tagged.h"
#include "pool/private.h"
#include "pool/raw.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

bool pool_raw_is_thin(const struct record *rec)
{
	return !rec->thick;
}

bool pool_raw_has_id(const struct record *rec)
{
	return !rec->thick && !rec->unformatted;
}

/* ---- ids ---- */

int thin_take_id(struct pool *pool, uint32_t *ret_id, struct err *err)
{
	struct pool_thin *thin = &pool->raw->thin;
	if (thin->ids_left == 0)
		return err_set(err, ERR_NO_ROOM,
			"the thin pool of pool %s has used up the numbers it has for volumes: restart the driver, which finds those that are free again",
			pool->name);
	*ret_id = thin->next_id++;
	thin->ids_left--;
	thin->files++;
	return 0;
}

void thin_drop_id(struct pool *pool)
{
	if (pool->raw != NULL && pool->raw->thin.files > 0)
		pool->raw->thin.files--;
}

static int compare_ids(const void *a, const void *b)
{
	const uint32_t *x = a, *y = b;
	return *x < *y ? -1 : *x > *y;
}

/* The longest row of numbers that nobody has. */
int thin_choose_ids(struct pool_thin *thin, uint32_t *ids, size_t count)
{
	uint32_t before = 0, best = 0, best_len = 0;
	int res = 0;
	if (count > 0)
		qsort(ids, count, sizeof(*ids), compare_ids);
	for (size_t i = 0; i <= count; i++) {
		uint32_t next = i < count ? ids[i] : IMAGE_MAP_THIN_MAX + 1;
		if (i > 0 && next == before)
			res = -EEXIST;
		else if (next - before - 1 > best_len) {
			best = before + 1;
			best_len = next - before - 1;
		}
		before = next;
	}
	thin->next_id = best;
	thin->ids_left = best_len;
	return res;
}

/* ---- who uses it ---- */

int thin_still_of(const struct pool_object *o, bool frozen, struct thin_still *ret)
{
	char tag[64];
	*ret = (struct thin_still){.frozen = frozen};
	if (o->kind != RECORD_VOLUME)
		return 0; /* a snapshot has none */
	snprintf(tag, sizeof(tag), "ringvol:%s:%s", record_id_pool(o->rec, o->pool->uuid8),
		o->rec->random);
	int r = tagged_uuid(tag, TAGGED_CRYPT_UUID_PREFIX, o->image_ino, ret->uuids[0]);
	if (r == 0)
		r = tagged_uuid(tag, MAPPED_UUID_PREFIX, o->image_ino, ret->uuids[1]);
	ret->count = 2;
	return r;
}

/* ---- what dm-thin refuses ---- */

int thin_fail(struct err *err, int res, const struct pool *pool, const char *name)
{
	if (res == -ENXIO || dm_is_absent(res))
		return err_set(err, ERR_UNAVAILABLE,
			"%s: the thin pool of pool %s is not active now: see 'ringvol doctor'",
			name, pool->name);
	if (res == -EOPNOTSUPP)
		return err_set(err, ERR_UNAVAILABLE,
			"%s: the thin pool of pool %s is read-only, its metadata are full or damaged: see 'ringvol doctor' and the kernel log",
			name, pool->name);
	if (res == -EEXIST)
		return err_set(err, ERR_UNAVAILABLE,
			"%s: the thin pool of pool %s has a volume under the number that was to be its, and no file says whose that is: try again",
			name, pool->name);
	if (res == -EBUSY)
		return err_set(err, ERR_PRECONDITION,
			"%s: somebody else has frozen the file system of its source: thaw it (fsfreeze -u) and try again",
			name);
	if (res == -ENODATA)
		return err_set(err, ERR_DATA_LOSS,
			"%s: the thin pool of pool %s does not have the bytes of its source: see 'ringvol check'",
			name, pool->name);
	return err_sys(err, res, "%s: a message to the thin pool of pool %s", name, pool->name);
}

/* ---- room ---- */

uint64_t thin_used_bytes(const struct pool *pool)
{
	const struct pool_thin *thin = &pool->raw->thin;
	return thin->looked ? thin->status.data_used * thin->block_bytes : 0;
}

uint64_t thin_unused_bytes(const struct pool *pool)
{
	const struct pool_thin *thin = &pool->raw->thin;
	uint64_t has = image_map_bytes(&thin->data), used = thin_used_bytes(pool);
	return thin->life == THIN_NONE || used > has ? 0 : has - used;
}

bool thin_is_wrong(const struct pool_thin *thin)
{
	return thin->looked && (thin->status.mode > THIN_DATA_FULL || thin->status.needs_check);
}

uint64_t thin_headroom_bytes(uint64_t area_bytes)
{
	const uint64_t gib = (uint64_t)1 << 30;
	uint64_t share = area_bytes / 16, least = area_bytes / 8 < gib ? area_bytes / 8 : gib;
	uint64_t bytes = share < least ? least : share > 4 * gib ? 4 * gib : share;
	bytes = bytes / IMAGE_MAP_ALIGN * IMAGE_MAP_ALIGN;
	return bytes < 2 * IMAGE_MAP_ALIGN ? 2 * IMAGE_MAP_ALIGN : bytes;
}

/* ---- health ---- */

static const char *wrong_of(const struct pool_thin *thin)
{
	if (thin->life == THIN_NONE)
		return NULL;
	if (thin->checking)
		return "its metadata are being checked after an unclean stop; wait";
	if (thin->life != THIN_UP)
		return thin->why[0] != '\0' ? thin->why : NULL;
	switch (thin->status.mode) {
	case THIN_FAILED:
		return "it has failed, and nothing of it can be read or written: see the kernel log for the cause and end what uses its volumes, then the driver checks it and makes it anew";
	case THIN_READ_ONLY:
		return "it takes no writes, its metadata are full or damaged: see the kernel log for the cause and end what uses its volumes, then the driver checks them";
	case THIN_WRITES:
	case THIN_DATA_FULL:
		break;
	}
	return thin->status.needs_check
		       ? "its metadata need a check: end what uses its volumes, then the driver does it"
		       : NULL;
}

void pool_thin_state(const struct pool *pool, struct pool_thin_state *ret)
{
	*ret = (struct pool_thin_state){0};
	if (pool->raw == NULL)
		return;
	const struct pool_thin *thin = &pool->raw->thin;
	const char *why = wrong_of(thin);
	ret->wrong = why != NULL;
	ret->wrong_since_ns = thin->wrong_since_ns;
	if (why != NULL)
		snprintf(ret->why, sizeof(ret->why), "%s", why);
	ret->low = thin->life == THIN_UP && thin->short_of_room;
	ret->low_since_ns = thin->short_since_ns;
	ret->unused_bytes = thin_unused_bytes(pool);
}
