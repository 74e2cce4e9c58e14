/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gRPC over nghttp2 and a blocking socket.
 *
 * Happy path: connect -> preface and SETTINGS with the first request -> HEADERS, DATA of messages
 * with their five-byte prefix, trailers with grpc-status -> the stream closes.
 * How it can fail: nobody listens (ERR_UNAVAILABLE, the tools then look for themselves); the server
 * speaks something else, goes away or falls silent (ERR_UNAVAILABLE, ERR_TIMEOUT); it answers with
 * a status of its own; the caller has seen enough.
 */
#include "tools/grpc_client.h"

#include "base/buf.h"
#include "base/fd.h"
#include "rpc/grpc.h"
#include "rpc/listen.h"
#include "rpc/wire.h"

#include <errno.h>
#include <nghttp2/nghttp2.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

enum {
	WINDOW_BYTES = 4 << 20, /* the server need not wait for us */
	STATUS_NONE = -1,
};

struct grpc_client {
	int fd;
	const char *endpoint;
	nghttp2_session *session;
	unsigned wait_ms; /* 0: the server is not told */
	/* the call */
	int32_t stream;
	struct buf request;
	size_t request_at;
	struct buf answer; /* what is not yet a whole message */
	struct buf out;
	int (*on_message)(void *arg, const uint8_t *data, size_t len);
	void *arg;
	int result; /* what on_message or the framing said */
	int http_status, status;
	char message[256];
	bool closed;
};

/* ---- connecting ---- */

static int connect_endpoint(const char *endpoint, int *ret_fd, struct err *err)
{
	struct endpoint e;
	struct err why = {0};
	if (listen_parse_endpoint(endpoint, &e, &why) < 0)
		return err_set(
			err, ERR_INVALID, "'%.64s' is no endpoint: %s", endpoint, why.message);
	_cleanup_fd_ int fd = socket(e.address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return err_sys(err, -errno, "%s: a socket", endpoint);
	if (connect(fd, (const struct sockaddr *)&e.address, e.len) < 0) {
		int r = -errno;
		if (r == -ENOENT || r == -ECONNREFUSED || r == -ENOTDIR)
			return err_set(err, ERR_UNAVAILABLE, "no driver listens on %s", endpoint);
		return err_sys(err, r, "connecting to %s", endpoint);
	}
	*ret_fd = fd;
	fd = -1;
	return 0;
}

/* ---- nghttp2's callbacks ---- */

static int on_header(nghttp2_session *session, const nghttp2_frame *frame, const uint8_t *name,
	size_t name_len, const uint8_t *value, size_t value_len, uint8_t flags, void *user)
{
	(void)session;
	(void)name_len; /* both end with NUL */
	(void)flags;
	struct grpc_client *c = user;
	if (frame->hd.stream_id != c->stream)
		return 0;
	if (strcmp((const char *)name, ":status") == 0)
		c->http_status = (int)strtol((const char *)value, NULL, 10);
	else if (strcmp((const char *)name, "grpc-status") == 0)
		c->status = (int)strtol((const char *)value, NULL, 10);
	else if (strcmp((const char *)name, "grpc-message") == 0)
		grpc_wire_decode_message(value, value_len, c->message, sizeof(c->message));
	return 0;
}

/* Hands over the messages that are whole. */
static int take_messages(struct grpc_client *c)
{
	size_t at = 0;
	int r = 0;
	while (r == 0 && c->answer.len - at >= GRPC_PREFIX_BYTES) {
		const uint8_t *prefix = c->answer.data + at;
		size_t len = grpc_wire_get_length(prefix);
		if (prefix[0] != 0 || len > GRPC_MESSAGE_MAX_BYTES)
			return -EPROTO;
		if (c->answer.len - at - GRPC_PREFIX_BYTES < len)
			break;
		r = c->on_message(c->arg, prefix + GRPC_PREFIX_BYTES, len);
		at += GRPC_PREFIX_BYTES + len;
	}
	buf_consume(&c->answer, at);
	return r;
}

static int on_data(nghttp2_session *session, uint8_t flags, int32_t stream, const uint8_t *data,
	size_t len, void *user)
{
	(void)session;
	(void)flags;
	struct grpc_client *c = user;
	if (stream != c->stream || c->result < 0)
		return 0;
	c->result = buf_append(&c->answer, data, len);
	if (c->result == 0)
		c->result = take_messages(c);
	return 0;
}

static int on_close(nghttp2_session *session, int32_t stream, uint32_t code, void *user)
{
	(void)session;
	(void)code;
	struct grpc_client *c = user;
	if (stream == c->stream)
		c->closed = true;
	return 0;
}

static ssize_t read_request(nghttp2_session *session, int32_t stream, uint8_t *out, size_t cap,
	uint32_t *flags, nghttp2_data_source *source, void *user)
{
	(void)session;
	(void)stream;
	(void)source;
	struct grpc_client *c = user;
	size_t n = c->request.len - c->request_at;
	if (n > cap)
		n = cap;
	memcpy(out, c->request.data + c->request_at, n);
	c->request_at += n;
	if (c->request_at == c->request.len)
		*flags |= NGHTTP2_DATA_FLAG_EOF;
	return (ssize_t)n;
}

static int open_session(struct grpc_client *c)
{
	static const nghttp2_settings_entry settings[] = {
		{NGHTTP2_SETTINGS_ENABLE_PUSH, 0},
		{NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, WINDOW_BYTES},
	};
	nghttp2_session_callbacks *callbacks;
	if (nghttp2_session_callbacks_new(&callbacks) != 0)
		return -ENOMEM;
	nghttp2_session_callbacks_set_on_header_callback(callbacks, on_header);
	nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, on_data);
	nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, on_close);
	int r = nghttp2_session_client_new(&c->session, callbacks, c);
	nghttp2_session_callbacks_del(callbacks);
	if (r != 0)
		return -ENOMEM;
	if (nghttp2_submit_settings(c->session, NGHTTP2_FLAG_NONE, settings, 2) != 0 ||
		nghttp2_session_set_local_window_size(
			c->session, NGHTTP2_FLAG_NONE, 0, WINDOW_BYTES) != 0)
		return -ENOMEM;
	return 0;
}

