/* SPDX-License-Identifier: Apache-2.0 */
#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>

ssize_t fd_read_file(int dirfd, const char *path, char *buf, size_t cap)
{
	_cleanup_fd_ int fd = openat(dirfd, path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	size_t len = 0;
	while (len < cap) {
		ssize_t n = read(fd, buf + len, cap - len);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (n == 0) {
			buf[len] = '\0';
			return (ssize_t)len;
		}
		len += (size_t)n;
	}
	return -E2BIG;
}

int fd_write_file(int dirfd, const char *path, const char *buf)
{
	_cleanup_fd_ int fd = openat(dirfd, path, O_WRONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	ssize_t n = write(fd, buf, strlen(buf));
	if (n < 0)
		return -errno;
	return (size_t)n == strlen(buf) ? 0 : -EIO;
}

int fd_make_dir(const char *path, mode_t mode)
{
	if (mkdir(path, mode) < 0)
		return errno == EEXIST ? 0 : -errno;
	_cleanup_fd_ int dir = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
	_cleanup_fd_ int above =
		dir < 0 ? -1 : openat(dir, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return above < 0 || fsync(above) < 0 ? -errno : 0;
}

int fd_link(int fd, int dirfd, const char *name)
{
	char path[40];
	if (linkat(fd, "", dirfd, name, AT_EMPTY_PATH) == 0)
		return 0;
	if (errno != ENOENT)
		return -errno;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	return linkat(AT_FDCWD, path, dirfd, name, AT_SYMLINK_FOLLOW) < 0 ? -errno : 0;
}

int fd_stat_cached(int dirfd, const char *name, struct stat *ret)
{
	const struct open_how how = {
		.flags = O_PATH | O_NOFOLLOW | O_CLOEXEC,
		.resolve = RESOLVE_CACHED | RESOLVE_BENEATH,
	};
	_cleanup_fd_ int fd = (int)syscall(SYS_openat2, dirfd, name, &how, sizeof(how));
	return fd < 0 || fstat(fd, ret) < 0 ? -errno : 0;
}

int fd_open_dir(int dirfd, DIR **ret_dir)
{
	_cleanup_fd_ int own = openat(dirfd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (own < 0)
		return -errno;
	DIR *dir = fdopendir(own);
	if (dir == NULL)
		return -errno;
	own = -1; /* closedir() closes it */
	*ret_dir = dir;
	return 0;
}

const struct dirent *fd_next_entry(DIR *dir, int *ret_res)
{
	const struct dirent *entry;
	do {
		errno = 0;
		entry = readdir(dir);
		*ret_res = -errno;
	} while (entry != NULL &&
		 (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0));
	return entry;
}

int fd_each_name(int dirfd, int (*each)(void *arg, const char *name), void *arg)
{
	_cleanup_dir_ DIR *dir = NULL;
	const struct dirent *entry;
	int r = fd_open_dir(dirfd, &dir);
	while (dir != NULL && r == 0 && (entry = fd_next_entry(dir, &r)) != NULL)
		r = each(arg, entry->d_name);
	return r;
}
