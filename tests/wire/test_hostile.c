/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clients that harm: malformed requests, floods of frames that ask for nothing, memory, and work at
 * the cost of others. Fed from memory, on a virtual clock.
 */
#include "frames.h"
#include "peer_env.h"

TestSuite(hostile, .init = setup, .fini = teardown);

/* Feeds, unless the connection is over, and appends what is answered. */
static void exchange(struct peer *peer, const struct buf *in, struct buf *out)
{
	peer_feed(peer, in->data, in->len);
	cr_assert(peer->session->ops->output(peer->session, out, SIZE_MAX / 4) <= 0);
}

/* ---- malformed requests ---- */

struct header {
	const char *name, *value;
};
#define LIST(...) ((const struct header[]){__VA_ARGS__, {NULL, NULL}})
#define GOOD                                                                                       \
	{":method", "POST"}, {":scheme", "http"}, {":path", "/test.v1.Test/Echo"},                 \
		{":authority", "localhost"},                                                       \
	{                                                                                          \
		"content-type", "application/grpc"                                                 \
	}

static const struct malformed {
	const char *what;
	const struct header *headers, *trailers; /* trailers: NULL: none */
	bool end_in_trailers;
	const char *data;
} malformed[] = {
	{"no method", LIST({":scheme", "http"}, {":path", "/"}, {":authority", "a"})},
	{"no path", LIST({":method", "POST"}, {":scheme", "http"}, {":authority", "a"})},
	{"no scheme", LIST({":method", "POST"}, {":path", "/"}, {":authority", "a"})},
	{"an empty path",
		LIST({":method", "POST"}, {":scheme", "http"}, {":path", ""}, {":authority", "a"})},
	{"two methods", LIST({":method", "POST"}, GOOD)},
	{"two paths", LIST({":path", "/"}, GOOD)},
	{"two schemes", LIST({":scheme", "http"}, GOOD)},
	{"a pseudo-header late", LIST({":method", "POST"}, {":scheme", "http"}, {"x", "y"},
					 {":path", "/test.v1.Test/Echo"}, {":authority", "a"})},
	{"an unknown pseudo-header", LIST({":x", "y"}, GOOD)},
	{"a response's pseudo-header", LIST({":status", "200"}, GOOD)},
	{"upper case", LIST(GOOD, {"X-Upper", "y"})},
	{"a space in a name", LIST(GOOD, {"x y", "z"})},
	{"a control character in a name", LIST(GOOD, {"x\177", "z"})},
	{"connection", LIST(GOOD, {"connection", "close"})},
	{"keep-alive", LIST(GOOD, {"keep-alive", "1"})},
	{"proxy-connection", LIST(GOOD, {"proxy-connection", "close"})},
	{"transfer-encoding", LIST(GOOD, {"transfer-encoding", "chunked"})},
	{"upgrade", LIST(GOOD, {"upgrade", "h2c"})},
	{"te", LIST(GOOD, {"te", "gzip"})},
	{"content-length twice", LIST(GOOD, {"content-length", "4"}, {"content-length", "4"}),
		.data = "abcd"},
	{"content-length of nothing", LIST(GOOD, {"content-length", ""})},
	{"content-length of letters", LIST(GOOD, {"content-length", "four"}), .data = "abcd"},
	{"content-length too small", LIST(GOOD, {"content-length", "1"}), .data = "abcd"},
	{"content-length too large", LIST(GOOD, {"content-length", "9"}), .data = "abcd"},
	{"content-length without a body", LIST(GOOD, {"content-length", "9"})},
	{"trailers that do not end", LIST(GOOD), LIST({"x", "y"}), false, "abcd"},
	{"a pseudo-header in trailers", LIST(GOOD), LIST({":path", "/"}), true, "abcd"},
	{"upper case in trailers", LIST(GOOD), LIST({"X", "y"}), true, "abcd"},
	/* What is no gRPC is not answered before it is known to be well-formed. */
	{"no gRPC, content-length too small",
		LIST({":method", "PUT"}, {":scheme", "http"}, {":path", "/"}, {":authority", "a"},
			{"content-length", "1"}),
		.data = "abcd"},
};

