/* SPDX-License-Identifier: Apache-2.0 */
/* What of btrfs's exclusive operations moves data: sysfs tells which one is under way. */
#include "blockio/fs_moves.h"

#include "base/fd.h"

#include <fcntl.h>
#include <linux/btrfs.h>
#include <linux/magic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/vfs.h>

bool fs_moves_while(const char *operation)
{
	static const char *const moving[] = {"balance", "resize", "device remove"};
	for (unsigned i = 0; i < sizeof(moving) / sizeof(moving[0]); i++)
		if (strcmp(operation, moving[i]) == 0)
			return true;
	return false;
}

static bool find_dir(int fd, const char *sysfs, char *path, size_t cap)
{
	struct statfs fs;
	struct btrfs_ioctl_fs_info_args info = {0};
	if (fstatfs(fd, &fs) < 0 || (uint64_t)fs.f_type != BTRFS_SUPER_MAGIC ||
		ioctl(fd, BTRFS_IOC_FS_INFO, &info) < 0)
		return false;
	const uint8_t *u = info.fsid;
	int n = snprintf(path, cap,
		"%s/%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x/"
		"exclusive_operation",
		sysfs, u[0], u[1], u[2], u[3], u[4], u[5], u[6], u[7], u[8], u[9], u[10], u[11],
		u[12], u[13], u[14], u[15]);
	return n > 0 && (size_t)n < cap;
}

bool fs_moves(int fd, const char *sysfs, char ret_what[FS_MOVES_WHAT_BYTES])
{
	char path[256], operation[FS_MOVES_WHAT_BYTES];
	if (!find_dir(fd, sysfs, path, sizeof(path)) ||
		fd_read_file(AT_FDCWD, path, operation, sizeof(operation)) < 0)
		return false;
	operation[strcspn(operation, "\n")] = '\0';
	strcpy(ret_what, operation);
	return fs_moves_while(operation);
}
