/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pools: directories whose tree is the database.
 *
 *   <pool>/ringvol.pool        "ringvol-pool 1\nuuid=...\n"; flock'ed by the driver that serves it
 *   <pool>/volumes/<key>       the image, record in its attribute trusted.ringvol
 *   <pool>/snapshots/<key>     likewise
 *   <pool>/templates/<name>    formatted empty images to clone from; a cache
 *   <pool>/trash/<random>      renamed here by delete, bytes reclaimed in the background
 *
 * A create builds an unnamed file (O_TMPFILE) and links it into place: the link is the commit, and
 * a crash before it leaves nothing. A delete is a rename to trash. Memory holds an index of what
 * the directories say; it is read at start and changed only after the change is durable.
 */
#ifndef RINGVOL_POOL_POOL_H
#define RINGVOL_POOL_POOL_H

#include "base/err.h"
#include "blockio/copy.h"
#include "blockio/fs_features.h"
#include "pool/record.h"
#include "reactor/op.h"

#include <stdbool.h>
#include <stdint.h>

enum {
	POOLS_MAX = 16,
	POOL_OBJECTS_MAX = 100000, /* volumes and snapshots of one pool; then ERR_NO_ROOM */
	POOL_TEMPLATES_MAX = 32,   /* the least recently used goes */
	POOL_SIZE_ALIGN = 1 << 20, /* volume sizes are multiples */
	POOL_CHECK_MS = 5000,      /* how often a pool is looked after */
};

struct pool;

enum pool_state {
	POOL_LOADING, /* not read yet */
	POOL_READY,
	POOL_MISSING, /* no ringvol.pool file (not mounted?), or locked by another driver */
	POOL_SICK,    /* calls on it hang or fail, or it is read-only */
};

struct pool_config {
	const char *name;
	const char *path;
	double overcommit;    /* 1.0: promises never exceed space */
	unsigned reserve_pct; /* of the file system, never promised */
	bool init;            /* make it a pool if the directory is empty */
};

/* A volume or snapshot. Valid while an operation of csi holds its lock; reads between two awaits
 * of the loop are always fine. */
struct pool_object {
	struct pool *pool;
	char key[RECORD_KEY_MAX];
	struct record *rec;       /* NULL: quarantined, see why */
	const char *why;          /* static: what is wrong with a quarantined object */
	enum record_kind kind;    /* from the directory it is in */
	uint64_t allocated_bytes; /* as of the last measure */
	/* st_dev and inode of the image, by which a device that is bound to it is known. They stay
	 * while the image is missing. */
	uint64_t image_dev, image_ino;
	bool shared;             /* other objects share its extents: a clone or snapshot was taken
				  * and one of that family is left */
	bool truncated;          /* the image is shorter than its record says */
	bool missing;            /* the image is not there any more */
	uint64_t wrong_since_ns; /* since when (ring_now_ns) it is either; 0: since it was read */
	bool unsynced;           /* its creation is not known to be durable: see pool_settle */
	/* The node's: what is attached and mounted, NULL if nothing; the number of the last scan
	 * for it that left it out, as somebody worked on it (node/adopt.h). */
	void *node;
	uint64_t left_out;
};

/* ---- all pools ---- */

struct pools;

/* Copies the configs. Nothing is opened yet. 0 or -errno. */
int pools_open(struct pools **ret, struct reactor *reactor, const struct pool_config *configs,
	unsigned count);
/* Starts loading in the background; on_loaded runs (from the loop) when every pool is ready,
 * missing or sick. From then on each pool is looked after every POOL_CHECK_MS: one that appears is
 * loaded, one that vanishes becomes missing, trash is reclaimed. on_changed: a pool changed state.
 */
void pools_start(struct pools *pools, void (*on_loaded)(void *arg),
	void (*on_changed)(void *arg, struct pool *pool), void *arg);
/* Stops background work between two steps; pools_idle() says when nothing is under way. */
void pools_drain(struct pools *pools);
bool pools_idle(const struct pools *pools);
void pools_close(struct pools *pools); /* NULL is legal */

struct pool *pools_at(const struct pools *pools, unsigned i); /* NULL past the end */
struct pool *pools_by_name(const struct pools *pools, const char *name);
struct pool *pools_by_uuid8(const struct pools *pools, const char *uuid8);

