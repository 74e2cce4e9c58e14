/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GetCapacity: what CreateVolume with these parameters could still promise: what is free is asked
 * now, what attached volumes use may have been looked at up to a second ago. Where such a volume
 * can never be made here, another node, a pool that is not here or not well, a feature it lacks,
 * the answer is 0 and no error, so that a scheduler looks elsewhere; parameters that no node
 * understands are an error.
 */
#include "csi/controller.h"

struct capacity {
	struct csi_task task;
	struct csi_params params;
	enum fsimg_type fs;
	struct pool *pool; /* NULL: nothing can be made here */
	struct pool_measure measure;
};

#define capacity_of(op_ptr) csi_task_of(op_ptr, struct capacity)

static bool pool_serves(const struct pool *pool, const struct csi_params *params, bool raw)
{
	if (pool == NULL || pool_state(pool) != POOL_READY)
		return false;
	const struct fs_features *features = pool_features(pool);
	if (params->thick && (features->nocow_lies || !features->fallocate))
		return false;
	if (params->erase != RECORD_ERASE_NONE && features->nocow_lies)
		return false;
	if (params->block_size != 0 && features->direct_io &&
		params->block_size < features->dio_align)
		return false;
	struct err ignored = {0};
	return backend_check(params->device, raw, &ignored) == 0;
}

static bool measure_done(struct op *op)
{
	return capacity_of(op)->pool == NULL;
}

static int measure_run(struct op *op)
{
	struct capacity *c = capacity_of(op);
	pool_measure_init(&c->measure, op->reactor, c->pool, CSI_MEASURE_MS);
	c->measure.free_now = true;
	return op_child(op, &c->measure.op);
}

static int measure_end(struct op *op, int res)
{
	struct capacity *c = capacity_of(op);
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
	struct capacity *c = capacity_of(op);
	struct pool_room room = {0};
	Csi__V1__Int64Value *max = arena_new_of(c->task.arena, Csi__V1__Int64Value);
	Csi__V1__Int64Value *min = arena_new_of(c->task.arena, Csi__V1__Int64Value);
	if (max == NULL || min == NULL)
		return 0;
	Csi__V1__GetCapacityResponse *response = csi_task_response(
		&c->task, Csi__V1__GetCapacityResponse, csi__v1__get_capacity_response__init);
	if (response == NULL)
		return 0;
	if (c->pool != NULL)
		pool_room(c->pool, &room);
	uint64_t available = c->params.thick ? room.available_thick_bytes : room.available_bytes;
	csi__v1__int64_value__init(max);
	csi__v1__int64_value__init(min);
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
static bool choose_fs(struct capacity *c, const Csi__V1__GetCapacityRequest *req)
{
	struct csi_access access = {.fs = FSIMG_EXT4};
	struct err why = {0};
	if (req->n_volume_capabilities != 0 &&
		csi_access_parse_list(req->volume_capabilities, req->n_volume_capabilities,
			FSIMG_EXT4, &access, &why) < 0)
		return false;
	return csi_params_choose_fs(&c->params, &access, FSIMG_NONE, &c->fs, &why) == 0;
}

void csi_get_capacity(struct grpc_call *call, const ProtobufCMessage *request)
{
	const Csi__V1__GetCapacityRequest *req = (const void *)request;
	struct csi *csi = grpc_call_context(call);
	struct capacity *c = csi_task_new(call, request, sizeof(*c));
	if (c == NULL)
		return;
	c->task.poll = true;
	struct err err = {0};
	if (csi_params_parse(req->parameters, req->n_parameters, &c->params, &err) < 0) {
		csi_refuse(csi, call, &err);
		return;
	}
	if (choose_fs(c, req) && csi_topology_is_here(req->accessible_topology, csi))
		c->pool = pools_by_name(csi->pools, c->params.pool);
	if (!pool_serves(c->pool, &c->params, csi_is_raw_here(csi, c->fs == FSIMG_NONE)))
		c->pool = NULL;
	csi_task_start(&c->task, c->params.pool, pool_lane(c->pool), capacity_steps);
}
