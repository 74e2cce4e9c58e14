/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A request's header list: what gRPC needs of it, and whether it is well-formed HTTP (RFC 9113,
 * 8.1 to 8.3). A malformed request is only marked here and reset when its list is complete,
 * because HPACK has to see all of it. Where nghttp2 makes these checks, it has refused before;
 * they stand for it where it may not (h2.h, host_may_be_path).
 */
#include "rpc/h2_headers.h"

#include "rpc/registry.h"
#include "rpc/wire.h"

#include <string.h>

enum h2_seen {
	SEEN_METHOD = 1 << 0,
	SEEN_PATH = 1 << 1,
	SEEN_SCHEME = 1 << 2,
	SEEN_AUTHORITY = 1 << 3,
	SEEN_REGULAR = 1 << 4,
	SEEN_TOO_LARGE = 1 << 5,
};

static bool is(const uint8_t *name, const char *want, size_t len)
{
	return memcmp(name, want, len) == 0;
}

/* A pseudo-header comes once, before all others, is one of four, and has a value; :authority may be
 * empty. */
static bool take_pseudo_header(struct h2_stream *s, const uint8_t *name, size_t name_len,
	const uint8_t *value, size_t value_len)
{
	unsigned bit = 0;
	if (name_len == 5 && is(name, ":path", 5)) {
		bit = SEEN_PATH;
		s->call.entry = grpc_registry_find(
			s->conn->config.registry, (const char *)value, value_len);
	} else if (name_len == 7 && is(name, ":method", 7)) {
		bit = SEEN_METHOD;
		s->post = value_len == 4 && is(value, "POST", 4);
	} else if (name_len == 7 && is(name, ":scheme", 7)) {
		bit = SEEN_SCHEME;
	} else if (name_len == 10 && is(name, ":authority", 10)) {
		bit = SEEN_AUTHORITY;
	}
	if (bit == 0 || (s->seen & (bit | SEEN_REGULAR)) != 0)
		return false;
	s->seen |= bit;
	return value_len > 0 || bit == SEEN_AUTHORITY;
}

static bool name_ok(const uint8_t *name, size_t len)
{
	for (size_t i = 0; i < len; i++) {
		if (name[i] <= ' ' || name[i] >= 0x7F || (name[i] >= 'A' && name[i] <= 'Z'))
			return false;
	}
	return len > 0;
}

static bool value_ok(const uint8_t *value, size_t len)
{
	for (size_t i = 0; i < len; i++) {
		if (value[i] == '\0' || value[i] == '\r' || value[i] == '\n')
			return false;
	}
	return true;
}

static bool take_content_length(struct h2_stream *s, const uint8_t *value, size_t len)
{
	int64_t n = 0;
	if (s->content_length >= 0 || len == 0 || len > 18)
		return false;
	for (size_t i = 0; i < len; i++) {
		if (value[i] < '0' || value[i] > '9')
			return false;
		n = n * 10 + (value[i] - '0');
	}
	s->content_length = n;
	return true;
}

/* False: it does not belong into HTTP/2, or says what cannot be. */
static bool take_header(struct h2_stream *s, const uint8_t *name, size_t name_len,
	const uint8_t *value, size_t value_len)
{
	switch (name_len) {
	case 2:
		return !is(name, "te", 2) || (value_len == 8 && is(value, "trailers", 8));
	case 7:
		return !is(name, "upgrade", 7);
	case 10:
		return !is(name, "connection", 10) && !is(name, "keep-alive", 10);
	case 12:
		if (is(name, "content-type", 12))
			s->content_type_ok = grpc_wire_content_type_ok(value, value_len);
		else if (is(name, "grpc-timeout", 12))
			s->timeout_bad =
				grpc_wire_parse_timeout(value, value_len, &s->timeout_ns) < 0;
		return true;
	case 13:
		if (is(name, "grpc-encoding", 13))
			s->encoded = !(value_len == 8 && is(value, "identity", 8));
		return true;
	case 14:
		return !is(name, "content-length", 14) || take_content_length(s, value, value_len);
	case 16:
		return !is(name, "proxy-connection", 16);
	case 17:
		return !is(name, "transfer-encoding", 17);
	default:
		return true;
	}
}

void h2_stream_on_header(struct h2_stream *s, const uint8_t *name, size_t name_len,
	const uint8_t *value, size_t value_len)
{
	s->header_bytes += name_len + value_len + 32; /* as SETTINGS_MAX_HEADER_LIST_SIZE counts */
	if (s->header_bytes > s->conn->config.limits->header_bytes) {
		s->seen |= SEEN_TOO_LARGE;
		return;
	}
	bool unchecked = s->conn->config.host_may_be_path;
	bool ok;
	if (name_len > 0 && name[0] == ':') {
		ok = take_pseudo_header(s, name, name_len, value, value_len);
	} else {
		s->seen |= SEEN_REGULAR;
		ok = (!unchecked || name_ok(name, name_len)) &&
		     take_header(s, name, name_len, value, value_len);
	}
	if (!ok || (unchecked && !value_ok(value, value_len)))
		s->malformed = true;
}

void h2_stream_on_trailer(struct h2_stream *s, const uint8_t *name, size_t name_len)
{
	if (!name_ok(name, name_len) || name[0] == ':')
		s->malformed = true;
}

bool h2_stream_headers_malformed(const struct h2_stream *s)
{
	const unsigned required = SEEN_METHOD | SEEN_PATH | SEEN_SCHEME;
	return s->malformed || (s->seen & required) != required;
}

bool h2_stream_headers_too_large(const struct h2_stream *s)
{
	return (s->seen & SEEN_TOO_LARGE) != 0;
}
