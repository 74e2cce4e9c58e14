/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What device-mapper devices of volumes have in common: the guards over loop devices
 * (backends/dm/guard.h), and the devices of raw pools (mapped.h). Both have a name and a uuid that
 * follow from the volume's tag, "ringvol:<pool's uuid, 8>:<random, 8>", and a last target that
 * serves TAGGED_TAIL_SECTORS. Both are *retired* before they are removed: a table that fails every
 * request takes the place of theirs, so that who still has one open reaches nothing. Synchronous,
 * for work jobs.
 */
#ifndef RINGVOL_DISK_TAGGED_H
#define RINGVOL_DISK_TAGGED_H

#include "disk/dm.h"

enum {
	TAGGED_TAIL_SECTORS = 2048, /* 1 MiB */
	TAGGED_TAG_BYTES = 64,
};

/* "ringvol:a:b" as "ringvol-a-b", and as the prefix and "a-b". -EINVAL: no such tag. */
int tagged_names(const char *tag, const char *uuid_prefix, char ret_name[DM_NAME_LEN],
	char ret_uuid[DM_UUID_LEN]);

/* Begins the uuids of dm-crypt devices over volumes' (backends/crypt). */
#define TAGGED_CRYPT_UUID_PREFIX DM_OUR_UUID "crypt-"
/* Of the device of that tag and image: the prefix, "a-b-" and the inode. -EINVAL: no such tag. */
int tagged_uuid(
	const char *tag, const char *uuid_prefix, uint64_t image_ino, char ret_uuid[DM_UUID_LEN]);

/* The device of that uuid. 0; -ENXIO: there is none; -EEXIST: another has its name, or it was
 * renamed; -errno. */
int tagged_look(struct dm *dm, const char *name, const char *uuid, struct dm_device *ret);
/* The same, once the kernel has taken away one that was let go, or somebody keeps it from that:
 * then it is still going_away. Waits for 255 ms at most. */
int tagged_look_settled(struct dm *dm, const char *name, const char *uuid, struct dm_device *ret);

/* The table of a device that was let go. -EINVAL: too small for two targets. */
int tagged_table_retired(uint64_t size_bytes, struct dm_target ret[2]);
bool tagged_is_retired(const struct dm_target *targets, unsigned count);

/* Retires a device that leads somewhere (size_bytes; 0: it does not) and removes it. Afterwards
 * nothing below is in use by it; what the page cache had for it was written. *ret_waits: a process
 * has it open, and it goes when that lets go; else the kernel takes it away in a moment. -errno: it
 * may lead on. */
int tagged_remove(
	struct dm *dm, const struct dm_device *device, uint64_t size_bytes, bool *ret_waits);

/* Calls each for every device with such a name, whoever has made it. What it returns, other than
 * -ENXIO and -EEXIST (gone, or another's), is the result; the first of these. */
int tagged_each(struct dm *dm, int (*each)(void *arg, const char *tag), void *arg);

#endif
