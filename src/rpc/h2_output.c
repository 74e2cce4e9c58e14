/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The answer's way: messages are packed into the stream's `out`, nghttp2 draws DATA frames from it
 * as windows allow, and the status follows as trailers. An answer without messages is trailers
 * only. A streaming method is told to wait when its stream or the connection holds much, and goes
 * on when half of that is gone.
 *
 * It fails by memory: a message that does not fit ends its call, an nghttp2 call that fails breaks
 * the connection. A client that asks on all its streams for much and reads nothing would have all
 * of it kept here: above OUTPUT_MAX_BYTES only messages are taken that are small, and all
 * connections have one budget (GRPC_MEMORY_MAX_BYTES).
 */
#include "rpc/h2_output.h"

#include "rpc/h2_turn.h"
#include "rpc/registry.h"
#include "rpc/wire.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
	OUTPUT_STREAM_BYTES = 64 << 10, /* more that waits on a stream pauses a streaming method */
	OUTPUT_KEEP_BYTES = 2 << 10,    /* of a stream's buffer while nothing waits in it */
	OUTPUT_MAX_BYTES = 16 << 20,    /* of a connection: four of the largest answers */
};

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

/* The body of an HTTP error. It takes no memory: out has its length alone. */
static const char http_text[] = "This is a gRPC server: POST application/grpc.\n";

/* Room for a message of so many bytes. NULL when there is none. */
static uint8_t *out_reserve(struct h2_stream *s, size_t size)
{
	size_t cap = s->out.cap;
	uint8_t *to = buf_reserve(&s->out, size);
	if (to != NULL)
		budget_add(s->conn->config.registry->memory, s->out.cap - cap);
	return to;
}

static void out_queued(struct h2_stream *s, size_t size)
{
	s->out.len += size;
	if (s->conn->queued_bytes == 0)
		s->conn->progress_ns = ring_now_ns(s->conn->config.ring);
	s->conn->queued_bytes += size;
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
		const uint8_t *from = s->http == NULL ? s->out.data : (const uint8_t *)http_text;
		memcpy(data, from + s->out_at, n);
		s->out_at += n;
		conn->queued_bytes -= n;
		conn->progress_ns = ring_now_ns(conn->config.ring);
	}
	if (s->out_at < s->out.len)
		return (ssize_t)n;
	s->out.len = s->out_at = 0;
	if (s->state != H2_STREAM_ANSWERED) {
		if (s->out.cap > OUTPUT_KEEP_BYTES)
			h2_stream_drop_output(s);
		if (n > 0)
			return (ssize_t)n;
		s->deferred = true;
		return NGHTTP2_ERR_DEFERRED;
	}
	if (s->http != NULL) {
		*flags |= NGHTTP2_DATA_FLAG_EOF;
		return (ssize_t)n;
	}
	nghttp2_nv nv[2];
	size_t count = status_nv(s, nv);
	*flags |= NGHTTP2_DATA_FLAG_EOF | NGHTTP2_DATA_FLAG_NO_END_STREAM;
	h2_conn_check(conn, nghttp2_submit_trailer(session, id, nv, count));
	return (ssize_t)n;
}

/* Submits the response headers; the messages in `out` follow. */
static void out_start(struct h2_stream *s)
{
	static const nghttp2_nv grpc[] = {
		NV_STATIC(":status", "200"),
		NV_STATIC("content-type", "application/grpc"),
	};
	const nghttp2_nv http[] = {
		NV(":status", s->http, 3, NGHTTP2_NV_FLAG_NO_COPY_NAME),
		NV_STATIC("content-type", "text/plain"),
	};
	const nghttp2_nv *nv = s->http == NULL ? grpc : http;
	nghttp2_data_provider provider = {.source.ptr = s, .read_callback = out_read};
	s->started = true;
	h2_conn_check(s->conn, nghttp2_submit_response(s->conn->session, s->id, nv, 2, &provider));
}

static void out_resume(struct h2_stream *s)
{
	if (!s->deferred)
		return;
	s->deferred = false;
	int res = nghttp2_session_resume_data(s->conn->session, s->id);
	if (res != NGHTTP2_ERR_INVALID_ARGUMENT)
		h2_conn_check(s->conn, res);
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
	h2_conn_check(s->conn, nghttp2_submit_response(s->conn->session, s->id, nv, count, NULL));
}

void h2_output_answer(struct h2_stream *s, enum grpc_status status, const char *message)
{
	if (s->state == H2_STREAM_ANSWERED)
		return;
	h2_stream_to_answered(s);
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

void h2_output_answer_http(struct h2_stream *s)
{
	h2_stream_to_answered(s);
	out_queued(s, sizeof(http_text) - 1);
	out_start(s);
	h2_conn_wake(s->conn);
}

/* ---- the call's carrier ---- */

static int carrier_message(struct grpc_call *call, const struct grpc_payload *payload, bool last)
{
	size_t size = payload->size;
	struct h2_stream *s = (struct h2_stream *)call;
	const struct budget *memory = s->conn->config.registry->memory;
	bool large = size > OUTPUT_STREAM_BYTES;
	/* Many small ones that are not read take as much. */
	bool leaves = large || s->conn->queued_bytes > OUTPUT_STREAM_BYTES;
	h2_turn_charge(s->conn, size); /* it was made, whether it can be sent or not */
	if (large && s->conn->queued_bytes + size > OUTPUT_MAX_BYTES)
		return -ENOBUFS;
	if (leaves ? !budget_has_share(memory, size) : !budget_has(memory, size))
		return -ENOSPC;
	if (s->out_at > 0) {
		buf_consume(&s->out, s->out_at);
		s->out_at = 0;
	}
	uint8_t *to = out_reserve(s, GRPC_PREFIX_BYTES + size);
	if (to == NULL)
		return -ENOMEM;
	grpc_wire_put_prefix(to, (uint32_t)size);
	grpc_payload_put(payload, to + GRPC_PREFIX_BYTES);
	out_queued(s, GRPC_PREFIX_BYTES + size);
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
	return s->out.len - s->out_at < OUTPUT_STREAM_BYTES &&
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
	h2_output_answer((struct h2_stream *)call, status, message);
}

static void carrier_free(struct grpc_call *call)
{
	struct h2_stream *s = (struct h2_stream *)call;
	assert(s->conn == NULL);
	free(s);
}

const struct grpc_carrier h2_output_carrier = {
	.message = carrier_message,
	.writable = carrier_writable,
	.end = carrier_end,
	.free = carrier_free,
};

bool h2_output_has_much_room(const struct h2_stream *s)
{
	return s->out.len - s->out_at <= OUTPUT_STREAM_BYTES / 2 &&
	       s->conn->queued_bytes <= s->conn->config.limits->send_buffer_bytes / 2;
}
