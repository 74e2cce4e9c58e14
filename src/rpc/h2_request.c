/* SPDX-License-Identifier: Apache-2.0 */
/* The header list of a call that goes out. It fails for want of memory, or of stream ids. */
#include "rpc/h2_request.h"

#include "rpc/wire.h"

#include <string.h>

#define NV(n, v, vlen)                                                                             \
	(nghttp2_nv)                                                                               \
	{                                                                                          \
		(uint8_t *)(n), (uint8_t *)(v), sizeof(n) - 1, (vlen),                             \
			NGHTTP2_NV_FLAG_NO_COPY_NAME                                               \
	}
#define NV_STATIC(n, v) NV(n, v, sizeof(v) - 1)

int32_t h2_request_submit(nghttp2_session *session, const struct h2_client_config *config,
	struct channel_call *call, const nghttp2_data_provider *body)
{
	char timeout[GRPC_TIMEOUT_MAX];
	const char *scheme = config->tls ? "https" : "http";
	nghttp2_nv nv[8] = {
		NV_STATIC(":method", "POST"),
		NV(":scheme", scheme, strlen(scheme)),
		NV(":path", call->path, strlen(call->path)),
		NV(":authority", config->authority, strlen(config->authority)),
		NV_STATIC("content-type", "application/grpc"),
		NV_STATIC("te", "trailers"),
		NV_STATIC("user-agent", "ringvol/" RINGVOL_VERSION),
	};
	size_t count = 7;
	if (call->deadline_ns != UINT64_MAX) {
		uint64_t now = ring_now_ns(config->ring);
		uint64_t left = call->deadline_ns > now ? call->deadline_ns - now : 1;
		nv[count++] = NV("grpc-timeout", timeout, grpc_wire_print_timeout(left, timeout));
	}
	return nghttp2_submit_request(session, NULL, nv, count, body, call);
}
