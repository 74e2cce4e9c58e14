/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Growing an object: the image first, then its record, each made durable before the next, so that a
 * record never promises what the image has not got. There is no way back and none is needed. An
 * attempt cut short leaves an image larger than its record. The next attempt takes it as it is, and
 * needs no more room for the blocks it has. An image smaller than its record has lost data. Growing
 * it would put zeros in their place and call it well, so that is refused. The new record takes the
 * old one's place in memory at the very end.
 */
#include "pool/grow.h"

#include "blockio/image.h"
#include "pool/grow_raw.h"
#include "pool/index.h"
#include "pool/presence.h"
#include "pool/private.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/xattr.h>

static struct pool_grow *grow_of(struct op *op)
{
	return container_of(op, struct pool_grow, op);
}

static struct pool *pool_of(struct op *op)
{
	return grow_of(op)->object->pool;
}

/* Nothing is left to do: the record says so already. */
static bool is_grown(struct op *op)
{
	struct pool_grow *g = grow_of(op);
	return g->object->rec != NULL && g->object->rec->size_bytes >= g->size_bytes;
}

static int begin_run(struct op *op)
{
	struct pool_grow *g = grow_of(op);
	if (g->object->rec == NULL)
		return op_fail(op, ERR_DATA_LOSS, "%s in pool %s is quarantined: %s",
			g->object->key, pool_name(g->object->pool), g->object->why);
	return pool_op_begin(g->object->pool, &op->err);
}

static int begin_undo(struct op *op)
{
	pool_op_finish(pool_of(op));
	return 0;
}

static int open_run(struct op *op)
{
	struct pool_grow *g = grow_of(op);
	io_uring_prep_openat(op_sqe(op), pool_fd_of(g->object->pool, g->object->kind),
		g->object->key, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0);
	return op_submit(op);
}

static int open_end(struct op *op, int res)
{
	struct pool_grow *g = grow_of(op);
	if (res < 0)
		return op_fail_sys(op, res, "opening the image of %s", g->object->rec->name);
	g->fd = res;
	return 0;
}

/* A growth cut short keeps what it has allocated, which is free for nobody else. */
static int open_undo(struct op *op)
{
	struct pool_grow *g = grow_of(op);
	uint64_t allocated, size;
	if (g->object->pool->raw == NULL && image_usage(g->fd, &allocated, &size) == 0)
		pool_object_measured(g->object, allocated);
	pool_entry(g->object)->remeasure = true;
	fd_close(&g->fd);
	return 0;
}

/* How much of the growth an attempt cut short has allocated already. Blocks that are shared may be
 * needed once more, and count for nothing. */
static uint64_t got_bytes(const struct pool_grow *g, uint64_t more)
{
	const struct record *rec = g->object->rec;
	uint64_t allocated, size;
	uint64_t had = record_image_bytes(rec);
	if (!record_allocates(rec) || g->object->shared ||
		image_usage(g->fd, &allocated, &size) < 0 || allocated <= had)
		return 0;
	return allocated - had < more ? allocated - had : more;
}

static int admit_run(struct op *op)
{
	struct pool_grow *g = grow_of(op);
	g->room.pool = g->object->pool;
	g->room.bytes = g->size_bytes - g->object->rec->size_bytes;
	g->room.has_bytes = got_bytes(g, g->room.bytes);
	if (g->pieces != NULL) {
		g->room.bytes = grow_pieces_bytes(g);
		g->room.has_bytes = 0;
	}
	g->room.thick = g->object->rec->thick;
	return pool_admit(op, &g->room);
}

static int admit_end(struct op *op, int res)
{
	return pool_admit_end(op, &grow_of(op)->room, res);
}

static int admit_undo(struct op *op)
{
	pool_admit_release(&grow_of(op)->room);
	return 0;
}

static int size_job(void *arg)
{
	struct pool_grow *g = arg;
	uint64_t allocated, size, want;
	int r = image_usage(g->fd, &allocated, &size);
	if (r < 0)
		return r;
	g->truncated = size < g->had_bytes;
	if (g->truncated)
		return 0;
	want = g->had_bytes + (g->size_bytes - g->object->rec->size_bytes);
	bool allocate = g->object->pool->raw == NULL && record_allocates(g->object->rec);
	return image_resize(g->fd, size > want ? size : want, allocate);
}

static int size_run(struct op *op)
{
	struct pool_grow *g = grow_of(op);
	g->had_bytes = record_image_bytes(g->object->rec);
	return op_work(op, size_job, g);
}

