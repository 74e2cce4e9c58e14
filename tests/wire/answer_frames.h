/* SPDX-License-Identifier: Apache-2.0 */
/* What a server answers on stream 1, as frames: for test_channel_hostile.c and test_client.c. */
#ifndef RINGVOL_TESTS_WIRE_ANSWER_FRAMES_H
#define RINGVOL_TESTS_WIRE_ANSWER_FRAMES_H

#include "frames.h"
#include "peer.h"

enum { END = NGHTTP2_FLAG_END_STREAM, WHOLE = NGHTTP2_FLAG_END_HEADERS };

/* Names and values, NULL-terminated. */
static inline void headers(struct buf *to, uint8_t flags, const char *const *pairs)
{
	struct buf block = {0};
	for (; *pairs != NULL; pairs += 2)
		literal(&block, pairs[0], pairs[1]);
	frame(to, NGHTTP2_HEADERS, WHOLE | flags, 1, block.data, block.len);
	buf_free(&block);
}
#define HEADERS(to, flags, ...) headers((to), (flags), (const char *const[]){__VA_ARGS__, NULL})
#define GRPC_HEADERS(to)        HEADERS(to, 0, ":status", "200", "content-type", "application/grpc")

static inline void text_data(struct buf *to, uint8_t flags, const char *text)
{
	struct buf body = {0};
	text_frame(&body, text, strlen(text));
	frame(to, NGHTTP2_DATA, flags, 1, body.data, body.len);
	buf_free(&body);
}

static inline void goaway(struct buf *to, uint32_t last, uint32_t code, const char *text)
{
	struct buf payload = {0};
	const uint32_t head[2] = {__builtin_bswap32(last), __builtin_bswap32(code)};
	buf_append(&payload, head, sizeof(head));
	buf_append(&payload, text, strlen(text));
	frame(to, NGHTTP2_GOAWAY, 0, 0, payload.data, payload.len);
	buf_free(&payload);
}

static inline void reset(struct buf *to, uint32_t code)
{
	code = __builtin_bswap32(code);
	frame(to, NGHTTP2_RST_STREAM, 0, 1, &code, 4);
}

#endif
