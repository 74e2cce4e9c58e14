/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Answers as entries of lists. CreateVolumeResponse and ListVolumesResponse.Entry both have their
 * volume in field 1, and so have those of snapshots: the answer is the entry.
 */
#include "controller/learn.h"

#include "base/log.h"
#include "controller/forward.h"
#include "controller/scan.h"
#include "csi.pb-c.h"

#include <errno.h>

enum {
	MADE = 1,            /* of the answers, and of the entries */
	VOLUME_ID = 2,       /* of Volume */
	SNAPSHOT_ID = 2,     /* of Snapshot */
	SNAPSHOT_SOURCE = 3, /* of Snapshot */
};

static void say(const struct forward *f, const char *id, const char *why)
{
	log_event(LOG_LEVEL_WARN, "a node's answer is not taken note of",
		log_fields({"op", f->route->path}, {"node", f->node_id}, {"id", id}, {"why", why}));
}

static int read_made(
	const struct forward *f, char ret_id[RECORD_ID_MAX], char ret_source[RECORD_ID_MAX])
{
	const uint8_t *made;
	size_t len;
	int r = scan_bytes(f->answer.data, f->answer.len, MADE, &made, &len);
	bool volume = f->route->kind == STORE_VOLUME;
	ret_source[0] = '\0';
	if (r == 0)
		r = scan_string(made, len, volume ? VOLUME_ID : SNAPSHOT_ID, ret_id, RECORD_ID_MAX);
	if (r == 0 && !volume)
		r = scan_string(made, len, SNAPSHOT_SOURCE, ret_source, RECORD_ID_MAX);
	return r;
}

void learn_made(struct forward *f)
{
	struct store *store = f->controller->store;
	struct store_node *node = store_node(store, f->node_id);
	char id[RECORD_ID_MAX], source[RECORD_ID_MAX];
	struct err err = {0};
	if (node == NULL)
		return;
	if (read_made(f, id, source) < 0)
		say(f, "", "it is no message");
	else if (store_object_set(store, node, f->route->kind, id, f->answer.data, f->answer.len,
			 NULL, 0, source, &err) < 0)
		say(f, id, err.message);
}

static int asked_id(const struct forward *f, char ret_id[RECORD_ID_MAX])
{
	size_t len;
	const uint8_t *request = grpc_call_bytes(f->client, &len);
	return scan_string(request, len, f->route->id, ret_id, RECORD_ID_MAX);
}

void learn_gone(struct forward *f)
{
	char id[RECORD_ID_MAX];
	if (asked_id(f, id) == 0)
		store_object_remove(f->controller->store, id);
}

/* The entry with another capacity, packed; NULL: it cannot be read, or memory is short. */
static uint8_t *resize(struct arena *arena, const struct store_object *object,
	int64_t capacity_bytes, size_t *ret_len)
{
	ProtobufCMessage *message =
		protobuf_c_message_unpack(&csi__v1__list_volumes_response__entry__descriptor, NULL,
			object->entry_len, object->entry);
	Csi__V1__ListVolumesResponse__Entry *entry = (void *)message;
	uint8_t *packed = NULL;
	if (message != NULL && entry->volume != NULL) {
		entry->volume->capacity_bytes = capacity_bytes;
		*ret_len = protobuf_c_message_get_packed_size(message);
		packed = arena_alloc(arena, *ret_len);
		if (packed != NULL)
			protobuf_c_message_pack(message, packed);
	}
	if (message != NULL)
		protobuf_c_message_free_unpacked(message, NULL);
	return packed;
}

void learn_grown(struct forward *f)
{
	struct store *store = f->controller->store;
	struct err err = {0};
	char id[RECORD_ID_MAX];
	size_t len;
	if (asked_id(f, id) < 0)
		return;
	const struct store_object *object = store_object(store, id);
	struct store_node *node = store_node(store, f->node_id);
	Csi__V1__ControllerExpandVolumeResponse *answer =
		csi__v1__controller_expand_volume_response__unpack(
			NULL, f->answer.len, f->answer.data);
	if (answer == NULL)
		say(f, id, "it is no message");
	if (answer == NULL || object == NULL || node == NULL || object->kind != STORE_VOLUME)
		goto out;
	const uint8_t *entry = resize(f->arena, object, answer->capacity_bytes, &len);
	if (entry != NULL && store_object_set(store, node, STORE_VOLUME, id, entry, len,
				     object->health, object->health_len, "", &err) < 0)
		say(f, id, err.message);
out:
	if (answer != NULL)
		csi__v1__controller_expand_volume_response__free_unpacked(answer, NULL);
}
