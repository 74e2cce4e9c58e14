/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The operation that keeps a thin pool. Every THIN_LOOK_MS, and at once when somebody asks:
 *
 *   (no images, and somebody wants a thin volume: take pieces, name the two images, durable) ->
 *   (not active: what do the metadata say? -> thin_check after an unclean stop -> devices) ->
 *   look: how much is in use -> (too little unused: take pieces, write the maps, durable, longer
 *   tables) -> (templates that are not used any more: to the trash) ->
 *   (no file has an id for a while: devices away, both images to the trash)
 *
 * How it can fail: at any call. Then what was taken is given back where no map has it, why says
 * what is wrong, whoever waits is told, and the next look tries again. Thick volumes need none of
 * it.
 *
 * The order of the two names is metadata, data; they go the other way round. So metadata alone are
 * of a thin pool that never had a volume, or has none any more: the load makes trash of them.
 */
#include "pool/thin_steps.h"

#include "base/fd.h"
#include "pool/private.h"
#include "pool/raw.h"
#include "pool/raw_take.h"
#include "pool/thin_retire.h"
#include "pool/trash.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	THIN_PATIENCE_MS = 5000, /* then who waits for it is told */
	THIN_CHECK_MS = 600000,  /* its deadline */
	METADATA_GROW_PCT = 75,  /* in use: then the metadata get as much again */
};
#define METADATA_MAX     ((uint64_t)15 << 30)
#define FIRST_DATA_BYTES ((uint64_t)256 << 20)

/* ---- begin ---- */

static int begin_run(struct op *op)
{
	struct thin_keep *k = thin_keep_of(op);
	struct pool *pool = k->pool;
	int r = pool_op_begin(pool, &op->err);
	if (r < 0)
		return r;
	k->begun = true;
	k->disk = disk_ref(pool->raw->disk);
	k->dirfd = pool->fds[POOL_FD_THIN];
	k->templates_fd = pool->fds[POOL_FD_TEMPLATES];
	k->trash_fd = pool->fds[POOL_FD_TRASH];
	k->metadata = thin_of(k)->metadata;
	k->data = thin_of(k)->data;
	k->grows = k->files.written = false;
	if (thin_of(k)->refused)
		return op_fail(op, ERR_DATA_LOSS,
			"the thin pool of pool %s is not touched, because its images contradict those of its volumes: look at them with ringvol check",
			pool->name);
	return 0;
}

/* ---- images ---- */

static bool images_done(struct op *op)
{
	return thin_of(thin_keep_of(op))->life != THIN_NONE;
}

static uint64_t promised_thick(const struct pool *pool)
{
	return pool->reserved_bytes - pool->reserved_thin_bytes + pool->sum_owed;
}

/* What the area has beyond what is promised to others. */
static uint64_t area_left(const struct pool *pool)
{
	uint64_t free_bytes = area_free_bytes(pool->raw->area);
	uint64_t promised = promised_thick(pool);
	uint64_t left = free_bytes > promised ? free_bytes - promised : 0;
	uint64_t takeable = area_takeable_bytes(pool->raw->area);
	left = left < takeable ? left : takeable;
	return left / IMAGE_MAP_ALIGN * IMAGE_MAP_ALIGN;
}

static uint64_t first_metadata(const struct pool *pool)
{
	return thin_metadata_bytes(area_total_bytes(pool->raw->area));
}

/* Not all of the headroom: who wants the first volume may have to wait until it is overwritten. */
static uint64_t first_bytes(const struct pool *pool)
{
	uint64_t total = area_total_bytes(pool->raw->area), metadata = first_metadata(pool);
	uint64_t data = thin_headroom_bytes(total), most = FIRST_DATA_BYTES;
	uint64_t left = area_free_bytes(pool->raw->area) + pool->raw->dirty_bytes;
	uint64_t promised = promised_thick(pool), least = 2 * (uint64_t)IMAGE_MAP_ALIGN;
	left = left > promised + metadata ? left - promised - metadata : 0;
	data = data < most ? data : most;
	data = data < left ? data / IMAGE_MAP_ALIGN * IMAGE_MAP_ALIGN : left;
	return metadata + (data > least ? data : least);
}

/* What is there for both at once is there for one after the other. */
static int took_images(struct op *op)
{
	struct thin_keep *k = thin_keep_of(op);
	struct area *area = k->pool->raw->area;
	uint64_t metadata = first_metadata(k->pool);
	area_give_map(area, &k->data, 0);
	k->metadata = k->data = (struct image_map){0};
	int r = area_take(area, metadata, &k->metadata);
	if (r == 0)
		r = area_take(area, k->first_bytes - metadata, &k->data);
	if (r == 0)
		return 0;
	area_give_map(area, &k->metadata, 0);
	return op_fail_sys(op, r, "taking room for the thin pool of pool %s", k->pool->name);
}

