/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ControllerExpandVolume: the image grows, and its device where it has one, so that a block volume
 * sees it at once; the file system follows in NodeExpandVolume.
 *
 * How it can fail: no room, a range below the volume's size, an image that was cut short; whether
 * it has a device is not known yet. Repeatable: a larger image under a smaller device or file
 * system is sound, and each step finds what is large enough already.
 */
#include "csi/controller.h"
#include "csi/node.h"

struct expand {
	struct node_op n;
	uint64_t size_bytes;
	struct pool_grow grow;
};

#define expand_of(op_ptr) container_of(node_op_of(op_ptr), struct expand, n)

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

static bool device_done(struct op *op)
{
	struct expand *e = expand_of(op);
	return !is_attached(e) ||
	       node_volume_find(e->n.volume)->dev.size_bytes == e->n.volume->rec->size_bytes;
}

static int device_run(struct op *op)
{
	struct expand *e = expand_of(op);
	node_prepare_backend(&e->n);
	return e->n.backend->resize(e->n.backend, op, &e->n.dev);
}

static int device_end(struct op *op, int res)
{
	struct expand *e = expand_of(op);
	int r = backend_end(op, &e->n.dev, res);
	struct node_volume *node = node_volume_find(e->n.volume);
	if (r == 0 && node != NULL)
		node_volume_set_dev(e->n.task.csi->node, node, &e->n.dev.dev);
	return r;
}

static int answer_run(struct op *op)
{
	struct expand *e = expand_of(op);
	Csi__V1__ControllerExpandVolumeResponse *response =
		csi_task_response(&e->n.task, Csi__V1__ControllerExpandVolumeResponse,
			csi__v1__controller_expand_volume_response__init);
	if (response == NULL)
		return 0;
	response->capacity_bytes = (int64_t)e->n.volume->rec->size_bytes;
	response->node_expansion_required = e->n.volume->rec->fs != FSIMG_NONE || is_attached(e);
	return 0;
}

static const struct op_step expand_steps[] = {
	{"image", .done = image_done, .run = image_run},
	{"device", .done = device_done, .run = device_run, .end = device_end},
	{"answer", .run = answer_run},
	{NULL},
};

static int check(
	struct expand *e, const Csi__V1__ControllerExpandVolumeRequest *req, struct err *err)
{
	uint64_t limit = 0;
	if (!e->n.task.csi->config.controller_expand)
		return err_set(err, ERR_UNIMPLEMENTED,
			"volumes are expanded by NodeExpandVolume here (--controller-expand node)");
	if (e->n.id[0] == '\0')
		return err_set(err, ERR_INVALID, "volume_id is missing");
	if (req->capacity_range == NULL ||
		(req->capacity_range->required_bytes == 0 && req->capacity_range->limit_bytes == 0))
		return err_set(err, ERR_INVALID, "capacity_range is missing");
	int r = node_op_find(&e->n, req->volume_capability, err);
	if (r == 0)
		r = pool_check_ready(e->n.volume->pool, err);
	/* It may have a device, which would not grow with it. */
	if (r == 0 && !node_knows_volume(e->n.task.csi->node, e->n.volume))
		r = err_set(err, ERR_UNAVAILABLE,
			"devices of an earlier run are still being looked for; try again");
	if (r < 0)
		return r;
	/* A volume never shrinks: less than its size is its size. */
	uint64_t size_bytes = e->n.volume->rec->size_bytes;
	return csi_capacity(
		req->capacity_range, size_bytes, size_bytes, &e->size_bytes, &limit, err);
}

void csi_controller_expand_volume(struct grpc_call *call, const ProtobufCMessage *request)
{
	const Csi__V1__ControllerExpandVolumeRequest *req = (const void *)request;
	struct csi *csi = grpc_call_context(call);
	struct expand *e = csi_task_new(call, request, sizeof(*e));
	if (e == NULL)
		return;
	struct err err = {0};
	e->n.id = csi_str(req->volume_id);
	if (check(e, req, &err) < 0) {
		csi_refuse(csi, call, &err);
		return;
	}
	node_op_lock(&e->n);
	csi_task_start(&e->n.task, e->n.volume->rec->name, node_lane(&e->n), expand_steps);
}
