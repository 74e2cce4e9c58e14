/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inside of a call that goes out (struct channel_call): what it has to send, when and how it
 * ends. A carrier (h2_client.c) moves its bytes once it has a stream; a channel keeps it until
 * then.
 */
#ifndef RINGVOL_RPC_CLIENT_CALL_H
#define RINGVOL_RPC_CLIENT_CALL_H

#include "rpc/channel.h"

struct budget;

/* What the calls of a channel share (client_calls.h). */
struct client_calls {
	struct ring *ring;
	struct budget *memory; /* NULL: nothing is counted */
	unsigned count;        /* that are active */
	struct list due;       /* channel_call.due: something is to be done in the next turn */
	struct list closed;    /* channel_call.link: in that state */
	struct ring_req go;
	struct channel_call *current; /* whose callback runs; NULL once it has ended */
	unsigned depth;               /* of callbacks that run: it must stay until they return */
};

/* What a call asks of its stream. */
struct client_carrier {
	/* There is more to send. */
	void (*resume)(struct channel_call *call);
	/* So many bytes were read: the stream's window opens. */
	void (*consume)(struct channel_call *call, size_t len);
	/* Resets the stream and forgets the call. */
	void (*drop)(struct channel_call *call);
};

/* WAITING, on no list. False: it ends by itself in the next turn. */
bool client_call_begin(struct client_calls *calls, struct channel_call *call, const uint8_t *data,
	size_t len, bool last);
/* OPEN, on the carrier's list. */
void client_call_open(
	struct channel_call *call, const struct client_carrier *carrier, void *at, int32_t id);
/* Each calls on_end(), at once or in the next turn, and forgets the call before. */
void client_call_end(struct channel_call *call, enum grpc_status status, const char *message);
void client_call_end_later(struct channel_call *call, enum grpc_status status, const char *message);

/* ---- for the carrier ---- */

/* Up to cap bytes of what is to be sent. *ret_end: nothing comes after them, ever. */
size_t client_call_pull(struct channel_call *call, uint8_t *to, size_t cap, bool *ret_end);

/* ---- for client_answer.c and client_calls.c ---- */

/* Asserts that the state may follow the present one. */
void client_call_to(struct channel_call *call, enum channel_call_state state);
/* A buffer has grown or gone. */
void client_call_count(struct channel_call *call);
bool client_call_has_memory(const struct channel_call *call, size_t more);
/* on_go() looks at it in the next turn. */
void client_call_be_due(struct channel_call *call);
/* What it ends with later. */
void client_call_say(struct channel_call *call, enum grpc_status status, const char *message);
/* client_call_end() with a message that is freed; NULL: "". */
void client_call_end_with(struct channel_call *call, enum grpc_status status, char *message);
/* Around a callback of the call's owner. False: the call has ended in it, or is about to. */
void client_call_callback_begins(struct channel_call *call);
bool client_call_callback_over(struct client_calls *calls, const struct channel_call *call);

#endif
