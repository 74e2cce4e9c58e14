/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client's session alone, fed from memory on a virtual clock: what it tells its owner, when it
 * asks to be looked at, and how it ends. With sockets and a channel: test_channel_hostile.c.
 */
#include "answer_frames.h"
#include "base/utf8.h"
#include "channel_env.h"

#include "rpc/client_calls.h"
#include "rpc/h2_client.h"
#include "rpc/h2_request.h"

#include <errno.h>

static struct ring_sim sim = {.seed = 1};
static struct client_calls calls;
static struct session *client;
static struct asked a, b;
static unsigned rooms, leaves, wakes;
static bool inside;      /* feed() or output() */
static int submit_fails; /* what the next requests are refused with */
static struct buf heard; /* what it has sent, without the preface */

/* ---- the session ---- */

int32_t __real_h2_request_submit(nghttp2_session *session, const struct h2_client_config *config,
	struct channel_call *call, const nghttp2_data_provider *body);
int32_t __wrap_h2_request_submit(nghttp2_session *session, const struct h2_client_config *config,
	struct channel_call *call, const nghttp2_data_provider *body);

int32_t __wrap_h2_request_submit(nghttp2_session *session, const struct h2_client_config *config,
	struct channel_call *call, const nghttp2_data_provider *body)
{
	if (submit_fails < 0)
		return submit_fails;
	return __real_h2_request_submit(session, config, call, body);
}

static void on_room(void *owner)
{
	cr_assert_eq(owner, &client);
	rooms++;
}

static void on_leave(void *owner)
{
	cr_assert_eq(owner, &client);
	leaves++;
}

static void on_wake(void *arg)
{
	cr_assert_eq(arg, &client);
	cr_assert_not(inside, "on_wake from inside feed() or output()");
	wakes++;
}

/* Its output, as far as it has any. */
static void output(void)
{
	heard.len = 0;
	inside = true;
	client->ops->output(client, &heard, SIZE_MAX / 4);
	inside = false;
}

/* Feeds the bytes and empties the buffer. */
static int feed(struct buf *bytes)
{
	inside = true;
	int res = client->ops->feed(client, bytes->data, bytes->len);
	inside = false;
	buf_free(bytes);
	return res;
}

static void turn(void)
{
	for (unsigned i = 0; i < 5; i++)
		cr_assert_eq(ring_turn(ring, false), 0);
}

static void pass_ms(uint64_t ms)
{
	sim_pass_ms(ring, ms);
}

static enum h2_client_state state(void)
{
	return h2_client_state(client);
}

/* The peer's SETTINGS with so many streams. */
static void allow(uint16_t streams)
{
	const uint8_t setting[] = {0, 3, 0, 0, (uint8_t)(streams >> 8), (uint8_t)streams};
	struct buf bytes = {0};
	frame(&bytes, NGHTTP2_SETTINGS, 0, 0, setting, sizeof(setting));
	cr_assert_eq(feed(&bytes), 0);
	output();
}

static void client_setup(void)
{
	cr_assert_eq(ring_sim_open(&ring, &sim), 0);
	client_calls_init(&calls, ring, NULL);
	const struct h2_client_config config = {.ring = ring,
		.authority = "localhost",
		.on_room = on_room,
		.on_leave = on_leave,
		.owner = &client,
		.on_wake = on_wake,
		.arg = &client};
	cr_assert_eq(h2_client_new(&config, &client), 0);
	output(); /* the preface */
	allow(100);
	struct buf bytes = {0};
	frame(&bytes, NGHTTP2_SETTINGS, NGHTTP2_FLAG_ACK, 0, NULL, 0);
	cr_assert_eq(feed(&bytes), 0);
}

static void client_end(void)
{
	if (client != NULL)
		client->ops->free(client);
	client = NULL;
}

static void client_teardown(void)
{
	client_end();
	turn();
	client_calls_close(&calls);
	buf_free(&a.got);
	buf_free(&b.got);
	buf_free(&heard);
	ring_close(ring);
}

TestSuite(client, .init = client_setup, .fini = client_teardown);

/* ---- calls ---- */

static bool start(struct asked *asked, bool last)
{
	struct buf text = packed("hello", 5);
	asked_init(asked, "/test.v1.Test/Echo");
	cr_assert(client_call_begin(&calls, &asked->call, text.data, text.len, last));
	buf_free(&text);
	return h2_client_start(client, &asked->call);
}

