/* SPDX-License-Identifier: Apache-2.0 */
/* Which pieces of a raw pool's disks the kernel has in devices, whatever its maps say. Blocking. */
#ifndef RINGVOL_POOL_RAW_DEVICES_H
#define RINGVOL_POOL_RAW_DEVICES_H

#include "disk/area.h"
#include "disk/disk.h"

/* Whether a device of the pool leads to any piece of the map. 0: none does; -EBUSY; another -errno:
 * nobody can tell. */
int raw_devices_check(const struct disk *disk, const struct image_map *map);

/* For the load, when all maps are occupied: what devices lead to and no map has is occupied too,
 * and becomes the map of a file in the trash, which is overwritten when the device is gone.
 * *ret_bytes of it. 0 or -errno. */
int raw_devices_strays(
	const struct disk *disk, int trash_fd, struct area *area, uint64_t *ret_bytes);

#endif
