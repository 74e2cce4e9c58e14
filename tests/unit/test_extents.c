/* SPDX-License-Identifier: Apache-2.0 */
/* What FIEMAP says becomes a map, and two maps become the ranges in which images differ: by hand,
 * and against a model that looks at each block. tests/system has real file systems. */
#include "blockio/extents.h"
#include "blockio/fs_moves.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { K = 4096 };

static struct extent_map base, target;
static struct extent_ranges got;
static uint64_t got_to;

/* In blocks. */
#define E(at, blocks, place, flags)                                                                \
	{                                                                                          \
		.fe_logical = (at) * (uint64_t)K, .fe_length = (blocks) * (uint64_t)K,             \
		.fe_physical = (place) * (uint64_t)K, .fe_flags = (flags)                          \
	}
#define TAKE(map, from, to, ...)                                                                   \
	do {                                                                                       \
		const struct fiemap_extent list[] = {__VA_ARGS__};                                 \
		cr_assert_eq(extents_take(list, sizeof(list) / sizeof(list[0]), EXTENTS_MAX,       \
				     (from) * (uint64_t)K, (to) * (uint64_t)K, map),               \
			0);                                                                        \
	} while (0)

/* "2-3 5-9": in blocks, without the last one. */
static const char *ranges(void)
{
	static char text[512];
	size_t len = 0;
	text[0] = '\0';
	for (unsigned i = 0; i < got.count; i++)
		len += (size_t)snprintf(text + len, sizeof(text) - len, "%s%llu-%llu",
			i > 0 ? " " : "", (unsigned long long)got.at[i].start / K,
			(unsigned long long)got.at[i].end / K);
	return text;
}

static const char *differ(void)
{
	extents_differ(&base, &target, &got, &got_to);
	return ranges();
}

/* ---- one image ---- */

Test(extents, takes_what_is_written)
{
	TAKE(&target, 0, 100, E(0, 4, 50, 0), E(4, 4, 54, FIEMAP_EXTENT_UNWRITTEN),
		E(20, 2, 70, FIEMAP_EXTENT_SHARED | FIEMAP_EXTENT_LAST));
	cr_assert_eq(target.count, 2);
	cr_assert_eq(target.to, 100 * K);
	extents_differ(NULL, &target, &got, &got_to);
	cr_assert_str_eq(ranges(), "0-4 20-22");
	cr_assert_eq(got_to, 100 * K);
}

Test(extents, cuts_to_the_window)
{
	TAKE(&target, 10, 20, E(5, 10, 105, 0), E(18, 10, 300, 0));
	cr_assert_eq(target.count, 2);
	cr_assert_eq(target.at[0].start, 10 * K);
	cr_assert_eq(target.at[0].physical, 110 * K);
	cr_assert_eq(target.at[1].end, 20 * K);
}

/* More extents than fit: the window ends with the last of them, also if that was left out. */
Test(extents, ends_where_no_more_fit)
{
	static struct fiemap_extent list[EXTENTS_MAX];
	for (unsigned i = 0; i < EXTENTS_MAX; i++)
		list[i] = (struct fiemap_extent)E(2 * i, 1, 1000 + 2 * i, 0);
	list[EXTENTS_MAX - 1].fe_flags = FIEMAP_EXTENT_UNWRITTEN;
	cr_assert_eq(extents_take(list, EXTENTS_MAX, EXTENTS_MAX, 0, 4096 * K, &target), 0);
	cr_assert_eq(target.to, (2 * (uint64_t)EXTENTS_MAX - 1) * K);
	cr_assert_eq(target.count, EXTENTS_MAX - 1);
	/* But not behind its own end. */
	list[EXTENTS_MAX - 1].fe_length = 5000 * (uint64_t)K;
	cr_assert_eq(extents_take(list, EXTENTS_MAX, EXTENTS_MAX, 0, 4096 * K, &target), 0);
	cr_assert_eq(target.to, 4096 * K);
	list[EXTENTS_MAX - 1].fe_length = K;
	list[EXTENTS_MAX - 1].fe_flags |= FIEMAP_EXTENT_LAST;
	cr_assert_eq(extents_take(list, EXTENTS_MAX, EXTENTS_MAX, 0, 4096 * K, &target), 0);
	cr_assert_eq(target.to, 4096 * K);
}

