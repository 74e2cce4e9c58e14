/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Objects of the store, and names. The happy path: what a node says is looked over, the object with
 * the same file name in the pool is found in the table, and it is told again, rewritten or
 * replaced; the claim to its name ends. A list is a walk over the shelves of the pools in order.
 *
 * What fails is memory, a named limit, and an id that is none or of another node's pool. Then all
 * is as it was before.
 */
#include "controller/store_private.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* ---- names that are being made ---- */

const struct store_object *store_object_by_key(
	const struct store *store, enum store_kind kind, const char *key)
{
	const struct store_object *object, *best = NULL;
	for (size_t at = 0; (object = object_table_same(&store->table, kind, key, &at)) != NULL;)
		if (best == NULL || (!store_pool_here(best->pool) && store_pool_here(object->pool)))
			best = object;
	return best;
}

const struct store_object *store_object_same(
	const struct store *store, enum store_kind kind, const char *key, size_t *at)
{
	return object_table_same(&store->table, kind, key, at);
}

struct store_node *store_name_maker(
	const struct store *store, enum store_kind kind, const char *key)
{
	return claims_maker(&store->claims, kind, key);
}

struct store_node *store_name(const struct store *store, enum store_kind kind, const char *key)
{
	const struct store_object *object = store_object_by_key(store, kind, key);
	struct store_node *maker = claims_maker(&store->claims, kind, key);
	if (object != NULL && store_pool_here(object->pool))
		return object->pool->node;
	if (maker != NULL && (object == NULL || store_node_here(maker)))
		return maker;
	return object != NULL ? object->pool->node : NULL;
}

int store_name_claim(struct store *store, enum store_kind kind, const char *key,
	struct store_node *node, struct store_node **ret_node, struct err *err)
{
	const struct store_object *object = store_object_by_key(store, kind, key);
	struct store_node *maker = claims_maker(&store->claims, kind, key);
	struct store_node *other = store_name(store, kind, key);
	if (object != NULL && object->pool->node != node)
		other = object->pool->node;
	if (maker != NULL && maker != node)
		other = maker;
	if (other != NULL && other != node) {
		*ret_node = other;
		return err_set(err, ERR_EXISTS, "node %s has this name", other->id);
	}
	unsigned n_claims = node->n_claims;
	/* A claim that is told again lasts, also where the pool that has the name has come to the
	 * node meanwhile. */
	int r = object != NULL && maker == NULL ? 0
						: claims_make(&store->claims, kind, key, node, err);
	store_claims_changed(store, node, n_claims);
	return r;
}

void store_name_release(struct store *store, enum store_kind kind, const char *key)
{
	const struct store_node *maker = claims_maker(&store->claims, kind, key);
	if (maker == NULL)
		return;
	claims_release(&store->claims, kind, key);
	store_claims_changed(store, maker, maker->n_claims + 1);
}

void store_claims_changed(struct store *store, const struct store_node *node, unsigned n_claims)
{
	if ((n_claims == 0) == (node->n_claims == 0))
		return;
	/* Pools that hold something are in the roster anyway. */
	list_for_each (l, &node->pools) {
		const struct store_pool *pool = container_of(l, struct store_pool, link);
		if (pool->count[STORE_VOLUME] == 0 && pool->count[STORE_SNAPSHOT] == 0) {
			store_changed(store);
			return;
		}
	}
}

void store_name_over(struct store *store, enum store_kind kind, const char *key)
{
	claims_over(&store->claims, kind, key);
}

bool store_name_is_over(const struct store *store, enum store_kind kind, const char *key)
{
	return claims_is_over(&store->claims, kind, key);
}

/* ---- objects ---- */

/* Its volume's id begins with another pool: the volume has moved, here or away. */
static bool is_stranger(const struct store_object *object)
{
	return object->kind == STORE_SNAPSHOT && object->source_len >= STORE_UUID8 &&
	       strncmp(object_source(object), object->pool->uuid8, STORE_UUID8) != 0;
}

