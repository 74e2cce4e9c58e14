/* SPDX-License-Identifier: Apache-2.0 */
/* Objects in the index of a pool that has no files, for tests of what memory says alone. */
#ifndef RINGVOL_TESTS_POOL_MEMORY_H
#define RINGVOL_TESTS_POOL_MEMORY_H

#include "pool/index.h"
#include "pool/private.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

enum { MIB = 1 << 20 };

static inline struct record volume(const char *name)
{
	return (struct record){.name = name, .random = "00000001", .size_bytes = 8 * MIB};
}

static inline struct pool_object *put(
	struct pool *pool, const struct record *rec, uint64_t allocated)
{
	struct pool_found found = {.rec = record_new(rec),
		.kind = rec->kind,
		.image_bytes = record_image_bytes(rec),
		.allocated_bytes = allocated};
	strcpy(found.key, found.rec->key);
	struct pool_object *o = pool_index_insert(pool, &found);
	cr_assert_not_null(o);
	cr_assert_null(found.rec);
	return o;
}

static inline struct pool_object *put_quarantined(
	struct pool *pool, enum record_kind kind, const char *key, uint64_t image_bytes)
{
	struct pool_found found = {.kind = kind,
		.why = "its record is damaged",
		.image_bytes = image_bytes,
		.allocated_bytes = MIB};
	strcpy(found.key, key);
	return pool_index_insert(pool, &found);
}

static inline void drop(struct pool_object *o)
{
	pool_index_remove(o);
	pool_object_free(o);
}

static inline void drop_all(struct pool *pool)
{
	for (unsigned kind = 0; kind < 2; kind++) {
		while (pool->index[kind].count > 0)
			drop(pool->index[kind].at[0]);
		free(pool->index[kind].at);
		pool->index[kind].at = NULL;
	}
}

#endif
