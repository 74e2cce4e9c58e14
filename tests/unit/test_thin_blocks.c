/* SPDX-License-Identifier: Apache-2.0 */
/* Which blocks of two thin ids differ, against a model: random histories, written by hand as trees
 * that share their equal nodes, as dm-thin's do. The disk is a file. */
#include "disk/thin_blocks.h"
#include "disk/thin_node.h"
#include "thin_metadata.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MIB = 1 << 20, META_MIB = 16, KEYS = 900, IDS = 3, TOP = 1, FIRST = 2, HISTORIES = 1500 };
enum { BLOCK_BYTES = 64 << 10, NODES = META_MIB * MIB / META_BLOCK, HASHES = 4 * NODES };

struct made_node {
	bool leaf;
	unsigned count;
	uint64_t pairs[8][2];
};

static struct world {
	struct disk disk;
	struct image_map map;
	struct made_node nodes[NODES]; /* FIRST on: by number */
	unsigned node_count;
	uint16_t by_hash[HASHES];
	unsigned fan;             /* entries of a node */
	uint64_t data[IDS][KEYS]; /* the block and the time of each key; 0: it has none */
	uint64_t next_data;
} w;

static uint64_t seed;

static unsigned draw(unsigned below)
{
	seed = seed * 6364136223846793005u + 1442695040888963407u;
	return (unsigned)(seed >> 33) % below;
}

static void put(uint64_t number, const uint8_t *block)
{
	cr_assert_eq(
		pwrite(w.disk.members[0].fd, block, META_BLOCK, (off_t)(MIB + number * META_BLOCK)),
		META_BLOCK);
}

static bool is_same(const struct made_node *a, const struct made_node *b)
{
	return a->leaf == b->leaf && a->count == b->count &&
	       memcmp(a->pairs, b->pairs, sizeof(a->pairs[0]) * a->count) == 0;
}

/* The number of a node: of the one that is like it, if there is one. */
static uint64_t node(const struct made_node *n)
{
	uint8_t block[META_BLOCK];
	uint64_t hash = n->leaf;
	for (unsigned i = 0; i < n->count; i++)
		hash = (hash ^ n->pairs[i][0] ^ n->pairs[i][1] << 7) * 0x9e3779b97f4a7c15u;
	unsigned at = (unsigned)(hash >> 40) % HASHES;
	for (; w.by_hash[at] != 0; at = (at + 1) % HASHES)
		if (is_same(&w.nodes[w.by_hash[at]], n))
			return w.by_hash[at];
	cr_assert_lt(w.node_count, NODES);
	w.by_hash[at] = (uint16_t)w.node_count;
	w.nodes[w.node_count] = *n;
	meta_write_node(block, w.node_count, n->leaf, 8, n->pairs, n->count);
	put(w.node_count, block);
	return w.node_count++;
}

static void begin(unsigned fan)
{
	w.node_count = FIRST;
	w.next_data = 0;
	w.fan = fan;
	memset(w.data, 0, sizeof(w.data));
	memset(w.by_hash, 0, sizeof(w.by_hash));
}

/* The root of what an id has. */
static uint64_t tree(const uint64_t *data)
{
	uint64_t level[KEYS][2];
	unsigned count = 0;
	for (unsigned i = 0; i < KEYS; i++)
		if (data[i] != 0) {
			level[count][0] = i;
			level[count++][1] = data[i];
		}
	for (bool leaf = true;; leaf = false) {
		unsigned above = 0;
		uint64_t only = 0;
		for (unsigned from = 0; from < count || (leaf && from == 0); from += w.fan) {
			struct made_node n = {.leaf = leaf};
			while (n.count < w.fan && from + n.count < count) {
				memcpy(n.pairs[n.count], level[from + n.count], sizeof(n.pairs[0]));
				n.count++;
			}
			uint64_t first = n.count > 0 ? n.pairs[0][0] : 0;
			only = node(&n);
			level[above][0] = first;
			level[above++][1] = only;
		}
		if (above <= 1)
			return only;
		count = above;
	}
}

static void commit(void)
{
	uint8_t block[META_BLOCK];
	uint64_t pairs[IDS][2];
	const struct meta_super super = {.transaction = 1,
		.details = TOP,
		.mappings = TOP,
		.metadata_total = NODES,
		.metadata_used = w.node_count,
		.data_total = 1 << 20,
		.data_used = 1,
		.block_bytes = BLOCK_BYTES,
		.version = 2};
	for (unsigned i = 0; i < IDS; i++) {
		pairs[i][0] = i + 1;
		pairs[i][1] = tree(w.data[i]);
	}
	meta_write_node(block, TOP, true, 8, pairs, IDS);
	put(TOP, block);
	meta_write_super(block, &super);
	put(0, block);
}

