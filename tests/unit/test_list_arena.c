/* SPDX-License-Identifier: Apache-2.0 */
/* The list, the arena and the array: what everything else is built from. */
#include "base/arena.h"
#include "base/budget.h"
#include "base/buf.h"
#include "base/list.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct item {
	int value;
	struct list link;
};

static int item_value(struct list *node)
{
	return container_of(node, struct item, link)->value;
}

Test(list, keeps_order_and_pops_from_the_front)
{
	struct list head;
	struct item items[3] = {{.value = 1}, {.value = 2}, {.value = 3}};
	list_init(&head);
	cr_assert(list_empty(&head));
	cr_assert_null(list_pop(&head));
	list_push(&head, &items[1].link);
	list_push(&head, &items[2].link);
	list_push_front(&head, &items[0].link);
	int want = 1;
	list_for_each (pos, &head)
		cr_assert_eq(item_value(pos), want++);
	for (want = 1; want <= 3; want++)
		cr_assert_eq(item_value(list_pop(&head)), want);
	cr_assert(list_empty(&head));
}

Test(list, removal_is_idempotent_and_allowed_while_iterating)
{
	struct list head;
	struct item items[5];
	list_init(&head);
	for (int i = 0; i < 5; i++) {
		items[i].value = i;
		list_push(&head, &items[i].link);
	}
	list_for_each_safe (pos, &head)
		if (item_value(pos) % 2 == 0)
			list_remove(pos);
	list_remove(&items[0].link);
	cr_assert_eq(item_value(list_pop(&head)), 1);
	cr_assert_eq(item_value(list_pop(&head)), 3);
	cr_assert_null(list_pop(&head));
}

Test(list, splice_appends_and_empties)
{
	struct list a, b;
	struct item items[4];
	list_init(&a);
	list_init(&b);
	for (int i = 0; i < 4; i++) {
		items[i].value = i;
		list_push(i < 2 ? &a : &b, &items[i].link);
	}
	list_splice(&a, &b);
	cr_assert(list_empty(&b));
	list_splice(&a, &b);
	for (int i = 0; i < 4; i++)
		cr_assert_eq(item_value(list_pop(&a)), i);
	cr_assert_null(list_pop(&a));
}

Test(arena, memory_is_zeroed_aligned_and_terminated)
{
	struct arena *a = arena_new(0);
	cr_assert_not_null(a);
	for (size_t size = 0; size < 5000; size = size * 2 + 1) {
		uint8_t *p = arena_alloc(a, size);
		cr_assert_not_null(p);
		cr_assert_eq((uintptr_t)p % 16, 0);
		for (size_t i = 0; i <= size; i++)
			cr_assert_eq(p[i], 0, "byte %zu of %zu", i, size);
		memset(p, 0xFF, size);
	}
	arena_unref(a);
}

Test(arena, strings)
{
	struct arena *a = arena_new(0);
	cr_assert_str_eq(arena_strdup(a, "volume"), "volume");
	cr_assert_str_eq(arena_strdup(a, ""), "");
	cr_assert_str_eq(arena_printf(a, "%s-%d", "pvc", 7), "pvc-7");
	char *large = arena_printf(a, "%08000d", 1);
	cr_assert_eq(strlen(large), 8000);
	arena_unref(a);
}

Test(arena, limit_is_an_answer_and_not_a_crash)
{
	struct arena *a = arena_new(1024);
	size_t total = 0;
	while (arena_alloc(a, 100) != NULL)
		cr_assert_lt(total += 100, 1024 + 100);
	cr_assert_gt(total, 0);
	cr_assert_null(arena_alloc(a, SIZE_MAX));
	cr_assert_null(arena_alloc(a, SIZE_MAX - 8));
	arena_unref(a);
}

Test(arena, lives_until_the_last_reference)
{
	struct arena *a = arena_new(0);
	char *s = arena_strdup(a, "still here");
	struct arena *second = arena_ref(a);
	arena_unref(a);
	cr_assert_str_eq(s, "still here");
	arena_unref(second);
	arena_unref(NULL);
}

/* What arenas take together is bounded, and given back with the last reference of each; an arena
 * may outlive who made the budget. */
