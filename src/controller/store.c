/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The store's life, and its nodes. Nodes and pools are arrays in order, objects a table and a shelf
 * for each pool and kind, names that are being made a set. The happy path: a node joins, its pools
 * are set, its objects are set, it is synced; what carries an older join's number then is gone.
 *
 * What can fail is memory, a named limit, and two nodes with one id.
 */
#include "controller/store_private.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- its life ---- */

int store_open(struct store **ret)
{
	struct store *store = calloc(1, sizeof(*store));
	if (store == NULL)
		return -ENOMEM;
	list_init(&store->node_list);
	object_table_init(&store->table);
	tombs_init(&store->tombs);
	claims_init(&store->claims);
	segments_init(&store->segments);
	store->joins = 1; /* 0 is "not told" */
	*ret = store;
	return 0;
}

static void topology_free(struct store *store, struct store_node *node)
{
	for (size_t i = 0; i < node->n_topology; i++) {
		const struct store_segment *segment = &node->topology[i];
		segments_remove(&store->segments, segment->key, segment->value, node);
		free((char *)segment->key);
		free((char *)segment->value);
	}
	free((struct store_segment *)node->topology);
	node->topology = NULL;
	node->n_topology = 0;
}

static void node_free(struct store *store, struct store_node *node)
{
	claims_drop_all(&store->claims, node);
	while (!list_empty(&node->pools))
		store_pool_free(store, container_of(node->pools.next, struct store_pool, link));
	topology_free(store, node);
	class_answers_free(&node->answers);
	free((char *)node->id);
	free((char *)node->instance);
	free((char *)node->address);
	free((char *)node->version);
	free(node);
}

void store_close(struct store *store)
{
	if (store == NULL)
		return;
	for (size_t i = 0; i < store->n_nodes; i++)
		node_free(store, store->nodes[i]);
	while (store->n_pools > 0) /* forgotten ones */
		store_pool_free(store, store->pools[store->n_pools - 1]);
	object_table_free(&store->table);
	segments_free(&store->segments);
	classes_free(&store->classes);
	free(store->nodes);
	free(store->pools);
	free(store);
}

void store_configure(struct store *store, const struct store_config *config)
{
	store->config = *config;
}

/* ---- how nodes come and go ---- */

static void node_to(struct store *store, struct store_node *node, enum store_node_state to)
{
	static const unsigned allowed[STORE_NODE_STATES] = {
		[STORE_NODE_ROSTER] = 1 << STORE_NODE_JOINING,
		[STORE_NODE_JOINING] =
			1 << STORE_NODE_JOINING | 1 << STORE_NODE_PRESENT | 1 << STORE_NODE_ABSENT,
		[STORE_NODE_PRESENT] = 1 << STORE_NODE_JOINING | 1 << STORE_NODE_ABSENT,
		[STORE_NODE_ABSENT] = 1 << STORE_NODE_JOINING,
	};
	assert((allowed[node->state] & 1U << to) != 0);
	store->n_roster_nodes -= node->state == STORE_NODE_ROSTER;
	node->state = to;
	store->whole_known = false;
}

/* Nothing is known of it that anybody would miss. */
static bool node_is_empty(const struct store_node *node)
{
	if (store_node_here(node))
		return false;
	list_for_each (l, &node->pools)
		if (store_pool_in_roster(container_of(l, struct store_pool, link)))
			return false;
	return true;
}

static void node_drop(struct store *store, struct store_node *node)
{
	size_t at = store_node_place(store, node->id);
	assert(store->nodes[at] == node);
	if (store->config.on_drop != NULL)
		store->config.on_drop(store->config.arg, node);
	store->n_nodes--;
	store->n_roster_nodes -= node->state == STORE_NODE_ROSTER;
	memmove(store->nodes + at, store->nodes + at + 1,
		(store->n_nodes - at) * sizeof(struct store_node *));
	list_remove(&node->link);
	node_free(store, node);
}

/* False: all that are known have something, or are here. */
static bool make_room(struct store *store)
{
	struct store_node *oldest = NULL;
	if (store->n_nodes - store->n_roster_nodes < STORE_NODES_MAX)
		return true;
	for (size_t i = 0; i < store->n_nodes; i++)
		if (store->nodes[i]->state != STORE_NODE_ROSTER && node_is_empty(store->nodes[i]) &&
			(oldest == NULL || store->nodes[i]->seen_unix < oldest->seen_unix))
			oldest = store->nodes[i];
	if (oldest != NULL)
		node_drop(store, oldest);
	return oldest != NULL;
}

