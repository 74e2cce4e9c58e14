/* SPDX-License-Identifier: Apache-2.0 */
/* Taking pieces for an image that grows. How it can fail: too little is free, or the map cannot be
 * written. Then what was taken is given back, unless the map may have it. */
#include "pool/grow_raw.h"

#include "blockio/image_map.h"
#include "pool/index.h"
#include "pool/presence.h"
#include "pool/private.h"
#include "pool/raw.h"
#include "pool/raw_take.h"

#include <errno.h>

struct grow_pieces {
	struct image_map was, map;
	struct pool_raw_wait wait;
	int fd;
	/* Whether the image's map is `was`, `map`, or nobody knows which. */
	enum { MAP_WAS, MAP_IS, MAP_UNKNOWN } on_disk;
};

static struct pool_grow *grow_of(struct op *op)
{
	return container_of(op, struct pool_grow, op);
}

bool grow_pieces_done(struct op *op)
{
	const struct pool_object *o = grow_of(op)->object;
	return o->pool->raw == NULL || o->rec == NULL || !record_allocates(o->rec) ||
	       o->rec->size_bytes >= grow_of(op)->size_bytes;
}

void grow_pieces_free(struct pool_grow *g)
{
	free(g->pieces);
	g->pieces = NULL;
}

/* ---- the map ---- */

static int read_job(void *arg)
{
	struct grow_pieces *p = arg;
	return image_map_read(p->fd, &p->was);
}

int grow_map_run(struct op *op)
{
	struct pool_grow *g = grow_of(op);
	g->pieces = calloc(1, sizeof(*g->pieces));
	if (g->pieces == NULL)
		return op_fail_sys(op, -ENOMEM, "growing %s", g->object->rec->name);
	g->pieces->fd = g->fd;
	return op_work(op, read_job, g->pieces);
}

int grow_map_end(struct op *op, int res)
{
	struct pool_grow *g = grow_of(op);
	const struct record *rec = g->object->rec;
	const char *pool = pool_name(g->object->pool);
	bool truncated = res == 0 && image_map_bytes(&g->pieces->was) < record_image_bytes(rec);
	g->pieces->map = g->pieces->was;
	if (res == 0 && !truncated)
		return 0;
	grow_pieces_free(g);
	if (truncated || res == -ENODATA || res == -EBADMSG)
		return op_fail(op, ERR_DATA_LOSS,
			"%s in pool %s cannot grow: the map of its image is damaged: look at it with "
			"ringvol check",
			rec->name, pool);
	return op_fail_sys(op, res, "reading the map of %s in pool %s", rec->name, pool);
}

int grow_map_undo(struct op *op)
{
	grow_pieces_free(grow_of(op));
	return 0;
}

/* ---- pieces ---- */

uint64_t grow_map_bytes(const struct pool_grow *g)
{
	return image_map_bytes(&g->pieces->map);
}

uint64_t grow_pieces_bytes(const struct pool_grow *g)
{
	const struct record *rec = g->object->rec;
	uint64_t want = record_image_bytes(rec) + (g->size_bytes - rec->size_bytes);
	uint64_t has = image_map_bytes(&g->pieces->was);
	want = (want + IMAGE_MAP_ALIGN - 1) / IMAGE_MAP_ALIGN * IMAGE_MAP_ALIGN;
	return want > has ? want - has : 0;
}

static int took(struct pool_grow *g, int res)
{
	if (res == 0)
		pool_admit_has(&g->room, grow_pieces_bytes(g));
	return res;
}

int grow_pieces_run(struct op *op)
{
	struct pool_grow *g = grow_of(op);
	return took(g, pool_raw_take(op, g->object->pool, grow_pieces_bytes(g), &g->pieces->wait,
			       &g->pieces->map));
}

int grow_pieces_end(struct op *op, int res)
{
	struct pool_grow *g = grow_of(op);
	return took(g, pool_raw_take_end(op, g->object->pool, grow_pieces_bytes(g),
			       &g->pieces->wait, &g->pieces->map, res));
}

/* The image has them, though it has not grown. */
static void count_pieces(struct pool_grow *g)
{
	pool_sums_sub(g->object);
	g->object->allocated_bytes = grow_map_bytes(g);
	pool_sums_add(g->object);
}

int grow_pieces_undo(struct op *op)
{
	struct pool_grow *g = grow_of(op);
	struct pool *pool = g->object->pool;
	if (g->pieces->on_disk != MAP_WAS) {
		/* Where nobody knows, they stay taken until the pool is loaded again. */
		count_pieces(g);
		return 0;
	}
	area_give_map(pool->raw->area, &g->pieces->map, image_map_bytes(&g->pieces->was));
	pool_raw_wake(pool);
	return 0;
}

/* ---- written ---- */

static int write_map(int fd, const struct image_map *map)
{
	int r = image_map_write(fd, map);
	return r < 0 ? r : fsync(fd) < 0 ? -errno : 0;
}

/* A write that was refused, as by full records, has changed nothing: that is as durable as before.
 */
static bool is_as_it_was(const struct grow_pieces *p)
{
	struct image_map now;
	return image_map_read(p->fd, &now) == 0 && image_map_equal(&now, &p->was);
}

static int write_job(void *arg)
{
	struct grow_pieces *p = arg;
	int r = write_map(p->fd, &p->map);
	if (r == 0)
		p->on_disk = MAP_IS;
	else if (!is_as_it_was(p) && write_map(p->fd, &p->was) < 0)
		p->on_disk = MAP_UNKNOWN;
	return r;
}

int grow_write_map_run(struct op *op)
{
	struct pool_grow *g = grow_of(op);
	return grow_pieces_bytes(g) == 0 ? 0 : op_work(op, write_job, g->pieces);
}

int grow_write_map_end(struct op *op, int res)
{
	struct pool_grow *g = grow_of(op);
	return res < 0 ? pool_fail_sys(g->object->pool, &op->err, res,
				 "writing the map of %s in pool %s", g->object->rec->name,
				 pool_name(g->object->pool))
		       : 0;
}
