/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Making, growing and letting go of raw pools: what `ringvol pool` does to the disks. What it does
 * to the records is src/pool/raw_init.h's, between begin and end. Blocking.
 */
#ifndef RINGVOL_DISK_INIT_H
#define RINGVOL_DISK_INIT_H

#include "disk/header.h"

enum { DISK_LEAST_BYTES = 1 << 30 };

/* A change that has begun. */
struct disk_change {
	bool existed; /* there is nothing to do, and nothing was changed */
	struct disk *disk;
	/* What the pool gets by it: never zeroed, so files in the trash must own it before the
	 * change ends. 0 bytes: nothing. */
	uint64_t start, bytes;
	struct disk_header first; /* as it is on the first disk, or will be at the end */
	/* private */
	const char *path;
	struct disk_header grown; /* of disk_grow_begin: what the disk's header will be */
	int fd;                   /* that disk, unless it is the first; else -1 */
};

/*
 * Makes a device the first disk of a raw pool, and the empty (or missing) directory its place. The
 * device is a disk, partition, md array, logical or loop volume. ERR_PRECONDITION, naming what was
 * found, if anything knows the device: a file system, a partition table, a header of ours, a
 * holder, a mount; or if it is smaller than DISK_LEAST_BYTES. Nothing was written then. 0 with
 * ret->existed: it is the first disk of a pool already, and the directory is its place now. A crash
 * before the end leaves a device that this takes again. With 0 disk_change_drop() ends it.
 */
int disk_init_begin(const char *device, const char *path, struct disk_change *ret, struct err *err);
/* Makes the file system for the records (a child, mkfs.xfs). */
int disk_init_records(const struct disk_change *change, struct err *err);
int disk_init_end(struct disk_change *change, struct err *err);

/* Adds a device to the pool, or (device NULL) takes in what one of its disks has grown by: to be
 * repeated until there is none. Disk: the pool's, of DISK_CHANGE; the caller has the pool's lock,
 * so that no driver serves it. As above;
 * a crash before the end leaves a pool that no driver serves until this has come to its end. */
int disk_grow_begin(const char *path, struct disk *disk, const char *device,
	struct disk_change *ret, struct err *err);
int disk_grow_end(struct disk_change *change, struct err *err);

/* Without an end before: as a crash leaves it. */
void disk_change_drop(struct disk_change *change);

/* Says that no node serves the pool any more: its disks may move. ERR_PRECONDITION: a process of
 * this machine has its records open, or devices of its volumes are there. take_over: of another
 * node's pool, which is known to be off; what that node may still write destroys the pool. */
int disk_release(const char *path, bool take_over, struct err *err);

#endif
