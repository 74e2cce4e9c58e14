/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The device-mapper device over the records of a pool: RINGVOL-records-<pool's uuid>. There is one
 * of it at a time, for as long as anybody has it open.
 */
#ifndef RINGVOL_DISK_RECORDS_DEVICE_H
#define RINGVOL_DISK_RECORDS_DEVICE_H

#include "disk/disk.h"
#include "disk/dm.h"

struct records_device {
	struct dm dm;
	bool read_only;
	char name[DM_NAME_LEN], uuid[DM_UUID_LEN];
	const char *disk_path;
	struct dm_target target;
	struct dm_device device; /* as of the last look */
	char path[32];           /* /dev/dm-3 */
};

/* What it is to be; nothing is done yet. */
void records_device_describe(const struct disk *disk, bool read_only, struct records_device *ret);
/* The control node, and the same. As dm_fail_open(). */
int records_dm_open(struct dm *ret, struct err *err);
int records_device_open(
	const struct disk *disk, bool read_only, struct records_device *ret, struct err *err);
/* Makes what is missing of the device. -EAGAIN without *err: it is being taken away just now. */
int records_device_make(struct records_device *r, struct err *err);
/* Whether an open device is that one; its number may be another's by the time it is opened. */
bool records_device_is(struct records_device *r, int fd);
/* Whether anybody has it open. */
bool records_device_used(struct records_device *r);
/* The device goes now, or with its last user. */
void records_device_let_go(struct records_device *r);
/* The same, and the control node is closed. */
void records_device_close(struct records_device *r);
/* What a process that was killed may have left of the device of that pool's records. */
void records_device_sweep(const char *pool_uuid);

#endif
