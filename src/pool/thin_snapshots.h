/* SPDX-License-Identifier: Apache-2.0 */
/* What blocks snapshots in the thin pool of a raw pool have (disk/thin_blocks.h). */
#ifndef RINGVOL_POOL_THIN_SNAPSHOTS_H
#define RINGVOL_POOL_THIN_SNAPSHOTS_H

#include "blockio/extents.h"
#include "blockio/image_map.h"
#include "pool/pool.h"

struct disk;

/* All that one look at them takes. Zeroed: nothing. */
struct pool_thin_snapshots {
	struct disk *disk;
	struct image_map metadata;
	uint32_t base, target; /* ids; 0: it has no bytes yet, or there is no base */
};

/* On the loop, for each window anew: the thin pool may have grown. base: NULL, or in the same pool.
 * ERR_UNAVAILABLE and others: the pool or its thin pool cannot be used now. */
int pool_thin_snapshots_take(struct pool_thin_snapshots *s, const struct pool_object *base,
	const struct pool_object *target, struct err *err);
/* Blocking, as thin_blocks_window(). */
int pool_thin_snapshots_window(const struct pool_thin_snapshots *s, uint64_t from, uint64_t to,
	struct extent_ranges *ret, uint64_t *ret_to);
void pool_thin_snapshots_release(struct pool_thin_snapshots *s);

#endif
