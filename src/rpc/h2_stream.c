/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stream's life, and the request's way. The happy path of a unary call: headers are looked over,
 * the message is collected over DATA frames (or decoded in place when one frame holds all of it),
 * the method runs when the client has ended its side, its answer is sent in h2_output.c, and
 * nghttp2 closes the stream. A method with GRPC_STREAM_IN runs for each message, and while it waits
 * for room the stream's window is not opened further.
 *
 * A refusal is an answer without messages (trailers-only): what is malformed, compressed, too
 * large, too much in sum, or does not decode. A malformed request is reset. RST_STREAM, a deadline
 * or a lost connection end the stream at any time; a call whose method runs stays until the method
 * ends it.
 */
#include "rpc/h2_stream.h"

#include "rpc/h2_headers.h"
#include "rpc/h2_output.h"
#include "rpc/h2_turn.h"
#include "rpc/registry.h"
#include "rpc/wire.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { PARTIAL_MAX_BYTES = 8 << 20 }; /* requests not yet complete, of one connection */

/* Ends a stream that cannot go on, whether its method runs or not. */
static void stream_abort(struct h2_stream *s, enum grpc_status status, const char *message)
{
	if (s->call.running) {
		h2_output_answer(s, status, message);
		grpc_call_lose(&s->call, status);
	} else if (s->state != H2_STREAM_ANSWERED) {
		grpc_call_refuse(&s->call, status, message);
	}
}

/* ---- headers ---- */

static void on_deadline(struct ring_timer *timer);

int h2_stream_open(struct h2_conn *conn, int32_t id)
{
	struct h2_stream *s = malloc(sizeof(*s)); /* calloc() would pass what malloc keeps by */
	if (s == NULL)
		return -ENOMEM;
	memset(s, 0, sizeof(*s));
	grpc_call_init(&s->call, &h2_output_carrier, conn->config.registry);
	s->call.caller = grpc_caller_ref(conn->caller);
	s->conn = conn;
	s->id = id;
	s->timeout_ns = UINT64_MAX;
	s->content_length = -1;
	s->deadline.fn = on_deadline;
	s->half_open_ns = ring_now_ns(conn->config.ring);
	list_init(&s->paused);
	list_init(&s->ready);
	list_push(&conn->streams, &s->link);
	list_push(&conn->half_open, &s->half_open);
	conn->stream_count++;
	nghttp2_session_set_stream_user_data(conn->session, id, s);
	return 0;
}

/* Resets a stream whose request is malformed. */
static void stream_reset(struct h2_stream *s)
{
	h2_conn_check(s->conn, nghttp2_submit_rst_stream(s->conn->session, NGHTTP2_FLAG_NONE, s->id,
				       NGHTTP2_PROTOCOL_ERROR));
	if (s->state != H2_STREAM_ANSWERED)
		h2_stream_to_answered(s);
}

static void deadline_start(struct h2_stream *s)
{
	uint64_t now = ring_now_ns(s->conn->config.ring);
	if (s->timeout_ns > UINT64_MAX - 1000000 - now)
		return; /* centuries */
	s->call.deadline_ns = now + s->timeout_ns;
	ring_timer_arm(s->conn->config.ring, &s->deadline, (s->timeout_ns + 999999) / 1000000);
}

void h2_stream_on_headers_end(struct h2_stream *s)
{
	if (h2_stream_headers_too_large(s)) {
		grpc_call_refuse(&s->call, GRPC_RESOURCE_EXHAUSTED,
			"the request's header list is too large");
	} else if (h2_stream_headers_malformed(s)) {
		stream_reset(s);
	} else if (!s->post || !s->content_type_ok) {
		/* Answered when the request has ended: what follows may be malformed, too. */
		s->http = s->post ? "415" : "405";
		h2_stream_to(s, H2_STREAM_REFUSED);
	} else if (!grpc_call_admit(&s->call)) {
		return;
	} else if (s->timeout_bad) {
		grpc_call_refuse(&s->call, GRPC_INTERNAL, "malformed grpc-timeout");
	} else if (s->timeout_ns == 0) {
		grpc_call_refuse(&s->call, GRPC_DEADLINE_EXCEEDED, "the deadline has passed");
	} else if (h2_stream_has(s, GRPC_ENDLESS) && s->conn->state != H2_CONN_OPEN) {
		grpc_call_refuse(&s->call, GRPC_UNAVAILABLE, "the server shuts down");
	} else {
		h2_stream_to(s, H2_STREAM_BODY);
		if (s->timeout_ns != UINT64_MAX)
			deadline_start(s);
		if (h2_stream_has(s, GRPC_STREAM_IN))
			list_remove(&s->half_open); /* it counts while a message is incomplete */
	}
}

void h2_stream_on_trailers_end(struct h2_stream *s, bool last_frame)
{
	if (!last_frame || s->malformed)
		stream_reset(s);
}

/* ---- how streams end ---- */

