/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A stream: the headers and messages of a request on their way to a call, and the call's answer
 * on its way back. The happy path of a unary call: headers are looked over, the message is
 * collected over DATA frames (or decoded in place when it came in one), and when the client has
 * ended its side the method runs. Its answer is packed into `out`; nghttp2 draws it from there and
 * the status follows as trailers.
 *
 *   HEADERS -> BODY -> RUNNING -> ANSWERED, and from each to ANSWERED when it is refused.
 *
 * A refusal is an answer without messages (trailers-only). RST_STREAM, a deadline or a lost
 * connection end the stream at any time; a call whose method runs stays until the method ends it.
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

static void stream_to(struct h2_stream *s, enum h2_stream_state state)
{
	assert(transitions[s->state][state]);
	s->state = state;
}

static bool streams_in(const struct h2_stream *s)
{
	return s->call.entry != NULL && (s->call.entry->flags & GRPC_STREAM_IN) != 0;
}

/* ---- the answer ---- */

#define NV(n, v, vlen, f)                                                                          \
	{                                                                                          \
		(uint8_t *)(n), (uint8_t *)(v), sizeof(n) - 1, (vlen), (f)                         \
	}
#define NV_STATIC(n, v)                                                                            \
	NV(n, v, sizeof(v) - 1, NGHTTP2_NV_FLAG_NO_COPY_NAME | NGHTTP2_NV_FLAG_NO_COPY_VALUE)

static const char *const status_text[] = {
	"0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14", "15", "16"};

/* Puts grpc-status and grpc-message at nv and returns how many there are. */
static size_t status_nv(const struct h2_stream *s, nghttp2_nv *nv)
{
	const char *text = status_text[s->status];
	nv[0] = (nghttp2_nv)NV("grpc-status", text, strlen(text),
		NGHTTP2_NV_FLAG_NO_COPY_NAME | NGHTTP2_NV_FLAG_NO_COPY_VALUE);
	if (s->message == NULL)
		return 1;
	nv[1] = (nghttp2_nv)NV(
		"grpc-message", s->message, s->message_len, NGHTTP2_NV_FLAG_NO_COPY_NAME);
	return 2;
}

static ssize_t out_read(nghttp2_session *session, int32_t id, uint8_t *data, size_t length,
	uint32_t *flags, nghttp2_data_source *source, void *arg)
{
	struct h2_stream *s = source->ptr;
	struct h2_conn *conn = arg;
	size_t n = s->out.len - s->out_at;

	if (n > length)
		n = length;
	if (n > 0) {
		memcpy(data, s->out.data + s->out_at, n);
		s->out_at += n;
		conn->queued_bytes -= n;
		conn->progress_ns = ring_now_ns(conn->config.ring);
	}
	if (s->out_at < s->out.len)
		return (ssize_t)n;
	s->out.len = s->out_at = 0;
	if (s->state != H2_STREAM_ANSWERED) {
		if (n > 0)
			return (ssize_t)n;
		s->deferred = true;
		return NGHTTP2_ERR_DEFERRED;
	}
	nghttp2_nv nv[2];
	size_t count = status_nv(s, nv);
	*flags |= NGHTTP2_DATA_FLAG_EOF | NGHTTP2_DATA_FLAG_NO_END_STREAM;
	int res = nghttp2_submit_trailer(session, id, nv, count);
	if (res != 0)
		h2_conn_broke(conn, res);
	return (ssize_t)n;
}

/* Submits the response headers; the messages in `out` follow. */
static void out_start(struct h2_stream *s)
{
	static const nghttp2_nv nv[] = {
		NV_STATIC(":status", "200"),
		NV_STATIC("content-type", "application/grpc"),
	};
	nghttp2_data_provider provider = {.source.ptr = s, .read_callback = out_read};
	s->started = true;
	int res = nghttp2_submit_response(s->conn->session, s->id, nv, 2, &provider);
	if (res != 0)
		h2_conn_broke(s->conn, res);
}

static void out_resume(struct h2_stream *s)
{
	if (!s->deferred)
		return;
	s->deferred = false;
	int res = nghttp2_session_resume_data(s->conn->session, s->id);
	if (res != 0 && res != NGHTTP2_ERR_INVALID_ARGUMENT)
		h2_conn_broke(s->conn, res);
}

static void submit_headers(struct h2_stream *s, const nghttp2_nv *nv, size_t count)
{
	int res = nghttp2_submit_response(s->conn->session, s->id, nv, count, NULL);
	if (res != 0)
		h2_conn_broke(s->conn, res);
}

static void out_trailers_only(struct h2_stream *s)
{
	nghttp2_nv nv[5] = {
		NV_STATIC(":status", "200"),
		NV_STATIC("content-type", "application/grpc"),
	};
	size_t count = 2 + status_nv(s, nv + 2);
	if (s->status == GRPC_UNIMPLEMENTED)
		nv[count++] = (nghttp2_nv)NV_STATIC("grpc-accept-encoding", "identity");
	submit_headers(s, nv, count);
}

