/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of src/pool share. */
#ifndef RINGVOL_POOL_PRIVATE_H
#define RINGVOL_POOL_PRIVATE_H

#include "base/fd.h"
#include "base/list.h"
#include "pool/pool.h"

#define POOL_FILE "ringvol.pool"
/* In trash/, before a trash file's name: being built (build.c). */
#define POOL_STAGE_PREFIX "new-"

enum {
	POOL_ANSWER_MS = 2000,  /* a load or check that takes longer: sick */
	POOL_STUCK_MS = 6000,   /* a check that cannot begin, as calls have all threads: likewise */
	POOL_MEASURE_MS = 1000, /* admission trusts a measure this long */
	POOL_UUID_BYTES = 37,
	POOL_WHY_BYTES = 512,
	POOL_TRASH_NAME_BYTES = 17,
};

/* The descriptors of a pool. Their numbers never change once a pool was loaded: a pool that went
 * away gets /dev/null put in their place and the directories again when it is back (dup3), so that
 * an operation under way never meets a number that has become something else. */
enum pool_fd {
	POOL_FD_ROOT,
	POOL_FD_LOCK, /* ringvol.pool, flock'ed */
	POOL_FD_VOLUMES,
	POOL_FD_SNAPSHOTS,
	POOL_FD_TEMPLATES,
	POOL_FD_TRASH,
	POOL_DIRS_END,
	POOL_FD_EVENTS = POOL_DIRS_END, /* inotify on volumes/ and snapshots/ */
	POOL_FDS,
};

struct pool_entry {
	struct pool_object object;
	uint64_t image_bytes; /* of a quarantined object: what it may have promised */
	bool watch;           /* measure it next time: written or changed since the last one */
	struct list link;     /* on pool->dead */
};

/* Sorted by key. */
struct pool_index {
	struct pool_object **at;
	unsigned count, cap;
};

/* A record no longer true that somebody may still be reading. */
struct pool_dead_record {
	struct list link;
	struct record *rec;
};

struct pool_template_entry {
	struct list link; /* on pool->templates, the most recently used last */
	char name[RECORD_KEY_MAX];
	bool checked;        /* known to be good */
	bool busy;           /* somebody checks or makes it */
	struct list waiters; /* pool_template_state.link */
};

/* Syncs of one directory. */
struct pool_sync {
	struct pool *pool;
	enum record_kind kind;
	struct ring_req req;
	struct list running, waiting; /* pool_sync_wait.link */
	/* Removals, numbered: made, covered by the sync that runs, known to be durable. */
	uint64_t removed, removed_running, removed_durable;
};

struct pool_task;
struct pool_trash;

struct pool {
	struct pools *pools;
	char *name, *path;
	double overcommit;
	unsigned reserve_pct;
	bool init;

	enum pool_state state;
	char why[POOL_WHY_BYTES];
	bool mute; /* sick because calls on it hang or fail */
	uint64_t state_since_ns;
	bool loaded;   /* fds are the pool's (not /dev/null's) and the index is true */
	bool fds_held; /* fds are numbers of ours */
	int fds[POOL_FDS];
	char uuid[POOL_UUID_BYTES], uuid8[9];
	struct fs_features features;
	bool probed; /* features are known; else nothing is made here */

	struct pool_index index[2]; /* by enum record_kind */
	struct list dead; /* pool_entry: gone after a reload, somebody may still read it */
	struct list dead_records;
	struct pool_sync sync[2]; /* by enum record_kind */
	unsigned ops;             /* changing operations under way; a reload waits for them */

	struct lane *lane;        /* of all calls on its files */
	struct pool_task *task;   /* the load or check under way */
	struct pool_trash *trash; /* the reclaim under way */
	bool trash_wanted;

	struct list templates;
	unsigned template_count;

	/* room.c's; the sums over the index are kept up by sums.c */
	uint64_t capacity_bytes, free_bytes, measured_ns;
	uint64_t sum_size, sum_allocated, sum_own;
	uint64_t reserved_bytes;
	uint64_t used_bytes; /* by creates, since a measure began */
	struct pool_measure_job *measuring;

	struct pool_fill fill;

	/* images.c's */
	unsigned images_wrong; /* objects whose image is missing or truncated */
	unsigned images_sweep; /* how many are still to be asked for in turn; 0: no need */
	unsigned images_grown; /* counts growths */
	bool images_unwatched;
};

