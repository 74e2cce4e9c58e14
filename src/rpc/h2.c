/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An HTTP/2 connection: the nghttp2 session, its limits and its clock. Bytes fed in become calls
 * on streams (h2_stream.c); answers are fetched as bytes. One timer serves all of a connection's
 * deadlines; it is set lazily, so that a busy connection does not touch it.
 *
 * It ends by the peer (GOAWAY, or a protocol error, which nghttp2 answers), by a drain (GOAWAY,
 * a ping to know it was heard, final GOAWAY, last stream closed), by being given up (closing: only
 * the GOAWAY with its reason is still sent), or broken: out of memory or flooded.
 *
 * nghttp2 checks that requests are well-formed HTTP, but on unix sockets, where it would reset what
 * older clients send (h2.h): there h2_headers.c makes the same checks. Frames that cost and ask for
 * nothing are counted (h2_calm.c), calls run in turns with those of other connections (h2_turn.c).
 */
#include "rpc/h2_private.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const uint8_t drain_ping[8] = {'d', 'r', 'a', 'i', 'n'};
static const uint8_t no_debug_data[1];
static const struct session_ops base_ops;

void h2_conn_wake(struct h2_conn *conn)
{
	if (!conn->busy && conn->config.on_wake != NULL)
		conn->config.on_wake(conn->config.arg);
}

void h2_conn_broke(struct h2_conn *conn, int nghttp2_error)
{
	if (conn->broken == 0)
		conn->broken = nghttp2_error == NGHTTP2_ERR_NOMEM ? -ENOMEM : -EPROTO;
}

static uint64_t ms_ns(uint64_t ms)
{
	return ms * 1000000;
}

void h2_conn_give_up(struct h2_conn *conn, enum session_end end, uint32_t code, const char *reason)
{
	if (conn->closing)
		return;
	conn->closing = true;
	conn->base.end = end;
	int res = nghttp2_submit_goaway(conn->session, NGHTTP2_FLAG_NONE,
		nghttp2_session_get_last_proc_stream_id(conn->session), code,
		reason != NULL ? (const uint8_t *)reason : no_debug_data,
		reason != NULL ? strlen(reason) : 0);
	if (res != 0)
		h2_conn_broke(conn, res);
}

/* ---- time ---- */

/* When the connection next has to be looked at; UINT64_MAX: only when something happens. */
static uint64_t next_due(const struct h2_conn *conn)
{
	const struct server_limits *limits = conn->config.limits;
	uint64_t due = UINT64_MAX, t;

	if (conn->closing || conn->broken != 0)
		return UINT64_MAX;
	if (!conn->greeted)
		due = conn->created_ns + ms_ns(limits->half_open_ms);
	if (!list_empty(&conn->half_open)) {
		t = container_of(conn->half_open.next, struct h2_stream, half_open)->half_open_ns +
		    ms_ns(limits->half_open_ms);
		due = t < due ? t : due;
	}
	if (conn->stream_count == 0 && limits->idle_ms != 0 && !conn->draining) {
		t = conn->idle_since_ns + ms_ns(limits->idle_ms);
		due = t < due ? t : due;
	}
	if (conn->draining && !conn->drained) {
		t = conn->drain_ns + ms_ns(H2_DRAIN_PING_MS);
		due = t < due ? t : due;
	}
	if (conn->queued_bytes > 0) {
		t = conn->progress_ns + ms_ns(limits->write_stall_ms);
		due = t < due ? t : due;
	}
	return due;
}

static void timer_update(struct h2_conn *conn)
{
	uint64_t due = next_due(conn);
	if (due == UINT64_MAX || (ring_timer_armed(&conn->timer) && conn->timer.due_ns <= due))
		return;
	uint64_t now = ring_now_ns(conn->config.ring);
	ring_timer_arm(
		conn->config.ring, &conn->timer, due <= now ? 0 : (due - now + 999999) / 1000000);
}

/* After the client has heard that no more streams are taken: from here on the last one counts. */
static void drain_finish(struct h2_conn *conn)
{
	if (!conn->draining || conn->drained)
		return;
	conn->drained = true;
	int res = nghttp2_submit_goaway(conn->session, NGHTTP2_FLAG_NONE,
		nghttp2_session_get_last_proc_stream_id(conn->session), NGHTTP2_NO_ERROR,
		no_debug_data, 0);
	if (res != 0)
		h2_conn_broke(conn, res);
}

