/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A blocking gRPC client for the tools: one connection, one call at a time, unary or server
 * streaming. Not for the driver.
 */
#ifndef RINGVOL_TOOLS_GRPC_CLIENT_H
#define RINGVOL_TOOLS_GRPC_CLIENT_H

#include "base/err.h"

#include <protobuf-c/protobuf-c.h>
#include <stddef.h>
#include <stdint.h>

struct grpc_client;

enum { GRPC_CLIENT_SILENCE_MS = 10000 }; /* a server that says nothing for so long is given up */

/* endpoint: as `ringvol serve --endpoint` has it. ERR_UNAVAILABLE: nobody listens there;
 * ERR_INVALID: it is no endpoint; else what the system said. */
int grpc_client_open(struct grpc_client **ret, const char *endpoint, struct err *err);
void grpc_client_close(struct grpc_client *client); /* NULL is legal */

/* Calls may take so long from now on: the server is told (grpc-timeout), and its silence is no end
 * before that. */
void grpc_client_wait(struct grpc_client *client, unsigned ms);

/* Calls path ("/package.Service/Method"); on_message gets each answer as it comes, packed: 0, or a
 * negative errno to give up. 0 when the server ended with OK; else *err has its status and words.
 * -EINTR: a signal was caught. After any failure but the server's own status the connection is of
 * no more use. */
int grpc_client_call(struct grpc_client *client, const char *path, const ProtobufCMessage *request,
	int (*on_message)(void *arg, const uint8_t *data, size_t len), void *arg, struct err *err);

#endif
