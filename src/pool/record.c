/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The record's text, and names, keys and ids.
 *
 * Printing walks a table of fields in a fixed order and leaves out what is empty. Parsing checks
 * the sum, then the version, then looks each line up in the same table. It fails with -EBADMSG
 * where bytes are damaged or contradict each other and with -EPROTONOSUPPORT where they are sound
 * but not understood.
 *
 * A name is any UTF-8 a client sends. A key is what the name is called in a directory. An id is
 * what the client gets back. Whatever comes in is checked against what these functions can have
 * made, so that nothing else reaches a system call.
 */
#include "pool/record.h"

#include "base/fd.h"
#include "pool/record_text.h"

#include <errno.h>
#include <sha256.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RECORD_HEAD "ringvol-record 1\n"

enum { KEY_HASH_DIGITS = 40 };

/* ---- the fields ---- */

enum field_type {
	FIELD_STRING,
	FIELD_RANDOM,
	FIELD_U64,
	FIELD_U32,
	FIELD_U8,
	FIELD_BOOL,
	FIELD_ENUM
};

static const char *const kinds[] = {"volume", "snapshot", NULL};
static const char *const types[] = {"none", "ext4", "xfs", "btrfs", NULL};
static const char *const erases[] = {"none", "discard", "zero", NULL};
static const char *const encryptions[] = {"none", "luks2", NULL};
static const char *const attaches[] = {"local", "remote", NULL};
static const char *const sources[] = {"none", "volume", "snapshot", NULL};

static const struct field {
	const char *name;
	enum field_type type;
	size_t at;
	bool required;
	size_t max;                /* strings: bytes without the NUL; U8: the last one known */
	const char *const *values; /* enums */
	bool aside;                /* in an attribute of its own, and not in the text */
} fields[] = {
#define AT(member) offsetof(struct record, member)
	{"kind", FIELD_ENUM, AT(kind), true, 0, kinds},
	{"name", FIELD_STRING, AT(name), true, RECORD_NAME_MAX},
	{"random", FIELD_RANDOM, AT(random), true},
	{"size_bytes", FIELD_U64, AT(size_bytes), true},
	{"created_ns", FIELD_U64, AT(created_ns), true},
	{"fs", FIELD_ENUM, AT(fs), true, 0, types},
	{"block_size", FIELD_U32, AT(block_size), true},
	{"thick", FIELD_BOOL, AT(thick), true},
	{"device", FIELD_U8, AT(device), true, RECORD_DEVICE_MAX},
	{"erase", FIELD_ENUM, AT(erase), true, 0, erases},
	{"snapshot_freeze", FIELD_BOOL, AT(snapshot_freeze), true},
	{"mkfs_options", FIELD_STRING, AT(mkfs_options), false, RECORD_OPTIONS_MAX},
	{"source", FIELD_ENUM, AT(source), true, 0, sources},
	{"source_id", FIELD_STRING, AT(source_id), false, RECORD_ID_MAX - 1},
	{"shares_extents", FIELD_BOOL, AT(shares_extents), true},
	{"family", FIELD_STRING, AT(family), false, RECORD_ID_MAX - 1},
	{"allow_mode_change", FIELD_BOOL, AT(allow_mode_change), false},
	{"encryption", FIELD_ENUM, AT(encryption), false, 0, encryptions},
	{"unformatted", FIELD_BOOL, AT(unformatted), false},
	{"read_iops", FIELD_U64, AT(limits.read_iops), false},
	{"write_iops", FIELD_U64, AT(limits.write_iops), false},
	{"read_bandwidth", FIELD_U64, AT(limits.read_bandwidth), false},
	{"write_bandwidth", FIELD_U64, AT(limits.write_bandwidth), false},
	{"group", FIELD_STRING, AT(group), false, RECORD_ID_MAX - 1},
	{"owner", FIELD_STRING, AT(owner), false, RECORD_OWNER_MAX},
	{"attach", FIELD_ENUM, AT(attach), false, 0, attaches},
	{"born", FIELD_STRING, AT(born), false, RECORD_POOL_DIGITS},
	{"moves", FIELD_U64, AT(moves), false},
	{"claim", FIELD_STRING, AT(claim), false, RECORD_CLAIM_MAX, NULL, true},
#undef AT
};
enum { FIELDS = sizeof(fields) / sizeof(fields[0]) };

