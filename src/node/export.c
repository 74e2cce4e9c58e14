/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Happy path: (of a thin volume on raw disks: its thin pool is active) -> the volume's device, as a
 * stage of it would attach it -> the export, by calls on a work thread of the pool's lane. How it
 * can fail: as the backend, and as the target (export/nvmet.h). What a failed attempt has made is
 * ended again, as far as that goes; what is left has no attachment, and exports.c finds it.
 */
#include "node/export.h"

#include "node/devices.h"
#include "node/node.h"
#include "node/volume.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static struct node_export *export_of(struct op *op)
{
	return container_of(op, struct node_export, op);
}

static const struct export_target *target_of(const struct node_export *e)
{
	return e->node->export_config->target;
}

/* ---- the device ---- */

static bool thin_done(struct op *op)
{
	return thin_use_done(export_of(op)->volume);
}

static int thin_run(struct op *op)
{
	struct node_export *e = export_of(op);
	return thin_want(op, e->volume->pool, &e->thin_wait);
}

static int thin_end(struct op *op, int res)
{
	struct node_export *e = export_of(op);
	return thin_use_end(op, e->volume->pool, &e->thin_wait, res);
}

static int attach_run(struct op *op)
{
	struct node_export *e = export_of(op);
	const struct node_volume *nv = node_volume_find(e->volume);
	if (e->volume->image != POOL_IMAGE_WHOLE)
		return op_fail(op, ERR_DATA_LOSS, "volume %s: its image %s", e->volume->rec->name,
			e->volume->image == POOL_IMAGE_MISSING ? "is not there any more"
							       : "is shorter than its record says");
	e->backend = backend_get(e->volume->rec->device);
	if (e->backend == NULL)
		return op_fail(op, ERR_PRECONDITION,
			"volume %s: its device type is not available on this node",
			e->volume->rec->name);
	e->attached_here = nv == NULL || !nv->dev.attached;
	node_volume_request(e->volume, &e->dev);
	return e->backend->attach(e->backend, op, &e->dev);
}

static int attach_end(struct op *op, int res)
{
	struct node_export *e = export_of(op);
	int r = backend_end(op, &e->dev, res);
	node_devices_note(e->node, e->backend->type, r < 0 ? op->err.code : ERR_OK);
	if (r < 0)
		return r;
	struct node_volume *nv = node_volume_get(e->volume);
	if (nv == NULL)
		return op_fail(op, ERR_NO_ROOM, "out of memory");
	e->attached_here &= !e->dev.dev.found;
	node_volume_set_dev(e->node, nv, &e->dev.dev);
	nv->marks_read |= e->attached_here;
	e->export.device = e->dev.dev.path;
	return 0;
}

static int attach_undo(struct op *op)
{
	struct node_export *e = export_of(op);
	struct node_volume *nv = node_volume_find(e->volume);
	if (!e->attached_here || nv == NULL)
		return 0;
	node_volume_clear_dev(e->node, nv);
	node_volume_forget(e->volume);
	return e->backend->detach(e->backend, op, &e->dev);
}

/* ---- the calls ---- */

static int call_end(struct op *op, int res)
{
	struct node_export *e = export_of(op);
	if (res < 0 && e->err.code != ERR_OK)
		op->err = e->err;
	return res < 0 && e->err.code == ERR_OK
		       ? op_fail_sys(op, res, "volume %s: its export", e->volume->rec->name)
		       : res;
}

static int make_call(struct op *op)
{
	struct node_export *e = export_of(op);
	struct err ignored = {0};
	int r = target_of(e)->make(&e->export, &e->err);
	if (r < 0)
		(void)target_of(e)->end(&e->export, &ignored);
	return r;
}

static int end_call(struct op *op)
{
	struct node_export *e = export_of(op);
	return target_of(e)->end(&e->export, &e->err);
}

static int resize_call(struct op *op)
{
	struct node_export *e = export_of(op);
	return target_of(e)->resize(&e->export, &e->err);
}

static int check_call(struct op *op)
{
	struct node_export *e = export_of(op);
	return target_of(e)->check(!e->node->export_config->without_auth, &e->err);
}

static const struct op_step make_steps[] = {
	{"thin pool", .done = thin_done, .run = thin_run, .end = thin_end},
	{"attach", .run = attach_run, .end = attach_end, .undo = attach_undo},
	{"export", .call = make_call, .end = call_end},
	{NULL},
};

static const struct op_step end_steps[] = {
	{"end export", .call = end_call, .end = call_end},
	{NULL},
};

static const struct op_step resize_steps[] = {
	{"resize export", .call = resize_call, .end = call_end},
	{NULL},
};

static const struct op_step check_steps[] = {
	{"check nvmet", .call = check_call, .end = call_end},
	{NULL},
};

static void init(struct node_export *e, struct node *node, struct pool_object *volume,
	const struct attachment *of, const struct op_step *steps)
{
	*e = (struct node_export){.node = node, .volume = volume};
	if (of != NULL) {
		snprintf(e->key, sizeof(e->key), "%s", of->key);
		snprintf(e->export.uuid, sizeof(e->export.uuid), "%s", of->export);
		export_names_of(pool_uuid8(volume->pool), of->export, &e->export.names);
	}
	e->export.key = e->key;
	e->export.device = "its device";
	e->export.address = node->export_config->address;
	op_init(&e->op, node->reactor, "export", steps, NULL);
	e->op.lane = pool_lane(volume->pool);
}

void node_export_make_init(struct node_export *e, struct node *node, struct pool_object *volume,
	const struct attachment *of)
{
	init(e, node, volume, of, make_steps);
}

void node_export_keep_closed(struct node_export *e)
{
	e->export.address = NULL;
}

void node_export_end_init(struct node_export *e, struct node *node, struct pool_object *volume,
	const struct attachment *of)
{
	init(e, node, volume, of, end_steps);
}

void node_export_check_init(struct node_export *e, struct node *node, struct pool_object *volume)
{
	init(e, node, volume, NULL, check_steps);
}

void node_export_resize_init(struct node_export *e, struct node *node, struct pool_object *volume,
	const struct attachment *of)
{
	init(e, node, volume, of, resize_steps);
}

void node_export_free(struct node_export *e)
{
	explicit_bzero(e->key, sizeof(e->key));
}

/* ---- the device that nobody uses any more ---- */

static struct node_let_go *let_go_of(struct op *op)
{
	return container_of(op, struct node_let_go, op);
}

static bool is_used(const struct node_let_go *l)
{
	const struct node_volume *nv = node_volume_find(l->volume);
	return nv == NULL || !nv->dev.attached || !list_empty(&nv->mounts) || l->others.count > 0;
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
