/* SPDX-License-Identifier: Apache-2.0 */
#include "pool/hold_file.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define HOLD_HEAD "ringvol-send 1"
/* Of a volume that is to leave: an older driver leaves it alone. */
#define HOLD_MOVE_HEAD "ringvol-move 1"

/* ---- names ---- */

static bool is_hex(const char *text, size_t digits)
{
	return strspn(text, "0123456789abcdef") >= digits;
}

bool hold_is_image_name(const char *name)
{
	size_t len = strlen(HOLD_PREFIX);
	return strncmp(name, HOLD_PREFIX, len) == 0 && strlen(name) == len + HOLD_DIGITS &&
	       is_hex(name + len, HOLD_DIGITS);
}

bool hold_is_grant_name(const char *name)
{
	char image[sizeof(HOLD_PREFIX) + HOLD_DIGITS];
	size_t len = sizeof(image) - 1;
	if (strlen(name) != len + strlen(HOLD_SUFFIX) || strcmp(name + len, HOLD_SUFFIX) != 0)
		return false;
	snprintf(image, sizeof(image), "%.*s", (int)len, name);
	return hold_is_image_name(image);
}

bool hold_name_valid(const char *name)
{
	return hold_is_image_name(name) || hold_is_grant_name(name);
}

void hold_grant_name(const char *image, char ret_name[HOLD_FILE_BYTES])
{
	snprintf(ret_name, HOLD_FILE_BYTES, "%s" HOLD_SUFFIX, image);
}

/* ---- the file that says for whom: fields that end with NUL, the record last ---- */

enum hold_field {
	FIELD_HEAD,
	FIELD_GRANT,
	FIELD_NODE,
	FIELD_NAME,
	FIELD_SOURCE,
	FIELD_SHARES,
	FIELDS
};

int hold_print(const struct pool_hold *hold, char *text, size_t cap)
{
	const char *const fields[FIELDS] = {[FIELD_HEAD] = hold->move ? HOLD_MOVE_HEAD : HOLD_HEAD,
		[FIELD_GRANT] = hold->grant,
		[FIELD_NODE] = hold->node_id,
		[FIELD_NAME] = hold->volume_name,
		[FIELD_SOURCE] = hold->source_id,
		[FIELD_SHARES] = hold->shares ? "1" : "0"};
	size_t at = 0;
	for (unsigned i = 0; i < FIELDS; i++) {
		size_t len = strlen(fields[i]) + 1;
		if (len > cap - at)
			return -E2BIG;
		memcpy(text + at, fields[i], len);
		at += len;
	}
	if (cap - at < RECORD_BYTES_MAX)
		return -E2BIG;
	int n = record_print(hold->rec, text + at, cap - at);
	return n < 0 ? n : (int)at + n;
}

bool hold_take_field(char *to, size_t cap, const char *from)
{
	return (size_t)snprintf(to, cap, "%s", from) < cap;
}

int hold_parse(const char *text, size_t len, struct pool_hold *hold)
{
	const char *fields[FIELDS], *end = text + len;
	_Static_assert(sizeof(HOLD_MOVE_HEAD) == sizeof(HOLD_HEAD), "compared by one length");
	hold->move = len >= sizeof(HOLD_HEAD) &&
		     memcmp(text, HOLD_MOVE_HEAD, sizeof(HOLD_MOVE_HEAD)) == 0;
	if (len < sizeof(HOLD_HEAD) ||
		(!hold->move && memcmp(text, HOLD_HEAD, sizeof(HOLD_HEAD)) != 0))
		return -EPROTONOSUPPORT;
	for (unsigned i = 0; i < FIELDS; i++) {
		const char *nul = memchr(text, '\0', (size_t)(end - text));
		if (nul == NULL)
			return -EBADMSG;
		fields[i] = text;
		text = nul + 1;
	}
	struct record_id id;
	if (strlen(fields[FIELD_GRANT]) != POOL_GRANT_BYTES - 1 ||
		!is_hex(fields[FIELD_GRANT], POOL_GRANT_BYTES - 1) ||
		!hold_take_field(hold->grant, sizeof(hold->grant), fields[FIELD_GRANT]) ||
		!hold_take_field(hold->node_id, sizeof(hold->node_id), fields[FIELD_NODE]) ||
		!hold_take_field(
			hold->volume_name, sizeof(hold->volume_name), fields[FIELD_NAME]) ||
		!hold_take_field(hold->source_id, sizeof(hold->source_id), fields[FIELD_SOURCE]) ||
		record_id_parse(hold->source_id, &id) < 0)
		return -EBADMSG;
	hold->shares = strcmp(fields[FIELD_SHARES], "0") != 0;
	return record_parse(text, (size_t)(end - text), id.key, &hold->rec);
}
