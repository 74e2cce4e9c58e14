/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Making a directory a pool: its directories first, the file ringvol.pool last, linked when it is
 * written and durable. An attempt that was cut short left only empty directories of ours, and the
 * next one goes on from there. Blocking: from the command line, or a work job.
 */
#include "pool/private.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define POOL_HEAD "ringvol-pool 1\nuuid="

const char *const pool_dir_names[POOL_FDS] = {
	[POOL_FD_VOLUMES] = "volumes",
	[POOL_FD_SNAPSHOTS] = "snapshots",
	[POOL_FD_TEMPLATES] = "templates",
	[POOL_FD_TRASH] = "trash",
};

/* 8-4-4-4-12 lower-case hex digits. */
static bool uuid_valid(const char *uuid)
{
	for (unsigned i = 0; i < POOL_UUID_BYTES - 1; i++) {
		bool dash = i == 8 || i == 13 || i == 18 || i == 23;
		if (dash ? uuid[i] != '-'
			 : !((uuid[i] >= '0' && uuid[i] <= '9') ||
				   (uuid[i] >= 'a' && uuid[i] <= 'f')))
			return false;
	}
	return true;
}

int pool_file_read(int fd, char ret_uuid[POOL_UUID_BYTES])
{
	char text[128];
	size_t head = strlen(POOL_HEAD), uuid = POOL_UUID_BYTES - 1;
	ssize_t len = pread(fd, text, sizeof(text), 0);
	if (len < 0)
		return -errno;
	if ((size_t)len != head + uuid + 1 || memcmp(text, POOL_HEAD, head) != 0 ||
		text[head + uuid] != '\n' || !uuid_valid(text + head))
		return -EBADMSG;
	memcpy(ret_uuid, text + head, uuid);
	ret_uuid[uuid] = '\0';
	return 0;
}

static void uuid_draw(char uuid[POOL_UUID_BYTES])
{
	char hex[33];
	pool_random_hex(hex, 32);
	hex[12] = '4'; /* version 4, variant 1 */
	hex[16] = "89ab"[hex[16] & 3];
	snprintf(uuid, POOL_UUID_BYTES, "%.8s-%.4s-%.4s-%.4s-%.12s", hex, hex + 8, hex + 12,
		hex + 16, hex + 20);
}

static bool is_our_dir(const char *name)
{
	for (unsigned i = 0; i < POOL_FDS; i++)
		if (pool_dir_names[i] != NULL && strcmp(pool_dir_names[i], name) == 0)
			return true;
	return false;
}

/* 0, -ENOTEMPTY with the name of what is in the way, another -errno. */
static int check_empty(int dirfd, bool top, char ret_name[256])
{
	_cleanup_dir_ DIR *dir = NULL;
	int opened = fd_open_dir(dirfd, &dir);
	if (opened < 0)
		return opened;
	for (;;) {
		errno = 0;
		struct dirent *entry = readdir(dir);
		if (entry == NULL)
			return -errno;
		const char *name = entry->d_name;
		if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0 ||
			(top && strcmp(name, "lost+found") == 0))
			continue;
		int r = -ENOTEMPTY;
		if (top && is_our_dir(name)) {
			_cleanup_fd_ int sub = openat(
				dirfd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
			r = sub < 0 ? -ENOTEMPTY : check_empty(sub, false, ret_name);
		}
		if (r == -ENOTEMPTY)
			snprintf(ret_name, 256, "%s", name);
		if (r < 0)
			return r;
	}
}

static int make_dirs(int root)
{
	for (unsigned i = 0; i < POOL_FDS; i++) {
		if (pool_dir_names[i] == NULL)
			continue;
		if (mkdirat(root, pool_dir_names[i], 0700) < 0 && errno != EEXIST)
			return -errno;
		_cleanup_fd_ int dir = openat(
			root, pool_dir_names[i], O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
		if (dir < 0 || fsync(dir) < 0)
			return -errno;
	}
	return fsync(root) < 0 ? -errno : 0;
}

static int make_file(int root)
{
	char uuid[POOL_UUID_BYTES], text[128];
	uuid_draw(uuid);
	int len = snprintf(text, sizeof(text), "%s%s\n", POOL_HEAD, uuid);
	_cleanup_fd_ int fd = openat(root, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	if (fd < 0)
		return -errno;
	ssize_t written = write(fd, text, (size_t)len);
	if (written < 0)
		return -errno;
	if (written != len)
		return -ENOSPC;
	if (fsync(fd) < 0)
		return -errno;
	int r = fd_link(fd, root, POOL_FILE);
	if (r < 0)
		return r;
	/* Again: the log of btrfs takes no note of a file without a name, and with the directory
	 * only of the name. */
	return fsync(fd) < 0 || fsync(root) < 0 ? -errno : 0;
}

int pool_init_dir(
	const char *path, struct fs_features *ret_features, bool *ret_existed, struct err *err)
{
	if (mkdir(path, 0700) < 0 && errno != EEXIST)
		return err_sys(err, -errno, "making the directory %s", path);
	_cleanup_fd_ int root = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (root < 0)
		return err_sys(err, -errno, "opening %s", path);

	struct fs_features features;
	int r = fs_features_probe(root, &features);
	if (r < 0)
		return err_sys(err, r, "trying what the file system of %s can do", path);
	_cleanup_fd_ int file = openat(root, POOL_FILE, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	if (file >= 0) {
		char uuid[POOL_UUID_BYTES];
		r = pool_file_read(file, uuid);
		if (r < 0)
			return err_set(err, ERR_PRECONDITION,
				"%s has a " POOL_FILE " file that is damaged or of a later version",
				path);
		*ret_features = features;
		*ret_existed = true;
		return 0;
	}
	if (errno != ENOENT)
		return err_sys(err, -errno, "opening %s/" POOL_FILE, path);
	if (!features.tmpfile || !features.xattr)
		return err_set(err, ERR_PRECONDITION,
			"the file system of %s has no %s, a pool needs it: use XFS, ext4 or btrfs",
			path, features.tmpfile ? "trusted.* attributes" : "O_TMPFILE");
	char name[256];
	r = check_empty(root, true, name);
	if (r == -ENOTEMPTY)
		return err_set(err, ERR_PRECONDITION,
			"%s is not empty (there is %s): a pool is made in an empty directory", path,
			name);
	if (r == 0)
		r = make_dirs(root);
	if (r == 0)
		r = make_file(root);
	if (r < 0 && r != -EEXIST) /* somebody else was as quick: it is a pool */
		return err_sys(err, r, "making %s a pool", path);
	*ret_features = features;
	*ret_existed = r == -EEXIST;
	return 0;
}
