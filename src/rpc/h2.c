/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An HTTP/2 connection: the nghttp2 session, its limits and its clock. Bytes fed in become calls
 * on streams (h2_stream.c); answers are fetched as bytes. One timer serves all of a connection's
 * deadlines; it is set lazily, so that a busy connection does not touch it.
 *
 *   OPEN -> DRAINING -> DRAINED, each -> CLOSING -> CLOSED, each -> BROKEN (h2_state.h)
 *
 * It ends by the peer (GOAWAY, or a protocol error, which nghttp2 answers), by a drain (GOAWAY,
 * a ping to know it was heard, final GOAWAY, last stream closed), by being given up (only the
 * GOAWAY with its reason is still sent), or broken: out of memory or flooded.
 *
 * nghttp2 checks that requests are well-formed HTTP, but on unix sockets, where it would reset what
 * older clients send (h2.h): there h2_headers.c makes the same checks. Calls run in turns with
 * those of other connections (h2_turn.c).
 */
#include "rpc/h2.h"

#include "rpc/h2_headers.h"
#include "rpc/h2_state.h"
#include "rpc/h2_stream.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
	STREAM_WINDOW_BYTES = 256 << 10, /* what a client may send ahead on a stream */
	CONN_WINDOW_BYTES = 1 << 20,     /* and on all streams of a connection */
	/* Frames that wait to be fetched, beside DATA. Each stream has one or two, a client that
	 * has not heard of the limit of streams yet has one for each it opens beyond. */
	FRAMES_MAX = 4096,
	DRAIN_PING_MS = 1000, /* how long a drain waits for the client to have heard of it */
	PING_STRIKES = 3,
	/* Points for frames that ask for nothing: see calm_spend(). grpc-go sends one for some
	 * kilobytes of an answer and one for a window's growth, libraries with priorities some at
	 * the start. */
	CALM_MAX = 2000,
	CALM_PER_S = 100,
	CALM_ANSWER = 4,
};

static const uint8_t drain_ping[8] = {'d', 'r', 'a', 'i', 'n'};

static struct h2_conn *conn_of(const struct session *session)
{
	return container_of((struct session *)session, struct h2_conn, base);
}

static uint64_t ms_ns(uint64_t ms)
{
	return ms * 1000000;
}

static int submit_goaway(struct h2_conn *conn, uint32_t code, const char *reason)
{
	return nghttp2_submit_goaway(conn->session, NGHTTP2_FLAG_NONE,
		nghttp2_session_get_last_proc_stream_id(conn->session), code,
		(const uint8_t *)reason, strlen(reason));
}

/* Gives the connection up with a reason the peer can read. */
static void give_up(struct h2_conn *conn, enum session_end end, uint32_t code, const char *reason)
{
	if (conn->state >= H2_CONN_CLOSING)
		return;
	h2_conn_to(conn, H2_CONN_CLOSING);
	conn->base.end = end;
	h2_conn_check(conn, submit_goaway(conn, code, reason));
}

/* ---- frames that ask for nothing ---- */

/*
 * Some frames ask for nothing and cost a little: acknowledged pings, empty DATA, WINDOW_UPDATE,
 * PRIORITY, SETTINGS, kinds that are not known, and what makes us reset a stream. A client needs
 * few of them, and most of those for the answers it gets. So each costs one point, a frame of an
 * answer takes CALM_ANSWER points back, a second CALM_PER_S, and beyond CALM_MAX the connection is
 * given up (ENHANCE_YOUR_CALM).
 *
 * Counted elsewhere: pings (on_ping(), as grpc-go does), resets by the client, CONTINUATION and
 * SETTINGS without an end (nghttp2), header lists (header_bytes), frames that wait to be sent.
 */
static void calm_spend(struct h2_conn *conn)
{
	uint64_t now = ring_now_ns(conn->config.ring);
	uint64_t back = (now - conn->calm_ns) / (1000000000 / CALM_PER_S);
	if (back > 0) {
		conn->calm_points -= back < conn->calm_points ? (unsigned)back : conn->calm_points;
		conn->calm_ns = now;
	}
	if (++conn->calm_points > CALM_MAX)
		give_up(conn, SESSION_END_FLOODED, NGHTTP2_ENHANCE_YOUR_CALM,
			"too many frames that ask for nothing");
}

