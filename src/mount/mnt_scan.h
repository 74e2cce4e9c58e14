/* SPDX-License-Identifier: Apache-2.0 */
/* /proc/self/mountinfo. Blocking: 9 ms at 4,000 mounts. */
#ifndef RINGVOL_MOUNT_MNT_SCAN_H
#define RINGVOL_MOUNT_MNT_SCAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* One line of /proc/self/mountinfo about a block device that may be ours (loop, ublk, dm). */
struct mnt_entry {
	uint32_t dev_major, dev_minor; /* of the device */
	bool bound_node;               /* the device's node, bound to a file (a block volume) */
	bool read_only;                /* the mount itself; its file system may be so without it */
	const char *path;              /* unescaped; valid during the call */
};
/* At start, and when memory and kernel disagree. 0 or -errno. */
int mnt_scan(void (*each)(void *arg, const struct mnt_entry *entry), void *arg);
/* A mount's path as mountinfo has it, where links above it (the kubelet root is often one) are
 * gone: for comparing, not for opening. Allocated; as given where its directory does not exist,
 * NULL when out of memory. Blocking; the mount itself is not touched. */
char *mnt_scan_name(const char *path);
/* The value of an option "key=" of a comma list, where double quotes keep commas together; cut to
 * size. "" without one. */
void mnt_option_value(const char *options, const char *key, char *ret, size_t size);
/* True if a comma list has this word. */
bool mnt_has_option(const char *options, const char *word);

/* ---- for mnt_look.c and mnt_elsewhere.c ---- */

/* What mountinfo says of one mount. */
struct mnt_line {
	uint64_t id;
	uint32_t dev_major, dev_minor;
	const char *root, *path; /* unescaped */
	const char *options, *fs_type, *source, *fs_options;
};
/* Calls each for every line until it answers false. 0 or -errno. */
int mnt_each_line(bool (*each)(void *arg, const struct mnt_line *line), void *arg);
/* The same of another process's list: "/proc/1/mountinfo". */
int mnt_each_line_of(
	const char *name, bool (*each)(void *arg, const struct mnt_line *line), void *arg);
/* The device a line is about, 0:0 if it is none of ours; *ret_bound_node as in mnt_entry. */
void mnt_line_device(const struct mnt_line *line, uint32_t *ret_major, uint32_t *ret_minor,
	bool *ret_bound_node);

#endif
