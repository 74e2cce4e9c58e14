/* SPDX-License-Identifier: Apache-2.0 */
/* Calls over HTTP/2, byte by byte: what a request may look like and what the answer to it is. */
#include "peer.h"

#include "reactor/ring_chore.h"

static struct peer *p;

static void setup(void)
{
	p = peer_new();
}

static void teardown(void)
{
	cr_assert_eq(grpc_registry_in_flight(p->registry), 0);
	peer_free(p);
}

TestSuite(calls, .init = setup, .fini = teardown);

Test(calls, unary)
{
	int32_t id = peer_call(p, "/test.v1.Test/Echo", "hello", NULL);
	assert_text(p, id, "hello", 5);
	cr_assert(answer_at(p, id)->closed);
	cr_assert_eq(answer_at(p, id)->rst, NGHTTP2_NO_ERROR);
	cr_assert_eq(world.checks, 1);
	cr_assert_eq(world.seen, 1);
	cr_assert_str_eq(world.seen_method, "/test.v1.Test/Echo");
	cr_assert_eq(peer_streams(p), 0);
}

Test(calls, message_split_at_every_boundary)
{
	struct buf b = {0};
	text_frame(&b, "hello, splits", 13);
	for (size_t frame = 1; frame <= b.len; frame++) {
		int32_t id = peer_request(p, &(struct request){.path = "/test.v1.Test/Echo",
						     .body = b.data,
						     .len = b.len,
						     .frame_max = frame});
		peer_pump(p);
		assert_text(p, id, "hello, splits", 13);
	}
	buf_free(&b);
}

/* The same for the transport: frames cut anywhere. */
Test(calls, bytes_fed_in_any_size)
{
	for (size_t chunk = 1; chunk < 80; chunk++) {
		p->chunk = chunk;
		assert_text(p, peer_call(p, "/test.v1.Test/Echo", "chunked", NULL), "chunked", 7);
	}
}

Test(calls, empty_message)
{
	static const uint8_t empty[5];
	int32_t id = peer_request(
		p, &(struct request){.path = "/test.v1.Test/Echo", .body = empty, .len = 5});
	peer_pump(p);
	assert_text(p, id, "", 0);
}

Test(calls, end_of_stream_in_an_empty_frame)
{
	struct buf b = {0};
	text_frame(&b, "later", 5);
	int32_t id = peer_request(p, &(struct request){.path = "/test.v1.Test/Echo",
					     .body = b.data,
					     .len = b.len,
					     .stay_open = true});
	peer_pump(p);
	cr_assert_eq(world.echoes, 0); /* not before the client has ended its side */
	answer_at(p, id)->stay_open = false;
	nghttp2_session_resume_data(p->client, id);
	peer_pump(p);
	assert_text(p, id, "later", 5);
	buf_free(&b);
}

Test(calls, status_and_message_are_trailers_only_and_encoded)
{
	int32_t id = peer_call(p, "/test.v1.Test/Fail", "n\xC3\xB6: 100%\n", NULL);
	assert_answer(p, id, GRPC_FAILED_PRECONDITION);
	cr_assert(answer_at(p, id)->trailers_only);
	cr_assert_str_eq(answer_at(p, id)->message, "n%C3%B6: 100%25%0A");
	cr_assert_eq(world.seen_status, GRPC_FAILED_PRECONDITION);
}

Test(calls, the_check_refuses_before_the_method)
{
	world.refuse = true;
	int32_t id = peer_call(p, "/test.v1.Test/Echo", "x", NULL);
	assert_answer(p, id, GRPC_INVALID_ARGUMENT);
	cr_assert_str_eq(answer_at(p, id)->message, "not like this");
	cr_assert_eq(world.echoes, 0);
}

Test(calls, unknown_methods)
{
	static const char *const paths[] = {"/test.v1.Test/Missing", "/test.v1.Test/Nope", "/",
		"/test.v1.Test", "/test.v1.Test/Echo/", "*", "test.v1.Test/Echo"};
	for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++) {
		int32_t id = peer_call(p, paths[i], "x", NULL);
		assert_answer(p, id, GRPC_UNIMPLEMENTED);
		cr_assert_str_eq(answer_at(p, id)->message, "unknown service or method");
		cr_assert_str_eq(world.seen_method, "unknown");
	}
}

