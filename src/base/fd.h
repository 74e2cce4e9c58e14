/* SPDX-License-Identifier: Apache-2.0 */
/* Cleanup attributes and small whole-file helpers for synchronous code (work jobs, start-up). */
#ifndef RINGVOL_BASE_FD_H
#define RINGVOL_BASE_FD_H

#include <dirent.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

/* Closes *fd if it is open and sets it to -1. */
static inline void fd_close(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

static inline void free_ptr(void *p)
{
	free(*(void **)p);
}

static inline void close_dir(DIR **d)
{
	if (*d != NULL)
		closedir(*d);
}

#define _cleanup_fd_   __attribute__((cleanup(fd_close)))
#define _cleanup_free_ __attribute__((cleanup(free_ptr)))
#define _cleanup_dir_  __attribute__((cleanup(close_dir)))

/* Reads at most cap - 1 bytes of the file `path` under dirfd and ends them with NUL.
 * Returns the length or -errno (-E2BIG if there is more). For /proc and /sys. */
ssize_t fd_read_file(int dirfd, const char *path, char *buf, size_t cap);
/* Writes all of buf to an existing file; for /sys. 0 or -errno. */
int fd_write_file(int dirfd, const char *path, const char *buf);

/* Makes a directory, durably. 0, also if the name is there already (as whatever), or -errno. */
int fd_make_dir(const char *path, mode_t mode);

/* Gives an unnamed file (O_TMPFILE) its name. 0, -EEXIST or another -errno. Works without
 * CAP_DAC_READ_SEARCH, which linkat() by descriptor needs before Linux 6.10, where /proc is. */
int fd_link(int fd, int dirfd, const char *name);

/* What the file `name` in a directory is, if the kernel can tell at once: never waits for a disk or
 * for anybody. 0; -EAGAIN (a lookup would be needed) or another -errno: ask where waiting is fine.
 */
int fd_stat_cached(int dirfd, const char *name, struct stat *ret);

/* Opens a directory again for reading its names, from the start, with an offset of its own.
 * 0 or -errno. */
int fd_open_dir(int dirfd, DIR **ret_dir);
/* The next entry that is neither "." nor "..". NULL: *ret_res is 0 at the end, else -errno. */
const struct dirent *fd_next_entry(DIR *dir, int *ret_res);
/* Each name in a directory but . and .., in no order, until each() answers other than 0. Its
 * answer, or -errno. */
int fd_each_name(int dirfd, int (*each)(void *arg, const char *name), void *arg);

#endif
