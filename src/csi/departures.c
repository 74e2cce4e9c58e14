/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a controller asks of a node that a volume has left: GetDeparture, where it has gone, from
 * memory; DropDeparture, once it was deleted there: the note goes, durably. A note that is not
 * there is success; one that cannot be read, or whose pool is not here, is not.
 */
#include "cluster.pb-c.h"
#include "csi/messages.h"
#include "csi/request.h"
#include "csi/services.h"
#include "csi/task.h"
#include "pool/departure_drop.h"
#include "pool/index.h"

int csi_get_departure(struct csi_query *q)
{
	const Ringvol__V1__GetDepartureRequest *req = q->request;
	Ringvol__V1__GetDepartureResponse *response = q->response;
	const struct pool_departure *left = pools_departure(q->csi->pools, csi_str(req->volume_id));
	if (left == NULL)
		return 0;
	response->pool = csi_bytes(left->to);
	response->node_id = csi_bytes(left->node_id);
	return 0;
}

struct drop {
	struct csi_task task;
	struct pool_departure_drop drop;
};

#define drop_of(op_ptr) csi_task_of(op_ptr, struct drop)

static int drop_run(struct op *op)
{
	struct drop *d = drop_of(op);
	struct pool_departure *left = pools_departure(d->task.csi->pools, d->task.id);
	if (left == NULL)
		return 0;
	int r = pool_check_ready(left->pool, &op->err);
	if (r < 0)
		return r;
	pool_departure_drop_init(&d->drop, op->reactor, left);
	return op_child(op, &d->drop.op);
}

static const struct op_step steps[] = {
	{"drop note", .run = drop_run},
	{NULL},
};

static int prepare(struct csi_task *task, struct err *err)
{
	(void)err;
	task->lane = pools_lane_of_id(task->csi->pools, task->id);
	return 0;
}

const struct csi_operation csi_drop_departure = {sizeof(struct drop), prepare, steps, NULL};