static int object_check(const struct store *store, const struct store_node *node,
	const struct object_text *text, struct record_id *ret_id, struct store_pool **ret_pool,
	struct err *err)
{
	struct record_id source;
	if (record_id_parse(text->id, ret_id) < 0 ||
		(text->source_id[0] != '\0' && record_id_parse(text->source_id, &source) < 0))
		return err_set(err, ERR_INVALID, "an object's id, or its source's, is none");
	if (text->entry_len > OBJECT_ENTRY_MAX || text->health_len > OBJECT_HEALTH_MAX)
		return err_set(err, ERR_INVALID,
			"%s: its entry has %zu bytes and its health %zu; at most %d and %d are taken",
			text->id, text->entry_len, text->health_len, OBJECT_ENTRY_MAX,
			OBJECT_HEALTH_MAX);
	bool told = text->pool != NULL && text->pool[0] != '\0';
	struct store_pool *pool = store_pool(store, told ? text->pool : ret_id->pool);
	if (pool == NULL || pool->node != node || pool->uuid[0] == '\0')
		return err_set(err, ERR_INVALID, "%s: is in no pool that node %s has told of",
			text->id, node->id);
	const struct store_object *same = object_table_find(&store->table, text->id);
	if (same != NULL && same->kind != text->kind)
		return err_set(
			err, ERR_INVALID, "%s: is told as a volume and as a snapshot", text->id);
	*ret_pool = pool;
	return 0;
}

void store_object_drop(struct store *store, struct store_object *object)
{
	struct store_pool *pool = object->pool;
	enum store_kind kind = object->kind;
	object_table_remove(&store->table, object);
	pool->bytes -= object_bytes(object);
	pool->strangers -= is_stranger(object);
	shelf_drop(&pool->shelves[kind], object);
	store->counts[kind]--;
	if (--pool->count[kind] == 0)
		store_changed(store);
}

static int object_add(struct store *store, struct store_pool *pool, const struct object_text *text,
	struct store_object **ret, struct err *err)
{
	struct store_object *object = object_new(pool, text);
	if (object == NULL || object_table_reserve(&store->table) < 0 ||
		shelf_add(&pool->shelves[text->kind], object) < 0) {
		free(object);
		return err_set(err, ERR_NO_ROOM, "%s: out of memory", text->id);
	}
	object_table_add(&store->table, object);
	pool->bytes += object_bytes(object);
	pool->strangers += is_stranger(object);
	store->counts[text->kind]++;
	if (pool->count[text->kind]++ == 0)
		store_changed(store);
	*ret = object;
	return 0;
}

/* The old one goes once the new one is there. */
static int object_change(struct store *store, struct store_object **object,
	const struct object_text *text, struct err *err)
{
	struct store_object *old = *object;
	size_t bytes = object_bytes(old);
	bool stranger = is_stranger(old);
	if (object_is(old, text))
		return 0;
	if (strcmp(old->id, text->id) == 0 && object_rewrite(old, text)) {
		store->table.bytes += object_bytes(old) - bytes;
		old->pool->bytes += object_bytes(old) - bytes;
		old->pool->strangers += is_stranger(old);
		old->pool->strangers -= stranger;
		return 0;
	}
	int r = object_add(store, old->pool, text, object, err);
	if (r == 0)
		store_object_drop(store, old);
	return r;
}

/* Whether one more, or one with a longer text, is within the limits. */
static int check_room(struct store *store, struct store_node *node, const struct object_text *text,
	const struct store_object *before, struct err *err)
{
	size_t n = 0, bytes = text->entry_len + text->health_len;
	list_for_each (l, &node->pools) {
		const struct store_pool *pool = container_of(l, struct store_pool, link);
		n += pool->count[STORE_VOLUME] + pool->count[STORE_SNAPSHOT];
		bytes += pool->bytes;
	}
	bool room = bytes <= STORE_NODE_BYTES_MAX;
	if (before != NULL)
		room |= object_bytes(before) >= text->entry_len + text->health_len;
	else
		room &= n < STORE_NODE_OBJECTS_MAX && store->table.len < STORE_OBJECTS_MAX;
	if (room)
		return 0;
	node->partial = true;
	node->partial_join = node->join;
	store->whole_known = false;
	return err_set(err, ERR_NO_ROOM,
		"%s: of node %s the controller knows %zu volumes and snapshots of %zu bytes, of all "
		"nodes %zu; it takes no more than %d, %d and %d",
		text->id, node->id, n, bytes, store->table.len, STORE_NODE_OBJECTS_MAX,
		STORE_NODE_BYTES_MAX, STORE_OBJECTS_MAX);
}

/* The one that has the file's name already, by this id or an older one. */
static struct store_object *object_before(const struct store *store, const struct store_pool *pool,
	enum store_kind kind, const char *key)
{
	struct store_object *object;
	for (size_t at = 0; (object = object_table_same(&store->table, kind, key, &at)) != NULL;)
		if (object->pool == pool)
			return object;
	return NULL;
}

/* What is told of the pool is the object, and not what another pool has by that id. */
static bool is_later(const struct object_text *text, const struct store_pool *pool,
	const struct store_object *other)
{
	uint64_t moves = object_moves(other);
	return text->moves != moves ? text->moves > moves
				    : strcmp(pool->uuid8, other->pool->uuid8) < 0;
}

