/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One pool: how it is found among the pools, the life it is in, how many operations change it, its
 * background jobs. A job that finds no room with the work threads waits for the next look. Nothing
 * else here can fail.
 */
#include "pool/private.h"
#include "pool/raw.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct pool *pools_at(const struct pools *pools, unsigned i)
{
	return i < pools->count ? pools->at[i] : NULL;
}

struct pool *pools_by_name(const struct pools *pools, const char *name)
{
	for (unsigned i = 0; i < pools->count; i++)
		if (strcmp(pools->at[i]->name, name) == 0)
			return pools->at[i];
	return NULL;
}

struct pool *pools_by_uuid8(const struct pools *pools, const char *uuid8)
{
	for (unsigned i = 0; i < pools->count; i++)
		if (uuid8[0] != '\0' && strcmp(pools->at[i]->uuid8, uuid8) == 0)
			return pools->at[i];
	return NULL;
}

const char *pool_name(const struct pool *pool)
{
	return pool->name;
}

const char *pool_path(const struct pool *pool)
{
	return pool->path;
}

enum pool_state pool_state(const struct pool *pool)
{
	static const enum pool_state states[POOL_LIVES] = {
		[POOL_NEW] = POOL_LOADING,
		[POOL_AWAY] = POOL_MISSING,
		[POOL_UNREAD] = POOL_SICK,
		[POOL_UNREAD_MUTE] = POOL_SICK,
		[POOL_SERVED] = POOL_READY,
		[POOL_READ_ONLY] = POOL_SICK,
		[POOL_MUTE] = POOL_SICK,
	};
	return states[pool->life];
}

bool pool_is_being_read(const struct pool *pool)
{
	if (pool->life != POOL_UNREAD_MUTE)
		return pool->life == POOL_NEW;
	uint64_t ns = ring_now_ns(pool->pools->reactor->ring) - pool->state_since_ns;
	return ns < POOL_UNREAD_WAIT_MS * UINT64_C(1000000);
}

uint64_t pool_state_since_ns(const struct pool *pool)
{
	return pool->state_since_ns;
}

const char *pool_why(const struct pool *pool)
{
	return pool->why;
}

bool pool_answers(const struct pool *pool)
{
	return pool->life != POOL_MUTE && pool->life != POOL_UNREAD_MUTE;
}

const char *pool_uuid(const struct pool *pool)
{
	return pool->uuid;
}

const char *pool_uuid8(const struct pool *pool)
{
	return pool->uuid8;
}

const struct fs_features *pool_features(const struct pool *pool)
{
	return &pool->features;
}

uint32_t pool_block_size(const struct pool *pool)
{
	const struct fs_features *f = &pool->features;
	return f->shared_dio_align > 512 ? f->shared_dio_align : 512;
}

bool pool_is_raw(const struct pool *pool)
{
	return pool->raw != NULL;
}

int pool_dirfd(const struct pool *pool, enum record_kind kind)
{
	return pool->life == POOL_SERVED ? pool_fd_of(pool, kind) : -1;
}

int pool_lock_fd(const struct pool *pool)
{
	return pool_loaded(pool) ? pool->fds[POOL_FD_LOCK] : -1;
}

int pool_check_ready(const struct pool *pool, struct err *err)
{
	if (pool->life == POOL_SERVED)
		return 0;
	return err_set(err, ERR_UNAVAILABLE, "%s", pool->why);
}

struct lane *pool_lane(const struct pool *pool)
{
	return pool == NULL ? NULL : pool->lane;
}

/* ---- background jobs ---- */

static int job_run(struct work_job *work_job)
{
	struct pool_job *job = container_of(work_job, struct pool_job, job);
	return job->run(job);
}

static void job_on_end(struct work_job *work_job, int res)
{
	struct pool_job *job = container_of(work_job, struct pool_job, job);
	if (job->pools != NULL)
		job->pools->jobs--;
	job->on_end(job, res);
}

bool pool_job_start(struct pool_job *job)
{
	struct pools *pools = job->pools;
	if (work_submit(pools->reactor->work, &job->job) < 0)
		return false;
	pools->jobs++;
	return true;
}

void pool_job_submit(struct pool *pool, struct pool_job *job)
{
	job->pool = pool;
	job->pools = pool->pools;
	job->job.run = job_run;
	job->job.on_end = job_on_end;
	job->job.lane = pool->lane;
	if (!pool_job_start(job))
		list_push(&pool->pools->queue, &job->link); /* the next tick tries again */
}

/* ---- its life ---- */

void pools_tell_when_loaded(struct pools *pools)
{
	for (unsigned i = 0; i < pools->count; i++)
		if (pools->at[i]->life == POOL_NEW)
			return;
	if (!pools->loaded_told && pools->started)
		ring_timer_arm(pools->reactor->ring, &pools->told, 0);
}

/* What may follow a life in which the pool is not loaded, and one in which it is. A loaded pool
 * whose calls fail stays loaded. Only one that has gone from its path is loaded again. */
static const unsigned unloaded = ~0u & ~(1u << POOL_NEW) & ~(1u << POOL_MUTE);
static const unsigned loaded =
	1u << POOL_SERVED | 1u << POOL_READ_ONLY | 1u << POOL_MUTE | 1u << POOL_AWAY;

void pool_enter(struct pool *pool, enum pool_life life, const char *fmt, ...)
{
	enum pool_state old = pool_state(pool);
	assert(((pool_loaded(pool) ? loaded : unloaded) & (1u << life)) != 0);
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(pool->why, sizeof(pool->why), fmt, ap);
	va_end(ap);
	pool->life = life;
	bool changed = pool_state(pool) != old;
	if (changed || pool->state_since_ns == 0)
		pool->state_since_ns = ring_now_ns(pool->pools->reactor->ring);
	if (life != POOL_SERVED)
		pool_raw_wake(pool);
	pools_tell_when_loaded(pool->pools);
	if (changed && pool->pools->on_changed != NULL)
		pool->pools->on_changed(pool->pools->arg, pool);
}

int pool_op_begin(struct pool *pool, struct err *err)
{
	int r = pool_check_ready(pool, err);
	if (r == 0)
		pool->ops++;
	return r;
}

void pool_op_finish(struct pool *pool)
{
	pool->ops--;
}
