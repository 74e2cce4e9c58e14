/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a pool may still promise. The index keeps sums over its objects. A work job measures what
 * the file system has free and what attached volumes have come to use: for admissions that find the
 * last measure too old, and for operations that ask. Between two measures the numbers only err
 * towards too little: blocks that a create used are taken off at once, and blocks that a delete
 * will give back count once they are free. What is free at this moment can be asked for without a
 * look at every attached image, by the same rule.
 *
 * A create reserves what it asks for before it begins, and gives that back when its volume counts.
 * Snapshots may come to need blocks that volumes write anew. A pool that has so promised more than
 * it has takes nothing on, not even what asks for no room.
 *
 * Usage is whether the file system is full or nearly, for health: the last numbers seen (by a
 * measure, or by the look that each pool gets every POOL_CHECK_MS) and since when it is so.
 * Admission does not go by it. It cannot fail.
 */
#include "pool/room.h"

#include "pool/index.h"
#include "pool/private.h"
#include "pool/raw.h"
#include "pool/raw_measure.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>

enum { ADMIT_MEASURE_MS = 1000 }; /* admission trusts a measure this long */

/* ---- what may be promised ---- */

static uint64_t minus(uint64_t a, uint64_t b)
{
	return a > b ? a - b : 0;
}

static uint64_t kept_bytes(const struct pool *pool)
{
	return pool->capacity_bytes / 100 * pool->reserve_pct;
}

/* What may be promised in all. */
static uint64_t most_bytes(const struct pool *pool, uint64_t free_bytes)
{
	uint64_t usable = minus(free_bytes + pool->sum_own, kept_bytes(pool));
	double space = (double)usable * pool->overcommit;
	return space < 9e18 ? (uint64_t)space : (uint64_t)9e18;
}

/* If so much were free. */
static void room_of(const struct pool *pool, uint64_t free_bytes, struct pool_room *ret)
{
	uint64_t thin = minus(most_bytes(pool, free_bytes), pool->sum_size + pool->reserved_bytes);
	uint64_t thick =
		minus(free_bytes, kept_bytes(pool) + pool->reserved_bytes + pool->sum_owed);
	if (thick > thin)
		thick = thin;
	*ret = (struct pool_room){
		.capacity_bytes = pool->capacity_bytes,
		.free_bytes = pool->free_bytes,
		.provisioned_bytes = pool->sum_size,
		.allocated_bytes = pool->sum_allocated,
		.available_bytes = thin / POOL_SIZE_ALIGN * POOL_SIZE_ALIGN,
		.available_thick_bytes = thick / POOL_SIZE_ALIGN * POOL_SIZE_ALIGN,
	};
}

void pool_room(const struct pool *pool, struct pool_room *ret)
{
	if (pool->raw != NULL)
		pool_raw_room(pool, ret);
	else
		room_of(pool, pool->free_bytes, ret);
}

static int reserve(struct pool_admission *a, struct err *err)
{
	struct pool *pool = a->pool;
	if (pool->raw != NULL)
		return pool_raw_reserve(a, err);
	struct pool_room room;
	uint64_t free_bytes = pool->free_bytes + a->has_bytes; /* as when it was allocated */
	uint64_t most = most_bytes(pool, free_bytes);
	uint64_t promised = pool->sum_size + pool->reserved_bytes;
	/* This refuses even a snapshot that asks for nothing, of a volume that shares its blocks
	 * already: the blocks it keeps could not be had back, and each snapshot would cost a
	 * volume its writes. */
	if (promised > most)
		return err_set(err, ERR_NO_ROOM,
			"pool %s has promised its volumes %llu MiB more than it has, as snapshots or others on "
			"its file system hold it: delete volumes or snapshots, grow its file system, or "
			"raise overcommit",
			pool->name, (unsigned long long)((promised - most + (1 << 20) - 1) >> 20));
	room_of(pool, free_bytes, &room);
	uint64_t left = a->thick ? room.available_thick_bytes : room.available_bytes;
	if (a->bytes > left)
		return err_set(err, ERR_NO_ROOM,
			"pool %s has %llu MiB left to promise, %llu MiB are needed: delete volumes or "
			"snapshots, grow its file system, or raise overcommit",
			pool->name, (unsigned long long)(left >> 20),
			(unsigned long long)((a->bytes + (1 << 20) - 1) >> 20));
	pool->reserved_bytes += a->bytes;
	if (!a->thick)
		pool->reserved_thin_bytes += a->bytes;
	a->reserved = a->bytes;
	return 0;
}

