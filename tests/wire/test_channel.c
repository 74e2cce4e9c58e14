/* SPDX-License-Identifier: Apache-2.0 */
/* A channel to our own server on real sockets: calls of each kind, and how connections come and go.
 */
#include "base/utf8.h"
#include "channel_env.h"

#include "rpc/registry.h"

#include <errno.h>

/* The same once more, built as test_channel_bulk. */
#ifndef CHANNEL_BULK
#define CHANNEL_BULK false
#endif

TestSuite(channel, .init = setup, .fini = teardown);

static struct channel *channel;
static struct asked a, b;

static void serve(void)
{
	struct err err = {0};
	struct server_config config = {
		.ring = ring, .registry = registry, .limits = server_limits_default};
	cr_assert_eq(server_open(&server, &config), 0);
	cr_assert_eq(server_listen(server, endpoint, &err), 0, "%s", err.message);
}

static void dial(void)
{
	struct err err = {0};
	struct channel_config config = {
		.ring = ring, .address = endpoint, .registry = registry, .bulk = CHANNEL_BULK};
	cr_assert_eq(channel_open(&channel, &config, &err), 0, "%s", err.message);
}

static void finish(void)
{
	channel_close(channel);
	channel = NULL;
	cr_assert_not(channel_call_active(&a.call));
	cr_assert_not(channel_call_active(&b.call));
	buf_free(&a.got);
	buf_free(&b.got);
}

Test(channel, unary)
{
	serve();
	dial();
	cr_assert_eq(channel_state(channel), CHANNEL_IDLE);
	for (unsigned i = 0; i < 3; i++) {
		ask(channel, &a, "/test.v1.Test/Echo", "hello");
		turn_until(a.ends == 1);
		assert_asked_text(&a, "hello");
		cr_assert(a.sent);
		cr_assert_eq(channel_state(channel), CHANNEL_UP);
	}
	cr_assert_eq(server_stats(server)->accepted, 1);
	finish();
}

/* ---- calls ---- */

Test(channel, a_status_and_its_message)
{
	serve();
	dial();
	ask(channel, &a, "/test.v1.Test/Fail", "caf\xC3\xA9: 100% full\n\"x\"");
	turn_until(a.ends == 1);
	assert_asked_status(&a, GRPC_FAILED_PRECONDITION);
	cr_assert_str_eq(a.message, "caf\xC3\xA9: 100% full\n\"x\"");
	cr_assert_eq(a.messages, 0);
	ask(channel, &a, "/test.v1.Test/Nothing", "x");
	turn_until(a.ends == 1);
	assert_asked_status(&a, GRPC_UNIMPLEMENTED);
	finish();
}

/* Those above the server's limit of streams wait for a place. */
Test(channel, more_calls_than_streams)
{
	enum { MANY = 500 };
	static struct asked calls[MANY];
	serve();
	dial();
	for (unsigned i = 0; i < MANY; i++)
		ask(channel, &calls[i], "/test.v1.Test/Echo", "one of many");
	for (unsigned i = 0; i < MANY; i++) {
		turn_until(calls[i].ends == 1);
		assert_asked_text(&calls[i], "one of many");
	}
	cr_assert_eq(server_stats(server)->accepted, 1);
	finish();
}

Test(channel, too_many_calls)
{
	static struct asked calls[CHANNEL_CALLS_MAX];
	dial();
	for (unsigned i = 0; i < CHANNEL_CALLS_MAX; i++)
		ask(channel, &calls[i], "/test.v1.Test/Echo", "x");
	ask(channel, &a, "/test.v1.Test/Echo", "x");
	turn_until(a.ends == 1);
	assert_asked_status(&a, GRPC_RESOURCE_EXHAUSTED);
	cr_assert_not(a.sent);
	turn_until(calls[0].ends == 1); /* nobody listens */
	for (unsigned i = 0; i < CHANNEL_CALLS_MAX; i++)
		assert_asked_status(&calls[i], GRPC_UNAVAILABLE);
	finish();
}

Test(channel, large_messages)
{
	static char text[GRPC_MESSAGE_MAX_BYTES - 10];
	memset(text, 'x', sizeof(text) - 1);
	serve();
	dial();
	ask(channel, &a, "/test.v1.Test/Echo", text);
	turn_until(a.ends == 1);
	assert_asked_text(&a, text);
	finish();
}

