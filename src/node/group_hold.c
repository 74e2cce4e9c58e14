/* SPDX-License-Identifier: Apache-2.0 */
/* See group_hold.h. Its steps run the operations of quiesce.h for all members at once. */
#include "node/group_hold.h"

#include "node/node.h"
#include "node/volume.h"

#include <string.h>

#define hold_of(op_ptr) container_of(op_ptr, struct node_group_hold, op)

static bool in_use(const struct pool_object *volume)
{
	const struct node_volume *nv = node_volume_find(volume);
	return nv != NULL && nv->dev.attached;
}

/* ---- decide ---- */

static int refuse_blocks(struct op *op, const char *first, const char *second)
{
	return op_fail(op, ERR_PRECONDITION,
		"block volumes %s and %s are both in use and cannot be held still together, so that a group snapshot would be of two moments: detach one of them, or take their snapshots one by one",
		first, second);
}

static int decide_run(struct op *op)
{
	struct node_group_hold *h = hold_of(op);
	const char *block = NULL;
	unsigned used = 0;
	for (unsigned i = 0; i < h->count; i++) {
		const struct pool_object *volume = h->members[i].volume;
		if (!in_use(volume))
			continue;
		used++;
		if (node_can_freeze(volume))
			continue;
		/* In a raw pool the devices themselves are suspended. */
		if (block != NULL && !pool_is_raw(volume->pool))
			return refuse_blocks(op, block, volume->rec->name);
		block = volume->rec->name;
	}
	for (unsigned i = 0; i < h->count; i++) {
		struct node_group_member *m = &h->members[i];
		enum node_quiesce_why shared = used > 1 ? NODE_QUIESCE_GROUP : NODE_QUIESCE_SHARE;
		node_quiesce_ready_init(
			&m->quiesce, h->node, m->volume, m->share ? shared : NODE_QUIESCE_COPY);
	}
	return 0;
}

/* ---- all at once ---- */

static int each(struct node_group_hold *h, struct op *(*nth)(void *arg, unsigned i))
{
	return op_all(&h->op, &h->all, h->count, nth, h);
}

static struct op *nth_ready(void *arg, unsigned i)
{
	const struct node_group_hold *h = arg;
	return &h->members[i].quiesce.op;
}

static int ready_run(struct op *op)
{
	return each(hold_of(op), nth_ready);
}

/* Some may be ready or frozen when another is not: the step's undo lets them go. */
static int keep_failure(struct op *op, int res)
{
	struct node_group_hold *h = hold_of(op);
	h->res = res;
	h->failure = op->err;
	return 0;
}

static bool has_failed(struct op *op)
{
	return hold_of(op)->res < 0;
}

static bool has_not_failed(struct op *op)
{
	return !has_failed(op);
}

/* What is copied of mounted volumes, while all of them are frozen. */
static int check_size(struct op *op)
{
	struct node_group_hold *h = hold_of(op);
	uint64_t bytes = 0;
	for (unsigned i = 0; i < h->count; i++)
		if (!h->members[i].share && node_can_freeze(h->members[i].volume))
			bytes += h->members[i].volume->allocated_bytes;
	if (bytes <= NODE_FREEZE_COPY_MAX)
		return 0;
	op_fail(op, ERR_PRECONDITION,
		"the mounted volumes of the group hold %llu MiB, too much to copy under a freeze (%llu MiB in all): detach some of them first, or use a pool on XFS or btrfs",
		(unsigned long long)(bytes >> 20), NODE_FREEZE_COPY_MAX >> 20);
	return keep_failure(op, -EBUSY);
}

static struct op *nth_freeze(void *arg, unsigned i)
{
	const struct node_group_hold *h = arg;
	struct node_quiesce *q = &h->members[i].quiesce;
	if (q->plan == NODE_PLAN_SYNC)
		return NULL;
	node_freeze_init(q);
	return &q->op;
}

static int freeze_run(struct op *op)
{
	return each(hold_of(op), nth_freeze);
}

static bool is_held(const struct node_quiesce *q)
{
	return q->freeze == NODE_FROZEN || q->marked;
}

static struct op *nth_thaw(void *arg, unsigned i)
{
	const struct node_group_hold *h = arg;
	struct node_quiesce *q = &h->members[i].quiesce;
	if (!is_held(q))
		return NULL;
	node_thaw_init(q);
	return &q->op;
}

static int thaw_run(struct op *op)
{
	return each(hold_of(op), nth_thaw);
}

static int fail_run(struct op *op)
{
	struct node_group_hold *h = hold_of(op);
	op->err = h->failure;
	return h->res;
}

static const struct op_step ready_steps[] = {
	{"decide", .run = decide_run},
	{"ready", .run = ready_run, .end = keep_failure, .undo = thaw_run},
	{"check size", .run = check_size, .done = has_failed},
	{"fail", .run = fail_run, .done = has_not_failed},
	{NULL},
};

static const struct op_step freeze_steps[] = {
	{"freeze", .run = freeze_run},
	{NULL},
};

static const struct op_step release_steps[] = {
	{"thaw", .run = thaw_run},
	{NULL},
};

void node_group_ready_init(struct node_group_hold *h, struct node *node,
	struct node_group_member *members, unsigned count)
{
	*h = (struct node_group_hold){.node = node, .members = members, .count = count};
	op_init(&h->op, node->reactor, "ready group", ready_steps, NULL);
}

void node_group_freeze_init(struct node_group_hold *h)
{
	op_init(&h->op, h->node->reactor, "freeze group", freeze_steps, NULL);
}

void node_group_release_init(struct node_group_hold *h)
{
	op_init(&h->op, h->node->reactor, "release group", release_steps, NULL);
}
