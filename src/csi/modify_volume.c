/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ControllerModifyVolume: I/O limits, eraseOnDelete and snapshotFreeze of a volume that exists.
 *
 * Happy path: what is given is laid over the record -> (ublk, in use: the data process has the
 * limits) -> the new record, durable, which is the commit -> (in use by pods: their cgroups have
 * them). How it can fail: a parameter is wrong or cannot be had, a data process is too old or away,
 * the pool cannot write. Until the commit all of it is undone. What the pods' cgroups do not take
 * is a condition (node/limits.h): a limit is recorded also for a volume that nobody uses yet.
 */
#include "csi/params.h"
#include "csi/services.h"
#include "csi/volume_op.h"
#include "pool/amend.h"
#include "pool/trash.h"

#include <errno.h>

struct modify {
	struct volume_op n;
	struct pool_amendment to;
	struct pool_amend amend;
	struct io_limits had; /* in force in the device before */
};

#define modify_of(op_ptr) container_of(volume_op_of(op_ptr), struct modify, n)

/* ---- the device ---- */

static struct node_volume *limited_device(struct modify *m)
{
	struct node_volume *node = node_volume_find(m->n.volume);
	return node != NULL && node->dev.attached && m->n.backend->limit != NULL ? node : NULL;
}

static bool device_done(struct op *op)
{
	struct modify *m = modify_of(op);
	const struct node_volume *node = limited_device(m);
	return node == NULL || io_limits_equal(&node->dev.limits, &m->to.limits);
}

static int limit_device(struct op *op, const struct io_limits *limits)
{
	struct modify *m = modify_of(op);
	volume_op_prepare_backend(&m->n);
	m->n.dev.limits = *limits;
	return m->n.backend->limit(m->n.backend, op, &m->n.dev);
}

static int device_run(struct op *op)
{
	struct modify *m = modify_of(op);
	m->had = limited_device(m)->dev.limits;
	return limit_device(op, &m->to.limits);
}

static int device_end(struct op *op, int res)
{
	struct modify *m = modify_of(op);
	struct node_volume *node = limited_device(m);
	int r = backend_end(op, &m->n.dev, res);
	if (r < 0 && op->err.code == ERR_UNIMPLEMENTED)
		op->err.code = ERR_PRECONDITION;
	if (r == 0 && node != NULL) {
		node->dev.limits = m->n.dev.dev.limits;
		node->dev.throttled = m->n.dev.dev.throttled;
	}
	return r;
}

static int device_undo(struct op *op)
{
	struct modify *m = modify_of(op);
	struct node_volume *node = limited_device(m);
	if (node == NULL)
		return 0;
	node->dev.limits = m->had;
	return limit_device(op, &m->had);
}

/* ---- the pods ---- */

/* Where all limits go, they go from the pods' cgroups first: a crash in between leaves a record
 * that has them, and whose volume gets them again. */
static bool lift_done(struct op *op)
{
	struct modify *m = modify_of(op);
	return io_limits_any(&m->to.limits) || limited_device(m) != NULL ||
	       volume_op_limits_done(op);
}

static int lift_run(struct op *op)
{
	struct modify *m = modify_of(op);
	node_limits_look_init(&m->n.limits, m->n.task.csi->node, m->n.volume);
	m->n.limits.lift = true;
	return op_child(op, &m->n.limits.op);
}

/* Nothing can be done about what fails here, but look again. */
static int lift_undo(struct op *op)
{
	struct modify *m = modify_of(op);
	struct node_volume *node = node_volume_find(m->n.volume);
	if (node != NULL && node->dev.attached)
		node_limits_follow(m->n.task.csi->node, node);
	return 0;
}

/* ---- the record ---- */

static int record_run(struct op *op)
{
	struct modify *m = modify_of(op);
	pool_amend_init(&m->amend, op->reactor, m->n.volume, &m->to);
	return op_child(op, &m->amend.op);
}

static const struct op_step steps[] = {
	{"key", .run = volume_op_take_key},
	{"limit device", .done = device_done, .run = device_run, .end = device_end,
		.undo = device_undo},
	{"lift limits", .done = lift_done, .run = lift_run, .end = volume_op_ignore,
		.undo = lift_undo},
	{"record", .run = record_run, .flags = OP_COMMIT},
	{"limits", .done = volume_op_limits_done, .run = volume_op_limits, .end = volume_op_ignore},
	{NULL},
};

/* ---- the request ---- */

/* What is overwritten at last has to be the volume's own blocks, or others would keep its bytes. */
static int check_erase(const struct pool_object *volume, enum record_erase erase, struct err *err)
{
	const struct record *rec = volume->rec;
	int r = csi_params_check_erase(erase, volume->pool, err);
	if (r < 0 || erase == RECORD_ERASE_NONE || erase == rec->erase)
		return r;
	bool raw = pool_is_raw(volume->pool);
	if (raw && !rec->thick)
		return err_set(err, ERR_PRECONDITION,
			"mutable_parameters: eraseOnDelete would overwrite nothing of volume %s, which is thin and in pool %s on raw disks: its blocks are overwritten before somebody else gets them; only a thick volume may have it",
			rec->name, pool_name(volume->pool));
	if (rec->shares_extents || volume->shared)
		return err_set(err, ERR_PRECONDITION,
			"mutable_parameters: eraseOnDelete would erase nothing of what volume %s shares with its source, snapshots or clones",
			rec->name);
	/* A clone or a snapshot that was deleted is in no index, and has its blocks a little
	 * longer. */
	if (!raw && pool_trash_busy(volume->pool))
		return err_set(err, ERR_UNAVAILABLE,
			"mutable_parameters: eraseOnDelete: what was deleted in pool %s is still being removed, and may share blocks with volume %s; try again",
			pool_name(volume->pool), rec->name);
	bool from_template = rec->fs != FSIMG_NONE && rec->encryption == RECORD_PLAIN &&
			     !rec->thick && pool_features(volume->pool)->reflink;
	if (erase == RECORD_ERASE_ZERO && from_template)
		return err_set(err, ERR_PRECONDITION,
			"mutable_parameters: eraseOnDelete: zero is for volumes that were made with it or with provisioning thick: volume %s began as a copy that shares blocks",
			rec->name);
	return 0;
}

static int prepare(struct csi_task *task, struct err *err)
{
	const Csi__V1__ControllerModifyVolumeRequest *req = (const void *)task->request;
	struct modify *m = container_of(task, struct modify, n.task);
	struct csi_params params = {0};
	int r = volume_op_find(&m->n, NULL, err);
	if (r == 0)
		r = csi_params_parse_mutable(
			req->mutable_parameters, req->n_mutable_parameters, &params, err);
	if (r == 0)
		r = pool_check_ready(m->n.volume->pool, err);
	/* It may have a device, which would keep its old limits. */
	if (r == 0 && !node_knows_volume(task->csi->node, m->n.volume))
		r = err_set(err, ERR_UNAVAILABLE,
			"devices of an earlier run are still being looked for; try again");
	if (r < 0)
		return r;
	const struct record *rec = m->n.volume->rec;
	m->to = (struct pool_amendment){
		.erase = params.given & CSI_ERASE ? params.erase : rec->erase,
		.snapshot_freeze = params.given & CSI_SNAPSHOT_FREEZE ? params.snapshot_freeze != 0
								      : rec->snapshot_freeze,
		.limits = rec->limits,
	};
	csi_params_lay_limits(&params, &m->to.limits);
	return check_erase(m->n.volume, m->to.erase, err);
}

const struct csi_operation csi_modify_volume = {
	sizeof(struct modify), prepare, steps, volume_op_cleanup};
