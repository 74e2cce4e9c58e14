/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Volumes and snapshots as messages. All lies in the answer's arena; nothing here can fail but for
 * want of memory.
 */
#include "csi/messages.h"

#include "csi/topology.h"
#include "node/health.h"
#include "node/volume.h"
#include "pool/index.h"

#include <errno.h>

void *csi_message_new(struct arena *arena, const ProtobufCMessageDescriptor *descriptor)
{
	void *message = arena_alloc(arena, descriptor->sizeof_message);
	if (message != NULL)
		protobuf_c_message_init(descriptor, message);
	return message;
}

static char *object_id(struct arena *arena, const struct pool_object *object)
{
	char id[RECORD_ID_MAX];
	pool_object_id(object, id);
	return arena_strdup(arena, id);
}

static Csi__V1__VolumeContentSource *content_source(struct arena *arena, const struct record *rec)
{
	Csi__V1__VolumeContentSource *source =
		csi_message_new(arena, &csi__v1__volume_content_source__descriptor);
	Csi__V1__VolumeContentSource__SnapshotSource *snapshot = csi_message_new(
		arena, &csi__v1__volume_content_source__snapshot_source__descriptor);
	Csi__V1__VolumeContentSource__VolumeSource *volume =
		csi_message_new(arena, &csi__v1__volume_content_source__volume_source__descriptor);
	const char *id = arena_strdup(arena, rec->source_id);
	if (source == NULL || snapshot == NULL || volume == NULL || id == NULL)
		return NULL;
	if (rec->source == RECORD_SOURCE_SNAPSHOT) {
		snapshot->snapshot_id = csi_bytes(id);
		source->type_case = CSI__V1__VOLUME_CONTENT_SOURCE__TYPE_SNAPSHOT;
		source->snapshot = snapshot;
	} else {
		volume->volume_id = csi_bytes(id);
		source->type_case = CSI__V1__VOLUME_CONTENT_SOURCE__TYPE_VOLUME;
		source->volume = volume;
	}
	return source;
}

/* Where its pool is: on this node. */
static Csi__V1__Topology **accessible(struct arena *arena, const struct csi *csi, size_t *ret_count)
{
	Csi__V1__Topology **list = arena_alloc(arena, sizeof(*list));
	if (list == NULL || (list[0] = csi_topology_message(arena, csi)) == NULL)
		return NULL;
	*ret_count = 1;
	return list;
}

Csi__V1__Volume *csi_volume_message(
	struct arena *arena, const struct csi *csi, const struct pool_object *volume)
{
	Csi__V1__Volume *message = csi_message_new(arena, &csi__v1__volume__descriptor);
	const char *id = object_id(arena, volume);
	if (message == NULL || id == NULL)
		return NULL;
	message->capacity_bytes = (int64_t)volume->rec->size_bytes;
	message->volume_id = csi_bytes(id);
	/* One that can be attached to other nodes is accessible from all of them. */
	if (volume->rec->attach == RECORD_ATTACH_LOCAL) {
		message->accessible_topology =
			accessible(arena, csi, &message->n_accessible_topology);
		if (message->accessible_topology == NULL)
			return NULL;
	}
	if (volume->rec->source != RECORD_SOURCE_NONE) {
		message->content_source = content_source(arena, volume->rec);
		if (message->content_source == NULL)
			return NULL;
	}
	return message;
}

Csi__V1__Timestamp *csi_timestamp(struct arena *arena, uint64_t unix_ns)
{
	Csi__V1__Timestamp *message = csi_message_new(arena, &csi__v1__timestamp__descriptor);
	if (message == NULL)
		return NULL;
	message->seconds = (int64_t)(unix_ns / 1000000000);
	message->nanos = (int32_t)(unix_ns % 1000000000);
	return message;
}

Csi__V1__Snapshot *csi_snapshot_message(
	struct arena *arena, const struct csi *csi, const struct pool_object *snapshot)
{
	const struct record *rec = snapshot->rec;
	Csi__V1__Snapshot *message = csi_message_new(arena, &csi__v1__snapshot__descriptor);
	Csi__V1__Timestamp *created = csi_timestamp(arena, rec->created_ns);
	const char *id = object_id(arena, snapshot);
	const char *source_id = arena_strdup(arena, rec->source_id);
	const char *group_id = arena_strdup(arena, rec->group);
	if (message == NULL || created == NULL || id == NULL || source_id == NULL ||
		group_id == NULL)
		return NULL;
	message->size_bytes = (int64_t)rec->size_bytes;
	message->snapshot_id = csi_bytes(id);
	message->source_volume_id = csi_bytes(source_id);
	message->creation_time = created;
	message->group_snapshot_id = csi_bytes(group_id);
	/* A snapshot gets its name when all its bytes are there. */
	message->ready_to_use = true;
	message->accessible_topology = accessible(arena, csi, &message->n_accessible_topology);
	return message->accessible_topology == NULL ? NULL : message;
}

