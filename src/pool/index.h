/* SPDX-License-Identifier: Apache-2.0 */
/* The index of the pools' objects: found by name, by id, by image, in order. */
#ifndef RINGVOL_POOL_INDEX_H
#define RINGVOL_POOL_INDEX_H

#include "pool/pool.h"

/* The object of that name: of the first pool, in their order, that has one; NULL: none has. A
 * quarantined object is found by its key. */
struct pool_object *pools_find_name(
	const struct pools *pools, enum record_kind kind, const char *name);
/* By id, an inline volume also by its name. A volume that has moved here is in another pool than
 * its id says, which may not be here. *ret is set only with 0. ERR_INVALID: longer than
 * RECORD_ID_MAX. ERR_NOT_FOUND: not an id of ours, or its object is gone, or a later object has the
 * name. ERR_UNAVAILABLE: its pool is not loaded, or not configured here ("not here" is not "gone"),
 * or it has moved from here to another node (departure.h).
 * ERR_DATA_LOSS: quarantined. */
int pools_find_id(const struct pools *pools, enum record_kind kind, const char *id,
	struct pool_object **ret, struct err *err);
/* Where the volume of the id has gone; NULL: it is here, in whatever pool, or has not been. */
struct pool_departure *pools_departed(const struct pools *pools, const char *id);
/* 0, or ERR_PRECONDITION: it is an inline volume, and nobody's but its pod's. */
int pool_check_not_inline(const struct pool_object *object, struct err *err);
/* Whether an id is well-formed, its pool (for a volume that has left a pool of ours: the one it
 * went to) is none of those configured here, and none of them has or had the volume. False while
 * one of them has not told its uuid yet: it may be that one. */
bool pools_id_elsewhere(const struct pools *pools, const char *id);
/* The lane of the pool that has what the id names. Ids of unknown pools share one lane. */
struct lane *pools_lane_of_id(const struct pools *pools, const char *id);
/* The volume, maybe a quarantined one, whose image is that file; NULL: no volume's. Looks through
 * all of them: 1 ms at 100,000. */
struct pool_object *pools_find_image(
	const struct pools *pools, uint64_t image_dev, uint64_t image_ino);

/* A place in the order of (pool's uuid, key) across pools. Zero: before all. What was there need
 * not be there any more. */
struct pool_walk {
	char pool[RECORD_POOL_DIGITS + 1];
	char key[RECORD_KEY_MAX];
};
/* The first object behind the place, which becomes that object's; NULL at the end. Quarantined
 * objects are left out. */
struct pool_object *pools_next(
	const struct pools *pools, enum record_kind kind, struct pool_walk *walk);
/* As strcmp(). */
int pool_walk_compare(const struct pool_walk *a, const struct pool_walk *b);
/* One pool's, quarantined objects included: the first behind after_key ("": the first of all), NULL
 * at the end. */
struct pool_object *pool_next_object(
	const struct pool *pool, enum record_kind kind, const char *after_key);
unsigned pool_count(const struct pool *pool, enum record_kind kind);

/* fn is told of each object that leaves the index, while it is still whole. One at a time; NULL:
 * nobody is told. */
typedef void pools_removed_fn(void *arg, const struct pool_object *object);
void pools_on_removed(struct pools *pools, pools_removed_fn *fn, void *arg);

void pool_object_id(const struct pool_object *object, char ret_id[RECORD_ID_MAX]);
/* Whether an id is this object's. The random part of a quarantined object's id is not known, and
 * any will do; it counts as made where it is. */
bool pool_object_has_id(const struct pool_object *object, const char *id);

/* ---- for the files of src/pool ---- */

struct pool_found;
struct pool_hold;

/* The pool that an id names, loaded, and the id in parts. Errors as of pools_find_id(). */
int pools_find_pool_of_id(const struct pools *pools, const char *noun, const char *id,
	struct record_id *ret_id, struct pool **ret, struct err *err);
struct pool_object *pool_index_find(
	const struct pool *pool, enum record_kind kind, const char *key);
/* Takes over found->rec. NULL when out of memory. */
struct pool_object *pool_index_insert(struct pool *pool, struct pool_found *found);
/* Out of the index and the sums; the caller frees it with pool_object_free(). */
void pool_index_remove(struct pool_object *object);
void pool_object_free(struct pool_object *object);
/* Before and after each change of what an object counts for in the pool's sums. */
void pool_sums_sub(struct pool_object *object);
void pool_sums_add(struct pool_object *object);
/* The id of the oldest ancestor this record's image shares extents with, "" if it never did. */
const char *pool_family(const struct record *rec);
/* The family that what is held shares its blocks with, "" if with none. */
const char *pool_hold_family(const struct pool_hold *hold);
/* Says of every object of a family whether it still shares: more than one of it is left. */
void pool_family_update(struct pool *pool, const char *family);
void pool_family_update_all(struct pool *pool);

#endif
