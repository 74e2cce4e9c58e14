/* SPDX-License-Identifier: Apache-2.0 */
/* Reading the metadata of a thin pool: written by hand here, and by thin_restore where that is
 * installed. The disk is a file; its reads pass through here, put there by the linker. */
#include "disk/thin_tree.h"
#include "thin_metadata.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

ssize_t __real_pread64(int fd, void *buf, size_t bytes, off_t offset);
ssize_t __wrap_pread64(int fd, void *buf, size_t bytes, off_t offset);

enum { MIB = 1 << 20, BLOCKS = 2 * MIB / META_BLOCK };
enum { ROOT = 300, LEFT = 6, RIGHT = 400, MAPPINGS = 8, OF_FIVE = 9, OF_NINE = 10 };

struct world {
	struct disk disk;
	struct image_map map;
	struct meta_super super;
	uint8_t block[META_BLOCK];
};

/* What comes in between: before each read of the first block. */
static struct {
	struct world *world;
	unsigned commits; /* that are still to come */
	int fails;        /* errno of the next read */
} meanwhile;

static void put(struct world *w, uint64_t number)
{
	/* The second MiB lies elsewhere. */
	off_t at = (off_t)(number * META_BLOCK);
	at += at < MIB ? MIB : 4 * MIB;
	cr_assert_eq(pwrite(w->disk.members[0].fd, w->block, META_BLOCK, at), META_BLOCK);
}

static void put_super(struct world *w)
{
	meta_write_super(w->block, &w->super);
	put(w, 0);
}

static void put_node(struct world *w, uint64_t number, bool leaf, unsigned value_bytes,
	const uint64_t (*pairs)[2], unsigned count)
{
	meta_write_node(w->block, number, leaf, value_bytes, pairs, count);
	put(w, number);
}

ssize_t __wrap_pread64(int fd, void *buf, size_t bytes, off_t offset)
{
	if (meanwhile.fails != 0) {
		errno = meanwhile.fails;
		return -1;
	}
	if (offset == MIB && meanwhile.commits > 0) {
		meanwhile.commits--;
		meanwhile.world->super.transaction++;
		put_super(meanwhile.world);
	}
	return __real_pread64(fd, buf, bytes, offset);
}

/* Ids 1, 5, 9 and 300; 5 has its blocks 0 and 7, 9 its block 3. */
static void world_make(struct world *w)
{
	*w = (struct world){.disk = {.count = 1}};
	w->disk.members[0] = (struct disk_member){
		.fd = memfd_create("disk", MFD_CLOEXEC), .start = 0, .bytes = 64 * (uint64_t)MIB};
	cr_assert_eq(ftruncate(w->disk.members[0].fd, 64 * (off_t)MIB), 0);
	cr_assert_eq(image_map_add(&w->map, MIB, MIB), 0);
	cr_assert_eq(image_map_add(&w->map, 5 * MIB, MIB), 0);
	w->super = (struct meta_super){.transaction = 3,
		.details = ROOT,
		.mappings = MAPPINGS,
		.metadata_used = 11,
		.metadata_total = BLOCKS,
		.data_used = 3,
		.data_total = 1000,
		.block_bytes = THIN_BLOCK_MIN,
		.version = 2};
	put_super(w);
	put_node(w, ROOT, false, 8, (const uint64_t[][2]){{1, LEFT}, {9, RIGHT}}, 2);
	put_node(w, LEFT, true, META_DETAILS, (const uint64_t[][2]){{1, 0}, {5, 2}}, 2);
	put_node(w, RIGHT, true, META_DETAILS, (const uint64_t[][2]){{9, 1}, {300, 0}}, 2);
	put_node(w, MAPPINGS, true, 8, (const uint64_t[][2]){{5, OF_FIVE}, {9, OF_NINE}}, 2);
	put_node(w, OF_FIVE, true, 8,
		(const uint64_t[][2]){{0, UINT64_C(17) << 24 | 1}, {7, UINT64_C(18) << 24}}, 2);
	put_node(w, OF_NINE, true, 8, (const uint64_t[][2]){{3, UINT64_C(1) << 24}}, 1);
	meanwhile.world = w;
}

