/* SPDX-License-Identifier: Apache-2.0 */
/* Where on which disk an image's bytes are, for copies. */
#ifndef RINGVOL_DISK_PLACES_H
#define RINGVOL_DISK_PLACES_H

#include "blockio/copy_places.h"
#include "blockio/image_map.h"
#include "disk/disk.h"

/* Good as long as the disks are open; free() it. -ERANGE: a piece is on none of the disks.
 * -ENOMEM. */
int disk_places(const struct disk *disk, const struct image_map *map, struct copy_places **ret);

#endif
