/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Comparing two trees of dm-thin's. Happy path: both roots are looked up in one commit -> each tree
 * is gone down to where the window begins -> both are walked through together, in the order of
 * blocks. What both have of the same node is equal, and not read. A window ends where enough nodes
 * were read or enough ranges found, so that no thread is kept for long.
 *
 * How it can fail: as reading nodes does (thin_node.h). A tree whose keys are not in order is
 * damaged.
 */
#include "disk/thin_blocks.h"

#include "disk/thin_node.h"

#include <errno.h>

enum {
	WINDOW_NODES = 96, /* of both trees; more than going down twice takes */
	WINDOW_RANGES = 2 * EXTENTS_MAX,
};
_Static_assert(WINDOW_NODES > 4 * THIN_DEPTH_MAX, "each window has to come forward");

/* A place in a tree: an entry of a leaf, or of a node above whose subtree is yet to come. */
struct side {
	struct thin_reader reader;
	uint64_t root;
	struct {
		struct thin_node node;
		uint64_t number;
		unsigned at;
	} level[THIN_DEPTH_MAX];
	unsigned depth, leaf_depth;
	bool over;
};

static bool on_leaf(const struct side *s)
{
	return s->level[s->depth].node.leaf;
}

static uint64_t key_of(const struct side *s)
{
	return s->over ? UINT64_MAX
		       : thin_node_key(&s->level[s->depth].node, s->level[s->depth].at);
}

static uint64_t value_of(const struct side *s)
{
	return thin_node_value(&s->level[s->depth].node, s->level[s->depth].at);
}

static unsigned height_of(const struct side *s)
{
	return s->leaf_depth > s->depth ? s->leaf_depth - s->depth : 0;
}

/* ---- moving ---- */

static int enter(struct side *s, uint64_t number, unsigned depth)
{
	if (depth >= THIN_DEPTH_MAX)
		return -EBADMSG;
	int r = thin_node_read(
		&s->reader, number, depth, THIN_POINTER_BYTES, &s->level[depth].node);
	s->depth = depth;
	s->level[depth].number = number;
	s->level[depth].at = 0;
	/* Only the root of an id that has nothing is empty. */
	bool may_be_empty = depth == 0 && s->level[depth].node.leaf;
	return r == 0 && s->level[depth].node.count == 0 && !may_be_empty ? -EBADMSG : r;
}

static int go_down(struct side *s)
{
	uint64_t from = key_of(s);
	int r = enter(s, value_of(s), s->depth + 1);
	return r == 0 && key_of(s) < from ? -EBADMSG : r;
}

/* Behind the last entry of a node what follows is in the one above. */
static void settle(struct side *s)
{
	while (s->level[s->depth].at >= s->level[s->depth].node.count) {
		if (s->depth == 0) {
			s->over = true;
			return;
		}
		s->depth--;
		s->level[s->depth].at++;
	}
}

static int step(struct side *s)
{
	uint64_t last = key_of(s);
	s->level[s->depth].at++;
	settle(s);
	return key_of(s) <= last ? -EBADMSG : 0;
}

static void leave_node(struct side *s)
{
	s->level[s->depth].at = s->level[s->depth].node.count;
	settle(s);
}

/* To the first block that is not before `block`. */
static int seek(struct side *s, uint64_t block)
{
	int r = enter(s, s->root, 0);
	while (r == 0) {
		struct thin_node *node = &s->level[s->depth].node;
		unsigned passed = thin_node_count_to(node, block);
		if (node->leaf) {
			bool there = passed > 0 && thin_node_key(node, passed - 1) == block;
			s->level[s->depth].at = there ? passed - 1 : passed;
			break;
		}
		s->level[s->depth].at = passed > 0 ? passed - 1 : 0;
		r = enter(s, value_of(s), s->depth + 1);
	}
	s->leaf_depth = s->depth;
	if (r == 0)
		settle(s);
	return r;
}

/* ---- comparing ---- */

struct comparison {
	struct side base, target;
	uint32_t base_id, target_id;
	uint64_t from, to; /* bytes */
	struct extent_ranges *found;
};

static uint64_t block_bytes(const struct comparison *c)
{
	return c->target.reader.commit.block_bytes;
}

static void add(struct comparison *c, uint64_t block)
{
	uint64_t start = block * block_bytes(c), end = start + block_bytes(c);
	start = start < c->from ? c->from : start;
	end = end > c->to ? c->to : end;
	if (start < end)
		extent_ranges_add(c->found, start, end);
}

