/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CreateVolumeGroupSnapshot: snapshots of several volumes of one pool, at one moment. Idempotent by
 * name.
 *
 * Happy path: look the name up (found, of the same volumes: the same answer, once it is durable and
 * no volume is left frozen) -> find the volumes -> measure the pool -> make the volumes ready
 * (sync, mark) -> make the group, which freezes, shares and thaws them in its midst; the link of
 * its file is the commit (pool/group_make.h) -> answer. How it can fail: the name is the group of
 * other volumes; they are not in one pool; no room; a volume is in use in a way that cannot be held
 * still beside others. There is the whole group or nothing of it, and the volumes are released
 * whatever happens.
 */
#include "csi/group.h"
#include "csi/messages.h"
#include "csi/params.h"
#include "csi/request.h"
#include "csi/services.h"
#include "node/group_hold.h"
#include "node/source.h"
#include "node/volume.h"
#include "pool/group_make.h"
#include "pool/group_sync.h"
#include "pool/index.h"

#include <errno.h>
#include <stdlib.h>

struct group_creation {
	struct csi_task task;
	const char *name;
	unsigned count;
	const ProtobufCBinaryData *source_ids;
	struct pool *pool;
	struct node_group_member *members;
	struct node_group_hold hold;
	struct op_all leftovers;
	struct pool_measure measure;
	struct pool_group_sync settle;
	struct pool_group_make make;
	struct pool_group *group; /* found or made */
	bool making, stopped;
};

#define creation_of(op_ptr) csi_task_of(op_ptr, struct group_creation)

/* ---- a group of that name ---- */

static bool is_asked_for(const struct group_creation *c, const char *source_id)
{
	for (unsigned i = 0; i < c->count; i++)
		if (strcmp(csi_str(c->source_ids[i]), source_id) == 0)
			return true;
	return false;
}

static int check_found(
	const struct group_creation *c, const struct pool_group *group, struct err *err)
{
	const char *why;
	if (group->why != NULL)
		return err_set(err, ERR_EXISTS,
			"name %s is taken in pool %s by a group snapshot that cannot be told: %s; look at it with ringvol check",
			c->name, pool_name(group->pool), group->why);
	int r = pool_group_check(group, err);
	for (unsigned i = 0; r == 0 && i < group->count; i++) {
		const struct pool_object *member = pool_group_member(group, i, &why);
		if (group->count != c->count || !is_asked_for(c, member->rec->source_id))
			r = err_set(err, ERR_EXISTS,
				"group snapshot %s exists, of other volumes (one is %s)", c->name,
				member->rec->source_id);
		else
			r = node_check_whole(member, err);
	}
	return r;
}

/* ---- the volumes ---- */

static int find_volume(struct group_creation *c, unsigned i, struct err *err)
{
	struct pool_object *volume;
	const char *id = csi_str(c->source_ids[i]);
	int r = pools_find_id(c->task.csi->pools, RECORD_VOLUME, id, &volume, err);
	if (r == 0)
		r = pool_check_not_inline(volume, err);
	if (r == 0)
		r = node_check_whole(volume, err);
	if (r < 0)
		return r;
	if (c->pool != NULL && c->pool != volume->pool)
		return err_set(err, ERR_PRECONDITION,
			"source_volume_ids: volume %s is in pool %s and volume %s in pool %s; a group snapshot is of the volumes of one pool",
			c->members[0].volume->rec->name, pool_name(c->pool), volume->rec->name,
			pool_name(volume->pool));
	c->pool = volume->pool;
	c->members[i].volume = volume;
	c->members[i].share = node_can_share(volume, false);
	return 0;
}

/* There a thick volume has pieces of the disks, and shares nothing. */
static int check_raw(const struct group_creation *c, struct err *err)
{
	for (unsigned i = 0; pool_is_raw(c->pool) && i < c->count; i++)
		if (c->members[i].volume->rec->thick)
			return err_set(err, ERR_PRECONDITION,
				"volume %s is thick and lies in pool %s on raw disks, where thin volumes alone have snapshots: use a class with provisioning: thin, or make clones",
				c->members[i].volume->rec->name, pool_name(c->pool));
	return 0;
}

