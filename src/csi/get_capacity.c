/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GetCapacity: what CreateVolume with these parameters could still promise: what is free is asked
 * now, what attached volumes use may have been looked at up to a second ago. Where such a volume
 * cannot be made or used here, another node, a pool that is not here or not well, a feature it
 * lacks, no device left for it, the answer is 0 and no error, so that a scheduler looks elsewhere;
 * parameters that no node understands are an error.
 */
#include "csi/get_capacity.h"

#include "csi/messages.h"
#include "csi/request.h"
#include "csi/services.h"
#include "csi/topology.h"
#include "node/devices.h"

/* ---- the question ---- */

#define capacity_of(op_ptr) container_of(op_ptr, struct csi_capacity, op)

static bool measure_done(struct op *op)
{
	return capacity_of(op)->pool == NULL;
}

static int measure_run(struct op *op)
{
	struct csi_capacity *c = capacity_of(op);
	pool_measure_init(&c->measure, op->reactor, c->pool, CSI_MEASURE_MS);
	c->measure.free_now = true;
	return op_child(op, &c->measure.op);
}

static int measure_end(struct op *op, int res)
{
	struct csi_capacity *c = capacity_of(op);
	/* A pool that cannot be measured takes no volume. */
	if (res < 0 || pool_state(c->pool) != POOL_READY)
		c->pool = NULL;
	return 0;
}

static uint64_t least_size(enum fsimg_type fs)
{
	uint64_t min = fs == FSIMG_NONE ? 0 : fsimg_min_bytes(fs);
	return min < CSI_SIZE_MIN ? CSI_SIZE_MIN : min;
}

static int answer_run(struct op *op)
{
	struct csi_capacity *c = capacity_of(op);
	struct pool_room room = {0};
	Csi__V1__GetCapacityResponse *response = c->response;
	Csi__V1__Int64Value *max = csi_message_new(c->arena, &csi__v1__int64_value__descriptor);
	Csi__V1__Int64Value *min = csi_message_new(c->arena, &csi__v1__int64_value__descriptor);
	if (max == NULL || min == NULL)
		return op_fail(op, ERR_NO_ROOM, "out of memory");
	if (c->pool != NULL)
		pool_room(c->pool, &room);
	uint64_t available = c->params.thick ? room.available_thick_bytes : room.available_bytes;
	if (c->params.encryption != RECORD_PLAIN) /* an image has its header besides */
		available -= available < LUKS_HEADER_BYTES ? available : LUKS_HEADER_BYTES;
	max->value = (int64_t)(available < CSI_SIZE_MAX ? available : CSI_SIZE_MAX);
	min->value = (int64_t)least_size(c->fs);
	response->available_capacity = (int64_t)available;
	response->maximum_volume_size = max;
	response->minimum_volume_size = min;
	return 0;
}

static const struct op_step capacity_steps[] = {
	{"measure", .done = measure_done, .run = measure_run, .end = measure_end},
	{"answer", .run = answer_run},
	{NULL},
};

/* Which file system the capabilities and parameters lead to; false: none that could be made. */
static bool choose_fs(
	const struct csi *csi, struct csi_capacity *c, const Csi__V1__GetCapacityRequest *req)
{
	struct csi_access access = {.fs = FSIMG_EXT4};
	struct err why = {0};
	if (req->n_volume_capabilities != 0 &&
		csi_access_parse_list(req->volume_capabilities, req->n_volume_capabilities,
			FSIMG_EXT4, csi->config.attach, &access, &why) < 0)
		return false;
	return csi_params_choose_fs(&c->params, &access, FSIMG_NONE, &c->fs, &why) == 0;
}

int csi_capacity_init(struct csi_capacity *c, const struct csi *csi, struct arena *arena,
	const Csi__V1__GetCapacityRequest *req, Csi__V1__GetCapacityResponse *response,
	struct err *err)
{
	*c = (struct csi_capacity){.arena = arena, .response = response};
	int r = csi_params_parse(req->parameters, req->n_parameters, &c->params, err);
	if (r < 0)
		return r;
	if (choose_fs(csi, c, req) && csi_topology_is_here(req->accessible_topology, &csi->config))
		c->pool = pools_by_name(csi->pools, c->params.pool);
	bool raw = csi_is_raw_here(csi, c->fs == FSIMG_NONE);
	struct err why = {0};
	if (c->pool != NULL && csi_params_settle(&c->params, c->pool, &why) < 0)
		c->pool = NULL;
	if (c->pool != NULL && csi_params_check_pool(&c->params, c->pool, raw, &why) < 0)
		c->pool = NULL;
	if (c->pool != NULL && c->params.encryption != RECORD_PLAIN && csi_is_node(csi) &&
		backend_check_encrypted(c->params.device, &why) < 0)
		c->pool = NULL;
	if (c->pool != NULL && csi_is_node(csi) && !node_devices_left(csi->node, c->params.device))
		c->pool = NULL;
	op_init(&c->op, csi->reactor, "GetCapacity", capacity_steps, NULL);
	c->op.lane = pool_lane(c->pool);
	return 0;
}

/* ---- the call ---- */

struct get_capacity {
	struct csi_task task;
	struct csi_capacity capacity;
};

static int ask_run(struct op *op)
{
	return op_child(op, &csi_task_of(op, struct get_capacity)->capacity.op);
}

static const struct op_step steps[] = {
	{"ask", .run = ask_run},
	{NULL},
};

static int prepare(struct csi_task *task, struct err *err)
{
	struct get_capacity *g = container_of(task, struct get_capacity, task);
	int r = csi_capacity_init(&g->capacity, task->csi, task->arena, (const void *)task->request,
		(void *)task->response, err);
	if (r == 0)
		task->subject = g->capacity.params.pool;
	return r;
}

const struct csi_operation csi_get_capacity = {sizeof(struct get_capacity), prepare, steps, NULL};
