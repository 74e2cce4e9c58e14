/* SPDX-License-Identifier: Apache-2.0 */
/*
 * HTTP/1.0 and 1.1, the server's side: connections, one request at a time on each, and the bodies
 * of answers. http1_request.c reads requests.
 *
 *   IDLE -> REQUEST -> ANSWER -> IDLE ... -> OVER
 *
 * Bytes that come while an answer is under way (pipelining) wait in `in`; no more are asked for
 * until they are used up, so a client cannot make us keep more than one receive.
 *
 * A request that cannot be served gets its status and ends the connection: what follows it might
 * be its body. One timer bounds each state: a request must be complete in half_open_ms however it
 * trickles (408), an answer read in HTTP1_ANSWER_MS, and a connection without requests ends after
 * idle_ms. An answer that was put off has no time of its own. Out of memory the connection is cut.
 */
#include "rpc/http1.h"

#include "rpc/http1_request.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum http1_state {
	HTTP1_IDLE,
	HTTP1_REQUEST, /* a part of one is here */
	HTTP1_ANSWER,
	HTTP1_OVER, /* the last answer was fetched, or nobody wants one */
};

struct http1 {
	struct ring *ring;
	const struct server_limits *limits;
	const struct http1_route *routes;
	struct list ready; /* http1_call.ready: sources that may make their next piece */
	unsigned ready_count;
	struct ring_req turn;
};

/* A connection; it has one request at a time. */
struct http1_call {
	struct session base;
	struct http1 *http1;
	session_wake_fn *on_wake;
	void *on_wake_arg;
	enum http1_state state;
	int broken;              /* -errno */
	bool busy;               /* inside feed() or output() */
	bool served;             /* at least one request */
	bool last;               /* no request after this one */
	bool draining;           /* nor after the one that is on its way in */
	bool input_ended;        /* the client sends no more */
	uint64_t waits_since_ns; /* for a request, or since its first byte for the rest of it */
	struct ring_timer timer;
	struct buf in; /* received, not parsed */

	struct http1_request request;

	/* the answer */
	struct buf out;
	struct http1_source *source; /* NULL: all of the answer is in out */
	bool chunked;
	bool waits; /* the source, for its http1_source_wake() */
	struct list ready;
	bool later; /* it is not there yet */
	void (*on_gone)(void *arg);
	void *on_gone_arg;
};

static struct http1_call *call_of(struct session *session)
{
	return container_of(session, struct http1_call, base);
}

static void wake(struct http1_call *c)
{
	if (!c->busy)
		c->on_wake(c->on_wake_arg);
}

/* Out of memory, or a source that failed: nothing more goes out. */
static void cut(struct http1_call *c, int res)
{
	if (c->broken == 0)
		c->broken = res;
	c->base.dead = true;
}

static void to_state(struct http1_call *c, enum http1_state state, uint64_t timeout_ms)
{
	c->state = state;
	ring_timer_arm(c->http1->ring, &c->timer, timeout_ms);
}

/* ---- answers ---- */

static int put_head(struct http1_call *c, unsigned status, const char *content_type)
{
	char date[64];
	struct tm tm;
	time_t now = time(NULL);
	gmtime_r(&now, &tm);
	strftime(date, sizeof(date), "%a, %d %b %Y %H:%M:%S GMT", &tm);
	return buf_printf(&c->out,
		"HTTP/1.1 %u %s\r\nDate: %s\r\nContent-Type: %s\r\nCache-Control: no-store\r\n%s%s",
		status, http1_status_name(status), date, content_type,
		status != 405           ? ""
		: c->request.takes_body ? "Allow: POST\r\n"
					: "Allow: GET, HEAD\r\n",
		c->last                             ? "Connection: close\r\n"
		: http1_request_is_old(&c->request) ? "Connection: keep-alive\r\n"
						    : "");
}

/* The answer begins. True: later, so that the connection does not know of it. */
static bool answer_begins(struct http1_call *c)
{
	bool later = c->later;
	assert(c->state == HTTP1_ANSWER && c->source == NULL);
	if (later)
		to_state(c, HTTP1_ANSWER, HTTP1_ANSWER_MS);
	c->later = false;
	return later;
}

