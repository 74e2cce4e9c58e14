/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CreateSnapshot. Idempotent by name.
 *
 * Happy path: look the name up (found, of the same volume: the same answer, once it is durable and
 * the volume is not left frozen) -> find the volume -> measure the pool -> hold the volume still ->
 * build (share or copy; the link is the commit) -> release the volume -> answer.
 * How it can fail: the name is another volume's snapshot; no room; the volume is in use in a way
 * that would tear the copy. A snapshot that has a name is whole; the volume is released whatever
 * happens.
 */
#include "csi/controller.h"
#include "node/source.h"

#include <errno.h>

struct create {
	struct csi_task task;
	const char *name;
	const char *volume_id;
	struct node_source source;
	struct pool_object *snapshot; /* found or made */
	struct pool_measure measure;
	struct pool_settle settle;
	struct pool_build build;
	bool building;
};

#define create_of(op_ptr) csi_task_of(op_ptr, struct create)

static int look_up_run(struct op *op)
{
	struct create *c = create_of(op);
	struct pool_object *snapshot =
		pools_find_name(c->task.csi->pools, RECORD_SNAPSHOT, c->name);
	if (snapshot == NULL)
		return node_source_find(&c->source, c->task.csi->node, RECORD_VOLUME, c->volume_id,
			false, &op->err);
	int r = csi_check_quarantine(snapshot, c->name, &op->err);
	if (r < 0)
		return r;
	if (strcmp(snapshot->rec->source_id, c->volume_id) != 0)
		return op_fail(op, ERR_EXISTS, "snapshot %s exists, of another volume: %s", c->name,
			snapshot->rec->source_id);
	r = node_check_whole(snapshot, &op->err);
	if (r < 0)
		return r;
	c->snapshot = snapshot;
	return 0;
}

static bool exists(struct op *op)
{
	return create_of(op)->snapshot != NULL;
}

static bool settle_done(struct op *op)
{
	const struct create *c = create_of(op);
	return c->snapshot == NULL || !c->snapshot->unsynced;
}

static int settle_run(struct op *op)
{
	struct create *c = create_of(op);
	pool_settle_init(
		&c->settle, op->reactor, c->snapshot->pool, c->snapshot->kind, c->snapshot);
	return op_child(op, &c->settle.op);
}

/* How much it takes, and whether a copy fits under a freeze, is only known from a fresh measure. */
static int measure_run(struct op *op)
{
	struct create *c = create_of(op);
	pool_measure_init(&c->measure, op->reactor, c->source.object->pool, CSI_MEASURE_MS);
	return op_child(op, &c->measure.op);
}

static int hold_run(struct op *op)
{
	return node_source_hold(op, &create_of(op)->source);
}

static int release_run(struct op *op)
{
	return node_source_release(op, &create_of(op)->source);
}

static bool release_done(struct op *op)
{
	return create_of(op)->source.quiesce.freeze != NODE_FROZEN;
}

static bool leftover_done(struct op *op)
{
	return !exists(op);
}

static int leftover_run(struct op *op)
{
	struct create *c = create_of(op);
	return node_source_leftover(op, &c->source, c->task.csi->node, c->volume_id);
}

static int build_run(struct op *op)
{
	struct create *c = create_of(op);
	const struct pool_object *volume = c->source.object;
	struct record rec = *volume->rec;
	rec.kind = RECORD_SNAPSHOT;
	rec.name = c->name;
	/* The bytes it shares are allocated anyway, and it is never written to. */
	rec.thick = false;
	rec.allow_mode_change = false; /* what is made of it says so itself */
	rec.source = RECORD_SOURCE_VOLUME;
	rec.source_id = c->volume_id;
	rec.shares_extents = c->source.share;
	rec.family = "";
	rec.claim = c->task.claim;
	int r = pool_build_init(&c->build, op->reactor, volume->pool, &rec);
	if (r < 0)
		return op_fail_sys(op, r, "snapshot %s", c->name);
	c->building = true;
	node_source_fill(&c->source, &c->build);
	c->build.need_bytes =
		c->source.share ? node_source_shared_room(&c->source) : volume->allocated_bytes;
	return op_child(op, &c->build.op);
}

static int build_end(struct op *op, int res)
{
	struct create *c = create_of(op);
	if (res < 0)
		return node_source_end(op, &c->source, res);
	c->snapshot = c->build.ret_object;
	return 0;
}

static int answer_run(struct op *op)
{
	struct create *c = create_of(op);
	Csi__V1__Snapshot *message = csi_snapshot_message(c->task.arena, c->task.csi, c->snapshot);
	if (message == NULL)
		return 0;
	Csi__V1__CreateSnapshotResponse *response = csi_task_response(
		&c->task, Csi__V1__CreateSnapshotResponse, csi__v1__create_snapshot_response__init);
	if (response != NULL)
		response->snapshot = message;
	return 0;
}

static const struct op_step create_steps[] = {
	{"look up", .run = look_up_run},
	{"settle", .done = settle_done, .run = settle_run},
	{"thaw leftover", .done = leftover_done, .run = leftover_run},
	{"measure", .done = exists, .run = measure_run},
	{"hold volume", .done = exists, .run = hold_run, .undo = release_run},
	{"build", .done = exists, .run = build_run, .end = build_end, .flags = OP_COMMIT},
	{"release volume", .done = release_done, .run = release_run},
	{"answer", .run = answer_run},
	{NULL},
};

static void create_cleanup(struct csi_task *task)
{
	struct create *c = container_of(task, struct create, task);
	if (c->building)
		pool_build_free(&c->build);
}

void csi_create_snapshot(struct grpc_call *call, const ProtobufCMessage *request)
{
	const Csi__V1__CreateSnapshotRequest *req = (const void *)request;
	struct csi *csi = grpc_call_context(call);
	struct create *c = csi_task_new(call, request, sizeof(*c));
	if (c == NULL)
		return;
	struct err err = {0};
	c->name = csi_str(req->name);
	c->volume_id = csi_str(req->source_volume_id);
	int r = c->name[0] == '\0' ? err_set(&err, ERR_INVALID, "name is missing") : 0;
	if (r == 0 && c->volume_id[0] == '\0')
		r = err_set(&err, ERR_INVALID, "source_volume_id is missing");
	if (r == 0)
		r = csi_params_check_none(req->parameters, req->n_parameters, &err);
	if (r == 0 && !csi_topology_met(req->accessibility_requirements, csi))
		r = err_set(&err, ERR_NO_ROOM,
			"accessibility_requirements: none of requisite is this node (" CSI_TOPOLOGY_KEY
			"=%s)",
			csi->config.node_id);
	if (r < 0) {
		csi_refuse(csi, call, &err);
		return;
	}
	char key[RECORD_KEY_MAX];
	record_key(c->name, key);
	csi_task_lock(&c->task, NODE_EXCLUSIVE, "snapshot", key);
	csi_lock_id(&c->task, node_source_lock_mode(c->task.csi->node, RECORD_VOLUME, c->volume_id),
		RECORD_VOLUME, c->volume_id);
	c->task.claim = csi_params_claim(
		c->task.arena, req->parameters, req->n_parameters, "volumesnapshot");
	c->task.copy = (struct csi_task_copy){node_source_stop, node_source_progress, &c->source};
	c->task.cleanup = create_cleanup;
	csi_task_start(&c->task, c->name, pools_lane_of_id(csi->pools, c->volume_id), create_steps);
}
