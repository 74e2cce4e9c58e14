/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is at a place: nothing, a mount of a device, a bound block node, something else. Asked of
 * the entry itself by statx, in a microsecond; the mount table is read only for a file system too
 * sick to answer (XFS after a shutdown says EIO to everything) and for what only it knows on older
 * kernels.
 */
#include "mount/mnt_look.h"

#include "base/fd.h"
#include "mount/mnt_scan.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/btrfs.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>

/* ---- the mount a descriptor is on ---- */

static int fd_mount_id(int fd, uint64_t *ret)
{
	char path[48], text[1024];
	snprintf(path, sizeof path, "/proc/self/fdinfo/%d", fd);
	ssize_t n = fd_read_file(AT_FDCWD, path, text, sizeof text);
	if (n < 0)
		return (int)n;
	const char *p = strstr(text, "mnt_id:");
	if (p == NULL)
		return -EPROTO;
	*ret = strtoull(p + strlen("mnt_id:"), NULL, 10);
	return 0;
}

struct by_id {
	uint64_t id;
	bool found, fs_read_only, shut_down;
	uint32_t dev_major, dev_minor;
	char label[FSIMG_LABEL_BYTES];
};

static bool by_id_on_line(void *arg, const struct mnt_line *line)
{
	struct by_id *b = arg;
	if (line->id != b->id)
		return true;
	bool bound;
	b->found = true;
	/* emergency_ro: what ext4 of Linux 6.15 and newer is after an error. */
	b->fs_read_only = mnt_has_option(line->fs_options, "ro") ||
			  mnt_has_option(line->fs_options, "emergency_ro");
	b->shut_down = mnt_has_option(line->fs_options, "shutdown"); /* ext4, likewise */
	mnt_option_value(line->fs_options, "context=", b->label, sizeof b->label);
	mnt_line_device(line, &b->dev_major, &b->dev_minor, &bound);
	return false;
}

static int find_line(int fd, struct by_id *ret)
{
	struct by_id b = {0};
	int r = fd_mount_id(fd, &b.id);
	if (r == 0)
		r = mnt_each_line(by_id_on_line, &b);
	if (r == 0 && !b.found)
		r = -ENOENT;
	if (r == 0)
		*ret = b;
	return r;
}

/* ---- the device of a mount ---- */

/* btrfs gives files a made-up device number; the real one is its device's. */
static int btrfs_device(int fd, uint32_t *ret_major, uint32_t *ret_minor)
{
	struct btrfs_ioctl_fs_info_args fs = {0};
	if (ioctl(fd, BTRFS_IOC_FS_INFO, &fs) < 0)
		return -errno;
	for (uint64_t id = 1; id <= fs.max_id; id++) {
		struct btrfs_ioctl_dev_info_args dev = {.devid = id};
		struct stat st;
		if (ioctl(fd, BTRFS_IOC_DEV_INFO, &dev) < 0) {
			if (errno == ENODEV)
				continue;
			return -errno;
		}
		if (stat((const char *)dev.path, &st) < 0)
			return -errno;
		if (!S_ISBLK(st.st_mode))
			return -ENOTBLK;
		*ret_major = major(st.st_rdev);
		*ret_minor = minor(st.st_rdev);
		return 0;
	}
	return -ENODEV;
}

static int made_up_device(const struct mnt_place *place, struct mnt_look *look)
{
	struct statfs fs;
	_cleanup_fd_ int fd = mnt_place_open(place, O_PATH);
	if (fd < 0)
		return fd;
	if (fstatfs(fd, &fs) < 0)
		return -errno;
	if ((unsigned long)fs.f_type != BTRFS_SUPER_MAGIC)
		return 0;
	_cleanup_fd_ int dir = mnt_place_open(place, O_RDONLY | O_DIRECTORY);
	if (dir >= 0 && btrfs_device(dir, &look->dev_major, &look->dev_minor) == 0)
		return 0;
	struct by_id line;
	int r = find_line(fd, &line);
	if (r < 0)
		return r;
	look->dev_major = line.dev_major;
	look->dev_minor = line.dev_minor;
	return 0;
}

/* ---- the look ---- */

