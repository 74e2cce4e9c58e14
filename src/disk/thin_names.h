/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the thin pool of a raw pool is made of, and what it is called.
 *
 *   <records>/thin/metadata   an image like a volume's: a file without blocks, whose map says where
 *   <records>/thin/data       on the disks it lies. Both, or there is no thin pool
 *
 * Three devices of the device mapper are the thin pool where it is active: one over the pieces of
 * either image, and the target `thin-pool` over the two. Their names follow from the pool's uuid:
 * ringvol-thinpool-<8 digits> has the uuid RINGVOL-thinpool-<uuid>. They are of no volume, so no
 * list of volumes' devices has them (tagged.h).
 */
#ifndef RINGVOL_DISK_THIN_NAMES_H
#define RINGVOL_DISK_THIN_NAMES_H

#include "disk/dm.h"

#define THIN_DIR           "thin"
#define THIN_METADATA_FILE "metadata"
#define THIN_DATA_FILE     "data"

enum thin_device { THIN_METADATA, THIN_DATA, THIN_POOL, THIN_DEVICES };

/* "metadata", "data"; NULL: no file. */
const char *thin_file_name(enum thin_device device);
/* Of the pool of that uuid. */
void thin_names(enum thin_device device, const char *pool_uuid, char ret_name[DM_NAME_LEN],
	char ret_uuid[DM_UUID_LEN]);
/* The number of the thin pool's device. -ENXIO: it is not active. */
int thin_number(struct dm *dm, const char *pool_uuid, uint32_t *ret_major, uint32_t *ret_minor);

#endif
