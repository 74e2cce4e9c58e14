/* SPDX-License-Identifier: Apache-2.0 */
/* Reading the maps of a raw pool, whose sum is what is occupied. Blocking: for load.c. */
#ifndef RINGVOL_POOL_RAW_LOAD_H
#define RINGVOL_POOL_RAW_LOAD_H

#include "pool/layout.h"
#include "pool/raw.h"

/* found: all objects of the pool, sorted by kind and key; those whose map is not sound become
 * quarantined. Takes over the reference to disk with 0. -errno with *err set. */
int pool_raw_load(struct disk *disk, const int fds[POOL_FDS], struct pool_found *found,
	size_t count, struct pool_raw **ret, struct err *err);

/* The map of a file of a raw pool. -ENODATA: it has none, and need not be an image at all. */
int pool_raw_map(int dirfd, const char *name, struct image_map *ret);
/* Whether a file without a map may have lost it: one that is named like a volume, or one in the
 * trash that is not empty. Its record says nothing: what takes a map takes the record with it. */
bool pool_raw_lost_map(int dirfd, const char *name, bool trash);

/* Each name in lost+found of the records, which need not be there. */
int pool_raw_each_lost(int root, int (*each)(void *arg, const char *name), void *arg);

#endif
