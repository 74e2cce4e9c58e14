/* SPDX-License-Identifier: Apache-2.0 */
/* Fields that end with NUL. The last one is there, and the head another one, if the volume is in
 * use on this node: a driver that knows nothing of that must not go on with it. Owns nothing. */
#include "csi/take_text.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TAKE_HEAD          "ringvol-take 1"
#define TAKE_HEAD_ATTACHED "ringvol-take 2"

enum take_field {
	FIELD_HEAD,
	FIELD_ID,
	FIELD_NAME,
	FIELD_GRANT,
	FIELD_NODE,
	FIELD_ADDRESS,
	FIELD_FROM,
	FIELD_SINCE,
	FIELD_ATTACHED, /* mode, and two times 0 or 1: block, read_only */
	FIELDS
};

ssize_t take_text_print(const struct take_text *take, char text[POOL_PART_TEXT_MAX])
{
	char since[24], attached[24];
	bool has = take->attached.mode != 0;
	snprintf(since, sizeof(since), "%llu", (unsigned long long)take->since);
	snprintf(attached, sizeof(attached), "%u %d %d", take->attached.mode, take->attached.block,
		take->attached.read_only);
	const char *const fields[FIELDS] = {[FIELD_HEAD] = has ? TAKE_HEAD_ATTACHED : TAKE_HEAD,
		[FIELD_ID] = take->offer.source_id,
		[FIELD_NAME] = take->offer.volume_name,
		[FIELD_GRANT] = take->offer.grant,
		[FIELD_NODE] = take->offer.node_id,
		[FIELD_ADDRESS] = take->offer.address,
		[FIELD_FROM] = take->from,
		[FIELD_SINCE] = since,
		[FIELD_ATTACHED] = attached};
	size_t at = 0;
	for (unsigned i = 0; i < (has ? FIELDS : FIELD_ATTACHED); i++) {
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

static bool take_attached(const char *field, struct pull_attached *ret)
{
	unsigned block, read_only;
	int end = 0;
	if (sscanf(field, "%u %u %u%n", &ret->mode, &block, &read_only, &end) != 3 ||
		field[end] != '\0' || ret->mode == 0 || block > 1 || read_only > 1)
		return false;
	ret->block = block == 1;
	ret->read_only = read_only == 1;
	return true;
}

int take_text_parse(const char *text, size_t len, struct take_text *ret)
{
	const char *fields[FIELDS], *end = text + len;
	struct offer *offer = &ret->offer;
	unsigned count = FIELDS;
	*ret = (struct take_text){0};
	for (unsigned i = 0; i < count; i++) {
		const char *nul = memchr(text, '\0', (size_t)(end - text));
		if (i == 1 && strcmp(fields[0], TAKE_HEAD) == 0)
			count = FIELD_ATTACHED;
		else if (i == 1 && strcmp(fields[0], TAKE_HEAD_ATTACHED) != 0)
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
	return count == FIELDS && !take_attached(fields[FIELD_ATTACHED], &ret->attached) ? -EBADMSG
											 : 0;
}
