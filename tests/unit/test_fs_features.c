/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a directory's file system can do, as it is told and tried. Its calls are the test's own (the
 * linker puts them there): they are a file system's that can all but for what a test says.
 */
#include "blockio/fs_features.h"
#include "refused.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

enum {
	DIR_FD = 777, /* which nobody asks the kernel about */
	PROBE_BYTES = 64 << 10,
};

enum call {
	NOTHING,
	STATFS,
	TRIM,
	TMPFILE,
	WRITE,
	LINK,
	XATTR,
	ALLOCATE,
	SYNC,
	REFLINK,
	STAT,
	NAME,
};

static struct {
	long type;
	bool no_trim;
	const char *task;      /* what sysfs says of the journal; NULL: nothing */
	uint32_t align, after; /* as statx() says: of a file, and of one that shares extents */
	uint32_t reads;        /* direct reads of so many bytes work, and of more */
	int open_errnum;       /* of a file that is there; 0: it opens */
	bool reading_task, shares;
	char names[64]; /* what was done to the name, in order */
} fs;

static int any_file(void)
{
	int fd = open("/dev/null", O_RDWR | O_CLOEXEC);
	cr_assert_geq(fd, 0);
	return fd;
}

int __wrap_fstatfs64(int fd, struct statfs *ret);
int __wrap_fstatfs64(int fd, struct statfs *ret)
{
	cr_assert_eq(fd, DIR_FD);
	*ret = (struct statfs){.f_type = fs.type};
	return refuses(STATFS) ? -1 : 0;
}

int __wrap_trim_probe(int fd, bool *ret);
int __wrap_trim_probe(int fd, bool *ret)
{
	cr_assert_eq(fd, DIR_FD);
	*ret = !fs.no_trim;
	return refuses(TRIM) ? -refused.with : 0;
}

int __wrap_openat64(int dirfd, const char *path, int flags, ...);
int __wrap_openat64(int dirfd, const char *path, int flags, ...)
{
	cr_assert_eq(dirfd, DIR_FD);
	cr_assert(flags & O_CLOEXEC);
	if ((flags & O_TMPFILE) == O_TMPFILE) {
		cr_assert_str_eq(path, ".");
		return refuses(TMPFILE) ? -1 : any_file();
	}
	cr_assert_str_eq(path, "there");
	cr_assert((flags & O_DIRECT) && (flags & O_NOFOLLOW));
	errno = fs.open_errnum;
	return fs.open_errnum != 0 ? -1 : any_file();
}

ssize_t __wrap_pwrite64(int fd, const void *data, size_t len, off_t at);
ssize_t __wrap_pwrite64(int fd, const void *data, size_t len, off_t at)
{
	(void)fd;
	cr_assert(len == PROBE_BYTES && at == 0 && (uintptr_t)data % 4096 == 0);
	if (!refuses(WRITE))
		return PROBE_BYTES;
	/* Without an errno it is short. */
	return refused.with != 0 ? -1 : PROBE_BYTES - 1;
}

ssize_t __wrap_pread64(int fd, void *data, size_t len, off_t at);
ssize_t __wrap_pread64(int fd, void *data, size_t len, off_t at)
{
	(void)fd;
	cr_assert(len <= 4096 && at + (off_t)len <= PROBE_BYTES && (uintptr_t)data % 4096 == 0);
	errno = EINVAL;
	return len >= fs.reads ? (ssize_t)len : -1;
}

int __wrap_fd_link(int fd, int dirfd, const char *name);
int __wrap_fd_link(int fd, int dirfd, const char *name)
{
	cr_assert(fd >= 0 && dirfd == DIR_FD);
	cr_assert_str_eq(name, FS_PROBE_NAME);
	strcat(fs.names, "link ");
	return refuses(LINK) ? -refused.with : 0;
}

int __wrap_unlinkat(int dirfd, const char *name, int flags);
int __wrap_unlinkat(int dirfd, const char *name, int flags)
{
	cr_assert(dirfd == DIR_FD && flags == 0);
	cr_assert_str_eq(name, FS_PROBE_NAME);
	strcat(fs.names, "unlink ");
	return 0;
}