Test(channel, messages_that_are_too_large)
{
	static uint8_t bytes[GRPC_MESSAGE_MAX_BYTES + 1];
	serve();
	dial();
	asked_init(&a, "/test.v1.Test/Echo");
	channel_start(channel, &a.call, bytes, sizeof(bytes), true);
	cr_assert_eq(a.ends, 0);
	turn_until(a.ends == 1);
	assert_asked_status(&a, GRPC_RESOURCE_EXHAUSTED);
	cr_assert_not(a.sent);
	ask(channel, &a, "/test.v1.Test/Huge", "x"); /* the server's answer is too large */
	turn_until(a.ends == 1);
	assert_asked_status(&a, GRPC_RESOURCE_EXHAUSTED);
	/* In a stream that runs. */
	asked_init(&a, "/test.v1.Test/Chat");
	ask_text(channel, &a, "first", false);
	turn_until(a.messages == 1);
	cr_assert(channel_send(&a.call, bytes, sizeof(bytes)));
	cr_assert_eq(a.ends, 0);
	turn_until(a.ends == 1);
	assert_asked_status(&a, GRPC_RESOURCE_EXHAUSTED);
	cr_assert(a.sent);
	turn_until(world.gone == 1);
	finish();
}

Test(channel, deadlines)
{
	serve();
	dial();
	asked_init(&a, "/test.v1.Test/Hold");
	uint64_t start = ring_now_ns(ring);
	a.call.deadline_ns = start + 1000000000; /* it has to arrive before, however slow this is */
	ask_text(channel, &a, "x", true);
	turn_until(world.held != NULL);
	/* The server has it, too, by its own clock, from when it has heard of it. */
	uint64_t theirs = grpc_call_deadline_ns(world.held);
	cr_assert(theirs >= a.call.deadline_ns);
	cr_assert_leq(theirs, a.call.deadline_ns + (ring_now_ns(ring) - start) + 1000000);
	turn_until(a.ends == 1);
	assert_asked_status(&a, GRPC_DEADLINE_EXCEEDED);
	cr_assert(a.sent);
	cr_assert_geq(ring_now_ns(ring), start + 999 * 1000000);
	turn_until(world.gone == 1);
	grpc_end(world.held, GRPC_OK, NULL);

	/* One that has passed is not sent. */
	asked_init(&a, "/test.v1.Test/Echo");
	a.call.deadline_ns = ring_now_ns(ring);
	ask_text(channel, &a, "x", true);
	turn_until(a.ends == 1);
	assert_asked_status(&a, GRPC_DEADLINE_EXCEEDED);
	cr_assert_not(a.sent);
	finish();
}

Test(channel, calls_that_are_given_up)
{
	serve();
	dial();
	asked_init(&a, "/test.v1.Test/Hold");
	channel_cancel(&a.call); /* legal on one that was not started */
	ask_text(channel, &a, "x", true);
	turn_until(world.held != NULL);
	channel_cancel(&a.call);
	channel_cancel(&a.call);
	cr_assert_not(channel_call_active(&a.call));
	turn_until(world.gone == 1);
	grpc_end(world.held, GRPC_OK, NULL);

	/* One that waits, and one that was just put on its way. */
	ask(channel, &b, "/test.v1.Test/Echo", "x");
	channel_cancel(&b.call);
	world.flood_left = 100;
	world.flood_bytes = 10000;
	asked_init(&b, "/test.v1.Test/Flood");
	b.cancel_in_message = true;
	ask_text(channel, &b, "x", true);
	turn_until(b.messages == 1);
	for (unsigned i = 0; i < 100; i++)
		ring_turn(ring, false);
	cr_assert_eq(b.messages, 1);
	cr_assert_eq(a.ends + b.ends, 0);
	cr_assert_eq(server_stats(server)->accepted, 1);
	finish();
}

/* ---- streams ---- */