static void on_timer(struct ring_timer *timer)
{
	struct h2_conn *conn = container_of(timer, struct h2_conn, timer);
	const struct server_limits *limits = conn->config.limits;
	uint64_t now = ring_now_ns(conn->config.ring);

	if (conn->closing || conn->broken != 0)
		return;
	conn->busy = true;
	if (!conn->greeted && now >= conn->created_ns + ms_ns(limits->half_open_ms))
		h2_conn_give_up(
			conn, SESSION_END_HALF_OPEN, NGHTTP2_NO_ERROR, "no preface in time");
	while (!list_empty(&conn->half_open)) {
		struct h2_stream *s =
			container_of(conn->half_open.next, struct h2_stream, half_open);
		if (now < s->half_open_ns + ms_ns(limits->half_open_ms))
			break;
		if (s->state == H2_STREAM_HEADERS) { /* nothing else can come before the rest */
			h2_conn_give_up(conn, SESSION_END_HALF_OPEN, NGHTTP2_NO_ERROR,
				"headers not complete in time");
			break;
		}
		list_remove(&s->half_open);
		h2_stream_overstayed(s);
	}
	if (conn->stream_count == 0 && limits->idle_ms != 0 && !conn->draining &&
		now >= conn->idle_since_ns + ms_ns(limits->idle_ms))
		h2_conn_drain(conn);
	if (conn->draining && now >= conn->drain_ns + ms_ns(H2_DRAIN_PING_MS))
		drain_finish(conn);
	if (conn->queued_bytes > 0 && now >= conn->progress_ns + ms_ns(limits->write_stall_ms))
		h2_conn_give_up(
			conn, SESSION_END_STALLED, NGHTTP2_ENHANCE_YOUR_CALM, "nothing is read");
	conn->busy = false;
	timer_update(conn);
	h2_conn_wake(conn);
}

/* ---- nghttp2's callbacks ---- */

static struct h2_stream *stream_at(struct h2_conn *conn, int32_t id)
{
	return nghttp2_session_get_stream_user_data(conn->session, id);
}

static int on_begin_frame(nghttp2_session *session, const nghttp2_frame_hd *hd, void *arg)
{
	(void)session;
	h2_calm_on_frame(arg, hd);
	return 0;
}

/* Of a kind that nobody here knows: it is ignored, but nghttp2 has told on_begin_frame() of it, as
 * it would not without this. */
static int on_unknown_frame(
	nghttp2_session *session, void **payload, const nghttp2_frame_hd *hd, void *arg)
{
	(void)session;
	(void)payload;
	(void)hd;
	(void)arg;
	return NGHTTP2_ERR_CANCEL;
}

static int on_begin_headers(nghttp2_session *session, const nghttp2_frame *frame, void *arg)
{
	(void)session;
	struct h2_conn *conn = arg;
	if (frame->headers.cat != NGHTTP2_HCAT_REQUEST)
		return 0;
	if (conn->closing || h2_stream_open(conn, frame->hd.stream_id) < 0)
		return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
	return 0;
}

static int on_header(nghttp2_session *session, const nghttp2_frame *frame, const uint8_t *name,
	size_t name_len, const uint8_t *value, size_t value_len, uint8_t flags, void *arg)
{
	(void)session;
	(void)flags;
	struct h2_stream *s = stream_at(arg, frame->hd.stream_id);
	if (s == NULL)
		return 0;
	if (frame->headers.cat != NGHTTP2_HCAT_REQUEST) {
		h2_stream_on_trailer(s, name, name_len);
		return 0;
	}
	h2_stream_on_header(s, name, name_len, value, value_len);
	return 0;
}

static int on_data_chunk(nghttp2_session *session, uint8_t flags, int32_t id, const uint8_t *data,
	size_t len, void *arg)
{
	struct h2_stream *s = stream_at(arg, id);
	if (s != NULL) {
		h2_stream_on_data(s, (flags & NGHTTP2_FLAG_END_STREAM) != 0, data, len);
		return 0;
	}
	int res = nghttp2_session_consume(session, id, len);
	if (res != 0)
		h2_conn_broke(arg, res);
	return 0;
}

