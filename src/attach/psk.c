/* SPDX-License-Identifier: Apache-2.0 */
/* Owns nothing. It fails for names that are too long and for what is no secret; what held a key on
 * the way is overwritten. */
#include "attach/psk.h"

#include "base/secret.h"

#include <errno.h>
#include <sha256.h>
#include <stdio.h>
#include <string.h>

enum {
	BLOCK_BYTES = 64, /* SHA-256's */
	SECRET_MAX = 64,
	SECRET_MIN = 32,
	SUM_BYTES = 4, /* a CRC behind the secret */
	LABEL_MAX = 249,
	INFO_BYTES = 2 + 1 + 255 + 1 + 255 + 1,
};

/* The key is no longer than a block. */
static void hmac(const uint8_t *key, size_t key_len, const void *data, size_t len,
	uint8_t ret[SHA256_DIGEST_LENGTH])
{
	uint8_t pad[BLOCK_BYTES] = {0};
	SHA2_CTX ctx;
	memcpy(pad, key, key_len);
	for (unsigned i = 0; i < BLOCK_BYTES; i++)
		pad[i] ^= 0x36;
	SHA256Init(&ctx);
	SHA256Update(&ctx, pad, BLOCK_BYTES);
	SHA256Update(&ctx, data, len);
	SHA256Final(ret, &ctx);
	for (unsigned i = 0; i < BLOCK_BYTES; i++)
		pad[i] ^= 0x36 ^ 0x5c;
	SHA256Init(&ctx);
	SHA256Update(&ctx, pad, BLOCK_BYTES);
	SHA256Update(&ctx, ret, SHA256_DIGEST_LENGTH);
	SHA256Final(ret, &ctx);
	secret_wipe(pad, sizeof(pad));
	secret_wipe(&ctx, sizeof(ctx));
}

int psk_step(const uint8_t *input, size_t len, const char *label, const char *context,
	uint8_t ret[PSK_BYTES])
{
	static const uint8_t no_salt[SHA256_DIGEST_LENGTH];
	uint8_t prk[SHA256_DIGEST_LENGTH];
	char info[INFO_BYTES + 1];
	size_t label_len = strlen(label), context_len = strlen(context);
	if (label_len > LABEL_MAX || context_len > UINT8_MAX)
		return -E2BIG;
	/* The length of what comes out, the label, the context, and the number of the block. */
	int n = snprintf(info, sizeof(info), "%c%c%ctls13 %s%c%s%c", 0, PSK_BYTES,
		(int)(label_len + 6), label, (int)context_len, context, 1);
	hmac(no_salt, sizeof(no_salt), input, len, prk);
	hmac(prk, sizeof(prk), info, (size_t)n, ret);
	secret_wipe(prk, sizeof(prk));
	return 0;
}

/* "DHHC-1:00:BASE64:": the bytes before the sum. Their number, or -EINVAL. */
static int decode(const char *secret, uint8_t ret[SECRET_MAX + SUM_BYTES])
{
	static const char digits[] =
		"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
	size_t len = 0, head = strlen("DHHC-1:00:");
	uint32_t bits = 0, held = 0;
	if (strlen(secret) <= head)
		return -EINVAL;
	for (const char *at = secret + head, *digit; *at != '\0' && *at != ':' && *at != '=';
		at++) {
		digit = strchr(digits, *at);
		if (digit == NULL || len == SECRET_MAX + SUM_BYTES)
			return -EINVAL;
		bits = bits << 6 | (uint32_t)(digit - digits);
		held += 6;
		if (held >= 8)
			ret[len++] = (uint8_t)(bits >> (held -= 8));
	}
	return len >= SECRET_MIN + SUM_BYTES ? (int)(len - SUM_BYTES) : -EINVAL;
}

void psk_identity(const char *subsystem, char ret[PSK_IDENTITY_BYTES])
{
	char digest[SHA256_DIGEST_STRING_LENGTH];
	SHA256Data((const uint8_t *)subsystem, strlen(subsystem), digest);
	snprintf(ret, PSK_IDENTITY_BYTES, "NVMe0R01 %s", digest);
}

int psk_make(const char *secret, const char *host_nqn, const char *subsystem, struct psk *ret)
{
	uint8_t bytes[SECRET_MAX + SUM_BYTES];
	int len = decode(secret, bytes), r = len < 0 ? len : 0;
	psk_identity(subsystem, ret->identity);
	if (r == 0)
		r = psk_step(bytes, (size_t)len, "ringvol tls", subsystem, ret->key);
	if (r == 0)
		r = psk_step(ret->key, PSK_BYTES, "HostNQN", host_nqn, ret->key);
	if (r == 0)
		r = psk_step(ret->key, PSK_BYTES, "nvme-tls-psk", ret->identity, ret->key);
	secret_wipe(bytes, sizeof(bytes));
	return r;
}
