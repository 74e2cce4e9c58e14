/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that runs out: scripted sessions with the N-th allocation failing, for N = 1, 2, ... until
 * one pass meets no failure; once with that one allocation failing and once with all from there on.
 * Nothing may crash or leak; what is answered is right, or an error (verdict.h); and when memory is
 * back the same registry answers the same session as it did before. Sockets and the server are in
 * test_alloc_server.c.
 */
#include "descriptor_set.h"
#include "heap.h"
#include "rpc/health.h"
#include "rpc/reflection.h"
#include "rpc/registry.h"
#include "rpc/tls_session.h"
#include "verdict.h"

#include <errno.h>

/* ---- the script ---- */

static struct health *health;
static struct reflection *reflection;
static struct buf one_text, two_texts, many_texts;

static void end_held(void)
{
	struct grpc_call *call = world.held;
	world.held = NULL;
	if (call == NULL)
		return;
	text_message text = TEXT_INIT;
	text.service = (ProtobufCBinaryData){4, (uint8_t *)"held"};
	heap.inside++;
	grpc_reply(call, &text.base);
	heap.inside--;
}

/* Sends a request without waiting for more than its answer. The body must live on. */
static int32_t ask(struct peer *p, const char *path, const struct buf *body, size_t frame_max,
	bool stay_open, const char *const *extra)
{
	int32_t id = peer_request(p, &(struct request){.path = path,
					     .extra = extra,
					     .body = body->data,
					     .len = body->len,
					     .frame_max = frame_max,
					     .stay_open = stay_open});
	peer_pump(p);
	return id;
}

static void reset(struct peer *p, int32_t id)
{
	nghttp2_submit_rst_stream(p->client, NGHTTP2_FLAG_NONE, id, NGHTTP2_CANCEL);
	peer_pump(p);
}

/* One call after the other of each kind: unary, split, streaming both ways, resets, a deadline,
 * refusals, a watch. */
static void script_calls(struct peer *p)
{
	static const uint8_t bad[] = {0, 0, 0, 0, 2, 0xff, 0xff};
	static const uint8_t list[] = {0, 0, 0, 0, 2, 0x3a, 0};
	const struct buf garbage = {.data = (uint8_t *)bad, .len = sizeof(bad)};
	const struct buf services = {.data = (uint8_t *)list, .len = sizeof(list)};
	const char *const get[] = {":method", "GET", NULL};
	const char *const html[] = {"content-type", "text/html", NULL};
	const char *const soon[] = {"grpc-timeout", "100m", NULL};
	const char *const info = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
	const struct buf *text = &one_text, *texts = &two_texts;

	peer_pump(p);
	ask(p, "/test.v1.Test/Echo", text, 0, false, NULL);
	ask(p, "/test.v1.Test/Echo", text, 3, false, NULL);
	ask(p, "/test.v1.Test/Fail", text, 0, false, NULL);
	world.flood_left = 40;
	world.flood_bytes = 5000;
	ask(p, "/test.v1.Test/Flood", text, 0, false, NULL);
	ask(p, "/test.v1.Test/Chat", texts, 4, false, NULL);
	reset(p, ask(p, "/test.v1.Test/Chat", texts, 0, true, NULL));
	reset(p, ask(p, "/test.v1.Test/Hold", text, 0, false, NULL));
	end_held();
	ask(p, "/test.v1.Test/Hold", text, 0, false, NULL);
	end_held();
	peer_pump(p);
	ask(p, "/test.v1.Test/Hold", text, 0, false, soon);
	peer_advance(p, 200);
	end_held();
	ask(p, "/test.v1.Test/Nothing", text, 0, false, NULL);
	ask(p, "/test.v1.Test/Echo", text, 0, false, get);
	ask(p, "/test.v1.Test/Echo", text, 0, true, html);
	ask(p, "/test.v1.Test/Echo", &garbage, 0, false, NULL);
	ask(p, info, &services, 0, false, NULL);
	ask(p, "/grpc.health.v1.Health/Check", text, 0, false, NULL);
	ask(p, "/grpc.health.v1.Health/Watch", text, 0, false, NULL);
	heap.inside++;
	health_set(health, true);
	heap.inside--;
	peer_pump(p);
	nghttp2_submit_ping(p->client, NGHTTP2_FLAG_NONE, NULL);
	peer_pump(p);
}

