/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of mnt share. All of it runs in a helper process, and may block. */
#ifndef RINGVOL_MOUNT_MNT_PRIV_H
#define RINGVOL_MOUNT_MNT_PRIV_H

#include "mount/mnt.h"

#include <stddef.h>
#include <sys/stat.h>

/* Fills why[MNT_WHY_BYTES] (unless it says something already) and returns res. */
int mnt_why(char *why, int res, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* ---- mnt_path.c: where a path leads ---- */

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

/* ---- mnt_roots.c: where targets may lie ---- */

/* 0, or -EINVAL with why: a target at this place is refused. */
int mnt_roots_check(const struct mnt_place *place, char *why);
/* Whether an empty target may be removed there: see mnt_unmount_req. */
bool mnt_roots_let_remove(const struct mnt_place *place, bool was_mount, bool trusted);
bool mnt_roots_given(void);
/* How much of a path names the root that it is below; 0: none. */
size_t mnt_roots_prefix(const char *path);

/* ---- mnt_look.c: what is there ---- */

/* What statx says of the entry at a place, and which device it stands for. */
struct mnt_look {
	bool exists, is_mount;
	bool shut_down; /* a file system that says EIO even of its root */
	mode_t mode;
	uint64_t size_bytes;
	uint64_t mount_id; /* for statmount(); 0: Linux before 6.8, or too sick to say */
	/* The device below a mount, or a block node's own; 0:0 for anything else. */
	uint32_t dev_major, dev_minor;
};
int mnt_place_look(const struct mnt_place *place, struct mnt_look *ret, char *why);
/* Opens a mounted directory, looked at just now, for ioctls; -EINVAL if it is not a mount. fd or
 * -errno. */
int mnt_place_open_mounted(const struct mnt_place *place, const struct mnt_look *look, char *why);

int mnt_call_inspect(const void *req, size_t req_len, void *resp, size_t *resp_len);
int mnt_call_stats(const void *req, size_t req_len, void *resp, size_t *resp_len);
int mnt_call_stats_many(const void *req, size_t req_len, void *resp, size_t *resp_len);

/* ---- mnt_attach.c: mount, bind, unmount ---- */

int mnt_call_mount(const void *req, size_t req_len, void *resp, size_t *resp_len);
int mnt_call_bind(const void *req, size_t req_len, void *resp, size_t *resp_len);
int mnt_call_unmount(const void *req, size_t req_len, void *resp, size_t *resp_len);

/* ---- mnt_fs.c: ioctls on mounted file systems ---- */

int mnt_call_grow(const void *req, size_t req_len, void *resp, size_t *resp_len);
/* A mounted ext4's, given by its directory. */
int mnt_set_uuid(int fd, const uint8_t uuid[16], char *why);
int mnt_call_sync(const void *req, size_t req_len, void *resp, size_t *resp_len);
int mnt_call_clean(const void *req, size_t req_len, void *resp, size_t *resp_len);
int mnt_call_freeze(const void *req, size_t req_len, void *resp, size_t *resp_len);
int mnt_call_try_read(const void *req, size_t req_len, void *resp, size_t *resp_len);
int mnt_call_thaw(const void *req, size_t req_len, void *resp, size_t *resp_len);

/* ---- mnt_scan.c: /proc/self/mountinfo ---- */

/* What mountinfo says of one mount. */
struct mnt_line {
	uint64_t id;
	uint32_t dev_major, dev_minor;
	const char *root, *path; /* unescaped */
	const char *options, *fs_type, *source, *fs_options;
};
/* Calls each for every line until it answers false. 0 or -errno. */
int mnt_each_line(bool (*each)(void *arg, const struct mnt_line *line), void *arg);
/* The device a line is about, 0:0 if it is none of ours; *ret_bound_node as in mnt_entry. */
void mnt_line_device(const struct mnt_line *line, uint32_t *ret_major, uint32_t *ret_minor,
	bool *ret_bound_node);

#endif
