/* SPDX-License-Identifier: Apache-2.0 */
/* The server on real sockets and the kernel's ring: endpoints, admission, limits, drain. */
#include "server_client.h"

#include "reactor/ring_bufs.h"
#include "rpc/conn.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

TestSuite(server, .init = setup, .fini = teardown);

/* ---- what was received ---- */

static bool in_buffers(struct ring_bufs *bufs, const char *text)
{
	for (uint32_t i = 0; i < 64; i++) {
		const uint8_t *at =
			ring_bufs_at(bufs, i << IORING_CQE_BUFFER_SHIFT | IORING_CQE_F_BUFFER);
		if (memmem(at, SESSION_FEED_BYTES, text, strlen(text)) != NULL)
			return true;
	}
	return false;
}

/* Requests may have secrets. What comes when nobody listens any more is thrown away unread, and is
 * one as well. */
Test(server, what_was_received_is_wiped)
{
	static const char late[] = "a request that comes too late";
	struct ring_bufs *bufs;
	serve(&server_limits_default);
	cr_assert_eq(conn_bufs_open(ring, false, &bufs), 0);
	struct peer *p = peer_new();
	int fd = dial();
	client_call(p, fd);
	cr_assert_not(in_buffers(bufs, "socket"));
	close(fd);
	peer_free(p);

	fd = dial();
	cr_assert_eq(send(fd, "this is no HTTP/2 at all", 24, 0), 24);
	turn_until(client_closed(fd)); /* its side is shut: it lingers */
	cr_assert_eq(send(fd, late, sizeof(late), MSG_NOSIGNAL), sizeof(late));
	for (unsigned i = 0; i < 100; i++) {
		cr_assert_eq(ring_turn(ring, false), 0);
		usleep(50);
	}
	cr_assert_eq(server_stats(server)->connections, 1, "it lingers yet");
	cr_assert_not(in_buffers(bufs, late));
	close(fd);
	turn_until(server_stats(server)->connections == 0);
	ring_bufs_close(bufs);
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
	cr_assert_eq(err.code, ERR_OK, "%s", err.message);
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

/* A socket that another has put in its place is not ours to remove. */
Test(server, a_socket_that_was_replaced_is_left_alone)
{
	struct stat ours, theirs;
	char aside[80];
	serve(&server_limits_default);
	cr_assert_eq(lstat(path, &ours), 0);
	snprintf(aside, sizeof(aside), "%s.aside", path);
	cr_assert_eq(rename(path, aside), 0); /* it keeps its inode from being used again */
	close(open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
	cr_assert_eq(lstat(path, &theirs), 0);
	cr_assert_neq(theirs.st_ino, ours.st_ino);
	server_unlisten(server);
	cr_assert_eq(access(path, F_OK), 0);
	cr_assert_eq(unlink(aside), 0);
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

/* Idle ones, of any number, shut nobody out: the oldest that never called makes room. */
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
	turn_until(stats->accepted == MANY + MORE);
	turn_until(stats->connections == MANY);
	cr_assert_eq(stats->refused, 0);
	cr_assert_eq(stats->made_room, MORE);
	struct peer *p = peer_new();
	cr_assert_not(client_closed(fds[MORE]));
	cr_assert(client_closed(fds[MORE - 1]));
	client_call(p, fds[MANY + MORE - 1]);
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

/* All that there is room for are being greeted, each with a send under way, when one more comes:
 * one of them goes. */
Test(server, a_burst_shuts_nobody_out)
{
	enum { ROOM = 8 };
	struct server_limits limits = server_limits_default;
	limits.connections = ROOM;
	serve(&limits);
	const struct server_stats *stats = server_stats(server);
	int fds[ROOM + 1];
	for (unsigned i = 0; i < ROOM; i++)
		fds[i] = dial();
	turn_until(stats->accepted == ROOM);
	fds[ROOM] = dial();
	turn_until(stats->accepted + stats->refused == ROOM + 1);
	cr_expect_eq(stats->refused, 0);
	turn_until(stats->connections == ROOM);
	for (unsigned i = 0; i <= ROOM; i++)
		cr_expect_eq(client_closed(fds[i]), i == 0, "%u", i);
	struct peer *p = peer_new();
	client_call(p, fds[ROOM]);
	peer_free(p);
	for (unsigned i = 0; i <= ROOM; i++)
		close(fds[i]);
	turn_until(stats->connections == 0);
}

/* One that has called before goes after those that never did; one with a call under way stays. */
Test(server, idle_connections_make_room)
{
	struct server_limits limits = server_limits_default;
	limits.connections = 4;
	limits.half_open_ms = 3600000;
	serve(&limits);
	const struct server_stats *stats = server_stats(server);
	struct peer *busy = peer_new(), *p = peer_new(), *others[5] = {NULL};
	struct buf b = {0};
	int busy_fd = dial(), asked = dial(), fds[5];
	int32_t id = client_ask(busy, "/test.v1.Test/Hold", &b, "");
	while (world.held == NULL)
		cr_assert(client_move(busy, busy_fd));
	client_call(p, asked);
	for (unsigned i = 0; i < 5; i++) {
		others[i] = peer_new();
		fds[i] = dial();
		client_call(others[i], fds[i]);
	}
	/* The one that was asked longest ago goes first; of the others the last two are left. */
	turn_until(stats->connections == 4);
	cr_expect_eq(stats->refused, 0);
	cr_expect(client_closed(asked));
	for (unsigned i = 0; i < 5; i++)
		cr_expect_eq(client_closed(fds[i]), i < 2, "%u", i);
	cr_expect_not(client_closed(busy_fd));
	(void)id;
	close(busy_fd);
	close(asked);
	for (unsigned i = 0; i < 5; i++) {
		close(fds[i]);
		peer_free(others[i]);
	}
	turn_until(stats->connections == 0);
	peer_free(busy);
	peer_free(p);
	buf_free(&b);
}

Test(server, a_connection_that_says_nothing)
{
	struct server_limits limits = server_limits_default;
	limits.half_open_ms = 20;
	serve(&limits);
	int fd = dial();
	turn_until(server_stats(server)->half_open_closed == 1);
	turn_until(server_stats(server)->connections == 0);
	cr_assert_eq(server_stats(server)->flooded, 0);
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

/* One that reads a little now and then is no such client: it is waited for longer than a client
 * that reads nothing. */
Test(server, a_client_that_reads_slowly)
{
	enum { STALL_MS = 1000, PIECES = 5 };
	struct server_limits limits = server_limits_default;
	limits.write_stall_ms = STALL_MS;
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
	for (unsigned piece = 0; piece < PIECES; piece++) {
		static uint8_t data[256 << 10];
		uint64_t until = ring_now_ns(ring) + STALL_MS / 3 * UINT64_C(1000000);
		turn_until(ring_now_ns(ring) > until);
		cr_assert_gt(recv(fd, data, sizeof(data), MSG_DONTWAIT), 0, "piece %u", piece);
	}
	cr_assert_eq(server_stats(server)->connections, 1);
	turn_until(server_stats(server)->connections == 0);
	close(fd);
	buf_free(&b);
	peer_free(p);
}

/* ---- drain ---- */

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
	cr_assert_eq(server_stats(server)->drain_cut, 0);
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
	cr_assert_eq(server_stats(server)->drain_cut, 1);
	cr_assert_eq(server_stats(server)->connections, 0);
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
