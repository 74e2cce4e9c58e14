/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Listening sockets, connections and drain. Bytes go between sockets and sessions (session.h) here;
 * nothing else in ringvol knows that there are sockets below HTTP.
 */
#ifndef RINGVOL_RPC_SERVER_H
#define RINGVOL_RPC_SERVER_H

#include "base/err.h"
#include "reactor/ring.h"
#include "rpc/grpc.h"

struct server;
struct listen_socket; /* listen.h */

struct server_limits {
	/* At once. For one more another is closed: one without a call, those that have sent no
	 * whole request first. With a call on each of them the new one is. */
	unsigned connections;
	unsigned address_connections; /* the same for each IPv4 address or IPv6 /64 */
	unsigned streams;             /* at once on a connection (SETTINGS) */
	unsigned header_bytes;        /* of one request's header list */
	unsigned half_open_ms;        /* from accept to preface, and from HEADERS to END_STREAM */
	unsigned idle_ms;             /* a connection without streams gets GOAWAY; 0: never */
	unsigned write_stall_ms;      /* a client that reads nothing for so long is closed */
	unsigned ping_min_ms;         /* pings closer than this are strikes; three end in GOAWAY */
	size_t send_buffer_bytes;     /* queued on one connection before streams are paused */
};
extern const struct server_limits server_limits_default, server_http_limits_default,
	server_tls_limits_default;

struct http1_route; /* http1.h */
struct session;     /* session.h */
struct tls;         /* tls.h */

/* A session of a protocol that the server does not know, for a new connection. 0 or -ENOMEM.
 * on_wake(wake_arg) is the session's to call (session_wake_fn). */
typedef int server_session_fn(
	void *arg, void (*on_wake)(void *wake_arg), void *wake_arg, struct session **ret);

struct server_config {
	struct ring *ring;
	struct grpc_registry *registry;
	struct server_limits limits;
	/* For server_listen_http(): ends with a NULL path; NULL: there is no HTTP. */
	const struct http1_route *http_routes;
	struct server_limits http_limits; /* streams, pings and send_buffer_bytes are not used */
	/* For server_listen_other_unix(), with the limits of HTTP. */
	server_session_fn *open_other;
	void *open_other_arg;
	struct server_limits tls_limits; /* for server_listen_tls() */
};

int server_open(struct server **ret, const struct server_config *config);

/* endpoint: unix:///PATH, unix:PATH, or tcp://127.0.0.1:PORT, tcp://[::1]:PORT (loopback only).
 * The unix socket is made 0600 in a directory created (0750) as needed; a stale socket is
 * replaced, a live one is -EADDRINUSE. Blocking, so before the loop starts. May be called often. */
int server_listen(struct server *server, const char *endpoint, struct err *err);
/* The same on a socket that listen_open() made elsewhere, on a thread for instance. 0, or -ENOMEM:
 * the socket is removed and closed. */
int server_listen_on(struct server *server, const struct listen_socket *socket);
/* Removes and closes the listening sockets; connections stay. */
void server_unlisten(struct server *server);
/* Peers on unix sockets must be uid 0 or the driver's own (SO_PEERCRED); others are closed. */

/* HTTP on ADDR:PORT, any address of this host: what is served there changes nothing. Does not
 * block, so that an address in use (-EADDRINUSE) can be tried again from the loop. */
int server_listen_http(struct server *server, const char *address, struct err *err);
/* The same on a unix socket, unix:///PATH, made and guarded as by server_listen(). Blocking. */
int server_listen_http_unix(struct server *server, const char *endpoint, struct err *err);

/* Another protocol (open_other) on a unix socket, likewise. */
int server_listen_other_unix(struct server *server, const char *endpoint, struct err *err);

/* gRPC over TLS on ADDR:PORT, any address of this host, for the services whose `peers` name those
 * who have certificates (tls.h). One struct tls a server, which outlives it. Does not block, as
 * above. */
int server_listen_tls(struct server *server, const char *address, struct tls *tls, struct err *err);

/* GOAWAY on every connection, listeners closed and unlinked, on_drained once no stream is left or
 * after timeout_ms, when the rest is cut off. */
void server_drain(
	struct server *server, uint64_t timeout_ms, void (*on_drained)(void *arg), void *arg);
/* Cuts off what is left and turns the ring until the kernel has let go of it, so not from a
 * callback. NULL is legal. */
void server_close(struct server *server);

struct server_stats {
	unsigned connections;
	unsigned drain_cut; /* that did not end by themselves in a drain's time */
	uint64_t accepted, refused, made_room, bytes_in, bytes_out, too_many_pings,
		half_open_closed, flooded, trims;
};
const struct server_stats *server_stats(const struct server *server);

#endif