static void on_deadline(struct ring_timer *timer)
{
	stream_abort(container_of(timer, struct h2_stream, deadline), GRPC_DEADLINE_EXCEEDED,
		"the deadline has passed");
}

void h2_stream_overstayed(struct h2_stream *s)
{
	if (s->state == H2_STREAM_REFUSED)
		h2_output_answer_http(s);
	else
		stream_abort(s, GRPC_DEADLINE_EXCEEDED, "the request was not complete in time");
}

void h2_stream_drain(struct h2_stream *s)
{
	if (s->state == H2_STREAM_REFUSED)
		h2_output_answer_http(s); /* the rest of it is not worth waiting for */
	else if (h2_stream_has(s, GRPC_ENDLESS) && s->state != H2_STREAM_HEADERS)
		stream_abort(s, GRPC_UNAVAILABLE, "the server shuts down");
}

void h2_stream_closed(struct h2_stream *s)
{
	struct h2_conn *conn = s->conn;

	list_remove(&s->link);
	list_remove(&s->paused);
	ring_timer_cancel(conn->config.ring, &s->deadline);
	h2_stream_not_urgent(s);
	s->unconsumed = 0;
	h2_stream_drop_input(s);
	h2_stream_drop_output(s);
	if (--conn->stream_count == 0)
		conn->idle_since_ns = ring_now_ns(conn->config.ring);
	free(s->message);
	s->message = NULL;
	s->conn = NULL;
	grpc_call_lose(&s->call, GRPC_CANCELLED);
	grpc_call_unref(&s->call);
}

/* ---- the request's messages ---- */

/* Looks at the prefix of a message. True when it may go on; else the stream is answered. */
static bool in_prefix_ok(struct h2_stream *s, const uint8_t *prefix)
{
	if (prefix[0] == 1 && s->encoded)
		stream_abort(s, GRPC_UNIMPLEMENTED, "compressed messages are not supported");
	else if (prefix[0] != 0)
		stream_abort(s, GRPC_INTERNAL, "a compressed message without grpc-encoding");
	else if (grpc_wire_get_length(prefix) > GRPC_MESSAGE_MAX_BYTES)
		stream_abort(s, GRPC_RESOURCE_EXHAUSTED, "the request is larger than 4 MiB");
	else
		return true;
	return false;
}

/* Decodes; when that fails the stream is answered. */
static bool in_decode(struct h2_stream *s, const uint8_t *data, size_t len)
{
	const char *message;
	enum grpc_status status = grpc_call_decode(&s->call, data, len, &message);
	if (status != GRPC_OK)
		stream_abort(s, status, message);
	return status == GRPC_OK;
}

static void stream_run(struct h2_stream *s)
{
	if (s->state == H2_STREAM_BODY)
		h2_stream_to(s, H2_STREAM_RUNNING);
	grpc_call_run(&s->call);
}

/* True while a streaming method takes messages. */
static bool in_runnable(const struct h2_stream *s)
{
	return s->state != H2_STREAM_ANSWERED && !s->call.waiting;
}

/* Client streaming: runs the messages that are complete while the method takes them, then the end
 * of the stream. */
static void run_input(struct h2_stream *s)
{
	while (in_runnable(s) && s->in.len - s->in_at >= GRPC_PREFIX_BYTES) {
		const uint8_t *prefix = s->in.data + s->in_at;
		if (!in_prefix_ok(s, prefix))
			return;
		size_t len = grpc_wire_get_length(prefix);
		if (s->in.len - s->in_at - GRPC_PREFIX_BYTES < len)
			break;
		if (!in_decode(s, prefix + GRPC_PREFIX_BYTES, len))
			return;
		s->in_at += GRPC_PREFIX_BYTES + len;
		list_remove(&s->half_open);
		stream_run(s);
	}
	if (s->state == H2_STREAM_ANSWERED)
		return;
	if (s->in_at > 0) {
		buf_consume(&s->in, s->in_at);
		s->conn->partial_bytes -= s->in_at;
		s->in_at = 0;
	}
	if (s->in.len == 0)
		h2_stream_free_input(s); /* the stream may be silent for long */
	if (s->call.waiting)
		return;
	if (s->in_ended) {
		if (s->in.len > 0)
			stream_abort(s, GRPC_INTERNAL, "the last message is incomplete");
		else
			stream_run(s);
	} else if (s->in.len > 0 && list_empty(&s->half_open)) {
		s->half_open_ns = ring_now_ns(s->conn->config.ring);
		list_push(&s->conn->half_open, &s->half_open);
	}
}

/* NULL, or why there is no room for more of the request. */
static const char *in_append(struct h2_stream *s, const uint8_t *data, size_t len)
{
	struct budget *memory = s->conn->config.registry->memory;
	size_t cap = s->in.cap;
	if (!budget_has_share(memory, len))
		return "too much of requests and answers, of all clients, is under way";
	if (buf_append_secret(&s->in, data, len) < 0)
		return "out of memory";
	budget_add(memory, s->in.cap - cap);
	s->conn->partial_bytes += len;
	return NULL;
}

