/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the kernel says of loop devices: one (LOOP_GET_STATUS64) or all of them (/sys/block, then
 * the same for each that is bound). Devices of others are opened for reading, which they do not
 * notice. A device that vanishes while it is looked at is simply not there.
 */
#include "blockio/lodev_priv.h"

#include "base/fd.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/loop.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>

#define TAG_PREFIX "ringvol:"

int lodev_open(uint32_t minor)
{
	char path[32];
	snprintf(path, sizeof path, "/dev/loop%u", minor);
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
	return fd < 0 ? -errno : fd;
}

int lodev_read(int fd, uint32_t minor, struct lodev *ret)
{
	struct loop_info64 info;
	struct lodev dev = {.minor = minor};
	int read_only = 0;
	if (ioctl(fd, LOOP_GET_STATUS64, &info) < 0 || ioctl(fd, BLKROGET, &read_only) < 0 ||
		ioctl(fd, BLKGETSIZE64, &dev.size_bytes) < 0)
		return -errno;
	dev.image_dev = info.lo_device;
	dev.image_ino = info.lo_inode;
	dev.direct_io = info.lo_flags & LO_FLAGS_DIRECT_IO;
	dev.read_only = read_only || info.lo_flags & LO_FLAGS_READ_ONLY;
	dev.partial = info.lo_offset != 0 || info.lo_sizelimit != 0;
	dev.going_away = info.lo_flags & LO_FLAGS_AUTOCLEAR;
	static_assert(sizeof dev.tag == sizeof info.lo_file_name, "a tag is a loop file name");
	memcpy(dev.tag, info.lo_file_name, sizeof dev.tag);
	dev.tag[sizeof dev.tag - 1] = '\0';
	*ret = dev;
	return 0;
}

bool lodev_is_bound(uint32_t minor)
{
	char path[64];
	snprintf(path, sizeof path, "/sys/block/loop%u/loop/backing_file", minor);
	return access(path, F_OK) == 0;
}

bool lodev_has_tag(const struct lodev *dev)
{
	return strncmp(dev->tag, TAG_PREFIX, sizeof TAG_PREFIX - 1) == 0;
}

int lodev_status(uint32_t minor, struct lodev *ret)
{
	_cleanup_fd_ int fd = lodev_open(minor);
	if (fd < 0)
		return fd;
	return lodev_read(fd, minor, ret);
}

/* The number in "loop7"; false for any other name. */
static bool parse_name(const char *name, uint32_t *ret_minor)
{
	if (strncmp(name, "loop", 4) != 0 || name[4] < '0' || name[4] > '9')
		return false;
	char *end;
	unsigned long n = strtoul(name + 4, &end, 10);
	if (*end != '\0' || n > UINT32_MAX)
		return false;
	*ret_minor = (uint32_t)n;
	return true;
}

int lodev_each(bool (*each)(void *arg, const struct lodev *dev), void *arg)
{
	_cleanup_dir_ DIR *dir = opendir("/sys/block");
	if (dir == NULL)
		return -errno;
	for (;;) {
		errno = 0;
		const struct dirent *entry = readdir(dir);
		if (entry == NULL)
			return -errno;
		uint32_t minor;
		struct lodev dev;
		if (!parse_name(entry->d_name, &minor) || !lodev_is_bound(minor) ||
			lodev_status(minor, &dev) < 0)
			continue;
		if (!each(arg, &dev))
			return 0;
	}
}

struct scan {
	void (*each)(void *arg, const struct lodev *dev);
	void *arg;
};

static bool scan_on_device(void *arg, const struct lodev *dev)
{
	const struct scan *scan = arg;
	scan->each(scan->arg, dev);
	return true;
}

int lodev_scan(void (*each)(void *arg, const struct lodev *dev), void *arg)
{
	struct scan scan = {each, arg};
	return lodev_each(scan_on_device, &scan);
}
