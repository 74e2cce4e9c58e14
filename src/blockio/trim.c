/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Happy path of a piece: where do its extents lie (FIEMAP) -> punch -> fsync, as blocks are free
 * only when the file system's log says so on disk -> FITRIM of each place. A place is widened a
 * little, so that the free space on both sides counts for the disk's granularity, and places that
 * meet then are one.
 *
 * Where FITRIM only begins (XFS), a pass is whole when it took as many bytes as were free. A second
 * whole pass says that nothing is under way of what the first one began.
 */
#include "blockio/trim.h"

#include "base/clock.h"
#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <linux/fiemap.h>
#include <linux/fs.h>
#include <linux/fsmap.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/sysmacros.h>
#include <unistd.h>

enum {
	PIECE_EXTENTS = 1024,  /* of a file, in one piece */
	WIDEN_BYTES = 1 << 20, /* of a place, on both sides */
	PUNCH_BYTES = 1 << 30, /* of a piece at most */
	WAIT_MIN_MS = 10,      /* between two passes over the same places */
	WAIT_MAX_MS = 640,     /* a pool that does not answer for 2 s is sick */
	SPACE_RECORDS = 128,   /* of what is free, asked for at once */
	WHOLE_PASSES = 2,
};
#define DISK_PIECE_BYTES (16ULL << 30)

/* Not on the disk, or not of whole blocks. */
static const uint32_t nowhere = FIEMAP_EXTENT_UNKNOWN | FIEMAP_EXTENT_DELALLOC |
				FIEMAP_EXTENT_ENCODED | FIEMAP_EXTENT_NOT_ALIGNED |
				FIEMAP_EXTENT_DATA_INLINE;

struct trim_place {
	uint64_t from, to;
	unsigned whole; /* passes */
};

/* -EINVAL says that there is nothing at that place: the file system ends before. */
static int trim_range(int fd, uint64_t from, uint64_t len, uint64_t *ret_bytes)
{
	struct fstrim_range range = {.start = from, .len = len};
	if (ioctl(fd, FITRIM, &range) < 0)
		return -errno;
	*ret_bytes = range.len;
	return 0;
}

/* ---- what is under way ---- */

static bool is_of_type(int fd, long magic)
{
	struct statfs fs;
	return fstatfs(fd, &fs) == 0 && fs.f_type == magic;
}

/* The least that the disk discards. A partition's is that of its disk. */
static uint64_t granularity_of(dev_t dev)
{
	static const char *const where[] = {"queue", "../queue"};
	for (unsigned i = 0; i < sizeof(where) / sizeof(where[0]); i++) {
		char path[96], text[32];
		snprintf(path, sizeof(path), "/sys/dev/block/%u:%u/%s/discard_granularity",
			major(dev), minor(dev), where[i]);
		if (fd_read_file(AT_FDCWD, path, text, sizeof(text)) > 0)
			return strtoull(text, NULL, 10);
	}
	return 0;
}

/* What a pass over places needs to know of their file system. */
struct pass {
	int fd;
	bool waits;              /* FITRIM comes back when the disk has discarded */
	uint32_t device;         /* as GETFSMAP has it */
	uint64_t least;          /* that the disk discards, in bytes */
	struct fsmap_head *head; /* NULL: what is free is not told */
};

#define _cleanup_pass_ __attribute__((cleanup(pass_end)))

static void pass_end(struct pass *pass)
{
	free(pass->head);
}

static void pass_begin(struct pass *ret, int fd)
{
	struct stat st;
	*ret = (struct pass){.fd = fd, .waits = !is_of_type(fd, XFS_SUPER_MAGIC)};
	if (ret->waits || fstat(fd, &st) < 0)
		return;
	ret->device = (uint32_t)st.st_dev;
	ret->least = granularity_of(st.st_dev);
	ret->head = calloc(1, fsmap_sizeof(SPACE_RECORDS));
}

static uint64_t free_in_record(
	const struct fsmap *rec, const struct trim_place *place, uint64_t least)
{
	uint64_t from = rec->fmr_physical, to = from + rec->fmr_length;
	from = from > place->from ? from : place->from;
	to = to < place->to ? to : place->to;
	return (rec->fmr_flags & FMR_OF_SPECIAL_OWNER) != 0 && rec->fmr_owner == FMR_OWN_FREE &&
			       to > from && to - from >= least
		       ? to - from
		       : 0;
}

/* What the file system would discard of a place if nothing of it were under way. 0 where it does
 * not tell. */
static uint64_t free_bytes(const struct pass *pass, const struct trim_place *place)
{
	uint64_t bytes = 0;
	struct fsmap_head *head = pass->head;
	if (head == NULL)
		return 0;
	head->fmh_count = SPACE_RECORDS;
	head->fmh_keys[0] = (struct fsmap){.fmr_device = pass->device, .fmr_physical = place->from};
	head->fmh_keys[1] = (struct fsmap){.fmr_device = pass->device,
		.fmr_flags = UINT32_MAX,
		.fmr_physical = place->to - 1,
		.fmr_owner = UINT64_MAX,
		.fmr_offset = UINT64_MAX};
	do {
		if (ioctl(pass->fd, FS_IOC_GETFSMAP, head) < 0 || head->fmh_entries == 0)
			break;
		for (unsigned i = 0; i < head->fmh_entries; i++)
			bytes += free_in_record(&head->fmh_recs[i], place, pass->least);
		fsmap_advance(head);
	} while ((head->fmh_recs[head->fmh_entries - 1].fmr_flags & FMR_OF_LAST) == 0);
	return bytes;
}

