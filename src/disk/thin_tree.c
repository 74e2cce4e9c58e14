/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Walking the trees of dm-thin's metadata. Happy path: the first block says where the trees of the
 * last commit begin; nodes are read from the pieces of the metadata's image, checked, and walked
 * through. Then the first block is read once more: if another commit has come meanwhile, blocks of
 * the old one may have been used anew, and all of it is read again.
 *
 * How it can fail: a block has another number or checksum than it should, a node says what cannot
 * be, the tree is deeper than one that can be, or has more nodes than there are blocks (a ring).
 */
#include "disk/thin_tree.h"

#include "base/buf.h"
#include "base/crc32c.h"
#include "disk/thin_status.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
	BLOCK = THIN_METADATA_BLOCK_BYTES,
	DEPTH_MAX = 12,
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
	POINTER_BYTES = 8,
	DETAILS_BYTES = 24, /* how many blocks it has, transaction, two times */
	TIME_BITS = 24,     /* of a mapping's value; the block of data is above */
	SECTOR = 512,
};
#define SUPER_MAGIC 27022010u
#define SUPER_XOR   160774u
#define NODE_XOR    121107u

static uint64_t get(const uint8_t *at, unsigned bytes)
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

struct reader {
	const struct disk *disk;
	const struct image_map *metadata;
	struct thin_commit commit;
	uint64_t nodes;  /* that were read, of one commit */
	uint8_t *blocks; /* one for each level of a tree */
};

static int reader_open(struct reader *r, const struct disk *disk, const struct image_map *metadata)
{
	void *blocks = NULL;
	*r = (struct reader){.disk = disk, .metadata = metadata};
	if (posix_memalign(&blocks, BLOCK, (size_t)BLOCK * (DEPTH_MAX + 1)) != 0)
		return -ENOMEM;
	r->blocks = blocks;
	return 0;
}

static bool sum_is_right(const uint8_t *block, uint32_t xor)
{
	return (~crc32c(block + 4, BLOCK - 4) ^ xor) == (uint32_t)get(block, 4);
}

static bool is_blank(const uint8_t *block)
{
	return block[0] == 0 && memcmp(block, block + 1, BLOCK - 1) == 0;
}

static int read_commit(struct reader *r, struct thin_commit *ret)
{
	uint8_t *b = r->blocks;
	int res = thin_image_read(r->disk, r->metadata, 0, b, BLOCK);
	if (res < 0)
		return res;
	*ret = (struct thin_commit){.blank = is_blank(b)};
	if (ret->blank)
		return 0;
	uint64_t version = get(b + SUPER_VERSION_AT, 4);
	uint64_t block_bytes = get(b + SUPER_DATA_BLOCK_AT, 4) * SECTOR;
	if (get(b + SUPER_MAGIC_AT, 8) != SUPER_MAGIC || !sum_is_right(b, SUPER_XOR) ||
		get(b + SUPER_BLOCK_AT, 8) != 0 || version == 0 || version > SUPER_VERSION_MAX ||
		block_bytes < THIN_BLOCK_MIN || block_bytes > THIN_BLOCK_MAX)
		return -EBADMSG;
	*ret = (struct thin_commit){
		.needs_check = (get(b + SUPER_FLAGS_AT, 4) & SUPER_NEEDS_CHECK) != 0,
		.transaction = get(b + SUPER_TRANSACTION_AT, 8),
		.metadata_total = get(b + SUPER_METADATA_AT, 8),
		.metadata_used = get(b + SUPER_METADATA_AT + 8, 8),
		.data_total = get(b + SUPER_DATA_AT, 8),
		.data_used = get(b + SUPER_DATA_AT + 8, 8),
		.block_bytes = (uint32_t)block_bytes,
		.mappings = get(b + SUPER_MAPPINGS_AT, 8),
		.details = get(b + SUPER_DETAILS_AT, 8),
		.checksum = (uint32_t)get(b, 4),
	};
	return 0;
}

struct node {
	const uint8_t *keys, *values;
	unsigned count;
	bool leaf;
};

/* value_bytes: of a leaf's values. */
static int read_node(
	struct reader *r, uint64_t number, unsigned depth, unsigned value_bytes, struct node *ret)
{
	if (depth >= DEPTH_MAX || ++r->nodes > r->commit.metadata_total ||
		number >= r->commit.metadata_total)
		return -EBADMSG;
	uint8_t *b = r->blocks + (size_t)BLOCK * (depth + 1);
	int res = thin_image_read(r->disk, r->metadata, number * BLOCK, b, BLOCK);
	if (res < 0)
		return res;
	uint64_t flags = get(b + NODE_FLAGS_AT, 4), max = get(b + NODE_MAX_AT, 4);
	bool leaf = flags == NODE_LEAF;
	unsigned size = leaf ? value_bytes : POINTER_BYTES;
	ret->count = (unsigned)get(b + NODE_COUNT_AT, 4);
	if (!sum_is_right(b, NODE_XOR) || get(b + NODE_BLOCK_AT, 8) != number ||
		(!leaf && flags != NODE_INTERNAL) || max > BLOCK / 8 || ret->count > max ||
		get(b + NODE_VALUE_AT, 4) != size || NODE_KEYS_AT + max * (8 + size) > BLOCK)
		return -EBADMSG;
	ret->leaf = leaf;
	ret->keys = b + NODE_KEYS_AT;
	ret->values = ret->keys + max * 8;
	return 0;
}

