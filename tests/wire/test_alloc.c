/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that runs out: a scripted session (unary, split, streaming both ways, resets, a deadline,
 * refusals, a watch, a drain) with the N-th allocation failing, for N = 1, 2, ... until one pass
 * meets no failure; once with that one allocation failing and once with all from there on. Nothing
 * may crash or leak; a stream is answered or its connection is over; and when memory is back the
 * same registry serves.
 *
 * The linker puts the wrappers below between our objects and the C library (--wrap); nghttp2's
 * session gets them as its nghttp2_mem. Allocations count only inside the server's functions, not
 * in the test's own. Out of the game by design: the arrays of ring.c and ring_timer.c, which end
 * the process when they cannot grow (ring.h says so); they are grown before.
 */
#include "peer.h"

#include "descriptor_set.h"
#include "rpc/health.h"
#include "rpc/reflection.h"

#include <errno.h>

/* ---- the heap ---- */

static struct {
	bool armed;      /* the script runs */
	unsigned inside; /* the server's functions */
	bool lasting;    /* all fail from the N-th on */
	unsigned long fail_at, count, failed;
	long live; /* allocated and not freed */
} heap;

static bool heap_fails(void)
{
	if (!heap.armed || heap.inside == 0)
		return false;
	heap.count++;
	bool fails = heap.lasting ? heap.count >= heap.fail_at : heap.count == heap.fail_at;
	heap.failed += fails;
	return fails;
}

/* The linker's names. */
void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *p, size_t size);
void *__real_reallocarray(void *p, size_t count, size_t size);
void __real_free(void *p);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *p, size_t size);
void *__wrap_reallocarray(void *p, size_t count, size_t size);
void __wrap_free(void *p);

void *__wrap_malloc(size_t size)
{
	void *p = heap_fails() ? NULL : __real_malloc(size);
	heap.live += p != NULL;
	return p;
}

void *__wrap_calloc(size_t count, size_t size)
{
	void *p = heap_fails() ? NULL : __real_calloc(count, size);
	heap.live += p != NULL;
	return p;
}

void *__wrap_realloc(void *p, size_t size)
{
	void *q = heap_fails() ? NULL : __real_realloc(p, size);
	heap.live += p == NULL && q != NULL;
	return q;
}

void *__wrap_reallocarray(void *p, size_t count, size_t size)
{
	void *q = heap_fails() ? NULL : __real_reallocarray(p, count, size);
	heap.live += p == NULL && q != NULL;
	return q;
}

void __wrap_free(void *p)
{
	heap.live -= p != NULL;
	__real_free(p);
}

/* ---- nghttp2's ---- */

static void *mem_malloc(size_t size, void *arg)
{
	(void)arg;
	return __wrap_malloc(size);
}

static void *mem_calloc(size_t count, size_t size, void *arg)
{
	(void)arg;
	return __wrap_calloc(count, size);
}

/* Its priority queues, which begin with 4 pointers and double, must not fail: there nghttp2 before
 * 1.61 frees an item twice (session_attach_stream_item), which no caller can prevent. */
static void *mem_realloc(void *p, size_t size, void *arg)
{
	(void)arg;
	bool queue = size >= 4 * sizeof(void *) && size <= 4096 && (size & (size - 1)) == 0;
	bool armed = heap.armed;
	heap.armed = armed && !queue;
	void *q = __wrap_realloc(p, size);
	heap.armed = armed;
	return q;
}

static void mem_free(void *p, void *arg)
{
	(void)arg;
	__wrap_free(p);
}

int __wrap_nghttp2_session_server_new2(nghttp2_session **ret,
	const nghttp2_session_callbacks *callbacks, void *arg, const nghttp2_option *option);
int __real_nghttp2_session_callbacks_new(nghttp2_session_callbacks **ret);
int __wrap_nghttp2_session_callbacks_new(nghttp2_session_callbacks **ret);
int __real_nghttp2_option_new(nghttp2_option **ret);
int __wrap_nghttp2_option_new(nghttp2_option **ret);

int __wrap_nghttp2_session_server_new2(nghttp2_session **ret,
	const nghttp2_session_callbacks *callbacks, void *arg, const nghttp2_option *option)
{
	static nghttp2_mem mem = {NULL, mem_malloc, mem_free, mem_calloc, mem_realloc};
	return nghttp2_session_server_new3(ret, callbacks, arg, option, &mem);
}

int __wrap_nghttp2_session_callbacks_new(nghttp2_session_callbacks **ret)
{
	return heap_fails() ? NGHTTP2_ERR_NOMEM : __real_nghttp2_session_callbacks_new(ret);
}

int __wrap_nghttp2_option_new(nghttp2_option **ret)
{
	return heap_fails() ? NGHTTP2_ERR_NOMEM : __real_nghttp2_option_new(ret);
}

