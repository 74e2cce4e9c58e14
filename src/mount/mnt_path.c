/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What every mount call begins with: its request and response, where its path leads, and whether a
 * target may be there.
 *
 * Paths come from outside. They are resolved so that nobody who may write below the kubelet's pod
 * directories can lead the driver elsewhere. What comes before a "plugins" or "pods" component is
 * the trusted prefix. openat2() takes it without links when it can. Else a walk follows links, as
 * long as every directory and link on the way is root's and writable by root alone. A root that the
 * operator has named is a prefix, too. Below the prefix no link is followed, by openat2() again.
 *
 * Where a target may be is decided on directories and not on text: from the directory that was
 * opened for the target upwards, each one is compared by device and inode with those that are
 * allowed (--target-root) and with those where no target may be. So neither links nor bind mounts
 * lead around it. Helper processes are started by exec and know what the driver was told from their
 * environment. How it can fail: a root that is not there allows nothing, a forbidden directory that
 * is not there forbids nothing.
 */
#include "mount/mnt_path.h"

#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#define ROOTS_ENV "RINGVOL_TARGET_ROOTS"
#define KEPT_ENV  "RINGVOL_NO_TARGETS"

enum { LINKS_MAX = 40, PLACES_MAX = 64, DEPTH_MAX = PATH_MAX / 2 };

/* ---- requests and responses ---- */

struct mnt_result *mnt_begin(size_t req_len, size_t want_len, void *resp, size_t *resp_len)
{
	struct mnt_result *result = resp;
	if (req_len != want_len || *resp_len < sizeof *result)
		return NULL;
	*resp_len = sizeof *result;
	*result = (struct mnt_result){0};
	return result;
}

int mnt_why(char *why, int res, const char *fmt, ...)
{
	if (why[0] != '\0')
		return res;
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(why, MNT_WHY_BYTES, fmt, ap);
	va_end(ap);
	return res;
}

/* ---- the roots that the operator has named ---- */

static const char *roots_list(void)
{
	const char *list = getenv(ROOTS_ENV);
	return list != NULL ? list : "";
}

static bool roots_given(void)
{
	return roots_list()[0] != '\0';
}

/* How much of a path names the root that it is below; 0: none. */
static size_t roots_prefix(const char *path)
{
	size_t best = 0;
	for (const char *list = roots_list(); *list != '\0';) {
		size_t len = strcspn(list, ":"), used = len;
		while (used > 1 && list[used - 1] == '/')
			used--;
		if (used > best && strncmp(path, list, used) == 0 &&
			(path[used] == '/' || path[used] == '\0'))
			best = used;
		list += len + (list[len] != '\0');
	}
	return best;
}

/* ---- opening ---- */

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
	size_t root = roots_prefix(path);
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

/* ---- where targets may be ---- */

/* The directory's file system and inode. */
struct spot {
	uint32_t dev_major, dev_minor;
	uint64_t ino;
};

struct places {
	struct spot at[PLACES_MAX];
	char name[PLACES_MAX][64]; /* for people; may be cut */
	unsigned count;
};

/* What is in memory is enough: nobody waits for a disk that is sick. */
static int look_at(int dirfd, const char *path, int flags, struct spot *ret)
{
	struct statx stx;
	if (statx(dirfd, path, flags | AT_STATX_DONT_SYNC | AT_NO_AUTOMOUNT, STATX_INO, &stx) < 0)
		return -errno;
	*ret = (struct spot){stx.stx_dev_major, stx.stx_dev_minor, stx.stx_ino};
	return 0;
}

static bool same(const struct spot *a, const struct spot *b)
{
	return a->ino == b->ino && a->dev_major == b->dev_major && a->dev_minor == b->dev_minor;
}

static void add_place(struct places *places, const char *path)
{
	struct spot spot;
	if (path[0] == '\0' || places->count == PLACES_MAX || look_at(AT_FDCWD, path, 0, &spot) < 0)
		return;
	places->at[places->count] = spot;
	snprintf(places->name[places->count], sizeof places->name[0], "%s", path);
	places->count++;
}

static void add_list(struct places *places, const char *list, char separator)
{
	char path[PATH_MAX];
	while (list != NULL && *list != '\0') {
		size_t len = strchrnul(list, separator) - list;
		if (len < sizeof path) {
			memcpy(path, list, len);
			path[len] = '\0';
			add_place(places, path);
		}
		list += len + (list[len] != '\0');
	}
}

