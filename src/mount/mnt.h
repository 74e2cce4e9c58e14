/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mounts, as helper calls. Each may hang on a sick device, so it runs in a helper process
 * (reactor/helper.h); its request and response are plain structs. mnt_calls[] is the table.
 *
 * Paths come from outside and are resolved once, component by component from /. Symbolic links are
 * refused (ELOOP), and so is ".." (EINVAL). Links are followed only in the trusted prefix: what
 * comes before a "/plugins/" or "/pods/" component (the kubelet root is often a link), if its
 * components are root's, or a root that the operator named (mnt_roots_set).
 */
#ifndef RINGVOL_MOUNT_MNT_H
#define RINGVOL_MOUNT_MNT_H

#include "blockio/fsimg.h"
#include "reactor/helper.h"

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

enum {
	MNT_PATH_BYTES = PATH_MAX,
	MNT_OPTIONS_BYTES = 1024,
	MNT_WHY_BYTES = 256,
};

enum mnt_call {
	MNT_INSPECT, /* mnt_path_req -> mnt_info */
	MNT_MOUNT,   /* mnt_mount_req -> mnt_result */
	MNT_BIND,    /* mnt_bind_req -> mnt_result */
	MNT_UNMOUNT, /* mnt_unmount_req -> mnt_result */
	MNT_STATS,   /* mnt_path_req -> mnt_info with the statfs fields */
	MNT_GROW,    /* mnt_grow_req -> mnt_result: the file system to its device's size */
	MNT_SYNC,    /* mnt_on_req -> mnt_result: syncfs, or fsync of a block device */
	/* mnt_on_req -> mnt_result: FIFREEZE; -EBUSY: somebody else has frozen it. */
	MNT_FREEZE,
	/* mnt_on_req -> mnt_result: FITHAW, also of a freeze that is on its way; not frozen is 0.
	 */
	MNT_THAW,
	/* mnt_on_req -> mnt_result: freezes and thaws, also if the driver dies meanwhile; -EBUSY as
	 * MNT_FREEZE. */
	MNT_CLEAN,
	MNT_STATS_MANY, /* mnt_many_req -> mnt_many_info each: MNT_STATS one after the other */
	/* mnt_trim_req -> mnt_result: the file system discards what it does not use (FITRIM). */
	MNT_TRIM,
	MNT_TRY_READ, /* mnt_try_req -> mnt_result: reads a block of the device, past all caches */
	MNT_LABEL,    /* mnt_path_req -> mnt_label: the SELinux label that a mount was made with */
	MNT_CALLS,
};
extern helper_fn *const mnt_calls[MNT_CALLS];

struct mnt_path_req {
	char path[MNT_PATH_BYTES];
};

/* A mount of that device, or its block node. Whatever else is at the path, nothing included, is
 * -EXDEV. dev_major 0: any device. */
struct mnt_on_req {
	struct mnt_path_req at;
	uint32_t dev_major, dev_minor;
};

/* Every response may carry a sentence of the kernel's or ours about a failure. */
struct mnt_label {
	char label[FSIMG_LABEL_BYTES]; /* "": none */
	char why[MNT_WHY_BYTES];
};

struct mnt_result {
	char why[MNT_WHY_BYTES]; /* "" if there is nothing to add to the errno */
	bool grown;              /* MNT_GROW: the file system was smaller */
	bool stays;          /* MNT_UNMOUNT: what was to be removed, as nobody knows whose it is */
	uint64_t next_bytes; /* MNT_TRIM: where the next window begins; UINT64_MAX at the end */
};