static int size_end(struct op *op, int res)
{
	struct pool_grow *g = grow_of(op);
	if (res < 0)
		return op_fail_sys(op, res, "growing the image of %s in pool %s",
			g->object->rec->name, pool_name(g->object->pool));
	if (!g->truncated)
		return 0;
	pool_image_found(g->object, POOL_IMAGE_TRUNCATED);
	return op_fail(op, ERR_DATA_LOSS,
		"%s in pool %s cannot grow: its image is shorter than its record says, data is missing: restore it from a snapshot",
		g->object->rec->name, pool_name(g->object->pool));
}

static int sync_run(struct op *op)
{
	io_uring_prep_fsync(op_sqe(op), grow_of(op)->fd, 0);
	return op_submit(op);
}

static int sync_end(struct op *op, int res)
{
	return res < 0 ? op_fail_sys(op, res, "making the growth of %s durable",
				 grow_of(op)->object->rec->name)
		       : 0;
}

static int record_run(struct op *op)
{
	struct pool_grow *g = grow_of(op);
	struct record grown = *g->object->rec;
	grown.size_bytes = g->size_bytes;
	g->rec = record_new(&grown);
	int len = g->rec == NULL ? -ENOMEM
				 : record_print(g->rec, g->record_text, sizeof(g->record_text));
	if (len < 0) {
		record_free(g->rec);
		g->rec = NULL;
		return op_fail_sys(op, len, "recording the growth of %s", grown.name);
	}
	io_uring_prep_fsetxattr(
		op_sqe(op), g->fd, RECORD_XATTR, g->record_text, XATTR_REPLACE, (unsigned)len);
	return op_submit(op);
}

static int record_end(struct op *op, int res)
{
	struct pool_grow *g = grow_of(op);
	if (res < 0) {
		record_free(g->rec);
		g->rec = NULL;
		return op_fail_sys(op, res, "recording the growth of %s", g->object->rec->name);
	}
	return 0;
}

static int record_undo(struct op *op)
{
	record_free(grow_of(op)->rec);
	grow_of(op)->rec = NULL;
	return 0;
}

static int apply_run(struct op *op)
{
	struct pool_grow *g = grow_of(op);
	struct pool_object *o = g->object;
	uint64_t before = o->allocated_bytes;
	struct stat st;
	pool_admit_release(&g->room);
	pool_sums_sub(o);
	if (fstat(g->fd, &st) == 0) /* of an open file: the kernel has it in memory */
		o->allocated_bytes = (uint64_t)st.st_blocks * 512;
	if (g->pieces != NULL)
		o->allocated_bytes = grow_map_bytes(g);
	else if (o->pool->raw != NULL)
		o->allocated_bytes = before; /* a file without blocks */
	grow_pieces_free(g);
	record_free(o->rec);
	o->rec = g->rec;
	g->rec = NULL;
	pool_image_found(o, POOL_IMAGE_WHOLE);
	o->pool->images_grown++;
	pool_sums_add(o);
	if (o->allocated_bytes > before)
		pool_room_used(o->pool, o->allocated_bytes - before);
	pool_entry(o)->remeasure = true;
	pool_op_finish(o->pool);
	fd_close(&g->fd);
	return 0;
}

static const struct op_step grow_steps[] = {
	{"begin", .run = begin_run, .undo = begin_undo, .done = is_grown},
	{"open", .run = open_run, .end = open_end, .undo = open_undo, .done = is_grown},
	{"map", .run = grow_map_run, .end = grow_map_end, .undo = grow_map_undo,
		.done = grow_pieces_done},
	{"admit", .run = admit_run, .end = admit_end, .undo = admit_undo, .done = is_grown},
	{"pieces", .run = grow_pieces_run, .end = grow_pieces_end, .undo = grow_pieces_undo,
		.done = grow_pieces_done},
	{"write_map", .run = grow_write_map_run, .end = grow_write_map_end,
		.done = grow_pieces_done},
	{"size", .run = size_run, .end = size_end, .done = is_grown},
	{"sync_image", .run = sync_run, .end = sync_end, .done = is_grown},
	{"record", .run = record_run, .end = record_end, .undo = record_undo, .done = is_grown},
	{"sync_record", .run = sync_run, .end = sync_end, .done = is_grown},
	{"apply", .run = apply_run, .done = is_grown},
	{NULL},
};

void pool_grow_init(struct pool_grow *g, struct reactor *reactor, struct pool_object *object,
	uint64_t size_bytes)
{
	*g = (struct pool_grow){.object = object, .size_bytes = size_bytes, .fd = -1};
	op_init(&g->op, reactor, "pool_grow", grow_steps, NULL);
	g->op.lane = g->object->pool->lane;
}