/* True when this chunk is the whole of a unary request, which needs no copy. */
static bool in_is_whole(const struct h2_stream *s, const uint8_t *data, size_t len)
{
	return s->in.len == 0 && !s->call.taken && len >= GRPC_PREFIX_BYTES && data[0] == 0 &&
	       grpc_wire_get_length(data) == len - GRPC_PREFIX_BYTES &&
	       len - GRPC_PREFIX_BYTES <= GRPC_MESSAGE_MAX_BYTES;
}

void h2_stream_on_data(struct h2_stream *s, bool last_frame, const uint8_t *data, size_t len)
{
	struct h2_conn *conn = s->conn;

	s->received_bytes += len;
	h2_conn_check(conn, nghttp2_session_consume_connection(conn->session, len));
	if (h2_stream_has(s, GRPC_STREAM_IN) && s->call.waiting)
		s->unconsumed += len; /* the client waits, too */
	else
		h2_stream_consume(s, len);
	if (s->state == H2_STREAM_ANSWERED || s->state == H2_STREAM_HEADERS)
		return;
	if (s->content_length >= 0 && s->received_bytes > (uint64_t)s->content_length) {
		stream_reset(s);
		return;
	}
	if (s->state == H2_STREAM_REFUSED)
		return;
	if (!h2_stream_has(s, GRPC_STREAM_IN) && last_frame && in_is_whole(s, data, len)) {
		in_decode(s, data + GRPC_PREFIX_BYTES, len - GRPC_PREFIX_BYTES);
		return;
	}
	if (s->call.taken) {
		stream_abort(s, GRPC_INTERNAL, "more than one message in a unary request");
		return;
	}
	if (conn->partial_bytes + len > PARTIAL_MAX_BYTES) {
		stream_abort(s, GRPC_RESOURCE_EXHAUSTED, "too much of incomplete requests");
		return;
	}
	const char *why = in_append(s, data, len);
	if (why != NULL) {
		stream_abort(s, GRPC_RESOURCE_EXHAUSTED, why);
		return;
	}
	if (h2_stream_has(s, GRPC_STREAM_IN)) {
		run_input(s);
		return;
	}
	if (s->in.len < GRPC_PREFIX_BYTES || !in_prefix_ok(s, s->in.data))
		return;
	if (s->in.len - GRPC_PREFIX_BYTES > grpc_wire_get_length(s->in.data))
		stream_abort(s, GRPC_INTERNAL, "more than one message in a unary request");
}

void h2_stream_on_input_end(struct h2_stream *s)
{
	s->in_ended = true;
	list_remove(&s->half_open);
	if (s->state == H2_STREAM_ANSWERED)
		return;
	if (s->content_length >= 0 && s->received_bytes != (uint64_t)s->content_length) {
		stream_reset(s);
		return;
	}
	if (s->state == H2_STREAM_REFUSED) {
		h2_output_answer_http(s);
		return;
	}
	if (h2_stream_has(s, GRPC_STREAM_IN)) {
		run_input(s);
		return;
	}
	if (!s->call.taken) {
		if (s->in.len == 0) {
			stream_abort(s, GRPC_INTERNAL, "a unary request without a message");
			return;
		}
		if (s->in.len < GRPC_PREFIX_BYTES ||
			s->in.len - GRPC_PREFIX_BYTES < grpc_wire_get_length(s->in.data)) {
			stream_abort(s, GRPC_INTERNAL, "the message is incomplete");
			return;
		}
		if (!in_decode(s, s->in.data + GRPC_PREFIX_BYTES, s->in.len - GRPC_PREFIX_BYTES))
			return;
	}
	h2_stream_free_input(s);
	if (!h2_turn_run(s))
		stream_abort(s, GRPC_RESOURCE_EXHAUSTED,
			"too much of this connection's requests waits for its turn: read answers first");
}

/* ---- room again ---- */

/* After a pause: opens the window again and runs what came in meanwhile. */
static void resume_input(struct h2_stream *s)
{
	if (!h2_stream_has(s, GRPC_STREAM_IN) || !in_runnable(s))
		return;
	size_t kept_back = s->unconsumed;
	s->unconsumed = 0;
	h2_stream_consume(s, kept_back);
	run_input(s);
}

bool h2_stream_resume_paused(struct h2_conn *conn)
{
	struct list waiting, *l;
	bool any = false;

	list_init(&waiting);
	list_splice(&waiting, &conn->paused);
	while ((l = list_pop(&waiting)) != NULL) {
		struct h2_stream *s = container_of(l, struct h2_stream, paused);
		if (!h2_output_has_much_room(s)) {
			list_push(&conn->paused, l);
			continue;
		}
		any = true;
		grpc_call_resume(&s->call);
		resume_input(s);
	}
	return any;
}
