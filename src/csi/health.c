/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The health RPCs of CSI 1.13: what node/health.h finds, as messages. The controller's answer from
 * memory at once. NodeGetVolumeHealth looks at the volume first (a task of two steps, without a
 * lock: it is served beside any other operation); a volume that hangs is an answer, not an error.
 *
 * How it can fail: the volume is not there, or memory runs out. A volume whose pool is away, or
 * whose record is damaged, is not healthy, and that is what is answered.
 */
#include "node/health.h"
#include "csi/controller.h"
#include "csi/node.h"
#include "node/checkup.h"

/* ---- messages ---- */

static Csi__V1__VolumeHealthErrorType volume_status(enum node_condition_kind kind)
{
	switch (kind) {
	case NODE_QUARANTINED:
	case NODE_IMAGE_MISSING:
	case NODE_IMAGE_TRUNCATED:
		return CSI__V1__VOLUME_HEALTH_ERROR_TYPE__DATA_LOSS;
	case NODE_POOL_MISSING:
	case NODE_POOL_SICK:
	case NODE_DEVICE_GONE:
	case NODE_DEVICE_UNSERVED:
	case NODE_HANGING:
	case NODE_FS_SHUT_DOWN:
		return CSI__V1__VOLUME_HEALTH_ERROR_TYPE__INACCESSIBLE;
	case NODE_FS_READ_ONLY:
	case NODE_IO_ERRORS:
	case NODE_POOL_FULL:
	case NODE_POOL_NEARLY_FULL:
	case NODE_SLOW:
	case NODE_LOOP_NODE:
		return CSI__V1__VOLUME_HEALTH_ERROR_TYPE__DEGRADED;
	case NODE_CONDITION_KINDS:
		break;
	}
	return CSI__V1__VOLUME_HEALTH_ERROR_TYPE__UNKNOWN_VOLUME_HEALTH_TYPE;
}

static Csi__V1__VolumeHealth *health_message(struct arena *arena, const char *id,
	const struct node_condition *conditions, unsigned count)
{
	Csi__V1__VolumeHealth *health = arena_new_of(arena, Csi__V1__VolumeHealth);
	Csi__V1__VolumeHealth__VolumeHealthEntry *entries =
		arena_alloc(arena, count * sizeof(*entries));
	const char *kept = arena_strdup(arena, id);
	if (health == NULL || entries == NULL || kept == NULL)
		return NULL;
	csi__v1__volume_health__init(health);
	health->volume_id = csi_bytes(kept);
	health->health_statuses = arena_alloc(arena, count * sizeof(*health->health_statuses));
	if (health->health_statuses == NULL)
		return NULL;
	for (unsigned i = 0; i < count; i++) {
		csi__v1__volume_health__volume_health_entry__init(&entries[i]);
		entries[i].status = volume_status(conditions[i].kind);
		entries[i].reason = csi_bytes(node_condition_names[conditions[i].kind]);
		entries[i].message = csi_bytes(conditions[i].reason);
		health->health_statuses[health->n_health_statuses++] = &entries[i];
	}
	return health;
}

Csi__V1__VolumeHealth *csi_health_message(
	struct arena *arena, const struct csi *csi, const struct pool_object *volume)
{
	struct node_condition conditions[NODE_CONDITION_KINDS];
	char id[RECORD_ID_MAX];
	unsigned count = node_volume_conditions(arena, csi->node, volume, conditions);
	pool_object_id(volume, id);
	return health_message(arena, id, conditions, count);
}

/* The volume's health, or what keeps it from being found: 0 with *ret NULL for want of memory. */
static int find_health(struct arena *arena, const struct csi *csi, const char *id,
	Csi__V1__VolumeHealth **ret, struct err *err)
{
	struct pool_object *volume;
	struct err found = {0};
	if (pools_find_id(csi->pools, RECORD_VOLUME, id, &volume, &found) == 0) {
		*ret = csi_health_message(arena, csi, volume);
		return 0;
	}
	struct node_condition condition = {
		.kind = found.code == ERR_DATA_LOSS ? NODE_QUARANTINED : NODE_POOL_MISSING,
		.reason = arena_strdup(arena, found.message),
	};
	/* What was never here has no health here. */
	if ((found.code != ERR_DATA_LOSS && found.code != ERR_UNAVAILABLE) ||
		pools_id_elsewhere(csi->pools, id))
		return err_set(err, found.code, "%s", found.message);
	*ret = condition.reason == NULL ? NULL : health_message(arena, id, &condition, 1);
	return 0;
}

static void refuse_memory(struct csi *csi, struct grpc_call *call)
{
	struct err err = {0};
	err_set(&err, ERR_NO_ROOM, "out of memory");
	csi_refuse(csi, call, &err);
}

/* ---- the controller's ---- */

void csi_get_volume_health(struct grpc_call *call, const ProtobufCMessage *request)
{
	const Csi__V1__ControllerGetVolumeHealthRequest *req = (const void *)request;
	struct csi *csi = grpc_call_context(call);
	const char *id = csi_str(req->volume_id);
	Csi__V1__ControllerGetVolumeHealthResponse response =
		CSI__V1__CONTROLLER_GET_VOLUME_HEALTH_RESPONSE__INIT;
	struct err err = {0};
	int r = id[0] == '\0' ? err_set(&err, ERR_INVALID, "volume_id is missing") : 0;
	if (r == 0)
		r = find_health(grpc_call_arena(call), csi, id, &response.volume_health, &err);
	if (r < 0)
		csi_refuse(csi, call, &err);
	else if (response.volume_health == NULL)
		refuse_memory(csi, call);
	else
		grpc_reply(call, &response.base);
}

