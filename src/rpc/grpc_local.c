/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls without a client: a packed request is dispatched, and the answer comes through callbacks.
 * The caller stays and reads at once, unless it says otherwise. Out of memory is answered as
 * RESOURCE_EXHAUSTED.
 */
#include "rpc/grpc_local.h"

#include "rpc/registry.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct local_call {
	struct grpc_call call;
	struct grpc_local *local;
};

static int local_message(struct grpc_call *call, const struct grpc_payload *payload, bool last)
{
	(void)last;
	struct local_call *l = (struct local_call *)call;
	uint8_t *data = malloc(payload->size + 1);
	if (data == NULL)
		return -ENOMEM;
	grpc_payload_put(payload, data);
	if (l->local->on_message != NULL)
		l->local->on_message(l->local, data, payload->size);
	free(data);
	return 0;
}

static bool local_writable(struct grpc_call *call)
{
	return !((struct local_call *)call)->local->full;
}

static void local_end(struct grpc_call *call, enum grpc_status status, const char *message)
{
	struct local_call *l = (struct local_call *)call;
	l->local->call = NULL;
	l->local->on_end(l->local, status, message != NULL ? message : "");
}

static void local_free(struct grpc_call *call)
{
	free(call);
}

static const struct grpc_carrier local_carrier = {
	.message = local_message,
	.writable = local_writable,
	.end = local_end,
	.free = local_free,
};

void grpc_dispatch_local(struct grpc_registry *registry, const char *path, const uint8_t *request,
	size_t len, struct grpc_local *local)
{
	struct local_call *l = calloc(1, sizeof(*l));
	if (l == NULL) {
		local->on_end(local, GRPC_RESOURCE_EXHAUSTED, "out of memory");
		return;
	}
	struct grpc_call *call = &l->call;
	grpc_call_init(call, &local_carrier, registry);
	l->local = local;
	local->call = call;
	if (local->peer != NULL)
		call->caller = grpc_caller_new(local->peer);
	call->entry = grpc_registry_find(registry, path, strlen(path));
	const char *message;
	if (!grpc_call_admit(call)) {
		grpc_call_unref(call);
		return;
	}
	enum grpc_status status = grpc_call_decode(call, request, len, &message);
	if (status != GRPC_OK) {
		grpc_call_refuse(call, status, message);
	} else {
		grpc_call_run(call);
		if ((call->entry->flags & GRPC_STREAM_IN) != 0 && call->running)
			grpc_call_run(call);
	}
	grpc_call_unref(call);
}

void grpc_local_read(struct grpc_local *local, bool all)
{
	local->full = !all;
	if (local->call != NULL)
		grpc_call_resume(local->call);
}

void grpc_local_leave(struct grpc_local *local)
{
	struct grpc_call *call = local->call;
	local->call = NULL;
	if (call != NULL)
		grpc_call_lose(call, GRPC_CANCELLED);
}
