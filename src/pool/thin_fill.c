/* SPDX-License-Identifier: Apache-2.0 */
/* A device over a thin id, and its node. How it can fail: as mapped.h does. */
#include "pool/thin_fill.h"

#include "base/fd.h"
#include "disk/mapped.h"
#include "pool/layout.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define NAME_PREFIX "ringvol-thinfill-"
#define UUID_PREFIX DM_OUR_UUID "thinfill-"

enum { RANDOM_DIGITS = 8, SWEEP_MAX = 64 };

/* The device alone. */
static int make_device(struct thin_fill *fill, struct dm *dm, const struct mapped_spec *spec,
	struct mapped *ret, struct err *err)
{
	char random[RANDOM_DIGITS + 1], name[DM_NAME_LEN];
	pool_random_hex(random, RANDOM_DIGITS);
	snprintf(name, sizeof(name), NAME_PREFIX "%.8s-%s", spec->disk->uuid, random);
	snprintf(fill->uuid, sizeof(fill->uuid), UUID_PREFIX "%.8s-%s", spec->disk->uuid, random);
	int r = mapped_make_named(dm, name, fill->uuid, spec, ret, err);
	if (r < 0)
		fill->uuid[0] = '\0';
	return r;
}

int thin_fill_open(struct thin_fill *fill, const struct disk *disk, uint32_t id,
	uint64_t size_bytes, struct err *err)
{
	_cleanup_dm_ struct dm dm = {.fd = -1};
	struct mapped mapped;
	struct image_map map = {.thin_id = id};
	const struct mapped_spec spec = {.disk = disk, .map = &map, .size_bytes = size_bytes};
	int r = dm_open(&dm, DM_CONTROL_PATH);
	if (r < 0)
		return dm_fail_open(r, "thin volumes of pools on raw disks", err);
	r = make_device(fill, &dm, &spec, &mapped, err);
	if (r < 0)
		return r;
	fill->fd = dm_open_node(mapped.major, mapped.minor, O_RDWR | O_DIRECT);
	if (fill->fd >= 0)
		return 0;
	r = fill->fd;
	fill->fd = -1;
	thin_fill_close(fill);
	return err_sys(err, r, "opening the device /dev/dm-%u", mapped.minor);
}

int thin_fill_sync(const struct thin_fill *fill)
{
	return fsync(fill->fd) < 0 ? -errno : 0;
}

static void remove_device(struct thin_fill *fill)
{
	_cleanup_dm_ struct dm dm = {.fd = -1};
	bool waits;
	if (fill->uuid[0] != '\0' && dm_open(&dm, DM_CONTROL_PATH) == 0)
		(void)dm_remove(&dm, fill->uuid, &waits);
	fill->uuid[0] = '\0';
}

void thin_fill_close(struct thin_fill *fill)
{
	fd_close(&fill->fd);
	remove_device(fill);
}

/* What is open is removed by the kernel's own thread, after the last close. */
void thin_fill_leave(struct thin_fill *fill)
{
	remove_device(fill);
	fd_close(&fill->fd);
}

/* ---- what is left of others ---- */

struct sweep {
	const char *pool_uuid;
	unsigned count;
	char names[SWEEP_MAX][DM_NAME_LEN];
};

static void on_device(void *arg, const char *name, uint32_t dev_major, uint32_t dev_minor)
{
	struct sweep *s = arg;
	const size_t len = strlen(NAME_PREFIX);
	(void)dev_major;
	(void)dev_minor;
	if (s->count < SWEEP_MAX && strncmp(name, NAME_PREFIX, len) == 0 &&
		strncmp(name + len, s->pool_uuid, 8) == 0 && strlen(name) < DM_NAME_LEN)
		snprintf(s->names[s->count++], DM_NAME_LEN, "%s", name);
}

void thin_fill_sweep(struct dm *dm, const char *pool_uuid)
{
	_cleanup_free_ struct sweep *s = calloc(1, sizeof(*s));
	if (s == NULL)
		return;
	s->pool_uuid = pool_uuid;
	(void)dm_list(dm, on_device, s);
	for (unsigned i = 0; i < s->count; i++) {
		struct dm_device device;
		bool waits;
		if (dm_look_name(dm, s->names[i], &device) == 0 &&
			strncmp(device.uuid, UUID_PREFIX, strlen(UUID_PREFIX)) == 0)
			(void)dm_remove(dm, device.uuid, &waits);
	}
}