static void world_free(struct world *w)
{
	close(w->disk.members[0].fd);
	meanwhile.commits = 0;
	meanwhile.fails = 0;
}

static int ids_of(struct world *w, struct thin_ids *ret)
{
	*ret = (struct thin_ids){0};
	return thin_ids_read(&w->disk, &w->map, ret);
}

static void expect_damaged(struct world *w)
{
	struct thin_ids ids;
	cr_expect_eq(ids_of(w, &ids), -EBADMSG);
	thin_ids_free(&ids);
}

Test(thin_tree, what_it_knows)
{
	struct world w;
	struct thin_ids ids;
	struct thin_commit commit;
	world_make(&w);
	cr_assert_eq(thin_commit_read(&w.disk, &w.map, &commit), 0);
	cr_expect(!commit.blank && !commit.needs_check && commit.transaction == 3);
	cr_expect(commit.metadata_used == 11 && commit.metadata_total == BLOCKS);
	cr_expect(commit.data_used == 3 && commit.data_total == 1000);
	cr_expect_eq(commit.block_bytes, THIN_BLOCK_MIN);
	cr_assert_eq(ids_of(&w, &ids), 0);
	cr_assert_eq(ids.count, 4);
	cr_expect_eq(ids.commit.transaction, 3);
	const uint32_t want[][2] = {{1, 0}, {5, 2}, {9, 1}, {300, 0}};
	for (unsigned i = 0; i < 4; i++) {
		const struct thin_id *id = thin_ids_find(&ids, want[i][0]);
		cr_expect(id != NULL && id->blocks == want[i][1]);
	}
	cr_expect_null(thin_ids_find(&ids, 2));
	cr_expect_null(thin_ids_find(&(struct thin_ids){0}, 2));
	thin_ids_free(&ids);
	world_free(&w);
}

Test(thin_tree, where_a_block_is)
{
	struct world w;
	uint64_t offset = 0;
	world_make(&w);
	cr_expect_eq(thin_block_find(&w.disk, &w.map, 5, 0, &offset), 0);
	cr_expect_eq(offset, 17ull * THIN_BLOCK_MIN);
	cr_expect_eq(thin_block_find(&w.disk, &w.map, 5, 7, &offset), 0);
	cr_expect_eq(offset, 18ull * THIN_BLOCK_MIN);
	cr_expect_eq(thin_block_find(&w.disk, &w.map, 5, 3, &offset), -ENODATA);
	cr_expect_eq(thin_block_find(&w.disk, &w.map, 9, 0, &offset), -ENODATA);
	cr_expect_eq(thin_block_find(&w.disk, &w.map, 1, 0, &offset), -ENXIO);
	cr_expect_eq(thin_block_find(&w.disk, &w.map, 6, 0, &offset), -ENXIO);
	world_free(&w);
}

Test(thin_tree, none_yet)
{
	struct world w;
	struct thin_ids ids;
	struct thin_commit commit;
	uint64_t offset;
	world_make(&w);
	memset(w.block, 0, sizeof(w.block));
	put(&w, 0);
	cr_expect_eq(thin_commit_read(&w.disk, &w.map, &commit), 0);
	cr_expect(commit.blank);
	cr_expect_eq(ids_of(&w, &ids), 0);
	cr_expect_eq(ids.count, 0);
	cr_expect_eq(thin_block_find(&w.disk, &w.map, 5, 0, &offset), -ENXIO);
	thin_ids_free(&ids);
	world_free(&w);
}

