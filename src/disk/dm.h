/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel's device mapper, by ioctls on its control node: make a device, load a table, swap it
 * in, look, remove. Synchronous, for work jobs. Needs no tool and no udev: the kernel's devtmpfs
 * makes the node /dev/dm-N.
 *
 * Devices are addressed by their uuid, which the kernel keeps unique and which nobody changes, so a
 * device that another process made under the same name in between is never acted on.
 */
#ifndef RINGVOL_DISK_DM_H
#define RINGVOL_DISK_DM_H

#include "base/err.h"

#include <linux/dm-ioctl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/ioctl.h> /* the requests of linux/dm-ioctl.h are made by its macros */

#define DM_CONTROL_PATH "/dev/mapper/control"
#define DM_OUR_UUID     "RINGVOL-" /* begins the uuids of all devices of ours */

enum {
	DM_PARAMS_BYTES = 256, /* of one target, its NUL among them */
	DM_TARGETS_MAX = 256,
	DM_SECTOR_BYTES = 512,
	DM_MINORS = 1 << 20, /* of the kernel's numbers */
};

/* An open control node. */
struct dm {
	int fd;
	/* What takes the place of ioctl(fd, request, buffer) in tests: 0 or -errno. NULL: none. */
	int (*call)(struct dm *dm, unsigned long request, struct dm_ioctl *buffer);
	void *arg; /* call's */
	/* Tables that are loaded or read have keys in them: the kernel wipes its copies. */
	bool secret;
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
/* Whether what dm_open() returned says that this node has no device mapper. */
bool dm_is_absent(int res);
/* Says why it cannot be used, of what dm_open() returned, and what to do: ERR_PRECONDITION where
 * the node lacks it. who: needs it, as "raw pools". */
int dm_fail_open(int res, const char *who, struct err *err);
/* Whether the kernel has it, without asking for the module, as opening the node may. */
bool dm_is_loaded(void);
/* Whether a device of ours, whose uuid begins so, stands on that device: as sysfs has it, which can
 * be asked without the control node. */
bool dm_stands_on(uint32_t dev_major, uint32_t dev_minor, const char *uuid_prefix);
void dm_close(struct dm *dm);
#define _cleanup_dm_ __attribute__((cleanup(dm_close)))

/* Each returns 0 or -errno; -ENXIO: there is no device of that uuid. */

/* The node /dev/dm-<minor>, if it is that device's. -ENXIO: it is another's. */
int dm_open_node(uint32_t dev_major, uint32_t dev_minor, int flags);

/* A device without a table. -EBUSY: the name or the uuid is taken. -EINVAL: a name or uuid that is
 * empty, too long or holds a '/'. */
int dm_create(struct dm *dm, const char *name, const char *uuid, struct dm_device *ret);
/* Loads the table beside the one in use. -EBUSY: a device that a target names is in use. -E2BIG:
 * more targets or parameters than one call takes. */
int dm_load(struct dm *dm, const char *uuid, const struct dm_target *targets, unsigned count,
	bool read_only);
/* Drops what was loaded and not swapped in. */
int dm_clear(struct dm *dm, const char *uuid);
/* Swaps in what was loaded, in one call: waits for I/O under way, and keeps none that comes
 * meanwhile from its end. Without a table loaded a suspended device goes on. */
int dm_resume(struct dm *dm, const char *uuid, struct dm_device *ret);
/* Lets nothing through until dm_resume(); what is under way has ended. freeze: a file system that
 * is mounted from it is frozen first, and thawed by dm_resume(); -EBUSY: somebody else has frozen
 * it. One that is suspended already stays so. It waits for writes, as long as the disk takes. */
int dm_suspend(struct dm *dm, const char *uuid, bool freeze);
int dm_look(struct dm *dm, const char *uuid, struct dm_device *ret);
/* By name: whatever has it. */
int dm_look_name(struct dm *dm, const char *name, struct dm_device *ret);
/* The table in use. *ret_count may be more than cap; targets has the first cap then. */
int dm_table(struct dm *dm, const char *uuid, struct dm_target *targets, unsigned cap,
	unsigned *ret_count);
/* The same without parameters, which may hold a key: types and places alone. */
int dm_shape(struct dm *dm, const char *uuid, struct dm_target *targets, unsigned cap,
	unsigned *ret_count);
/* How its first target does, in the words of that type: ret->params. -ENODATA: it has no table. */
int dm_status(struct dm *dm, const char *uuid, struct dm_target *ret);
/* Says something to its first target, in the words of that type. */
int dm_message(struct dm *dm, const char *uuid, const char *text);
/* The one device that the table in use stands on. -ENODEV: it stands on none, or on several. */
int dm_below(struct dm *dm, const char *uuid, uint32_t *ret_major, uint32_t *ret_minor);
/* Now, or when its last user lets go: *ret_waits. A device that is not there is success. */
int dm_remove(struct dm *dm, const char *uuid, bool *ret_waits);
/* Makes it a linear target: its sectors are those of that device from offset_sectors on. */
void dm_linear(struct dm_target *ret, uint32_t major, uint32_t minor, uint64_t offset_sectors);
/* False for any other target. */
bool dm_linear_parse(const struct dm_target *target, uint32_t *ret_major, uint32_t *ret_minor,
	uint64_t *ret_offset_sectors);
/* Whether the kernel has that type of target; it is asked to load the module. */
bool dm_has_target(struct dm *dm, const char *type);
/* All devices of this kernel. */
int dm_list(struct dm *dm,
	void (*each)(void *arg, const char *name, uint32_t major, uint32_t minor), void *arg);

#endif
