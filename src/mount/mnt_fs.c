/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mounted file systems by ioctl: growing, a new UUID, syncing, freezing. Every call first makes
 * sure that the path is the root of a mount, or it would act on the node's own file system.
 *
 * The ioctls of ext4 and XFS are defined here: <linux/ext4.h> is younger than Debian 12's headers
 * and <xfs/xfs_fs.h> is another package's.
 */
#include "mount/mnt_fs.h"

#include "base/clock.h"
#include "base/fd.h"
#include "mount/mnt_look.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/btrfs.h>
#include <linux/capability.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

enum {
	UUID_BYTES = 16,
	BTRFS_SECTOR = 4096,
	BTRFS_RESIZE_MIN_BYTES = 256 << 20, /* the kernel's, also for growing */
	THAW_TRIES = 160,                   /* 4 s; the callers wait 5 */
	THAW_PAUSE_MS = 25,
	TRY_BYTES = 4096,
	TRIM_LEAST_BYTES = 64 << 10, /* smaller holes cost more extents than they give back */
};

#define EXT4_RESIZE _IOW('f', 16, uint64_t)

struct ext4_uuid_head {
	uint32_t len, flags;
};
struct ext4_uuid {
	struct ext4_uuid_head head;
	uint8_t uuid[UUID_BYTES];
};
#define EXT4_SET_UUID _IOW('f', 44, struct ext4_uuid_head)

struct xfs_geometry {
	uint32_t blocksize, rtextsize, agblocks, agcount, logblocks, sectsize, inodesize, imaxpct;
	uint64_t datablocks, rtblocks, rtextents, logstart;
	uint8_t uuid[16];
	uint32_t sunit, swidth;
	int32_t version;
	uint32_t flags, logsectsize, rtsectsize, dirblocksize;
};
struct xfs_grow {
	uint64_t newblocks;
	uint32_t imaxpct;
};
#define XFS_GEOMETRY _IOR('X', 100, struct xfs_geometry)
#define XFS_GROW     _IOW('X', 110, struct xfs_grow)

/* ---- the mount of a device ---- */

/* Finds what the request is about: what is there is looked at, and is the device's it names. */
static int find_on(const struct mnt_on_req *req, struct mnt_place *ret_place,
	struct mnt_look *ret_look, char *why)
{
	int r = mnt_find_and_look(req->at.path, sizeof req->at.path, ret_place, ret_look, why);
	if (req->dev_major == 0)
		return r;
	if (r < 0)
		return -EXDEV;
	if (ret_look->dev_major != req->dev_major || ret_look->dev_minor != req->dev_minor)
		return mnt_why(why, -EXDEV, "device %u:%u is not mounted there", req->dev_major,
			req->dev_minor);
	return 0;
}

/* A mounted directory, for ioctls. fd or -errno. */
static int open_on(const struct mnt_on_req *req, struct mnt_look *ret_look, char *why)
{
	_cleanup_place_ struct mnt_place place = MNT_PLACE_NONE;
	int r = find_on(req, &place, ret_look, why);
	return r < 0 ? r : mnt_place_open_mounted(&place, ret_look, why);
}

/* ---- grow ---- */

