/* SPDX-License-Identifier: Apache-2.0 */
/* A set of segments, each with an array of nodes in no order. It fails by memory alone. */
#include "controller/segments.h"

#include "base/buf.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct segment {
	struct name name;
	struct store_node **nodes;
	size_t count, cap;
	char text[]; /* "<key>\n<value>" */
};

enum { TEXT_BYTES = SEGMENT_TEXT_MAX + 2 };

static bool text_of(const char *key, const char *value, char ret[TEXT_BYTES])
{
	return snprintf(ret, TEXT_BYTES, "%s\n%s", key, value) < TEXT_BYTES;
}

static struct segment *find(const struct segments *segments, const char *key, const char *value)
{
	char text[TEXT_BYTES];
	if (!text_of(key, value, text))
		return NULL;
	struct name *name = names_find(&segments->names, 0, text);
	return name != NULL ? container_of(name, struct segment, name) : NULL;
}

static void segment_free(struct segments *segments, struct segment *segment)
{
	names_remove(&segments->names, &segment->name);
	free(segment->nodes);
	free(segment);
}

void segments_init(struct segments *segments)
{
	names_init(&segments->names);
}

void segments_free(struct segments *segments)
{
	struct name *name;
	while ((name = names_any(&segments->names)) != NULL)
		segment_free(segments, container_of(name, struct segment, name));
}

static struct segment *segment_new(struct segments *segments, const char *text)
{
	size_t len = strlen(text);
	struct segment *segment = malloc(sizeof(*segment) + len + 1);
	if (segment == NULL)
		return NULL;
	memset(segment, 0, sizeof(*segment));
	memcpy(segment->text, text, len + 1);
	segment->name.text = segment->text;
	names_add(&segments->names, &segment->name);
	return segment;
}

int segments_add(
	struct segments *segments, const char *key, const char *value, struct store_node *node)
{
	char text[TEXT_BYTES];
	if (!text_of(key, value, text))
		return -ENOMEM;
	struct segment *segment = find(segments, key, value);
	if (segment == NULL)
		segment = segment_new(segments, text);
	if (segment == NULL)
		return -ENOMEM;
	if (array_grow(&segment->nodes, &segment->cap, segment->count, sizeof(node)) < 0) {
		if (segment->count == 0)
			segment_free(segments, segment);
		return -ENOMEM;
	}
	segment->nodes[segment->count++] = node;
	return 0;
}

void segments_remove(struct segments *segments, const char *key, const char *value,
	const struct store_node *node)
{
	struct segment *segment = find(segments, key, value);
	if (segment == NULL)
		return;
	for (size_t i = 0; i < segment->count; i++)
		if (segment->nodes[i] == node) {
			segment->nodes[i] = segment->nodes[--segment->count];
			break;
		}
	if (segment->count == 0)
		segment_free(segments, segment);
}

struct store_node *const *segments_find(
	const struct segments *segments, const char *key, const char *value, size_t *ret_n)
{
	const struct segment *segment = find(segments, key, value);
	*ret_n = segment != NULL ? segment->count : 0;
	return segment != NULL ? segment->nodes : NULL;
}
