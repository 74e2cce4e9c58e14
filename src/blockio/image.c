/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Thin wrappers around one system call each. They fail as the call does; what "not supported" is
 * called differs between file systems, and is made one errno here.
 */
#include "blockio/image.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

/* glibc's struct statx ends before the fields of STATX_DIOALIGN (Linux 6.1), the C library of
 * Debian 12 included; the kernel's layout is fixed, so they are read by offset. */
enum {
	STATX_WANT_DIOALIGN = 0x2000,
	STATX_OFFSET_MASK = 0,
	STATX_OFFSET_DIO_OFFSET_ALIGN = 156,
	STATX_BYTES = 256,
};

int image_resize(int fd, uint64_t size, bool thick)
{
	struct stat st;
	if (fstat(fd, &st) < 0)
		return -errno;
	if (size > INT64_MAX)
		return -EFBIG;
	if ((uint64_t)st.st_size > size)
		return -EINVAL;
	if (!thick) {
		if ((uint64_t)st.st_size == size)
			return 0;
		return ftruncate(fd, (off_t)size) < 0 ? -errno : 0;
	}
	if (size == 0)
		return 0;
	int r;
	do
		r = fallocate(fd, 0, 0, (off_t)size) < 0 ? -errno : 0;
	while (r == -EINTR);
	/* A full disk can leave the file half grown; the part nobody was promised goes back. */
	if (r < 0 && ftruncate(fd, st.st_size) < 0)
		return -errno;
	return r == -ENOSYS ? -EOPNOTSUPP : r;
}

int image_reflink(int src_fd, int dst_fd)
{
	if (ioctl(dst_fd, FICLONE, src_fd) == 0)
		return 0;
	return errno == ENOTTY || errno == ENOSYS ? -EOPNOTSUPP : -errno;
}

int image_hint_extent_size(int fd, uint32_t extent_bytes)
{
	struct fsxattr attr;
	if (ioctl(fd, FS_IOC_FSGETXATTR, &attr) < 0)
		return errno == ENOTTY || errno == EOPNOTSUPP ? 0 : -errno;

	/* The copy-on-write hint keeps what is written after a reflink together too. XFS without
	 * reflink refuses it, so there the plain hint alone is set. */
	attr.fsx_xflags |= FS_XFLAG_EXTSIZE | FS_XFLAG_COWEXTSIZE;
	attr.fsx_extsize = attr.fsx_cowextsize = extent_bytes;
	if (ioctl(fd, FS_IOC_FSSETXATTR, &attr) == 0)
		return 0;
	if (errno == EINVAL) {
		attr.fsx_xflags &= ~(uint32_t)FS_XFLAG_COWEXTSIZE;
		attr.fsx_cowextsize = 0;
		if (ioctl(fd, FS_IOC_FSSETXATTR, &attr) == 0)
			return 0;
	}
	return errno == ENOTTY || errno == EOPNOTSUPP ? 0 : -errno;
}

int image_hint_for_size(int fd, uint64_t size)
{
	/* A reflink costs time by the extent. Small volumes would pay for long ones with space. */
	enum { LONG_BYTES = 1 << 20, SHORT_BYTES = 64 << 10, LONG_FROM_GIB = 8 };
	return image_hint_extent_size(
		fd, size >= (uint64_t)LONG_FROM_GIB << 30 ? LONG_BYTES : SHORT_BYTES);
}

int image_punch_unwritten(int fd, uint64_t size)
{
	const int mode = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
	off_t end = (off_t)size;
	for (off_t at = 0; at < end;) {
		off_t data = lseek(fd, at, SEEK_DATA);
		if (data < 0 && errno != ENXIO)
			return -errno;
		if (data < 0 || data > end)
			data = end;
		if (data > at && fallocate(fd, mode, at, data - at) < 0)
			return -errno;
		at = data < end ? lseek(fd, data, SEEK_HOLE) : end;
		if (at < 0)
			return -errno;
	}
	return 0;
}

int image_usage(int fd, uint64_t *ret_allocated, uint64_t *ret_size)
{
	struct stat st;
	if (fstat(fd, &st) < 0)
		return -errno;
	*ret_allocated = (uint64_t)st.st_blocks * 512;
	*ret_size = (uint64_t)st.st_size;
	return 0;
}

int image_lock(int fd)
{
	if (flock(fd, LOCK_EX | LOCK_NB) < 0)
		return -errno;
	/* The kernel grants a write lease only on a file that nobody else has open, kernel users
	 * such as loop included. File systems without leases cannot tell. */
	if (fcntl(fd, F_SETLEASE, F_WRLCK) < 0)
		return errno == EAGAIN ? 1 : 0;
	fcntl(fd, F_SETLEASE, F_UNLCK);
	return 0;
}

uint32_t image_dio_align(int fd)
{
	_Alignas(8) uint8_t raw[STATX_BYTES] = {0};
	if (syscall(SYS_statx, fd, "", AT_EMPTY_PATH, STATX_WANT_DIOALIGN, raw) == 0) {
		uint32_t mask, align;
		memcpy(&mask, raw + STATX_OFFSET_MASK, sizeof mask);
		memcpy(&align, raw + STATX_OFFSET_DIO_OFFSET_ALIGN, sizeof align);
		if (mask & STATX_WANT_DIOALIGN)
			return align > 0 && align < 512 ? 512 : align;
	}
	/* btrfs does not say (6.18 neither) and quietly takes the page cache for anything less
	 * aligned than its blocks. */
	struct statfs fs;
	if (fstatfs(fd, &fs) == 0 && (unsigned long)fs.f_type == BTRFS_SUPER_MAGIC)
		return (uint32_t)fs.f_bsize;
	return 0;
}
