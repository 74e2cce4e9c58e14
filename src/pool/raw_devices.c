/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The devices of a raw pool as the kernel has them. A device whose table leads to pieces that no
 * map has is one that somebody made or kept behind our back. What may still be written through it
 * is not free, and will not be zeros when it goes: so its pieces get an owner, a file in the trash.
 * Where the kernel has no device mapper there are no devices.
 */
#include "pool/raw_devices.h"

#include "base/buf.h"
#include "base/fd.h"
#include "disk/mapped.h"
#include "pool/layout.h"
#include "pool/trash_own.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct devices {
	const struct disk *disk;
	struct dm dm;
	struct mapped *at;
	size_t count, cap;
	int res;
};

static void add(void *arg, const struct mapped *mapped)
{
	struct devices *d = arg;
	char tag[32];
	snprintf(tag, sizeof(tag), "ringvol:%.8s:", d->disk->uuid);
	if (mapped->retired || strncmp(mapped->tag, tag, strlen(tag)) != 0 || d->res < 0)
		return;
	d->res = array_grow(&d->at, &d->cap, d->count, sizeof(*d->at));
	if (d->res == 0)
		d->at[d->count++] = *mapped;
}

/* Each device of the pool with the pieces it leads to, until each() answers other than 0. */
static int each_device(
	const struct disk *disk, int (*each)(void *arg, const struct image_map *map), void *arg)
{
	struct devices d = {.disk = disk};
	int r = dm_open(&d.dm, DM_CONTROL_PATH);
	if (r == -ENOENT || r == -ENXIO || r == -ENODEV)
		return 0;
	if (r < 0)
		return r;
	r = mapped_each(&d.dm, add, &d);
	if (r == 0)
		r = d.res;
	for (size_t i = 0; r == 0 && i < d.count; i++) {
		struct image_map map = {0};
		r = mapped_pieces(&d.dm, disk, &d.at[i], &map);
		/* One disk may have come back as another device: what is on the others counts. */
		if (r == 0 || r == -ERANGE)
			r = each(arg, &map);
		else if (r == -ENXIO) /* gone since */
			r = 0;
	}
	dm_close(&d.dm);
	free(d.at);
	return r;
}

/* ---- is it in use ---- */

static int check_one(void *arg, const struct image_map *map)
{
	return image_map_overlaps(arg, map) ? -EBUSY : 0;
}

int raw_devices_check(const struct disk *disk, const struct image_map *map)
{
	return each_device(disk, check_one, (void *)map);
}

/* ---- strays ---- */

struct strays {
	struct area *area;
	int trash_fd;
	uint64_t bytes;
};

/* Occupies what is free of it. By halves, for the area takes all or nothing. */
static int occupy_rest(
	struct area *area, uint64_t address, uint64_t bytes, struct image_map *ret_new)
{
	int r = area_occupy(area, address, bytes);
	if (r == 0)
		return image_map_add(ret_new, address, bytes);
	if (r != -EEXIST && r != -ERANGE)
		return r;
	if (bytes <= DISK_UNIT_BYTES)
		return 0;
	uint64_t half = bytes / 2 / DISK_UNIT_BYTES * DISK_UNIT_BYTES;
	r = occupy_rest(area, address, half, ret_new);
	return r < 0 ? r : occupy_rest(area, address + half, bytes - half, ret_new);
}

static int occupy_device(void *arg, const struct image_map *map)
{
	struct strays *s = arg;
	struct image_map new = {0};
	int r = 0;
	for (unsigned i = 0; r == 0 && i < map->count; i++)
		r = occupy_rest(s->area, map->pieces[i].address, map->pieces[i].bytes, &new);
	if (r < 0 || new.count == 0)
		return r;
	s->bytes += image_map_bytes(&new);
	r = trash_own(s->trash_fd, &new);
	/* It stays occupied, and the next load finds it again. */
	return r == -EROFS || r == -ENOSPC ? 0 : r;
}

int raw_devices_strays(
	const struct disk *disk, int trash_fd, struct area *area, uint64_t *ret_bytes)
{
	struct strays s = {.area = area, .trash_fd = trash_fd};
	int r = each_device(disk, occupy_device, &s);
	*ret_bytes = s.bytes;
	return r;
}
