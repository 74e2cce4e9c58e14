/* SPDX-License-Identifier: Apache-2.0 */
/* What a pool and the set of all pools are made of, and how they change. For the files of src/pool.
 */
#ifndef RINGVOL_POOL_PRIVATE_H
#define RINGVOL_POOL_PRIVATE_H

#include "base/fd.h"
#include "base/list.h"
#include "pool/layout.h"
#include "pool/room.h"
#include "pool/root.h"

/* What a pool is to this driver; enum pool_state is what others see of it. In those from
 * POOL_SERVED on it is loaded: its descriptors are the pool's (not /dev/null's) and the index is
 * true. */
enum pool_life {
	POOL_NEW,         /* loading for the first time */
	POOL_AWAY,        /* missing: not there, or not to be served from here */
	POOL_UNREAD,      /* sick: it could not be loaded */
	POOL_UNREAD_MUTE, /* sick: loading it hangs */
	POOL_SERVED,      /* ready */
	POOL_READ_ONLY,   /* sick: what is there is known, and nothing can be changed */
	POOL_MUTE,        /* sick: calls on it fail or hang */
	POOL_LIVES,
};

enum { POOL_WHY_BYTES = 512 };

/* An object, and what only this folder knows of it. */
struct pool_entry {
	struct pool_object object;
	uint64_t image_bytes; /* of a quarantined object: what it may have promised */
	bool remeasure;       /* by the next measure: written or changed since the last one */
	bool left;            /* it is another pool's now (departure.h), and not in the trash yet */
	uint32_t thin_id;     /* of a thin image: its map's; 0: any other */
	struct list link;     /* on pool->dead */
};
static inline struct pool_entry *pool_entry(struct pool_object *object)
{
	return container_of(object, struct pool_entry, object);
}

/* Sorted by key. */
struct pool_index {
	struct pool_object **at;
	size_t count, cap;
};

/* A record no longer true that somebody may still be reading. */
struct pool_dead_record {
	struct list link;
	struct record *rec;
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

/* Only one that is there takes groups. */
enum groups_dir {
	GROUPS_THERE,
	GROUPS_LOST,   /* there are members, and no groups/ */
	GROUPS_UNMADE, /* there was none, and the load could not make it */
};

/* Sorted by key. */
struct pool_groups {
	struct pool_group **at;
	size_t count, cap;
	struct list dead;    /* pool_group: gone, somebody may still read it */
	struct list unswept; /* deleted, and their members are not in the trash yet */
	enum groups_dir dir;
	/* Removals, numbered: made, and known to be durable. */
	uint64_t removed, removed_durable;
};

struct pool_task;
struct pool_trash;
struct pool_raw;

struct pool {
	struct pools *pools;
	char *name, *path;
	double overcommit;
	unsigned reserve_pct;
	bool init;

	enum pool_life life;
	char why[POOL_WHY_BYTES];
	uint64_t state_since_ns;
	int fds[POOL_FDS]; /* -1: never loaded */
	char uuid[POOL_UUID_BYTES], uuid8[9];
	struct fs_features features;
	bool probed;          /* features are known; else nothing is made here */
	struct pool_raw *raw; /* raw.h; NULL: a directory pool, or never loaded */

	struct pool_index index[2]; /* by enum record_kind */
	struct list dead; /* pool_entry: gone after a reload, somebody may still read it */
	struct list dead_records;
	struct pool_sync sync[2]; /* by enum record_kind */
	struct pool_groups groups;
	unsigned ops; /* changing operations under way; a reload waits for them */

	struct lane *lane;        /* of all calls on its files */
	struct pool_task *task;   /* the load or check under way */
	struct pool_trash *trash; /* the reclaim under way */
	bool trash_wanted;
	struct thin_keep *thin_keep; /* thin_keep.h; NULL: no thin pool was wanted yet */

	struct list holds;                       /* pool_hold: hold.h */
	struct list departures, departures_dead; /* pool_departure: departure.h; the latter: gone,
						  * somebody may still read it */
	unsigned hold_count, holds_making;
	struct list arrivals; /* pool_arrival: arrival.h */

	struct list templates; /* template_entry, the most recently used last */
	unsigned template_count;

	/* room.c's; index.c keeps up the sums */
	uint64_t capacity_bytes, free_bytes, measured_ns;
	uint64_t sum_size, sum_allocated, sum_own, sum_owed;
	uint64_t reserved_bytes, reserved_thin_bytes; /* the latter is part of the former */
	uint64_t sum_thin_size, sum_thin_own;         /* of those sums, thin volumes' part */
	uint64_t used_bytes;                          /* by creates, since a measure began */
	struct pool_measure_job *measuring;
	struct pool_usage usage;

	/* presence.c's */
	unsigned images_wrong;   /* objects whose image is missing or truncated */
	size_t images_sweep;     /* how many are still to be asked for in turn; 0: no need */
	unsigned images_grown;   /* counts growths */
	unsigned images_renewed; /* counts images put in another's place */
	bool images_unwatched;
};

struct pools {
	struct reactor *reactor;
	struct pool *at[POOLS_MAX];
	unsigned count;
	void (*on_loaded)(void *arg);
	void (*on_changed)(void *arg, struct pool *pool);
	void *arg;
	void (*on_removed)(void *arg, const struct pool_object *object); /* index.h */
	void *on_removed_arg;
	struct ring_timer timer;
	struct ring_timer told; /* on_loaded runs from the loop, also when nothing is to load */
	bool started, loaded_told, draining;
	uint64_t quick_until_ns, look_ns; /* of the timer: see pools.c */
	char node[DISK_OWNER_MAX];        /* who serves them, as disks of raw pools say */
	pool_root_fn *open_root;          /* pool_root_open, but in tests */
	unsigned jobs;                    /* background jobs handed to work */
	struct list queue;                /* pool_job.link: work had no room for them */
	struct lane *strays;              /* of ids that name no pool of ours */
};

static inline bool pool_loaded(const struct pool *pool)
{
	return pool->life >= POOL_SERVED;
}
static inline int pool_fd_of(const struct pool *pool, enum record_kind kind)
{
	return pool->fds[kind == RECORD_VOLUME ? POOL_FD_VOLUMES : POOL_FD_SNAPSHOTS];
}

/* ---- pool.c ---- */

/* Asserts that this life may follow the one before. Who waits for room is told of any but
 * POOL_SERVED. The reason: see pool_why(). */
void pool_enter(struct pool *pool, enum pool_life life, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* on_loaded runs in the next turn if no pool is being loaded any more. */
void pools_tell_when_loaded(struct pools *pools);

/* For the first and the last step of a changing operation. */
int pool_op_begin(struct pool *pool, struct err *err);
void pool_op_finish(struct pool *pool);

/* A background job. Embed it; heap-allocated by its owner. When the pools are closed first, `pool`
 * is NULL at the end and on_end only frees. */
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

#endif