int grpc_client_open(struct grpc_client **ret, const char *endpoint, struct err *err)
{
	struct grpc_client *c = calloc(1, sizeof(*c));
	if (c == NULL)
		return err_set(err, ERR_NO_ROOM, "out of memory");
	c->fd = -1;
	c->endpoint = endpoint;
	int r = connect_endpoint(endpoint, &c->fd, err);
	if (r == 0) {
		r = open_session(c);
		if (r < 0)
			err_sys(err, r, "%s", endpoint);
	}
	if (r < 0) {
		grpc_client_close(c);
		return r;
	}
	*ret = c;
	return 0;
}

void grpc_client_wait(struct grpc_client *c, unsigned ms)
{
	c->wait_ms = ms;
}

void grpc_client_close(struct grpc_client *c)
{
	if (c == NULL)
		return;
	nghttp2_session_del(c->session);
	buf_free(&c->request);
	buf_free(&c->answer);
	buf_free(&c->out);
	fd_close(&c->fd);
	free(c);
}

/* ---- a call ---- */

static int submit(struct grpc_client *c, const char *path, const ProtobufCMessage *request)
{
#define HEADER(n, v)                                                                               \
	{                                                                                          \
		.name = (uint8_t *)(n), .namelen = strlen(n), .value = (uint8_t *)(v),             \
		.valuelen = strlen(v), .flags = NGHTTP2_NV_FLAG_NONE                               \
	}
	char timeout[GRPC_TIMEOUT_MAX];
	grpc_wire_print_timeout(c->wait_ms != 0 ? (uint64_t)c->wait_ms * 1000000 : 1, timeout);
	const nghttp2_nv headers[] = {
		HEADER(":method", "POST"), HEADER(":scheme", "http"), HEADER(":path", path),
		HEADER(":authority", "localhost"), HEADER("content-type", "application/grpc"),
		HEADER("te", "trailers"), HEADER("user-agent", "ringvol/" RINGVOL_VERSION),
		HEADER("grpc-timeout", timeout), /* the last: left out if nobody waits */
	};
	const size_t count = sizeof(headers) / sizeof(headers[0]) - (c->wait_ms == 0 ? 1 : 0);
#undef HEADER
	size_t len = protobuf_c_message_get_packed_size(request);
	c->request.len = c->answer.len = c->request_at = 0;
	c->result = c->http_status = 0;
	c->status = STATUS_NONE;
	c->message[0] = '\0';
	c->closed = false;
	uint8_t *out = buf_reserve(&c->request, GRPC_PREFIX_BYTES + len);
	if (out == NULL)
		return -ENOMEM;
	grpc_wire_put_prefix(out, (uint32_t)len);
	protobuf_c_message_pack(request, out + GRPC_PREFIX_BYTES);
	c->request.len = GRPC_PREFIX_BYTES + len;
	const nghttp2_data_provider provider = {.read_callback = read_request};
	c->stream = nghttp2_submit_request(c->session, NULL, headers, count, &provider, NULL);
	return c->stream < 0 ? -ENOMEM : 0;
}

