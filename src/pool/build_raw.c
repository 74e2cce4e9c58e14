/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A build in a raw pool. Its image is a file without blocks, whose map says which pieces of the
 * disks have its bytes. Pieces that are taken are zeros. What no map has is taken for zeros at the
 * next load. So before the first byte is written there, the file has its map and a name, in the
 * trash, and both are durable. A build that fails after that leaves a deleted image, which is
 * overwritten; one that fails before leaves nothing, and gives its pieces back.
 */
#include "pool/build_raw.h"

#include "disk/places.h"
#include "disk/zero.h"
#include "pool/build_park.h"
#include "pool/build_part.h"
#include "pool/build_thin.h"
#include "pool/private.h"
#include "pool/raw.h"
#include "pool/raw_take.h"
#include "pool/trash.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- pieces ---- */

bool build_pieces_done(struct op *op)
{
	return pool_build_of(op)->pool->raw == NULL || pool_build_of(op)->thin_id != 0;
}

/* What the build has of the pool, as long as it lives: the pool may be loaded anew behind its end.
 */
static int took(struct op *op)
{
	struct pool_build *b = pool_build_of(op);
	pool_admit_has(&b->room, image_map_bytes(b->map));
	b->disk = disk_ref(b->pool->raw->disk);
	int r = disk_places(b->disk, b->map, &b->places);
	if (r == 0)
		return 0;
	area_give_map(b->pool->raw->area, b->map, 0);
	return op_fail_sys(
		op, r, "finding %s on the disks of pool %s", b->rec->name, b->pool->name);
}

int build_pieces_run(struct op *op)
{
	struct pool_build *b = pool_build_of(op);
	b->map = calloc(1, sizeof(*b->map));
	if (b->map == NULL)
		return op_fail_sys(op, -ENOMEM, "making %s", b->rec->name);
	int r = pool_raw_take(op, b->pool, pool_raw_bytes(b->rec), &b->pieces_wait, b->map);
	return r == 0 ? took(op) : r;
}

int build_pieces_end(struct op *op, int res)
{
	struct pool_build *b = pool_build_of(op);
	int r = pool_raw_take_end(
		op, b->pool, pool_raw_bytes(b->rec), &b->pieces_wait, b->map, res);
	return r == 0 ? took(op) : r;
}

int build_pieces_undo(struct op *op)
{
	struct pool_build *b = pool_build_of(op);
	struct pool_raw *raw = b->pool->raw;
	if (!b->wrote && !b->named) {
		area_give_map(raw->area, b->map, 0);
		pool_raw_wake(b->pool);
	} else if (b->dropped) {
		raw->dirty_bytes += image_map_bytes(b->map);
		pool_trash_kick(b->pool);
	} /* else nobody knows what has them: they stay taken until the pool is loaded again */
	return 0;
}

/* ---- park ---- */

bool build_park_done(struct op *op)
{
	const struct pool_build *b = pool_build_of(op);
	return b->pool->raw == NULL || b->fill == NULL || b->thin_id != 0;
}

int build_park_run(struct op *op)
{
	struct pool_build *b = pool_build_of(op);
	build_name_parked(b);
	return op_work(op, build_park_job, b);
}

static int unpark_job(void *arg)
{
	struct pool_build *b = arg;
	return build_unpark(b, b->wrote);
}

int build_park_undo(struct op *op)
{
	return op_work(op, unpark_job, pool_build_of(op));
}

/* ---- flush ---- */

int build_flush_job(void *arg)
{
	struct pool_build *b = arg;
	return b->thin_id != 0 ? build_thin_flush(b) : disk_flush(b->disk);
}
