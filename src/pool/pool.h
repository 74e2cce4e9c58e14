/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A pool: a directory whose tree is the database. And its objects: volumes and snapshots.
 *
 *   <pool>/ringvol.pool        "ringvol-pool 1\nuuid=...\n"; flock'ed by the driver that serves it
 *   <pool>/volumes/<key>       the image, record in its attribute trusted.ringvol
 *   <pool>/snapshots/<key>     likewise
 *   <pool>/templates/<name>    formatted empty images to clone from; a cache
 *   <pool>/trash/<random>      renamed here by delete, bytes reclaimed in the background
 *   <pool>/copies/part-<key>   a volume whose bytes come from another node, half made (part.h)
 *   <pool>/copies/send-<random>[.grant]   what another node copies, and for whom (hold.h)
 *   <pool>/groups/<key>        snapshots that were taken at one moment (group.h)
 *
 * A create builds an unnamed file (O_TMPFILE) and links it into place: the link is the commit, and
 * a crash before it leaves nothing. A delete is a rename to trash. Memory holds an index of what
 * the directories say; it is read at start and changed only after the change is durable.
 *
 * A header for each thing that is done with a pool: pools.h opens, loads and looks after all of
 * them, index.h finds objects, room.h tells what may be promised, and build.h, fill.h, grow.h,
 * remove.h and sync.h have the operations. Each of these is durable when it ends well, and leaves
 * nothing when it does not.
 */
#ifndef RINGVOL_POOL_POOL_H
#define RINGVOL_POOL_POOL_H

#include "base/err.h"
#include "blockio/fs_features.h"
#include "pool/attachment.h"
#include "pool/record.h"

#include <stdbool.h>
#include <stdint.h>

enum {
	POOLS_MAX = 16,
	POOL_OBJECTS_MAX = 100000, /* volumes and snapshots of one pool; then ERR_NO_ROOM */
	POOL_SIZE_ALIGN = 1 << 20, /* volume sizes are multiples */
	POOL_UNREAD_WAIT_MS = 60000,
};

struct pool;
struct pools;
struct lane;

enum pool_state {
	POOL_LOADING, /* not read yet */
	POOL_READY,
	POOL_MISSING, /* no ringvol.pool file (not mounted?), or locked by another driver */
	POOL_SICK,    /* calls on it hang or fail, or it is read-only */
};

/* How an object's image is, as of the last look. */
enum pool_image {
	POOL_IMAGE_WHOLE,
	POOL_IMAGE_TRUNCATED, /* shorter than its record says */
	POOL_IMAGE_MISSING,   /* not there any more */
};

/* A volume or snapshot. It stays valid while an operation of csi has its lock, and between two
 * awaits of the loop. */
struct pool_object {
	struct pool *pool;
	char key[RECORD_KEY_MAX];
	struct record *rec; /* NULL: quarantined, see why */
	/* The nodes that it is given to (attach.h changes them); NULL: none, and of a snapshot. */
	struct attachments *attachments;
	const char *why;          /* static: what is wrong with a quarantined object */
	enum record_kind kind;    /* from the directory it is in */
	uint64_t allocated_bytes; /* as of the last measure */
	/* st_dev and inode of the image, by which a device that is bound to it is known. They stay
	 * while the image is missing. */
	uint64_t image_dev, image_ino;
	enum pool_image image;
	uint64_t
		wrong_since_ns; /* since when (ring_now_ns) it is not whole; 0: since it was read */
	bool shared; /* other objects share its extents: of its clones, snapshots and theirs one is
		      * left */
	bool unsynced; /* its creation is not known to be durable: see sync.h */
	/* The node's: what is attached and mounted, NULL: nothing; and the number of the last scan
	 * that left the object out, as an operation worked on it (node/adopt.h). */
	void *node;
	uint64_t left_out;
	/* The member's: a hash of what controllers know of it; 0: they were told nothing. */
	uint64_t told;
};

/* ---- which ---- */

struct pool *pools_at(const struct pools *pools, unsigned i); /* NULL past the end */
struct pool *pools_by_name(const struct pools *pools, const char *name);
struct pool *pools_by_uuid8(const struct pools *pools, const char *uuid8);

const char *pool_name(const struct pool *pool);
const char *pool_path(const struct pool *pool);
/* First 8 hex digits of its uuid; "" until it was loaded once. */
const char *pool_uuid8(const struct pool *pool);

/* All of it, as ringvol.pool has it; "" likewise. */
const char *pool_uuid(const struct pool *pool);

/* ---- how it is ---- */

enum pool_state pool_state(const struct pool *pool);
/* Whether nobody knows yet what it has, and somebody will soon: it is loading, or that hangs since
 * less than POOL_UNREAD_WAIT_MS, as on a machine that is busy. */
bool pool_is_being_read(const struct pool *pool);
/* Why it is not ready, in a sentence with the remedy; "" when it is. */
const char *pool_why(const struct pool *pool);
/* Since when (ring_now_ns) it has been in this state. */
uint64_t pool_state_since_ns(const struct pool *pool);
/* False while calls on it hang or fail; pool_why() then says so. */
bool pool_answers(const struct pool *pool);
/* 0, or ERR_UNAVAILABLE with pool_why(). */
int pool_check_ready(const struct pool *pool, struct err *err);

/* ---- for calls on its files ---- */

const struct fs_features *pool_features(const struct pool *pool);
uint32_t pool_block_size(const struct pool *pool); /* default logical block size of its devices */
/* Its volumes' bytes are on disks (raw.h), not in files: all are thick, and nothing is shared.
 * False until it was loaded once. */
bool pool_is_raw(const struct pool *pool);
/* Directory fd of volumes/ or snapshots/; -1 unless ready. */
int pool_dirfd(const struct pool *pool, enum record_kind kind);
/* The flock'ed file that keeps other drivers from the pool; -1 while it is not loaded. */
int pool_lock_fd(const struct pool *pool);
/* The lane of all calls on the pool's files: op->lane of every operation that makes such calls.
 * NULL if pool is NULL. */
struct lane *pool_lane(const struct pool *pool);

#endif
