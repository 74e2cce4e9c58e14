/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The new image of an unformatted volume. It is parked from the start, as the tool that formats it
 * works on a device, and a device is bound to an image that has a name. It has its record from the
 * start, too: so the trash leaves it alone as long as a device has it.
 *
 * The exchange of the two names is the commit: there is no moment at which the volume has no image,
 * and none at which it has half of one. How it can fail: no room for the blocks; a device that
 * still has the image; a sync. A sync that fails after the exchange leaves a volume whose creation
 * counts as not durable, and the next call makes it so.
 *
 * In a raw pool the new image has its pieces of the disks from the start, and its map and name are
 * durable before a device is made of it (build_raw.h). The old one has none.
 */
#include "pool/renew.h"

#include "base/fd.h"
#include "blockio/image.h"
#include "disk/zero.h"
#include "pool/build_thin.h"
#include "pool/index.h"
#include "pool/presence.h"
#include "pool/private.h"
#include "pool/raw_devices.h"
#include "pool/raw_take.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>

enum {
	LOCK_ATTEMPTS = 60,
	LOCK_PAUSE_MS = 50,
};

static struct pool_renew *renew_of(struct op *op)
{
	return container_of(op, struct pool_renew, op);
}

static struct pool *pool_of(struct op *op)
{
	return renew_of(op)->object->pool;
}

/* From the beginning to the commit: a pool that changes is not loaded anew. */
static void finish(struct pool_renew *n)
{
	if (n->begun)
		pool_op_finish(n->object->pool);
	n->begun = false;
}

void pool_renew_free(struct pool_renew *n)
{
	fd_close(&n->fd);
	record_free(n->rec);
	n->rec = NULL;
	disk_unref(n->disk);
	n->disk = NULL;
	finish(n);
}

/* ---- make ---- */

static int begin_run(struct op *op)
{
	struct pool_renew *n = renew_of(op);
	struct pool *pool = pool_of(op);
	struct record formatted = *n->object->rec;
	formatted.unformatted = false;
	n->rec = record_new(&formatted);
	int len = n->rec == NULL ? -ENOMEM
				 : record_print(n->rec, n->record_text, sizeof(n->record_text));
	if (len < 0)
		return op_fail_sys(op, len, "recording %s", formatted.name);
	n->record_len = (unsigned)len;
	n->dirfd = pool_fd_of(pool, RECORD_VOLUME);
	n->trash_fd = pool->fds[POOL_FD_TRASH];
	char *digits = stpcpy(n->name, TRASH_PARKED);
	pool_random_hex(digits, TRASH_NAME_BYTES - 1);
	int r = pool_op_begin(pool, &op->err);
	n->begun = r == 0;
	return r;
}

static int begin_undo(struct op *op)
{
	finish(renew_of(op));
	return 0;
}

/* ---- pieces, in a raw pool ---- */

static bool pieces_done(struct op *op)
{
	return pool_of(op)->raw == NULL || pool_raw_has_id(renew_of(op)->rec);
}

static int took(struct op *op, int res)
{
	struct pool_renew *n = renew_of(op);
	if (res == 0)
		n->disk = disk_ref(pool_of(op)->raw->disk);
	return res;
}

static int pieces_run(struct op *op)
{
	struct pool_renew *n = renew_of(op);
	return took(op,
		pool_raw_take(op, pool_of(op), pool_raw_bytes(n->rec), &n->pieces_wait, &n->map));
}

static int pieces_end(struct op *op, int res)
{
	struct pool_renew *n = renew_of(op);
	return took(op, pool_raw_take_end(op, pool_of(op), pool_raw_bytes(n->rec), &n->pieces_wait,
				&n->map, res));
}

/* Nothing was written to them. What a name has is known at the next load. */
static int pieces_undo(struct op *op)
{
	struct pool_renew *n = renew_of(op);
	if (n->named)
		return 0;
	area_give_map(pool_of(op)->raw->area, &n->map, 0);
	pool_raw_wake(pool_of(op));
	return 0;
}

/* ---- an id, of a thin one ---- */

static bool id_done(struct op *op)
{
	return pool_of(op)->raw == NULL || !pool_raw_has_id(renew_of(op)->rec);
}

