/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gRPC calls: what a service implementation sees. Dispatch is driven by protobuf-c's service
 * descriptors; a new RPC is one function and one line in a service's method table.
 *
 * A method gets a decoded, edge-checked request and must end the call exactly once, now or later,
 * with grpc_reply() or grpc_end(). A call whose client went away (RST_STREAM, deadline, lost
 * connection) stays valid until it is ended; what is sent then goes nowhere. Until then it counts
 * against GRPC_CALLS_MAX and keeps its request: a method that waits for long ends it in
 * grpc_on_gone().
 */
#ifndef RINGVOL_RPC_GRPC_H
#define RINGVOL_RPC_GRPC_H

#include "base/arena.h"
#include "base/err.h"

#include <protobuf-c/protobuf-c.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum grpc_status {
	GRPC_OK = 0,
	GRPC_CANCELLED = 1,
	GRPC_UNKNOWN = 2,
	GRPC_INVALID_ARGUMENT = 3,
	GRPC_DEADLINE_EXCEEDED = 4,
	GRPC_NOT_FOUND = 5,
	GRPC_ALREADY_EXISTS = 6,
	GRPC_PERMISSION_DENIED = 7,
	GRPC_RESOURCE_EXHAUSTED = 8,
	GRPC_FAILED_PRECONDITION = 9,
	GRPC_ABORTED = 10,
	GRPC_OUT_OF_RANGE = 11,
	GRPC_UNIMPLEMENTED = 12,
	GRPC_INTERNAL = 13,
	GRPC_UNAVAILABLE = 14,
	GRPC_DATA_LOSS = 15,
	GRPC_UNAUTHENTICATED = 16,
};

enum {
	GRPC_MESSAGE_MAX_BYTES = 4 << 20, /* what grpc-go accepts by default, both ways */
	GRPC_ENDLESS_MAX_BYTES = 1 << 10, /* a request that is kept as long as the client wishes */
	GRPC_METHODS_MAX = 96,            /* over all services */
	GRPC_ARENA_MAX_BYTES =
		16 << 20,      /* of one call: the decoded request and what the method adds */
	GRPC_CALLS_MAX = 8192, /* that methods have and have not ended, over all connections */
	/* Of requests and answers, over all connections: what is received and not decoded, arenas,
	 * what is packed and not sent. Beyond it a call ends in RESOURCE_EXHAUSTED. Requests in
	 * parts and answers over 64 KiB leave a quarter of it to small calls. */
	GRPC_MEMORY_MAX_BYTES = 64 << 20,
};

/* Who is at the other end of a connection. */
struct grpc_peer {
	enum grpc_peer_role {
		GRPC_PEER_LOCAL, /* of this host: a unix socket, or loopback */
		GRPC_PEER_CONTROLLER,
		GRPC_PEER_NODE,
	} role;
	char node_id[256]; /* of a node; "*": its certificate is every node's */
};

struct grpc_call;

typedef void grpc_method_fn(struct grpc_call *call, const ProtobufCMessage *request);

enum grpc_method_flags {
	/* The client streams: fn is called for each message, then once with NULL when it has sent
	 * its last. No message is delivered after the call has ended or while grpc_send() said to
	 * wait. The arena is a fresh one for each message, and gone when fn returns. */
	GRPC_STREAM_IN = 1 << 0,
	/* The stream ends only when the client wishes (a watch). A drain does not wait for it: the
	 * client is told UNAVAILABLE, and to the method it is gone. A request larger than
	 * GRPC_ENDLESS_MAX_BYTES is INVALID_ARGUMENT. */
	GRPC_ENDLESS = 1 << 1,
	/* The request is not decoded and not checked: fn gets NULL, and its bytes by
	 * grpc_call_bytes(). For what passes requests on. With GRPC_STREAM_IN the bytes are NULL
	 * when the client has sent its last message. */
	GRPC_RAW = 1 << 2,
};

/* One line per RPC; ends with a NULL name. A method of the descriptor without a line answers
 * UNIMPLEMENTED. */
struct grpc_method {
	const char *name;
	grpc_method_fn *fn;
	unsigned flags;  /* enum grpc_method_flags; 0: one message in, any number out */
	const void *row; /* grpc_call_row(): what fn has to know of the method */
};