struct mnt_info {
	bool exists; /* false: nothing at the path, the rest is zero */
	bool is_dir, is_block, is_file, is_symlink;
	bool is_mount;     /* the root of a mount (statx mount-root attribute) */
	bool read_only;    /* of that mount or its file system */
	bool fs_read_only; /* of the file system itself (superblock) */
	bool shut_down;    /* the file system answers (almost) everything with EIO since an error */
	uint32_t dev_major, dev_minor; /* of the block device below: for a mounted file system its
					  device (btrfs asked by ioctl), for a block node its own */
	uint32_t on_major, on_minor;   /* MNT_INSPECT: of the file system that the path's directory
					  is on; 0:0 of one without */
	uint64_t fs_magic;
	/* MNT_STATS only */
	uint64_t total_bytes, free_bytes, avail_bytes, used_bytes;
	uint64_t total_inodes, free_inodes, used_inodes;
	char why[MNT_WHY_BYTES];
};

/* The paths one behind the other, each with its NUL; sent only as far as it is used. */
enum { MNT_MANY_MAX = 16 };
struct mnt_many_req {
	uint32_t count;
	char paths[8192];
};

struct mnt_many_info {
	int32_t res; /* what MNT_STATS would have answered */
	struct mnt_info info;
};

struct mnt_mount_req {
	char device[64];             /* /dev/loopN */
	char target[MNT_PATH_BYTES]; /* an existing directory, empty, not a mount */
	bool make_target;            /* it may be missing, and is made as MNT_BIND makes it */
	bool view_read_only;         /* this mount of the file system is, whatever others are */
	enum fsimg_type type;
	bool read_only;
	char options[MNT_OPTIONS_BYTES]; /* comma-separated, checked; nouuid for xfs is added here
					  */
	char label[FSIMG_LABEL_BYTES];   /* SELinux: of all files in it, checked; "" for none */
	/* ext4: it gets this UUID before anybody can see the mount. An ext4 that cannot change its
	 * UUID (made elsewhere, without metadata_csum_seed) keeps the one it has, which matters
	 * only to mounts by UUID. */
	bool set_uuid;
	uint8_t uuid[16];
};

/* Binds source (a directory that is a mount, or a block device node) to target. A target that is
 * not there is made (a directory or a file; its parent must exist), and removed again when the bind
 * fails. A target that is there has to be empty: -ENOTEMPTY. */
struct mnt_bind_req {
	char source[MNT_PATH_BYTES];
	char target[MNT_PATH_BYTES];
	bool block;
	bool read_only;
	bool writable; /* also if the source's mount is read-only and its file system is not */
};

/* Unmounts target if it is a mount (or bound node) of that device, else -EXDEV; with dev_major 0
 * nothing may be mounted there. Not lazily: -EBUSY when in use. A missing target is 0.
 * Then, if `remove` is set, an empty directory or file is removed. Below a root that
 * mnt_roots_set() was given it always is. Elsewhere it is if a mount was on it, or if there are no
 * roots and the path is trusted; but never where no target may be. What stays is no failure;
 * mnt_result.stays tells of it if nobody looked whether it could go. */
struct mnt_unmount_req {
	char target[MNT_PATH_BYTES];
	uint32_t dev_major, dev_minor;
	bool remove;
	bool trusted; /* the path was given for a volume that is known */
};

struct mnt_grow_req {
	struct mnt_on_req on;
	enum fsimg_type type; /* FSIMG_NONE: whatever is mounted there */
	uint64_t size_bytes;  /* of the device */
};

/* A window of the file system's addresses. btrfs has no order to take windows of: it is trimmed
 * whole, by the first one. -EOPNOTSUPP: the device takes no discards. */
struct mnt_trim_req {
	struct mnt_on_req on;
	uint64_t start_bytes, len_bytes;
};

struct mnt_try_req {
	char device[64];
};

/* Where MNT_MOUNT and MNT_BIND take targets, of helpers that are started from now on: strictly
 * below one of the roots, which may be links themselves; without roots everywhere. Never in the
 * kept directories, nor in /dev, /proc, /sys and /run/ringvol. -EINVAL is what others get. 0 or
 * -ENOMEM.
 */
int mnt_roots_set(const char *const *roots, unsigned root_count, const char *const *kept,
	unsigned kept_count);

#endif
