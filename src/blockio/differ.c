/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Extents first: no byte is read then. Where they cannot be compared (the file system shares
 * nothing, moves data about just now, or does not tell), both images are read, but for what is a
 * hole in both. It fails as FIEMAP, lseek() and read() do.
 */
#include "blockio/differ.h"

#include "blockio/fs_moves.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ALIGN = EXTENT_ALIGN };

struct differ_memory {
	uint8_t base[DIFFER_BLOCK_BYTES], target[DIFFER_BLOCK_BYTES]; /* aligned for direct I/O */
	struct extents_window window;
};

int differ_open(struct differ *d)
{
	void *memory;
	if (posix_memalign(&memory, ALIGN, sizeof(struct differ_memory)) != 0)
		return -ENOMEM;
	d->memory = memory;
	d->memory->window = (struct extents_window){
		.map = extents_map, .base_fd = d->base_fd, .target_fd = d->target_fd};
	return 0;
}

void differ_close(struct differ *d)
{
	free(d->memory);
	d->memory = NULL;
}

/* ---- by reading ---- */

/* Where data begins at or behind `from`; to: there is none before it. */
static int next_data(int fd, uint64_t from, uint64_t to, uint64_t *ret)
{
	off_t data = lseek(fd, (off_t)from, SEEK_DATA);
	if (data < 0 && errno != ENXIO)
		return -errno;
	*ret = data < 0 || (uint64_t)data > to ? to : (uint64_t)data;
	return 0;
}

/* What lies behind the end reads as zeros. */
static int read_block(int fd, uint8_t *block, uint64_t at, size_t len)
{
	size_t done = 0;
	while (done < len) {
		ssize_t n = pread(fd, block + done, len - done, (off_t)(at + done));
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (n == 0)
			break;
		done += (size_t)n;
	}
	memset(block + done, 0, len - done);
	return 0;
}

static int compare_block(struct differ *d, uint64_t at, size_t len, struct extent_ranges *ret)
{
	struct differ_memory *m = d->memory;
	int r = read_block(d->base_fd, m->base, at, len);
	if (r == 0)
		r = read_block(d->target_fd, m->target, at, len);
	for (size_t from = 0; r == 0 && from < len; from += DIFFER_GRAIN_BYTES) {
		size_t n = len - from < DIFFER_GRAIN_BYTES ? len - from : DIFFER_GRAIN_BYTES;
		if (memcmp(m->base + from, m->target + from, n) != 0)
			extent_ranges_add(ret, at + from, at + from + n);
	}
	return r;
}

static int look_by_reading(
	struct differ *d, uint64_t from, uint64_t to, struct extent_ranges *ret, uint64_t *ret_to)
{
	enum { PER_BLOCK = DIFFER_BLOCK_BYTES / DIFFER_GRAIN_BYTES };
	uint64_t at = from, read = 0;
	ret->count = 0;
	while (at < to && read < DIFFER_READ_BYTES && ret->count + PER_BLOCK <= EXTENT_RANGES_MAX) {
		uint64_t base = to, target = to;
		int r = next_data(d->base_fd, at, to, &base);
		if (r == 0)
			r = next_data(d->target_fd, at, to, &target);
		if (r < 0)
			return r;
		uint64_t data = base < target ? base : target;
		if (data == to) {
			at = to;
			break;
		}
		data -= data % ALIGN;
		at = data > at ? data : at;
		size_t len = to - at < DIFFER_BLOCK_BYTES ? (size_t)(to - at) : DIFFER_BLOCK_BYTES;
		r = compare_block(d, at, len, ret);
		if (r < 0)
			return r;
		at += len;
		read += len;
	}
	*ret_to = at;
	return 0;
}

/* ---- by extents ---- */

/* -EAGAIN: they cannot be compared just now. */
static int look_by_extents(
	struct differ *d, uint64_t from, uint64_t to, struct extent_ranges *ret, uint64_t *ret_to)
{
	char what[FS_MOVES_WHAT_BYTES];
	ret->count = 0;
	int r = extents_window(&d->memory->window, from, to, ret, ret_to);
	if (r == 0 && fs_moves(d->target_fd, "/sys/fs/btrfs", what))
		return -EAGAIN;
	return r;
}

int differ_look(
	struct differ *d, uint64_t from, uint64_t to, struct extent_ranges *ret, uint64_t *ret_to)
{
	int r = d->shares ? look_by_extents(d, from, to, ret, ret_to) : -EAGAIN;
	return r == -EAGAIN || r == -EOPNOTSUPP ? look_by_reading(d, from, to, ret, ret_to) : r;
}