const char *pool_name(const struct pool *pool);
const char *pool_path(const struct pool *pool);
enum pool_state pool_state(const struct pool *pool);
/* Why it is not ready, in a sentence with the remedy; "" when it is. */
const char *pool_why(const struct pool *pool);
/* False while calls on it hang or fail; pool_why() then says so. */
bool pool_answers(const struct pool *pool);
/* Since when (ring_now_ns) it has been in this state. */
uint64_t pool_state_since_ns(const struct pool *pool);
/* First 8 hex digits of its uuid; "" until it was loaded once. */
const char *pool_uuid8(const struct pool *pool);
const struct fs_features *pool_features(const struct pool *pool);
uint32_t pool_block_size(const struct pool *pool); /* default logical block size of its devices */
/* Directory fd of volumes/ or snapshots/; -1 unless ready. */
int pool_dirfd(const struct pool *pool, enum record_kind kind);
/* Whose threads calls on its files have: op->lane of every operation with such calls. NULL: of
 * none. */
struct lane *pool_lane(const struct pool *pool);
/* Likewise for the pool an id names; those of pools that are not known share one. */
struct lane *pools_lane_of_id(const struct pools *pools, const char *id);
/* 0, or ERR_UNAVAILABLE with pool_why(). */
int pool_check_ready(const struct pool *pool, struct err *err);

/* ---- the index ---- */

/* By name (all pools are looked at; NULL if none, the first by pool order otherwise; a quarantined
 * object is found by its key). */
struct pool_object *pools_find_name(
	const struct pools *pools, enum record_kind kind, const char *name);
/* By id. ERR_INVALID: longer than RECORD_ID_MAX; ERR_NOT_FOUND: not an id of ours, or gone, or a
 * later object of the same name; ERR_UNAVAILABLE: its pool is not here or not loaded;
 * ERR_DATA_LOSS: quarantined. *ret is set only with 0. "Not here" is not "gone": a well-formed id
 * of a pool that is not configured here is ERR_UNAVAILABLE, too. */
int pools_find_id(const struct pools *pools, enum record_kind kind, const char *id,
	struct pool_object **ret, struct err *err);
/* Whether an id is well-formed and its pool is none of those configured here. False while one of
 * them has not told its uuid yet: it may be that one. */
bool pools_id_elsewhere(const struct pools *pools, const char *id);
/* Objects in order of (pool's uuid, key) across pools, for listing: the first one after `after_id`
 * ("" starts; it need not exist any more), NULL at the end or for what is no id. Quarantined
 * objects are left out. */
struct pool_object *pools_next(
	const struct pools *pools, enum record_kind kind, const char *after_id);
void pool_object_id(const struct pool_object *object, char ret_id[RECORD_ID_MAX]);
/* Whether an id is this object's. Of a quarantined one nobody knows the random part. */
bool pool_object_has_id(const struct pool_object *object, const char *id);
/* The volume, maybe a quarantined one, whose image that file is; NULL: none's. Looks through all of
 * them: 1 ms at 100,000. */
struct pool_object *pools_find_image(
	const struct pools *pools, uint64_t image_dev, uint64_t image_ino);
/* Of one pool, quarantined ones included: the first whose key is behind `after_key` ("" starts),
 * NULL at the end. */
struct pool_object *pool_next_object(
	const struct pool *pool, enum record_kind kind, const char *after_key);
/* Whether a deleted image is being overwritten (eraseOnDelete: zero), and how far it is. */
bool pool_erasing(const struct pool *pool, uint64_t *ret_done_bytes, uint64_t *ret_size_bytes);
unsigned pool_count(const struct pool *pool, enum record_kind kind);

/* ---- room ---- */

/*
 * What may still be promised, bytes, rounded down to POOL_SIZE_ALIGN:
 *   (free + allocated by volumes that share nothing - reserve) * overcommit
 *       - sizes of all volumes - what running creates have reserved
 * Snapshots' blocks are not free any more; a snapshot makes its volume's blocks shared, so every
 * block may be needed again. A further snapshot of that volume changes nothing here, and is taken
 * while this is not below 0. Thick volumes are limited by really free space as well.
 */
struct pool_room {
	uint64_t capacity_bytes, free_bytes; /* the file system's */
	uint64_t provisioned_bytes;          /* sizes of all volumes */
	uint64_t allocated_bytes;
	uint64_t available_bytes; /* for a thin volume */
	uint64_t available_thick_bytes;
};
/* As of the last measure and all creates since. */
void pool_room(const struct pool *pool, struct pool_room *ret);