static int find_volumes(struct group_creation *c, struct err *err)
{
	int r = 0;
	c->members = calloc(c->count, sizeof(*c->members));
	if (c->members == NULL)
		return err_set(err, ERR_NO_ROOM, "out of memory");
	for (unsigned i = 0; r == 0 && i < c->count; i++)
		r = find_volume(c, i, err);
	if (r == 0)
		r = pool_check_ready(c->pool, err);
	return r == 0 ? check_raw(c, err) : r;
}

static int look_up_run(struct op *op)
{
	struct group_creation *c = creation_of(op);
	struct pool_group *group = pools_find_group_name(c->task.csi->pools, c->name);
	if (group == NULL)
		return find_volumes(c, &op->err);
	int r = check_found(c, group, &op->err);
	if (r == 0)
		c->group = group;
	return r;
}

/* ---- what is there already ---- */

static bool exists(struct op *op)
{
	return creation_of(op)->group != NULL;
}

static bool is_new(struct op *op)
{
	return !exists(op);
}

static bool is_durable(struct op *op)
{
	return is_new(op) || !creation_of(op)->group->unsynced;
}

static int make_durable_run(struct op *op)
{
	struct group_creation *c = creation_of(op);
	pool_group_sync_init(&c->settle, op->reactor, c->group->pool, c->group);
	return op_child(op, &c->settle.op);
}

/* The attempt that made it may have left a volume frozen. Adoption looks for itself. */
static struct op *nth_leftover(void *arg, unsigned i)
{
	struct group_creation *c = arg;
	struct pool_object *volume;
	struct err gone = {0};
	struct node *node = c->task.csi->node;
	if (pools_find_id(c->task.csi->pools, RECORD_VOLUME, csi_str(c->source_ids[i]), &volume,
		    &gone) < 0 ||
		!node_knows_volume(node, volume) || node_volume_find(volume) == NULL)
		return NULL;
	node_quiesce_init(&c->members[i].quiesce, node, volume, NODE_QUIESCE_LEFTOVER);
	return &c->members[i].quiesce.op;
}

static int leftover_run(struct op *op)
{
	struct group_creation *c = creation_of(op);
	int r = pool_check_ready(c->group->pool, &op->err);
	if (r < 0)
		return r;
	c->members = calloc(c->count, sizeof(*c->members));
	if (c->members == NULL)
		return op_fail(op, ERR_NO_ROOM, "out of memory");
	return op_all(op, &c->leftovers, c->count, nth_leftover, c);
}

/* ---- making it ---- */

static int measure_run(struct op *op)
{
	struct group_creation *c = creation_of(op);
	pool_measure_init(&c->measure, op->reactor, c->pool, CSI_MEASURE_MS);
	return op_child(op, &c->measure.op);
}

static int ready_run(struct op *op)
{
	struct group_creation *c = creation_of(op);
	node_group_ready_init(&c->hold, c->task.csi->node, c->members, c->count);
	return op_child(op, &c->hold.op);
}

static int release(struct op *op, void *arg)
{
	struct group_creation *c = arg;
	node_group_release_init(&c->hold);
	return op_child(op, &c->hold.op);
}

static int ready_undo(struct op *op)
{
	return release(op, creation_of(op));
}

static int freeze(struct op *op, void *arg)
{
	struct group_creation *c = arg;
	node_group_freeze_init(&c->hold);
	return op_child(op, &c->hold.op);
}

static bool is_frozen(const void *arg, unsigned i)
{
	const struct group_creation *c = arg;
	return c->members[i].quiesce.freeze == NODE_FROZEN;
}

static int make_run(struct op *op)
{
	struct group_creation *c = creation_of(op);
	struct pool_group_part *parts = arena_alloc(c->task.arena, c->count * sizeof(*parts));
	if (parts == NULL)
		return op_fail(op, ERR_NO_ROOM, "out of memory");
	uint64_t need_bytes = 0;
	for (unsigned i = 0; i < c->count; i++) {
		struct pool_object *volume = c->members[i].volume;
		parts[i].source = volume;
		parts[i].share = c->members[i].share;
		need_bytes += parts[i].share ? node_share_room(volume) : volume->allocated_bytes;
	}
	int r = pool_group_make_init(&c->make, op->reactor, c->pool, c->name,
		c->task.claim != NULL ? c->task.claim : "", parts, c->count);
	c->making = true;
	if (r < 0)
		return op_fail_sys(op, r, "group snapshot %s", c->name);
	c->make.need_bytes = need_bytes;
	c->make.hold = freeze;
	c->make.release = release;
	c->make.is_frozen = is_frozen;
	c->make.hold_arg = c;
	c->make.stopped = c->stopped;
	return op_child(op, &c->make.op);
}

