/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pieces of reports. An object's is made of what the lists of CSI say of it, so that a controller
 * passes it on as it is. They can fail for want of memory alone.
 */
#include "member/report.h"

#include "cluster.pb-c.h"
#include "csi/health.h"
#include "csi/messages.h"
#include "node/health.h"
#include "pool/index.h"

#include <errno.h>

enum { UUID_DIGITS = 32, VARINT_MAX = 10, LENGTH_DELIMITED = 2, VARINT = 0 };

static size_t put_varint(uint8_t *to, uint64_t value)
{
	size_t n = 0;
	for (; value >= 0x80; value >>= 7)
		to[n++] = (uint8_t)value | 0x80;
	to[n++] = (uint8_t)value;
	return n;
}

/* Key and length; returns where len bytes go, or NULL. */
static uint8_t *begin(struct buf *b, unsigned field, size_t len)
{
	uint8_t head[2 * VARINT_MAX];
	size_t n = put_varint(head, field << 3 | LENGTH_DELIMITED);
	n += put_varint(head + n, len);
	uint8_t *to = buf_reserve(b, n + len);
	if (to == NULL)
		return NULL;
	memcpy(to, head, n);
	b->len += n + len;
	return to + n;
}

int report_bytes(struct buf *b, unsigned field, const void *data, size_t len)
{
	uint8_t *to = begin(b, field, len);
	if (to == NULL)
		return -ENOMEM;
	if (len != 0)
		memcpy(to, data, len);
	return 0;
}

int report_message(struct buf *b, unsigned field, const ProtobufCMessage *message)
{
	uint8_t *to = begin(b, field, protobuf_c_message_get_packed_size(message));
	if (to == NULL)
		return -ENOMEM;
	protobuf_c_message_pack(message, to);
	return 0;
}

int report_true(struct buf *b, unsigned field)
{
	uint8_t bytes[VARINT_MAX + 1];
	size_t n = put_varint(bytes, field << 3 | VARINT);
	bytes[n++] = 1;
	return buf_append(b, bytes, n);
}

uint64_t report_hash(uint64_t hash, const void *data, size_t len)
{
	const uint8_t *p = data;
	for (size_t i = 0; i < len; i++)
		hash = (hash ^ p[i]) * UINT64_C(0x100000001b3);
	return hash;
}

/* ---- pools ---- */

static Ringvol__V1__NodePool__State pool_state_told(const struct pool *pool)
{
	switch (pool_state(pool)) {
	case POOL_LOADING:
		break;
	case POOL_READY:
		return RINGVOL__V1__NODE_POOL__STATE__READY;
	case POOL_MISSING:
		return RINGVOL__V1__NODE_POOL__STATE__MISSING;
	case POOL_SICK:
		return RINGVOL__V1__NODE_POOL__STATE__SICK;
	}
	return RINGVOL__V1__NODE_POOL__STATE__LOADING;
}

/* The pool's mark has it with dashes. */
static void hex_digits(const char *uuid, char ret[UUID_DIGITS + 1])
{
	size_t n = 0;
	for (; *uuid != '\0' && n < UUID_DIGITS; uuid++)
		if (*uuid != '-')
			ret[n++] = *uuid;
	ret[n] = '\0';
}

int report_pool(struct buf *b, const struct pool *pool)
{
	Ringvol__V1__NodePool told = RINGVOL__V1__NODE_POOL__INIT;
	char uuid[UUID_DIGITS + 1];
	struct pool_room room = {0};
	if (pool_state(pool) == POOL_READY)
		pool_room(pool, &room);
	told.name = csi_bytes(pool_name(pool));
	hex_digits(pool_uuid(pool), uuid);
	told.uuid = csi_bytes(uuid);
	told.state = pool_state_told(pool);
	told.why = csi_bytes(pool_why(pool));
	told.available_bytes = room.available_bytes;
	return report_message(b, REPORT_POOLS, &told.base);
}

/* ---- objects ---- */

static int pack(struct arena *arena, const ProtobufCMessage *message, ProtobufCBinaryData *ret)
{
	if (message == NULL)
		return -ENOMEM;
	ret->len = protobuf_c_message_get_packed_size(message);
	ret->data = arena_alloc(arena, ret->len);
	if (ret->data == NULL)
		return -ENOMEM;
	protobuf_c_message_pack(message, ret->data);
	return 0;
}

static int fill(struct arena *arena, const struct csi *csi, const struct pool_object *object,
	Ringvol__V1__NodeObject *told)
{
	bool volume = object->kind == RECORD_VOLUME;
	int r = pack(arena, csi_list_entry(arena, csi, object), &told->entry);
	if (r == 0 && volume && node_volume_abnormal(arena, csi->node, object) != NULL) {
		Csi__V1__VolumeHealth *health = csi_health_message(arena, csi, object);
		r = pack(arena, health == NULL ? NULL : &health->base, &told->health);
	}
	told->kind = volume ? RINGVOL__V1__NODE_OBJECT__KIND__VOLUME
			    : RINGVOL__V1__NODE_OBJECT__KIND__SNAPSHOT;
	told->source_id = csi_bytes(volume ? "" : object->rec->source_id);
	if (volume && object->rec->moves != 0) {
		told->pool = csi_bytes(pool_uuid8(object->pool));
		told->moves = object->rec->moves;
	}
	return r;
}

int report_object(
	struct buf *b, const struct csi *csi, const struct pool_object *object, uint64_t *ret_hash)
{
	Ringvol__V1__NodeObject told = RINGVOL__V1__NODE_OBJECT__INIT;
	char id[RECORD_ID_MAX];
	struct arena *arena = arena_new(0);
	if (arena == NULL)
		return -ENOMEM;
	pool_object_id(object, id);
	told.id = csi_bytes(id);
	size_t from = b->len;
	int r = fill(arena, csi, object, &told);
	if (r == 0)
		r = report_message(b, REPORT_OBJECTS, &told.base);
	if (r == 0 && ret_hash != NULL) {
		uint64_t hash = report_hash(REPORT_HASH_START, b->data + from, b->len - from);
		*ret_hash = hash != 0 ? hash : 1;
	}
	arena_unref(arena);
	return r;
}

int report_name(struct buf *b, unsigned field, enum record_kind kind, const char *key)
{
	Ringvol__V1__NameClaim claim = RINGVOL__V1__NAME_CLAIM__INIT;
	claim.kind = kind == RECORD_VOLUME ? RINGVOL__V1__NODE_OBJECT__KIND__VOLUME
					   : RINGVOL__V1__NODE_OBJECT__KIND__SNAPSHOT;
	claim.key = csi_bytes(key);
	return report_message(b, field, &claim.base);
}

/* ---- the other way ---- */

static void *alloc_in(void *arena, size_t size)
{
	return arena_alloc(arena, size);
}

static void free_in(void *arena, void *what)
{
	(void)arena;
	(void)what;
}

void *report_unpack(struct arena *arena, const ProtobufCMessageDescriptor *descriptor,
	const uint8_t *data, size_t len)
{
	ProtobufCAllocator allocator = {alloc_in, free_in, arena};
	return protobuf_c_message_unpack(descriptor, &allocator, len, data);
}
