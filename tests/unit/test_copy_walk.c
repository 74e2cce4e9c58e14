/* SPDX-License-Identifier: Apache-2.0 */
/* The walk over an image's data, on a file of the test's own (the linker puts its lseek() there,
 * and its differ_look()): what is told, in what pieces, and how it ends. */
#include "blockio/copy_walk.h"
#include "full_queue.h"
#include "simring/sim.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>

enum { K = 4096, FD = 777, PARTS_MAX = 300, TOLD_MAX = 400 };
#define SIZE (1ULL << 30)

static struct ring *ring;
static struct ring_sim sim = {.seed = 1};
static struct work *work;
static struct copy_walk walk;

/* ---- the file ---- */

static struct {
	struct copy_extent parts[PARTS_MAX]; /* its data, in order */
	unsigned count, calls;
	unsigned fails_at; /* the call that does, from 1 on */
	int with;
	uint64_t window; /* bytes that a look at two images takes in */
	struct differ differ;
} file;

off_t __wrap_lseek64(int fd, off_t at, int whence);
off_t __wrap_lseek64(int fd, off_t at, int whence)
{
	cr_assert_eq(fd, FD);
	errno = ++file.calls == file.fails_at ? file.with : ENXIO;
	if (file.calls == file.fails_at)
		return -1;
	for (unsigned i = 0; i < file.count; i++) {
		const struct copy_extent *e = &file.parts[i];
		if (e->end <= (uint64_t)at)
			continue;
		if (whence == SEEK_DATA)
			return (off_t)(e->start > (uint64_t)at ? e->start : (uint64_t)at);
		cr_assert_leq(e->start, (uint64_t)at);
		return (off_t)e->end;
	}
	return -1;
}

int __wrap_differ_look(
	struct differ *d, uint64_t from, uint64_t to, struct extent_ranges *ret, uint64_t *ret_to);
int __wrap_differ_look(
	struct differ *d, uint64_t from, uint64_t to, struct extent_ranges *ret, uint64_t *ret_to)
{
	cr_assert_eq(d, &file.differ);
	cr_assert_lt(from, to);
	if (++file.calls == file.fails_at)
		return -file.with;
	*ret_to = to - from > file.window ? from + file.window : to;
	ret->count = 0;
	for (unsigned i = 0; i < file.count; i++) {
		struct copy_extent e = file.parts[i];
		e.start = e.start > from ? e.start : from;
		e.end = e.end < *ret_to ? e.end : *ret_to;
		if (e.start < e.end)
			extent_ranges_add(ret, e.start, e.end);
	}
	return 0;
}

/* So many parts of 4 KiB, each that far from the one before. */
static void parts(unsigned count, uint64_t every)
{
	memset(&file, 0, sizeof(file));
	file.window = SIZE;
	file.count = count;
	for (unsigned i = 0; i < count; i++)
		file.parts[i] = (struct copy_extent){i * every, i * every + K};
}

/* ---- the walk ---- */

static struct copy_extent told[TOLD_MAX];
static unsigned told_count, woken;

static void on_extents(struct copy_walk *w)
{
	cr_assert(w == &walk && !w->running);
	woken++;
}

static void take(void)
{
	struct copy_extent *e;
	while ((e = copy_walk_extent(&walk)) != NULL) {
		cr_assert_lt(e->start, e->end);
		cr_assert_not(copy_walk_at_end(&walk));
		cr_assert_lt(told_count, TOLD_MAX);
		told[told_count++] = *e;
		copy_walk_next(&walk);
	}
}

/* Until it ends: what it says then. */
static int go(void)
{
	told_count = woken = 0;
	for (unsigned i = 0; walk.res == 0 && !copy_walk_at_end(&walk); i++) {
		cr_assert_lt(i, 1000);
		cr_assert_eq(ring_turn(ring, true), 0);
		take();
	}
	cr_assert_gt(woken, 0);
	cr_assert_not(walk.running);
	return walk.res;
}

static int go_over_file(uint64_t from, uint64_t size)
{
	cr_assert_eq(copy_walk_start(&walk, work, NULL, FD, from, size, on_extents), 0);
	cr_assert(walk.running && !copy_walk_at_end(&walk));
	return go();
}

static int go_over_difference(uint64_t from, uint64_t size)
{
	cr_assert_eq(
		copy_walk_start_differ(&walk, work, NULL, &file.differ, from, size, on_extents), 0);
	return go();
}

static int (*const walks[])(uint64_t from, uint64_t size) = {go_over_file, go_over_difference};

static void setup(void)
{
	cr_assert_eq(ring_sim_open(&ring, &sim), 0);
	cr_assert_eq(work_open(&work, ring, 1), 0);
}

static void teardown(void)
{
	work_close(work);
	ring_close(ring);
}

TestSuite(copy_walk, .init = setup, .fini = teardown);

/* ---- tests ---- */

