/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a pool may still promise. Sums over the index are kept up with every change; what the file
 * system has free, and what attached volumes have come to use, is measured by a work job: by
 * admissions that find the last measure too old, and by who asks. Between two measures the numbers
 * only err towards too little: blocks a create used are taken off at once, blocks a delete will
 * give back are free when they are. Who wants to know what is free at this moment is told without a
 * look at every attached image, by the same rule.
 *
 * A create reserves what it asks for before it begins and gives it back when its volume counts. A
 * pool that has promised more than it has, as snapshots came to hold what volumes wrote anew, takes
 * nothing on, not even what asks for no room.
 */
#include "pool/private.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statfs.h>

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
	uint64_t thick = minus(free_bytes, kept_bytes(pool) + pool->reserved_bytes);
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
	room_of(pool, pool->free_bytes, ret);
}

int pool_room_reserve(struct pool *pool, uint64_t bytes, uint64_t has, bool thick, struct err *err)
{
	struct pool_room room;
	uint64_t free_bytes = pool->free_bytes + has; /* as when it was allocated */
	uint64_t most = most_bytes(pool, free_bytes);
	uint64_t promised = pool->sum_size + pool->reserved_bytes;
	/* Also who asks for nothing, the snapshot of a volume that shares its blocks already: what
	 * it holds could not be had back, and each one would take a volume's writes with it. */
	if (promised > most)
		return err_set(err, ERR_NO_ROOM,
			"pool %s has promised its volumes %llu MiB more than it has, as snapshots or others on "
			"its file system hold it: delete volumes or snapshots, grow its file system, or "
			"raise overcommit",
			pool->name, (unsigned long long)((promised - most + (1 << 20) - 1) >> 20));
	room_of(pool, free_bytes, &room);
	uint64_t left = thick ? room.available_thick_bytes : room.available_bytes;
	if (bytes > left)
		return err_set(err, ERR_NO_ROOM,
			"pool %s has %llu MiB left to promise, %llu MiB are needed: delete volumes or "
			"snapshots, grow its file system, or raise overcommit",
			pool->name, (unsigned long long)(left >> 20),
			(unsigned long long)((bytes + (1 << 20) - 1) >> 20));
	pool->reserved_bytes += bytes;
	return 0;
}

void pool_room_release(struct pool *pool, uint64_t bytes)
{
	pool->reserved_bytes = minus(pool->reserved_bytes, bytes);
}

void pool_room_used(struct pool *pool, uint64_t bytes)
{
	pool->free_bytes = minus(pool->free_bytes, bytes);
	pool->used_bytes += bytes;
}

void pool_object_measured(struct pool_object *o, uint64_t allocated_bytes)
{
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

/* ---- measuring ---- */

struct measured {
	char key[RECORD_KEY_MAX];
	enum record_kind kind;
	int res;
	uint64_t allocated_bytes;
};

/* One measure at a time and pool; who comes meanwhile waits for it. The one who started it owns the
 * job. */
struct pool_measure_job {
	struct list waiters, link;
	struct op *op;
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
		m->res = fstatat(job->dir_fds[m->kind], m->key, &st, AT_SYMLINK_NOFOLLOW) < 0
				 ? -errno
				 : 0;
		m->allocated_bytes = m->res == 0 ? (uint64_t)st.st_blocks * 512 : 0;
	}
	return fstatfs(job->root_fd, &job->fs) < 0 ? -errno : 0;
}

static bool wants_measure(struct pool_object *o)
{
	return o->node != NULL || pool_entry(o)->watch;
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
	for (unsigned kind = 0; kind < 2; kind++) {
		job->dir_fds[kind] = pool_fd_of(pool, kind);
		for (unsigned i = 0; i < pool->index[kind].count; i++) {
			struct pool_object *o = pool->index[kind].at[i];
			if (!wants_measure(o))
				continue;
			/* Until it is done a change sets it again. */
			pool_entry(o)->watch = o->node != NULL;
			job->at[job->count].kind = kind;
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
	pool_fill_see(
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
	return pool->loaded && pool->measured_ns != 0 &&
	       now_ns - pool->measured_ns < max_age_ms * 1000000;
}

static bool measure_done(struct op *op)
{
	return pool_room_known(measure_of(op)->pool, measure_of(op)->max_age_ms);
}

static int measure_run(struct op *op)
{
	struct pool_measure *m = measure_of(op);
	struct pool *pool = m->pool;
	if (!pool->loaded)
		return op_fail(op, ERR_UNAVAILABLE, "%s", pool_why(pool));
	if (pool->measuring != NULL) {
		m->job = calloc(1, sizeof(*m->job));
		if (m->job == NULL)
			return op_fail_sys(op, -ENOMEM, "measuring pool %s", pool->name);
		m->job->op = op;
		list_push(&pool->measuring->waiters, &m->job->link);
		return op_wait(op);
	}
	m->job = measure_job_new(pool);
	if (m->job == NULL)
		return op_fail_sys(op, -ENOMEM, "measuring pool %s", pool->name);
	pool->measuring = m->job;
	pool->used_bytes = 0;
	int r = op_work(op, measure_job, m->job);
	if (r < 0) {
		pool->measuring = NULL;
		free(m->job);
		m->job = NULL;
		return op_fail_sys(op, r, "measuring pool %s", pool->name);
	}
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
	free(m->job);
	m->job = NULL;
	return res < 0 ? op_fail_sys(op, res, "measuring pool %s", pool->name) : 0;
}

static bool free_done(struct op *op)
{
	const struct pool_measure *m = measure_of(op);
	return !m->free_now || m->pool->measured_ns == ring_now_ns(op->reactor->ring);
}

static int free_job(void *arg)
{
	struct pool_measure_job *job = arg;
	return fstatfs(job->root_fd, &job->fs) < 0 ? -errno : 0;
}

static int free_run(struct op *op)
{
	struct pool_measure *m = measure_of(op);
	m->job = calloc(1, sizeof(*m->job));
	if (m->job == NULL)
		return -ENOMEM;
	m->job->root_fd = m->pool->fds[POOL_FD_ROOT];
	int r = op_work(op, free_job, m->job);
	if (r < 0) {
		free(m->job);
		m->job = NULL;
	}
	return r;
}

static int free_end(struct op *op, int res)
{
	struct pool_measure *m = measure_of(op);
	const struct statfs *fs = &m->job->fs;
	uint64_t free_bytes = (uint64_t)fs->f_bavail * (uint64_t)fs->f_bsize;
	if (res == 0 && free_bytes < m->pool->free_bytes)
		m->pool->free_bytes = free_bytes;
	free(m->job);
	m->job = NULL;
	return res < 0 ? op_fail_sys(op, res, "measuring pool %s", m->pool->name) : 0;
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
