/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The request's way: messages are collected over DATA frames, or decoded in place when one frame
 * holds all of a unary request. A unary method runs when the client has ended its side; a method
 * with GRPC_STREAM_IN runs for each message, and while it waits for room the stream's window is
 * not opened further.
 *
 * What is malformed, compressed, too large, too much in sum, or does not decode is answered here.
 */
#include "rpc/h2_private.h"

#include "rpc/wire.h"

#include <stdlib.h>

void h2_stream_drop_input(struct h2_stream *s)
{
	list_remove(&s->half_open);
	s->conn->partial_bytes -= s->in.len;
	buf_free(&s->in);
	s->in_at = 0;
	s->call.request = NULL;
	if (s->unconsumed > 0)
		nghttp2_session_consume_stream(s->conn->session, s->id, s->unconsumed);
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

static void in_consume(struct h2_stream *s, size_t len)
{
	if (len > 0)
		nghttp2_session_consume_stream(s->conn->session, s->id, len);
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

	nghttp2_session_consume_connection(conn->session, len);
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
