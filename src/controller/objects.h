/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Volumes and snapshots as nodes have told them, and what keeps them: a table of all, found by id
 * and by key, and for each pool and kind a shelf in the order of ids. For store.c, which owns both.
 *
 * An object is one allocation: id, source, entry and health behind a header of 28 bytes. The id is
 * a part of the entry and kept once.
 */
#ifndef RINGVOL_CONTROLLER_OBJECTS_H
#define RINGVOL_CONTROLLER_OBJECTS_H

#include "base/buf.h"
#include "base/siphash.h"
#include "pool/record.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	OBJECT_ENTRY_MAX = 8192, /* bytes; volume, topology, nodes it is published at */
	OBJECT_HEALTH_MAX = 4096,
};

enum store_kind { STORE_VOLUME = RECORD_VOLUME, STORE_SNAPSHOT = RECORD_SNAPSHOT, STORE_KINDS };

struct store_pool;

struct store_object {
	struct store_pool *pool;
	/* private */
	uint32_t told; /* the join that told it last: what a new one does not tell is gone */
	uint32_t hash; /* of kind and key */
	uint16_t entry_len, health_len;
	uint16_t id_at; /* in the entry, where the id is left out; OBJECT_ENTRY_MAX: nowhere */
	uint8_t kind;   /* enum store_kind */
	uint8_t id_len, source_len;
	bool dead : 1;  /* on a shelf, and taken out of the table */
	bool image : 1; /* in the table as a golden image, of which several may have one name */
	bool moved : 1; /* it has: behind the source's id stands how often, 8 bytes */
	char id[];      /* with a NUL; behind it the source's id with a NUL, entry, health */
};

/* What a node says of an object. */
struct object_text {
	enum store_kind kind;
	const char *id, *source_id; /* "" */
	const uint8_t *entry, *health;
	size_t entry_len, health_len;
	/* The pool that it is in, and how often it has moved. NULL or "": that of its id. */
	const char *pool;
	uint64_t moves;
};

/* NULL: out of memory. The text is within the limits above. */
struct store_object *object_new(struct store_pool *pool, const struct object_text *text);
/* Whether the object says the same, so that there is nothing to do. */
bool object_is(const struct store_object *object, const struct object_text *text);
/* Overwrites it, if it takes about as much memory; false: it is as it was. */
bool object_rewrite(struct store_object *object, const struct object_text *text);
size_t object_bytes(const struct store_object *object);

const char *object_source(const struct store_object *object); /* "" */
uint64_t object_moves(const struct store_object *object);
/* The entry as the node packed it, behind what the buffer has. 0 or -ENOMEM. */
int object_entry(const struct store_object *object, struct buf *out);
static inline size_t object_entry_len(const struct store_object *object)
{
	return object->entry_len;
}
/* The packed VolumeHealth; *ret_len 0: it is well. */
const uint8_t *object_health(const struct store_object *object, size_t *ret_len);

/* ---- all of them ---- */

struct object_table {
	struct siphash_key key;
	struct store_object **slots;
	size_t cap, len;   /* cap: a power of two, or 0 */
	size_t bytes;      /* of the objects, as object_bytes() has them */
	size_t duplicates; /* objects whose kind and key another pool has as well; no golden images
			    */
};

void object_table_init(struct object_table *table);
void object_table_free(struct object_table *table); /* not the objects */
/* Makes room for one more. 0 or -ENOMEM. */
int object_table_reserve(struct object_table *table);
void object_table_add(struct object_table *table, struct store_object *object);
void object_table_remove(struct object_table *table, struct store_object *object);
struct store_object *object_table_find(const struct object_table *table, const char *id);
/* Each object of the kind and key, in no order. *at is 0 before the first. NULL: no more. */
struct store_object *object_table_same(
	const struct object_table *table, enum store_kind kind, const char *key, size_t *at);

/* ---- those of a pool and kind ---- */

/* Sorted when somebody looks: nodes tell in any order. What the ids begin with plays no part: it is
 * the pool, or the one that the object was in before it moved. Owns the objects. */
struct shelf {
	struct store_object **items;
	uint32_t len, cap;
	uint32_t sorted; /* so many from the first on are in order */
	uint32_t dead;
};

/* 0 or -ENOMEM. */
int shelf_add(struct shelf *shelf, struct store_object *object);
/* Frees the object now or later. */
void shelf_drop(struct shelf *shelf, struct store_object *object);
/* Items 0 to len - 1 are the objects, in order, until the next change. */
void shelf_sort(struct shelf *shelf);
/* Of a sorted one: the index of the first object behind an id, or one with another pool in front;
 * len: none. */
size_t shelf_behind(const struct shelf *shelf, const char *id);
void shelf_free(struct shelf *shelf);

#endif
