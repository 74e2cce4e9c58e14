/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Looking for the disks of a pool: /sys/class/block name by name. Small files of sysfs sort out
 * what cannot be a disk, then the header is read. A device that fails is passed over: it is not
 * what was looked for, or the caller says that that is missing.
 */
#include "disk/find.h"

#include "base/clock.h"
#include "base/fd.h"
#include "disk/dm.h"
#include "disk/init.h"
#include "disk/signature.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

enum {
	SYSFS_PATH_BYTES = 400,
	GOING_WAIT_MS = 512, /* the longest of the waits, each twice the one before */
};

static const char *const pool_dirs[] = {"volumes", "snapshots", "templates", "trash", "copies"};

/* A file of a device's directory in sysfs, without its line end. False: there is none. */
static bool read_sysfs(int dir, const char *name, const char *file, char *buf, size_t cap)
{
	char path[SYSFS_PATH_BYTES];
	snprintf(path, sizeof(path), "%.255s/%s", name, file);
	ssize_t len = fd_read_file(dir, path, buf, cap);
	if (len <= 0)
		return false;
	buf[strcspn(buf, "\n")] = '\0';
	return true;
}

static bool is_ours(int dir, const char *name)
{
	char uuid[DM_UUID_LEN];
	return read_sysfs(dir, name, "dm/uuid", uuid, sizeof(uuid)) &&
	       strncmp(uuid, DM_OUR_UUID, strlen(DM_OUR_UUID)) == 0;
}

/* A loop device over a file in a directory that is called as those of a pool. */
static bool is_image(int dir, const char *name)
{
	char file[4096];
	if (!read_sysfs(dir, name, "loop/backing_file", file, sizeof(file)))
		return false;
	char *slash = strrchr(file, '/');
	if (slash == NULL)
		return false;
	*slash = '\0';
	slash = strrchr(file, '/');
	for (unsigned i = 0; i < sizeof(pool_dirs) / sizeof(pool_dirs[0]); i++)
		if (slash != NULL && strcmp(slash + 1, pool_dirs[i]) == 0)
			return true;
	return false;
}

/* ---- what is made of a device ---- */

struct holders {
	int dir; /* /sys/.../holders */
	char *name;
	size_t cap;
};

/* A device-mapper device that is being taken away has no uuid any more, and is a holder until the
 * kernel has freed its table. */
static bool is_gone_soon(int dir, const char *name)
{
	char uuid[DM_UUID_LEN];
	struct stat st;
	for (unsigned ms = 1; strncmp(name, "dm-", 3) == 0 && ms <= GOING_WAIT_MS; ms *= 2) {
		if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
			return true;
		if (read_sysfs(dir, name, "dm/uuid", uuid, sizeof(uuid)))
			return false;
		clock_sleep_ms(ms);
	}
	return false;
}

static int check_holder(void *arg, const char *name)
{
	const struct holders *h = arg;
	if (is_ours(h->dir, name) || is_gone_soon(h->dir, name))
		return 0;
	snprintf(h->name, h->cap, "%s", name);
	return 1;
}