/* The name of the place that is this spot; NULL: none is. */
static const char *named(const struct places *places, const struct spot *spot)
{
	for (unsigned i = 0; i < places->count; i++)
		if (same(&places->at[i], spot))
			return places->name[i];
	return NULL;
}

/* Upwards from the place's directory. 0: below a root; 1: below none, and nowhere forbidden;
 * -EINVAL: below what *ret_kept names. */
static int climb(const struct mnt_place *place, const struct places *roots,
	const struct places *kept, const char **ret_kept)
{
	struct spot spot = {0}, above = {0};
	_cleanup_fd_ int fd = openat(place->parent_fd, ".", O_PATH | O_DIRECTORY | O_CLOEXEC);
	int r = fd < 0 ? -errno : look_at(fd, "", AT_EMPTY_PATH, &spot);
	for (unsigned depth = 0; r == 0 && depth < DEPTH_MAX; depth++) {
		*ret_kept = named(kept, &spot);
		if (*ret_kept != NULL)
			return -EINVAL;
		if (named(roots, &spot) != NULL)
			return 0;
		int up = openat(fd, "..", O_PATH | O_DIRECTORY | O_CLOEXEC);
		if (up < 0)
			return -errno;
		close(fd);
		fd = up;
		r = look_at(fd, "", AT_EMPTY_PATH, &above);
		if (r == 0 && same(&spot, &above))
			return 1; /* the root directory is above itself */
		spot = above;
	}
	return r < 0 ? r : -ELOOP;
}

/* 0, below a root; 1, below none; -EINVAL with the place that forbids it; another -errno. */
static int judge(const struct mnt_place *place, char ret_kept[64])
{
	static const char *const fixed[] = {"/dev", "/proc", "/sys", "/run/ringvol"};
	struct places roots = {.count = 0}, kept = {.count = 0};
	struct spot own = {0};
	const char *below = NULL;
	for (unsigned i = 0; i < sizeof fixed / sizeof *fixed; i++)
		add_place(&kept, fixed[i]);
	add_list(&kept, getenv(KEPT_ENV), '\n');
	add_list(&roots, roots_list(), ':');
	if (look_at(place->parent_fd, place->name, AT_SYMLINK_NOFOLLOW, &own) == 0)
		below = named(&kept, &own);
	int r = below != NULL ? -EINVAL : climb(place, &roots, &kept, &below);
	snprintf(ret_kept, 64, "%s", below != NULL ? below : "");
	return r;
}

int mnt_target_check(const struct mnt_place *place, char *why)
{
	char kept[64];
	int r = judge(place, kept);
	if (kept[0] != '\0')
		return mnt_why(
			why, r, "it lies in %s, where no volume is mounted or published", kept);
	if (r == 1 && roots_given())
		return mnt_why(why, -EINVAL,
			"it does not lie below a directory that --target-root names (%.160s)",
			roots_list());
	return r < 0 ? mnt_why(why, r, "cannot tell where it lies") : 0;
}

bool mnt_target_may_go(const struct mnt_place *place, bool was_mount, bool trusted)
{
	char kept[64];
	int r = judge(place, kept);
	return r == 0 || (r == 1 && (was_mount || (trusted && !roots_given())));
}

static int set_list(const char *name, const char *const *paths, unsigned count, char separator)
{
	size_t len = 1;
	for (unsigned i = 0; i < count; i++)
		len += strlen(paths[i]) + 1;
	_cleanup_free_ char *list = calloc(1, len);
	if (list == NULL)
		return -ENOMEM;
	for (unsigned i = 0, at = 0; i < count; i++)
		at += (unsigned)sprintf(list + at, "%.*s%s", i == 0 ? 0 : 1, &separator, paths[i]);
	return setenv(name, list, 1) < 0 ? -errno : 0;
}

int mnt_roots_set(
	const char *const *roots, unsigned root_count, const char *const *kept, unsigned kept_count)
{
	int r = set_list(ROOTS_ENV, roots, root_count, ':');
	return r < 0 ? r : set_list(KEPT_ENV, kept, kept_count, '\n');
}
