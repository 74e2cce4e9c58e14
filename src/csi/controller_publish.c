/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ControllerPublishVolume and ControllerUnpublishVolume (--attach): which nodes a volume is
 * attached to. Served by the driver of the volume's own node, which keeps it durably beside the
 * record (pool/attachment.h).
 *
 * Happy path of a publish: nobody else has the volume -> the note, durable, which is the commit ->
 * the answer. For the volume's own node its context is empty: NodeStageVolume does what it does
 * without any of this. Of an unpublish: the note goes, of one node or of all -> the answer.
 *
 * How it can fail: the volume is another node's now, or in use where no note is; it is on the node
 * in another way; the pool cannot write. All of it can be repeated: what is noted already is
 * answered again, and what is not there is gone. A volume that does not exist is on no node.
 */
#include "csi/attach.h"
#include "csi/messages.h"
#include "csi/request.h"
#include "csi/services.h"
#include "csi/volume_op.h"
#include "pool/attach.h"
#include "pool/index.h"

#include <string.h>

struct attach {
	struct volume_op n;
	const char *node_id; /* "": of an unpublish, all */
	struct attachment want;
	struct pool_attach *note; /* under way */
};

#define attach_of(op_ptr) container_of(volume_op_of(op_ptr), struct attach, n)

static const char *const modes[] = {
	[ATTACHMENT_WRITER] = "SINGLE_NODE_WRITER",
	[ATTACHMENT_READER_ONLY] = "SINGLE_NODE_READER_ONLY",
	[ATTACHMENT_MANY_READERS] = "MULTI_NODE_READER_ONLY",
	[ATTACHMENT_MANY_ONE_WRITER] = "MULTI_NODE_SINGLE_WRITER",
	[ATTACHMENT_MANY_WRITERS] = "MULTI_NODE_MULTI_WRITER",
	[ATTACHMENT_SINGLE_WRITER] = "SINGLE_NODE_SINGLE_WRITER",
	[ATTACHMENT_MULTI_WRITER] = "SINGLE_NODE_MULTI_WRITER",
};

/* ---- the note ---- */

static int note_run(struct op *op, struct attachments *to)
{
	struct attach *a = attach_of(op);
	a->note = pool_attach_new(op->reactor, a->n.volume, to);
	return a->note != NULL ? op_child(op, &a->note->op)
			       : op_fail(op, ERR_NO_ROOM, "out of memory");
}

static int note_end(struct op *op, int res)
{
	struct attach *a = attach_of(op);
	pool_attach_free(a->note);
	a->note = NULL;
	return res;
}

static void cleanup(struct csi_task *task)
{
	struct attach *a = container_of(task, struct attach, n.task);
	pool_attach_free(a->note);
	volume_op_cleanup(task);
}

/* ---- publish ---- */

static const struct attachment *noted(const struct attach *a)
{
	return attachments_find(a->n.volume->attachments, a->node_id);
}

static bool published_done(struct op *op)
{
	return noted(attach_of(op)) != NULL;
}

static int publish_run(struct op *op)
{
	struct attach *a = attach_of(op);
	struct attachments *to = attachments_with(a->n.volume->attachments, &a->want);
	return to != NULL ? note_run(op, to) : op_fail(op, ERR_NO_ROOM, "out of memory");
}

static const struct op_step publish_steps[] = {
	{"note", .done = published_done, .run = publish_run, .end = note_end, .flags = OP_COMMIT},
	{NULL},
};

/* It is on the node in just this way, or not at all. */
static int check_same(const struct attach *a, struct err *err)
{
	const struct attachment *has = noted(a);
	if (has == NULL || (has->mode == a->want.mode && has->block == a->want.block &&
				   has->read_only == a->want.read_only))
		return 0;
	return err_set(err, ERR_EXISTS,
		"volume %s is attached to node %.64s already, as a %s volume, %s, %s; ControllerUnpublishVolume first",
		a->n.volume->rec->name, a->node_id, has->block ? "block" : "mount",
		modes[has->mode], has->read_only ? "read-only" : "writable");
}

