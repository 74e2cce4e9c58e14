/* SPDX-License-Identifier: Apache-2.0 */
/* Connections: what a slow, greedy or leaving client meets. Fed from memory, on a virtual clock. */
#include "peer_env.h"

TestSuite(connection, .init = setup, .fini = teardown);

static void ping(void)
{
	cr_assert_eq(nghttp2_submit_ping(p->client, NGHTTP2_FLAG_NONE, NULL), 0);
	peer_pump(p);
}

/* ---- keepalive ---- */

Test(connection, pings_are_answered)
{
	for (unsigned i = 0; i < 20; i++) {
		ping();
		peer_advance(p, p->limits.ping_min_ms + 1);
	}
	cr_assert_eq(p->pongs, 20);
	cr_assert_not(p->goaway);
}

Test(connection, too_many_pings)
{
	peer_pump(p);
	for (unsigned i = 0; i < 3; i++)
		ping();
	cr_assert_not(p->goaway);
	ping();
	cr_assert(p->goaway);
	cr_assert_eq(p->goaway_code, NGHTTP2_ENHANCE_YOUR_CALM);
	cr_assert_str_eq(p->goaway_debug, "too_many_pings");
	cr_assert(p->session->ops->finished(p->session));
	cr_assert_eq(p->session->end, SESSION_END_TOO_MANY_PINGS);
}

Test(connection, pings_after_answers_are_no_strikes)
{
	for (unsigned i = 0; i < 20; i++) {
		peer_call(p, "/test.v1.Test/Echo", "x", NULL);
		ping();
	}
	cr_assert_not(p->goaway);
}

/* ---- slow and half open ---- */

Test(connection, no_preface)
{
	sim_pass_ms(p->ring, p->limits.half_open_ms + 1);
	struct buf out = {0};
	p->session->ops->output(p->session, &out, 65536);
	cr_assert(p->session->ops->finished(p->session));
	cr_assert_eq(p->session->end, SESSION_END_HALF_OPEN);
	buf_free(&out);
}

Test(connection, a_request_that_drips)
{
	struct buf b = {0};
	text_frame(&b, "drip, drip, drip", 16);
	int32_t id = peer_request(p,
		&(struct request){
			.path = "/test.v1.Test/Echo", .body = b.data, .len = 3, .stay_open = true});
	struct answer *a = answer_at(p, id);
	peer_pump(p);
	for (unsigned i = 0; i < 5; i++) {
		peer_advance(p, p->limits.half_open_ms / 4);
		a->body_len++;
		nghttp2_session_resume_data(p->client, id);
		peer_pump(p);
	}
	assert_answer(p, id, GRPC_DEADLINE_EXCEEDED);
	cr_assert(a->closed);
	cr_assert_eq(peer_streams(p), 0);
	assert_text(p, peer_call(p, "/test.v1.Test/Echo", "alive", NULL), "alive", 5);
	buf_free(&b);
}

/* Answers that are complete before their request leave the list of the half open. */
Test(connection, refused_requests_that_never_end)
{
	const char *const *extra[] = {usual("content-type", "text/html"), usual(":path", "/nope"),
		usual(":method", "PUT")};
	int32_t ids[3];
	for (unsigned i = 0; i < 3; i++) {
		ids[i] = peer_request(p, &(struct request){.path = "/test.v1.Test/Echo",
						 .extra = extra[i],
						 .body = "",
						 .stay_open = true});
		peer_pump(p);
	}
	cr_assert(answer_at(p, ids[1])->closed);
	cr_assert_not(answer_at(p, ids[0])->closed); /* it is waited for, but not for ever */
	peer_advance(p, p->limits.half_open_ms * 2);
	cr_assert_eq(answer_at(p, ids[0])->http, 415);
	cr_assert_eq(answer_at(p, ids[2])->http, 405);
	for (unsigned i = 0; i < 3; i++)
		cr_assert(answer_at(p, ids[i])->closed);
	cr_assert_eq(peer_streams(p), 0);
	assert_text(p, peer_call(p, "/test.v1.Test/Echo", "alive", NULL), "alive", 5);
}

