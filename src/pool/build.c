/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Building an object: an unnamed file gets its size, its bytes and its record, and is then linked
 * under its key. Where bytes are shared or there are none, that is one trip to a thread. The link
 * is the commit. Before it, a failure closes the file and nothing is left. With it the object is in
 * the index, whatever becomes of the sync that follows, because its name is taken on disk from then
 * on and a retry must find it. ERR_EXISTS comes from the link itself. The index may not know the
 * file that has the name. Nobody but us writes here, so it is left from a link whose answer was
 * lost, and it is read into the index first.
 *
 * Where there is not one log (sync.c), the sync of the directory by another operation can make the
 * name durable before the file is: on btrfs with the record, and without size and bytes. There the
 * file is parked first: named in the trash, because only a file with a name can be made durable.
 * It is renamed to its key then. What a crash leaves parked is trash at the next load.
 */
#include "pool/build.h"

#include "base/clock.h"
#include "blockio/image.h"
#include "pool/build_begin.h"
#include "pool/build_learn.h"
#include "pool/build_park.h"
#include "pool/build_part.h"
#include "pool/build_raw.h"
#include "pool/build_thin.h"
#include "pool/fill.h"
#include "pool/index.h"
#include "pool/private.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>

/* What a build calls, in order. */
enum build_call {
	CALL_OPEN,
	CALL_SHARE,
	CALL_HOLD,
	CALL_SAY,
	CALL_DEVICE,
	CALL_RECORD,
	CALL_PARK,
	CALL_LINK,
	CALL_SYNC,
	CALLS
};

/* ---- admit ---- */

static uint64_t need_bytes(const struct pool_build *b)
{
	if (b->need_bytes != 0)
		return b->need_bytes;
	return b->rec->kind == RECORD_VOLUME ? record_image_bytes(b->rec) : 0;
}

static int admit_run(struct op *op)
{
	struct pool_build *b = pool_build_of(op);
	b->room.pool = b->pool;
	b->room.bytes = need_bytes(b);
	b->room.thick = b->rec->thick;
	b->room.has_bytes = b->part_bytes;
	return pool_admit(op, &b->room);
}

static int admit_end(struct op *op, int res)
{
	struct pool_build *b = pool_build_of(op);
	res = pool_admit_end(op, &b->room, res);
	if (res == 0)
		pool_admit_has(&b->room, b->part_bytes);
	return res;
}

static int admit_undo(struct op *op)
{
	pool_admit_release(&pool_build_of(op)->room);
	return 0;
}

/* ---- open, fill, record ---- */

/* A file without blocks, whose bytes are where its map says. */
static int open_raw(struct pool_build *b)
{
	int r = image_map_write(b->fd, b->map);
	if (r == 0 && ftruncate(b->fd, (off_t)record_image_bytes(b->rec)) < 0)
		r = -errno;
	if (r < 0)
		fd_close(&b->fd);
	return r;
}

static int open_call(struct op *op)
{
	struct pool_build *b = pool_build_of(op);
	uint64_t size = record_image_bytes(b->rec);
	int flags = O_TMPFILE | O_RDWR | O_CLOEXEC | (b->direct_io ? O_DIRECT : 0);
	int r = b->part == NULL ? build_check_part(b) : 0;
	if (r < 0)
		return r;
	if (b->part == NULL)
		b->fd = openat(b->dirfd, ".", flags, 0600);
	if (b->fd < 0)
		return -errno;
	if (b->disk != NULL)
		return open_raw(b);
	/* The hint must come before the first extent. */
	r = image_hint_for_size(b->fd, size);
	if (r == 0)
		r = image_resize(b->fd, size, record_allocates(b->rec));
	if (r < 0 && b->part == NULL)
		fd_close(&b->fd);
	return r;
}

static int open_end(struct op *op, int res)
{
	struct pool_build *b = pool_build_of(op);
	if (res == -EBUSY)
		return build_fail_moving(op);
	if (res == -EOPNOTSUPP && b->rec->thick)
		return op_fail(op, ERR_PRECONDITION,
			"the file system of pool %s cannot allocate ahead: use provisioning thin",
			b->pool->name);
	return res < 0 ? pool_fail_sys(b->pool, &op->err, res, "making a file for %s in pool %s",
				 b->rec->name, b->pool->name)
		       : 0;
}

