/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Giving back the pieces of a raw pool's disks that a deleted image has. They are overwritten from
 * the image's end, RAW_GIVE_BYTES at a time; then the map is cut, durably, and only then they are
 * free. So what is free is zeros after a crash at any moment, and nothing is overwritten twice but
 * the last bytes. For trash.c.
 */
#ifndef RINGVOL_POOL_TRASH_RAW_H
#define RINGVOL_POOL_TRASH_RAW_H

#include "blockio/image_map.h"
#include "disk/disk.h"

#include <stdbool.h>

struct pool;

/* The image that is being given back. The thread's and the loop's in turn. */
struct trash_raw {
	struct disk *disk; /* a reference; NULL: of a directory pool */
	bool doubt; /* not all maps are known, or two have the same pieces: nothing is overwritten
		     */
	struct image_map map;
	uint64_t zeroed_from; /* from here to the map's end all is zeros */
	uint64_t size_bytes;  /* of the map, when the image was opened */
	/* Of a thin image: whether the thin pool can be told; and what was told and unlinked, of
	 * which the loop takes note. */
	bool thin_up;
	unsigned thin_gone;
	bool uncut; /* all is zeros, and the map says what it said: its file has to go for good */
	/* Cut off, and to be given back by the loop. */
	struct image_map cut;
	uint64_t cut_from, cut_bytes;
};

/* As the pool is now: its disks, and what is known of its maps. */
void trash_raw_begin(struct trash_raw *raw, const struct pool *pool);
void trash_raw_end(struct trash_raw *raw);

/* ---- on a thread ---- */

/* 0: the image has a map, and its pieces can be overwritten. -ENODATA: it has none, and never had a
 * byte on the disks. -EBUSY: a device leads to its pieces. Another -errno: nobody can tell. */
int trash_raw_open(struct trash_raw *raw, int fd);
/* Overwrites at most ZERO_AT_ONCE_BYTES. 1: nothing is left; 0: there is more; -errno. */
int trash_raw_piece(struct trash_raw *raw, int fd);
/* The file is unlinked; of one that is `uncut` durably: what it had is to be given back. */
void trash_raw_gone(struct trash_raw *raw);

/* ---- on the loop ---- */

/* Gives back what was cut off, if anything, and wakes who waits for it. */
void trash_raw_give(struct trash_raw *raw, struct pool *pool);

#endif
