/* SPDX-License-Identifier: Apache-2.0 */
/*
 * /proc/PID/fd, process by process, until a link says the path. The links are read and not
 * followed: what another process has open may hang. One that ends meanwhile, or may not be looked
 * at, is passed over.
 */
#include "blockio/holder.h"
#include "base/fd.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static bool has_open(int proc, const char *pid, const char *path)
{
	char fds[32], link[PATH_MAX];
	snprintf(fds, sizeof(fds), "%.20s/fd", pid);
	_cleanup_fd_ int fd = openat(proc, fds, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	_cleanup_dir_ DIR *dir = NULL;
	if (fd < 0 || fd_open_dir(fd, &dir) < 0)
		return false;
	size_t len = strlen(path);
	struct dirent *entry;
	while ((entry = readdir(dir)) != NULL) {
		ssize_t n = readlinkat(fd, entry->d_name, link, sizeof(link));
		if (n == (ssize_t)len && memcmp(link, path, len) == 0)
			return true;
	}
	return false;
}

int holder_find(const char *path, struct holder *ret)
{
	_cleanup_dir_ DIR *proc = opendir("/proc");
	if (proc == NULL)
		return -errno;
	struct dirent *entry;
	while ((entry = readdir(proc)) != NULL) {
		const char *pid = entry->d_name;
		if (!isdigit((unsigned char)pid[0]) || atoi(pid) == getpid() ||
			!has_open(dirfd(proc), pid, path))
			continue;
		char file[32], name[32];
		snprintf(file, sizeof(file), "%.20s/comm", pid);
		ssize_t len = fd_read_file(dirfd(proc), file, name, sizeof(name));
		if (len <= 0)
			continue;
		name[strcspn(name, "\n")] = '\0';
		ret->pid = atoi(pid);
		snprintf(ret->name, sizeof(ret->name), "%.15s", name);
		return 0;
	}
	return -ENOENT;
}
