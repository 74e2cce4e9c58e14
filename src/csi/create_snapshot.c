/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CreateSnapshot. Idempotent by name.
 *
 * Happy path: look the name up (found, of the same volume: the same answer, once it is durable and
 * the volume is not left frozen) -> find the volume -> measure the pool -> quiesce the volume ->
 * build (share or copy; the link is the commit) -> release the volume -> answer.
 * How it can fail: the name is another volume's snapshot; no room; the volume is in use in a way
 * that would tear the copy. A snapshot that has a name is whole; the volume is released whatever
 * happens.
 */
#include "csi/creation.h"
#include "csi/messages.h"
#include "csi/params.h"
#include "csi/request.h"
#include "csi/services.h"
#include "csi/topology.h"
#include "node/volume.h"

/* A thick volume there has pieces of the disks, and shares nothing. */
static int refuse_thick(struct op *op, const struct pool_object *volume)
{
	if (!pool_is_raw(volume->pool) || !volume->rec->thick)
		return 0;
	return op_fail(op, ERR_PRECONDITION,
		"volume %s is thick and lies in pool %s on raw disks, where thin volumes alone have snapshots: use a class with provisioning: thin, or make a clone (a volume whose source is the volume)",
		volume->rec->name, pool_name(volume->pool));
}

static int look_up_run(struct op *op)
{
	struct csi_creation *c = creation_of(op);
	struct pool_object *snapshot;
	int r = creation_find(c, &snapshot, &op->err);
	if (r < 0)
		return r;
	if (snapshot == NULL) {
		r = node_source_find(&c->source, c->task.csi->node, RECORD_VOLUME, c->source_id,
			false, &op->err);
		return r == 0 ? refuse_thick(op, c->source.object) : r;
	}
	if (snapshot->rec->group[0] != '\0')
		return op_fail(op, ERR_EXISTS,
			"snapshot %s exists, as a member of group snapshot %s", c->name,
			snapshot->rec->group);
	if (strcmp(snapshot->rec->source_id, c->source_id) != 0)
		return op_fail(op, ERR_EXISTS, "snapshot %s exists, of another volume: %s", c->name,
			snapshot->rec->source_id);
	r = node_check_whole(snapshot, &op->err);
	if (r == 0)
		c->object = snapshot;
	return r;
}

static bool leftover_done(struct op *op)
{
	return !creation_exists(op);
}

static int build_run(struct op *op)
{
	struct csi_creation *c = creation_of(op);
	const struct pool_object *volume = c->source.object;
	struct record rec = *volume->rec;
	rec.born = ""; /* it is made in this pool */
	rec.moves = 0;
	rec.kind = RECORD_SNAPSHOT;
	rec.name = c->name;
	/* The bytes it shares are allocated anyway, and it is never written to. */
	rec.thick = false;
	rec.allow_mode_change = false;    /* what is made of it says so itself */
	rec.attach = RECORD_ATTACH_LOCAL; /* likewise */
	rec.limits = (struct io_limits){0};
	rec.source = RECORD_SOURCE_VOLUME;
	rec.source_id = c->source_id;
	rec.shares_extents = c->source.share;
	rec.family = "";
	rec.group = "";
	rec.claim = c->task.claim;
	int r = creation_init_build(c, volume->pool, &rec, &op->err);
	if (r < 0)
		return r;
	c->build.need_bytes =
		c->source.share ? node_source_shared_room(&c->source) : volume->allocated_bytes;
	return op_child(op, &c->build.op);
}

static int answer_run(struct op *op)
{
	struct csi_creation *c = creation_of(op);
	Csi__V1__CreateSnapshotResponse *response = (void *)c->task.response;
	response->snapshot = csi_snapshot_message(c->task.arena, c->task.csi, c->object);
	return response->snapshot != NULL ? 0 : op_fail(op, ERR_NO_ROOM, "out of memory");
}

static const struct op_step steps[] = {
	{"look up", .run = look_up_run},
	{"make durable", .done = creation_durable, .run = creation_make_durable},
	{"thaw leftover", .done = leftover_done, .run = creation_thaw_leftover},
	{"measure", .done = creation_measured, .run = creation_measure},
	{"quiesce volume", .done = creation_exists, .run = creation_quiesce,
		.undo = creation_release},
	{"build", .done = creation_exists, .run = build_run, .end = creation_build_end,
		.flags = OP_COMMIT},
	{"release volume", .done = creation_released, .run = creation_release},
	{"answer", .run = answer_run},
	{NULL},
};

static int prepare(struct csi_task *task, struct err *err)
{
	struct csi_creation *c = container_of(task, struct csi_creation, task);
	const Csi__V1__CreateSnapshotRequest *req = (const void *)task->request;
	c->name = csi_str(req->name);
	c->source_id = task->id;
	int r = csi_params_check_none(req->parameters, req->n_parameters, err);
	if (r == 0)
		r = csi_check_topology(req->accessibility_requirements, &task->csi->config, err);
	if (r < 0)
		return r;
	creation_lock_source(c, RECORD_VOLUME);
	task->claim =
		csi_params_claim(task->arena, req->parameters, req->n_parameters, "volumesnapshot");
	return 0;
}

const struct csi_operation csi_create_snapshot = {
	sizeof(struct csi_creation), prepare, steps, creation_cleanup};