/* Forgets what is left of the request. */
static void in_drop(struct h2_stream *s)
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

static void stream_answer(struct h2_stream *s, enum grpc_status status, const char *message)
{
	if (s->state == H2_STREAM_ANSWERED)
		return;
	stream_to(s, H2_STREAM_ANSWERED);
	ring_timer_cancel(s->conn->config.ring, &s->deadline);
	list_remove(&s->paused);
	in_drop(s);
	s->status = status;
	if (message != NULL && message[0] != '\0') {
		char encoded[GRPC_ENCODED_MESSAGE_MAX];
		s->message_len = grpc_wire_encode_message(message, encoded);
		s->message = malloc(s->message_len + 1);
		if (s->message != NULL)
			memcpy(s->message, encoded, s->message_len);
	}
	if (s->started)
		out_resume(s);
	else if (s->out.len > 0)
		out_start(s);
	else
		out_trailers_only(s);
	h2_conn_wake(s->conn);
}

/* An HTTP error, for what is not gRPC. */
static void stream_answer_http(struct h2_stream *s, const char *code)
{
	const nghttp2_nv nv[] = {
		NV(":status", code, strlen(code), NGHTTP2_NV_FLAG_NO_COPY_NAME),
		NV_STATIC("content-length", "0"),
	};
	stream_to(s, H2_STREAM_ANSWERED);
	submit_headers(s, nv, 2);
}

static void stream_refuse(struct h2_stream *s, enum grpc_status status, const char *message)
{
	grpc_call_refuse(&s->call, status, message);
}

/* ---- the call's carrier ---- */

static int carrier_message(
	struct grpc_call *call, const ProtobufCMessage *message, size_t size, bool last)
{
	struct h2_stream *s = (struct h2_stream *)call;
	if (s->out_at > 0) {
		buf_consume(&s->out, s->out_at);
		s->out_at = 0;
	}
	uint8_t *to = buf_reserve(&s->out, GRPC_PREFIX_BYTES + size);
	if (to == NULL)
		return -ENOMEM;
	grpc_wire_put_prefix(to, (uint32_t)size);
	protobuf_c_message_pack(message, to + GRPC_PREFIX_BYTES);
	s->out.len += GRPC_PREFIX_BYTES + size;
	if (s->conn->queued_bytes == 0)
		s->conn->progress_ns = ring_now_ns(s->conn->config.ring);
	s->conn->queued_bytes += GRPC_PREFIX_BYTES + size;
	if (last)
		return 0;
	if (!s->started)
		out_start(s);
	else
		out_resume(s);
	h2_conn_wake(s->conn);
	return 0;
}

static bool out_has_room(const struct h2_stream *s)
{
	return s->out.len - s->out_at < H2_STREAM_QUEUE_BYTES &&
	       s->conn->queued_bytes < s->conn->config.limits->send_buffer_bytes;
}

static bool carrier_writable(struct grpc_call *call)
{
	struct h2_stream *s = (struct h2_stream *)call;
	if (out_has_room(s))
		return true;
	if (list_empty(&s->paused))
		list_push(&s->conn->paused, &s->paused);
	return false;
}

static void carrier_end(struct grpc_call *call, enum grpc_status status, const char *message)
{
	stream_answer((struct h2_stream *)call, status, message);
}

static void carrier_free(struct grpc_call *call)
{
	struct h2_stream *s = (struct h2_stream *)call;
	assert(s->conn == NULL);
	free(s);
}

static const struct grpc_carrier stream_carrier = {
	.message = carrier_message,
	.writable = carrier_writable,
	.end = carrier_end,
	.free = carrier_free,
};

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
	grpc_call_init(&s->call, &stream_carrier, conn->config.registry);
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

/* 0, or -EPROTO for what HTTP/2 calls malformed: the stream is reset. */
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
		stream_refuse(s, GRPC_RESOURCE_EXHAUSTED, "the request's header list is too large");
	} else if ((s->seen & required) != required) {
		int res = nghttp2_submit_rst_stream(
			s->conn->session, NGHTTP2_FLAG_NONE, s->id, NGHTTP2_PROTOCOL_ERROR);
		if (res != 0)
			h2_conn_broke(s->conn, res);
		stream_to(s, H2_STREAM_ANSWERED);
		list_remove(&s->half_open);
	} else if (!s->post) {
		stream_answer_http(s, "405");
	} else if (!s->content_type_ok) {
		stream_answer_http(s, "415");
	} else if (s->call.entry == NULL) {
		stream_refuse(s, GRPC_UNIMPLEMENTED, "unknown service or method");
	} else if (s->timeout_bad) {
		stream_refuse(s, GRPC_INTERNAL, "malformed grpc-timeout");
	} else if (s->timeout_ns == 0) {
		stream_refuse(s, GRPC_DEADLINE_EXCEEDED, "the deadline has passed");
	} else if (s->conn->draining && (s->call.entry->flags & GRPC_ENDLESS) != 0) {
		stream_refuse(s, GRPC_UNAVAILABLE, "the server shuts down");
	} else {
		stream_to(s, H2_STREAM_BODY);
		if (s->timeout_ns != UINT64_MAX)
			deadline_start(s);
		if (streams_in(s))
			list_remove(&s->half_open); /* it counts while a message is incomplete */
	}
}

