/* SPDX-License-Identifier: Apache-2.0 */
/* Taking pieces of a raw pool's disks for an image. */
#ifndef RINGVOL_POOL_RAW_TAKE_H
#define RINGVOL_POOL_RAW_TAKE_H

#include "pool/raw.h"
#include "reactor/op.h"

/*
 * For a step's run() and end(): takes bytes (a multiple of IMAGE_MAP_ALIGN) for the map, and waits
 * while too little is zeroed and the trash has more. ERR_NO_ROOM; ERR_UNAVAILABLE: the trash cannot
 * be overwritten, or the driver shuts down; ERR_DATA_LOSS: pool_raw.unread.
 */
int pool_raw_take(struct op *op, struct pool *pool, uint64_t bytes, struct pool_raw_wait *wait,
	struct image_map *map);
int pool_raw_take_end(struct op *op, struct pool *pool, uint64_t bytes, struct pool_raw_wait *wait,
	struct image_map *map, int res);

#endif
