/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that runs out under a channel, and under the server at its other end. As in test_alloc.c
 * the N-th allocation fails, for every N, alone and with all that follow. Each call ends once, with
 * what it is answered when there is memory, or with an error; nothing leaks; and the call that
 * comes when memory is back is answered.
 */
#include "heap.h"

#include "base/utf8.h"
#include "channel_env.h"

#include <errno.h>

static struct ring_sim sim;
static struct channel *channel;

enum { ECHO, FAIL, FLOOD, CHAT, HOLD, DROPPED, CALLS };
static struct asked calls[CALLS];

static void give_back_held(struct grpc_call *call, void *arg)
{
	(void)arg;
	world.held = NULL;
	grpc_end(call, GRPC_CANCELLED, NULL);
}

static void settle(void)
{
	for (unsigned i = 0; i < 60; i++) {
		ring_turn(ring, false);
		if (world.held != NULL)
			grpc_on_gone(world.held, give_back_held, NULL);
	}
}

static void pass_end(struct ring_timer *timer)
{
	timer->fn = NULL;
}

static void pass_ms(uint64_t ms)
{
	struct ring_timer timer = {.fn = pass_end};
	ring_timer_arm(ring, &timer, ms);
	while (timer.fn != NULL)
		ring_turn(ring, true);
	settle();
}

static void ask_one(unsigned which, bool last)
{
	struct buf text = packed("memory", 6);
	heap.inside++;
	channel_start(channel, &calls[which].call, text.data, text.len, last);
	heap.inside--;
	cr_assert_eq(calls[which].ends, 0);
	buf_free(&text);
}

/* The test's own memory does not run out. */
static bool on_message(struct channel_call *call, const uint8_t *data, size_t len)
{
	bool armed = heap_hold();
	bool more = asked_on_message(call, data, len);
	heap_release(armed);
	return more;
}

static void init_all(void)
{
	static const char *const methods[CALLS] = {"/test.v1.Test/Echo", "/test.v1.Test/Fail",
		"/test.v1.Test/Flood", "/test.v1.Test/Chat", "/test.v1.Test/Hold",
		"/test.v1.Test/Hold"};
	for (unsigned i = 0; i < CALLS; i++) {
		asked_init(&calls[i], methods[i]);
		calls[i].call.on_message = on_message;
	}
	calls[FLOOD].hold_after = 2;
}

static void chat_on(unsigned messages)
{
	struct buf text = packed("goes on", 7);
	heap.inside++;
	for (unsigned i = 0; i < messages; i++)
		channel_send(&calls[CHAT].call, text.data, text.len);
	channel_send_end(&calls[CHAT].call);
	heap.inside--;
	buf_free(&text);
}

/* Calls of each kind. */
static void talk(void)
{
	init_all();
	world.flood_left = 20;
	world.flood_bytes = 5000;
	ask_one(ECHO, true);
	ask_one(FAIL, true);
	ask_one(FLOOD, true);
	ask_one(CHAT, false);
	settle();
	calls[FLOOD].hold_after = 0;
	heap.inside++;
	channel_read(&calls[FLOOD].call);
	heap.inside--;
	chat_on(5);
	settle();
	calls[HOLD].call.deadline_ns = ring_now_ns(ring) + 50000000;
	ask_one(HOLD, true);
	settle();
	pass_ms(100);
	ask_one(DROPPED, true);
	settle();
	heap.inside++;
	channel_cancel(&calls[DROPPED].call);
	heap.inside--;
	settle();
	pass_ms(40000); /* whatever was not told is found out by silence */
}

static void check(bool failed, unsigned long n)
{
	static const enum grpc_status right[CALLS] = {
		GRPC_OK, GRPC_FAILED_PRECONDITION, GRPC_OK, GRPC_OK, GRPC_DEADLINE_EXCEEDED};
	static const unsigned messages[CALLS] = {1, 0, 20, 6, 0, 0};
	for (unsigned i = 0; i < DROPPED; i++) {
		struct asked *a = &calls[i];
		cr_assert_eq(a->ends, 1, "allocation %lu: call %u ends %u times", n, i, a->ends);
		bool good = a->status == right[i];
		cr_assert(!good || a->messages == messages[i],
			"allocation %lu: call %u has %u messages", n, i, a->messages);
		cr_assert(good || (failed && a->status != GRPC_OK),
			"allocation %lu: call %u: %d \"%s\"", n, i, a->status, a->message);
	}
	cr_assert(calls[DROPPED].ends == 0 || failed);
	for (unsigned i = 0; i < CALLS; i++)
		buf_free(&calls[i].got);
}

static int open_channel(void)
{
	struct err err = {0};
	const struct channel_config config = {
		.ring = ring, .address = endpoint, .registry = registry};
	return heap_inside(channel_open(&channel, &config, &err));
}

/* False when it met no failure. */
static bool pass(unsigned long n, bool lasting)
{
	long live = heap.live;
	sim = (struct ring_sim){.seed = 1, .short_every = 3, .eintr_every = 5};
	cr_assert_eq(ring_sim_open(&ring, &sim), 0);
	registry = test_registry();
	heap_spare_ring(ring);
	const struct server_config config = {
		.ring = ring, .registry = registry, .limits = server_limits_default};
	struct err err = {0};
	cr_assert_eq(server_open(&server, &config), 0);
	cr_assert_eq(server_listen(server, endpoint, &err), 0);
	settle();

	heap_arm(n, lasting);
	int res = open_channel();
	cr_assert(res == 0 || res == -ENOMEM);
	if (res == 0) {
		talk();
		bool armed = heap_hold();
		check(heap.failed > 0, n);
		heap_release(armed);
	}
	bool met = heap_disarm();
	cr_assert(res == 0 || met);
	if (res < 0)
		cr_assert_eq(open_channel(), 0);
	talk();
	check(false, n);
	channel_close(channel);
	settle();
	cr_assert_eq(grpc_registry_memory(registry), 0);
	server_close(server);
	server = NULL;
	grpc_registry_free(registry);
	ring_close(ring);
	cr_assert_eq(heap.live, live, "allocation %lu: %ld left", n, heap.live - live);
	return met;
}

Test(alloc_channel, calls_end_and_others_follow)
{
	cr_assert_not_null(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/csi.sock", dir);
	snprintf(endpoint, sizeof(endpoint), "unix://%s", path);
	for (unsigned lasting = 0; lasting < 2; lasting++) {
		unsigned long n = 1;
		while (pass(n, lasting != 0))
			n++;
		fprintf(stderr, "%lu allocations\n", n - 1);
		cr_assert_gt(n, 100);
	}
	unlink(path);
	rmdir(dir);
}