static void calm_earn(struct h2_conn *conn)
{
	conn->calm_points -= conn->calm_points < CALM_ANSWER ? conn->calm_points : CALM_ANSWER;
}

static int on_begin_frame(nghttp2_session *session, const nghttp2_frame_hd *hd, void *arg)
{
	(void)session;
	switch (hd->type) {
	case NGHTTP2_DATA:
		if (hd->length == 0 && (hd->flags & NGHTTP2_FLAG_END_STREAM) == 0)
			calm_spend(arg);
		break;
	case NGHTTP2_PING:
		if ((hd->flags & NGHTTP2_FLAG_ACK) != 0)
			calm_spend(arg);
		break;
	case NGHTTP2_HEADERS:
	case NGHTTP2_CONTINUATION:
	case NGHTTP2_RST_STREAM:
	case NGHTTP2_GOAWAY:
		break;
	default: /* SETTINGS, WINDOW_UPDATE, PRIORITY, unknown ones */
		calm_spend(arg);
		break;
	}
	return 0;
}

/* ---- time ---- */

static void sooner(uint64_t *due_ns, uint64_t since_ns, uint64_t ms)
{
	uint64_t t = since_ns + ms_ns(ms);
	*due_ns = t < *due_ns ? t : *due_ns;
}

/* When the connection next has to be looked at; UINT64_MAX: only when something happens. */
static uint64_t next_due(const struct h2_conn *conn)
{
	const struct server_limits *limits = conn->config.limits;
	uint64_t due = UINT64_MAX;

	if (conn->state >= H2_CONN_CLOSING)
		return UINT64_MAX;
	if (!conn->greeted)
		sooner(&due, conn->created_ns, limits->half_open_ms);
	if (!list_empty(&conn->half_open))
		sooner(&due,
			container_of(conn->half_open.next, struct h2_stream, half_open)
				->half_open_ns,
			limits->half_open_ms);
	if (conn->stream_count == 0 && limits->idle_ms != 0 && conn->state == H2_CONN_OPEN)
		sooner(&due, conn->idle_since_ns, limits->idle_ms);
	if (conn->state == H2_CONN_DRAINING)
		sooner(&due, conn->drain_ns, DRAIN_PING_MS);
	if (conn->queued_bytes > 0)
		sooner(&due, conn->progress_ns, limits->write_stall_ms);
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
	if (conn->state != H2_CONN_DRAINING)
		return;
	h2_conn_to(conn, H2_CONN_DRAINED);
	h2_conn_check(conn, submit_goaway(conn, NGHTTP2_NO_ERROR, ""));
}

/* Sends GOAWAY; running streams may finish. */
static void conn_drain(struct session *session)
{
	struct h2_conn *conn = conn_of(session);
	if (conn->state != H2_CONN_OPEN)
		return;
	h2_conn_to(conn, H2_CONN_DRAINING);
	conn->drain_ns = ring_now_ns(conn->config.ring);
	bool was_busy = conn->busy;
	conn->busy = true;
	int res = nghttp2_submit_shutdown_notice(conn->session);
	if (res == 0)
		res = nghttp2_submit_ping(conn->session, NGHTTP2_FLAG_NONE, drain_ping);
	h2_conn_check(conn, res);
	list_for_each_safe (l, &conn->streams)
		h2_stream_drain(container_of(l, struct h2_stream, link));
	conn->busy = was_busy;
	timer_update(conn);
}