/* ---- the node's ---- */

struct node_health_op {
	struct node_op n;
	struct node_checkup look;
};

#define health_of(op_ptr) container_of(node_op_of(op_ptr), struct node_health_op, n)

/* Nothing to look at: not in use, or not to be found. */
static bool look_done(struct op *op)
{
	struct node_health_op *h = health_of(op);
	struct err ignored = {0};
	const struct node_volume *node = NULL;
	if (pools_find_id(h->n.task.csi->pools, RECORD_VOLUME, h->n.id, &h->n.volume, &ignored) ==
		0)
		node = node_volume_find(h->n.volume);
	return node == NULL || !node->dev.attached;
}

static int look_run(struct op *op)
{
	struct node_health_op *h = health_of(op);
	node_checkup_init(&h->look, h->n.task.csi->node, h->n.volume);
	return op_child(op, &h->look.op);
}

static int answer_run(struct op *op)
{
	struct node_health_op *h = health_of(op);
	Csi__V1__NodeGetVolumeHealthResponse *response =
		csi_task_response(&h->n.task, Csi__V1__NodeGetVolumeHealthResponse,
			csi__v1__node_get_volume_health_response__init);
	if (response == NULL)
		return 0;
	int r = find_health(
		h->n.task.arena, h->n.task.csi, h->n.id, &response->volume_health, &op->err);
	if (r == 0 && response->volume_health == NULL)
		return op_fail(op, ERR_NO_ROOM, "out of memory");
	return r;
}

static const struct op_step health_steps[] = {
	{"look", .done = look_done, .run = look_run},
	{"answer", .run = answer_run},
	{NULL},
};

void csi_node_volume_health(struct grpc_call *call, const ProtobufCMessage *request)
{
	const Csi__V1__NodeGetVolumeHealthRequest *req = (const void *)request;
	struct csi *csi = grpc_call_context(call);
	struct node_health_op *h = csi_task_new(call, request, sizeof(*h));
	if (h == NULL)
		return;
	h->n.task.poll = true;
	struct err err = {0};
	h->n.id = csi_str(req->volume_id);
	int r = h->n.id[0] == '\0' ? err_set(&err, ERR_INVALID, "volume_id is missing") : 0;
	if (r == 0)
		r = pools_find_id(csi->pools, RECORD_VOLUME, h->n.id, &h->n.volume, &err);
	const char *paths[] = {
		csi_str(req->volume_publish_path), csi_str(req->staging_target_path)};
	for (unsigned i = 0; r == 0 && i < 2; i++)
		if (paths[i][0] != '\0')
			r = node_check_volume_path(&h->n, paths[i], &err);
	bool has_health = err.code == ERR_DATA_LOSS || err.code == ERR_UNAVAILABLE;
	if (r < 0 && (!has_health || pools_id_elsewhere(csi->pools, h->n.id))) {
		csi_refuse(csi, call, &err);
		return;
	}
	csi_task_start(&h->n.task, h->n.volume != NULL ? h->n.volume->rec->name : h->n.id,
		node_lane(&h->n), health_steps);
}

/* ---- the pools ---- */

static Csi__V1__StorageHealthErrorType storage_status(enum node_condition_kind kind)
{
	return kind == NODE_POOL_MISSING || kind == NODE_POOL_SICK
		       ? CSI__V1__STORAGE_HEALTH_ERROR_TYPE__STORAGE_UNREACHABLE
		       : CSI__V1__STORAGE_HEALTH_ERROR_TYPE__STORAGE_DEGRADED;
}

/* A kind is told once, whatever number of pools it is true of. */
static const char *storage_message(
	struct arena *arena, const struct csi *csi, enum node_condition_kind kind)
{
	struct node_condition conditions[NODE_CONDITION_KINDS];
	const char *all = NULL;
	struct pool *pool;
	for (unsigned i = 0; (pool = pools_at(csi->pools, i)) != NULL; i++) {
		unsigned count = node_pool_conditions(arena, csi->node, pool, conditions);
		for (unsigned c = 0; c < count; c++) {
			if (conditions[c].kind != kind)
				continue;
			const char *longer = all == NULL ? conditions[c].reason
							 : arena_printf(arena, "%s; %s", all,
								   conditions[c].reason);
			all = longer != NULL ? longer : all;
		}
	}
	return all;
}

void csi_node_storage_health(struct grpc_call *call, const ProtobufCMessage *request)
{
	(void)request;
	struct csi *csi = grpc_call_context(call);
	Csi__V1__NodeGetStorageHealthResponse response =
		CSI__V1__NODE_GET_STORAGE_HEALTH_RESPONSE__INIT;
	Csi__V1__NodeGetStorageHealthResponse__StorageBackendHealth entries[NODE_CONDITION_KINDS],
		*list[NODE_CONDITION_KINDS];
	for (unsigned kind = 0; kind < NODE_CONDITION_KINDS; kind++) {
		const char *message = storage_message(grpc_call_arena(call), csi, kind);
		if (message == NULL)
			continue;
		size_t n = response.n_backend_health++;
		csi__v1__node_get_storage_health_response__storage_backend_health__init(
			&entries[n]);
		entries[n].status = storage_status(kind);
		entries[n].reason = csi_bytes(node_condition_names[kind]);
		entries[n].message = csi_bytes(message);
		list[n] = &entries[n];
	}
	response.backend_health = list;
	grpc_reply(call, &response.base);
}
