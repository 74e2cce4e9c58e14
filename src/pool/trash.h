/* SPDX-License-Identifier: Apache-2.0 */
/* A pool's trash: what it gives back, and the names in it. */
#ifndef RINGVOL_POOL_TRASH_H
#define RINGVOL_POOL_TRASH_H

#include <stdbool.h>
#include <stdint.h>

struct pool;

/* Whether a deleted image is being overwritten (eraseOnDelete: zero, and all of a raw pool), and
 * how far it is. */
bool pool_erasing(const struct pool *pool, uint64_t *ret_done_bytes, uint64_t *ret_size_bytes);

/* Whether deleted images may still have blocks, which a volume may share with them. Not told of one
 * that is attached by hand, or that another program has open. */
bool pool_trash_busy(const struct pool *pool);

/* ---- for the files of src/pool ---- */

/* 16 hex digits: deleted. With TRASH_PARKED before them: an image that is being built and has no
 * key yet; trash at the next load. */
#define TRASH_PARKED "new-"
enum {
	TRASH_NAME_BYTES = 17,
	TRASH_PARKED_NAME_BYTES = sizeof(TRASH_PARKED) - 1 + TRASH_NAME_BYTES
};

/* A name for what is parked. */
void trash_name_parked(char ret_name[TRASH_PARKED_NAME_BYTES]);
/* Whether a file of that name is one of ours, deleted or parked. */
bool trash_name_valid(const char *name);
/* Makes deleted files of those parked by an earlier run. Blocking. 0 or -errno. */
int trash_drop_parked(int trash_fd);

/* Starts reclaiming unless it runs. */
void pool_trash_kick(struct pool *pool);
/* Overwriting is stopped. The next reclaim begins it again. */
void pool_trash_stop(struct pool *pool);
/* The pool is being freed. True: a reclaim is under way, and ends on its own. */
bool pool_trash_detach(struct pool *pool);

#endif
