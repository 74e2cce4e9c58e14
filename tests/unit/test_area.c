/* SPDX-License-Identifier: Apache-2.0 */
/* The area against a model of one byte a unit, which takes as the header says. */
#include "disk/area.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { UNIT = IMAGE_MAP_ALIGN, UNITS = 900, IMAGES = 40 };

static bool no_memory;

/* Ours, so that there is none when a test says so. */
void *reallocarray(void *mem, size_t count, size_t size)
{
	return no_memory ? NULL : realloc(mem, count * size);
}

enum state { NO_DISK, FREE, TAKEN };

static enum state model[UNITS];

static bool extent_ends(unsigned unit)
{
	return unit == UNITS || model[unit] != FREE;
}

static unsigned extent_len(unsigned unit)
{
	unsigned end = unit + 1;
	while (!extent_ends(end))
		end++;
	return end - unit;
}

static bool extent_begins(unsigned unit)
{
	return model[unit] == FREE && (unit == 0 || model[unit - 1] != FREE);
}

/* What area_take() is to do, in the model. Nothing has changed unless it is 0. */
static int model_take(unsigned units, struct image_map *map)
{
	enum state was[UNITS];
	struct image_map now = *map;
	unsigned free_units = 0;
	memcpy(was, model, sizeof was);
	for (unsigned i = 0; i < UNITS; i++)
		free_units += model[i] == FREE;
	if (units > free_units)
		return -ENOSPC;
	bool first = map->count > 0;
	while (units > 0) {
		unsigned best = UNITS, longest = UNITS;
		if (first) {
			const struct image_piece *last = &map->pieces[map->count - 1];
			unsigned behind = (unsigned)((last->address + last->bytes) / UNIT);
			if (behind < UNITS && model[behind] == FREE)
				best = behind;
		}
		bool chosen = best < UNITS;
		for (unsigned i = 0; !chosen && i < UNITS; i++) {
			if (!extent_begins(i))
				continue;
			unsigned len = extent_len(i);
			if (len >= units && (best == UNITS || len < extent_len(best)))
				best = i;
			if (longest == UNITS || len >= extent_len(longest))
				longest = i;
		}
		if (best == UNITS)
			best = longest;
		first = false;
		unsigned len = extent_len(best) < units ? extent_len(best) : units;
		if (image_map_add(&now, (uint64_t)best * UNIT, (uint64_t)len * UNIT) < 0) {
			memcpy(model, was, sizeof model);
			return -E2BIG;
		}
		for (unsigned i = 0; i < len; i++)
			model[best + i] = TAKEN;
		units -= len;
	}
	*map = now;
	return 0;
}

static void model_set(const struct image_map *map, uint64_t from, enum state state)
{
	for (unsigned i = 0; i < map->count; i++)
		for (uint64_t at = 0; at < map->pieces[i].bytes; at += UNIT) {
			if (from == 0)
				model[(map->pieces[i].address + at) / UNIT] = state;
			else
				from -= UNIT;
		}
}

static int compare_units(const void *a, const void *b)
{
	return (int)*(const unsigned *)b - (int)*(const unsigned *)a;
}

static void check(const struct area *area)
{
	unsigned free_units = 0, total = 0, extents = 0, lens[UNITS];
	uint64_t takeable = 0;
	for (unsigned i = 0; i < UNITS; i++) {
		free_units += model[i] == FREE;
		total += model[i] != NO_DISK;
		if (extent_begins(i))
			lens[extents++] = extent_len(i);
	}
	qsort(lens, extents, sizeof *lens, compare_units);
	for (unsigned i = 0; i < extents && i < IMAGE_MAP_PIECES_MAX; i++)
		takeable += (uint64_t)lens[i] * UNIT;
	cr_assert_eq(area_free_bytes(area), (uint64_t)free_units * UNIT);
	cr_assert_eq(area_total_bytes(area), (uint64_t)total * UNIT);
	cr_assert_eq(area_free_extents(area), extents);
	cr_assert_eq(area_takeable_bytes(area), takeable);
}

static void add(struct area *area, unsigned unit, unsigned units)
{
	cr_assert_eq(area_add(area, (uint64_t)unit * UNIT, (uint64_t)units * UNIT), 0);
	for (unsigned i = 0; i < units; i++)
		model[unit + i] = FREE;
}

/* Three disks; two of them have one unit between them. */
static struct area *three_disks(void)
{
	struct area *area = area_new();
	cr_assert_not_null(area);
	memset(model, 0, sizeof model);
	add(area, 3, 97);
	add(area, 500, 400);
	add(area, 101, 300);
	check(area);
	return area;
}

static void take(struct area *area, unsigned units, struct image_map *map)
{
	struct image_map wanted = *map;
	int r = model_take(units, &wanted);
	cr_assert_eq(area_take(area, (uint64_t)units * UNIT, map), r);
	cr_assert(image_map_equal(map, &wanted));
}

