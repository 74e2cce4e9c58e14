/* SPDX-License-Identifier: Apache-2.0 */
/* The server on real sockets and the kernel's ring: endpoints, admission, limits, drain. */
#include "peer.h"

#include "rpc/http1.h"
#include "rpc/server.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

static struct ring *ring;
static struct grpc_registry *registry;
static struct server *server;
static char dir[] = "/tmp/ringvol-wire-XXXXXX";
static char path[64], endpoint[80];

static void setup_with(struct ring_sim *sim)
{
	cr_assert_not_null(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/sub/csi.sock", dir);
	snprintf(endpoint, sizeof(endpoint), "unix://%s", path);
	cr_assert_eq(ring_open(&ring, &(struct ring_config){.sim = sim}), 0);
	registry = test_registry();
}

static void setup(void)
{
	setup_with(NULL);
}

static void teardown(void)
{
	server_close(server);
	grpc_registry_free(registry);
	ring_close(ring);
	unlink(path);
	char sub[64];
	snprintf(sub, sizeof(sub), "%s/sub", dir);
	rmdir(sub);
	rmdir(dir);
}

TestSuite(server, .init = setup, .fini = teardown);

static void serve(const struct server_limits *limits)
{
	struct err err = {0};
	struct server_config config = {.ring = ring, .registry = registry, .limits = *limits};
	cr_assert_eq(server_open(&server, &config), 0);
	cr_assert_eq(server_listen(server, endpoint, &err), 0, "%s", err.message);
}

static int dial(void)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	memcpy(address.sun_path, path, strlen(path) + 1);
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	cr_assert_geq(fd, 0);
	cr_assert_eq(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0, "%m");
	return fd;
}

/* Turns the server's ring until `done` or, when it never comes, the test's own timeout. */
#define turn_until(done)                                                                           \
	do {                                                                                       \
		while (!(done)) {                                                                  \
			cr_assert_eq(ring_turn(ring, false), 0);                                   \
			usleep(50);                                                                \
		}                                                                                  \
	} while (0)

/* The peer's session over a socket: moves what can be moved without waiting. False when the server
 * has closed. */
static bool client_move(struct peer *p, int fd)
{
	const uint8_t *data;
	ssize_t n;
	while ((n = nghttp2_session_mem_send(p->client, &data)) > 0) {
		for (ssize_t sent = 0; sent < n;) {
			ssize_t res = send(fd, data + sent, (size_t)(n - sent), MSG_NOSIGNAL);
			if (res < 0 && errno != EAGAIN)
				return false;
			sent += res > 0 ? res : 0;
			ring_turn(ring, false);
		}
	}
	ring_turn(ring, false);
	if (p->deaf)
		return true;
	uint8_t in[16384];
	while ((n = recv(fd, in, sizeof(in), 0)) > 0)
		cr_assert_eq(nghttp2_session_mem_recv(p->client, in, (size_t)n), n);
	return n < 0 && errno == EAGAIN;
}

static int32_t client_ask(struct peer *p, const char *method, struct buf *b, const char *text)
{
	b->len = 0;
	text_frame(b, text, strlen(text));
	return peer_request(p, &(struct request){.path = method, .body = b->data, .len = b->len});
}

static void client_call(struct peer *p, int fd)
{
	struct buf b = {0};
	int32_t id = client_ask(p, "/test.v1.Test/Echo", &b, "socket");
	while (!answer_at(p, id)->closed)
		cr_assert(client_move(p, fd));
	assert_text(p, id, "socket", 6);
	buf_free(&b);
}

/* ---- endpoints ---- */

Test(server, unix_socket)
{
	serve(&server_limits_default);
	struct stat st;
	cr_assert_eq(lstat(path, &st), 0);
	cr_assert(S_ISSOCK(st.st_mode));
	cr_assert_eq(st.st_mode & 07777, 0600);
	char sub[64];
	snprintf(sub, sizeof(sub), "%s/sub", dir);
	cr_assert_eq(stat(sub, &st), 0);
	cr_assert_eq(st.st_mode & 07777, 0750 & ~umask(0));

	struct peer *p = peer_new();
	int fd = dial();
	client_call(p, fd);
	client_call(p, fd);
	cr_assert_eq(server_stats(server)->connections, 1);
	cr_assert_eq(server_stats(server)->accepted, 1);
	cr_assert_gt(server_stats(server)->bytes_in, 0);
	cr_assert_gt(server_stats(server)->bytes_out, 0);
	close(fd);
	turn_until(server_stats(server)->connections == 0);
	peer_free(p);
}