/* One is on its way, on stream 1. */
static void begin(bool last)
{
	cr_assert(start(&a, last));
	output();
	cr_assert(has_frame(&heard, NGHTTP2_HEADERS));
	cr_assert(a.call.sent);
}

static void answer(const char *text)
{
	struct buf bytes = {0};
	GRPC_HEADERS(&bytes);
	text_data(&bytes, 0, text);
	HEADERS(&bytes, END, "grpc-status", "0");
	feed(&bytes);
}

static void say_goaway(uint32_t last, uint32_t code)
{
	struct buf bytes = {0};
	goaway(&bytes, last, code, "");
	feed(&bytes);
}

Test(client, no_more_calls_than_are_allowed)
{
	enum { MOST = 1000 }; /* whatever the peer says */
	static struct asked many[MOST];
	allow(1);
	cr_assert(start(&a, true));
	cr_assert_not(start(&b, true));
	unsigned before = rooms;
	output();
	answer("hello");
	assert_asked_text(&a, "hello");
	cr_assert_eq(rooms, before + 1); /* its place is free */
	cr_assert(h2_client_start(client, &b.call));
	channel_cancel(&b.call);
	cr_assert_eq(rooms, before + 2);
	output();
	allow(2);
	begin(true);
	before = rooms;
	struct buf bytes = {0};
	frame(&bytes, NGHTTP2_RST_STREAM, 0, (uint32_t)a.call.id, "\0\0\0\7", 4);
	cr_assert_eq(feed(&bytes), 0);
	assert_asked_status(&a, GRPC_UNAVAILABLE);
	cr_assert_eq(rooms, before + 1);
	allow(UINT16_MAX);
	for (unsigned i = 0; i < MOST; i++)
		cr_assert(start(&many[i], true), "call %u", i);
	cr_assert_not(start(&a, true));
	channel_cancel(&many[0].call);
	cr_assert(h2_client_start(client, &a.call));
	channel_cancel(&a.call);
	for (unsigned i = 1; i < MOST; i++)
		channel_cancel(&many[i].call);
}

/* Whatever is to be sent is asked for: nobody may come by. */
Test(client, what_has_to_be_sent_wakes)
{
	static const uint8_t half[600 << 10]; /* more than half of the stream's window */
	struct buf bytes = {0};
	wakes = 0;
	cr_assert(start(&a, false));
	cr_assert_eq(wakes, 1);
	output();
	cr_assert(channel_send(&a.call, (const uint8_t *)"", 0));
	cr_assert_eq(wakes, 2);
	output();
	cr_assert(has_frame(&heard, NGHTTP2_DATA));
	a.hold_after = 1;
	GRPC_HEADERS(&bytes);
	for (size_t at = 0; at < sizeof(half); at += 16000) /* of empty messages */
		frame(&bytes, NGHTTP2_DATA, 0, 1, half, 16000);
	cr_assert_eq(feed(&bytes), 0);
	cr_assert_eq(a.messages, 1);
	output();
	cr_assert_not(has_frame(&heard, NGHTTP2_WINDOW_UPDATE), "for the connection, if at all");
	cr_assert_eq(wakes, 2);
	a.hold_after = 0;
	channel_read(&a.call);
	turn();
	cr_assert_gt(a.messages, 100000);
	cr_assert_eq(wakes, 3);
	output();
	cr_assert(has_frame(&heard, NGHTTP2_WINDOW_UPDATE));
	channel_cancel(&a.call);
	cr_assert_eq(wakes, 4);
	output();
	cr_assert(has_frame(&heard, NGHTTP2_RST_STREAM));
}

/* The owner's on_end() comes from inside output(), and gives another call up. */
static void cancel_a(
	struct channel_call *call, enum grpc_status status, const char *message, bool sent)
{
	asked_on_end(call, status, message, sent);
	channel_cancel(&a.call);
}

Test(client, who_sends_already_is_not_woken)
{
	begin(true);
	cr_assert(start(&b, true));
	b.call.on_end = cancel_a;
	say_goaway(1, NGHTTP2_NO_ERROR);
	cr_assert_eq(b.ends, 0);
	output(); /* in which its request is not sent any more */
	assert_asked_status(&b, GRPC_UNAVAILABLE);
	cr_assert_not(b.sent);
	cr_assert_not(channel_call_active(&a.call));
	cr_assert(has_frame(&heard, NGHTTP2_RST_STREAM));
}

