/* SPDX-License-Identifier: Apache-2.0 */
/* The request of a call that goes out, as HTTP/2 has it. */
#ifndef RINGVOL_RPC_H2_REQUEST_H
#define RINGVOL_RPC_H2_REQUEST_H

#include "rpc/h2_client.h"

#include <nghttp2/nghttp2.h>

/* Opens a stream with the call as its user data. Its id, or what nghttp2_submit_request() failed
 * with. */
int32_t h2_request_submit(nghttp2_session *session, const struct h2_client_config *config,
	struct channel_call *call, const nghttp2_data_provider *body);

#endif
