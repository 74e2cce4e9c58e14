/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What dm-thin says and writes. The first byte chooses:
 *   the words of a pool's status, of a volume's, of a pool's table;
 *   metadata on a disk: a program that writes nodes and spoils bytes of them, with right checksums
 *   or without. What is read of it has ids in order, ends, and answers the same twice; two ids are
 *   compared in windows that come forward.
 */
#include "fuzz.h"

#include "disk/dm.h"
#include "disk/thin_blocks.h"
#include "disk/thin_tree.h"
#include "thin_metadata.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

enum { BLOCKS = 64, SPOILT_MAX = 64 };

static void try_words(unsigned which, const char *text)
{
	struct thin_status status;
	struct thin_table table;
	uint64_t bytes;
	char again[DM_PARAMS_BYTES];
	switch (which) {
	case 0:
		if (thin_status_parse(text, &status) == 0)
			must(status.metadata_used <= status.metadata_total &&
				status.data_used <= status.data_total);
		break;
	case 1:
		if (thin_volume_status_parse(text, &bytes) == 0)
			must(bytes % DM_SECTOR_BYTES == 0);
		break;
	default:
		if (thin_table_parse(text, &table) != 0)
			break;
		must(table.block_bytes >= THIN_BLOCK_MIN);
		must(thin_table_print(&table, again, sizeof(again)) > 0);
		must(thin_table_parse(again, &table) == 0);
		break;
	}
}

/* ---- metadata ---- */

static uint8_t blocks[BLOCKS][META_BLOCK];

static void put_node(struct fuzz *f)
{
	uint64_t pairs[16][2];
	unsigned number = 1 + fuzz_below(f, BLOCKS - 1), kind = fuzz_byte(f);
	unsigned count = fuzz_below(f, 16);
	uint64_t key = 0;
	for (unsigned i = 0; i < count; i++) {
		pairs[i][0] = key += fuzz_byte(f);
		pairs[i][1] = fuzz_byte(f);
		if ((kind & 4) != 0)
			pairs[i][1] <<= 24;
	}
	meta_write_node(blocks[number], number, (kind & 1) != 0, (kind & 2) != 0 ? META_DETAILS : 8,
		(const uint64_t(*)[2])pairs, count);
}

static void spoil(struct fuzz *f)
{
	unsigned number = fuzz_below(f, BLOCKS), at = fuzz_byte(f) | (unsigned)fuzz_byte(f) << 8;
	blocks[number][at % META_BLOCK] = fuzz_byte(f);
	if (fuzz_below(f, 4) != 0)
		meta_sum(blocks[number], number == 0);
}

static void write_blocks(struct fuzz *f)
{
	memset(blocks, 0, sizeof(blocks));
	const struct meta_super super = {.transaction = 1,
		.details = fuzz_below(f, BLOCKS),
		.mappings = fuzz_below(f, BLOCKS),
		.metadata_total = fuzz_byte(f),
		.block_bytes = THIN_BLOCK_MIN,
		.version = 2};
	meta_write_super(blocks[0], &super);
	for (unsigned spoilt = 0; f->len > 0 && spoilt < SPOILT_MAX;) {
		if (fuzz_below(f, 4) != 0) {
			put_node(f);
		} else {
			spoil(f);
			spoilt++;
		}
	}
}

static bool is_answer(int r)
{
	return r == 0 || r == -EBADMSG || r == -ERANGE;
}

static void look(const struct disk *disk, const struct image_map *map)
{
	struct thin_ids ids = {0}, again = {0};
	struct thin_commit commit;
	uint64_t offset;
	must(is_answer(thin_commit_read(disk, map, &commit)));
	int r = thin_ids_read(disk, map, &ids);
	must(is_answer(r));
	must(thin_ids_read(disk, map, &again) == r && again.count == ids.count);
	for (size_t i = 0; r == 0 && i < ids.count; i++) {
		must(ids.at[i].id <= IMAGE_MAP_THIN_MAX);
		must(i == 0 || ids.at[i - 1].id < ids.at[i].id);
		must(thin_ids_find(&ids, ids.at[i].id) == &ids.at[i]);
	}
	for (unsigned i = 0; i < 32; i++) {
		r = thin_block_find(disk, map, i / 4, i % 4, &offset);
		must(is_answer(r) || r == -ENODATA || r == -ENXIO);
		must(r != 0 || offset % THIN_BLOCK_MIN == 0);
	}
	thin_ids_free(&ids);
	thin_ids_free(&again);
}

/* Windows come forward, and ranges are in order and within them. */
static void compare(
	const struct disk *disk, const struct image_map *map, uint32_t base, uint32_t target)
{
	static struct extent_ranges ranges;
	const uint64_t to = 64 * (uint64_t)THIN_BLOCK_MIN + 4096;
	int r = 0;
	for (uint64_t at = 4096, next; r == 0 && at < to; at = next) {
		r = thin_blocks_window(disk, map, base, target, at, to, &ranges, &next);
		must(is_answer(r) || r == -ENXIO);
		must(r != 0 || (next > at && next <= to));
		uint64_t last = at;
		for (unsigned i = 0; r == 0 && i < ranges.count; i++) {
			must(ranges.at[i].start >= last && ranges.at[i].end > ranges.at[i].start);
			last = ranges.at[i].end;
		}
		must(r != 0 || last <= next);
	}
}

static void try_metadata(struct fuzz *f)
{
	static int fd = -1;
	if (fd < 0)
		fd = memfd_create("disk", MFD_CLOEXEC);
	must(fd >= 0 && ftruncate(fd, 4 << 20) == 0);
	write_blocks(f);
	must(pwrite(fd, blocks, sizeof(blocks), 1 << 20) == sizeof(blocks));
	static struct disk disk;
	disk.count = 1;
	disk.members[0] = (struct disk_member){.fd = fd, .bytes = 4 << 20};
	struct image_map map = {0};
	must(image_map_add(&map, 1 << 20, 1 << 20) == 0);
	look(&disk, &map);
	for (uint32_t i = 0; i < 16; i++)
		compare(&disk, &map, i / 4, i % 4);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	if (len == 0)
		return 0;
	if (data[0] % 4 == 3) {
		try_metadata(&(struct fuzz){data + 1, len - 1});
		return 0;
	}
	char *text = fuzz_text(data + 1, len - 1);
	try_words(data[0] % 4, text);
	free(text);
	return 0;
}
