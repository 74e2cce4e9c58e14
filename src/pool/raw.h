/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a raw pool has that a directory pool has not: disks, and an area of extents. Everything else
 * is as in any pool: an image is a file (without blocks) whose name, record, build, trash and crash
 * rules are those of every image. For the files of src/pool.
 *
 * The order that keeps another tenant's bytes away:
 *   build:  take pieces (they are zeros) -> map on the unnamed file -> park, durable -> write bytes
 *           -> record -> rename to its key
 *   grow:   take -> map, durable -> size -> record -> device
 *   delete: rename to trash -> (no device has it) overwrite from the end, and after each
 *           RAW_GIVE_BYTES: cut the map, durable, give back -> unlink
 *   load:   every map of every directory is occupied; what is free is zeros
 * Thin images have their bytes in the thin pool (raw_thin.h), whose own two images are like any:
 *   build:  map with an id on the unnamed file -> park, durable -> message -> (bytes) -> record ->
 *           rename to its key
 *   delete: rename to trash -> (no device has it) message -> unlink
 */
#ifndef RINGVOL_POOL_RAW_H
#define RINGVOL_POOL_RAW_H

#include "base/list.h"
#include "disk/area.h"
#include "disk/disk.h"
#include "pool/pool.h"
#include "pool/raw_thin.h"
#include "pool/room.h"

enum { RAW_GIVE_BYTES = 1 << 30, RAW_NAME_BYTES = 300 };

/* pool->raw; NULL: a directory pool, or a raw one that was never loaded. The loop's alone, but for
 * the disk, of which a job on a thread holds a reference. A reload replaces it: not while an
 * operation changes the pool or its trash is being reclaimed. */
struct pool_raw {
	struct disk *disk;
	struct area *area;
	uint64_t dirty_bytes; /* of images in the trash: free when they are overwritten */
	struct list waiting;  /* pool_raw_wait: builds and growths that wait for that */
	struct pool_thin thin;
	/* The maps of two images have the same pieces: nothing that is in the trash is overwritten,
	 * for its pieces may be a volume's. */
	bool overlaps;
	/* An image whose map cannot be read, "volumes/<name>": what it occupies is not known, and
	 * nothing is given out. "": all could be read. */
	char unread[RAW_NAME_BYTES];
};

void pool_raw_free(struct pool_raw *raw); /* NULL: nothing */

/* Free, or free as soon as it is overwritten, or unused in the thin pool. */
uint64_t pool_raw_free_bytes(const struct pool *pool);
void pool_raw_room(const struct pool *pool, struct pool_room *ret);
/* As pool_admit_end(). */
int pool_raw_reserve(struct pool_admission *a, struct err *err);
/* Why so much cannot be had: ERR_DATA_LOSS of pool_raw.unread; ERR_NO_ROOM. */
int pool_raw_refuse_unread(const struct pool *pool, struct err *err);
int pool_raw_refuse_full(const struct pool *pool, uint64_t bytes, struct err *err);

/* How much of the disks the image of a volume has: all of it, or nothing while it is unformatted.
 */
uint64_t pool_raw_bytes(const struct record *rec);

/* A wait for zeroed pieces. Embed it. */
struct pool_raw_wait {
	struct list link;
	struct op *op;
	uint64_t dirty_bytes; /* in the trash, when the reclaim that it waits for began */
};
/* Whoever waits looks again: pieces were given back, a reclaim of the trash has ended, the pool is
 * no longer served, or the driver shuts down. */
void pool_raw_wake(struct pool *pool);

/* Says what a failed call on a file of a pool means: where the records of a raw pool are full, it
 * names them, and the remedy. As err_sys(). */
int pool_fail_sys(const struct pool *pool, struct err *err, int res, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));

#endif