static void put_block(struct buf *in, const struct header *headers, bool end)
{
	struct buf block = {0};
	for (; headers->name != NULL; headers++)
		literal(&block, headers->name, headers->value);
	frame(in, NGHTTP2_HEADERS,
		(uint8_t)(NGHTTP2_FLAG_END_HEADERS | (end ? NGHTTP2_FLAG_END_STREAM : 0)), 1,
		block.data, block.len);
	buf_free(&block);
}

static void assert_malformed(const struct malformed *m)
{
	struct buf in = {0}, out = {0};
	raw_start(&in);
	put_block(&in, m->headers, m->data == NULL && m->trailers == NULL);
	if (m->data != NULL)
		frame(&in, NGHTTP2_DATA,
			(uint8_t)(m->trailers == NULL ? NGHTTP2_FLAG_END_STREAM : 0), 1, m->data,
			strlen(m->data));
	if (m->trailers != NULL)
		put_block(&in, m->trailers, m->end_in_trailers);
	peer_reconnect(p);
	exchange(p, &in, &out);
	const uint8_t *reset = find_frame(&out, NGHTTP2_RST_STREAM);
	cr_assert_not_null(reset, "%s", m->what);
	cr_assert_eq(get_u32(reset), NGHTTP2_PROTOCOL_ERROR, "%s", m->what);
	cr_assert_not(has_frame(&out, NGHTTP2_HEADERS), "%s", m->what);
	cr_assert_eq(peer_streams(p), 0, "%s", m->what);
	cr_assert_eq(world.echoes, 0, "%s", m->what);
	buf_free(&in);
	buf_free(&out);
}

/* On unix sockets the checks are ours, elsewhere nghttp2's: they say the same. */
Test(hostile, malformed_requests_are_reset)
{
	for (unsigned tcp = 0; tcp < 2; tcp++) {
		p->tcp = tcp != 0;
		for (size_t i = 0; i < sizeof(malformed) / sizeof(malformed[0]); i++)
			assert_malformed(&malformed[i]);
	}
}

Test(hostile, nul_and_line_breaks_in_values)
{
	static const char values[][4] = {"a\0b", "a\rb", "a\nb"};
	for (size_t i = 0; i < 3; i++) {
		struct buf in = {0}, out = {0}, block = {0};
		raw_start(&in);
		request_headers(&block);
		buf_append(&block, "\0\1x\3", 4);
		buf_append(&block, values[i], 3);
		frame(&in, NGHTTP2_HEADERS, NGHTTP2_FLAG_END_HEADERS | NGHTTP2_FLAG_END_STREAM, 1,
			block.data, block.len);
		peer_reconnect(p);
		exchange(p, &in, &out);
		cr_assert(has_frame(&out, NGHTTP2_RST_STREAM), "value %zu", i);
		buf_free(&in);
		buf_free(&out);
		buf_free(&block);
	}
}

/* ---- floods ---- */

enum { FLOOD = 5000 };

/* A connection with a client stream that stays open. */
static void flood_start(struct buf *in)
{
	raw_start(in);
	put_block(in,
		LIST({":method", "POST"}, {":scheme", "http"}, {":path", "/test.v1.Test/Chat"},
			{":authority", "localhost"}, {"content-type", "application/grpc"}),
		false);
}

/* Repeats what `more` makes until the connection is given up. Returns after how many. */
static unsigned flood_until(void (*more)(struct buf *in, unsigned i), struct buf *out)
{
	struct buf in = {0};
	unsigned sent = 0;
	flood_start(&in);
	exchange(p, &in, out);
	for (; sent < FLOOD && !p->session->ops->finished(p->session); sent++) {
		in.len = 0;
		more(&in, sent);
		exchange(p, &in, out);
	}
	buf_free(&in);
	return sent;
}

static void assert_flood_ends(void (*more)(struct buf *in, unsigned i))
{
	struct buf out = {0};
	unsigned sent = flood_until(more, &out);
	cr_assert_lt(sent, FLOOD);
	cr_assert_gt(sent, 500); /* no honest client comes so far, and it is no mistake of ours */
	const uint8_t *goaway = find_frame(&out, NGHTTP2_GOAWAY);
	cr_assert_not_null(goaway);
	cr_assert_eq(get_u32(goaway + 4), NGHTTP2_ENHANCE_YOUR_CALM);
	cr_assert_eq(p->session->end, SESSION_END_FLOODED);
	buf_free(&out);
}

