/* SPDX-License-Identifier: Apache-2.0 */
#include "mount/mnt.h"
#include "mount/mnt_scan.h"

#include "blockio_env.h"

#include <linux/fs.h>
#include <linux/magic.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>

enum { MIB = 1 << 20 };

static void open_env(void)
{
	if (env_has_loop())
		env_open();
}

TestSuite(mnt, .init = open_env, .fini = env_close);

static struct mnt_result result;

static struct mnt_info inspect_at(const char *path)
{
	struct mnt_info info;
	int r = env_path_call(MNT_INSPECT, path, &info, sizeof info);
	cr_assert(r == 0, "%s: %d %s", path, r, info.why);
	return info;
}

static struct mnt_info inspect(const char *name)
{
	return inspect_at(env_path(name));
}

static int call_bind(const char *source, const char *target, bool block, bool read_only)
{
	static struct mnt_bind_req req;
	memset(&req, 0, sizeof req);
	snprintf(req.source, sizeof req.source, "%s", source);
	snprintf(req.target, sizeof req.target, "%s", target);
	req.block = block;
	req.read_only = read_only;
	return env_call(MNT_BIND, &req, sizeof req, &result, sizeof result);
}

/* About the mount of a device, or of any (NULL). */
static int call_on(enum mnt_call call, const char *name, const struct lodev *dev)
{
	static struct mnt_on_req req;
	memset(&req, 0, sizeof req);
	snprintf(req.at.path, sizeof req.at.path, "%s", env_path(name));
	if (dev != NULL) {
		req.dev_major = LODEV_MAJOR;
		req.dev_minor = dev->minor;
	}
	return env_call(call, &req, sizeof req, &result, sizeof result);
}

static int call_path(enum mnt_call call, const char *name)
{
	return call_on(call, name, NULL);
}

static void make_dir(const char *name)
{
	cr_assert(mkdirat(env.dirfd, name, 0755) == 0);
}

static bool there(const char *name)
{
	return faccessat(env.dirfd, name, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
}

static const char *device_path(const struct lodev *dev)
{
	static char path[32];
	snprintf(path, sizeof path, "/dev/loop%u", dev->minor);
	return path;
}

/* ---- paths ---- */

Test(mnt, paths_that_are_refused)
{
	ENV_NEEDS_LOOP();
	static const char *const bad[] = {"", "relative", "/", "//", "/tmp/../etc", "/tmp/..",
		"/..", "/tmp/.", "./tmp", "/tmp/./x"};
	struct mnt_info info;
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
		cr_assert(env_path_call(MNT_INSPECT, bad[i], &info, sizeof info) == -EINVAL, "%s",
			bad[i]);
	make_dir("real");
	make_dir("real/sub");
	cr_assert(symlinkat("real", env.dirfd, "link") == 0);
	int r = env_path_call(MNT_INSPECT, env_path("link/sub"), &info, sizeof info);
	cr_assert(r == -ELOOP && strstr(info.why, "link") != NULL);
	cr_assert(inspect("real/sub").is_dir);
	cr_assert(inspect("real/sub/").is_dir, "a slash at the end says nothing");
	info = inspect("link");
	cr_assert(info.exists && info.is_symlink && !info.is_dir && !info.is_mount);

	/* A request without NUL. */
	static struct mnt_path_req req;
	size_t len = sizeof info;
	memset(req.path, 'a', sizeof req.path);
	req.path[0] = '/';
	cr_assert(mnt_calls[MNT_INSPECT](&req, sizeof req, &info, &len) == -ENAMETOOLONG);
	snprintf(req.path, sizeof req.path, "/%0300d/x", 0);
	cr_assert(mnt_calls[MNT_INSPECT](&req, sizeof req, &info, &len) == -ENAMETOOLONG);
}

Test(mnt, requests_of_another_size_are_refused)
{
	ENV_NEEDS_LOOP();
	static char req[32768], resp[8192];
	for (unsigned call = 0; call < MNT_CALLS; call++) {
		for (size_t len = 0; len < 3; len++) {
			size_t resp_len = sizeof resp;
			cr_assert(mnt_calls[call](req, len, resp, &resp_len) == -EINVAL);
		}
		size_t resp_len = 8;
		cr_assert(mnt_calls[call](req, sizeof(struct mnt_path_req), resp, &resp_len) ==
			  -EINVAL);
	}
}

Test(mnt, an_option_s_value)
{
	static const struct {
		const char *options, *value;
	} cases[] = {
		{"rw,context=a:b:c", "a:b:c"},
		{"rw,context=\"a:b:c:s0:c1,c2\",noatime", "a:b:c:s0:c1,c2"},
		{"context=a,rw", "a"},
		{"rw,fscontext=a,rootcontext=\"b,context=c\",seclabel", ""},
		{"rw,fscontext=a,context=b,context=c", "b"},
		{"", ""},
		{"context=", ""},
		{",,context=\"x", "x"},
	};
	char value[8], longer[32];
	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		mnt_option_value(cases[i].options, "context=", longer, sizeof(longer));
		cr_expect_str_eq(longer, cases[i].value, "%s: %s", cases[i].options, longer);
	}
	mnt_option_value("context=12345678,x", "context=", value, sizeof(value));
	cr_expect_str_eq(value, "1234567");
}

