/* SPDX-License-Identifier: Apache-2.0 */
/* Asks who listens at an address, blocking: for tools. */
#ifndef RINGVOL_RPC_TLS_PROBE_H
#define RINGVOL_RPC_TLS_PROBE_H

#include "base/err.h"
#include "rpc/tls.h"

/* Connects to HOST:PORT, shakes hands with our certificate and waits for the first bytes of HTTP/2:
 * only then the other side has accepted us. 0 with the other side's identity. ERR_UNAVAILABLE:
 * nobody is reached within wait_ms, which counts for each step; ERR_PRECONDITION: one of both sides
 * does not accept the other; err says which and why. */
int tls_probe(const struct tls *tls, const char *address, int wait_ms, struct grpc_peer *ret,
	struct err *err);

#endif
