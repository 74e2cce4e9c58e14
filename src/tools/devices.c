/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Devices that are bound: loop devices from the kernel, anybody's, those of raw pools from the
 * device mapper, ublk devices from their data process or, if there is none, from its state files;
 * then the mounts of all of them. Fails as these do.
 */
#include "tools/devices.h"

#include "backends/crypt/crypt_stack.h"
#include "backends/disk/disk_backend.h"
#include "backends/ublk/ublk.h"
#include "backends/ublk/ublkc.h"
#include "base/buf.h"
#include "mount/mnt_scan.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { UBLK_TIMEOUT_MS = 2000 };

static void add(struct devices *d, const char *type, const struct backend_dev *dev)
{
	if (array_grow(&d->at, &d->cap, d->count, sizeof(*d->at)) < 0)
		d->failed = true;
	else
		d->at[d->count++] = (struct device){type, *dev};
}

static void on_loop(void *arg, const struct backend_dev *dev)
{
	add(arg, "loop", dev);
}

static void on_disk(void *arg, const struct backend_dev *dev)
{
	add(arg, "disk", dev);
}

static void on_ublk(void *arg, const struct ublkd_device *from)
{
	struct backend_dev dev;
	backend_ublk_dev(from, &dev);
	add(arg, "ublk", &dev);
}

static void on_crypt(void *arg, const struct crypt_dev *crypt)
{
	struct devices *d = arg;
	for (size_t i = 0; i < d->count; i++)
		if (crypt_add(crypt, &d->at[i].dev))
			return;
}

/* A kernel without device mapper has none. */
static int add_crypts(struct devices *d)
{
	struct dm dm;
	if (d->count == 0)
		return 0;
	int r = dm_open(&dm, DM_CONTROL_PATH);
	if (r < 0)
		return dm_is_absent(r) ? 0 : r;
	r = crypt_dev_each(&dm, on_crypt, d);
	dm_close(&dm);
	return r;
}

static void on_mount(void *arg, const struct mnt_entry *entry)
{
	struct devices *d = arg;
	char *path = strdup(entry->path);
	if (path == NULL ||
		array_grow(&d->mounts, &d->mount_cap, d->mount_count, sizeof(*d->mounts)) < 0) {
		free(path);
		d->failed = true;
		return;
	}
	d->mounts[d->mount_count++] =
		(struct device_mount){entry->dev_major, entry->dev_minor, entry->read_only, path};
}

/* As `serve` and `ublkd` take them; the tools have no options for them. */
static const char *setting(const char *name, const char *fallback)
{
	const char *value = getenv(name);
	return value != NULL && value[0] != '\0' ? value : fallback;
}

int devices_scan(struct devices *ret)
{
	struct err err = {0};
	const char *socket = setting("RINGVOL_UBLKD_SOCKET", UBLKD_SOCKET);
	const char *state_dir = setting("RINGVOL_UBLKD_STATE_DIR", UBLKD_STATE_DIR);
	int loops = backend_loop.scan(&backend_loop, on_loop, ret, &err);
	int disks = backend_disk_scan(on_disk, ret, &err);
	int ublks = ublkc_scan(socket, state_dir, UBLK_TIMEOUT_MS, on_ublk, ret, &err);
	int crypts = add_crypts(ret);
	int mounts = ret->count == 0 ? 0 : mnt_scan(on_mount, ret);
	if (ret->failed)
		return -ENOMEM;
	int res[] = {loops, disks, ublks, crypts, mounts};
	for (size_t i = 0; i < sizeof(res) / sizeof(res[0]); i++)
		if (res[i] < 0)
			return res[i];
	return 0;
}

void devices_free(struct devices *d)
{
	for (size_t i = 0; i < d->mount_count; i++)
		free(d->mounts[i].path);
	free(d->mounts);
	free(d->at);
	*d = (struct devices){0};
}

const struct device *devices_find(const struct devices *d, uint64_t image_dev, uint64_t image_ino)
{
	for (size_t i = 0; i < d->count; i++)
		if (backend_dev_serves(&d->at[i].dev, image_dev, image_ino))
			return &d->at[i];
	return NULL;
}
