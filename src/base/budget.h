/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A count of bytes that many share, with a limit. It counts only: whoever takes bytes allocates and
 * frees them, and gives them back here. Holders keep it alive by references, so that an arena may
 * outlive what it was made for.
 */
#ifndef RINGVOL_BASE_BUDGET_H
#define RINGVOL_BASE_BUDGET_H

#include <stdbool.h>
#include <stddef.h>

struct budget {
	unsigned refs;
	size_t max_bytes, used_bytes;
	size_t high_bytes; /* the most that was in use since the owner set it back */
};

/* The caller holds the first reference. NULL when out of memory. */
struct budget *budget_new(size_t max_bytes);
struct budget *budget_ref(struct budget *budget);
/* NULL is legal. */
void budget_unref(struct budget *budget);

/* Whether so many more bytes stay within max_bytes. */
bool budget_has(const struct budget *budget, size_t bytes);
/* The same for a taker that has to leave a quarter of the budget to others. */
bool budget_has_share(const struct budget *budget, size_t bytes);
/* Counts bytes, over the limit as well: for what is there already. */
void budget_add(struct budget *budget, size_t bytes);
void budget_give(struct budget *budget, size_t bytes);

#endif
