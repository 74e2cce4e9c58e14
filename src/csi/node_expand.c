/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NodeExpandVolume: everything grows to the volume's size, online: the image (where the
 * orchestrator asks for more than the controller already gave; with --controller-expand node that
 * is the whole growth, capacity check included), the device, the file system, whose log is clean
 * at the end (clean_log.h).
 *
 * How it can fail: no room, a file system that cannot grow here. Repeatable: each step finds what
 * is large enough already. Nothing is undone, a larger image under a smaller file system is sound.
 */
#include "csi/node.h"
#include "node/clean_log.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

struct expand {
	struct node_op n;
	const char *path;
	uint64_t size_bytes;
	struct pool_measure measure;
	struct pool_grow grow;
	struct node_clean_log clean;
	struct mnt_grow_req grow_fs;
};

#define expand_of(op_ptr) container_of(node_op_of(op_ptr), struct expand, n)

static int inspect_run(struct op *op)
{
	return node_inspect(op, expand_of(op)->path);
}

static int inspect_end(struct op *op, int res)
{
	struct expand *e = expand_of(op);
	int r = node_inspect_end(op, res);
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

static bool image_done(struct op *op)
{
	struct expand *e = expand_of(op);
	return e->n.volume->rec->size_bytes >= e->size_bytes;
}

static int measure_run(struct op *op)
{
	struct expand *e = expand_of(op);
	pool_measure_init(&e->measure, op->reactor, e->n.volume->pool, 1000);
	return op_child(op, &e->measure.op);
}

static int image_run(struct op *op)
{
	struct expand *e = expand_of(op);
	pool_grow_init(&e->grow, op->reactor, e->n.volume, e->size_bytes);
	return op_child(op, &e->grow.op);
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
	if (r == 0)
		node_volume_set_dev(
			e->n.task.csi->node, node_volume_find(e->n.volume), &e->n.dev.dev);
	return r;
}

static bool fs_done(struct op *op)
{
	return !node_volume_has_fs(expand_of(op)->n.volume);
}

static int prepare_run(struct op *op)
{
	struct expand *e = expand_of(op);
	node_clean_log_prepare_init(&e->clean, e->n.task.csi->node, e->n.volume);
	return op_child(op, &e->clean.op);
}

static int clean_run(struct op *op)
{
	struct expand *e = expand_of(op);
	node_clean_log_init(&e->clean, e->n.result.grown);
	return op_child(op, &e->clean.op);
}

static int fs_run(struct op *op)
{
	struct expand *e = expand_of(op);
	node_on(&e->grow_fs.on, e->path, &e->n.dev.dev);
	e->grow_fs.type = e->n.volume->rec->fs;
	e->grow_fs.size_bytes = e->n.dev.dev.size_bytes;
	return node_helper(op, MNT_GROW, &e->grow_fs, sizeof(e->grow_fs), &e->n.result,
		sizeof(e->n.result), CSI_GROW_TIMEOUT_MS);
}

static int fs_end(struct op *op, int res)
{
	struct expand *e = expand_of(op);
	if (res == -EPERM || res == -EROFS)
		return op_fail(op, ERR_PRECONDITION, "growth of %s: %s", e->path,
			e->n.result.why[0] != '\0' ? e->n.result.why
						   : "the file system is read-only");
	return res == 0 ? 0 : node_fail(op, res, "growth", e->path);
}

static int answer_run(struct op *op)
{
	struct expand *e = expand_of(op);
	Csi__V1__NodeExpandVolumeResponse *response = csi_task_response(&e->n.task,
		Csi__V1__NodeExpandVolumeResponse, csi__v1__node_expand_volume_response__init);
	if (response != NULL)
		response->capacity_bytes = (int64_t)e->n.volume->rec->size_bytes;
	return 0;
}

static const struct op_step expand_steps[] = {
	{"inspect", .run = inspect_run, .end = inspect_end},
	{"measure", .done = image_done, .run = measure_run},
	{"image", .done = image_done, .run = image_run},
	{"device", .run = device_run, .end = device_end},
	{"prepare", .done = fs_done, .run = prepare_run},
	{"file system", .done = fs_done, .run = fs_run, .end = fs_end},
	{"clean log", .done = fs_done, .run = clean_run},
	{"answer", .run = answer_run},
	{NULL},
};

void csi_node_expand(struct grpc_call *call, const ProtobufCMessage *request)
{
	const Csi__V1__NodeExpandVolumeRequest *req = (const void *)request;
	struct csi *csi = grpc_call_context(call);
	struct expand *e = csi_task_new(call, request, sizeof(*e));
	if (e == NULL)
		return;
	struct err err = {0};
	uint64_t limit = 0;
	e->n.id = csi_str(req->volume_id);
	e->path = csi_str(req->volume_path);
	int r = e->n.id[0] == '\0' ? err_set(&err, ERR_INVALID, "volume_id is missing") : 0;
	if (r == 0 && e->path[0] == '\0')
		r = err_set(&err, ERR_INVALID, "volume_path is missing");
	if (r == 0)
		r = node_op_find(&e->n, req->volume_capability, &err);
	if (r == 0)
		r = node_check_volume_path(&e->n, e->path, &err);
	if (r == 0)
		r = csi_capacity(req->capacity_range, e->n.volume->rec->size_bytes,
			e->n.volume->rec->size_bytes, &e->size_bytes, &limit, &err);
	if (r < 0) {
		csi_refuse(csi, call, &err);
		return;
	}
	node_op_lock(&e->n);
	csi_task_start(&e->n.task, e->n.volume->rec->name, node_lane(&e->n), expand_steps);
}
