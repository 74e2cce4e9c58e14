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
/* Punches the next extents of a file out of it, from *at on, makes that durable and discards where
 * they were; *at moves on, to size at the end. Extents' places are known only before the punch:
 * after an interruption in between only trim_disk() helps. -EOPNOTSUPP: the disk takes no discards;
 * the punch was made. */
int trim_punch(int fd, uint64_t *at, uint64_t size);
/* Discards the free space of the next part of the disk below; *at moves on, to UINT64_MAX at the
 * end. */
int trim_disk(int fd, uint64_t *at);

#endif
