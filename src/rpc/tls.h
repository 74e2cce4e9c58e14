/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keys, certificates and trust for TLS 1.3 between ringvol's processes (OpenSSL): mutual, with
 * identities in the certificates' URI names. tls_session.h has the connections, tls_watch.h reads
 * the files again when they change.
 *
 * Identities: "ringvol://controller"; "ringvol://node/NODE-ID"; "ringvol://node/" and "*" for a
 * certificate that all nodes share. A certificate without exactly one of them is refused, whatever
 * else it says; host names and addresses are not looked at. A node's id is spelled as it is, so one
 * with another character than letters, digits and -._~:@!$&'()+,;= has no certificate of its own.
 */
#ifndef RINGVOL_RPC_TLS_H
#define RINGVOL_RPC_TLS_H

#include "base/err.h"
#include "rpc/grpc.h"

#include <stdbool.h>
#include <stdint.h>

enum {
	TLS_FILE_MAX_BYTES = 1 << 20,
	TLS_CHAIN_MAX_BYTES = 64 << 10, /* a peer's certificates */
	/* What handshakes may take of one turn of the loop, at least one step of one. */
	TLS_TURN_NS = 1000000,
};

struct tls; /* keys, certificates, trust of one process; for one ring */

struct tls_files {
	/* PEM. cert: with its chain. ca: one or more; with revocation lists, what they name is
	 * refused. */
	const char *cert, *key, *ca;
};

/* Reads the files; blocking, before the loop starts or on a work thread. Errors name the file, what
 * is wrong with it, and the remedy: unreadable, no PEM, key of another certificate, no identity. A
 * certificate whose time is over or has not come is no error: it may be replaced, and until then
 * peers refuse it (tls_time()). */
int tls_open(struct tls **ret, const struct tls_files *files, struct err *err);
/* Without anything: all connections end at once, with `why` as their reason, until tls_replace().
 * NULL: out of memory. */
struct tls *tls_open_empty(const char *why);
/* After the last session. NULL is legal. */
void tls_free(struct tls *tls);
/* Takes over what `fresh` was read from files, and frees fresh. Handshakes from now on use it. If
 * the trust is another, connections whose peers it does not cover are ended, some in each turn of
 * the loop. */
void tls_replace(struct tls *tls, struct tls *fresh);
/* Whether both were read from the same bytes. */
bool tls_equal(const struct tls *a, const struct tls *b);
/* Our own identity, for people and for Hello. NULL: there is none (tls_open_empty()). */
const struct grpc_peer *tls_self(const struct tls *tls);
/* CLOCK_REALTIME seconds at which our certificate ends, for metrics and doctor; 0: there is none.
 */
int64_t tls_not_after(const struct tls *tls);
/* How our certificate stands to the clock, which is CLOCK_REALTIME in seconds. err says what is
 * wrong and the remedy; NULL: nobody wants to know. */
enum tls_time {
	TLS_TIME_GOOD,
	TLS_TIME_EARLY,  /* it is not valid yet */
	TLS_TIME_ENDING, /* less than a tenth of its time is left: nobody has renewed it */
	TLS_TIME_OVER,
};
enum tls_time tls_time(const struct tls *tls, int64_t now, struct err *err);

/* Hears of each peer that was refused in its handshake or sent away later. from: its address, or
 * NULL; why: a line for people. One at a time; NULL: nobody. */
typedef void tls_refused_fn(void *arg, const char *from, const char *why);
void tls_on_refused(struct tls *tls, tls_refused_fn *fn, void *arg);

struct tls_stats {
	uint64_t handshakes; /* that came to a good end */
	uint64_t refused;    /* that did not */
	uint64_t revoked;    /* connections that were ended by tls_replace() */
};
const struct tls_stats *tls_stats(const struct tls *tls);

/* A URI name of a certificate as an identity; false: it is none. */
bool tls_identity_parse(const char *uri, struct grpc_peer *ret);
/* The other way, for people: "ringvol://node/a". */
enum { TLS_IDENTITY_MAX = 280 };
void tls_identity_print(const struct grpc_peer *peer, char ret[TLS_IDENTITY_MAX]);

#endif
