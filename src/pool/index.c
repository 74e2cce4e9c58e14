/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The index: for each pool and kind a vector of pointers sorted by key, and what is asked of it:
 * by name, by id, in order.
 *
 * With every change it keeps up the sums over a pool's objects: what its volumes were promised,
 * what is allocated, and what of the promise is there already. It also knows which objects share
 * extents. A family is an image and all that was made from it by reflink, however far removed, and
 * what is held of them for other nodes (hold.h); the last one of a family shares nothing any more.
 */
#include "pool/index.h"

#include "base/buf.h"
#include "pool/departure.h"
#include "pool/hold.h"
#include "pool/private.h"
#include "pool/raw.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- the sums ---- */

static uint64_t promised_size(struct pool_object *o)
{
	if (o->kind != RECORD_VOLUME)
		return 0;
	return o->rec != NULL ? record_image_bytes(o->rec) : pool_entry(o)->image_bytes;
}

/* What the object has already got of its promise. Never more than the promise: an image may take a
 * little more than its size. */
static uint64_t own_bytes(struct pool_object *o)
{
	uint64_t promised = promised_size(o);
	return o->shared ? 0 : o->allocated_bytes < promised ? o->allocated_bytes : promised;
}

/* Of what a thick object was promised, what is not there yet. */
static uint64_t owed_bytes(struct pool_object *o)
{
	bool owed = o->rec != NULL && o->rec->thick && o->rec->unformatted;
	return owed ? promised_size(o) - own_bytes(o) : 0;
}

/* What is promised of the thin pool. */
static bool is_thin(const struct pool_object *o)
{
	return o->pool->raw != NULL && o->kind == RECORD_VOLUME && o->rec != NULL &&
	       pool_raw_is_thin(o->rec);
}

void pool_sums_add(struct pool_object *o)
{
	o->pool->sum_thin_size += is_thin(o) ? promised_size(o) : 0;
	o->pool->sum_thin_own += is_thin(o) ? own_bytes(o) : 0;
	o->pool->sum_owed += owed_bytes(o);
	o->pool->sum_size += promised_size(o);
	o->pool->sum_allocated += o->allocated_bytes;
	o->pool->sum_own += own_bytes(o);
}

void pool_sums_sub(struct pool_object *o)
{
	o->pool->sum_thin_size -= is_thin(o) ? promised_size(o) : 0;
	o->pool->sum_thin_own -= is_thin(o) ? own_bytes(o) : 0;
	o->pool->sum_owed -= owed_bytes(o);
	o->pool->sum_size -= promised_size(o);
	o->pool->sum_allocated -= o->allocated_bytes;
	o->pool->sum_own -= own_bytes(o);
}

/* ---- the vector ---- */

/* Where key is (true) or belongs (false). */
static bool index_search(const struct pool_index *index, const char *key, size_t *ret_at)
{
	size_t low = 0, high = index->count;
	while (low < high) {
		size_t mid = low + (high - low) / 2;
		int order = strcmp(index->at[mid]->key, key);
		if (order == 0) {
			*ret_at = mid;
			return true;
		}
		if (order < 0)
			low = mid + 1;
		else
			high = mid;
	}
	*ret_at = low;
	return false;
}

struct pool_object *pool_index_find(const struct pool *pool, enum record_kind kind, const char *key)
{
	size_t at;
	return index_search(&pool->index[kind], key, &at) ? pool->index[kind].at[at] : NULL;
}

