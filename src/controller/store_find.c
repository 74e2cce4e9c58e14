/* SPDX-License-Identifier: Apache-2.0 */
/* Finding nodes and pools: arrays in order, looked through by halves. It cannot fail. */
#include "controller/store_private.h"

#include <string.h>

/* The first place in the array whose text is not below `text`. */
size_t store_node_place(const struct store *store, const char *id)
{
	size_t from = 0, to = store->n_nodes;
	while (from < to) {
		size_t middle = from + (to - from) / 2;
		if (strcmp(store->nodes[middle]->id, id) < 0)
			from = middle + 1;
		else
			to = middle;
	}
	return from;
}

size_t store_pool_place(const struct store *store, const char *uuid8)
{
	size_t from = 0, to = store->n_pools;
	while (from < to) {
		size_t middle = from + (to - from) / 2;
		if (strncmp(store->pools[middle]->uuid8, uuid8,
			    sizeof(store->pools[0]->uuid8) - 1) < 0)
			from = middle + 1;
		else
			to = middle;
	}
	return from;
}

struct store_node *store_node(const struct store *store, const char *id)
{
	size_t at = store_node_place(store, id);
	return at < store->n_nodes && strcmp(store->nodes[at]->id, id) == 0 ? store->nodes[at]
									    : NULL;
}

struct store_node *store_node_next(const struct store *store, const struct store_node *after)
{
	const struct list *next = after != NULL ? after->link.next : store->node_list.next;
	return next != &store->node_list ? container_of(next, struct store_node, link) : NULL;
}

struct store_pool *store_pool(const struct store *store, const char *uuid8)
{
	size_t at = store_pool_place(store, uuid8);
	return at < store->n_pools && strcmp(store->pools[at]->uuid8, uuid8) == 0 ? store->pools[at]
										  : NULL;
}

struct store_pool *store_pool_next(const struct store *store, const struct store_pool *after)
{
	size_t at = after != NULL ? store_pool_place(store, after->uuid8) + 1 : 0;
	return at < store->n_pools ? store->pools[at] : NULL;
}

struct store_node *const *store_nodes_with(
	const struct store *store, const char *key, const char *value, size_t *ret_n)
{
	return segments_find(&store->segments, key, value, ret_n);
}

size_t store_count(const struct store *store, enum store_kind kind)
{
	return store->counts[kind];
}

bool store_pool_here(const struct store_pool *pool)
{
	return pool->node != NULL && store_node_here(pool->node) && pool->told == pool->node->join;
}

bool store_pool_in_roster(const struct store_pool *pool)
{
	if (pool->forgotten)
		return false;
	return pool->uuid[0] == '\0' || pool->count[STORE_VOLUME] > 0 ||
	       pool->count[STORE_SNAPSHOT] > 0 || (pool->node != NULL && pool->node->n_claims > 0);
}

void store_changed(struct store *store)
{
	store->roster_version++;
	store->whole_known = false;
}

bool store_uuid8_valid(const char *uuid8)
{
	return strspn(uuid8, "0123456789abcdef") == STORE_UUID8 && uuid8[STORE_UUID8] == '\0';
}
