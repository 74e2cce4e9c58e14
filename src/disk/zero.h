/* SPDX-License-Identifier: Apache-2.0 */
/* Overwriting parts of a pool's disks with zeros. Blocking. */
#ifndef RINGVOL_DISK_ZERO_H
#define RINGVOL_DISK_ZERO_H

#include "disk/disk.h"

/* The kernel writes zeros, or has the disk write them (write zeroes), never by discarding: it does
 * not say whether discarded blocks read as zeros. Durable when it returns 0: the disk was flushed.
 * One call overwrites at most ZERO_AT_ONCE_BYTES, so that no thread is kept long. */
enum { ZERO_AT_ONCE_BYTES = 64 << 20 };
/* How much it overwrote from `address`, or -errno. -ERANGE: no disk has the address. */
int64_t disk_zero(const struct disk *disk, uint64_t address, uint64_t bytes);
/* Flushes the caches of all disks. 0 or -errno. */
int disk_flush(const struct disk *disk);

#endif
