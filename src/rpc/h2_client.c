/* SPDX-License-Identifier: Apache-2.0 */
/*
 * HTTP/2 as a client: an nghttp2 session, the streams of its calls, and one timer for what has to
 * be heard.
 *
 * The happy path of a call: HEADERS and DATA go out as windows allow, the answer's headers and
 * messages come in (client_call.c), its trailers end it. A stream is forgotten when its answer has
 * ended, whether all of the request was sent or not.
 *
 * A stream ends badly by RST_STREAM, by GOAWAY if the peer has not seen it, or with the connection:
 * its close, a protocol error of the peer (nghttp2 says GOAWAY then), memory, a flood of frames
 * that want answers, or silence: with calls under way and nothing heard for CHANNEL_PING_MS a ping
 * is sent, and without any answer for CHANNEL_PING_ANSWER_MS more it is over.
 */
#include "rpc/h2_client.h"

#include "base/secret.h"
#include "rpc/client_answer.h"
#include "rpc/h2_mem.h"
#include "rpc/h2_request.h"
#include "rpc/h2_said.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	STREAM_WINDOW_BYTES = 1 << 20, /* what a peer may send ahead on a stream */
	CONN_WINDOW_BYTES = 4 << 20,   /* and on all streams of a connection */
	STREAMS_MAX = 1000,            /* whatever the peer allows */
	FRAMES_MAX = 8192,             /* that wait to be sent, beside DATA */
};

struct h2_client {
	struct session base;
	struct h2_client_config config;
	nghttp2_session *session;
	struct h2_mem mem;
	enum h2_client_state state;
	int error;         /* OVER: -errno */
	bool busy;         /* inside feed(), output() or free() */
	struct list calls; /* channel_call.link */
	unsigned count;
	struct ring_timer timer;
	uint64_t heard_ns;  /* when something came in, or the first call started */
	uint64_t pinged_ns; /* 0: no ping is under way */
	uint64_t idle_ns;   /* since when there is no call */
	char why[160];
};

static struct h2_client *client_of(const struct session *session)
{
	return container_of((struct session *)session, struct h2_client, base);
}

static void wake(struct h2_client *c)
{
	if (!c->busy && c->config.on_wake != NULL)
		c->config.on_wake(c->config.arg);
}

static void set_why(struct h2_client *c, const char *why)
{
	if (c->why[0] == '\0')
		snprintf(c->why, sizeof(c->why), "%s", why);
}

static void leave(struct h2_client *c, const char *why)
{
	if (c->state >= H2_CLIENT_LEAVING)
		return;
	set_why(c, why);
	c->state = H2_CLIENT_LEAVING;
	c->config.on_leave(c->config.owner);
}

static void give_up(struct h2_client *c, int error, const char *why)
{
	if (c->state == H2_CLIENT_OVER)
		return;
	set_why(c, why);
	c->state = H2_CLIENT_OVER;
	c->error = error;
	c->config.on_leave(c->config.owner);
}

/* What a call of nghttp2 returned that can only fail for want of memory. */
static void check(struct h2_client *c, int result)
{
	if (result == NGHTTP2_ERR_NOMEM)
		give_up(c, -ENOMEM, "out of memory");
	else if (result < 0)
		give_up(c, -EPROTO, nghttp2_strerror(result));
}

/* ---- time ---- */

static uint64_t ms_ns(uint64_t ms)
{
	return ms * 1000000;
}

/* When it has to be looked at; UINT64_MAX: only when something happens. */
static uint64_t next_due(const struct h2_client *c)
{
	if (c->state == H2_CLIENT_OVER)
		return UINT64_MAX;
	if (c->pinged_ns != 0)
		return c->pinged_ns + ms_ns(CHANNEL_PING_ANSWER_MS);
	if (c->count > 0)
		return c->heard_ns + ms_ns(CHANNEL_PING_MS);
	return c->state == H2_CLIENT_UP ? c->idle_ns + ms_ns(CHANNEL_IDLE_MS) : UINT64_MAX;
}

