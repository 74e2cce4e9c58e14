/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a controller asks of a node that a volume has left: GetDeparture, where it has gone,
 * and of one that was to come, whether anything of it is here; DropDeparture, once it was deleted
 * there: what could not go to the trash goes, as without the note it would be a volume again, and
 * then the note, durably. Before either answers, what this node has deleted is durable. A note that
 * is not there is success; one that cannot be read, or whose pool is not here, is not.
 */
#include "cluster.pb-c.h"
#include "csi/messages.h"
#include "csi/request.h"
#include "csi/services.h"
#include "csi/task.h"
#include "pool/departure_drop.h"
#include "pool/index.h"
#include "pool/part.h"
#include "pool/remove.h"

#include <string.h>

/* Both begin so. */
struct about {
	struct csi_task task;
	struct pool_resync settle;
};

#define about_of(op_ptr) csi_task_of(op_ptr, struct about)

static struct pool *unsynced_of(struct op *op)
{
	const struct csi_task *task = &about_of(op)->task;
	return pools_removal_unsynced(task->csi->pools, RECORD_VOLUME, task->id);
}

static bool durable_done(struct op *op)
{
	return unsynced_of(op) == NULL;
}

/* A removal that is not durable may be undone by a loss of power: who asks takes it for done. */
static int durable_run(struct op *op)
{
	struct about *about = about_of(op);
	pool_resync_init(&about->settle, op->reactor, unsynced_of(op), RECORD_VOLUME, NULL);
	return op_child(op, &about->settle.op);
}

static int durable_end(struct op *op, int res)
{
	return res < 0 || durable_done(op) ? res : durable_run(op);
}

/* ---- GetDeparture ---- */

struct look {
	struct about about;
	char key[RECORD_KEY_MAX];
	int copies_fds[POOLS_MAX];
	unsigned count;
};

#define look_of(op_ptr) container_of(about_of(op_ptr), struct look, about)

static Ringvol__V1__GetDepartureResponse *response_of(struct op *op)
{
	return (void *)look_of(op)->about.task.response;
}

static int left_run(struct op *op)
{
	const struct look *l = look_of(op);
	const struct pool_departure *left =
		pools_departed(l->about.task.csi->pools, l->about.task.id);
	if (left == NULL)
		return 0;
	response_of(op)->pool = csi_bytes(left->to);
	response_of(op)->node_id = csi_bytes(left->node_id);
	return 0;
}

/* 1: it is arriving, or may be. */
static int parts_job(void *arg)
{
	const struct look *l = arg;
	for (unsigned i = 0; i < l->count; i++)
		if (pool_part_is_finished(l->copies_fds[i], l->key))
			return 1;
	return 0;
}

static int parts_run(struct op *op)
{
	struct look *l = look_of(op);
	const struct pool *pool;
	for (unsigned i = 0; (pool = pools_at(l->about.task.csi->pools, i)) != NULL; i++) {
		int r = pool_check_ready(pool, &op->err);
		if (r < 0)
			return r;
		l->copies_fds[l->count++] = pool_holds_fd(pool);
	}
	return op_work(op, parts_job, l);
}

static int parts_end(struct op *op, int res)
{
	response_of(op)->arriving = res == 1;
	return res < 0 ? op_fail_sys(op, res, "looking for parts of %s", look_of(op)->about.task.id)
		       : 0;
}

/* Where it has gone, nothing else matters. */
static bool parts_done(struct op *op)
{
	return response_of(op)->pool.len > 0;
}

static const struct op_step look_steps[] = {
	{"look for note", .run = left_run},
	{"look for parts", .run = parts_run, .end = parts_end, .done = parts_done},
	{"make durable", .run = durable_run, .end = durable_end, .done = durable_done},
	{NULL},
};

static int look_prepare(struct csi_task *task, struct err *err)
{
	struct record_id id;
	if (record_id_parse(task->id, &id) < 0)
		return err_set(err, ERR_INVALID, "volume_id: %s is no id", task->id);
	strcpy(container_of(task, struct look, about.task)->key, id.key);
	return 0;
}

const struct csi_operation csi_get_departure = {
	sizeof(struct look), look_prepare, look_steps, NULL};

/* ---- DropDeparture ---- */

struct drop {
	struct about about;
	struct pool_departure *left;
	struct pool_remove remove;
	struct pool_departure_drop drop;
};

#define drop_of(op_ptr) container_of(about_of(op_ptr), struct drop, about)

static int find_run(struct op *op)
{
	struct drop *d = drop_of(op);
	d->left = pools_departure(d->about.task.csi->pools, d->about.task.id);
	return d->left != NULL ? pool_check_ready(d->left->pool, &op->err) : 0;
}

static bool remove_done(struct op *op)
{
	const struct drop *d = drop_of(op);
	return d->left == NULL || pool_departure_leftover(d->left) == NULL;
}

static int remove_run(struct op *op)
{
	struct drop *d = drop_of(op);
	pool_remove_init(&d->remove, op->reactor, pool_departure_leftover(d->left));
	return op_child(op, &d->remove.op);
}

static bool drop_done(struct op *op)
{
	return drop_of(op)->left == NULL;
}

static int drop_run(struct op *op)
{
	struct drop *d = drop_of(op);
	pool_departure_drop_init(&d->drop, op->reactor, d->left);
	return op_child(op, &d->drop.op);
}

static const struct op_step steps[] = {
	{"find note", .run = find_run},
	{"remove image", .run = remove_run, .done = remove_done},
	{"make durable", .run = durable_run, .end = durable_end, .done = durable_done},
	{"drop note", .run = drop_run, .done = drop_done},
	{NULL},
};

static int prepare(struct csi_task *task, struct err *err)
{
	(void)err;
	task->lane = pools_lane_of_id(task->csi->pools, task->id);
	csi_task_lock_other(task, "departure", task->id);
	return 0;
}

const struct csi_operation csi_drop_departure = {sizeof(struct drop), prepare, steps, NULL};
