/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Paths from outside, resolved so that nobody who may write below the kubelet's pod directories can
 * lead the driver elsewhere. What comes before a "plugins" or "pods" component is the trusted
 * prefix; openat2() takes it without links when it can, else a walk does that follows links, as
 * long as every directory and link on the way is root's and writable by root alone. A root that
 * the operator has named is a prefix, too. Below the prefix no link is followed, by openat2()
 * again.
 */
#include "blockio/mnt_priv.h"

#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>

enum { LINKS_MAX = 40 };

static int open_strict(int dirfd, const char *path, uint64_t flags)
{
	struct open_how how = {
		.flags = flags | O_CLOEXEC,
		.resolve = RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS,
	};
	long fd = syscall(SYS_openat2, dirfd, path, &how, sizeof how);
	return fd < 0 ? -errno : (int)fd;
}

/* ---- the trusted prefix ---- */

/* Root's, and nobody else can change it. In a sticky directory (/tmp) others can add names but not
 * replace root's, and the next name is looked at as well. */
static bool is_roots(const struct stat *st)
{
	if (st->st_uid != 0)
		return false;
	return S_ISLNK(st->st_mode) || !(st->st_mode & 022) || st->st_mode & S_ISVTX;
}

/* What is left to walk. */
struct walk {
	char path[2 * PATH_MAX];
	size_t at;
};

/* Cuts the next name off; false at the end, -ENAMETOOLONG in *ret_res for one no directory has. */
static bool walk_name(struct walk *w, char name[NAME_MAX + 1], int *ret_res)
{
	w->at += strspn(w->path + w->at, "/");
	size_t len = strcspn(w->path + w->at, "/");
	if (len > NAME_MAX)
		*ret_res = -ENAMETOOLONG;
	if (len == 0 || len > NAME_MAX)
		return false;
	memcpy(name, w->path + w->at, len);
	name[len] = '\0';
	w->at += len;
	return true;
}

/* Puts a link's target before what is left. */
static int walk_link(struct walk *w, int link_fd, bool *ret_absolute)
{
	char target[PATH_MAX];
	ssize_t n = readlinkat(link_fd, "", target, sizeof target);
	if (n < 0)
		return -errno;
	size_t left = strlen(w->path + w->at);
	if ((size_t)n + left + 2 > sizeof w->path || n == PATH_MAX)
		return -ENAMETOOLONG;
	memmove(w->path + n + 1, w->path + w->at, left + 1);
	memcpy(w->path, target, (size_t)n);
	w->path[n] = '/';
	w->at = 0;
	*ret_absolute = target[0] == '/';
	return 0;
}