struct pool_object *pool_index_insert(struct pool *pool, struct pool_found *found)
{
	struct pool_index *index = &pool->index[found->kind];
	if (array_grow(&index->at, &index->cap, index->count, sizeof(struct pool_object *)) < 0)
		return NULL;
	struct pool_entry *e = calloc(1, sizeof(*e));
	if (e == NULL)
		return NULL;
	list_init(&e->link);
	e->image_bytes = found->image_bytes;
	e->thin_id = found->thin_id;
	e->left = found->left;
	e->remeasure = true;
	e->object = (struct pool_object){
		.pool = pool,
		.rec = found->rec,
		.attachments = found->attachments,
		.why = found->why,
		.kind = found->kind,
		.allocated_bytes = found->allocated_bytes,
		.image_dev = found->image_dev,
		.image_ino = found->image_ino,
		.image = found->truncated ? POOL_IMAGE_TRUNCATED : POOL_IMAGE_WHOLE,
	};
	strcpy(e->object.key, found->key);
	found->rec = NULL;
	found->attachments = NULL;

	size_t at;
	index_search(index, e->object.key, &at);
	memmove(&index->at[at + 1], &index->at[at], (index->count - at) * sizeof(*index->at));
	index->at[at] = &e->object;
	index->count++;
	pool->images_wrong += found->truncated;
	pool_sums_add(&e->object);
	return &e->object;
}

void pool_index_remove(struct pool_object *object)
{
	struct pool_index *index = &object->pool->index[object->kind];
	size_t at;
	if (!index_search(index, object->key, &at) || index->at[at] != object)
		return;
	const struct pools *pools = object->pool->pools;
	if (pools->on_removed != NULL)
		pools->on_removed(pools->on_removed_arg, object);
	pool_sums_sub(object);
	object->pool->images_wrong -= object->image != POOL_IMAGE_WHOLE;
	index->count--;
	memmove(&index->at[at], &index->at[at + 1], (index->count - at) * sizeof(*index->at));
}

void pool_object_free(struct pool_object *object)
{
	if (object == NULL)
		return;
	list_remove(&pool_entry(object)->link);
	record_free(object->rec);
	attachments_free(object->attachments);
	free(pool_entry(object));
}

/* ---- families ---- */

const char *pool_family(const struct record *rec)
{
	return rec->family[0] != '\0' ? rec->family : rec->shares_extents ? rec->source_id : "";
}

const char *pool_hold_family(const struct pool_hold *hold)
{
	if (!hold->shares)
		return "";
	return hold->rec->shares_extents ? pool_family(hold->rec) : hold->source_id;
}

static bool is_of_id(const struct pool_object *o, const struct record_id *id)
{
	if (o->rec == NULL)
		return strcmp(id->pool, o->pool->uuid8) == 0 && strcmp(id->key, o->key) == 0;
	return strcmp(id->pool, record_id_pool(o->rec, o->pool->uuid8)) == 0 &&
	       strcmp(id->key, o->key) == 0 && strcmp(id->random, o->rec->random) == 0;
}

/* The family's founder, if it is still there. One that has left and is back counts as a sharer of
 * what it was founder of before: less is promised than could be. */
static struct pool_object *family_founder(const struct pool *pool, const char *family)
{
	struct record_id id;
	if (record_id_parse(family, &id) < 0)
		return NULL;
	for (unsigned kind = 0; kind < 2; kind++) {
		struct pool_object *o = pool_index_find(pool, kind, id.key);
		if (o != NULL && o->rec != NULL && is_of_id(o, &id))
			return o;
	}
	return NULL;
}

static void set_shared(struct pool_object *object, bool shared)
{
	if (object->shared == shared)
		return;
	pool_sums_sub(object);
	object->shared = shared;
	pool_sums_add(object);
}

static bool is_of_family(const struct pool_object *object, const char *family)
{
	return object->rec != NULL && object->rec->shares_extents &&
	       strcmp(pool_family(object->rec), family) == 0;
}

static const char *family_of_held(const struct list *link)
{
	return pool_hold_family(container_of(link, struct pool_hold, link));
}