/* A method that waits for room, and a client that has sent meanwhile all it may: it goes on only
 * when the stream's window is opened again. */
static void script_pause(struct peer *p)
{
	peer_pump(p);
	p->deaf = true;
	ask(p, "/test.v1.Test/Chat", &many_texts, 0, false, NULL);
	p->deaf = false;
	peer_pump(p);
}

static void script_drain(struct peer *p)
{
	ask(p, "/test.v1.Test/Hold", &one_text, 0, false, NULL);
	p->session->ops->drain(p->session);
	peer_pump(p);
	end_held();
	peer_advance(p, 3000); /* past the wait for the drain's ping */
}

/* ---- passes ---- */

typedef void script_fn(struct peer *p);

static struct peer *world_new(void)
{
	struct peer *p = peer_new();
	health = health_new(p->registry);
	reflection = reflection_new(p->registry, proto_descriptor_set, proto_descriptor_set_len);
	cr_assert(health != NULL && reflection != NULL);
	heap_spare_ring(p->ring);
	return p;
}

static void world_free(struct peer *p)
{
	health_free(health);
	peer_free(p);
	reflection_free(reflection);
}

/* Broken; or given up by nghttp2, with a GOAWAY that says why. Without a failure it is neither. */
static bool is_over(struct peer *p)
{
	static const uint8_t nothing[1];
	return p->fed < 0 || p->session->ops->feed(p->session, nothing, 0) < 0 ||
	       (p->goaway && p->goaway_code == NGHTTP2_INTERNAL_ERROR);
}

/* What the same calls are answered when there is memory. */
struct right {
	struct peer *calls, *drained;
};

static void check(struct peer *p, const struct peer *right, unsigned long n)
{
	bool armed = heap_hold();
	bool over = is_over(p);
	verdict_on_all(p, right, heap.failed > 0, over, n);
	cr_assert(!over || p->session->ops->finished(p->session));
	cr_assert(over || (p->goaway == right->goaway && p->goaway_code == right->goaway_code));
	cr_assert(over || p->pongs == right->pongs);
	heap_release(armed);
}

static void run(struct peer *p, script_fn *calls, const struct right *right, unsigned long n)
{
	health_set(health, false);
	calls(p);
	check(p, right->calls, n);
	script_drain(p);
	check(p, right->drained, n);
	cr_assert(p->session->ops->finished(p->session));
}

/* False when it met no failure. */
static bool pass(unsigned long n, bool lasting, script_fn *calls, const struct right *right)
{
	long live = heap.live;
	struct peer *p = world_new();
	heap_arm(n, lasting);
	run(p, calls, right, n);
	bool met = heap_disarm();

	end_held();
	world.flood_left = 0;
	heap.failed = 0;
	peer_reconnect(p);
	run(p, calls, right, n);
	cr_assert_eq(grpc_registry_in_flight(p->registry), 0, "allocation %lu", n);
	world_free(p);
	cr_assert_eq(heap.live, live, "allocation %lu: %ld left", n, heap.live - live);
	return met;
}

/* A peer that has had its answers and is kept for them. */
static struct peer *run_once(script_fn *calls, bool drain)
{
	struct peer *p = world_new();
	calls(p);
	if (drain)
		script_drain(p);
	cr_assert_eq(is_over(p), false);
	p->session->ops->free(p->session);
	p->session = NULL;
	health_free(health);
	reflection_free(reflection);
	return p;
}

static void texts_make(void)
{
	static uint8_t text[1000];
	text_frame(&one_text, "memory", 6);
	text_frame(&two_texts, "memory", 6);
	text_frame(&two_texts, "runs out", 8);
	for (unsigned i = 0; i < 320; i++) {
		memset(text, (int)i, sizeof(text));
		text_frame(&many_texts, text, sizeof(text));
	}
}

