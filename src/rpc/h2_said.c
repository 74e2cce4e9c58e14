/* SPDX-License-Identifier: Apache-2.0 */
#include "rpc/h2_said.h"

#include <stdint.h>
#include <stdio.h>

enum grpc_status h2_status_of_reset(uint32_t code)
{
	switch (code) {
	case NGHTTP2_CANCEL:
		return GRPC_CANCELLED;
	case NGHTTP2_ENHANCE_YOUR_CALM:
		return GRPC_RESOURCE_EXHAUSTED;
	case NGHTTP2_INADEQUATE_SECURITY:
		return GRPC_PERMISSION_DENIED;
	default:
		return GRPC_INTERNAL;
	}
}

void h2_goaway_print(const nghttp2_goaway *frame, const char *what, char *buf, size_t cap)
{
	char said[64];
	size_t n = 0;
	for (; n < frame->opaque_data_len && n + 1 < sizeof(said); n++) {
		uint8_t ch = frame->opaque_data[n];
		said[n] = ch >= 0x20 && ch < 0x7f ? (char)ch : '?';
	}
	said[n] = '\0';
	snprintf(buf, cap, "%s (%s%s%s)", what, nghttp2_http2_strerror(frame->error_code),
		n > 0 ? ": " : "", said);
}
