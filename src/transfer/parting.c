/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One after the other. Happy path: a departure whose volume's image is here still -> the volume is
 * locked -> its exports end -> its device goes -> its image goes. How it can fail: somebody works
 * on it, or any call fails; then it is looked at again (TRANSFER_LOOK_MS).
 */
#include "transfer/parting.h"

#include "base/log.h"
#include "node/export.h"
#include "node/volume.h"
#include "pool/depart.h"

#include <stdlib.h>

enum { TELL_FIRST = 6, TELL_EVERY = 120 }; /* failures */

struct parting {
	struct op op;
	struct transfer *transfer;
	bool busy;
	struct pool_object *volume;
	struct node_lock lock;
	struct node_export_all exports;
	struct node_let_go let_go;
	struct pool_depart depart; /* a repeat, which finds the note */
	struct pool_departure note;
	bool departing;
	unsigned next;     /* counts attempts: which one is tried */
	unsigned failures; /* since one has succeeded */
};

static struct parting *parting_of(struct op *op)
{
	return container_of(op, struct parting, op);
}

/* ---- its exports ---- */

static int exports_run(struct op *op)
{
	struct parting *p = parting_of(op);
	node_export_all_init(&p->exports, p->transfer->node, p->volume, node_export_end_init);
	return op_child(op, &p->exports.op);
}

/* ---- its device, and its image ---- */

static int let_go_run(struct op *op)
{
	struct parting *p = parting_of(op);
	node_let_go_init(&p->let_go, p->transfer->node, p->volume);
	return op_child(op, &p->let_go.op);
}

static int remove_run(struct op *op)
{
	struct parting *p = parting_of(op);
	if (node_volume_find(p->volume) != NULL)
		return op_fail(op, ERR_PRECONDITION,
			"somebody uses its device: end that use (lsblk, fuser -v)");
	p->departing = true;
	pool_depart_init(&p->depart, op->reactor, p->volume->pool, p->volume, &p->note);
	return op_child(op, &p->depart.op);
}

/* A device that was let go may have it open for a moment longer. */
static int remove_end(struct op *op, int res)
{
	struct parting *p = parting_of(op);
	if (res < 0 || p->depart.volume == NULL)
		return res;
	return op_fail(op, ERR_PRECONDITION,
		"its image is open in another process: fuser and losetup -j name who has it");
}

static const struct op_step steps[] = {
	{"end exports", .run = exports_run},
	{"let go", .run = let_go_run},
	{"remove", .run = remove_run, .end = remove_end},
	{NULL},
};

/* It is tried every TRANSFER_LOOK_MS, and mostly once is enough. */
static bool is_told(struct parting *p)
{
	p->failures++;
	return p->failures == TELL_FIRST || p->failures % TELL_EVERY == 0;
}

static void ended(struct op *op)
{
	struct parting *p = parting_of(op);
	struct transfer *t = p->transfer;
	if (p->departing)
		pool_depart_free(&p->depart);
	if (op_failed(op) && is_told(p))
		log_event(LOG_LEVEL_WARN, "the image of a volume that has left is still there",
			log_fields({"volume", p->note.id}, {"error", op->err.message}));
	node_lock_release(&t->node->locks, &p->lock);
	p->busy = false;
	if (op_failed(op) || t->draining)
		return;
	p->failures = 0;
	parting_look(t);
}

/* ---- one after the other ---- */

/* What it has left; NULL: nothing, or it is not known yet whether it is attached. */
static struct pool_object *leftover_of(const struct transfer *t, const struct pool_departure *d)
{
	if (d->why != NULL || d->unsynced || pool_state(d->pool) != POOL_READY)
		return NULL;
	struct pool_object *o = pool_departure_leftover(d);
	return o != NULL && node_knows_volume(t->node, o) ? o : NULL;
}

/* The one with that number of those that have left something, and how many there are. */
static struct pool_departure *find(
	const struct transfer *t, unsigned number, unsigned *ret_count, struct pool_object **ret)
{
	const struct pool *pool;
	struct pool_departure *found = NULL;
	*ret_count = 0;
	for (unsigned i = 0; (pool = pools_at(t->pools, i)) != NULL; i++)
		for (struct pool_departure *d = NULL; (d = pool_departure_next(pool, d)) != NULL;) {
			struct pool_object *o = leftover_of(t, d);
			if (o != NULL && (*ret_count)++ == number) {
				found = d;
				*ret = o;
			}
		}
	return found;
}

static struct parting *get(struct transfer *t)
{
	if (t->parting == NULL)
		t->parting = calloc(1, sizeof(*t->parting));
	if (t->parting != NULL)
		t->parting->transfer = t;
	return t->parting;
}

void parting_look(struct transfer *t)
{
	unsigned count;
	struct pool_object *volume;
	struct parting *p = t->parting;
	if (t->draining || (p != NULL && p->busy))
		return;
	struct pool_departure *d = find(t, p != NULL ? p->next : 0, &count, &volume);
	if (d == NULL && count > 0)
		d = find(t, 0, &count, &volume);
	p = d != NULL ? get(t) : NULL;
	if (p == NULL)
		return;
	p->next = (p->next + 1) % count;
	node_lock_init(&p->lock, NODE_EXCLUSIVE, "volume", volume->key);
	p->lock.what = "it has moved to another node";
	if (node_lock_conflict(&t->node->locks, &p->lock) != NULL)
		return;
	node_lock_take(&t->node->locks, &p->lock);
	p->busy = true;
	p->volume = volume;
	p->note = *d;
	p->departing = false;
	op_init(&p->op, t->reactor, "parting", steps, ended);
	p->op.lane = pool_lane(volume->pool);
	op_start(&p->op);
}

bool parting_idle(const struct transfer *t)
{
	return t->parting == NULL || !t->parting->busy;
}

void parting_free(struct transfer *t)
{
	free(t->parting);
	t->parting = NULL;
}