static void occupy(struct area *area)
{
	unsigned unit = (unsigned)rand() % UNITS, units = 1 + (unsigned)rand() % 20, wanted = 0;
	for (unsigned i = 0; i < units && wanted == 0; i++)
		if (unit + i >= UNITS || model[unit + i] == NO_DISK)
			wanted = ERANGE;
	for (unsigned i = 0; i < units && wanted == 0; i++)
		if (model[unit + i] == TAKEN)
			wanted = EEXIST;
	int r = area_occupy(area, (uint64_t)unit * UNIT, (uint64_t)units * UNIT);
	cr_assert_eq(r, -(int)wanted, "%d instead of %u", r, wanted);
	if (r == 0)
		area_give(area, (uint64_t)unit * UNIT, (uint64_t)units * UNIT);
}

static void random_step(struct area *area, struct image_map *map)
{
	uint64_t bytes = image_map_bytes(map);
	switch (rand() % 4) {
	case 0:
		take(area, (unsigned)rand() % (rand() % 8 == 0 ? 400 : 30), map);
		break;
	case 1: {
		uint64_t from = bytes > 0 ? (uint64_t)rand() % (bytes / UNIT) * UNIT : 0;
		area_give_map(area, map, from);
		model_set(map, from, FREE);
		image_map_cut(map, from);
		break;
	}
	case 2:
		area_give_map(area, map, 0);
		model_set(map, 0, FREE);
		for (unsigned i = 0; i < 2 * map->count; i++) {
			const struct image_piece *p = &map->pieces[i % map->count];
			cr_assert_eq(area_occupy(area, p->address, p->bytes),
				i < map->count ? 0 : -EEXIST);
		}
		model_set(map, 0, TAKEN);
		break;
	default:
		occupy(area);
		break;
	}
}

Test(area, does_what_the_model_does)
{
	static struct image_map maps[IMAGES];
	unsigned seed = (unsigned)time(NULL);
	printf("seed %u\n", seed);
	srand(seed);
	struct area *area = three_disks();
	for (unsigned i = 0; i < 5000; i++) {
		random_step(area, &maps[rand() % IMAGES]);
		check(area);
	}
	for (unsigned i = 0; i < IMAGES; i++) {
		area_give_map(area, &maps[i], 0);
		model_set(&maps[i], 0, FREE);
	}
	check(area);
	cr_assert_eq(area_free_extents(area), 3);
	area_free(area);
}

Test(area, disks_do_not_overlap)
{
	struct area *area = three_disks();
	cr_expect_eq(area_add(area, 99ull * UNIT, UNIT), -EEXIST);
	cr_expect_eq(area_add(area, 2ull * UNIT, 2ull * UNIT), -EEXIST);
	cr_expect_eq(area_add(area, 499ull * UNIT, 500ull * UNIT), -EEXIST);
	cr_expect_eq(area_add(area, 900ull * UNIT, 5ull * UNIT), -EEXIST, "they touch");
	cr_expect_eq(area_add(area, 490ull * UNIT, 10ull * UNIT), -EEXIST, "they touch");
	check(area);
	area_free(area);
	area_free(NULL);
}

Test(area, an_extent_is_occupied_whole_or_not)
{
	struct area *area = three_disks();
	cr_assert_eq(area_occupy(area, 40ull * UNIT, UNIT), 0);
	cr_expect_eq(area_occupy(area, 38ull * UNIT, 5ull * UNIT), -EEXIST);
	cr_expect_eq(area_occupy(area, 399ull * UNIT, 5ull * UNIT), -ERANGE);
	area_give(area, 40ull * UNIT, UNIT);
	check(area);
	area_free(area);
}

/* Then nothing has changed; and giving back needs none, in whatever pieces. */
Test(area, without_memory)
{
	enum { PIECES = 300 };
	struct area *area = area_new(), *full = three_disks();
	struct image_map map = {0}, taken = {0};
	cr_assert_not_null(area);
	no_memory = true;
	cr_expect_eq(area_add(area, UNIT, UNIT), -ENOMEM);
	cr_expect_eq(area_total_bytes(area), 0);
	no_memory = false;
	cr_assert_eq(area_add(area, 0, 3ull * PIECES * UNIT), 0);
	/* Every third unit is one image's, the next two another's. */
	unsigned i = 0;
	for (; i < PIECES; i++) {
		no_memory = i > PIECES / 2;
		int r = area_occupy(area, 3ull * i * UNIT, UNIT);
		if (r == 0)
			r = area_occupy(area, (3ull * i + 1) * UNIT, 2ull * UNIT);
		if (r < 0) {
			cr_assert_eq(r, -ENOMEM);
			break;
		}
	}
	cr_assert(i > PIECES / 2 && i < PIECES);
	uint64_t free_bytes = area_free_bytes(area);
	cr_expect_eq(area_take(area, UNIT, &taken), -ENOMEM);
	cr_expect_eq(area_free_bytes(area), free_bytes);
	cr_expect_eq(taken.count, 0);
	for (unsigned k = 0; k < i; k++)
		area_give(area, 3ull * k * UNIT, UNIT);
	cr_expect_geq(area_free_extents(area), i);
	for (unsigned k = 0; k < i; k++) {
		image_map_cut(&map, 0);
		cr_assert_eq(image_map_add(&map, (3ull * k + 1) * UNIT, 2ull * UNIT), 0);
		area_give_map(area, &map, UNIT);
		image_map_cut(&map, UNIT);
		area_give_map(area, &map, 0);
	}
	no_memory = false;
	area_free(area);
	area_free(full);
}

