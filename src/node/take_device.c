/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Happy path of taking: (of a thin volume on raw disks: its thin pool is active) -> the device, as
 * a stage of the volume would attach it, and as it is stored. Of letting go: nobody uses it -> it
 * is detached. How it can fail: as the backend.
 */
#include "node/take_device.h"

#include "backends/dm/guard.h"
#include "node/devices.h"
#include "node/node.h"
#include "node/volume.h"

#include <string.h>

static struct node_take_device *take_of(struct op *op)
{
	return container_of(op, struct node_take_device, op);
}

static bool thin_done(struct op *op)
{
	return thin_use_done(take_of(op)->volume);
}

static int thin_run(struct op *op)
{
	struct node_take_device *t = take_of(op);
	return thin_want(op, t->volume->pool, &t->thin_wait);
}

static int thin_end(struct op *op, int res)
{
	struct node_take_device *t = take_of(op);
	return thin_use_end(op, t->volume->pool, &t->thin_wait, res);
}

static int attach_run(struct op *op)
{
	struct node_take_device *t = take_of(op);
	const struct node_volume *nv = node_volume_find(t->volume);
	if (t->volume->image != POOL_IMAGE_WHOLE)
		return op_fail(op, ERR_DATA_LOSS, "volume %s: its image %s", t->volume->rec->name,
			t->volume->image == POOL_IMAGE_MISSING ? "is not there any more"
							       : "is shorter than its record says");
	t->backend = backend_get(t->volume->rec->device);
	if (t->backend == NULL)
		return op_fail(op, ERR_PRECONDITION,
			"volume %s: its device type is not available on this node",
			t->volume->rec->name);
	t->attached_here = nv == NULL || !nv->dev.attached;
	node_volume_request(t->volume, &t->dev);
	node_request_stored(&t->dev);
	t->dev.dev = (struct backend_dev){0};
	return t->backend->attach(t->backend, op, &t->dev);
}

/* It is staged here, too: what is over the device stays the volume's. */
static bool is_opened(const struct node_take_device *t, const struct node_volume *nv)
{
	return t->volume->rec->encryption != RECORD_PLAIN && nv->dev.attached &&
	       nv->dev.below_major == t->dev.dev.major && nv->dev.below_minor == t->dev.dev.minor;
}

static int attach_end(struct op *op, int res)
{
	struct node_take_device *t = take_of(op);
	int r = backend_end(op, &t->dev, res);
	node_devices_note(t->node, t->backend->type, r < 0 ? op->err.code : ERR_OK);
	if (r < 0)
		return r;
	struct node_volume *nv = node_volume_get(t->volume);
	if (nv == NULL)
		return op_fail(op, ERR_NO_ROOM, "out of memory");
	t->attached_here &= !t->dev.dev.found;
	if (!is_opened(t, nv))
		node_volume_set_dev(t->node, nv, &t->dev.dev);
	nv->marks_read |= t->attached_here;
	return 0;
}

static const struct op_step take_steps[] = {
	{"thin pool", .done = thin_done, .run = thin_run, .end = thin_end},
	{"attach", .run = attach_run, .end = attach_end},
	{NULL},
};

void node_take_device_init(
	struct node_take_device *t, struct node *node, struct pool_object *volume)
{
	*t = (struct node_take_device){.node = node, .volume = volume};
	op_init(&t->op, node->reactor, "take device", take_steps, NULL);
	t->op.lane = pool_lane(volume->pool);
}

/* ---- the device that nobody uses any more ---- */

static struct node_let_go *let_go_of(struct op *op)
{
	return container_of(op, struct node_let_go, op);
}

static bool is_used(const struct node_let_go *l)
{
	const struct node_volume *nv = node_volume_find(l->volume);
	return nv == NULL || !nv->dev.attached || !list_empty(&nv->mounts) || l->others.count > 0 ||
	       dm_stands_on(nv->dev.major, nv->dev.minor, GUARD_COVER_UUID_PREFIX);
}

static bool used(struct op *op)
{
	return is_used(let_go_of(op));
}

static int others_run(struct op *op)
{
	struct node_let_go *l = let_go_of(op);
	node_others_init(&l->others, op->reactor, &node_volume_find(l->volume)->dev, NULL, NULL);
	return op_child(op, &l->others.op);
}

static int detach_run(struct op *op)
{
	struct node_let_go *l = let_go_of(op);
	struct node_volume *nv = node_volume_find(l->volume);
	l->backend = backend_get(l->volume->rec->device);
	if (l->backend == NULL)
		return 0;
	l->dev = (struct backend_req){.dirfd = -1, .dev = nv->dev};
	memcpy(l->dev.tag, nv->dev.tag, sizeof(l->dev.tag));
	nv->detaching = true;
	int r = l->backend->detach(l->backend, op, &l->dev);
	nv->detaching = r >= 0;
	return r;
}

static int detach_end(struct op *op, int res)
{
	struct node_let_go *l = let_go_of(op);
	struct node_volume *nv = node_volume_find(l->volume);
	int r = backend_end(op, &l->dev, res);
	if (nv == NULL)
		return r;
	nv->detaching = false;
	if (r < 0)
		return r;
	node_devices_freed(l->node, l->backend->type);
	node_volume_clear_dev(l->node, nv);
	node_volume_forget(l->volume);
	return 0;
}

static const struct op_step let_go_steps[] = {
	{"others", .done = used, .run = others_run},
	{"detach", .done = used, .run = detach_run, .end = detach_end},
	{NULL},
};

void node_let_go_init(struct node_let_go *l, struct node *node, struct pool_object *volume)
{
	*l = (struct node_let_go){.node = node, .volume = volume};
	op_init(&l->op, node->reactor, "let go", let_go_steps, NULL);
	l->op.lane = pool_lane(volume->pool);
}