static int make_end(struct op *op, int res)
{
	struct group_creation *c = creation_of(op);
	(void)op;
	if (res == 0)
		c->task.group = c->group = c->make.ret_group;
	return res;
}

static int answer_run(struct op *op)
{
	struct group_creation *c = creation_of(op);
	Csi__V1__CreateVolumeGroupSnapshotResponse *response = (void *)c->task.response;
	response->group_snapshot = csi_group_message(c->task.arena, c->task.csi, c->group);
	return response->group_snapshot != NULL ? 0 : op_fail(op, ERR_NO_ROOM, "out of memory");
}

static const struct op_step steps[] = {
	{"look up", .run = look_up_run},
	{"make durable", .done = is_durable, .run = make_durable_run},
	{"thaw leftovers", .done = is_new, .run = leftover_run},
	{"measure", .done = exists, .run = measure_run},
	{"ready volumes", .done = exists, .run = ready_run, .undo = ready_undo},
	{"make", .done = exists, .run = make_run, .end = make_end, .flags = OP_COMMIT},
	{"answer", .run = answer_run},
	{NULL},
};

/* ---- the request ---- */

static int check_ids(const Csi__V1__CreateVolumeGroupSnapshotRequest *req, struct err *err)
{
	if (req->n_source_volume_ids > POOL_GROUP_MEMBERS_MAX)
		return err_set(err, ERR_INVALID,
			"source_volume_ids: %zu volumes, a group snapshot has %d at most",
			req->n_source_volume_ids, POOL_GROUP_MEMBERS_MAX);
	for (size_t i = 0; i < req->n_source_volume_ids; i++) {
		const char *id = csi_str(req->source_volume_ids[i]);
		if (id[0] == '\0')
			return err_set(err, ERR_INVALID, "source_volume_ids: one is empty");
		for (size_t j = 0; j < i; j++)
			if (strcmp(csi_str(req->source_volume_ids[j]), id) == 0)
				return err_set(err, ERR_INVALID,
					"source_volume_ids: %s is given twice", id);
	}
	return 0;
}

static void stop(void *arg)
{
	struct group_creation *c = arg;
	c->stopped = true;
	pool_group_make_stop(&c->make);
}

static int prepare(struct csi_task *task, struct err *err)
{
	struct group_creation *c = container_of(task, struct group_creation, task);
	const Csi__V1__CreateVolumeGroupSnapshotRequest *req = (const void *)task->request;
	char key[RECORD_KEY_MAX];
	c->name = csi_str(req->name);
	c->source_ids = req->source_volume_ids;
	c->count = (unsigned)req->n_source_volume_ids;
	task->subject = c->name;
	int r = csi_params_check_none(req->parameters, req->n_parameters, err);
	if (r == 0)
		r = check_ids(req, err);
	if (r == 0)
		r = csi_task_lock_many(task, c->count + 1, err);
	if (r < 0)
		return r;
	record_key(c->name, key);
	csi_task_lock_key(task, CSI_GROUP_LOCK, key);
	for (unsigned i = 0; i < c->count; i++) {
		const char *id = csi_str(c->source_ids[i]);
		csi_task_lock_id(task, node_source_lock_mode(task->csi->node, RECORD_VOLUME, id),
			RECORD_VOLUME, id);
	}
	task->lane = pools_lane_of_id(task->csi->pools, csi_str(c->source_ids[0]));
	task->copy = (struct csi_task_copy){.stop = stop, .arg = c};
	task->claim = csi_params_claim(
		task->arena, req->parameters, req->n_parameters, "volumegroupsnapshot");
	return 0;
}

static void cleanup(struct csi_task *task)
{
	struct group_creation *c = container_of(task, struct group_creation, task);
	if (c->making)
		pool_group_make_free(&c->make);
	free(c->members);
}

const struct csi_operation csi_create_group = {
	sizeof(struct group_creation), prepare, steps, cleanup};