/* ---- trees ---- */

typedef int each_fn(void *arg, uint64_t key, const uint8_t *value);

static int walk(struct reader *r, uint64_t number, unsigned depth, unsigned value_bytes,
	each_fn *each, void *arg)
{
	struct node node;
	int res = read_node(r, number, depth, value_bytes, &node);
	for (unsigned i = 0; res == 0 && i < node.count; i++) {
		const uint8_t *value = node.values + (size_t)i * (node.leaf ? value_bytes : 8);
		res = node.leaf ? each(arg, get(node.keys + 8 * (size_t)i, 8), value)
				: walk(r, get(value, 8), depth + 1, value_bytes, each, arg);
	}
	return res;
}

/* The value, 8 bytes, of a key. -ENODATA: there is none. */
static int find(struct reader *r, uint64_t number, uint64_t key, uint64_t *ret)
{
	struct node node;
	for (unsigned depth = 0;; depth++) {
		int res = read_node(r, number, depth, POINTER_BYTES, &node);
		if (res < 0)
			return res;
		/* The last key that is not greater. */
		unsigned i = 0;
		while (i < node.count && get(node.keys + 8 * (size_t)i, 8) <= key)
			i++;
		if (i == 0)
			return -ENODATA;
		uint64_t value = get(node.values + 8 * (size_t)(i - 1), 8);
		if (node.leaf) {
			*ret = value;
			return get(node.keys + 8 * (size_t)(i - 1), 8) == key ? 0 : -ENODATA;
		}
		number = value;
	}
}

/* read() on one commit: once more where another came meanwhile. */
static int on_one_commit(struct reader *r, int (*read)(struct reader *r, void *arg), void *arg)
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

/* ---- what is asked for ---- */

int thin_commit_read(
	const struct disk *disk, const struct image_map *metadata, struct thin_commit *ret)
{
	struct reader r;
	int res = reader_open(&r, disk, metadata);
	if (res == 0)
		res = read_commit(&r, ret);
	free(r.blocks);
	return res;
}

static int add_id(void *arg, uint64_t key, const uint8_t *details)
{
	struct thin_ids *ids = arg;
	if (key > IMAGE_MAP_THIN_MAX || (ids->count > 0 && key <= ids->at[ids->count - 1].id))
		return -EBADMSG;
	if (array_grow(&ids->at, &ids->cap, ids->count, sizeof(*ids->at)) < 0)
		return -ENOMEM;
	ids->at[ids->count++] = (struct thin_id){(uint32_t)key, get(details, 8)};
	return 0;
}

static int read_ids(struct reader *r, void *arg)
{
	struct thin_ids *ids = arg;
	ids->count = 0;
	ids->commit = r->commit;
	return walk(r, r->commit.details, 0, DETAILS_BYTES, add_id, ids);
}

int thin_ids_read(const struct disk *disk, const struct image_map *metadata, struct thin_ids *ret)
{
	struct reader r;
	int res = reader_open(&r, disk, metadata);
	ret->count = 0;
	if (res == 0)
		res = on_one_commit(&r, read_ids, ret);
	if (res == 0)
		ret->commit = r.commit;
	free(r.blocks);
	return res;
}

void thin_ids_free(struct thin_ids *ids)
{
	free(ids->at);
	*ids = (struct thin_ids){0};
}

static int compare_id(const void *key, const void *at)
{
	uint32_t id = *(const uint32_t *)key;
	const struct thin_id *known = at;
	return id < known->id ? -1 : id > known->id;
}

const struct thin_id *thin_ids_find(const struct thin_ids *ids, uint32_t id)
{
	return ids->count == 0 ? NULL
			       : bsearch(&id, ids->at, ids->count, sizeof(*ids->at), compare_id);
}

struct lookup {
	uint32_t id;
	uint64_t block, ret;
};

static int read_mapping(struct reader *r, void *arg)
{
	struct lookup *l = arg;
	uint64_t root, value;
	int res = find(r, r->commit.mappings, l->id, &root);
	if (res < 0)
		return res == -ENODATA ? -ENXIO : res;
	res = find(r, root, l->block, &value);
	if (res == 0)
		l->ret = (value >> TIME_BITS) * r->commit.block_bytes;
	return res;
}

int thin_block_find(const struct disk *disk, const struct image_map *metadata, uint32_t id,
	uint64_t block, uint64_t *ret_offset)
{
	struct reader r;
	struct lookup l = {.id = id, .block = block};
	int res = reader_open(&r, disk, metadata);
	if (res == 0)
		res = on_one_commit(&r, read_mapping, &l);
	if (res == 0 && r.commit.blank)
		res = -ENXIO;
	if (res == 0)
		*ret_offset = l.ret;
	free(r.blocks);
	return res;
}
