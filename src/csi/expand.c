/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ControllerExpandVolume and NodeExpandVolume. The controller's makes the image grow, and its
 * device where it has one, so that a block volume sees it at once, and so does a node that it is
 * exported to. The node's makes everything grow
 * to the volume's size, online: the image (where the orchestrator asks for more than the controller
 * already gave; with --controller-expand node that is the whole growth, capacity check included),
 * the device, the file system, whose log is clean at the end (clean_log.h).
 *
 * How it can fail: no room, a range below the volume's size, an image that was cut short, a file
 * system that cannot grow here; whether the volume has a device is not known yet. Repeatable: each
 * step finds what is large enough already. Nothing is undone, a larger image under a smaller device
 * or file system is sound.
 */
#include "csi/request.h"
#include "csi/services.h"
#include "csi/volume_op.h"
#include "node/export.h"
#include "node/node.h"
#include "pool/grow.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

struct expand {
	struct volume_op n;
	const char *path;
	uint64_t size_bytes;
	struct pool_measure measure;
	struct pool_grow grow;
	struct node_export_all exports;
};

#define expand_of(op_ptr) container_of(volume_op_of(op_ptr), struct expand, n)

/* ---- the image and its device ---- */

static bool image_done(struct op *op)
{
	struct expand *e = expand_of(op);
	return e->n.volume->rec->size_bytes >= e->size_bytes;
}

static int image_run(struct op *op)
{
	struct expand *e = expand_of(op);
	pool_grow_init(&e->grow, op->reactor, e->n.volume, e->size_bytes);
	return op_child(op, &e->grow.op);
}

static bool is_attached(const struct expand *e)
{
	const struct node_volume *node = node_volume_find(e->n.volume);
	return node != NULL && node->dev.attached;
}

/* NodeExpandVolume does not skip it: its device may be smaller than memory says. */
static bool device_done(struct op *op)
{
	const struct expand *e = expand_of(op);
	const struct record *rec = e->n.volume->rec;
	if (!is_attached(e))
		return true;
	/* What is exported of an encrypted volume has its header, too. */
	const struct backend_dev *dev = &node_volume_find(e->n.volume)->dev;
	uint64_t wanted = dev->below_major != 0 ? rec->size_bytes : record_image_bytes(rec);
	return dev->size_bytes == wanted;
}

static int device_run(struct op *op)
{
	struct expand *e = expand_of(op);
	volume_op_prepare_backend(&e->n);
	return e->n.backend->resize(e->n.backend, op, &e->n.dev);
}

/* ---- the nodes that it is exported to ---- */

static bool exports_done(struct op *op)
{
	return !is_attached(expand_of(op));
}

static int exports_run(struct op *op)
{
	struct expand *e = expand_of(op);
	node_export_all_init(
		&e->exports, e->n.task.csi->node, e->n.volume, node_export_resize_init);
	return op_child(op, &e->exports.op);
}

/* A volume never shrinks: less than its size is its size. */
static int choose_size(struct expand *e, const Csi__V1__CapacityRange *range, struct err *err)
{
	uint64_t size_bytes = e->n.volume->rec->size_bytes, limit = 0;
	return csi_capacity(range, size_bytes, size_bytes, &e->size_bytes, &limit, err);
}

/* ---- the controller's ---- */

static int controller_answer_run(struct op *op)
{
	struct expand *e = expand_of(op);
	Csi__V1__ControllerExpandVolumeResponse *response = (void *)e->n.task.response;
	response->capacity_bytes = (int64_t)e->n.volume->rec->size_bytes;
	response->node_expansion_required = e->n.volume->rec->fs != FSIMG_NONE || is_attached(e);
	return 0;
}

static const struct op_step controller_steps[] = {
	{"key", .run = volume_op_take_key},
	{"image", .done = image_done, .run = image_run},
	{"device", .done = device_done, .run = device_run, .end = volume_op_device_end},
	{"exports", .done = exports_done, .run = exports_run},
	{"answer", .run = controller_answer_run},
	{NULL},
};

