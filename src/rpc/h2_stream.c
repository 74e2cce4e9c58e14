/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stream's life, and the request's way. The happy path of a unary call: headers are looked over,
 * the message is collected over DATA frames (or decoded in place when one frame holds all of it),
 * the method runs when the client has ended its side, its answer is sent in h2_output.c, and
 * nghttp2 closes the stream. A method with GRPC_STREAM_IN runs for each message, and while it waits
 * for room the stream's window is not opened further.
 *
 *   HEADERS -> BODY -> RUNNING -> ANSWERED, and from each to ANSWERED when it is refused.
 *
 * A refusal is an answer without messages (trailers-only): what is malformed, compressed, too
 * large, too much in sum, or does not decode. RST_STREAM, a deadline or a lost connection end the
 * stream at any time; a call whose method runs stays until the method ends it.
 */
#include "rpc/h2_private.h"

#include "rpc/wire.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const bool transitions[4][4] = {
	[H2_STREAM_HEADERS] = {[H2_STREAM_BODY] = true, [H2_STREAM_ANSWERED] = true},
	[H2_STREAM_BODY] = {[H2_STREAM_RUNNING] = true, [H2_STREAM_ANSWERED] = true},
	[H2_STREAM_RUNNING] = {[H2_STREAM_ANSWERED] = true},
};

void h2_stream_to(struct h2_stream *s, enum h2_stream_state state)
{
	assert(transitions[s->state][state]);
	s->state = state;
}

bool h2_stream_is_in(const struct h2_stream *s)
{
	return s->call.entry != NULL && (s->call.entry->flags & GRPC_STREAM_IN) != 0;
}

void h2_stream_abort(struct h2_stream *s, enum grpc_status status, const char *message)
{
	if (s->call.running) {
		h2_stream_answer(s, status, message);
		grpc_call_lose(&s->call, status);
	} else if (s->state != H2_STREAM_ANSWERED) {
		grpc_call_refuse(&s->call, status, message);
	}
}

/* ---- headers ---- */

enum h2_seen {
	SEEN_METHOD = 1 << 0,
	SEEN_PATH = 1 << 1,
	SEEN_SCHEME = 1 << 2,
	SEEN_AUTHORITY = 1 << 3,
	SEEN_REGULAR = 1 << 4,
	SEEN_TOO_LARGE = 1 << 5,
};

static void on_deadline(struct ring_timer *timer);

int h2_stream_open(struct h2_conn *conn, int32_t id)
{
	struct h2_stream *s = calloc(1, sizeof(*s));
	if (s == NULL)
		return -ENOMEM;
	grpc_call_init(&s->call, &h2_stream_carrier, conn->config.registry);
	s->conn = conn;
	s->id = id;
	s->timeout_ns = UINT64_MAX;
	s->deadline.fn = on_deadline;
	s->half_open_ns = ring_now_ns(conn->config.ring);
	list_init(&s->paused);
	list_push(&conn->streams, &s->link);
	list_push(&conn->half_open, &s->half_open);
	conn->stream_count++;
	nghttp2_session_set_stream_user_data(conn->session, id, s);
	return 0;
}

static bool is(const uint8_t *name, const char *want, size_t len)
{
	return memcmp(name, want, len) == 0;
}

/* A pseudo-header comes once, before all others, and is one of four. */
static int on_pseudo_header(struct h2_stream *s, const uint8_t *name, size_t name_len,
	const uint8_t *value, size_t value_len)
{
	unsigned bit = 0;
	if (name_len == 5 && is(name, ":path", 5)) {
		bit = SEEN_PATH;
		s->call.entry = grpc_registry_find(
			s->conn->config.registry, (const char *)value, value_len);
	} else if (name_len == 7 && is(name, ":method", 7)) {
		bit = SEEN_METHOD;
		s->post = value_len == 4 && is(value, "POST", 4);
	} else if (name_len == 7 && is(name, ":scheme", 7)) {
		bit = SEEN_SCHEME;
	} else if (name_len == 10 && is(name, ":authority", 10)) {
		bit = SEEN_AUTHORITY;
	}
	if (bit == 0 || (s->seen & (bit | SEEN_REGULAR)) != 0)
		return -EPROTO;
	s->seen |= bit;
	return 0;
}