/* ---- the server's functions ---- */

int __real_h2_conn_new(struct h2_conn **ret, const struct h2_config *config);
int __wrap_h2_conn_new(struct h2_conn **ret, const struct h2_config *config);
int __real_h2_conn_feed(struct h2_conn *conn, const uint8_t *data, size_t len);
int __wrap_h2_conn_feed(struct h2_conn *conn, const uint8_t *data, size_t len);
int __real_h2_conn_output(struct h2_conn *conn, struct buf *out, size_t limit);
int __wrap_h2_conn_output(struct h2_conn *conn, struct buf *out, size_t limit);
void __real_h2_conn_drain(struct h2_conn *conn);
void __wrap_h2_conn_drain(struct h2_conn *conn);
int __real_ring_turn(struct ring *ring, bool wait);
int __wrap_ring_turn(struct ring *ring, bool wait);

int __wrap_h2_conn_new(struct h2_conn **ret, const struct h2_config *config)
{
	heap.inside++;
	int res = __real_h2_conn_new(ret, config);
	heap.inside--;
	return res;
}

int __wrap_h2_conn_feed(struct h2_conn *conn, const uint8_t *data, size_t len)
{
	heap.inside++;
	int res = __real_h2_conn_feed(conn, data, len);
	heap.inside--;
	return res;
}

int __wrap_h2_conn_output(struct h2_conn *conn, struct buf *out, size_t limit)
{
	heap.inside++;
	int res = __real_h2_conn_output(conn, out, limit);
	heap.inside--;
	return res;
}

void __wrap_h2_conn_drain(struct h2_conn *conn)
{
	heap.inside++;
	__real_h2_conn_drain(conn);
	heap.inside--;
}

int __wrap_ring_turn(struct ring *ring, bool wait)
{
	heap.inside++;
	int res = __real_ring_turn(ring, wait);
	heap.inside--;
	return res;
}

/* ---- the script ---- */

static struct health *health;
static struct reflection *reflection;

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

static void script(struct peer *p, const struct buf *text, const struct buf *texts)
{
	static const uint8_t bad[] = {0, 0, 0, 0, 2, 0xff, 0xff};
	static const uint8_t list[] = {0, 0, 0, 0, 2, 0x3a, 0};
	const struct buf garbage = {.data = (uint8_t *)bad, .len = sizeof(bad)};
	const struct buf services = {.data = (uint8_t *)list, .len = sizeof(list)};
	const char *const get[] = {":method", "GET", NULL};
	const char *const html[] = {"content-type", "text/html", NULL};
	const char *const soon[] = {"grpc-timeout", "100m", NULL};
	const char *const info = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";

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
	ask(p, "/test.v1.Test/Hold", text, 0, false, NULL);
	h2_conn_drain(p->conn);
	peer_pump(p);
	end_held();
	peer_advance(p, 3000); /* past the wait for the drain's ping */
}

/* A stream that was answered, or reset, is closed; if one is not, the connection is over. */
static void check_streams(struct peer *p, unsigned long n)
{
	if (p->fed < 0 || h2_conn_finished(p->conn))
		return;
	int32_t next = (int32_t)nghttp2_session_get_next_stream_id(p->client);
	for (int32_t id = 1; id < next; id += 2)
		cr_assert(
			p->answers[id / 2].closed, "allocation %lu: stream %d is left open", n, id);
}

static void grow_timers(struct ring *ring)
{
	enum { TIMERS = 256 };
	static struct ring_timer timers[TIMERS];
	for (unsigned i = 0; i < TIMERS; i++) {
		timers[i].fn = advance_done;
		ring_timer_arm(ring, &timers[i], 1);
	}
	for (unsigned i = 0; i < TIMERS; i++)
		ring_timer_cancel(ring, &timers[i]);
}

/* One pass; false when it met no failure. */
static bool pass(unsigned long n, bool lasting, const struct buf *text, const struct buf *texts)
{
	long live = heap.live;
	struct peer *p = peer_new();
	health = health_new(p->registry);
	reflection = reflection_new(p->registry, proto_descriptor_set, proto_descriptor_set_len);
	cr_assert(health != NULL && reflection != NULL);
	grow_timers(p->ring);
	heap.fail_at = n;
	heap.count = heap.failed = 0;
	heap.lasting = lasting;

	heap.armed = true;
	script(p, text, texts);
	heap.armed = false;

	bool met = heap.failed > 0;
	check_streams(p, n);
	end_held();
	world.flood_left = 0;
	peer_reconnect(p);
	int32_t id = ask(p, "/test.v1.Test/Echo", text, 0, false, NULL);
	assert_text(p, id, "memory", 6);
	cr_assert_eq(grpc_registry_in_flight(p->registry), 0, "allocation %lu", n);
	health_free(health);
	peer_free(p);
	reflection_free(reflection);
	cr_assert_eq(heap.live, live, "allocation %lu: %ld left", n, heap.live - live);
	return met;
}

