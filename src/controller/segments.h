/* SPDX-License-Identifier: Apache-2.0 */
/* Which nodes have a segment of topology. For store.c. */
#ifndef RINGVOL_CONTROLLER_SEGMENTS_H
#define RINGVOL_CONTROLLER_SEGMENTS_H

#include "controller/names.h"

struct store_node;

enum { SEGMENT_TEXT_MAX = 640 }; /* bytes of key and value together */

struct segments {
	struct names names;
};

void segments_init(struct segments *segments);
void segments_free(struct segments *segments);
/* 0 or -ENOMEM. key and value have no newline. */
int segments_add(
	struct segments *segments, const char *key, const char *value, struct store_node *node);
/* Nothing, if it is not there. */
void segments_remove(struct segments *segments, const char *key, const char *value,
	const struct store_node *node);
struct store_node *const *segments_find(
	const struct segments *segments, const char *key, const char *value, size_t *ret_n);

#endif