/* Linux 6.8: the mount's id for statmount(). Older kernels take the bit and ignore it. */
enum { STATX_WANT_UNIQUE_ID = 0x4000 };

static uint64_t unique_id(const struct statx *stx)
{
	uint64_t id = 0;
	if (stx->stx_mask & STATX_WANT_UNIQUE_ID)
		memcpy(&id, (const char *)stx + 0x90, sizeof id); /* stx_mnt_id */
	return id;
}

/* The entry does not say. It is a mount if it is on another one than its directory. */
static int look_at_sick(const struct mnt_place *place, int statx_res, struct mnt_look *ret)
{
	uint64_t id, parent_id;
	_cleanup_fd_ int fd = mnt_place_open(place, O_PATH);
	if (fd < 0)
		return fd;
	int r = fd_mount_id(fd, &id);
	if (r == 0)
		r = fd_mount_id(place->parent_fd, &parent_id);
	if (r < 0)
		return r;
	if (id == parent_id)
		return statx_res;
	struct by_id line;
	r = find_line(fd, &line);
	if (r < 0)
		return r;
	*ret = (struct mnt_look){
		.exists = true,
		.is_mount = true,
		.shut_down = statx_res == -EIO,
		.mode = S_IFDIR,
		.dev_major = line.dev_major,
		.dev_minor = line.dev_minor,
	};
	return 0;
}

int mnt_place_look(const struct mnt_place *place, struct mnt_look *ret, char *why)
{
	struct statx stx;
	struct mnt_look look = {0};
	if (statx(place->parent_fd, place->name, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT,
		    STATX_TYPE | STATX_MODE | STATX_SIZE | STATX_WANT_UNIQUE_ID, &stx) < 0) {
		int r = -errno;
		if (r == -ENOENT)
			*ret = look;
		else
			r = look_at_sick(place, r, ret);
		if (r == -ENOENT || r == 0)
			return 0;
		return mnt_why(why, r, "cannot look at the path");
	}
	if (!(stx.stx_attributes_mask & STATX_ATTR_MOUNT_ROOT))
		return mnt_why(why, -EOPNOTSUPP, "this kernel does not tell mounts (Linux 5.8)");
	look.exists = true;
	look.is_mount = stx.stx_attributes & STATX_ATTR_MOUNT_ROOT;
	look.mode = stx.stx_mode;
	look.size_bytes = stx.stx_size;
	look.mount_id = unique_id(&stx);
	if (S_ISBLK(look.mode)) {
		look.dev_major = stx.stx_rdev_major;
		look.dev_minor = stx.stx_rdev_minor;
	} else if (look.is_mount) {
		look.dev_major = stx.stx_dev_major;
		look.dev_minor = stx.stx_dev_minor;
		int r = look.dev_major == 0 ? made_up_device(place, &look) : 0;
		if (r < 0)
			return mnt_why(why, r, "cannot tell the device of the mount");
	}
	*ret = look;
	return 0;
}

int mnt_find_and_look(const char *path, size_t size, struct mnt_place *ret_place,
	struct mnt_look *ret_look, char *why)
{
	int r = mnt_place_find(path, size, ret_place, why);
	return r < 0 ? r : mnt_place_look(ret_place, ret_look, why);
}

int mnt_place_open_mounted(const struct mnt_place *place, const struct mnt_look *look, char *why)
{
	if (!look->exists)
		return mnt_why(why, -ENOENT, "nothing is there");
	if (!look->is_mount || !S_ISDIR(look->mode))
		return mnt_why(why, -EINVAL, "no file system is mounted there");
	return mnt_place_open(place, O_RDONLY | O_DIRECTORY);
}

/* ---- inspect and stats ---- */

/* Linux 6.8's statmount(), which answers for one mount without reading the table. Its structures
 * are in no header of Debian 12. */
enum {
	SYS_STATMOUNT = 457,
	STATMOUNT_WANT_SB = 0x1,
	STATMOUNT_WANT_OPTIONS = 0x80,
	SB_FLAG_READ_ONLY = 1,
	STATMOUNT_TEXT_AT = 512,
};

