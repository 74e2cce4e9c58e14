/* SPDX-License-Identifier: Apache-2.0 */
/* Owns nothing, and cannot fail. */
#include "export/names.h"

#include <sha256.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

void export_names_of(const char *pool_uuid8, const char *uuid, struct export_names *ret)
{
	uint8_t id[SHA256_DIGEST_LENGTH];
	SHA2_CTX ctx;
	snprintf(ret->subsystem, sizeof(ret->subsystem), ATTACH_NQN_PREFIX "%.8s.%.36s", pool_uuid8,
		uuid);
	snprintf(ret->host, sizeof(ret->host), ATTACH_HOST_NQN_PREFIX "%.8s.%.36s", pool_uuid8,
		uuid);
	SHA256Init(&ctx);
	SHA256Update(&ctx, (const uint8_t *)ret->host, strlen(ret->host));
	SHA256Final(id, &ctx);
	id[6] = (id[6] & 0x0f) | 0x80; /* version 8, variant 1 */
	id[8] = (id[8] & 0x3f) | 0x80;
	char *at = ret->host_id;
	for (unsigned i = 0; i < 16; i++)
		at += sprintf(at, i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", id[i]);
}

bool export_names_split(const char *subsystem, char ret_pool_uuid8[9], char ret_uuid[UUID_BYTES])
{
	static const char prefix[] = ATTACH_NQN_PREFIX;
	enum { PREFIX = sizeof(prefix) - 1, POOL = 8 };
	const char *pool = subsystem + PREFIX;
	if (strlen(subsystem) != PREFIX + POOL + 1 + UUID_BYTES - 1 ||
		strncmp(subsystem, prefix, PREFIX) != 0 || pool[POOL] != '.' ||
		strspn(pool, "0123456789abcdef") < POOL || !uuid_valid(pool + POOL + 1))
		return false;
	memcpy(ret_pool_uuid8, pool, POOL);
	ret_pool_uuid8[POOL] = '\0';
	memcpy(ret_uuid, pool + POOL + 1, UUID_BYTES);
	return true;
}

/* ---- the key ---- */

/* As in Ethernet and zlib; 36 bytes are no reason for a table. */
static uint32_t crc32_of(const uint8_t *data, size_t len)
{
	uint32_t crc = ~0u;
	for (size_t i = 0; i < len; i++) {
		crc ^= data[i];
		for (unsigned bit = 0; bit < 8; bit++)
			crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
	}
	return ~crc;
}

/* len is a multiple of 3: there is no padding. */
static char *put_base64(char *to, const uint8_t *data, size_t len)
{
	static const char digits[] =
		"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
	for (size_t i = 0; i < len; i += 3) {
		uint32_t three = (uint32_t)data[i] << 16 | (uint32_t)data[i + 1] << 8 | data[i + 2];
		for (int shift = 18; shift >= 0; shift -= 6)
			*to++ = digits[three >> shift & 63];
	}
	return to;
}

void export_key_draw(char ret[ATTACH_KEY_BYTES])
{
	enum { SECRET = 32, CRC = 4 };
	uint8_t secret[SECRET + CRC];
	while (getrandom(secret, SECRET, 0) != SECRET)
		;
	uint32_t crc = crc32_of(secret, SECRET);
	for (unsigned i = 0; i < CRC; i++)
		secret[SECRET + i] = (uint8_t)(crc >> 8 * i);
	char *end = put_base64(stpcpy(ret, "DHHC-1:00:"), secret, sizeof(secret));
	strcpy(end, ":");
	explicit_bzero(secret, sizeof(secret));
}
