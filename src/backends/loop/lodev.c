/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The life of loop devices: status, attach, detach, resize, read-only. lodev_minor.c chooses their
 * numbers.
 *
 * Happy path of an attach: open the image, flock it, take a free number, LOOP_CONFIGURE. The kernel
 * refuses the lock when an open file elsewhere has it. That is either a loop device, which is found
 * by device and inode of the image (ours is returned as it is, another's is named), or a process. A
 * device on its way out keeps the lock for a moment, for udev looks into every device that changes:
 * hence the short wait before an answer is given.
 *
 * What the kernel knows of a device is asked by LOOP_GET_STATUS64, and /sys/block lists them all.
 * Devices of others are opened for reading, which they do not notice.
 */
#include "backends/loop/lodev.h"

#include "backends/loop/lodev_minor.h"
#include "base/clock.h"
#include "base/fd.h"
#include "blockio/image.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/loop.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

#define TAG_PREFIX "ringvol:"

enum {
	/* The longest of the waits, each twice the one before, until a device that was told to go
	 * counts as kept by somebody: 63 ms in all after a detach, 255 ms before an attach fails.
	 * On a busy machine a process that only looked at the device may take that long to close
	 * it. */
	DETACH_WAIT_MS = 32,
	LOCK_WAIT_MS = 128,
	/* Numbers tried before giving up; each that fails is some other process being quicker. */
	ATTACH_TRIES = 128,
};

/* ---- what the kernel says ---- */

/* For looking at it: fd or -errno. */
static int device_open(uint32_t minor)
{
	char path[32];
	snprintf(path, sizeof path, "/dev/loop%u", minor);
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
	return fd < 0 ? -errno : fd;
}

/* What the kernel says of an open device. -ENXIO: not bound. */
static int device_read(int fd, uint32_t minor, struct lodev *ret)
{
	struct loop_info64 info = {0};
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

int lodev_status(uint32_t minor, struct lodev *ret)
{
	_cleanup_fd_ int fd = device_open(minor);
	if (fd < 0)
		return fd;
	return device_read(fd, minor, ret);
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

/* Every bound device, anybody's, until each() answers false. One that vanishes while it is looked
 * at is not there. */
static int devices_each(bool (*each)(void *arg, const struct lodev *dev), void *arg)
{
	_cleanup_dir_ DIR *dir = opendir("/sys/block");
	if (dir == NULL)
		return -errno;
	int r;
	const struct dirent *entry;
	while ((entry = fd_next_entry(dir, &r)) != NULL) {
		uint32_t minor;
		struct lodev dev;
		if (!parse_name(entry->d_name, &minor) || !lodev_minor_is_bound(minor) ||
			lodev_status(minor, &dev) < 0)
			continue;
		if (!each(arg, &dev))
			return 0;
	}
	return r;
}

/* ---- attach ---- */

static int image_open(
	const struct lodev_spec *spec, struct stat *ret_st, int *ret_fd, struct err *err)
{
	int flags = (spec->read_only ? O_RDONLY : O_RDWR) | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK;
	_cleanup_fd_ int fd = openat(spec->dirfd, spec->image, flags);
	if (fd < 0 && errno == ENOENT) {
		err_set(err, ERR_NOT_FOUND, "image %s is missing", spec->image);
		return -ENOENT;
	}
	if (fd < 0)
		return err_sys(err, -errno, "opening image %s", spec->image);
	if (fstat(fd, ret_st) < 0)
		return err_sys(err, -errno, "looking at image %s", spec->image);
	if (!S_ISREG(ret_st->st_mode))
		return err_set(err, ERR_DATA_LOSS, "image %s is not a regular file", spec->image);
	*ret_fd = fd;
	fd = -1;
	return 0;
}

struct find {
	uint64_t image_dev, image_ino;
	const char *tag; /* of the one that is meant, if there is more than one */
	bool found;
	struct lodev dev;
};

static bool find_on_device(void *arg, const struct lodev *dev)
{
	struct find *f = arg;
	if (dev->image_dev != f->image_dev || dev->image_ino != f->image_ino)
		return true;
	bool meant = strcmp(dev->tag, f->tag) == 0;
	if (!f->found || meant) {
		f->found = true;
		f->dev = *dev;
	}
	return !meant;
}

/* Where the image is attached. A device that was found is asked again itself: opening all of them
 * would keep others' from going away. */
static int image_find(struct find *f)
{
	struct lodev now;
	if (f->found && lodev_status(f->dev.minor, &now) == 0 && !find_on_device(f, &now))
		return 0;
	f->found = false;
	return devices_each(find_on_device, f);
}

/* Somebody has the lock. 1: it was let go meanwhile and is ours now; 0: the image is on *ret, a
 * device of ours; else an error that names the one that has it. */
static int image_locked(const struct lodev_spec *spec, int fd, const struct stat *st,
	struct lodev *ret, struct err *err)
{
	struct find f = {.image_dev = st->st_dev, .image_ino = st->st_ino, .tag = spec->tag};
	for (unsigned ms = 1; ms <= LOCK_WAIT_MS; ms *= 2) {
		int r = image_find(&f);
		if (r < 0)
			return err_sys(err, r, "listing loop devices");
		if (f.found && !f.dev.going_away) {
			if (f.dev.partial)
				break;
			*ret = f.dev;
			ret->found = true;
			return 0;
		}
		clock_sleep_ms(ms);
		if (flock(fd, LOCK_EX | LOCK_NB) == 0)
			return 1;
	}
	if (!f.found)
		return err_set(err, ERR_PRECONDITION,
			"image %s is locked by another process and on no loop device; 'lslocks' "
			"names the process: end it",
			spec->image);
	if (f.dev.going_away)
		return err_set(err, ERR_PRECONDITION,
			"image %s is still on /dev/loop%u, which a mount or process elsewhere keeps; "
			"end that mount (grep loop%u /proc/*/mountinfo) or process",
			spec->image, f.dev.minor, f.dev.minor);
	return err_set(err, ERR_PRECONDITION,
		"image %s is on /dev/loop%u, which shows a part of it only, by an offset or limit "
		"that the driver did not set; unstage the volume, or detach it with 'losetup -d "
		"/dev/loop%u'",
		spec->image, f.dev.minor, f.dev.minor);
}

/* Somebody has rewritten the tag. It is a hint, so that nothing depends on this. */
static void device_retag(const char *tag, struct lodev *dev)
{
	struct loop_info64 info = {0};
	_cleanup_fd_ int fd = device_open(dev->minor);
	if (fd < 0 || ioctl(fd, LOOP_GET_STATUS64, &info) < 0 || info.lo_device != dev->image_dev ||
		info.lo_inode != dev->image_ino)
		return;
	memset(info.lo_file_name, 0, sizeof info.lo_file_name);
	snprintf((char *)info.lo_file_name, LO_NAME_SIZE, "%s", tag);
	if (ioctl(fd, LOOP_SET_STATUS64, &info) == 0)
		snprintf(dev->tag, sizeof dev->tag, "%s", tag);
}

/* The sector size is what the image was formatted for, so it is never raised here, not even where
 * the kernel then drops direct I/O without a word: lodev.direct_io says whether it did. */
static int device_configure(int loop_fd, const struct lodev_spec *spec, int image_fd)
{
	struct loop_config config = {
		.fd = (uint32_t)image_fd,
		.block_size = spec->block_size,
	};
	snprintf((char *)config.info.lo_file_name, LO_NAME_SIZE, "%s", spec->tag);
	if (spec->direct_io)
		config.info.lo_flags |= LO_FLAGS_DIRECT_IO;
	if (spec->read_only)
		config.info.lo_flags |= LO_FLAGS_READ_ONLY;
	return ioctl(loop_fd, LOOP_CONFIGURE, &config) < 0 ? -errno : 0;
}

static uint64_t queue_read(uint32_t minor, const char *name)
{
	char path[80], text[32];
	snprintf(path, sizeof path, "/sys/block/loop%u/queue/%s", minor, name);
	ssize_t n = fd_read_file(AT_FDCWD, path, text, sizeof text);
	return n < 0 ? 0 : strtoull(text, NULL, 10);
}

/* The lock is ours, but the image is open elsewhere, by somebody that does not know of the lock. A
 * mere reader does no harm; a loop device would write beside ours. */
static int image_open_elsewhere(
	const struct lodev_spec *spec, const struct stat *st, struct err *err)
{
	struct find f = {.image_dev = st->st_dev, .image_ino = st->st_ino, .tag = spec->tag};
	int r = devices_each(find_on_device, &f);
	if (r < 0)
		return err_sys(err, r, "listing loop devices");
	if (!f.found)
		return 0;
	return err_set(err, ERR_PRECONDITION,
		"image %s is attached to /dev/loop%u by somebody else (tag \"%s\"); "
		"detach it with 'losetup -d /dev/loop%u'",
		spec->image, f.dev.minor, f.dev.tag, f.dev.minor);
}

/* A limit of 0 outlives the volume it was set for, and Linux 6.18 does not let it be raised again
 * (it zeroes the granularity, and then no value is a multiple of it): such a device serves thick
 * volumes only, or is made anew. */
static bool device_lost_discard(uint32_t minor)
{
	return queue_read(minor, "discard_max_bytes") == 0 &&
	       queue_read(minor, "discard_max_hw_bytes") != 0;
}

/* What the spec asks for and LOOP_CONFIGURE does not know. Without discard, loop also refuses
 * zeroes that would be holes (lo_fallocate(); the limit for them stays and means nothing), and the
 * block layer writes zeroes. */
static int device_restrict(const struct lodev_spec *spec, uint32_t minor, struct err *err)
{
	if (!spec->no_discard || device_lost_discard(minor))
		return 0;
	char path[80];
	snprintf(path, sizeof path, "/sys/block/loop%u/queue/discard_max_bytes", minor);
	int r = fd_write_file(AT_FDCWD, path, "0");
	return r < 0 ? err_sys(err, r, "forbidding discards on /dev/loop%u", minor) : 0;
}

/* A flag that lodev_set_read_only() set for the number's last volume outlives that: a file system
 * could not be mounted then. What the spec wants read-only is so by another flag. */
static int device_unflag(int loop_fd, uint32_t minor, struct err *err)
{
	int off = 0;
	return ioctl(loop_fd, BLKROSET, &off) < 0
		       ? err_sys(err, -errno, "clearing the read-only flag of /dev/loop%u", minor)
		       : 0;
}

/* Tries one number. -EAGAIN: take the next. */
static int attach_once(
	const struct lodev_spec *spec, int image_fd, struct lodev *ret, struct err *err)
{
	uint32_t minor;
	_cleanup_fd_ int loop_fd = -1;
	int r = lodev_minor_take(spec->no_discard, &minor, &loop_fd, err);
	if (r < 0)
		return r;
	r = device_configure(loop_fd, spec, image_fd);
	if (r == -EBUSY || r == -ENXIO)
		return -EAGAIN;
	if (r < 0) {
		lodev_minor_put(minor, spec->no_discard);
		return err_sys(err, r, "attaching image %s to /dev/loop%u", spec->image, minor);
	}
	if (!spec->no_discard && device_lost_discard(minor)) {
		ioctl(loop_fd, LOOP_CLR_FD);
		fd_close(&loop_fd);
		lodev_minor_renew(minor);
		return -EAGAIN;
	}
	r = device_unflag(loop_fd, minor, err);
	if (r == 0)
		r = device_restrict(spec, minor, err);
	if (r == 0 && (r = device_read(loop_fd, minor, ret)) < 0)
		err_sys(err, r, "reading the state of /dev/loop%u", minor);
	if (r < 0) {
		ioctl(loop_fd, LOOP_CLR_FD);
		lodev_minor_put(minor, spec->no_discard);
	}
	return r == -EAGAIN ? -EIO : r;
}

static int attach_locked(
	const struct lodev_spec *spec, int image_fd, struct lodev *ret, struct err *err)
{
	for (int i = 0; i < ATTACH_TRIES; i++) {
		int r = attach_once(spec, image_fd, ret, err);
		if (r != -EAGAIN)
			return r;
	}
	return err_set(
		err, ERR_NO_ROOM, "%d loop devices in a row were taken by others", ATTACH_TRIES);
}

int lodev_attach(const struct lodev_spec *spec, struct lodev *ret, struct err *err)
{
	struct stat st;
	_cleanup_fd_ int fd = -1;
	int r = image_open(spec, &st, &fd, err);
	if (r < 0)
		return r;
	r = image_lock(fd);
	if (r < 0 && r != -EWOULDBLOCK)
		return err_sys(err, r, "locking image %s", spec->image);
	if (r == -EWOULDBLOCK) {
		r = image_locked(spec, fd, &st, ret, err);
		if (r == 0 && strcmp(ret->tag, spec->tag) != 0)
			device_retag(spec->tag, ret);
		/* A driver that was killed may have bound the image and no more. */
		if (r == 0)
			return device_restrict(spec, ret->minor, err);
		if (r < 0)
			return r;
	}
	if (r == 1 && (r = image_open_elsewhere(spec, &st, err)) < 0)
		return r;
	/* The device keeps the locked open file when ours is closed on return. */
	return attach_locked(spec, fd, ret, err);
}

/* ---- the rest of the life ---- */

/* Opens the device if it still is what `dev` says: 0 and *ret_fd, else -ENXIO. Read-only, for
 * closing a writer makes udev look into the device. */
static int device_open_same(const struct lodev *dev, int *ret_fd, struct lodev *ret_now)
{
	_cleanup_fd_ int fd = device_open(dev->minor);
	if (fd < 0)
		return fd == -ENOENT ? -ENXIO : fd;
	int r = device_read(fd, dev->minor, ret_now);
	if (r < 0)
		return r;
	if (ret_now->image_dev != dev->image_dev || ret_now->image_ino != dev->image_ino)
		return -ENXIO;
	*ret_fd = fd;
	fd = -1;
	return 0;
}

static bool device_is_same(const struct lodev *dev)
{
	struct lodev now;
	_cleanup_fd_ int fd = -1;
	return lodev_minor_is_bound(dev->minor) && device_open_same(dev, &fd, &now) == 0;
}

/* Whoever gets the number next, from us or not, could not write to it. */
static void device_unflag_free(uint32_t minor)
{
	struct err ignored = {0};
	_cleanup_fd_ int fd = device_open(minor);
	if (fd >= 0 && !lodev_minor_is_bound(minor))
		(void)device_unflag(fd, minor, &ignored);
}

int lodev_detach(const struct lodev *dev, bool *ret_still_bound, struct err *err)
{
	struct lodev now;
	int fd = -1;
	int r = device_open_same(dev, &fd, &now);
	if (r == -ENXIO) {
		*ret_still_bound = false;
		return 0;
	}
	if (r < 0)
		return err_sys(err, r, "opening /dev/loop%u", dev->minor);
	bool lost_discard = device_lost_discard(dev->minor);
	/* With other users the kernel answers 0 too, and clears the device when the last of them
	 * lets go. Newer kernels do that even for us, at our close. */
	r = ioctl(fd, LOOP_CLR_FD) < 0 && errno != ENXIO ? -errno : 0;
	close(fd);
	if (r < 0)
		return err_sys(err, r, "detaching /dev/loop%u", dev->minor);

	bool bound = device_is_same(dev);
	for (unsigned ms = 1; bound && ms <= DETACH_WAIT_MS; ms *= 2) {
		clock_sleep_ms(ms);
		bound = device_is_same(dev);
	}
	if (!bound && now.read_only)
		device_unflag_free(dev->minor);
	/* Also when it is still bound: numbers that are not free yet are passed over. */
	lodev_minor_put(dev->minor, lost_discard);
	*ret_still_bound = bound;
	return 0;
}

int lodev_resize(const struct lodev *dev, uint64_t *ret_size_bytes, struct err *err)
{
	struct lodev now;
	_cleanup_fd_ int fd = -1;
	int r = device_open_same(dev, &fd, &now);
	if (r == -ENXIO) {
		err_set(err, ERR_PRECONDITION, "/dev/loop%u is not this volume's any more",
			dev->minor);
		return r;
	}
	if (r < 0)
		return err_sys(err, r, "opening /dev/loop%u", dev->minor);
	if (ioctl(fd, LOOP_SET_CAPACITY) < 0)
		return err_sys(err, -errno, "resizing /dev/loop%u", dev->minor);
	if (ioctl(fd, BLKGETSIZE64, ret_size_bytes) < 0)
		return err_sys(err, -errno, "reading the size of /dev/loop%u", dev->minor);
	return 0;
}

int lodev_set_read_only(uint32_t minor, bool read_only)
{
	struct lodev now;
	_cleanup_fd_ int fd = device_open(minor);
	if (fd < 0)
		return fd;
	int r = device_read(fd, minor, &now);
	if (r < 0)
		return r;
	if (strncmp(now.tag, TAG_PREFIX, sizeof TAG_PREFIX - 1) != 0)
		return -ENXIO;
	int value = read_only;
	return ioctl(fd, BLKROSET, &value) < 0 ? -errno : 0;
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
	return devices_each(scan_on_device, &scan);
}
