/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two attributes of /sys/dev/block/M:N, and /proc/PID/fd, process by process, until a link says the
 * path. The links are read and not followed: what another process has open may hang. A process that
 * ends meanwhile, or that may not be looked at, is passed over.
 */
#include "blockio/blkdev.h"

#include "base/fd.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>

int blkdev_read(
	uint32_t dev_major, uint32_t dev_minor, const char *attribute, char *ret, size_t cap)
{
	char path[128];
	snprintf(path, sizeof path, "/sys/dev/block/%u:%u/%s", dev_major, dev_minor, attribute);
	return (int)fd_read_file(AT_FDCWD, path, ret, cap);
}

int blkdev_name(uint32_t dev_major, uint32_t dev_minor, char *ret, size_t cap)
{
	char path[64], target[512];
	snprintf(path, sizeof path, "/sys/dev/block/%u:%u", dev_major, dev_minor);
	ssize_t n = readlink(path, target, sizeof target - 1);
	if (n < 0)
		return -errno;
	target[n] = '\0';
	const char *slash = strrchr(target, '/');
	n = snprintf(ret, cap, "%s", slash != NULL ? slash + 1 : target);
	return (size_t)n < cap ? 0 : -ENAMETOOLONG;
}

static int read_number(uint32_t dev_major, uint32_t dev_minor, const char *name, uint64_t *ret)
{
	char text[32];
	int n = blkdev_read(dev_major, dev_minor, name, text, sizeof text);
	if (n < 0)
		return n;
	*ret = strtoull(text, NULL, 10);
	return 0;
}

int blkdev_look(uint32_t dev_major, uint32_t dev_minor, struct blkdev *ret)
{
	uint64_t sectors, seq = 0;
	int r = read_number(dev_major, dev_minor, "size", &sectors);
	if (r == 0)
		r = read_number(dev_major, dev_minor, "diskseq", &seq);
	if (r == -ENOENT && seq == 0)
		r = read_number(
			dev_major, dev_minor, "size", &sectors); /* an old kernel, or gone */
	if (r < 0)
		return r == -ENODEV || r == -ENXIO ? -ENOENT : r;
	*ret = (struct blkdev){.size_bytes = sectors * 512, .seq = seq};
	return 0;
}

int blkdev_set_read_only(const char *path, bool read_only)
{
	int value = read_only;
	_cleanup_fd_ int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
	return fd < 0 || ioctl(fd, BLKROSET, &value) < 0 ? -errno : 0;
}

/* ---- who has it open ---- */

static bool has_open(int proc, const char *pid, const char *path)
{
	char fds[32], link[PATH_MAX];
	snprintf(fds, sizeof(fds), "%.20s/fd", pid);
	_cleanup_fd_ int fd = openat(proc, fds, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	_cleanup_dir_ DIR *dir = NULL;
	if (fd < 0 || fd_open_dir(fd, &dir) < 0)
		return false;
	size_t len = strlen(path);
	struct dirent *entry;
	while ((entry = readdir(dir)) != NULL) {
		ssize_t n = readlinkat(fd, entry->d_name, link, sizeof(link));
		if (n == (ssize_t)len && memcmp(link, path, len) == 0)
			return true;
	}
	return false;
}

int blkdev_find_holder(const char *path, struct blkdev_holder *ret)
{
	_cleanup_dir_ DIR *proc = opendir("/proc");
	if (proc == NULL)
		return -errno;
	struct dirent *entry;
	while ((entry = readdir(proc)) != NULL) {
		const char *pid = entry->d_name;
		if (!isdigit((unsigned char)pid[0]) || atoi(pid) == getpid() ||
			!has_open(dirfd(proc), pid, path))
			continue;
		char file[32], name[32];
		snprintf(file, sizeof(file), "%.20s/comm", pid);
		ssize_t len = fd_read_file(dirfd(proc), file, name, sizeof(name));
		if (len <= 0)
			continue;
		name[strcspn(name, "\n")] = '\0';
		ret->pid = atoi(pid);
		snprintf(ret->name, sizeof(ret->name), "%.15s", name);
		return 0;
	}
	return -ENOENT;
}
