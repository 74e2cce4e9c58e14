/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The free extents, each a node of two search trees: by address, for giving back, and by length,
 * for taking. Both are treaps: a node's rank is a hash of its index, so both have a depth of some
 * forty at 200,000 extents, whatever the order of takes and gives. Nodes lie in one array and name
 * each other by index; node 0 is none.
 *
 * Giving back needs at most one more node, and there always is one: behind each free extent comes a
 * piece of some map or the end of a part, so there are never more extents than pieces and parts
 * together. Pieces come only by occupying and taking, which may fail, and make the room first.
 */
#include "disk/area.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

enum tree { BY_ADDRESS, BY_LENGTH, TREES };

struct node {
	uint64_t start, bytes;
	uint32_t left[TREES], right[TREES]; /* left[0]: the next unused node, if it is unused */
};

/* What a disk has. Parts do not touch, so no extent is on two disks. */
struct part {
	uint64_t start, bytes;
};

struct area {
	struct node *nodes;
	uint32_t roots[TREES];
	uint32_t unused; /* the first of a list */
	uint32_t made;   /* nodes before it are in a tree or in the list */
	size_t cap;
	unsigned extents;
	size_t pieces; /* what was occupied and taken, and not yet given back */
	uint64_t free_bytes, total_bytes;
	struct part *parts;
	unsigned part_count;
};

struct area *area_new(void)
{
	struct area *area = calloc(1, sizeof *area);
	if (area != NULL)
		area->made = 1;
	return area;
}

void area_free(struct area *area)
{
	if (area == NULL)
		return;
	free(area->nodes);
	free(area->parts);
	free(area);
}

/* ---- the trees ---- */

static uint32_t rank(uint32_t index)
{
	index = (index ^ index >> 16) * 0x85ebca6b;
	index = (index ^ index >> 13) * 0xc2b2ae35;
	return index ^ index >> 16;
}

static bool before(enum tree tree, const struct node *a, const struct node *b)
{
	if (tree == BY_LENGTH && a->bytes != b->bytes)
		return a->bytes < b->bytes;
	return a->start < b->start;
}

static void tree_insert(struct area *area, enum tree tree, uint32_t index)
{
	struct node *nodes = area->nodes, *node = &nodes[index];
	uint32_t *at = &area->roots[tree];
	while (*at != 0 && rank(*at) > rank(index))
		at = before(tree, node, &nodes[*at]) ? &nodes[*at].left[tree]
						     : &nodes[*at].right[tree];
	/* What is below goes to its two sides. */
	uint32_t below = *at, *left = &node->left[tree], *right = &node->right[tree];
	*at = index;
	while (below != 0) {
		if (before(tree, &nodes[below], node)) {
			*left = below;
			left = &nodes[below].right[tree];
			below = *left;
		} else {
			*right = below;
			right = &nodes[below].left[tree];
			below = *right;
		}
	}
	*left = *right = 0;
}

static void tree_remove(struct area *area, enum tree tree, uint32_t index)
{
	struct node *nodes = area->nodes, *node = &nodes[index];
	uint32_t *at = &area->roots[tree];
	while (*at != index)
		at = before(tree, node, &nodes[*at]) ? &nodes[*at].left[tree]
						     : &nodes[*at].right[tree];
	uint32_t left = node->left[tree], right = node->right[tree];
	while (left != 0 && right != 0) {
		if (rank(left) > rank(right)) {
			*at = left;
			at = &nodes[left].right[tree];
			left = *at;
		} else {
			*at = right;
			at = &nodes[right].left[tree];
			right = *at;
		}
	}
	*at = left != 0 ? left : right;
}

/* The last node that is not behind `key`, or 0. */
static uint32_t tree_find(const struct area *area, enum tree tree, const struct node *key)
{
	uint32_t found = 0, at = area->roots[tree];
	while (at != 0) {
		if (before(tree, key, &area->nodes[at])) {
			at = area->nodes[at].left[tree];
		} else {
			found = at;
			at = area->nodes[at].right[tree];
		}
	}
	return found;
}

/* The extent that has the address, or 0. */
static uint32_t extent_at(const struct area *area, uint64_t address)
{
	uint32_t i = tree_find(area, BY_ADDRESS, &(struct node){.start = address});
	return i != 0 && address - area->nodes[i].start < area->nodes[i].bytes ? i : 0;
}

