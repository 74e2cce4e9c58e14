/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The records of a raw pool: an XFS on a part of the first disk, reached by a device-mapper device
 * and a mount that is at no place.
 *
 * Happy path: make the device RINGVOL-records-<pool>, mount it, open the root directory, and tell
 * the kernel to take the device away with its last user. So a process that is killed leaves neither
 * mount nor device, and one device at a time leads to the records.
 *
 * Several processes may do so at once. They share the device and the kernel's one view of the file
 * system; a device that is just being taken away, and one that somebody has mounted the other way
 * (read-only), are waited for.
 */
#include "base/clock.h"
#include "base/fd.h"
#include "disk/records_device.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

enum { ATTEMPTS = 60, ATTEMPT_MS = 50, WHY_BYTES = 256 };

struct records {
	struct records_device device;
	char why[WHY_BYTES]; /* what the kernel says of a mount that failed */
};

/* ---- the mount ---- */

static void read_log(int fs_fd, char *why)
{
	char line[WHY_BYTES];
	ssize_t n;
	while ((n = read(fs_fd, line, sizeof(line) - 1)) > 0) {
		line[n] = '\0';
		line[strcspn(line, "\n")] = '\0';
		if (n > 2 && line[0] == 'e' && line[1] == ' ' && why[0] == '\0')
			memcpy(why, line + 2, strlen(line + 2) + 1);
	}
}

static int set_flag(int fs_fd, const char *name)
{
	return fsconfig(fs_fd, FSCONFIG_SET_FLAG, name, NULL, 0) < 0 ? -errno : 0;
}

/* As a file system of its own, or the view of it that is there already: without `ro` to share that
 * of a driver. */
static int configure(struct records *r, int fs_fd, bool ro)
{
	int res =
		fsconfig(fs_fd, FSCONFIG_SET_STRING, "source", r->device.path, 0) < 0 ? -errno : 0;
	if (res == 0)
		res = set_flag(fs_fd, "nouuid");
	if (res == 0 && ro)
		res = set_flag(fs_fd, "ro");
	if (res == 0 && ro) /* a dirty log is the next driver's to replay */
		res = set_flag(fs_fd, "norecovery");
	if (res == 0 && fsconfig(fs_fd, FSCONFIG_CMD_CREATE, NULL, NULL, 0) < 0)
		res = -errno;
	return res;
}

/* A descriptor of the root, or -errno. */
static int mount_once(struct records *r, bool ro)
{
	unsigned attrs = MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC;
	_cleanup_fd_ int fs_fd = fsopen("xfs", FSOPEN_CLOEXEC);
	if (fs_fd < 0)
		return errno == ENODEV ? -EPFNOSUPPORT : -errno;
	int res = configure(r, fs_fd, ro);
	if (res < 0) {
		r->why[0] = '\0';
		read_log(fs_fd, r->why);
		return res;
	}
	_cleanup_fd_ int mount_fd = fsmount(
		fs_fd, FSMOUNT_CLOEXEC, attrs | (r->device.read_only ? MOUNT_ATTR_RDONLY : 0));
	if (mount_fd < 0)
		return -errno;
	int root = openat(mount_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return root < 0 ? -errno : root;
}

/* The kernel has one view of a file system, and it is read-only or not: else EBUSY. */
static int mount_device(struct records *r)
{
	if (!r->device.read_only)
		return mount_once(r, false);
	int root = mount_once(r, true);
	if (root != -EBUSY)
		return root;
	/* A driver has it: that view is shared. But if the driver is gone by now, the log would be
	 * replayed. */
	return records_device_used(&r->device) ? mount_once(r, false) : -EAGAIN;
}

/* Another process may have let the device go before it was mounted, and its number may have been
 * a volume's by then. What is mounted keeps its device. */
static int check_mounted(struct records *r, int root)
{
	struct stat st;
	if (fstat(root, &st) == 0 && records_device_used(&r->device) &&
		st.st_dev == makedev(r->device.device.major, r->device.device.minor))
		return root;
	close(root);
	return -EAGAIN;
}

static bool passes(int res)
{
	return res == -EAGAIN || res == -EBUSY || res == -ENXIO || res == -ENOENT || res == -ENODEV;
}

static int fail_mount(const struct records *r, int res, struct err *err)
{
	const char *disk = r->device.disk_path;
	if (res == -EBUSY || res == -EAGAIN)
		return err_set(err, ERR_UNAVAILABLE,
			"the records of the pool on %s are being read by another process (fuser -v %s): "
			"let it end, then try again",
			disk, r->device.path);
	if (res == -EPFNOSUPPORT)
		return err_set(err, ERR_PRECONDITION,
			"this kernel has no XFS, which the records of the pool on %s are on: load the "
			"module xfs",
			disk);
	if (res == -EUCLEAN || res == -EINVAL)
		return err_set(err, ERR_DATA_LOSS,
			"the records of the pool on %s are damaged (%s): look into the kernel log, and "
			"see docs/raw-pools.md, \"Damaged records\"",
			disk, r->why[0] != '\0' ? r->why : strerrordesc_np(-res));
	return err_set(err, ERR_UNAVAILABLE, "mounting the records of the pool on %s: %s", disk,
		r->why[0] != '\0' ? r->why : strerrordesc_np(-res));
}

static int open_root(struct records *r, int *ret_root_fd, struct err *err)
{
	int res = -EAGAIN;
	for (unsigned i = 0; i < ATTEMPTS && passes(res); i++) {
		if (i > 0)
			clock_sleep_ms(ATTEMPT_MS);
		res = records_device_make(&r->device, err);
		if (err->code != ERR_OK)
			return res;
		if (res == 0)
			res = mount_device(r);
		if (res >= 0)
			res = check_mounted(r, res);
	}
	if (res < 0)
		return fail_mount(r, res, err);
	*ret_root_fd = res;
	return 0;
}

int disk_records(struct disk *disk, bool read_only, int *ret_root_fd, struct err *err)
{
	struct records r = {0};
	struct stat st;
	int res = records_device_open(disk, read_only, &r.device, err);
	if (res < 0)
		return res;
	res = open_root(&r, ret_root_fd, err);
	records_device_close(&r.device);
	if (res == 0 && fstat(*ret_root_fd, &st) == 0)
		disk->records_dev = st.st_dev;
	return res;
}