/* Follows links as long as everything is root's. fd or -errno. */
static int open_trusted(const char *prefix)
{
	struct walk w = {.at = 0};
	snprintf(w.path, sizeof w.path, "%s", prefix);
	int dir = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
	int res = dir < 0 ? -errno : 0, links = 0;
	char name[NAME_MAX + 1];
	while (res == 0 && walk_name(&w, name, &res)) {
		struct stat st;
		_cleanup_fd_ int next = openat(dir, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
		if (next < 0 || fstat(next, &st) < 0) {
			res = -errno;
		} else if (!is_roots(&st) || (S_ISLNK(st.st_mode) && ++links > LINKS_MAX)) {
			res = -ELOOP;
		} else if (S_ISLNK(st.st_mode)) {
			bool absolute = false;
			res = walk_link(&w, next, &absolute);
			if (res == 0 && absolute) {
				close(dir);
				dir = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
				res = dir < 0 ? -errno : 0;
			}
		} else if (!S_ISDIR(st.st_mode)) {
			res = -ENOTDIR;
		} else {
			close(dir);
			dir = next;
			next = -1;
		}
	}
	if (res < 0)
		fd_close(&dir);
	return res < 0 ? res : dir;
}

/* ---- the path ---- */

/* Checks the form and takes the last name off: path becomes its directory. */
static int split_path(char *path, char name[NAME_MAX + 1])
{
	size_t len = strlen(path);
	while (len > 1 && path[len - 1] == '/')
		path[--len] = '\0';
	if (path[0] != '/' || len < 2)
		return -EINVAL;
	for (const char *p = path; *p != '\0'; p += strcspn(p, "/")) {
		p += strspn(p, "/");
		size_t n = strcspn(p, "/");
		if ((n == 1 && p[0] == '.') || (n == 2 && p[0] == '.' && p[1] == '.'))
			return -EINVAL;
	}
	char *slash = strrchr(path, '/');
	if (strlen(slash + 1) > NAME_MAX)
		return -ENAMETOOLONG;
	strcpy(name, slash + 1);
	slash[slash == path ? 1 : 0] = '\0';
	return 0;
}

/* Length of the root that the operator has named, else of the part before the first "plugins" or
 * "pods" component, 0 if there is none. */
static size_t prefix_length(const char *path, bool *ret_named)
{
	size_t root = mnt_roots_prefix(path);
	*ret_named = root > 0;
	if (root > 0)
		return root;
	for (const char *p = path; *p != '\0'; p += strcspn(p, "/")) {
		const char *slash = p;
		p += strspn(p, "/");
		size_t n = strcspn(p, "/");
		if ((n == 7 && memcmp(p, "plugins", 7) == 0) ||
			(n == 4 && memcmp(p, "pods", 4) == 0))
			return (size_t)(slash - path);
	}
	return 0;
}

/* Opens the prefix, path[0..len), or takes what was opened of the same one before. fd or -errno. */
static int open_prefix(char *path, size_t len, bool named, struct mnt_prefix *prefix)
{
	if (prefix->fd >= 0 && prefix->len == len && memcmp(prefix->path, path, len) == 0)
		return prefix->fd;
	mnt_prefix_close(prefix);
	if (len == 0) {
		prefix->fd = open("/", O_PATH | O_DIRECTORY | O_CLOEXEC);
		if (prefix->fd < 0)
			return -errno;
	} else {
		char next = path[len];
		path[len] = '\0';
		prefix->fd = open_strict(AT_FDCWD, path, O_PATH | O_DIRECTORY);
		if (prefix->fd == -ELOOP && named) {
			prefix->fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
			prefix->fd = prefix->fd < 0 ? -errno : prefix->fd;
		} else if (prefix->fd == -ELOOP) {
			prefix->fd = open_trusted(path);
		}
		path[len] = next;
	}
	memcpy(prefix->path, path, len);
	prefix->len = len;
	return prefix->fd;
}

static int open_parent(char *path, struct mnt_prefix *prefix)
{
	bool named;
	size_t prefix_len = prefix_length(path, &named);
	const char *below = path + prefix_len + strspn(path + prefix_len, "/");
	int fd = open_prefix(path, prefix_len, named, prefix);
	if (fd < 0)
		return fd;
	return open_strict(fd, below[0] != '\0' ? below : ".", O_PATH | O_DIRECTORY);
}

int mnt_place_find_below(
	struct mnt_prefix *prefix, const char *path, size_t size, struct mnt_place *ret, char *why)
{
	char copy[MNT_PATH_BYTES];
	struct mnt_place place = MNT_PLACE_NONE;
	size_t len = strnlen(path, size);
	if (len == size || len >= sizeof copy)
		return mnt_why(why, -ENAMETOOLONG, "a path is too long");
	memcpy(copy, path, len + 1);
	int r = split_path(copy, place.name);
	if (r < 0)
		return mnt_why(why, r, "a path has to be absolute, without . and ..");
	place.parent_fd = open_parent(copy, prefix);
	switch (place.parent_fd) {
	case -ENOENT:
		return mnt_why(why, -ENOENT, "the parent directory is missing");
	case -ELOOP:
		return mnt_why(why, -ELOOP, "the path has a symbolic link in it");
	case -ENOTDIR:
		return mnt_why(
			why, -ENOTDIR, "the path leads through something that is no directory");
	}
	if (place.parent_fd < 0)
		return place.parent_fd;
	*ret = place;
	return 0;
}

int mnt_place_find(const char *path, size_t size, struct mnt_place *ret, char *why)
{
	_cleanup_prefix_ struct mnt_prefix prefix = {.fd = -1};
	return mnt_place_find_below(&prefix, path, size, ret, why);
}

int mnt_place_open(const struct mnt_place *place, int flags)
{
	int fd = openat(place->parent_fd, place->name, flags | O_NOFOLLOW | O_CLOEXEC);
	return fd < 0 ? -errno : fd;
}
