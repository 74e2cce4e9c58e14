/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The health RPCs of CSI 1.13: what node/health.h finds, as messages. The controller's answer from
 * memory at once. NodeGetVolumeHealth looks at the volume first (a task of two steps, without a
 * lock: it is served beside any other operation); a volume that hangs is an answer, not an error.
 *
 * How it can fail: the volume is not there, or memory runs out. A volume whose pool is away, or
 * whose record is damaged, is not healthy, and that is what is answered.
 */
#include "csi/health.h"

#include "csi/messages.h"
#include "csi/request.h"
#include "csi/services.h"
#include "csi/volume_op.h"
#include "node/checkup.h"
#include "node/health.h"
#include "pool/index.h"

#include <errno.h>

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
	case NODE_THIN_POOL:
	case NODE_DEVICE_GONE:
	case NODE_DEVICE_UNSERVED:
	case NODE_HANGING:
	case NODE_FS_SHUT_DOWN:
		return CSI__V1__VOLUME_HEALTH_ERROR_TYPE__INACCESSIBLE;
	case NODE_FS_READ_ONLY:
	case NODE_IO_ERRORS:
	case NODE_POOL_FULL:
	case NODE_POOL_NEARLY_FULL:
	case NODE_THIN_POOL_LOW:
	case NODE_SLOW:
	case NODE_LOOP_NODE:
	case NODE_LIMIT_NOT_ENFORCED:
		return CSI__V1__VOLUME_HEALTH_ERROR_TYPE__DEGRADED;
	case NODE_CONDITION_KINDS:
		break;
	}
	return CSI__V1__VOLUME_HEALTH_ERROR_TYPE__UNKNOWN_VOLUME_HEALTH_TYPE;
}

Csi__V1__VolumeHealth *csi_health_of(struct arena *arena, const char *id,
	const struct node_condition *conditions, unsigned count)
{
	Csi__V1__VolumeHealth *health = csi_message_new(arena, &csi__v1__volume_health__descriptor);
	Csi__V1__VolumeHealth__VolumeHealthEntry *entries =
		arena_alloc(arena, count * sizeof(*entries));
	const char *kept = arena_strdup(arena, id);
	if (health == NULL || entries == NULL || kept == NULL)
		return NULL;
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
	return csi_health_of(arena, id, conditions, count);
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
	*ret = condition.reason == NULL ? NULL : csi_health_of(arena, id, &condition, 1);
	return 0;
}

/* ---- the controller's ---- */

int csi_get_volume_health(struct csi_query *q)
{
	const Csi__V1__ControllerGetVolumeHealthRequest *req = q->request;
	Csi__V1__ControllerGetVolumeHealthResponse *response = q->response;
	int r = find_health(
		q->arena, q->csi, csi_str(req->volume_id), &response->volume_health, &q->err);
	return r == 0 && response->volume_health == NULL ? -ENOMEM : r;
}

/* ---- the node's ---- */

struct node_health_op {
	struct volume_op n;
	struct node_checkup look;
};

#define health_of(op_ptr) container_of(volume_op_of(op_ptr), struct node_health_op, n)

/* Nothing to look at: not in use, or not to be found. */
static bool look_done(struct op *op)
{
	struct node_health_op *h = health_of(op);
	struct err ignored = {0};
	const struct node_volume *node = NULL;
	if (pools_find_id(
		    h->n.task.csi->pools, RECORD_VOLUME, h->n.task.id, &h->n.volume, &ignored) == 0)
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
	struct csi_task *task = &health_of(op)->n.task;
	Csi__V1__NodeGetVolumeHealthResponse *response = (void *)task->response;
	int r = find_health(task->arena, task->csi, task->id, &response->volume_health, &op->err);
	if (r == 0 && response->volume_health == NULL)
		return op_fail(op, ERR_NO_ROOM, "out of memory");
	return r;
}

static const struct op_step steps[] = {
	{"look", .done = look_done, .run = look_run},
	{"answer", .run = answer_run},
	{NULL},
};

static int prepare(struct csi_task *task, struct err *err)
{
	const Csi__V1__NodeGetVolumeHealthRequest *req = (const void *)task->request;
	struct node_health_op *h = container_of(task, struct node_health_op, n.task);
	const char *paths[] = {
		csi_str(req->volume_publish_path), csi_str(req->staging_target_path)};
	int r = pools_find_id(task->csi->pools, RECORD_VOLUME, task->id, &h->n.volume, err);
	if (r < 0) {
		bool has_health = err->code == ERR_DATA_LOSS || err->code == ERR_UNAVAILABLE;
		return has_health && !pools_id_elsewhere(task->csi->pools, task->id) ? 0 : r;
	}
	csi_task_names(task, h->n.volume->rec);
	for (unsigned i = 0; r == 0 && i < 2; i++)
		if (paths[i][0] != '\0')
			r = volume_op_check_path(&h->n, paths[i], err);
	return r;
}

const struct csi_operation csi_node_volume_health = {
	sizeof(struct node_health_op), prepare, steps, NULL};

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

int csi_node_storage_health(struct csi_query *q)
{
	typedef Csi__V1__NodeGetStorageHealthResponse__StorageBackendHealth entry;
	Csi__V1__NodeGetStorageHealthResponse *response = q->response;
	response->backend_health =
		arena_alloc(q->arena, NODE_CONDITION_KINDS * sizeof(*response->backend_health));
	for (unsigned kind = 0; kind < NODE_CONDITION_KINDS; kind++) {
		const char *message = storage_message(q->arena, q->csi, kind);
		if (message == NULL)
			continue;
		entry *health = csi_message_new(q->arena,
			&csi__v1__node_get_storage_health_response__storage_backend_health__descriptor);
		if (response->backend_health == NULL || health == NULL)
			return -ENOMEM;
		health->status = storage_status(kind);
		health->reason = csi_bytes(node_condition_names[kind]);
		health->message = csi_bytes(message);
		response->backend_health[response->n_backend_health++] = health;
	}
	return 0;
}
