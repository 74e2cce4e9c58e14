/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Looking whether a device is free to be taken. Happy path: it is a block device that is large
 * enough, no part of anything else, without a sound header of ours, nobody has it open exclusively,
 * and libblkid finds no signature, not even one whose checksum is wrong. Whatever is in doubt is
 * refused. Nothing is written before that.
 */
#include "disk/fresh.h"

#include "base/fd.h"
#include "disk/init.h"
#include "disk/records_device.h"
#include "disk/signature.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/fs.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

int disk_fresh_check(int fd, const char *device, struct err *err)
{
	char name[64];
	int r = disk_signature(fd, name, sizeof(name));
	if (r < 0)
		return err_sys(err, r, "looking at what %s holds", device);
	return r == 0 ? 0
		      : err_set(err, ERR_PRECONDITION,
				"%s holds %s: a pool takes a device that holds nothing. If nobody "
				"needs that any more, wipe it ('wipefs --all %s')",
				device, name, device);
}

/* ---- who has it ---- */

static int check_holders(const struct disk_found *found, struct err *err)
{
	char name[256];
	int r = disk_part_of(found->major, found->minor, name, sizeof(name));
	if (r < 0)
		return err_sys(err, r, "looking who has %s", found->path);
	return r == 0 ? 0
		      : err_set(err, ERR_PRECONDITION, "%s is a part of %s: give the pool that one",
				found->path, name);
}

static int open_exclusive(const struct disk_found *found, struct err *err)
{
	const char *device = found->path;
	int fd = disk_found_open(found, O_RDWR | O_EXCL), r = fd;
	int read_only = 0;
	if (fd >= 0 && ioctl(fd, BLKROGET, &read_only) == 0 && !read_only)
		return fd;
	if (fd >= 0) {
		close(fd);
		r = -EROFS;
	}
	if (r == -EBUSY)
		return err_set(err, ERR_PRECONDITION,
			"%s is mounted or held by somebody: end that use (lsblk %s)", device,
			device);
	if (r == -EROFS || r == -EACCES || r == -EPERM)
		return err_set(err, ERR_PRECONDITION, "%s cannot be written to (%s)", device,
			strerrordesc_np(-r));
	return err_sys(err, r, "opening %s", device);
}

/* ---- the device ---- */

static int look(const char *device, struct disk_fresh *fresh, struct err *err)
{
	struct stat st;
	if (stat(device, &st) == 0 && !S_ISBLK(st.st_mode))
		return err_set(err, ERR_INVALID, "%s is no block device", device);
	_cleanup_fd_ int fd = open(device, O_RDONLY | O_DIRECT | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0)
		return err_set(err, errno == ENOENT ? ERR_INVALID : ERR_PRECONDITION,
			"opening %s: %s", device, strerrordesc_np(errno));
	int r = disk_found_read(fd, device, &fresh->found);
	if (r == -EBADMSG)
		return err_set(err, ERR_PRECONDITION,
			"%s has the header of a raw pool, and it and its copy are damaged: if nobody "
			"needs that pool any more, wipe it ('dd if=/dev/zero of=%s bs=4096 count=1')",
			device, device);
	if (r == -EPROTONOSUPPORT)
		return err_set(err, ERR_PRECONDITION,
			"%s is a disk of a raw pool of a later version of ringvol", device);
	if (r < 0 && r != -ENODATA)
		return err_sys(err, r, "reading %s", device);
	fresh->ours = r == 0;
	return 0;
}

static int check(const char *device, struct disk_fresh *fresh, struct err *err)
{
	int r = look(device, fresh, err);
	if (r == 0)
		r = check_holders(&fresh->found, err);
	if (r < 0 || (fresh->ours && fresh->found.header.state != DISK_MAKING))
		return r;
	if (fresh->found.device_bytes < DISK_LEAST_BYTES)
		return err_set(err, ERR_PRECONDITION,
			"%s has %llu MiB: a disk of a pool has %u MiB at least", device,
			(unsigned long long)(fresh->found.device_bytes >> 20),
			DISK_LEAST_BYTES >> 20);
	if (fresh->ours)
		records_device_sweep(fresh->found.header.pool);
	fresh->fd = open_exclusive(&fresh->found, err);
	if (fresh->fd < 0)
		return fresh->fd;
	/* Also if it was begun: it may be the leg of an array since, or the array was begun. */
	return disk_fresh_check(fresh->fd, device, err);
}

int disk_fresh_open(const char *device, struct disk_fresh *ret, struct err *err)
{
	struct disk_fresh fresh = {.fd = -1};
	char real[PATH_MAX];
	/* What was given is kept: /dev/disk/by-id/... finds the disk again. */
	if (device[0] != '/') {
		if (realpath(device, real) == NULL)
			return err_set(err, ERR_INVALID, "%s: %s", device, strerrordesc_np(errno));
		device = real;
	}
	if (strlen(device) >= DISK_PATH_BYTES || strpbrk(device, "\n") != NULL)
		return err_set(err, ERR_INVALID, "the path of the device is too long");
	int r = check(device, &fresh, err);
	if (r < 0)
		fd_close(&fresh.fd);
	else
		*ret = fresh;
	return r;
}

/* ---- taking it ---- */

/* A unit but for its first block, which is the header's. */
static int zero_unit(int fd, uint64_t offset)
{
	static const char zeros[DISK_HEADER_BYTES];
	for (uint64_t at = sizeof(zeros); at < DISK_UNIT_BYTES; at += sizeof(zeros)) {
		ssize_t n = pwrite(fd, zeros, sizeof(zeros), (off_t)(offset + at));
		if (n != sizeof(zeros))
			return n < 0 ? -errno : -EIO;
	}
	return fdatasync(fd) < 0 ? -errno : 0;
}

int disk_fresh_mark(int fd, const struct disk_header *header)
{
	/* The header first: from then on a repeated attempt knows that all else is ours. */
	int r = disk_header_write(fd, header);
	if (r == 0)
		r = zero_unit(fd, header->size_bytes - DISK_UNIT_BYTES);
	return r == 0 ? zero_unit(fd, 0) : r;
}