void pool_family_update(struct pool *pool, const char *family)
{
	if (family[0] == '\0')
		return;
	struct pool_object *founder = family_founder(pool, family);
	unsigned members = founder != NULL;
	for (unsigned kind = 0; kind < 2; kind++)
		for (size_t i = 0; i < pool->index[kind].count; i++)
			members += is_of_family(pool->index[kind].at[i], family);
	list_for_each (l, &pool->holds)
		members += strcmp(family_of_held(l), family) == 0;
	if (founder != NULL)
		set_shared(founder, members > 1);
	for (unsigned kind = 0; kind < 2; kind++)
		for (size_t i = 0; i < pool->index[kind].count; i++)
			if (is_of_family(pool->index[kind].at[i], family))
				set_shared(pool->index[kind].at[i], members > 1);
}

static void update_held_families(struct pool *pool)
{
	list_for_each (l, &pool->holds)
		pool_family_update(pool, family_of_held(l));
}

static int compare_family(const void *a, const void *b)
{
	const struct pool_object *x = *(struct pool_object *const *)a;
	const struct pool_object *y = *(struct pool_object *const *)b;
	return strcmp(pool_family(x->rec), pool_family(y->rec));
}

/* After a load: sorted by family, so that thousands of clones cost no square. Out of memory, all
 * count as shared: less is promised than could be. */
void pool_family_update_all(struct pool *pool)
{
	size_t total = pool->index[0].count + pool->index[1].count, count = 0;
	struct pool_object **all = calloc(total + 1, sizeof(struct pool_object *));
	for (unsigned kind = 0; kind < 2; kind++)
		for (size_t i = 0; i < pool->index[kind].count; i++) {
			struct pool_object *o = pool->index[kind].at[i];
			set_shared(o, all == NULL);
			if (all != NULL && o->rec != NULL && o->rec->shares_extents)
				all[count++] = o;
		}
	if (all == NULL)
		return;
	qsort(all, count, sizeof(struct pool_object *), compare_family);
	for (size_t from = 0, to; from < count; from = to) {
		const char *family = pool_family(all[from]->rec);
		for (to = from + 1; to < count; to++)
			if (strcmp(pool_family(all[to]->rec), family) != 0)
				break;
		struct pool_object *founder = family_founder(pool, family);
		bool shared = to - from + (founder != NULL) > 1;
		if (founder != NULL)
			set_shared(founder, shared);
		for (size_t i = from; i < to; i++)
			set_shared(all[i], shared);
	}
	free(all);
	update_held_families(pool);
}

/* ---- asked from above ---- */

struct pool_object *pools_find_name(
	const struct pools *pools, enum record_kind kind, const char *name)
{
	char key[RECORD_KEY_MAX];
	record_key(name, key);
	for (unsigned i = 0; i < pools->count; i++) {
		struct pool_object *o = pool_index_find(pools->at[i], kind, key);
		if (o != NULL && !pool_entry(o)->left &&
			(o->rec == NULL || strcmp(o->rec->name, name) == 0))
			return o;
	}
	return NULL;
}

/* Of the pools that are loaded, or of all as they were when they last were. Of two the one that has
 * moved more often is it, and a quarantined one only if there is no other. */
static struct pool_object *find_of_id(
	const struct pools *pools, enum record_kind kind, const struct record_id *id, bool loaded)
{
	struct pool_object *best = NULL;
	for (unsigned i = 0; i < pools->count; i++) {
		struct pool_object *o = pool_index_find(pools->at[i], kind, id->key);
		if (o == NULL || !is_of_id(o, id) || pool_entry(o)->left ||
			(loaded && !pool_loaded(pools->at[i])))
			continue;
		if (best == NULL || best->rec == NULL ||
			(o->rec != NULL && o->rec->moves > best->rec->moves))
			best = o;
	}
	return best;
}