Test(connection, a_message_that_drips_into_a_client_stream)
{
	struct buf b = {0};
	text_frame(&b, "whole", 5);
	text_frame(&b, "part", 4);
	int32_t id = peer_request(p, &(struct request){.path = "/test.v1.Test/Chat",
					     .body = b.data,
					     .len = 12,
					     .stay_open = true});
	peer_pump(p);
	peer_advance(p, p->limits.half_open_ms * 3); /* nothing is due: it may be silent */
	cr_assert_eq(peer_streams(p), 1);
	answer_at(p, id)->body_len = 14;
	nghttp2_session_resume_data(p->client, id);
	peer_pump(p);
	peer_advance(p, p->limits.half_open_ms + 1);
	assert_answer(p, id, GRPC_DEADLINE_EXCEEDED);
	cr_assert_eq(world.gone, 1);
	buf_free(&b);
}

Test(connection, incomplete_requests_are_limited_in_sum)
{
	struct buf b = {0};
	enum { ALL = GRPC_MESSAGE_MAX_BYTES - 5 /* the text's tag and length */ };
	uint8_t *text = calloc(1, ALL);
	text_frame(&b, text, ALL);
	/* Two of 4 MiB fit exactly, and not a byte besides. */
	int32_t ids[3];
	size_t memory = 0;
	for (unsigned i = 0; i < 3; i++) {
		memory = grpc_registry_memory(p->registry);
		p->deaf = i == 2;
		ids[i] = peer_request(p, &(struct request){.path = "/test.v1.Test/Echo",
						 .body = b.data,
						 .len = i < 2 ? b.len - GRPC_PREFIX_BYTES : 1,
						 .stay_open = true});
		peer_pump(p);
	}
	/* Of the third nothing is kept, also as long as its client has not heard of it. */
	cr_assert_eq(peer_streams(p), 3);
	cr_assert_eq(grpc_registry_memory(p->registry), memory);
	p->deaf = false;
	peer_pump(p);
	assert_answer(p, ids[2], GRPC_RESOURCE_EXHAUSTED);
	cr_assert_str_eq(answer_at(p, ids[2])->message, "too much of incomplete requests");
	cr_assert_eq(answer_at(p, ids[0])->grpc, -1);
	cr_assert_eq(answer_at(p, ids[1])->grpc, -1);
	/* The room of one that is gone is the other's. */
	nghttp2_submit_rst_stream(p->client, NGHTTP2_FLAG_NONE, ids[0], NGHTTP2_CANCEL);
	peer_pump(p);
	answer_at(p, ids[1])->body_len += GRPC_PREFIX_BYTES;
	answer_at(p, ids[1])->stay_open = false;
	nghttp2_session_resume_data(p->client, ids[1]);
	peer_pump(p);
	assert_text(p, ids[1], text, ALL);
	free(text);
	buf_free(&b);
}

Test(connection, idle)
{
	p->limits.idle_ms = 1000;
	peer_reconnect(p);
	peer_advance(p, 900);
	peer_call(p, "/test.v1.Test/Echo", "x", NULL);
	peer_advance(p, 900);
	cr_assert_not(p->goaway);
	peer_advance(p, 200);
	cr_assert(p->goaway);
	cr_assert_eq(p->goaway_code, NGHTTP2_NO_ERROR);
	cr_assert(p->session->ops->finished(p->session));
}

Test(connection, responses_that_nobody_reads)
{
	nghttp2_settings_entry shut = {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, 0};
	cr_assert_eq(nghttp2_submit_settings(p->client, NGHTTP2_FLAG_NONE, &shut, 1), 0);
	peer_call(p, "/test.v1.Test/Echo", "x", NULL);
	peer_advance(p, p->limits.write_stall_ms + 1);
	cr_assert(p->goaway);
	cr_assert_eq(p->session->end, SESSION_END_STALLED);
}

/* ---- limits ---- */

/* A client that reads nothing has one large answer made for it; its other calls wait until it reads
 * on, and are answered then. */