/* Keepalive as grpc-go enforces it: a ping sooner than ping_min_ms after the last one is a strike,
 * unless an answer was sent in between (clients probe the path when data comes in). */
static void on_ping(struct h2_conn *conn)
{
	uint64_t now = ring_now_ns(conn->config.ring);
	uint64_t last = conn->last_ping_ns;
	conn->last_ping_ns = now | 1;
	if (conn->answered_since_ping) {
		conn->answered_since_ping = false;
		conn->ping_strikes = 0;
		return;
	}
	if (last == 0 || now >= last + ms_ns(conn->config.limits->ping_min_ms))
		return;
	if (++conn->ping_strikes >= H2_PING_STRIKES)
		h2_conn_give_up(conn, SESSION_END_TOO_MANY_PINGS, NGHTTP2_ENHANCE_YOUR_CALM,
			"too_many_pings");
}

static int on_frame_recv(nghttp2_session *session, const nghttp2_frame *frame, void *arg)
{
	(void)session;
	struct h2_conn *conn = arg;
	struct h2_stream *s = NULL;

	switch (frame->hd.type) {
	case NGHTTP2_HEADERS:
		s = stream_at(conn, frame->hd.stream_id);
		if (s != NULL && frame->headers.cat == NGHTTP2_HCAT_REQUEST)
			h2_stream_on_headers_end(s);
		else if (s != NULL)
			h2_stream_on_trailers_end(
				s, (frame->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0);
		break;
	case NGHTTP2_DATA:
		s = stream_at(conn, frame->hd.stream_id);
		if (frame->hd.length > 0 && frame->hd.length == frame->data.padlen &&
			(frame->hd.flags & NGHTTP2_FLAG_END_STREAM) == 0)
			h2_calm_spend(conn); /* nothing but padding */
		break;
	case NGHTTP2_SETTINGS:
		conn->greeted = true;
		return 0;
	case NGHTTP2_PING:
		if ((frame->hd.flags & NGHTTP2_FLAG_ACK) == 0)
			on_ping(conn);
		else if (memcmp(frame->ping.opaque_data, drain_ping, sizeof(drain_ping)) == 0)
			drain_finish(conn);
		return 0;
	default:
		return 0;
	}
	if (s != NULL && (frame->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0)
		h2_stream_on_input_end(s);
	return 0;
}

static int on_frame_send(nghttp2_session *session, const nghttp2_frame *frame, void *arg)
{
	struct h2_conn *conn = arg;
	switch (frame->hd.type) {
	case NGHTTP2_GOAWAY:
		conn->goaway_sent = conn->closing;
		return 0;
	case NGHTTP2_RST_STREAM: /* a client that makes us reset makes work for nothing */
		if (frame->rst_stream.error_code != NGHTTP2_NO_ERROR &&
			frame->rst_stream.error_code != NGHTTP2_REFUSED_STREAM)
			h2_calm_spend(conn);
		return 0;
	case NGHTTP2_HEADERS:
	case NGHTTP2_DATA:
		break;
	default:
		return 0;
	}
	conn->answered_since_ping = true;
	h2_calm_earn(conn);
	/* An answer that is complete before its request: the rest is not wanted. */
	if ((frame->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0 &&
		nghttp2_session_get_stream_remote_close(session, frame->hd.stream_id) == 0) {
		int res = nghttp2_submit_rst_stream(
			session, NGHTTP2_FLAG_NONE, frame->hd.stream_id, NGHTTP2_NO_ERROR);
		if (res != 0)
			h2_conn_broke(conn, res);
	}
	return 0;
}

static int on_stream_close(nghttp2_session *session, int32_t id, uint32_t code, void *arg)
{
	(void)session;
	(void)code;
	struct h2_stream *s = stream_at(arg, id);
	if (s != NULL)
		h2_stream_closed(s);
	return 0;
}

/* ---- life ---- */

static int session_open(struct h2_conn *conn)
{
	nghttp2_session_callbacks *callbacks = NULL;
	nghttp2_option *option = NULL;
	int res = -ENOMEM;

	if (nghttp2_session_callbacks_new(&callbacks) != 0 || nghttp2_option_new(&option) != 0)
		goto out;
	nghttp2_session_callbacks_set_on_begin_frame_callback(callbacks, on_begin_frame);
	nghttp2_session_callbacks_set_on_begin_headers_callback(callbacks, on_begin_headers);
	nghttp2_session_callbacks_set_on_header_callback(callbacks, on_header);
	nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, on_data_chunk);
	nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, on_frame_recv);
	nghttp2_session_callbacks_set_on_frame_send_callback(callbacks, on_frame_send);
	nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, on_stream_close);
	nghttp2_session_callbacks_set_unpack_extension_callback(callbacks, on_unknown_frame);
	for (unsigned type = NGHTTP2_ALTSVC; type <= UINT8_MAX; type++)
		nghttp2_option_set_user_recv_extension_type(option, (uint8_t)type);
	nghttp2_option_set_no_auto_window_update(option, 1);
	if (conn->config.host_may_be_path)
		nghttp2_option_set_no_http_messaging(option, 1);
	if (nghttp2_session_server_new2(&conn->session, callbacks, conn, option) == 0)
		res = 0;
out:
	nghttp2_option_del(option);
	nghttp2_session_callbacks_del(callbacks);
	return res;
}

