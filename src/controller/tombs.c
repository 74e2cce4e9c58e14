/* SPDX-License-Identifier: Apache-2.0 */
/* A set of ids, a list of all by age, and one for each pool. At its limit the oldest goes. */
#include "controller/tombs.h"

#include <stdlib.h>
#include <string.h>

struct tomb {
	struct name name;
	struct list order, link; /* of all; of its pool */
	struct store_pool *pool;
	uint32_t join;
	char id[];
};

static void drop(struct tombs *tombs, struct tomb *tomb)
{
	names_remove(&tombs->names, &tomb->name);
	list_remove(&tomb->order);
	list_remove(&tomb->link);
	free(tomb);
}

void tombs_init(struct tombs *tombs)
{
	names_init(&tombs->names);
	list_init(&tombs->order);
}

bool tombs_have(const struct tombs *tombs, const char *id)
{
	return names_find(&tombs->names, 0, id) != NULL;
}

void tombs_add(struct tombs *tombs, struct store_pool *pool, const char *id, uint32_t join)
{
	size_t len = strlen(id);
	struct tomb *tomb = !tombs_have(tombs, id) ? malloc(sizeof(*tomb) + len + 1) : NULL;
	if (tomb == NULL)
		return;
	memset(tomb, 0, sizeof(*tomb));
	memcpy(tomb->id, id, len + 1);
	tomb->name.text = tomb->id;
	tomb->pool = pool;
	tomb->join = join;
	names_add(&tombs->names, &tomb->name);
	list_push(&tombs->order, &tomb->order);
	list_push(&pool->tombs, &tomb->link);
	if (tombs->names.count > STORE_TOMBS_MAX)
		drop(tombs, container_of(tombs->order.next, struct tomb, order));
}

struct store_pool *tombs_pool(const struct tombs *tombs, const char *id)
{
	const struct name *name = names_find(&tombs->names, 0, id);
	return name != NULL ? container_of(name, struct tomb, name)->pool : NULL;
}

void tombs_confirm(struct tombs *tombs, const char *id)
{
	struct name *name = names_find(&tombs->names, 0, id);
	if (name != NULL)
		drop(tombs, container_of(name, struct tomb, name));
}

void tombs_drop_old(struct tombs *tombs, struct store_pool *pool, uint32_t join)
{
	list_for_each_safe (l, &pool->tombs) {
		struct tomb *tomb = container_of(l, struct tomb, link);
		if (tomb->join < join)
			drop(tombs, tomb);
	}
}