static void on_timer(struct ring_timer *timer)
{
	struct h2_conn *conn = container_of(timer, struct h2_conn, timer);
	const struct server_limits *limits = conn->config.limits;
	uint64_t now = ring_now_ns(conn->config.ring);

	if (conn->state >= H2_CONN_CLOSING)
		return;
	conn->busy = true;
	if (!conn->greeted && now >= conn->created_ns + ms_ns(limits->half_open_ms))
		give_up(conn, SESSION_END_HALF_OPEN, NGHTTP2_NO_ERROR, "no preface in time");
	while (!list_empty(&conn->half_open)) {
		struct h2_stream *s =
			container_of(conn->half_open.next, struct h2_stream, half_open);
		if (now < s->half_open_ns + ms_ns(limits->half_open_ms))
			break;
		if (s->state == H2_STREAM_HEADERS) { /* nothing else can come before the rest */
			give_up(conn, SESSION_END_HALF_OPEN, NGHTTP2_NO_ERROR,
				"headers not complete in time");
			break;
		}
		list_remove(&s->half_open);
		h2_stream_overstayed(s);
	}
	if (conn->stream_count == 0 && limits->idle_ms != 0 && conn->state == H2_CONN_OPEN &&
		now >= conn->idle_since_ns + ms_ns(limits->idle_ms))
		conn_drain(&conn->base);
	if (conn->state == H2_CONN_DRAINING && now >= conn->drain_ns + ms_ns(DRAIN_PING_MS))
		drain_finish(conn);
	if (conn->queued_bytes > 0 && now >= conn->progress_ns + ms_ns(limits->write_stall_ms))
		give_up(conn, SESSION_END_STALLED, NGHTTP2_ENHANCE_YOUR_CALM, "nothing is read");
	conn->busy = false;
	timer_update(conn);
	h2_conn_wake(conn);
}

/* ---- nghttp2's callbacks ---- */

static struct h2_stream *stream_at(struct h2_conn *conn, int32_t id)
{
	return nghttp2_session_get_stream_user_data(conn->session, id);
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
	if (conn->state >= H2_CONN_CLOSING || h2_stream_open(conn, frame->hd.stream_id) < 0)
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
	h2_conn_check(arg, nghttp2_session_consume(session, id, len));
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
	if (++conn->ping_strikes >= PING_STRIKES)
		give_up(conn, SESSION_END_TOO_MANY_PINGS, NGHTTP2_ENHANCE_YOUR_CALM,
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
			calm_spend(conn); /* nothing but padding */
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
		if (conn->state == H2_CONN_CLOSING)
			h2_conn_to(conn, H2_CONN_CLOSED);
		return 0;
	case NGHTTP2_RST_STREAM: /* a client that makes us reset makes work for nothing */
		if (frame->rst_stream.error_code != NGHTTP2_NO_ERROR &&
			frame->rst_stream.error_code != NGHTTP2_REFUSED_STREAM)
			calm_spend(conn);
		return 0;
	case NGHTTP2_HEADERS:
	case NGHTTP2_DATA:
		break;
	default:
		return 0;
	}
	conn->answered_since_ping = true;
	calm_earn(conn);
	/* An answer that is complete before its request: the rest is not wanted. */
	if ((frame->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0 &&
		nghttp2_session_get_stream_remote_close(session, frame->hd.stream_id) == 0)
		h2_conn_check(conn, nghttp2_submit_rst_stream(session, NGHTTP2_FLAG_NONE,
					    frame->hd.stream_id, NGHTTP2_NO_ERROR));
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
	h2_mem_init(&conn->mem);
	if (conn->config.host_may_be_path)
		nghttp2_option_set_no_http_messaging(option, 1);
	if (nghttp2_session_server_new3(
		    &conn->session, callbacks, conn, option, &conn->mem.calls) == 0)
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
		{NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, STREAM_WINDOW_BYTES},
		{NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, conn->config.limits->header_bytes},
	};
	if (nghttp2_submit_settings(conn->session, NGHTTP2_FLAG_NONE, settings,
		    sizeof(settings) / sizeof(settings[0])) != 0)
		return -ENOMEM;
	if (nghttp2_session_set_local_window_size(
		    conn->session, NGHTTP2_FLAG_NONE, 0, CONN_WINDOW_BYTES) != 0)
		return -ENOMEM;
	return 0;
}

/* ---- the session ---- */

static int conn_feed(struct session *session, const uint8_t *data, size_t len)
{
	struct h2_conn *conn = conn_of(session);
	if (conn->state >= H2_CONN_CLOSING)
		return conn->error;
	assert(!conn->busy);
	conn->busy = true;
	ssize_t n = nghttp2_session_mem_recv(conn->session, data, len);
	conn->busy = false;
	if (n < 0)
		h2_conn_check(conn, (int)n);
	else if (nghttp2_session_get_outbound_queue_size(conn->session) > FRAMES_MAX)
		h2_conn_check(conn, NGHTTP2_ERR_FLOODED); /* it asks and does not read */
	timer_update(conn);
	return conn->error;
}

static bool wants_write(const struct h2_conn *conn)
{
	return conn->state < H2_CONN_CLOSED && nghttp2_session_want_write(conn->session) != 0;
}