void http1_reply_data(struct http1_call *c, unsigned status, const char *content_type,
	const void *data, size_t len)
{
	bool later = answer_begins(c);
	int res = put_head(c, status, content_type);
	if (res == 0)
		res = buf_printf(&c->out, "Content-Length: %zu\r\n\r\n", len);
	if (res == 0 && !http1_request_is_head(&c->request))
		res = buf_append(&c->out, data, len);
	if (res < 0)
		cut(c, res);
	if (later)
		wake(c);
}

void http1_reply(struct http1_call *c, unsigned status, const char *text)
{
	struct buf line = {0};
	if (buf_printf(&line, "%s\n", text) < 0) {
		bool later = answer_begins(c);
		cut(c, -ENOMEM);
		if (later)
			wake(c);
		return;
	}
	http1_reply_data(c, status, "text/plain; charset=utf-8", line.data, line.len);
	buf_free(&line);
}

void http1_later(struct http1_call *c, void (*on_gone)(void *arg), void *arg)
{
	assert(c->state == HTTP1_ANSWER && c->source == NULL && c->out.len == 0);
	c->later = true;
	c->on_gone = on_gone;
	c->on_gone_arg = arg;
	ring_timer_cancel(c->http1->ring, &c->timer);
}

const uint8_t *http1_body(const struct http1_call *c, size_t *ret_len)
{
	*ret_len = c->request.body.len;
	return *ret_len > 0 ? c->request.body.data : (const uint8_t *)"";
}

static void ready_push(struct http1_call *c)
{
	struct http1 *http1 = c->http1;
	assert(list_empty(&c->ready));
	list_push(&http1->ready, &c->ready);
	http1->ready_count++;
	if (!http1->turn.armed)
		ring_post(http1->ring, &http1->turn, 0);
}

static void ready_drop(struct http1_call *c)
{
	if (list_empty(&c->ready))
		return;
	list_remove(&c->ready);
	c->http1->ready_count--;
}

static void source_end(struct http1_call *c)
{
	struct http1_source *source = c->source;
	if (source == NULL)
		return;
	c->source = NULL;
	ready_drop(c);
	source->free(source);
}

void http1_stream(struct http1_call *c, const char *content_type, struct http1_source *source)
{
	assert(c->state == HTTP1_ANSWER && c->source == NULL);
	c->source = source;
	c->waits = false;
	source->call = c;
	/* HTTP/1.0 knows the end of the body by the end of the connection. */
	c->chunked = !http1_request_is_old(&c->request);
	c->last |= !c->chunked;
	int res = put_head(c, 200, content_type);
	if (res == 0)
		res = buf_printf(
			&c->out, "%s\r\n", c->chunked ? "Transfer-Encoding: chunked\r\n" : "");
	if (res < 0)
		cut(c, res);
	if (http1_request_is_head(&c->request) || c->broken < 0)
		source_end(c);
	else
		ready_push(c);
}

void http1_source_wake(struct http1_source *source)
{
	struct http1_call *c = source->call;
	c->waits = false;
	if (c->source == source && list_empty(&c->ready) && c->out.len == 0)
		ready_push(c);
}

/* Makes the next piece of a body, as a chunk whose length is written last. */
static void make_piece(struct http1_call *c, size_t limit)
{
	enum { PREFIX = 10 };
	char prefix[PREFIX + 1];
	size_t start = c->out.len;
	int res = 0, more;
	if (c->chunked)
		res = buf_append(&c->out, "00000000\r\n", PREFIX);
	size_t from = c->out.len;
	more = res < 0 ? res : c->source->more(c->source, &c->out, limit);
	size_t len = c->out.len - from;
	c->waits = more == -EAGAIN;
	if (more < 0 && more != -EAGAIN)
		res = more;
	if (c->chunked && len == 0) {
		c->out.len = start;
	} else if (c->chunked && res == 0) {
		snprintf(prefix, sizeof(prefix), "%08x\r\n", (unsigned)len);
		memcpy(c->out.data + start, prefix, PREFIX);
		res = buf_append(&c->out, "\r\n", 2);
	}
	if (c->chunked && res == 0 && more == 0)
		res = buf_append(&c->out, "0\r\n\r\n", 5);
	if (more == 0 || res < 0)
		source_end(c);
	if (res < 0)
		cut(c, res);
	/* What was looked over and found to be nothing to tell goes on in the next turn. */
	if (more == 1 && c->source != NULL && c->out.len == 0)
		ready_push(c);
	else
		wake(c);
}