/* How full the file system is, as seen every POOL_CHECK_MS and by each measure. */
enum pool_fill_level {
	POOL_ROOMY,
	POOL_NEARLY_FULL, /* less than 3% free, until 4% are */
	POOL_FULL,        /* less than 16 MiB (of a small one 1/256) free, until twice that is */
};
struct pool_fill {
	enum pool_fill_level level;
	uint64_t since_ns;                   /* ring_now_ns() when the level changed; 0: never */
	uint64_t capacity_bytes, free_bytes; /* 0 until seen */
};
const struct pool_fill *pool_fill(const struct pool *pool);

/* Child operation: measures now (statfs, attached images' usage), unless done less than
 * max_age_ms ago. Looking at the attached images costs 7 us each. */
struct pool_measure {
	struct op op;
	struct pool *pool;
	uint64_t max_age_ms;
	/* Set it after init: what is free is asked for now, however old the images' usage is. What
	 * has gone since then then counts as gone, though it may be a volume's that was promised
	 * it; what has come back does not count yet, for it may be a volume's to use again. */
	bool free_now;
	/* private */
	struct pool_measure_job *job;
};
void pool_measure_init(
	struct pool_measure *m, struct reactor *reactor, struct pool *pool, uint64_t max_age_ms);
/* What somebody has just seen one image use, without a measure of the pool: what it has grown by is
 * no longer free. */
void pool_object_measured(struct pool_object *object, uint64_t allocated_bytes);
/* True while a measure of at most that age is known. */
bool pool_room_known(const struct pool *pool, uint64_t max_age_ms);

/* ---- child operations: each is durable when it ends well, and leaves nothing when it does not
 * ---- */

/* Private to those below: a place among those who wait for a directory to be durable. */
struct pool_sync_wait {
	struct list link;
	struct op *op;
	bool alone; /* a sync of its own, which nobody shares */
	int fd;
	uint64_t removed; /* removals before it */
};

/*
 * admit (room) -> open unnamed, size -> share or fill -> record -> a name in the trash (if there is
 * not one log) -> data sync (if fill wrote, or there is not) -> link [commit] -> sync, index.
 * ERR_EXISTS when the name is taken on disk; ERR_NO_ROOM.
 */
struct pool_build {
	struct op op;
	struct pool *pool;
	struct record *rec; /* complete but for key/random/created; taken over at commit.
			       shares_extents is as it came to be */
	/* Where the image's extents come from, if they can be shared: an image of this pool, or a
	 * template that is known to be good. Where nothing is shared, or the file system refuses it
	 * after all, fill makes the image. */
	struct pool_object *share_object;
	char share_template[RECORD_KEY_MAX];
	/* Serves the current step of `op`; NULL: the image stays empty. dst_fd: read-write, direct
	 * I/O where the pool has it. With fill_end, a pending fill ends there. */
	int (*fill)(struct op *op, int dst_fd, void *arg);
	int (*fill_end)(struct op *op, int res, void *arg);
	void *fill_arg;
	bool fill_writes;    /* fill writes data (not only shares extents) */
	uint64_t need_bytes; /* room to ask for; 0: rec->size_bytes for a volume */
	struct pool_object *ret_object;
	/* private */
	struct pool_measure measure;
	struct pool_build_learn *learn;
	struct pool_sync_wait sync;
	enum record_kind kind;
	int fd, dirfd, share_dirfd;
	const char *share_name;
	bool direct_io;
	bool sharing, indexed;
	enum { BUILD_BEGUN, BUILD_RECORDED, BUILD_LINKED, BUILD_SYNCED } state;
	int trash_fd;
	char stage_name[24]; /* "": the file has no name before its key */
	uint64_t reserved;
	unsigned record_len;
	char record_text[RECORD_BYTES_MAX];
};
/* rec is copied; random, key and created_ns are drawn here. -ENOMEM. */
int pool_build_init(
	struct pool_build *b, struct reactor *reactor, struct pool *pool, const struct record *rec);
void pool_build_free(struct pool_build *b); /* what is left after the end */

/* Rename to trash, durable, out of the index (the object is freed at the end of the operation);
 * reclaiming starts by itself. An image that is locked (attached anywhere) is refused:
 * ERR_PRECONDITION. */
struct pool_remove {
	struct op op;
	struct pool_object *object;
	/* private */
	struct pool *pool;
	struct pool_sync_wait sync;
	int fd, dirfd, trash_fd;
	const char *key;
	enum { REMOVE_BEGUN, REMOVE_GONE, REMOVE_RENAMED, REMOVE_SYNCED } state;
	bool synced_from;
	char trash_name[24];
};
void pool_remove_init(struct pool_remove *r, struct reactor *reactor, struct pool_object *object);