Test(calls, content_types)
{
	static const struct {
		const char *type;
		bool ok;
	} types[] = {
		{"application/grpc", true}, {"application/grpc+proto", true},
		{"application/grpc;charset=utf-8", true}, {"application/grpc+proto;a=b", true},
		{"application/grpc+json", false}, {"application/grpc-web", false},
		{"application/json", false}, {"", false}, /* none */
	};
	for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
		int32_t id = peer_call(
			p, "/test.v1.Test/Echo", "x", usual("content-type", types[i].type));
		cr_assert_eq(answer_at(p, id)->http, types[i].ok ? 200 : 415, "%s", types[i].type);
		cr_assert(answer_at(p, id)->closed);
	}
	cr_assert_eq(peer_streams(p), 0);
}

Test(calls, only_post)
{
	int32_t id = peer_call(p, "/test.v1.Test/Echo", "x", usual(":method", "GET"));
	const struct answer *a = answer_at(p, id);
	cr_assert_eq(a->http, 405);
	cr_assert_eq(a->headers, 1); /* a text for people follows, no trailers */
	static const char text[] = "This is a gRPC server: POST application/grpc.\n";
	cr_assert_eq(a->data.len, strlen(text));
	cr_assert_eq(memcmp(a->data.data, text, strlen(text)), 0);
	cr_assert(a->closed);
}

Test(calls, authority_may_be_a_socket_path)
{
	int32_t id = peer_call(p, "/test.v1.Test/Echo", "x", usual(":authority", "/csi/csi.sock"));
	assert_text(p, id, "x", 1);
	id = peer_call(p, "/test.v1.Test/Echo", "x", usual(":authority", "", "te", ""));
	assert_text(p, id, "x", 1);
}

Test(calls, malformed_headers_reset_the_stream)
{
	const char *const *const cases[] = {
		usual(":path", ""),
		usual(":method", ""),
		usual(":scheme", ""),
		usual("connection", "close"),
		usual("transfer-encoding", "chunked"),
		usual("te", "gzip"),
		usual(":unknown", "x"),
	};
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		int32_t id = peer_call(p, "/test.v1.Test/Echo", "x", cases[i]);
		cr_assert(answer_at(p, id)->closed, "case %zu", i);
		cr_assert_neq(answer_at(p, id)->rst, NGHTTP2_NO_ERROR, "case %zu", i);
		cr_assert_eq(answer_at(p, id)->http, -1);
	}
	cr_assert_eq(world.echoes, 0);
	assert_text(p, peer_call(p, "/test.v1.Test/Echo", "alive", NULL), "alive", 5);
}

static void raw_body(
	const uint8_t *body, size_t len, const char *const *extra, int status, const char *why)
{
	for (size_t frame = 0; frame < 4; frame++) {
		int32_t id = peer_request(p, &(struct request){.path = "/test.v1.Test/Echo",
						     .extra = extra,
						     .body = body,
						     .len = len,
						     .frame_max = frame,
						     .no_body = len == 0});
		peer_pump(p);
		assert_answer(p, id, status);
		cr_assert_str_eq(answer_at(p, id)->message, why);
		cr_assert(answer_at(p, id)->closed);
	}
	cr_assert_eq(world.echoes, 0);
}

Test(calls, bodies_that_are_not_one_message)
{
	raw_body((const uint8_t *)"", 0, NULL, GRPC_INTERNAL, "a unary request without a message");
	raw_body((const uint8_t *)"\0\0", 2, NULL, GRPC_INTERNAL, "the message is incomplete");
	raw_body((const uint8_t *)"\0\0\0\0\2\x0A", 6, NULL, GRPC_INTERNAL,
		"the message is incomplete");
	raw_body((const uint8_t *)"\0\0\0\0\0\0\0\0\0\0", 10, NULL, GRPC_INTERNAL,
		"more than one message in a unary request");
	raw_body((const uint8_t *)"\0\0\0\0\0\0", 6, NULL, GRPC_INTERNAL,
		"more than one message in a unary request");
	raw_body((const uint8_t *)"\7\0\0\0\0", 5, NULL, GRPC_INTERNAL,
		"a compressed message without grpc-encoding");
}

Test(calls, bytes_that_do_not_decode)
{
	raw_body((const uint8_t *)"\0\0\0\0\2\x0A\x7F", 7, NULL, GRPC_INTERNAL,
		"the request cannot be decoded");
	raw_body((const uint8_t *)"\0\0\0\0\3\xFF\xFF\xFF", 8, NULL, GRPC_INTERNAL,
		"the request cannot be decoded");
}

