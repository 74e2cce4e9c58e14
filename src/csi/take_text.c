/* SPDX-License-Identifier: Apache-2.0 */
/* Fields that end with NUL. Owns nothing. */
#include "csi/take_text.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TAKE_HEAD "ringvol-take 1"

enum take_field {
	FIELD_HEAD,
	FIELD_ID,
	FIELD_NAME,
	FIELD_GRANT,
	FIELD_NODE,
	FIELD_ADDRESS,
	FIELD_FROM,
	FIELD_SINCE,
	FIELDS
};

ssize_t take_text_print(const struct take_text *take, char text[POOL_PART_TEXT_MAX])
{
	char since[24];
	snprintf(since, sizeof(since), "%llu", (unsigned long long)take->since);
	const char *const fields[FIELDS] = {[FIELD_HEAD] = TAKE_HEAD,
		[FIELD_ID] = take->offer.source_id,
		[FIELD_NAME] = take->offer.volume_name,
		[FIELD_GRANT] = take->offer.grant,
		[FIELD_NODE] = take->offer.node_id,
		[FIELD_ADDRESS] = take->offer.address,
		[FIELD_FROM] = take->from,
		[FIELD_SINCE] = since};
	size_t at = 0;
	for (unsigned i = 0; i < FIELDS; i++) {
		size_t len = strlen(fields[i]) + 1;
		if (len > POOL_PART_TEXT_MAX - at)
			return -E2BIG;
		memcpy(text + at, fields[i], len);
		at += len;
	}
	return (ssize_t)at;
}

static bool take_field(char *to, size_t cap, const char *from)
{
	return (size_t)snprintf(to, cap, "%s", from) < cap;
}

int take_text_parse(const char *text, size_t len, struct take_text *ret)
{
	const char *fields[FIELDS], *end = text + len;
	struct offer *offer = &ret->offer;
	*ret = (struct take_text){0};
	for (unsigned i = 0; i < FIELDS; i++) {
		const char *nul = memchr(text, '\0', (size_t)(end - text));
		if (i == 1 && strcmp(fields[0], TAKE_HEAD) != 0)
			return -EPROTONOSUPPORT;
		if (nul == NULL)
			return -EBADMSG;
		fields[i] = text;
		text = nul + 1;
	}
	if (!take_field(offer->source_id, sizeof(offer->source_id), fields[FIELD_ID]) ||
		!take_field(offer->volume_name, sizeof(offer->volume_name), fields[FIELD_NAME]) ||
		!take_field(offer->grant, sizeof(offer->grant), fields[FIELD_GRANT]) ||
		!take_field(offer->node_id, sizeof(offer->node_id), fields[FIELD_NODE]) ||
		!take_field(offer->address, sizeof(offer->address), fields[FIELD_ADDRESS]) ||
		!take_field(ret->from, sizeof(ret->from), fields[FIELD_FROM]))
		return -EBADMSG;
	ret->since = strtoull(fields[FIELD_SINCE], NULL, 10);
	return 0;
}