static void sweep(script_fn *calls, unsigned long least)
{
	texts_make();
	struct right right = {run_once(calls, false), run_once(calls, true)};
	for (unsigned lasting = 0; lasting < 2; lasting++) {
		unsigned long n = 1;
		while (pass(n, lasting != 0, calls, &right))
			n++;
		fprintf(stderr, "%lu allocations\n", n - 1);
		cr_assert_gt(n, least);
	}
	peer_free(right.calls);
	peer_free(right.drained);
	buf_free(&one_text);
	buf_free(&two_texts);
	buf_free(&many_texts);
}

Test(alloc, calls)
{
	sweep(script_calls, 200);
}

Test(alloc, a_pause)
{
	sweep(script_pause, 100);
}

/* ---- HTTP/1 ---- */

#define http_must(condition) cr_assert(condition)
#define http_enter()         heap.inside++
#define http_leave()         heap.inside--
#include "http1_peer.h"

static void http_say(struct http_peer *p, const char *text)
{
	http_peer_feed(p, text, strlen(text));
	http_peer_settle(p);
	while (p->waiting != NULL) {
		http1_source_wake(&p->waiting->source);
		http_peer_settle(p);
	}
}

/* Requests of each kind; what comes back is right, or an error, or the connection is over. */
static void http_script(struct http_peer *p, unsigned long n)
{
	static const char get[] = "GET /text HTTP/1.1\r\nHost: a\r\n\r\n"
				  "GET /body HTTP/1.1\r\nHost: a\r\n\r\n";
	http_say(p, get);
	http_say(p, "GET /slow HTTP/1.1\r\nHost: a\r\n\r\nGET /seldom HTTP/1.1\r\n");
	http_say(p, "Host: a\r\n\r\nGET /none HTTP/1.1\r\nHost: a\r\n\r\n");
	http_say(p, "GET /body HTTP/1.0\r\n\r\n");
	bool armed = heap_hold();
	struct http_answer a;
	size_t at = 0, answers = 0;
	bool over = p->session->dead || p->res < 0;
	while (at < p->out.len && http_answer_parse(&a, p->out.data + at, p->out.len - at, false)) {
		cr_assert_lt(answers, 6, "allocation %lu", n);
		bool right = a.status == (answers == 4 ? 404 : 200);
		right &= answers == 4 || a.length == (answers == 0 ? strlen("text\n") : p->size);
		/* To an end that is the connection's: there it is for conn.c to tell. */
		right |= a.body_is_end && over;
		cr_assert(right || (n != 0 && a.status == 503),
			"allocation %lu: answer %zu is %u with %zu bytes", n, answers, a.status,
			a.length);
		at += a.all;
		answers++;
	}
	cr_assert(over || (answers == 6 && at == p->out.len),
		"allocation %lu: %zu answers and the connection goes on", n, answers);
	heap_release(armed);
}

static bool http_pass(unsigned long n, bool lasting)
{
	long live = heap.live;
	struct http_peer *p = http_peer_new();
	heap_spare_ring(p->ring);
	heap_arm(n, lasting);
	int res = heap_inside(http1_new(&p->http1, p->ring, &p->limits, p->routes));
	if (res == 0)
		res = http_peer_connect(p);
	if (res == 0)
		http_script(p, n);
	bool met = heap_disarm();
	cr_assert(res == 0 || met);
	if (p->http1 == NULL)
		cr_assert_eq(http1_new(&p->http1, p->ring, &p->limits, p->routes), 0);
	http_peer_disconnect(p);
	cr_assert_eq(http_peer_connect(p), 0);
	http_script(p, 0);
	cr_assert_eq(p->res, 0);
	http_peer_free(p);
	cr_assert_eq(heap.live, live, "allocation %lu: %ld left", n, heap.live - live);
	return met;
}

