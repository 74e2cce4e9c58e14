/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening a pool's root, and looking whether it is still there. A directory pool must be what its
 * path shows: one that was unmounted, or mounted over, is another directory. A raw pool is not
 * found by a path once it is open. Its disks must answer, and their headers say that they are this
 * pool's, and the first one's that this node serves it. Opening a file (not only looking) also
 * finds a file system that was shut down.
 */
#include "pool/root.h"

#include "base/fd.h"
#include "disk/owner.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

/* ---- opening ---- */

static int open_raw(const char *path, const char *node, struct pool_root *ret, struct err *err)
{
	struct pool_root root = {.fd = -1};
	int r = disk_open(path, DISK_SERVE, node, &root.disk, err);
	if (r == 0)
		r = disk_records(root.disk, false, &root.fd, err);
	if (r == 0) {
		*ret = root;
		return 0;
	}
	if (root.disk != NULL)
		disk_unref(root.disk);
	return err->code == ERR_UNAVAILABLE || err->code == ERR_PRECONDITION ? -ENOENT : r;
}

int pool_root_open(const char *path, const char *node, struct pool_root *ret, struct err *err)
{
	if (disk_is_raw_pool(path))
		return open_raw(path, node, ret, err);
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	*ret = (struct pool_root){.fd = fd};
	return 0;
}

/* ---- looking ---- */

static void say_gone(struct pool_root_look *look, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
static void say_gone(struct pool_root_look *look, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(look->why, sizeof(look->why), fmt, ap);
	va_end(ap);
	look->gone = true;
}

/* What the path shows must be what is held. */
static int look_directory(const char *path, const int fds[POOL_FDS], struct pool_root_look *look)
{
	struct stat held, shown;
	_cleanup_fd_ int dir = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (dir < 0 && errno != ENOENT && errno != ENOTDIR)
		return -errno;
	_cleanup_fd_ int file = -1;
	if (dir >= 0) {
		file = openat(dir, POOL_FILE, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
		if (file < 0 && errno != ENOENT && errno != ELOOP)
			return -errno;
	}
	if (file >= 0 && fstat(file, &shown) < 0)
		return -errno;
	if (fstat(fds[POOL_FD_LOCK], &held) < 0)
		return -errno;
	if (file < 0 || held.st_dev != shown.st_dev || held.st_ino != shown.st_ino)
		say_gone(look, "has gone from %s: mount its file system there again", path);
	return 0;
}

static void look_member(
	const struct disk *disk, unsigned i, const char *node, struct pool_root_look *look)
{
	const struct disk_member *m = &disk->members[i];
	struct disk_header header;
	_Alignas(DISK_HEADER_BYTES) char block[DISK_HEADER_BYTES];
	ssize_t len = pread(m->fd, block, sizeof(block), 0);
	int r = len < 0 ? -errno : len < (ssize_t)sizeof(block) ? -EIO : 0;
	if (r < 0)
		say_gone(look,
			"does not reach its disk %s (%s): look for it in the kernel log; the pool "
			"is served again when it is back",
			m->path, strerrordesc_np(-r));
	else if (disk_header_parse(block, &header) < 0)
		return; /* the next load tells what is wrong */
	else if (strcmp(header.pool, disk->uuid) != 0 || strcmp(header.disk, m->uuid) != 0)
		say_gone(look, "has lost its disk %s: it is another pool's now", m->path);
	else if (i == 0 && header.owner[0] == '\0')
		say_gone(look,
			"is no node's any more: 'ringvol pool release' was run while this driver "
			"started");
	else if (i == 0 && !disk_owner_is(&header, node))
		say_gone(look, "is served by node %s%s now, which has taken over its disk %s",
			header.owner, strcmp(header.owner, node) == 0 ? " on another machine" : "",
			m->path);
}

static int look_disks(const struct disk *disk, const char *node, const int fds[POOL_FDS],
	struct pool_root_look *look)
{
	for (unsigned i = 0; i < disk->count && !look->gone; i++)
		look_member(disk, i, node, look);
	if (look->gone)
		return 0;
	_cleanup_fd_ int file = openat(
		fds[POOL_FD_ROOT], POOL_FILE, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	if (file < 0 && errno == EIO)
		say_gone(look,
			"has lost its records, the file system on its disk %s: look for errors of "
			"the disk in the kernel log",
			disk->members[0].path);
	return file < 0 && !look->gone ? -errno : 0;
}

int pool_root_look(const char *path, const struct disk *disk, const char *node,
	const int fds[POOL_FDS], struct pool_root_look *ret)
{
	struct pool_root_look look = {0};
	struct statvfs fs;
	int r = disk != NULL ? look_disks(disk, node, fds, &look)
			     : look_directory(path, fds, &look);
	if (r == 0 && !look.gone && fstatvfs(fds[POOL_FD_ROOT], &fs) < 0)
		r = -errno;
	if (r < 0)
		return r;
	look.read_only = !look.gone && (fs.f_flag & ST_RDONLY) != 0;
	*ret = look;
	return 0;
}
