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
struct tls; /* tls.h */

enum {
	CHANNEL_CONNECT_MS = 5000, /* until the peer's SETTINGS are here; then UNAVAILABLE */
	/* With calls under way and nothing heard, a ping; without an answer to it, lost. */
	CHANNEL_PING_MS = 5000,
	CHANNEL_PING_ANSWER_MS = 10000,
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
	/* NULL: a unix socket. Else the peer must have the identity `peer` (tls.h). */
	struct tls *tls;
	const char *peer; /* e.g. "ringvol://controller"; copied */
};

/* Connects when the first call starts. 0, -ENOMEM, -EINVAL with err. */
int channel_open(struct channel **ret, const struct channel_config *config, struct err *err);
/* Ends all calls with UNAVAILABLE, at once; the memory is freed when the kernel has let go. Not
 * from inside one of its callbacks. NULL is legal. */
void channel_close(struct channel *channel);
enum channel_state channel_state(const struct channel *channel);
/* Why there is no connection, in one line; "" if there is one or nobody has asked. */
const char *channel_why(const struct channel *channel);

struct channel_call {
	/* set by the owner */
	const char *path;     /* "/csi.v1.Controller/CreateVolume"; lives as long as the call */
	uint64_t deadline_ns; /* ring_now_ns(); UINT64_MAX: none. Sent as grpc-timeout */
	/* A message of the answer. The bytes are gone when it returns. NULL: they are thrown away.
	 * False: no more for now, until channel_read(); the window stays closed. */
	bool (*on_message)(struct channel_call *call, const uint8_t *data, size_t len);
	/* sent: the peer may have seen the call. message: UTF-8, "" if it said nothing. */
	void (*on_end)(
		struct channel_call *call, enum grpc_status status, const char *message, bool sent);
	/* After channel_send() said false: send more. NULL: nobody waits. */
	void (*on_writable)(struct channel_call *call);
	/* private: channel.c */
	struct channel *channel; /* NULL: not started, or ended */
	struct list link;
	struct ring_timer deadline;
	int32_t id;
	struct buf out; /* packed and not sent */
	size_t out_at;
	struct buf in; /* received and not whole */
	bool out_ended, deferred, held, sent;
	int status; /* -1: not said yet */
	char *message;
	uint64_t unread;
};

/* Starts a call with its first message, which is copied; last: the client sends no other. Ends it
 * with on_end() later, never before it returns. */
void channel_start(struct channel *channel, struct channel_call *call, const uint8_t *data,
	size_t len, bool last);
/* Another message of a streaming call, and the end of them. False: more than 256 KiB wait to be
 * sent, on_writable() tells when there is room; this message is taken all the same. A call that has
 * ended takes nothing. */
bool channel_send(struct channel_call *call, const uint8_t *data, size_t len);
void channel_send_end(struct channel_call *call);
/* on_message() may be called again. */
void channel_read(struct channel_call *call);
/* Gives the call up (RST_STREAM, CANCEL); on_end() is not called. Legal on one that has ended. */
void channel_cancel(struct channel_call *call);
static inline bool channel_call_active(const struct channel_call *call)
{
	return call->channel != NULL;
}

#endif