/* The last close of an unnamed file gives its blocks back, which may take long: not on the loop. */
static int close_job(void *arg)
{
	struct pool_build *b = arg;
	struct stat st;
	/* A link that failed may have come about all the same. */
	b->named = fstat(b->fd, &st) < 0 || st.st_nlink > 0;
	fd_close(&b->fd);
	return 0;
}

static int open_undo(struct op *op)
{
	struct pool_build *b = pool_build_of(op);
	return b->part != NULL ? 0 : op_work(op, close_job, b);
}

/* -ESTALE: not the template it was. */
static int share_call(struct op *op)
{
	struct pool_build *b = pool_build_of(op);
	struct stat st;
	_cleanup_fd_ int fd = openat(
		b->share_dirfd, b->share_name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st) < 0)
		return -errno;
	uint64_t size = record_image_bytes(b->rec);
	bool template = b->share_object == NULL;
	if (template && (!S_ISREG(st.st_mode) || (uint64_t)st.st_size != size))
		return -ESTALE;
	return pool_share_extents(fd, b->fd, size);
}

static bool share_done(struct op *op)
{
	return !pool_build_of(op)->sharing;
}

/* What the first calls go by. */
static int prepare_open(struct op *op)
{
	struct pool_build *b = pool_build_of(op);
	const struct pool_object *source = b->share_object;
	b->kind = b->rec->kind;
	b->dirfd = pool_fd_of(b->pool, b->kind);
	b->copies_fd = b->pool->fds[POOL_FD_COPIES];
	b->direct_io = b->pool->features.direct_io;
	b->sharing = b->pool->raw == NULL && (source != NULL || b->share_template[0] != '\0');
	b->share_name = source != NULL ? source->key : b->share_template;
	if (source != NULL)
		b->thin_origin = pool_entry((struct pool_object *)source)->thin_id;
	b->share_dirfd = source != NULL ? pool_fd_of(source->pool, source->kind)
					: b->pool->fds[POOL_FD_TEMPLATES];
	if (source != NULL && (source->rec == NULL || source->image == POOL_IMAGE_TRUNCATED))
		return op_fail(op, ERR_DATA_LOSS, "%s in pool %s cannot be copied: %s", source->key,
			b->pool->name,
			source->rec == NULL ? source->why
					    : "its image is shorter than it should be");
	return 0;
}

static int share_end(struct op *op, int res)
{
	struct pool_build *b = pool_build_of(op);
	bool template = b->share_object == NULL;
	if (res == 0)
		return 0;
	/* A template that is gone is made again. */
	if (res == -EOPNOTSUPP || res == -EXDEV ||
		(template && (res == -ENOENT || res == -ESTALE || res == -ELOOP))) {
		b->sharing = false;
		return 0;
	}
	return op_fail_sys(op, res, "sharing the extents of %s", b->share_name);
}

static bool fill_done(struct op *op)
{
	const struct pool_build *b = pool_build_of(op);
	return b->fill == NULL || b->sharing || build_snaps(b);
}

static int fill_run(struct op *op)
{
	struct pool_build *b = pool_build_of(op);
	if (b->part != NULL)
		b->part->keep = false;
	b->wrote = b->disk != NULL;
	return b->fill(op, b->fd, b->fill_arg);
}

static int fill_end(struct op *op, int res)
{
	struct pool_build *b = pool_build_of(op);
	return b->fill_end != NULL ? b->fill_end(op, res, b->fill_arg) : res;
}

/* Whether extents are shared, and if so with what family. */
static int complete_record(struct pool_build *b)
{
	struct record rec = *b->rec;
	struct pool_object *source;
	struct err ignored = {0};
	rec.shares_extents = (b->sharing || build_snaps(b)) && b->share_object != NULL;
	rec.family = "";
	bool of_snapshot = rec.source == RECORD_SOURCE_SNAPSHOT;
	if (rec.shares_extents &&
		pools_find_id(b->pool->pools, of_snapshot ? RECORD_SNAPSHOT : RECORD_VOLUME,
			rec.source_id, &source, &ignored) == 0)
		rec.family = pool_family(source->rec);
	struct record *made = record_new(&rec);
	if (made == NULL)
		return -ENOMEM;
	record_free(b->rec);
	b->rec = made;
	return 0;
}

