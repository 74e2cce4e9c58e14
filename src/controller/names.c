/* SPDX-License-Identifier: Apache-2.0 */
/* Buckets of lists, by a keyed hash. It cannot fail. */
#include "controller/names.h"

#include <string.h>

void names_init(struct names *names)
{
	siphash_key_new(&names->key);
	names->count = 0;
	for (unsigned i = 0; i < NAMES_BUCKETS; i++)
		list_init(&names->buckets[i]);
}

static size_t bucket_of(const struct names *names, const char *text)
{
	return siphash(&names->key, text, strlen(text)) % NAMES_BUCKETS;
}

void names_add(struct names *names, struct name *name)
{
	list_push(&names->buckets[bucket_of(names, name->text)], &name->link);
	names->count++;
}

void names_remove(struct names *names, struct name *name)
{
	list_remove(&name->link);
	names->count--;
}

struct name *names_find(const struct names *names, unsigned kind, const char *text)
{
	const struct list *bucket = &names->buckets[bucket_of(names, text)];
	for (struct list *l = bucket->next; l != bucket; l = l->next) {
		struct name *name = container_of(l, struct name, link);
		if (name->kind == kind && strcmp(name->text, text) == 0)
			return name;
	}
	return NULL;
}

struct name *names_any(const struct names *names)
{
	for (unsigned i = 0; i < NAMES_BUCKETS; i++)
		if (!list_empty(&names->buckets[i]))
			return container_of(names->buckets[i].next, struct name, link);
	return NULL;
}
