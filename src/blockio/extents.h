/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the data of images lies, and in what two images differ. Blocks of one file system that lie
 * at one place of its disk are the same blocks, so two images that share an extent have the same
 * data there, whatever it is. Synchronous, for work jobs; all return 0 or -errno.
 *
 * A window is what one look takes in. The answer for it never says less than the truth: what is not
 * surely equal is said to differ.
 */
#ifndef RINGVOL_BLOCKIO_EXTENTS_H
#define RINGVOL_BLOCKIO_EXTENTS_H

#include <linux/fiemap.h>
#include <stdbool.h>
#include <stdint.h>

enum {
	EXTENTS_MAX = 256, /* of one image in a window */
	EXTENT_RANGES_MAX = 2 * EXTENTS_MAX + 2,
	EXTENT_ALIGN =
		4096, /* what lies anywhere (inline data) counts as the whole of such blocks */
};

/* Written data. What was never written, or is allocated and unwritten, reads as zeros and is left
 * out. */
struct extent {
	uint64_t start, end; /* bytes of the image */
	uint64_t physical;   /* where it begins */
	bool sure;           /* physical tells which data it is */
};

/* Whether what FIEMAP says on such a file system (statfs f_type) names a block: two places are one
 * only if they are the same data. XFS and btrfs do; of one with several disks and no map over them
 * (bcachefs) the same place may be on two. */
bool extents_comparable(uint64_t fs_type);

/* All extents in [from, to), in order. */
struct extent_map {
	uint64_t from, to;
	unsigned count;
	struct extent at[EXTENTS_MAX];
};

struct extent_range {
	uint64_t start, end;
};

struct extent_ranges {
	unsigned count;
	struct extent_range at[EXTENT_RANGES_MAX];
};

/* What FIEMAP says of [from, to) of an image, which is written back first. `to` comes out smaller
 * where there are more extents than a map takes. -EOPNOTSUPP: the file system does not tell. -EIO:
 * what it tells contradicts itself. */
int extents_map(int fd, uint64_t from, uint64_t to, struct extent_map *ret);
/* Takes in what a FIEMAP call has filled in (capacity extents at most), as extents_map() does. */
int extents_take(const struct fiemap_extent *extents, unsigned count, unsigned capacity,
	uint64_t from, uint64_t to, struct extent_map *ret);

/* In what the images differ in [from, *ret_to); both maps begin at from. *ret_to is where the
 * shorter map ends. base NULL: what target has at all. */
void extents_differ(const struct extent_map *base, const struct extent_map *target,
	struct extent_ranges *ret, uint64_t *ret_to);
/* Adds a range behind the others; touching ones become one. */
void extent_ranges_add(struct extent_ranges *ranges, uint64_t start, uint64_t end);

typedef int extents_map_fn(int fd, uint64_t from, uint64_t to, struct extent_map *ret);

/* Embed it: 24 KiB. */
struct extents_window {
	extents_map_fn *map; /* extents_map(), but in tests */
	int base_fd;         /* -1: none, what target has is asked for */
	int target_fd;
	struct extent_map base, target, again;
};

/* The next window of [from, to). Equal extents are equal data only at one instant, and a file
 * system may move them at any time (defragmentation, balance). So the base is looked at before and
 * after the target; -EAGAIN: it was never twice the same. */
int extents_window(struct extents_window *window, uint64_t from, uint64_t to,
	struct extent_ranges *ret, uint64_t *ret_to);

#endif
