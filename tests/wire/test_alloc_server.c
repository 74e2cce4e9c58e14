/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that runs out under the server: sockets, connections and their buffers, a drain, the
 * close; and calls without a client. As in test_alloc.c the N-th allocation fails, for every N,
 * alone and with all that follow. Clients are served over real sockets by the simulated ring, so
 * that a pass is a function of N alone. What a client gets is right, or an error, or the end of its
 * connection; nothing leaks, no descriptor either; and the client that comes when memory is back
 * gets the same answers from the same server as one that came before.
 */
#include "heap.h"
#include "rpc/health.h"
#include "rpc/http1.h"
#include "rpc/server_conns.h"
#include "verdict.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define http_must(condition) cr_assert(condition)
#include "http1_peer.h"

static char dir[] = "/tmp/ringvol-alloc-XXXXXX";
static char path[64], endpoint[80];
static struct ring_sim sim;
static struct ring *ring;
static struct grpc_registry *registry;
static struct server *server;
static struct buf one_text, two_texts;

static void setup(void)
{
	cr_assert_not_null(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/csi.sock", dir);
	snprintf(endpoint, sizeof(endpoint), "unix://%s", path);
	text_frame(&one_text, "memory", 6);
	text_frame(&two_texts, "memory", 6);
	text_frame(&two_texts, "runs out", 8);
}

static void teardown(void)
{
	buf_free(&one_text);
	buf_free(&two_texts);
	unlink(path);
	rmdir(dir);
}

TestSuite(alloc_server, .init = setup, .fini = teardown);

static unsigned fds_open(void)
{
	unsigned count = 0;
	for (int fd = 0; fd < 512; fd++)
		count += fcntl(fd, F_GETFD) >= 0;
	return count;
}

static void hold_end(enum grpc_status status)
{
	struct grpc_call *call = world.held;
	world.held = NULL;
	if (call == NULL)
		return;
	heap.inside++;
	grpc_end(call, status, NULL);
	heap.inside--;
}

/* ---- the server ---- */

enum { LETTERS = 20000 };

struct letters {
	struct http1_source source;
	size_t at;
};

static int letters_more(struct http1_source *source, struct buf *out, size_t limit)
{
	struct letters *l = container_of(source, struct letters, source);
	size_t n = LETTERS - l->at < limit ? LETTERS - l->at : limit, some;
	if (n > 3000)
		n = 3000;
	for (size_t end = l->at + n; l->at < end; l->at += some) {
		const char *letters = http_letters(l->at, end - l->at, &some);
		if (buf_append(out, letters, some) < 0)
			return -ENOMEM;
	}
	return l->at < LETTERS;
}

static void letters_free(struct http1_source *source)
{
	free(container_of(source, struct letters, source));
}

static void serve_letters(struct http1_call *call, void *arg)
{
	(void)arg;
	struct letters *l = calloc(1, sizeof(*l));
	if (l == NULL) {
		http1_reply(call, 503, "out of memory");
		return;
	}
	l->source = (struct http1_source){.more = letters_more, .free = letters_free};
	http1_stream(call, "text/x-body", &l->source);
}

static void serve_text(struct http1_call *call, void *arg)
{
	(void)arg;
	http1_reply(call, 200, "text");
}

static const struct http1_route routes[] = {
	{"/text", serve_text, NULL}, {"/letters", serve_letters, NULL}, {NULL, NULL, NULL}};

/* 0, or -ENOMEM and nothing is left of it. */
static int serve(void)
{
	struct err err = {0};
	struct server_config config = {.ring = ring,
		.registry = registry,
		.limits = server_limits_default,
		.http_routes = routes,
		.http_limits = server_http_limits_default};
	int res = heap_inside(server_open(&server, &config));
	if (res == 0) {
		res = heap_inside(server_listen(server, endpoint, &err));
		cr_assert_eq(res < 0, access(path, F_OK) < 0);
	}
	if (res < 0) {
		heap.inside++;
		server_close(server);
		heap.inside--;
		server = NULL;
	}
	cr_assert(res == 0 || res == -ENOMEM, "%d: %s", res, err.message);
	return res;
}

/* ---- clients ---- */

struct client {
	struct peer *p; /* its session; the rest of it is not used */
	int fd;
	bool over; /* the server has closed it */
};

static struct client client_new(void)
{
	return (struct client){.p = peer_new(), .fd = -1};
}

static void client_dial(struct client *c)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	memcpy(address.sun_path, path, strlen(path) + 1);
	c->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	cr_assert_eq(connect(c->fd, (struct sockaddr *)&address, sizeof(address)), 0, "%m");
}

static void client_hang_up(struct client *c)
{
	if (c->fd >= 0)
		close(c->fd);
	c->fd = -1;
}

static void client_free(struct client *c)
{
	client_hang_up(c);
	peer_free(c->p);
}

