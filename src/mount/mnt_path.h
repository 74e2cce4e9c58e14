/* SPDX-License-Identifier: Apache-2.0 */
/* What every mount call begins with. All of it runs in a helper process, and may block. */
#ifndef RINGVOL_MOUNT_MNT_PATH_H
#define RINGVOL_MOUNT_MNT_PATH_H

#include "mount/mnt.h"

#include <unistd.h>

/* The response of a call, empty; NULL: the request has not the length that is wanted, or there is
 * no room for a response, which is -EINVAL. A call always answers a whole response, so that `why`
 * arrives with a failure too. */
struct mnt_result *mnt_begin(size_t req_len, size_t want_len, void *resp, size_t *resp_len);
/* What a call that fails says of it: puts it into why[MNT_WHY_BYTES], unless something is there
 * already. Returns res. */
int mnt_why(char *why, int res, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* A name and the directory it is in, which was reached by the rules of mnt.h. */
struct mnt_place {
	int parent_fd; /* O_PATH */
	char name[NAME_MAX + 1];
};

static inline void mnt_place_close(struct mnt_place *place)
{
	if (place->parent_fd >= 0)
		close(place->parent_fd);
	place->parent_fd = -1;
}

#define MNT_PLACE_NONE                                                                             \
	{                                                                                          \
		.parent_fd = -1                                                                    \
	}
#define _cleanup_place_ __attribute__((cleanup(mnt_place_close)))

/* path is a request's field of `size` bytes. -ENOENT: a directory on the way is missing; -ELOOP: a
 * link where none may be; -EINVAL: no absolute path, "..", or "/". */
int mnt_place_find(const char *path, size_t size, struct mnt_place *ret, char *why);
/* The same for paths one after the other: what they have in common before "plugins" or "pods" is
 * resolved once. Begin with an fd of -1. */
struct mnt_prefix {
	int fd; /* O_PATH; negative: none */
	size_t len;
	char path[MNT_PATH_BYTES];
};
static inline void mnt_prefix_close(struct mnt_prefix *prefix)
{
	if (prefix->fd >= 0)
		close(prefix->fd);
	prefix->fd = -1;
}
#define _cleanup_prefix_ __attribute__((cleanup(mnt_prefix_close)))
int mnt_place_find_below(
	struct mnt_prefix *prefix, const char *path, size_t size, struct mnt_place *ret, char *why);
/* Opens what is at the place; never follows a link (-ELOOP). fd or -errno. */
int mnt_place_open(const struct mnt_place *place, int flags);

/* 0, or -EINVAL with why: a target at this place is refused. */
int mnt_target_check(const struct mnt_place *place, char *why);
/* Whether an empty target may be removed there: see mnt_unmount_req. */
bool mnt_target_may_go(const struct mnt_place *place, bool was_mount, bool trusted);

#endif