int __wrap_fsetxattr(int fd, const char *name, const void *value, size_t len, int flags);
int __wrap_fsetxattr(int fd, const char *name, const void *value, size_t len, int flags)
{
	(void)fd;
	(void)value;
	cr_assert(len > 0 && flags == 0);
	cr_assert_eq(strncmp(name, "trusted.", 8), 0);
	return refuses(XATTR) ? -1 : 0;
}

int __wrap_fallocate64(int fd, int mode, off_t at, off_t len);
int __wrap_fallocate64(int fd, int mode, off_t at, off_t len)
{
	(void)fd;
	cr_assert(mode == 0 && at == 0 && len > 0);
	return refuses(ALLOCATE) ? -1 : 0;
}

int __wrap_fdatasync(int fd);
int __wrap_fdatasync(int fd)
{
	(void)fd;
	return refuses(SYNC) ? -1 : 0;
}

int __wrap_image_reflink(int src_fd, int dst_fd);
int __wrap_image_reflink(int src_fd, int dst_fd)
{
	cr_assert(src_fd >= 0 && dst_fd >= 0 && src_fd != dst_fd);
	fs.shares = true;
	return refuses(REFLINK) ? -refused.with : 0;
}

uint32_t __wrap_image_dio_align(int fd);
uint32_t __wrap_image_dio_align(int fd)
{
	cr_assert_geq(fd, 0);
	return fs.shares ? fs.after : fs.align;
}

int __wrap_fstat64(int fd, struct stat *ret);
int __wrap_fstat64(int fd, struct stat *ret)
{
	cr_assert_eq(fd, DIR_FD);
	*ret = (struct stat){.st_dev = makedev(259, 3)};
	return refuses(STAT) ? -1 : 0;
}

int __wrap_blkdev_name(unsigned major, unsigned minor, char *buf, size_t cap);
int __wrap_blkdev_name(unsigned major, unsigned minor, char *buf, size_t cap)
{
	cr_assert(major == 259 && minor == 3);
	snprintf(buf, cap, "nvme0n1p2");
	return refuses(NAME) ? -ENOENT : 0;
}

int __real_open64(const char *path, int flags, ...);
int __wrap_open64(const char *path, int flags, ...);
int __wrap_open64(const char *path, int flags, ...)
{
	if (strncmp(path, "/sys/", 5) != 0)
		return __real_open64(path, flags);
	cr_assert_str_eq(path, "/sys/fs/ext4/nvme0n1p2/journal_task");
	errno = ENOENT;
	fs.reading_task = fs.task != NULL;
	return fs.task != NULL ? any_file() : -1;
}

ssize_t __real_read(int fd, void *buf, size_t len);
ssize_t __wrap_read(int fd, void *buf, size_t len);
ssize_t __wrap_read(int fd, void *buf, size_t len)
{
	if (!fs.reading_task)
		return __real_read(fd, buf, len);
	fs.reading_task = false;
	size_t have = strlen(fs.task);
	memset(buf, '7', len); /* as it may lie on the stack */
	memcpy(buf, fs.task, have < len ? have : len);
	return (ssize_t)(have < len ? have : len);
}

/* ---- what is left ---- */

static int fds_before;

static void setup(void)
{
	fds_before = open_fds();
}

static void teardown(void)
{
	cr_assert_eq(open_fds(), fds_before);
}

TestSuite(fs_features, .init = setup, .fini = teardown);

static void fresh(enum call fails, unsigned nth, int with)
{
	memset(&fs, 0, sizeof(fs));
	fs.type = XFS_SUPER_MAGIC;
	fs.align = fs.after = 512;
	refuse(fails, nth, 1, with);
}

/* What works, a letter each, and how direct I/O is aligned. */
static const char *letters(const struct fs_features *f)
{
	static char text[64];
	snprintf(text, sizeof(text), "%s%s%s%s%s%s %u %u", f->tmpfile ? "t" : "",
		f->xattr ? "x" : "", f->fallocate ? "f" : "", f->direct_io ? "i" : "",
		f->reflink ? "r" : "", f->discard ? "d" : "", f->dio_align, f->shared_dio_align);
	return text;
}

static const char *probed(void)
{
	struct fs_features f;
	memset(&f, 0xEE, sizeof(f));
	int r = fs_features_probe(DIR_FD, &f);
	if (r == 0) {
		cr_assert_eq(f.fs_type, (uint64_t)(unsigned long)fs.type);
		return letters(&f);
	}
	static char text[32];
	snprintf(text, sizeof(text), "%s", strerrorname_np(-r));
	return text;
}

