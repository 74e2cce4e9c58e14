/* SPDX-License-Identifier: Apache-2.0 */
/* Requests whose end is not what their beginning said, and what is left of them in the counters of
 * the connection. Fed from memory, on a virtual clock. */
#include "peer_env.h"

#include "rpc/call.h"

TestSuite(requests, .init = setup, .fini = teardown);

static const struct h2_conn *conn(void)
{
	return container_of(p->session, const struct h2_conn, base);
}

static int32_t ask(const char *path, const struct buf *body, size_t len, const char *const *extra)
{
	int32_t id = peer_request(p, &(struct request){.path = path,
					     .extra = extra,
					     .body = body->data,
					     .len = len,
					     .stay_open = true});
	peer_pump(p);
	return id;
}

/* So many bytes more of what was begun; the end, too. */
static void go_on(int32_t id, size_t len, bool ends)
{
	answer_at(p, id)->body_len += len;
	answer_at(p, id)->stay_open = !ends;
	nghttp2_session_resume_data(p->client, id);
	peer_pump(p);
}

static void check_reset(int32_t id)
{
	const struct answer *a = answer_at(p, id);
	cr_assert(a->closed);
	cr_assert_eq(a->rst, NGHTTP2_PROTOCOL_ERROR);
	cr_assert_eq(a->headers, 0);
	cr_assert_eq(peer_streams(p), 0);
}

static void check_refused(int32_t id, enum grpc_status status, const char *why)
{
	assert_answer(p, id, status);
	cr_assert_str_eq(answer_at(p, id)->message, why);
	cr_assert(answer_at(p, id)->closed);
	cr_assert_eq(peer_streams(p), 0);
	cr_assert_eq(conn()->partial_bytes, 0);
}

/* ---- a length that was announced ---- */

Test(requests, a_body_of_another_length_than_announced)
{
	static const char *const paths[] = {"/test.v1.Test/Echo", "/test.v1.Test/Chat"};
	struct buf b = {0};
	char length[16];
	text_frame(&b, "sound", 5);
	for (unsigned i = 0; i < 2; i++)
		for (size_t said = b.len - 1; said <= b.len + 1; said++) {
			world.echoes = world.chats = 0;
			snprintf(length, sizeof(length), "%zu", said);
			int32_t id = ask(paths[i], &b, b.len - 1, usual("content-length", length));
			cr_assert_not(answer_at(p, id)->closed);
			go_on(id, 1, false);
			/* Too long shows at once, too short at the end. */
			cr_assert_eq(answer_at(p, id)->closed, said < b.len);
			if (said >= b.len)
				go_on(id, 0, true);
			if (said == b.len)
				assert_text(p, id, "sound", 5);
			else if (i == 0 || said < b.len)
				check_reset(id);
			cr_assert_eq(world.echoes, said == b.len && i == 0);
			cr_assert_eq(peer_streams(p), 0);
			cr_assert_eq(conn()->partial_bytes, 0);
		}
	buf_free(&b);
}

/* One that is no gRPC gets its text only if it is sound otherwise. */
Test(requests, a_refused_body_of_another_length_than_announced)
{
	struct buf b = {0};
	char length[16];
	text_frame(&b, "html", 4);
	for (size_t said = b.len - 1; said <= b.len + 1; said++) {
		snprintf(length, sizeof(length), "%zu", said);
		int32_t id = ask("/test.v1.Test/Echo", &b, b.len,
			usual("content-type", "text/html", "content-length", length));
		cr_assert_eq(answer_at(p, id)->closed, said < b.len);
		if (said >= b.len)
			go_on(id, 0, true);
		if (said == b.len)
			cr_assert_eq(answer_at(p, id)->http, 415);
		else
			check_reset(id);
		cr_assert_eq(peer_streams(p), 0);
	}
	cr_assert_eq(world.echoes, 0);
	buf_free(&b);
}

/* The client takes nothing, not even the reset: what the request took is given back nevertheless,
 * and what it has still to say changes nothing. */
Test(requests, what_was_reset_keeps_nothing)
{
	static uint8_t text[5000];
	nghttp2_nv trailer = {(uint8_t *)"x", (uint8_t *)"y", 1, 1, 0};
	struct buf b = {0};
	text_frame(&b, text, sizeof(text));
	for (unsigned i = 0; i < 6; i++) {
		bool trailers = i % 2 == 0, chat = i / 2 == 1, whole = i / 2 == 2;
		p->deaf = true;
		int32_t id = peer_request(
			p, &(struct request){
				   .path = chat ? "/test.v1.Test/Chat" : "/test.v1.Test/Echo",
				   .extra = usual("content-length", trailers ? "9999" : "4000"),
				   .body = b.data,
				   .len = whole && !trailers ? b.len : 3000,
				   .stay_open = !whole || trailers});
		peer_pump(p);
		if (trailers) {
			cr_assert_gt(grpc_registry_memory(p->registry), 0);
			cr_assert_eq(nghttp2_submit_headers(p->client, NGHTTP2_FLAG_NONE, id, NULL,
					     &trailer, 1, NULL),
				0);
			peer_pump(p);
		} else if (!whole) {
			cr_assert_gt(grpc_registry_memory(p->registry), 0);
			go_on(id, 2000, false);
		}
		cr_assert_eq(peer_streams(p), 1, "case %u", i);
		cr_assert_eq(conn()->partial_bytes, 0, "case %u", i);
		cr_assert_eq(grpc_registry_memory(p->registry), 0, "case %u", i);
		p->deaf = false;
		peer_pump(p);
		check_reset(id);
		cr_assert_eq(world.echoes + world.chats, 0);
	}
	buf_free(&b);
}