static int record_call(struct op *op)
{
	const struct pool_build *b = pool_build_of(op);
	/* A part may have one, of an attempt cut short between this and its link. */
	int flags = b->part == NULL ? XATTR_CREATE : 0;
	int r = b->part == NULL || b->keeps_identity ? 0 : pool_part_forget(b->fd);
	if (r < 0)
		return r;
	if (fsetxattr(b->fd, RECORD_XATTR, b->record_text, b->record_len, flags) < 0)
		return -errno;
	r = build_part_attachments(b);
	if (r < 0)
		return r;
	/* Only people read the claim: it may be left out where there is no room. */
	if (b->rec->claim[0] != '\0')
		(void)fsetxattr(b->fd, RECORD_CLAIM_XATTR, b->rec->claim, strlen(b->rec->claim), 0);
	return 0;
}

static int prepare_record(struct op *op)
{
	struct pool_build *b = pool_build_of(op);
	int len = complete_record(b);
	if (len == 0)
		len = record_print(b->rec, b->record_text, sizeof(b->record_text));
	if (len == -E2BIG)
		return op_fail(op, ERR_INVALID, "the record of %s would be longer than %d bytes",
			b->rec->name, RECORD_BYTES_MAX);
	if (len < 0)
		return op_fail_sys(op, len, "recording %s", b->rec->name);
	b->record_len = (unsigned)len;
	return 0;
}

static int record_end(struct op *op, int res)
{
	struct pool_build *b = pool_build_of(op);
	if (res < 0)
		return pool_fail_sys(b->pool, &op->err, res, "recording %s in pool %s",
			b->rec->name, b->pool->name);
	b->state = BUILD_RECORDED;
	return 0;
}

/* ---- data, link, sync ---- */

static bool park_done(struct op *op)
{
	const struct pool_build *b = pool_build_of(op);
	return b->part != NULL || b->disk != NULL || pool_one_log(&b->pool->features);
}

static int park_call(struct op *op)
{
	const struct pool_build *b = pool_build_of(op);
	return fd_link(b->fd, b->parked_fd, b->parked_name);
}

static int unpark_job(void *arg)
{
	const struct pool_build *b = arg;
	return unlinkat(b->parked_fd, b->parked_name, 0) < 0 ? -errno : 0;
}

static int park_undo(struct op *op)
{
	return op_work(op, unpark_job, pool_build_of(op));
}

/* Written data must be durable before the name is. Shared extents need no sync where there is one
 * log: the source's extents are durable, and the sharing is in the log before the link. */
static bool data_done(struct op *op)
{
	const struct pool_build *b = pool_build_of(op);
	if (b->disk != NULL)
		return !b->wrote;
	return pool_one_log(&b->pool->features) && (b->sharing || !b->fill_writes);
}

static int data_run(struct op *op)
{
	struct pool_build *b = pool_build_of(op);
	if (b->disk != NULL)
		return op_work(op, build_flush_job, b);
	io_uring_prep_fsync(op_sqe(op), b->fd, 0);
	return op_submit(op);
}

static int data_end(struct op *op, int res)
{
	struct pool_build *b = pool_build_of(op);
	return res < 0 ? op_fail_sys(op, res, "making the data of %s durable in pool %s",
				 b->rec->name, b->pool->name)
		       : 0;
}

static int link_call(struct op *op)
{
	const struct pool_build *b = pool_build_of(op);
	if (b->parked_name[0] == '\0')
		return fd_link(b->fd, b->dirfd, b->rec->key);
	int r = renameat2(b->parked_fd, b->parked_name, b->dirfd, b->rec->key, RENAME_NOREPLACE);
	if (r < 0)
		return -errno;
	/* One that moves in is a part for as long as it is no volume: nothing else has its bytes.
	 */
	if (b->keeps_identity && b->part != NULL)
		(void)pool_part_forget(b->fd);
	return 0;
}

static int prepare_link(struct op *op)
{
	struct pool_build *b = pool_build_of(op);
	if (pool_index_find(b->pool, b->rec->kind, b->rec->key) != NULL)
		return build_fail_exists(op);
	return 0;
}