/* ---- tests ---- */

/* A refusal means that it does not work; but for want of room, or of the disk, there is no answer.
 */
Test(fs_features, each_is_tried_by_itself)
{
	static const struct {
		enum call fails;
		unsigned nth;
		int with;
		const char *found;
	} cases[] = {
		{NOTHING, 0, 0, "txfird 512 512"},
		{STATFS, 0, EIO, "EIO"},
		{TRIM, 0, EIO, "EIO"},
		{TMPFILE, 0, EOPNOTSUPP, "d 0 0"},
		{TMPFILE, 0, EISDIR, "d 0 0"},
		{TMPFILE, 0, EINVAL, "d 0 0"},
		{TMPFILE, 0, EACCES, "EACCES"},
		{TMPFILE, 0, ENOSPC, "ENOSPC"},
		{WRITE, 0, EIO, "EIO"},
		{WRITE, 0, 0, "ENOSPC"},
		{LINK, 0, EPERM, "xfird 512 512"},
		{LINK, 0, EEXIST, "txfird 512 512"},
		{LINK, 0, ENOSPC, "ENOSPC"},
		{LINK, 0, EDQUOT, "EDQUOT"},
		{XATTR, 0, EOPNOTSUPP, "tfird 512 512"},
		{XATTR, 0, ENOSPC, "ENOSPC"},
		{XATTR, 0, EDQUOT, "EDQUOT"},
		{TMPFILE, 1, ENOSPC, "ENOSPC"},
		{ALLOCATE, 0, EOPNOTSUPP, "txird 512 512"},
		{ALLOCATE, 0, ENOSPC, "ENOSPC"},
		{TMPFILE, 2, EINVAL, "txfrd 0 0"},
		{TMPFILE, 2, ENOSPC, "ENOSPC"},
		{WRITE, 1, EINVAL, "txfrd 0 0"},
		{WRITE, 1, 0, "ENOSPC"},
		{SYNC, 0, EIO, "txfrd 0 0"},
		{SYNC, 0, EDQUOT, "EDQUOT"},
		{TMPFILE, 3, ENOSPC, "ENOSPC"},
		{REFLINK, 0, EOPNOTSUPP, "txfid 512 512"},
		{REFLINK, 0, ENOSPC, "ENOSPC"},
	};
	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		fresh(cases[i].fails, cases[i].nth, cases[i].with);
		cr_expect_str_eq(probed(), cases[i].found, "case %u: %s", i, cases[i].found);
		if (fs.names[0] != '\0')
			cr_expect_str_eq(fs.names, "unlink link unlink ", "nothing is left");
		cr_assert_eq(open_fds(), fds_before, "case %u", i);
	}
	fresh(NOTHING, 0, 0);
	fs.no_trim = true;
	cr_expect_str_eq(probed(), "txfir 512 512");
}

/* As statx() says, or as the smallest read that works. */
Test(fs_features, how_direct_io_is_aligned)
{
	static const struct {
		uint32_t align, reads, after;
		const char *found;
	} cases[] = {
		{1, 0, 1, "txfird 512 512"},
		{512, 0, 512, "txfird 512 512"},
		{513, 0, 513, "txfird 4096 4096"},
		{4096, 0, 4096, "txfird 4096 4096"},
		{4097, 0, 4097, "txfrd 0 0"},
		{512, 0, 4096, "txfird 512 4096"},
		{512, 0, 513, "txfird 512 4096"},
		{4096, 0, 512, "txfird 4096 4096"},
		{0, 512, 0, "txfird 512 512"},
		{0, 513, 0, "txfird 4096 4096"},
		{0, 4096, 0, "txfird 4096 4096"},
		{0, 4097, 0, "txfrd 0 0"},
	};
	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		fresh(NOTHING, 0, 0);
		fs.align = cases[i].align;
		fs.reads = cases[i].reads;
		fs.after = cases[i].after;
		cr_expect_str_eq(probed(), cases[i].found, "case %u", i);
	}
	fresh(REFLINK, 0, EOPNOTSUPP);
	fs.after = 4096;
	cr_expect_str_eq(probed(), "txfid 512 512", "nothing is shared there");
	fresh(SYNC, 0, EIO);
	fs.after = 4096;
	cr_expect_str_eq(probed(), "txfrd 0 0", "there is no direct I/O");
}