static int pass_place(const struct pass *pass, struct trim_place *place)
{
	uint64_t free = free_bytes(pass, place), trimmed = 0;
	int r = trim_range(pass->fd, place->from, place->to - place->from, &trimmed);
	if (pass->waits)
		place->whole = WHOLE_PASSES;
	else if (trimmed >= free)
		place->whole++;
	return r;
}

static bool is_under_way(const struct trim_place *place)
{
	return place->whole < WHOLE_PASSES;
}

/* Those that may be under way yet stay. */
static int pass_places(int fd, struct trim_place *places, unsigned *count)
{
	_cleanup_pass_ struct pass pass;
	unsigned kept = 0;
	pass_begin(&pass, fd);
	for (unsigned i = 0; i < *count; i++) {
		int r = pass_place(&pass, &places[i]);
		if (r < 0 && r != -EINVAL)
			return r == -ENOTTY ? -EOPNOTSUPP : r;
		if (r == 0 && is_under_way(&places[i]))
			places[kept++] = places[i];
	}
	*count = kept;
	return 0;
}

void trim_asked_clear(struct trim_asked *asked)
{
	free(asked->places);
	*asked = (struct trim_asked){0};
}

/* Longer each time: a pass asks the disk once more for all that is free there. */
static void wait_a_moment(struct trim_asked *asked)
{
	unsigned ms = asked->waited_ms;
	ms = ms < WAIT_MIN_MS ? WAIT_MIN_MS : ms > WAIT_MAX_MS ? WAIT_MAX_MS : ms;
	clock_sleep_ms(ms);
	asked->waited_ms += ms;
}

int trim_settle(int fd, struct trim_asked *asked)
{
	if (asked->count > 0)
		wait_a_moment(asked);
	int r = pass_places(fd, asked->places, &asked->count);
	if (r < 0)
		return r;
	if (asked->count > 0 && asked->waited_ms < TRIM_SETTLE_MS)
		return 0;
	trim_asked_clear(asked);
	return 1;
}

/* Only a file system that would discard refuses a range of no length as such. */
int trim_probe(int fd, bool *ret_supported)
{
	uint64_t bytes;
	int r = trim_range(fd, 0, 0, &bytes);
	if (r < 0 && r != -EINVAL && r != -EOPNOTSUPP && r != -ENOTTY && r != -EPERM)
		return r;
	*ret_supported = r == 0 || r == -EINVAL;
	return 0;
}

static int compare_places(const void *a, const void *b)
{
	const struct trim_place *x = a, *y = b;
	return x->from < y->from ? -1 : x->from > y->from;
}

static unsigned merge_places(struct trim_place *places, unsigned count)
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

/* Where the extents from at on lie; *ret_end is behind the last one seen. */
static int find_places(int fd, uint64_t at, uint64_t size, struct trim_place *places,
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
		places[count++] = (struct trim_place){
			.from = from > WIDEN_BYTES ? from - WIDEN_BYTES : 0,
			.to = from + e->fe_length + WIDEN_BYTES,
		};
	}
	*ret_count = count;
	*ret_end = end;
	return 0;
}

int trim_punch(int fd, uint64_t *at, uint64_t size, struct trim_asked *asked)
{
	unsigned count = 0;
	uint64_t end = size;
	_cleanup_free_ struct trim_place *places = calloc(PIECE_EXTENTS, sizeof(*places));
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
	count = merge_places(places, count);
	r = pass_places(fd, places, &count);
	if (r == 0 && count > 0) {
		*asked = (struct trim_asked){.places = places, .count = count};
		places = NULL;
	}
	return r;
}

int trim_disk(int fd, uint64_t *at, struct trim_asked *asked)
{
	/* btrfs takes a range of its own addresses, of which there is no end to be told by. */
	bool endless = is_of_type(fd, BTRFS_SUPER_MAGIC);
	_cleanup_pass_ struct pass pass;
	_cleanup_free_ struct trim_place *place = calloc(1, sizeof(*place));
	pass_begin(&pass, fd);
	if (place == NULL)
		return -ENOMEM;
	place->from = endless ? 0 : *at;
	place->to = endless ? UINT64_MAX : *at + DISK_PIECE_BYTES;
	int r = pass_place(&pass, place);
	*at = endless || r == -EINVAL || r == -EOPNOTSUPP || r == -ENOTTY ? UINT64_MAX : place->to;
	if (r == 0 && is_under_way(place)) {
		*asked = (struct trim_asked){.places = place, .count = 1};
		place = NULL;
	}
	return r == -EINVAL ? 0 : r == -ENOTTY ? -EOPNOTSUPP : r;
}