int pools_find_pool_of_id(const struct pools *pools, const char *noun, const char *id,
	struct record_id *ret_id, struct pool **ret, struct err *err)
{
	if (strnlen(id, RECORD_ID_MAX + 1) > RECORD_ID_MAX)
		return err_set(
			err, ERR_INVALID, "the %s id is longer than %d bytes", noun, RECORD_ID_MAX);
	if (record_id_parse(id, ret_id) < 0)
		return err_set(err, ERR_NOT_FOUND, "%s %s does not exist", noun, id);
	struct pool *pool = pools_by_uuid8(pools, ret_id->pool);
	for (unsigned i = 0; pool == NULL && i < pools->count; i++)
		if (pools->at[i]->uuid8[0] == '\0')
			return err_set(err, ERR_UNAVAILABLE,
				"%s %s may be in a pool that is not here: %s", noun, id,
				pool_why(pools->at[i]));
	if (pool == NULL)
		return err_set(err, ERR_UNAVAILABLE,
			"%s %s: no pool on this node has the uuid %s...; ask the node that has it, or "
			"give its pool to this driver with --pool",
			noun, id, ret_id->pool);
	if (!pool_loaded(pool))
		return err_set(err, ERR_UNAVAILABLE, "%s %s: %s", noun, id, pool_why(pool));
	*ret = pool;
	return 0;
}

/* An inline volume has an id that its orchestrator made: its name. */
static struct pool_object *find_inline(
	const struct pools *pools, enum record_kind kind, const char *id)
{
	struct record_id parsed;
	if (kind != RECORD_VOLUME || record_id_parse(id, &parsed) == 0 ||
		strnlen(id, RECORD_NAME_MAX + 1) > RECORD_NAME_MAX)
		return NULL;
	struct pool_object *o = pools_find_name(pools, kind, id);
	return o != NULL && o->rec != NULL && record_is_inline(o->rec) ? o : NULL;
}

int pools_find_id(const struct pools *pools, enum record_kind kind, const char *id,
	struct pool_object **ret, struct err *err)
{
	static const char *const nouns[] = {"volume", "snapshot"};
	struct record_id parsed;
	struct pool *pool;
	struct pool_object *o = find_inline(pools, kind, id);
	if (o == NULL && record_id_parse(id, &parsed) == 0)
		o = find_of_id(pools, kind, &parsed, true);
	if (o != NULL && o->rec != NULL) {
		*ret = o;
		return 0;
	}
	int r = kind == RECORD_VOLUME ? pools_departure_check(pools, id, err) : 0;
	if (r == 0 && o != NULL)
		return err_set(err, ERR_DATA_LOSS,
			"%s %s in pool %s is quarantined: %s; see ringvol check", nouns[kind],
			o->key, o->pool->name, o->why);
	if (r == 0)
		r = pools_find_pool_of_id(pools, nouns[kind], id, &parsed, &pool, err);
	return r < 0 ? r : err_set(err, ERR_NOT_FOUND, "%s %s does not exist", nouns[kind], id);
}

struct pool_departure *pools_departed(const struct pools *pools, const char *id)
{
	struct pool_object *volume;
	struct err ignored = {0};
	/* It may have come back to another pool than it had left. */
	return pools_find_id(pools, RECORD_VOLUME, id, &volume, &ignored) == 0
		       ? NULL
		       : pools_departure(pools, id);
}

int pool_check_not_inline(const struct pool_object *object, struct err *err)
{
	if (object->rec == NULL || !record_is_inline(object->rec))
		return 0;
	return err_set(err, ERR_PRECONDITION,
		"volume %s is an inline volume of %s: it is made, published and deleted with its pod, and there are no other calls for it",
		object->rec->name,
		object->rec->claim[0] != '\0' ? object->rec->claim : object->rec->owner);
}

/* What is quarantined does not say what it is: it may be the volume of that name, come from there.
 */
static bool may_have(const struct pool *pool, const struct record_id *id)
{
	const struct pool_object *o = pool_index_find(pool, RECORD_VOLUME, id->key);
	return o != NULL && !pool_entry((struct pool_object *)o)->left &&
	       (o->rec == NULL || is_of_id(o, id));
}