/* It is set lazily: a busy connection does not touch it. */
static void timer_update(struct h2_client *c)
{
	uint64_t due = next_due(c), now = ring_now_ns(c->config.ring);
	if (due == UINT64_MAX || (ring_timer_armed(&c->timer) && c->timer.due_ns <= due))
		return;
	ring_timer_arm(c->config.ring, &c->timer, due <= now ? 0 : (due - now + 999999) / 1000000);
}

/* No call for long: GOAWAY, and the end. */
static void client_drain(struct session *session)
{
	struct h2_client *c = client_of(session);
	if (c->state >= H2_CLIENT_LEAVING)
		return;
	leave(c, "");
	check(c, nghttp2_session_terminate_session(c->session, NGHTTP2_NO_ERROR));
}

static void on_timer(struct ring_timer *timer)
{
	struct h2_client *c = container_of(timer, struct h2_client, timer);
	if (ring_now_ns(c->config.ring) < next_due(c)) {
		timer_update(c);
		return;
	}
	if (c->pinged_ns != 0) {
		give_up(c, -ETIMEDOUT, "nothing is heard from the peer");
	} else if (c->count > 0) {
		c->pinged_ns = ring_now_ns(c->config.ring);
		check(c, nghttp2_submit_ping(c->session, NGHTTP2_FLAG_NONE, NULL));
	} else {
		client_drain(&c->base);
	}
	timer_update(c);
	wake(c);
}

static void heard(struct h2_client *c)
{
	c->heard_ns = ring_now_ns(c->config.ring);
	c->pinged_ns = 0;
}

/* ---- streams ---- */

/* A stream whose HEADERS were not sent is not known to nghttp2. */
static struct channel_call *call_at(struct h2_client *c, int32_t id)
{
	if (nghttp2_session_find_stream(c->session, id) != NULL)
		return nghttp2_session_get_stream_user_data(c->session, id);
	list_for_each (node, &c->calls) {
		struct channel_call *call = container_of(node, struct channel_call, link);
		if (call->id == id)
			return call;
	}
	return NULL;
}

static void forget(struct h2_client *c, struct channel_call *call)
{
	nghttp2_session_set_stream_user_data(c->session, call->id, NULL);
	list_remove(&call->link);
	if (--c->count == 0)
		c->idle_ns = ring_now_ns(c->config.ring);
}

static void reset(struct h2_client *c, int32_t id)
{
	check(c, nghttp2_submit_rst_stream(c->session, NGHTTP2_FLAG_NONE, id, NGHTTP2_CANCEL));
}

static void room(struct h2_client *c)
{
	if (c->state == H2_CLIENT_UP)
		c->config.on_room(c->config.owner);
}

static void carrier_drop(struct channel_call *call)
{
	struct h2_client *c = call->carrier_at;
	forget(c, call);
	reset(c, call->id);
	timer_update(c);
	wake(c);
	room(c);
}

static void carrier_resume(struct channel_call *call)
{
	struct h2_client *c = call->carrier_at;
	if (!call->deferred)
		return;
	call->deferred = false;
	int res = nghttp2_session_resume_data(c->session, call->id);
	if (res != NGHTTP2_ERR_INVALID_ARGUMENT)
		check(c, res);
	wake(c);
}

static void carrier_consume(struct channel_call *call, size_t len)
{
	struct h2_client *c = call->carrier_at;
	check(c, nghttp2_session_consume_stream(c->session, call->id, len));
	wake(c);
}

static const struct client_carrier carrier = {
	.resume = carrier_resume, .consume = carrier_consume, .drop = carrier_drop};