/* What comes behind an answer is not looked at, however malformed. */
Test(requests, malformed_trailers_of_an_answered_request)
{
	nghttp2_nv trailer = {(uint8_t *)"x", (uint8_t *)"y", 1, 1, 0};
	p->deaf = true;
	int32_t id = peer_request(p,
		&(struct request){.path = "/test.v1.Test/Nothing", .body = "", .stay_open = true});
	peer_pump(p);
	cr_assert_eq(
		nghttp2_submit_headers(p->client, NGHTTP2_FLAG_NONE, id, NULL, &trailer, 1, NULL),
		0);
	peer_pump(p);
	p->deaf = false;
	peer_pump(p);
	cr_assert(answer_at(p, id)->closed);
	cr_assert_eq(peer_streams(p), 0);
	assert_text(p, peer_call(p, "/test.v1.Test/Echo", "alive", NULL), "alive", 5);
}

/* ---- more than one message, and less ---- */

/* The whole message comes as one chunk of a frame that goes on. */
Test(requests, a_frame_with_more_than_its_message)
{
	struct buf b = {0};
	text_frame(&b, "one", 3);
	cr_assert_eq(buf_append(&b, "", 1), 0);
	for (size_t chunk = 1; chunk < 200; chunk++) {
		p->chunk = chunk;
		int32_t id = peer_request(
			p, &(struct request){
				   .path = "/test.v1.Test/Echo", .body = b.data, .len = b.len});
		peer_pump(p);
		check_refused(id, GRPC_INTERNAL, "more than one message in a unary request");
	}
	cr_assert_eq(world.echoes, 0);
	buf_free(&b);
}

/* What cannot become right is answered before it has ended. */
Test(requests, what_is_wrong_is_told_at_once)
{
	static const struct {
		const char *path, *body;
		size_t len; /* its last byte tells */
		enum grpc_status status;
		const char *why;
	} cases[] = {
		{"/test.v1.Test/Echo", "\0\0\0\0\0\0", 6, GRPC_INTERNAL,
			"more than one message in a unary request"},
		{"/test.v1.Test/Echo", "\1\0\0\0\1", 5, GRPC_INTERNAL,
			"a compressed message without grpc-encoding"},
		{"/test.v1.Test/Chat", "\1\0\0\0\1", 5, GRPC_INTERNAL,
			"a compressed message without grpc-encoding"},
		{"/test.v1.Test/Echo", "\0\0\x40\0\1", 5, GRPC_RESOURCE_EXHAUSTED,
			"the request is larger than 4 MiB"},
		{"/test.v1.Test/Chat", "\0\0\x40\0\1", 5, GRPC_RESOURCE_EXHAUSTED,
			"the request is larger than 4 MiB"},
		{"/test.v1.Test/Chat", "\0\0\0\0\1\xFF", 6, GRPC_INTERNAL,
			"the request cannot be decoded"},
	};
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct buf b = {0};
		cr_assert_eq(buf_append(&b, cases[i].body, cases[i].len), 0);
		int32_t id = ask(cases[i].path, &b, b.len - 1, NULL);
		cr_assert_not(answer_at(p, id)->closed, "case %zu", i);
		cr_assert_eq(conn()->partial_bytes, b.len - 1);
		go_on(id, 1, false);
		check_refused(id, cases[i].status, cases[i].why);
		buf_free(&b);
	}
	cr_assert_eq(world.echoes + world.chats, 0);
}