/* The superblock as the mounted file system has it: its buffer is in the device's page cache. */
static int ext4_probe(const struct mnt_look *look, struct fsimg_probe *ret)
{
	char path[64], name[64], node[96];
	snprintf(
		path, sizeof path, "/sys/dev/block/%u:%u/uevent", look->dev_major, look->dev_minor);
	char text[512];
	ssize_t n = fd_read_file(AT_FDCWD, path, text, sizeof text);
	if (n < 0)
		return (int)n;
	const char *p = strstr(text, "DEVNAME=");
	if (p == NULL || sscanf(p, "DEVNAME=%63[a-zA-Z0-9-]", name) != 1)
		return -ENODEV;
	snprintf(node, sizeof node, "/dev/%s", name);
	_cleanup_fd_ int fd = open(node, O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	int r = fsimg_probe_expected(fd, FSIMG_EXT4, ret);
	return r == 0 && ret->type != FSIMG_EXT4 ? -EUCLEAN : r;
}

/* Each grows to size_bytes: 1, 0 where it fills them already, or -errno. */

static int grow_ext4(int fd, const struct mnt_look *look, uint64_t size_bytes, char *why)
{
	struct fsimg_probe probe;
	struct stat st;
	int r = ext4_probe(look, &probe);
	if (r < 0)
		return mnt_why(why, r, "cannot read the superblock");
	if (fstat(fd, &st) < 0)
		return -errno;
	uint64_t block_bytes = (uint64_t)st.st_blksize, blocks = size_bytes / block_bytes;
	if (probe.fs_bytes / block_bytes >= blocks)
		return 0;
	if (ioctl(fd, EXT4_RESIZE, &blocks) == 0)
		return 1;
	r = -errno;
	if (r == -EPERM)
		return mnt_why(why, r,
			"online growth of ext4 needs CAP_SYS_RESOURCE: give it to the driver, or stop all pods that use the volume until it is unstaged; it grows when it is staged again");
	return mnt_why(why, r, "growing ext4 from %llu to %llu bytes failed",
		(unsigned long long)probe.fs_bytes, (unsigned long long)size_bytes);
}

bool mnt_can_grow_ext4(void)
{
	struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[2] = {0};
	if (syscall(SYS_capget, &header, data) != 0)
		return true;
	return (data[CAP_TO_INDEX(CAP_SYS_RESOURCE)].effective & CAP_TO_MASK(CAP_SYS_RESOURCE)) !=
	       0;
}

static int grow_xfs(int fd, uint64_t size_bytes, char *why)
{
	struct xfs_geometry geometry;
	if (ioctl(fd, XFS_GEOMETRY, &geometry) < 0)
		return mnt_why(why, -errno, "cannot read the geometry of the XFS");
	struct xfs_grow grow = {
		.newblocks = size_bytes / geometry.blocksize,
		.imaxpct = geometry.imaxpct,
	};
	if (geometry.datablocks >= grow.newblocks)
		return 0;
	if (ioctl(fd, XFS_GROW, &grow) == 0)
		return 1;
	return mnt_why(why, -errno, "growing XFS from %llu to %llu blocks failed",
		(unsigned long long)geometry.datablocks, (unsigned long long)grow.newblocks);
}

/* What the file system uses of its one device. */
static int btrfs_bytes(int fd, uint64_t *ret)
{
	struct btrfs_ioctl_fs_info_args fs = {0};
	if (ioctl(fd, BTRFS_IOC_FS_INFO, &fs) < 0)
		return -errno;
	for (uint64_t id = 1; id <= fs.max_id; id++) {
		struct btrfs_ioctl_dev_info_args dev = {.devid = id};
		if (ioctl(fd, BTRFS_IOC_DEV_INFO, &dev) == 0) {
			*ret = dev.total_bytes;
			return 0;
		}
		if (errno != ENODEV)
			return -errno;
	}
	return -ENODEV;
}

static int grow_btrfs(int fd, uint64_t size_bytes, char *why)
{
	uint64_t now = 0;
	int r = btrfs_bytes(fd, &now);
	if (r < 0)
		return mnt_why(why, r, "cannot read the size of the btrfs");
	if (now >= size_bytes / BTRFS_SECTOR * BTRFS_SECTOR)
		return 0;
	struct btrfs_ioctl_vol_args args = {.name = "max"};
	if (ioctl(fd, BTRFS_IOC_RESIZE, &args) == 0)
		return 1;
	if (errno == EINVAL && size_bytes < BTRFS_RESIZE_MIN_BYTES)
		return mnt_why(why, -EINVAL, "the kernel resizes btrfs to 256 MiB at least");
	return mnt_why(why, -errno, "growing btrfs failed");
}

/* FSIMG_NONE for one that is none of ours. */
static enum fsimg_type type_of_mounted(int fd)
{
	struct statfs fs;
	if (fstatfs(fd, &fs) < 0)
		return FSIMG_NONE;
	switch ((unsigned long)fs.f_type) {
	case EXT4_SUPER_MAGIC:
		return FSIMG_EXT4;
	case XFS_SUPER_MAGIC:
		return FSIMG_XFS;
	case BTRFS_SUPER_MAGIC:
		return FSIMG_BTRFS;
	default:
		return FSIMG_NONE;
	}
}

static int grow_type(
	const struct mnt_grow_req *grow, int fd, const struct mnt_look *look, char *why)
{
	switch (grow->type == FSIMG_NONE ? type_of_mounted(fd) : grow->type) {
	case FSIMG_EXT4:
		return grow_ext4(fd, look, grow->size_bytes, why);
	case FSIMG_XFS:
		return grow_xfs(fd, grow->size_bytes, why);
	case FSIMG_BTRFS:
		return grow_btrfs(fd, grow->size_bytes, why);
	case FSIMG_NONE:
	case FSIMG_TYPES:
		break;
	}
	return -EINVAL;
}

int mnt_call_grow(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	const struct mnt_grow_req *grow = req;
	struct mnt_result *result = mnt_begin(req_len, sizeof *grow, resp, resp_len);
	if (result == NULL)
		return -EINVAL;
	struct mnt_look look;
	_cleanup_fd_ int fd = open_on(&grow->on, &look, result->why);
	if (fd < 0)
		return fd;
	int r = grow_type(grow, fd, &look, result->why);
	result->grown = r > 0;
	return r < 0 ? r : 0;
}

/* ---- uuid ---- */

int mnt_set_uuid(int fd, const uint8_t uuid[16], char *why)
{
	struct ext4_uuid wanted = {.head.len = UUID_BYTES};
	memcpy(wanted.uuid, uuid, UUID_BYTES);
	if (ioctl(fd, EXT4_SET_UUID, &wanted) == 0)
		return 0;
	return mnt_why(why, -errno, "changing the UUID of the ext4 failed");
}

/* ---- sync, freeze, thaw ---- */

/* A block node, or a file of one: what was written to it reaches the device. */
static int sync_node(const struct mnt_place *place, char *why)
{
	_cleanup_fd_ int fd = mnt_place_open(place, O_RDONLY | O_NONBLOCK);
	if (fd < 0)
		return mnt_why(why, fd, "cannot open the device");
	return fsync(fd) < 0 ? mnt_why(why, -errno, "syncing the device failed") : 0;
}

static int sync_on(const struct mnt_on_req *req, char *why)
{
	_cleanup_place_ struct mnt_place place = MNT_PLACE_NONE;
	struct mnt_look look;
	int r = find_on(req, &place, &look, why);
	if (r < 0)
		return r;
	if (look.exists && S_ISBLK(look.mode))
		return sync_node(&place, why);
	_cleanup_fd_ int fd = mnt_place_open_mounted(&place, &look, why);
	if (fd < 0)
		return fd;
	return syncfs(fd) < 0 ? mnt_why(why, -errno, "syncing the file system failed") : 0;
}

int mnt_call_sync(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	struct mnt_result *result = mnt_begin(req_len, sizeof(struct mnt_on_req), resp, resp_len);
	if (result == NULL)
		return -EINVAL;
	return sync_on(req, result->why);
}

/* The ioctl on the mount at a request's path; *ret_res is the ioctl's own result. */
static int mounted_ioctl(unsigned long call, const void *req, size_t req_len, void *resp,
	size_t *resp_len, int *ret_res)
{
	struct mnt_result *result = mnt_begin(req_len, sizeof(struct mnt_on_req), resp, resp_len);
	if (result == NULL)
		return -EINVAL;
	struct mnt_look look;
	_cleanup_fd_ int fd = open_on(req, &look, result->why);
	if (fd < 0)
		return fd;
	*ret_res = ioctl(fd, call, 0) < 0 ? -errno : 0;
	return 0;
}

static int freeze_failed(int res, char *why)
{
	return mnt_why(why, res, "%s", res == -EBUSY ? "it is frozen already" : "freezing failed");
}

/* A volume must not stand because a driver was killed: the helper, which would die with it, stays
 * until it has thawed. */
int mnt_call_clean(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	pid_t driver = getppid();
	int res = 0;
	prctl(PR_SET_PDEATHSIG, 0);
	int r = mounted_ioctl(FIFREEZE, req, req_len, resp, resp_len, &res);
	if (r == 0 && res < 0)
		r = freeze_failed(res, ((struct mnt_result *)resp)->why);
	else if (r == 0)
		r = mnt_call_thaw(req, req_len, resp, resp_len);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != driver)
		_exit(EXIT_SUCCESS);
	return r;
}

