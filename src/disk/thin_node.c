/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading blocks of dm-thin's metadata. Happy path: the first block says where the trees of the
 * last commit begin; nodes are read from the pieces of the metadata's image, and checked. Then the
 * first block is read once more: if another commit has come meanwhile, blocks of the old one may
 * have been used anew, and all of it is read again.
 *
 * How it can fail: a block has another number or checksum than it should, a node says what cannot
 * be, the tree is deeper than one that can be, or has more nodes than there are blocks (a ring).
 */
#include "disk/thin_node.h"

#include "base/crc32c.h"
#include "disk/thin_status.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
	BLOCK = THIN_METADATA_BLOCK_BYTES,
	ATTEMPTS = 8,
	/* The superblock. */
	SUPER_FLAGS_AT = 4,
	SUPER_BLOCK_AT = 8,
	SUPER_MAGIC_AT = 32,
	SUPER_VERSION_AT = 40,
	SUPER_TRANSACTION_AT = 48,
	SUPER_DATA_AT = 64,      /* how many blocks of data there are, then of those in use */
	SUPER_METADATA_AT = 192, /* likewise */
	SUPER_MAPPINGS_AT = 320,
	SUPER_DETAILS_AT = 328,
	SUPER_DATA_BLOCK_AT = 336, /* sectors */
	SUPER_NEEDS_CHECK = 1 << 0,
	SUPER_VERSION_MAX = 2,
	/* A node of a tree: head, max keys, max values. */
	NODE_FLAGS_AT = 4,
	NODE_BLOCK_AT = 8,
	NODE_COUNT_AT = 16,
	NODE_MAX_AT = 20,
	NODE_VALUE_AT = 24, /* how large a value is */
	NODE_KEYS_AT = 32,
	NODE_INTERNAL = 1 << 0,
	NODE_LEAF = 1 << 1,
	SECTOR = 512,
};
#define SUPER_MAGIC 27022010u
#define SUPER_XOR   160774u
#define NODE_XOR    121107u

uint64_t thin_get(const uint8_t *at, unsigned bytes)
{
	uint64_t value = 0;
	for (unsigned i = bytes; i-- > 0;)
		value = value << 8 | at[i];
	return value;
}

/* ---- blocks ---- */

int thin_image_read(const struct disk *disk, const struct image_map *map, uint64_t offset,
	void *buf, size_t bytes)
{
	uint64_t passed = 0, at, left;
	for (unsigned i = 0; i < map->count; passed += map->pieces[i++].bytes) {
		const struct image_piece *p = &map->pieces[i];
		if (offset - passed >= p->bytes)
			continue;
		const struct disk_member *m =
			disk_at(disk, p->address + (offset - passed), &at, &left);
		if (m == NULL || left < bytes || p->bytes - (offset - passed) < bytes)
			return -ERANGE;
		ssize_t n = pread(m->fd, buf, bytes, (off_t)at);
		return n < 0 ? -errno : (size_t)n == bytes ? 0 : -EIO;
	}
	return -ERANGE;
}

int thin_reader_open(
	struct thin_reader *r, const struct disk *disk, const struct image_map *metadata)
{
	void *blocks = NULL;
	*r = (struct thin_reader){.disk = disk, .metadata = metadata};
	if (posix_memalign(&blocks, BLOCK, (size_t)BLOCK * (THIN_DEPTH_MAX + 1)) != 0)
		return -ENOMEM;
	r->blocks = blocks;
	return 0;
}

void thin_reader_close(struct thin_reader *r)
{
	free(r->blocks);
	r->blocks = NULL;
}

static bool sum_is_right(const uint8_t *block, uint32_t xor)
{
	return (~crc32c(block + 4, BLOCK - 4) ^ xor) == (uint32_t)thin_get(block, 4);
}

static bool is_blank(const uint8_t *block)
{
	return block[0] == 0 && memcmp(block, block + 1, BLOCK - 1) == 0;
}

