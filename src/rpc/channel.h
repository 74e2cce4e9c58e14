/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The client's side of gRPC on the ring: a connection to one address that is made when a call needs
 * it, and made again when it is lost. Calls carry packed messages, so that what passes through
 * need not be understood; typed calls pack and unpack around it.
 *
 * A call is a struct of its owner's. It ends exactly once, by on_end(), or silently by
 * channel_cancel(). Nothing is ever sent a second time: a call whose connection is lost ends with
 * UNAVAILABLE, and its owner decides. on_end() tells the owner whether the peer may have seen it.
 */
#ifndef RINGVOL_RPC_CHANNEL_H
#define RINGVOL_RPC_CHANNEL_H

#include "base/buf.h"
#include "base/err.h"
#include "base/list.h"
#include "reactor/ring.h"
#include "rpc/grpc.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct channel;
struct client_calls;   /* client_call.h */
struct client_carrier; /* client_call.h */
struct tls;            /* tls.h */
struct work;

enum {
	CHANNEL_CONNECT_MS = 5000, /* until the peer's SETTINGS are here; then UNAVAILABLE */
	/* With calls under way and nothing heard, a ping; without an answer to it, lost. */
	CHANNEL_PING_MS = 5000,
	CHANNEL_PING_ANSWER_MS = 10000,
	CHANNEL_IDLE_MS = 60000,      /* a connection without calls is closed */
	CHANNEL_STALL_MS = 15000,     /* a peer that takes nothing of what it is sent is lost */
	CHANNEL_CALLS_MAX = 4096,     /* at once; another is refused with RESOURCE_EXHAUSTED */
	CHANNEL_OUT_BYTES = 256 << 10 /* of a call: more that waits makes channel_send() say so */
};

enum channel_state {
	CHANNEL_IDLE,       /* no connection, none is asked for */
	CHANNEL_CONNECTING, /* calls wait for it */
	CHANNEL_UP,
	CHANNEL_LEAVING, /* the peer has said GOAWAY: running calls end, new ones take a new one */
};

struct channel_config {
	struct ring *ring;
	/* unix:///PATH, or HOST:PORT; a name is resolved on a work thread at each connect. */
	const char *address;
	struct work *work; /* NULL: the address has numbers only */
	/* Of work, for names: a resolver that is not answered hangs for a minute. NULL: the shared
	 * lane. */
	struct lane *lane;
	/* NULL: a unix socket. Else the peer must have the identity `peer` (tls.h). */
	struct tls *tls;
	const char *peer; /* e.g. "ringvol://controller"; copied */
	/* What calls send and receive counts in its GRPC_MEMORY_MAX_BYTES. NULL: nowhere. */
	struct grpc_registry *registry;
	bool bulk;  /* answers are large, and nobody waits for one of them: RPCs go first */
	bool plain; /* for tests: HOST:PORT without TLS, on the loopback */
};

/* Connects when the first call starts. 0, -ENOMEM, -EINVAL with err. */
int channel_open(struct channel **ret, const struct channel_config *config, struct err *err);
/* Ends all calls with UNAVAILABLE, at once; their on_end() may start no other here. It may be
 * called in a callback of one of its calls: then its memory goes in the ring's next turn. NULL is
 * legal. */
void channel_close(struct channel *channel);
enum channel_state channel_state(const struct channel *channel);
/* Why there is no connection, in one line; "" if there is one or nobody has asked. */
const char *channel_why(const struct channel *channel);

struct channel_call {
	/* set by the owner */
	const char *path;     /* "/csi.v1.Controller/CreateVolume"; lives as long as the call */
	uint64_t deadline_ns; /* ring_now_ns(); UINT64_MAX: none. Sent as grpc-timeout */
	/* A message of the answer. The bytes are gone when it returns, or has given the call up.
	 * NULL: they are thrown away. False: no more for now, until channel_read(); the window
	 * stays closed. */
	bool (*on_message)(struct channel_call *call, const uint8_t *data, size_t len);
	/* sent: the peer may have seen the call. message: UTF-8, "" if it said nothing. */
	void (*on_end)(
		struct channel_call *call, enum grpc_status status, const char *message, bool sent);
	/* After channel_send() said false: send more. NULL: nobody waits. */
	void (*on_writable)(struct channel_call *call);
	/* private: client_call.h */
	struct client_calls *calls; /* NULL: not started, or ended */
	enum channel_call_state {
		CHANNEL_CALL_NONE,
		CHANNEL_CALL_WAITING, /* for a connection, or for a place on it */
		CHANNEL_CALL_OPEN,    /* it has a stream */
		CHANNEL_CALL_CLOSED,  /* its stream is over, and messages wait for channel_read() */
		CHANNEL_CALL_ENDING,  /* on_end() is called in the next turn */
	} state;
	const struct client_carrier *carrier;
	void *carrier_at;
	int32_t id;
	struct list link, due;
	struct ring_timer deadline;
	struct buf out; /* with prefixes, not sent */
	size_t out_at;
	struct buf in;  /* received and not whole, or held */
	size_t counted; /* of both, in the budget */
	size_t unread;  /* received, and the window is not opened for it */
	size_t header_bytes;
	bool out_ended, deferred, choked, held, resumed, sent, content_type_ok;
	int http, status; /* of the answer; -1: not said yet */
	int end_status;   /* once CLOSED or ENDING */
	char *message;    /* NULL: none */
};

/* Starts a call with its first message, which is copied; last: the client sends no other. Ends it
 * with on_end() later, never before it returns. */
void channel_start(struct channel *channel, struct channel_call *call, const uint8_t *data,
	size_t len, bool last);
/* Another message of a streaming call, and the end of them. False: more than CHANNEL_OUT_BYTES wait
 * to be sent, on_writable() tells when there is room; this message is taken all the same. A call
 * that has ended takes nothing. */
bool channel_send(struct channel_call *call, const uint8_t *data, size_t len);
void channel_send_end(struct channel_call *call);
/* on_message() may be called again, in the next turn. */
void channel_read(struct channel_call *call);
/* Gives the call up (RST_STREAM, CANCEL); on_end() is not called. Legal on one that has ended. */
void channel_cancel(struct channel_call *call);
static inline bool channel_call_active(const struct channel_call *call)
{
	return call->calls != NULL;
}

#endif