#define FLOOD_TEST(name, ...)                                                                      \
	static void more_##name(struct buf *in, unsigned i)                                        \
	{                                                                                          \
		(void)i;                                                                           \
		__VA_ARGS__;                                                                       \
	}                                                                                          \
	Test(hostile, a_flood_of_##name)                                                           \
	{                                                                                          \
		assert_flood_ends(more_##name);                                                    \
	}

FLOOD_TEST(ping_acks, frame(in, NGHTTP2_PING, NGHTTP2_FLAG_ACK, 0, "12345678", 8))
FLOOD_TEST(empty_data, frame(in, NGHTTP2_DATA, 0, 1, NULL, 0))
FLOOD_TEST(padding, frame(in, NGHTTP2_DATA, NGHTTP2_FLAG_PADDED, 1, "\3\0\0\0", 4))
FLOOD_TEST(window_updates, frame(in, NGHTTP2_WINDOW_UPDATE, 0, 0, "\0\0\0\1", 4))
FLOOD_TEST(stream_window_updates, frame(in, NGHTTP2_WINDOW_UPDATE, 0, 1, "\0\0\0\1", 4))
FLOOD_TEST(priorities, frame(in, NGHTTP2_PRIORITY, 0, 1, "\0\0\0\0\1", 5))
FLOOD_TEST(settings, frame(in, NGHTTP2_SETTINGS, 0, 0, "\0\3\0\0\0\1", 6))
FLOOD_TEST(unknown_frames, frame(in, 0x77, 0, 0, "x", 1))

/* "MadeYouReset": the client errs on a stream, so that we reset it and its call runs on. */
static void more_resets_of_ours(struct buf *in, unsigned i)
{
	struct buf block = {0};
	request_headers(&block);
	frame(in, NGHTTP2_HEADERS, NGHTTP2_FLAG_END_HEADERS, 3 + 2 * i, block.data, block.len);
	frame(in, NGHTTP2_WINDOW_UPDATE, 0, 3 + 2 * i, "\x7F\xFF\xFF\xFF", 4);
	buf_free(&block);
}

Test(hostile, a_flood_of_resets_of_ours)
{
	assert_flood_ends(more_resets_of_ours);
}

/* Time, in which the peer's own client says nothing. */
static void pass(uint64_t ms)
{
	sim_pass_ms(p->ring, ms);
}

static void more_slowly(struct buf *in, unsigned i)
{
	frame(in, NGHTTP2_PING, NGHTTP2_FLAG_ACK, 0, "12345678", 8);
	if (i % 50 == 0)
		pass(1000);
}

Test(hostile, slow_ones_are_no_flood)
{
	struct buf out = {0};
	cr_assert_eq(flood_until(more_slowly, &out), FLOOD);
	cr_assert_not(has_frame(&out, NGHTTP2_GOAWAY));
	buf_free(&out);
}

/* As grpc-go and others do it: windows opened for each frame of large answers, priorities, pings.
 */
Test(hostile, a_busy_client_is_no_flood)
{
	enum { LARGE = 200000, CALLS = 200 };
	struct buf b = {0};
	uint8_t *text = calloc(1, LARGE);
	text_frame(&b, text, LARGE);
	for (unsigned i = 0; i < CALLS; i++) {
		int32_t id = peer_request(
			p, &(struct request){
				   .path = "/test.v1.Test/Echo", .body = b.data, .len = b.len});
		nghttp2_priority_spec priority;
		nghttp2_priority_spec_init(&priority, 0, 16, 0);
		for (unsigned k = 0; k < 13; k++) { /* a frame has 16 KiB */
			cr_assert_eq(nghttp2_submit_window_update(p->client, 0, 0, 1), 0);
			cr_assert_eq(nghttp2_submit_window_update(p->client, 0, id, 1), 0);
		}
		cr_assert_eq(nghttp2_submit_priority(p->client, 0, id, &priority), 0);
		cr_assert_eq(nghttp2_submit_ping(p->client, NGHTTP2_FLAG_NONE, NULL), 0);
		peer_pump(p);
		assert_text(p, id, text, LARGE);
		buf_free(&answer_at(p, id)->data);
	}
	cr_assert_not(p->goaway);
	free(text);
	buf_free(&b);
}

/* ---- others ---- */

/* One more client of the same server. */
static struct peer *peer_beside(void)
{
	struct peer *q = calloc(1, sizeof(*q));
	cr_assert_not_null(q);
	q->ring = p->ring;
	q->registry = p->registry;
	q->limits = p->limits;
	q->turns = p->turns;
	peer_connect(q);
	peer_pump(q);
	return q;
}

static void peer_leave(struct peer *q)
{
	q->session->ops->free(q->session);
	nghttp2_session_del(q->client);
	for (unsigned i = 0; i < PEER_STREAMS; i++)
		buf_free(&q->answers[i].data);
	free(q);
}

static void shut_windows(struct peer *q)
{
	nghttp2_settings_entry shut = {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, 0};
	cr_assert_eq(nghttp2_submit_settings(q->client, NGHTTP2_FLAG_NONE, &shut, 1), 0);
	peer_pump(q);
}

static void open_windows(struct peer *q)
{
	nghttp2_settings_entry open = {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, 1 << 20};
	cr_assert_eq(nghttp2_submit_settings(q->client, NGHTTP2_FLAG_NONE, &open, 1), 0);
	cr_assert_eq(nghttp2_submit_window_update(q->client, NGHTTP2_FLAG_NONE, 0, 1 << 20), 0);
	peer_pump(q);
}

/* ---- memory ---- */

enum { CLIENTS = 20, LARGE = 4000000 };

/* What 20 clients begin to ask and never end is bounded in sum, small calls go on beside it, and
 * nothing of it stays. */
Test(hostile, requests_have_one_budget)
{
	struct peer *clients[CLIENTS];
	struct buf b = {0};
	uint8_t *text = calloc(1, LARGE);
	text_frame(&b, text, LARGE);
	unsigned refused = 0;
	for (unsigned i = 0; i < CLIENTS; i++) {
		clients[i] = peer_beside();
		for (unsigned k = 0; k < 2; k++) {
			int32_t id = peer_request(
				clients[i], &(struct request){.path = "/test.v1.Test/Echo",
						    .body = b.data,
						    .len = b.len - 1,
						    .stay_open = true});
			peer_pump(clients[i]);
			if (answer_at(clients[i], id)->grpc == -1)
				continue;
			assert_answer(clients[i], id, GRPC_RESOURCE_EXHAUSTED);
			refused++;
		}
		cr_assert_leq(grpc_registry_memory(p->registry), GRPC_MEMORY_MAX_BYTES);
	}
	cr_assert_gt(refused, 0);
	assert_text(p, peer_call(p, "/test.v1.Test/Echo", "small", NULL), "small", 5);
	for (unsigned i = 0; i < CLIENTS; i++)
		peer_leave(clients[i]);
	cr_assert_eq(grpc_registry_memory(p->registry), 0);
	free(text);
	buf_free(&b);
}

Test(hostile, answers_have_one_budget)
{
	struct peer *clients[CLIENTS];
	struct buf b = {0};
	uint8_t *text = calloc(1, LARGE);
	text_frame(&b, text, LARGE);
	unsigned refused = 0;
	for (unsigned i = 0; i < CLIENTS; i++) {
		clients[i] = peer_beside();
		shut_windows(clients[i]);
		int32_t id = peer_request(clients[i],
			&(struct request){
				.path = "/test.v1.Test/Echo", .body = b.data, .len = b.len});
		peer_pump(clients[i]);
		if (answer_at(clients[i], id)->grpc != -1) {
			assert_answer(clients[i], id, GRPC_RESOURCE_EXHAUSTED);
			refused++;
		}
		cr_assert_leq(grpc_registry_memory(p->registry), GRPC_MEMORY_MAX_BYTES);
	}
	cr_assert_gt(refused, 0);
	assert_text(p, peer_call(p, "/test.v1.Test/Echo", "small", NULL), "small", 5);
	for (unsigned i = 0; i < CLIENTS; i++)
		peer_leave(clients[i]);
	cr_assert_eq(grpc_registry_memory(p->registry), 0);
	free(text);
	buf_free(&b);
}

/* ---- work ---- */

enum { CALLS = 50, MIDDLE = 20000 }; /* all requests of a client fit into its window */

static struct buf middle_request(void)
{
	static uint8_t text[MIDDLE];
	struct buf b = {0};
	text_frame(&b, text, MIDDLE);
	return b;
}

/* Hands the server everything the client has to say, and takes no answer. */
static void hand_over(struct peer *q)
{
	const uint8_t *data;
	ssize_t n;
	while ((n = nghttp2_session_mem_send(q->client, &data)) > 0)
		peer_feed(q, data, (size_t)n);
}

static void ask(struct peer *q, const struct buf *body, unsigned count)
{
	for (unsigned i = 0; i < count; i++)
		peer_request(q, &(struct request){.path = "/test.v1.Test/Echo",
					.body = body->data,
					.len = body->len});
	hand_over(q);
}

static void take_answers(struct peer *q)
{
	struct buf out = {0};
	q->inside = true;
	q->session->ops->output(q->session, &out, 1 << 20);
	q->inside = false;
	cr_assert_eq(nghttp2_session_mem_recv(q->client, out.data, out.len), (ssize_t)out.len);
	buf_free(&out);
}

Test(hostile, a_turn_does_so_much_and_no_more)
{
	struct buf body = middle_request();
	struct peer *greedy = peer_beside();
	ask(greedy, &body, CALLS);
	cr_assert_leq(world.echoes, H2_TURN_BYTES / MIDDLE + 1);
	peer_pump(greedy);
	cr_assert_eq(world.echoes, CALLS);
	peer_leave(greedy);
	buf_free(&body);
}

/* Four clients ask for 200 answers at once, and read them; one small call comes after. How many
 * turns it takes. */
static unsigned turns_beside_the_greedy(void)
{
	struct buf body = middle_request(), b = {0};
	struct peer *greedy[4];
	for (unsigned i = 0; i < 4; i++) {
		greedy[i] = peer_beside();
		open_windows(greedy[i]);
	}
	unsigned before = world.echoes;
	for (unsigned i = 0; i < 4; i++)
		ask(greedy[i], &body, CALLS);
	text_frame(&b, "me", 2);
	int32_t id = (int32_t)nghttp2_session_get_next_stream_id(p->client);
	ask(p, &b, 1);
	unsigned turns = 0;
	for (; answer_at(p, id)->grpc == -1 && turns < 100; turns++) {
		cr_assert_eq(ring_turn(p->ring, false), 0);
		for (unsigned i = 0; i < 4; i++)
			take_answers(greedy[i]);
		take_answers(p);
	}
	assert_text(p, id, "me", 2);
	cr_assert_leq(world.echoes - before, (turns + 1) * (H2_TURN_BYTES / MIDDLE + 1));
	for (unsigned i = 0; i < 4; i++) {
		peer_pump(greedy[i]);
		peer_leave(greedy[i]);
	}
	cr_assert_eq(world.echoes - before, 4 * CALLS + 1);
	buf_free(&body);
	buf_free(&b);
	return turns;
}

Test(hostile, a_bystander_waits_for_one_turn)
{
	unsigned turns = turns_beside_the_greedy();
	cr_assert_leq(turns, 2, "%u turns", turns);
}

/* What a client has had counts less with each turn that passes, and then not at all. */
Test(hostile, a_bystander_that_had_much_before)
{
	static const unsigned passed[] = {LARGE / H2_TURN_SHARE * 2, LARGE / H2_TURN_SHARE - 3};
	static const unsigned most[] = {2, 6};
	struct buf b = {0};
	uint8_t *text = calloc(1, LARGE);
	text_frame(&b, text, LARGE);
	for (unsigned i = 0; i < 2; i++) {
		int32_t id = peer_request(
			p, &(struct request){
				   .path = "/test.v1.Test/Echo", .body = b.data, .len = b.len});
		peer_pump(p);
		assert_text(p, id, text, LARGE);
		for (unsigned turn = 0; turn < passed[i]; turn++)
			cr_assert_eq(ring_turn(p->ring, false), 0);
		unsigned turns = turns_beside_the_greedy();
		cr_assert_leq(turns, most[i], "%u turns after %u", turns, passed[i]);
	}
	free(text);
	buf_free(&b);
}

/* What waited for a turn has the next ones, whether its client has taken the first answers or not.
 */
Test(hostile, calls_that_wait_need_no_reader)
{
	enum { SMALL = 400 }; /* a turn has not as many, and their answers are no obstacle */
	p->limits.streams = SMALL;
	peer_reconnect(p);
	peer_pump(p);
	struct buf b = {0};
	text_frame(&b, "x", 1);
	ask(p, &b, SMALL);
	cr_assert_leq(world.echoes, H2_TURN_BYTES / H2_TURN_CALL_BYTES);
	while (p->turns->go.armed)
		cr_assert_eq(ring_turn(p->ring, false), 0);
	cr_assert_eq(world.echoes, SMALL);
	buf_free(&b);
}

/* Clients share what answers cost and not the number of them. */
Test(hostile, small_calls_go_before_many_large_ones)
{
	enum { SMALL = 100 };
	struct buf body = middle_request(), b = {0};
	struct peer *greedy = peer_beside();
	text_frame(&b, "x", 1);
	open_windows(greedy);
	ask(greedy, &body, CALLS);
	take_answers(greedy);
	ask(p, &b, SMALL);
	cr_assert_eq(ring_turn(p->ring, false), 0);
	take_answers(p);
	for (int32_t id = 1; id < 2 * SMALL; id += 2)
		assert_text(p, id, "x", 1);
	peer_pump(greedy);
	peer_leave(greedy);
	buf_free(&body);
	buf_free(&b);
}

/* What waits for a client that reads nothing is bounded, by connection, and others have their
 * calls. */
Test(hostile, requests_that_wait_are_bounded)
{
	struct peer *greedy = peer_beside();
	struct buf b = {0};
	uint8_t *text = calloc(1, LARGE);
	text_frame(&b, text, LARGE);
	shut_windows(greedy);
	unsigned refused = 0;
	for (unsigned i = 0; i < 14; i++) {
		int32_t id = peer_request(greedy,
			&(struct request){
				.path = "/test.v1.Test/Echo", .body = b.data, .len = b.len});
		peer_pump(greedy);
		if (answer_at(greedy, id)->grpc == -1)
			continue;
		assert_answer(greedy, id, GRPC_RESOURCE_EXHAUSTED);
		refused++;
	}
	cr_assert_geq(refused, 4, "%u refused", refused);
	cr_assert_leq(grpc_registry_memory(p->registry), GRPC_MEMORY_MAX_BYTES / 4 * 3);
	assert_text(p, peer_call(p, "/test.v1.Test/Echo", "small", NULL), "small", 5);
	peer_leave(greedy);
	cr_assert_eq(grpc_registry_memory(p->registry), 0);
	free(text);
	buf_free(&b);
}

/* A call that waits for its turn ends with its deadline or its stream, and is never run. */
Test(hostile, calls_that_wait_can_end)
{
	struct buf body = middle_request();
	shut_windows(p);
	ask(p, &body, CALLS);
	peer_pump(p);
	unsigned ran = world.echoes;
	cr_assert_lt(ran, CALLS);
	int32_t late = peer_call(p, "/test.v1.Test/Echo", "x", usual("grpc-timeout", "50m"));
	int32_t gone = peer_call(p, "/test.v1.Test/Echo", "x", NULL);
	cr_assert_eq(nghttp2_submit_rst_stream(p->client, 0, gone, NGHTTP2_CANCEL), 0);
	peer_advance(p, 100);
	assert_answer(p, late, GRPC_DEADLINE_EXCEEDED);
	cr_assert_eq(world.echoes, ran);
	cr_assert_eq(peer_streams(p), CALLS);
	/* The others have their turn, and nothing is counted of any then. */
	const struct h2_conn *conn = container_of(p->session, struct h2_conn, base);
	cr_assert_gt(conn->waiting_bytes, 0);
	open_windows(p);
	cr_assert_eq(world.echoes, CALLS);
	cr_assert_eq(conn->waiting_bytes, 0);
	cr_assert_eq(peer_streams(p), 0);
	buf_free(&body);
}

/* Nobody would have their answers. */
Test(hostile, calls_that_wait_end_with_their_connection)
{
	struct buf body = middle_request();
	open_windows(p);
	ask(p, &body, CALLS);
	unsigned ran = world.echoes;
	for (unsigned i = 0; i < 5; i++)
		cr_assert_eq(nghttp2_submit_ping(p->client, NGHTTP2_FLAG_NONE, NULL), 0);
	hand_over(p);
	while (p->turns->go.armed)
		cr_assert_eq(ring_turn(p->ring, false), 0);
	peer_pump(p);
	cr_assert(p->session->ops->finished(p->session));
	cr_assert_eq(world.echoes, ran);
	buf_free(&body);
}
