/* SPDX-License-Identifier: Apache-2.0 */
/* How the answer of a call comes in: for its carrier (h2_client.c), and client_calls.c. */
#ifndef RINGVOL_RPC_CLIENT_ANSWER_H
#define RINGVOL_RPC_CLIENT_ANSWER_H

#include "rpc/client_call.h"

enum { CLIENT_HEADERS_MAX_BYTES = 16 << 10 }; /* of an answer's header list, and of its trailers */

/* Past CLIENT_HEADERS_MAX_BYTES in call->header_bytes nothing is taken; the carrier ends the call
 * when the list is complete. */
void client_answer_on_header(struct channel_call *call, const uint8_t *name, size_t name_len,
	const uint8_t *value, size_t value_len);
/* Bytes of the body. The call may have ended when this returns. */
void client_answer_on_data(struct channel_call *call, const uint8_t *data, size_t len);
/* The stream is over and the carrier has forgotten the call, which ends when its messages are read.
 * answered: by the end of an answer. Else status and message say why. */
void client_answer_on_close(
	struct channel_call *call, bool answered, enum grpc_status status, const char *message);
/* Its owner wants messages again. */
void client_answer_read_on(struct channel_call *call);

#endif
