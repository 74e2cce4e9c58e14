/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One after the other. Happy path: a departure whose volume is attached here still -> the volume is
 * locked -> its exports end -> its device goes -> its image goes. How it can fail: somebody works
 * on it, or any call fails; then it is looked at again (TRANSFER_LOOK_MS).
 */
#include "transfer/parting.h"

#include "base/log.h"
#include "node/export.h"
#include "node/volume.h"
#include "pool/depart.h"

#include <stdlib.h>

struct parting {
	struct op op;
	struct transfer *transfer;
	bool busy;
	struct pool_object *volume;
	struct node_lock lock;
	struct node_export export;
	unsigned export_at; /* of the attachments */
	struct node_let_go let_go;
	struct pool_depart depart; /* a repeat, which finds the note */
	struct pool_departure note;
	bool departing;
	unsigned next; /* counts attempts: which one is tried */
};

static struct parting *parting_of(struct op *op)
{
	return container_of(op, struct parting, op);
}

/* ---- its exports ---- */

static const struct attachment *next_export(struct parting *p)
{
	return attachments_next_exported(p->volume->attachments, &p->export_at);
}

static bool exports_done(struct op *op)
{
	struct parting *p = parting_of(op);
	return p->transfer->node->export_config == NULL || next_export(p) == NULL;
}

static int exports_run(struct op *op)
{
	struct parting *p = parting_of(op);
	node_export_end_init(&p->export, p->transfer->node, p->volume, next_export(p));
	return op_child(op, &p->export.op);
}

static int exports_end(struct op *op, int res)
{
	struct parting *p = parting_of(op);
	node_export_free(&p->export);
	if (res < 0)
		return res;
	p->export_at++;
	return exports_done(op) ? 0 : exports_run(op);
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
	pool_depart_init(&p->depart, op->reactor, p->volume->pool, p->volume, &p->note);
	p->departing = true;
	return op_child(op, &p->depart.op);
}

static const struct op_step steps[] = {
	{"end export", .run = exports_run, .end = exports_end, .done = exports_done},
	{"let go", .run = let_go_run},
	{"remove", .run = remove_run},
	{NULL},
};

static void ended(struct op *op)
{
	struct parting *p = parting_of(op);
	struct transfer *t = p->transfer;
	if (p->departing)
		pool_depart_free(&p->depart);
	if (op_failed(op))
		log_event(LOG_LEVEL_WARN, "a volume that has left is attached still",
			log_fields({"volume", p->note.id}, {"error", op->err.message}));
	node_lock_release(&t->node->locks, &p->lock);
	p->busy = false;
	if (!op_failed(op) && !t->draining)
		parting_look(t);
}

/* ---- one after the other ---- */

/* The one with that number of those that are attached still, and how many there are. */
static struct pool_departure *find(
	const struct transfer *t, unsigned number, unsigned *ret_count, struct pool_object **ret)
{
	const struct pool *pool;
	struct pool_departure *found = NULL;
	*ret_count = 0;
	for (unsigned i = 0; (pool = pools_at(t->pools, i)) != NULL; i++)
		for (struct pool_departure *d = NULL; (d = pool_departure_next(pool, d)) != NULL;) {
			struct pool_object *o =
				d->why == NULL && pool_state(pool) == POOL_READY && !d->unsynced
					? pool_departure_leftover(d)
					: NULL;
			if (o == NULL || node_volume_find(o) == NULL)
				continue;
			if ((*ret_count)++ == number) {
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
	p->export_at = 0;
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
