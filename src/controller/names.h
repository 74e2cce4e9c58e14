/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A set of texts, found by hash: for store.c's names that are being made, ids that were taken away,
 * and segments of topology. What is in it embeds a struct name and stays its owner's.
 */
#ifndef RINGVOL_CONTROLLER_NAMES_H
#define RINGVOL_CONTROLLER_NAMES_H

#include "base/list.h"
#include "base/siphash.h"

#include <stddef.h>
#include <stdint.h>

enum { NAMES_BUCKETS = 1024 };

struct name {
	struct list link;
	const char *text; /* lives as long as the name is in the set */
	unsigned kind;    /* texts of two kinds are two */
};

struct names {
	struct siphash_key key;
	size_t count;
	struct list buckets[NAMES_BUCKETS];
};

void names_init(struct names *names);
/* It is not in the set yet. */
void names_add(struct names *names, struct name *name);
void names_remove(struct names *names, struct name *name);
struct name *names_find(const struct names *names, unsigned kind, const char *text); /* or NULL */
/* Any of them; NULL: it is empty. */
struct name *names_any(const struct names *names);

#endif