static struct store_node *node_new(struct store *store, const char *id, struct err *err)
{
	if (!make_room(store)) {
		err_set(err, ERR_NO_ROOM,
			"node %s: the controller knows %d nodes, and takes no more", id,
			STORE_NODES_MAX);
		return NULL;
	}
	struct store_node *node = calloc(1, sizeof(*node));
	char *copy = strdup(id);
	if (node == NULL || copy == NULL ||
		array_grow(&store->nodes, &store->nodes_cap, store->n_nodes,
			sizeof(struct store_node *)) < 0) {
		free(node);
		free(copy);
		err_set(err, ERR_NO_ROOM, "node %s: out of memory", id);
		return NULL;
	}
	node->id = copy;
	list_init(&node->pools);
	list_init(&node->claims);
	size_t at = store_node_place(store, id);
	memmove(store->nodes + at + 1, store->nodes + at,
		(store->n_nodes - at) * sizeof(struct store_node *));
	store->nodes[at] = node;
	store->n_nodes++;
	store->n_roster_nodes++;
	/* Before the next one, or at the end. */
	list_push(at + 1 < store->n_nodes ? &store->nodes[at + 1]->link : &store->node_list,
		&node->link);
	return node;
}

/* What a Hello says, copied before anything of the node is changed. */
struct hello {
	char *instance, *address, *version;
	struct store_segment *topology;
	size_t n_topology;
};

static void hello_free(struct hello *hello)
{
	for (size_t i = 0; i < hello->n_topology; i++) {
		free((char *)hello->topology[i].key);
		free((char *)hello->topology[i].value);
	}
	free(hello->topology);
	free(hello->instance);
	free(hello->address);
	free(hello->version);
}

static bool hello_copy(struct hello *hello, const char *instance, const char *address,
	const char *version, const struct store_segment *topology, size_t n_topology)
{
	*hello = (struct hello){.instance = strdup(instance),
		.address = strdup(address),
		.version = strdup(version),
		.topology = calloc(n_topology + 1, sizeof(*topology))};
	bool ok = hello->instance != NULL && hello->address != NULL && hello->version != NULL &&
		  hello->topology != NULL;
	for (; ok && hello->n_topology < n_topology; hello->n_topology++) {
		struct store_segment *to = &hello->topology[hello->n_topology];
		const struct store_segment *from = &topology[hello->n_topology];
		*to = (struct store_segment){strdup(from->key), strdup(from->value)};
		ok = to->key != NULL && to->value != NULL;
	}
	return ok;
}

static bool hello_index(struct store *store, struct hello *hello, struct store_node *node)
{
	for (size_t i = 0; i < hello->n_topology; i++) {
		const struct store_segment *segment = &hello->topology[i];
		if (segments_add(&store->segments, segment->key, segment->value, node) == 0)
			continue;
		while (i-- > 0)
			segments_remove(&store->segments, hello->topology[i].key,
				hello->topology[i].value, node);
		return false;
	}
	return true;
}

/* The node is what the Hello says, from now on. */
static void hello_take(struct store *store, struct hello *hello, struct store_node *node)
{
	bool restarted = node->instance == NULL || strcmp(node->instance, hello->instance) != 0;
	topology_free(store, node);
	free((char *)node->instance);
	free((char *)node->address);
	free((char *)node->version);
	node->instance = hello->instance;
	node->address = hello->address;
	node->version = hello->version;
	node->topology = hello->topology;
	node->n_topology = hello->n_topology;
	node->join = ++store->joins;
	if (restarted)
		node->instance_join = node->join;
	class_answers_free(&node->answers);
	node_to(store, node, STORE_NODE_JOINING);
}