/* The rest of a request is not wanted when its answer is whole. */
Test(client, an_answer_before_the_end_of_its_request)
{
	begin(false);
	answer("early");
	assert_asked_text(&a, "early");
	output();
	cr_assert(has_frame(&heard, NGHTTP2_RST_STREAM));
}

/* An HTTP error's text is thrown away, however long it is, and takes no window. */
Test(client, the_text_of_an_error_is_read_away)
{
	static const uint8_t text[16000];
	struct buf bytes = {0};
	begin(true);
	HEADERS(&bytes, 0, ":status", "503", "content-type", "text/html");
	for (unsigned i = 0; i < 40; i++)
		frame(&bytes, NGHTTP2_DATA, 0, 1, text, sizeof(text));
	cr_assert_eq(feed(&bytes), 0);
	output();
	cr_assert(has_frame(&heard, NGHTTP2_WINDOW_UPDATE));
	frame(&bytes, NGHTTP2_DATA, END, 1, text, 1);
	cr_assert_eq(feed(&bytes), 0);
	cr_assert_eq(a.messages, 0);
	assert_asked_status(&a, GRPC_UNAVAILABLE);
}

/* ---- how it leaves ---- */

Test(client, it_says_once_that_it_leaves)
{
	begin(true);
	cr_assert_eq(state(), H2_CLIENT_UP);
	say_goaway(1, NGHTTP2_NO_ERROR);
	cr_assert_eq(leaves, 1);
	cr_assert_eq(state(), H2_CLIENT_LEAVING);
	cr_assert_not(start(&b, true));
	channel_cancel(&b.call);
	say_goaway(1, NGHTTP2_ENHANCE_YOUR_CALM);
	cr_assert_eq(leaves, 1);
	cr_assert_str_eq(h2_client_why(client), "the peer has closed the connection");
	answer("hello");
	assert_asked_text(&a, "hello");
}

/* What runs may end. */
Test(client, a_drain_of_one_that_leaves_already)
{
	begin(true);
	say_goaway(1, NGHTTP2_NO_ERROR);
	client->ops->drain(client);
	cr_assert_eq(leaves, 1);
	output();
	cr_assert_not(has_frame(&heard, NGHTTP2_GOAWAY));
	cr_assert_not(client->ops->finished(client));
	answer("hello");
	assert_asked_text(&a, "hello");
	cr_assert(client->ops->finished(client));
}

/* Without calls, from the end of the last one on, it goes by itself. */
Test(client, an_idle_one_goes)
{
	pass_ms(CHANNEL_IDLE_MS - 1000);
	begin(true);
	answer("hello");
	assert_asked_text(&a, "hello");
	output();
	wakes = 0;
	pass_ms(CHANNEL_IDLE_MS - 100);
	cr_assert_eq(state(), H2_CLIENT_UP);
	cr_assert_eq(leaves, 0);
	pass_ms(200);
	cr_assert_eq(state(), H2_CLIENT_LEAVING);
	cr_assert_eq(leaves, 1);
	cr_assert_geq(wakes, 1);
	cr_assert_not(client->ops->finished(client));
	output();
	cr_assert(has_frame(&heard, NGHTTP2_GOAWAY));
	cr_assert(client->ops->finished(client));
	client->ops->drain(client);
	cr_assert_eq(leaves, 1);
}

/* It counts from when there was a call that waits for something. */
Test(client, silence_that_nobody_can_send_into)
{
	pass_ms(CHANNEL_PING_MS * 3);
	cr_assert(start(&a, true));
	wakes = 0;
	pass_ms(CHANNEL_PING_MS - 100);
	cr_assert_eq(wakes, 0);
	pass_ms(200);
	cr_assert_eq(wakes, 1); /* with a ping, which nobody takes */
	pass_ms(CHANNEL_PING_ANSWER_MS - 200);
	cr_assert_eq(state(), H2_CLIENT_UP);
	pass_ms(200);
	cr_assert_eq(state(), H2_CLIENT_OVER);
	cr_assert_eq(leaves, 1);
	cr_assert_eq(wakes, 2);
	output();
	cr_assert_eq(heard.len, 0);
	struct buf bytes = {0};
	goaway(&bytes, 1, NGHTTP2_NO_ERROR, "");
	cr_assert_eq(feed(&bytes), -ETIMEDOUT);
	client->ops->drain(client);
	cr_assert_eq(state(), H2_CLIENT_OVER);
	cr_assert_eq(leaves, 1);
	client_end();
	assert_asked_status(&a, GRPC_UNAVAILABLE);
	cr_assert_str_eq(a.message, "the connection is lost: nothing is heard from the peer", "%s",
		a.message);
}