Test(calls, compressed_messages)
{
	raw_body((const uint8_t *)"\1\0\0\0\1x", 6, usual("grpc-encoding", "gzip"),
		GRPC_UNIMPLEMENTED, "compressed messages are not supported");
	cr_assert(answer_at(p, 1)->accept_identity);
	raw_body((const uint8_t *)"\1\0\0\0\1x", 6, NULL, GRPC_INTERNAL,
		"a compressed message without grpc-encoding");
	raw_body((const uint8_t *)"\1\0\0\0\1x", 6, usual("grpc-encoding", "identity"),
		GRPC_INTERNAL, "a compressed message without grpc-encoding");
	/* Announced, but not used. */
	assert_text(p, peer_call(p, "/test.v1.Test/Echo", "plain", usual("grpc-encoding", "gzip")),
		"plain", 5);
}

Test(calls, four_mebibytes_and_one)
{
	struct buf b = {0};
	size_t room = GRPC_MESSAGE_MAX_BYTES - 5; /* tag and length of the text */
	uint8_t *text = calloc(1, room + 1);
	text_frame(&b, text, room);
	cr_assert_eq(b.len, GRPC_PREFIX_BYTES + GRPC_MESSAGE_MAX_BYTES);
	int32_t id = peer_request(
		p, &(struct request){.path = "/test.v1.Test/Echo", .body = b.data, .len = b.len});
	peer_pump(p);
	assert_text(p, id, text, room);

	b.len = 0;
	text_frame(&b, text, room + 1);
	id = peer_request(
		p, &(struct request){.path = "/test.v1.Test/Echo", .body = b.data, .len = b.len});
	peer_pump(p);
	assert_answer(p, id, GRPC_RESOURCE_EXHAUSTED);
	cr_assert_str_eq(answer_at(p, id)->message, "the request is larger than 4 MiB");
	cr_assert(answer_at(p, id)->closed);
	cr_assert_lt(answer_at(p, id)->body_at, b.len); /* the rest was not wanted */
	free(text);
	buf_free(&b);

	assert_answer(p, peer_call(p, "/test.v1.Test/Huge", "", NULL), GRPC_RESOURCE_EXHAUSTED);
}

Test(calls, many_streams_interleaved)
{
	struct buf b = {0};
	text_frame(&b, "many", 4);
	int32_t ids[100];
	for (unsigned i = 0; i < 100; i++)
		ids[i] = peer_request(p, &(struct request){.path = "/test.v1.Test/Echo",
						 .body = b.data,
						 .len = b.len,
						 .frame_max = 2});
	peer_pump(p);
	for (unsigned i = 0; i < 100; i++)
		assert_text(p, ids[i], "many", 4);
	buf_free(&b);
}

/* ---- streams ---- */

Test(calls, server_streaming_with_pauses)
{
	world.flood_left = 1000;
	world.flood_bytes = 1000;
	int32_t id = peer_call(p, "/test.v1.Test/Flood", "", NULL);
	assert_answer(p, id, GRPC_OK);
	cr_assert_eq(answer_at(p, id)->data.len, 1000u * (1000 + 3 + GRPC_PREFIX_BYTES));
	cr_assert_gt(world.flood_pauses, 5); /* it was not all queued at once */
}

Test(calls, server_streaming_through_a_window_of_one_byte)
{
	nghttp2_settings_entry tiny = {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, 1};
	cr_assert_eq(nghttp2_submit_settings(p->client, NGHTTP2_FLAG_NONE, &tiny, 1), 0);
	peer_pump(p);
	assert_text(p, peer_call(p, "/test.v1.Test/Echo", "through", NULL), "through", 7);
}

Test(calls, client_streaming_answers_each_message)
{
	struct buf b = {0};
	for (unsigned i = 0; i < 5; i++)
		text_frame(&b, "line", 4);
	/* Several in one frame, then one frame for each few bytes. */
	for (size_t frame = 0; frame < 12; frame++) {
		world.chats = 0;
		int32_t id = peer_request(p, &(struct request){.path = "/test.v1.Test/Chat",
						     .body = b.data,
						     .len = b.len,
						     .frame_max = frame});
		peer_pump(p);
		assert_answer(p, id, GRPC_OK);
		cr_assert_eq(world.chats, 5);
		cr_assert_eq(answer_at(p, id)->data.len, b.len);
		cr_assert_eq(memcmp(answer_at(p, id)->data.data, b.data, b.len), 0);
	}
	buf_free(&b);
	int32_t id =
		peer_request(p, &(struct request){.path = "/test.v1.Test/Chat", .no_body = true});
	peer_pump(p);
	assert_answer(p, id, GRPC_OK);
}