static bool turn(void)
{
	uint64_t before = ring_stats(ring)->completed;
	cr_assert_eq(ring_turn(ring, false), 0);
	return ring_stats(ring)->completed != before;
}

static void client_send(struct client *c, const uint8_t *data, size_t len)
{
	while (len > 0 && !c->over) {
		ssize_t n = send(c->fd, data, len, MSG_NOSIGNAL);
		if (n < 0 && errno == EAGAIN) {
			turn();
			continue;
		}
		c->over = n < 0;
		data += n > 0 ? n : 0;
		len -= n > 0 ? (size_t)n : 0;
	}
}

/* Moves what can be moved; false: nothing could. */
static bool client_move(struct client *c)
{
	const uint8_t *data;
	uint8_t in[16384];
	ssize_t n;
	bool moved = false;
	if (c->over)
		return false;
	while ((n = nghttp2_session_mem_send(c->p->client, &data)) > 0) {
		client_send(c, data, (size_t)n);
		moved = true;
	}
	while ((n = recv(c->fd, in, sizeof(in), 0)) > 0) {
		cr_assert_eq(nghttp2_session_mem_recv(c->p->client, in, (size_t)n), n);
		moved = true;
	}
	c->over |= n == 0 || errno != EAGAIN;
	return moved;
}

/* Until neither the client nor the server can go on. */
static void settle(struct client *c)
{
	while (client_move(c) || turn())
		;
}

static void wait_ms(uint64_t ms)
{
	sim_pass_ms(ring, ms);
}

static int32_t ask(struct client *c, const char *method, const struct buf *body)
{
	int32_t id = peer_request(
		c->p, &(struct request){.path = method, .body = body->data, .len = body->len});
	settle(c);
	return id;
}

/* ---- what they say ---- */

struct clients {
	struct client calls, beside, leaver;
};

static struct clients clients_new(void)
{
	return (struct clients){client_new(), client_new(), client_new()};
}

static void clients_free(struct clients *c)
{
	client_free(&c->calls);
	client_free(&c->beside);
	client_free(&c->leaver);
}

/* Calls of each kind, a client beside that comes while one is held, one that goes away meanwhile.
 */
static void talk(struct clients *c)
{
	client_dial(&c->calls);
	settle(&c->calls);
	ask(&c->calls, "/test.v1.Test/Echo", &one_text);
	ask(&c->calls, "/test.v1.Test/Fail", &one_text);
	world.flood_left = 40;
	world.flood_bytes = 5000;
	ask(&c->calls, "/test.v1.Test/Flood", &one_text);
	world.flood_left = 0;
	ask(&c->calls, "/test.v1.Test/Chat", &two_texts);
	ask(&c->calls, "/grpc.health.v1.Health/Watch", &one_text);
	ask(&c->calls, "/test.v1.Test/Hold", &one_text);
	client_dial(&c->beside);
	ask(&c->beside, "/test.v1.Test/Echo", &one_text);
	hold_end(GRPC_ABORTED);
	settle(&c->calls);
	client_dial(&c->leaver);
	ask(&c->leaver, "/test.v1.Test/Hold", &one_text);
	client_hang_up(&c->leaver);
	while (turn())
		;
	hold_end(GRPC_OK);
	while (turn())
		;
}

static void check(struct clients *c, const struct clients *right, unsigned long n)
{
	bool armed = heap_hold(), met = heap.failed > 0;
	verdict_on_all(c->calls.p, right->calls.p, met, c->calls.over, n);
	verdict_on_all(c->beside.p, right->beside.p, met, c->beside.over, n);
	heap_release(armed);
}

/* ---- HTTP ---- */

/* Two requests over one connection; what comes back is their answers, or the connection is over. */
static void http_talk(unsigned long n)
{
	static const char get[] = "GET /text HTTP/1.1\r\nHost: a\r\n\r\n"
				  "GET /letters HTTP/1.1\r\nHost: a\r\n\r\n";
	static const size_t lengths[] = {strlen("text\n"), LETTERS};
	int fds[2];
	cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
	heap.inside++;
	const struct remote_key key = remote_key_of_process(1);
	conns_open(server, &server->http, fds[0], &key);
	heap.inside--;
	bool armed = heap_hold();
	static uint8_t got[64 << 10];
	size_t len = 0;
	ssize_t res = send(fds[1], get, strlen(get), MSG_NOSIGNAL);
	cr_assert(res == (ssize_t)strlen(get) || errno == EPIPE);
	heap_release(armed);
	do {
		while ((res = recv(fds[1], got + len, sizeof(got) - len, 0)) > 0)
			len += (size_t)res;
	} while (turn());
	armed = heap_hold();
	bool over = res == 0 || errno != EAGAIN;
	struct http_answer a;
	size_t at = 0;
	unsigned answers = 0;
	for (; http_answer_parse(&a, got + at, len - at, false); at += a.all, answers++) {
		cr_assert_lt(answers, 2, "allocation %lu", n);
		cr_assert((a.status == 200 && a.length == lengths[answers]) ||
				  (a.status == 503 && heap.failed > 0),
			"allocation %lu: answer %u is %u, %zu bytes", n, answers, a.status,
			a.length);
	}
	cr_assert(over || (answers == 2 && at == len), "allocation %lu: %u answers", n, answers);
	cr_assert(heap.failed > 0 || !over);
	close(fds[1]);
	heap_release(armed);
	while (turn())
		;
}

