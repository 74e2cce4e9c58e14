/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Letting go of a raw pool: its first disk's header names no owner any more. Nothing of this
 * machine may have the pool then: neither its records, which a driver keeps open as long as it
 * serves the pool, nor the device of a volume.
 */
#include "disk/init.h"

#include "base/clock.h"
#include "disk/find.h"
#include "disk/owner.h"
#include "disk/records_device.h"

#include <stdio.h>
#include <string.h>

enum { RELEASE_WAIT_MS = 512 }; /* the longest of the waits, each twice the one before */

struct devices {
	char prefix[32]; /* "ringvol-<uuid8>-" */
	char name[DM_NAME_LEN];
};

static void look_at(void *arg, const char *name, uint32_t dev_major, uint32_t dev_minor)
{
	struct devices *d = arg;
	(void)dev_major;
	(void)dev_minor;
	if (strncmp(name, d->prefix, strlen(d->prefix)) == 0)
		snprintf(d->name, sizeof(d->name), "%s", name);
}

/* Whether anything here has it. */
static int check_unused(const struct disk *disk, const char *path, struct err *err)
{
	struct records_device records;
	struct devices devices = {0};
	int r = records_device_open(disk, true, &records, err);
	if (r < 0)
		return r;
	/* A driver that was killed has them open for a moment, or a child of it. */
	bool used = records_device_used(&records);
	for (unsigned ms = 1; used && ms <= RELEASE_WAIT_MS; ms *= 2) {
		clock_sleep_ms(ms);
		used = records_device_used(&records);
	}
	snprintf(devices.prefix, sizeof(devices.prefix), "ringvol-%.8s-", disk->uuid);
	r = dm_list(&records.dm, look_at, &devices);
	records_device_close(&records);
	if (r < 0)
		return err_sys(err, r, "listing the devices of the device mapper");
	if (used)
		return err_set(err, ERR_PRECONDITION,
			"a driver of this node serves the pool at %s: stop it first; if none runs, end "
			"what has its records open (fuser -v /dev/dm-%u)",
			path, records.device.minor);
	if (devices.name[0] != '\0')
		return err_set(err, ERR_PRECONDITION,
			"a volume of the pool at %s has its device here (%s): end the pods that use it "
			"first",
			path, devices.name);
	return 0;
}

static int forget_owner(const struct disk *disk, struct err *err)
{
	const struct disk_member *m = &disk->members[0];
	struct disk_found found;
	int r = disk_found_read(m->fd, m->path, &found);
	if (r == 0 && disk_owner_set(&found.header, NULL)) {
		found.header.generation++;
		r = disk_header_write(m->fd, &found.header);
	}
	return r < 0 ? err_sys(err, r, "writing the header of %s", m->path) : 0;
}

int disk_release(const char *path, bool take_over, struct err *err)
{
	struct disk *disk;
	int r = disk_open(path, take_over ? DISK_TAKE_OVER : DISK_CHANGE, NULL, &disk, err);
	if (r < 0)
		return r;
	r = check_unused(disk, path, err);
	if (r == 0)
		r = forget_owner(disk, err);
	disk_unref(disk);
	return r;
}