int h2_stream_on_header(struct h2_stream *s, const uint8_t *name, size_t name_len,
	const uint8_t *value, size_t value_len)
{
	s->header_bytes += name_len + value_len + 32; /* as SETTINGS_MAX_HEADER_LIST_SIZE counts */
	if (s->header_bytes > s->conn->config.limits->header_bytes) {
		s->seen |= SEEN_TOO_LARGE;
		return 0;
	}
	if (name_len == 0)
		return -EPROTO;
	if (name[0] == ':')
		return on_pseudo_header(s, name, name_len, value, value_len);
	s->seen |= SEEN_REGULAR;
	for (size_t i = 0; i < name_len; i++) {
		if (name[i] <= ' ' || name[i] >= 0x7F || (name[i] >= 'A' && name[i] <= 'Z'))
			return -EPROTO;
	}
	switch (name_len) {
	case 2:
		if (is(name, "te", 2) && !(value_len == 8 && is(value, "trailers", 8)))
			return -EPROTO;
		break;
	case 10:
		if (is(name, "connection", 10) || is(name, "keep-alive", 10))
			return -EPROTO;
		break;
	case 12:
		if (is(name, "content-type", 12))
			s->content_type_ok = grpc_wire_content_type_ok(value, value_len);
		else if (is(name, "grpc-timeout", 12))
			s->timeout_bad =
				grpc_wire_parse_timeout(value, value_len, &s->timeout_ns) < 0;
		break;
	case 13:
		if (is(name, "grpc-encoding", 13))
			s->encoded = !(value_len == 8 && is(value, "identity", 8));
		break;
	case 17:
		if (is(name, "transfer-encoding", 17))
			return -EPROTO;
		break;
	default:
		break;
	}
	return 0;
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
	const unsigned required = SEEN_METHOD | SEEN_PATH | SEEN_SCHEME;

	if ((s->seen & SEEN_TOO_LARGE) != 0) {
		grpc_call_refuse(&s->call, GRPC_RESOURCE_EXHAUSTED,
			"the request's header list is too large");
	} else if ((s->seen & required) != required) {
		int res = nghttp2_submit_rst_stream(
			s->conn->session, NGHTTP2_FLAG_NONE, s->id, NGHTTP2_PROTOCOL_ERROR);
		if (res != 0)
			h2_conn_broke(s->conn, res);
		h2_stream_to(s, H2_STREAM_ANSWERED);
		list_remove(&s->half_open);
	} else if (!s->post) {
		h2_stream_answer_http(s, "405");
	} else if (!s->content_type_ok) {
		h2_stream_answer_http(s, "415");
	} else if (s->call.entry == NULL) {
		grpc_call_refuse(&s->call, GRPC_UNIMPLEMENTED, "unknown service or method");
	} else if (s->timeout_bad) {
		grpc_call_refuse(&s->call, GRPC_INTERNAL, "malformed grpc-timeout");
	} else if (s->timeout_ns == 0) {
		grpc_call_refuse(&s->call, GRPC_DEADLINE_EXCEEDED, "the deadline has passed");
	} else if (s->conn->draining && (s->call.entry->flags & GRPC_ENDLESS) != 0) {
		grpc_call_refuse(&s->call, GRPC_UNAVAILABLE, "the server shuts down");
	} else {
		h2_stream_to(s, H2_STREAM_BODY);
		if (s->timeout_ns != UINT64_MAX)
			deadline_start(s);
		if (h2_stream_is_in(s))
			list_remove(&s->half_open); /* it counts while a message is incomplete */
	}
}

/* ---- how streams end ---- */

static void on_deadline(struct ring_timer *timer)
{
	h2_stream_abort(container_of(timer, struct h2_stream, deadline), GRPC_DEADLINE_EXCEEDED,
		"the deadline has passed");
}

void h2_stream_overstayed(struct h2_stream *s)
{
	h2_stream_abort(s, GRPC_DEADLINE_EXCEEDED, "the request was not complete in time");
}

void h2_stream_drain(struct h2_stream *s)
{
	if (s->call.entry != NULL && (s->call.entry->flags & GRPC_ENDLESS) != 0 &&
		s->state != H2_STREAM_HEADERS)
		h2_stream_abort(s, GRPC_UNAVAILABLE, "the server shuts down");
}

void h2_stream_closed(struct h2_stream *s)
{
	struct h2_conn *conn = s->conn;

	list_remove(&s->link);
	list_remove(&s->half_open);
	list_remove(&s->paused);
	ring_timer_cancel(conn->config.ring, &s->deadline);
	conn->partial_bytes -= s->in.len;
	conn->queued_bytes -= s->out.len - s->out_at;
	if (--conn->stream_count == 0)
		conn->idle_since_ns = ring_now_ns(conn->config.ring);
	buf_free(&s->in);
	buf_free(&s->out);
	free(s->message);
	s->message = NULL;
	s->call.request = NULL;
	s->conn = NULL;
	grpc_call_lose(&s->call, GRPC_CANCELLED);
	grpc_call_unref(&s->call);
}

/* ---- the request's messages ---- */

/* Without the memory for a WINDOW_UPDATE the client would wait for one for ever. */
static void in_consumed(struct h2_stream *s, int res)
{
	if (res != 0)
		h2_conn_broke(s->conn, res);
}

static void in_consume(struct h2_stream *s, size_t len)
{
	if (len > 0)
		in_consumed(s, nghttp2_session_consume_stream(s->conn->session, s->id, len));
}