/*
 * The sync that a build or a removal ended without, made up for: before it, a repeat must not be
 * told that what it asks for is done. Needed where object->unsynced, or pools_unsettled.
 */
struct pool_settle {
	struct op op;
	struct pool *pool;
	enum record_kind kind;
	struct pool_object *object; /* NULL: what was removed is gone for good */
	/* private */
	struct pool_sync_wait sync;
	int dirfd;
	const char *key;
};
void pool_settle_init(struct pool_settle *s, struct reactor *reactor, struct pool *pool,
	enum record_kind kind, struct pool_object *object);
/* The pool of an id that names nothing there any more, but whose removal, for all that is known,
 * may not be durable yet; NULL: it is. */
struct pool *pools_unsettled(const struct pools *pools, enum record_kind kind, const char *id);

/* Room for the difference, image grown (allocated when thick), durable, record, durable.
 * Idempotent: a larger image left by an attempt cut short is taken as it is. ERR_DATA_LOSS: the
 * image is shorter than its record; it stays as it is. */
struct pool_grow {
	struct op op;
	struct pool_object *object;
	uint64_t size_bytes;
	/* private */
	struct pool_measure measure;
	int fd;
	uint64_t reserved, had_bytes;
	bool truncated;
	struct record *rec;
	char record_text[RECORD_BYTES_MAX];
};
void pool_grow_init(struct pool_grow *g, struct reactor *reactor, struct pool_object *object,
	uint64_t size_bytes);

/* A formatted empty image to clone from, made on first use (one mkfs at a time for each template,
 * others wait for it). `fd` is open for reading at the end. ERR_PRECONDITION when mkfs is missing
 * (names the package), ERR_INTERNAL when it fails (its last words). btrfs: see pool_format. */
struct pool_template {
	struct op op;
	struct pool *pool;
	struct fsimg_spec spec; /* mkfs_options must live as long */
	int fd;                 /* out; -1 on failure; the caller closes it */
	struct pool_template_state *state;
};
void pool_template_init(struct pool_template *t, struct reactor *reactor, struct pool *pool,
	const struct fsimg_spec *spec);

/* Private to the two fills below: the argument of their work job. */
struct pool_reflink {
	int src_fd, dst_fd;
};

struct pool_verify {
	int fd;
	struct fsimg_probe probe;
};

/* Private to the build: whether extents can be shared with a template that was looked at before,
 * and its name below templates/. */
bool pool_template_known(
	struct pool *pool, const struct fsimg_spec *spec, char ret_name[RECORD_KEY_MAX]);

/*
 * Formats the unnamed image of a build: a template that is known is shared. The fill makes or
 * checks it first, then shares it, or copies its few data extents where there is no reflink or the
 * volume is thick or has eraseOnDelete: zero; btrfs, whose copies cannot be told apart, gets an
 * mkfs of its own. Because the image has no name until it is formatted, an interrupted mkfs leaves
 * nothing, and nothing that has a name is ever formatted.
 */
struct pool_format {
	struct pool_template tpl;
	struct copy copy;
	struct proc proc;
	struct op op;
	struct pool *pool;
	struct fsimg_spec spec;
	uint8_t uuid[16];
	/* private */
	struct pool_build *build;
	bool own_blocks, must_copy, wrote;
	struct pool_reflink reflink;
	struct pool_verify verify;
	int dst_fd;
	char mem[2048];
};
void pool_format_init(struct pool_format *f, struct pool *pool, const struct fsimg_spec *spec,
	const uint8_t uuid[16]);
/* Format lives until the build's end. */
void pool_build_format(struct pool_build *b, struct pool_format *format);

/* A fill for pool_build: the bytes of another image, by a sparse copy through the ring. It writes:
 * set fill_writes. */
struct pool_clone {
	struct op op;
	struct copy copy;
	struct pool_object *source;
	/* private */
	int src_fd, dst_fd;
};
void pool_clone_init(struct pool_clone *c, struct pool_object *source);
int pool_clone_fill(struct op *op, int dst_fd, void *clone);
int pool_clone_fill_end(struct op *op, int res, void *clone);

/* ---- once, from the command line; blocking ---- */

/* Makes an empty (or missing) directory on a mounted file system a pool. ERR_PRECONDITION: not
 * empty, or the file system cannot hold one; a pool already is 0 with *ret_existed. */
int pool_init_dir(
	const char *path, struct fs_features *ret_features, bool *ret_existed, struct err *err);

#endif
