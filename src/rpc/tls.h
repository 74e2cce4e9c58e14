/* SPDX-License-Identifier: Apache-2.0 */
/*
 * TLS 1.3 between ringvol's processes (OpenSSL): mutual, with identities in the certificates' URI
 * names. A session (session.h) around another one: conn.c feeds it ciphertext, it feeds the inner
 * session plaintext. OpenSSL works on memory, so nothing here blocks and no socket is its own.
 *
 * Identities: "ringvol://controller"; "ringvol://node/NODE-ID"; "ringvol://node/" and "*" for a
 * certificate that all nodes share. A certificate without one of them is refused, whatever else it
 * says; host names and addresses are not looked at.
 */
#ifndef RINGVOL_RPC_TLS_H
#define RINGVOL_RPC_TLS_H

#include "base/err.h"
#include "rpc/grpc.h"
#include "rpc/session.h"

#include <stdbool.h>
#include <stdint.h>

struct tls; /* keys, certificates, trust of one process */

struct tls_files {
	const char *cert, *key, *ca; /* PEM; cert with its chain */
};

/* Reads the files; blocking, before the loop starts or on a work thread. Errors name the file, what
 * is wrong with it, and the remedy: unreadable, key of another certificate, expired, not yet valid,
 * no identity. */
int tls_open(struct tls **ret, const struct tls_files *files, struct err *err);
void tls_free(struct tls *tls);
/* Takes over what `fresh` was read from the same files. Handshakes from now on use it. Connections
 * that were made under the old one are not trusted any longer if the new trust does not cover them:
 * tls_generation() moves on, and conn.c ends the sessions whose peer is not accepted any more. Frees
 * fresh. */
void tls_replace(struct tls *tls, struct tls *fresh);
/* Our own identity, for people and for Hello. */
const struct grpc_peer *tls_self(const struct tls *tls);
/* CLOCK_REALTIME seconds at which our certificate ends, for metrics and doctor. */
int64_t tls_not_after(const struct tls *tls);

/* A certificate's names as an identity. False: it has none, or more than one. */
bool tls_identity_parse(const char *uri, struct grpc_peer *ret);

/* Makes the inner session when the handshake is over and the peer is known. */
typedef int tls_inner_fn(void *arg, const struct grpc_peer *peer, struct session **ret);

struct tls_config {
	struct tls *tls;
	struct ring *ring;
	bool client;
	uint64_t handshake_ms; /* then the connection is given up */
	tls_inner_fn *open_inner;
	session_wake_fn *on_wake;
	void *arg;
};
/* 0 or -ENOMEM. */
int tls_session_new(const struct tls_config *config, struct session **ret);
/* Why it ended before the inner session was there: for the log of the one who dialled. */
const char *tls_session_why(const struct session *session);

#endif
