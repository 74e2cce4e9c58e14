/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each is decoded into an arena of its own and thrown away: protobuf-c finds what is malformed, and
 * a walk over the fields what is no text. Bytes of CSI's messages are all texts.
 */
#include "controller/entry.h"

#include "base/arena.h"
#include "base/utf8.h"
#include "csi.pb-c.h"

#include <string.h>

enum {
	DECODED_MAX = 256 << 10, /* bytes: of OBJECT_ENTRY_MAX many tiny fields can be made */
	DEPTH_MAX = 8,
};

struct memory {
	struct arena *arena;
	bool failed;
};

static void *decode_alloc(void *data, size_t size)
{
	struct memory *m = data;
	void *p = arena_alloc(m->arena, size);
	m->failed |= p == NULL;
	return p;
}

static void decode_free(void *data, void *p)
{
	(void)data;
	(void)p;
}

static bool texts_ok(const ProtobufCMessage *message, unsigned depth);

static bool value_ok(const ProtobufCFieldDescriptor *field, const char *at, unsigned depth)
{
	if (field->type == PROTOBUF_C_TYPE_BYTES) {
		const ProtobufCBinaryData *text = (const void *)at;
		return utf8_valid(text->data, text->len);
	}
	if (field->type != PROTOBUF_C_TYPE_MESSAGE)
		return true;
	const ProtobufCMessage *child = *(const ProtobufCMessage *const *)(const void *)at;
	return child == NULL || texts_ok(child, depth + 1);
}

static bool field_ok(
	const ProtobufCMessage *message, const ProtobufCFieldDescriptor *field, unsigned depth)
{
	const char *at = (const char *)message + field->offset;
	const char *quantifier = (const char *)message + field->quantifier_offset;
	if (field->label != PROTOBUF_C_LABEL_REPEATED) {
		bool oneof = (field->flags & PROTOBUF_C_FIELD_FLAG_ONEOF) != 0;
		if (oneof && *(const uint32_t *)(const void *)quantifier != field->id)
			return true;
		return value_ok(field, at, depth);
	}
	if (field->type != PROTOBUF_C_TYPE_BYTES && field->type != PROTOBUF_C_TYPE_MESSAGE)
		return true;
	size_t n = *(const size_t *)(const void *)quantifier;
	size_t stride = field->type == PROTOBUF_C_TYPE_BYTES ? sizeof(ProtobufCBinaryData)
							     : sizeof(ProtobufCMessage *);
	const char *items = *(const char *const *)(const void *)at;
	for (size_t i = 0; i < n; i++)
		if (!value_ok(field, items + i * stride, depth))
			return false;
	return true;
}

static bool texts_ok(const ProtobufCMessage *message, unsigned depth)
{
	if (depth > DEPTH_MAX)
		return false;
	for (unsigned i = 0; i < message->descriptor->n_fields; i++)
		if (!field_ok(message, &message->descriptor->fields[i], depth))
			return false;
	return true;
}

typedef bool is_of_fn(const ProtobufCMessage *message, const char *id);

static bool same(ProtobufCBinaryData text, const char *id)
{
	return text.len == strlen(id) && memcmp(text.data, id, text.len) == 0;
}

static bool volume_is(const ProtobufCMessage *message, const char *id)
{
	const Csi__V1__ListVolumesResponse__Entry *entry = (const void *)message;
	return entry->volume != NULL && same(entry->volume->volume_id, id);
}

static bool snapshot_is(const ProtobufCMessage *message, const char *id)
{
	const Csi__V1__ListSnapshotsResponse__Entry *entry = (const void *)message;
	return entry->snapshot != NULL && same(entry->snapshot->snapshot_id, id);
}

static bool health_is(const ProtobufCMessage *message, const char *id)
{
	return same(((const Csi__V1__VolumeHealth *)message)->volume_id, id);
}

static int look(const ProtobufCMessageDescriptor *type, const uint8_t *data, size_t len,
	is_of_fn *is_of, const char *id, struct err *err)
{
	struct memory memory = {.arena = arena_new(DECODED_MAX)};
	if (memory.arena == NULL)
		return err_set(err, ERR_NO_ROOM, "%s: out of memory", id);
	ProtobufCAllocator allocator = {decode_alloc, decode_free, &memory};
	const ProtobufCMessage *message = protobuf_c_message_unpack(type, &allocator, len, data);
	int r = 0;
	if (message == NULL && memory.failed)
		r = err_set(err, ERR_NO_ROOM, "%s: what is said of it takes too much memory", id);
	else if (message == NULL || !texts_ok(message, 0))
		r = err_set(
			err, ERR_INVALID, "%s: what is said of it is no %s", id, type->short_name);
	else if (is_of != NULL && !is_of(message, id))
		r = err_set(err, ERR_INVALID, "%s: what is said of it is of another id", id);
	arena_unref(memory.arena);
	return r;
}

int entry_check(
	enum store_kind kind, const char *id, const uint8_t *entry, size_t len, struct err *err)
{
	if (kind == STORE_VOLUME)
		return look(&csi__v1__list_volumes_response__entry__descriptor, entry, len,
			volume_is, id, err);
	return look(&csi__v1__list_snapshots_response__entry__descriptor, entry, len, snapshot_is,
		id, err);
}

int entry_check_health(const char *id, const uint8_t *health, size_t len, struct err *err)
{
	return look(&csi__v1__volume_health__descriptor, health, len, health_is, id, err);
}

int entry_check_capacity(const uint8_t *response, size_t len, struct err *err)
{
	return look(&csi__v1__get_capacity_response__descriptor, response, len, NULL, "GetCapacity",
		err);
}

void entry_user(const uint8_t *entry, size_t len, char ret_node_id[STORE_NODE_ID_MAX])
{
	Csi__V1__ListVolumesResponse__Entry *e = (void *)protobuf_c_message_unpack(
		&csi__v1__list_volumes_response__entry__descriptor, NULL, len, entry);
	const Csi__V1__ListVolumesResponse__VolumeStatus *status = e != NULL ? e->status : NULL;
	ret_node_id[0] = '\0';
	if (status != NULL && status->n_published_node_ids == 1 &&
		status->published_node_ids[0].len < STORE_NODE_ID_MAX) {
		memcpy(ret_node_id, status->published_node_ids[0].data,
			status->published_node_ids[0].len);
		ret_node_id[status->published_node_ids[0].len] = '\0';
	}
	if (e != NULL)
		protobuf_c_message_free_unpacked(&e->base, NULL);
}
