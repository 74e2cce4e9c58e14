/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pools of the store. A pool has one node: the last that told it while nobody else that is joined
 * had it. What was told of it stays when the node leaves, or has it no longer; it moves with the
 * pool. What can fail is memory, a limit, and a pool that is at two nodes.
 */
#include "controller/store_private.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

void store_pool_free(struct store *store, struct store_pool *pool)
{
	size_t at = store_pool_place(store, pool->uuid8);
	assert(store->pools[at] == pool);
	if (pool->uuid[0] != '\0')
		memcpy(store->gone[store->n_gone++ % STORE_GONE_POOLS_MAX], pool->uuid8,
			sizeof(pool->uuid8));
	store->n_pools--;
	memmove(store->pools + at, store->pools + at + 1,
		(store->n_pools - at) * sizeof(struct store_pool *));
	if (pool->node != NULL) {
		pool->node->n_pools--;
		store->n_roster_pools -= pool->uuid[0] == '\0';
	}
	list_remove(&pool->link);
	tombs_drop_old(&store->tombs, pool, UINT32_MAX);
	for (enum store_kind kind = 0; kind < STORE_KINDS; kind++)
		shelf_free(&pool->shelves[kind]);
	free((char *)pool->name);
	free((char *)pool->why);
	free(pool);
	store_changed(store);
}

struct store_pool *store_pool_new(struct store *store, const char *uuid8)
{
	if (store->n_pools >= STORE_POOLS_MAX ||
		array_grow(&store->pools, &store->pools_cap, store->n_pools,
			sizeof(struct store_pool *)) < 0)
		return NULL;
	struct store_pool *pool = calloc(1, sizeof(*pool));
	if (pool == NULL)
		return NULL;
	memcpy(pool->uuid8, uuid8, sizeof(pool->uuid8) - 1);
	list_init(&pool->link);
	list_init(&pool->tombs);
	pool->state = STORE_POOL_MISSING;
	size_t at = store_pool_place(store, uuid8);
	memmove(store->pools + at + 1, store->pools + at,
		(store->n_pools - at) * sizeof(struct store_pool *));
	store->pools[at] = pool;
	store->n_pools++;
	store_changed(store);
	return pool;
}

void store_pool_move(struct store *store, struct store_pool *pool, struct store_node *node)
{
	if (pool->node == node)
		return;
	if (pool->node != NULL)
		pool->node->n_pools--;
	list_remove(&pool->link);
	list_push(&node->pools, &pool->link);
	node->n_pools++;
	pool->node = node;
	store_changed(store);
}

/* Replaces a text, if it is another one. */
static int text_set(const char **text, const char *value)
{
	if (*text != NULL && strcmp(*text, value) == 0)
		return 0;
	char *copy = strdup(value);
	if (copy == NULL)
		return -ENOMEM;
	free((char *)*text);
	*text = copy;
	return 0;
}

/* Its node has it, or another one says no more than that it misses it. */
static bool pool_is_kept(const struct store_pool *pool, enum store_pool_state state)
{
	bool told = pool->node != NULL && pool->uuid[0] != '\0';
	return told && (state == STORE_POOL_MISSING ||
			       (store_pool_here(pool) && pool->state != STORE_POOL_MISSING));
}

/* Whether the node may have the pool; a new one, if nobody has told of it. */
static int pool_take(struct store *store, struct store_node *node, const char *uuid,
	enum store_pool_state state, struct store_pool **ret, struct err *err)
{
	char uuid8[9] = "";
	memcpy(uuid8, uuid, 8);
	struct store_pool *pool = store_pool(store, uuid8);
	bool moves = pool == NULL || pool->node != node;
	if (pool != NULL && pool->uuid[0] != '\0' && strcmp(pool->uuid, uuid) != 0)
		return err_set(err, ERR_INVALID,
			"pool %s: another pool, %s, has an uuid that begins alike; make one of them "
			"anew",
			uuid, pool->uuid);
	if (moves && pool != NULL && pool_is_kept(pool, state))
		return err_set(err, ERR_EXISTS,
			"pool %s: node %s has it; a pool, or a copy of its disk, can be at one node only",
			uuid, pool->node->id);
	if (moves && node->n_pools >= STORE_NODE_POOLS_MAX)
		return err_set(err, ERR_NO_ROOM, "pool %s: a node has at most %d pools", uuid,
			STORE_NODE_POOLS_MAX);
	if (pool == NULL)
		pool = store_pool_new(store, uuid8);
	if (pool == NULL)
		return err_set(err, ERR_NO_ROOM,
			"pool %s: out of memory, or more than %d pools in the cluster", uuid,
			STORE_POOLS_MAX);
	*ret = pool;
	return 0;
}

int store_pool_set(struct store *store, struct store_node *node, const char *uuid, const char *name,
	enum store_pool_state state, const char *why, uint64_t available_bytes,
	struct store_pool **ret, struct err *err)
{
	struct store_pool *pool = NULL;
	int r = pool_take(store, node, uuid, state, &pool, err);
	if (r < 0)
		return r;
	assert(pool != NULL && node != NULL);
	if (text_set(&pool->name, name) < 0 || text_set(&pool->why, why) < 0) {
		if (pool->node == NULL && !pool->forgotten)
			store_pool_free(store, pool);
		return err_set(err, ERR_NO_ROOM, "pool %s: out of memory", uuid);
	}
	if (pool->uuid[0] == '\0' || pool->forgotten)
		store_changed(store);
	store->n_roster_pools -= pool->node != NULL && pool->uuid[0] == '\0';
	store_pool_move(store, pool, node);
	memcpy(pool->uuid, uuid, sizeof(pool->uuid) - 1);
	pool->forgotten = false;
	pool->state = state;
	pool->available_bytes = available_bytes;
	pool->told = node->join;
	*ret = pool;
	return 0;
}

void store_pool_gone(struct store *store, struct store_pool *pool)
{
	if (pool->count[STORE_VOLUME] == 0 && pool->count[STORE_SNAPSHOT] == 0) {
		store_pool_free(store, pool);
		return;
	}
	pool->told = 0;
	pool->state = STORE_POOL_MISSING;
	pool->available_bytes = 0;
}

int store_forget(struct store *store, const char *uuid8)
{
	if (!store_uuid8_valid(uuid8))
		return -EINVAL;
	struct store_pool *pool = store_pool(store, uuid8);
	if (pool == NULL)
		pool = store_pool_new(store, uuid8);
	if (pool == NULL)
		return -ENOMEM;
	pool->forgotten = true;
	store_changed(store);
	return 0;
}

void store_pool_synced(struct store *store, struct store_pool *pool)
{
	uint32_t join = pool->node->join;
	if (pool->told != join || pool->state != STORE_POOL_READY)
		return;
	tombs_drop_old(&store->tombs, pool, join);
	for (enum store_kind kind = 0; kind < STORE_KINDS; kind++) {
		struct shelf *shelf = &pool->shelves[kind];
		shelf_sort(shelf);
		for (uint32_t i = shelf->len; i > 0; i--)
			if (shelf->items[i - 1]->told != join)
				store_object_drop(store, shelf->items[i - 1]);
	}
}
