/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The metadata of a thin pool: which ids it knows, how much each has, where a block of one lies.
 * They are read from the disks (thin_node.h), so it works beside a driver and without one.
 * Blocking.
 */
#ifndef RINGVOL_DISK_THIN_TREE_H
#define RINGVOL_DISK_THIN_TREE_H

#include "disk/thin_node.h"

struct thin_id {
	uint32_t id;
	uint64_t blocks; /* that it has, shared ones among them */
};

struct thin_ids {
	struct thin_commit commit; /* that they are of */
	struct thin_id *at;        /* by id */
	size_t count, cap;
};

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

#endif