int mnt_call_freeze(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	int res, r = mounted_ioctl(FIFREEZE, req, req_len, resp, resp_len, &res);
	if (r < 0 || res == 0)
		return r;
	return freeze_failed(res, ((struct mnt_result *)resp)->why);
}

/* A helper that is killed in the middle of a freeze dies only when the freeze is done, and until
 * then there is nothing to thaw. A freeze of our own tells that apart from a file system that is at
 * rest: it is refused, or waits, while the other is on its way. */
int mnt_call_thaw(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	for (unsigned i = 0;; i++) {
		int res, r = mounted_ioctl(FITHAW, req, req_len, resp, resp_len, &res);
		if (r < 0 || res == 0)
			return r;
		if (res == -EINVAL) /* not frozen, or not yet */
			r = mounted_ioctl(FIFREEZE, req, req_len, resp, resp_len, &res);
		if (r < 0)
			return r;
		if (res == -EBUSY && i < THAW_TRIES)
			clock_sleep_ms(THAW_PAUSE_MS);
		else if (res < 0)
			return mnt_why(((struct mnt_result *)resp)->why, res, "thawing failed");
	}
}

/* ---- trim ---- */

int mnt_call_trim(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	const struct mnt_trim_req *trim = req;
	struct mnt_result *result = mnt_begin(req_len, sizeof *trim, resp, resp_len);
	if (result == NULL)
		return -EINVAL;
	struct mnt_look look;
	_cleanup_fd_ int fd = open_on(&trim->on, &look, result->why);
	if (fd < 0)
		return fd;
	bool whole = type_of_mounted(fd) == FSIMG_BTRFS;
	struct fstrim_range range = {
		.start = whole ? 0 : trim->start_bytes,
		.len = whole ? UINT64_MAX : trim->len_bytes,
		.minlen = TRIM_LEAST_BYTES,
	};
	int r = ioctl(fd, FITRIM, &range) < 0 ? -errno : 0;
	/* There is nothing at that place: the file system ends before. */
	bool end = r == -EINVAL && trim->start_bytes > 0;
	result->next_bytes = whole || end ? UINT64_MAX : trim->start_bytes + trim->len_bytes;
	if (r == 0 || end)
		return 0;
	return mnt_why(result->why, r == -ENOTTY ? -EOPNOTSUPP : r,
		r == -EOPNOTSUPP || r == -ENOTTY ? "its device takes no discards"
						 : "trimming the file system failed");
}

/* ---- the device itself ---- */

int mnt_call_try_read(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	const struct mnt_try_req *try_req = req;
	struct mnt_result *result = mnt_begin(req_len, sizeof *try_req, resp, resp_len);
	_Alignas(TRY_BYTES) char block[TRY_BYTES];
	if (result == NULL || memchr(try_req->device, '\0', sizeof try_req->device) == NULL)
		return -EINVAL;
	_cleanup_fd_ int fd = open(try_req->device, O_RDONLY | O_DIRECT | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return mnt_why(result->why, -errno, "the device cannot be opened");
	ssize_t n = pread(fd, block, sizeof block, 0);
	return n < 0 ? mnt_why(result->why, -errno, "the device cannot be read") : 0;
}
