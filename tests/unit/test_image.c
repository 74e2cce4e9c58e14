/* SPDX-License-Identifier: Apache-2.0 */
#include "blockio/fs_features.h"
#include "blockio/image.h"

#include "blockio_env.h"

#include "blockio/boot_mark.h"
#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include <stdlib.h>
#include <sys/xattr.h>
#include <unistd.h>

enum { MIB = 1 << 20 };

TestSuite(image, .init = env_open, .fini = env_close);

static uint64_t allocated(int fd)
{
	uint64_t bytes, size;
	cr_assert(image_usage(fd, &bytes, &size) == 0);
	return bytes;
}

static uint64_t size_of(int fd)
{
	uint64_t bytes, size;
	cr_assert(image_usage(fd, &bytes, &size) == 0);
	return size;
}

Test(image, resize_thin_leaves_holes_and_never_shrinks)
{
	int fd = env_file("a", 0);
	cr_assert(image_resize(fd, 3 * MIB, false) == 0);
	cr_assert(size_of(fd) == 3 * MIB && allocated(fd) < 64 * 1024);
	cr_assert(image_resize(fd, 3 * MIB, false) == 0);
	cr_assert(image_resize(fd, 2 * MIB, false) == -EINVAL);
	cr_assert(image_resize(fd, 2 * MIB, true) == -EINVAL);
	cr_assert(image_resize(fd, UINT64_MAX, false) == -EFBIG);
	cr_assert(size_of(fd) == 3 * MIB);
	close(fd);
}

Test(image, resize_thick_allocates_holes_too)
{
	int fd = env_file("a", 2 * MIB);
	cr_assert(pwrite(fd, "x", 1, MIB) == 1);
	cr_assert(image_resize(fd, 4 * MIB, true) == 0);
	cr_assert(size_of(fd) == 4 * MIB && allocated(fd) >= 4 * MIB);
	char c = 0;
	cr_assert(pread(fd, &c, 1, MIB) == 1 && c == 'x');
	cr_assert(pread(fd, &c, 1, 3 * MIB) == 1 && c == 0);
	close(fd);
}

Test(image, calls_report_a_bad_descriptor)
{
	uint64_t a, b;
	struct fs_features f;
	cr_assert(image_resize(-1, MIB, false) == -EBADF);
	cr_assert(image_usage(-1, &a, &b) == -EBADF);
	cr_assert(image_reflink(-1, -1) == -EBADF);
	cr_assert(fs_features_probe(-1, &f) == -EBADF);
	cr_assert(image_hint_extent_size(-1, MIB) == -EBADF);
	cr_assert(image_dio_align(-1) == 0);
}

static unsigned count_entries(void)
{
	unsigned n = 0;
	DIR *dir = opendir(env.dir);
	cr_assert(dir != NULL);
	while (readdir(dir) != NULL)
		n++;
	closedir(dir);
	return n;
}

Test(image, probe_leaves_nothing)
{
	struct fs_features f;
	unsigned before = count_entries();
	cr_assert(fs_features_probe(env.dirfd, &f) == 0);
	cr_assert(count_entries() == before);
	cr_assert(f.direct_io == (f.dio_align != 0));
	printf("/tmp: type %llx reflink %d direct %d align %u tmpfile %d xattr %d fallocate %d\n",
		(unsigned long long)f.fs_type, f.reflink, f.direct_io, f.dio_align, f.tmpfile,
		f.xattr, f.fallocate);
}