Test(thin_tree, a_damaged_beginning)
{
	struct world w;
	world_make(&w);
	const struct meta_super sound = w.super;
	const struct {
		unsigned at, bytes;
		uint64_t value;
	} damage[] = {
		{32, 8, 27022011}, /* whose it is */
		{8, 8, 1},         /* which block */
		{40, 4, 0},        /* the version */
		{40, 4, 3},
		{336, 4, 1}, /* the size of a block */
		{336, 4, 1 << 30},
	};
	for (unsigned i = 0; i < sizeof(damage) / sizeof(damage[0]); i++) {
		meta_write_super(w.block, &sound);
		meta_put(w.block + damage[i].at, damage[i].value, damage[i].bytes);
		meta_sum(w.block, true);
		put(&w, 0);
		expect_damaged(&w);
	}
	meta_write_super(w.block, &sound);
	w.block[900] ^= 1;
	put(&w, 0);
	expect_damaged(&w);
	world_free(&w);
}

Test(thin_tree, a_damaged_node)
{
	struct world w;
	const uint64_t pair[][2] = {{9, 1}, {300, 0}};
	world_make(&w);
	const struct {
		unsigned at, bytes;
		uint64_t value;
	} damage[] = {
		{4, 4, 3},    /* both kinds */
		{8, 8, 7},    /* another block */
		{16, 4, 127}, /* more than it can have */
		{20, 4, 500},
		{20, 4, UINT32_MAX},
		{24, 4, 8},
		{32, 8, 1 << 24}, /* no id */
		{32, 8, 5},       /* one that was there */
		{40, 8, 9},
	};
	for (unsigned i = 0; i < sizeof(damage) / sizeof(damage[0]); i++) {
		meta_write_node(w.block, RIGHT, true, META_DETAILS, pair, 2);
		meta_put(w.block + damage[i].at, damage[i].value, damage[i].bytes);
		meta_sum(w.block, false);
		put(&w, RIGHT);
		expect_damaged(&w);
	}
	meta_write_node(w.block, RIGHT, true, META_DETAILS, pair, 2);
	w.block[4000] ^= 1;
	put(&w, RIGHT);
	expect_damaged(&w);
	world_free(&w);
}

Test(thin_tree, trees_that_cannot_be)
{
	struct world w;
	struct thin_ids ids;
	world_make(&w);
	/* A ring, which is found by its depth, and one of many branches, by its nodes. */
	put_node(&w, ROOT, false, 8, (const uint64_t[][2]){{1, ROOT}}, 1);
	expect_damaged(&w);
	put_node(&w, ROOT, false, 8, (const uint64_t[][2]){{1, LEFT}, {9, BLOCKS}}, 2);
	expect_damaged(&w);
	w.super.metadata_total = 2;
	put_super(&w);
	expect_damaged(&w);
	/* More blocks than the image has. */
	w.super.metadata_total = 10 * BLOCKS;
	put_super(&w);
	put_node(&w, ROOT, false, 8, (const uint64_t[][2]){{1, 5 * BLOCKS}}, 1);
	cr_expect_eq(ids_of(&w, &ids), -ERANGE);
	thin_ids_free(&ids);
	world_free(&w);
}

Test(thin_tree, a_commit_in_between)
{
	struct world w;
	struct thin_ids ids;
	world_make(&w);
	meanwhile.commits = 3;
	cr_assert_eq(ids_of(&w, &ids), 0);
	cr_expect_eq(ids.count, 4);
	cr_expect_eq(ids.commit.transaction, 6);
	thin_ids_free(&ids);
	meanwhile.commits = 1000;
	cr_expect_eq(ids_of(&w, &ids), -EAGAIN);
	thin_ids_free(&ids);
	/* What looks damaged may be a block that is used anew. */
	memset(w.block, 7, sizeof(w.block));
	put(&w, RIGHT);
	cr_expect_eq(ids_of(&w, &ids), -EAGAIN);
	thin_ids_free(&ids);
	world_free(&w);
}

