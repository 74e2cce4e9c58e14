/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The device of a volume of a raw pool: a device-mapper device whose targets are the pieces of the
 * image's map. It always has two targets or more, because the kernel passes ioctls on to the disk
 * where one target covers all of a device: the last unit is a target of its own. That of a thin
 * image is one target `thin`, which passes no ioctl on: its id in the thin pool (thin_pool.h).
 *
 * Its uuid is RINGVOL-disk-<pool's uuid, 8>-<volume's random, 8>-<image's inode, hex>, its name
 * ringvol-<pool's, 8>-<random, 8>. It is ours if both are so *and* its table leads to disks of that
 * pool, as mapped_make() and mapped_pieces() see to; without the disks the table's form counts. A
 * device that was let go while somebody has it open has a table that fails every request: its
 * pieces are free to be zeroed and given to others. Synchronous, for work jobs.
 */
#ifndef RINGVOL_DISK_MAPPED_H
#define RINGVOL_DISK_MAPPED_H

#include "base/err.h"
#include "blockio/image_map.h"
#include "disk/disk.h"
#include "disk/dm.h"

#define MAPPED_UUID_PREFIX DM_OUR_UUID "disk-"

struct mapped_spec {
	const char *tag; /* "ringvol:<pool uuid, 8>:<random, 8>" */
	uint64_t image_ino;
	const struct disk *disk;
	const struct image_map *map;
	uint64_t
		size_bytes; /* of the device; whole units, two at least; at most what the map has */
};

struct mapped {
	char tag[64];
	uint64_t image_ino;
	uint32_t major, minor;
	uint64_t size_bytes; /* 0: it leads nowhere: without a table, foreign or retired */
	bool foreign;        /* its table is not ours */
	bool retired;        /* its table leads nowhere: it was let go */
	bool suspended;      /* by a driver that was killed, or somebody else */
	bool read_only;      /* by BLKROSET: its table is always writable */
	bool going_away;     /* the kernel removes it when nobody has it open any more */
	bool open;
	bool found;  /* of mapped_make(): it was there before */
	bool loaded; /* likewise: it has got another table */
};

/* The targets of an image that is not thin; *ret_count of them. -E2BIG: more than cap, which never
 * is for IMAGE_MAP_PIECES_MAX + 1. -ERANGE: a piece is on none of the disks. -EINVAL: a size that
 * cannot be. */
int mapped_table(
	const struct mapped_spec *spec, struct dm_target *ret, unsigned cap, unsigned *ret_count);
/* Makes what is missing, whatever half of it is there: device, table, the size of the table (it
 * grows in use), a device left suspended. ERR_PRECONDITION: the name is another's, or the device
 * has pieces that the map does not say; ERR_UNAVAILABLE: a disk is gone; ERR_INTERNAL. */
int mapped_make(struct dm *dm, const struct mapped_spec *spec, struct mapped *ret, struct err *err);
/* The same under a name and uuid that are no volume's; spec has no tag then. */
int mapped_make_named(struct dm *dm, const char *name, const char *uuid,
	const struct mapped_spec *spec, struct mapped *ret, struct err *err);
/* 0; -ENXIO: there is none; -EEXIST: its name is another's, or it was renamed. image_ino 0:
 * whichever image. */
int mapped_look(struct dm *dm, const char *tag, uint64_t image_ino, struct mapped *ret);
/* Lets a suspended device go on with the table it has. 0, -ENXIO or -errno. */
int mapped_wake(struct dm *dm, const char *tag, uint64_t image_ino);
/* Its device. Afterwards no process reaches the pieces, even one that has the device open;
 * *ret_waits: there is one. What the page cache had was written. A device that is gone is success.
 * ERR_PRECONDITION: its table is foreign, and nothing is known of where it leads. */
int mapped_remove(
	struct dm *dm, const char *tag, uint64_t image_ino, bool *ret_waits, struct err *err);
/* Every device with such a uuid. 0 or -errno. */
int mapped_each(struct dm *dm, void (*each)(void *arg, const struct mapped *mapped), void *arg);
/* The pieces that a device's table leads to, as addresses of that pool, or the id in its thin pool.
 * -ENXIO: gone or retired. -ERANGE: it leads elsewhere, and *ret is what of it is on the disks. */
int mapped_pieces(
	struct dm *dm, const struct disk *disk, const struct mapped *mapped, struct image_map *ret);

#endif