static int conn_output(struct session *session, struct buf *out, size_t limit)
{
	struct h2_conn *conn = conn_of(session);
	assert(!conn->busy);
	conn->busy = true;
	do {
		while (out->len < limit && wants_write(conn)) {
			const uint8_t *data;
			ssize_t n = nghttp2_session_mem_send(conn->session, &data);
			if (n < 0)
				h2_conn_check(conn, (int)n);
			else if (buf_append(out, data, (size_t)n) < 0)
				h2_conn_check(conn, NGHTTP2_ERR_NOMEM);
			if (n <= 0)
				break;
		}
	} while (
		conn->state != H2_CONN_BROKEN && h2_stream_resume_paused(conn) && out->len < limit);
	conn->busy = false;
	h2_turn_room(conn);
	timer_update(conn);
	return conn->error;
}

static bool conn_finished(const struct session *session)
{
	const struct h2_conn *conn = conn_of(session);
	if (conn->state >= H2_CONN_CLOSED)
		return true;
	return nghttp2_session_want_read(conn->session) == 0 && !wants_write(conn);
}

static enum session_wait conn_waits(const struct session *session, uint64_t *ret_since_ns)
{
	const struct h2_conn *conn = conn_of(session);
	const struct h2_stream *half_open = NULL;
	if (!list_empty(&conn->ready))
		return SESSION_BUSY;
	list_for_each (node, &conn->streams) {
		const struct h2_stream *s = container_of(node, struct h2_stream, link);
		/* A request that is complete has an answer, which is not all sent yet. What never
		 * ends keeps no place. */
		if (s->state >= H2_STREAM_RUNNING && !h2_stream_has(s, GRPC_ENDLESS))
			return SESSION_BUSY;
		if (s->state < H2_STREAM_RUNNING && half_open == NULL)
			half_open = s;
	}
	*ret_since_ns = conn->idle_since_ns;
	if (half_open != NULL)
		*ret_since_ns = half_open->half_open_ns;
	else if (conn->stream_count > 0 ||
		 nghttp2_session_get_last_proc_stream_id(conn->session) != 0)
		return SESSION_IDLE;
	return SESSION_HALF_OPEN;
}

static void conn_free(struct session *session)
{
	struct h2_conn *conn = conn_of(session);
	conn->busy = true;
	while (!list_empty(&conn->streams))
		h2_stream_closed(container_of(conn->streams.next, struct h2_stream, link));
	list_remove(&conn->turn);
	ring_timer_cancel(conn->config.ring, &conn->timer);
	nghttp2_session_del(conn->session);
	grpc_caller_unref(conn->caller);
	free(conn);
}

static void conn_rest(struct session *session)
{
	struct h2_conn *conn = conn_of(session);
	if (!wants_write(conn))
		h2_mem_rest(&conn->mem);
}

static const struct session_ops conn_ops = {.feed = conn_feed,
	.output = conn_output,
	.finished = conn_finished,
	.waits = conn_waits,
	.rest = conn_rest,
	.drain = conn_drain,
	.free = conn_free};

int h2_session_new(const struct h2_config *config, struct session **ret)
{
	struct h2_conn *conn = calloc(1, sizeof(*conn));
	if (conn == NULL)
		return -ENOMEM;
	conn->base.ops = &conn_ops;
	conn->base.secretive = true;
	conn->config = *config;
	list_init(&conn->streams);
	list_init(&conn->half_open);
	list_init(&conn->paused);
	list_init(&conn->ready);
	list_init(&conn->turn);
	conn->credit_bytes = H2_TURN_SHARE;
	conn->credit_turn = config->turns->turn;
	conn->timer.fn = on_timer;
	conn->calm_ns = conn->created_ns = conn->idle_since_ns = ring_now_ns(config->ring);
	int res = 0;
	if (config->peer != NULL) {
		conn->caller = grpc_caller_new(config->peer);
		res = conn->caller != NULL ? 0 : -ENOMEM;
	}
	if (res == 0)
		res = session_open(conn);
	if (res == 0)
		res = session_greet(conn);
	if (res < 0) {
		conn_free(&conn->base);
		return res;
	}
	timer_update(conn);
	*ret = &conn->base;
	return 0;
}