static int session_greet(struct h2_conn *conn)
{
	const nghttp2_settings_entry settings[] = {
		{NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, conn->config.limits->streams},
		{NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, H2_STREAM_WINDOW_BYTES},
		{NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, conn->config.limits->header_bytes},
	};
	if (nghttp2_submit_settings(conn->session, NGHTTP2_FLAG_NONE, settings,
		    sizeof(settings) / sizeof(settings[0])) != 0)
		return -ENOMEM;
	if (nghttp2_session_set_local_window_size(
		    conn->session, NGHTTP2_FLAG_NONE, 0, H2_CONN_WINDOW_BYTES) != 0)
		return -ENOMEM;
	return 0;
}

int h2_conn_new(struct h2_conn **ret, const struct h2_config *config)
{
	struct h2_conn *conn = calloc(1, sizeof(*conn));
	if (conn == NULL)
		return -ENOMEM;
	conn->base.ops = &base_ops;
	conn->config = *config;
	list_init(&conn->streams);
	list_init(&conn->half_open);
	list_init(&conn->paused);
	list_init(&conn->ready);
	list_init(&conn->turn);
	conn->credit_bytes = H2_TURN_SHARE;
	conn->credit_turn = config->turns->turn;
	conn->calm_ns = ring_now_ns(config->ring);
	conn->timer.fn = on_timer;
	conn->created_ns = conn->idle_since_ns = ring_now_ns(config->ring);
	int res = session_open(conn);
	if (res == 0)
		res = session_greet(conn);
	if (res < 0) {
		h2_conn_free(conn);
		return res;
	}
	timer_update(conn);
	*ret = conn;
	return 0;
}

void h2_conn_free(struct h2_conn *conn)
{
	if (conn == NULL)
		return;
	conn->busy = true;
	while (!list_empty(&conn->streams))
		h2_stream_closed(container_of(conn->streams.next, struct h2_stream, link));
	list_remove(&conn->turn);
	ring_timer_cancel(conn->config.ring, &conn->timer);
	nghttp2_session_del(conn->session);
	free(conn);
}

int h2_conn_feed(struct h2_conn *conn, const uint8_t *data, size_t len)
{
	if (conn->closing || conn->broken != 0)
		return conn->broken;
	assert(!conn->busy);
	conn->busy = true;
	ssize_t n = nghttp2_session_mem_recv(conn->session, data, len);
	conn->busy = false;
	if (n < 0)
		h2_conn_broke(conn, (int)n);
	else if (nghttp2_session_get_outbound_queue_size(conn->session) > H2_FRAMES_MAX)
		h2_conn_broke(conn, NGHTTP2_ERR_FLOODED); /* it asks and does not read */
	timer_update(conn);
	return conn->broken;
}

