/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Looking at snapshots in the thin pool. Their ids and the metadata's map are taken on the loop,
 * and read with on a thread. While the thin pool is being checked or is away, nothing is said of
 * it.
 */
#include "pool/thin_snapshots.h"

#include "disk/thin_blocks.h"
#include "pool/private.h"
#include "pool/raw.h"

static int check_up(const struct pool *pool, struct err *err)
{
	const struct pool_thin *thin = &pool->raw->thin;
	if (thin->life == THIN_UP)
		return 0;
	return err_set(err, thin->why[0] != '\0' ? thin->why_code : ERR_UNAVAILABLE,
		"the thin pool of pool %s is not active%s%s; try again", pool->name,
		thin->why[0] != '\0' ? ": " : "", thin->why);
}

int pool_thin_snapshots_take(struct pool_thin_snapshots *s, const struct pool_object *base,
	const struct pool_object *target, struct err *err)
{
	const struct pool *pool = target->pool;
	int r = pool_check_ready(pool, err);
	if (r < 0)
		return r;
	s->target = pool_entry((struct pool_object *)target)->thin_id;
	s->base = base != NULL ? pool_entry((struct pool_object *)base)->thin_id : 0;
	if (s->target != 0 || s->base != 0)
		r = check_up(pool, err);
	if (r < 0)
		return r;
	s->metadata = pool->raw->thin.metadata;
	s->disk = disk_ref(pool->raw->disk);
	return 0;
}

int pool_thin_snapshots_window(const struct pool_thin_snapshots *s, uint64_t from, uint64_t to,
	struct extent_ranges *ret, uint64_t *ret_to)
{
	return thin_blocks_window(s->disk, &s->metadata, s->base, s->target, from, to, ret, ret_to);
}

void pool_thin_snapshots_release(struct pool_thin_snapshots *s)
{
	if (s->disk != NULL)
		disk_unref(s->disk);
	s->disk = NULL;
}
