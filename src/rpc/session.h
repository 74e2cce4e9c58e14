/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What one connection speaks, without sockets: bytes in, bytes out. h2.c and http1.c are the two;
 * conn.c feeds them from the ring, tests and fuzzers from memory.
 */
#ifndef RINGVOL_RPC_SESSION_H
#define RINGVOL_RPC_SESSION_H

#include "base/buf.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct session;

enum session_wait {
	SESSION_BUSY,      /* it does not: a call is under way */
	SESSION_HALF_OPEN, /* for the rest of a request, or for its first one */
	SESSION_IDLE,      /* for another request */
};

struct session_ops {
	/* Bytes from the peer. 0, or -errno when the connection is beyond repair: send what is left
	 * of the output, then close. */
	int (*feed)(struct session *session, const uint8_t *data, size_t len);
	/* While it is paced: whether it can take more bytes. NULL: it is never paced. */
	bool (*wants_input)(const struct session *session);
	/* The peer sends no more but may still read. NULL: then the connection is over. */
	void (*input_ended)(struct session *session);
	/* Appends pending output to `out` until it holds about limit bytes. 0 or -errno. */
	int (*output)(struct session *session, struct buf *out, size_t limit);
	/* After output(): a descriptor that goes along with the first byte that this has appended,
	 * and that is the caller's from now on; -1: none. NULL: the protocol passes none. */
	int (*pass)(struct session *session);
	/* True when nothing is left to read or write: close the socket. */
	bool (*finished)(const struct session *session);
	/* Whether an answer is under way that has no end yet. Given up there, the connection is
	 * reset, so that the peer does not take the end of it for the answer's. NULL: its protocol
	 * tells them apart. */
	bool (*mid_answer)(const struct session *session);
	/* What it waits for with no call under way, and since when in the ring's time: then it may
	 * be closed for one that has something to say. *ret_since_ns: only if it waits. */
	enum session_wait (*waits)(const struct session *session, uint64_t *ret_since_ns);
	/* Nothing was sent for a while: memory that only sending needs may go. NULL: it keeps none.
	 */
	void (*rest)(struct session *session);
	/* What runs may end, nothing new begins, then it is finished. A client's session ends at
	 * once: it is drained by its own timer alone, when no call runs. */
	void (*drain)(struct session *session);
	void (*free)(struct session *session);
};

/* Why this side gave the connection up. */
enum session_end {
	SESSION_END_NONE, /* it did not */
	SESSION_END_TOO_MANY_PINGS,
	SESSION_END_HALF_OPEN, /* no beginning of a conversation within half_open_ms */
	SESSION_END_STALLED,   /* responses wait and the client reads nothing */
	SESSION_END_FLOODED,   /* too many frames that ask for nothing */
};

enum { SESSION_FEED_BYTES = 8192 }; /* what a session is fed at most in one go */

/* The first member of what implements it. */
struct session {
	const struct session_ops *ops;
	enum session_end end;
	/* One receive at a time is made, while wants_input() holds. Else it can always take more,
	 * because the protocol has a flow control of its own. Nothing becomes paced later. */
	bool paced;
	bool dead; /* given up: what is not sent yet is not worth waiting for */
	/* What it is fed are requests in clear, which may have secrets: whoever received them
	 * overwrites them then. Set from the start. */
	bool secretive;
};

/* Called from the loop, never from inside feed() or output(): there may be bytes to send, room for
 * input, or the session may be finished. */
typedef void session_wake_fn(void *arg);

#endif
