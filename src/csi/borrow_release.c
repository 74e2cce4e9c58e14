/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NodeUnpublishVolume and NodeUnstageVolume of a borrowed volume.
 *
 * Happy path: look at the path -> (unstage only) nothing is published any more -> sync -> unmount
 * -> (unstage only) the cover goes, then the connection, or the device of a volume that has moved
 * here; only when that is gone is there an answer, as the owner may let another node write from
 * then on. How it can fail: the mount is busy, still
 * published elsewhere, another's, or hangs because the owner does not answer: then it ends when the
 * kernel gives the owner up. Each call can be repeated; what was released stays released.
 */
#include "csi/borrow.h"

#include "csi/request.h"
#include "node/take_device.h"
#include "pool/index.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

struct hand_back {
	struct borrow_op b;
	bool unstage; /* else unpublish */
	bool ends;    /* the connection goes with the mount */
	/* It is in a pool of this node by now, and its device goes with its cover. NULL: it is not.
	 */
	struct pool_object *own;
	struct node_let_go let_go;
};

#define back_of(op_ptr) container_of(borrow_of(op_ptr), struct hand_back, b)

static bool is_at_path(const struct hand_back *h)
{
	return node_info_is_dev(&h->b.n.info, &h->b.n.dev.dev);
}

static int inspect_run(struct op *op)
{
	return volume_op_inspect(op, back_of(op)->b.path);
}

static int inspect_end(struct op *op, int res)
{
	struct hand_back *h = back_of(op);
	int r = volume_op_inspect_end(op, res);
	if (r < 0 || !h->b.n.info.is_mount || is_at_path(h))
		return r;
	return op_fail(op, ERR_PRECONDITION,
		"%s: what is mounted at %s (device %u:%u) is not volume %s; it is not touched, unmount it by hand if it should go",
		h->b.field, h->b.path, h->b.n.info.dev_major, h->b.n.info.dev_minor,
		h->b.n.task.id);
}

/* ---- nothing may still be published, of what is unstaged ---- */

static bool others_done(struct op *op)
{
	const struct hand_back *h = back_of(op);
	return !h->ends || !h->b.n.dev.dev.attached;
}

static int others_run(struct op *op)
{
	struct hand_back *h = back_of(op);
	node_others_init(&h->b.others, op->reactor, &h->b.n.dev.dev, h->b.path, NULL);
	return op_child(op, &h->b.others.op);
}

static int others_end(struct op *op, int res)
{
	struct hand_back *h = back_of(op);
	if (res < 0 || h->b.others.count == 0)
		return res;
	if (!h->unstage) {
		h->ends = false; /* somebody else has it still */
		return 0;
	}
	return op_fail(op, ERR_PRECONDITION,
		"volume %s is still published at %s; unpublish it first", h->b.n.task.id,
		h->b.others.path);
}

/* ---- the release ---- */

static bool sync_done(struct op *op)
{
	const struct hand_back *h = back_of(op);
	return !h->ends || !is_at_path(h) || h->b.n.info.fs_read_only;
}

static int sync_run(struct op *op)
{
	struct hand_back *h = back_of(op);
	node_on(&h->b.on, h->b.path, &h->b.n.dev.dev);
	return volume_op_helper(op, MNT_SYNC, &h->b.on, sizeof(h->b.on), CSI_MOUNT_TIMEOUT_MS);
}

/* One whose device is gone must still be let go; one that hangs says so. */
static int sync_end(struct op *op, int res)
{
	return res == -ETIMEDOUT ? volume_op_fail(op, res, "sync", back_of(op)->b.path) : 0;
}

static bool unmount_done(struct op *op)
{
	const struct hand_back *h = back_of(op);
	return !h->b.n.info.exists || (h->unstage && !h->b.n.info.is_mount);
}

static int unmount_run(struct op *op)
{
	struct hand_back *h = back_of(op);
	struct mnt_unmount_req *req = &h->b.unmount;
	snprintf(req->target, sizeof(req->target), "%s", h->b.path);
	req->dev_major = h->b.n.info.is_mount ? h->b.n.info.dev_major : 0;
	req->dev_minor = h->b.n.info.is_mount ? h->b.n.info.dev_minor : 0;
	/* What lies in a volume is a tenant's. */
	req->remove = !h->unstage && volume_op_nested_in(&h->b.n) == NULL &&
		      borrows_at(h->b.borrows, h->b.n.info.on_major, h->b.n.info.on_minor) == NULL;
	req->trusted = true;
	return volume_op_helper(op, MNT_UNMOUNT, req, sizeof(*req), CSI_MOUNT_TIMEOUT_MS);
}

static int unmount_end(struct op *op, int res)
{
	struct hand_back *h = back_of(op);
	struct borrowed *one = borrow_entry(&h->b);
	if (res == -EBUSY)
		return op_fail(op, ERR_PRECONDITION,
			"%s: %s is in use: a process has files open or its working directory there",
			h->b.field, h->b.path);
	if (res < 0)
		return volume_op_fail(op, res, "unmount", h->b.path);
	if (one != NULL && one->writer != NULL && strcmp(one->writer, h->b.path) == 0)
		(void)borrowed_set_path(&one->writer, NULL);
	if (one != NULL && one->staging != NULL && strcmp(one->staging, h->b.path) == 0)
		(void)borrowed_set_path(&one->staging, NULL);
	return 0;
}

static bool give_done(struct op *op)
{
	return !back_of(op)->ends;
}

static bool let_go_done(struct op *op)
{
	const struct hand_back *h = back_of(op);
	return !h->ends || h->own == NULL;
}

static int let_go_run(struct op *op)
{
	struct hand_back *h = back_of(op);
	node_let_go_init(&h->let_go, h->b.n.task.csi->node, h->own);
	return op_child(op, &h->let_go.op);
}

static const struct op_step steps[] = {
	{"inspect", .run = inspect_run, .end = inspect_end},
	{"others", .done = others_done, .run = others_run, .end = others_end},
	{"sync", .done = sync_done, .run = sync_run, .end = sync_end},
	{"unmount", .done = unmount_done, .run = unmount_run, .end = unmount_end},
	{"give", .done = give_done, .run = borrow_give_run, .end = borrow_give_end},
	{"let go", .done = let_go_done, .run = let_go_run},
	{NULL},
};

static int prepare(struct csi_task *task, struct err *err)
{
	struct hand_back *h = container_of(task, struct hand_back, b.n.task);
	h->unstage = task->request->descriptor == &csi__v1__node_unstage_volume_request__descriptor;
	h->ends = h->unstage || !task->csi->config.staging;
	h->b.field = task->rpc->paths[0];
	h->b.path = csi_field(task->request, h->b.field);
	struct err ignored = {0};
	if (pools_find_id(task->csi->pools, RECORD_VOLUME, task->id, &h->own, &ignored) < 0)
		h->own = NULL;
	return borrow_find(&h->b, err);
}

const struct csi_operation csi_borrow_release = {
	sizeof(struct hand_back), prepare, steps, borrow_cleanup};
