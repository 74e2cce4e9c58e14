/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The device over the records. Happy path: no device of that uuid is there, so it is created, gets
 * its table and is resumed; or it is there, as another process has made it, and its table says what
 * ours would. One that is used and leads elsewhere is left alone: that is a disk that was pulled,
 * still mounted.
 */
#include "disk/records_device.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#define RECORDS_UUID_PREFIX DM_OUR_UUID "records-"
#define RECORDS_NAME_PREFIX "ringvol-records-"

static bool is_right(struct records_device *r)
{
	struct dm_target now;
	unsigned count;
	return r->device.has_table && dm_table(&r->dm, r->uuid, &now, 1, &count) == 0 &&
	       count == 1 && now.start_sectors == 0 &&
	       now.length_sectors == r->target.length_sectors &&
	       strcmp(now.type, r->target.type) == 0 && strcmp(now.params, r->target.params) == 0;
}

static int fail_name(const struct records_device *r, struct err *err)
{
	return err_set(err, ERR_PRECONDITION,
		"the device-mapper name %s is another device's: rename that one ('dmsetup rename')",
		r->name);
}

/* 0; -EAGAIN: it is going away just now. */
static int find_or_create(struct records_device *r, struct err *err)
{
	struct dm_device other;
	int res = dm_look(&r->dm, r->uuid, &r->device);
	if (res != -ENXIO)
		return res == 0 ? 0 : err_sys(err, res, "looking for the device %s", r->name);
	res = dm_create(&r->dm, r->name, r->uuid, &r->device);
	if (res == -EBUSY)
		return dm_look_name(&r->dm, r->name, &other) == 0 &&
				       strcmp(other.uuid, r->uuid) != 0
			       ? fail_name(r, err)
			       : -EAGAIN;
	return res == 0 ? 0 : err_sys(err, res, "making the device-mapper device %s", r->name);
}

static int load_table(struct records_device *r, struct err *err)
{
	int res = dm_load(&r->dm, r->uuid, &r->target, 1, r->read_only);
	if (res == -ENXIO)
		return -EAGAIN;
	if (res == -EBUSY)
		return err_set(err, ERR_PRECONDITION,
			"%s is mounted or held by somebody else: end that use (lsblk, fuser -v)",
			r->disk_path);
	return res == 0 ? 0 : err_sys(err, res, "loading the table of %s", r->name);
}

int records_device_make(struct records_device *r, struct err *err)
{
	int res = find_or_create(r, err);
	if (res < 0)
		return res;
	snprintf(r->path, sizeof(r->path), "/dev/dm-%u", r->device.minor);
	bool right = is_right(r);
	if (!right && r->device.open_count != 0)
		return err_set(err, ERR_UNAVAILABLE,
			"the device %s leads to another place and is in use: end the process that has "
			"it open (fuser -v /dev/dm-%u)",
			r->name, r->device.minor);
	if (!right || (r->device.read_only && !r->read_only))
		res = load_table(r, err);
	else if (!r->device.suspended)
		return 0;
	if (res == 0) {
		res = dm_resume(&r->dm, r->uuid, &r->device);
		if (res < 0 && res != -ENXIO)
			return err_sys(err, res, "swapping in the table of %s", r->name);
	}
	return res == -ENXIO ? -EAGAIN : res;
}

void records_device_describe(const struct disk *disk, bool read_only, struct records_device *ret)
{
	const struct disk_member *first = &disk->members[0];
	struct records_device r = {
		.dm.fd = -1,
		.read_only = read_only,
		.disk_path = first->path,
		.target.length_sectors = disk->records_bytes / DM_SECTOR_BYTES,
	};
	snprintf(r.name, sizeof(r.name), RECORDS_NAME_PREFIX "%.8s", disk->uuid);
	snprintf(r.uuid, sizeof(r.uuid), RECORDS_UUID_PREFIX "%s", disk->uuid);
	dm_linear(&r.target, first->major, first->minor, disk->records_offset / DM_SECTOR_BYTES);
	*ret = r;
}

int records_dm_open(struct dm *ret, struct err *err)
{
	int res = dm_open(ret, DM_CONTROL_PATH);
	return res == 0 ? 0 : dm_fail_open(res, "raw pools", err);
}

int records_device_open(
	const struct disk *disk, bool read_only, struct records_device *ret, struct err *err)
{
	struct dm dm;
	int res = records_dm_open(&dm, err);
	if (res < 0)
		return res;
	records_device_describe(disk, read_only, ret);
	ret->dm = dm;
	return 0;
}

bool records_device_is(struct records_device *r, int fd)
{
	struct stat st;
	return fstat(fd, &st) == 0 && S_ISBLK(st.st_mode) &&
	       dm_look(&r->dm, r->uuid, &r->device) == 0 &&
	       st.st_rdev == makedev(r->device.major, r->device.minor);
}

bool records_device_used(struct records_device *r)
{
	return dm_look(&r->dm, r->uuid, &r->device) == 0 && r->device.open_count != 0;
}

void records_device_let_go(struct records_device *r)
{
	bool waits;
	(void)dm_remove(&r->dm, r->uuid, &waits);
}

void records_device_close(struct records_device *r)
{
	records_device_let_go(r);
	dm_close(&r->dm);
}

void records_device_sweep(const char *pool_uuid)
{
	struct records_device r;
	if (dm_open(&r.dm, DM_CONTROL_PATH) < 0)
		return;
	snprintf(r.uuid, sizeof(r.uuid), RECORDS_UUID_PREFIX "%s", pool_uuid);
	records_device_close(&r);
}