Test(connection, large_answers_that_nobody_reads)
{
	enum { LARGE = 4000000, ALL = 8 };
	nghttp2_settings_entry shut = {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, 0};
	cr_assert_eq(nghttp2_submit_settings(p->client, NGHTTP2_FLAG_NONE, &shut, 1), 0);
	struct buf b = {0};
	uint8_t *text = calloc(1, LARGE);
	text_frame(&b, text, LARGE);
	int32_t ids[ALL];
	for (unsigned i = 0; i < ALL; i++) {
		ids[i] = peer_request(
			p, &(struct request){
				   .path = "/test.v1.Test/Echo", .body = b.data, .len = b.len});
		peer_pump(p);
	}
	int32_t small = peer_call(p, "/test.v1.Test/Echo", "x", NULL);
	cr_assert_eq(world.echoes, 1);
	cr_assert_eq(answer_at(p, small)->grpc, -1);
	nghttp2_settings_entry wide = {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, 0x7FFFFFFF};
	cr_assert_eq(nghttp2_submit_settings(p->client, NGHTTP2_FLAG_NONE, &wide, 1), 0);
	peer_pump(p);
	for (unsigned i = 0; i < ALL; i++)
		assert_text(p, ids[i], text, LARGE);
	assert_text(p, small, "x", 1);
	free(text);
	buf_free(&b);
}

/* A session that rests forgets what its last frame held, and sends the next one all the same; with
 * an answer half sent it keeps everything. */
Test(connection, a_rest)
{
	enum { LARGE = 200000 };
	struct buf b = {0};
	uint8_t *text = malloc(LARGE);
	memset(text, 'r', LARGE);
	text_frame(&b, text, LARGE);
	const struct request large = {.path = "/test.v1.Test/Echo", .body = b.data, .len = b.len};
	int32_t id = peer_request(p, &large);
	peer_pump(p);
	assert_text(p, id, text, LARGE);
	p->session->ops->rest(p->session);
	assert_text(p, peer_call(p, "/test.v1.Test/Echo", "x", NULL), "x", 1);
	nghttp2_settings_entry shut = {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, 0};
	cr_assert_eq(nghttp2_submit_settings(p->client, NGHTTP2_FLAG_NONE, &shut, 1), 0);
	id = peer_request(p, &large);
	peer_pump(p);
	cr_assert_eq(answer_at(p, id)->grpc, -1);
	p->session->ops->rest(p->session);
	nghttp2_settings_entry wide = {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, 0x7FFFFFFF};
	cr_assert_eq(nghttp2_submit_settings(p->client, NGHTTP2_FLAG_NONE, &wide, 1), 0);
	peer_pump(p);
	assert_text(p, id, text, LARGE);
	free(text);
	buf_free(&b);
}

/* By which the server closes one for another. A stream without an end keeps no place. */
Test(connection, what_it_waits_for)
{
	struct buf b = {0};
	text_frame(&b, "whole", 5);
	uint64_t since, begun = ring_now_ns(p->ring);
	cr_assert_eq(p->session->ops->waits(p->session, &since), SESSION_HALF_OPEN);
	cr_assert_eq(since, begun);
	peer_advance(p, 10);
	int32_t half = peer_request(p, &(struct request){.path = "/test.v1.Test/Echo",
					       .body = b.data,
					       .len = b.len - 1,
					       .stay_open = true});
	peer_pump(p);
	cr_assert_eq(p->session->ops->waits(p->session, &since), SESSION_HALF_OPEN);
	cr_assert_eq(since, ring_now_ns(p->ring));
	nghttp2_submit_rst_stream(p->client, NGHTTP2_FLAG_NONE, half, NGHTTP2_CANCEL);
	peer_pump(p);
	uint64_t idle = ring_now_ns(p->ring);
	peer_advance(p, 10);
	peer_request(p, &(struct request){.path = "/test.v1.Test/Chat",
				.body = b.data,
				.len = b.len,
				.stay_open = true});
	peer_pump(p);
	cr_assert_eq(world.chats, 1);
	cr_assert_eq(p->session->ops->waits(p->session, &since), SESSION_IDLE);
	cr_assert_eq(since, idle);
	peer_call(p, "/test.v1.Test/Hold", "x", NULL);
	cr_assert_eq(p->session->ops->waits(p->session, &since), SESSION_BUSY);
	grpc_end(world.held, GRPC_OK, NULL);
	cr_assert_eq(p->session->ops->waits(p->session, &since), SESSION_BUSY); /* unread yet */
	peer_pump(p);
	cr_assert_eq(p->session->ops->waits(p->session, &since), SESSION_IDLE);
	buf_free(&b);
}