struct statmount_req {
	uint32_t size, spare;
	uint64_t mnt_id, param;
};

struct statmount_head {
	uint32_t size, options_at;
	uint64_t mask;
	uint32_t sb_dev_major, sb_dev_minor;
	uint64_t sb_magic;
	uint32_t sb_flags;
};

/* 0, or -errno where the kernel is too old. */
static int statmount_state(uint64_t mount_id, bool *ret_read_only, bool *ret_shut_down)
{
	_Alignas(8) char mem[STATMOUNT_TEXT_AT + 4096];
	if (mount_id == 0)
		return -ENOSYS;
	struct statmount_req req = {
		.size = sizeof req,
		.mnt_id = mount_id,
		.param = STATMOUNT_WANT_SB | STATMOUNT_WANT_OPTIONS,
	};
	struct statmount_head head;
	if (syscall(SYS_STATMOUNT, &req, mem, sizeof mem - 1, 0) < 0)
		return -errno;
	memcpy(&head, mem, sizeof head);
	mem[sizeof mem - 1] = '\0';
	const char *options = "";
	if (head.mask & STATMOUNT_WANT_OPTIONS && head.options_at < 4096)
		options = mem + STATMOUNT_TEXT_AT + head.options_at;
	*ret_read_only = (head.mask & STATMOUNT_WANT_SB && head.sb_flags & SB_FLAG_READ_ONLY) ||
			 mnt_has_option(options, "emergency_ro");
	*ret_shut_down = mnt_has_option(options, "shutdown");
	return 0;
}

static int read_fs(const struct mnt_place *place, const struct mnt_look *look, bool stats,
	struct mnt_info *info)
{
	struct statfs fs;
	_cleanup_fd_ int fd = mnt_place_open(place, O_PATH);
	if (fd < 0)
		return fd;
	info->shut_down = look->shut_down;
	if (fstatfs(fd, &fs) < 0)
		return look->shut_down ? 0 : -errno;
	info->fs_magic = (unsigned long)fs.f_type;
	info->read_only = fs.f_flags & ST_RDONLY;
	/* Before Linux 6.8: statfs says when either is read-only, the table says which. */
	struct by_id line;
	bool shut_down = false;
	if (look->is_mount && S_ISDIR(look->mode) &&
		statmount_state(look->mount_id, &info->fs_read_only, &shut_down) < 0 &&
		info->read_only && find_line(fd, &line) == 0) {
		info->fs_read_only = line.fs_read_only;
		shut_down = line.shut_down;
	}
	info->read_only |= info->fs_read_only;
	info->shut_down |= shut_down;
	if (!stats)
		return 0;
	uint64_t unit = (uint64_t)(fs.f_frsize > 0 ? fs.f_frsize : fs.f_bsize);
	info->total_bytes = fs.f_blocks * unit;
	info->free_bytes = fs.f_bfree * unit;
	info->avail_bytes = fs.f_bavail * unit;
	info->used_bytes = info->total_bytes - info->free_bytes;
	info->total_inodes = fs.f_files;
	info->free_inodes = fs.f_ffree;
	info->used_inodes = fs.f_files - fs.f_ffree;
	return 0;
}

/* From sysfs: opening the node would keep a loop device that is to be cleared. */
static int read_block_size(const struct mnt_look *look, struct mnt_info *info)
{
	char path[64], text[32];
	snprintf(path, sizeof path, "/sys/dev/block/%u:%u/size", look->dev_major, look->dev_minor);
	ssize_t n = fd_read_file(AT_FDCWD, path, text, sizeof text);
	if (n < 0)
		return n == -ENOENT ? -ENXIO : (int)n;
	info->total_bytes = strtoull(text, NULL, 10) * 512;
	return 0;
}

/* Of the directory that the path's name is in. What cannot be told is none. */
static void read_parent(const struct mnt_place *place, struct mnt_info *info)
{
	struct stat st;
	const struct mnt_place self = {.parent_fd = place->parent_fd, .name = "."};
	struct mnt_look look = {0};
	if (fstat(place->parent_fd, &st) < 0)
		return;
	look.dev_major = major(st.st_dev);
	look.dev_minor = minor(st.st_dev);
	if (look.dev_major == 0 && made_up_device(&self, &look) < 0)
		return;
	if (look.dev_major != 0) {
		info->on_major = look.dev_major;
		info->on_minor = look.dev_minor;
	}
}

