/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table is open addressing with linear probing, by a keyed hash of kind and key. An id has its
 * key in it, so that one table answers both questions. All of one kind and key lie together.
 *
 * A shelf is an array. In the order of ids it grows at its end; else it is sorted when somebody
 * looks. What is dropped stays on it, dead, until a fair part of it is: so a report of n objects
 * costs n log n, whatever it says. All of it fails by memory alone.
 */
#include "controller/objects.h"

#include "pool/golden.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
	HEX = 8,                 /* digits of a pool's part of an id, and of the random part */
	ID_REST = 2 * (HEX + 1), /* of an id beside its key */
	TABLE_LEAST = 64,
	SHELF_LEAST = 8,
	SHELF_DEAD_MAX = 64,
};

/* ---- an object ---- */

/* What stands behind the header. */
struct parts {
	size_t id_len, source_len;
	size_t id_at; /* OBJECT_ENTRY_MAX: the entry does not have the id */
	size_t kept;  /* of the entry, without the id */
	size_t moves; /* bytes of the count */
	size_t all;
};

static struct parts parts_of(const struct object_text *text)
{
	struct parts p = {.id_len = strlen(text->id), .source_len = strlen(text->source_id)};
	const uint8_t *found = text->entry_len != 0
				       ? memmem(text->entry, text->entry_len, text->id, p.id_len)
				       : NULL;
	p.id_at = found != NULL ? (size_t)(found - text->entry) : OBJECT_ENTRY_MAX;
	p.kept = text->entry_len - (found != NULL ? p.id_len : 0);
	p.moves = text->moves != 0 ? sizeof(text->moves) : 0;
	p.all = p.id_len + 1 + p.source_len + 1 + p.moves + p.kept + text->health_len;
	return p;
}

static size_t kept_len(const struct store_object *o)
{
	return o->entry_len - (o->id_at != OBJECT_ENTRY_MAX ? o->id_len : 0U);
}

static const uint8_t *behind_source(const struct store_object *o)
{
	return (const uint8_t *)o->id + o->id_len + 1 + o->source_len + 1;
}

static const uint8_t *kept_entry(const struct store_object *o)
{
	return behind_source(o) + (o->moved ? sizeof(uint64_t) : 0);
}

static size_t behind_header(const struct store_object *o)
{
	return (size_t)(kept_entry(o) - (const uint8_t *)o->id) + kept_len(o) + o->health_len;
}

size_t object_bytes(const struct store_object *object)
{
	return offsetof(struct store_object, id) + behind_header(object);
}

static uint8_t *put(uint8_t *at, const void *data, size_t len)
{
	if (len > 0)
		memcpy(at, data, len);
	return at + len;
}

static void object_write(
	struct store_object *o, const struct object_text *text, const struct parts *p)
{
	assert(p->id_len < RECORD_ID_MAX && p->source_len < RECORD_ID_MAX);
	assert(text->entry_len <= OBJECT_ENTRY_MAX && text->health_len <= OBJECT_HEALTH_MAX);
	o->kind = (uint8_t)text->kind;
	o->id_len = (uint8_t)p->id_len;
	o->source_len = (uint8_t)p->source_len;
	o->entry_len = (uint16_t)text->entry_len;
	o->health_len = (uint16_t)text->health_len;
	o->id_at = (uint16_t)p->id_at;
	o->moved = text->moves != 0;
	uint8_t *at = put((uint8_t *)o->id, text->id, p->id_len + 1);
	at = put(at, text->source_id, p->source_len + 1);
	at = put(at, &text->moves, p->moves);
	if (p->id_at == OBJECT_ENTRY_MAX) {
		at = put(at, text->entry, text->entry_len);
	} else {
		size_t rest = p->id_at + p->id_len;
		at = put(at, text->entry, p->id_at);
		at = put(at, text->entry + rest, text->entry_len - rest);
	}
	put(at, text->health, text->health_len);
}

struct store_object *object_new(struct store_pool *pool, const struct object_text *text)
{
	struct parts p = parts_of(text);
	struct store_object *o = malloc(sizeof(*o) + p.all);
	if (o == NULL)
		return NULL;
	memset(o, 0, sizeof(*o));
	o->pool = pool;
	object_write(o, text, &p);
	return o;
}

static bool entry_is(const struct store_object *o, const struct object_text *text)
{
	const uint8_t *kept = kept_entry(o);
	if (o->entry_len != text->entry_len)
		return false;
	if (o->id_at == OBJECT_ENTRY_MAX)
		return memcmp(kept, text->entry, o->entry_len) == 0;
	size_t rest = (size_t)o->id_at + o->id_len;
	return memcmp(kept, text->entry, o->id_at) == 0 &&
	       memcmp(text->entry + o->id_at, o->id, o->id_len) == 0 &&
	       memcmp(kept + o->id_at, text->entry + rest, o->entry_len - rest) == 0;
}

