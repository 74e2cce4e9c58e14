/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arrivals: the finished parts of volumes that move here (pool_part_finish()). Such a volume may
 * have left where it was, and then the part is all there is of it: whoever made it goes on with it,
 * by its text, also after a restart.
 */
#ifndef RINGVOL_POOL_ARRIVAL_H
#define RINGVOL_POOL_ARRIVAL_H

#include "base/list.h"
#include "pool/part.h"

struct pool;

/* A finished part that is no volume yet. */
struct pool_arrival {
	struct list link;         /* the pool's */
	char key[RECORD_KEY_MAX]; /* the volume's to be */
	size_t len;
	char text[POOL_PART_TEXT_MAX];
};
/* The first behind `after` (NULL: the first of all) of one pool. It stays valid until the pool is
 * loaded again, or its volume is built. */
struct pool_arrival *pool_arrival_next(const struct pool *pool, const struct pool_arrival *after);
/* A part is finished. 0 or -ENOMEM. */
int pool_arrival_add(struct pool *pool, const char *key, const char *text, size_t len);
/* It is a volume, or a part like any other. */
void pool_arrival_forget(struct pool *pool, const char *key);

/* ---- for the files of src/pool ---- */

/* Those of copies/, onto the list. Blocking. 0 or -errno: what can be read counts. */
int pool_arrivals_read(int copies_fd, struct list *ret_arrivals);
/* What was read is what there is. */
void pool_arrivals_adopt(struct pool *pool, struct list *arrivals);
void pool_arrivals_free(struct list *arrivals);

#endif
