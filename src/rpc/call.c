/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A call's life between its carrier and its method. The request is decoded into the call's arena,
 * looked over by the registry's check, handed to the method, and ended once. A client that goes
 * away first only marks the call gone; answers then go nowhere.
 *
 * It fails by undecodable bytes (INTERNAL, as grpc-go has it), by memory or a limit
 * (RESOURCE_EXHAUSTED), by a large request of an endless call (INVALID_ARGUMENT), and by what the
 * check and the method say.
 */
#include "rpc/call.h"

#include "base/clock.h"
#include "rpc/registry.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- who calls ---- */

struct grpc_caller *grpc_caller_new(const struct grpc_peer *peer)
{
	struct grpc_caller *caller = malloc(sizeof(*caller));
	if (caller != NULL)
		*caller = (struct grpc_caller){.refs = 1, .peer = *peer};
	return caller;
}

struct grpc_caller *grpc_caller_ref(struct grpc_caller *caller)
{
	if (caller != NULL)
		caller->refs++;
	return caller;
}

void grpc_caller_unref(struct grpc_caller *caller)
{
	if (caller != NULL && --caller->refs == 0)
		free(caller);
}

const struct grpc_peer *grpc_call_peer(const struct grpc_call *call)
{
	static const struct grpc_peer local = {.role = GRPC_PEER_LOCAL};
	return call->caller != NULL ? &call->caller->peer : &local;
}

/* ---- life ---- */

void grpc_call_init(
	struct grpc_call *call, const struct grpc_carrier *carrier, struct grpc_registry *registry)
{
	call->carrier = carrier;
	call->registry = registry;
	call->refs = 1;
	call->deadline_ns = UINT64_MAX;
	if (registry->observe != NULL)
		call->start_ns = clock_monotonic_ns();
}

void grpc_call_unref(struct grpc_call *call)
{
	assert(call->refs > 0);
	if (--call->refs > 0)
		return;
	arena_unref(call->arena);
	call->arena = NULL;
	grpc_caller_unref(call->caller);
	call->carrier->free(call);
}

static void observe(struct grpc_call *call, enum grpc_status status)
{
	struct grpc_registry *r = call->registry;
	if (r->observe != NULL)
		r->observe(r->observe_arg, call->entry != NULL ? call->entry->path : "unknown",
			status, clock_monotonic_ns() - call->start_ns);
}

/* The service's callers as a list: "controllers and nodes". */
static void print_callers(unsigned peers, char *buf, size_t cap)
{
	static const char *const names[] = {
		[GRPC_PEER_LOCAL] = "processes of its own host",
		[GRPC_PEER_CONTROLLER] = "controllers",
		[GRPC_PEER_NODE] = "nodes",
	};
	size_t len = 0;
	for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		if ((peers >> i & 1) == 0)
			continue;
		int n = snprintf(buf + len, cap - len, "%s%s", len > 0 ? " and " : "", names[i]);
		len += (size_t)n;
		assert(len < cap);
	}
}

bool grpc_call_admit(struct grpc_call *call)
{
	const struct grpc_entry *entry = call->entry;
	if (entry == NULL) {
		grpc_call_refuse(call, GRPC_UNIMPLEMENTED, "unknown service or method");
		return false;
	}
	const struct grpc_peer *peer = grpc_call_peer(call);
	unsigned peers = entry->service->peers != 0 ? entry->service->peers : 1 << GRPC_PEER_LOCAL;
	if ((peers >> peer->role & 1) != 0)
		return true;
	static const char *const how[] = {
		[GRPC_PEER_LOCAL] = "and this connection has no certificate of one",
		[GRPC_PEER_CONTROLLER] = "and the caller's certificate is a controller's",
		[GRPC_PEER_NODE] = "and the caller's certificate is a node's",
	};
	char callers[64], message[256];
	print_callers(peers, callers, sizeof(callers));
	snprintf(message, sizeof(message), "%s is for %s, %s", entry->service->descriptor->name,
		callers, how[peer->role]);
	grpc_call_refuse(call,
		peer->role == GRPC_PEER_LOCAL ? GRPC_UNAUTHENTICATED : GRPC_PERMISSION_DENIED,
		message);
	return false;
}

/* ---- decoding ---- */

struct decode_memory {
	struct arena *arena;
	bool failed;
};

static void *decode_alloc(void *data, size_t size)
{
	struct decode_memory *m = data;
	void *p = arena_alloc(m->arena, size);
	if (p == NULL)
		m->failed = true;
	return p;
}

static void decode_free(void *data, void *p)
{
	(void)data;
	(void)p;
}