static int read_commit(struct thin_reader *r, struct thin_commit *ret)
{
	uint8_t *b = r->blocks;
	int res = thin_image_read(r->disk, r->metadata, 0, b, BLOCK);
	if (res < 0)
		return res;
	*ret = (struct thin_commit){.blank = is_blank(b)};
	if (ret->blank)
		return 0;
	uint64_t version = thin_get(b + SUPER_VERSION_AT, 4);
	uint64_t block_bytes = thin_get(b + SUPER_DATA_BLOCK_AT, 4) * SECTOR;
	if (thin_get(b + SUPER_MAGIC_AT, 8) != SUPER_MAGIC || !sum_is_right(b, SUPER_XOR) ||
		thin_get(b + SUPER_BLOCK_AT, 8) != 0 || version == 0 ||
		version > SUPER_VERSION_MAX || block_bytes < THIN_BLOCK_MIN ||
		block_bytes > THIN_BLOCK_MAX)
		return -EBADMSG;
	*ret = (struct thin_commit){
		.needs_check = (thin_get(b + SUPER_FLAGS_AT, 4) & SUPER_NEEDS_CHECK) != 0,
		.transaction = thin_get(b + SUPER_TRANSACTION_AT, 8),
		.metadata_total = thin_get(b + SUPER_METADATA_AT, 8),
		.metadata_used = thin_get(b + SUPER_METADATA_AT + 8, 8),
		.data_total = thin_get(b + SUPER_DATA_AT, 8),
		.data_used = thin_get(b + SUPER_DATA_AT + 8, 8),
		.block_bytes = (uint32_t)block_bytes,
		.mappings = thin_get(b + SUPER_MAPPINGS_AT, 8),
		.details = thin_get(b + SUPER_DETAILS_AT, 8),
		.checksum = (uint32_t)thin_get(b, 4),
	};
	return 0;
}

int thin_node_read(struct thin_reader *r, uint64_t number, unsigned depth, unsigned value_bytes,
	struct thin_node *ret)
{
	if (depth >= THIN_DEPTH_MAX || ++r->nodes > r->commit.metadata_total ||
		number >= r->commit.metadata_total)
		return -EBADMSG;
	uint8_t *b = r->blocks + (size_t)BLOCK * (depth + 1);
	int res = thin_image_read(r->disk, r->metadata, number * BLOCK, b, BLOCK);
	if (res < 0)
		return res;
	uint64_t flags = thin_get(b + NODE_FLAGS_AT, 4), max = thin_get(b + NODE_MAX_AT, 4);
	bool leaf = flags == NODE_LEAF;
	unsigned size = leaf ? value_bytes : THIN_POINTER_BYTES;
	ret->count = (unsigned)thin_get(b + NODE_COUNT_AT, 4);
	if (!sum_is_right(b, NODE_XOR) || thin_get(b + NODE_BLOCK_AT, 8) != number ||
		(!leaf && flags != NODE_INTERNAL) || max > BLOCK / 8 || ret->count > max ||
		thin_get(b + NODE_VALUE_AT, 4) != size || NODE_KEYS_AT + max * (8 + size) > BLOCK)
		return -EBADMSG;
	ret->leaf = leaf;
	ret->keys = b + NODE_KEYS_AT;
	ret->values = ret->keys + max * 8;
	return 0;
}

uint64_t thin_node_key(const struct thin_node *node, unsigned i)
{
	return thin_get(node->keys + 8 * (size_t)i, 8);
}

uint64_t thin_node_value(const struct thin_node *node, unsigned i)
{
	return thin_get(node->values + 8 * (size_t)i, 8);
}

unsigned thin_node_count_to(const struct thin_node *node, uint64_t key)
{
	unsigned i = 0;
	while (i < node->count && thin_node_key(node, i) <= key)
		i++;
	return i;
}

int thin_tree_find(struct thin_reader *r, uint64_t number, uint64_t key, uint64_t *ret)
{
	struct thin_node node;
	for (unsigned depth = 0;; depth++) {
		int res = thin_node_read(r, number, depth, THIN_POINTER_BYTES, &node);
		if (res < 0)
			return res;
		/* The last key that is not greater. */
		unsigned i = thin_node_count_to(&node, key);
		if (i == 0)
			return -ENODATA;
		uint64_t value = thin_node_value(&node, i - 1);
		if (node.leaf) {
			*ret = value;
			return thin_node_key(&node, i - 1) == key ? 0 : -ENODATA;
		}
		number = value;
	}
}

int thin_on_one_commit(
	struct thin_reader *r, int (*read)(struct thin_reader *r, void *arg), void *arg)
{
	for (unsigned i = 0; i < ATTEMPTS; i++) {
		struct thin_commit after;
		int res = read_commit(r, &r->commit);
		if (res < 0)
			return res;
		r->nodes = 0;
		int found = r->commit.blank ? 0 : read(r, arg);
		if (found == -ENOMEM)
			return found;
		res = read_commit(r, &after);
		if (res < 0)
			return res;
		if (after.blank == r->commit.blank && after.checksum == r->commit.checksum)
			return found;
	}
	return -EAGAIN;
}

int thin_commit_read(
	const struct disk *disk, const struct image_map *metadata, struct thin_commit *ret)
{
	struct thin_reader r;
	int res = thin_reader_open(&r, disk, metadata);
	if (res == 0)
		res = read_commit(&r, ret);
	thin_reader_close(&r);
	return res;
}