static uint32_t longest(const struct area *area)
{
	return tree_find(area, BY_LENGTH, &(struct node){.start = UINT64_MAX, .bytes = UINT64_MAX});
}

/* The shortest extent of so many bytes or more, the first of those; or 0. */
static uint32_t shortest_of(const struct area *area, uint64_t bytes)
{
	uint32_t found = 0, at = area->roots[BY_LENGTH];
	while (at != 0) {
		if (area->nodes[at].bytes >= bytes) {
			found = at;
			at = area->nodes[at].left[BY_LENGTH];
		} else {
			at = area->nodes[at].right[BY_LENGTH];
		}
	}
	return found;
}

/* ---- extents ---- */

/* So that there are nodes for so many more pieces or parts. */
static int make_room(struct area *area, size_t more)
{
	size_t need = area->pieces + area->part_count + more + 1;
	if (need <= area->cap)
		return 0;
	size_t cap = need + need / 2;
	struct node *nodes =
		need < UINT32_MAX ? reallocarray(area->nodes, cap, sizeof *nodes) : NULL;
	if (nodes == NULL)
		return -ENOMEM;
	area->nodes = nodes;
	area->cap = cap;
	return 0;
}

static void extent_insert(struct area *area, uint64_t start, uint64_t bytes)
{
	uint32_t index = area->unused;
	if (index != 0) {
		area->unused = area->nodes[index].left[0];
	} else {
		assert(area->made < area->cap);
		index = area->made++;
	}
	area->nodes[index].start = start;
	area->nodes[index].bytes = bytes;
	tree_insert(area, BY_ADDRESS, index);
	tree_insert(area, BY_LENGTH, index);
	area->extents++;
	area->free_bytes += bytes;
}

static void extent_remove(struct area *area, uint32_t index)
{
	tree_remove(area, BY_ADDRESS, index);
	tree_remove(area, BY_LENGTH, index);
	area->extents--;
	area->free_bytes -= area->nodes[index].bytes;
	area->nodes[index].left[0] = area->unused;
	area->unused = index;
}

/* Takes a part of a free extent. */
static void extent_carve(struct area *area, uint32_t index, uint64_t address, uint64_t bytes)
{
	struct node was = area->nodes[index];
	uint64_t end = was.start + was.bytes;
	extent_remove(area, index);
	if (was.start < address)
		extent_insert(area, was.start, address - was.start);
	if (address + bytes < end)
		extent_insert(area, address + bytes, end - address - bytes);
}

/* Makes it free, and one extent with what is free beside it. */
static void extent_give(struct area *area, uint64_t start, uint64_t bytes)
{
	uint64_t end = start + bytes;
	uint32_t left = tree_find(area, BY_ADDRESS, &(struct node){.start = end - 1});
	assert(left == 0 || area->nodes[left].start + area->nodes[left].bytes <= start);
	if (left != 0 && area->nodes[left].start + area->nodes[left].bytes == start) {
		start = area->nodes[left].start;
		extent_remove(area, left);
	}
	uint32_t right = extent_at(area, end);
	if (right != 0) {
		end += area->nodes[right].bytes;
		extent_remove(area, right);
	}
	extent_insert(area, start, end - start);
}

/* ---- what is asked of it ---- */

static bool on_one_part(const struct area *area, uint64_t start, uint64_t bytes)
{
	for (unsigned i = 0; i < area->part_count; i++) {
		const struct part *part = &area->parts[i];
		if (start >= part->start && start - part->start < part->bytes)
			return bytes <= part->bytes - (start - part->start);
	}
	return false;
}

int area_add(struct area *area, uint64_t start, uint64_t bytes)
{
	for (unsigned i = 0; i < area->part_count; i++)
		if (start <= area->parts[i].start + area->parts[i].bytes &&
			area->parts[i].start <= start + bytes)
			return -EEXIST;
	int r = make_room(area, 1);
	struct part *parts =
		r < 0 ? NULL : reallocarray(area->parts, area->part_count + 1u, sizeof *parts);
	if (parts == NULL)
		return -ENOMEM;
	area->parts = parts;
	parts[area->part_count++] = (struct part){start, bytes};
	area->total_bytes += bytes;
	extent_insert(area, start, bytes);
	return 0;
}

