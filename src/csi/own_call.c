/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls of CSI from within. How one can fail: with what CSI says, which is the operation's error.
 * ABORTED (another operation has the volume) and UNAVAILABLE (a pool is being read, devices of an
 * earlier run are looked for) are tried again for a while, because who asks never asks twice.
 */
#include "csi/own_call.h"

#include <stdio.h>

static void on_call_end(struct grpc_local *local, enum grpc_status status, const char *message)
{
	struct csi_own_call *call = container_of(local, struct csi_own_call, local);
	call->status = status;
	snprintf(call->message, sizeof(call->message), "%s", message);
	op_complete(call->op, 0);
}

static int dispatch(struct csi_own_call *call)
{
	int r = op_wait(call->op);
	call->local = (struct grpc_local){.on_end = on_call_end};
	grpc_dispatch_local(call->registry, call->path, call->data, call->len, &call->local);
	return r;
}

int csi_own_call_run(struct csi_own_call *call, const char *path, const ProtobufCMessage *request)
{
	call->path = path;
	call->len = protobuf_c_message_get_packed_size(request);
	call->data = arena_alloc(call->arena, call->len);
	if (call->data == NULL)
		return op_fail(call->op, ERR_NO_ROOM, "out of memory");
	protobuf_c_message_pack(request, call->data);
	call->patience_end_ns =
		ring_now_ns(call->op->reactor->ring) + call->patience_ms * UINT64_C(1000000);
	return dispatch(call);
}

static enum err_code code_of(enum grpc_status status)
{
	switch (status) {
	case GRPC_INVALID_ARGUMENT:
	case GRPC_OUT_OF_RANGE:
		return ERR_INVALID;
	case GRPC_NOT_FOUND:
		return ERR_NOT_FOUND;
	case GRPC_ALREADY_EXISTS:
		return ERR_EXISTS;
	case GRPC_RESOURCE_EXHAUSTED:
		return ERR_NO_ROOM;
	case GRPC_FAILED_PRECONDITION:
		return ERR_PRECONDITION;
	case GRPC_ABORTED:
		return ERR_PENDING;
	case GRPC_UNAVAILABLE:
		return ERR_UNAVAILABLE;
	default:
		return ERR_INTERNAL;
	}
}

int csi_own_call_end(struct csi_own_call *call, int res)
{
	if (res < 0)
		return res;
	if (call->pauses) {
		call->pauses = false;
		return dispatch(call);
	}
	if (call->status == GRPC_OK)
		return 0;
	bool later = call->status == GRPC_ABORTED || call->status == GRPC_UNAVAILABLE;
	if (later && !*call->draining &&
		ring_now_ns(call->op->reactor->ring) < call->patience_end_ns) {
		call->pauses = true;
		return op_sleep(call->op, CSI_OWN_RETRY_MS);
	}
	return op_fail(call->op, code_of(call->status), "%s", call->message);
}