Test(requests, what_is_incomplete_is_counted_until_it_is_complete)
{
	struct buf b = {0};
	text_frame(&b, "first", 5);
	size_t first = b.len;
	text_frame(&b, "second", 6);
	int32_t chat = ask("/test.v1.Test/Chat", &b, first - 1, NULL);
	cr_assert_eq(conn()->partial_bytes, first - 1);
	go_on(chat, 1, false);
	cr_assert_eq(world.chats, 1);
	cr_assert_eq(conn()->partial_bytes, 0);
	go_on(chat, 3, false);
	cr_assert_eq(conn()->partial_bytes, 3);
	int32_t echo = ask("/test.v1.Test/Echo", &b, first - 2, NULL);
	cr_assert_eq(conn()->partial_bytes, 3 + first - 2);
	go_on(echo, 2, true);
	assert_text(p, echo, "first", 5);
	cr_assert_eq(conn()->partial_bytes, 3);
	go_on(chat, b.len - first - 3, false);
	cr_assert_eq(world.chats, 2);
	cr_assert_eq(conn()->partial_bytes, 0);
	/* Both at once, with a piece of a third. */
	b.len = 0;
	text_frame(&b, "a", 1);
	text_frame(&b, "b", 1);
	text_frame(&b, "c", 1);
	int32_t third = ask("/test.v1.Test/Chat", &b, b.len - 1, NULL);
	cr_assert_eq(world.chats, 4);
	cr_assert_eq(conn()->partial_bytes, b.len / 3 - 1);
	nghttp2_submit_rst_stream(p->client, NGHTTP2_FLAG_NONE, third, NGHTTP2_CANCEL);
	peer_pump(p);
	cr_assert_eq(conn()->partial_bytes, 0);
	go_on(chat, 0, true);
	assert_answer(p, chat, GRPC_OK);
	cr_assert_eq(peer_streams(p), 0);
	buf_free(&b);
}

/* ---- time ---- */

/* A message's time begins with its first byte, however old the stream is; a complete one ends it.
 */
Test(requests, each_message_of_a_stream_has_its_own_time)
{
	struct buf b = {0};
	text_frame(&b, "whole", 5);
	size_t whole = b.len;
	text_frame(&b, "whole", 5);
	text_frame(&b, "part", 4);
	int32_t id = ask("/test.v1.Test/Chat", &b, whole, NULL);
	peer_advance(p, p->limits.half_open_ms * 2);
	go_on(id, 2, false);
	peer_advance(p, p->limits.half_open_ms / 2);
	cr_assert_eq(answer_at(p, id)->grpc, -1);
	go_on(id, whole - 2, false);
	cr_assert_eq(world.chats, 2);
	peer_advance(p, p->limits.half_open_ms * 2);
	cr_assert_eq(answer_at(p, id)->grpc, -1);
	go_on(id, 2, false);
	peer_advance(p, p->limits.half_open_ms - 1000);
	cr_assert_eq(answer_at(p, id)->grpc, -1);
	peer_advance(p, 2000);
	assert_answer(p, id, GRPC_DEADLINE_EXCEEDED);
	cr_assert_str_eq(answer_at(p, id)->message, "the request was not complete in time");
	buf_free(&b);
}

/* A deadline that is further away than the clock can tell is none. */
Test(requests, deadlines_of_centuries)
{
	const uint64_t hour_ns = 3600ULL * 1000000000, hours = UINT64_MAX / hour_ns;
	char timeout[16];
	p->limits.idle_ms = 1 << 30;
	peer_reconnect(p);
	assert_text(p, peer_call(p, "/test.v1.Test/Echo", "x", NULL), "x", 1);
	peer_advance(p, (UINT64_MAX - hours * hour_ns) / 1000000);
	for (unsigned i = 0; i < 2; i++) {
		snprintf(timeout, sizeof(timeout), "%lluH", (unsigned long long)hours - i);
		peer_call(p, "/test.v1.Test/Hold", "x", usual("grpc-timeout", timeout));
		struct grpc_call *held = world.held;
		world.held = NULL;
		cr_assert_eq(grpc_call_deadline_ns(held),
			i == 0 ? UINT64_MAX : ring_now_ns(p->ring) + (hours - 1) * hour_ns);
		grpc_end(held, GRPC_OK, NULL);
		peer_pump(p);
	}
}

/* ---- leaving ---- */

/* What is no gRPC is not waited for; a stream without an end is not begun any more, by a client
 * that does not know yet. */
Test(requests, a_drain_meets_requests_on_their_way)
{
	struct buf b = {0};
	text_frame(&b, "late", 4);
	int32_t html = ask("/test.v1.Test/Echo", &b, 3, usual("content-type", "text/html"));
	int32_t begun = ask("/test.v1.Test/Echo", &b, 3, NULL);
	cr_assert_eq(answer_at(p, html)->http, -1);
	p->session->ops->drain(p->session);
	p->deaf = true;
	int32_t chat = ask("/test.v1.Test/Chat", &b, b.len, NULL);
	int32_t echo = ask("/test.v1.Test/Echo", &b, 3, NULL);
	p->deaf = false;
	go_on(begun, b.len - 3, true);
	cr_assert_eq(answer_at(p, html)->http, 415);
	cr_assert(answer_at(p, html)->closed);
	assert_answer(p, chat, GRPC_UNAVAILABLE);
	cr_assert_str_eq(answer_at(p, chat)->message, "the server shuts down");
	cr_assert_eq(world.chats, 0);
	assert_text(p, begun, "late", 4);
	go_on(echo, b.len - 3, true);
	assert_text(p, echo, "late", 4);
	cr_assert_eq(conn()->partial_bytes, 0);
	buf_free(&b);
}