static ssize_t read_request(nghttp2_session *session, int32_t id, uint8_t *data, size_t length,
	uint32_t *flags, nghttp2_data_source *source, void *arg)
{
	(void)source;
	(void)arg;
	struct channel_call *call = nghttp2_session_get_stream_user_data(session, id);
	if (call == NULL)
		return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE; /* it is reset already */
	bool end;
	size_t n = client_call_pull(call, data, length, &end);
	if (end)
		*flags |= NGHTTP2_DATA_FLAG_EOF;
	if (n > 0 || end)
		return (ssize_t)n;
	call->deferred = true;
	return NGHTTP2_ERR_DEFERRED;
}

bool h2_client_start(struct session *session, struct channel_call *call)
{
	struct h2_client *c = client_of(session);
	uint32_t allowed = nghttp2_session_get_remote_settings(
		c->session, NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS);
	if (c->state != H2_CLIENT_UP || c->count >= allowed || c->count >= STREAMS_MAX)
		return false;
	nghttp2_data_provider provider = {.read_callback = read_request};
	int32_t id = h2_request_submit(c->session, &c->config, call, &provider);
	if (id == NGHTTP2_ERR_STREAM_ID_NOT_AVAILABLE) {
		leave(c, "its streams are used up");
		return false;
	}
	if (id < 0) {
		check(c, id);
		wake(c);
		return false;
	}
	client_call_open(call, &carrier, c, id);
	list_push(&c->calls, &call->link);
	if (c->count++ == 0)
		c->heard_ns = ring_now_ns(c->config.ring);
	timer_update(c);
	wake(c);
	return true;
}

/* The answer is whole: what is left of the request is not wanted. */
static void stream_answered(struct h2_client *c, struct channel_call *call)
{
	int32_t id = call->id;
	forget(c, call);
	if (nghttp2_session_get_stream_local_close(c->session, id) == 0)
		reset(c, id);
	client_answer_on_close(call, true, GRPC_OK, "");
	room(c);
}

/* ---- nghttp2's callbacks ---- */

static int on_stream_close(nghttp2_session *session, int32_t id, uint32_t code, void *arg)
{
	(void)session;
	struct h2_client *c = arg;
	struct channel_call *call = call_at(c, id);
	char text[128];
	if (call == NULL)
		return 0;
	forget(c, call);
	/* Neither was looked at by the peer: it has said so, or the stream was never sent. */
	if (code == NGHTTP2_REFUSED_STREAM || !call->sent) {
		call->sent = false;
		snprintf(text, sizeof(text), "the peer has not taken the call");
		client_answer_on_close(call, false, GRPC_UNAVAILABLE, text);
	} else {
		snprintf(text, sizeof(text), "the peer has reset the call (%s)",
			nghttp2_http2_strerror(code));
		client_answer_on_close(call, false, h2_status_of_reset(code), text);
	}
	room(c);
	return 0;
}

static int on_header(nghttp2_session *session, const nghttp2_frame *frame, const uint8_t *name,
	size_t name_len, const uint8_t *value, size_t value_len, uint8_t flags, void *arg)
{
	(void)flags;
	(void)arg;
	struct channel_call *call =
		nghttp2_session_get_stream_user_data(session, frame->hd.stream_id);
	if (call != NULL)
		client_answer_on_header(call, name, name_len, value, value_len);
	return 0;
}

static int on_data_chunk(nghttp2_session *session, uint8_t flags, int32_t id, const uint8_t *data,
	size_t len, void *arg)
{
	(void)flags;
	struct h2_client *c = arg;
	struct channel_call *call = nghttp2_session_get_stream_user_data(session, id);
	check(c, nghttp2_session_consume_connection(session, len));
	if (call != NULL)
		client_answer_on_data(call, data, len);
	return 0;
}

static void on_goaway(struct h2_client *c, const nghttp2_goaway *frame)
{
	char why[sizeof(c->why)] = "the peer has closed the connection";
	if (frame->error_code != NGHTTP2_NO_ERROR)
		h2_goaway_print(frame, "the peer has given it up", why, sizeof(why));
	leave(c, why);
}

