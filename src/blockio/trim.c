/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Happy path of a piece: where do its extents lie (FIEMAP) -> punch -> fsync, as blocks are free
 * only when the file system's log says so on disk -> FITRIM of each place. A place is widened a
 * little, so that the free space on both sides counts for the disk's granularity, and places that
 * meet then are one.
 */
#include "blockio/trim.h"

#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <linux/fiemap.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/statfs.h>
#include <unistd.h>

enum {
	PIECE_EXTENTS = 1024,  /* of a file, in one piece */
	WIDEN_BYTES = 1 << 20, /* of a place, on both sides */
	PUNCH_BYTES = 1 << 30, /* of a piece at most */
};
#define DISK_PIECE_BYTES (16ULL << 30)

/* Not on the disk, or not of whole blocks. */
static const uint32_t nowhere = FIEMAP_EXTENT_UNKNOWN | FIEMAP_EXTENT_DELALLOC |
				FIEMAP_EXTENT_ENCODED | FIEMAP_EXTENT_NOT_ALIGNED |
				FIEMAP_EXTENT_DATA_INLINE;

struct place {
	uint64_t from, to;
};

/* -EINVAL says that there is nothing at that place: the file system ends before. */
static int trim_place(int fd, uint64_t from, uint64_t len)
{
	struct fstrim_range range = {.start = from, .len = len};
	return ioctl(fd, FITRIM, &range) < 0 ? -errno : 0;
}

/* Only a file system that would discard refuses a range of no length as such. */
int trim_probe(int fd, bool *ret_supported)
{
	int r = trim_place(fd, 0, 0);
	if (r < 0 && r != -EINVAL && r != -EOPNOTSUPP && r != -ENOTTY && r != -EPERM)
		return r;
	*ret_supported = r == 0 || r == -EINVAL;
	return 0;
}

static int compare_places(const void *a, const void *b)
{
	const struct place *x = a, *y = b;
	return x->from < y->from ? -1 : x->from > y->from;
}

static unsigned merge_places(struct place *places, unsigned count)
{
	unsigned kept = 0;
	qsort(places, count, sizeof(*places), compare_places);
	for (unsigned i = 0; i < count; i++) {
		if (kept == 0 || places[i].from > places[kept - 1].to)
			places[kept++] = places[i];
		else if (places[i].to > places[kept - 1].to)
			places[kept - 1].to = places[i].to;
	}
	return kept;
}

static int trim_places(int fd, struct place *places, unsigned count)
{
	count = merge_places(places, count);
	for (unsigned i = 0; i < count; i++) {
		int r = trim_place(fd, places[i].from, places[i].to - places[i].from);
		if (r < 0 && r != -EINVAL)
			return r == -ENOTTY ? -EOPNOTSUPP : r;
	}
	return 0;
}

/* Where the extents from at on lie; *ret_end is behind the last one seen. */
static int find_places(int fd, uint64_t at, uint64_t size, struct place *places,
	unsigned *ret_count, uint64_t *ret_end)
{
	uint64_t len = size - at < PUNCH_BYTES ? size - at : PUNCH_BYTES;
	_cleanup_free_ struct fiemap *map =
		calloc(1, sizeof(*map) + PIECE_EXTENTS * sizeof(struct fiemap_extent));
	if (map == NULL)
		return -ENOMEM;
	map->fm_start = at;
	map->fm_length = len;
	map->fm_flags = FIEMAP_FLAG_SYNC;
	map->fm_extent_count = PIECE_EXTENTS;
	if (ioctl(fd, FS_IOC_FIEMAP, map) < 0)
		return -errno;
	unsigned count = 0;
	uint64_t end = at + len;
	for (unsigned i = 0; i < map->fm_mapped_extents; i++) {
		const struct fiemap_extent *e = &map->fm_extents[i];
		if (i + 1 == PIECE_EXTENTS && e->fe_logical + e->fe_length < end)
			end = e->fe_logical + e->fe_length;
		if ((e->fe_flags & nowhere) != 0)
			continue;
		uint64_t from = e->fe_physical;
		places[count++] = (struct place){
			.from = from > WIDEN_BYTES ? from - WIDEN_BYTES : 0,
			.to = from + e->fe_length + WIDEN_BYTES,
		};
	}
	*ret_count = count;
	*ret_end = end;
	return 0;
}

int trim_punch(int fd, uint64_t *at, uint64_t size)
{
	unsigned count = 0;
	uint64_t end = size;
	_cleanup_free_ struct place *places = calloc(PIECE_EXTENTS, sizeof(*places));
	if (places == NULL)
		return -ENOMEM;
	int r = find_places(fd, *at, size, places, &count, &end);
	if (r < 0)
		return r;
	if (count > 0 && fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)*at,
				 (off_t)(end - *at)) < 0)
		return -errno;
	if (count > 0 && fsync(fd) < 0)
		return -errno;
	*at = end;
	return count > 0 ? trim_places(fd, places, count) : 0;
}

/* btrfs takes a range of its own addresses, of which there is no end to be told by. */
static bool has_no_end(int fd)
{
	struct statfs fs;
	return fstatfs(fd, &fs) == 0 && fs.f_type == BTRFS_SUPER_MAGIC;
}

int trim_disk(int fd, uint64_t *at)
{
	if (has_no_end(fd)) {
		*at = UINT64_MAX;
		return trim_place(fd, 0, UINT64_MAX);
	}
	int r = trim_place(fd, *at, DISK_PIECE_BYTES);
	*at = r == -EINVAL || r == -EOPNOTSUPP || r == -ENOTTY ? UINT64_MAX
							       : *at + DISK_PIECE_BYTES;
	return r == -EINVAL ? 0 : r == -ENOTTY ? -EOPNOTSUPP : r;
}