Test(channel, many_messages_down)
{
	serve();
	dial();
	world.flood_left = 2000;
	world.flood_bytes = 10000;
	ask(channel, &a, "/test.v1.Test/Flood", "x");
	turn_until(a.ends == 1);
	assert_asked_status(&a, GRPC_OK);
	cr_assert_eq(a.messages, 2000);
	cr_assert_gt(a.got.len, 2000u * 10000);
	finish();
}

/* While its owner wants no more, the server waits, and other calls go on. */
Test(channel, a_stream_that_is_held)
{
	serve();
	dial();
	world.flood_left = 1000;
	world.flood_bytes = 10000;
	asked_init(&a, "/test.v1.Test/Flood");
	a.hold_after = 3;
	ask_text(channel, &a, "x", true);
	turn_until(a.messages == 3);
	for (unsigned i = 0; i < 20; i++) {
		ask(channel, &b, "/test.v1.Test/Echo", "meanwhile");
		turn_until(b.ends == 1);
		assert_asked_text(&b, "meanwhile");
	}
	cr_assert_eq(a.messages, 3);
	unsigned left = world.flood_left;
	cr_assert_gt(left, 700);
	for (unsigned i = 0; i < 1000; i++)
		ring_turn(ring, false);
	cr_assert_eq(world.flood_left, left, "the server goes on");
	/* Bit by bit, then all. */
	a.hold_after = 6;
	channel_read(&a.call);
	cr_assert_eq(a.messages, 3);
	turn_until(a.messages == 6);
	a.hold_after = 0;
	channel_read(&a.call);
	turn_until(a.ends == 1);
	assert_asked_status(&a, GRPC_OK);
	cr_assert_eq(a.messages, 1000);
	finish();
}

/* The stream is over, and its last messages are not read yet. */
Test(channel, the_end_waits_for_its_messages)
{
	serve();
	dial();
	world.flood_left = 5;
	world.flood_bytes = 100;
	asked_init(&a, "/test.v1.Test/Flood");
	a.hold_after = 2;
	ask_text(channel, &a, "x", true);
	turn_until(a.messages == 2);
	for (unsigned i = 0; i < 100; i++)
		ring_turn(ring, false);
	cr_assert_eq(a.ends, 0);
	a.hold_after = 5; /* holds at the last one: nothing is left to wait for */
	channel_read(&a.call);
	turn_until(a.ends == 1);
	cr_assert_eq(a.messages, 5);
	assert_asked_status(&a, GRPC_OK);
	finish();
}

Test(channel, both_ways)
{
	serve();
	dial();
	asked_init(&a, "/test.v1.Test/Chat");
	ask_text(channel, &a, "first", false);
	turn_until(a.messages == 1);
	for (unsigned i = 2; i < 50; i++) {
		struct buf text = packed("another", 7);
		cr_assert(channel_send(&a.call, text.data, text.len));
		buf_free(&text);
		turn_until(a.messages == i);
	}
	channel_send_end(&a.call);
	channel_send_end(&a.call);
	cr_assert(channel_send(&a.call, NULL, 0)); /* goes nowhere */
	turn_until(a.ends == 1);
	assert_asked_status(&a, GRPC_OK);
	cr_assert_eq(world.chats, 49);
	cr_assert(channel_send(&a.call, NULL, 0));
	channel_send_end(&a.call);
	channel_read(&a.call);
	finish();
}

/* Its owner is told to wait, and told when to go on. */
Test(channel, many_messages_up)
{
	static uint8_t bytes[GRPC_ENDLESS_MAX_BYTES - 10];
	struct buf text = packed(bytes, sizeof(bytes));
	serve();
	dial();
	asked_init(&a, "/test.v1.Test/Chat");
	ask_text(channel, &a, "first", false);
	unsigned sent = 1, pauses = 0;
	while (sent < 5000) {
		unsigned before = a.writables;
		sent++;
		if (channel_send(&a.call, text.data, text.len))
			continue;
		pauses++;
		turn_until(a.writables > before || a.ends > 0);
		cr_assert_eq(a.ends, 0, "%s", a.message);
	}
	channel_send_end(&a.call);
	turn_until(a.ends == 1);
	assert_asked_status(&a, GRPC_OK);
	cr_assert_eq(a.messages, 5000);
	cr_assert_gt(pauses, 5);
	buf_free(&text);
	finish();
}

