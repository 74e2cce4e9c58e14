/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One HTTP/2 connection with gRPC on it, no sockets: a session (session.h) that conn.c feeds from
 * the ring, tests and fuzzers from memory.
 */
#ifndef RINGVOL_RPC_H2_H
#define RINGVOL_RPC_H2_H

#include "reactor/ring.h"
#include "rpc/grpc.h"
#include "rpc/h2_turn.h"
#include "rpc/server.h"
#include "rpc/session.h"

struct h2_config {
	struct ring *ring; /* timers */
	struct grpc_registry *registry;
	const struct server_limits *limits;
	struct h2_turns *turns; /* shared by the connections of a ring */
	/* Clients on unix sockets name the host by the socket's path (grpc-go before 1.57), which
	 * nghttp2's checks of requests refuse: h2_headers.c makes them all instead. */
	bool host_may_be_path;
	const struct grpc_peer *peer; /* who is at the other end; NULL: a local one */
	session_wake_fn *on_wake;     /* NULL: nobody is told */
	void *arg;
};

/* 0 or -ENOMEM. When the session is freed, calls still running learn that their client is gone. */
int h2_session_new(const struct h2_config *config, struct session **ret);

#endif
