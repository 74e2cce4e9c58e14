/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One HTTP/2 connection with gRPC on it, no sockets: bytes in, bytes out. conn.c feeds it from the
 * ring, tests and fuzzers from memory.
 */
#ifndef RINGVOL_RPC_H2_H
#define RINGVOL_RPC_H2_H

#include "reactor/ring.h"
#include "rpc/grpc.h"
#include "rpc/h2_turn.h"
#include "rpc/server.h"
#include "rpc/session.h"

struct h2_conn;

struct h2_config {
	struct ring *ring; /* timers */
	struct grpc_registry *registry;
	const struct server_limits *limits;
	struct h2_turns *turns; /* h2_turn.h: shared by the connections of a ring */
	/* Clients on unix sockets name the host by the socket's path (grpc-go before 1.57), which
	 * nghttp2's checks of requests refuse: h2_headers.c makes them all instead. */
	bool host_may_be_path;
	session_wake_fn *on_wake;
	void *arg;
};

int h2_conn_new(struct h2_conn **ret, const struct h2_config *config);
/* Calls still running are told that their client is gone. NULL is legal. */
void h2_conn_free(struct h2_conn *conn);

/* Bytes from the peer. 0, or -errno when the connection is beyond repair (send what is left of
 * the output, which may hold a GOAWAY, then close). */
int h2_conn_feed(struct h2_conn *conn, const uint8_t *data, size_t len);
/* Appends pending output to `out` until it holds limit bytes. 0 or -errno. */
int h2_conn_output(struct h2_conn *conn, struct buf *out, size_t limit);
bool h2_conn_wants_write(const struct h2_conn *conn);
/* True when nothing is left to read or write: close the socket. */
bool h2_conn_finished(const struct h2_conn *conn);
/* Sends GOAWAY; running streams may finish. */
void h2_conn_drain(struct h2_conn *conn);
unsigned h2_conn_streams(const struct h2_conn *conn);

enum session_end h2_conn_end(const struct h2_conn *conn);

/* For who does not care which protocol it is: the functions above behind session.h. */
struct session *h2_conn_session(struct h2_conn *conn);

#endif
