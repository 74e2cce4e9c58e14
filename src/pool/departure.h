/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Departures: a volume that has moved to another pool leaves a note behind, so that its id never
 * reads as "gone" here. The note, durable, is the commit of a move: before it the volume is here,
 * from it on it is the other pool's, and its image goes to the trash, by whoever finds it.
 *
 *   departed/<key>   text: the volume's id, how often it has moved by that, the pool and node that
 *                    it went to, and the grant by which
 *
 * A note ends when the volume is deleted where it has gone (pool_departure_drop()), or is back.
 */
#ifndef RINGVOL_POOL_DEPARTURE_H
#define RINGVOL_POOL_DEPARTURE_H

#include "pool/hold.h"
#include "pool/pool.h"
#include "pool/remove.h"

struct pool_departure {
	struct list link; /* the pool's */
	struct pool *pool;
	char key[RECORD_KEY_MAX];
	char id[RECORD_ID_MAX];
	uint64_t moves;                  /* the volume's from then on */
	char to[RECORD_POOL_DIGITS + 1]; /* the pool's uuid */
	char node_id[POOL_HOLD_NODE_MAX];
	char grant[POOL_GRANT_BYTES];
};

/* The departure of the volume from a pool that is loaded here; NULL: none. */
struct pool_departure *pools_departure(const struct pools *pools, const char *id);
/* Likewise by name: nothing of that name is made in a pool that it has left. */
struct pool_departure *pools_departure_by_key(const struct pools *pools, const char *key);
/* The first behind `after` (NULL: the first of all) of one pool. */
struct pool_departure *pool_departure_next(
	const struct pool *pool, const struct pool_departure *after);
/* Of a call for the id: ERR_UNAVAILABLE "... has moved to pool ... of node ...". */
int pool_departure_refuse(const struct pool_departure *departure, struct err *err);

/*
 * note [commit] -> the image goes to the trash (remove.h). The caller has the volume alone, and
 * nobody uses it. A note that is there already is enough; volume NULL: so is an image that is gone.
 */
struct pool_depart {
	struct op op;
	struct pool *pool;
	struct pool_object *volume;
	/* Filled in but for link and pool. */
	struct pool_departure note;
	/* private */
	struct pool_departure *made;
	struct pool_remove remove;
	int dir_fd;
	unsigned text_len;
	char text[RECORD_ID_MAX + POOL_HOLD_NODE_MAX + 256];
};
void pool_depart_init(struct pool_depart *d, struct reactor *reactor, struct pool *pool,
	struct pool_object *volume, const struct pool_departure *note);
void pool_depart_free(struct pool_depart *d); /* what is left after the end */

/* Takes the note away, durably. */
struct pool_departure_drop {
	struct op op;
	struct pool_departure *departure;
	/* private */
	int dir_fd;
	char key[RECORD_KEY_MAX];
};
void pool_departure_drop_init(
	struct pool_departure_drop *d, struct reactor *reactor, struct pool_departure *departure);

#endif