bool object_is(const struct store_object *object, const struct object_text *text)
{
	size_t health_len;
	const uint8_t *health = object_health(object, &health_len);
	return object->kind == text->kind && strcmp(object->id, text->id) == 0 &&
	       strcmp(object_source(object), text->source_id) == 0 &&
	       object_moves(object) == text->moves && health_len == text->health_len &&
	       (health_len == 0 || memcmp(health, text->health, health_len) == 0) &&
	       entry_is(object, text);
}

bool object_rewrite(struct store_object *object, const struct object_text *text)
{
	struct parts p = parts_of(text);
	size_t now = behind_header(object);
	if (p.all > now || p.all < now - now / 4)
		return false;
	object_write(object, text, &p);
	return true;
}

const char *object_source(const struct store_object *object)
{
	return object->id + object->id_len + 1;
}

uint64_t object_moves(const struct store_object *object)
{
	uint64_t moves = 0;
	if (object->moved)
		memcpy(&moves, behind_source(object), sizeof(moves));
	return moves;
}

int object_entry(const struct store_object *object, struct buf *out)
{
	if (object->entry_len == 0)
		return 0;
	uint8_t *at = buf_reserve(out, object->entry_len);
	if (at == NULL)
		return -ENOMEM;
	const uint8_t *kept = kept_entry(object);
	if (object->id_at == OBJECT_ENTRY_MAX) {
		put(at, kept, object->entry_len);
	} else {
		at = put(at, kept, object->id_at);
		at = put(at, object->id, object->id_len);
		put(at, kept + object->id_at, kept_len(object) - object->id_at);
	}
	out->len += object->entry_len;
	return 0;
}

const uint8_t *object_health(const struct store_object *object, size_t *ret_len)
{
	*ret_len = object->health_len;
	return kept_entry(object) + kept_len(object);
}

/* ---- the table ---- */

void object_table_init(struct object_table *table)
{
	*table = (struct object_table){0};
	siphash_key_new(&table->key);
}

void object_table_free(struct object_table *table)
{
	free(table->slots);
	*table = (struct object_table){0};
}

static uint32_t hash_of(
	const struct object_table *table, enum store_kind kind, const char *key, size_t len)
{
	struct siphash_key k = {table->key.k0 ^ (uint64_t)kind, table->key.k1};
	return (uint32_t)siphash(&k, key, len);
}

static const char *key_of(const struct store_object *o)
{
	return o->id + HEX + 1;
}

static size_t key_len(const struct store_object *o)
{
	return o->id_len - (size_t)ID_REST;
}

static void slot_put(struct object_table *table, struct store_object *object)
{
	size_t mask = table->cap - 1, at = object->hash & mask;
	while (table->slots[at] != NULL)
		at = (at + 1) & mask;
	table->slots[at] = object;
}

int object_table_reserve(struct object_table *table)
{
	if (table->cap != 0 && table->len + 1 <= table->cap - table->cap / 4)
		return 0;
	size_t cap = table->cap != 0 ? 2 * table->cap : TABLE_LEAST, old_cap = table->cap;
	struct store_object **slots = calloc(cap, sizeof(struct store_object *)), **old;
	if (slots == NULL)
		return -ENOMEM;
	old = table->slots;
	table->slots = slots;
	table->cap = cap;
	for (size_t i = 0; i < old_cap; i++)
		if (old[i] != NULL)
			slot_put(table, old[i]);
	free(old);
	return 0;
}

struct store_object *object_table_same(
	const struct object_table *table, enum store_kind kind, const char *key, size_t *at)
{
	size_t len = strlen(key), mask = table->cap - 1;
	uint32_t hash = hash_of(table, kind, key, len);
	if (table->cap == 0)
		return NULL;
	for (;;) {
		struct store_object *o = table->slots[(hash + *at) & mask];
		if (o == NULL)
			return NULL;
		(*at)++;
		if (o->hash == hash && o->kind == kind && key_len(o) == len &&
			memcmp(key_of(o), key, len) == 0)
			return o;
	}
}

static bool is_image(const struct store_object *object)
{
	char key[RECORD_KEY_MAX] = "";
	memcpy(key, key_of(object), key_len(object));
	return object->kind == STORE_SNAPSHOT && golden_is(key, object_source(object));
}

static bool is_elsewhere(const struct object_table *table, const struct store_object *object)
{
	char key[RECORD_KEY_MAX] = "";
	struct store_object *other;
	if (object->image)
		return false;
	memcpy(key, key_of(object), key_len(object));
	for (size_t at = 0; (other = object_table_same(table, object->kind, key, &at)) != NULL;)
		if (other != object && !other->image)
			return true;
	return false;
}

void object_table_add(struct object_table *table, struct store_object *object)
{
	assert(table->len < table->cap);
	object->hash = hash_of(table, object->kind, key_of(object), key_len(object));
	object->image = is_image(object);
	slot_put(table, object);
	table->len++;
	table->bytes += object_bytes(object);
	table->duplicates += is_elsewhere(table, object);
}

