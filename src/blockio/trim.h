/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Having a disk discard what a file on it gives back. A file system tells the disk of freed blocks
 * only if it is mounted with `discard`, or when FITRIM asks it to, for a part of the disk. FITRIM
 * touches free space alone: what other files share or have taken meanwhile stays.
 *
 * Blocking: for work jobs. What the disk does with a discard is the disk's: most read zeros
 * afterwards, none has to.
 */
#ifndef RINGVOL_BLOCKIO_TRIM_H
#define RINGVOL_BLOCKIO_TRIM_H

#include <stdbool.h>
#include <stdint.h>

/* Whether a file system, fd being open on it, hands discards to a disk that takes them; nothing is
 * discarded. 0 or -errno. */
int trim_probe(int fd, bool *ret_supported);
/* Places that the disk was asked to discard and may be at yet. XFS asks and returns (newer kernels;
 * seen on Linux 6.18), and passes over free space that it discards at that moment. Empty: all
 * zeros. */
struct trim_asked {
	struct trim_place *places;
	unsigned count, waited_ms;
};

void trim_asked_clear(struct trim_asked *asked);

/* Punches the next extents of a file out of it, from *at on, makes that durable and has the disk
 * discard where they were; *at moves on, to size at the end. Extents' places are known only before
 * the punch: after an interruption in between only trim_disk() helps. -EOPNOTSUPP: the disk takes
 * no discards; the punch was made. asked, which is empty: the places; trim_settle() has to follow
 * until they are done. */
int trim_punch(int fd, uint64_t *at, uint64_t size, struct trim_asked *asked);
/* The same with the free space of the next part of the disk below; *at moves on, to UINT64_MAX at
 * the end, and then nothing is asked for. */
int trim_disk(int fd, uint64_t *at, struct trim_asked *asked);
/* Waits a moment and asks again for what may be under way; fd: any file of that file system. 1: all
 * is discarded, or it was waited for TRIM_SETTLE_MS, as somebody takes what is free there again and
 * again; asked is empty. 0: not yet. -errno: the disk refuses. */
enum { TRIM_SETTLE_MS = 10000 };
int trim_settle(int fd, struct trim_asked *asked);

#endif