static void on_turn(struct ring_req *req, int res, uint32_t flags)
{
	(void)res;
	(void)flags;
	struct http1 *http1 = container_of(req, struct http1, turn);
	if (http1->ready_count == 0)
		return;
	size_t piece = HTTP1_TURN_BYTES / http1->ready_count;
	if (piece < HTTP1_PIECE_BYTES)
		piece = HTTP1_PIECE_BYTES;
	unsigned count = HTTP1_TURN_BYTES / (unsigned)piece;
	if (count > http1->ready_count)
		count = http1->ready_count;
	for (unsigned i = 0; i < count; i++) {
		struct http1_call *c = container_of(http1->ready.next, struct http1_call, ready);
		ready_drop(c);
		make_piece(c, piece);
	}
	if (http1->ready_count > 0 && !http1->turn.armed)
		ring_post(http1->ring, &http1->turn, 0);
}

/* ---- requests ---- */

static void answer_refusal(struct http1_call *c, unsigned status)
{
	c->last = true;
	to_state(c, HTTP1_ANSWER, HTTP1_ANSWER_MS);
	http1_reply(c, status, http1_request_refusal(&c->request, status));
}

static void answer_request(struct http1_call *c)
{
	const char *path = http1_request_path(&c->request);
	c->served = true;
	c->last |= c->draining || c->request.last;
	to_state(c, HTTP1_ANSWER, HTTP1_ANSWER_MS);
	for (const struct http1_route *r = c->http1->routes; r->path != NULL; r++)
		if (strcmp(r->path, path) == 0) {
			r->fn(c, r->arg);
			return;
		}
	char text[256] = "not found; there are";
	size_t len = strlen(text);
	for (const struct http1_route *r = c->http1->routes; r->path != NULL; r++)
		if (len + strlen(r->path) + 2 < sizeof(text))
			len += (size_t)sprintf(text + len, " %s", r->path);
	http1_reply(c, 404, text);
}

/* Takes up to the end of a request at most; returns how many bytes. */
static size_t read_request(struct http1_call *c, const uint8_t *data, size_t len)
{
	unsigned status;
	if (c->state == HTTP1_IDLE) {
		http1_request_begin(&c->request, c->http1->routes);
		to_state(c, HTTP1_REQUEST, c->http1->limits->half_open_ms);
		c->waits_since_ns = ring_now_ns(c->http1->ring);
	}
	size_t used = http1_request_parse(
		&c->request, data, len, c->http1->limits->header_bytes, &status);
	if (status == 200)
		answer_request(c);
	else if (status != 0)
		answer_refusal(c, status);
	return used;
}

/* ---- the session ---- */

/* The answer was fetched: what comes next? */
static void next_request(struct http1_call *c)
{
	buf_free(&c->out);
	if (c->last || c->draining) {
		c->state = HTTP1_OVER; /* the timer still bounds how long it is read */
		return;
	}
	to_state(c, HTTP1_IDLE, c->http1->limits->idle_ms);
	c->waits_since_ns = ring_now_ns(c->http1->ring);
	if (c->in.len > 0)
		buf_consume(&c->in, read_request(c, c->in.data, c->in.len));
	if (c->in.len == 0)
		buf_free(&c->in);
	if (c->input_ended && c->state < HTTP1_ANSWER)
		c->state = HTTP1_OVER;
}

static int http1_feed(struct session *session, const uint8_t *data, size_t len)
{
	struct http1_call *c = call_of(session);
	if (c->broken < 0 || c->last)
		return c->broken;
	c->busy = true;
	size_t used = c->state < HTTP1_ANSWER ? read_request(c, data, len) : 0;
	if (used < len && !c->last && buf_append(&c->in, data + used, len - used) < 0)
		cut(c, -ENOMEM);
	c->busy = false;
	return c->broken;
}

static bool http1_wants_input(const struct session *session)
{
	const struct http1_call *c = container_of(session, const struct http1_call, base);
	return c->state < HTTP1_ANSWER && c->in.len == 0;
}

static void http1_input_ended(struct session *session)
{
	struct http1_call *c = call_of(session);
	c->input_ended = true;
	if (c->state < HTTP1_ANSWER)
		c->state = HTTP1_OVER;
}