static int check_others(const struct attach *a, struct err *err)
{
	const struct attachments *all = a->n.volume->attachments;
	for (unsigned i = 0; all != NULL && i < all->count; i++)
		if (strcmp(all->at[i].node, a->node_id) != 0)
			return err_set(err, ERR_PRECONDITION,
				"volume %s is attached to node %.64s as %s; ControllerUnpublishVolume first",
				a->n.volume->rec->name, all->at[i].node, modes[all->at[i].mode]);
	return 0;
}

/* The volumes of this driver that are attached to the node. */
static unsigned count_on(const struct csi *csi, const char *node_id)
{
	char id[RECORD_ID_MAX] = "";
	unsigned count = 0;
	for (struct pool_object *o; (o = pools_next(csi->pools, RECORD_VOLUME, id)) != NULL;) {
		count += attachments_find(o->attachments, node_id) != NULL;
		pool_object_id(o, id);
	}
	return count;
}

static int check_node(const struct attach *a, struct err *err)
{
	const struct csi_config *config = &a->n.task.csi->config;
	const char *name = a->n.volume->rec->name;
	if (strcmp(a->node_id, config->node_id) != 0)
		return err_set(err, config->clustered ? ERR_PRECONDITION : ERR_NOT_FOUND,
			config->clustered
				? "volume %s is on node %.64s and can be used there alone, not on node %.64s"
				: "volume %s: this driver knows one node, its own, which is %.64s and not %.64s",
			name, config->node_id, a->node_id);
	if (noted(a) == NULL && config->max_volumes != 0 &&
		count_on(a->n.task.csi, a->node_id) >= config->max_volumes)
		return err_set(err, ERR_NO_ROOM,
			"node %.64s has %lld volumes attached already, and --max-volumes-per-node is as many",
			a->node_id, (long long)config->max_volumes);
	return 0;
}

static int prepare_publish(struct csi_task *task, struct err *err)
{
	const Csi__V1__ControllerPublishVolumeRequest *req = (const void *)task->request;
	struct attach *a = container_of(task, struct attach, n.task);
	a->node_id = csi_str(req->node_id);
	int r = volume_op_find(&a->n, req->volume_capability, err);
	if (r < 0)
		return r;
	a->want = (struct attachment){
		.node = a->node_id,
		.mode = a->n.access.mode,
		.block = a->n.access.block,
		.read_only = req->readonly || a->n.access.read_only,
		.export = "",
		.key = "",
	};
	r = check_node(a, err);
	if (r == 0)
		r = check_same(a, err);
	return r == 0 ? check_others(a, err) : r;
}

const struct csi_operation csi_controller_publish = {
	sizeof(struct attach), prepare_publish, publish_steps, cleanup};

/* ---- unpublish ---- */

static int unpublish_run(struct op *op)
{
	struct attach *a = attach_of(op);
	struct attachments *left = NULL;
	if (a->node_id[0] != '\0' &&
		attachments_without(a->n.volume->attachments, a->node_id, &left) < 0)
		return op_fail(op, ERR_NO_ROOM, "out of memory");
	return note_run(op, left);
}

static const struct op_step unpublish_steps[] = {
	{"note", .run = unpublish_run, .end = note_end, .flags = OP_COMMIT},
	{NULL},
};

static int prepare_unpublish(struct csi_task *task, struct err *err)
{
	const Csi__V1__ControllerUnpublishVolumeRequest *req = (const void *)task->request;
	struct attach *a = container_of(task, struct attach, n.task);
	a->node_id = csi_str(req->node_id);
	struct err why = {0};
	int r = pools_find_id(task->csi->pools, RECORD_VOLUME, task->id, &a->n.volume, &why);
	if (r < 0 && why.code == ERR_NOT_FOUND)
		return CSI_ANSWERED;
	if (r < 0) {
		*err = why;
		return r;
	}
	csi_task_names(task, a->n.volume->rec);
	bool there = a->node_id[0] != '\0' ? noted(a) != NULL : a->n.volume->attachments != NULL;
	return there ? pool_check_ready(a->n.volume->pool, err) : CSI_ANSWERED;
}

const struct csi_operation csi_controller_unpublish = {
	sizeof(struct attach), prepare_unpublish, unpublish_steps, cleanup};