int store_object_tell(struct store *store, struct store_node *node, const struct object_text *text,
	struct err *err)
{
	struct record_id parsed;
	struct store_pool *pool = NULL;
	int r = object_check(store, node, text, &parsed, &pool, err);
	if (r < 0 || tombs_have(&store->tombs, text->id))
		return r;
	assert(pool != NULL);
	struct store_object *elsewhere = object_table_find(&store->table, text->id);
	if (elsewhere != NULL && elsewhere->pool == pool)
		elsewhere = NULL;
	if (elsewhere != NULL && !is_later(text, pool, elsewhere))
		return 0; /* it was told before it left */
	struct store_object *object = object_before(store, pool, text->kind, parsed.key);
	r = check_room(store, node, text, object, err);
	if (r < 0 && object != NULL)
		object->told = node->join; /* as it was, but not gone */
	else if (r == 0 && object != NULL)
		r = object_change(store, &object, text, err);
	else if (r == 0)
		r = object_add(store, pool, text, &object, err);
	if (r < 0)
		return r;
	assert(object != NULL);
	object->told = node->join;
	if (elsewhere != NULL)
		store_object_drop(store, elsewhere);
	if (claims_maker(&store->claims, text->kind, parsed.key) == node)
		store_name_release(store, text->kind, parsed.key);
	return 0;
}

int store_object_set(struct store *store, struct store_node *node, enum store_kind kind,
	const char *id, const uint8_t *entry, size_t entry_len, const uint8_t *health,
	size_t health_len, const char *source_id, struct err *err)
{
	const struct store_object *known = object_table_find(&store->table, id);
	struct object_text text = {.kind = kind,
		.id = id,
		.source_id = source_id != NULL ? source_id : "",
		.entry = entry,
		.entry_len = entry_len,
		.health = health,
		.health_len = health_len};
	if (known != NULL && known->pool->node == node) {
		text.pool = known->pool->uuid8;
		text.moves = object_moves(known);
	}
	return store_object_tell(store, node, &text, err);
}

void store_object_gone(struct store *store, const struct store_node *node, const char *id)
{
	struct store_object *object = object_table_find(&store->table, id);
	const struct store_pool *buried = tombs_pool(&store->tombs, id);
	if (buried != NULL && buried->node == node)
		tombs_confirm(&store->tombs, id);
	if (object != NULL && object->pool->node == node)
		store_object_drop(store, object);
}

void store_object_remove(struct store *store, const char *id)
{
	struct record_id parsed;
	struct store_object *object = object_table_find(&store->table, id);
	struct store_pool *pool =
		record_id_parse(id, &parsed) == 0 ? store_pool(store, parsed.pool) : NULL;
	if (object != NULL)
		pool = object->pool;
	if (object != NULL)
		store_object_drop(store, object);
	if (pool != NULL)
		tombs_add(&store->tombs, pool, id, store->joins);
}

const struct store_object *store_object(const struct store *store, const char *id)
{
	return object_table_find(&store->table, id);
}

void store_place(const struct store_object *object, char ret_place[RECORD_ID_MAX])
{
	memcpy(ret_place, object->id, object->id_len + 1U);
	memcpy(ret_place, object->pool->uuid8, STORE_UUID8);
}

void store_walk_begin(
	struct store_walk *walk, struct store *store, enum store_kind kind, const char *after)
{
	*walk = (struct store_walk){
		.store = store, .kind = kind, .pool = store_pool_place(store, after)};
	if (walk->pool == store->n_pools ||
		strncmp(store->pools[walk->pool]->uuid8, after, STORE_UUID8) != 0)
		return;
	struct shelf *shelf = &store->pools[walk->pool]->shelves[kind];
	shelf_sort(shelf);
	walk->item = shelf_behind(shelf, after);
}

static bool is_walked(const struct store_walk *walk, const struct store_pool *pool)
{
	return walk->source == NULL || pool->strangers != 0 ||
	       strcmp(pool->uuid8, walk->source) == 0;
}

const struct store_object *store_walk_next(struct store_walk *walk)
{
	struct store *store = walk->store;
	for (; walk->pool < store->n_pools; walk->pool++, walk->item = 0) {
		if (!is_walked(walk, store->pools[walk->pool]))
			continue;
		struct shelf *shelf = &store->pools[walk->pool]->shelves[walk->kind];
		shelf_sort(shelf);
		if (walk->item < shelf->len)
			return shelf->items[walk->item++];
	}
	return NULL;
}