Test(extents, refuses_nonsense)
{
	const struct fiemap_extent back[] = {E(4, 4, 1, 0), E(3, 4, 1, 0)};
	const struct fiemap_extent wraps[] = {{.fe_logical = UINT64_MAX - K, .fe_length = 2 * K}};
	cr_assert_eq(extents_take(back, 2, EXTENTS_MAX, 0, 10 * K, &target), -EIO);
	cr_assert_eq(extents_take(wraps, 1, EXTENTS_MAX, 0, 10 * K, &target), -EIO);
	/* Up to the largest offset, and not behind it. */
	struct fiemap_extent far = {.fe_logical = INT64_MAX - K, .fe_length = K};
	cr_assert_eq(extents_take(&far, 1, EXTENTS_MAX, 0, 10 * K, &target), 0);
	cr_assert_eq(target.count, 0);
	far.fe_length++;
	cr_assert_eq(extents_take(&far, 1, EXTENTS_MAX, 0, 10 * K, &target), -EIO);
	far = (struct fiemap_extent){.fe_length = INT64_MAX};
	cr_assert_eq(extents_take(&far, 1, EXTENTS_MAX, 0, 10 * K, &target), 0);
	cr_assert_eq(target.count, 1);
	far.fe_length++;
	cr_assert_eq(extents_take(&far, 1, EXTENTS_MAX, 0, 10 * K, &target), -EIO);
	/* As many as fit, and none of them gets anywhere. */
	const struct fiemap_extent empty[] = {E(0, 0, 1, 0), E(0, 0, 1, 0)};
	cr_assert_eq(extents_take(empty, 2, 2, 0, 10 * K, &target), -EIO);
}

Test(extents, widens_what_lies_anywhere)
{
	struct fiemap_extent list[] = {
		{.fe_logical = 0, .fe_length = 100, .fe_flags = FIEMAP_EXTENT_DATA_INLINE},
		E(0, 0, 0, 0)};
	list[1].fe_logical = 512; /* within what the first is widened to */
	list[1].fe_length = 2 * K - 512;
	list[1].fe_physical = 9 * K;
	cr_assert_eq(extents_take(list, 2, EXTENTS_MAX, 0, 10 * K, &target), 0);
	cr_assert_eq(target.count, 2);
	cr_assert_eq(target.at[0].end, K);
	cr_assert_eq(target.at[1].start, K);
	cr_assert_eq(target.at[1].physical, 9 * K + K - 512);
	extents_differ(NULL, &target, &got, &got_to);
	cr_assert_str_eq(ranges(), "0-2");
}

/* It begins anywhere, too; one that is widened over all of the next leaves nothing of it. */
Test(extents, widens_to_both_sides)
{
	struct fiemap_extent list[] = {
		{.fe_logical = 2 * K + 100, .fe_length = 100, .fe_flags = FIEMAP_EXTENT_DATA_TAIL},
		{.fe_logical = 2 * K + 512, .fe_length = K - 512, .fe_physical = K}, E(3, 1, 8, 0)};
	cr_assert_eq(extents_take(list, 3, EXTENTS_MAX, K, 10 * K, &target), 0);
	cr_assert_eq(target.from, K);
	cr_assert_eq(target.count, 2);
	cr_assert_eq(target.at[0].start, 2 * K);
	cr_assert_eq(target.at[0].end, 3 * K);
	cr_assert_eq(target.at[1].start, 3 * K);
	cr_assert_eq(target.at[1].physical, 8 * K);
	extents_differ(NULL, &target, &got, &got_to);
	cr_assert_str_eq(ranges(), "2-4");
}

Test(extents, what_only_touches_a_window_is_not_in_it)
{
	TAKE(&target, 4, 8, E(2, 2, 20, 0), E(5, 1, 30, 0), E(8, 2, 40, 0));
	cr_assert_eq(target.from, 4 * K);
	cr_assert_eq(target.count, 1);
	cr_assert_eq(target.at[0].start, 5 * K);
	TAKE(&target, 4, 4, E(2, 2, 20, 0));
	cr_assert_eq(target.count, 0);
	extents_differ(NULL, &target, &got, &got_to);
	cr_assert_eq(got_to, 4 * K);
	cr_assert_eq(got.count, 0);
}

/* ---- two images ---- */

Test(extents, one_place_is_one_data)
{
	TAKE(&base, 0, 100, E(0, 50, 200, 0));
	TAKE(&target, 0, 100, E(0, 10, 200, 0), E(10, 2, 900, 0), E(12, 38, 212, 0));
	cr_assert_str_eq(differ(), "10-12");
	/* The same place for another block of the image is another matter. */
	TAKE(&target, 0, 100, E(1, 50, 200, 0));
	cr_assert_str_eq(differ(), "0-51");
}

