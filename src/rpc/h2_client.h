/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The client's end of an HTTP/2 connection with gRPC on it, no sockets: a session (session.h) that
 * a channel puts on its connection, tests and fuzzers feed from memory.
 *
 *   GREETING   the peer's SETTINGS are not here
 *   UP         calls may start
 *   LEAVING    no call may start: the peer has said GOAWAY, or nothing was asked of it for long
 *   OVER       given up
 */
#ifndef RINGVOL_RPC_H2_CLIENT_H
#define RINGVOL_RPC_H2_CLIENT_H

#include "rpc/client_call.h"
#include "rpc/session.h"

struct h2_client_config {
	struct ring *ring;     /* for timers */
	const char *authority; /* lives as long as the session */
	bool tls;              /* for :scheme */
	/* The peer allows calls, more than before perhaps, or one has ended. Both are called from
	 * inside the session or a function of its calls: it must stay. */
	void (*on_room)(void *owner);
	/* It is LEAVING, and calls that run may still end well; or it is OVER. */
	void (*on_leave)(void *owner);
	void *owner;
	session_wake_fn *on_wake;
	void *arg; /* on_wake()'s */
};

enum h2_client_state {
	H2_CLIENT_GREETING,
	H2_CLIENT_UP,
	H2_CLIENT_LEAVING,
	H2_CLIENT_OVER,
};

/* 0 or -ENOMEM. When it is freed, calls that are not over end with UNAVAILABLE. */
int h2_client_new(const struct h2_client_config *config, struct session **ret);
enum h2_client_state h2_client_state(const struct session *session);
/* Opens a stream for a WAITING call. False: not on this connection, or not now. */
bool h2_client_start(struct session *session, struct channel_call *call);
/* Ends its calls with UNAVAILABLE. */
void h2_client_end_calls(struct session *session, const char *why);
/* What is told to the calls that it ends when it is freed, unless it has a reason of its own. */
void h2_client_set_why(struct session *session, const char *why);
/* Why it is over or leaves; "" if nobody said so. */
const char *h2_client_why(const struct session *session);

#endif