/* The kubelet's root may be a link; below it none may be. */
Test(mnt, trusted_prefix)
{
	ENV_NEEDS_LOOP();
	make_dir("data");
	make_dir("data/kubelet");
	make_dir("data/kubelet/pods");
	make_dir("data/kubelet/pods/uid");
	make_dir("data/kubelet/other");
	make_dir("lib");
	cr_assert(symlinkat("../data/kubelet", env.dirfd, "lib/kubelet") == 0);
	cr_assert(inspect("lib/kubelet/pods/uid").is_dir);
	char absolute[128];
	snprintf(absolute, sizeof absolute, "%s", env_path("data/kubelet"));
	cr_assert(symlinkat(absolute, env.dirfd, "lib/kubelet2") == 0);
	cr_assert(inspect("lib/kubelet2/pods/uid").is_dir);
	cr_assert(!inspect("lib/kubelet2/pods/none").exists);

	struct mnt_info info;
	int r = env_path_call(MNT_INSPECT, env_path("lib/kubelet/other"), &info, sizeof info);
	cr_assert(r == -ELOOP, "no pods or plugins in the path");
	cr_assert(symlinkat("uid", env.dirfd, "data/kubelet/pods/uid2") == 0);
	make_dir("data/kubelet/pods/uid/x");
	r = env_path_call(MNT_INSPECT, env_path("lib/kubelet/pods/uid2/x"), &info, sizeof info);
	cr_assert(r == -ELOOP, "a link below the prefix");

	/* A loop, and somebody else's link. */
	cr_assert(symlinkat("loop", env.dirfd, "lib/loop") == 0);
	r = env_path_call(MNT_INSPECT, env_path("lib/loop/pods/uid"), &info, sizeof info);
	cr_assert(r == -ELOOP);
	cr_assert(fchownat(env.dirfd, "lib/kubelet", 1000, 1000, AT_SYMLINK_NOFOLLOW) == 0);
	r = env_path_call(MNT_INSPECT, env_path("lib/kubelet/pods/uid"), &info, sizeof info);
	cr_assert(r == -ELOOP, "a tenant's link");
	cr_assert(fchmodat(env.dirfd, "lib", 0777, 0) == 0);
	r = env_path_call(MNT_INSPECT, env_path("lib/kubelet2/pods/uid"), &info, sizeof info);
	cr_assert(r == -ELOOP, "a directory anybody may write");
	cr_assert(inspect("data/kubelet/pods/uid").is_dir);
}

/* ---- inspect ---- */

Test(mnt, inspect_without_a_mount)
{
	ENV_NEEDS_LOOP();
	make_dir("dir");
	env_image("file", 0);
	cr_assert(!inspect("nothing").exists);
	cr_assert(!inspect("nothing/below").exists, "a missing parent too");
	struct mnt_info info = inspect("dir");
	cr_assert(info.exists && info.is_dir && !info.is_mount && info.dev_major == 0);
	info = inspect("file");
	cr_assert(info.exists && info.is_file && !info.is_mount);
	struct mnt_info under_file;
	int r = env_path_call(MNT_INSPECT, env_path("file/x"), &under_file, sizeof under_file);
	cr_assert(r == -ENOTDIR);
}

static void check_life(enum fsimg_type type, uint64_t size, uint64_t magic)
{
	struct lodev dev = env_fresh("img", type, size, "mnt0");
	struct mnt_info info = inspect("mnt0");
	cr_assert(info.is_mount && info.is_dir && !info.read_only && !info.fs_read_only);
	cr_assert(info.dev_major == LODEV_MAJOR && info.dev_minor == dev.minor);
	cr_assert(info.fs_magic == magic);

	struct mnt_info stats;
	cr_assert(env_path_call(MNT_STATS, env_path("mnt0"), &stats, sizeof stats) == 0);
	cr_assert(stats.total_bytes > size / 2 && stats.total_bytes <= size);
	cr_assert(stats.used_bytes + stats.free_bytes == stats.total_bytes);
	cr_assert(stats.avail_bytes <= stats.free_bytes);
	cr_assert(stats.used_inodes + stats.free_inodes == stats.total_inodes);

	cr_assert(env_mount(&dev, env_path("mnt0"), type, "", &result) == -EEXIST);
	cr_assert(call_path(MNT_SYNC, "mnt0") == 0, "%s", result.why);
	int r = env_unmount(env_path("mnt0"), &dev, true, &result);
	cr_assert(r == 0, "%d %s", r, result.why);
	cr_assert(!there("mnt0"));
	cr_assert(env_unmount(env_path("mnt0"), &dev, true, &result) == 0, "gone is gone");

	/* Read-only, with options of every kind. */
	make_dir("mnt0");
	r = env_mount(
		&dev, env_path("mnt0"), type, "ro,noatime,nosuid,nodev,noexec,discard", &result);
	cr_assert(r == 0, "%d %s", r, result.why);
	struct statfs fs;
	cr_assert(statfs(env_path("mnt0"), &fs) == 0);
	cr_assert(fs.f_flags & ST_RDONLY && fs.f_flags & ST_NOSUID && fs.f_flags & ST_NODEV);
	cr_assert(fs.f_flags & ST_NOEXEC && fs.f_flags & ST_NOATIME);
	info = inspect("mnt0");
	cr_assert(info.read_only && info.fs_read_only);
	cr_assert(env_unmount(env_path("mnt0"), &dev, false, &result) == 0);
	cr_assert(there("mnt0"));
	env_detach(&dev);
}

Test(mnt, life_of_ext4)
{
	ENV_NEEDS_LOOP();
	check_life(FSIMG_EXT4, 32 * MIB, EXT4_SUPER_MAGIC);
}

Test(mnt, life_of_xfs)
{
	ENV_NEEDS_LOOP();
	check_life(FSIMG_XFS, 300LL * MIB, XFS_SUPER_MAGIC);
}

Test(mnt, life_of_btrfs)
{
	ENV_NEEDS_LOOP();
	check_life(FSIMG_BTRFS, 256LL * MIB, BTRFS_SUPER_MAGIC);
}