Test(extents, holes_and_unwritten_are_zeros)
{
	TAKE(&base, 0, 100, E(0, 10, 200, 0), E(20, 10, 300, FIEMAP_EXTENT_UNWRITTEN));
	TAKE(&target, 0, 100, E(50, 10, 700, FIEMAP_EXTENT_UNWRITTEN));
	cr_assert_str_eq(differ(), "0-10"); /* punched since */
	cr_assert_eq(got_to, 100 * K);
	TAKE(&base, 0, 5, E(0, 10, 200, 0));
	cr_assert_str_eq(differ(), "0-5", "as far as both are known");
	cr_assert_eq(got_to, 5 * K);
	TAKE(&base, 0, 100, E(0, 10, 200, FIEMAP_EXTENT_UNWRITTEN));
	TAKE(&target, 0, 100, E(0, 10, 200, 0)); /* written since, at the same place */
	cr_assert_str_eq(differ(), "0-10");
}

Test(extents, what_does_not_say_where_it_is_differs)
{
	static const uint32_t flags[] = {FIEMAP_EXTENT_UNKNOWN, FIEMAP_EXTENT_DELALLOC,
		FIEMAP_EXTENT_ENCODED, FIEMAP_EXTENT_DATA_INLINE, FIEMAP_EXTENT_NOT_ALIGNED,
		FIEMAP_EXTENT_DATA_TAIL, FIEMAP_EXTENT_DATA_ENCRYPTED,
		FIEMAP_EXTENT_UNWRITTEN | FIEMAP_EXTENT_DELALLOC};
	for (unsigned i = 0; i < sizeof(flags) / sizeof(flags[0]); i++) {
		TAKE(&base, 0, 100, E(4, 4, 200, flags[i]));
		TAKE(&target, 0, 100, E(4, 4, 200, flags[i]));
		cr_assert_str_eq(differ(), "4-8", "%x", flags[i]);
		TAKE(&target, 0, 100, E(4, 4, 200, 0));
		cr_assert_str_eq(differ(), "4-8", "%x", flags[i]);
	}
}

/* ---- against a model ---- */

enum { BLOCKS = 64 };

/* What lies at each block: 0 for zeros, -1 for anything, else the place. */
static void draw(unsigned *seed, const int *like, int *model, struct extent_map *map)
{
	struct fiemap_extent list[BLOCKS];
	unsigned count = 0;
	for (int i = 0; i < BLOCKS; i++) {
		model[i] = like != NULL ? like[i] : 0;
		if (like == NULL || rand_r(seed) % 4 == 0)
			model[i] = rand_r(seed) % 3 == 0 ? 0 : 1 + rand_r(seed) % 200;
		if (i > 0 && model[i - 1] > 0 && rand_r(seed) % 2 == 0)
			model[i] = model[i - 1] + 1;
		if (rand_r(seed) % 40 == 0)
			model[i] = -1;
	}
	for (int i = 0; i < BLOCKS; i++) {
		bool unwritten = model[i] == 0 && rand_r(seed) % 3 == 0;
		if (model[i] == 0 && !unwritten)
			continue;
		uint32_t flags = unwritten        ? FIEMAP_EXTENT_UNWRITTEN
				 : model[i] == -1 ? FIEMAP_EXTENT_ENCODED
						  : 0;
		struct fiemap_extent *last = count > 0 ? &list[count - 1] : NULL;
		if (last != NULL && flags == 0 && last->fe_flags == 0 && model[i - 1] > 0 &&
			model[i] == model[i - 1] + 1)
			last->fe_length += K;
		else
			list[count++] = (struct fiemap_extent)E(
				i, 1, model[i] > 0 ? (unsigned)model[i] : 7u, flags);
	}
	cr_assert_eq(extents_take(list, count, BLOCKS + 1, 0, BLOCKS * K, map), 0);
}

Test(extents, as_a_model_says)
{
	for (unsigned round = 0; round < 20000; round++) {
		unsigned seed = round;
		int a[BLOCKS], b[BLOCKS];
		bool said[BLOCKS] = {false};
		draw(&seed, NULL, a, &base);
		draw(&seed, a, b, &target);
		(void)differ();
		cr_assert_eq(got_to, BLOCKS * K);
		for (unsigned i = 0; i < got.count; i++) {
			cr_assert_lt(got.at[i].start, got.at[i].end, "round %u", round);
			cr_assert(i == 0 || got.at[i - 1].end < got.at[i].start, "round %u", round);
			for (uint64_t at = got.at[i].start; at < got.at[i].end; at += K)
				said[at / K] = true;
		}
		for (int i = 0; i < BLOCKS; i++)
			cr_assert_eq(said[i], a[i] != b[i] || a[i] == -1, "round %u, block %d",
				round, i);
	}
}

