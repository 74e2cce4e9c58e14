/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where an image's bytes are, if they are not in its file. An image of a raw pool is a file without
 * blocks; its attribute trusted.ringvol.map lists, in the image's order, the pieces of the pool's
 * disks that hold its bytes. Who occupies what on the disks is the sum of these lists, so there is
 * nothing that it could disagree with.
 *
 *   ringvol-map 1
 *   <address, hex> <bytes, hex>      one line a piece
 *   sum=<first 16 hex digits of SHA-256 of everything before this line>
 *
 * An address counts bytes through all disks of the pool (disk/disk.h). Addresses and sizes are
 * multiples of IMAGE_MAP_ALIGN. The sum of the sizes is the size of the image, or more while it
 * is being grown.
 *
 * The bytes of a thin image are in the thin pool of the pool (disk/thin_pool.h), under a number:
 *
 *   ringvol-map 2
 *   thin=<id, hex>
 *   sum=...
 *
 * A driver that knows the first version alone finds such a map to be of a later one: it gives
 * nothing out then, and overwrites nothing.
 */
#ifndef RINGVOL_BLOCKIO_IMAGE_MAP_H
#define RINGVOL_BLOCKIO_IMAGE_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define IMAGE_MAP_XATTR "trusted.ringvol.map"

enum {
	IMAGE_MAP_ALIGN = 1 << 20,
	/* One target of a device each, but for the last, which may be two (disk/mapped.h). */
	IMAGE_MAP_PIECES_MAX = 255,
	IMAGE_MAP_TEXT_MAX = 16 << 10,
	IMAGE_MAP_THIN_MAX = (1 << 24) - 1, /* dm-thin's limit */
};

struct image_piece {
	uint64_t address, bytes;
};

/* Zeroed: no piece. It owns no memory. */
struct image_map {
	uint32_t thin_id; /* of a thin image, which has no piece; 0: of any other */
	unsigned count;
	struct image_piece pieces[IMAGE_MAP_PIECES_MAX];
};

/* Of its pieces: 0 of a thin image. */
uint64_t image_map_bytes(const struct image_map *map);
/* Adds a piece behind the others, and makes one of it and its neighbour where they touch. -E2BIG:
 * IMAGE_MAP_PIECES_MAX. -EINVAL: unaligned, empty, or past 2^63. */
int image_map_add(struct image_map *map, uint64_t address, uint64_t bytes);
/* Cuts it to its first `bytes` (a multiple of IMAGE_MAP_ALIGN). */
void image_map_cut(struct image_map *map, uint64_t bytes);
/* Whether two maps say the same. */
bool image_map_equal(const struct image_map *a, const struct image_map *b);
/* Whether any piece of one lies in any of the other, or both have the same thin id. */
bool image_map_overlaps(const struct image_map *a, const struct image_map *b);

/* Into buf; the length, or -E2BIG. */
int image_map_print(const struct image_map *map, char *buf, size_t cap);
/* 0; -EBADMSG: damaged, or pieces of one map overlap; -EPROTONOSUPPORT: a later version. */
int image_map_parse(const char *text, size_t len, struct image_map *ret);

/* Of an open image. Blocking. 0; -ENODATA: it has none, its bytes are in the file; -errno. */
int image_map_read(int fd, struct image_map *ret);
/* Replaces it; not durable before a sync. */
int image_map_write(int fd, const struct image_map *map);

#endif