struct grpc_service {
	const ProtobufCServiceDescriptor *descriptor;
	const struct grpc_method *methods;
	void *context; /* grpc_call_context() */
	/* Who may call it: bits, 1 << enum grpc_peer_role; 0: local ones alone. Others are told
	 * PERMISSION_DENIED, or UNAUTHENTICATED if they have no certificate, before any of the
	 * request is read. */
	unsigned peers;
};

/* Looks over a decoded request before the method sees it. Returns GRPC_OK, or the status to answer
 * with `err` filled. */
typedef enum grpc_status grpc_check_fn(const ProtobufCMessage *request, struct err *err);

/* Every ended call, for metrics; method is the full path or "unknown". */
typedef void grpc_observe_fn(
	void *arg, const char *method, enum grpc_status status, uint64_t duration_ns);

struct grpc_registry; /* the services of one server */

struct grpc_registry *grpc_registry_new(void);
void grpc_registry_free(struct grpc_registry *registry);
/* The service must outlive the registry. 0, -EEXIST, -ENOSPC (GRPC_METHODS_MAX), -ENOENT (a line
 * names no method of the descriptor). */
int grpc_registry_add(
	struct grpc_registry *registry, const struct grpc_service *service, grpc_check_fn *check);
void grpc_registry_observe(struct grpc_registry *registry, grpc_observe_fn *fn, void *arg);
/* The i-th service in the order added, NULL past the end. For reflection. */
const struct grpc_service *grpc_registry_at(const struct grpc_registry *registry, unsigned i);
unsigned grpc_registry_in_flight(const struct grpc_registry *registry);
/* What counts against GRPC_MEMORY_MAX_BYTES just now. */
size_t grpc_registry_memory(const struct grpc_registry *registry);

/* ---- the call ---- */

void *grpc_call_context(const struct grpc_call *call);
/* Holds the request; referenced by the call until it ends. Take a reference to keep it longer. */
struct arena *grpc_call_arena(const struct grpc_call *call);
/* The method's short name ("CreateVolume"), static. */
const char *grpc_call_method(const struct grpc_call *call);
const void *grpc_call_row(const struct grpc_call *call);
/* What the method keeps of a call from one message of the client's to the next; NULL at first. */
void grpc_call_set_user(struct grpc_call *call, void *user);
void *grpc_call_user(const struct grpc_call *call);
/* What the method answers. */
const ProtobufCMessageDescriptor *grpc_call_output(const struct grpc_call *call);
/* Who calls. */
const struct grpc_peer *grpc_call_peer(const struct grpc_call *call);
/* The packed message of a GRPC_RAW call, in its arena: until it ends, or with GRPC_STREAM_IN until
 * fn is called again. Never NULL for a message, however empty. */
const uint8_t *grpc_call_bytes(const struct grpc_call *call, size_t *ret_len);
/* True when the client cannot hear the answer any more. */
bool grpc_call_gone(const struct grpc_call *call);
/* ring_now_ns() when the client's deadline passes; UINT64_MAX without one. */
uint64_t grpc_call_deadline_ns(const struct grpc_call *call);

/* Ends a unary call; the response is packed before it returns. A response over
 * GRPC_MESSAGE_MAX_BYTES ends as RESOURCE_EXHAUSTED. */
void grpc_reply(struct grpc_call *call, const ProtobufCMessage *response);
/* Ends a call, unary or streaming, with a status. message: UTF-8, percent-encoded here. */
void grpc_end(struct grpc_call *call, enum grpc_status status, const char *message);

/* The same with a packed message, copied. */
void grpc_reply_bytes(struct grpc_call *call, const uint8_t *data, size_t len);
bool grpc_send_bytes(struct grpc_call *call, const uint8_t *data, size_t len);

/* Server streaming: queues a message. True: send more; false: wait, on_writable is called (from
 * the loop) when the client has read enough, or at once when it is gone. */
bool grpc_send(struct grpc_call *call, const ProtobufCMessage *message);
void grpc_on_writable(
	struct grpc_call *call, void (*fn)(struct grpc_call *call, void *arg), void *arg);
/* Called once when the client goes away before the call has ended. */
void grpc_on_gone(struct grpc_call *call, void (*fn)(struct grpc_call *call, void *arg), void *arg);

#endif
