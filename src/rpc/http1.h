/* SPDX-License-Identifier: Apache-2.0 */
/*
 * HTTP/1 for probes, scrapers and plugins: GET and HEAD, or POST with a short body, of a few fixed
 * paths, keep-alive, pipelining. No sockets: a session (session.h) that conn.c, tests and fuzzers
 * feed.
 *
 * A handler answers at once with a short text, or with a source that makes the body piece by piece:
 * all sources together make HTTP1_TURN_BYTES in a turn of the loop, and a piece is only made when
 * the one before it was sent, so neither many scrapers nor slow ones cost time or memory. Or it
 * says that its answer comes later.
 */
#ifndef RINGVOL_RPC_HTTP1_H
#define RINGVOL_RPC_HTTP1_H

#include "reactor/ring.h"
#include "rpc/server.h"
#include "rpc/session.h"

enum {
	HTTP1_TARGET_MAX = 1024,     /* bytes of a request's target; more is 414 */
	HTTP1_TURN_BYTES = 64 << 10, /* of bodies made in one turn of the loop */
	HTTP1_PIECE_BYTES = 4 << 10, /* of one body in one turn, at least */
	HTTP1_ANSWER_MS = 60 * 1000, /* for an answer to be made and read */
};

struct http1;      /* what the connections of a server share */
struct http1_call; /* a request, until it is answered */

/* Answers the call before it returns, with one of the functions below, or says http1_later(). */
typedef void http1_handler_fn(struct http1_call *call, void *arg);

/* The path is matched exactly; a query is ignored. A table ends with a NULL path. */
struct http1_route {
	const char *path;
	http1_handler_fn *fn;
	void *arg;
	/* 0: it is asked with GET and HEAD. Else with POST, and a body of so many bytes at most. */
	size_t body_max;
};

/* What came with a POST, until the call is answered. Never NULL. */
const uint8_t *http1_body(const struct http1_call *call, size_t *ret_len);
/* Text for a person, without the ending newline. */
void http1_reply(struct http1_call *call, unsigned status, const char *text);
void http1_reply_data(struct http1_call *call, unsigned status, const char *content_type,
	const void *data, size_t len);
/* The answer comes later, from the loop; whoever gives it bounds how long that takes. on_gone: the
 * connection is no more, and neither is the call. */
void http1_later(struct http1_call *call, void (*on_gone)(void *arg), void *arg);

/* Embed it. */
struct http1_source {
	/* Appends a piece of about `limit` bytes, or none; called from the loop. 1: more to come;
	 * 0: that was all; -EAGAIN: http1_source_wake() will say when; another negative errno: the
	 * connection is cut, so that the client does not take half for the whole. */
	int (*more)(struct http1_source *source, struct buf *out, size_t limit);
	void (*free)(struct http1_source *source); /* read to its end, or not wanted any more */
	struct http1_call *call;                   /* http1.c's */
};
/* Answers 200 with this body. */
void http1_stream(struct http1_call *call, const char *content_type, struct http1_source *source);
void http1_source_wake(struct http1_source *source);

/* limits and routes must outlive it. 0 or -ENOMEM. */
int http1_new(struct http1 **ret, struct ring *ring, const struct server_limits *limits,
	const struct http1_route *routes);
/* False while a turn of it is posted: then the ring has to be turned before http1_free(). */
bool http1_idle(const struct http1 *http1);
void http1_free(struct http1 *http1); /* no session may be left; NULL is legal */

int http1_session_new(
	struct http1 *http1, session_wake_fn *on_wake, void *arg, struct session **ret);

#endif