static int images_run(struct op *op)
{
	struct thin_keep *k = thin_keep_of(op);
	k->first_bytes = first_bytes(k->pool);
	int r = pool_raw_take(op, k->pool, k->first_bytes, &k->pieces_wait, &k->data);
	return r == 0 ? took_images(op) : r;
}

static int images_end(struct op *op, int res)
{
	struct thin_keep *k = thin_keep_of(op);
	int r = pool_raw_take_end(op, k->pool, k->first_bytes, &k->pieces_wait, &k->data, res);
	return r == 0 ? took_images(op) : r;
}

static int images_undo(struct op *op)
{
	struct thin_keep *k = thin_keep_of(op);
	/* What has a name is known at the next load. */
	if (thin_of(k)->life == THIN_NONE && !k->files.named) {
		area_give_map(k->pool->raw->area, &k->metadata, 0);
		area_give_map(k->pool->raw->area, &k->data, 0);
		pool_raw_wake(k->pool);
	}
	return 0;
}

static int name_job(void *arg)
{
	struct thin_keep *k = arg;
	return thin_files_make(&k->files, k->dirfd, &k->metadata, &k->data);
}

static int name_run(struct op *op)
{
	struct thin_keep *k = thin_keep_of(op);
	k->files.named = false;
	return op_work(op, name_job, k);
}

static int name_end(struct op *op, int res)
{
	struct thin_keep *k = thin_keep_of(op);
	struct pool_thin *thin = thin_of(k);
	if (res < 0)
		return pool_fail_sys(k->pool, &op->err, res,
			"making the images of the thin pool of pool %s", k->pool->name);
	thin->metadata = k->metadata;
	thin->data = k->data;
	thin->life = THIN_DOWN;
	return 0;
}

/* ---- making it anew ---- */

static bool renew_done(struct op *op)
{
	const struct pool_thin *thin = thin_of(thin_keep_of(op));
	return thin->life != THIN_UP || !thin_is_wrong(thin);
}

static int renew_job(void *arg)
{
	struct thin_keep *k = arg;
	return thin_files_drop(k->disk);
}

static int renew_run(struct op *op)
{
	return op_work(op, renew_job, thin_keep_of(op));
}

static int renew_end(struct op *op, int res)
{
	struct thin_keep *k = thin_keep_of(op);
	if (res == -EBUSY) /* until its volumes were let go */
		return 0;
	if (res < 0)
		return op_fail_sys(op, res, "taking away the devices of the thin pool of pool %s",
			k->pool->name);
	thin_of(k)->life = THIN_DOWN;
	thin_of(k)->looked = false;
	return 0;
}

/* ---- activation ---- */

static bool is_up(struct op *op)
{
	return thin_of(thin_keep_of(op))->life == THIN_UP;
}

static int ask_job(void *arg)
{
	struct thin_keep *k = arg;
	return thin_files_ask(&k->files, k->disk, k->dirfd, &k->metadata, &k->data);
}

static int ask_run(struct op *op)
{
	return op_work(op, ask_job, thin_keep_of(op));
}

static int ask_end(struct op *op, int res)
{
	struct thin_keep *k = thin_keep_of(op);
	struct pool_thin *thin = thin_of(k);
	if (res == -EBADMSG)
		return op_fail(op, ERR_DATA_LOSS,
			"the metadata of the thin pool of pool %s are damaged: stop the driver and run 'ringvol check --repair'",
			k->pool->name);
	if (res == -ENOENT)
		return op_fail(op, ERR_UNAVAILABLE,
			"an image of the thin pool of pool %s is not there any more (" THIN_DIR
			"/): restart the driver, and look at the pool with ringvol check",
			k->pool->name);
	if (res < 0)
		return op_fail_sys(op, res, "looking at the thin pool of pool %s", k->pool->name);
	/* Who has an id got it from an active thin pool. The kernel would format them. */
	if (k->files.super.blank && thin->files > 0)
		return op_fail(op, ERR_DATA_LOSS,
			"the metadata of the thin pool of pool %s read as zeros, and %u images have their bytes in it: stop the driver and run 'ringvol check --repair'",
			k->pool->name, thin->files);
	thin->block_bytes = k->files.super.blank
				    ? thin_block_bytes(area_total_bytes(k->pool->raw->area))
				    : k->files.super.block_bytes;
	return 0;
}

/* Only after an unclean stop, or where dm-thin asks for it. */
static bool check_done(struct op *op)
{
	const struct thin_files *f = &thin_keep_of(op)->files;
	return is_up(op) || f->active || f->super.blank || (f->clean && !f->super.needs_check);
}

