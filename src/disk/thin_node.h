/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The blocks that a thin pool's metadata consist of, read from the disks without asking dm-thin:
 * the superblock, in which a commit begins, and the nodes of its trees. Nothing is written, and no
 * device is needed. What is read is the last commit: dm-thin never overwrites what that consists of
 * before the next one. And it never overwrites a node that any tree still has: the tree of a
 * snapshot that nobody writes to stays as it is through all commits.
 *
 * Formats are those of drivers/md/dm-thin-metadata.c and persistent-data/dm-btree-internal.h, Linux
 * 6.1 to 7.2. Every block has its number and a checksum in it. Blocking.
 */
#ifndef RINGVOL_DISK_THIN_NODE_H
#define RINGVOL_DISK_THIN_NODE_H

#include "blockio/image_map.h"
#include "disk/disk.h"

enum {
	THIN_DEPTH_MAX = 12,    /* of a tree */
	THIN_POINTER_BYTES = 8, /* a value of all nodes but some leaves */
	THIN_MAPPING_BITS = 24, /* of a mapping: when it was made; the block of data is above */
};

/* The beginning of a commit. */
struct thin_commit {
	bool blank; /* there was none: the metadata are zeros */
	bool needs_check;
	uint64_t transaction;
	uint64_t metadata_used, metadata_total; /* blocks of THIN_METADATA_BLOCK_BYTES */
	uint64_t data_used, data_total;         /* blocks of block_bytes */
	uint32_t block_bytes;
	/* of this folder: where its trees begin */
	uint64_t mappings, details;
	uint32_t checksum;
};

/* Reads bytes of an image (whole blocks of the disks) from its pieces. 0 or -errno. */
int thin_image_read(const struct disk *disk, const struct image_map *map, uint64_t offset,
	void *buf, size_t bytes);
/* 0; -EBADMSG: damaged, or none of dm-thin's; -ERANGE: the map leads to none of the disks; -errno.
 */
int thin_commit_read(
	const struct disk *disk, const struct image_map *metadata, struct thin_commit *ret);

/* ---- for the files of src/disk ---- */

struct thin_reader {
	const struct disk *disk;
	const struct image_map *metadata;
	struct thin_commit commit;
	uint64_t nodes;  /* that were read, of one commit */
	uint8_t *blocks; /* one for each level of a tree */
};
int thin_reader_open(
	struct thin_reader *r, const struct disk *disk, const struct image_map *metadata);
void thin_reader_close(struct thin_reader *r);

/* Keys are in order; in what is no leaf, a value is where the tree goes on. */
struct thin_node {
	const uint8_t *keys, *values; /* until the next node of that depth is read */
	unsigned count;
	bool leaf;
};
/* value_bytes: of a leaf's values. A tree of more nodes than there are blocks is a ring. */
int thin_node_read(struct thin_reader *r, uint64_t number, unsigned depth, unsigned value_bytes,
	struct thin_node *ret);
uint64_t thin_get(const uint8_t *at, unsigned bytes); /* a little-endian number */
uint64_t thin_node_key(const struct thin_node *node, unsigned i);
/* Of 8 bytes. */
uint64_t thin_node_value(const struct thin_node *node, unsigned i);
/* How many keys are not greater. */
unsigned thin_node_count_to(const struct thin_node *node, uint64_t key);
/* The value, 8 bytes, of a key. -ENODATA: there is none. */
int thin_tree_find(struct thin_reader *r, uint64_t number, uint64_t key, uint64_t *ret);
/* read() on one commit: once more where another came meanwhile. -EAGAIN: it did whenever it was
 * read. */
int thin_on_one_commit(
	struct thin_reader *r, int (*read)(struct thin_reader *r, void *arg), void *arg);

#endif