/* nghttp2 says so when the peer does not keep to HTTP/2. */
static void on_goaway_sent(struct h2_client *c, const nghttp2_goaway *frame)
{
	char why[sizeof(c->why)];
	if (frame->error_code == NGHTTP2_NO_ERROR)
		return;
	h2_goaway_print(frame, "the peer has broken HTTP/2", why, sizeof(why));
	leave(c, why);
}

static int on_frame_recv(nghttp2_session *session, const nghttp2_frame *frame, void *arg)
{
	struct h2_client *c = arg;
	struct channel_call *call = NULL;
	switch (frame->hd.type) {
	case NGHTTP2_HEADERS:
	case NGHTTP2_DATA:
		call = nghttp2_session_get_stream_user_data(session, frame->hd.stream_id);
		break;
	case NGHTTP2_SETTINGS:
		if (c->state == H2_CLIENT_GREETING && (frame->hd.flags & NGHTTP2_FLAG_ACK) == 0) {
			c->state = H2_CLIENT_UP;
			c->idle_ns = ring_now_ns(c->config.ring);
		}
		room(c);
		return 0;
	case NGHTTP2_GOAWAY:
		on_goaway(c, &frame->goaway);
		return 0;
	default:
		return 0;
	}
	if (call == NULL)
		return 0;
	if (call->header_bytes > CLIENT_HEADERS_MAX_BYTES)
		client_call_end(call, GRPC_RESOURCE_EXHAUSTED,
			"the header list of the answer is larger than 16 KiB");
	else if ((frame->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0)
		stream_answered(c, call);
	return 0;
}

static int on_frame_send(nghttp2_session *session, const nghttp2_frame *frame, void *arg)
{
	struct channel_call *call = NULL;
	if (frame->hd.type == NGHTTP2_GOAWAY)
		on_goaway_sent(arg, &frame->goaway);
	if (frame->hd.type == NGHTTP2_HEADERS)
		call = nghttp2_session_get_stream_user_data(session, frame->hd.stream_id);
	if (call != NULL)
		call->sent = true;
	return 0;
}

/* ---- the session ---- */

static int client_feed(struct session *session, const uint8_t *data, size_t len)
{
	struct h2_client *c = client_of(session);
	if (c->state == H2_CLIENT_OVER)
		return c->error;
	assert(!c->busy);
	c->busy = true;
	heard(c);
	ssize_t n = nghttp2_session_mem_recv(c->session, data, len);
	if (n < 0)
		check(c, (int)n);
	else if (nghttp2_session_get_outbound_queue_size(c->session) > FRAMES_MAX)
		give_up(c, -EPROTO, "it asks for more answers than it reads");
	c->busy = false;
	timer_update(c);
	return c->error;
}

static bool wants_write(const struct h2_client *c)
{
	return c->state < H2_CLIENT_OVER && nghttp2_session_want_write(c->session) != 0;
}

static int client_output(struct session *session, struct buf *out, size_t limit)
{
	struct h2_client *c = client_of(session);
	assert(!c->busy);
	c->busy = true;
	while (out->len < limit && wants_write(c)) {
		const uint8_t *data;
		ssize_t n = nghttp2_session_mem_send(c->session, &data);
		if (n < 0)
			check(c, (int)n);
		else if (buf_append_secret(out, data, (size_t)n) < 0)
			give_up(c, -ENOMEM, "out of memory");
		/* A request may have a secret, and the frame's buffer keeps it until the next. */
		if (n > 0)
			secret_wipe((void *)(uintptr_t)data, (size_t)n);
		if (n <= 0)
			break;
	}
	c->busy = false;
	timer_update(c);
	return c->error;
}

static bool client_finished(const struct session *session)
{
	const struct h2_client *c = client_of(session);
	return c->state == H2_CLIENT_OVER ||
	       (nghttp2_session_want_read(c->session) == 0 && !wants_write(c));
}

static enum session_wait client_waits(const struct session *session, uint64_t *ret_since_ns)
{
	const struct h2_client *c = client_of(session);
	*ret_since_ns = c->idle_ns;
	return c->count > 0 ? SESSION_BUSY : SESSION_IDLE;
}

static void client_free(struct session *session)
{
	struct h2_client *c = client_of(session);
	c->busy = true;
	c->state = H2_CLIENT_OVER;
	char why[sizeof(c->why) + 32];
	snprintf(why, sizeof(why), "the connection is lost: %s",
		c->why[0] != '\0' ? c->why : "the peer has closed it");
	while (!list_empty(&c->calls)) {
		struct channel_call *call = container_of(c->calls.next, struct channel_call, link);
		forget(c, call);
		client_answer_on_close(call, false, GRPC_UNAVAILABLE, why);
	}
	ring_timer_cancel(c->config.ring, &c->timer);
	nghttp2_session_del(c->session);
	free(c);
}

static void client_rest(struct session *session)
{
	struct h2_client *c = client_of(session);
	if (!wants_write(c))
		h2_mem_rest(&c->mem);
}

static const struct session_ops client_ops = {.feed = client_feed,
	.output = client_output,
	.finished = client_finished,
	.waits = client_waits,
	.rest = client_rest,
	.drain = client_drain,
	.free = client_free};

/* ---- life ---- */

static int session_open(struct h2_client *c)
{
	nghttp2_session_callbacks *callbacks = NULL;
	nghttp2_option *option = NULL;
	int res = -ENOMEM;

	if (nghttp2_session_callbacks_new(&callbacks) != 0 || nghttp2_option_new(&option) != 0)
		goto out;
	nghttp2_session_callbacks_set_on_header_callback(callbacks, on_header);
	nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, on_data_chunk);
	nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, on_frame_recv);
	nghttp2_session_callbacks_set_on_frame_send_callback(callbacks, on_frame_send);
	nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, on_stream_close);
	nghttp2_option_set_no_auto_window_update(option, 1);
	h2_mem_init(&c->mem);
	if (nghttp2_session_client_new3(&c->session, callbacks, c, option, &c->mem.calls) == 0)
		res = 0;
