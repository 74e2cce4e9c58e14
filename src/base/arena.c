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
	ARENA_BLOCK_BYTES = 2048,
	ARENA_ALIGN = 16,
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
};

struct arena *arena_new(size_t limit_bytes)
{
	struct arena *a = calloc(1, sizeof(*a));
	if (a == NULL)
		return NULL;
	a->refs = 1;
	a->limit = limit_bytes;
	return a;
}

struct arena *arena_new_in(size_t limit_bytes, struct budget *budget)
{
	struct arena *a = arena_new(limit_bytes);
	if (a != NULL)
		a->budget = budget_ref(budget);
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
		if (a->budget != NULL)
			budget_give(a->budget, sizeof(*b) + b->size);
		free(b);
	}
	budget_unref(a->budget);
	free(a);
}

static struct block *block_new(struct arena *a, size_t size)
{
	if (a->budget != NULL && !budget_has(a->budget, sizeof(struct block) + size))
		return NULL;
	struct block *b = calloc(1, sizeof(*b) + size);
	if (b == NULL)
		return NULL;
	b->size = size;
	if (a->budget != NULL)
		budget_add(a->budget, sizeof(*b) + size);
	return b;
}

void *arena_alloc(struct arena *a, size_t size)
{
	if (size > SIZE_MAX - ARENA_BLOCK_BYTES)
		return NULL;
	size_t need = (size + 1 + ARENA_ALIGN - 1) & ~(size_t)(ARENA_ALIGN - 1);
	if (a->limit != 0 && (need > a->limit || a->total > a->limit - need))
		return NULL;

	struct block *b = a->head;
	if (b == NULL || b->size - b->used < need) {
		bool large = need > ARENA_BLOCK_BYTES / 2;
		b = block_new(a, large ? need : ARENA_BLOCK_BYTES);
		if (b == NULL)
			return NULL;
		if (large && a->head != NULL) {
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
