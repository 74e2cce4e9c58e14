/* SPDX-License-Identifier: Apache-2.0 */
/* How much of a thin image has blocks of the thin pool: asked of its device, or of one that is made
 * for a moment. */
#ifndef RINGVOL_POOL_RAW_MEASURE_H
#define RINGVOL_POOL_RAW_MEASURE_H

#include "disk/disk.h"
#include "disk/dm.h"
#include "pool/pool.h"

/* What is asked about. */
struct raw_measure {
	uint32_t id;
	uint64_t size_bytes;
	char uuid[DM_UUID_LEN]; /* of its device */
};
/* id 0: the object's image is not thin. */
void raw_measure_put(struct raw_measure *ret, struct pool_object *object);
/* Blocking. 0 or -errno. */
int raw_measure(const struct disk *disk, const struct raw_measure *m, uint64_t *ret_bytes);

#endif