int area_occupy(struct area *area, uint64_t address, uint64_t bytes)
{
	if (bytes == 0 || !on_one_part(area, address, bytes))
		return -ERANGE;
	uint32_t index = extent_at(area, address);
	if (index == 0 || area->nodes[index].bytes - (address - area->nodes[index].start) < bytes)
		return -EEXIST;
	int r = make_room(area, 1);
	if (r < 0)
		return r;
	extent_carve(area, index, address, bytes);
	area->pieces++;
	return 0;
}

/* Takes from the beginning of an extent, at most what it has, and adds that to the map. */
static int take_from(struct area *area, uint32_t index, uint64_t *bytes, struct image_map *map)
{
	struct node was = area->nodes[index];
	uint64_t part = was.bytes < *bytes ? was.bytes : *bytes;
	int r = image_map_add(map, was.start, part);
	if (r < 0)
		return r;
	extent_carve(area, index, was.start, part);
	*bytes -= part;
	return 0;
}

/* What of `now` the map `was` has not yet becomes free again. */
static void take_undo(struct area *area, const struct image_map *was, const struct image_map *now)
{
	uint64_t from = image_map_bytes(was);
	for (unsigned i = 0; i < now->count; i++) {
		struct image_piece piece = now->pieces[i];
		uint64_t keep = from < piece.bytes ? from : piece.bytes;
		if (keep < piece.bytes)
			extent_give(area, piece.address + keep, piece.bytes - keep);
		from -= keep;
	}
}

int area_take(struct area *area, uint64_t bytes, struct image_map *map)
{
	if (bytes > area->free_bytes)
		return -ENOSPC;
	int r = make_room(area, IMAGE_MAP_PIECES_MAX);
	if (r < 0)
		return r;
	struct image_map now = *map;
	const struct image_piece *last = map->count > 0 ? &map->pieces[map->count - 1] : NULL;
	if (last != NULL && bytes > 0) {
		uint64_t behind = last->address + last->bytes;
		uint32_t index = extent_at(area, behind);
		if (index != 0)
			r = take_from(area, index, &bytes, &now);
	}
	while (r == 0 && bytes > 0) {
		uint32_t index = shortest_of(area, bytes);
		r = take_from(area, index != 0 ? index : longest(area), &bytes, &now);
	}
	if (r < 0) {
		take_undo(area, map, &now);
		return r;
	}
	area->pieces += now.count - map->count;
	*map = now;
	return 0;
}

void area_give(struct area *area, uint64_t address, uint64_t bytes)
{
	assert(area->pieces > 0);
	extent_give(area, address, bytes);
	area->pieces--;
}

void area_give_map(struct area *area, const struct image_map *map, uint64_t from)
{
	for (unsigned i = 0; i < map->count; i++) {
		struct image_piece piece = map->pieces[i];
		uint64_t keep = from < piece.bytes ? from : piece.bytes;
		if (keep == 0)
			area_give(area, piece.address, piece.bytes);
		else if (keep < piece.bytes)
			extent_give(area, piece.address + keep, piece.bytes - keep);
		from -= keep;
	}
}

uint64_t area_total_bytes(const struct area *area)
{
	return area->total_bytes;
}

uint64_t area_free_bytes(const struct area *area)
{
	return area->free_bytes;
}

unsigned area_free_extents(const struct area *area)
{
	return area->extents;
}

uint64_t area_takeable_bytes(const struct area *area)
{
	struct node key = {.start = UINT64_MAX, .bytes = UINT64_MAX};
	uint64_t bytes = 0;
	if (area->extents <= IMAGE_MAP_PIECES_MAX)
		return area->free_bytes;
	for (unsigned i = 0; i < IMAGE_MAP_PIECES_MAX; i++) {
		uint32_t index = tree_find(area, BY_LENGTH, &key);
		bytes += area->nodes[index].bytes;
		/* The one before it in this order. */
		key = area->nodes[index];
		if (key.start-- == 0) {
			key.bytes--;
			key.start = UINT64_MAX;
		}
	}
	return bytes;
}