/* All frames in one piece: a server is woken by each. */
static int write_out(struct grpc_client *c)
{
	const uint8_t *data;
	ssize_t len;
	int r = 0;
	c->out.len = 0;
	while (r == 0 && (len = nghttp2_session_mem_send(c->session, &data)) != 0)
		r = len < 0 ? -EPROTO : buf_append(&c->out, data, (size_t)len);
	for (size_t at = 0; r == 0 && at < c->out.len;) {
		ssize_t n = send(c->fd, c->out.data + at, c->out.len - at, MSG_NOSIGNAL);
		if (n < 0 && errno != EINTR)
			r = -errno;
		if (n > 0)
			at += (size_t)n;
	}
	return r;
}

static int silence_ms(const struct grpc_client *c)
{
	return (int)c->wait_ms + GRPC_CLIENT_SILENCE_MS;
}

static int read_in(struct grpc_client *c)
{
	uint8_t data[16384];
	struct pollfd wait = {.fd = c->fd, .events = POLLIN};
	int r = poll(&wait, 1, silence_ms(c));
	if (r <= 0)
		return r < 0 ? -errno : -ETIMEDOUT;
	ssize_t n = recv(c->fd, data, sizeof(data), 0);
	if (n <= 0)
		return n < 0 ? -errno : -ECONNRESET;
	return nghttp2_session_mem_recv(c->session, data, (size_t)n) == n ? 0 : -EPROTO;
}

static int fail_status(const struct grpc_client *c, struct err *err)
{
	const char *words = c->message[0] != '\0' ? c->message : "no message";
	switch (c->status) {
	case STATUS_NONE:
		return err_set(err, ERR_UNAVAILABLE,
			"%s: the server ended the call without a status (HTTP %d)", c->endpoint,
			c->http_status);
	case GRPC_UNIMPLEMENTED:
		return err_set(err, ERR_UNIMPLEMENTED,
			"%s: the driver there does not have this call: it is older than this tool",
			c->endpoint);
	case GRPC_INVALID_ARGUMENT:
		return err_set(err, ERR_INVALID, "%s: %s", c->endpoint, words);
	case GRPC_NOT_FOUND:
		return err_set(err, ERR_NOT_FOUND, "%s: %s", c->endpoint, words);
	case GRPC_FAILED_PRECONDITION:
		return err_set(err, ERR_PRECONDITION, "%s: %s", c->endpoint, words);
	case GRPC_ABORTED:
		return err_set(err, ERR_PENDING, "%s: %s", c->endpoint, words);
	case GRPC_DEADLINE_EXCEEDED:
		return err_set(err, ERR_TIMEOUT, "%s: %s", c->endpoint, words);
	case GRPC_UNAVAILABLE:
		return err_set(err, ERR_UNAVAILABLE, "%s: %s", c->endpoint, words);
	}
	return err_set(err, ERR_INTERNAL, "%s: the driver answers: %s (%d)", c->endpoint, words,
		c->status);
}

static int fail_transport(const struct grpc_client *c, int r, struct err *err)
{
	if (r == -ETIMEDOUT)
		return err_set(err, ERR_TIMEOUT, "%s: the driver has said nothing for %d s",
			c->endpoint, silence_ms(c) / 1000);
	if (r == -EPROTO)
		return err_set(err, ERR_UNAVAILABLE, "%s: what answers there does not speak gRPC",
			c->endpoint);
	if (r == -ECONNRESET || r == -EPIPE)
		return err_set(err, ERR_UNAVAILABLE, "%s: the driver has closed the connection",
			c->endpoint);
	return err_sys(err, r, "%s", c->endpoint);
}

int grpc_client_call(struct grpc_client *c, const char *path, const ProtobufCMessage *request,
	int (*on_message)(void *arg, const uint8_t *data, size_t len), void *arg, struct err *err)
{
	c->on_message = on_message;
	c->arg = arg;
	int r = submit(c, path, request);
	while (r == 0 && !c->closed) {
		r = write_out(c);
		if (r == 0)
			r = read_in(c);
		if (r == 0)
			r = c->result;
	}
	/* A stream reset before its end has no status. */
	if (r == 0)
		return c->status == GRPC_OK ? 0 : fail_status(c, err);
	return fail_transport(c, r, err);
}