_Static_assert(sizeof(enum record_kind) == sizeof(unsigned), "fields[] reads enums as unsigned");

static const void *field_at(const struct record *rec, const struct field *f)
{
	return (const char *)rec + f->at;
}

/* ---- making one ---- */

struct record *record_new(const struct record *from)
{
	char key[RECORD_KEY_MAX];
	record_key(from->name, key);
	size_t len = sizeof(*from) + strlen(key) + 1;
	for (unsigned i = 0; i < FIELDS; i++)
		if (fields[i].type == FIELD_STRING) {
			const char *s = *(const char *const *)field_at(from, &fields[i]);
			len += (s != NULL ? strlen(s) : 0) + 1;
		}

	struct record *rec = malloc(len);
	if (rec == NULL)
		return NULL;
	*rec = *from;
	char *mem = (char *)(rec + 1);
	rec->key = mem;
	mem = stpcpy(mem, key) + 1;
	for (unsigned i = 0; i < FIELDS; i++)
		if (fields[i].type == FIELD_STRING) {
			const char **s = (const char **)(void *)((char *)rec + fields[i].at);
			const char *value = *s != NULL ? *s : "";
			*s = mem;
			mem = stpcpy(mem, value) + 1;
		}
	return rec;
}

void record_free(struct record *rec)
{
	free(rec);
}

/* ---- printing ---- */

static void print_field(struct record_text *o, const struct record *rec, const struct field *f)
{
	const void *at = field_at(rec, f);
	if (f->type == FIELD_STRING) {
		const char *s = *(const char *const *)at;
		if (s == NULL || (s[0] == '\0' && !f->required))
			return;
	}
	if (f->type == FIELD_BOOL && !f->required && !*(const bool *)at)
		return;
	if (f->type == FIELD_ENUM && !f->required && *(const unsigned *)at == 0)
		return;
	if (f->type == FIELD_U64 && !f->required && *(const uint64_t *)at == 0)
		return;
	record_text_put(o, f->name);
	record_text_char(o, '=');
	switch (f->type) {
	case FIELD_STRING:
		record_text_encoded(o, *(const char *const *)at);
		break;
	case FIELD_RANDOM:
		record_text_put(o, at);
		break;
	case FIELD_U64:
		record_text_number(o, *(const uint64_t *)at);
		break;
	case FIELD_U32:
		record_text_number(o, *(const uint32_t *)at);
		break;
	case FIELD_U8:
		record_text_number(o, *(const uint8_t *)at);
		break;
	case FIELD_BOOL:
		record_text_put(o, *(const bool *)at ? "true" : "false");
		break;
	case FIELD_ENUM:
		record_text_put(o, f->values[*(const unsigned *)at]);
		break;
	}
	record_text_char(o, '\n');
}

int record_print(const struct record *rec, char *buf, size_t cap)
{
	struct record_text o = {.buf = buf, .cap = cap};
	record_text_put(&o, RECORD_HEAD);
	for (unsigned i = 0; i < FIELDS; i++)
		if (!fields[i].aside)
			print_field(&o, rec, &fields[i]);
	return record_text_end(&o);
}

/* ---- parsing ---- */

static int parse_enum(const char *s, const char *const *values, unsigned *ret)
{
	for (unsigned i = 0; values[i] != NULL; i++)
		if (strcmp(values[i], s) == 0) {
			*ret = i;
			return 0;
		}
	return -EPROTONOSUPPORT;
}

