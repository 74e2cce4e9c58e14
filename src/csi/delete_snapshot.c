/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DeleteSnapshot: what is not there is deleted, once that is durable. Volumes made from it do not
 * stand in the way.
 *
 * Happy path: rename to trash, durable [pool_remove] -> answer. It fails when a volume is being
 * made from it right now (its lock is taken), or when its pool is away.
 */
#include "csi/controller.h"

struct deletion {
	struct csi_task task;
	struct pool_object *snapshot;
	struct pool_remove remove;
	struct pool *pool; /* where it was, if it is gone already */
	struct pool_settle settle;
};

static int remove_run(struct op *op)
{
	struct deletion *d = csi_task_of(op, struct deletion);
	pool_remove_init(&d->remove, op->reactor, d->snapshot);
	return op_child(op, &d->remove.op);
}

static int settle_run(struct op *op)
{
	struct deletion *d = csi_task_of(op, struct deletion);
	pool_settle_init(&d->settle, op->reactor, d->pool, RECORD_SNAPSHOT, NULL);
	return op_child(op, &d->settle.op);
}

static int answer_run(struct op *op)
{
	struct deletion *d = csi_task_of(op, struct deletion);
	csi_task_response(
		&d->task, Csi__V1__DeleteSnapshotResponse, csi__v1__delete_snapshot_response__init);
	return 0;
}

static const struct op_step delete_steps[] = {
	{"remove", .run = remove_run, .flags = OP_COMMIT},
	{"answer", .run = answer_run},
	{NULL},
};

/* It is gone, by a call that has not ended yet, or not well. */
static const struct op_step gone_steps[] = {
	{"settle", .run = settle_run},
	{"answer", .run = answer_run},
	{NULL},
};

void csi_delete_snapshot(struct grpc_call *call, const ProtobufCMessage *request)
{
	const Csi__V1__DeleteSnapshotRequest *req = (const void *)request;
	struct csi *csi = grpc_call_context(call);
	const char *id = csi_str(req->snapshot_id);
	struct pool_object *snapshot;
	struct err err = {0};
	int r = id[0] == '\0' ? err_set(&err, ERR_INVALID, "snapshot_id is missing") : 0;
	if (r == 0)
		r = pools_find_id(csi->pools, RECORD_SNAPSHOT, id, &snapshot, &err);
	if (r == 0)
		r = pool_check_ready(snapshot->pool, &err);
	struct pool *gone_from =
		err.code == ERR_NOT_FOUND ? pools_unsettled(csi->pools, RECORD_SNAPSHOT, id) : NULL;
	if (err.code == ERR_NOT_FOUND && gone_from == NULL) {
		Csi__V1__DeleteSnapshotResponse response = CSI__V1__DELETE_SNAPSHOT_RESPONSE__INIT;
		grpc_reply(call, &response.base);
		return;
	}
	if (r < 0 && gone_from == NULL) {
		csi_refuse(csi, call, &err);
		return;
	}
	struct deletion *d = csi_task_new(call, request, sizeof(*d));
	if (d == NULL)
		return;
	if (gone_from != NULL) {
		d->pool = gone_from;
		csi_lock_id(&d->task, NODE_EXCLUSIVE, RECORD_SNAPSHOT, id);
		csi_task_start(&d->task, id, pool_lane(gone_from), gone_steps);
		return;
	}
	d->snapshot = snapshot;
	csi_task_claim(&d->task, snapshot->rec);
	csi_task_lock(&d->task, NODE_EXCLUSIVE, "snapshot", snapshot->key);
	csi_task_start(&d->task, snapshot->rec->name, pool_lane(snapshot->pool), delete_steps);
}