static void world_open(void)
{
	w.disk.count = 1;
	w.disk.members[0] = (struct disk_member){
		.fd = memfd_create("disk", MFD_CLOEXEC), .bytes = 64 * (uint64_t)MIB};
	cr_assert_eq(ftruncate(w.disk.members[0].fd, 64 * (off_t)MIB), 0);
	cr_assert_eq(image_map_add(&w.map, MIB, META_MIB * (uint64_t)MIB), 0);
}

static uint64_t new_data(void)
{
	return ++w.next_data << THIN_MAPPING_BITS | draw(9);
}

/* A volume's life between two of its snapshots, which are ids 1 and 2; 3 is another volume's. */
static void history(void)
{
	begin(2 + draw(6));
	for (unsigned i = 0, full = draw(100); i < KEYS; i++)
		w.data[0][i] = draw(100) < full ? new_data() : 0;
	memcpy(w.data[1], w.data[0], sizeof(w.data[0]));
	for (unsigned n = draw(3) == 0 ? draw(800) : draw(12); n > 0; n--) {
		unsigned at = draw(KEYS), bytes = 1 + draw(20), what = draw(5);
		for (; bytes > 0 && at < KEYS; bytes--, at++)
			w.data[1][at] = what == 0 ? 0 : what == 1 ? w.data[1][at] : new_data();
	}
	/* A block's time alone says nothing. */
	if (draw(3) == 0)
		for (unsigned i = 0; i < KEYS; i += 7)
			w.data[1][i] ^= w.data[1][i] != 0 ? 1 : 0;
	for (unsigned i = draw(KEYS); i < KEYS; i += 1 + draw(9))
		w.data[2][i] = new_data();
	commit();
}

static bool differs(unsigned base, unsigned target, unsigned key)
{
	uint64_t b = base != 0 ? w.data[base - 1][key] : 0;
	uint64_t t = target != 0 ? w.data[target - 1][key] : 0;
	return b >> THIN_MAPPING_BITS != t >> THIN_MAPPING_BITS;
}

static unsigned windows, most_windows;

static void compare(unsigned base, unsigned target, uint64_t from, uint64_t to)
{
	static bool told[KEYS * BLOCK_BYTES / 4096];
	struct extent_ranges ranges;
	memset(told, 0, sizeof(told));
	unsigned count = 0;
	for (uint64_t at = from, next = from; at < to; at = next, count++) {
		cr_assert_eq(
			thin_blocks_window(&w.disk, &w.map, base, target, at, to, &ranges, &next),
			0);
		cr_assert(next > at && next <= to);
		uint64_t last = at;
		for (unsigned i = 0; i < ranges.count; i++) {
			cr_assert_geq(ranges.at[i].start, last);
			cr_assert_lt(ranges.at[i].start, ranges.at[i].end);
			cr_assert_leq(ranges.at[i].end, next);
			last = ranges.at[i].end;
			for (uint64_t b = ranges.at[i].start / 4096; b < last / 4096; b++)
				told[b] = true;
		}
	}
	windows += count;
	most_windows = count > most_windows ? count : most_windows;
	for (uint64_t b = from / 4096; b < to / 4096; b++)
		cr_assert_eq(told[b], differs(base, target, (unsigned)(b * 4096 / BLOCK_BYTES)),
			"%u to %u: %lu", base, target, (unsigned long)b);
}

Test(thin_blocks, random_histories, .timeout = 250)
{
	const uint64_t all = (uint64_t)KEYS * BLOCK_BYTES;
	world_open();
	for (unsigned n = 0; n < HISTORIES; n++) {
		seed = n + 1;
		history();
		uint64_t from = (uint64_t)draw(KEYS * BLOCK_BYTES / 4096) * 4096;
		compare(1, 2, 0, all);
		compare(2, 1, from, all);
		compare(0, 2, 0, all);
		compare(1, 0, from, all);
		compare(3, 2, from, from + (all - from) / 8192 * 4096);
		compare(1, 1, 0, all);
	}
	cr_assert_gt(most_windows, 3);
	cr_assert_gt(windows, 6 * HISTORIES);
	close(w.disk.members[0].fd);
}

