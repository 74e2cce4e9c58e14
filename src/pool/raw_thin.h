/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The thin pool of a raw pool, as the loop sees it: whether it is there and active, which ids are
 * taken, and how much room it has. For the files of src/pool.
 *
 * It is made by the first thin volume and taken away some time after the last; both are the work of
 * thin_keep.h, as is that it has room. The rule for ids is that of all images: a file has the id in
 * its map, durably, before dm-thin hears of it, and is unlinked only when dm-thin has forgotten it.
 */
#ifndef RINGVOL_POOL_RAW_THIN_H
#define RINGVOL_POOL_RAW_THIN_H

#include "disk/thin_pool.h"
#include "pool/pool.h"
#include "pool/room.h"
#include "pool/thin_templates.h"

enum thin_life {
	THIN_NONE, /* no image of a thin pool is there */
	THIN_DOWN, /* its images are there, and it is not active yet */
	THIN_UP,
};

enum { THIN_WHY_BYTES = 384 };

/* pool->raw->thin. Like all of pool_raw it is the loop's, and made anew by a load. */
struct pool_thin {
	enum thin_life life;
	char why[THIN_WHY_BYTES]; /* why it could not become active; "": it was not tried */
	enum err_code why_code;
	bool checking; /* thin_check runs, and has for seconds */
	bool refused;  /* its images contradict what other files say: nothing is done with it */
	/* Files that have an id, wherever they are. */
	unsigned files;
	uint32_t next_id, ids_left; /* what no file has, from next_id on */
	uint32_t block_bytes;
	struct image_map metadata, data;
	/* A growth has failed half way: what the images say, and what the devices have, may be
	 * less. */
	bool half_grown;
	struct thin_templates templates;
	/* as of the last look */
	bool looked;
	struct thin_status status;
	bool fails_when_full; /* as its table is */
	bool short_of_room;   /* less is unused than there should be, and the area gives no more */
	uint64_t short_since_ns, wrong_since_ns; /* ring_now_ns(); 0: not so */
};

/* What is wrong with a pool's thin pool, for health. */
struct pool_thin_state {
	bool wrong;               /* nobody can write to it, or nobody can use it at all */
	char why[THIN_WHY_BYTES]; /* with the remedy */
	bool low;                 /* it cannot be grown any more, and has little unused */
	uint64_t unused_bytes;
	uint64_t wrong_since_ns, low_since_ns;
};
/* All false: it is well, or there is none. */
void pool_thin_state(const struct pool *pool, struct pool_thin_state *ret);

/* A volume or snapshot whose image is in the thin pool, or will be. */
bool pool_raw_is_thin(const struct record *rec);
/* The same, and it has bytes: its map has an id. */
bool pool_raw_has_id(const struct record *rec);

/* An id that no file has. ERR_NO_ROOM: all are used up, until the pool is loaded again. It counts
 * as a file from now on. */
int thin_take_id(struct pool *pool, uint32_t *ret_id, struct err *err);
/* What has it is unlinked. */
void thin_drop_id(struct pool *pool);
/* Chooses what ids are given out. ids: of all files, in any order; they are sorted. -EEXIST: two
 * are equal. */
int thin_choose_ids(struct pool_thin *thin, uint32_t *ids, size_t count);

/* What is to be held still of an object while a snapshot of it is made: the devices of a volume,
 * whether they are there or not. frozen: its file system is. -errno. */
int thin_still_of(const struct pool_object *object, bool frozen, struct thin_still *ret);

/* What a refusal of dm-thin means. */
int thin_fail(struct err *err, int res, const struct pool *pool, const char *name);

/* How much of its data is in use, and is not. */
uint64_t thin_used_bytes(const struct pool *pool);
uint64_t thin_unused_bytes(const struct pool *pool);
/* It was looked at, and takes no writes: it has to be taken away, checked and made anew. */
bool thin_is_wrong(const struct pool_thin *thin);
/* So much is to be unused, so that who writes does not wait. */
uint64_t thin_headroom_bytes(uint64_t area_bytes);

#endif