/* ---- passes ---- */

static struct health *health;

static void on_drained(void *arg)
{
	(*(unsigned *)arg)++;
}

/* A drain that waits for a call, which ends. */
static void drain(struct client *c, const struct client *right, unsigned long n)
{
	unsigned drained = 0;
	ask(c, "/test.v1.Test/Hold", &one_text);
	heap.inside++;
	server_drain(server, 60000, on_drained, &drained);
	heap.inside--;
	cr_assert(access(path, F_OK) < 0, "allocation %lu: the socket is left", n);
	settle(c);
	hold_end(GRPC_OK);
	settle(c);
	wait_ms(3000); /* past the wait for the drain's ping, and lingering */
	settle(c);
	bool armed = heap_hold();
	cr_assert_eq(drained, 1, "allocation %lu: not drained", n);
	cr_assert_eq(server_stats(server)->drain_cut, 0, "allocation %lu", n);
	if (right != NULL) {
		bool gave_up = c->p->goaway_code == NGHTTP2_INTERNAL_ERROR;
		verdict_on_all(c->p, right->p, heap.failed > 0, heap.failed > 0 && c->over, n);
		cr_assert(heap.failed > 0 || (c->p->goaway && !gave_up));
	}
	cr_assert(c->over, "allocation %lu: a connection outlives its drain", n);
	heap_release(armed);
}

static void world_open(void)
{
	sim = (struct ring_sim){.seed = 1, .short_every = 3, .eintr_every = 5};
	cr_assert_eq(ring_sim_open(&ring, &sim), 0);
	registry = test_registry();
	health = health_new(registry);
	cr_assert_not_null(health);
	heap_spare_ring(ring);
}

static void world_close(void)
{
	heap.inside++;
	server_close(server);
	heap.inside--;
	server = NULL;
	health_free(health);
	grpc_registry_free(registry);
	ring_close(ring);
}

struct right {
	struct clients clients;
	struct client drained;
};

/* The first run, whose answers are the right ones. */
static struct right right_new(void)
{
	struct right right = {clients_new(), client_new()};
	world_open();
	cr_assert_eq(serve(), 0);
	talk(&right.clients);
	client_dial(&right.drained);
	drain(&right.drained, NULL, 0);
	world_close();
	return right;
}

static void right_free(struct right *right)
{
	clients_free(&right->clients);
	client_free(&right->drained);
}

/* False when it met no failure. */
static bool pass(unsigned long n, bool lasting, const struct right *right)
{
	long live = heap.live;
	unsigned fds = fds_open();
	struct clients first = clients_new(), next = clients_new();
	struct client last = client_new();
	world_open();

	heap_arm(n, lasting);
	if (serve() == 0) {
		talk(&first);
		check(&first, &right->clients, n);
		http_talk(n);
	}
	bool armed = heap_hold();
	unsigned long failed = heap.failed;
	heap.failed = 0;
	if (server == NULL)
		cr_assert_eq(serve(), 0);
	talk(&next);
	check(&next, &right->clients, n);
	http_talk(n);
	client_dial(&last);
	settle(&last);
	client_hang_up(&first.calls);
	client_hang_up(&first.beside);
	client_hang_up(&next.calls);
	client_hang_up(&next.beside);
	while (turn())
		;
	cr_assert_eq(server_stats(server)->connections, 1, "allocation %lu", n);
	cr_assert_eq(grpc_registry_in_flight(registry), 0, "allocation %lu", n);
	heap.failed = failed;
	heap_release(armed);
	drain(&last, &right->drained, n);
	bool met = heap_disarm();

	world_close();
	clients_free(&first);
	clients_free(&next);
	client_free(&last);
	cr_assert_eq(heap.live, live, "allocation %lu: %ld left", n, heap.live - live);
	cr_assert_eq(fds_open(), fds, "allocation %lu: descriptors are left", n);
	return met;
}

Test(alloc_server, serves_on)
{
	struct right right = right_new();
	for (unsigned lasting = 0; lasting < 2; lasting++) {
		unsigned long n = 1;
		while (pass(n, lasting != 0, &right))
			n++;
		fprintf(stderr, "%lu allocations\n", n - 1);
		cr_assert_gt(n, 200);
	}
	right_free(&right);
}