/* After an error ext4 refuses writes; since Linux 6.15 statfs does not show it any more. */
Test(mnt, inspect_sees_ext4_turned_read_only)
{
	ENV_NEEDS_LOOP();
	env_image("img", 32 * MIB);
	env_mkfs("img", FSIMG_EXT4, 32 * MIB, "");
	struct lodev dev = env_attach("img");
	make_dir("mnt0");
	int r = env_mount(&dev, env_path("mnt0"), FSIMG_EXT4, "errors=remount-ro", &result);
	cr_assert(r == 0, "%d %s", r, result.why);
	cr_assert(!inspect("mnt0").fs_read_only);
	char path[64];
	snprintf(path, sizeof path, "/sys/fs/ext4/loop%u/trigger_fs_error", dev.minor);
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	cr_assert(fd >= 0 && write(fd, "test", 4) == 4);
	close(fd);
	struct mnt_info info = inspect("mnt0");
	cr_assert(info.is_mount && info.fs_read_only && info.read_only);
	cr_assert(env_unmount(env_path("mnt0"), &dev, true, &result) == 0);
	fd = openat(env.dirfd, "img", O_RDONLY | O_CLOEXEC);
	struct fsimg_probe p;
	cr_assert(fsimg_probe_fd(fd, &p) == 0 && p.errors);
	close(fd);
	env_detach(&dev);
}

/* ---- mount ---- */

Test(mnt, mount_refusals)
{
	ENV_NEEDS_LOOP();
	env_image("img", 32 * MIB);
	struct lodev dev = env_attach("img");
	make_dir("mnt0");
	int r = env_mount(&dev, env_path("mnt0"), FSIMG_EXT4, "", &result);
	cr_assert(r < 0 && result.why[0] != '\0', "nothing is on the device");
	env_mkfs("img", FSIMG_EXT4, 32 * MIB, "");
	r = env_mount(&dev, env_path("mnt0"), FSIMG_EXT4, "nonsense=3", &result);
	cr_assert(r == -EINVAL, "%d", r);
	cr_assert(strstr(result.why, "nonsense") != NULL, "%s", result.why);
	cr_assert(env_mount(&dev, env_path("missing"), FSIMG_EXT4, "", &result) == -ENOENT);
	cr_assert(env_mount(&dev, env_path("a/b"), FSIMG_EXT4, "", &result) == -ENOENT);
	env_image("file", 0);
	cr_assert(env_mount(&dev, env_path("file"), FSIMG_EXT4, "", &result) == -ENOTDIR);
	cr_assert(symlinkat("mnt0", env.dirfd, "link") == 0);
	cr_assert(env_mount(&dev, env_path("link"), FSIMG_EXT4, "", &result) == -ELOOP);
	cr_assert(env_mount(&dev, env_path("mnt0"), FSIMG_NONE, "", &result) == -EINVAL);
	r = env_mount(&dev, env_path("mnt0"), FSIMG_XFS, "", &result);
	cr_assert(r < 0, "another file system is on the device");
	cr_assert(!inspect("mnt0").is_mount);

	static struct mnt_mount_req req = {.type = FSIMG_EXT4};
	static const char *const devices[] = {
		"", "loop0", "/dev/", "/dev/../etc/x", "/dev/a/b", "/tmp/img"};
	snprintf(req.target, sizeof req.target, "%s", env_path("mnt0"));
	for (size_t i = 0; i < sizeof devices / sizeof *devices; i++) {
		snprintf(req.device, sizeof req.device, "%s", devices[i]);
		r = env_call(MNT_MOUNT, &req, sizeof req, &result, sizeof result);
		cr_assert(r == -EINVAL, "%s: %d", devices[i], r);
	}
	memset(req.device, 'd', sizeof req.device);
	cr_assert(env_call(MNT_MOUNT, &req, sizeof req, &result, sizeof result) == -EINVAL);
	snprintf(req.device, sizeof req.device, "%s", device_path(&dev));
	memset(req.options, 'o', sizeof req.options);
	cr_assert(env_call(MNT_MOUNT, &req, sizeof req, &result, sizeof result) == -EINVAL);
	env_detach(&dev);
}

/* Whether the mount's options, as the kernel tells them, have this one. */
static bool has_option(const char *target, const char *option)
{
	char line[1024];
	bool found = false;
	FILE *file = fopen("/proc/self/mounts", "re");
	cr_assert(file != NULL);
	while (fgets(line, sizeof line, file) != NULL)
		if (strstr(line, target) != NULL)
			found = strstr(line, option) != NULL;
	fclose(file);
	return found;
}

/* A tenant's superblock says that the node is to panic at the first error. */
Test(mnt, no_superblock_makes_the_node_panic)
{
	ENV_NEEDS_LOOP();
	env_image("img", 32 * MIB);
	env_mkfs("img", FSIMG_EXT4, 32 * MIB, "");
	cr_assert(env_runs("tune2fs", "-e", "panic", env_path("img")) == 0);
	struct lodev dev = env_attach("img");
	static const char *const options[] = {"", "errors=remount-ro"};
	static const char *const want[] = {"errors=continue", "errors=remount-ro"};
	for (unsigned i = 0; i < 2; i++) {
		make_dir("mnt0");
		int r = env_mount(&dev, env_path("mnt0"), FSIMG_EXT4, options[i], &result);
		cr_assert(r == 0, "%d %s", r, result.why);
		cr_assert(has_option(env_path("mnt0"), want[i]));
		cr_assert_not(has_option(env_path("mnt0"), "errors=panic"));
		cr_assert(env_unmount(env_path("mnt0"), &dev, true, &result) == 0);
	}
	env_detach(&dev);
}

/* Two volumes with one UUID, as after a restore. */
Test(mnt, xfs_twins_mount_together)
{
	ENV_NEEDS_LOOP();
	struct lodev a = env_fresh("a", FSIMG_XFS, 300LL * MIB, "mnt0");
	cr_assert(call_path(MNT_SYNC, "mnt0") == 0);
	cr_assert(call_path(MNT_FREEZE, "mnt0") == 0, "%s", result.why);
	int copied = env_runs("cp", "--sparse=always", env_path("a"), env_path("b"));
	cr_assert(call_path(MNT_THAW, "mnt0") == 0 && copied == 0);
	struct lodev b = env_attach("b");
	make_dir("mnt1");
	int r = env_mount(&b, env_path("mnt1"), FSIMG_XFS, "", &result);
	cr_assert(r == 0, "%d %s", r, result.why);
	cr_assert(env_unmount(env_path("mnt1"), &b, true, &result) == 0);
	cr_assert(env_unmount(env_path("mnt0"), &a, true, &result) == 0);
	env_detach(&a);
	env_detach(&b);
}