/* The name is there: the object counts, and what was reserved for it no longer does. */
static int enter_index(struct pool_build *b)
{
	struct pool *pool = b->pool;
	struct stat st = {0};
	fstat(b->fd, &st); /* of an open file: the kernel has it in memory */
	struct pool_found found = {
		.rec = b->rec,
		.kind = b->rec->kind,
		.image_bytes = (uint64_t)st.st_size,
		.allocated_bytes =
			b->disk != NULL ? image_map_bytes(b->map) : (uint64_t)st.st_blocks * 512,
		.thin_id = b->thin_id,
		.image_dev = st.st_dev,
		.image_ino = st.st_ino,
		.attachments = b->attachments,
	};
	strcpy(found.key, b->rec->key);
	if (build_snaps(b) &&
		b->share_object !=
			NULL) /* of one that grows it has all; it is measured when that matters */
		found.allocated_bytes = b->share_object->allocated_bytes;
	pool_admit_release(&b->room);
	pool_op_finish(pool);
	b->ret_object = pool_index_insert(pool, &found);
	if (b->ret_object == NULL)
		return -ENOMEM;
	b->ret_object->unsynced = true;
	b->rec = NULL;
	b->attachments = NULL;
	if (!b->ret_object->rec->shares_extents && b->ret_object->allocated_bytes > b->part_bytes)
		pool_room_used(pool, b->ret_object->allocated_bytes - b->part_bytes);
	pool_family_update(pool, pool_family(b->ret_object->rec));
	return 0;
}

static int link_end(struct op *op, int res)
{
	struct pool_build *b = pool_build_of(op);
	if (b->learn != NULL) {
		build_learn_end(b, res);
		return build_fail_exists(op);
	}
	if (res == -EEXIST) {
		int r = build_learn_run(op);
		return r < 0 ? build_fail_exists(op) : r;
	}
	if (res < 0)
		return pool_fail_sys(b->pool, &op->err, res, "naming %s in pool %s", b->rec->name,
			b->pool->name);
	/* Out of memory here, the object is on disk and unknown; the sync goes on, and the next
	 * attempt's EEXIST makes it known. */
	b->indexed = enter_index(b) == 0;
	b->state = BUILD_LINKED;
	build_has_arrived(b);
	return 0;
}

/* The file needs no sync of its own: it has had one, or the directory's sync covers it. */
static int sync_call(struct op *op)
{
	return pool_sync_call(&pool_build_of(op)->sync);
}

static bool sync_done(struct op *op)
{
	return pool_build_of(op)->state == BUILD_SYNCED;
}

static int sync_run(struct op *op)
{
	struct pool_build *b = pool_build_of(op);
	return pool_sync_dir(op, b->pool, b->kind, &b->sync);
}

static int sync_end(struct op *op, int res)
{
	struct pool_build *b = pool_build_of(op);
	if (res < 0)
		return op_fail_sys(
			op, res, "making the creation durable in pool %s", b->pool->name);
	fd_close(&b->fd);
	if (!b->indexed)
		return op_fail_sys(op, -ENOMEM, "taking note of a new object");
	b->ret_object->unsynced = false;
	b->state = BUILD_SYNCED;
	return 0;
}

/* ---- the trips to a thread ---- */

static const struct op_call build_calls[CALLS] = {
	[CALL_OPEN] = {"open", .fn = open_call, .end = open_end, .undo = open_undo},
	[CALL_SHARE] = {"share", .fn = share_call, .end = share_end, .done = share_done},
	[CALL_HOLD] = {"hold", .fn = build_hold_call, .end = build_park_end,
		.undo = build_hold_undo, .done = build_not_thin},
	[CALL_SAY] = {"say", .fn = build_say_call, .end = build_say_end, .done = build_not_thin},
	[CALL_DEVICE] = {"device", .fn = build_device_call, .end = build_device_end,
		.undo = build_device_undo, .done = build_device_done},
	[CALL_RECORD] = {"record", .fn = record_call, .end = record_end},
	[CALL_PARK] = {"park", .fn = park_call, .undo = park_undo, .done = park_done},
	[CALL_LINK] = {"link", .fn = link_call, .end = link_end, .flags = OP_COMMIT},
	[CALL_SYNC] = {"sync", .fn = sync_call, .end = sync_end},
};

/* Makes the calls from `first` on, up to what has to be waited for otherwise: an image that is
 * filled, data that is made durable, a sync that is shared. Each takes microseconds, and a trip to
 * a thread for each would cost more. */