void h2_stream_drop_input(struct h2_stream *s)
{
	list_remove(&s->half_open);
	s->conn->partial_bytes -= s->in.len;
	buf_free(&s->in);
	s->in_at = 0;
	s->call.request = NULL;
	in_consume(s, s->unconsumed);
	s->unconsumed = 0;
}

/* Looks at the prefix of a message. True when it may go on; else the stream is answered. */
static bool in_prefix_ok(struct h2_stream *s, const uint8_t *prefix)
{
	if (prefix[0] == 1 && s->encoded)
		h2_stream_abort(s, GRPC_UNIMPLEMENTED, "compressed messages are not supported");
	else if (prefix[0] != 0)
		h2_stream_abort(s, GRPC_INTERNAL, "a compressed message without grpc-encoding");
	else if (grpc_wire_get_length(prefix) > GRPC_MESSAGE_MAX_BYTES)
		h2_stream_abort(s, GRPC_RESOURCE_EXHAUSTED, "the request is larger than 4 MiB");
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
		h2_stream_abort(s, status, message);
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
	if (s->call.waiting)
		return;
	if (s->in_ended) {
		if (s->in.len > 0)
			h2_stream_abort(s, GRPC_INTERNAL, "the last message is incomplete");
		else
			stream_run(s);
	} else if (s->in.len > 0 && list_empty(&s->half_open)) {
		s->half_open_ns = ring_now_ns(s->conn->config.ring);
		list_push(&s->conn->half_open, &s->half_open);
	}
}

/* True when this chunk is the whole of a unary request, which needs no copy. */
static bool in_is_whole(const struct h2_stream *s, const uint8_t *data, size_t len)
{
	return s->in.len == 0 && s->call.request == NULL && len >= GRPC_PREFIX_BYTES &&
	       data[0] == 0 && grpc_wire_get_length(data) == len - GRPC_PREFIX_BYTES &&
	       len - GRPC_PREFIX_BYTES <= GRPC_MESSAGE_MAX_BYTES;
}

void h2_stream_on_data(struct h2_stream *s, bool last_frame, const uint8_t *data, size_t len)
{
	struct h2_conn *conn = s->conn;

	in_consumed(s, nghttp2_session_consume_connection(conn->session, len));
	if (h2_stream_is_in(s) && s->call.waiting)
		s->unconsumed += len; /* the client waits, too */
	else
		in_consume(s, len);
	if (s->state == H2_STREAM_ANSWERED || s->state == H2_STREAM_HEADERS)
		return;
	if (!h2_stream_is_in(s) && last_frame && in_is_whole(s, data, len)) {
		in_decode(s, data + GRPC_PREFIX_BYTES, len - GRPC_PREFIX_BYTES);
		return;
	}
	if (s->call.request != NULL) {
		h2_stream_abort(s, GRPC_INTERNAL, "more than one message in a unary request");
		return;
	}
	if (conn->partial_bytes + len > H2_PARTIAL_MAX_BYTES) {
		h2_stream_abort(s, GRPC_RESOURCE_EXHAUSTED, "too much of incomplete requests");
		return;
	}
	if (buf_append(&s->in, data, len) < 0) {
		h2_stream_abort(s, GRPC_RESOURCE_EXHAUSTED, "out of memory");
		return;
	}
	conn->partial_bytes += len;
	if (h2_stream_is_in(s)) {
		run_input(s);
		return;
	}
	if (s->in.len < GRPC_PREFIX_BYTES || !in_prefix_ok(s, s->in.data))
		return;
	if (s->in.len - GRPC_PREFIX_BYTES > grpc_wire_get_length(s->in.data))
		h2_stream_abort(s, GRPC_INTERNAL, "more than one message in a unary request");
}

void h2_stream_on_input_end(struct h2_stream *s)
{
	s->in_ended = true;
	list_remove(&s->half_open);
	if (s->state == H2_STREAM_ANSWERED)
		return;
	if (h2_stream_is_in(s)) {
		run_input(s);
		return;
	}
	if (s->call.request == NULL) {
		if (s->in.len == 0) {
			h2_stream_abort(s, GRPC_INTERNAL, "a unary request without a message");
			return;
		}
		if (s->in.len < GRPC_PREFIX_BYTES ||
			s->in.len - GRPC_PREFIX_BYTES < grpc_wire_get_length(s->in.data)) {
			h2_stream_abort(s, GRPC_INTERNAL, "the message is incomplete");
			return;
		}
		if (!in_decode(s, s->in.data + GRPC_PREFIX_BYTES, s->in.len - GRPC_PREFIX_BYTES))
			return;
	}
	s->conn->partial_bytes -= s->in.len;
	buf_free(&s->in);
	stream_run(s);
}

void h2_stream_resume_input(struct h2_stream *s)
{
	if (!h2_stream_is_in(s) || !in_runnable(s))
		return;
	size_t held = s->unconsumed;
	s->unconsumed = 0;
	in_consume(s, held);
	run_input(s);
}
