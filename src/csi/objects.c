/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Volumes and snapshots as messages. All lies in the answer's arena; nothing here can fail but for
 * want of memory.
 */
#include "csi/controller.h"

#include <errno.h>
#include <stdio.h>

static const char *const kinds[] = {[RECORD_VOLUME] = "volume", [RECORD_SNAPSHOT] = "snapshot"};

void csi_lock_id(
	struct csi_task *task, enum node_lock_mode mode, enum record_kind kind, const char *id)
{
	struct record_id parsed;
	char key[RECORD_KEY_MAX];
	if (record_id_parse(id, &parsed) == 0)
		memcpy(key, parsed.key, sizeof(key));
	else
		record_key(id, key);
	csi_task_lock(task, mode, kinds[kind], key);
}

int csi_check_quarantine(const struct pool_object *object, const char *name, struct err *err)
{
	if (object->rec != NULL)
		return 0;
	return err_set(err, ERR_EXISTS,
		"name %s is taken in pool %s by a quarantined %s (%s): %s; look at it with ringvol check",
		name, pool_name(object->pool), kinds[object->kind], object->key,
		object->why != NULL ? object->why : "damaged");
}

static char *object_id(struct arena *arena, const struct pool_object *object)
{
	char id[RECORD_ID_MAX];
	pool_object_id(object, id);
	return arena_strdup(arena, id);
}

/* ---- messages ---- */

static Csi__V1__VolumeContentSource *content_source(struct arena *arena, const struct record *rec)
{
	Csi__V1__VolumeContentSource *source = arena_new_of(arena, Csi__V1__VolumeContentSource);
	const char *id = arena_strdup(arena, rec->source_id);
	if (source == NULL || id == NULL)
		return NULL;
	csi__v1__volume_content_source__init(source);
	if (rec->source == RECORD_SOURCE_SNAPSHOT) {
		Csi__V1__VolumeContentSource__SnapshotSource *snapshot =
			arena_new_of(arena, Csi__V1__VolumeContentSource__SnapshotSource);
		if (snapshot == NULL)
			return NULL;
		csi__v1__volume_content_source__snapshot_source__init(snapshot);
		snapshot->snapshot_id = csi_bytes(id);
		source->type_case = CSI__V1__VOLUME_CONTENT_SOURCE__TYPE_SNAPSHOT;
		source->snapshot = snapshot;
		return source;
	}
	Csi__V1__VolumeContentSource__VolumeSource *volume =
		arena_new_of(arena, Csi__V1__VolumeContentSource__VolumeSource);
	if (volume == NULL)
		return NULL;
	csi__v1__volume_content_source__volume_source__init(volume);
	volume->volume_id = csi_bytes(id);
	source->type_case = CSI__V1__VOLUME_CONTENT_SOURCE__TYPE_VOLUME;
	source->volume = volume;
	return source;
}

Csi__V1__Volume *csi_volume_message(
	struct arena *arena, const struct csi *csi, const struct pool_object *volume)
{
	Csi__V1__Volume *message = arena_new_of(arena, Csi__V1__Volume);
	Csi__V1__Topology **topology = arena_alloc(arena, sizeof(*topology));
	const char *id = object_id(arena, volume);
	if (message == NULL || topology == NULL || id == NULL)
		return NULL;
	csi__v1__volume__init(message);
	message->capacity_bytes = (int64_t)volume->rec->size_bytes;
	message->volume_id = csi_bytes(id);
	topology[0] = csi_topology_message(arena, csi);
	message->accessible_topology = topology;
	message->n_accessible_topology = 1;
	if (volume->rec->source != RECORD_SOURCE_NONE) {
		message->content_source = content_source(arena, volume->rec);
		if (message->content_source == NULL)
			return NULL;
	}
	return topology[0] == NULL ? NULL : message;
}

Csi__V1__Snapshot *csi_snapshot_message(
	struct arena *arena, const struct csi *csi, const struct pool_object *snapshot)
{
	(void)csi;
	const struct record *rec = snapshot->rec;
	Csi__V1__Snapshot *message = arena_new_of(arena, Csi__V1__Snapshot);
	Csi__V1__Timestamp *created = arena_new_of(arena, Csi__V1__Timestamp);
	const char *id = object_id(arena, snapshot);
	const char *source_id = arena_strdup(arena, rec->source_id);
	if (message == NULL || created == NULL || id == NULL || source_id == NULL)
		return NULL;
	csi__v1__timestamp__init(created);
	created->seconds = (int64_t)(rec->created_ns / 1000000000);
	created->nanos = (int32_t)(rec->created_ns % 1000000000);
	csi__v1__snapshot__init(message);
	message->size_bytes = (int64_t)rec->size_bytes;
	message->snapshot_id = csi_bytes(id);
	message->source_volume_id = csi_bytes(source_id);
	message->creation_time = created;
	/* A snapshot gets its name when all its bytes are there. */
	message->ready_to_use = true;
	return message;
}

/* ---- usage and condition ---- */

int csi_usage_fill(struct arena *arena, const struct csi *csi, const struct pool_object *volume,
	struct csi_usage *ret)
{
	struct csi_usage usage = {0};
	const struct node_volume *node = node_volume_find(volume);
	if (node != NULL && (node->dev.attached || !list_empty(&node->mounts))) {
		usage.nodes = arena_alloc(arena, sizeof(*usage.nodes));
		if (usage.nodes == NULL)
			return -ENOMEM;
		usage.nodes[0] = csi_bytes(csi->config.node_id);
		usage.n_nodes = 1;
	}
	if (csi->config.health & CSI_HEALTH_1_12) {
		usage.condition = arena_new_of(arena, Csi__V1__VolumeCondition);
		if (usage.condition == NULL)
			return -ENOMEM;
		const char *why = node_volume_abnormal(arena, csi->node, volume);
		csi__v1__volume_condition__init(usage.condition);
		usage.condition->abnormal = why != NULL;
		usage.condition->message = csi_bytes(why != NULL ? why : "the volume is well");
	}
	*ret = usage;
	return 0;
}