static int build_from(struct op *op, enum build_call first)
{
	struct pool_build *b = pool_build_of(op);
	enum build_call end = CALLS;
	int r = first == CALL_OPEN ? prepare_open(op) : 0;
	if (first == CALL_OPEN && b->thin_id != 0)
		build_name_parked(b);
	if (first == CALL_OPEN && !fill_done(op))
		end = CALL_RECORD;
	else if (first < CALL_LINK && !data_done(op))
		end = CALL_LINK;
	else if (!pool_sync_alone(b->pool, b->kind, &b->sync))
		end = CALL_SYNC;
	if (r == 0 && first <= CALL_RECORD && end > CALL_RECORD)
		r = prepare_record(op);
	if (r == 0 && first <= CALL_PARK && end > CALL_PARK && !park_done(op))
		build_name_parked(pool_build_of(op));
	if (r == 0 && end > CALL_LINK)
		r = prepare_link(op);
	return r < 0 ? r : op_calls(op, &build_calls[first], end - first);
}

static int open_run(struct op *op)
{
	return build_from(op, CALL_OPEN);
}

static bool record_done(struct op *op)
{
	return pool_build_of(op)->state >= BUILD_RECORDED;
}

static int record_run(struct op *op)
{
	return build_from(op, CALL_RECORD);
}

static bool link_done(struct op *op)
{
	return pool_build_of(op)->state >= BUILD_LINKED;
}

static int link_run(struct op *op)
{
	return build_from(op, CALL_LINK);
}

static const struct op_step build_steps[] = {
	{"begin", .run = build_begin_run, .undo = build_begin_undo},
	{"part", .run = build_part_run, .end = build_part_end, .undo = build_part_undo,
		.done = build_part_done},
	{"admit", .run = admit_run, .end = admit_end, .undo = admit_undo},
	{"id", .run = build_id_run, .end = build_id_end, .undo = build_id_undo,
		.done = build_id_done},
	{"template", .run = build_template_run, .end = build_template_end,
		.done = build_template_done},
	{"pieces", .run = build_pieces_run, .end = build_pieces_end, .undo = build_pieces_undo,
		.done = build_pieces_done},
	{"open", .run = open_run},
	{"park", .run = build_park_run, .end = build_park_end, .undo = build_park_undo,
		.done = build_park_done},
	{"fill", .run = fill_run, .end = fill_end, .done = fill_done},
	{"record", .run = record_run, .done = record_done},
	{"data", .run = data_run, .end = data_end, .done = data_done},
	{"link", .run = link_run, .done = link_done},
	{"sync", .run = sync_run, .end = sync_end, .done = sync_done},
	{"forget departure", .run = build_forget_run, .end = build_forget_end,
		.done = build_forget_done},
	{NULL},
};

static int init(
	struct pool_build *b, struct reactor *reactor, struct pool *pool, const struct record *rec)
{
	struct record *made = record_new(rec);
	if (made == NULL)
		return -ENOMEM;
	*b = (struct pool_build){.pool = pool, .rec = made, .fd = -1};
	op_init(&b->op, reactor, "pool_build", build_steps, NULL);
	b->op.lane = b->pool->lane;
	return 0;
}

int pool_build_init(
	struct pool_build *b, struct reactor *reactor, struct pool *pool, const struct record *rec)
{
	struct record draft = *rec;
	draft.created_ns = clock_now_ns();
	pool_random_hex(draft.random, 8);
	return init(b, reactor, pool, &draft);
}

int pool_build_init_moved(
	struct pool_build *b, struct reactor *reactor, struct pool *pool, const struct record *rec)
{
	int r = init(b, reactor, pool, rec);
	if (r == 0)
		b->keeps_identity = true;
	return r;
}

void pool_build_free(struct pool_build *b)
{
	fd_close(&b->fd);
	if (b->thin_id != 0)
		thin_fill_close(&b->thin_device);
	if (b->disk != NULL)
		disk_unref(b->disk);
	b->disk = NULL;
	free(b->map);
	b->map = NULL;
	free(b->places);
	b->places = NULL;
	free(b->thin_template);
	b->thin_template = NULL;
	record_free(b->rec);
	b->rec = NULL;
	attachments_free(b->attachments);
	b->attachments = NULL;
}
