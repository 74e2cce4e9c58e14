/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel's device mapper, by ioctls on its control node: make a device, load a table, swap it
 * in, look, remove. Synchronous, for work jobs. Needs no tool and no udev: the kernel's devtmpfs
 * makes the node /dev/dm-N.
 *
 * Devices are addressed by their uuid, which the kernel keeps unique and which nobody changes, so a
 * device that another process made under the same name in between is never acted on.
 */
#ifndef RINGVOL_BACKENDS_DM_DM_H
#define RINGVOL_BACKENDS_DM_DM_H

#include <linux/dm-ioctl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/ioctl.h> /* the requests of linux/dm-ioctl.h are made by its macros */

#define DM_CONTROL_PATH "/dev/mapper/control"

enum {
	DM_PARAMS_BYTES = 256, /* of one target, its NUL among them */
	DM_TARGETS_MAX = 256,
	DM_SECTOR_BYTES = 512,
};

/* An open control node. */
struct dm {
	int fd;
	/* What takes the place of ioctl(fd, request, buffer) in tests: 0 or -errno. NULL: none. */
	int (*call)(struct dm *dm, unsigned long request, struct dm_ioctl *buffer);
	void *arg; /* call's */
};

/* One part of a device: which type of target serves these sectors, and how. */
struct dm_target {
	uint64_t start_sectors, length_sectors;
	char type[DM_MAX_TYPE_NAME]; /* "linear" */
	char params[DM_PARAMS_BYTES];
};

/* What the kernel says of a device. */
struct dm_device {
	char name[DM_NAME_LEN], uuid[DM_UUID_LEN];
	uint32_t major, minor; /* of /dev/dm-<minor> */
	uint32_t open_count;
	uint32_t target_count; /* of the table in use */
	bool has_table;        /* one is in use; without it there is no node */
	bool suspended;
	bool read_only;  /* by its table or by BLKROSET */
	bool going_away; /* it is removed when its last user lets go */
};

/* 0 and an open *ret, or -errno. -ENOENT, -ENXIO, -ENODEV: this kernel has no device mapper, or its
 * module is not loaded; opening the node loads it where kmod can. -EPROTO: it speaks another
 * version. */
int dm_open(struct dm *ret, const char *control_path);
void dm_close(struct dm *dm);

/* Each returns 0 or -errno; -ENXIO: there is no device of that uuid. */

/* A device without a table. -EBUSY: the name or the uuid is taken. -EINVAL: a name or uuid that is
 * empty, too long or holds a '/'. */
int dm_create(struct dm *dm, const char *name, const char *uuid, struct dm_device *ret);
/* Loads the table beside the one in use. -EBUSY: a device that a target names is in use. -E2BIG:
 * more targets or parameters than one call takes. */
int dm_load(struct dm *dm, const char *uuid, const struct dm_target *targets, unsigned count,
	bool read_only);
/* Swaps in what was loaded, in one call: waits for I/O under way, and keeps none that comes
 * meanwhile from its end. Without a table loaded a suspended device goes on. */
int dm_resume(struct dm *dm, const char *uuid, struct dm_device *ret);
int dm_look(struct dm *dm, const char *uuid, struct dm_device *ret);
/* By name: whatever has it. */
int dm_look_name(struct dm *dm, const char *name, struct dm_device *ret);
/* The table in use. *ret_count may be more than cap; targets has the first cap then. */
int dm_table(struct dm *dm, const char *uuid, struct dm_target *targets, unsigned cap,
	unsigned *ret_count);
/* Now, or when its last user lets go: *ret_waits. A device that is not there is success. */
int dm_remove(struct dm *dm, const char *uuid, bool *ret_waits);
/* All devices of this kernel. */
int dm_list(struct dm *dm,
	void (*each)(void *arg, const char *name, uint32_t major, uint32_t minor), void *arg);

#endif
