/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the pieces of an HTTP/2 connection share: the connection, its streams, the states of both,
 * and what a stream takes of its connection's limits. Everything else of h2 lies above: turns
 * (h2_turn.h), answers (h2_output.h), headers (h2_headers.h), streams (h2_stream.h), and the
 * connection itself (h2.h). Only they include this, and tests that look inside.
 */
#ifndef RINGVOL_RPC_H2_STATE_H
#define RINGVOL_RPC_H2_STATE_H

#include "base/buf.h"
#include "rpc/call.h"
#include "rpc/h2.h"
#include "rpc/h2_mem.h"

#include <nghttp2/nghttp2.h>

/* A connection only moves downwards here. */
enum h2_conn_state {
	H2_CONN_OPEN,
	H2_CONN_DRAINING, /* a GOAWAY is announced; the client has not confirmed it yet */
	H2_CONN_DRAINED,  /* the final GOAWAY is queued; running streams may finish */
	H2_CONN_CLOSING,  /* given up: only the GOAWAY with the reason is still sent */
	H2_CONN_CLOSED,   /* that GOAWAY is sent */
	H2_CONN_BROKEN,   /* nothing can be sent any more */
};

struct h2_conn {
	struct session base;
	struct h2_config config;
	nghttp2_session *session;
	struct h2_mem mem;
	struct grpc_caller *caller; /* NULL: a local one */
	enum h2_conn_state state;
	int error;             /* BROKEN: -errno */
	bool busy;             /* inside feed() or output() */
	bool greeted;          /* preface and SETTINGS are here */
	struct list streams;   /* all that are not closed */
	struct list half_open; /* those whose request is not complete, oldest first */
	struct list paused;    /* those whose method waits for room */
	unsigned stream_count;
	size_t partial_bytes; /* received, not yet decoded */
	size_t queued_bytes;  /* packed, not yet given to nghttp2 */

	/* h2_turn.c */
	struct list ready;    /* streams whose calls wait for their turn */
	size_t waiting_bytes; /* what the requests of those take */
	struct list turn;
	int64_t credit_bytes;
	uint64_t credit_turn;

	/* frames that cost and ask for nothing: h2.c */
	unsigned calm_points;
	uint64_t calm_ns;
	unsigned ping_strikes;
	uint64_t last_ping_ns; /* 0: none yet */
	bool answered_since_ping;

	struct ring_timer timer;
	uint64_t created_ns, idle_since_ns, drain_ns;
	uint64_t progress_ns; /* response bytes last moved, or started to wait */
};

/* Illegal transitions assert; see h2_state.c for the table. A stream is closed in any state. */
enum h2_stream_state {
	H2_STREAM_HEADERS,  /* the request's header list is coming in */
	H2_STREAM_REFUSED,  /* it is no gRPC: an HTTP error when the request has ended */
	H2_STREAM_BODY,     /* its message is coming in */
	H2_STREAM_RUNNING,  /* the method has the call */
	H2_STREAM_ANSWERED, /* the end of the answer is queued; nothing more is read */
};

struct h2_stream {
	struct grpc_call call; /* first: the carrier casts */
	struct h2_conn *conn;  /* NULL once closed */
	int32_t id;
	enum h2_stream_state state;
	struct list link, half_open, paused, ready;
	size_t waiting_bytes; /* while on `ready` */
	uint64_t half_open_ns;
	struct ring_timer deadline;
	bool urgent; /* somebody waits for the method: chores of the loop wait, too */

	/* the request's headers */
	size_t header_bytes;
	unsigned seen; /* bits: enum h2_seen */
	bool post, content_type_ok, timeout_bad, encoded;
	bool malformed;          /* told by a reset when the header list is complete */
	int64_t content_length;  /* -1: not said */
	uint64_t received_bytes; /* of the body */
	uint64_t timeout_ns;

	/* the request's body */
	struct buf in;
	size_t in_at;      /* of in: consumed by messages already run */
	size_t unconsumed; /* of the stream's window, kept back while the method waits */
	bool in_ended;

	/* the answer */
	struct buf out;
	size_t out_at;
	const char *http; /* the code of an HTTP error, its text is static; NULL: gRPC */
	bool started;     /* response headers are submitted */
	bool deferred;    /* nghttp2 waits for nghttp2_session_resume_data() */
	enum grpc_status status;
	char *message; /* percent-encoded */
	size_t message_len;
};

/* ---- the connection ---- */

/* Asserts that the state lies further down than the present one. */
void h2_conn_to(struct h2_conn *conn, enum h2_conn_state state);
/* There is output and nobody is about to fetch it. */
void h2_conn_wake(struct h2_conn *conn);
/* What a call of nghttp2 returned that can only fail for want of memory. 0: nothing happens; else
 * the connection is broken. */
void h2_conn_check(struct h2_conn *conn, int nghttp2_result);

/* ---- a stream ---- */

void h2_stream_to(struct h2_stream *s, enum h2_stream_state state);
/* Whether its method is known and has this flag (enum grpc_method_flags). */
bool h2_stream_has(const struct h2_stream *s, unsigned flag);
/* To ANSWERED: no deadline, no pause, and nothing more of the request. */
void h2_stream_to_answered(struct h2_stream *s);
/* Opens the stream's window by what was read of it. */
void h2_stream_consume(struct h2_stream *s, size_t len);
/* Nobody waits for it any more. */
void h2_stream_not_urgent(struct h2_stream *s);
/* Each forgets something of the stream's and takes it off what is counted. */
void h2_stream_free_input(struct h2_stream *s);  /* the bytes of messages that are decoded */
void h2_stream_drop_turn(struct h2_stream *s);   /* its place among the calls that wait */
void h2_stream_drop_input(struct h2_stream *s);  /* both, and what is left of the request */
void h2_stream_drop_output(struct h2_stream *s); /* what is packed and not sent */

#endif