Test(thin_tree, a_sick_disk)
{
	struct world w;
	struct thin_ids ids;
	struct thin_commit commit;
	world_make(&w);
	meanwhile.fails = EIO;
	cr_expect_eq(thin_commit_read(&w.disk, &w.map, &commit), -EIO);
	cr_expect_eq(ids_of(&w, &ids), -EIO);
	thin_ids_free(&ids);
	meanwhile.fails = 0;
	w.map = (struct image_map){0};
	cr_expect_eq(thin_commit_read(&w.disk, &w.map, &commit), -ERANGE);
	cr_assert_eq(image_map_add(&w.map, 80 * MIB, MIB), 0);
	cr_expect_eq(thin_commit_read(&w.disk, &w.map, &commit), -ERANGE);
	world_free(&w);
}

/* The kernel's format as others write it: 200 ids, of which every third has blocks. */
Test(thin_tree, what_thin_restore_writes)
{
	char dir[] = "/tmp/ringvol-thin-XXXXXX", path[64], command[256];
	if (system("thin_restore -V >/dev/null 2>&1") != 0)
		cr_skip_test("no thin_restore (thin-provisioning-tools)");
	cr_assert_not_null(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/xml", dir);
	FILE *xml = fopen(path, "we");
	fprintf(xml, "<superblock uuid=\"\" time=\"0\" transaction=\"0\" data_block_size=\"128\" "
		     "nr_data_blocks=\"4096\">\n");
	for (unsigned id = 1; id <= 200; id++) {
		unsigned blocks = id % 3 == 0 ? 4 : 0;
		fprintf(xml,
			"<device dev_id=\"%u\" mapped_blocks=\"%u\" transaction=\"0\" "
			"creation_time=\"0\" snap_time=\"0\">\n",
			id, blocks);
		if (blocks > 0)
			fprintf(xml,
				"<range_mapping origin_begin=\"%u\" data_begin=\"%u\" "
				"length=\"4\" time=\"0\"/>\n",
				id, id * 4);
		fprintf(xml, "</device>\n");
	}
	fprintf(xml, "</superblock>\n");
	fclose(xml);
	struct world w;
	world_make(&w);
	w.map = (struct image_map){0};
	cr_assert_eq(image_map_add(&w.map, 0, 8 * MIB), 0);
	snprintf(command, sizeof(command),
		"truncate -s 8M %s/meta && thin_restore -i %s/xml -o %s/meta >/dev/null", dir, dir,
		dir);
	cr_assert_eq(system(command), 0);
	snprintf(path, sizeof(path), "%s/meta", dir);
	close(w.disk.members[0].fd);
	w.disk.members[0].fd = open(path, O_RDONLY | O_CLOEXEC);
	struct thin_ids ids;
	uint64_t offset;
	cr_assert_eq(ids_of(&w, &ids), 0);
	cr_assert_eq(ids.count, 200);
	for (unsigned i = 0; i < 200; i++) {
		cr_expect_eq(ids.at[i].id, i + 1);
		cr_expect_eq(ids.at[i].blocks, (i + 1) % 3 == 0 ? 4 : 0);
	}
	cr_expect_eq(ids.commit.data_used, 66 * 4);
	cr_expect_eq(thin_block_find(&w.disk, &w.map, 150, 152, &offset), 0);
	cr_expect_eq(offset, (150 * 4 + 2) * 65536ull);
	cr_expect_eq(thin_block_find(&w.disk, &w.map, 150, 154, &offset), -ENODATA);
	cr_expect_eq(thin_block_find(&w.disk, &w.map, 151, 152, &offset), -ENODATA);
	cr_expect_eq(thin_block_find(&w.disk, &w.map, 201, 0, &offset), -ENXIO);
	thin_ids_free(&ids);
	world_free(&w);
	snprintf(command, sizeof(command), "rm -rf %s", dir);
	cr_assert_eq(system(command), 0);
}