void pool_admit_release(struct pool_admission *a)
{
	pool_admit_has(a, a->reserved);
}

void pool_admit_has(struct pool_admission *a, uint64_t bytes)
{
	uint64_t had = bytes < a->reserved ? bytes : a->reserved;
	a->pool->reserved_bytes = minus(a->pool->reserved_bytes, had);
	if (!a->thick)
		a->pool->reserved_thin_bytes = minus(a->pool->reserved_thin_bytes, had);
	a->reserved -= had;
}

void pool_room_used(struct pool *pool, uint64_t bytes)
{
	pool->free_bytes = minus(pool->free_bytes, bytes);
	pool->used_bytes += bytes;
}

void pool_object_measured(struct pool_object *o, uint64_t allocated_bytes)
{
	/* A file without blocks: its map says what it has, unless that is in the thin pool. */
	if (o->pool->raw != NULL && pool_entry(o)->thin_id == 0)
		return;
	if (allocated_bytes > o->allocated_bytes)
		pool_room_used(o->pool, allocated_bytes - o->allocated_bytes);
	pool_sums_sub(o);
	o->allocated_bytes = allocated_bytes;
	pool_sums_add(o);
}

void pool_room_stale(struct pool *pool)
{
	pool->measured_ns = 0;
}

/* ---- how full the file system is ---- */

enum {
	/* Percent free. Below the default reserve of 5%, so that a pool whose promises are within
	 * its space is not called nearly full when its volumes use what they were promised. */
	NEARLY_PCT = 3,
	ROOMY_PCT = 4, /* and to leave that again, so that it does not flap */
	FULL_SHARE = 256,
	FULL_BYTES_MAX = 16 << 20,
};

/* File systems keep a little for themselves: writes fail somewhat before nothing is free. */
static uint64_t full_below(uint64_t capacity)
{
	uint64_t share = capacity / FULL_SHARE;
	return share < FULL_BYTES_MAX ? share : FULL_BYTES_MAX;
}

static enum pool_usage_level level_of(enum pool_usage_level was, uint64_t capacity, uint64_t free)
{
	uint64_t full = full_below(capacity) * (was == POOL_FULL ? 2 : 1);
	uint64_t nearly = capacity / 100 * (was == POOL_ROOMY ? NEARLY_PCT : ROOMY_PCT);
	if (capacity == 0)
		return POOL_ROOMY;
	return free < full ? POOL_FULL : free < nearly ? POOL_NEARLY_FULL : POOL_ROOMY;
}

void pool_usage_see(struct pool *pool, uint64_t capacity_bytes, uint64_t free_bytes)
{
	struct pool_usage *usage = &pool->usage;
	if (pool->raw != NULL) { /* its records' file system is not what volumes fill */
		capacity_bytes = area_total_bytes(pool->raw->area);
		free_bytes = pool_raw_free_bytes(pool);
	}
	enum pool_usage_level level = level_of(usage->level, capacity_bytes, free_bytes);
	if (level != usage->level)
		usage->since_ns = ring_now_ns(pool->pools->reactor->ring);
	usage->level = level;
	usage->capacity_bytes = capacity_bytes;
	usage->free_bytes = free_bytes;
}

const struct pool_usage *pool_usage(const struct pool *pool)
{
	return &pool->usage;
}

/* ---- measuring ---- */

struct measured {
	char key[RECORD_KEY_MAX];
	struct raw_measure thin; /* id 0: not a thin image */
	enum record_kind kind;
	int res;
	uint64_t allocated_bytes;
};

/* A pool is measured once at a time; operations that ask meanwhile wait for that measure. The
 * operation that started it owns the job. */
