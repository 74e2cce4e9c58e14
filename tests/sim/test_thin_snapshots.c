/* SPDX-License-Identifier: Apache-2.0 */
/* What blocks snapshots of a raw pool have, by ids and metadata that are taken on the loop: over a
 * dm-thin in memory, whose metadata are written by hand. */
#include "thin_world.h"

#include "disk/thin_node.h"
#include "pool/thin_snapshots.h"

enum { BLOCK_BYTES = 64 << 10 };

static void snapshot(struct fixture *f, const char *name)
{
	struct record rec = thin_volume(name, 6);
	char id[RECORD_ID_MAX];
	pool_object_id(find(f, "origin"), id);
	rec.kind = RECORD_SNAPSHOT;
	rec.source = RECORD_SOURCE_VOLUME;
	rec.source_id = id;
	rec.shares_extents = true;
	cr_assert_eq(build(f, &rec, find(f, "origin")), ERR_OK);
}

/* The first id has the first block, the second the first two, and so on. */
static void write_blocks(struct fixture *f, const uint32_t *ids, unsigned count)
{
	uint8_t block[META_BLOCK];
	uint64_t trees[4][2], pairs[4][2];
	struct meta_super super = new_super;
	cr_assert_leq(count, 4);
	super.mappings = 2;
	for (unsigned i = 0; i < count; i++) {
		pairs[i][0] = i;
		pairs[i][1] = (uint64_t)(100 + i) << THIN_MAPPING_BITS;
		trees[i][0] = ids[i];
		trees[i][1] = 3 + i;
		meta_write_node(block, 3 + i, true, 8, pairs, i + 1);
		write_metadata(f, 3 + i, block);
	}
	meta_write_node(block, 2, true, 8, trees, count);
	write_metadata(f, 2, block);
	meta_write_super(block, &super);
	write_metadata(f, 0, block);
}

/* Of what target has and base has not, there is one range, of these blocks; or none. */
static void tells(
	struct fixture *f, const char *base, const char *target, uint64_t from, uint64_t to)
{
	struct pool_thin_snapshots s = {0};
	struct extent_ranges ranges = {0};
	struct err err = {0};
	uint64_t at;
	const struct pool_object *of = base != NULL ? find(f, base) : NULL;
	cr_assert_eq(pool_thin_snapshots_take(&s, of, find(f, target), &err), 0, "%s", err.message);
	int r = pool_thin_snapshots_window(&s, 0, 6 * RAW_MIB, &ranges, &at);
	cr_assert_eq(r, 0, "%s: %d", target, r);
	cr_assert_eq(at, 6 * RAW_MIB);
	cr_assert_eq(ranges.count, from < to, "%s: %u", target, ranges.count);
	if (from < to)
		cr_assert(ranges.at[0].start == from * BLOCK_BYTES &&
				  ranges.at[0].end == to * BLOCK_BYTES,
			"%s: %llu to %llu", target, (unsigned long long)ranges.at[0].start,
			(unsigned long long)ranges.at[0].end);
	pool_thin_snapshots_release(&s);
}

static void is_refused(struct fixture *f, const char *base, const char *target, enum err_code code,
	const char *why)
{
	struct pool_thin_snapshots s = {0};
	struct err err = {0};
	unsigned refs = f->pool->raw->disk->refs;
	const struct pool_object *of = base != NULL ? find(f, base) : NULL;
	cr_assert_lt(pool_thin_snapshots_take(&s, of, find(f, target), &err), 0);
	cr_assert_eq(err.code, code, "%d: %s", err.code, err.message);
	cr_assert_not_null(strstr(err.message, why), "%s", err.message);
	pool_thin_snapshots_release(&s);
	cr_assert_eq(f->pool->raw->disk->refs, refs);
}

static void open_snapshots(struct fixture *f, struct ring_sim *sim)
{
	struct record rec = thin_volume("origin", 6), secret = thin_volume("empty", 6);
	open_sim(f, sim, 1);
	cr_assert_eq(build(f, &rec, NULL), ERR_OK);
	snapshot(f, "first");
	snapshot(f, "second");
	secret.encryption = RECORD_LUKS2;
	secret.unformatted = true;
	cr_assert_eq(build(f, &secret, NULL), ERR_OK);
	const uint32_t ids[] = {pool_entry(find(f, "origin"))->thin_id,
		pool_entry(find(f, "first"))->thin_id, pool_entry(find(f, "second"))->thin_id};
	cr_assert(ids[0] < ids[1] && ids[1] < ids[2]);
	write_blocks(f, ids, 3);
}

static void close_snapshots(struct fixture *f)
{
	fake_thin_pool_words = NULL;
	fixture_close(f);
	bytes_drop();
}

/* What was never staged has no id, and reads as zeros. */
Test(thin_snapshots, tell_what_they_have, .timeout = 100)
{
	struct fixture f;
	struct ring_sim sim;
	open_snapshots(&f, &sim);
	tells(&f, NULL, "first", 0, 2);
	tells(&f, NULL, "second", 0, 3);
	tells(&f, "first", "second", 2, 3);
	tells(&f, "origin", "second", 1, 3);
	tells(&f, "second", "second", 0, 0);
	tells(&f, NULL, "empty", 0, 0);
	tells(&f, "empty", "first", 0, 2);
	tells(&f, "first", "empty", 0, 2);
	close_snapshots(&f);
}

/* The disks are held as long as a look at them takes, and let go once. */
Test(thin_snapshots, hold_the_disks_meanwhile, .timeout = 100)
{
	struct fixture f;
	struct ring_sim sim;
	struct pool_thin_snapshots s = {0};
	struct err err = {0};
	open_snapshots(&f, &sim);
	const struct disk *disk = f.pool->raw->disk;
	unsigned refs = disk->refs;
	pool_thin_snapshots_release(&s);
	cr_assert_eq(pool_thin_snapshots_take(&s, NULL, find(&f, "first"), &err), 0);
	cr_assert_eq(disk->refs, refs + 1);
	pool_thin_snapshots_release(&s);
	cr_assert_eq(disk->refs, refs);
	pool_thin_snapshots_release(&s);
	cr_assert_eq(disk->refs, refs);
	close_snapshots(&f);
}

/* While it is not active nothing is said, but of what has no bytes in it. */
Test(thin_snapshots, say_nothing_of_what_is_away, .timeout = 100)
{
	struct fixture f;
	struct ring_sim sim;
	open_snapshots(&f, &sim);
	struct pool_thin *thin = &f.pool->raw->thin;
	fake_dm_reboot(true);
	look(&f);
	cr_assert_eq(thin->life, THIN_DOWN);
	is_refused(&f, NULL, "first", thin->why_code, thin->why);
	is_refused(&f, "first", "second", thin->why_code, thin->why);
	is_refused(&f, "first", "empty", thin->why_code, thin->why);
	is_refused(&f, "empty", "first", thin->why_code, thin->why);
	tells(&f, NULL, "empty", 0, 0);
	tells(&f, "empty", "empty", 0, 0);
	thin->why[0] = '\0';
	is_refused(&f, NULL, "first", ERR_UNAVAILABLE, "is not active; try again");
	forget_activity(&f);
	look(&f);
	tells(&f, NULL, "first", 0, 2);
	f.pool->life = POOL_AWAY;
	is_refused(&f, NULL, "first", ERR_UNAVAILABLE, "");
	is_refused(&f, NULL, "empty", ERR_UNAVAILABLE, "");
	f.pool->life = POOL_SERVED;
	close_snapshots(&f);
}