/* ---- how it is lost ---- */

Test(client, a_call_is_told_why_its_connection_is_lost)
{
	begin(true);
	h2_client_set_why(client, "Connection reset by peer");
	h2_client_set_why(client, "another reason");
	client_end();
	assert_asked_status(&a, GRPC_UNAVAILABLE);
	cr_assert(a.sent);
	cr_assert_str_eq(a.message, "the connection is lost: Connection reset by peer");
}

Test(client, a_connection_that_is_lost_without_a_reason)
{
	begin(true);
	client_end();
	assert_asked_status(&a, GRPC_UNAVAILABLE);
	cr_assert_str_eq(a.message, "the connection is lost: the peer has closed it");
}

/* ---- requests that cannot be begun ---- */

Test(client, its_streams_are_used_up)
{
	begin(true);
	submit_fails = NGHTTP2_ERR_STREAM_ID_NOT_AVAILABLE;
	cr_assert_not(start(&b, true));
	cr_assert_eq(state(), H2_CLIENT_LEAVING);
	cr_assert_eq(leaves, 1);
	cr_assert_str_eq(h2_client_why(client), "its streams are used up");
	cr_assert_not(b.call.state == CHANNEL_CALL_OPEN);
	channel_cancel(&b.call);
	answer("hello");
	assert_asked_text(&a, "hello");
}

Test(client, no_memory_for_a_request)
{
	begin(true);
	wakes = 0;
	submit_fails = NGHTTP2_ERR_NOMEM;
	cr_assert_not(start(&b, true));
	cr_assert_eq(state(), H2_CLIENT_OVER);
	cr_assert_eq(leaves, 1);
	cr_assert_eq(wakes, 1); /* to be closed */
	cr_assert(client->ops->finished(client));
	cr_assert_eq(b.call.state, CHANNEL_CALL_WAITING); /* another connection may take it */
	channel_cancel(&b.call);
	client_end();
	assert_asked_status(&a, GRPC_UNAVAILABLE);
	cr_assert_not_null(strstr(a.message, "out of memory"));
}

/* ---- what it waits for ---- */

Test(client, it_is_busy_with_a_call_and_idle_since)
{
	uint64_t since = 0, began = ring_now_ns(ring);
	pass_ms(1000);
	cr_assert_eq(client->ops->waits(client, &since), SESSION_IDLE);
	cr_assert_leq(since, began);
	begin(true);
	cr_assert_eq(client->ops->waits(client, &since), SESSION_BUSY);
	pass_ms(1000);
	uint64_t answered = ring_now_ns(ring);
	answer("hello");
	assert_asked_text(&a, "hello");
	cr_assert_eq(client->ops->waits(client, &since), SESSION_IDLE);
	cr_assert_eq(since, answered);
}

/* ---- streams that were not sent ---- */

/* The peer leaves before it has heard of the call, which can be made anew elsewhere. */
Test(client, a_call_that_was_not_sent_when_its_peer_left)
{
	cr_assert(start(&a, true));
	cr_assert_not(a.call.sent);
	say_goaway(0, NGHTTP2_NO_ERROR);
	output();
	assert_asked_status(&a, GRPC_UNAVAILABLE);
	cr_assert_not(a.sent);
	cr_assert_eq(a.ends, 1);
	cr_assert_not(has_frame(&heard, NGHTTP2_HEADERS));
	uint64_t since;
	cr_assert_eq(client->ops->waits(client, &since), SESSION_IDLE);
}

/* ---- a peer that asks and does not read ---- */

Test(client, more_questions_than_answers_are_taken)
{
	int res = 0;
	unsigned pings = 0;
	begin(true);
	for (; res == 0 && pings < 100000; pings++) {
		struct buf bytes = {0};
		frame(&bytes, NGHTTP2_PING, 0, 0, "12345678", 8);
		res = feed(&bytes);
	}
	cr_assert_eq(res, -EPROTO);
	cr_assert_lt(pings, 10000);
	cr_assert_eq(state(), H2_CLIENT_OVER);
	struct buf more = {0};
	frame(&more, NGHTTP2_PING, 0, 0, "12345678", 8);
	cr_assert_eq(feed(&more), -EPROTO);
	client_end();
	assert_asked_status(&a, GRPC_UNAVAILABLE);
	cr_assert_eq(strncmp(a.message, "the connection is lost: ", 24), 0, "%s", a.message);
	cr_assert(a.sent);
}