static void session(bool lasting)
{
	struct buf text = {0}, texts = {0};
	text_frame(&text, "memory", 6);
	text_frame(&texts, "memory", 6);
	text_frame(&texts, "runs out", 8);
	unsigned long n = 1;
	while (pass(n, lasting, &text, &texts))
		n++;
	fprintf(stderr, "%lu allocations\n", n - 1);
	cr_assert_gt(n, 200);
	buf_free(&text);
	buf_free(&texts);
}

Test(alloc, one_fails)
{
	session(false);
}

Test(alloc, all_fail_from_one_on)
{
	session(true);
}

/* ---- HTTP/1 ---- */

#define http_must(condition) cr_assert(condition)
#define http_enter()         heap.inside++
#define http_leave()         heap.inside--
#include "http1_peer.h"

static void nothing(struct ring_req *req, int res, uint32_t flags)
{
	(void)req;
	(void)res;
	(void)flags;
}

/* The simulated ring's book and its list of completions. */
static void grow_book(struct ring *ring)
{
	struct ring_req req = {.fn = nothing};
	ring_post(ring, &req, 0);
	while (req.armed)
		cr_assert_eq(ring_turn(ring, false), 0);
}

static void http_say(struct http_peer *p, const char *text)
{
	http_peer_feed(p, text, strlen(text));
	http_peer_settle(p);
	while (p->waiting != NULL) {
		http1_source_wake(&p->waiting->source);
		http_peer_settle(p);
	}
}

/* Requests of each kind; what comes back is whole answers, or the connection is over. */
static void http_script(struct http_peer *p, unsigned long n)
{
	static const char get[] = "GET /text HTTP/1.1\r\nHost: a\r\n\r\n"
				  "GET /body HTTP/1.1\r\nHost: a\r\n\r\n";
	http_say(p, get);
	http_say(p, "GET /slow HTTP/1.1\r\nHost: a\r\n\r\nGET /seldom HTTP/1.1\r\n");
	http_say(p, "Host: a\r\n\r\nGET /none HTTP/1.1\r\nHost: a\r\n\r\n");
	http_say(p, "GET /body HTTP/1.0\r\n\r\n");
	bool armed = heap.armed;
	heap.armed = false;
	struct http_answer a;
	size_t at = 0, answers = 0;
	while (at < p->out.len && http_answer_parse(&a, p->out.data + at, p->out.len - at, false)) {
		at += a.all;
		answers++;
	}
	cr_assert((answers == 6 && at == p->out.len) || p->session->dead || p->res < 0,
		"allocation %lu: %zu answers and the connection goes on", n, answers);
	heap.armed = armed;
}

static bool http_pass(unsigned long n, bool lasting)
{
	long live = heap.live;
	struct http_peer *p = http_peer_new();
	grow_timers(p->ring);
	grow_book(p->ring);
	heap.fail_at = n;
	heap.count = heap.failed = 0;
	heap.lasting = lasting;

	heap.armed = true;
	heap.inside++;
	int res = http1_new(&p->http1, p->ring, &p->limits, p->routes);
	heap.inside--;
	if (res == 0)
		res = http_peer_connect(p);
	if (res == 0)
		http_script(p, n);
	heap.armed = false;

	bool met = heap.failed > 0;
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
	heap.fail_at = n;
	heap.count = heap.failed = 0;
	heap.lasting = lasting;
	struct ring_sim sim = {.seed = 1};
	struct ring *ring;
	cr_assert_eq(ring_open(&ring, &(struct ring_config){.sim = &sim}), 0);
	grow_timers(ring);

	heap.armed = true;
	heap.inside++;
	struct h2_conn *conn = NULL;
	struct grpc_registry *registry = grpc_registry_new();
	int added =
		registry != NULL ? grpc_registry_add(registry, &test_service, test_check) : -ENOMEM;
	health = registry != NULL ? health_new(registry) : NULL;
	reflection = registry != NULL ? reflection_new(registry, proto_descriptor_set,
						proto_descriptor_set_len)
				      : NULL;
	struct h2_config config = {
		.ring = ring, .registry = registry, .limits = &server_limits_default};
	int res = registry != NULL ? h2_conn_new(&conn, &config) : -ENOMEM;
	heap.inside--;
	heap.armed = false;

	bool met = heap.failed > 0;
	cr_assert(added == 0 || added == -ENOMEM);
	cr_assert(res == 0 || res == -ENOMEM);
	cr_assert_eq(res == 0, conn != NULL);
	cr_assert_eq(met,
		registry == NULL || added < 0 || health == NULL || reflection == NULL ||
			conn == NULL,
		"allocation %lu failed and nobody noticed", n);
	h2_conn_free(conn);
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