static int http1_output(struct session *session, struct buf *out, size_t limit)
{
	struct http1_call *c = call_of(session);
	int res = 0;
	c->busy = true;
	while (c->state == HTTP1_ANSWER && !c->later && c->broken == 0 && out->len < limit) {
		if (out->len == 0) {
			struct buf full = c->out;
			c->out = *out;
			*out = full;
		} else {
			res = buf_append(out, c->out.data, c->out.len);
			buf_free(&c->out);
		}
		if (res < 0)
			cut(c, res);
		if (c->source == NULL)
			next_request(c);
		else
			break;
	}
	/* The next piece is made while this one is sent. */
	if (c->source != NULL && out->len > 0 && !c->waits && list_empty(&c->ready))
		ready_push(c);
	c->busy = false;
	return c->broken;
}

static bool http1_finished(const struct session *session)
{
	const struct http1_call *c = container_of(session, const struct http1_call, base);
	return c->broken < 0 || c->state == HTTP1_OVER;
}

/* A body of HTTP/1.0 ends with the connection. */
static bool http1_mid_answer(const struct session *session)
{
	const struct http1_call *c = container_of(session, const struct http1_call, base);
	return c->state == HTTP1_ANSWER;
}

static enum session_wait http1_waits(const struct session *session, uint64_t *ret_since_ns)
{
	const struct http1_call *c = container_of(session, const struct http1_call, base);
	if (c->state > HTTP1_REQUEST)
		return SESSION_BUSY;
	*ret_since_ns = c->waits_since_ns;
	return c->state == HTTP1_IDLE && c->served ? SESSION_IDLE : SESSION_HALF_OPEN;
}

static void http1_drain(struct session *session)
{
	struct http1_call *c = call_of(session);
	if (c->state == HTTP1_IDLE)
		c->state = HTTP1_OVER;
	c->draining = true;
}

static void on_timer(struct ring_timer *timer)
{
	struct http1_call *c = container_of(timer, struct http1_call, timer);
	if (c->state == HTTP1_REQUEST) {
		c->base.end = SESSION_END_HALF_OPEN;
		answer_refusal(c, 408);
	} else {
		if (c->state == HTTP1_IDLE && !c->served)
			c->base.end = SESSION_END_HALF_OPEN;
		if (c->state >= HTTP1_ANSWER)
			c->base.end = SESSION_END_STALLED;
		cut(c, -ETIMEDOUT);
	}
	wake(c);
}

static void http1_session_free(struct session *session)
{
	struct http1_call *c = call_of(session);
	c->busy = true;
	source_end(c);
	if (c->later)
		c->on_gone(c->on_gone_arg);
	http1_request_free(&c->request);
	ring_timer_cancel(c->http1->ring, &c->timer);
	buf_free(&c->in);
	buf_free(&c->out);
	free(c);
}

static const struct session_ops http1_ops = {.feed = http1_feed,
	.wants_input = http1_wants_input,
	.input_ended = http1_input_ended,
	.output = http1_output,
	.finished = http1_finished,
	.mid_answer = http1_mid_answer,
	.waits = http1_waits,
	.drain = http1_drain,
	.free = http1_session_free};

int http1_session_new(
	struct http1 *http1, session_wake_fn *on_wake, void *arg, struct session **ret)
{
	struct http1_call *c = calloc(1, sizeof(*c));
	if (c == NULL)
		return -ENOMEM;
	c->base.ops = &http1_ops;
	c->base.paced = true;
	c->http1 = http1;
	c->on_wake = on_wake;
	c->on_wake_arg = arg;
	c->timer.fn = on_timer;
	list_init(&c->ready);
	to_state(c, HTTP1_IDLE, http1->limits->half_open_ms);
	c->waits_since_ns = ring_now_ns(http1->ring);
	*ret = &c->base;
	return 0;
}

int http1_new(struct http1 **ret, struct ring *ring, const struct server_limits *limits,
	const struct http1_route *routes)
{
	struct http1 *http1 = calloc(1, sizeof(*http1));
	if (http1 == NULL)
		return -ENOMEM;
	*http1 = (struct http1){
		.ring = ring, .limits = limits, .routes = routes, .turn.fn = on_turn};
	list_init(&http1->ready);
	*ret = http1;
	return 0;
}

bool http1_idle(const struct http1 *http1)
{
	return http1 == NULL || !http1->turn.armed;
}

void http1_free(struct http1 *http1)
{
	assert(http1 == NULL || (http1->ready_count == 0 && !http1->turn.armed));
	free(http1);
}
