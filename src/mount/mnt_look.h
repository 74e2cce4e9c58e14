/* SPDX-License-Identifier: Apache-2.0 */
/* What is at a place. All of it runs in a helper process, and may block. */
#ifndef RINGVOL_MOUNT_MNT_LOOK_H
#define RINGVOL_MOUNT_MNT_LOOK_H

#include "mount/mnt_path.h"

#include <sys/types.h>

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
/* Both for a path; as mnt_place_find() and mnt_place_look(). */
int mnt_find_and_look(const char *path, size_t size, struct mnt_place *ret_place,
	struct mnt_look *ret_look, char *why);

helper_fn mnt_call_inspect, mnt_call_stats, mnt_call_stats_many, mnt_call_label;

#endif
