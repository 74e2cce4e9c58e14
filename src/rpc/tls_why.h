/* SPDX-License-Identifier: Apache-2.0 */
/* Why there is no TLS connection, in a line for people. */
#ifndef RINGVOL_RPC_TLS_WHY_H
#define RINGVOL_RPC_TLS_WHY_H

#include "rpc/openssl.h"

#include <stddef.h>

/* What was found wrong with a peer's chain. */
void tls_why_verdict(X509_STORE_CTX *ctx, char *ret, size_t cap);
/* What the first error in OpenSSL's queue says: our own finding, or the peer's alert. */
void tls_why_error(char *ret, size_t cap);

#endif