bool pools_id_elsewhere(const struct pools *pools, const char *id)
{
	struct record_id parsed;
	if (record_id_parse(id, &parsed) < 0)
		return false;
	const struct pool_departure *left = pools_departure(pools, id);
	const char *at = left != NULL ? left->to : parsed.pool;
	if (pools_by_uuid8(pools, at) != NULL)
		return false;
	for (unsigned i = 0; i < pools->count; i++)
		if (pools->at[i]->uuid8[0] == '\0' || may_have(pools->at[i], &parsed))
			return false;
	return true;
}

struct lane *pools_lane_of_id(const struct pools *pools, const char *id)
{
	struct record_id parsed;
	if (record_id_parse(id, &parsed) < 0)
		return pools->strays;
	const struct pool_object *o = find_of_id(pools, RECORD_VOLUME, &parsed, false);
	const struct pool *pool = o != NULL ? o->pool : pools_by_uuid8(pools, parsed.pool);
	return pool == NULL ? pools->strays : pool->lane;
}

/* The next pool by uuid; the first one for "". */
static struct pool *pool_after(const struct pools *pools, const char *uuid8)
{
	struct pool *next = NULL;
	for (unsigned i = 0; i < pools->count; i++) {
		struct pool *p = pools->at[i];
		if (strcmp(p->uuid8, uuid8) > 0 &&
			(next == NULL || strcmp(p->uuid8, next->uuid8) < 0))
			next = p;
	}
	return next;
}

/* A key is there once in a pool, so a place whose object was deleted is still a place. */
struct pool_object *pools_next(
	const struct pools *pools, enum record_kind kind, struct pool_walk *walk)
{
	struct pool *pool = walk->pool[0] != '\0' ? pools_by_uuid8(pools, walk->pool) : NULL;
	size_t at = 0;
	if (pool == NULL)
		pool = pool_after(pools, walk->pool);
	else if (index_search(&pool->index[kind], walk->key, &at))
		at++;
	for (; pool != NULL; pool = pool_after(pools, pool->uuid8), at = 0)
		for (; at < pool->index[kind].count; at++) {
			struct pool_object *o = pool->index[kind].at[at];
			if (o->rec == NULL || pool_entry(o)->left)
				continue;
			memcpy(walk->pool, pool->uuid8, sizeof(walk->pool));
			memcpy(walk->key, o->key, sizeof(walk->key));
			return o;
		}
	return NULL;
}

int pool_walk_compare(const struct pool_walk *a, const struct pool_walk *b)
{
	int order = strcmp(a->pool, b->pool);
	return order != 0 ? order : strcmp(a->key, b->key);
}

struct pool_object *pool_next_object(
	const struct pool *pool, enum record_kind kind, const char *after_key)
{
	const struct pool_index *index = &pool->index[kind];
	size_t at;
	if (index_search(index, after_key, &at))
		at++;
	return at < index->count ? index->at[at] : NULL;
}

void pool_object_id(const struct pool_object *object, char ret_id[RECORD_ID_MAX])
{
	record_id_print(object->pool->uuid8, object->rec, ret_id);
}

bool pool_object_has_id(const struct pool_object *object, const char *id)
{
	struct record_id parsed;
	if (object->rec != NULL && record_is_inline(object->rec) &&
		strcmp(object->rec->name, id) == 0)
		return true;
	return record_id_parse(id, &parsed) == 0 && is_of_id(object, &parsed);
}

void pools_on_removed(struct pools *pools, pools_removed_fn *fn, void *arg)
{
	pools->on_removed = fn;
	pools->on_removed_arg = arg;
}

struct pool_object *pools_find_image(
	const struct pools *pools, uint64_t image_dev, uint64_t image_ino)
{
	for (unsigned i = 0; i < pools->count; i++) {
		const struct pool_index *index = &pools->at[i]->index[RECORD_VOLUME];
		for (size_t at = 0; at < index->count; at++)
			if (index->at[at]->image_ino == image_ino &&
				index->at[at]->image_dev == image_dev)
				return index->at[at];
	}
	return NULL;
}

unsigned pool_count(const struct pool *pool, enum record_kind kind)
{
	return (unsigned)pool->index[kind].count;
}