static int read_info(
	struct mnt_prefix *prefix, const char *path, size_t size, bool stats, struct mnt_info *info)
{
	_cleanup_place_ struct mnt_place place = MNT_PLACE_NONE;
	struct mnt_look look;
	int r = mnt_place_find_below(prefix, path, size, &place, info->why);
	if (r == -ENOENT) {
		info->why[0] = '\0';
		return 0;
	}
	if (r == 0)
		r = mnt_place_look(&place, &look, info->why);
	if (r == 0 && !stats)
		read_parent(&place, info);
	if (r < 0 || !look.exists)
		return r;
	info->exists = true;
	info->is_dir = S_ISDIR(look.mode);
	info->is_block = S_ISBLK(look.mode);
	info->is_file = S_ISREG(look.mode);
	info->is_symlink = S_ISLNK(look.mode);
	info->is_mount = look.is_mount;
	info->dev_major = look.dev_major;
	info->dev_minor = look.dev_minor;
	if (info->is_symlink)
		return 0;
	r = read_fs(&place, &look, stats && !info->is_block, info);
	if (r == 0 && stats && info->is_block)
		r = read_block_size(&look, info);
	return r < 0 ? mnt_why(info->why, r, "cannot read the file system's state") : 0;
}

static int call_info(const void *req, size_t req_len, void *resp, size_t *resp_len, bool stats)
{
	_cleanup_prefix_ struct mnt_prefix prefix = {.fd = -1};
	struct mnt_info *info = resp;
	if (req_len != sizeof(struct mnt_path_req) || *resp_len < sizeof *info)
		return -EINVAL;
	*resp_len = sizeof *info;
	*info = (struct mnt_info){0};
	const struct mnt_path_req *path = req;
	return read_info(&prefix, path->path, sizeof path->path, stats, info);
}

int mnt_call_inspect(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	return call_info(req, req_len, resp, resp_len, false);
}

int mnt_call_stats(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	return call_info(req, req_len, resp, resp_len, true);
}

int mnt_call_stats_many(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	_cleanup_prefix_ struct mnt_prefix prefix = {.fd = -1};
	const struct mnt_many_req *many = req;
	struct mnt_many_info *infos = resp;
	if (req_len < offsetof(struct mnt_many_req, paths) || many->count == 0 ||
		many->count > MNT_MANY_MAX || *resp_len < many->count * sizeof *infos)
		return -EINVAL;
	const char *path = many->paths, *end = (const char *)req + req_len;
	for (uint32_t i = 0; i < many->count; i++) {
		size_t len = strnlen(path, (size_t)(end - path));
		if (path + len == end)
			return -EINVAL;
		infos[i] = (struct mnt_many_info){0};
		infos[i].res = read_info(&prefix, path, len + 1, true, &infos[i].info);
		path += len + 1;
	}
	*resp_len = many->count * sizeof *infos;
	return 0;
}

int mnt_call_label(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	_cleanup_place_ struct mnt_place place = MNT_PLACE_NONE;
	const struct mnt_path_req *path = req;
	struct mnt_label *ret = resp;
	struct mnt_look look;
	struct by_id line;
	if (req_len != sizeof *path || *resp_len < sizeof *ret)
		return -EINVAL;
	*resp_len = sizeof *ret;
	*ret = (struct mnt_label){0};
	int r = mnt_find_and_look(path->path, sizeof path->path, &place, &look, ret->why);
	if (r < 0)
		return r;
	if (!look.is_mount)
		return mnt_why(ret->why, -EINVAL, "no file system is mounted there");
	_cleanup_fd_ int fd = mnt_place_open(&place, O_PATH);
	r = fd < 0 ? fd : find_line(fd, &line);
	if (r < 0)
		return mnt_why(ret->why, r, "the mount's options cannot be read");
	memcpy(ret->label, line.label, sizeof ret->label);
	return 0;
}