struct pool_measure_job {
	struct list waiters, link;
	struct op *op;
	struct raw_measures thin;
	int root_fd, dir_fds[2];
	struct statfs fs;
	unsigned count;
	struct measured at[];
};

static int measure_job(void *arg)
{
	struct pool_measure_job *job = arg;
	/* Usage first: what is written meanwhile then counts as used, not as both free and owned.
	 */
	for (unsigned i = 0; i < job->count; i++) {
		struct stat st;
		struct measured *m = &job->at[i];
		if (m->thin.id != 0) {
			m->res = raw_measures_ask(&job->thin, &m->thin, &m->allocated_bytes);
			continue;
		}
		m->res = fstatat(job->dir_fds[m->kind], m->key, &st, AT_SYMLINK_NOFOLLOW) < 0
				 ? -errno
				 : 0;
		m->allocated_bytes = m->res == 0 ? (uint64_t)st.st_blocks * 512 : 0;
	}
	return fstatfs(job->root_fd, &job->fs) < 0 ? -errno : 0;
}

/* What an image of a raw pool has is what its map says, unless that is in the thin pool. */
static bool wants_measure(struct pool_object *o)
{
	bool can = o->pool->raw == NULL || (pool_entry(o)->thin_id != 0 && o->rec != NULL &&
						   o->pool->raw->thin.life == THIN_UP);
	return can && (o->node != NULL || pool_entry(o)->remeasure);
}

static struct pool_measure_job *measure_job_new(struct pool *pool)
{
	unsigned count = 0;
	for (unsigned kind = 0; kind < 2; kind++)
		for (unsigned i = 0; i < pool->index[kind].count; i++)
			count += wants_measure(pool->index[kind].at[i]);
	struct pool_measure_job *job = calloc(1, sizeof(*job) + count * sizeof(job->at[0]));
	if (job == NULL)
		return NULL;
	list_init(&job->waiters);
	list_init(&job->link);
	job->root_fd = pool->fds[POOL_FD_ROOT];
	raw_measures_init(&job->thin, pool);
	for (unsigned kind = 0; kind < 2; kind++) {
		job->dir_fds[kind] = pool_fd_of(pool, kind);
		for (unsigned i = 0; i < pool->index[kind].count; i++) {
			struct pool_object *o = pool->index[kind].at[i];
			if (!wants_measure(o))
				continue;
			/* Until it is done a change sets it again. */
			pool_entry(o)->remeasure = o->node != NULL;
			job->at[job->count].kind = kind;
			if (pool->raw != NULL)
				raw_measure_put(&job->at[job->count].thin, o);
			strcpy(job->at[job->count++].key, o->key);
		}
	}
	return job;
}

static void measure_apply(struct pool *pool, const struct pool_measure_job *job, uint64_t now_ns)
{
	pool->capacity_bytes = (uint64_t)job->fs.f_blocks * (uint64_t)job->fs.f_bsize;
	/* What was used while the job ran it may or may not have seen. */
	pool->free_bytes =
		minus((uint64_t)job->fs.f_bavail * (uint64_t)job->fs.f_bsize, pool->used_bytes);
	pool->measured_ns = now_ns;
	pool_usage_see(
		pool, pool->capacity_bytes, (uint64_t)job->fs.f_bavail * (uint64_t)job->fs.f_bsize);
	for (unsigned i = 0; i < job->count; i++) {
		struct pool_object *o = pool_index_find(pool, job->at[i].kind, job->at[i].key);
		if (o == NULL || job->at[i].res < 0)
			continue;
		pool_sums_sub(o);
		o->allocated_bytes = job->at[i].allocated_bytes;
		pool_sums_add(o);
	}
}

static struct pool_measure *measure_of(struct op *op)
{
	return container_of(op, struct pool_measure, op);
}

bool pool_room_known(const struct pool *pool, uint64_t max_age_ms)
{
	uint64_t now_ns = ring_now_ns(pool->pools->reactor->ring);
	return pool_loaded(pool) && pool->measured_ns != 0 &&
	       now_ns - pool->measured_ns < max_age_ms * 1000000;
}

