/* SPDX-License-Identifier: Apache-2.0 */
/* How much of a thin image has blocks of the thin pool: asked of its device, or where it has none,
 * read from the thin pool's metadata as of their last commit. To make a device for the question
 * takes tens of milliseconds each. */
#ifndef RINGVOL_POOL_RAW_MEASURE_H
#define RINGVOL_POOL_RAW_MEASURE_H

#include "disk/disk.h"
#include "disk/dm.h"
#include "disk/thin_tree.h"
#include "pool/pool.h"

/* What is asked about. */
struct raw_measure {
	uint32_t id;
	char uuid[DM_UUID_LEN]; /* of its device */
};
/* id 0: the object's image is not thin. */
void raw_measure_put(struct raw_measure *ret, struct pool_object *object);
/* Of its device. Blocking. 0 or -errno; -ENXIO: it has none. */
int raw_measure(const struct raw_measure *m, uint64_t *ret_bytes);

/* For many of one pool: the metadata are read once, when the first has no device. */
struct raw_measures {
	struct disk *disk; /* a reference; NULL: it is no raw pool */
	struct image_map metadata;
	/* private */
	bool read;
	int res;
	struct thin_ids ids;
};
void raw_measures_init(struct raw_measures *ret, const struct pool *pool);
void raw_measures_free(struct raw_measures *measures);
/* Blocking. 0 or -errno. */
int raw_measures_ask(
	struct raw_measures *measures, const struct raw_measure *m, uint64_t *ret_bytes);

#endif