static int part_of(int dir, const char *name, char *ret_name, size_t cap)
{
	char path[SYSFS_PATH_BYTES];
	snprintf(path, sizeof(path), "%.255s/holders", name);
	_cleanup_fd_ int fd = openat(dir, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return errno == ENOENT ? 0 : -errno;
	struct holders h = {fd, ret_name, cap};
	return fd_each_name(fd, check_holder, &h);
}

int disk_part_of(uint32_t major, uint32_t minor, char *ret_name, size_t cap)
{
	char name[32];
	snprintf(name, sizeof(name), "%u:%u", major, minor);
	_cleanup_fd_ int dir = open("/sys/dev/block", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return dir < 0 ? -errno : part_of(dir, name, ret_name, cap);
}

/* ---- one device ---- */

/* Where only the copy is left, somebody may have made something else of the disk. And a disk that
 * is larger than its header says may be one leg of an array: the header is the array's then, and
 * the array's metadata lie behind it. */
static bool is_something_else(int fd, const struct disk_found *found)
{
	char name[64];
	bool larger = found->device_bytes > found->header.size_bytes;
	if ((!found->damaged && !larger) || disk_signature(fd, name, sizeof(name)) <= 0)
		return false;
	return found->damaged || disk_signature_is_leg(name);
}

int disk_found_read(int fd, const char *path, struct disk_found *ret)
{
	struct disk_found found = {0};
	struct stat st;
	int block_size;
	if (fstat(fd, &st) < 0)
		return -errno;
	if (!S_ISBLK(st.st_mode))
		return -ENOTBLK;
	if (ioctl(fd, BLKGETSIZE64, &found.device_bytes) < 0 ||
		ioctl(fd, BLKSSZGET, &block_size) < 0)
		return -errno;
	int r = disk_header_read(fd, found.device_bytes, &found.header, &found.damaged);
	if (r == 0 && is_something_else(fd, &found))
		r = -ENODATA;
	snprintf(found.path, sizeof(found.path), "%s", path);
	found.major = major(st.st_rdev);
	found.minor = minor(st.st_rdev);
	found.block_size = (uint32_t)block_size;
	if (r == 0 || r == -ENODATA)
		*ret = found;
	return r;
}

int disk_found_open(const struct disk_found *found, int flags)
{
	struct stat st;
	_cleanup_fd_ int fd = open(found->path, flags | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st) < 0)
		return -errno;
	if (!S_ISBLK(st.st_mode) || st.st_rdev != makedev(found->major, found->minor))
		return -ENXIO;
	int r = fd;
	fd = -1;
	return r;
}

struct search {
	int dir; /* /sys/class/block */
	const char *pool;
	struct disk_finds *finds;
};

/* By what sysfs says. */
static bool may_be_disk(int dir, const char *name)
{
	char text[32], holder[256];
	if (strncmp(name, "ublkb", 5) == 0 || strncmp(name, "zram", 4) == 0 ||
		!read_sysfs(dir, name, "size", text, sizeof(text)) ||
		strtoull(text, NULL, 10) < (uint64_t)DISK_LEAST_BYTES / DM_SECTOR_BYTES)
		return false;
	return !is_ours(dir, name) && !is_image(dir, name) &&
	       part_of(dir, name, holder, sizeof(holder)) == 0;
}

static int open_found(int dir, const char *name, char *path, size_t cap)
{
	char dev[32];
	struct stat st;
	unsigned dev_major, dev_minor;
	snprintf(path, cap, "/dev/%.250s", name);
	for (char *c = path; *c != '\0'; c++)
		if (*c == '!') /* cciss!c0d0 */
			*c = '/';
	if (!read_sysfs(dir, name, "dev", dev, sizeof(dev)) ||
		sscanf(dev, "%u:%u", &dev_major, &dev_minor) != 2)
		return -ENOENT;
	_cleanup_fd_ int fd = open(path, O_RDONLY | O_DIRECT | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st) < 0)
		return -errno;
	if (!S_ISBLK(st.st_mode) || st.st_rdev != makedev(dev_major, dev_minor))
		return -ENXIO;
	int r = fd;
	fd = -1;
	return r;
}

static int look_at(void *arg, const char *name)
{
	const struct search *s = arg;
	char path[DISK_PATH_BYTES];
	struct disk_found *next = &s->finds->found[s->finds->count];
	if (!may_be_disk(s->dir, name))
		return 0;
	_cleanup_fd_ int fd = open_found(s->dir, name, path, sizeof(path));
	if (fd < 0 || disk_found_read(fd, path, next) < 0 ||
		strcmp(next->header.pool, s->pool) != 0)
		return 0;
	return ++s->finds->count == DISK_FOUND_MAX ? 1 : 0;
}

int disk_find(const char *pool_uuid, struct disk_finds *ret)
{
	struct disk_finds finds = {.found = calloc(DISK_FOUND_MAX, sizeof(*finds.found))};
	_cleanup_fd_ int dir = open("/sys/class/block", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct search search = {dir, pool_uuid, &finds};
	int r = finds.found == NULL ? -ENOMEM : dir < 0 ? -errno : 0;
	if (r == 0)
		r = fd_each_name(dir, look_at, &search);
	if (r < 0) {
		free(finds.found);
		return r;
	}
	*ret = finds;
	return 0;
}