static int parse_value(struct record *rec, const struct field *f, char *s)
{
	void *at = (char *)rec + f->at;
	uint64_t n = 0;
	int r = 0;
	switch (f->type) {
	case FIELD_STRING:
		r = record_text_decode(s);
		if (r < 0 || s[0] == '\0' || strlen(s) > f->max)
			return -EBADMSG;
		*(const char **)at = s;
		return 0;
	case FIELD_RANDOM:
		return record_text_parse_random(s, at);
	case FIELD_U64:
		if (!f->required && strcmp(s, "0") == 0) /* left out, then */
			return -EBADMSG;
		return record_text_parse_number(s, UINT64_MAX, at);
	case FIELD_U32:
		r = record_text_parse_number(s, UINT32_MAX, &n);
		*(uint32_t *)at = (uint32_t)n;
		return r;
	case FIELD_U8:
		r = record_text_parse_number(s, UINT8_MAX, &n);
		*(uint8_t *)at = (uint8_t)n;
		return r == 0 && n > f->max ? -EPROTONOSUPPORT : r;
	case FIELD_BOOL:
		*(bool *)at = s[0] == 't';
		if (!f->required && strcmp(s, "false") == 0) /* left out, then */
			return -EBADMSG;
		return strcmp(s, "true") == 0 || strcmp(s, "false") == 0 ? 0 : -EPROTONOSUPPORT;
	case FIELD_ENUM:
		if (!f->required && strcmp(s, f->values[0]) == 0) /* left out, then */
			return -EBADMSG;
		return parse_enum(s, f->values, at);
	}
	return -EBADMSG;
}

static int parse_line(struct record *rec, const char *name, char *value, uint32_t *seen)
{
	for (unsigned i = 0; i < FIELDS; i++) {
		if (fields[i].aside || strcmp(fields[i].name, name) != 0)
			continue;
		if (*seen >> i != 0) /* given twice, or out of order: one text for one value */
			return -EBADMSG;
		*seen |= 1u << i;
		return parse_value(rec, &fields[i], value);
	}
	return -EPROTONOSUPPORT;
}

int record_parse(const char *text, size_t len, const char *key, struct record **ret)
{
	_cleanup_free_ char *lines = NULL;
	int r = record_text_open(text, len, RECORD_BYTES_MAX, RECORD_HEAD, &lines);
	if (r < 0)
		return r;
	struct record rec = {0};
	uint32_t seen = 0;
	for (char *rest = lines, *value; *rest != '\0';) {
		const char *name = record_text_line(&rest, &value);
		r = name == NULL ? -EBADMSG : parse_line(&rec, name, value, &seen);
		if (r < 0)
			return r;
	}
	for (unsigned i = 0; i < FIELDS; i++)
		if (fields[i].required && !(seen & (1u << i)))
			return -EBADMSG;
	/* What is not encrypted has its file system before its name. */
	if (rec.unformatted && rec.encryption == RECORD_PLAIN)
		return -EBADMSG;
	if (rec.born != NULL && (strlen(rec.born) != RECORD_POOL_DIGITS || rec.moves == 0 ||
					!record_text_is_hex(rec.born, RECORD_POOL_DIGITS)))
		return -EBADMSG;
	char expected[RECORD_KEY_MAX];
	record_key(rec.name, expected);
	if (strcmp(expected, key) != 0)
		return -EBADMSG;
	struct record *made = record_new(&rec);
	if (made == NULL)
		return -ENOMEM;
	*ret = made;
	return 0;
}

enum record_erase record_text_erase(const char *text)
{
	char line[32];
	for (unsigned i = 0; erases[i] != NULL; i++) {
		snprintf(line, sizeof(line), "\nerase=%s\n", erases[i]);
		if (strstr(text, line) != NULL)
			return i;
	}
	return RECORD_ERASE_NONE;
}

/* ---- names, keys, ids ---- */

static bool is_alnum(char c)
{
	return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
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
		       record_text_is_hex(key + 1, KEY_HASH_DIGITS);
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
	if (key_len >= RECORD_KEY_MAX || id[HEX] != '.' || random[-1] != '.' ||
		!record_text_is_hex(id, HEX) || !record_text_is_hex(random, HEX))
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
	snprintf(ret_id, RECORD_ID_MAX, "%s.%s.%s", record_id_pool(rec, pool_uuid8), rec->key,
		rec->random);
}