/* What is not read by anybody has an end. */
Test(channel, a_call_that_sends_without_end)
{
	static uint8_t bytes[1 << 20];
	dial(); /* nobody listens: all of it waits */
	asked_init(&a, "/test.v1.Test/Chat");
	ask_text(channel, &a, "first", false);
	for (unsigned i = 0; i < 40; i++)
		channel_send(&a.call, bytes, sizeof(bytes));
	cr_assert_lt(grpc_registry_memory(registry), 40u << 20);
	turn_until(a.ends == 1);
	assert_asked_status(&a, GRPC_RESOURCE_EXHAUSTED);
	cr_assert_eq(grpc_registry_memory(registry), 0);
	finish();
}

/* What calls hold counts with what the server's calls hold. */
Test(channel, the_budget_is_used_up)
{
	static struct asked calls[32];
	static uint8_t bytes[GRPC_MESSAGE_MAX_BYTES];
	unsigned refused = 0;
	dial();
	for (unsigned i = 0; i < 32; i++) {
		asked_init(&calls[i], "/test.v1.Test/Echo");
		channel_start(channel, &calls[i].call, bytes, sizeof(bytes), true);
	}
	cr_assert_leq(grpc_registry_memory(registry), GRPC_MEMORY_MAX_BYTES);
	turn_until(calls[0].ends == 1);
	for (unsigned i = 0; i < 32; i++) {
		cr_assert_eq(calls[i].ends, 1);
		refused += calls[i].status == GRPC_RESOURCE_EXHAUSTED;
	}
	cr_assert(refused > 16 && refused < 32, "%u", refused);
	cr_assert_eq(grpc_registry_memory(registry), 0);
	finish();
}

/* ---- connections ---- */

Test(channel, nobody_listens)
{
	dial();
	for (unsigned i = 0; i < 3; i++) {
		ask(channel, &a, "/test.v1.Test/Echo", "x");
		turn_until(a.ends == 1);
		assert_asked_status(&a, GRPC_UNAVAILABLE);
		cr_assert_not(a.sent);
		cr_assert_not_null(strstr(a.message, endpoint));
		cr_assert_not_null(strstr(a.message, "No such file"));
		cr_assert_str_eq(channel_why(channel), a.message);
		cr_assert_eq(channel_state(channel), CHANNEL_IDLE);
	}
	serve(); /* now somebody does */
	ask(channel, &a, "/test.v1.Test/Echo", "hello");
	turn_until(a.ends == 1);
	assert_asked_text(&a, "hello");
	cr_assert_str_eq(channel_why(channel), "");
	finish();
}

Test(channel, a_server_that_drains)
{
	unsigned drained = 0;
	serve();
	dial();
	ask(channel, &a, "/test.v1.Test/Hold", "x");
	turn_until(world.held != NULL);
	server_drain(server, 5000, on_drained, &drained);
	turn_until(channel_state(channel) == CHANNEL_LEAVING);
	ask(channel, &b, "/test.v1.Test/Echo", "x"); /* nobody listens any more */
	turn_until(b.ends == 1);
	assert_asked_status(&b, GRPC_UNAVAILABLE);
	cr_assert_not(b.sent);
	cr_assert_eq(a.ends, 0);
	text_message text = TEXT_INIT;
	text.service = (ProtobufCBinaryData){4, (uint8_t *)"held"};
	grpc_reply(world.held, &text.base);
	turn_until(a.ends == 1);
	assert_asked_text(&a, "held");
	turn_until(drained == 1);
	cr_assert_eq(server_stats(server)->drain_cut, 0);
	turn_until(channel_state(channel) == CHANNEL_IDLE);
	finish();
}

Test(channel, a_server_that_goes)
{
	serve();
	dial();
	ask(channel, &a, "/test.v1.Test/Hold", "x");
	turn_until(world.held != NULL);
	server_close(server);
	grpc_end(world.held, GRPC_OK, NULL);
	turn_until(a.ends == 1);
	assert_asked_status(&a, GRPC_UNAVAILABLE);
	cr_assert(a.sent);
	world.held = NULL;
	serve();
	ask(channel, &a, "/test.v1.Test/Echo", "hello");
	turn_until(a.ends == 1);
	assert_asked_text(&a, "hello");
	finish();
}