/* Whether both are at a node, or within a leaf, that is one and the same from there on. */
static bool is_shared(const struct side *a, const struct side *b)
{
	if (a->over || b->over || on_leaf(a) != on_leaf(b))
		return false;
	if (!on_leaf(a))
		return value_of(a) == value_of(b);
	return a->level[a->depth].number == b->level[b->depth].number &&
	       a->level[a->depth].at == b->level[b->depth].at;
}

static int pass_shared(struct side *a, struct side *b)
{
	if (on_leaf(a)) {
		leave_node(a);
		leave_node(b);
		return 0;
	}
	int r = step(a);
	return r == 0 ? step(b) : r;
}

/* The one that is higher; both where they are at one height, as what they share is at one, too. */
static int descend(struct side *a, struct side *b)
{
	bool a_can = !a->over && !on_leaf(a), b_can = !b->over && !on_leaf(b);
	bool a_goes = a_can && (!b_can || height_of(a) >= height_of(b));
	bool b_goes = b_can && (!a_can || height_of(b) >= height_of(a));
	int r = a_goes ? go_down(a) : 0;
	return r == 0 && b_goes ? go_down(b) : r;
}

static bool at_entries(const struct side *s)
{
	return s->over || on_leaf(s);
}

static int compare_entries(struct comparison *c)
{
	struct side *a = &c->base, *b = &c->target;
	uint64_t a_key = key_of(a), b_key = key_of(b);
	bool both = a_key == b_key;
	if (!both || value_of(a) >> THIN_MAPPING_BITS != value_of(b) >> THIN_MAPPING_BITS)
		add(c, a_key < b_key ? a_key : b_key);
	int r = a_key <= b_key ? step(a) : 0;
	return r == 0 && b_key <= a_key ? step(b) : r;
}

static int compare(struct comparison *c, uint64_t *ret_to)
{
	struct side *a = &c->base, *b = &c->target;
	uint64_t end = (c->to + block_bytes(c) - 1) / block_bytes(c);
	int r = 0;
	*ret_to = c->to;
	a->reader.nodes = b->reader.nodes = 0;
	while (r == 0) {
		uint64_t next = key_of(a) < key_of(b) ? key_of(a) : key_of(b);
		if (next >= end)
			return 0;
		if (a->reader.nodes + b->reader.nodes >= WINDOW_NODES ||
			c->found->count >= WINDOW_RANGES) {
			*ret_to = next * block_bytes(c);
			return *ret_to > c->from ? 0 : -EBADMSG;
		}
		if (is_shared(a, b))
			r = pass_shared(a, b);
		else if (at_entries(a) && at_entries(b))
			r = compare_entries(c);
		else
			r = descend(a, b);
	}
	return r;
}

/* ---- the roots ---- */

static int find_root(struct thin_reader *r, uint32_t id, uint64_t *ret)
{
	int res = thin_tree_find(r, r->commit.mappings, id, ret);
	return res == -ENODATA ? -ENXIO : res;
}

static int find_roots(struct thin_reader *r, void *arg)
{
	struct comparison *c = arg;
	int res = c->target_id != 0 ? find_root(r, c->target_id, &c->target.root) : 0;
	return res == 0 && c->base_id != 0 ? find_root(r, c->base_id, &c->base.root) : res;
}

static int open_sides(
	struct comparison *c, const struct disk *disk, const struct image_map *metadata)
{
	int r = thin_reader_open(&c->target.reader, disk, metadata);
	if (r == 0)
		r = thin_reader_open(&c->base.reader, disk, metadata);
	if (r == 0)
		r = thin_on_one_commit(&c->target.reader, find_roots, c);
	if (r == 0 && c->target.reader.commit.blank)
		r = -ENXIO;
	c->base.reader.commit = c->target.reader.commit;
	return r;
}

int thin_blocks_window(const struct disk *disk, const struct image_map *metadata, uint32_t base,
	uint32_t target, uint64_t from, uint64_t to, struct extent_ranges *ret, uint64_t *ret_to)
{
	struct comparison c = {
		.base_id = base, .target_id = target, .from = from, .to = to, .found = ret};
	ret->count = 0;
	*ret_to = to;
	if (base == 0 && target == 0)
		return 0;
	int r = open_sides(&c, disk, metadata);
	c.base.over = base == 0;
	c.target.over = target == 0;
	if (r == 0 && target != 0)
		r = seek(&c.target, from / block_bytes(&c));
	if (r == 0 && base != 0)
		r = seek(&c.base, from / block_bytes(&c));
	if (r == 0)
		r = compare(&c, ret_to);
	thin_reader_close(&c.base.reader);
	thin_reader_close(&c.target.reader);
	return r;
}
