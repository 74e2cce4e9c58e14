/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inside of a call, for what carries calls: HTTP/2 streams (h2_stream.c), and in tests calls
 * without a client. A carrier embeds struct grpc_call, initialises it, decodes the request into it
 * and runs it. Two sides hold the call: the carrier until it lets go (stream closed), the method
 * until it has ended the call. The one that lets go last frees it.
 */
#ifndef RINGVOL_RPC_CALL_H
#define RINGVOL_RPC_CALL_H

#include "rpc/grpc.h"

/* What one method table line became. */
struct grpc_entry {
	char *path; /* "/package.Service/Method" */
	size_t path_len;
	const char *name;
	const struct grpc_service *service;
	const ProtobufCMessageDescriptor *input, *output;
	grpc_method_fn *fn;
	const void *row;
	unsigned flags;
	grpc_check_fn *check;
};

/* A message of an answer: to be packed, or packed already. */
struct grpc_payload {
	const ProtobufCMessage *message; /* NULL: data */
	const uint8_t *data;
	size_t size; /* packed */
};

/* Who calls on a connection. Its calls share this, and may outlive it. */
struct grpc_caller {
	unsigned refs;
	struct grpc_peer peer;
};

/* How a call's answers travel. None is called once the call is gone, except free. */
struct grpc_carrier {
	/* Queues a message; last: the end follows at once. 0, -ENOMEM, -ENOBUFS: too much waits
	 * already for the client to read, or -ENOSPC: the budget of all clients is used up. */
	int (*message)(struct grpc_call *call, const struct grpc_payload *payload, bool last);
	/* False when grpc_send() should answer "wait"; grpc_call_resume() is called later. */
	bool (*writable)(struct grpc_call *call);
	void (*end)(struct grpc_call *call, enum grpc_status status, const char *message);
	void (*free)(struct grpc_call *call);
};

struct grpc_call {
	const struct grpc_carrier *carrier;
	struct grpc_registry *registry;
	const struct grpc_entry *entry; /* NULL: no such method */
	struct arena *arena;
	struct grpc_caller *caller; /* NULL: a local one */
	bool taken;                 /* a message was decoded and has not run */
	ProtobufCMessage *request;  /* that message; NULL with GRPC_RAW */
	const uint8_t *bytes;       /* GRPC_RAW: the message that was decoded last */
	size_t bytes_len;
	unsigned refs;
	bool running; /* the method has it */
	bool gone;
	bool waiting; /* grpc_send() said "wait" */
	bool cut;     /* a message could not be sent; the client was told */
	enum grpc_status gone_status;
	uint64_t start_ns, deadline_ns;
	void (*on_writable)(struct grpc_call *call, void *arg);
	void *on_writable_arg;
	void (*on_gone)(struct grpc_call *call, void *arg);
	void *on_gone_arg;
	void *user; /* grpc_call_user() */
};

/* The carrier holds the only reference. */
void grpc_call_init(
	struct grpc_call *call, const struct grpc_carrier *carrier, struct grpc_registry *registry);
void grpc_call_unref(struct grpc_call *call);
/* False: there is no such method, or its service is not for who calls; the call is refused. */
bool grpc_call_admit(struct grpc_call *call);
/* Decodes a message of the request into call->request, or keeps a copy of its bytes (GRPC_RAW).
 * GRPC_OK, or the status to refuse the call with and a static message. */
enum grpc_status grpc_call_decode(
	struct grpc_call *call, const uint8_t *data, size_t len, const char **ret_message);
/* Hands the message taken (none: the client has sent its last one) to the method, after the
 * registry's check. The call may have ended when this returns; keep a reference. */
void grpc_call_run(struct grpc_call *call);
/* Ends a call the method has not seen. */
void grpc_call_refuse(struct grpc_call *call, enum grpc_status status, const char *message);
/* The client cannot hear the answer any more; status is what it knows (CANCELLED or
 * DEADLINE_EXCEEDED). Nothing happens when the method does not have the call. */
void grpc_call_lose(struct grpc_call *call, enum grpc_status status);
/* There is room again after writable() said no. */
void grpc_call_resume(struct grpc_call *call);
/* Writes the payload's size bytes. */
void grpc_payload_put(const struct grpc_payload *payload, uint8_t *to);

/* The caller holds the first reference. NULL when out of memory. */
struct grpc_caller *grpc_caller_new(const struct grpc_peer *peer);
/* NULL is legal, for both. */
struct grpc_caller *grpc_caller_ref(struct grpc_caller *caller);
void grpc_caller_unref(struct grpc_caller *caller);

#endif
