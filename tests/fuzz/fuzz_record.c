/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Records, keys and ids. The first byte chooses:
 *   a record's text as it is, under the key its name gives;
 *   the same with a right sum put under it, so that the fields are reached;
 *   a name: its key is a safe file name, and a record of it prints and parses to the same;
 *   an id: what parses prints to the same text.
 */
#include "fuzz.h"

#include "pool/record.h"

#include <errno.h>
#include <sha256.h>
#include <string.h>

enum { SUM_LINE = 21 };

static void check_key(const char *key)
{
	must(key[0] != '\0' && strlen(key) < RECORD_KEY_MAX);
	must(record_key_valid(key));
	must(strchr(key, '/') == NULL && key[0] != '.' && key[0] != '-');
	for (const char *c = key; *c != '\0'; c++)
		must(*c > ' ' && *c < 0x7f);
}

static bool sum_is_right(const char *text, size_t len)
{
	char hex[SHA256_DIGEST_STRING_LENGTH];
	if (len < SUM_LINE)
		return false;
	SHA256Data((const uint8_t *)text, len - SUM_LINE, hex);
	return memcmp(text + len - SUM_LINE, "sum=", 4) == 0 &&
	       memcmp(text + len - SUM_LINE + 4, hex, 16) == 0 && text[len - 1] == '\n';
}

/* What was taken is printed as it was. */
static void check_printed(const struct record *rec, const char *text, size_t len)
{
	char again[RECORD_BYTES_MAX];
	int n = record_print(rec, again, sizeof(again));
	/* A record that fills the room to the last byte has none left for the NUL. */
	must(n == (int)len || (n == -E2BIG && len >= RECORD_BYTES_MAX - 1));
	must(n < 0 || memcmp(again, text, len) == 0);
}

/* The key the text's own name gives, if it has one. */
static void key_of_text(const char *text, char key[RECORD_KEY_MAX])
{
	const char *at = strstr(text, "\nname=");
	char name[64] = "x";
	if (at != NULL)
		snprintf(name, sizeof(name), "%.*s", (int)strcspn(at + 6, "\n"), at + 6);
	record_key(name, key);
}

static void try_text(const char *text, size_t len)
{
	char key[RECORD_KEY_MAX];
	struct record *rec = NULL;
	key_of_text(text, key);
	int r = record_parse(text, len, key, &rec);
	must(r == 0 || r == -EBADMSG || r == -EPROTONOSUPPORT);
	must((r == 0) == (rec != NULL));
	if (r != 0)
		return;
	must(sum_is_right(text, len));
	check_key(rec->key);
	must(strcmp(rec->key, key) == 0);
	must(strlen(rec->name) > 0 && strlen(rec->name) <= RECORD_NAME_MAX);
	must(rec->fs < FSIMG_TYPES && strlen(rec->random) == 8);
	must(rec->device <= RECORD_DEVICE_MAX);
	check_printed(rec, text, len);
	struct record *other = NULL;
	must(record_parse(text, len, "another-key", &other) == -EBADMSG);
	record_free(rec);
}

static void try_summed(const uint8_t *data, size_t len)
{
	char hex[SHA256_DIGEST_STRING_LENGTH];
	char *text = malloc(len + SUM_LINE + 1);
	must(text != NULL);
	memcpy(text, data, len);
	SHA256Data(data, len, hex);
	snprintf(text + len, SUM_LINE + 1, "sum=%.16s\n", hex);
	try_text(text, len + SUM_LINE);
	free(text);
}

static void try_name(const char *name)
{
	char key[RECORD_KEY_MAX], text[RECORD_BYTES_MAX], id[RECORD_ID_MAX];
	const struct record from = {.kind = RECORD_VOLUME, .name = name, .random = "0badcafe"};
	record_key(name, key);
	check_key(key);
	struct record *rec = record_new(&from), *back = NULL;
	must(rec != NULL && strcmp(rec->key, key) == 0);
	int n = record_print(rec, text, sizeof(text));
	size_t name_len = strlen(name);
	if (name_len > 0 && name_len <= RECORD_NAME_MAX) {
		must(n > 0);
		must(record_parse(text, (size_t)n, key, &back) == 0);
		must(strcmp(back->name, name) == 0);
		record_free(back);
	}
	struct record_id parsed;
	record_id_print("01234567", rec, id);
	must(record_id_parse(id, &parsed) == 0);
	must(strcmp(parsed.key, key) == 0 && strcmp(parsed.random, rec->random) == 0);
	record_free(rec);
}

static void try_id(const char *text)
{
	struct record_id id;
	char again[RECORD_ID_MAX];
	must(record_key_valid(text) == (record_key_valid(text) && strlen(text) < RECORD_KEY_MAX));
	if (record_id_parse(text, &id) < 0)
		return;
	check_key(id.key);
	struct record rec = {.key = id.key};
	memcpy(rec.random, id.random, sizeof(rec.random));
	record_id_print(id.pool, &rec, again);
	must(strcmp(again, text) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	if (len == 0)
		return 0;
	char *text = fuzz_text(data + 1, len - 1);
	switch (data[0] % 4) {
	case 0:
		try_text(text, len - 1);
		break;
	case 1:
		try_summed(data + 1, len - 1);
		break;
	case 2:
		try_name(text);
		break;
	default:
		try_id(text);
		break;
	}
	free(text);
	return 0;
}
