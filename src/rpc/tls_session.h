/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One connection's TLS: a session (session.h) around another one. It is fed ciphertext and feeds
 * the inner session plaintext; OpenSSL works on memory, so nothing here blocks and no socket is its
 * own.
 *
 * Handshakes cost: signatures and key agreements. They take turns in the loop, for TLS_TURN_NS of
 * each, so that a thousand peers who connect at once hold up nobody's calls. Until the handshake is
 * over one receive at a time is wanted (wants_input(); session->paced).
 */
#ifndef RINGVOL_RPC_TLS_SESSION_H
#define RINGVOL_RPC_TLS_SESSION_H

#include "reactor/ring.h"
#include "rpc/session.h"
#include "rpc/tls.h"

/* Makes the inner session when the handshake is over and the peer is known. It calls on_wake(arg)
 * as any session does, and is never paced. 0, or -errno: the connection ends. Called from the loop,
 * not from inside feed() or output(). */
typedef int tls_inner_fn(void *context, const struct grpc_peer *peer, session_wake_fn *on_wake,
	void *arg, struct session **ret);

struct tls_config {
	struct tls *tls;
	struct ring *ring;
	bool client;
	uint64_t handshake_ms; /* then the connection is given up */
	const char *from;      /* the peer's address, for tls_on_refused(); copied; NULL: none */
	tls_inner_fn *open_inner;
	void *context; /* open_inner()'s */
	session_wake_fn *on_wake;
	void *arg; /* on_wake()'s */
};
/* 0 or -ENOMEM. */
int tls_session_new(const struct tls_config *config, struct session **ret);
/* Why it ended, in a line for people: the handshake's failure, the peer's alert, a trust that does
 * not cover it any more. "" if it did not end, or as the inner session wished. */
const char *tls_session_why(const struct session *session);

#endif
