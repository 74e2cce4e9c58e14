/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A build of a thin image. Its file has the id in its map, and a name in the trash, both durable,
 * before dm-thin hears of the id. So whatever crash comes, there is a file for each id that dm-thin
 * knows, and what is in the trash is deleted by the next run: an id that dm-thin does not know is
 * as good as deleted. A snapshot or clone is one message, for which the origin is held still from
 * the top of its stack.
 *
 * How it can fail: the thin pool cannot be had; dm-thin refuses; it knows the id already, which no
 * file had: that is nobody's to delete, and the next build takes another.
 */
#include "pool/build_thin.h"

#include "pool/build_park.h"
#include "pool/build_part.h"
#include "pool/private.h"
#include "pool/raw.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool build_not_thin(struct op *op)
{
	return pool_build_of(op)->thin_id == 0;
}

bool build_snaps(const struct pool_build *b)
{
	return b->thin_id != 0 && b->share_object != NULL;
}

/* ---- the id ---- */

bool build_id_done(struct op *op)
{
	const struct pool_build *b = pool_build_of(op);
	return b->pool->raw == NULL || !pool_raw_has_id(b->rec);
}

static int took(struct op *op)
{
	struct pool_build *b = pool_build_of(op);
	b->map = calloc(1, sizeof(*b->map));
	if (b->map == NULL)
		return op_fail_sys(op, -ENOMEM, "making %s", b->rec->name);
	int r = thin_take_id(b->pool, &b->thin_id, &op->err);
	if (r < 0)
		return r;
	b->map->thin_id = b->thin_id;
	b->disk = disk_ref(b->pool->raw->disk);
	b->thin_device.fd = -1;
	return 0;
}

int build_id_run(struct op *op)
{
	struct pool_build *b = pool_build_of(op);
	int r = thin_want(op, b->pool, &b->thin_wait);
	return r == 0 ? took(op) : r;
}

int build_id_end(struct op *op, int res)
{
	struct pool_build *b = pool_build_of(op);
	int r = thin_want_end(op, b->pool, &b->thin_wait, res);
	return r == 0 ? took(op) : r;
}

int build_id_undo(struct op *op)
{
	struct pool_build *b = pool_build_of(op);
	if (b->dropped)
		pool_trash_kick(b->pool);
	else if (!b->named)
		thin_drop_id(b->pool);
	return 0; /* else nobody knows what has it until the pool is loaded again */
}

/* ---- held by a name ---- */

int build_hold_call(struct op *op)
{
	return build_park_job(pool_build_of(op));
}

static int unhold_job(void *arg)
{
	struct pool_build *b = arg;
	return build_unpark(b, !b->thin_alien);
}

int build_hold_undo(struct op *op)
{
	return op_work(op, unhold_job, pool_build_of(op));
}

/* ---- said ---- */

int build_say_call(struct op *op)
{
	struct pool_build *b = pool_build_of(op);
	_cleanup_dm_ struct dm dm = {.fd = -1};
	struct thin_snap snap = {.id = b->thin_id, .origin = b->thin_origin};
	unsigned at;
	int r = dm_open(&dm, DM_CONTROL_PATH);
	if (r < 0)
		return r;
	if (b->share_object == NULL)
		return thin_pool_create(&dm, b->disk->uuid, b->thin_id);
	r = thin_still_of(b->share_object, b->share_frozen, &snap.still);
	return r == 0 ? thin_pool_snap(&dm, b->disk->uuid, &snap, 1, &at) : r;
}

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

int build_say_end(struct op *op, int res)
{
	struct pool_build *b = pool_build_of(op);
	b->thin_alien = res == -EEXIST;
	return res < 0 ? thin_fail(&op->err, res, b->pool, b->rec->name) : 0;
}

/* ---- written ---- */

bool build_device_done(struct op *op)
{
	const struct pool_build *b = pool_build_of(op);
	return b->thin_id == 0 || b->share_object != NULL || b->fill == NULL;
}

int build_device_call(struct op *op)
{
	struct pool_build *b = pool_build_of(op);
	err_clear(&b->thin_err);
	return thin_fill_open(
		&b->thin_device, b->disk, b->thin_id, record_image_bytes(b->rec), &b->thin_err);
}

int build_device_end(struct op *op, int res)
{
	struct pool_build *b = pool_build_of(op);
	if (res < 0 && b->thin_err.code != ERR_OK)
		op->err = b->thin_err;
	if (res < 0)
		return op_failed(op) ? res
				     : op_fail_sys(op, res, "opening a device for %s in pool %s",
					       b->rec->name, b->pool->name);
	b->places = calloc(1, sizeof(*b->places) + sizeof(b->places->at[0]));
	if (b->places == NULL)
		return op_fail_sys(op, -ENOMEM, "making %s", b->rec->name);
	b->places->count = 1;
	b->places->at[0] =
		(struct copy_place){.fd = b->thin_device.fd, .bytes = record_image_bytes(b->rec)};
	return 0;
}

static int close_job(void *arg)
{
	thin_fill_close(&((struct pool_build *)arg)->thin_device);
	return 0;
}

int build_device_undo(struct op *op)
{
	return op_work(op, close_job, pool_build_of(op));
}

int build_thin_flush(struct pool_build *b)
{
	int r = thin_fill_sync(&b->thin_device);
	if (r == 0)
		thin_fill_leave(&b->thin_device);
	return r;
}