Test(calls, client_streaming_ends_in_the_middle_of_a_message)
{
	struct buf b = {0};
	text_frame(&b, "whole", 5);
	text_frame(&b, "part", 4);
	int32_t id = peer_request(p,
		&(struct request){.path = "/test.v1.Test/Chat", .body = b.data, .len = b.len - 1});
	peer_pump(p);
	assert_answer(p, id, GRPC_INTERNAL);
	cr_assert_eq(world.chats, 1);
	cr_assert_eq(world.gone, 1);
	buf_free(&b);
}

/* What is wrong ends the stream, once: its bytes do not reach the method. */
Test(calls, client_streaming_with_a_wrong_message)
{
	static const struct {
		uint8_t prefix, first;
	} wrong[] = {{1, 0x0a}, {0, 0xff}}; /* compressed, and no message */
	uint8_t text[100] = {0};
	for (size_t i = 0; i < 2; i++) {
		struct buf b = {0};
		text_frame(&b, text, sizeof(text));
		size_t second = b.len;
		text_frame(&b, "wrong", 5);
		b.data[second] = wrong[i].prefix;
		b.data[second + GRPC_PREFIX_BYTES] = wrong[i].first;
		world.chats = world.seen = 0;
		int32_t id = peer_request(
			p, &(struct request){
				   .path = "/test.v1.Test/Chat", .body = b.data, .len = b.len});
		peer_pump(p);
		assert_answer(p, id, GRPC_INTERNAL);
		cr_assert_eq(world.chats, 1);
		cr_assert_eq(world.seen, 1, "it was run again");
		buf_free(&b);
	}
}

/* The method ends its call while messages, and their end, wait for it. */
Test(calls, client_streaming_that_ends_before_its_client)
{
	struct buf b = {0};
	uint8_t text[1000] = {0};
	for (unsigned i = 0; i < 100; i++)
		text_frame(&b, text, sizeof(text));
	nghttp2_settings_entry shut = {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, 0};
	cr_assert_eq(nghttp2_submit_settings(p->client, NGHTTP2_FLAG_NONE, &shut, 1), 0);
	peer_pump(p);
	world.chats_last = 80;
	int32_t id = peer_request(
		p, &(struct request){.path = "/test.v1.Test/Chat", .body = b.data, .len = b.len});
	peer_pump(p);
	cr_assert_eq(answer_at(p, id)->body_at, b.len);
	cr_assert_lt(world.chats, 80);
	nghttp2_settings_entry open = {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, 1 << 20};
	cr_assert_eq(nghttp2_submit_settings(p->client, NGHTTP2_FLAG_NONE, &open, 1), 0);
	peer_pump(p);
	assert_answer(p, id, GRPC_ABORTED);
	cr_assert_eq(answer_at(p, id)->data.len, b.len / 100 * 79);
	cr_assert_eq(world.chats, 80);
	cr_assert_eq(world.seen, 1, "it was run again");
	cr_assert_eq(peer_streams(p), 0);
	buf_free(&b);
}

/* A client that sends and never reads is made to wait; nothing piles up here. */
Test(calls, client_streaming_against_a_deaf_client)
{
	struct buf b = {0};
	uint8_t *text = calloc(1, 1000);
	while (b.len < 4u << 20)
		text_frame(&b, text, 1000);
	nghttp2_settings_entry shut = {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, 0};
	cr_assert_eq(nghttp2_submit_settings(p->client, NGHTTP2_FLAG_NONE, &shut, 1), 0);
	peer_pump(p);
	int32_t id = peer_request(
		p, &(struct request){.path = "/test.v1.Test/Chat", .body = b.data, .len = b.len});
	peer_pump(p);
	cr_assert_lt(answer_at(p, id)->body_at, 600u << 10);
	cr_assert_lt(world.chats, 200);
	nghttp2_settings_entry open = {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, 1 << 20};
	cr_assert_eq(nghttp2_submit_settings(p->client, NGHTTP2_FLAG_NONE, &open, 1), 0);
	peer_pump(p);
	assert_answer(p, id, GRPC_OK);
	cr_assert_eq(answer_at(p, id)->data.len, b.len);
	buf_free(&b);
	free(text);
}