static const char *message_why(int res)
{
	switch (res) {
	case -EMSGSIZE:
		return "a message is larger than 4 MiB";
	case -ENOBUFS:
		return "too many large answers wait to be read on this connection: read them first";
	case -ENOSPC:
		return "too much of requests and answers, of all clients, is under way: try again";
	default:
		return "out of memory";
	}
}

static enum grpc_status keep_bytes(
	struct grpc_call *call, const uint8_t *data, size_t len, const char **ret_message)
{
	uint8_t *bytes = arena_alloc(call->arena, len);
	if (bytes == NULL) {
		*ret_message = message_why(-ENOSPC);
		return GRPC_RESOURCE_EXHAUSTED;
	}
	if (len > 0)
		memcpy(bytes, data, len);
	call->bytes = bytes;
	call->bytes_len = len;
	call->taken = true;
	return GRPC_OK;
}

enum grpc_status grpc_call_decode(
	struct grpc_call *call, const uint8_t *data, size_t len, const char **ret_message)
{
	/* By its bytes: fields that come twice or are not known take memory as well. */
	if ((call->entry->flags & GRPC_ENDLESS) != 0 && len > GRPC_ENDLESS_MAX_BYTES) {
		*ret_message = "a request of a call without an end is larger than 1 KiB";
		return GRPC_INVALID_ARGUMENT;
	}
	if (call->arena != NULL && (call->entry->flags & GRPC_STREAM_IN) != 0) {
		arena_unref(call->arena);
		call->arena = NULL;
	}
	if (call->arena == NULL)
		call->arena = arena_new_in(GRPC_ARENA_MAX_BYTES, call->registry->memory);
	if (call->arena == NULL) {
		*ret_message = message_why(-ENOSPC);
		return GRPC_RESOURCE_EXHAUSTED;
	}
	if ((call->entry->flags & GRPC_RAW) != 0)
		return keep_bytes(call, data, len, ret_message);
	struct decode_memory memory = {.arena = call->arena};
	ProtobufCAllocator allocator = {
		.alloc = decode_alloc, .free = decode_free, .allocator_data = &memory};
	call->request = protobuf_c_message_unpack(call->entry->input, &allocator, len, data);
	call->taken = call->request != NULL;
	if (call->taken)
		return GRPC_OK;
	if (memory.failed) {
		*ret_message = "the decoded request takes too much memory";
		return GRPC_RESOURCE_EXHAUSTED;
	}
	*ret_message = "the request cannot be decoded";
	return GRPC_INTERNAL;
}

/* ---- the method's turn ---- */

static bool call_begin(struct grpc_call *call)
{
	if (call->running)
		return true;
	if (call->registry->in_flight >= GRPC_CALLS_MAX)
		return false;
	if (call->arena == NULL) /* a client stream that ended before its first message */
		call->arena = arena_new_in(GRPC_ARENA_MAX_BYTES, call->registry->memory);
	if (call->arena == NULL)
		return false;
	call->running = true;
	call->refs++;
	call->registry->in_flight++;
	return true;
}

void grpc_call_run(struct grpc_call *call)
{
	const ProtobufCMessage *request = call->request;
	call->request = NULL;
	if (!call->taken) {
		call->bytes = NULL;
		call->bytes_len = 0;
	}
	call->taken = false;
	if (!call_begin(call)) {
		grpc_call_refuse(call, GRPC_RESOURCE_EXHAUSTED, "too many calls in flight");
		return;
	}
	if (request != NULL && call->entry->check != NULL) {
		struct err err = {0};
		enum grpc_status status = call->entry->check(request, &err);
		if (status != GRPC_OK) {
			grpc_end(call, status, err.message);
			return;
		}
	}
	call->refs++;
	call->entry->fn(call, request);
	/* A stream may be silent for long, and there may be thousands. */
	if (call->running && (call->entry->flags & GRPC_STREAM_IN) != 0) {
		arena_unref(call->arena);
		call->arena = NULL;
	}
	grpc_call_unref(call);
}

void grpc_call_refuse(struct grpc_call *call, enum grpc_status status, const char *message)
{
	assert(!call->running);
	observe(call, status);
	if (!call->gone)
		call->carrier->end(call, status, message);
}

void grpc_call_lose(struct grpc_call *call, enum grpc_status status)
{
	if (call->gone)
		return;
	call->gone = true;
	if (!call->cut)
		call->gone_status = status;
	if (!call->running)
		return;
	call->refs++;
	if (call->on_gone != NULL)
		call->on_gone(call, call->on_gone_arg);
	grpc_call_resume(call);
	grpc_call_unref(call);
}

void grpc_call_resume(struct grpc_call *call)
{
	if (!call->waiting)
		return;
	call->waiting = false;
	if (call->running && call->on_writable != NULL)
		call->on_writable(call, call->on_writable_arg);
}