/* An owner that asks again when its call has ended badly. */
static void ask_again(
	struct channel_call *call, enum grpc_status status, const char *message, bool sent)
{
	asked_on_end(call, status, message, sent);
	if (b.ends == 0)
		ask(channel, &b, "/test.v1.Test/Echo", "again");
}

Test(channel, a_call_from_the_end_of_another)
{
	serve();
	dial();
	asked_init(&a, "/test.v1.Test/Hold");
	a.call.on_end = ask_again;
	ask_text(channel, &a, "x", true);
	turn_until(world.held != NULL);
	server_close(server);
	grpc_end(world.held, GRPC_OK, NULL);
	serve();
	turn_until(b.ends == 1);
	assert_asked_status(&a, GRPC_UNAVAILABLE);
	assert_asked_text(&b, "again");
	finish();
}

Test(channel, closing_ends_calls_in_each_state)
{
	static struct asked waits, ends;
	static uint8_t bytes[GRPC_MESSAGE_MAX_BYTES + 1];
	serve();
	dial();
	ask(channel, &a, "/test.v1.Test/Hold", "x");
	turn_until(world.held != NULL);
	world.flood_left = 5;
	world.flood_bytes = 100;
	asked_init(&b, "/test.v1.Test/Flood");
	b.hold_after = 1;
	ask_text(channel, &b, "x", true);
	turn_until(b.call.state == CHANNEL_CALL_CLOSED);
	asked_init(&ends, "/test.v1.Test/Echo");
	channel_start(channel, &ends.call, bytes, sizeof(bytes), true);
	server_unlisten(server);
	server_close(server);
	grpc_end(world.held, GRPC_OK, NULL);
	server = NULL;
	turn_until(a.ends == 1);
	ask(channel, &waits, "/test.v1.Test/Echo", "x");
	channel_close(channel);
	channel = NULL;
	assert_asked_status(&a, GRPC_UNAVAILABLE);
	assert_asked_status(&b, GRPC_UNAVAILABLE);
	assert_asked_status(&ends, GRPC_RESOURCE_EXHAUSTED);
	assert_asked_status(&waits, GRPC_UNAVAILABLE);
	cr_assert_eq(grpc_registry_memory(registry), 0);
	channel_close(NULL);
	finish();
}

Test(channel, closing_at_every_turn)
{
	serve();
	for (unsigned turns = 0; turns < 40; turns++) {
		dial();
		ask(channel, &a, "/test.v1.Test/Echo", "hello");
		ask(channel, &b, "/test.v1.Test/Chat", "hello");
		for (unsigned i = 0; i < turns; i++)
			cr_assert_eq(ring_turn(ring, false), 0);
		unsigned ended = a.ends;
		channel_close(channel);
		channel = NULL;
		cr_assert_eq(a.ends, 1);
		cr_assert_eq(a.status, ended == 1 ? GRPC_OK : GRPC_UNAVAILABLE);
		cr_assert_eq(b.ends, 1);
		turn_until(server_stats(server)->connections == 0);
	}
	cr_assert_eq(grpc_registry_memory(registry), 0);
	finish();
}

/* ---- closing in a callback ---- */

static bool close_in_message(struct channel_call *call, const uint8_t *data, size_t len)
{
	asked_on_message(call, data, len);
	channel_close(channel);
	channel = NULL;
	return true;
}

static void close_in_end(
	struct channel_call *call, enum grpc_status status, const char *message, bool sent)
{
	asked_on_end(call, status, message, sent);
	channel_close(channel);
	channel = NULL;
}

static void close_in_writable(struct channel_call *call)
{
	asked_on_writable(call);
	channel_close(channel);
	channel = NULL;
}

static void assert_closed(void)
{
	turn_until(channel == NULL);
	cr_assert_eq(a.ends, 1);
	cr_assert_eq(b.ends, 1);
	cr_assert_eq(b.status, GRPC_UNAVAILABLE);
	cr_assert_not_null(strstr(b.message, "closed"), "%s", b.message);
	for (unsigned i = 0; i < 20; i++)
		ring_turn(ring, false);
	turn_until(server == NULL || server_stats(server)->connections == 0);
	cr_assert_eq(grpc_registry_memory(registry), 0);
	finish();
}

