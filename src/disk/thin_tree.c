/* SPDX-License-Identifier: Apache-2.0 */
/* Walking through the trees of dm-thin's metadata. It fails as reading their nodes does. */
#include "disk/thin_tree.h"

#include "base/buf.h"

#include <errno.h>
#include <stdlib.h>

enum { DETAILS_BYTES = 24 }; /* how many blocks it has, transaction, two times */

typedef int each_fn(void *arg, uint64_t key, const uint8_t *value);

static int walk(struct thin_reader *r, uint64_t number, unsigned depth, unsigned value_bytes,
	each_fn *each, void *arg)
{
	struct thin_node node;
	int res = thin_node_read(r, number, depth, value_bytes, &node);
	for (unsigned i = 0; res == 0 && i < node.count; i++) {
		const uint8_t *value = node.values + (size_t)i * (node.leaf ? value_bytes : 8);
		res = node.leaf ? each(arg, thin_node_key(&node, i), value)
				: walk(r, thin_get(value, 8), depth + 1, value_bytes, each, arg);
	}
	return res;
}

/* ---- what is asked for ---- */

static int add_id(void *arg, uint64_t key, const uint8_t *details)
{
	struct thin_ids *ids = arg;
	if (key > IMAGE_MAP_THIN_MAX || (ids->count > 0 && key <= ids->at[ids->count - 1].id))
		return -EBADMSG;
	if (array_grow(&ids->at, &ids->cap, ids->count, sizeof(*ids->at)) < 0)
		return -ENOMEM;
	ids->at[ids->count++] = (struct thin_id){(uint32_t)key, thin_get(details, 8)};
	return 0;
}

static int read_ids(struct thin_reader *r, void *arg)
{
	struct thin_ids *ids = arg;
	ids->count = 0;
	ids->commit = r->commit;
	return walk(r, r->commit.details, 0, DETAILS_BYTES, add_id, ids);
}

int thin_ids_read(const struct disk *disk, const struct image_map *metadata, struct thin_ids *ret)
{
	struct thin_reader r;
	int res = thin_reader_open(&r, disk, metadata);
	ret->count = 0;
	if (res == 0)
		res = thin_on_one_commit(&r, read_ids, ret);
	if (res == 0)
		ret->commit = r.commit;
	thin_reader_close(&r);
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

static int read_mapping(struct thin_reader *r, void *arg)
{
	struct lookup *l = arg;
	uint64_t root, value;
	int res = thin_tree_find(r, r->commit.mappings, l->id, &root);
	if (res < 0)
		return res == -ENODATA ? -ENXIO : res;
	res = thin_tree_find(r, root, l->block, &value);
	if (res == 0)
		l->ret = (value >> THIN_MAPPING_BITS) * r->commit.block_bytes;
	return res;
}

int thin_block_find(const struct disk *disk, const struct image_map *metadata, uint32_t id,
	uint64_t block, uint64_t *ret_offset)
{
	struct thin_reader r;
	struct lookup l = {.id = id, .block = block};
	int res = thin_reader_open(&r, disk, metadata);
	if (res == 0)
		res = thin_on_one_commit(&r, read_mapping, &l);
	if (res == 0 && r.commit.blank)
		res = -ENXIO;
	if (res == 0)
		*ret_offset = l.ret;
	thin_reader_close(&r);
	return res;
}
