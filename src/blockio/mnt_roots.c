/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where targets may lie. Decided on directories and not on text: from the directory that was opened
 * for the target upwards, each one is compared by device and inode with those that are allowed
 * (--target-root) and with those where no target may be, so that neither links nor bind mounts lead
 * around it.
 *
 * Helper processes are started by exec and know what the driver was told from their environment.
 * How it can fail: a root that is not there allows nothing, a forbidden directory that is not there
 * forbids nothing.
 */
#include "blockio/mnt_priv.h"

#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROOTS_ENV "RINGVOL_TARGET_ROOTS"
#define KEPT_ENV  "RINGVOL_NO_TARGETS"

enum { PLACES_MAX = 64, DEPTH_MAX = PATH_MAX / 2 };

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

/* What is in memory is enough: a disk that is sick holds nobody up. */
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

static const char *roots_list(void)
{
	const char *list = getenv(ROOTS_ENV);
	return list != NULL ? list : "";
}

bool mnt_roots_given(void)
{
	return roots_list()[0] != '\0';
}

size_t mnt_roots_prefix(const char *path)
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

int mnt_roots_check(const struct mnt_place *place, char *why)
{
	char kept[64];
	int r = judge(place, kept);
	if (kept[0] != '\0')
		return mnt_why(
			why, r, "it lies in %s, where no volume is mounted or published", kept);
	if (r == 1 && mnt_roots_given())
		return mnt_why(why, -EINVAL,
			"it does not lie below a directory that --target-root names (%.160s)",
			roots_list());
	return r < 0 ? mnt_why(why, r, "cannot tell where it lies") : 0;
}

bool mnt_roots_let_remove(const struct mnt_place *place, bool was_mount)
{
	char kept[64];
	int r = judge(place, kept);
	return r == 0 || (r == 1 && was_mount);
}

/* ---- in the driver ---- */

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
