/* SPDX-License-Identifier: Apache-2.0 */
/* Parsers and printers of single header values. They fail only on malformed input. */
#include "rpc/wire.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

bool grpc_wire_content_type_ok(const uint8_t *value, size_t len)
{
	static const char base[] = "application/grpc";
	const size_t base_len = sizeof(base) - 1;

	if (len < base_len || memcmp(value, base, base_len) != 0)
		return false;
	if (len == base_len || value[base_len] == ';')
		return true;
	static const char proto[] = "+proto";
	const size_t proto_len = sizeof(proto) - 1;
	if (len < base_len + proto_len || memcmp(value + base_len, proto, proto_len) != 0)
		return false;
	return len == base_len + proto_len || value[base_len + proto_len] == ';';
}

static const char units[] = "HMSmun";
static const uint64_t units_ns[] = {3600000000000, 60000000000, 1000000000, 1000000, 1000, 1};

int grpc_wire_parse_timeout(const uint8_t *value, size_t len, uint64_t *ret_ns)
{
	if (len < 2 || len > 9)
		return -EINVAL;
	uint64_t n = 0;
	for (size_t i = 0; i + 1 < len; i++) {
		if (value[i] < '0' || value[i] > '9')
			return -EINVAL;
		n = n * 10 + (uint64_t)(value[i] - '0');
	}
	const char *unit = value[len - 1] != '\0' ? strchr(units, value[len - 1]) : NULL;
	if (unit == NULL)
		return -EINVAL;
	uint64_t unit_ns = units_ns[unit - units];
	*ret_ns = n > UINT64_MAX / unit_ns ? UINT64_MAX : n * unit_ns;
	return 0;
}

size_t grpc_wire_print_timeout(uint64_t ns, char *out)
{
	size_t i = sizeof(units_ns) / sizeof(units_ns[0]) - 1;
	while (i > 0 && (ns - 1) / units_ns[i] + 1 > 99999999)
		i--;
	return (size_t)snprintf(
		out, GRPC_TIMEOUT_MAX, "%" PRIu64 "%c", (ns - 1) / units_ns[i] + 1, units[i]);
}

/* The length of the UTF-8 character at s by its first byte; a stray byte counts as one. */
static size_t char_len(const unsigned char *s)
{
	size_t want = s[0] >= 0xF0 ? 4 : s[0] >= 0xE0 ? 3 : s[0] >= 0xC0 ? 2 : 1;
	for (size_t i = 1; i < want; i++) {
		if ((s[i] & 0xC0) != 0x80)
			return i;
	}
	return want;
}

size_t grpc_wire_encode_message(const char *message, char *out)
{
	static const char hex[] = "0123456789ABCDEF";
	const unsigned char *s = (const unsigned char *)message;
	size_t n = 0;

	while (*s != '\0') {
		size_t len = char_len(s);
		if (len == 1 && *s >= 0x20 && *s <= 0x7E && *s != '%') {
			if (n + 1 > GRPC_ENCODED_MESSAGE_MAX)
				break;
			out[n++] = (char)*s++;
			continue;
		}
		if (n + 3 * len > GRPC_ENCODED_MESSAGE_MAX)
			break;
		for (size_t i = 0; i < len; i++, s++) {
			out[n++] = '%';
			out[n++] = hex[*s >> 4];
			out[n++] = hex[*s & 15];
		}
	}
	return n;
}

static int hex_digit(uint8_t c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	c |= 0x20;
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

void grpc_wire_decode_message(const uint8_t *value, size_t len, char *out, size_t cap)
{
	size_t n = 0;
	for (size_t i = 0; i < len && n + 1 < cap; i++) {
		uint8_t c = value[i];
		int high = c == '%' && i + 2 < len ? hex_digit(value[i + 1]) : -1;
		int low = high >= 0 ? hex_digit(value[i + 2]) : -1;
		if (low >= 0) {
			c = (uint8_t)(high << 4 | low);
			i += 2;
		}
		out[n++] = (char)c;
	}
	if (cap > 0)
		out[n] = '\0';
}