/* ---- usage and condition ---- */

Csi__V1__VolumeCondition *csi_condition_message(
	struct arena *arena, const struct csi *csi, const struct pool_object *volume)
{
	const char *why = node_volume_abnormal(arena, csi->node, volume);
	Csi__V1__VolumeCondition *condition =
		csi_message_new(arena, &csi__v1__volume_condition__descriptor);
	if (condition == NULL)
		return NULL;
	condition->abnormal = why != NULL;
	condition->message = csi_bytes(why != NULL ? why : "the volume is well");
	return condition;
}

static int attached_nodes(
	struct arena *arena, const struct attachments *attachments, struct csi_usage *usage)
{
	unsigned count = attachments != NULL ? attachments->count : 0;
	usage->nodes = arena_alloc(arena, count * sizeof(*usage->nodes));
	if (usage->nodes == NULL)
		return -ENOMEM;
	for (; usage->n_nodes < count; usage->n_nodes++) {
		const char *node = arena_strdup(arena, attachments->at[usage->n_nodes].node);
		if (node == NULL)
			return -ENOMEM;
		usage->nodes[usage->n_nodes] = csi_bytes(node);
	}
	return 0;
}

static int using_node(struct arena *arena, const struct csi *csi, const struct pool_object *volume,
	struct csi_usage *usage)
{
	const struct node_volume *node = node_volume_find(volume);
	if (node == NULL || (!node->dev.attached && list_empty(&node->mounts)))
		return 0;
	usage->nodes = arena_alloc(arena, sizeof(*usage->nodes));
	if (usage->nodes == NULL)
		return -ENOMEM;
	usage->nodes[0] = csi_bytes(csi->config.node_id);
	usage->n_nodes = 1;
	return 0;
}

int csi_usage_fill(struct arena *arena, const struct csi *csi, const struct pool_object *volume,
	struct csi_usage *ret)
{
	struct csi_usage usage = {0};
	int r = csi->config.attach ? attached_nodes(arena, volume->attachments, &usage)
				   : using_node(arena, csi, volume, &usage);
	if (r < 0)
		return r;
	if (csi->config.health & CSI_HEALTH_1_12) {
		usage.condition = csi_condition_message(arena, csi, volume);
		if (usage.condition == NULL)
			return -ENOMEM;
	}
	*ret = usage;
	return 0;
}

/* ---- entries of lists ---- */

static ProtobufCMessage *volume_entry(
	struct arena *arena, const struct csi *csi, const struct pool_object *volume)
{
	Csi__V1__ListVolumesResponse__Entry *entry =
		csi_message_new(arena, &csi__v1__list_volumes_response__entry__descriptor);
	Csi__V1__ListVolumesResponse__VolumeStatus *status =
		csi_message_new(arena, &csi__v1__list_volumes_response__volume_status__descriptor);
	struct csi_usage usage;
	if (entry == NULL || status == NULL || csi_usage_fill(arena, csi, volume, &usage) < 0)
		return NULL;
	status->n_published_node_ids = usage.n_nodes;
	status->published_node_ids = usage.nodes;
	status->volume_condition = usage.condition;
	entry->volume = csi_volume_message(arena, csi, volume);
	entry->status = status;
	return entry->volume == NULL ? NULL : &entry->base;
}

ProtobufCMessage *csi_list_entry(
	struct arena *arena, const struct csi *csi, const struct pool_object *object)
{
	if (object->kind == RECORD_VOLUME)
		return volume_entry(arena, csi, object);
	Csi__V1__ListSnapshotsResponse__Entry *entry =
		csi_message_new(arena, &csi__v1__list_snapshots_response__entry__descriptor);
	if (entry == NULL)
		return NULL;
	entry->snapshot = csi_snapshot_message(arena, csi, object);
	return entry->snapshot == NULL ? NULL : &entry->base;
}