static int open_job(void *arg)
{
	struct thin_keep *k = arg;
	return thin_files_open_metadata(&k->files, k->disk, &k->metadata);
}

static int open_run(struct op *op)
{
	return op_work(op, open_job, thin_keep_of(op));
}

static int open_end(struct op *op, int res)
{
	struct thin_keep *k = thin_keep_of(op);
	enum err_code code = k->files.err.code != ERR_OK ? k->files.err.code : ERR_UNAVAILABLE;
	return res < 0 ? op_fail(op, code,
				 "opening the metadata of the thin pool of pool %s to check them: %s",
				 k->pool->name,
				 k->files.err.message[0] != '\0' ? k->files.err.message
								 : strerrordesc_np(-res))
		       : 0;
}

static int open_undo(struct op *op)
{
	fd_close(&thin_keep_of(op)->files.fd);
	return 0;
}

static int check_end(struct op *op, int res)
{
	struct thin_keep *k = thin_keep_of(op);
	k->checks = thin_of(k)->checking = false;
	ring_timer_cancel(op->reactor->ring, &k->timer);
	fd_close(&k->files.fd);
	/* Where the tool is not installed dm-thin looks by itself at what it reads. */
	if (res == -ENOENT && !k->files.super.needs_check)
		return 0;
	if (res == -ENOENT)
		return op_fail(op, ERR_PRECONDITION,
			"the metadata of the thin pool of pool %s need a check, and thin_check is not installed: install the Debian package thin-provisioning-tools",
			k->pool->name);
	if (res == -ETIMEDOUT)
		return op_fail(op, ERR_TIMEOUT,
			"checking the metadata of the thin pool of pool %s took longer than %d s: look for errors of its first disks in the kernel log",
			k->pool->name, THIN_CHECK_MS / 1000);
	if (res != 0)
		return op_fail(op, ERR_DATA_LOSS,
			"thin_check finds the metadata of the thin pool of pool %s damaged (%.120s): stop the driver and run 'ringvol check --repair'",
			k->pool->name, k->proc.output);
	return 0;
}

static int check_run(struct op *op)
{
	struct thin_keep *k = thin_keep_of(op);
	unsigned n = 0;
	k->proc =
		(struct proc){.timeout_ms = THIN_CHECK_MS, .files = {k->files.fd}, .file_count = 1};
	k->proc.argv[n++] = "thin_check";
	k->proc.argv[n++] = "-q";
	if (k->files.super.needs_check)
		k->proc.argv[n++] = "--clear-needs-check-flag";
	k->proc.argv[n] = PROC_FILE_PATH;
	int r = op_proc(op, &k->proc);
	if (r < 0)
		return check_end(op, r);
	k->checks = true;
	ring_timer_arm(op->reactor->ring, &k->timer, THIN_PATIENCE_MS);
	return r;
}

static void put_spec(struct thin_keep *k)
{
	const struct pool_thin *thin = thin_of(k);
	const struct image_map unknown = {0};
	uint64_t headroom = thin_headroom_bytes(area_total_bytes(k->pool->raw->area));
	k->files.written = false;
	k->files.was_metadata = thin->half_grown ? unknown : thin->metadata;
	k->files.was_data = thin->half_grown ? unknown : thin->data;
	k->files.spec = (struct thin_pool_spec){
		.disk = k->disk,
		.metadata = &k->metadata,
		.data = &k->data,
		.block_bytes = thin->block_bytes,
		.low_water_bytes = headroom / 2,
		.fails_when_full = k->files.fails_when_full,
	};
}

static int activate_job(void *arg)
{
	struct thin_keep *k = arg;
	return thin_files_activate(&k->files, k->dirfd);
}

static int activate_run(struct op *op)
{
	struct thin_keep *k = thin_keep_of(op);
	k->files.fails_when_full = false;
	put_spec(k);
	return op_work(op, activate_job, k);
}

static int activate_end(struct op *op, int res)
{
	struct thin_keep *k = thin_keep_of(op);
	if (res < 0) {
		if (k->files.err.code == ERR_OK)
			return pool_fail_sys(k->pool, &op->err, res,
				"activating the thin pool of pool %s", k->pool->name);
		op->err = k->files.err;
		return res;
	}
	thin_of(k)->life = THIN_UP;
	thin_of(k)->half_grown = false;
	pool_trash_kick(k->pool); /* what is in it waits for this */
	return 0;
}

/* ---- look, grow ---- */

static int look_job(void *arg)
{
	struct thin_keep *k = arg;
	return thin_files_look(&k->files, k->disk);
}

static int look_run(struct op *op)
{
	return op_work(op, look_job, thin_keep_of(op));
}

