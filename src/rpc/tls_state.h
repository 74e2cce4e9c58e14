/* SPDX-License-Identifier: Apache-2.0 */
/* What tls.c and tls_session.c share: the context, and the turns of its connections. */
#ifndef RINGVOL_RPC_TLS_STATE_H
#define RINGVOL_RPC_TLS_STATE_H

#include "base/list.h"
#include "reactor/ring.h"
#include "rpc/openssl.h"
#include "rpc/tls.h"

enum { TLS_DIGEST_BYTES = 32 };

struct tls {
	SSL_CTX *ctx; /* NULL: there is none, for the reason `why` */
	char why[sizeof(((struct err *)NULL)->message)];
	char *cert_path; /* for messages */
	struct grpc_peer self;
	int64_t not_before, not_after;
	uint8_t digest[TLS_DIGEST_BYTES], trust_digest[TLS_DIGEST_BYTES];
	BIO_METHOD *bio;     /* of the sessions; NULL: no session yet */
	unsigned generation; /* of the trust */
	struct ring *ring;   /* NULL: no session yet */
	struct list members, ready;
	struct ring_req turn;
	struct tls_stats stats;
	tls_refused_fn *on_refused; /* NULL: nobody wants to know */
	void *arg;
};

/* A connection, as its struct tls knows it: it gets its turn in the loop, once for each time it
 * asks and when the trust has changed. */
struct tls_member {
	struct tls *tls;
	struct list link, ready;
	/* May free the member. */
	void (*work)(struct tls_member *member);
};

void tls_join(struct tls *tls, struct tls_member *member, struct ring *ring);
void tls_leave(struct tls_member *member);
/* Asks for a turn; it has at most one coming. */
void tls_want_turn(struct tls_member *member);

/* For OpenSSL to call for each certificate of a peer's chain: what it found, and our own rules. */
int tls_on_verify(int good, X509_STORE_CTX *ctx);
/* The identity of a certificate, or -EINVAL with what is wrong with its names. */
int tls_cert_identity(X509 *cert, struct grpc_peer *ret, struct err *err);
/* What OpenSSL says went wrong first; empties its queue. Static or of the thread. */
const char *tls_library_error(void);

#endif