out:
	nghttp2_option_del(option);
	nghttp2_session_callbacks_del(callbacks);
	return res;
}

static int session_greet(struct h2_client *c)
{
	const nghttp2_settings_entry settings[] = {
		{NGHTTP2_SETTINGS_ENABLE_PUSH, 0},
		{NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, STREAM_WINDOW_BYTES},
		{NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, CLIENT_HEADERS_MAX_BYTES},
	};
	if (nghttp2_submit_settings(c->session, NGHTTP2_FLAG_NONE, settings,
		    sizeof(settings) / sizeof(settings[0])) != 0)
		return -ENOMEM;
	if (nghttp2_session_set_local_window_size(
		    c->session, NGHTTP2_FLAG_NONE, 0, CONN_WINDOW_BYTES) != 0)
		return -ENOMEM;
	return 0;
}

int h2_client_new(const struct h2_client_config *config, struct session **ret)
{
	struct h2_client *c = calloc(1, sizeof(*c));
	if (c == NULL)
		return -ENOMEM;
	c->base.ops = &client_ops;
	c->config = *config;
	c->timer.fn = on_timer;
	list_init(&c->calls);
	c->heard_ns = c->idle_ns = ring_now_ns(config->ring);
	int res = session_open(c);
	if (res == 0)
		res = session_greet(c);
	if (res < 0) {
		client_free(&c->base);
		return res;
	}
	*ret = &c->base;
	return 0;
}

enum h2_client_state h2_client_state(const struct session *session)
{
	return client_of(session)->state;
}

void h2_client_end_calls(struct session *session, const char *why)
{
	struct h2_client *c = client_of(session);
	while (!list_empty(&c->calls))
		client_call_end(container_of(c->calls.next, struct channel_call, link),
			GRPC_UNAVAILABLE, why);
}

void h2_client_set_why(struct session *session, const char *why)
{
	set_why(client_of(session), why);
}

const char *h2_client_why(const struct session *session)
{
	return client_of(session)->why;
}