/* An ext4 of which sysfs does not tell counts as one without. */
Test(fs_features, a_journal_is_what_sysfs_tells)
{
	static const struct {
		const char *task;
		enum call fails;
		long type;
		bool no_journal;
	} cases[] = {
		{"1234\n", NOTHING, EXT4_SUPER_MAGIC, false},
		{"0\n", NOTHING, EXT4_SUPER_MAGIC, false},
		{"9\n", NOTHING, EXT4_SUPER_MAGIC, false},
		{"<none>\n", NOTHING, EXT4_SUPER_MAGIC, true},
		{"/\n", NOTHING, EXT4_SUPER_MAGIC, true},
		{":\n", NOTHING, EXT4_SUPER_MAGIC, true},
		{"", NOTHING, EXT4_SUPER_MAGIC, true},
		{NULL, NOTHING, EXT4_SUPER_MAGIC, true},
		{"1234\n", STAT, EXT4_SUPER_MAGIC, true},
		{"1234\n", NAME, EXT4_SUPER_MAGIC, true},
		{NULL, NOTHING, XFS_SUPER_MAGIC, false},
	};
	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct fs_features f;
		fresh(cases[i].fails, 0, EIO);
		fs.task = cases[i].task;
		fs.type = cases[i].type;
		cr_assert_eq(fs_features_probe(DIR_FD, &f), 0);
		cr_expect_eq(f.no_journal, cases[i].no_journal, "case %u", i);
		cr_assert_eq(open_fds(), fds_before, "case %u", i);
	}
}

Test(fs_features, file_systems_that_never_overwrite)
{
	static const struct {
		long type;
		bool lies;
		const char *name;
	} cases[] = {
		{XFS_SUPER_MAGIC, false, "xfs"},
		{EXT4_SUPER_MAGIC, false, "ext4"},
		{F2FS_SUPER_MAGIC, false, "f2fs"},
		{TMPFS_MAGIC, false, "tmpfs"},
		{OVERLAYFS_SUPER_MAGIC, false, "overlay"},
		{BTRFS_SUPER_MAGIC, true, "btrfs"},
		{0xca451a4e, true, "bcachefs"},
		{0x2fc12fc1, true, "zfs"},
		{NFS_SUPER_MAGIC, false, NULL},
	};
	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct fs_features f;
		fresh(NOTHING, 0, 0);
		fs.type = cases[i].type;
		fs.task = "1";
		cr_assert_eq(fs_features_probe(DIR_FD, &f), 0);
		cr_expect_eq(f.nocow_lies, cases[i].lies, "case %u", i);
		const char *name = fs_type_name(f.fs_type);
		cr_expect_eq(name == NULL, cases[i].name == NULL);
		if (name != NULL)
			cr_expect_str_eq(name, cases[i].name);
	}
}

/* All that cannot be tried is taken to be there. */
Test(fs_features, of_a_full_one_a_file_tells)
{
	static const struct {
		enum call fails;
		int with, open_errnum;
		uint32_t align;
		int res;
		const char *found;
	} cases[] = {
		{NOTHING, 0, 0, 512, 0, "txfird 512 512"},
		{NOTHING, 0, 0, 4096, 0, "txfird 4096 4096"},
		{NOTHING, 0, 0, 8192, 0, "txfrd 0 0"},
		{NOTHING, 0, EINVAL, 512, 0, "txfrd 0 0"},
		{NOTHING, 0, ENOENT, 512, -ENOENT, NULL},
		{NOTHING, 0, ELOOP, 512, -ELOOP, NULL},
		{STATFS, EIO, 0, 512, -EIO, NULL},
		{TRIM, EIO, 0, 512, -EIO, NULL},
	};
	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct fs_features f;
		fresh(cases[i].fails, 0, cases[i].with);
		fs.open_errnum = cases[i].open_errnum;
		fs.align = cases[i].align;
		cr_expect_eq(
			fs_features_probe_full(DIR_FD, "there", &f), cases[i].res, "case %u", i);
		if (cases[i].res == 0)
			cr_expect_str_eq(letters(&f), cases[i].found, "case %u", i);
		cr_assert_eq(open_fds(), fds_before, "case %u", i);
	}
}
