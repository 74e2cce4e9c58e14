/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The arena is a chain of blocks; the newest serves small allocations, an allocation larger than a
 * block gets one of its own behind the head. It can fail only by running out of memory or past its
 * limit.
 */
#include "base/arena.h"

#include "base/budget.h"

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	/* Comes with the arena. Both together fit what malloc keeps for each thread (1032 bytes),
	 * and most calls need no more. */
	ARENA_FIRST_BYTES = 896,
	ARENA_BLOCK_BYTES = 2048,
	ARENA_ALIGN = 16,
	/* What most calls need at most. An arena that has more leaves a quarter of its budget. */
	ARENA_SMALL_BYTES = 8 << 10,
};

struct block {
	struct block *next;
	size_t size, used;
	_Alignas(ARENA_ALIGN) unsigned char data[];
};

struct arena {
	unsigned refs;
	size_t limit, total;
	struct budget *budget; /* NULL: none counts */
	struct block *head;
	struct block first; /* the last member: its data follows */
};

static const size_t arena_bytes = sizeof(struct arena) + ARENA_FIRST_BYTES;

struct arena *arena_new(size_t limit_bytes)
{
	struct arena *a = malloc(arena_bytes); /* calloc() would pass what malloc keeps by */
	if (a == NULL)
		return NULL;
	memset(a, 0, arena_bytes);
	a->refs = 1;
	a->limit = limit_bytes;
	a->first.size = ARENA_FIRST_BYTES;
	a->head = &a->first;
	return a;
}

struct arena *arena_new_in(size_t limit_bytes, struct budget *budget)
{
	if (!budget_has(budget, arena_bytes))
		return NULL;
	struct arena *a = arena_new(limit_bytes);
	if (a == NULL)
		return NULL;
	a->budget = budget_ref(budget);
	budget_add(budget, arena_bytes);
	return a;
}

struct arena *arena_ref(struct arena *a)
{
	a->refs++;
	return a;
}

void arena_unref(struct arena *a)
{
	if (a == NULL)
		return;
	assert(a->refs > 0);
	if (--a->refs > 0)
		return;
	for (struct block *b = a->head, *next; b != NULL; b = next) {
		next = b->next;
		explicit_bzero(b->data, b->used);
		if (b == &a->first)
			continue;
		if (a->budget != NULL)
			budget_give(a->budget, sizeof(*b) + b->size);
		free(b);
	}
	if (a->budget != NULL)
		budget_give(a->budget, arena_bytes);
	budget_unref(a->budget);
	free(a);
}

static struct block *block_new(struct arena *a, size_t size)
{
	size_t bytes = sizeof(struct block) + size;
	bool small = a->total + bytes <= ARENA_SMALL_BYTES;
	if (a->budget != NULL &&
		!(small ? budget_has(a->budget, bytes) : budget_has_share(a->budget, bytes)))
		return NULL;
	struct block *b = calloc(1, sizeof(*b) + size);
	if (b == NULL)
		return NULL;
	b->size = size;
	if (a->budget != NULL)
		budget_add(a->budget, sizeof(*b) + size);
	return b;
}

size_t arena_size(const struct arena *a)
{
	return a->total;
}

void *arena_alloc(struct arena *a, size_t size)
{
	if (size > SIZE_MAX - ARENA_BLOCK_BYTES)
		return NULL;
	size_t need = (size + 1 + ARENA_ALIGN - 1) & ~(size_t)(ARENA_ALIGN - 1);
	if (a->limit != 0 && (need > a->limit || a->total > a->limit - need))
		return NULL;

	struct block *b = a->head;
	if (b->size - b->used < need) {
		bool large = need > ARENA_BLOCK_BYTES / 2;
		b = block_new(a, large ? need : ARENA_BLOCK_BYTES);
		if (b == NULL)
			return NULL;
		if (large) {
			b->next = a->head->next;
			a->head->next = b;
		} else {
			b->next = a->head;
			a->head = b;
		}
	}
	void *p = b->data + b->used;
	b->used += need;
	a->total += need;
	return p;
}

char *arena_strdup(struct arena *a, const char *s)
{
	size_t len = strlen(s);
	char *copy = arena_alloc(a, len);
	if (copy != NULL)
		memcpy(copy, s, len);
	return copy;
}

char *arena_printf(struct arena *a, const char *fmt, ...)
{
	va_list ap, again;
	va_start(ap, fmt);
	va_copy(again, ap);
	int len = vsnprintf(NULL, 0, fmt, ap);
	va_end(ap);
	char *s = len < 0 ? NULL : arena_alloc(a, (size_t)len);
	if (s != NULL)
		vsnprintf(s, (size_t)len + 1, fmt, again);
	va_end(again);
	return s;
}