static int controller_prepare(struct csi_task *task, struct err *err)
{
	const Csi__V1__ControllerExpandVolumeRequest *req = (const void *)task->request;
	struct expand *e = container_of(task, struct expand, n.task);
	if (!task->csi->config.controller_expand)
		return err_set(err, ERR_UNIMPLEMENTED,
			"volumes are expanded by NodeExpandVolume here (--controller-expand node)");
	if (req->capacity_range == NULL ||
		(req->capacity_range->required_bytes == 0 && req->capacity_range->limit_bytes == 0))
		return err_set(err, ERR_INVALID, "capacity_range is missing");
	int r = volume_op_find(&e->n, req->volume_capability, err);
	if (r == 0)
		r = pool_check_ready(e->n.volume->pool, err);
	/* It may have a device, which would not grow with it. */
	if (r == 0 && !node_knows_volume(task->csi->node, e->n.volume))
		r = err_set(err, ERR_UNAVAILABLE,
			"devices of an earlier run are still being looked for; try again");
	return r == 0 ? choose_size(e, req->capacity_range, err) : r;
}

const struct csi_operation csi_controller_expand = {
	sizeof(struct expand), controller_prepare, controller_steps, volume_op_cleanup};

/* ---- the node's ---- */

static int inspect_run(struct op *op)
{
	return volume_op_inspect(op, expand_of(op)->path);
}

static int inspect_end(struct op *op, int res)
{
	struct expand *e = expand_of(op);
	int r = volume_op_inspect_end(op, res);
	if (r < 0)
		return r;
	struct node_volume *node = node_volume_find(e->n.volume);
	bool staged_block = !node_volume_has_fs(e->n.volume) && node != NULL && node->dev.attached;
	if (node == NULL || !(node_info_is_dev(&e->n.info, &node->dev) || staged_block))
		return op_fail(op, e->n.info.exists ? ERR_PRECONDITION : ERR_NOT_FOUND,
			"volume %s is not staged or published at volume_path %s",
			e->n.volume->rec->name, e->path);
	return 0;
}

static int measure_run(struct op *op)
{
	struct expand *e = expand_of(op);
	pool_measure_init(&e->measure, op->reactor, e->n.volume->pool, 1000);
	return op_child(op, &e->measure.op);
}

static bool fs_done(struct op *op)
{
	return !node_volume_has_fs(expand_of(op)->n.volume);
}

static int fs_run(struct op *op)
{
	struct expand *e = expand_of(op);
	return volume_op_grow(op, e->path, e->n.volume->rec->fs);
}

static int fs_end(struct op *op, int res)
{
	struct expand *e = expand_of(op);
	if (res == -EPERM || res == -EROFS)
		return op_fail(op, ERR_PRECONDITION, "growth of %s: %s", e->path,
			e->n.result.why[0] != '\0' ? e->n.result.why
						   : "the file system is read-only");
	return res == 0 ? 0 : volume_op_fail(op, res, "growth", e->path);
}

static int node_answer_run(struct op *op)
{
	struct expand *e = expand_of(op);
	Csi__V1__NodeExpandVolumeResponse *response = (void *)e->n.task.response;
	response->capacity_bytes = (int64_t)e->n.volume->rec->size_bytes;
	return 0;
}

static const struct op_step node_steps[] = {
	{"key", .run = volume_op_take_key},
	{"inspect", .run = inspect_run, .end = inspect_end},
	{"measure", .done = image_done, .run = measure_run},
	{"image", .done = image_done, .run = image_run},
	{"device", .run = device_run, .end = volume_op_device_end},
	{"exports", .done = exports_done, .run = exports_run},
	{"prepare", .done = fs_done, .run = volume_op_prepare_growth},
	{"file system", .done = fs_done, .run = fs_run, .end = fs_end},
	{"clean log", .done = fs_done, .run = volume_op_clean_log},
	{"answer", .run = node_answer_run},
	{NULL},
};

static int node_prepare(struct csi_task *task, struct err *err)
{
	const Csi__V1__NodeExpandVolumeRequest *req = (const void *)task->request;
	struct expand *e = container_of(task, struct expand, n.task);
	e->path = csi_str(req->volume_path);
	int r = volume_op_find(&e->n, req->volume_capability, err);
	if (r == 0)
		r = volume_op_check_path(&e->n, e->path, err);
	return r == 0 ? choose_size(e, req->capacity_range, err) : r;
}

const struct csi_operation csi_node_expand = {
	sizeof(struct expand), node_prepare, node_steps, volume_op_cleanup};
