/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DeleteVolumeGroupSnapshot: a group with all its snapshots. What is not there is deleted, once
 * that is durable. Volumes made of its members do not stand in the way.
 *
 * Happy path: the ids are the members' -> the group is deleted, durably (pool/group_remove.h) ->
 * answer. How it can fail: other ids; something is being made of a member right now (its lock is
 * taken); a member is attached by hand; its pool is away, which is never "already deleted".
 */
#include "csi/group.h"
#include "csi/request.h"
#include "csi/services.h"
#include "pool/group_remove.h"
#include "pool/group_sync.h"
#include "pool/index.h"

struct group_deletion {
	struct csi_task task;
	struct pool_group *group; /* NULL: it is gone */
	struct pool *pool;        /* where it was, by a call that has not ended well */
	struct pool_group_remove remove;
	struct pool_group_sync settle;
};

#define deletion_of(op_ptr) csi_task_of(op_ptr, struct group_deletion)

static bool is_gone(struct op *op)
{
	return deletion_of(op)->group == NULL;
}

static bool is_there(struct op *op)
{
	return !is_gone(op);
}

static int remove_run(struct op *op)
{
	struct group_deletion *d = deletion_of(op);
	pool_group_remove_init(&d->remove, op->reactor, d->group);
	return op_child(op, &d->remove.op);
}

static int make_durable_run(struct op *op)
{
	struct group_deletion *d = deletion_of(op);
	pool_group_sync_init(&d->settle, op->reactor, d->pool, NULL);
	return op_child(op, &d->settle.op);
}

static const struct op_step steps[] = {
	{"remove", .done = is_gone, .run = remove_run, .flags = OP_COMMIT},
	{"make durable", .done = is_there, .run = make_durable_run},
	{NULL},
};

/* The group, and its members: nobody makes anything of them meanwhile. */
static int take_locks(struct csi_task *task, const struct pool_group *group, struct err *err)
{
	struct record_id id;
	unsigned members = group != NULL ? group->count : 0;
	if (record_id_parse(task->id, &id) < 0)
		return 0;
	int r = csi_task_lock_many(task, members + 1, err);
	if (r < 0)
		return r;
	csi_task_lock_key(task, CSI_GROUP_LOCK, id.key);
	for (unsigned i = 0; i < members; i++)
		csi_task_lock_id(task, NODE_EXCLUSIVE, RECORD_SNAPSHOT, group->members[i]);
	return 0;
}

static int prepare(struct csi_task *task, struct err *err)
{
	struct group_deletion *d = container_of(task, struct group_deletion, task);
	const Csi__V1__DeleteVolumeGroupSnapshotRequest *req = (const void *)task->request;
	const struct pools *pools = task->csi->pools;
	task->id = task->subject = csi_str(req->group_snapshot_id);
	task->lane = pools_lane_of_id(pools, task->id);
	int r = pools_find_group(pools, task->id, &d->group, err);
	if (r < 0 && err->code != ERR_NOT_FOUND)
		return r;
	if (r < 0) {
		err_clear(err);
		d->pool = pools_group_removal_unsynced(pools, task->id);
		return d->pool == NULL ? CSI_ANSWERED : take_locks(task, NULL, err);
	}
	const char *name = arena_strdup(task->arena, d->group->name);
	task->subject = name != NULL ? name : task->subject;
	r = csi_group_check_ids(d->group, req->snapshot_ids, req->n_snapshot_ids, err);
	if (r == 0)
		r = pool_check_ready(d->group->pool, err);
	return r == 0 ? take_locks(task, d->group, err) : r;
}

static void cleanup(struct csi_task *task)
{
	struct group_deletion *d = container_of(task, struct group_deletion, task);
	pool_group_remove_free(&d->remove);
	pool_group_sync_free(&d->settle);
}

const struct csi_operation csi_delete_group = {
	sizeof(struct group_deletion), prepare, steps, cleanup};
