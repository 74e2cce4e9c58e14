/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of a connection, shared by h2.c (session, timers) and h2_stream.c (streams). */
#ifndef RINGVOL_RPC_H2_PRIVATE_H
#define RINGVOL_RPC_H2_PRIVATE_H

#include "base/buf.h"
#include "rpc/call.h"
#include "rpc/h2.h"

#include <nghttp2/nghttp2.h>

enum {
	H2_STREAM_WINDOW_BYTES = 256 << 10, /* what a client may send ahead on a stream */
	H2_CONN_WINDOW_BYTES = 1 << 20,     /* and on all streams of a connection */
	H2_PARTIAL_MAX_BYTES = 8 << 20,     /* requests not yet complete, of one connection */
	H2_STREAM_QUEUE_BYTES = 64 << 10,   /* of answers; more pauses a streaming method */
	H2_KEEP_BYTES = 16 << 10,           /* of a stream's buffer while nothing waits in it */
	H2_WAITING_MAX_BYTES = 32 << 20, /* decoded requests of a connection that wait for a turn */
	H2_QUEUED_MAX_BYTES = 16 << 20,  /* of all answers: four of the largest; see h2_output.c */
	/* Frames that wait to be fetched, beside DATA. Each stream has one or two, a client that
	 * has not heard of the limit of streams yet has one for each it opens beyond. */
	H2_FRAMES_MAX = 4096,
	H2_PING_STRIKES = 3,
	/* Frames that ask for nothing: h2_calm.c. grpc-go sends one for some kilobytes of an answer
	 * and one for a window's growth, libraries with priorities some at the start. */
	H2_CALM_MAX = 2000,
	H2_CALM_PER_S = 100,
	H2_CALM_ANSWER = 4,
	H2_DRAIN_PING_MS = 1000, /* how long a drain waits for the client to have heard of it */
};

struct h2_conn {
	struct session base;
	struct h2_config config;
	nghttp2_session *session;
	struct list streams;   /* open */
	struct list half_open; /* those whose request is not complete, oldest first */
	struct list paused;    /* those whose method waits for room */
	unsigned stream_count;
	struct list ready;    /* streams whose calls wait for their turn: h2_turn.c */
	size_t waiting_bytes; /* what their requests take */
	struct list turn;
	int64_t credit_bytes;
	uint64_t credit_turn;
	size_t partial_bytes;   /* received, not yet decoded */
	size_t queued_bytes;    /* packed, not yet given to nghttp2 */
	int broken;             /* -errno: nothing can be sent any more */
	bool busy;              /* inside feed() or output() */
	bool greeted;           /* preface and SETTINGS are here */
	bool closing;           /* given up: only the GOAWAY is still sent */
	bool goaway_sent;       /* that one */
	bool draining, drained; /* GOAWAY announced; final GOAWAY queued */
	unsigned calm_points;
	uint64_t calm_ns;
	unsigned ping_strikes;
	uint64_t last_ping_ns; /* 0: none yet */
	bool answered_since_ping;
	struct ring_timer timer;
	uint64_t created_ns, idle_since_ns, drain_ns;
	uint64_t progress_ns; /* response bytes last moved, or started to wait */
};

/* Illegal transitions assert; see h2_stream.c for the table. A stream is closed in any state. */
enum h2_stream_state {
	H2_STREAM_HEADERS,  /* the request's header list is coming in */
	H2_STREAM_REFUSED,  /* it is no gRPC: an HTTP error when the request has ended */
	H2_STREAM_BODY,     /* its message is */
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
	size_t unconsumed; /* of the stream's window, held back while the method waits */
	bool in_ended;

	/* the answer */
	struct buf out;
	size_t out_at;
	const char
		*http; /* NULL: gRPC; else the code of an HTTP error, with a text that is static */
	bool started;  /* response headers are submitted */
	bool deferred; /* nghttp2 waits for nghttp2_session_resume_data() */
	enum grpc_status status;
	char *message; /* percent-encoded */
	size_t message_len;
};

/* ---- h2_headers.c ---- */

void h2_stream_on_header(struct h2_stream *s, const uint8_t *name, size_t name_len,
	const uint8_t *value, size_t value_len);
/* Of a request's trailers, which carry nothing that gRPC knows. */
void h2_stream_on_trailer(struct h2_stream *s, const uint8_t *name, size_t name_len);
/* Whether the header list that is complete now is what HTTP/2 calls malformed. */
bool h2_stream_headers_malformed(const struct h2_stream *s);
bool h2_stream_headers_too_large(const struct h2_stream *s);

/* ---- h2_stream.c ---- */

int h2_stream_open(struct h2_conn *conn, int32_t id);
void h2_stream_on_headers_end(struct h2_stream *s);
/* The request's trailers are complete; last_frame: and they end it, as they have to. */
void h2_stream_on_trailers_end(struct h2_stream *s, bool last_frame);
/* Resets a stream whose request is malformed. */
void h2_stream_reset(struct h2_stream *s);
/* The stream is over; the call learns it and lives on until its method ends it. */
void h2_stream_closed(struct h2_stream *s);
/* The request took longer than half_open_ms. */
void h2_stream_overstayed(struct h2_stream *s);
/* The connection drains: ends an endless call, and what is no gRPC. */
void h2_stream_drain(struct h2_stream *s);
/* Ends a stream that cannot go on, whether its method runs or not. */
void h2_stream_abort(struct h2_stream *s, enum grpc_status status, const char *message);
void h2_stream_to(struct h2_stream *s, enum h2_stream_state state);
/* Whether its method takes a stream of messages. */
bool h2_stream_is_in(const struct h2_stream *s);

/* ---- h2_stream.c: the request's messages ---- */

void h2_stream_on_data(struct h2_stream *s, bool last_frame, const uint8_t *data, size_t len);
void h2_stream_on_input_end(struct h2_stream *s);
/* After a pause: opens the window again and runs what came in meanwhile. */
void h2_stream_resume_input(struct h2_stream *s);
/* Forgets what is left of the request. */
void h2_stream_drop_input(struct h2_stream *s);

/* ---- h2_output.c ---- */

extern const struct grpc_carrier h2_stream_carrier;
/* Ends the answer with a status; nothing happens when it has ended. */
void h2_stream_answer(struct h2_stream *s, enum grpc_status status, const char *message);
/* Answers with the HTTP error s->http, for what is not gRPC. */
void h2_stream_answer_http(struct h2_stream *s);
/* Forgets what is packed and not sent. */
void h2_stream_drop_output(struct h2_stream *s);
/* Lets paused methods go on as far as there is room. True when one did. */
bool h2_stream_resume_paused(struct h2_conn *conn);

/* ---- h2_calm.c ---- */

/* A frame begins: counts those that ask for nothing. */
void h2_calm_on_frame(struct h2_conn *conn, const nghttp2_frame_hd *hd);
void h2_calm_spend(struct h2_conn *conn);
/* A frame of an answer is sent. */
void h2_calm_earn(struct h2_conn *conn);

/* ---- h2.c ---- */

/* Gives the connection up with a reason the peer can read. */
void h2_conn_give_up(struct h2_conn *conn, enum session_end end, uint32_t code, const char *reason);

/* There is output and nobody is about to fetch it. */
void h2_conn_wake(struct h2_conn *conn);
/* An nghttp2 call failed where only memory can be the reason. */
void h2_conn_broke(struct h2_conn *conn, int nghttp2_error);

#endif