/* ---- ends ---- */

static void release_held(enum grpc_status status)
{
	struct grpc_call *call = world.held;
	world.held = NULL;
	grpc_end(call, status, NULL);
	peer_pump(p);
}

Test(calls, an_answer_that_comes_later_wakes_the_connection)
{
	int32_t id = peer_call(p, "/test.v1.Test/Hold", "x", NULL);
	cr_assert_eq(grpc_registry_in_flight(p->registry), 1);
	cr_assert_eq(p->wakes, 0);
	release_held(GRPC_OK);
	cr_assert_geq(p->wakes, 1);
	assert_answer(p, id, GRPC_OK);
	cr_assert_eq(world.gone, 0);
}

Test(calls, a_cancelled_call_stays_until_its_method_ends_it)
{
	int32_t id = peer_call(p, "/test.v1.Test/Hold", "x", NULL);
	nghttp2_submit_rst_stream(p->client, NGHTTP2_FLAG_NONE, id, NGHTTP2_CANCEL);
	peer_pump(p);
	cr_assert_eq(world.gone, 1);
	cr_assert(grpc_call_gone(world.held));
	cr_assert_eq(peer_streams(p), 0);
	cr_assert_eq(grpc_registry_in_flight(p->registry), 1);
	text_message text = TEXT_INIT;
	cr_assert(grpc_send(world.held, &text.base));
	release_held(GRPC_OK);
	cr_assert_eq(world.seen_status, GRPC_CANCELLED);
	assert_text(p, peer_call(p, "/test.v1.Test/Echo", "alive", NULL), "alive", 5);
}

Test(calls, a_request_reset_in_the_middle_is_forgotten)
{
	struct buf b = {0};
	text_frame(&b, "partial", 7);
	int32_t id = peer_request(p, &(struct request){.path = "/test.v1.Test/Echo",
					     .body = b.data,
					     .len = b.len - 2,
					     .stay_open = true});
	peer_pump(p);
	nghttp2_submit_rst_stream(p->client, NGHTTP2_FLAG_NONE, id, NGHTTP2_CANCEL);
	peer_pump(p);
	cr_assert_eq(peer_streams(p), 0);
	cr_assert_eq(world.echoes, 0);
	buf_free(&b);
}

Test(calls, a_flood_is_reset_in_the_middle)
{
	nghttp2_settings_entry small = {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, 5000};
	cr_assert_eq(nghttp2_submit_settings(p->client, NGHTTP2_FLAG_NONE, &small, 1), 0);
	world.flood_left = 1000;
	world.flood_bytes = 1000;
	p->deaf = true;
	int32_t id = peer_call(p, "/test.v1.Test/Flood", "", NULL);
	cr_assert_gt(world.flood_left, 0);
	nghttp2_submit_rst_stream(p->client, NGHTTP2_FLAG_NONE, id, NGHTTP2_CANCEL);
	peer_pump(p);
	cr_assert_eq(grpc_registry_in_flight(p->registry), 0);
	p->deaf = false; /* nothing waits for room any more */
	peer_pump(p);
	assert_text(p, peer_call(p, "/test.v1.Test/Echo", "alive", NULL), "alive", 5);
}

Test(calls, a_lost_connection_leaves_the_call)
{
	peer_call(p, "/test.v1.Test/Hold", "x", NULL);
	peer_reconnect(p);
	cr_assert_eq(world.gone, 1);
	release_held(GRPC_OK);
}

/* ---- what nobody waits for stands behind calls ---- */

/* From its method's begin to its answer, or to its end without one; streams of the client's, and
 * watches, may last for ever. */
