/* SPDX-License-Identifier: Apache-2.0 */
/* What a pool may still promise, and how full its file system is. */
#ifndef RINGVOL_POOL_ROOM_H
#define RINGVOL_POOL_ROOM_H

#include "pool/pool.h"
#include "reactor/op.h"

/*
 * What may still be promised, bytes, rounded down to POOL_SIZE_ALIGN:
 *   (free + allocated by volumes that share nothing - reserve) * overcommit
 *       - sizes of all volumes - what running creates have reserved
 * A snapshot's blocks are not free any more. A snapshot also makes its volume's blocks shared, so
 * that every one of them may be needed again. A further snapshot of that volume changes nothing
 * here; it is taken while the result is not below 0. Thick volumes also need space that is really
 * free, and that no other thick volume is still owed (record.h: unformatted).
 */
struct pool_room {
	uint64_t capacity_bytes, free_bytes; /* the file system's */
	uint64_t provisioned_bytes;          /* sizes of all volumes */
	uint64_t allocated_bytes;
	uint64_t available_bytes; /* for a thin volume */
	uint64_t available_thick_bytes;
	uint64_t zeroing_bytes;               /* of a raw pool: free, but still to be overwritten */
	uint64_t thin_bytes, thin_used_bytes; /* likewise: of its thin pool's data */
};
/* As of the last measure and all creates since. */
void pool_room(const struct pool *pool, struct pool_room *ret);
/* True while a measure of at most that age is known. */
bool pool_room_known(const struct pool *pool, uint64_t max_age_ms);

/* How full the file system is, as seen every POOL_CHECK_MS and by each measure. */
enum pool_usage_level {
	POOL_ROOMY,
	POOL_NEARLY_FULL, /* less than 3% free, until 4% are */
	POOL_FULL,        /* less than 16 MiB (of a small one 1/256) free, until twice that is */
};
struct pool_usage {
	enum pool_usage_level level;
	uint64_t since_ns;                   /* ring_now_ns() when the level changed; 0: never */
	uint64_t capacity_bytes, free_bytes; /* 0 until seen */
};
const struct pool_usage *pool_usage(const struct pool *pool);

/* Child operation: measures (statfs, and what attached images use), unless that was done less than
 * max_age_ms ago. Looking at the attached images costs 7 us each. */
struct pool_measure {
	struct op op;
	struct pool *pool;
	uint64_t max_age_ms;
	/* Set it after init: the file system is asked what is free now, however old the measure of
	 * the images is. What has gone since that measure then counts as gone, though a volume may
	 * have used it that was promised it. What has come back does not count yet: a volume may
	 * use it again. */
	bool free_now;
	/* private */
	struct pool_measure_job *job;
};
void pool_measure_init(
	struct pool_measure *m, struct reactor *reactor, struct pool *pool, uint64_t max_age_ms);
/* Tells what one image has just been seen to use, without a measure of the pool: what it has grown
 * by is no longer free. */
void pool_object_measured(struct pool_object *object, uint64_t allocated_bytes);

/* ---- for the files of src/pool ---- */

/* Room for what an operation makes. Embed it. */
struct pool_admission {
	struct pool_measure measure;
	struct pool *pool;
	uint64_t bytes;
	/* How many of them are allocated already, beyond what the object was promised. */
	uint64_t has_bytes;
	bool thick;
	uint64_t reserved;
};
/* For a step's run() and end(), all but measure and reserved being set: measures if need be, and
 * reserves. ERR_NO_ROOM. */
int pool_admit(struct op *op, struct pool_admission *a);
int pool_admit_end(struct op *op, struct pool_admission *a, int res);
/* So much of what is reserved is allocated now, and so no longer free. */
void pool_admit_has(struct pool_admission *a, uint64_t bytes);
/* Gives back what is reserved, if anything. */
void pool_admit_release(struct pool_admission *a);
/* Blocks were used (by something measured as an object's) since the last measure. */
void pool_room_used(struct pool *pool, uint64_t bytes);
/* The next admission measures again. */
void pool_room_stale(struct pool *pool);
/* The file system has just been seen to have so much. A raw pool has what its disks have. */
void pool_usage_see(struct pool *pool, uint64_t capacity_bytes, uint64_t free_bytes);

#endif