/* ---- what methods call ---- */

void *grpc_call_context(const struct grpc_call *call)
{
	return call->entry->service->context;
}

struct arena *grpc_call_arena(const struct grpc_call *call)
{
	return call->arena;
}

const char *grpc_call_method(const struct grpc_call *call)
{
	return call->entry->name;
}

const void *grpc_call_row(const struct grpc_call *call)
{
	return call->entry->row;
}

const ProtobufCMessageDescriptor *grpc_call_output(const struct grpc_call *call)
{
	return call->entry->output;
}

const uint8_t *grpc_call_bytes(const struct grpc_call *call, size_t *ret_len)
{
	*ret_len = call->bytes_len;
	return call->bytes;
}

void grpc_call_set_user(struct grpc_call *call, void *user)
{
	call->user = user;
}

void *grpc_call_user(const struct grpc_call *call)
{
	return call->user;
}

bool grpc_call_gone(const struct grpc_call *call)
{
	return call->gone;
}

uint64_t grpc_call_deadline_ns(const struct grpc_call *call)
{
	return call->deadline_ns;
}

void grpc_on_writable(
	struct grpc_call *call, void (*fn)(struct grpc_call *call, void *arg), void *arg)
{
	call->on_writable = fn;
	call->on_writable_arg = arg;
}

void grpc_on_gone(struct grpc_call *call, void (*fn)(struct grpc_call *call, void *arg), void *arg)
{
	call->on_gone = fn;
	call->on_gone_arg = arg;
}

void grpc_end(struct grpc_call *call, enum grpc_status status, const char *message)
{
	assert(call->running); /* a call is ended once */
	call->running = false;
	call->registry->in_flight--;
	observe(call, call->gone || call->cut ? call->gone_status : status);
	if (!call->gone && !call->cut)
		call->carrier->end(call, status, message);
	arena_unref(call->arena);
	call->arena = NULL;
	grpc_call_unref(call);
}

void grpc_payload_put(const struct grpc_payload *payload, uint8_t *to)
{
	if (payload->message != NULL)
		protobuf_c_message_pack(payload->message, to);
	else if (payload->size > 0)
		memcpy(to, payload->data, payload->size);
}

static void reply(struct grpc_call *call, const struct grpc_payload *payload)
{
	if (payload->size > GRPC_MESSAGE_MAX_BYTES) {
		grpc_end(call, GRPC_RESOURCE_EXHAUSTED, "the response is larger than 4 MiB");
		return;
	}
	int res = call->carrier->message(call, payload, true);
	if (res < 0)
		grpc_end(call, GRPC_RESOURCE_EXHAUSTED, message_why(res));
	else
		grpc_end(call, GRPC_OK, NULL);
}

/* What goes nowhere is not packed. */
void grpc_reply(struct grpc_call *call, const ProtobufCMessage *response)
{
	if (call->gone) {
		grpc_end(call, GRPC_OK, NULL);
		return;
	}
	struct grpc_payload payload = {
		.message = response, .size = protobuf_c_message_get_packed_size(response)};
	reply(call, &payload);
}

void grpc_reply_bytes(struct grpc_call *call, const uint8_t *data, size_t len)
{
	struct grpc_payload payload = {.data = data, .size = len};
	if (call->gone)
		grpc_end(call, GRPC_OK, NULL);
	else
		reply(call, &payload);
}

static bool send_payload(struct grpc_call *call, const struct grpc_payload *payload)
{
	int res = payload->size > GRPC_MESSAGE_MAX_BYTES
			  ? -EMSGSIZE
			  : call->carrier->message(call, payload, false);
	if (res < 0) {
		/* A stream with a hole in it would be a lie: the client is told now, the method
		 * learns it when the stream is closed, not in the middle of its own call. */
		call->cut = true;
		call->gone_status = GRPC_RESOURCE_EXHAUSTED;
		call->carrier->end(call, GRPC_RESOURCE_EXHAUSTED, message_why(res));
		return true;
	}
	call->waiting = !call->carrier->writable(call);
	return !call->waiting;
}

bool grpc_send(struct grpc_call *call, const ProtobufCMessage *message)
{
	assert(call->running);
	if (call->gone || call->cut)
		return true;
	struct grpc_payload payload = {
		.message = message, .size = protobuf_c_message_get_packed_size(message)};
	return send_payload(call, &payload);
}

bool grpc_send_bytes(struct grpc_call *call, const uint8_t *data, size_t len)
{
	assert(call->running);
	if (call->gone || call->cut)
		return true;
	struct grpc_payload payload = {.data = data, .size = len};
	return send_payload(call, &payload);
}
