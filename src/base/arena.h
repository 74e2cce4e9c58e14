/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bump allocator with a reference count: one arena per RPC or operation, everything in it freed at
 * once when the last holder lets go. Memory is zeroed, 16-byte aligned, and every allocation is
 * followed by at least one zero byte, so bytes copied in can be read as a C string.
 */
#ifndef RINGVOL_BASE_ARENA_H
#define RINGVOL_BASE_ARENA_H

#include <stdarg.h>
#include <stddef.h>

struct budget;

struct arena;

/* limit_bytes: arena_alloc() answers NULL once this much was handed out (0: no limit).
 * Returns NULL when out of memory. The caller holds the first reference. */
struct arena *arena_new(size_t limit_bytes);
/* The same, and its blocks count in a budget (budget.h): NULL is answered beyond that, too, and by
 * an arena of more than a few KiB beyond three quarters of it. */
struct arena *arena_new_in(size_t limit_bytes, struct budget *budget);
struct arena *arena_ref(struct arena *a);
/* Drops a reference; the last one wipes (explicit_bzero) and frees everything, because requests
 * carry secrets. NULL is legal. */
void arena_unref(struct arena *a);

/* Bytes handed out so far. */
size_t arena_size(const struct arena *a);
/* NULL when out of memory or past the limit; size 0 is legal and returns a pointer. */
void *arena_alloc(struct arena *a, size_t size);
char *arena_strdup(struct arena *a, const char *s);
char *arena_printf(struct arena *a, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#define arena_new_of(a, type) ((type *)arena_alloc((a), sizeof(type)))

#endif