/* ---- messages ---- */

/* Ends a stream that cannot go on, whether its method runs or not. */
static void stream_abort(struct h2_stream *s, enum grpc_status status, const char *message)
{
	if (s->call.running) {
		stream_answer(s, status, message);
		grpc_call_lose(&s->call, status);
	} else if (s->state != H2_STREAM_ANSWERED) {
		stream_refuse(s, status, message);
	}
}

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

static void in_consume(struct h2_stream *s, size_t len)
{
	if (len > 0)
		nghttp2_session_consume_stream(s->conn->session, s->id, len);
}

static void stream_run(struct h2_stream *s)
{
	if (s->state == H2_STREAM_BODY)
		stream_to(s, H2_STREAM_RUNNING);
	grpc_call_run(&s->call);
}

/* True while a streaming method takes messages. */
static bool in_runnable(const struct h2_stream *s)
{
	return s->state != H2_STREAM_ANSWERED && !s->call.waiting;
}

/* Client streaming: runs the messages that are complete while the method takes them, then the end
 * of the stream. */
static void in_run(struct h2_stream *s)
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
			stream_abort(s, GRPC_INTERNAL, "the last message is incomplete");
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
	if (streams_in(s) && s->call.waiting)
		s->unconsumed += len; /* the client waits, too */
	else
		in_consume(s, len);
	if (s->state == H2_STREAM_ANSWERED || s->state == H2_STREAM_HEADERS)
		return;
	if (!streams_in(s) && last_frame && in_is_whole(s, data, len)) {
		in_decode(s, data + GRPC_PREFIX_BYTES, len - GRPC_PREFIX_BYTES);
		return;
	}
	if (s->call.request != NULL) {
		stream_abort(s, GRPC_INTERNAL, "more than one message in a unary request");
		return;
	}
	if (conn->partial_bytes + len > H2_PARTIAL_MAX_BYTES) {
		stream_abort(s, GRPC_RESOURCE_EXHAUSTED, "too much of incomplete requests");
		return;
	}
	if (buf_append(&s->in, data, len) < 0) {
		stream_abort(s, GRPC_RESOURCE_EXHAUSTED, "out of memory");
		return;
	}
	conn->partial_bytes += len;
	if (streams_in(s)) {
		in_run(s);
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
	if (streams_in(s)) {
		in_run(s);
		return;
	}
	if (s->call.request == NULL) {
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
	s->conn->partial_bytes -= s->in.len;
	buf_free(&s->in);
	stream_run(s);
}

/* ---- how streams end ---- */

static void on_deadline(struct ring_timer *timer)
{
	stream_abort(container_of(timer, struct h2_stream, deadline), GRPC_DEADLINE_EXCEEDED,
		"the deadline has passed");
}

void h2_stream_overstayed(struct h2_stream *s)
{
	stream_abort(s, GRPC_DEADLINE_EXCEEDED, "the request was not complete in time");
}

void h2_stream_drain(struct h2_stream *s)
{
	if (s->call.entry != NULL && (s->call.entry->flags & GRPC_ENDLESS) != 0 &&
		s->state != H2_STREAM_HEADERS)
		stream_abort(s, GRPC_UNAVAILABLE, "the server shuts down");
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

/* ---- room again ---- */

static bool out_has_much_room(const struct h2_stream *s)
{
	return s->out.len - s->out_at <= H2_STREAM_QUEUE_BYTES / 2 &&
	       s->conn->queued_bytes <= s->conn->config.limits->send_buffer_bytes / 2;
}

bool h2_stream_resume_paused(struct h2_conn *conn)
{
	struct list waiting, *l;
	bool any = false;

	list_init(&waiting);
	list_splice(&waiting, &conn->paused);
	while ((l = list_pop(&waiting)) != NULL) {
		struct h2_stream *s = container_of(l, struct h2_stream, paused);
		if (!out_has_much_room(s)) {
			list_push(&conn->paused, l);
			continue;
		}
		any = true;
		grpc_call_resume(&s->call);
		if (!streams_in(s) || !in_runnable(s))
			continue;
		size_t held = s->unconsumed;
		s->unconsumed = 0;
		in_consume(s, held);
		in_run(s);
	}
	return any;
}
