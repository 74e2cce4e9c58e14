/* SPDX-License-Identifier: Apache-2.0 */
/* How the answer of a stream travels. */
#ifndef RINGVOL_RPC_H2_OUTPUT_H
#define RINGVOL_RPC_H2_OUTPUT_H

#include "rpc/h2_state.h"

/* What a stream's call answers through. */
extern const struct grpc_carrier h2_output_carrier;
/* Ends the answer with a status; nothing happens when it has ended. */
void h2_output_answer(struct h2_stream *s, enum grpc_status status, const char *message);
/* Answers with the HTTP error s->http, for what is not gRPC. */
void h2_output_answer_http(struct h2_stream *s);
/* Whether enough was read of the answer for a paused method to go on. */
bool h2_output_has_much_room(const struct h2_stream *s);

#endif
