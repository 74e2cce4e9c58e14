/* SPDX-License-Identifier: Apache-2.0 */
/* The server on real sockets and the kernel's ring: HTTP connections. */
#include "rpc/http1.h"
#include "server_env.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

TestSuite(server, .init = setup, .fini = teardown);

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

static void serve_http_for(unsigned connections, unsigned address_connections)
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
	config.http_limits.address_connections = address_connections;
	config.http_limits.half_open_ms = 3600000; /* nothing happens because time passes */
	http_address = (struct sockaddr_in){
		.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	cr_assert_eq(bind(fd, (struct sockaddr *)&http_address, len), 0);
	cr_assert_eq(getsockname(fd, (struct sockaddr *)&http_address, &len), 0);
	close(fd); /* a port that was free a moment ago */
	snprintf(address, sizeof(address), "127.0.0.1:%u", ntohs(http_address.sin_port));
	cr_assert_eq(server_open(&server, &config), 0);
	cr_assert_eq(server_listen_http(server, address, &err), 0, "%s", err.message);
	cr_assert_eq(err.code, ERR_OK, "%s", err.message);
}

static void serve_http(unsigned connections)
{
	serve_http_for(connections, connections);
}

/* host: the last byte of the loopback address that it comes from. */
static int dial_http_from(unsigned host)
{
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	struct sockaddr_in from = {
		.sin_family = AF_INET, .sin_addr.s_addr = htonl(0x7f000000 | host)};
	cr_assert_eq(bind(fd, (struct sockaddr *)&from, sizeof(from)), 0, "%m");
	cr_assert_eq(connect(fd, (struct sockaddr *)&http_address, sizeof(http_address)), 0, "%m");
	cr_assert_eq(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
	return fd;
}

static int dial_http(void)
{
	return dial_http_from(1);
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

/* Opens `count` connections that say nothing, one after the other. */
static void dial_mute(int *fds, unsigned count, unsigned host)
{
	uint64_t before = server_stats(server)->accepted;
	for (unsigned i = 0; i < count; i++) {
		fds[i] = dial_http_from(host);
		turn_until(server_stats(server)->accepted == before + i + 1);
	}
}

/* A probe: a connection of its own, a request, the answer. */
static void probe_from(unsigned host)
{
	int fd = dial_http_from(host);
	http_get(fd, "/text");
	turn_until(http_answered(fd));
	cr_expect_not(http_closed(fd), "from 127.0.0.%u", host);
	close(fd);
}

/* 300 half-open connections of one address: it has its own share and no more, and the oldest of
 * them make room for what it asks itself. */
Test(server, half_open_connections_lose_no_probe)
{
	enum { MUTE = 300, SHARE = 64 };
	int fds[MUTE], kept = 0;
	serve_http_for(256, SHARE);
	const struct server_stats *stats = server_stats(server);
	dial_mute(fds, MUTE, 1);
	turn_until(stats->connections == SHARE);
	cr_assert_eq(stats->made_room, MUTE - SHARE);
	for (unsigned i = 0; i < MUTE; i++)
		cr_expect_eq(http_closed(fds[i]), i < MUTE - SHARE, "%u", i);
	for (unsigned i = 0; i < 20; i++) {
		probe_from(2);
		probe_from(1);
		turn_until(stats->connections <= SHARE);
	}
	cr_assert_eq(stats->refused, 0);
	for (unsigned i = 0; i < MUTE; i++) {
		kept += !http_closed(fds[i]);
		close(fds[i]);
	}
	/* The first probe of that address took the place of one, the others its own. */
	cr_expect_eq(kept, SHARE - 1);
}

/* Many addresses fill all there is: those that have most lose first, then those that are oldest. */
Test(server, half_open_connections_of_many_addresses)
{
	int few[2], most[4], one;
	serve_http_for(7, 4);
	dial_mute(few, 2, 2);
	dial_mute(most, 4, 3);
	dial_mute(&one, 1, 4);
	probe_from(5);
	cr_expect(http_closed(most[0]));
	cr_expect_not(http_closed(most[1]));
	cr_expect_not(http_closed(few[0]));
	cr_expect_not(http_closed(one));
	close(one);
	for (unsigned i = 0; i < 4; i++)
		close(most[i]);
	close(few[0]);
	close(few[1]);
}

/* A request that has begun and does not end is no more than none. */
Test(server, half_a_request_makes_room)
{
	int half[2], whole;
	serve_http_for(3, 3);
	dial_mute(half, 2, 1);
	for (unsigned i = 0; i < 2; i++) {
		cr_assert_eq(send(half[i], "GET /te", 7, MSG_NOSIGNAL), 7);
		for (unsigned turn = 0; turn < 3; turn++)
			cr_assert_eq(ring_turn(ring, false), 0);
	}
	whole = dial_http();
	http_get(whole, "/many");
	turn_until(http_answered(whole));
	probe_from(1);
	cr_expect(http_closed(half[0]));
	cr_expect_not(http_closed(half[1]));
	cr_expect_not(http_closed(whole));
	close(half[0]);
	close(half[1]);
	close(whole);
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

Test(server, http_addresses_that_are_refused)
{
	static const char *const bad[] = {"", "1", "localhost:1", "tcp://127.0.0.1:1", "0.0.0.0:0"};
	char taken[64];
	struct err err = {0};
	serve_http(1);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		err_clear(&err);
		cr_assert_eq(server_listen_http(server, bad[i], &err), -EINVAL, "%s", bad[i]);
		cr_assert_eq(err.code, ERR_INVALID);
	}
	snprintf(taken, sizeof(taken), "127.0.0.1:%u", ntohs(http_address.sin_port));
	err_clear(&err);
	cr_assert_eq(server_listen_http(server, taken, &err), -EADDRINUSE);
	cr_assert_not_null(strstr(err.message, taken), "%s", err.message);
	int fd = dial_http();
	http_get(fd, "/text");
	turn_until(http_answered(fd));
	close(fd);
}
