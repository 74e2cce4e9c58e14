/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which block devices of this machine are disks of a pool: their headers say so. Read-only; looks
 * at every disk, partition, md array, loop device and logical volume that nobody but ringvol uses
 * as a part of something else (a path of a multipath device, a half of a mirror), and at no device
 * that is a volume of ringvol's.
 */
#ifndef RINGVOL_DISK_FIND_H
#define RINGVOL_DISK_FIND_H

#include "disk/header.h"

struct disk_found {
	char path[DISK_PATH_BYTES];
	uint32_t major, minor;
	uint64_t device_bytes;
	uint32_t block_size;
	struct disk_header header;
	bool damaged; /* header or copy */
};

/* Reads the header of an open block device. As disk_header_read(). */
int disk_found_read(int fd, const char *path, struct disk_found *ret);

/* Opens it again, if its path still leads to the device that was read: else -ENXIO. Or -errno. */
int disk_found_open(const struct disk_found *found, int flags);

enum { DISK_FOUND_MAX = 2 * DISK_MEMBERS_MAX };
struct disk_finds {
	unsigned count;
	struct disk_found *found; /* the caller's to free; DISK_FOUND_MAX of them at most */
};
/* All whose header names that pool. 0 or -errno. A device that cannot be read is passed over. */
int disk_find(const char *pool_uuid, struct disk_finds *ret);

/* Whether a block device is part of something else: 1 with the name of what is made of it, which is
 * nothing of ringvol's; 0; -errno. */
int disk_part_of(uint32_t major, uint32_t minor, char *ret_name, size_t cap);

#endif