int h2_conn_output(struct h2_conn *conn, struct buf *out, size_t limit)
{
	assert(!conn->busy);
	conn->busy = true;
	do {
		while (out->len < limit && h2_conn_wants_write(conn)) {
			const uint8_t *data;
			ssize_t n = nghttp2_session_mem_send(conn->session, &data);
			if (n < 0)
				h2_conn_broke(conn, (int)n);
			else if (buf_append(out, data, (size_t)n) < 0)
				h2_conn_broke(conn, NGHTTP2_ERR_NOMEM);
			if (n <= 0)
				break;
		}
	} while (conn->broken == 0 && h2_stream_resume_paused(conn) && out->len < limit);
	conn->busy = false;
	h2_turn_room(conn);
	timer_update(conn);
	return conn->broken;
}

bool h2_conn_wants_write(const struct h2_conn *conn)
{
	if (conn->broken != 0 || (conn->closing && conn->goaway_sent))
		return false;
	return nghttp2_session_want_write(conn->session) != 0;
}

bool h2_conn_finished(const struct h2_conn *conn)
{
	if (conn->broken != 0 || (conn->closing && conn->goaway_sent))
		return true;
	return nghttp2_session_want_read(conn->session) == 0 &&
	       nghttp2_session_want_write(conn->session) == 0;
}

void h2_conn_drain(struct h2_conn *conn)
{
	if (conn->draining || conn->closing || conn->broken != 0)
		return;
	conn->draining = true;
	conn->drain_ns = ring_now_ns(conn->config.ring);
	bool was_busy = conn->busy;
	conn->busy = true;
	int res = nghttp2_submit_shutdown_notice(conn->session);
	if (res == 0)
		res = nghttp2_submit_ping(conn->session, NGHTTP2_FLAG_NONE, drain_ping);
	if (res != 0)
		h2_conn_broke(conn, res);
	list_for_each_safe (l, &conn->streams)
		h2_stream_drain(container_of(l, struct h2_stream, link));
	conn->busy = was_busy;
	timer_update(conn);
}

unsigned h2_conn_streams(const struct h2_conn *conn)
{
	return conn->stream_count;
}

enum session_end h2_conn_end(const struct h2_conn *conn)
{
	return conn->base.end;
}

/* ---- as a session ---- */

static struct h2_conn *conn_of(struct session *session)
{
	return container_of(session, struct h2_conn, base);
}

static int base_feed(struct session *session, const uint8_t *data, size_t len)
{
	return h2_conn_feed(conn_of(session), data, len);
}

static int base_output(struct session *session, struct buf *out, size_t limit)
{
	return h2_conn_output(conn_of(session), out, limit);
}

static bool base_finished(const struct session *session)
{
	return h2_conn_finished(container_of(session, const struct h2_conn, base));
}

static enum session_wait base_waits(const struct session *session, uint64_t *ret_since_ns)
{
	const struct h2_conn *conn = container_of(session, const struct h2_conn, base);
	const struct h2_stream *half_open = NULL;
	if (!list_empty(&conn->ready))
		return SESSION_BUSY;
	list_for_each (node, &conn->streams) {
		const struct h2_stream *s = container_of(node, struct h2_stream, link);
		/* A request that is complete has an answer, which is not all sent yet. What never
		 * ends keeps no place. */
		bool endless = s->call.entry != NULL && (s->call.entry->flags & GRPC_ENDLESS) != 0;
		if (s->state >= H2_STREAM_RUNNING && !endless)
			return SESSION_BUSY;
		if (s->state < H2_STREAM_RUNNING && half_open == NULL)
			half_open = s;
	}
	*ret_since_ns = conn->idle_since_ns;
	if (half_open != NULL)
		*ret_since_ns = half_open->half_open_ns;
	else if (conn->stream_count > 0)
		return SESSION_IDLE;
	else if (nghttp2_session_get_last_proc_stream_id(conn->session) != 0)
		return SESSION_IDLE;
	return SESSION_HALF_OPEN;
}

static void base_drain(struct session *session)
{
	h2_conn_drain(conn_of(session));
}

static void base_free(struct session *session)
{
	h2_conn_free(conn_of(session));
}

static const struct session_ops base_ops = {
	.feed = base_feed,
	.output = base_output,
	.finished = base_finished,
	.waits = base_waits,
	.drain = base_drain,
	.free = base_free,
};

struct session *h2_conn_session(struct h2_conn *conn)
{
	return &conn->base;
}
