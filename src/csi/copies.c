/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a controller asks of this node for a copy to another one: GrantCopy of the node that has the
 * source, OfferCopy of the one that makes the volume (src/transfer).
 *
 * GrantCopy is idempotent by source, node and name. It locks the source as a snapshot of it would,
 * so it fails as CreateSnapshot does: the source is not here, in use in a way that would tear the
 * copy, or there is no room.
 */
#include "cluster.pb-c.h"
#include "csi/messages.h"
#include "csi/request.h"
#include "csi/services.h"
#include "pool/index.h"
#include "transfer/grant.h"
#include "transfer/offer.h"

struct grant_copy {
	struct csi_task task;
	struct grant_make make;
	bool making, unlocked;
	char grant[POOL_GRANT_BYTES], granted_to[POOL_HOLD_NODE_MAX];
};

#define grant_of(op_ptr) csi_task_of(op_ptr, struct grant_copy)

static int grant_run(struct op *op)
{
	struct grant_copy *g = grant_of(op);
	const Ringvol__V1__GrantCopyRequest *req = (const void *)g->task.request;
	bool stopped = g->make.stopped; /* before it began */
	grant_make_init(&g->make, g->task.csi->transfer, csi_str(req->source_id),
		csi_str(req->node_id), csi_str(req->volume_name));
	g->make.stopped = stopped;
	g->make.move = req->move;
	g->make.any_node = req->move && req->any_node;
	g->make.unlocked = g->unlocked;
	g->making = true;
	return op_child(op, &g->make.op);
}

static int grant_end(struct op *op, int res)
{
	struct grant_copy *g = grant_of(op);
	if (res == 0) {
		memcpy(g->grant, g->make.grant, sizeof(g->grant));
		memcpy(g->granted_to, g->make.granted_to, sizeof(g->granted_to));
	}
	return res;
}

static int answer_run(struct op *op)
{
	struct grant_copy *g = grant_of(op);
	Ringvol__V1__GrantCopyResponse *response = (void *)g->task.response;
	response->grant = csi_bytes(g->grant);
	response->node_id = csi_bytes(g->granted_to);
	return 0;
}

static const struct op_step steps[] = {
	{"grant", .run = grant_run, .end = grant_end},
	{"answer", .run = answer_run},
	{NULL},
};

static int prepare(struct csi_task *task, struct err *err)
{
	const Ringvol__V1__GrantCopyRequest *req = (const void *)task->request;
	const char *id = csi_str(req->source_id);
	if (task->csi->transfer == NULL)
		return err_set(err, ERR_UNIMPLEMENTED, "this node copies nothing to others");
	if (csi_str(req->node_id)[0] == '\0')
		return err_set(err, ERR_INVALID, "node_id is missing");
	enum record_kind kind = grant_kind_of(task->csi->pools, id);
	task->subject = id;
	task->lane = pools_lane_of_id(task->csi->pools, id);
	if (req->move && kind == RECORD_SNAPSHOT)
		return err_set(err, ERR_PRECONDITION,
			"%s is a snapshot: it stays with its pool; restore it on the other node",
			id);
	struct grant_copy *g = container_of(task, struct grant_copy, task);
	/* The volume may be held still for that very node. */
	g->unlocked = req->move && grant_moves(task->csi->transfer, id,
					   req->any_node ? NULL : csi_str(req->node_id),
					   csi_str(req->volume_name));
	if (!g->unlocked)
		csi_task_lock_id(task, node_source_lock_mode(task->csi->node, kind, id), kind, id);
	task->copy = (struct csi_task_copy){.stop = grant_make_stop, .arg = &g->make};
	csi_task_lock_other(task, "grant", csi_str(req->volume_name));
	return 0;
}

static void cleanup(struct csi_task *task)
{
	struct grant_copy *g = container_of(task, struct grant_copy, task);
	if (g->making)
		grant_make_free(&g->make);
}

const struct csi_operation csi_grant_copy = {sizeof(struct grant_copy), prepare, steps, cleanup};

int csi_offer_copy(struct csi_query *q)
{
	const Ringvol__V1__OfferCopyRequest *req = q->request;
	if (q->csi->transfer == NULL)
		return err_set(&q->err, ERR_UNIMPLEMENTED, "this node copies nothing from others");
	return offer_put(q->csi->transfer, csi_str(req->source_id), csi_str(req->volume_name),
		csi_str(req->grant), csi_str(req->node_id), csi_str(req->address), &q->err);
}