void object_table_remove(struct object_table *table, struct store_object *object)
{
	size_t mask = table->cap - 1, at = object->hash & mask;
	table->duplicates -= is_elsewhere(table, object);
	while (table->slots[at] != object) {
		assert(table->slots[at] != NULL);
		at = (at + 1) & mask;
	}
	/* Those behind it move up, where they are not in front of their own place. */
	for (size_t next = (at + 1) & mask; table->slots[next] != NULL; next = (next + 1) & mask) {
		size_t home = table->slots[next]->hash & mask;
		if (((next - home) & mask) >= ((next - at) & mask)) {
			table->slots[at] = table->slots[next];
			at = next;
		}
	}
	table->slots[at] = NULL;
	table->len--;
	table->bytes -= object_bytes(object);
}

struct store_object *object_table_find(const struct object_table *table, const char *id)
{
	struct record_id parsed;
	struct store_object *o;
	if (record_id_parse(id, &parsed) < 0)
		return NULL;
	for (enum store_kind kind = 0; kind < STORE_KINDS; kind++)
		for (size_t at = 0; (o = object_table_same(table, kind, parsed.key, &at)) != NULL;)
			if (strcmp(o->id, id) == 0)
				return o;
	return NULL;
}

/* ---- shelves ---- */

/* What of an id the order of a shelf looks at. */
static const char *rest_of(const struct store_object *o)
{
	return o->id + HEX;
}

int shelf_add(struct shelf *shelf, struct store_object *object)
{
	if (shelf->len == shelf->cap) {
		uint32_t cap = shelf->cap != 0 ? shelf->cap + shelf->cap / 2 : SHELF_LEAST;
		struct store_object **items =
			reallocarray(shelf->items, cap, sizeof(struct store_object *));
		if (items == NULL)
			return -ENOMEM;
		shelf->items = items;
		shelf->cap = cap;
	}
	if (shelf->sorted == shelf->len &&
		(shelf->len == 0 ||
			strcmp(rest_of(shelf->items[shelf->len - 1]), rest_of(object)) < 0))
		shelf->sorted++;
	shelf->items[shelf->len++] = object;
	return 0;
}

/* Frees the dead; the others keep their order. */
static void shelf_sweep(struct shelf *shelf)
{
	uint32_t kept = 0, sorted = 0;
	for (uint32_t i = 0; i < shelf->len; i++) {
		struct store_object *o = shelf->items[i];
		if (o->dead) {
			free(o);
			continue;
		}
		sorted += i < shelf->sorted;
		shelf->items[kept++] = o;
	}
	shelf->len = kept;
	shelf->sorted = sorted;
	shelf->dead = 0;
}

void shelf_drop(struct shelf *shelf, struct store_object *object)
{
	assert(!object->dead);
	object->dead = true;
	shelf->dead++;
	if (shelf->dead > SHELF_DEAD_MAX && shelf->dead > shelf->len / 4)
		shelf_sweep(shelf);
}

static int compare(const void *a, const void *b)
{
	return strcmp(rest_of(*(struct store_object *const *)a),
		rest_of(*(struct store_object *const *)b));
}

/* Merges the sorted tail from the back; false: there is no memory for a copy of it. */
static bool merge(struct store_object **items, size_t head, size_t len)
{
	size_t tail = len - head;
	struct store_object **copy = malloc(tail * sizeof(struct store_object *));
	if (copy == NULL)
		return false;
	memcpy(copy, items + head, tail * sizeof(struct store_object *));
	while (tail > 0) {
		bool take_head =
			head > 0 && strcmp(rest_of(items[head - 1]), rest_of(copy[tail - 1])) > 0;
		items[--len] = take_head ? items[--head] : copy[--tail];
	}
	free(copy);
	return true;
}

void shelf_sort(struct shelf *shelf)
{
	if (shelf->dead > 0)
		shelf_sweep(shelf);
	if (shelf->sorted == shelf->len)
		return;
	qsort(shelf->items + shelf->sorted, shelf->len - shelf->sorted, sizeof(shelf->items[0]),
		compare);
	if (!merge(shelf->items, shelf->sorted, shelf->len))
		qsort(shelf->items, shelf->len, sizeof(shelf->items[0]), compare);
	shelf->sorted = shelf->len;
}

size_t shelf_behind(const struct shelf *shelf, const char *id)
{
	size_t from = 0, to = shelf->len;
	const char *rest = id + strnlen(id, HEX);
	assert(shelf->sorted == shelf->len && shelf->dead == 0);
	while (from < to) {
		size_t middle = from + (to - from) / 2;
		if (strcmp(rest_of(shelf->items[middle]), rest) > 0)
			to = middle;
		else
			from = middle + 1;
	}
	return from;
}

void shelf_free(struct shelf *shelf)
{
	for (uint32_t i = 0; i < shelf->len; i++)
		free(shelf->items[i]);
	free(shelf->items);
	*shelf = (struct shelf){0};
}
