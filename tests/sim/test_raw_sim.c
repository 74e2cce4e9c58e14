/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Creates in a raw pool in a simulated ring, with each step, then each request and job failed in
 * turn. Whatever fails: when the trash is empty, as much is free as before, what is free is zeros,
 * and the next attempt succeeds.
 */
#include "../unit/raw_fixture.h"
#include "faults.h"

#include "pool/index.h"

enum { AREA_MIB = 24, SEEDS = 4 };

static void open_sim(struct fixture *f, struct ring_sim *sim, uint64_t seed)
{
	disarm();
	raw_make(f, AREA_MIB);
	*sim = (struct ring_sim){
		.seed = seed, .short_every = 3, .eintr_every = 7, .fault = request_fault};
	fixture_open_ring(f, sim);
	f->observer = (struct op_observer){.before = step_fault, .before_call = job_fault};
	raw_open_pools(f);
}

/* What is free is zeros, nothing else is taken, and nothing is held. */
static void check_nothing_left(struct fixture *f, uint64_t free_mib, unsigned fds)
{
	cr_assert_eq(fixture_count_fds(f), fds, "%s", fault.what);
	cr_assert_eq(raw_free_mib(f), free_mib, "%s: %llu MiB", fault.what,
		(unsigned long long)raw_free_mib(f));
	cr_assert_eq(raw_dirty_mib(f), 0, "%s", fault.what);
	cr_assert_eq(f->pool->reserved_bytes, 0, "%s", fault.what);
	cr_assert_eq(fixture_count(f, "trash"), 0, "%s", fault.what);
	struct image_map all = {0};
	cr_assert_eq(area_take(f->pool->raw->area, free_mib * RAW_MIB, &all), 0);
	cr_assert(raw_bytes(&all, false, 0), "%s", fault.what);
	area_give_map(f->pool->raw->area, &all, 0);
}

static void remove_named(struct fixture *f, const char *name)
{
	struct pool_object *o = pools_find_name(f->pools, RECORD_VOLUME, name);
	cr_assert_not_null(o, "%s", fault.what);
	cr_assert_eq(fixture_remove(f, o), ERR_OK, "%s", fault.what);
	fixture_settle(f);
}

/* False: nothing met the fault. */
static bool try_clone(struct fixture *f, const char *name, bool requests, int n)
{
	struct pool_object *source = pools_find_name(f->pools, RECORD_VOLUME, "source");
	struct record rec = raw_volume("clone", 6);
	unsigned fds = fixture_count_fds(f);
	uint64_t free_mib = raw_free_mib(f);
	arm(name, requests, n);
	enum err_code code = fixture_build(f, &rec, source, NULL);
	bool hit = disarm();
	cr_assert(hit || code == ERR_OK, "%s", fault.what);
	/* It may have failed after the commit. */
	if (pools_find_name(f->pools, RECORD_VOLUME, "clone") == NULL) {
		cr_assert_neq(code, ERR_OK);
		check_nothing_left(f, free_mib, fds);
		cr_assert_eq(fixture_build(f, &rec, source, NULL), ERR_OK, "%s", fault.what);
	}
	struct image_map map = raw_map(f, "volumes/clone");
	image_map_cut(&map, 4 * RAW_MIB);
	cr_assert(raw_bytes(&map, false, 0xaa), "%s", fault.what);
	remove_named(f, "clone");
	check_nothing_left(f, free_mib, fds);
	return hit;
}

static unsigned sweep(struct fixture *f, const char *name, bool requests)
{
	int n = 0;
	while (try_clone(f, name, requests, n))
		n++;
	return (unsigned)n;
}

Test(raw_sim, clone, .timeout = 200)
{
	for (uint64_t seed = 1; seed <= SEEDS; seed++) {
		struct fixture f;
		struct ring_sim sim;
		open_sim(&f, &sim, seed);
		raw_make_volume(&f, "source", 4);
		struct image_map map = raw_map(&f, "volumes/source");
		raw_bytes(&map, true, 0xaa);
		cr_assert_geq(sweep(&f, "pool_build", false), 8);
		cr_assert_geq(sweep(&f, "pool_clone", false), 3);
		cr_assert_geq(sweep(&f, "pool_build", true), 10);
		fixture_close(&f);
	}
}