int store_join(struct store *store, const char *id, const char *instance, const char *address,
	const char *version, const struct store_segment *topology, size_t n_topology,
	struct store_node **ret, struct err *err)
{
	struct store_node *node = store_node(store, id);
	struct hello hello;
	if (node != NULL && store_node_here(node) && strcmp(node->instance, instance) != 0)
		return err_set(err, ERR_EXISTS,
			"node %s is here already, at %s, as another process: each node needs an id of "
			"its own (--node-id)",
			id, node->address);
	if ((node == NULL || node->state == STORE_NODE_ROSTER) && !make_room(store))
		return err_set(err, ERR_NO_ROOM,
			"node %s: the controller knows %d nodes, and takes no more", id,
			STORE_NODES_MAX);
	bool ok = hello_copy(&hello, instance, address, version, topology, n_topology);
	bool is_new = node == NULL;
	if (ok && is_new)
		node = node_new(store, id, err);
	if (!ok || node == NULL || !hello_index(store, &hello, node)) {
		hello_free(&hello);
		if (is_new && node != NULL)
			node_drop(store, node);
		return err_set(err, ERR_NO_ROOM, "node %s: out of memory", id);
	}
	hello_take(store, &hello, node);
	*ret = node;
	return 0;
}

void store_synced(struct store *store, struct store_node *node)
{
	list_for_each_safe (l, &node->pools) {
		struct store_pool *pool = container_of(l, struct store_pool, link);
		if (pool->told == node->join)
			store_pool_synced(store, pool);
		else if (pool->uuid[0] != '\0')
			store_pool_gone(store, pool);
	}
	unsigned n_claims = node->n_claims;
	claims_drop_old(&store->claims, node, &store->config);
	store_claims_changed(store, node, n_claims);
	node->told_all = true;
	node->partial = store_node_partial(node);
	store->whole_known = false;
	if (node->state != STORE_NODE_PRESENT)
		node_to(store, node, STORE_NODE_PRESENT);
}

void store_leave(struct store *store, struct store_node *node)
{
	node_to(store, node, STORE_NODE_ABSENT);
	class_answers_free(&node->answers);
}

/* ---- who is missing ---- */

static bool pool_went_empty(const struct store *store, const char *uuid8)
{
	for (size_t i = 0; i < store->n_gone && i < STORE_GONE_POOLS_MAX; i++)
		if (strcmp(store->gone[i], uuid8) == 0)
			return true;
	return false;
}

int store_roster(struct store *store, const char *id, const char *const *uuid8s, size_t n)
{
	struct store_node *node = store_node(store, id);
	struct err err = {0};
	store->whole_known = false;
	for (size_t i = 0; node != NULL && i < n; i++) {
		const struct store_pool *pool = store_pool(store, uuid8s[i]);
		node->vouched |= pool == NULL || !pool->forgotten;
	}
	bool joined = node != NULL && node->state != STORE_NODE_ROSTER;
	for (size_t i = 0; i < n; i++) {
		if (store_pool(store, uuid8s[i]) != NULL ||
			(joined && pool_went_empty(store, uuid8s[i])))
			continue;
		if (store->n_roster_pools >= STORE_ROSTER_POOLS_MAX ||
			(node == NULL && store->n_roster_nodes >= STORE_ROSTER_NODES_MAX) ||
			(node != NULL && node->n_pools >= STORE_NODE_POOLS_MAX))
			return -ENOSPC;
		if (node == NULL && (node = node_new(store, id, &err)) == NULL)
			return -ENOMEM;
		node->vouched = true;
		struct store_pool *pool = store_pool_new(store, uuid8s[i]);
		if (pool == NULL)
			return -ENOMEM;
		store_pool_move(store, pool, node);
		store->n_roster_pools++;
	}
	return 0;
}

uint64_t store_roster_version(const struct store *store)
{
	return store->roster_version;
}

void store_settle(struct store *store)
{
	store->settled = true;
	store->whole_known = false;
}

/* A pool of the node that nobody has told yet; NULL: none. */
static const struct store_pool *missing_pool(const struct store_node *node)
{
	list_for_each (l, &node->pools) {
		const struct store_pool *pool = container_of(l, struct store_pool, link);
		if (!pool->forgotten && pool->uuid[0] == '\0')
			return pool;
	}
	return NULL;
}

/* A node that never told all that it has counts if others say that it has something, and so does a
 * pool that others say a node has and that no node has told. A node that is new to everybody holds
 * up nobody, however often it comes and is sent away. */
