/* SPDX-License-Identifier: Apache-2.0 */
/* The small syntaxes of gRPC over HTTP/2: header values and the message prefix. Pure functions. */
#ifndef RINGVOL_RPC_WIRE_H
#define RINGVOL_RPC_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	GRPC_PREFIX_BYTES = 5,           /* compressed flag, big-endian length */
	GRPC_TIMEOUT_MAX = 10,           /* of grpc-timeout: 8 digits, a unit, a NUL */
	GRPC_ENCODED_MESSAGE_MAX = 4096, /* of grpc-message; longer ones are cut */
};

/* application/grpc, alone or followed by +proto or parameters. */
bool grpc_wire_content_type_ok(const uint8_t *value, size_t len);
/* grpc-timeout: 1 to 8 digits and one of H M S m u n. 0 or -EINVAL. */
int grpc_wire_parse_timeout(const uint8_t *value, size_t len, uint64_t *ret_ns);
/* The reverse, rounded up, of more than 0 ns, into GRPC_TIMEOUT_MAX bytes, with a NUL. Returns its
 * length. */
size_t grpc_wire_print_timeout(uint64_t ns, char *out);
/* Percent-encodes a UTF-8 message for grpc-message into out (GRPC_ENCODED_MESSAGE_MAX bytes, not
 * NUL-terminated) and returns its length. A message that is too long is cut at a character. */
size_t grpc_wire_encode_message(const char *message, char *out);
/* The reverse, for clients, into cap bytes with a NUL; what does not fit is cut off. */
void grpc_wire_decode_message(const uint8_t *value, size_t len, char *out, size_t cap);

static inline uint32_t grpc_wire_get_length(const uint8_t *prefix)
{
	return (uint32_t)prefix[1] << 24 | (uint32_t)prefix[2] << 16 | (uint32_t)prefix[3] << 8 |
	       prefix[4];
}

static inline void grpc_wire_put_prefix(uint8_t *prefix, uint32_t len)
{
	prefix[0] = 0;
	prefix[1] = (uint8_t)(len >> 24);
	prefix[2] = (uint8_t)(len >> 16);
	prefix[3] = (uint8_t)(len >> 8);
	prefix[4] = (uint8_t)len;
}

#endif