Test(connection, streams)
{
	p->limits.streams = 3;
	peer_reconnect(p);
	peer_pump(p);
	cr_assert_eq(nghttp2_session_get_remote_settings(
			     p->client, NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS),
		3);
	for (unsigned i = 0; i < 5; i++)
		peer_request(
			p, &(struct request){
				   .path = "/test.v1.Test/Chat", .body = "", .stay_open = true});
	peer_pump(p);
	cr_assert_eq(peer_streams(p), 3);
}

Test(connection, header_lists)
{
	char value[4000];
	memset(value, 'h', sizeof(value) - 1);
	value[sizeof(value) - 1] = '\0';
	assert_answer(p,
		peer_call(p, "/test.v1.Test/Echo", "x", usual("a", value, "b", value, "c", value)),
		GRPC_OK);
	assert_answer(p,
		peer_call(p, "/test.v1.Test/Echo", "x",
			usual("a", value, "b", value, "c", value, "d", value, "e", value)),
		GRPC_RESOURCE_EXHAUSTED);
	cr_assert_eq(world.echoes, 1);
}

/* As HTTP/2 counts them: names, values and 32 bytes for each. */
Test(connection, header_lists_to_the_byte)
{
	enum { ALL = 1000 };
	static const char names_and_values[] = ":methodPOST:schemehttp:path/test.v1.Test/Echo"
					       ":authoritylocalhostcontent-typeapplication/grpc"
					       "tetrailersx";
	char value[ALL] = "";
	p->limits.header_bytes = ALL;
	peer_reconnect(p);
	memset(value, 'h', ALL - 7 * 32 - strlen(names_and_values));
	assert_answer(p, peer_call(p, "/test.v1.Test/Echo", "x", usual("x", value)), GRPC_OK);
	value[strlen(value)] = 'h';
	assert_answer(p, peer_call(p, "/test.v1.Test/Echo", "x", usual("x", value)),
		GRPC_RESOURCE_EXHAUSTED);
}

/* ---- leaving ---- */

Test(connection, a_drain_lets_streams_finish)
{
	int32_t held = peer_call(p, "/test.v1.Test/Hold", "x", NULL);
	p->session->ops->drain(p->session);
	peer_pump(p);
	cr_assert(p->goaway);
	cr_assert_eq(p->goaway_code, NGHTTP2_NO_ERROR);
	cr_assert_eq(p->goaway_last, held);
	cr_assert_not(p->session->ops->finished(p->session));
	struct grpc_call *call = world.held;
	grpc_end(call, GRPC_OK, NULL);
	peer_pump(p);
	assert_answer(p, held, GRPC_OK);
	cr_assert(p->session->ops->finished(p->session));
}

Test(connection, a_drain_ends_the_endless)
{
	struct buf b = {0};
	text_frame(&b, "chat", 4);
	int32_t id = peer_request(p, &(struct request){.path = "/test.v1.Test/Chat",
					     .body = b.data,
					     .len = b.len,
					     .stay_open = true});
	peer_pump(p);
	p->session->ops->drain(p->session);
	peer_pump(p);
	assert_answer(p, id, GRPC_UNAVAILABLE);
	cr_assert_eq(world.gone, 1);
	cr_assert(p->session->ops->finished(p->session));
	buf_free(&b);
}

Test(connection, a_drain_does_not_wait_for_a_deaf_client)
{
	peer_pump(p);
	p->deaf = true;
	p->session->ops->drain(p->session);
	struct buf out = {0};
	p->session->ops->output(p->session, &out, 65536);
	cr_assert_not(p->session->ops->finished(p->session)); /* its ping is not answered */
	peer_advance(p, 1001);
	p->session->ops->output(p->session, &out, 65536);
	cr_assert(p->session->ops->finished(p->session));
	buf_free(&out);
}
