/* SPDX-License-Identifier: Apache-2.0 */
/* --tls-cert, --tls-key and --tls-ca: the same for every command that is a part of a cluster. */
#ifndef RINGVOL_TLS_OPTIONS_H
#define RINGVOL_TLS_OPTIONS_H

#include "base/err.h"
#include "base/options.h"
#include "reactor/ring.h"
#include "reactor/work.h"
#include "rpc/tls.h"
#include "rpc/tls_watch.h"

/* The rows for a command's table; its options (a struct `type`) have a `struct tls_files member`.
 */
#define TLS_OPTION_ROWS(type, member)                                                               \
	{"--tls-cert", "FILE", {"RINGVOL_TLS_CERT"}, .fallback_help = "none",                       \
		.help = "our certificate (PEM, with its chain); its one ringvol:// name (URI) is\n" \
			"our identity. The files are read again when they change",                  \
		.kind = OPTION_PATH, OPTION_IN(type, member.cert)},                                 \
		{"--tls-key", "FILE", {"RINGVOL_TLS_KEY"}, .fallback_help = "none",                 \
			.help = "its private key (PEM, without a passphrase)",                      \
			.kind = OPTION_PATH, OPTION_IN(type, member.key)},                          \
	{                                                                                           \
		"--tls-ca", "FILE", {"RINGVOL_TLS_CA"},                                             \
			.fallback_help = "none",                                                    \
			.help = "who signs the peers' certificates (PEM, one or more; revocation\n" \
				"lists among them count)",                                          \
			.kind = OPTION_PATH, OPTION_IN(type, member.ca)                             \
	}

/* All three are there. who: the flag that needs them, for the message. */
int tls_options_check(const struct tls_files *files, const char *who, struct err *err);

struct tls_keys {
	struct tls *tls;
	struct tls_watch *watch;
	const char *node_id; /* who we are; NULL: a controller */
	uint64_t said_ns;    /* when a refused peer was last logged, CLOCK_MONOTONIC; 0: never */
	unsigned unsaid;     /* since */
	struct ring *ring;
	struct ring_timer trim; /* what handshakes leave behind of OpenSSL goes */
};

/* Reads the files (blocking) and watches them from then on; what happens is logged. Files that are
 * not good do not fail it, so that a node's volumes mount whatever its certificates are: nobody
 * connects until they are mended. A certificate that names another process than this one is warned
 * of. node_id: of this node, NULL: we are a controller; it outlives the keys. 0 or -ENOMEM. */
int tls_keys_open(struct tls_keys *keys, const struct tls_files *files, const char *node_id,
	struct ring *ring, struct work *work);
/* After the last session; not from a callback. Zeroed is legal. */
void tls_keys_close(struct tls_keys *keys);

#endif
