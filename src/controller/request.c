/* SPDX-License-Identifier: Apache-2.0 */
/* It fails by what the client has sent, and by the memory of the call. */
#include "controller/request.h"

#include "csi/request.h"

struct memory {
	struct arena *arena;
	bool failed;
};

static void *unpack_alloc(void *data, size_t size)
{
	struct memory *m = data;
	void *p = arena_alloc(m->arena, size);
	m->failed |= p == NULL;
	return p;
}

static void unpack_free(void *data, void *p)
{
	(void)data;
	(void)p;
}

ProtobufCMessage *request_unpack(
	const struct grpc_call *call, const ProtobufCMessageDescriptor *type, struct err *err)
{
	struct memory memory = {.arena = grpc_call_arena(call)};
	ProtobufCAllocator allocator = {unpack_alloc, unpack_free, &memory};
	size_t len;
	const uint8_t *data = grpc_call_bytes(call, &len);
	ProtobufCMessage *request = protobuf_c_message_unpack(type, &allocator, len, data);
	if (request == NULL && memory.failed)
		err_set(err, ERR_NO_ROOM, "the decoded request takes too much memory");
	else if (request == NULL)
		err_set(err, ERR_INVALID, "the request is malformed");
	else if (csi_check_request(request, err) != GRPC_OK)
		request = NULL;
	return request;
}
