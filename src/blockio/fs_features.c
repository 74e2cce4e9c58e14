/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tries everything that a pool needs on unnamed files of the pool's own directory. What fails for
 * want of room says nothing about what would work with it, so that a probe without room has no
 * answer.
 */
#include "blockio/fs_features.h"

#include "base/fd.h"
#include "blockio/blkdev.h"
#include "blockio/image.h"
#include "blockio/trim.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <sys/xattr.h>
#include <unistd.h>

enum {
	PROBE_BYTES = 64 * 1024, /* more than any file system keeps inside its inode */
	DIO_ALIGN_MAX = 4096,
};

/* statfs types <linux/magic.h> does not have. */
#define MAGIC_BCACHEFS 0xca451a4eUL
#define MAGIC_ZFS      0x2fc12fc1UL

static int probe_tmpfile(int dirfd, int flags)
{
	int fd = openat(dirfd, ".", O_TMPFILE | O_RDWR | O_CLOEXEC | flags, 0600);
	return fd < 0 ? -errno : fd;
}

static bool is_full(int res)
{
	return res == -ENOSPC || res == -EDQUOT;
}

/* 0: *ret is the answer; -ENOSPC or -EDQUOT: there is none. The same for those below. */
static int probe_told(int res, bool *ret)
{
	if (is_full(res))
		return res;
	*ret = res >= 0;
	return 0;
}

/* Whether the unnamed file can be given a name; the name is taken away again. It is always the
 * same, so that one left by a driver killed in between goes with the next probe, and does not keep
 * a directory from being empty. */
static int probe_link(int dirfd, int fd, struct fs_features *f)
{
	unlinkat(dirfd, FS_PROBE_NAME, 0);
	int r = fd_link(fd, dirfd, FS_PROBE_NAME);
	unlinkat(dirfd, FS_PROBE_NAME, 0);
	/* Taken again already: by another's probe, for which it worked. */
	return probe_told(r == -EEXIST ? 0 : r, &f->tmpfile);
}

/* The smallest aligned read that works, 0 if none does. Holes are read without any check, so the
 * file has data at the start. */
static uint32_t probe_dio_read(int fd)
{
	_cleanup_free_ void *mem = NULL;
	if (posix_memalign(&mem, DIO_ALIGN_MAX, DIO_ALIGN_MAX) != 0)
		return 0;
	for (uint32_t align = 512; align <= DIO_ALIGN_MAX; align = align == 512 ? 4096 : 8192)
		if (pread(fd, mem, align, align) == (ssize_t)align)
			return align;
	return 0;
}

/* All of it, or -errno. */
static int probe_write(int fd, const void *data)
{
	ssize_t n = pwrite(fd, data, PROBE_BYTES, 0);
	return n == PROBE_BYTES ? 0 : n < 0 ? -errno : -ENOSPC;
}

static void set_direct_io(int fd, struct fs_features *f)
{
	uint32_t align = image_dio_align(fd);
	if (align == 0)
		align = probe_dio_read(fd);
	if (align == 0 || align > DIO_ALIGN_MAX)
		return;
	f->direct_io = true;
	f->dio_align = align <= 512 ? 512 : 4096;
}

static int probe_direct_io(int dirfd, const void *data, struct fs_features *f)
{
	_cleanup_fd_ int fd = probe_tmpfile(dirfd, O_DIRECT);
	bool works = false;
	int r = fd < 0 ? fd : probe_write(fd, data);
	if (r == 0)
		r = fdatasync(fd) < 0 ? -errno : 0;
	r = probe_told(r, &works);
	if (works)
		set_direct_io(fd, f);
	return r;
}

static int probe_reflink(int dirfd, int src_fd, struct fs_features *f)
{
	_cleanup_fd_ int dst_fd = probe_tmpfile(dirfd, 0);
	int r = probe_told(dst_fd < 0 ? dst_fd : image_reflink(src_fd, dst_fd), &f->reflink);
	if (f->reflink && f->direct_io && image_dio_align(dst_fd) > f->dio_align)
		f->shared_dio_align = 4096;
	else
		f->shared_dio_align = f->dio_align;
	return r;
}