Test(calls, chores_wait_for_those_that_run)
{
	cr_assert_not(ring_chores_wait(p->ring));
	assert_text(p, peer_call(p, "/test.v1.Test/Echo", "x", NULL), "x", 1);
	cr_assert_not(ring_chores_wait(p->ring));
	peer_call(p, "/test.v1.Test/Hold", "x", NULL);
	cr_assert(ring_chores_wait(p->ring));
	release_held(GRPC_OK);
	cr_assert_not(ring_chores_wait(p->ring));

	/* An answer that nobody reads is one. */
	p->deaf = true;
	peer_call(p, "/test.v1.Test/Hold", "x", NULL);
	cr_assert(ring_chores_wait(p->ring));
	release_held(GRPC_OK);
	cr_assert_eq(peer_streams(p), 1);
	cr_assert_not(ring_chores_wait(p->ring));
	p->deaf = false;

	int32_t id = peer_call(p, "/test.v1.Test/Hold", "x", NULL);
	cr_assert(ring_chores_wait(p->ring));
	nghttp2_submit_rst_stream(p->client, NGHTTP2_FLAG_NONE, id, NGHTTP2_CANCEL);
	peer_pump(p);
	cr_assert_not(ring_chores_wait(p->ring));
	release_held(GRPC_OK);

	struct buf b = {0};
	text_frame(&b, "line", 4);
	peer_request(p, &(struct request){.path = "/test.v1.Test/Chat",
				.body = b.data,
				.len = b.len,
				.stay_open = true});
	peer_pump(p);
	cr_assert_eq(grpc_registry_in_flight(p->registry), 1);
	cr_assert_not(ring_chores_wait(p->ring));
	buf_free(&b);

	peer_call(p, "/test.v1.Test/Hold", "x", NULL);
	cr_assert(ring_chores_wait(p->ring));
	peer_reconnect(p);
	cr_assert_not(ring_chores_wait(p->ring));
	release_held(GRPC_OK);
}

/* ---- deadlines ---- */

Test(calls, the_deadline_answers_and_leaves_the_call)
{
	int32_t id = peer_call(p, "/test.v1.Test/Hold", "x", usual("grpc-timeout", "100m"));
	cr_assert_lt(grpc_call_deadline_ns(world.held), UINT64_MAX);
	peer_advance(p, 99);
	cr_assert_eq(world.gone, 0);
	peer_advance(p, 2);
	assert_answer(p, id, GRPC_DEADLINE_EXCEEDED);
	cr_assert_eq(world.gone, 1);
	cr_assert(answer_at(p, id)->closed);
	release_held(GRPC_OK);
	cr_assert_eq(world.seen_status, GRPC_DEADLINE_EXCEEDED);
}

/* Nothing is due of a call that its client has given up. */
Test(calls, a_deadline_goes_with_its_stream)
{
	int32_t id = peer_call(p, "/test.v1.Test/Hold", "x", usual("grpc-timeout", "100m"));
	nghttp2_submit_rst_stream(p->client, NGHTTP2_FLAG_NONE, id, NGHTTP2_CANCEL);
	peer_pump(p);
	release_held(GRPC_OK);
	cr_assert_gt(ring_timer_next_ns(p->ring), ring_now_ns(p->ring) + 100000000);
}

Test(calls, timeouts)
{
	static const struct {
		const char *text;
		int status;
	} cases[] = {
		{"1S", GRPC_OK},
		{"99999999H", GRPC_OK},
		{"1n", GRPC_OK},
		{"5u", GRPC_OK},
		{"2M", GRPC_OK},
		{"0S", GRPC_DEADLINE_EXCEEDED},
		{"S", GRPC_INTERNAL},
		{"1", GRPC_INTERNAL},
		{"123456789S", GRPC_INTERNAL},
		{"-1S", GRPC_INTERNAL},
		{"1s", GRPC_INTERNAL},
		{" 1S", GRPC_INTERNAL},
	};
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		int32_t id = peer_call(
			p, "/test.v1.Test/Echo", "x", usual("grpc-timeout", cases[i].text));
		cr_assert_eq(answer_at(p, id)->grpc, cases[i].status, "%s", cases[i].text);
	}
}

Test(calls, the_deadline_passes_before_the_request_is_complete)
{
	struct buf b = {0};
	text_frame(&b, "slow", 4);
	int32_t id = peer_request(p, &(struct request){.path = "/test.v1.Test/Echo",
					     .body = b.data,
					     .len = b.len - 1,
					     .stay_open = true,
					     .extra = usual("grpc-timeout", "10m")});
	peer_pump(p);
	peer_advance(p, 11);
	assert_answer(p, id, GRPC_DEADLINE_EXCEEDED);
	cr_assert_eq(world.echoes, 0);
	buf_free(&b);
}