static void whole_look(const struct store *store, struct err *err)
{
	const struct store_node *roster = NULL, *telling = NULL, *without = NULL, *partial = NULL;
	size_t n_roster = 0, n_seen = 0;
	for (size_t i = 0; i < store->n_nodes; i++) {
		const struct store_node *node = store->nodes[i];
		n_seen += node->told_all;
		if (node->state == STORE_NODE_ROSTER && missing_pool(node) != NULL) {
			roster = roster != NULL ? roster : node;
			n_roster++;
		} else if (node->state != STORE_NODE_ROSTER && !node->told_all && node->vouched) {
			telling = telling != NULL ? telling : node;
		} else if (missing_pool(node) != NULL) {
			without = without != NULL ? without : node;
		} else if (node->partial) {
			partial = partial != NULL ? partial : node;
		}
	}
	if (roster != NULL)
		err_set(err, ERR_UNAVAILABLE,
			"node %s with pool %s has not joined since this controller started%s; a pool "
			"that is gone for good is named by --forget-pool",
			roster->id, missing_pool(roster)->uuid8,
			n_roster > 1 ? ", nor have others" : "");
	else if (telling != NULL)
		err_set(err, ERR_UNAVAILABLE, "node %s has not told all that it has; try again",
			telling->id);
	else if (without != NULL)
		err_set(err, ERR_UNAVAILABLE,
			"node %s has joined without its pool %s, which others know of; a pool that "
			"is gone for good is named by --forget-pool",
			without->id, missing_pool(without)->uuid8);
	else if (partial != NULL)
		err_set(err, ERR_UNAVAILABLE,
			"node %s has more volumes and snapshots than the controller takes (%d of a "
			"node, %d of all); delete some, and restart it",
			partial->id, STORE_NODE_OBJECTS_MAX, STORE_OBJECTS_MAX);
	else if (n_seen == 0)
		err_set(err, ERR_UNAVAILABLE,
			"no node has joined this controller yet; start nodes with --controller");
	else if (!store->settled)
		err_set(err, ERR_UNAVAILABLE,
			"this controller has just started, and nodes may still join; try again");
}

int store_whole(struct store *store, struct err *err)
{
	if (!store->whole_known) {
		err_clear(&store->whole_err);
		whole_look(store, &store->whole_err);
		store->whole_known = true;
	}
	if (store->whole_err.code == ERR_OK)
		return 0;
	return err_set(err, store->whole_err.code, "%s", store->whole_err.message);
}

/* ---- GetCapacity ---- */

int store_class(
	struct store *store, const uint8_t *request, size_t len, uint32_t *ret_class, bool *ret_new)
{
	return classes_get(&store->classes, request, len, ret_class, ret_new);
}

bool store_class_at(const struct store *store, unsigned i, uint32_t *ret_class,
	const uint8_t **ret_request, size_t *ret_len)
{
	const struct class *class = &store->classes.places[i];
	assert(i < CLASSES_MAX);
	*ret_class = class->number;
	*ret_request = class->request;
	*ret_len = class->len;
	return class->number != 0;
}

uint32_t store_class_rounds(const struct store *store)
{
	return store->classes.rounds;
}

int store_capacity_set(struct store *store, struct store_node *node, uint32_t class,
	const uint8_t *response, size_t len)
{
	if (len > CLASS_ANSWER_MAX)
		return -EMSGSIZE;
	if (classes_find(&store->classes, class) == NULL)
		return 0;
	return class_answers_set(&node->answers, class, response, len);
}

const uint8_t *store_capacity(
	const struct store *store, const struct store_node *node, uint32_t class, size_t *ret_len)
{
	(void)store;
	return class_answers_get(&node->answers, class, ret_len);
}

/* ---- for metrics ---- */

size_t store_duplicates(const struct store *store)
{
	return store->table.duplicates;
}

void store_stats(const struct store *store, struct store_stats *ret)
{
	*ret = (struct store_stats){
		.duplicates = store->table.duplicates,
		.claims = store->claims.names.count,
		.tombs = store->tombs.names.count,
		.object_bytes = store->table.bytes,
	};
	for (size_t i = 0; i < store->n_nodes; i++)
		ret->nodes[store->nodes[i]->state]++;
	for (size_t i = 0; i < store->n_pools; i++) {
		const struct store_pool *pool = store->pools[i];
		ret->pools++;
		ret->pools_forgotten += pool->forgotten;
		ret->pools_away += !pool->forgotten && !store_pool_here(pool);
	}
	for (enum store_kind kind = 0; kind < STORE_KINDS; kind++)
		ret->objects[kind] = store->counts[kind];
	for (unsigned i = 0; i < CLASSES_MAX; i++)
		ret->classes += store->classes.places[i].number != 0;
}
