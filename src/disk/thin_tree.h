/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The metadata of a thin pool, read from the disks without asking dm-thin: which ids it knows, how
 * much each has, where a block of one lies. Nothing is written, and no device is needed, so it
 * works beside a driver and without one. What is read is the last commit: dm-thin never overwrites
 * what that consists of before the next one.
 *
 * Formats are those of drivers/md/dm-thin-metadata.c and persistent-data/dm-btree-internal.h, Linux
 * 6.1 to 7.2. Every block has its number and a checksum in it. Blocking: for tools.
 */
#ifndef RINGVOL_DISK_THIN_TREE_H
#define RINGVOL_DISK_THIN_TREE_H

#include "blockio/image_map.h"
#include "disk/disk.h"

/* The beginning of a commit. */
struct thin_commit {
	bool blank; /* there was none: the metadata are zeros */
	bool needs_check;
	uint64_t transaction;
	uint64_t metadata_used, metadata_total; /* blocks of THIN_METADATA_BLOCK_BYTES */
	uint64_t data_used, data_total;         /* blocks of block_bytes */
	uint32_t block_bytes;
	/* private: where its trees begin */
	uint64_t mappings, details;
	uint32_t checksum;
};

struct thin_id {
	uint32_t id;
	uint64_t blocks; /* that it has, shared ones among them */
};

struct thin_ids {
	struct thin_commit commit; /* that they are of */
	struct thin_id *at;        /* by id */
	size_t count, cap;
};

/* 0; -EBADMSG: damaged, or none of dm-thin's; -ERANGE: the map leads to none of the disks; -errno.
 */
int thin_commit_read(
	const struct disk *disk, const struct image_map *metadata, struct thin_commit *ret);
/* All ids. Zeroed *ret is filled; free it in every case. As thin_commit_read(); -EAGAIN: it was
 * changed whenever it was read. */
int thin_ids_read(const struct disk *disk, const struct image_map *metadata, struct thin_ids *ret);
void thin_ids_free(struct thin_ids *ids);
/* NULL: it is not known. */
const struct thin_id *thin_ids_find(const struct thin_ids *ids, uint32_t id);

/* Where a block of an id is in the data, bytes. -ENODATA: it has none there, and reads as zeros;
 * -ENXIO: the id is not known. Else as thin_ids_read(). */
int thin_block_find(const struct disk *disk, const struct image_map *metadata, uint32_t id,
	uint64_t block, uint64_t *ret_offset);
/* Reads bytes of an image (whole blocks of the disks) from its pieces. 0 or -errno. */
int thin_image_read(const struct disk *disk, const struct image_map *map, uint64_t offset,
	void *buf, size_t bytes);

#endif