Test(arena, shares_a_budget)
{
	struct budget *budget = budget_new(64 << 10);
	struct arena *a = arena_new_in(0, budget), *b = arena_new_in(0, budget);
	cr_assert(a != NULL && b != NULL);
	cr_assert_gt(budget->used_bytes, 0); /* an arena itself counts */
	cr_assert_not_null(arena_alloc(a, 40 << 10));
	cr_assert_null(arena_alloc(b, 40 << 10));
	while (arena_alloc(b, 500) != NULL)
		cr_assert_leq(budget->used_bytes, budget->max_bytes);
	size_t high = budget->used_bytes;
	while (arena_alloc(a, 1) != NULL) /* what a block has left counts already */
		;
	cr_assert_eq(budget->used_bytes, high);
	arena_unref(a);
	cr_assert_lt(budget->used_bytes, high);
	cr_assert_eq(budget->high_bytes, high);
	budget_add(budget, budget->max_bytes);
	cr_assert_null(arena_new_in(0, budget));
	budget_give(budget, budget->max_bytes);
	size_t left = budget->used_bytes;
	struct budget *watched = budget_ref(budget);
	budget_unref(budget); /* who made it is gone */
	cr_assert_eq(watched->used_bytes, left);
	arena_unref(b);
	cr_assert_eq(watched->used_bytes, 0);
	budget_unref(watched);
}

/* One that has more than a call needs leaves a quarter to those that have not. */
Test(arena, a_large_one_leaves_a_quarter)
{
	struct budget *budget = budget_new(256 << 10);
	struct arena *large = arena_new_in(0, budget);
	while (arena_alloc(large, 1000) != NULL)
		;
	cr_assert_leq(budget->used_bytes, 192 << 10);
	struct arena *small = arena_new_in(0, budget);
	cr_assert(small != NULL && arena_alloc(small, 5000) != NULL);
	arena_unref(large);
	arena_unref(small);
	cr_assert_eq(budget->used_bytes, 0);
	budget_unref(budget);
}

Test(budget, leaves_a_quarter_to_the_small)
{
	struct budget *budget = budget_new(400);
	cr_assert(budget_has_share(budget, 300));
	cr_assert_not(budget_has_share(budget, 301));
	budget_add(budget, 300);
	cr_assert_not(budget_has_share(budget, 1));
	cr_assert(budget_has(budget, 100));
	cr_assert_not(budget_has(budget, 101));
	budget_add(budget, 200); /* what is there already counts beyond the limit, too */
	cr_assert_not(budget_has(budget, 0));
	budget_give(budget, 500);
	cr_assert_eq(budget->used_bytes, 0);
	budget_unref(budget);
	budget_unref(NULL);
}

/* ---- arrays ---- */

Test(buf, what_may_be_secret_grows_and_keeps_what_is_in_it)
{
	struct buf b = {0};
	uint8_t piece[100];
	for (unsigned i = 0; i < 50; i++) {
		memset(piece, (int)i, sizeof(piece));
		cr_assert_eq(buf_append_secret(&b, piece, sizeof(piece)), 0);
	}
	cr_assert_eq(b.len, 5000);
	for (unsigned i = 0; i < 5000; i++)
		cr_assert_eq(b.data[i], i / 100);
	buf_free_secret(&b);
	cr_assert(b.data == NULL && b.cap == 0);
	buf_free_secret(&b);
}

Test(array, grows_and_keeps_what_is_in_it)
{
	unsigned *items = NULL;
	size_t cap = 0, count = 0;
	for (; count < 1000; count++) {
		cr_assert_eq(array_grow(&items, &cap, count, sizeof(*items)), 0);
		cr_assert_gt(cap, count);
		items[count] = (unsigned)count;
	}
	for (size_t i = 0; i < count; i++)
		cr_assert_eq(items[i], i);
	free(items);
}

Test(array, stays_as_it_was_without_memory)
{
	char *items = malloc(8), *before = items;
	size_t cap = 8;
	cr_assert_eq(array_grow(&items, &cap, 8, SIZE_MAX / 8), -ENOMEM);
	cr_assert_eq(items, before);
	cr_assert_eq(cap, 8);
	free(items);
}