struct pools {
	struct reactor *reactor;
	struct pool *at[POOLS_MAX];
	unsigned count;
	void (*on_loaded)(void *arg);
	void (*on_changed)(void *arg, struct pool *pool);
	void *arg;
	struct ring_timer timer;
	struct ring_timer told; /* on_loaded runs from the loop, also when nothing is to load */
	bool started, loaded_told, draining;
	unsigned jobs;     /* background jobs handed to work */
	struct list queue; /* pool_job.link: work had no room for them */
	struct lane *strays;
};

/* ---- pool.c ---- */

/* Embed it; heap-allocated by its owner. When the pools are closed first, `pool` is NULL at the
 * end and on_end only frees. */
struct pool_job {
	struct work_job job;
	struct pools *pools;
	struct pool *pool;
	struct list link;
	int (*run)(struct pool_job *job);              /* on a thread */
	void (*on_end)(struct pool_job *job, int res); /* on the loop; may free the job */
};
void pool_job_submit(struct pool *pool, struct pool_job *job);
/* Once more one that waits in pools.queue. False: there still is no room. */
bool pool_job_start(struct pool_job *job);
/* on_loaded runs in the next turn if no pool is being loaded any more. */
void pools_tell_when_loaded(struct pools *pools);
void pool_set_state(struct pool *pool, enum pool_state state, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* For the first and the last step of a changing operation. */
int pool_op_begin(struct pool *pool, struct err *err);
void pool_op_finish(struct pool *pool);

/* Random hex digits, count of them (even), and a NUL. */
void pool_random_hex(char *buf, unsigned digits);
int pool_fd_of(const struct pool *pool, enum record_kind kind);

/* ---- read.c ---- */

/* What was read of one file of volumes/ or snapshots/. */
struct pool_found {
	char key[RECORD_KEY_MAX];
	struct record *rec; /* NULL: quarantined */
	const char *why;
	enum record_kind kind;
	uint64_t image_bytes, allocated_bytes, image_dev, image_ino;
	bool truncated;
};
/* Blocking. -ENOENT: nothing there. */
int pool_read_object(int dirfd, const char *key, enum record_kind kind, struct pool_found *ret);

/* ---- load.c ---- */

struct pool_load {
	char *name, *path;
	bool init;
	bool had_snapshots; /* as memory has it, of a pool that was here before */
	/* out */
	enum pool_state state;
	char why[POOL_WHY_BYTES];
	bool opened; /* fds are open, objects read, whatever the state */
	int fds[POOL_FDS];
	char uuid[POOL_UUID_BYTES];
	struct fs_features features;
	bool probed, unwatched;
	uint64_t capacity_bytes, free_bytes;
	struct pool_found *found;
	unsigned found_count, found_cap;
};
/* Blocking: opens, locks and reads a pool. */
void pool_load_run(struct pool_load *load);
/* What the file system can do; blocking. One that is full is served, or nothing could be deleted
 * from it: 0, with *ret_probed false and what can be told without room. */
int pool_probe(int root, struct fs_features *ret, bool *ret_probed);
/* Takes what was read into the pool; on the loop. */
void pool_load_adopt(struct pool_load *load, struct pool *pool);
void pool_load_clean(struct pool_load *load);

/* Puts /dev/null in the place of the descriptors of a pool that is gone: its file system must not
 * stay busy, nor its lock held. Blocking: the last reference may unmount. */
void pool_fds_retire(const int fds[POOL_FDS]);

/* ---- init.c ---- */

/* "ringvol-pool 1\nuuid=...\n", read from ringvol.pool. 0, -EBADMSG, another -errno. */
int pool_file_read(int fd, char ret_uuid[POOL_UUID_BYTES]);
extern const char *const pool_dir_names[POOL_FDS]; /* NULL for the root and the lock */

/* ---- index.c ---- */

struct pool_object *pool_index_find(
	const struct pool *pool, enum record_kind kind, const char *key);
/* Takes over found->rec. NULL when out of memory. */
struct pool_object *pool_index_insert(struct pool *pool, struct pool_found *found);
/* Out of the index and the sums; the caller frees it with pool_object_free(). */
void pool_index_remove(struct pool_object *object);
void pool_object_free(struct pool_object *object);
static inline struct pool_entry *pool_entry(struct pool_object *object)
{
	return container_of(object, struct pool_entry, object);
}
/* The id of the oldest ancestor this record's image shares extents with, "" if it never did. */
const char *pool_family(const struct record *rec);
/* Says of every object of a family whether it still shares: more than one of it is left. */
void pool_family_update(struct pool *pool, const char *family);
void pool_family_update_all(struct pool *pool);

/* ---- sums.c ---- */

/* Before and after each change of what an object counts for. */
void pool_sums_sub(struct pool_object *object);
void pool_sums_add(struct pool_object *object);

/* ---- room.c ---- */

/* 0 and reserved, or ERR_NO_ROOM. has: of bytes, what is allocated for it already, beyond what its
 * object was promised. */
int pool_room_reserve(struct pool *pool, uint64_t bytes, uint64_t has, bool thick, struct err *err);
void pool_room_release(struct pool *pool, uint64_t bytes);
/* Blocks were used (by something measured as an object's) since the last measure. */
void pool_room_used(struct pool *pool, uint64_t bytes);
/* The next admission measures again. */
void pool_room_stale(struct pool *pool);

/* ---- fill.c ---- */

void pool_fill_see(struct pool *pool, uint64_t capacity_bytes, uint64_t free_bytes);

/* ---- images.c ---- */

enum { POOL_IMAGES_MAX = 256 }; /* asked for in turn by one look */

struct pool_image {
	enum record_kind kind;
	char key[RECORD_KEY_MAX];
	int res;
	uint64_t size_bytes, image_dev, image_ino;
};
struct pool_images {
	struct pool_image *at;
	unsigned count, cap, grown;
	bool lost; /* there were more */
};
/* The watch's descriptor or -errno. Blocking. */
int pool_images_watch(int volumes_fd, int snapshots_fd);
/* A look: ask on the loop, look on a thread, apply on the loop. */
void pool_images_ask(struct pool *pool, struct pool_images *images);
void pool_images_look(struct pool_images *images, const int fds[POOL_FDS]);
void pool_images_apply(struct pool *pool, const struct pool_images *images);
void pool_images_free(struct pool_images *images);
/* Notes how an object's image is. */
void pool_image_found(struct pool_object *o, bool missing, bool truncated);

/* ---- sync.c ---- */

void pool_sync_open(struct pool *pool);
/* True where a sync of a directory makes all earlier changes of the file system durable. */
bool pool_one_log(const struct fs_features *features);
/* True: no other operation changes the pool. Then pool_sync_call() can follow the change in the
 * same trip to a thread, on what is noted here. */
bool pool_sync_alone(struct pool *pool, enum record_kind kind, struct pool_sync_wait *wait);
int pool_sync_call(const struct pool_sync_wait *wait);
/* Makes what was changed in volumes/ or snapshots/ durable: a wait of the current step of `op`. */
int pool_sync_dir(
	struct op *op, struct pool *pool, enum record_kind kind, struct pool_sync_wait *wait);
/* In the end() of a removal's sync that succeeded. */
void pool_sync_removed(struct pool *pool, enum record_kind kind, const struct pool_sync_wait *wait);

/* ---- trash.c ---- */

/* Starts reclaiming unless it runs. */
void pool_trash_kick(struct pool *pool);
/* Overwriting is stopped, to be begun again by the next reclaim. */
void pool_trash_stop(struct pool *pool);
/* The pool is being freed; a reclaim under way (true) ends on its own. */
bool pool_trash_detach(struct pool *pool);

/* ---- mkfs.c ---- */

/* Runs mkfs on the open image for the step: proc is filled. */
int pool_mkfs_run(struct op *op, struct proc *proc, const struct fsimg_spec *spec, int fd,
	const uint8_t uuid[16], char *mem, size_t mem_len);
/* The step's end. */
int pool_mkfs_end(struct op *op, struct proc *proc, const struct fsimg_spec *spec, int res);
/* The step after mkfs: whether it made what it said. */
int pool_verify_run(struct op *op, struct pool_verify *verify, int fd);
int pool_verify_end(
	struct op *op, const struct pool_verify *verify, const struct fsimg_spec *spec, int res);

/* ---- format.c ---- */

/* Makes dst the same bytes as src by sharing extents, and keeps dst's size. A work job. */
int pool_reflink_keep_size(void *reflink);

#endif
