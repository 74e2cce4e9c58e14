/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The device that a build writes a new thin image through: it has no name of a volume's, so nobody
 * takes it for one. It lasts as long as the build; what a killed driver has left is swept when the
 * thin pool is active again. Blocking.
 */
#ifndef RINGVOL_POOL_THIN_FILL_H
#define RINGVOL_POOL_THIN_FILL_H

#include "base/err.h"
#include "disk/disk.h"
#include "disk/dm.h"

struct thin_fill {
	char uuid[DM_UUID_LEN];
	int fd; /* O_DIRECT; -1: none */
};

/* fill->fd is -1 before. */
int thin_fill_open(struct thin_fill *fill, const struct disk *disk, uint32_t id,
	uint64_t size_bytes, struct err *err);
/* What was written is durable with 0. */
int thin_fill_sync(const struct thin_fill *fill);
/* Nothing is left of it. Takes two of the kernel's grace periods: tens of milliseconds. */
void thin_fill_close(struct thin_fill *fill);
/* The same, and the kernel does it soon: until then its id cannot be deleted (-EBUSY). */
void thin_fill_leave(struct thin_fill *fill);
void thin_fill_sweep(struct dm *dm, const char *pool_uuid);

#endif
