/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names, keys, ids. A name is any UTF-8 a client sends; a key is what it is called in a directory;
 * an id is what the client gets back. Whatever comes in is checked against what these functions
 * can have made, so that nothing else reaches a system call.
 */
#include "pool/record.h"

#include <errno.h>
#include <sha256.h>
#include <stdio.h>
#include <string.h>

enum { KEY_HASH_DIGITS = 40 };

static bool is_alnum(char c)
{
	return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
}

static bool is_hex(const char *s, size_t count)
{
	for (size_t i = 0; i < count; i++)
		if (!((s[i] >= '0' && s[i] <= '9') || (s[i] >= 'a' && s[i] <= 'f')))
			return false;
	return true;
}

/* Short and safe enough to be a file name as it is. */
static bool plain_valid(const char *s)
{
	if (!is_alnum(s[0]))
		return false;
	size_t len = 1;
	for (; s[len] != '\0'; len++)
		if (len >= RECORD_KEY_MAX - 1 ||
			!(is_alnum(s[len]) || s[len] == '.' || s[len] == '_' || s[len] == '-'))
			return false;
	return true;
}

void record_key(const char *name, char ret_key[RECORD_KEY_MAX])
{
	if (plain_valid(name)) {
		strcpy(ret_key, name);
		return;
	}
	char hex[SHA256_DIGEST_STRING_LENGTH];
	SHA256Data((const uint8_t *)name, strlen(name), hex);
	snprintf(ret_key, RECORD_KEY_MAX, "=%.*s", KEY_HASH_DIGITS, hex);
}

bool record_key_valid(const char *key)
{
	if (key[0] == '=')
		return strnlen(key, RECORD_KEY_MAX) == 1 + KEY_HASH_DIGITS &&
		       is_hex(key + 1, KEY_HASH_DIGITS);
	return plain_valid(key);
}

int record_id_parse(const char *id, struct record_id *ret)
{
	/* The pool and the random part have 8 digits each; what is between may hold dots. */
	enum { HEX = 8 };
	size_t len = strnlen(id, RECORD_ID_MAX);
	if (len >= RECORD_ID_MAX || len < HEX + 1 + 1 + 1 + HEX)
		return -EINVAL;
	size_t key_len = len - 2 * (HEX + 1);
	const char *key = id + HEX + 1, *random = id + len - HEX;
	if (key_len >= RECORD_KEY_MAX || id[HEX] != '.' || random[-1] != '.' || !is_hex(id, HEX) ||
		!is_hex(random, HEX))
		return -EINVAL;

	struct record_id out = {0};
	memcpy(out.pool, id, HEX);
	memcpy(out.key, key, key_len);
	memcpy(out.random, random, HEX);
	if (!record_key_valid(out.key))
		return -EINVAL;
	*ret = out;
	return 0;
}

void record_id_print(const char *pool_uuid8, const struct record *rec, char ret_id[RECORD_ID_MAX])
{
	snprintf(ret_id, RECORD_ID_MAX, "%s.%s.%s", pool_uuid8, rec->key, rec->random);
}
