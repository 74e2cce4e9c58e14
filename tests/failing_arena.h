/* SPDX-License-Identifier: Apache-2.0 */
/* For tests that are linked with --wrap of arena_alloc and arena_strdup: one allocation of an arena
 * fails. For one file of a program. */
#ifndef RINGVOL_TESTS_FAILING_ARENA_H
#define RINGVOL_TESTS_FAILING_ARENA_H

#include "base/arena.h"

#include <stdbool.h>
#include <stddef.h>

static int fails_after = -1; /* so many go well first; -1: none fails */
static bool failed;          /* one has */

static bool fails(void)
{
	if (fails_after < 0 || fails_after-- > 0)
		return false;
	failed = true;
	return true;
}

void *__wrap_arena_alloc(struct arena *arena, size_t size);
void *__real_arena_alloc(struct arena *arena, size_t size);
char *__wrap_arena_strdup(struct arena *arena, const char *s);
char *__real_arena_strdup(struct arena *arena, const char *s);

void *__wrap_arena_alloc(struct arena *arena, size_t size)
{
	return fails() ? NULL : __real_arena_alloc(arena, size);
}

char *__wrap_arena_strdup(struct arena *arena, const char *s)
{
	return fails() ? NULL : __real_arena_strdup(arena, s);
}

#endif