Test(server, tcp)
{
	struct sockaddr_in address = {
		.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(address);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	cr_assert_eq(bind(fd, (struct sockaddr *)&address, len), 0);
	cr_assert_eq(getsockname(fd, (struct sockaddr *)&address, &len), 0);
	close(fd); /* a port that was free a moment ago */
	serve(&server_limits_default);
	struct err err = {0};
	char tcp[64];
	snprintf(tcp, sizeof(tcp), "tcp://127.0.0.1:%u", ntohs(address.sin_port));
	cr_assert_eq(server_listen(server, tcp, &err), 0, "%s", err.message);
	fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	cr_assert_eq(connect(fd, (struct sockaddr *)&address, len), 0);
	fcntl(fd, F_SETFL, O_NONBLOCK);
	struct peer *p = peer_new();
	client_call(p, fd);
	close(fd);
	peer_free(p);
}

Test(server, endpoints_that_are_refused)
{
	serve(&server_limits_default);
	static const char *const bad[] = {"", "csi.sock", "http://127.0.0.1:1", "unix://",
		"unix:", "unix:///tmp/", "tcp://0.0.0.0:10000", "tcp://192.0.2.1:10000",
		"tcp://[::]:10000", "tcp://127.0.0.1", "tcp://127.0.0.1:0", "tcp://127.0.0.1:65536",
		"tcp://127.0.0.1:1x", "tcp://localhost:10000", "tcp://:10000", "tcp://[]:10000",
		"tcp://127.0.0.1:-1"};
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct err err = {0};
		cr_assert_lt(server_listen(server, bad[i], &err), 0, "%s", bad[i]);
		cr_assert_eq(err.code, ERR_INVALID, "%s: %s", bad[i], err.message);
	}
	char longer[200] = "unix:///tmp/";
	memset(longer + 12, 'l', 150);
	struct err err = {0};
	cr_assert_lt(server_listen(server, longer, &err), 0);
	cr_assert_eq(err.code, ERR_INVALID);
}