/* What both share is not read, however large it is. */
Test(thin_blocks, what_is_shared_costs_nothing)
{
	world_open();
	begin(8);
	for (unsigned i = 0; i < KEYS; i++)
		w.data[0][i] = w.data[1][i] = new_data();
	w.data[1][KEYS - 1] = new_data();
	commit();
	struct extent_ranges ranges;
	uint64_t next;
	cr_assert_eq(thin_blocks_window(&w.disk, &w.map, 1, 2, 0, (uint64_t)KEYS * BLOCK_BYTES,
			     &ranges, &next),
		0);
	cr_assert_eq(next, (uint64_t)KEYS * BLOCK_BYTES);
	cr_assert_eq(ranges.count, 1);
	cr_assert_eq(ranges.at[0].start, (uint64_t)(KEYS - 1) * BLOCK_BYTES);
	close(w.disk.members[0].fd);
}

Test(thin_blocks, nothing_there)
{
	struct extent_ranges ranges;
	uint64_t next;
	uint8_t block[META_BLOCK] = {0};
	world_open();
	begin(4);
	commit();
	compare(1, 2, 0, MIB);
	cr_assert_eq(thin_blocks_window(&w.disk, &w.map, 0, 0, 0, MIB, &ranges, &next), 0);
	cr_assert(next == MIB && ranges.count == 0);
	cr_assert_eq(thin_blocks_window(&w.disk, &w.map, 0, 9, 0, MIB, &ranges, &next), -ENXIO);
	cr_assert_eq(thin_blocks_window(&w.disk, &w.map, 9, 1, 0, MIB, &ranges, &next), -ENXIO);
	put(0, block);
	cr_assert_eq(thin_blocks_window(&w.disk, &w.map, 0, 1, 0, MIB, &ranges, &next), -ENXIO);
	close(w.disk.members[0].fd);
}

/* A changed byte of any node is found out, or was not looked at. */
Test(thin_blocks, damage, .timeout = 100)
{
	const uint64_t all = (uint64_t)KEYS * BLOCK_BYTES;
	world_open();
	seed = 5;
	history();
	unsigned found = 0;
	for (unsigned n = 0; n < w.node_count; n++) {
		uint8_t block[META_BLOCK];
		struct extent_ranges ranges;
		off_t at = (off_t)(MIB + n * (uint64_t)META_BLOCK + draw(META_BLOCK));
		cr_assert_eq(pread(w.disk.members[0].fd, block, 1, at), 1);
		block[0] ^= 0x10;
		cr_assert_eq(pwrite(w.disk.members[0].fd, block, 1, at), 1);
		int r = 0;
		for (uint64_t from = 0, next; r == 0 && from < all; from = next)
			r = thin_blocks_window(&w.disk, &w.map, 1, 2, from, all, &ranges, &next);
		cr_assert(r == 0 || r == -EBADMSG, "%u: %d", n, r);
		found += r != 0;
		block[0] ^= 0x10;
		cr_assert_eq(pwrite(w.disk.members[0].fd, block, 1, at), 1);
	}
	cr_assert_gt(found, 10);
	close(w.disk.members[0].fd);
}

/* Nodes whose checksums are right and that make no sense. */
Test(thin_blocks, trees_that_cannot_be)
{
	static const struct {
		struct made_node node;
	} all[] = {
		{{.leaf = true, .count = 3, .pairs = {{1, 1 << 25}, {5, 1 << 26}, {5, 3 << 25}}}},
		{{.leaf = true, .count = 3, .pairs = {{1, 1 << 25}, {5, 1 << 26}, {4, 3 << 25}}}},
		{{.leaf = false, .count = 0}},
		{{.leaf = false, .count = 1, .pairs = {{0, FIRST}}}},
		{{.leaf = false, .count = 1, .pairs = {{0, NODES}}}},
	};
	struct extent_ranges ranges;
	uint64_t next;
	uint8_t block[META_BLOCK];
	world_open();
	begin(4);
	commit();
	for (unsigned i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		const struct made_node *n = &all[i].node;
		meta_write_node(block, FIRST, n->leaf, 8, n->pairs, n->count);
		put(FIRST, block);
		cr_assert_eq(thin_blocks_window(&w.disk, &w.map, 0, 1, 0, MIB, &ranges, &next),
			-EBADMSG, "%u", i);
	}
	close(w.disk.members[0].fd);
}
