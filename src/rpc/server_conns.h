/* SPDX-License-Identifier: Apache-2.0 */
/* A server and its connections, whatever they speak; shared by server.c and server_conns.c. */
#ifndef RINGVOL_RPC_SERVER_CONNS_H
#define RINGVOL_RPC_SERVER_CONNS_H

#include "base/list.h"
#include "rpc/conn.h"
#include "rpc/h2_turn.h"
#include "rpc/remote.h"
#include "rpc/server.h"
#include "rpc/session.h"

/* What is spoken on the connections of a listener. */
struct speaks {
	/* For the connection fd. 0 or -ENOMEM. on_wake(arg) is the session's to call. */
	int (*open)(struct server *server, int fd, session_wake_fn *on_wake, void *arg,
		struct session **ret);
	const struct server_limits *limits;
	unsigned connections;
	struct list remotes; /* remote.h: the clients that have them */
};

struct server {
	struct server_config config;
	struct speaks grpc, http, other, tls;
	struct tls *tls_keys; /* NULL: server_listen_tls() was not called */
	struct http1 *http1;  /* what HTTP connections share; NULL: none is served */
	struct h2_turns turns;
	struct ring_timer trim_timer;
	struct ring_bufs *bufs;
	struct conn_host host;
	struct list listeners, conns;
	unsigned open; /* connections that may still carry calls */
	bool draining;
	struct ring_timer drain_timer;
	struct ring_req drained;
	void (*on_drained)(void *arg);
	void *on_drained_arg;
	/* A connection tells its server that it carries no more calls, or that it is about to send.
	 */
	void (*on_conn_end)(struct server *server);
	void (*on_conn_flush)(struct server *server);
	struct server_stats stats;
};

/* Once config and bufs are there. */
void conns_init(struct server *server);
/* Takes fd over, also when it fails. */
void conns_open(struct server *server, struct speaks *speaks, int fd, const struct remote_key *key);
/* Closes the connection that is worth least, to make room for another. An idle one is asked to
 * leave and is served meanwhile, as long as there are not an eighth more than allowed. remote: one
 * of its connections; NULL: one of all. False: on each of them a call is under way, or it was asked
 * already. */
bool conns_make_room(
	struct server *server, const struct speaks *speaks, const struct remote *remote);
/* GOAWAY or its like; no more calls. */
void conns_drain(struct server *server);
/* Closes all at once. */
void conns_cut(struct server *server);

#endif
