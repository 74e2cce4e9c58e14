/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Happy path of a window: the base's extents, the target's, the base's once more -> both maps are
 * gone through side by side, from one border to the next. It fails with what FIEMAP says, or when
 * the base's extents are being moved.
 *
 * Extents that do not say where they lie (not allocated yet, inline, compressed or encrypted by the
 * file system) are like nothing else, not even like themselves.
 */
#include "blockio/extents.h"

#include "base/fd.h"

#include <errno.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>

enum { MOVED_TRIES = 4 };

static const uint32_t unsure = FIEMAP_EXTENT_UNKNOWN | FIEMAP_EXTENT_DELALLOC |
			       FIEMAP_EXTENT_ENCODED | FIEMAP_EXTENT_DATA_ENCRYPTED |
			       FIEMAP_EXTENT_NOT_ALIGNED | FIEMAP_EXTENT_DATA_INLINE |
			       FIEMAP_EXTENT_DATA_TAIL;

/* ---- one image ---- */

/* True: the extent holds written data of [from, to). */
static bool take_one(const struct fiemap_extent *e, uint64_t from, uint64_t to, struct extent *ret)
{
	struct extent x = {
		.start = e->fe_logical,
		.end = e->fe_logical + e->fe_length,
		.physical = e->fe_physical,
		.sure = (e->fe_flags & unsure) == 0,
	};
	if (x.sure && (e->fe_flags & FIEMAP_EXTENT_UNWRITTEN) != 0)
		return false;
	if (!x.sure) {
		x.start -= x.start % EXTENT_ALIGN;
		x.end += (EXTENT_ALIGN - x.end % EXTENT_ALIGN) % EXTENT_ALIGN;
	}
	if (x.start < from) {
		x.physical += from - x.start;
		x.start = from;
	}
	if (x.end > to)
		x.end = to;
	*ret = x;
	return x.start < x.end;
}

int extents_take(const struct fiemap_extent *extents, unsigned count, unsigned capacity,
	uint64_t from, uint64_t to, struct extent_map *ret)
{
	uint64_t known = from;
	ret->count = 0;
	ret->from = from;
	for (unsigned i = 0; i < count; i++) {
		const struct fiemap_extent *e = &extents[i];
		struct extent x;
		if (e->fe_length > INT64_MAX || e->fe_logical > INT64_MAX - e->fe_length ||
			(i > 0 && e->fe_logical < known))
			return -EIO;
		known = e->fe_logical + e->fe_length;
		if (!take_one(e, from, to, &x))
			continue;
		/* An unsure one before it may have been widened over its beginning. */
		struct extent *last = ret->count > 0 ? &ret->at[ret->count - 1] : NULL;
		if (last != NULL && x.start < last->end) {
			x.physical += last->end - x.start;
			x.start = last->end;
			if (x.start >= x.end)
				continue;
		}
		ret->at[ret->count++] = x;
	}
	bool all = count < capacity || (extents[count - 1].fe_flags & FIEMAP_EXTENT_LAST) != 0;
	ret->to = all || known > to ? to : known;
	return ret->to > from || from == to ? 0 : -EIO;
}

int extents_map(int fd, uint64_t from, uint64_t to, struct extent_map *ret)
{
	_cleanup_free_ struct fiemap *map =
		calloc(1, sizeof(*map) + EXTENTS_MAX * sizeof(struct fiemap_extent));
	if (map == NULL)
		return -ENOMEM;
	map->fm_start = from;
	map->fm_length = to - from;
	map->fm_flags = FIEMAP_FLAG_SYNC;
	map->fm_extent_count = EXTENTS_MAX;
	if (ioctl(fd, FS_IOC_FIEMAP, map) < 0)
		return errno == ENOTTY ? -EOPNOTSUPP : -errno;
	if (map->fm_mapped_extents > EXTENTS_MAX)
		return -EIO;
	return extents_take(map->fm_extents, map->fm_mapped_extents, EXTENTS_MAX, from, to, ret);
}

/* ---- two images ---- */

bool extents_comparable(uint64_t fs_type)
{
	return fs_type == XFS_SUPER_MAGIC || fs_type == BTRFS_SUPER_MAGIC;
}

void extent_ranges_add(struct extent_ranges *ranges, uint64_t start, uint64_t end)
{
	struct extent_range *last = ranges->count > 0 ? &ranges->at[ranges->count - 1] : NULL;
	if (last != NULL && last->end == start)
		last->end = end;
	else
		ranges->at[ranges->count++] = (struct extent_range){start, end};
}

/* What the map has at a place: an extent, or NULL for zeros. *next is where that ends, if it is
 * before it. */
static const struct extent *look(
	const struct extent_map *map, unsigned *i, uint64_t at, uint64_t *next)
{
	if (map == NULL)
		return NULL;
	while (*i < map->count && map->at[*i].end <= at)
		++*i;
	if (*i == map->count)
		return NULL;
	const struct extent *e = &map->at[*i];
	uint64_t border = e->start > at ? e->start : e->end;
	if (border < *next)
		*next = border;
	return e->start > at ? NULL : e;
}

static bool is_equal(const struct extent *a, const struct extent *b, uint64_t at)
{
	if (a == NULL || b == NULL)
		return a == b;
	return a->sure && b->sure && a->physical + (at - a->start) == b->physical + (at - b->start);
}

void extents_differ(const struct extent_map *base, const struct extent_map *target,
	struct extent_ranges *ret, uint64_t *ret_to)
{
	unsigned i = 0, j = 0;
	uint64_t to = target->to;
	if (base != NULL && base->to < to)
		to = base->to;
	ret->count = 0;
	for (uint64_t at = target->from, next; at < to; at = next) {
		next = to;
		const struct extent *a = look(base, &i, at, &next);
		const struct extent *b = look(target, &j, at, &next);
		if (!is_equal(a, b, at))
			extent_ranges_add(ret, at, next);
	}
	*ret_to = to;
}

static bool same_map(const struct extent_map *a, const struct extent_map *b, uint64_t to)
{
	unsigned n = 0;
	if (a->to < to || b->to < to)
		return false;
	for (; n < a->count && a->at[n].start < to; n++) {
		if (n == b->count)
			return false;
		const struct extent *x = &a->at[n], *y = &b->at[n];
		uint64_t x_end = x->end < to ? x->end : to, y_end = y->end < to ? y->end : to;
		if (x->start != y->start || x_end != y_end || x->physical != y->physical ||
			x->sure != y->sure)
			return false;
	}
	return n == b->count || b->at[n].start >= to;
}

int extents_window(struct extents_window *w, uint64_t from, uint64_t to, struct extent_ranges *ret,
	uint64_t *ret_to)
{
	if (w->base_fd < 0) {
		int r = w->map(w->target_fd, from, to, &w->target);
		if (r == 0)
			extents_differ(NULL, &w->target, ret, ret_to);
		return r;
	}
	int r = w->map(w->base_fd, from, to, &w->base);
	for (unsigned tries = 0; r == 0 && tries < MOVED_TRIES; tries++) {
		r = w->map(w->target_fd, from, w->base.to, &w->target);
		if (r == 0)
			r = w->map(w->base_fd, from, w->target.to, &w->again);
		if (r == 0 && same_map(&w->base, &w->again, w->target.to)) {
			extents_differ(&w->base, &w->target, ret, ret_to);
			return 0;
		}
		w->base = w->again;
	}
	return r < 0 ? r : -EAGAIN;
}