static int probe_fallocate(int dirfd, struct fs_features *f)
{
	_cleanup_fd_ int fd = probe_tmpfile(dirfd, 0);
	int r = fd < 0 ? fd : fallocate(fd, 0, 0, PROBE_BYTES) < 0 ? -errno : 0;
	return probe_told(r, &f->fallocate);
}

/* Sysfs tells the journal's thread, and "<none>" where there is no journal. The thread has a number
 * in its own pid namespace alone, and is 0 in others. */
static bool has_journal(int dirfd)
{
	struct stat st;
	char device[64], path[128], task[16];
	if (fstat(dirfd, &st) < 0 ||
		blkdev_name(major(st.st_dev), minor(st.st_dev), device, sizeof(device)) < 0)
		return false;
	snprintf(path, sizeof(path), "/sys/fs/ext4/%s/journal_task", device);
	_cleanup_fd_ int fd = open(path, O_RDONLY | O_CLOEXEC);
	return fd >= 0 && read(fd, task, sizeof(task)) > 0 && task[0] >= '0' && task[0] <= '9';
}

/* What is told without trying. */
static int probe_type(int dirfd, struct fs_features *f)
{
	struct statfs fs;
	if (fstatfs(dirfd, &fs) < 0)
		return -errno;
	f->fs_type = (unsigned long)fs.f_type;
	f->nocow_lies = f->fs_type == BTRFS_SUPER_MAGIC || f->fs_type == MAGIC_BCACHEFS ||
			f->fs_type == MAGIC_ZFS;
	f->no_journal = f->fs_type == EXT4_SUPER_MAGIC && !has_journal(dirfd);
	return trim_probe(dirfd, &f->discard);
}

int fs_features_probe(int dirfd, struct fs_features *ret)
{
	struct fs_features f = {0};
	int r = probe_type(dirfd, &f);
	if (r < 0)
		return r;
	_cleanup_fd_ int fd = probe_tmpfile(dirfd, 0);
	if (fd == -EOPNOTSUPP || fd == -EISDIR || fd == -EINVAL) {
		*ret = f; /* no unnamed files: not a pool, and nothing else can be tried */
		return 0;
	}
	if (fd < 0)
		return fd;

	/* An extent has to exist for a reflink to mean anything. */
	_cleanup_free_ void *data = NULL;
	if (posix_memalign(&data, DIO_ALIGN_MAX, PROBE_BYTES) != 0)
		return -ENOMEM;
	memset(data, 0x5a, PROBE_BYTES);
	r = probe_write(fd, data);
	if (r == 0)
		r = probe_link(dirfd, fd, &f);
	if (r == 0)
		r = probe_told(fsetxattr(fd, "trusted.ringvol.probe", "1", 1, 0) < 0 ? -errno : 0,
			&f.xattr);
	if (r == 0)
		r = probe_fallocate(dirfd, &f);
	if (r == 0)
		r = probe_direct_io(dirfd, data, &f);
	if (r == 0)
		r = probe_reflink(dirfd, fd, &f);
	if (r == 0)
		*ret = f;
	return r;
}

int fs_features_probe_full(int dirfd, const char *name, struct fs_features *ret)
{
	struct fs_features f = {.tmpfile = true, .xattr = true, .fallocate = true, .reflink = true};
	int r = probe_type(dirfd, &f);
	if (r < 0)
		return r;
	_cleanup_fd_ int fd = openat(dirfd, name, O_RDONLY | O_DIRECT | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0 && errno != EINVAL)
		return -errno;
	if (fd >= 0)
		set_direct_io(fd, &f);
	f.shared_dio_align = f.dio_align;
	*ret = f;
	return 0;
}

const char *fs_type_name(uint64_t fs_type)
{
	static const struct {
		uint64_t magic;
		const char *name;
	} names[] = {
		{XFS_SUPER_MAGIC, "xfs"},
		{EXT4_SUPER_MAGIC, "ext4"},
		{BTRFS_SUPER_MAGIC, "btrfs"},
		{F2FS_SUPER_MAGIC, "f2fs"},
		{TMPFS_MAGIC, "tmpfs"},
		{OVERLAYFS_SUPER_MAGIC, "overlay"},
		{MAGIC_ZFS, "zfs"},
		{MAGIC_BCACHEFS, "bcachefs"},
	};
	for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (names[i].magic == fs_type)
			return names[i].name;
	return NULL;
}
