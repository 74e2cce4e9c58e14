/* SPDX-License-Identifier: Apache-2.0 */
/*
 * FALLOC_FL_ZERO_RANGE of a block device is "write zeroes without unmap": the disk does it if it
 * has the command, else the kernel writes zero pages. (FALLOC_FL_PUNCH_HOLE would be the one that
 * may discard.) In unit tests the disk is a file, which takes the same call.
 */
#include "disk/zero.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <unistd.h>

static int flush(int fd)
{
	return fsync(fd) < 0 ? -errno : 0;
}

int64_t disk_zero(const struct disk *disk, uint64_t address, uint64_t bytes)
{
	uint64_t offset, left;
	const struct disk_member *member = disk_at(disk, address, &offset, &left);
	if (member == NULL)
		return -ERANGE;
	if (bytes > left)
		bytes = left;
	if (bytes > ZERO_AT_ONCE_BYTES)
		bytes = ZERO_AT_ONCE_BYTES;
	int r;
	do
		r = fallocate(member->fd, FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE, (off_t)offset,
			(off_t)bytes);
	while (r < 0 && errno == EINTR);
	if (r < 0)
		return -errno;
	r = flush(member->fd);
	return r < 0 ? r : (int64_t)bytes;
}

int disk_flush(const struct disk *disk)
{
	int res = 0;
	for (unsigned i = 0; i < disk->count; i++) {
		int r = flush(disk->members[i].fd);
		if (res == 0)
			res = r;
	}
	return res;
}
