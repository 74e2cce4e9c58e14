/* SPDX-License-Identifier: Apache-2.0 */
/* A server of gRPC on a socket, and a peer that comes to it: for test_server.c and
 * test_server_faults.c. */
#ifndef RINGVOL_TESTS_WIRE_SERVER_CLIENT_H
#define RINGVOL_TESTS_WIRE_SERVER_CLIENT_H

#include "server_env.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

static inline void serve(const struct server_limits *limits)
{
	struct err err = {0};
	struct server_config config = {.ring = ring, .registry = registry, .limits = *limits};
	cr_assert_eq(server_open(&server, &config), 0);
	cr_assert_eq(server_listen(server, endpoint, &err), 0, "%s", err.message);
}

static inline int dial(void)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	memcpy(address.sun_path, path, strlen(path) + 1);
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	cr_assert_geq(fd, 0);
	cr_assert_eq(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0, "%m");
	return fd;
}

/* The peer's session over a socket: moves what can be moved without waiting. False when the server
 * has closed. */
static inline bool client_move(struct peer *p, int fd)
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

static inline int32_t client_ask(
	struct peer *p, const char *method, struct buf *b, const char *text)
{
	b->len = 0;
	text_frame(b, text, strlen(text));
	return peer_request(p, &(struct request){.path = method, .body = b->data, .len = b->len});
}

static inline void client_call(struct peer *p, int fd)
{
	struct buf b = {0};
	int32_t id = client_ask(p, "/test.v1.Test/Echo", &b, "socket");
	while (!answer_at(p, id)->closed)
		cr_assert(client_move(p, fd));
	assert_text(p, id, "socket", 6);
	buf_free(&b);
}

/* Whether the server has hung up. */
static inline bool client_closed(int fd)
{
	struct pollfd wait = {.fd = fd, .events = POLLRDHUP};
	return poll(&wait, 1, 0) == 1;
}

#endif