static int look_end(struct op *op, int res)
{
	struct thin_keep *k = thin_keep_of(op);
	struct pool_thin *thin = thin_of(k);
	if (res == -ENXIO) /* somebody has taken it away: it is made again */
		thin->life = THIN_DOWN;
	if (res < 0)
		return op_fail_sys(op, res, "looking at the thin pool of pool %s", k->pool->name);
	thin->status = k->files.status;
	thin->looked = true;
	thin->fails_when_full = thin->status.fails_when_full;
	pool_room_stale(k->pool);
	return 0;
}

/* Adds to the maps what there should be more of. */
static void take_more(struct thin_keep *k)
{
	struct pool *pool = k->pool;
	struct pool_thin *thin = thin_of(k);
	struct area *area = pool->raw->area;
	uint64_t headroom = thin_headroom_bytes(area_total_bytes(area));
	uint64_t unused = thin_unused_bytes(pool), has = image_map_bytes(&k->metadata);
	bool wants = unused < headroom / 2;
	uint64_t left = pool->raw->unread[0] != '\0' ? 0 : area_left(pool);
	uint64_t more = headroom - unused < left ? headroom - unused : left;
	more = more / IMAGE_MAP_ALIGN * IMAGE_MAP_ALIGN;
	if (wants && more > 0 && area_take(area, more, &k->data) == 0)
		k->grows = true;
	thin->short_of_room = wants && unused + (k->grows ? more : 0) < headroom / 2;
	left = area_left(pool);
	/* What they were given before has to come to them first. */
	if (!thin->half_grown &&
		thin->status.metadata_used >
			thin->status.metadata_total / 100 * METADATA_GROW_PCT &&
		has < METADATA_MAX && left >= has && area_take(area, has, &k->metadata) == 0)
		k->grows = true;
	/* What the trash and templates have comes to be free: who writes waits for it. */
	bool fails =
		thin->short_of_room && pool->raw->dirty_bytes == 0 && thin->templates.count == 0;
	k->grows |= thin->half_grown || fails != thin->fails_when_full;
	k->files.fails_when_full = fails;
	if (thin->short_of_room)
		pool_trash_kick(pool);
}

static bool grow_done(struct op *op)
{
	return !thin_keep_of(op)->grows;
}

static int take_run(struct op *op)
{
	struct thin_keep *k = thin_keep_of(op);
	if (thin_of(k)->status.mode <= THIN_DATA_FULL)
		take_more(k);
	return 0;
}

static int take_undo(struct op *op)
{
	struct thin_keep *k = thin_keep_of(op);
	struct pool_thin *thin = thin_of(k);
	if (!k->grows || k->files.written)
		return 0; /* the next look tries again, with the maps as they are */
	area_give_map(k->pool->raw->area, &k->data, image_map_bytes(&thin->data));
	area_give_map(k->pool->raw->area, &k->metadata, image_map_bytes(&thin->metadata));
	return 0;
}

static int grow_job(void *arg)
{
	struct thin_keep *k = arg;
	return thin_files_grow(&k->files, k->dirfd);
}

static int grow_run(struct op *op)
{
	struct thin_keep *k = thin_keep_of(op);
	put_spec(k);
	return op_work(op, grow_job, k);
}

static int grow_end(struct op *op, int res)
{
	struct thin_keep *k = thin_keep_of(op);
	struct pool_thin *thin = thin_of(k);
	if (k->files.written) {
		thin->metadata = k->metadata;
		thin->data = k->data;
	}
	thin->half_grown = res < 0 && (thin->half_grown || k->files.written);
	if (res == 0) {
		thin->fails_when_full = k->files.fails_when_full;
		return 0;
	}
	if (k->files.err.code == ERR_OK)
		return pool_fail_sys(
			k->pool, &op->err, res, "growing the thin pool of pool %s", k->pool->name);
	op->err = k->files.err;
	return res;
}

const struct op_step thin_steps[] = {
	{"begin", .run = begin_run},
	{"images", .run = images_run, .end = images_end, .undo = images_undo, .done = images_done},
	{"name images", .run = name_run, .end = name_end, .done = images_done},
	{"make anew", .run = renew_run, .end = renew_end, .done = renew_done},
	{"ask", .run = ask_run, .end = ask_end, .done = is_up},
	{"open metadata", .run = open_run, .end = open_end, .undo = open_undo, .done = check_done},
	{"check", .run = check_run, .end = check_end, .done = check_done},
	{"activate", .run = activate_run, .end = activate_end, .done = is_up},
	{"look", .run = look_run, .end = look_end},
	{"take", .run = take_run, .undo = take_undo},
	{"grow", .run = grow_run, .end = grow_end, .done = grow_done},
	{"templates", .run = thin_templates_run, .end = thin_templates_end,
		.done = thin_templates_done},
	{"retire", .run = thin_retire_run, .end = thin_retire_end, .done = thin_retire_done},
	{NULL},
};