/* Another call is open meanwhile, and one waits for a place. */
static void begin_beside(void)
{
	serve();
	dial();
	asked_init(&b, "/test.v1.Test/Chat");
	ask_text(channel, &b, "x", false);
	turn_until(b.messages == 1);
}

Test(channel, closing_in_a_message)
{
	begin_beside();
	world.flood_left = 20;
	world.flood_bytes = 1000;
	asked_init(&a, "/test.v1.Test/Flood");
	a.call.on_message = close_in_message;
	ask_text(channel, &a, "x", true);
	assert_closed();
	assert_asked_status(&a, GRPC_UNAVAILABLE);
	cr_assert_eq(a.messages, 1);
}

Test(channel, closing_at_the_end_of_a_call)
{
	begin_beside();
	asked_init(&a, "/test.v1.Test/Echo");
	a.call.on_end = close_in_end;
	ask_text(channel, &a, "x", true);
	assert_closed();
	assert_asked_status(&a, GRPC_OK);
}

Test(channel, closing_at_a_deadline)
{
	begin_beside();
	asked_init(&a, "/test.v1.Test/Echo");
	a.call.on_end = close_in_end;
	a.call.deadline_ns = ring_now_ns(ring); /* ends in the next turn */
	ask_text(channel, &a, "x", true);
	assert_closed();
	assert_asked_status(&a, GRPC_DEADLINE_EXCEEDED);
}

Test(channel, closing_when_there_is_room)
{
	static uint8_t bytes[GRPC_ENDLESS_MAX_BYTES - 10];
	struct buf text = packed(bytes, sizeof(bytes));
	begin_beside();
	asked_init(&a, "/test.v1.Test/Chat");
	a.call.on_writable = close_in_writable;
	ask_text(channel, &a, "x", false);
	while (channel_send(&a.call, text.data, text.len))
		;
	assert_closed();
	buf_free(&text);
}

Test(channel, closing_when_the_connection_is_lost)
{
	static struct asked waits;
	begin_beside();
	asked_init(&a, "/test.v1.Test/Echo");
	a.call.on_end = close_in_end;
	ask_text(channel, &a, "x", true);
	server_close(server);
	server = NULL;
	turn_until(channel == NULL);
	cr_assert_eq(b.ends, 1);
	cr_assert_eq(a.ends, 1);
	finish();
	/* The same for calls that wait for a connection that cannot be made. */
	dial();
	ask(channel, &waits, "/test.v1.Test/Echo", "x");
	asked_init(&a, "/test.v1.Test/Echo");
	a.call.on_end = close_in_end;
	ask_text(channel, &a, "x", true);
	ask(channel, &b, "/test.v1.Test/Echo", "x");
	turn_until(channel == NULL);
	cr_assert_eq(a.ends + b.ends + waits.ends, 3);
	cr_assert_eq(ring_turn(ring, false), 0); /* in which its memory goes */
	finish();
}

/* ---- configurations ---- */

Test(channel, addresses_that_are_refused)
{
	static const struct {
		const char *address, *why;
		bool plain;
	} rows[] = {{"", "HOST:PORT"}, {"host", "HOST:PORT"}, {":1", "HOST:PORT"},
		{"host:", "port"}, {"host:0", "port"}, {"host:65536", "port"},
		{"host:99999", "port"}, {"host:123456", "HOST:PORT"}, {"host:1x", "port"},
		{"ho st:1", "neither"}, {"h\xC3\xB6st:1", "neither"}, {"[::1:1", "neither"},
		{"unix://", ""}, {"127.0.0.1:1", "without TLS"},
		{"node-1:7000", "without TLS", true}, {"10.0.0.1:7000", "without TLS", true}};
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct err err = {0};
		struct channel_config config = {
			.ring = ring, .address = rows[i].address, .plain = rows[i].plain};
		cr_assert_eq(channel_open(&channel, &config, &err), -EINVAL, "%s", rows[i].address);
		cr_assert_not_null(
			strstr(err.message, rows[i].why), "%s: %s", rows[i].address, err.message);
	}
	finish();
}
