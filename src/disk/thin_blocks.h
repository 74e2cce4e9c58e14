/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which blocks an id of a thin pool has, and in which two differ: from dm-thin's metadata on the
 * disks, without reading data. Blocking.
 *
 * The ids are those of snapshots that nobody writes to. Then the tree of each stays as it is on the
 * disks, whatever else the thin pool does, because dm-thin writes a changed node to another place
 * (thin_node.h). So nothing has to be held still, no metadata snapshot of dm-thin's is taken, and
 * none can be left behind. Two ids that have the same block of data there have the same bytes: what
 * a snapshot has is never written to in place. A block that an id does not have reads as zeros.
 */
#ifndef RINGVOL_DISK_THIN_BLOCKS_H
#define RINGVOL_DISK_THIN_BLOCKS_H

#include "blockio/extents.h"
#include "blockio/image_map.h"
#include "disk/disk.h"

/* A window of [from, to) of the images' bytes, of which *ret_to is the end: in what target differs
 * from base. 0 is an id that has nothing. 0; -ENXIO: an id is not known; -EBADMSG: the metadata are
 * damaged; -EAGAIN: they were changed whenever they were read; -errno. */
int thin_blocks_window(const struct disk *disk, const struct image_map *metadata, uint32_t base,
	uint32_t target, uint64_t from, uint64_t to, struct extent_ranges *ret, uint64_t *ret_to);

#endif