static bool measure_done(struct op *op)
{
	return pool_room_known(measure_of(op)->pool, measure_of(op)->max_age_ms);
}

/* The end of a step that has a job, or would have had one. */
static int end_job(struct op *op, int res)
{
	struct pool_measure *m = measure_of(op);
	if (m->job != NULL)
		raw_measures_free(&m->job->thin);
	free(m->job);
	m->job = NULL;
	return res < 0 ? op_fail_sys(op, res, "measuring pool %s", m->pool->name) : 0;
}

static int measure_run(struct op *op)
{
	struct pool_measure *m = measure_of(op);
	struct pool *pool = m->pool;
	if (!pool_loaded(pool))
		return op_fail(op, ERR_UNAVAILABLE, "%s", pool_why(pool));
	if (pool->measuring != NULL) {
		m->job = calloc(1, sizeof(*m->job));
		if (m->job == NULL)
			return end_job(op, -ENOMEM);
		m->job->op = op;
		list_push(&pool->measuring->waiters, &m->job->link);
		return op_wait(op);
	}
	m->job = measure_job_new(pool);
	if (m->job == NULL)
		return end_job(op, -ENOMEM);
	int r = op_work(op, measure_job, m->job);
	if (r < 0)
		return end_job(op, r);
	pool->measuring = m->job;
	pool->used_bytes = 0;
	return r;
}

static int measure_end(struct op *op, int res)
{
	struct pool_measure *m = measure_of(op);
	struct pool *pool = m->pool;
	if (pool->measuring == m->job) {
		pool->measuring = NULL;
		if (res == 0)
			measure_apply(pool, m->job, ring_now_ns(op->reactor->ring));
		for (struct list *l; (l = list_pop(&m->job->waiters)) != NULL;)
			op_complete(container_of(l, struct pool_measure_job, link)->op, res);
	}
	return end_job(op, res);
}

static bool free_done(struct op *op)
{
	const struct pool_measure *m = measure_of(op);
	return !m->free_now || m->pool->measured_ns == ring_now_ns(op->reactor->ring);
}

static int free_run(struct op *op)
{
	struct pool_measure *m = measure_of(op);
	m->job = calloc(1, sizeof(*m->job));
	if (m->job == NULL)
		return end_job(op, -ENOMEM);
	m->job->root_fd = m->pool->fds[POOL_FD_ROOT];
	int r = op_work(op, measure_job, m->job); /* of no images */
	return r < 0 ? end_job(op, r) : r;
}

static int free_end(struct op *op, int res)
{
	struct pool_measure *m = measure_of(op);
	const struct statfs *fs = &m->job->fs;
	uint64_t free_bytes = (uint64_t)fs->f_bavail * (uint64_t)fs->f_bsize;
	if (res == 0 && free_bytes < m->pool->free_bytes)
		m->pool->free_bytes = free_bytes;
	return end_job(op, res);
}

static const struct op_step measure_steps[] = {
	{"measure", .run = measure_run, .end = measure_end, .done = measure_done},
	{"free", .run = free_run, .end = free_end, .done = free_done},
	{NULL},
};

void pool_measure_init(
	struct pool_measure *m, struct reactor *reactor, struct pool *pool, uint64_t max_age_ms)
{
	*m = (struct pool_measure){.pool = pool, .max_age_ms = max_age_ms};
	op_init(&m->op, reactor, "pool_measure", measure_steps, NULL);
	m->op.lane = m->pool->lane;
}

/* ---- admission ---- */

int pool_admit_end(struct op *op, struct pool_admission *a, int res)
{
	return res < 0 ? res : reserve(a, &op->err);
}

int pool_admit(struct op *op, struct pool_admission *a)
{
	if (pool_room_known(a->pool, ADMIT_MEASURE_MS))
		return pool_admit_end(op, a, 0);
	pool_measure_init(&a->measure, op->reactor, a->pool, ADMIT_MEASURE_MS);
	return op_child(op, &a->measure.op);
}