/* ---- while extents move ---- */

static unsigned looks, still_after, calls, fails_at;

/* The base (1) lies elsewhere at each look until it is still. */
static int moving_map(int fd, uint64_t from, uint64_t to, struct extent_map *ret)
{
	looks += fd == 1;
	unsigned place = fd == 1 && looks < still_after ? 100 + looks : 300;
	TAKE(ret, from / K, to / K, E(0, 10, place, 0));
	return 0;
}

static int failing_map(int fd, uint64_t from, uint64_t to, struct extent_map *ret)
{
	return ++calls == fails_at ? -EIO : moving_map(fd, from, to, ret);
}

Test(extents, a_base_that_moves_is_looked_at_again)
{
	static struct extents_window w = {.map = moving_map, .base_fd = 1, .target_fd = 2};
	looks = 0;
	still_after = 3;
	cr_assert_eq(extents_window(&w, 0, 20 * K, &got, &got_to), 0);
	cr_assert_str_eq(ranges(), "");
	cr_assert_eq(looks, 4);
	looks = 0;
	still_after = 1000;
	cr_assert_eq(extents_window(&w, 0, 20 * K, &got, &got_to), -EAGAIN);
	cr_assert_eq(looks, 5, "four times against the one before");
	w.map = failing_map;
	still_after = 1;
	for (fails_at = 1; fails_at <= 3; fails_at++) {
		calls = looks = 0;
		cr_assert_eq(extents_window(&w, 0, 20 * K, &got, &got_to), -EIO);
	}
}

/* The base in three looks: the first, then one in which it has changed, then that one again. */
static struct fiemap_extent seen[2][3];
static unsigned seen_count[2];

static int changing_map(int fd, uint64_t from, uint64_t to, struct extent_map *ret)
{
	unsigned i = fd == 1 && looks > 0;
	looks += fd == 1;
	return fd == 1 ? extents_take(seen[i], seen_count[i], EXTENTS_MAX, from, to, ret)
		       : extents_take(NULL, 0, EXTENTS_MAX, from, to, ret);
}

/* Whatever changes: how many there are, where one is, how long, where it lies, whether it says. */
Test(extents, a_base_that_changes_is_looked_at_again)
{
	static struct extents_window w = {.map = changing_map, .base_fd = 1, .target_fd = 2};
	static const struct {
		struct fiemap_extent second;
		unsigned count;
		const char *said; /* of the later look: the target has nothing */
		unsigned looks;
	} cases[] = {
		{E(4, 2, 50, 0), 2, "0-2 4-6", 2}, /* nothing has changed */
		{E(4, 2, 50, 0), 1, "0-2", 3},
		{E(4, 2, 50, 0), 3, "0-2 4-6 8-9", 3},
		{E(3, 3, 50, 0), 2, "0-2 3-6", 3},
		{E(4, 3, 50, 0), 2, "0-2 4-7", 3},
		{E(4, 2, 51, 0), 2, "0-2 4-6", 3},
		{E(4, 2, 50, FIEMAP_EXTENT_ENCODED), 2, "0-2 4-6", 3},
	};
	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		const struct fiemap_extent list[3] = {
			E(0, 2, 10, 0), E(4, 2, 50, 0), E(8, 1, 60, 0)};
		memcpy(seen[0], list, sizeof(list));
		memcpy(seen[1], list, sizeof(list));
		seen[1][1] = cases[i].second;
		seen_count[0] = 2;
		seen_count[1] = cases[i].count;
		looks = 0;
		cr_assert_eq(extents_window(&w, 0, 20 * K, &got, &got_to), 0);
		cr_assert_str_eq(ranges(), cases[i].said, "case %u", i);
		cr_assert_eq(got_to, 20 * K);
		cr_assert_eq(looks, cases[i].looks, "case %u", i);
	}
}

/* How many extents one look has at most: of the target, and of the base's later looks. */
static unsigned target_most, later_most;