static int took_id(struct op *op, int res)
{
	struct pool_renew *n = renew_of(op);
	return took(op, res == 0 ? thin_take_id(pool_of(op), &n->map.thin_id, &op->err) : res);
}

static int id_run(struct op *op)
{
	int r = thin_want(op, pool_of(op), &renew_of(op)->thin_wait);
	return r == 0 ? took_id(op, 0) : r;
}

static int id_end(struct op *op, int res)
{
	return took_id(op, thin_want_end(op, pool_of(op), &renew_of(op)->thin_wait, res));
}

static int id_undo(struct op *op)
{
	struct pool_renew *n = renew_of(op);
	if (!n->named)
		thin_drop_id(pool_of(op));
	return 0; /* else the next load makes trash of it */
}

/* ---- the file ---- */

static int open_call(struct op *op)
{
	struct pool_renew *n = renew_of(op);
	n->fd = openat(n->trash_fd, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	return n->fd < 0 ? -errno : 0;
}

static int open_end(struct op *op, int res)
{
	struct pool_renew *n = renew_of(op);
	return res < 0 ? pool_fail_sys(pool_of(op), &op->err, res,
				 "making a file for %s in pool %s", n->rec->name, pool_of(op)->name)
		       : 0;
}

/* The last close gives the blocks back, which may take long. */
static int close_job(void *arg)
{
	struct pool_renew *n = arg;
	struct stat st;
	/* A link that failed may have come about all the same. */
	n->named = fstat(n->fd, &st) < 0 || st.st_nlink > 0;
	fd_close(&n->fd);
	return 0;
}

static int open_undo(struct op *op)
{
	return op_work(op, close_job, renew_of(op));
}

static int size_call(struct op *op)
{
	const struct pool_renew *n = renew_of(op);
	int r = n->disk != NULL ? image_map_write(n->fd, &n->map)
				: image_hint_for_size(n->fd, record_image_bytes(n->rec));
	if (r == 0)
		r = image_resize(
			n->fd, record_image_bytes(n->rec), n->rec->thick && n->disk == NULL);
	if (r == 0 && fsetxattr(n->fd, RECORD_XATTR, n->record_text, n->record_len, 0) < 0)
		r = -errno;
	if (r == 0 && n->rec->claim[0] != '\0')
		(void)fsetxattr(n->fd, RECORD_CLAIM_XATTR, n->rec->claim, strlen(n->rec->claim), 0);
	/* Unlike the claim, they must not be lost. */
	if (r == 0 && n->object->attachments != NULL)
		r = attachments_write(n->fd, n->object->attachments);
	return r;
}

/* The blocks it takes were promised: what is owed goes when it is the volume's. */
static int park_call(struct op *op)
{
	struct pool_renew *n = renew_of(op);
	struct stat st;
	int r = fstat(n->fd, &st) < 0 ? -errno : fd_link(n->fd, n->trash_fd, n->name);
	/* No byte is written to a piece before it is known for good whose it is. */
	if (r == 0 && n->disk != NULL && fsync(n->trash_fd) < 0) {
		r = -errno;
		(void)unlinkat(n->trash_fd, n->name, 0);
	}
	if (r < 0)
		return r;
	n->image_dev = st.st_dev;
	n->image_ino = st.st_ino;
	return 0;
}

static int unpark_job(void *arg)
{
	struct pool_renew *n = arg;
	const char *digits = n->name + strlen(TRASH_PARKED);
	if (n->alien)
		return unlinkat(n->trash_fd, n->name, 0) < 0 ? -errno : 0;
	return renameat2(n->trash_fd, n->name, n->trash_fd, digits, RENAME_NOREPLACE) < 0 ? -errno
											  : 0;
}

/* Only what comes after it can fail, which is of a thin one. */
static int park_undo(struct op *op)
{
	return op_work(op, unpark_job, renew_of(op));
}

static bool say_done(struct op *op)
{
	return renew_of(op)->map.thin_id == 0;
}

static int say_call(struct op *op)
{
	const struct pool_renew *n = renew_of(op);
	_cleanup_dm_ struct dm dm = {.fd = -1};
	int r = dm_open(&dm, DM_CONTROL_PATH);
	return r == 0 ? thin_pool_create(&dm, n->disk->uuid, n->map.thin_id) : r;
}

static int say_end(struct op *op, int res)
{
	struct pool_renew *n = renew_of(op);
	n->alien = res == -EEXIST;
	if (res < 0)
		return thin_fail(&op->err, res, pool_of(op), n->rec->name);
	/* A device takes only an image that nobody has open. */
	fd_close(&n->fd);
	return 0;
}

static int park_end(struct op *op, int res)
{
	struct pool_renew *n = renew_of(op);
	if (res < 0)
		return open_end(op, res);
	if (n->map.thin_id != 0)
		return 0; /* until that is said */
	/* A device takes only an image that nobody has open. */
	fd_close(&n->fd);
	return 0;
}

static const struct op_call make_calls[] = {
	{"open", .fn = open_call, .end = open_end, .undo = open_undo},
	{"size", .fn = size_call, .end = open_end},
	{"park", .fn = park_call, .end = park_end, .undo = park_undo},
	{"say", .fn = say_call, .end = say_end, .done = say_done},
};

static int make_run(struct op *op)
{
	return op_calls(op, make_calls, sizeof(make_calls) / sizeof(make_calls[0]));
}

static const struct op_step make_steps[] = {
	{"begin", .run = begin_run, .undo = begin_undo},
	{"pieces", .run = pieces_run, .end = pieces_end, .undo = pieces_undo, .done = pieces_done},
	{"id", .run = id_run, .end = id_end, .undo = id_undo, .done = id_done},
	{"make", .run = make_run},
	{NULL},
};

void pool_renew_make_init(struct pool_renew *n, struct reactor *reactor, struct pool_object *object)
{
	*n = (struct pool_renew){.object = object, .fd = -1};
	op_init(&n->op, reactor, "pool_renew", make_steps, NULL);
	n->op.lane = object->pool->lane;
}

/* ---- commit ---- */

/* -EBUSY: somebody has it. */
static int lock_job(void *arg)
{
	struct pool_renew *n = arg;
	struct stat st;
	if (n->fd < 0)
		n->fd = openat(n->trash_fd, n->name, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	if (n->fd < 0 || fstat(n->fd, &st) < 0)
		return -errno;
	if (st.st_dev != n->image_dev || st.st_ino != n->image_ino)
		return -ESTALE;
	int r = image_lock(n->fd);
	if (r == 0 && n->disk != NULL)
		r = raw_devices_check(n->disk, &n->map);
	return r > 0 || r == -EWOULDBLOCK ? -EBUSY : r;
}

static int lock_run(struct op *op)
{
	renew_of(op)->attempts = 0;
	return op_work(op, lock_job, renew_of(op));
}

/* A device just cleared lives on for a moment while somebody looks at it. */
static int lock_end(struct op *op, int res)
{
	struct pool_renew *n = renew_of(op);
	bool paused = n->attempts % 2 == 1;
	if (paused || (res == -EBUSY && n->attempts / 2 + 1 < LOCK_ATTEMPTS)) {
		n->attempts++;
		return paused ? op_work(op, lock_job, n) : op_sleep(op, LOCK_PAUSE_MS);
	}
	if (res == -EBUSY)
		return op_fail(op, ERR_PRECONDITION,
			"volume %s: a device that it was formatted through is still in use (dmsetup ls, losetup -a on the node); try again later",
			n->rec->name);
	return res < 0 ? op_fail_sys(op, res, "opening the new image of %s", n->rec->name) : 0;
}

static int data_run(struct op *op)
{
	io_uring_prep_fsync(op_sqe(op), renew_of(op)->fd, 0);
	return op_submit(op);
}

static int data_end(struct op *op, int res)
{
	return res < 0 ? op_fail_sys(op, res, "making the data of %s durable in pool %s",
				 renew_of(op)->rec->name, pool_of(op)->name)
		       : 0;
}

static bool flush_done(struct op *op)
{
	return renew_of(op)->disk == NULL;
}

static int flush_call(struct op *op)
{
	return disk_flush(renew_of(op)->disk);
}

static int exchange_call(struct op *op)
{
	const struct pool_renew *n = renew_of(op);
	int r = renameat2(n->trash_fd, n->name, n->dirfd, n->object->key, RENAME_EXCHANGE);
	return r < 0 ? -errno : 0;
}

static int exchange_end(struct op *op, int res)
{
	struct pool_renew *n = renew_of(op);
	struct pool_object *o = n->object;
	struct stat st;
	if (res < 0)
		return op_fail_sys(op, res, "putting the image of %s into its place in pool %s",
			n->rec->name, o->pool->name);
	pool_sums_sub(o);
	uint64_t before = o->allocated_bytes;
	if (n->disk != NULL)
		o->allocated_bytes = image_map_bytes(&n->map);
	else if (fstat(n->fd, &st) == 0) /* of an open file: the kernel has it in memory */
		o->allocated_bytes = (uint64_t)st.st_blocks * 512;
	record_free(o->rec);
	o->rec = n->rec;
	n->rec = NULL;
	o->image_dev = n->image_dev;
	o->image_ino = n->image_ino;
	pool_entry(o)->thin_id = n->map.thin_id;
	o->unsynced = true;
	o->pool->images_renewed++;
	pool_image_found(o, POOL_IMAGE_WHOLE);
	pool_sums_add(o);
	if (n->disk == NULL && o->allocated_bytes > before)
		pool_room_used(o->pool, o->allocated_bytes - before);
	pool_entry(o)->remeasure = true;
	n->committed = true;
	return 0;
}

static int sync_run(struct op *op)
{
	struct pool_renew *n = renew_of(op);
	return pool_sync_dir(op, n->object->pool, RECORD_VOLUME, &n->sync);
}

static int sync_end(struct op *op, int res)
{
	return res < 0 ? op_fail_sys(op, res, "making the formatted image of %s durable in pool %s",
				 renew_of(op)->object->rec->name, pool_of(op)->name)
		       : 0;
}

static bool trash_sync_done(struct op *op)
{
	return pool_one_log(&pool_of(op)->features);
}

static int trash_sync_run(struct op *op)
{
	io_uring_prep_fsync(op_sqe(op), renew_of(op)->trash_fd, 0);
	return op_submit(op);
}

/* What is left there of either image is trash: no name of ours begins it any more. */
static int discard_call(struct op *op)
{
	const struct pool_renew *n = renew_of(op);
	const char *digits = n->name + strlen(TRASH_PARKED);
	return renameat2(n->trash_fd, n->name, n->trash_fd, digits, RENAME_NOREPLACE) < 0 ? -errno
											  : 0;
}

/* What stays parked is trash at the next load. */
static int discard_end(struct op *op, int res)
{
	struct pool_renew *n = renew_of(op);
	if (res == 0 && !n->committed && n->disk != NULL)
		pool_of(op)->raw->dirty_bytes += image_map_bytes(&n->map);
	pool_trash_kick(pool_of(op));
	if (n->committed)
		n->object->unsynced = false;
	return 0;
}

static const struct op_step commit_steps[] = {
	{"wait until it is unused", .run = lock_run, .end = lock_end},
	{"data", .run = data_run, .end = data_end},
	{"flush disks", .done = flush_done, .call = flush_call, .end = data_end},
	{"exchange", .call = exchange_call, .end = exchange_end, .flags = OP_COMMIT},
	{"sync", .run = sync_run, .end = sync_end},
	{"sync trash", .done = trash_sync_done, .run = trash_sync_run, .end = sync_end},
	{"drop the old one", .call = discard_call, .end = discard_end},
	{NULL},
};

void pool_renew_commit_init(struct pool_renew *n, struct reactor *reactor)
{
	op_init(&n->op, reactor, "pool_renew_commit", commit_steps, NULL);
	n->op.lane = n->object->pool->lane;
}

/* ---- drop ---- */

static const struct op_step drop_steps[] = {
	{"drop the new one", .call = discard_call, .end = discard_end},
	{NULL},
};

void pool_renew_drop_init(struct pool_renew *n, struct reactor *reactor)
{
	op_init(&n->op, reactor, "pool_renew_drop", drop_steps, NULL);
	n->op.lane = n->object->pool->lane;
}
