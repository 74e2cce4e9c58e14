/* SPDX-License-Identifier: Apache-2.0 */
/* The header list of a request, field by field, and what is to be thought of it when it is
 * complete. */
#ifndef RINGVOL_RPC_H2_HEADERS_H
#define RINGVOL_RPC_H2_HEADERS_H

#include "rpc/h2_state.h"

void h2_stream_on_header(struct h2_stream *s, const uint8_t *name, size_t name_len,
	const uint8_t *value, size_t value_len);
/* Of a request's trailers, which carry nothing that gRPC knows. */
void h2_stream_on_trailer(struct h2_stream *s, const uint8_t *name, size_t name_len);
/* Whether the header list that is complete now is what HTTP/2 calls malformed. */
bool h2_stream_headers_malformed(const struct h2_stream *s);
bool h2_stream_headers_too_large(const struct h2_stream *s);

#endif
