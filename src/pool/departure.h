/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Departures: a volume that has moved to another pool leaves a note behind, so that its id never
 * reads as "gone" here. The note, durable, is the commit of a move: before it the volume is here,
 * from it on it is the other pool's, and its image goes to the trash, by whoever finds it.
 *
 *   departed/<key>   text: the volume's id, how often it has moved by that, the pool and node that
 *                    it went to, and the grant by which (departure_file.h)
 *
 * A note ends when the volume is deleted where it has gone, or is back (departure_drop.h). Until
 * then nothing else of that name is made in the pool. One that cannot be read is never guessed at:
 * it stays, and a volume of its name is quarantined.
 */
#ifndef RINGVOL_POOL_DEPARTURE_H
#define RINGVOL_POOL_DEPARTURE_H

#include "base/list.h"
#include "pool/hold.h"
#include "pool/pool.h"

/* Of a volume that left a pool. It stays valid as an object does (pool.h). */
struct pool_departure {
	struct list link; /* the pool's */
	struct pool *pool;
	char key[RECORD_KEY_MAX];
	char id[RECORD_ID_MAX];
	uint64_t moves;                  /* the volume's from then on */
	char to[RECORD_POOL_DIGITS + 1]; /* the pool's uuid */
	char node_id[POOL_HOLD_NODE_MAX];
	char grant[POOL_GRANT_BYTES];
	const char *why; /* static: why the note cannot be read, then only its key is known; NULL:
			  * it can */
	bool unsynced;   /* it is not known to be durable: the move is not committed, nor undone */
	bool back;       /* the volume is here again: as good as gone */
};

/* The departure of the volume from a pool that is loaded here; NULL: none that can be read. */
struct pool_departure *pools_departure(const struct pools *pools, const char *id);
/* Likewise by name, of one pool, also what cannot be read. */
struct pool_departure *pool_departure_by_key(const struct pool *pool, const char *key);
/* Whether a note of the pool cannot be read: nobody knows what has left it. */
bool pool_departures_unread(const struct pool *pool);
/* Whether a volume with that random part of its id has left the pool, or may have. */
bool pool_random_departed(const struct pool *pool, const char *random);
/* The first behind `after` (NULL: the first of all) of one pool, also what cannot be read. */
struct pool_departure *pool_departure_next(
	const struct pool *pool, const struct pool_departure *after);
/* It has left its pool, and could not go to the trash so far: it is no volume any more. */
bool pool_object_has_left(const struct pool_object *object);
/* Of a call for the id: ERR_UNAVAILABLE "... has moved to pool ... of node ...". */
int pool_departure_refuse(const struct pool_departure *departure, struct err *err);

/* ---- for the files of src/pool ---- */

enum { DEPARTURE_TEXT_MAX = 256 + RECORD_ID_MAX + 3 * POOL_HOLD_NODE_MAX };

/* 0, or ERR_UNAVAILABLE: the volume of that id has left a pool that is loaded here, or may have. */
int pools_departure_check(const struct pools *pools, const char *id, struct err *err);
/* The note of a volume that is back; NULL: none is left. */
struct pool_departure *pool_departure_of_back(const struct pool *pool, const char *key);
/* Onto the pool's list. */
void pool_departure_enter(struct pool *pool, struct pool_departure *departure);
/* Off the list; who has it may read it until the pool is closed. */
void pool_departure_put_aside(struct pool_departure *departure);
/* Takes over what was read: the list is what the notes are now. */
void pool_departures_adopt(struct pool *pool, struct list *found);
void pool_departures_free(struct list *departures);

#endif