static int cut_map(int fd, uint64_t from, uint64_t to, struct extent_map *ret)
{
	static const struct fiemap_extent its[] = {E(0, 5, 10, 0), E(5, 5, 15, 0)};
	bool later = fd == 1 && looks > 0;
	looks += fd == 1;
	return fd == 2 ? extents_take(its, target_most, target_most, from, to, ret)
	       : later ? extents_take(seen[0], later_most, later_most, from, to, ret)
		       : extents_take(seen[0], seen_count[0], EXTENTS_MAX, from, to, ret);
}

/* Only as far as all three looks reach: what is behind is of the next window, and no change. */
Test(extents, a_look_that_comes_short_is_no_change)
{
	static struct extents_window w = {.map = cut_map, .base_fd = 1, .target_fd = 2};
	const struct fiemap_extent list[3] = {E(0, 2, 10, 0), E(4, 2, 50, 0), E(8, 1, 60, 0)};
	memcpy(seen[0], list, sizeof(list));
	seen_count[0] = 3;
	target_most = 1;
	later_most = 2;
	looks = 0;
	cr_assert_eq(extents_window(&w, 0, 20 * K, &got, &got_to), 0);
	cr_expect_str_eq(ranges(), "2-5");
	cr_expect_eq(got_to, 5 * K);
	cr_expect_eq(looks, 2, "it is the same as far as the target was looked at");
	/* The base's later look may be the shortest. */
	seen_count[0] = 1;
	target_most = 2;
	later_most = 1;
	looks = 0;
	cr_assert_eq(extents_window(&w, 0, 20 * K, &got, &got_to), 0);
	cr_expect_str_eq(ranges(), "");
	cr_expect_eq(got_to, 2 * K);
}

Test(extents, a_window_without_a_base_has_what_the_target_has)
{
	static struct extents_window w = {.map = failing_map, .base_fd = -1, .target_fd = 2};
	fails_at = calls = 0;
	cr_assert_eq(extents_window(&w, 2 * K, 20 * K, &got, &got_to), 0);
	cr_assert_str_eq(ranges(), "2-10");
	cr_assert_eq(got_to, 20 * K);
	cr_assert_eq(calls, 1);
	fails_at = 2;
	cr_assert_eq(extents_window(&w, 2 * K, 20 * K, &got, &got_to), -EIO);
}

/* What is behind the end of the shorter map is of the next window. */
static int short_map(int fd, uint64_t from, uint64_t to, struct extent_map *ret)
{
	static struct fiemap_extent list[EXTENTS_MAX];
	for (unsigned i = 0; i < EXTENTS_MAX; i++)
		list[i] = (struct fiemap_extent)E(from / K + 2 * i, 1, 1000 + 2 * i, 0);
	/* The base has something just there, and is asked for no more than that the second time. */
	const struct fiemap_extent behind = E(from / K + 2 * EXTENTS_MAX - 1, 1, 5000, 0);
	looks += fd == 1;
	if (fd == 1)
		return extents_take(&behind, 1, EXTENTS_MAX, from, to, ret);
	return extents_take(list, EXTENTS_MAX, EXTENTS_MAX, from, to, ret);
}

Test(extents, a_window_ends_with_the_shorter_map)
{
	static struct extents_window w = {.map = short_map, .base_fd = 1, .target_fd = 2};
	cr_assert_eq(extents_window(&w, 0, 5000 * K, &got, &got_to), 0);
	cr_assert_eq(got_to, (2 * (uint64_t)EXTENTS_MAX - 1) * K);
	cr_assert_eq(got.count, EXTENTS_MAX);
	cr_assert_eq(looks, 2, "it has not changed");
}

Test(extents, places_name_blocks_only_where_that_is_known)
{
	cr_assert(extents_comparable(XFS_SUPER_MAGIC));
	cr_assert(extents_comparable(BTRFS_SUPER_MAGIC));
	cr_assert_not(extents_comparable(EXT4_SUPER_MAGIC));
	cr_assert_not(extents_comparable(OVERLAYFS_SUPER_MAGIC));
	cr_assert_not(extents_comparable(0xca451a4e)); /* bcachefs */
}

Test(extents, what_moves_data)
{
	cr_assert(fs_moves_while("balance"));
	cr_assert(fs_moves_while("resize"));
	cr_assert(fs_moves_while("device remove"));
	cr_assert_not(fs_moves_while("none"));
	cr_assert_not(fs_moves_while("balance paused"));
	cr_assert_not(fs_moves_while("device replace"));
	char what[FS_MOVES_WHAT_BYTES];
	cr_assert_not(fs_moves(0, "/nowhere", what));
}
