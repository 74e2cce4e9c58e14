/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Listening sockets, connections and drain. Bytes go between sockets and h2.h here; nothing else
 * in ringvol knows that there are sockets below HTTP/2.
 */
#ifndef RINGVOL_RPC_SERVER_H
#define RINGVOL_RPC_SERVER_H

#include "base/err.h"
#include "reactor/ring.h"
#include "rpc/grpc.h"

struct server;

struct server_limits {
	unsigned connections;     /* at once; one more is accepted and closed */
	unsigned streams;         /* at once on a connection (SETTINGS) */
	unsigned header_bytes;    /* of one request's header list */
	unsigned half_open_ms;    /* from accept to preface, and from HEADERS to END_STREAM */
	unsigned idle_ms;         /* a connection without streams gets GOAWAY; 0: never */
	unsigned write_stall_ms;  /* a client that reads nothing for so long is closed */
	unsigned ping_min_ms;     /* pings closer than this are strikes; three end in GOAWAY */
	size_t send_buffer_bytes; /* queued on one connection before streams are paused */
};
extern const struct server_limits server_limits_default;

struct server_config {
	struct ring *ring;
	struct grpc_registry *registry;
	struct server_limits limits;
};

int server_open(struct server **ret, const struct server_config *config);

/* endpoint: unix:///PATH, unix:PATH, or tcp://127.0.0.1:PORT, tcp://[::1]:PORT (loopback only).
 * The unix socket is made 0600 in a directory created (0750) as needed; a stale socket is
 * replaced, a live one is -EADDRINUSE. Blocking, so before the loop starts. May be called often. */
int server_listen(struct server *server, const char *endpoint, struct err *err);
/* Peers on unix sockets must be uid 0 or the driver's own (SO_PEERCRED); others are closed. */

/* GOAWAY on every connection, listeners closed and unlinked, on_drained once no stream is left or
 * after timeout_ms, when the rest is cut off. */
void server_drain(
	struct server *server, uint64_t timeout_ms, void (*on_drained)(void *arg), void *arg);
/* Cuts off what is left and turns the ring until the kernel has let go of it, so not from a
 * callback. NULL is legal. */
void server_close(struct server *server);

struct server_stats {
	unsigned connections;
	uint64_t accepted, refused, bytes_in, bytes_out, too_many_pings, half_open_closed;
};
const struct server_stats *server_stats(const struct server *server);

#endif
