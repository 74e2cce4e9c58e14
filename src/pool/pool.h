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
#include "blockio/bytes.h"
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
	bool shared;              /* other objects share its extents: a clone or snapshot was taken
				   * and one of that family is left */
	bool truncated;           /* the image is shorter than its record says */
	void *node;               /* csi's: what is attached and mounted; NULL if nothing */
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
/* First 8 hex digits of its uuid; "" until it was loaded once. */
const char *pool_uuid8(const struct pool *pool);
const struct bytes_features *pool_features(const struct pool *pool);
uint32_t pool_block_size(const struct pool *pool); /* default logical block size of its devices */
/* Directory fd of volumes/ or snapshots/; -1 unless ready. */
int pool_dirfd(const struct pool *pool, enum record_kind kind);
/* 0, or ERR_UNAVAILABLE with pool_why(). */
int pool_check_ready(const struct pool *pool, struct err *err);

/* ---- the index ---- */

/* By name (all pools are looked at; NULL if none, the first by pool order otherwise; a quarantined
 * object is found by its key). */
struct pool_object *pools_find_name(
	const struct pools *pools, enum record_kind kind, const char *name);
/* By id. ERR_INVALID: longer than RECORD_ID_MAX; ERR_NOT_FOUND: not an id of ours, or gone, or a
 * later object of the same name; ERR_UNAVAILABLE: its pool is not here or not loaded;
 * ERR_DATA_LOSS: quarantined. *ret is set only with 0. An id that is well-formed but of no pool
 * configured here is ERR_UNAVAILABLE too if a pool is missing and its uuid unknown, else not found.
 */
int pools_find_id(const struct pools *pools, enum record_kind kind, const char *id,
	struct pool_object **ret, struct err *err);
/* Objects in order of (pool's uuid, key) across pools, for listing: the first one after `after_id`
 * ("" starts; it need not exist any more), NULL at the end or for what is no id. Quarantined
 * objects are left out. */
struct pool_object *pools_next(
	const struct pools *pools, enum record_kind kind, const char *after_id);
void pool_object_id(const struct pool_object *object, char ret_id[RECORD_ID_MAX]);
unsigned pool_count(const struct pool *pool, enum record_kind kind);

/* ---- room ---- */

/*
 * What may still be promised, bytes, rounded down to POOL_SIZE_ALIGN:
 *   (free + allocated by volumes that share nothing - reserve) * overcommit
 *       - sizes of all volumes - what running creates have reserved
 * Snapshots' blocks are not free any more; a snapshot makes its volume's blocks shared, so every
 * block may be needed again. Thick volumes are limited by really free space as well.
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

/* Child operation: measures now (statfs, attached images' usage), unless done less than
 * max_age_ms ago. */
struct pool_measure {
	struct op op;
	struct pool *pool;
	uint64_t max_age_ms;
	struct pool_measure_job *job;
};
void pool_measure_init(
	struct pool_measure *m, struct reactor *reactor, struct pool *pool, uint64_t max_age_ms);

/* ---- child operations: each is durable when it ends well, and leaves nothing when it does not
 * ---- */

/*
 * admit (room) -> open unnamed, size -> fill -> record -> data sync (if fill wrote) -> link
 * [commit] -> sync -> index. ERR_EXISTS when the name is taken on disk; ERR_NO_ROOM.
 */
struct pool_build {
	struct op op;
	struct pool *pool;
	struct record *rec; /* complete but for key/random/created; taken over at commit.
			       pool_clone's outcome is put into shares_extents here */
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
	int fd, dirfd;
	bool direct_io;
	bool indexed, synced_file;
	uint64_t reserved;
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
	int fd;
	bool gone, synced_from;
	char trash_name[24];
};
void pool_remove_init(struct pool_remove *r, struct reactor *reactor, struct pool_object *object);

/* Room for the difference, image grown (allocated when thick), durable, record, durable.
 * Idempotent: a larger image left by an attempt cut short is taken as it is. */
struct pool_grow {
	struct op op;
	struct pool_object *object;
	uint64_t size_bytes;
	/* private */
	struct pool_measure measure;
	int fd;
	uint64_t reserved;
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
	const char *path;
	struct fsimg_probe probe;
};

/*
 * A fill for pool_build: formats the unnamed image. From a template by reflink, or by copying the
 * template's few data extents where there is no reflink or the volume is thick; btrfs, whose copies
 * cannot be told apart, gets an mkfs of its own. Because the image has no name until it is
 * formatted, an interrupted mkfs leaves nothing, and nothing that has a name is ever formatted.
 */
struct pool_format {
	struct pool_template tpl;
	struct copy copy;
	struct proc proc;
	struct op op;
	struct pool *pool;
	struct fsimg_spec spec;
	uint8_t uuid[16];
	bool thick;
	bool wrote; /* out: data was written, not only shared; pool_build then syncs it */
	/* private */
	bool must_copy;
	struct pool_reflink reflink;
	struct pool_verify verify;
	int dst_fd;
	char path[64], mem[2048];
};
void pool_format_init(struct pool_format *f, struct pool *pool, const struct fsimg_spec *spec,
	const uint8_t uuid[16], bool thick);
int pool_format_fill(struct op *op, int dst_fd, void *format);
int pool_format_fill_end(struct op *op, int res, void *format);

/*
 * A fill for pool_build: the bytes of another image, by reflink where the pool can and the target
 * is thin, else by a sparse copy through the ring. Sets *shared on success of a reflink.
 */
struct pool_clone {
	struct op op;
	struct copy copy;
	struct pool_object *source;
	bool thick;
	bool shared; /* out: extents are shared; pool_build puts it into the record */
	bool wrote;  /* out: data was written; pool_build then syncs it */
	/* private */
	bool must_copy;
	struct pool_reflink reflink;
	int src_fd, dst_fd;
};
void pool_clone_init(struct pool_clone *c, struct pool_object *source, bool thick);
int pool_clone_fill(struct op *op, int dst_fd, void *clone);
int pool_clone_fill_end(struct op *op, int res, void *clone);

/* ---- once, from the command line; blocking ---- */

/* Makes an empty (or missing) directory on a mounted file system a pool. ERR_PRECONDITION: not
 * empty, or the file system cannot hold one; a pool already is 0 with *ret_existed. */
int pool_init_dir(
	const char *path, struct bytes_features *ret_features, bool *ret_existed, struct err *err);

#endif