Test(alloc, http)
{
	for (unsigned lasting = 0; lasting < 2; lasting++) {
		unsigned long n = 1;
		while (http_pass(n, lasting))
			n++;
		fprintf(stderr, "%lu allocations\n", n - 1);
		cr_assert_gt(n, 20);
	}
}

/* ---- before there is a session ---- */

static bool start_up(unsigned long n, bool lasting)
{
	long live = heap.live;
	struct ring_sim sim = {.seed = 1};
	struct ring *ring;
	cr_assert_eq(ring_sim_open(&ring, &sim), 0);
	heap_spare_ring(ring);

	heap_arm(n, lasting);
	heap.inside++;
	struct session *session = NULL;
	struct grpc_registry *registry = grpc_registry_new();
	int added =
		registry != NULL ? grpc_registry_add(registry, &test_service, test_check) : -ENOMEM;
	health = registry != NULL ? health_new(registry) : NULL;
	reflection = registry != NULL ? reflection_new(registry, proto_descriptor_set,
						proto_descriptor_set_len)
				      : NULL;
	struct h2_turns turns;
	h2_turns_init(&turns, ring);
	struct h2_config config = {.ring = ring,
		.registry = registry,
		.limits = &server_limits_default,
		.turns = &turns};
	int res = registry != NULL ? h2_session_new(&config, &session) : -ENOMEM;
	heap.inside--;
	bool met = heap_disarm();

	cr_assert(added == 0 || added == -ENOMEM);
	cr_assert(res == 0 || res == -ENOMEM);
	cr_assert_eq(res == 0, session != NULL);
	cr_assert_eq(met,
		registry == NULL || added < 0 || health == NULL || reflection == NULL ||
			session == NULL,
		"allocation %lu failed and nobody noticed", n);
	if (session != NULL)
		session->ops->free(session);
	health_free(health);
	reflection_free(reflection);
	grpc_registry_free(registry);
	ring_close(ring);
	cr_assert_eq(heap.live, live, "allocation %lu: %ld left", n, heap.live - live);
	return met;
}

Test(alloc, start_up)
{
	unsigned long n = 1;
	while (start_up(n, false))
		n++;
	fprintf(stderr, "%lu allocations\n", n - 1);
	cr_assert_gt(n, 20);
	for (unsigned long i = 1; i < n; i++)
		start_up(i, true);
}

/* What cannot be added leaves nothing behind. */
Test(alloc, services_that_are_refused)
{
	static const struct grpc_method twice[] = {
		{"Echo", test_echo}, {"Fail", test_fail}, {"Echo", test_echo}, {NULL}};
	static const struct grpc_method unknown[] = {{"Echo", test_echo}, {"Nope", NULL}, {NULL}};
	ProtobufCServiceDescriptor descriptor = test_descriptor;
	descriptor.name = "test.v1.Other";
	struct grpc_service services[] = {{&descriptor, twice, NULL}, {&descriptor, unknown, NULL}};
	long before = heap.live;
	struct grpc_registry *registry = test_registry();
	long live = heap.live;
	cr_assert_eq(grpc_registry_add(registry, &services[0], NULL), -EEXIST);
	cr_assert_eq(heap.live, live);
	cr_assert_eq(grpc_registry_add(registry, &services[1], NULL), -ENOENT);
	cr_assert_eq(heap.live, live);
	cr_assert_null(grpc_registry_find(registry, "/test.v1.Other/Echo", 19));
	cr_assert_not_null(grpc_registry_find(registry, "/test.v1.Test/Echo", 18));
	grpc_registry_free(registry);
	cr_assert_eq(heap.live, before);
}

Test(alloc, no_session_of_tls)
{
	const struct tls_config config = {0}; /* nothing of it is looked at before */
	struct session *session = NULL;
	heap_arm(1, false);
	cr_assert_eq(heap_inside(tls_session_new(&config, &session)), -ENOMEM);
	cr_assert(heap_disarm());
	cr_assert_null(session);
}