/* Nobody can have more pieces than that: enough is free, and nothing changes. */
Test(area, only_in_more_pieces_than_a_map_takes)
{
	struct area *area = three_disks();
	struct image_map map = {0};
	cr_assert_eq(area_occupy(area, 3ull * UNIT, 97ull * UNIT), 0);
	for (unsigned i = 3; i < 100; i++)
		model[i] = TAKEN;
	for (unsigned i = 102; i < UNITS; i += 2)
		if (model[i] == FREE) {
			cr_assert_eq(area_occupy(area, (uint64_t)i * UNIT, UNIT), 0);
			model[i] = TAKEN;
		}
	check(area);
	cr_assert_eq(area_takeable_bytes(area), 255ull * UNIT);
	cr_expect_eq(area_take(area, 256ull * UNIT, &map), -E2BIG);
	cr_expect_eq(map.count, 0);
	check(area);
	take(area, 255, &map);
	cr_expect_eq(map.count, 255);
	cr_expect_eq(area_take(area, UNIT, &map), -E2BIG);
	check(area);
	cr_expect_eq(area_take(area, 1000ull * UNIT, &map), -ENOSPC);
	area_free(area);
}

Test(area, an_image_grows_behind_its_last_piece)
{
	struct area *area = three_disks();
	struct image_map map = {0}, other = {0};
	take(area, 10, &map);
	take(area, 10, &other);
	take(area, 5, &other);
	cr_expect_eq(other.count, 1);
	take(area, 5, &map);
	cr_expect_eq(map.count, 2);
	area_give_map(area, &other, 0);
	model_set(&other, 0, FREE);
	check(area);
	area_free(area);
}

/* 64 TiB in 200,000 free extents. Prints what header and commits quote. */
Test(area, many_extents)
{
	enum { EXTENTS = 200000, ROUNDS = 50000 };
	static struct image_map maps[1000];
	const uint64_t every = (64ull << 40) / EXTENTS / UNIT * UNIT;
	struct timespec from, to;
	struct area *area = area_new();
	cr_assert_not_null(area);
	cr_assert_eq(area_add(area, 0, every * EXTENTS), 0);
	srand(1);
	clock_gettime(CLOCK_MONOTONIC, &from);
	for (uint64_t i = 0; i < EXTENTS; i++)
		cr_assert_eq(area_occupy(area, i * every,
				     (1 + (uint64_t)rand() % (every / UNIT - 1)) * UNIT),
			0);
	clock_gettime(CLOCK_MONOTONIC, &to);
	printf("occupy %.2f us\n", ((double)(to.tv_sec - from.tv_sec) * 1e6 +
					   (double)(to.tv_nsec - from.tv_nsec) / 1e3) /
					   EXTENTS);
	cr_assert_eq(area_free_extents(area), EXTENTS);
	clock_gettime(CLOCK_MONOTONIC, &from);
	for (unsigned i = 0; i < ROUNDS; i++) {
		struct image_map *map = &maps[(unsigned)rand() % 1000];
		area_give_map(area, map, 0);
		image_map_cut(map, 0);
		cr_assert_eq(area_take(area, (1 + (uint64_t)rand() % 300) * UNIT, map), 0);
	}
	clock_gettime(CLOCK_MONOTONIC, &to);
	printf("give and take %.2f us, %u free extents\n",
		((double)(to.tv_sec - from.tv_sec) * 1e6 +
			(double)(to.tv_nsec - from.tv_nsec) / 1e3) /
			ROUNDS,
		area_free_extents(area));
	clock_gettime(CLOCK_MONOTONIC, &from);
	for (unsigned i = 0; i < 1000; i++)
		cr_assert(area_takeable_bytes(area) > 0);
	clock_gettime(CLOCK_MONOTONIC, &to);
	printf("takeable %.2f us\n", ((double)(to.tv_sec - from.tv_sec) * 1e6 +
					     (double)(to.tv_nsec - from.tv_nsec) / 1e3) /
					     1000);
	area_free(area);
}