Test(server, a_stale_socket_is_replaced_and_a_live_one_is_not)
{
	serve(&server_limits_default);
	struct server *second;
	struct server_config config = {
		.ring = ring, .registry = registry, .limits = server_limits_default};
	struct err err = {0};
	cr_assert_eq(server_open(&second, &config), 0);
	cr_assert_eq(server_listen(second, endpoint, &err), -EADDRINUSE);
	cr_assert_neq(strstr(err.message, path), NULL, "%s", err.message);
	server_close(second);
	cr_assert_eq(access(path, F_OK), 0);
	server_close(server);
	cr_assert_neq(access(path, F_OK), 0); /* ours is gone */

	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	memcpy(address.sun_path, path, strlen(path) + 1);
	cr_assert_eq(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	close(fd); /* left behind by a server that died */
	serve(&server_limits_default);
	struct peer *p = peer_new();
	fd = dial();
	client_call(p, fd);
	close(fd);
	peer_free(p);
}

Test(server, what_is_no_socket_is_left_alone)
{
	serve(&server_limits_default);
	char file[80], file_endpoint[100];
	snprintf(file, sizeof(file), "%s/file", dir);
	snprintf(file_endpoint, sizeof(file_endpoint), "unix://%s", file);
	close(open(file, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
	struct err err = {0};
	cr_assert_lt(server_listen(server, file_endpoint, &err), 0);
	cr_assert_eq(err.code, ERR_EXISTS);
	cr_assert_eq(unlink(file), 0);
}

/* ---- limits ---- */

Test(server, a_thousand_connections_and_no_more)
{
	enum { MANY = 1000, MORE = 20 };
	struct rlimit files;
	getrlimit(RLIMIT_NOFILE, &files);
	files.rlim_cur = files.rlim_max;
	setrlimit(RLIMIT_NOFILE, &files);
	if (files.rlim_cur < 2 * (MANY + MORE) + 50)
		cr_skip_test("RLIMIT_NOFILE is too low");
	struct server_limits limits = server_limits_default;
	limits.connections = MANY;
	serve(&limits);
	static int fds[MANY + MORE];
	for (unsigned i = 0; i < MANY + MORE; i++) {
		fds[i] = dial();
		ring_turn(ring, false);
	}
	const struct server_stats *stats = server_stats(server);
	turn_until(stats->accepted + stats->refused == MANY + MORE);
	cr_assert_eq(stats->connections, MANY);
	cr_assert_eq(stats->refused, MORE);
	struct peer *p = peer_new();
	client_call(p, fds[0]);
	peer_free(p);
	for (unsigned i = 0; i < MANY + MORE; i++)
		close(fds[i]);
	turn_until(stats->connections == 0);
	p = peer_new();
	int fd = dial();
	client_call(p, fd); /* there is room again */
	close(fd);
	peer_free(p);
}

Test(server, a_connection_that_says_nothing)
{
	struct server_limits limits = server_limits_default;
	limits.half_open_ms = 20;
	serve(&limits);
	int fd = dial();
	turn_until(server_stats(server)->half_open_closed == 1);
	turn_until(server_stats(server)->connections == 0);
	close(fd);
}

Test(server, a_client_that_stops_reading)
{
	struct server_limits limits = server_limits_default;
	limits.write_stall_ms = 50;
	serve(&limits);
	world.flood_left = 1 << 20;
	world.flood_bytes = 10000;
	struct peer *p = peer_new();
	nghttp2_settings_entry wide = {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, 0x7FFFFFFF};
	nghttp2_submit_settings(p->client, NGHTTP2_FLAG_NONE, &wide, 1);
	nghttp2_submit_window_update(p->client, NGHTTP2_FLAG_NONE, 0, 0x7FFFFFFF - 65535);
	struct buf b = {0};
	p->deaf = true;
	client_ask(p, "/test.v1.Test/Flood", &b, "");
	int fd = dial();
	client_move(p, fd);
	turn_until(server_stats(server)->accepted == 1 && server_stats(server)->connections == 0);
	cr_assert_eq(grpc_registry_in_flight(registry), 0);
	cr_assert_gt(world.flood_left, 0);
	close(fd);
	buf_free(&b);
	peer_free(p);
}

/* ---- drain ---- */

static void on_drained(void *arg)
{
	(*(unsigned *)arg)++;
}

Test(server, drain_when_idle)
{
	serve(&server_limits_default);
	struct peer *p = peer_new();
	int fd = dial();
	client_call(p, fd);
	unsigned drained = 0;
	server_drain(server, 60000, on_drained, &drained);
	cr_assert_eq(drained, 0);
	cr_assert_neq(access(path, F_OK), 0);
	while (client_move(p, fd))
		;
	cr_assert(p->goaway);
	cr_assert_eq(p->goaway_code, NGHTTP2_NO_ERROR);
	turn_until(drained == 1);
	close(fd);
	peer_free(p);
}

Test(server, drain_waits_for_a_call)
{
	serve(&server_limits_default);
	struct peer *p = peer_new();
	int fd = dial();
	struct buf b = {0};
	int32_t id = client_ask(p, "/test.v1.Test/Hold", &b, "");
	while (world.held == NULL)
		cr_assert(client_move(p, fd));
	unsigned drained = 0;
	server_drain(server, 60000, on_drained, &drained);
	while (!p->goaway || p->goaway_last != id)
		cr_assert(client_move(p, fd));
	cr_assert_eq(drained, 0);
	struct grpc_call *call = world.held;
	grpc_end(call, GRPC_OK, NULL);
	while (client_move(p, fd))
		;
	assert_answer(p, id, GRPC_OK);
	turn_until(drained == 1);
	close(fd);
	buf_free(&b);
	peer_free(p);
}

Test(server, drain_cuts_off_after_its_time)
{
	serve(&server_limits_default);
	struct peer *p = peer_new();
	int fd = dial();
	struct buf b = {0};
	client_ask(p, "/test.v1.Test/Hold", &b, "");
	while (world.held == NULL)
		cr_assert(client_move(p, fd));
	unsigned drained = 0;
	server_drain(server, 20, on_drained, &drained);
	turn_until(drained == 1);
	cr_assert_eq(world.gone, 1);
	struct grpc_call *call = world.held;
	grpc_end(call, GRPC_OK, NULL);
	close(fd);
	buf_free(&b);
	peer_free(p);
}

Test(server, closing_with_calls_running)
{
	serve(&server_limits_default);
	struct peer *p = peer_new();
	int fd = dial();
	struct buf b = {0};
	client_ask(p, "/test.v1.Test/Hold", &b, "");
	while (world.held == NULL)
		cr_assert(client_move(p, fd));
	server_close(server);
	server = NULL;
	cr_assert_eq(world.gone, 1);
	struct grpc_call *call = world.held;
	grpc_end(call, GRPC_OK, NULL);
	close(fd);
	buf_free(&b);
	peer_free(p);
}

/* ---- HTTP ---- */

static struct sockaddr_in http_address;

/* A body that is never more than looked over. */
static unsigned looks;

static int endless_more(struct http1_source *source, struct buf *out, size_t limit)
{
	(void)source;
	(void)out;
	(void)limit;
	looks++;
	return 1;
}

static void endless_free(struct http1_source *source)
{
	source->call = NULL;
}

static void http_endless(struct http1_call *call, void *arg)
{
	http1_stream(call, "text/plain", arg);
}

static void http_text(struct http1_call *call, void *arg)
{
	(void)arg;
	http1_reply(call, 200, "text");
}

static struct http1_source endless = {.more = endless_more, .free = endless_free}, many[16];
static unsigned many_count;

static void http_many(struct http1_call *call, void *arg)
{
	(void)arg;
	cr_assert_lt(many_count, 16);
	many[many_count] = endless;
	http1_stream(call, "text/plain", &many[many_count++]);
}

/* One that says "half" and fails. */
static bool torn_began;

static int torn_more(struct http1_source *source, struct buf *out, size_t limit)
{
	(void)source;
	(void)limit;
	if (torn_began)
		return -EIO;
	torn_began = true;
	cr_assert_eq(buf_append(out, "half", 4), 0);
	return 1;
}

static struct http1_source torn = {.more = torn_more, .free = endless_free};

static const struct http1_route routes[] = {{"/text", http_text, NULL},
	{"/endless", http_endless, &endless}, {"/many", http_many, NULL},
	{"/torn", http_endless, &torn}, {NULL, NULL, NULL}};

static void serve_http(unsigned connections)
{
	struct server_config config = {.ring = ring,
		.registry = registry,
		.limits = server_limits_default,
		.http_routes = routes,
		.http_limits = server_http_limits_default};
	struct err err = {0};
	socklen_t len = sizeof(http_address);
	char address[64];
	config.http_limits.connections = connections;
	http_address = (struct sockaddr_in){
		.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	cr_assert_eq(bind(fd, (struct sockaddr *)&http_address, len), 0);
	cr_assert_eq(getsockname(fd, (struct sockaddr *)&http_address, &len), 0);
	close(fd); /* a port that was free a moment ago */
	snprintf(address, sizeof(address), "127.0.0.1:%u", ntohs(http_address.sin_port));
	cr_assert_eq(server_open(&server, &config), 0);
	cr_assert_eq(server_listen_http(server, address, &err), 0, "%s", err.message);
}

static int dial_http(void)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	cr_assert_eq(connect(fd, (struct sockaddr *)&http_address, sizeof(http_address)), 0, "%m");
	cr_assert_eq(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
	return fd;
}

static void http_get(int fd, const char *what)
{
	char request[128];
	int len = snprintf(request, sizeof(request), "GET %s HTTP/1.1\r\nHost: x\r\n\r\n", what);
	cr_assert_eq(send(fd, request, (size_t)len, MSG_NOSIGNAL), len);
}

/* Whether the server has closed it; what it has sent is thrown away. */
static bool http_closed(int fd)
{
	char in[512];
	ssize_t n;
	while ((n = recv(fd, in, sizeof(in), 0)) > 0)
		;
	return n == 0 || errno != EAGAIN;
}

static bool http_answered(int fd)
{
	struct pollfd wait = {.fd = fd, .events = POLLIN};
	return poll(&wait, 1, 0) == 1;
}

/* Connections that are kept and say nothing do not shut out others; those that are busy, or have
 * not asked yet, stay. */
Test(server, idle_http_connections_make_room)
{
	enum { MANY = 8, BUSY = 0, MUTE = 1, MORE = 3 };
	int fds[MANY], more[MORE];
	const struct server_stats *stats;
	serve_http(MANY);
	stats = server_stats(server);
	for (unsigned i = 0; i < MANY; i++)
		fds[i] = dial_http();
	turn_until(stats->accepted == MANY);
	http_get(fds[BUSY], "/many");
	turn_until(http_answered(fds[BUSY]));
	/* The last one asks first, so it is idle longest. */
	for (unsigned i = MANY - 1; i > MUTE; i--) {
		http_get(fds[i], "/text");
		turn_until(http_answered(fds[i]));
		cr_assert_not(http_closed(fds[i]));
		for (unsigned turn = 0; turn < 3; turn++)
			cr_assert_eq(ring_turn(ring, false), 0);
	}
	for (unsigned i = 0; i < MORE; i++) {
		more[i] = dial_http();
		turn_until(stats->accepted + stats->refused == MANY + i + 1);
		cr_assert_eq(stats->refused, 0);
		http_get(more[i], "/many");
		turn_until(http_answered(more[i]));
		turn_until(stats->connections == MANY);
		for (unsigned k = 0; k < MANY; k++)
			cr_expect_eq(http_closed(fds[k]), k >= MANY - 1 - i, "%u after %u", k, i);
	}
	/* When none is idle the newcomer goes. */
	for (unsigned i = MUTE; i < MANY - MORE; i++)
		http_get(fds[i], "/many");
	for (unsigned i = MUTE; i < MANY - MORE; i++)
		turn_until(http_answered(fds[i]));
	int last = dial_http();
	turn_until(stats->refused == 1);
	turn_until(http_closed(last));
	close(last);
	for (unsigned i = 0; i < MANY; i++)
		close(fds[i]);
	for (unsigned i = 0; i < MORE; i++)
		close(more[i]);
}

/* Reads to the end of the connection; 0 or -errno, as it ends. */
static int http_end(int fd)
{
	char in[512];
	ssize_t n;
	while ((n = recv(fd, in, sizeof(in), 0)) != 0 && (n > 0 || errno == EAGAIN)) {
		cr_assert_eq(ring_turn(ring, false), 0);
		usleep(50);
	}
	int res = n < 0 ? -errno : 0;
	close(fd);
	return res;
}

static int http_old_get(const char *request)
{
	int fd = dial_http();
	cr_assert_eq(send(fd, request, strlen(request), MSG_NOSIGNAL), (ssize_t)strlen(request));
	return http_end(fd);
}

/* A body of HTTP/1.0 ends with the connection: where that is not the end of the body the client has
 * to see an error. */
Test(server, half_a_body_is_no_whole_one)
{
	serve_http(8);
	cr_assert_eq(http_old_get("GET /text HTTP/1.0\r\n\r\n"), 0);
	cr_assert_eq(http_old_get("GET /torn HTTP/1.0\r\n\r\n"), -ECONNRESET);
	turn_until(server_stats(server)->connections == 0);
	/* Cut off by a drain that lasts too long. */
	int fd = dial_http();
	http_get(fd, "/many");
	turn_until(http_answered(fd));
	unsigned drained = 0;
	server_drain(server, 20, on_drained, &drained);
	turn_until(drained == 1);
	cr_assert_eq(http_end(fd), -ECONNRESET);
}

/* A second signal during a drain: nothing of the connection is in the kernel while its body is
 * made, only a turn is posted. */
Test(server, closing_while_a_body_is_made)
{
	serve_http(8);
	int fd = dial_http();
	http_get(fd, "/endless");
	turn_until(looks > 0);
	unsigned drained = 0;
	server_drain(server, 3600000, on_drained, &drained);
	unsigned before = looks;
	turn_until(looks > before + 10); /* the listener is gone by now */
	cr_assert_eq(drained, 0);
	server_close(server);
	server = NULL;
	cr_expect_null(endless.call, "it was told");
	close(fd);
}

/* ---- faults, on the simulated ring ---- */

static struct ring_sim sim;
static unsigned accept_faults, recv_faults;

static int fault(void *arg, uint64_t nth, const struct io_uring_sqe *sqe)
{
	(void)arg;
	(void)nth;
	if (sqe->opcode == IORING_OP_ACCEPT && accept_faults > 0) {
		static const int errors[] = {-EMFILE, -ENFILE, -ENOBUFS, -ECONNABORTED, -ENOMEM};
		return errors[accept_faults-- % 5];
	}
	if (sqe->opcode == IORING_OP_RECV && recv_faults > 0) {
		recv_faults--;
		return -ENOBUFS;
	}
	return 0;
}

static void setup_sim(void)
{
	sim = (struct ring_sim){.seed = 7, .short_every = 3, .eintr_every = 5, .fault = fault};
	setup_with(&sim);
}

TestSuite(faults, .init = setup_sim, .fini = teardown);

Test(faults, accept_and_recv_try_again)
{
	accept_faults = 12;
	recv_faults = 3;
	serve(&server_limits_default);
	struct peer *p = peer_new();
	int fd = dial();
	struct ring_timer timer = {.fn = advance_done};
	ring_timer_arm(ring, &timer, 2000); /* virtual: accepting pauses after each fault */
	while (timer.fn != NULL)
		cr_assert_eq(ring_turn(ring, true), 0);
	client_call(p, fd);
	cr_assert_eq(accept_faults, 0);
	cr_assert_eq(recv_faults, 0);
	cr_assert_lt(sim.served, 1000); /* nothing spins */
	close(fd);
	peer_free(p);
}