Test(image, probe_takes_away_what_a_crash_left)
{
	struct fs_features f;
	unsigned before = count_entries();
	int fd = openat(env.dirfd, ".ringvol-probe", O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
	cr_assert(fd >= 0);
	close(fd);
	cr_assert(fs_features_probe(env.dirfd, &f) == 0);
	cr_assert(f.tmpfile);
	cr_assert(count_entries() == before);
}

static struct fs_features probe_at(const char *target)
{
	struct fs_features f;
	int fd = open(env_path(target), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	cr_assert(fd >= 0);
	cr_assert(fs_features_probe(fd, &f) == 0);
	close(fd);
	return f;
}

static int file_in(const char *target, const char *name)
{
	char path[128];
	snprintf(path, sizeof path, "%s/%s", target, name);
	return env_file(path, 0);
}

Test(image, probe_tells_file_systems_apart)
{
	ENV_NEEDS_LOOP();
	env_fresh("ext4", FSIMG_EXT4, 32 * MIB, "mnt0");
	env_fresh("xfs", FSIMG_XFS, 300LL * MIB, "mnt1");
	env_fresh("btrfs", FSIMG_BTRFS, 128 * MIB, "mnt2");

	struct fs_features f = probe_at("mnt0");
	cr_assert(f.fs_type == EXT4_SUPER_MAGIC && !f.reflink && f.direct_io && f.tmpfile);
	cr_assert(f.xattr && f.fallocate && !f.nocow_lies && f.dio_align == 512);
	f = probe_at("mnt1");
	cr_assert(f.fs_type == XFS_SUPER_MAGIC && f.reflink && f.direct_io && f.tmpfile);
	cr_assert(f.xattr && f.fallocate && !f.nocow_lies && f.dio_align == 512);
	f = probe_at("mnt2");
	cr_assert(f.fs_type == BTRFS_SUPER_MAGIC && f.reflink && f.direct_io && f.tmpfile);
	cr_assert(f.xattr && f.fallocate && f.nocow_lies && f.dio_align == 4096);
}

/* By an ext4 driver or an ext2 one, whichever the kernel has. */
Test(image, probe_looks_for_a_journal)
{
	ENV_NEEDS_LOOP();
	struct fs_features f;
	static const struct {
		const char *mkfs, *options;
		bool no_journal;
	} made[] = {
		{"mkfs.ext4", "has_journal", false},
		{"mkfs.ext4", "^has_journal", true},
		{"mkfs.ext2", "ext_attr", true},
	};
	for (unsigned i = 0; i < 3; i++) {
		char image[] = "image0", target[] = "mnt0";
		image[5] = target[3] = (char)('0' + i);
		env_image(image, 64 * MIB);
		cr_assert(env_runs(made[i].mkfs, "-q", "-F", "-O", made[i].options,
				  env_path(image)) == 0);
		struct lodev dev = env_attach(image);
		char path[32];
		snprintf(path, sizeof path, "/dev/loop%u", dev.minor);
		cr_assert(mkdirat(env.dirfd, target, 0755) == 0);
		cr_assert(mount(path, env_path(target), made[i].mkfs + 5, 0, "") == 0);
		f = probe_at(target);
		cr_assert(f.fs_type == EXT4_SUPER_MAGIC && f.tmpfile && f.xattr);
		cr_assert(f.no_journal == made[i].no_journal, "%s -O %s", made[i].mkfs,
			made[i].options);
		close(file_in(target, "file"));
		int dirfd = open(env_path(target), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
		cr_assert(fs_features_probe_full(dirfd, "file", &f) == 0);
		cr_assert(f.no_journal == made[i].no_journal);
		close(dirfd);
	}
	env_fresh("xfs", FSIMG_XFS, 300LL * MIB, "mnt5");
	cr_assert(!probe_at("mnt5").no_journal);
}

/* Whatever little is left: what is told is what an empty one tells, or that it is too full. */
static void check_full(const char *target)
{
	struct fs_features empty = probe_at(target), f;
	unsigned full = 0, told = 0;
	int dirfd = open(env_path(target), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	int file = openat(dirfd, "file", O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
	cr_assert(file >= 0 && write(file, "some text", 9) == 9 && fsync(file) == 0);
	close(file);
	int hog = openat(dirfd, "hog", O_CREAT | O_RDWR | O_CLOEXEC, 0600);
	uint64_t size = 0;
	for (uint64_t step = 64 * MIB; step >= 4096; step /= 2)
		while (fallocate(hog, 0, (off_t)size, (off_t)step) == 0)
			size += step;
	for (unsigned i = 0; i < 80; i++) {
		memset(&f, 0xff, sizeof(f));
		int r = fs_features_probe(dirfd, &f);
		cr_assert(r == 0 || r == -ENOSPC, "%d with %u KiB given back", r, i * 4);
		full += r == -ENOSPC;
		told += r == 0;
		if (r == 0)
			cr_assert(memcmp(&f, &empty, sizeof(f)) == 0, "%u KiB given back", i * 4);
		cr_assert(fs_features_probe_full(dirfd, "file", &f) == 0);
		cr_assert(f.fs_type == empty.fs_type && f.nocow_lies == empty.nocow_lies);
		cr_assert(f.direct_io == empty.direct_io && f.dio_align == empty.dio_align);
		size -= 4096;
		cr_assert(ftruncate(hog, (off_t)size) == 0 && syncfs(hog) == 0);
	}
	close(hog);
	close(dirfd);
	printf("%s: %u times full, %u times not\n", target, full, told);
	cr_assert(full > 0 && told > 0);
}

Test(image, probe_of_a_full_one_is_right_or_none)
{
	ENV_NEEDS_LOOP();
	env_fresh("ext4", FSIMG_EXT4, 32 * MIB, "mnt0");
	env_fresh("xfs", FSIMG_XFS, 300LL * MIB, "mnt1");
	check_full("mnt0");
	check_full("mnt1");
	struct fs_features f;
	cr_assert(fs_features_probe_full(-1, "file", &f) == -EBADF);
	cr_assert(fs_features_probe_full(env.dirfd, "nothing", &f) == -ENOENT);
}

Test(image, reflink_shares_or_says_that_it_cannot)
{
	ENV_NEEDS_LOOP();
	env_fresh("xfs", FSIMG_XFS, 300LL * MIB, "mnt0");
	env_fresh("ext4", FSIMG_EXT4, 32 * MIB, "mnt1");
	int src = file_in("mnt0", "src"), dst = file_in("mnt0", "dst");
	char mem[65536], back[65536];
	memset(mem, 7, sizeof mem);
	cr_assert(pwrite(src, mem, sizeof mem, MIB) == sizeof mem);
	cr_assert(image_reflink(src, dst) == 0);
	cr_assert(size_of(dst) == MIB + sizeof mem && allocated(dst) >= sizeof mem);
	cr_assert(pread(dst, back, sizeof back, MIB) == sizeof back);
	cr_assert(memcmp(mem, back, sizeof mem) == 0);

	int other = file_in("mnt1", "other"), other2 = file_in("mnt1", "other2");
	cr_assert(pwrite(other, mem, sizeof mem, 0) == sizeof mem);
	cr_assert(image_reflink(src, other) == -EXDEV);
	cr_assert(image_reflink(other, other2) == -EOPNOTSUPP);
}

Test(image, extent_hint_is_set_on_xfs_only)
{
	ENV_NEEDS_LOOP();
	env_fresh("xfs", FSIMG_XFS, 300LL * MIB, "mnt0");
	env_fresh("ext4", FSIMG_EXT4, 32 * MIB, "mnt1");
	env_fresh("btrfs", FSIMG_BTRFS, 128 * MIB, "mnt2");
	int xfs = file_in("mnt0", "f"), ext4 = file_in("mnt1", "f"), btrfs = file_in("mnt2", "f");
	struct fsxattr attr;
	cr_assert(image_hint_extent_size(xfs, MIB) == 0);
	cr_assert(ioctl(xfs, FS_IOC_FSGETXATTR, &attr) == 0);
	cr_assert(attr.fsx_extsize == MIB && attr.fsx_xflags & FS_XFLAG_EXTSIZE);
	cr_assert(attr.fsx_cowextsize == MIB && attr.fsx_xflags & FS_XFLAG_COWEXTSIZE);
	cr_assert(image_hint_extent_size(ext4, MIB) == 0);
	cr_assert(image_hint_extent_size(btrfs, MIB) == 0);
}

Test(image, thick_growth_on_a_full_disk_changes_no_size)
{
	ENV_NEEDS_LOOP();
	env_fresh("ext4", FSIMG_EXT4, 32 * MIB, "mnt0");
	int fd = file_in("mnt0", "f");
	cr_assert(image_resize(fd, MIB, true) == 0);
	cr_assert(image_resize(fd, 1024LL * MIB, true) == -ENOSPC);
	cr_assert(size_of(fd) == MIB);
	cr_assert(allocated(fd) < 2 * MIB, "the half-made growth was given back");
}

/* ---- marks of one run of the kernel ---- */

Test(boot_mark, this_boot)
{
	char path[] = "/tmp/test-boot-mark-XXXXXX";
	int fd = mkostemp(path, O_CLOEXEC);
	cr_assert(fd >= 0);
	unlink(path);
	struct boot_mark mark;
	cr_expect(!boot_mark_get(fd, BOOT_MARK_WRITER, &mark));
	cr_expect_eq(boot_mark_remove(fd, BOOT_MARK_WRITER), 0, "none is no error");

	cr_assert_eq(boot_mark_set(fd, BOOT_MARK_WRITER, "/a/path"), 0);
	cr_assert(boot_mark_get(fd, BOOT_MARK_WRITER, &mark));
	cr_expect(boot_mark_says(&mark, "/a/path"));
	cr_expect(!boot_mark_says(&mark, "/a/path/"));
	cr_expect(!boot_mark_get(fd, BOOT_MARK_FROZEN, NULL), "they are told apart");

	/* Another kernel's: only its id differs. */
	char value[256];
	ssize_t len = fgetxattr(fd, BOOT_MARK_WRITER, value, sizeof(value));
	cr_assert(len > 0);
	value[0] = value[0] == '0' ? '1' : '0';
	cr_assert_eq(fsetxattr(fd, BOOT_MARK_WRITER, value, (size_t)len, 0), 0);
	cr_expect(!boot_mark_get(fd, BOOT_MARK_WRITER, &mark));
	cr_assert_eq(fsetxattr(fd, BOOT_MARK_WRITER, value, (size_t)len - 1, 0), 0);
	cr_expect(!boot_mark_get(fd, BOOT_MARK_WRITER, &mark), "cut short");

	cr_assert_eq(boot_mark_set(fd, BOOT_MARK_WRITER, "/b"), 0, "over an old one");
	cr_assert(boot_mark_get(fd, BOOT_MARK_WRITER, &mark));
	cr_expect(boot_mark_says(&mark, "/b"));
	cr_expect_eq(boot_mark_remove(fd, BOOT_MARK_WRITER), 0);
	cr_expect(!boot_mark_get(fd, BOOT_MARK_WRITER, NULL));
	close(fd);
}
