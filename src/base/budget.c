/* SPDX-License-Identifier: Apache-2.0 */
#include "base/budget.h"

#include <assert.h>
#include <stdlib.h>

struct budget *budget_new(size_t max_bytes)
{
	struct budget *budget = calloc(1, sizeof(*budget));
	if (budget != NULL) {
		budget->refs = 1;
		budget->max_bytes = max_bytes;
	}
	return budget;
}

struct budget *budget_ref(struct budget *budget)
{
	budget->refs++;
	return budget;
}

void budget_unref(struct budget *budget)
{
	if (budget == NULL)
		return;
	assert(budget->refs > 0);
	if (--budget->refs == 0)
		free(budget);
}

bool budget_has(const struct budget *budget, size_t bytes)
{
	return budget->used_bytes <= budget->max_bytes &&
	       bytes <= budget->max_bytes - budget->used_bytes;
}

bool budget_has_share(const struct budget *budget, size_t bytes)
{
	size_t share = budget->max_bytes - budget->max_bytes / 4;
	return budget->used_bytes <= share && bytes <= share - budget->used_bytes;
}

void budget_add(struct budget *budget, size_t bytes)
{
	budget->used_bytes += bytes;
	if (budget->used_bytes > budget->high_bytes)
		budget->high_bytes = budget->used_bytes;
}

void budget_give(struct budget *budget, size_t bytes)
{
	assert(bytes <= budget->used_bytes);
	budget->used_bytes -= bytes;
}
