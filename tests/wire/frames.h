/* SPDX-License-Identifier: Apache-2.0 */
/* HTTP/2 frames by hand, for what no client's library would send. */
#ifndef RINGVOL_TESTS_WIRE_FRAMES_H
#define RINGVOL_TESTS_WIRE_FRAMES_H

#include "base/buf.h"

#include <nghttp2/nghttp2.h>
#include <stdbool.h>
#include <string.h>

static const char preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

static inline void frame(
	struct buf *b, uint8_t type, uint8_t flags, uint32_t id, const void *payload, size_t len)
{
	uint8_t head[9] = {(uint8_t)(len >> 16), (uint8_t)(len >> 8), (uint8_t)len, type, flags,
		(uint8_t)(id >> 24), (uint8_t)(id >> 16), (uint8_t)(id >> 8), (uint8_t)id};
	buf_append(b, head, sizeof(head));
	buf_append(b, payload, len);
}

static inline void raw_start(struct buf *b)
{
	buf_append(b, preface, sizeof(preface) - 1);
	frame(b, NGHTTP2_SETTINGS, 0, 0, NULL, 0);
}

/* A header without indexing, names and values under 127 bytes. */
static inline void literal(struct buf *b, const char *name, const char *value)
{
	uint8_t n = (uint8_t)strlen(name), v = (uint8_t)strlen(value);
	buf_append(b, &(uint8_t){0}, 1);
	buf_append(b, &n, 1);
	buf_append(b, name, n);
	buf_append(b, &v, 1);
	buf_append(b, value, v);
}

static inline void request_headers(struct buf *b)
{
	literal(b, ":method", "POST");
	literal(b, ":scheme", "http");
	literal(b, ":path", "/test.v1.Test/Echo");
	literal(b, "content-type", "application/grpc");
}

/* The payload of the first frame of a kind, NULL if there is none. */
static inline const uint8_t *find_frame(const struct buf *out, uint8_t type)
{
	for (size_t at = 0; at + 9 <= out->len;) {
		const uint8_t *f = out->data + at;
		size_t len = (size_t)f[0] << 16 | (size_t)f[1] << 8 | f[2];
		if (f[3] == type)
			return f + 9;
		at += 9 + len;
	}
	return NULL;
}

static inline bool has_frame(const struct buf *out, uint8_t type)
{
	return find_frame(out, type) != NULL;
}

static inline uint32_t get_u32(const uint8_t *at)
{
	return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

#endif
