/* SPDX-License-Identifier: Apache-2.0 */
/* What a peer's frames say of how a call or a connection ends. */
#ifndef RINGVOL_RPC_H2_SAID_H
#define RINGVOL_RPC_H2_SAID_H

#include "rpc/grpc.h"

#include <nghttp2/nghttp2.h>
#include <stddef.h>

/* What a reset with that code means, as gRPC says. */
enum grpc_status h2_status_of_reset(uint32_t code);
/* "what (CODE: text)", in printable ASCII. */
void h2_goaway_print(const nghttp2_goaway *frame, const char *what, char *buf, size_t cap);

#endif