/* ---- bind ---- */

Test(mnt, bind_of_a_mount)
{
	ENV_NEEDS_LOOP();
	struct lodev dev = env_fresh("img", FSIMG_EXT4, 32 * MIB, "mnt0");
	int r = call_bind(env_path("mnt0"), env_path("mnt1"), false, false);
	cr_assert(r == 0, "%d %s", r, result.why);
	struct mnt_info info = inspect("mnt1");
	cr_assert(info.is_mount && info.dev_minor == dev.minor && !info.read_only);
	cr_assert(call_bind(env_path("mnt0"), env_path("mnt1"), false, false) == -EEXIST);

	make_dir("mnt2");
	cr_assert(
		call_bind(env_path("mnt0"), env_path("mnt2"), false, true) == 0, "%s", result.why);
	info = inspect("mnt2");
	cr_assert(info.is_mount && info.read_only && !info.fs_read_only);
	cr_assert(openat(env.dirfd, "mnt2/x", O_CREAT | O_WRONLY, 0600) < 0 && errno == EROFS);
	int fd = openat(env.dirfd, "mnt1/x", O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
	cr_assert(fd >= 0);
	cr_assert(env_unmount(env_path("mnt1"), &dev, true, &result) == -EBUSY);
	cr_assert(result.why[0] != '\0' && inspect("mnt1").is_mount);
	close(fd);
	cr_assert(env_unmount(env_path("mnt1"), &dev, true, &result) == 0);
	cr_assert(env_unmount(env_path("mnt2"), &dev, true, &result) == 0);
	cr_assert(!there("mnt1") && !there("mnt2"));
	cr_assert(env_unmount(env_path("mnt0"), &dev, true, &result) == 0);
	env_detach(&dev);
}

Test(mnt, bind_of_a_device)
{
	ENV_NEEDS_LOOP();
	env_image("img", 8 * MIB);
	struct lodev dev = env_attach("img");
	int r = call_bind(device_path(&dev), env_path("mnt1"), true, false);
	cr_assert(r == 0, "%d %s", r, result.why);
	struct mnt_info info = inspect("mnt1");
	cr_assert(info.is_mount && info.is_block && !info.is_file && !info.read_only);
	cr_assert(info.dev_major == LODEV_MAJOR && info.dev_minor == dev.minor);
	cr_assert(env_path_call(MNT_STATS, env_path("mnt1"), &info, sizeof info) == 0);
	cr_assert(info.total_bytes == 8 * MIB && info.used_bytes == 0);
	cr_assert(call_path(MNT_SYNC, "mnt1") == 0, "%s", result.why);
	cr_assert(call_bind(device_path(&dev), env_path("mnt1"), true, false) == -EEXIST);

	/* From there on to another place, as a staged block volume is published. */
	env_image("mnt2", 0);
	r = call_bind(env_path("mnt1"), env_path("mnt2"), true, true);
	cr_assert(r == 0, "%d %s", r, result.why);
	cr_assert(inspect("mnt2").is_block && inspect("mnt2").read_only);
	struct lodev other = dev;
	other.minor++;
	cr_assert(env_unmount(env_path("mnt2"), &other, true, &result) == -EXDEV);
	cr_assert(env_unmount(env_path("mnt2"), &dev, true, &result) == 0 && !there("mnt2"));
	cr_assert(env_unmount(env_path("mnt1"), &dev, true, &result) == 0 && !there("mnt1"));
	env_detach(&dev);
}

Test(mnt, bind_refusals_leave_nothing)
{
	ENV_NEEDS_LOOP();
	struct lodev dev = env_fresh("img", FSIMG_EXT4, 32 * MIB, "mnt0");
	const char *mnt = env_path("mnt0"), *target = env_path("target");
	make_dir("dir");
	cr_assert(call_bind(env_path("dir"), target, false, false) == -EINVAL, "no mount");
	cr_assert(call_bind(env_path("nothing"), target, false, false) == -ENOENT);
	cr_assert(call_bind(mnt, target, true, false) == -ENOTBLK);
	cr_assert(call_bind(device_path(&dev), target, false, false) == -EINVAL);
	cr_assert(!there("target"));
	cr_assert(call_bind(mnt, env_path("no/target"), false, false) == -ENOENT);
	cr_assert(strstr(result.why, "parent") != NULL && !there("no"));

	env_image("file", 0);
	cr_assert(call_bind(mnt, env_path("file"), false, false) == -ENOTDIR);
	cr_assert(call_bind(device_path(&dev), env_path("dir"), true, false) == -EISDIR);
	cr_assert(symlinkat("dir", env.dirfd, "link") == 0);
	cr_assert(call_bind(mnt, env_path("link"), false, false) == -ELOOP);
	cr_assert(call_bind(mnt, env_path("link/x"), false, false) == -ELOOP);
	cr_assert(mknodat(env.dirfd, "fifo", S_IFIFO | 0600, 0) == 0);
	cr_assert(call_bind(device_path(&dev), env_path("fifo"), true, false) == -EEXIST);
	cr_assert(there("file") && there("dir") && there("fifo") && !there("target"));

	/* The kernel itself refuses: a mount on a mount that is detached has no place. What was
	 * made for it goes again. Here: cloning the source fails, for its mount is unbindable. */
	cr_assert(mount(NULL, mnt, NULL, MS_UNBINDABLE, NULL) == 0);
	cr_assert(call_bind(mnt, target, false, false) == -EINVAL);
	cr_assert(!there("target") && result.why[0] != '\0');
	cr_assert(call_bind(mnt, env_path("dir"), false, false) == -EINVAL);
	cr_assert(there("dir"), "what was there before stays");
	cr_assert(env_unmount(mnt, &dev, true, &result) == 0);
	env_detach(&dev);
}

/* ---- unmount ---- */

Test(mnt, unmount_is_careful)
{
	ENV_NEEDS_LOOP();
	struct lodev dev = env_fresh("img", FSIMG_EXT4, 32 * MIB, "mnt0"), other = dev;
	other.minor++;
	cr_assert(env_unmount(env_path("mnt0"), &other, true, &result) == -EXDEV);
	cr_assert(result.why[0] != '\0' && inspect("mnt0").is_mount);

	/* Two of its mounts at one place. */
	cr_assert(mount(env_path("mnt0"), env_path("mnt0"), NULL, MS_BIND, NULL) == 0);
	cr_assert(env_unmount(env_path("mnt0"), &dev, false, &result) == 0);
	cr_assert(there("mnt0") && !inspect("mnt0").is_mount);

	/* Another's mount below ours. */
	cr_assert(mount("none", env_path("mnt0"), "tmpfs", 0, NULL) == 0);
	cr_assert(env_mount(&dev, env_path("mnt0"), FSIMG_EXT4, "", &result) == -EEXIST);
	cr_assert(mount(device_path(&dev), env_path("mnt0"), "ext4", 0, NULL) == 0);
	cr_assert(env_unmount(env_path("mnt0"), &dev, true, &result) == -EXDEV);
	cr_assert(inspect("mnt0").fs_magic == TMPFS_MAGIC);
	cr_assert(env_unmount(env_path("mnt0"), NULL, true, &result) == -EXDEV, "of no device");
	cr_assert(umount(env_path("mnt0")) == 0);

	/* Not mounted: nothing goes, and it is no failure. */
	cr_assert(env_unmount(env_path("mnt0"), &dev, true, &result) == 0 && there("mnt0"));
	make_dir("full");
	make_dir("full/x");
	cr_assert(env_unmount(env_path("full"), &dev, true, &result) == 0);
	cr_assert(env_unmount(env_path("full"), &dev, false, &result) == 0);
	cr_assert(there("full/x"));
	env_image("file", 1);
	cr_assert(env_unmount(env_path("file"), &dev, true, &result) == 0);
	cr_assert(symlinkat("full", env.dirfd, "link") == 0);
	cr_assert(env_unmount(env_path("link"), &dev, true, &result) == 0);
	cr_assert(mknodat(env.dirfd, "fifo", S_IFIFO | 0600, 0) == 0);
	cr_assert(env_unmount(env_path("fifo"), &dev, true, &result) == 0);
	cr_assert(there("file") && there("link") && there("fifo"));
	cr_assert(env_unmount(env_path("no/where"), &dev, true, &result) == 0);
	env_detach(&dev);
}

/* An XFS that has shut itself down answers EIO even to statx; it still has to come off. */
Test(mnt, a_dead_xfs_is_seen_and_unmounted)
{
	ENV_NEEDS_LOOP();
	struct lodev dev = env_fresh("img", FSIMG_XFS, 300LL * MIB, "mnt0");
	int fd = openat(env.dirfd, "mnt0", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	uint32_t no_log_flush = 2;
	cr_assert(fd >= 0 && ioctl(fd, _IOR('X', 125, uint32_t), &no_log_flush) == 0);
	close(fd);
	struct stat st;
	printf("stat of a dead XFS: %s\n",
		stat(env_path("mnt0"), &st) < 0 ? strerror(errno) : "works");
	struct mnt_info info;
	int r = env_path_call(MNT_INSPECT, env_path("mnt0"), &info, sizeof info);
	cr_assert(r == 0, "%d %s", r, info.why);
	cr_assert(info.is_mount && info.dev_minor == dev.minor);
	cr_assert(info.shut_down);
	struct lodev other = dev;
	other.minor++;
	cr_assert(env_unmount(env_path("mnt0"), &other, true, &result) == -EXDEV);
	r = env_unmount(env_path("mnt0"), &dev, true, &result);
	cr_assert(r == 0, "%d %s", r, result.why);
	cr_assert(!there("mnt0"));
	env_detach(&dev);
}

/* ---- several at once, and the device itself ---- */

static size_t many_request(struct mnt_many_req *req, const char *const *paths, uint32_t count)
{
	size_t len = 0;
	req->count = count;
	for (uint32_t i = 0; i < count; i++) {
		strcpy(req->paths + len, paths[i]);
		len += strlen(paths[i]) + 1;
	}
	return offsetof(struct mnt_many_req, paths) + len;
}

Test(mnt, statistics_of_many_are_those_of_each)
{
	ENV_NEEDS_LOOP();
	static struct mnt_many_req req;
	static struct mnt_many_info infos[MNT_MANY_MAX];
	struct lodev dev = env_fresh("img", FSIMG_EXT4, 32LL * MIB, "mnt0");
	char mounted[128], nothing[128];
	snprintf(mounted, sizeof mounted, "%s", env_path("mnt0"));
	snprintf(nothing, sizeof nothing, "%s", env_path("nothing"));
	const char *paths[] = {mounted, "relative", nothing, mounted};
	size_t len = many_request(&req, paths, 4);
	cr_assert(env_call(MNT_STATS_MANY, &req, len, infos, 4 * sizeof infos[0]) == 0);
	struct mnt_info alone;
	cr_assert(env_path_call(MNT_STATS, mounted, &alone, sizeof alone) == 0);
	cr_assert(infos[0].res == 0 && infos[0].info.is_mount);
	cr_assert(infos[0].info.total_bytes == alone.total_bytes);
	cr_assert(infos[0].info.dev_minor == dev.minor);
	cr_assert(infos[1].res == -EINVAL && infos[1].info.why[0] != '\0');
	cr_assert(infos[2].res == 0 && !infos[2].info.exists);
	cr_assert(infos[3].res == 0 && infos[3].info.total_inodes == alone.total_inodes);

	/* What no driver of ours sends. */
	size_t resp_len = sizeof infos;
	cr_assert(mnt_calls[MNT_STATS_MANY](&req, len - 1, infos, &resp_len) == -EINVAL);
	cr_assert(mnt_calls[MNT_STATS_MANY](&req, 3, infos, &resp_len) == -EINVAL);
	req.count = 5;
	cr_assert(mnt_calls[MNT_STATS_MANY](&req, len, infos, &resp_len) == -EINVAL);
	req.count = MNT_MANY_MAX + 1;
	cr_assert(mnt_calls[MNT_STATS_MANY](&req, len, infos, &resp_len) == -EINVAL);
	req.count = 4;
	resp_len = 4 * sizeof infos[0] - 1;
	cr_assert(mnt_calls[MNT_STATS_MANY](&req, len, infos, &resp_len) == -EINVAL);
	cr_assert(env_unmount(mounted, &dev, true, &result) == 0);
	env_detach(&dev);
}

/* What comes before "pods" is resolved once for neighbours that have it in common, and for no
 * other. */
Test(mnt, prefixes_of_many)
{
	ENV_NEEDS_LOOP();
	static struct mnt_many_req req;
	static struct mnt_many_info infos[MNT_MANY_MAX];
	static const char *const dirs[] = {"a", "a/pods", "a/pods/x", "b", "b/pods", "plain"};
	for (size_t i = 0; i < sizeof dirs / sizeof dirs[0]; i++)
		make_dir(dirs[i]);
	cr_assert(mknodat(env.dirfd, "b/pods/x", S_IFREG | 0600, 0) == 0);
	cr_assert(symlinkat("a", env.dirfd, "l") == 0);
	cr_assert(fchownat(env.dirfd, "l", 1000, 1000, AT_SYMLINK_NOFOLLOW) == 0);
	static const struct {
		const char *name;
		int res;
		bool is_dir, is_file;
	} cases[] = {
		{"a/pods/x", 0, true, false},
		{"a/pods/x", 0, true, false},
		{"b/pods/x", 0, false, true},
		{"l/pods/x", -ELOOP, false, false},
		{"b/pods/x", 0, false, true},
		{"plain", 0, true, false},
		{"c/pods/x", 0, false, false},
		{"a/pods/x", 0, true, false},
		{"a/pods/none", 0, false, false},
		{"a/pods/x/..", -EINVAL, false, false},
		{"a/pods/x", 0, true, false},
	};
	enum { COUNT = sizeof cases / sizeof cases[0] };
	char text[COUNT][128];
	const char *paths[COUNT];
	for (unsigned i = 0; i < COUNT; i++) {
		snprintf(text[i], sizeof text[i], "%s", env_path(cases[i].name));
		paths[i] = text[i];
	}
	size_t len = many_request(&req, paths, COUNT);
	cr_assert(env_call(MNT_STATS_MANY, &req, len, infos, COUNT * sizeof infos[0]) == 0);
	for (unsigned i = 0; i < COUNT; i++) {
		cr_assert(infos[i].res == cases[i].res, "%u: %d", i, infos[i].res);
		cr_assert(infos[i].info.is_dir == cases[i].is_dir, "%u", i);
		cr_assert(infos[i].info.is_file == cases[i].is_file, "%u", i);
	}
}

Test(mnt, a_device_is_read_past_all_caches)
{
	ENV_NEEDS_LOOP();
	static struct mnt_try_req req;
	struct lodev dev = env_fresh("img", FSIMG_EXT4, 32LL * MIB, "mnt0");
	snprintf(req.device, sizeof req.device, "%s", device_path(&dev));
	cr_assert(env_call(MNT_TRY_READ, &req, sizeof req, &result, sizeof result) == 0);
	cr_assert(truncate(env_path("img"), 0) == 0);
	int r = env_call(MNT_TRY_READ, &req, sizeof req, &result, sizeof result);
	cr_assert(r == -EIO && result.why[0] != '\0', "%d", r);
	cr_assert(truncate(env_path("img"), 32LL * MIB) == 0);
	memset(req.device, 'x', sizeof req.device);
	size_t resp_len = sizeof result;
	cr_assert(mnt_calls[MNT_TRY_READ](&req, sizeof req, &result, &resp_len) == -EINVAL);
	cr_assert(env_unmount(env_path("mnt0"), &dev, true, &result) == 0);
	env_detach(&dev);
}

/* ---- grow ---- */

static int grow(const struct lodev *dev, enum fsimg_type type, uint64_t size)
{
	static struct mnt_grow_req req;
	struct err err = {0};
	uint64_t now;
	int fd = openat(env.dirfd, "img", O_RDWR | O_CLOEXEC);
	cr_assert(fd >= 0 && ftruncate(fd, (off_t)size) == 0);
	close(fd);
	cr_assert(lodev_resize(dev, &now, &err) == 0 && now == size);
	memset(&req, 0, sizeof req);
	snprintf(req.on.at.path, sizeof req.on.at.path, "%s", env_path("mnt0"));
	req.type = type;
	req.size_bytes = size;
	return env_call(MNT_GROW, &req, sizeof req, &result, sizeof result);
}

static uint64_t total_bytes(void)
{
	struct mnt_info info;
	cr_assert(env_path_call(MNT_STATS, env_path("mnt0"), &info, sizeof info) == 0);
	return info.total_bytes;
}

static void check_grow(enum fsimg_type type, uint64_t from_mib, uint64_t to_mib)
{
	struct lodev dev = env_fresh("img", type, from_mib * MIB, "mnt0");
	uint64_t before = total_bytes();
	int r = grow(&dev, type, from_mib * MIB);
	cr_assert(r == 0, "large enough already: %d %s", r, result.why);
	r = grow(&dev, type, to_mib * MIB);
	if (r == -EPERM) {
		cr_assert(strstr(result.why, "CAP_SYS_RESOURCE") != NULL, "%s", result.why);
		cr_assert(env_unmount(env_path("mnt0"), &dev, true, &result) == 0);
		env_detach(&dev);
		cr_skip("online growth of ext4 needs CAP_SYS_RESOURCE");
	}
	cr_assert(r == 0, "%d %s", r, result.why);
	cr_assert(total_bytes() > before + (to_mib - from_mib) * MIB / 2);
	cr_assert(grow(&dev, type, to_mib * MIB) == 0, "twice");
	cr_assert(env_unmount(env_path("mnt0"), &dev, true, &result) == 0);
	env_detach(&dev);
}

Test(mnt, grow_ext4)
{
	ENV_NEEDS_LOOP();
	check_grow(FSIMG_EXT4, 32, 96);
}

Test(mnt, grow_xfs)
{
	ENV_NEEDS_LOOP();
	check_grow(FSIMG_XFS, 300, 600);
}

Test(mnt, grow_btrfs)
{
	ENV_NEEDS_LOOP();
	check_grow(FSIMG_BTRFS, 128, 300);
}

Test(mnt, grow_btrfs_below_the_kernels_least)
{
	ENV_NEEDS_LOOP();
	struct lodev dev = env_fresh("img", FSIMG_BTRFS, 128 * MIB, "mnt0");
	cr_assert(grow(&dev, FSIMG_BTRFS, 200LL * MIB) == -EINVAL);
	cr_assert(strstr(result.why, "256 MiB") != NULL, "%s", result.why);
	cr_assert(env_unmount(env_path("mnt0"), &dev, true, &result) == 0);
	env_detach(&dev);
}

/* ---- uuid, sync, freeze ---- */

/* 0, -EOPNOTSUPP where the kernel cannot, or the mount's errno. */
static int mount_with_uuid(const struct lodev *dev, const uint8_t uuid[16])
{
	static struct mnt_mount_req req;
	snprintf(req.device, sizeof req.device, "/dev/loop%u", dev->minor);
	snprintf(req.target, sizeof req.target, "%s", env_path("mnt0"));
	req.type = FSIMG_EXT4;
	req.set_uuid = true;
	memcpy(req.uuid, uuid, 16);
	return env_call(MNT_MOUNT, &req, sizeof req, &result, sizeof result);
}

static void probe_image(struct fsimg_probe *ret)
{
	int fd = openat(env.dirfd, "img", O_RDONLY | O_CLOEXEC);
	cr_assert(fsimg_probe_fd(fd, ret) == 0);
	close(fd);
}

Test(mnt, an_ext4_gets_its_uuid_with_the_mount)
{
	ENV_NEEDS_LOOP();
	struct lodev dev = env_fresh("img", FSIMG_EXT4, 32 * MIB, "mnt0");
	struct fsimg_probe before, p;
	uint8_t uuid[16];
	cr_assert(env_unmount(env_path("mnt0"), &dev, false, &result) == 0);
	probe_image(&before);
	fsimg_uuid_of("another", uuid);
	for (int i = 0; i < 2; i++) {
		int r = mount_with_uuid(&dev, uuid);
		cr_assert(r == 0 && result.why[0] == '\0', "%d %s", r, result.why);
		cr_assert(env_unmount(env_path("mnt0"), &dev, false, &result) == 0);
	}
	probe_image(&p);
	if (memcmp(p.uuid, before.uuid, 16) == 0)
		cr_skip("this kernel cannot change the UUID of a mounted ext4");
	cr_assert(memcmp(p.uuid, uuid, 16) == 0);
	env_detach(&dev);
	cr_assert(env_runs("e2fsck", "-fn", env_path("img")) == 0);
}

/* Made by somebody else, it may lack what makes that possible. */
Test(mnt, an_ext4_that_cannot_change_its_uuid_is_mounted_as_it_is)
{
	ENV_NEEDS_LOOP();
	struct fsimg_probe before, p;
	uint8_t uuid[16];
	env_image("img", 32 * MIB);
	cr_assert(env_runs("mkfs.ext4", "-O^metadata_csum_seed", env_path("img")) == 0);
	probe_image(&before);
	struct lodev dev = env_attach("img");
	make_dir("mnt0");
	fsimg_uuid_of("another", uuid);
	int r = mount_with_uuid(&dev, uuid);
	cr_assert(r == 0 && result.why[0] == '\0', "%d %s", r, result.why);
	cr_assert(env_unmount(env_path("mnt0"), &dev, false, &result) == 0);
	probe_image(&p);
	cr_assert(memcmp(p.uuid, before.uuid, 16) == 0);
	env_detach(&dev);
}

Test(mnt, freeze_and_thaw)
{
	ENV_NEEDS_LOOP();
	struct lodev dev = env_fresh("img", FSIMG_EXT4, 32 * MIB, "mnt0");
	cr_assert(call_path(MNT_THAW, "mnt0") == 0, "not frozen");
	cr_assert(call_path(MNT_FREEZE, "mnt0") == 0, "%s", result.why);
	cr_assert(call_path(MNT_FREEZE, "mnt0") == -EBUSY && result.why[0] != '\0');
	cr_assert(call_path(MNT_THAW, "mnt0") == 0);
	int fd = openat(env.dirfd, "mnt0/x", O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
	cr_assert(fd >= 0);
	close(fd);
	cr_assert(env_unmount(env_path("mnt0"), &dev, true, &result) == 0);
	env_detach(&dev);
}

/* On a plain directory these would act on the node's own file system. */
Test(mnt, file_system_calls_want_a_mount)
{
	ENV_NEEDS_LOOP();
	static struct mnt_grow_req grow_req = {.type = FSIMG_EXT4, .size_bytes = 1LL << 40};
	static const enum mnt_call calls[] = {MNT_SYNC, MNT_FREEZE, MNT_THAW};
	make_dir("dir");
	env_image("file", 0);
	cr_assert(symlinkat("/", env.dirfd, "link") == 0);
	for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
		cr_assert(call_path(calls[i], "dir") == -EINVAL);
		cr_assert(call_path(calls[i], "file") == -EINVAL);
		cr_assert(call_path(calls[i], "link") == -EINVAL);
		cr_assert(call_path(calls[i], "none") == -ENOENT);
		cr_assert(call_path(calls[i], "none/none") == -ENOENT);
	}
	snprintf(grow_req.on.at.path, sizeof grow_req.on.at.path, "%s", env_path("dir"));
	int r = env_call(MNT_GROW, &grow_req, sizeof grow_req, &result, sizeof result);
	cr_assert(r == -EINVAL);
}

/* Who names a device reaches its mount, or its node, and nothing else that is at the path by now.
 */
Test(mnt, file_system_calls_are_about_one_device)
{
	ENV_NEEDS_LOOP();
	static const enum mnt_call calls[] = {MNT_SYNC, MNT_FREEZE, MNT_THAW};
	static const char *const not_it[] = {"dir", "file", "link", "none", "none/none", "mnt1"};
	struct lodev dev = env_fresh("a", FSIMG_EXT4, 32 * MIB, "mnt0");
	struct lodev other = env_fresh("b", FSIMG_BTRFS, 128 * MIB, "mnt1");
	make_dir("dir");
	env_image("file", 0);
	cr_assert(symlinkat(env_path("mnt0"), env.dirfd, "link") == 0);
	for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
		for (size_t j = 0; j < sizeof not_it / sizeof *not_it; j++) {
			int r = call_on(calls[i], not_it[j], &dev);
			cr_assert(r == -EXDEV && result.why[0] != '\0', "%s: %d %s", not_it[j], r,
				result.why);
		}
		cr_assert(call_on(calls[i], "mnt0", &dev) == 0, "%s", result.why);
		cr_assert(call_on(calls[i], "mnt1", &other) == 0, "%s", result.why);
	}
	static struct mnt_grow_req grow_req;
	grow_req = (struct mnt_grow_req){.type = FSIMG_EXT4, .size_bytes = 32 * MIB};
	grow_req.on.dev_major = LODEV_MAJOR;
	grow_req.on.dev_minor = other.minor;
	snprintf(grow_req.on.at.path, sizeof grow_req.on.at.path, "%s", env_path("mnt0"));
	int r = env_call(MNT_GROW, &grow_req, sizeof grow_req, &result, sizeof result);
	cr_assert(r == -EXDEV, "%d %s", r, result.why);

	env_image("node", 0);
	cr_assert(call_bind(device_path(&dev), env_path("node"), true, false) == 0);
	cr_assert(call_on(MNT_SYNC, "node", &dev) == 0, "%s", result.why);
	cr_assert(call_on(MNT_SYNC, "node", &other) == -EXDEV);
	cr_assert(env_unmount(env_path("node"), &dev, true, &result) == 0);
	cr_assert(env_unmount(env_path("mnt0"), &dev, true, &result) == 0);
	cr_assert(env_unmount(env_path("mnt1"), &other, true, &result) == 0);
	env_detach(&dev);
	env_detach(&other);
}

/* ---- scan ---- */

struct seen {
	unsigned minors[4];
	bool found[8], bound[8], read_only[8];
};

static void on_entry(void *arg, const struct mnt_entry *entry)
{
	struct seen *seen = arg;
	size_t dir_len = strlen(env.dir);
	if (strncmp(entry->path, env.dir, dir_len) != 0 || entry->path[dir_len] != '/')
		return;
	const char *name = entry->path + dir_len + 1;
	cr_assert(entry->dev_major == LODEV_MAJOR);
	int i = strcmp(name, "with blank\\") == 0 ? 7 : name[3] - '0';
	cr_assert(i >= 0 && i < 8, "%s", name);
	seen->found[i] = true;
	seen->bound[i] = entry->bound_node;
	seen->read_only[i] = entry->read_only;
	if (i < 4)
		seen->minors[i] = entry->dev_minor;
}

Test(mnt, scan_finds_mounts_and_bound_nodes)
{
	ENV_NEEDS_LOOP();
	struct lodev ext4 = env_fresh("a", FSIMG_EXT4, 32 * MIB, "mnt0");
	struct lodev btrfs = env_fresh("b", FSIMG_BTRFS, 128 * MIB, "mnt1");
	env_image("c", 4 * MIB);
	struct lodev raw = env_attach("c");
	cr_assert(call_bind(device_path(&raw), env_path("mnt2"), true, false) == 0);
	cr_assert(call_bind(env_path("mnt0"), env_path("mnt3"), false, true) == 0);
	cr_assert(call_bind(env_path("mnt0"), env_path("with blank\\"), false, false) == 0);
	make_dir("mnt5");
	cr_assert(mount("none", env_path("mnt5"), "tmpfs", 0, NULL) == 0);
	struct seen seen = {.minors = {0}};
	cr_assert(mnt_scan(on_entry, &seen) == 0);
	cr_assert(seen.found[0] && seen.minors[0] == ext4.minor && !seen.bound[0]);
	cr_assert(seen.found[1] && seen.minors[1] == btrfs.minor && !seen.bound[1]);
	cr_assert(seen.found[2] && seen.minors[2] == raw.minor && seen.bound[2]);
	cr_assert(seen.found[3] && seen.minors[3] == ext4.minor && seen.read_only[3]);
	cr_assert(!seen.found[5] && seen.found[7] && !seen.read_only[0]);
	cr_assert(env_unmount(env_path("with blank\\"), &ext4, true, &result) == 0);
	cr_assert(env_unmount(env_path("mnt3"), &ext4, true, &result) == 0);
	cr_assert(env_unmount(env_path("mnt2"), &raw, true, &result) == 0);
	cr_assert(env_unmount(env_path("mnt1"), &btrfs, true, &result) == 0);
	cr_assert(env_unmount(env_path("mnt0"), &ext4, true, &result) == 0);
	env_detach(&ext4);
	env_detach(&btrfs);
	env_detach(&raw);
}
