/* SPDX-License-Identifier: Apache-2.0 */
/* What pull.c and pull_short.c share: a call to the source's node, made again until it is over. */
#ifndef RINGVOL_TRANSFER_PULL_PRIVATE_H
#define RINGVOL_TRANSFER_PULL_PRIVATE_H

#include "transfer/pull.h"

/* The beginning of an operation. The wait comes first: what follows may end it. */
void pull_begin(struct pull *p, bool reading);
/* Sends a packed request; p->call has its callbacks. */
void pull_call_with(
	struct pull *p, const char *path, const ProtobufCMessage *request, uint64_t deadline_ns);
/* What a status says of the next attempt: it is made after a pause, or the operation ends. */
void pull_call_failed(struct pull *p, enum grpc_status status, const char *message);
/* The end of a call whose one message was looked at: p->answered says that it makes sense. */
void pull_answered(struct pull *p, enum grpc_status status, const char *message);
/* The operation is to end so; what is under way goes on to its own end. The first one counts. */
void pull_end(struct pull *p, int res);
void pull_end_unavailable(struct pull *p, const char *what, const char *why);
/* As a field. */
ProtobufCBinaryData pull_text(const char *text);

#endif