/* To whole blocks, but not beyond the image, and nothing twice. */
Test(copy_walk, data_is_widened_and_joined)
{
	static const struct {
		struct copy_extent data[2];
		uint64_t from, size;
		struct copy_extent told[2];
	} cases[] = {
		{{{5000, 6000}}, 0, SIZE, {{K, 2 * K}}},
		{{{K, 2 * K}}, 0, SIZE, {{K, 2 * K}}},
		{{{1, 2}, {K, K + 1}}, 0, SIZE, {{0, 2 * K}}},
		{{{1, 2}, {2 * K, 2 * K + 1}}, 0, SIZE, {{0, K}, {2 * K, 3 * K}}},
		{{{1, 2}, {300, 400}}, 0, SIZE, {{0, K}}},
		{{{1, 2}, {300, K + 1}}, 0, SIZE, {{0, 2 * K}}},
		{{{9000, 9001}}, 0, 10000, {{2 * K, 10000}}},
		{{{9000, 20000}}, 0, 10000, {{2 * K, 10000}}},
		{{{9000, 10000}}, 0, 10000, {{2 * K, 10000}}},
		{{{10000, 20000}}, 0, 10000, {{0, 0}}},
		{{{9999, 20000}}, 0, 10000, {{2 * K, 10000}}},
		{{{20000, 30000}}, 0, 10000, {{0, 0}}},
		{{{0, 5 * K}}, 2 * K, SIZE, {{2 * K, 5 * K}}},
		{{{0, K}, {2 * K, 5 * K}}, 2 * K, SIZE, {{2 * K, 5 * K}}},
		{{{0, 5 * K}}, 2 * K, 2 * K, {{0, 0}}},
		{{{0, 0}}, 0, SIZE, {{0, 0}}},
	};
	for (unsigned i = 0; i < 2 * sizeof(cases) / sizeof(cases[0]); i++) {
		unsigned n = i / 2, want = 0;
		parts(0, 0);
		for (; file.count < 2 && cases[n].data[file.count].end > 0; file.count++)
			file.parts[file.count] = cases[n].data[file.count];
		while (want < 2 && cases[n].told[want].end > 0)
			want++;
		cr_assert_eq(walks[i % 2](cases[n].from, cases[n].size), 0);
		cr_assert_eq(told_count, want, "case %u: %u", n, told_count);
		cr_assert_arr_eq(told, cases[n].told, want * sizeof(told[0]), "case %u", n);
	}
}

/* Batches end wherever they are full, a look wherever it likes. */
Test(copy_walk, nothing_is_lost_between_batches)
{
	static const unsigned counts[] = {1, COPY_WALK_BATCH - 1, COPY_WALK_BATCH,
		COPY_WALK_BATCH + 1, 2 * COPY_WALK_BATCH, 2 * COPY_WALK_BATCH + 1, PARTS_MAX};
	static const uint64_t windows[] = {SIZE, K, 3 * K, 100 * K};
	for (unsigned i = 0; i < sizeof(counts) / sizeof(counts[0]); i++) {
		for (unsigned j = 0; j < 5; j++) {
			parts(counts[i], 2 * K);
			file.window = windows[j % 4];
			uint64_t size = file.parts[file.count - 1].end;
			cr_assert_eq(walks[j < 4](0, size), 0);
			cr_assert_eq(told_count, counts[i], "%u: %u", counts[i], told_count);
			cr_assert_arr_eq(told, file.parts, told_count * sizeof(told[0]));
		}
	}
}

/* It becomes part of the last one, however full the batch is. */
Test(copy_walk, what_touches_does_not_fill_a_batch)
{
	parts(COPY_WALK_BATCH, 2 * K);
	file.parts[file.count] = file.parts[file.count - 1];
	file.parts[file.count].start += K;
	file.parts[file.count++].end += K;
	for (unsigned i = 0; i < 2; i++) {
		cr_assert_eq(walks[i](0, SIZE), 0);
		cr_assert_eq(told_count, COPY_WALK_BATCH);
		cr_assert_eq(told[told_count - 1].end, file.parts[file.count - 1].end);
	}
}

/* At whatever call: it does not end as if there were no more. */
Test(copy_walk, failures_are_told)
{
	for (unsigned i = 0; i < 2; i++) {
		unsigned nth = 1;
		for (bool failed = true; failed; nth++) {
			parts(COPY_WALK_BATCH + 10, 2 * K);
			file.window = 100 * K;
			file.fails_at = nth;
			file.with = EIO;
			int r = walks[i](0, 1000 * K);
			failed = file.calls >= nth;
			cr_assert_eq(r, failed ? -EIO : 0, "call %u: %d", nth, r);
			cr_assert_eq(copy_walk_at_end(&walk), !failed);
			cr_assert(failed || told_count == file.count);
		}
		cr_assert_gt(nth, 3);
	}
}

Test(copy_walk, all_is_one)
{
	cr_assert_eq(copy_walk_start_all(&walk, work, NULL, 5 * K + 1, on_extents), 0);
	cr_assert_eq(go(), 0);
	cr_assert_eq(told_count, 1);
	cr_assert(told[0].start == 0 && told[0].end == 5 * K + 1);
}

Test(copy_walk, no_room_for_a_job)
{
	/* At first. */
	parts(COPY_WALK_BATCH + 1, 2 * K);
	fill_queue(work);
	cr_assert_eq(copy_walk_start(&walk, work, NULL, FD, 0, SIZE, on_extents), -EAGAIN);
	cr_assert_not(walk.running);
	cr_assert_eq(ring_sim_settle(ring, 1000), 0);
	/* For the batch after the first: that one is told, and then why no more come. */
	woken = 0;
	cr_assert_eq(copy_walk_start(&walk, work, NULL, FD, 0, SIZE, on_extents), 0);
	while (woken == 0)
		cr_assert_eq(ring_turn(ring, true), 0);
	fill_queue(work);
	told_count = 0;
	take();
	cr_assert_eq(told_count, COPY_WALK_BATCH);
	cr_assert_eq(walk.res, -EAGAIN);
	cr_assert_not(walk.running);
	cr_assert_not(copy_walk_at_end(&walk));
}
