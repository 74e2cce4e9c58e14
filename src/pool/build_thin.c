/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A build of a thin image. Its file has the id in its map, and a name in the trash, both durable,
 * before dm-thin hears of the id. So whatever crash comes, there is a file for each id that dm-thin
 * knows, and what is in the trash is deleted by the next run: an id that dm-thin does not know is
 * as good as deleted. A snapshot or clone is one message, for which the origin is held still from
 * the top of its stack; so is a volume with a file system, whose origin is a template.
 *
 * How it can fail: the thin pool cannot be had; dm-thin refuses; it knows the id already, which no
 * file had: that is nobody's to delete, and the next build takes another.
 */
#include "pool/build_thin.h"

#include "pool/build_park.h"
#include "pool/build_part.h"
#include "pool/private.h"
#include "pool/raw.h"
#include "pool/thin_template.h"

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
	return b->thin_id != 0 && (b->share_object != NULL || b->thin_origin != 0);
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

/* ---- the template ---- */

/* Where room is short, no template is kept (thin_steps.c), and bytes are copied. */
bool build_template_done(struct op *op)
{
	const struct pool_build *b = pool_build_of(op);
	return b->thin_id == 0 || b->share_object != NULL || b->format == NULL ||
	       b->pool->raw->thin.short_of_room;
}

int build_template_run(struct op *op)
{
	struct pool_build *b = pool_build_of(op);
	b->thin_template = thin_template_new(op->reactor, b->pool, b->format);
	if (b->thin_template == NULL)
		return op_fail_sys(op, -ENOMEM, "making %s", b->rec->name);
	return op_child(op, &b->thin_template->op);
}

int build_template_end(struct op *op, int res)
{
	struct pool_build *b = pool_build_of(op);
	b->thin_origin = b->thin_template->ret_id;
	return res;
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
	if (!build_snaps(b))
		return thin_pool_create(&dm, b->disk->uuid, b->thin_id);
	if (b->share_object == NULL) /* nobody writes to a template */
		return thin_pool_snap(&dm, b->disk->uuid, &snap, 1, &at);
	r = thin_still_of(b->share_object, b->share_frozen, &snap.still);
	return r == 0 ? thin_pool_snap(&dm, b->disk->uuid, &snap, 1, &at) : r;
}

int build_say_end(struct op *op, int res)
{
	struct pool_build *b = pool_build_of(op);
	b->thin_alien = res == -EEXIST;
	if (res == -ENODATA && b->share_object == NULL) {
		thin_templates_forget(&b->pool->raw->thin.templates, b->thin_origin);
		return op_fail(op, ERR_UNAVAILABLE,
			"%s: the thin pool of pool %s does not have its template any more: try again",
			b->rec->name, b->pool->name);
	}
	return res < 0 ? thin_fail(&op->err, res, b->pool, b->rec->name) : 0;
}

/* ---- written ---- */

bool build_device_done(struct op *op)
{
	const struct pool_build *b = pool_build_of(op);
	return b->thin_id == 0 || build_snaps(b) || b->fill == NULL;
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
