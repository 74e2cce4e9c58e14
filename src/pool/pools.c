/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pools of this driver and the background work on them. Every POOL_CHECK_MS each pool is looked
 * at. A pool that is not loaded is loaded. A loaded one is checked: is what its path shows still
 * the directory that is open here, and can it be written to? Then its trash is reclaimed.
 *
 * A look first asks a helper process, where there are helpers, whether the path answers at all.
 * Only then it is given to a work thread. At most one look a pool is under way. A look that does
 * not end within POOL_ANSWER_MS makes the pool sick. It keeps its thread and its memory until it
 * ends, and what it then found counts.
 *
 * All calls on the files of a pool, of looks and of operations, share a lane of the work threads
 * (reactor/work.h), so that a pool that hangs keeps its own threads and no others. Operations on
 * it may have all of them, and then its look does not even begin. The pool is sick then, too, and
 * takes no more operations. There are at most two looks and reclaims at once, which leaves threads
 * to the operations.
 */
#include "pool/pools.h"

#include "mount/mnt.h"
#include "pool/arrival.h"
#include "pool/departure.h"
#include "pool/group.h"
#include "pool/hold.h"
#include "pool/index.h"
#include "pool/load.h"
#include "pool/presence.h"
#include "pool/private.h"
#include "pool/raw.h"
#include "pool/sync.h"
#include "pool/template.h"
#include "pool/thin_keep.h"
#include "pool/trash.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
	POOL_ANSWER_MS = 2000, /* a load or check that takes longer: sick */
	/* A pool that is not there yet is looked for more often at first: what a driver that was
	 * killed had of it, its lock and the mount of its records, outlives that by a moment. */
	POOL_QUICK_MS = 250,
	POOL_QUICK_FOR_MS = 10000,
	POOL_STUCK_MS = 6000, /* a check that cannot begin, as calls have all threads: likewise */
};

/* ---- looking after one pool ---- */

struct pool_task {
	struct pool_job job;
	struct ring_timer timer;
	atomic_bool running; /* a thread has begun with it */
	bool loading;
	struct helper_call call;
	struct mnt_path_req req;
	struct mnt_info info;
	struct pool_load load;
	/* of a check; its path is load.path */
	int fds[POOL_FDS];
	struct disk *disk; /* a reference; NULL: a directory pool */
	struct pool_root_look look;
	bool probed;
	struct fs_features features;
	struct pool_presence presence;
};

static void task_free(struct pool_task *task)
{
	pool_load_clean(&task->load);
	pool_presence_free(&task->presence);
	if (task->disk != NULL)
		disk_unref(task->disk);
	free(task);
}

/* Blocking. */
static int check_run(struct pool_task *task)
{
	int r = pool_root_look(
		task->load.path, task->disk, task->load.node, task->fds, &task->look);
	if (r == 0 && task->look.gone)
		pool_fds_retire(task->fds);
	if (r < 0 || task->look.gone)
		return r;
	if (!task->look.read_only && !task->probed) {
		r = pool_probe(task->fds[POOL_FD_ROOT], task->disk, &task->features, &task->probed);
		if (r < 0)
			return r;
	}
	pool_presence_look(&task->presence, task->fds);
	return 0;
}

static int task_run(struct pool_job *job)
{
	struct pool_task *task = container_of(job, struct pool_task, job);
	atomic_store(&task->running, true);
	if (!task->loading)
		return check_run(task);
	pool_load_run(&task->load);
	return 0;
}

static void check_apply(struct pool *pool, const struct pool_task *task, int res)
{
	if (res < 0) {
		pool_enter(pool, POOL_MUTE, "pool %s: calls on %s fail: %s", pool->name, pool->path,
			strerrordesc_np(-res));
	} else if (task->look.gone) {
		pool_enter(pool, POOL_AWAY, "pool %s %s", pool->name, task->look.why);
	} else if (task->look.read_only) {
		pool_enter(pool, POOL_READ_ONLY,
			"pool %s: %s is read-only: look for errors of its disk in the kernel log, "
			"mend it and mount it writable",
			pool->name, pool->path);
	} else {
		if (!pool->probed) {
			pool->features = task->features;
			pool->probed = task->probed;
		}
		pool_enter(pool, POOL_SERVED, "%s", "");
	}
	if (res == 0 && !task->look.gone)
		pool_presence_apply(pool, &task->presence);
}

static int let_go_run(struct pool_job *job)
{
	pool_load_let_go(&container_of(job, struct pool_task, job)->load);
	return 0;
}

static void let_go_on_end(struct pool_job *job, int res)
{
	(void)res;
	if (job->pool != NULL)
		job->pool->task = NULL;
	task_free(container_of(job, struct pool_task, job));
}

/* What a load has left over goes on a thread. Until then the pool has its lock, and is not loaded
 * again. */
static void task_end(struct pool_task *task)
{
	struct pool *pool = task->job.pool;
	if (pool == NULL || pool->pools->draining || !pool_load_holds(&task->load)) {
		task_free(task);
		return;
	}
	pool->task = task;
	task->job.run = let_go_run;
	task->job.on_end = let_go_on_end;
	pool_job_submit(pool, &task->job);
}

static void task_on_end(struct pool_job *job, int res)
{
	struct pool_task *task = container_of(job, struct pool_task, job);
	struct pool *pool = job->pool;
	if (pool != NULL) {
		ring_timer_cancel(pool->pools->reactor->ring, &task->timer);
		pool->task = NULL;
		if (res == -ECANCELED)
			;
		else if (task->loading) {
			pool_load_adopt(&task->load, pool);
			thin_keep_kick(pool);
		} else
			check_apply(pool, task, res);
		if (pool->life == POOL_SERVED)
			pool_trash_kick(pool);
	}
	task_end(task);
}

static void not_answering(struct pool *pool)
{
	pool_enter(pool, pool_loaded(pool) ? POOL_MUTE : POOL_UNREAD_MUTE,
		"pool %s: %s does not answer: look for errors of its disk in the kernel log",
		pool->name, pool->path);
}

static void task_on_timer(struct ring_timer *timer)
{
	struct pool_task *task = container_of(timer, struct pool_task, timer);
	if (atomic_load(&task->running) || work_lane_stuck(task->job.pools->reactor->work,
						   task->job.pool->lane, POOL_STUCK_MS))
		not_answering(task->job.pool);
	else
		ring_timer_arm(task->job.pools->reactor->ring, timer, POOL_ANSWER_MS);
}

static void task_submit(struct pool_task *task)
{
	struct pool *pool = task->job.pool;
	ring_timer_arm(pool->pools->reactor->ring, &task->timer, POOL_ANSWER_MS);
	pool_job_submit(pool, &task->job);
}

/* Whatever the helper says of the path, it was said in time. */
static void task_on_answer(struct helper_call *call, int res)
{
	struct pool_task *task = container_of(call, struct pool_task, call);
	struct pool *pool = task->job.pool;
	if (pool == NULL) {
		task_free(task);
	} else if (res == -ETIMEDOUT || pool->pools->draining) {
		pool->task = NULL;
		if (res == -ETIMEDOUT)
			not_answering(pool);
		task_free(task);
	} else {
		if (res == 0 && pool_loaded(pool))
			pool_usage_see(pool, task->info.total_bytes, task->info.avail_bytes);
		task_submit(task);
	}
}

static bool task_ask(struct pool_task *task)
{
	struct helpers *helpers = task->job.pools->reactor->helpers;
	if (helpers == NULL || strlen(task->load.path) >= sizeof(task->req.path))
		return false;
	strcpy(task->req.path, task->load.path);
	task->call = (struct helper_call){
		.lane = task->job.pool->lane,
		.fn = MNT_STATS,
		.key = task->load.path, /* no volume's key begins with a slash */
		.req = &task->req,
		.req_len = sizeof(task->req),
		.resp = &task->info,
		.resp_cap = sizeof(task->info),
		.timeout_ms = POOL_ANSWER_MS,
		.on_end = task_on_answer,
	};
	if (strlen(task->call.key) >= HELPER_KEY_BYTES)
		task->call.key = NULL;
	return helpers_submit(helpers, &task->call) == 0;
}

static void pool_look(struct pool *pool)
{
	bool changing = pool->ops > 0 || (pool->raw != NULL && pool->trash != NULL);
	if (pool->task != NULL || (!pool_loaded(pool) && changing))
		return;
	struct pool_task *task = calloc(1, sizeof(*task));
	if (task == NULL)
		return; /* the next tick tries again */
	task->job = (struct pool_job){
		.pools = pool->pools, .pool = pool, .run = task_run, .on_end = task_on_end};
	list_init(&task->job.link);
	task->timer.fn = task_on_timer;
	task->loading = !pool_loaded(pool);
	memset(task->load.fds, 0xff, sizeof(task->load.fds));
	list_init(&task->load.holds);
	list_init(&task->load.groups);
	list_init(&task->load.departures);
	list_init(&task->load.arrivals);
	memcpy(task->fds, pool->fds, sizeof(task->fds));
	task->probed = pool->probed;
	if (pool_loaded(pool))
		pool_presence_ask(pool, &task->presence);
	if (pool_loaded(pool) && pool->raw != NULL)
		task->disk = disk_ref(pool->raw->disk);
	task->load.open_root = pool->pools->open_root;
	task->load.init = pool->init;
	task->load.had_snapshots = pool->index[RECORD_SNAPSHOT].count > 0;
	task->load.name = strdup(pool->name);
	task->load.path = strdup(pool->path);
	task->load.node = strdup(pool->pools->node);
	if (task->load.name == NULL || task->load.path == NULL || task->load.node == NULL) {
		task_free(task);
		return;
	}
	pool->task = task;
	if (!task_ask(task))
		task_submit(task);
}

static void jobs_retry(struct pools *pools)
{
	list_for_each_safe (l, &pools->queue) {
		if (pool_job_start(container_of(l, struct pool_job, link)))
			list_remove(l);
	}
}

static void pools_on_timer(struct ring_timer *timer)
{
	struct pools *pools = container_of(timer, struct pools, timer);
	uint64_t now = ring_now_ns(pools->reactor->ring);
	bool all = now >= pools->look_ns, missing = false;
	for (unsigned i = 0; i < pools->count; i++) {
		missing = missing || !pool_loaded(pools->at[i]);
		if (all || !pool_loaded(pools->at[i]))
			pool_look(pools->at[i]);
	}
	jobs_retry(pools);
	if (all)
		pools->look_ns = now + POOL_CHECK_MS * UINT64_C(1000000);
	ring_timer_arm(pools->reactor->ring, timer,
		missing && now < pools->quick_until_ns ? POOL_QUICK_MS
						       : (pools->look_ns - now) / 1000000);
}

/* ---- opening and closing ---- */

static void told_on_timer(struct ring_timer *timer)
{
	struct pools *pools = container_of(timer, struct pools, told);
	if (!pools->loaded_told && pools->on_loaded != NULL) {
		pools->loaded_told = true;
		pools->on_loaded(pools->arg);
	}
}

static struct pool *pool_new(struct pools *pools, const struct pool_config *config)
{
	struct pool *pool = calloc(1, sizeof(*pool));
	if (pool == NULL)
		return NULL;
	pool->pools = pools;
	pool->name = strdup(config->name);
	pool->path = strdup(config->path);
	pool->overcommit = config->overcommit > 0 ? config->overcommit : 1.0;
	pool->reserve_pct = config->reserve_pct < 100 ? config->reserve_pct : 100;
	pool->init = config->init;
	memset(pool->fds, 0xff, sizeof(pool->fds));
	list_init(&pool->dead);
	list_init(&pool->dead_records);
	list_init(&pool->templates);
	list_init(&pool->holds);
	list_init(&pool->departures);
	list_init(&pool->arrivals);
	list_init(&pool->departures_dead);
	list_init(&pool->groups.dead);
	list_init(&pool->groups.unswept);
	pool_sync_open(pool);
	snprintf(pool->why, sizeof(pool->why), "pool %s is being loaded", config->name);
	return pool;
}

static void pool_free(struct pool *pool)
{
	/* A job that never ended goes on with the numbers it has: they stay open. */
	bool busy = pool_trash_detach(pool);
	thin_keep_close(pool);
	if (pool->task != NULL) {
		ring_timer_cancel(pool->pools->reactor->ring, &pool->task->timer);
		pool->task->job.pool = NULL;
		pool->task->job.pools = NULL;
		busy = true;
	}
	for (unsigned kind = 0; kind < 2; kind++) {
		for (unsigned i = 0; i < pool->index[kind].count; i++)
			pool_object_free(pool->index[kind].at[i]);
		free(pool->index[kind].at);
	}
	for (struct list *l; (l = list_pop(&pool->dead)) != NULL;)
		pool_object_free(&container_of(l, struct pool_entry, link)->object);
	for (struct list *l; (l = list_pop(&pool->dead_records)) != NULL;) {
		struct pool_dead_record *dead = container_of(l, struct pool_dead_record, link);
		record_free(dead->rec);
		free(dead);
	}
	for (struct list *l; (l = list_pop(&pool->holds)) != NULL;)
		pool_hold_free(container_of(l, struct pool_hold, link));
	pool_groups_close(pool);
	pool_departures_free(&pool->departures);
	pool_arrivals_free(&pool->arrivals);
	pool_departures_free(&pool->departures_dead);
	pool_templates_free(pool);
	if (pool->raw != NULL)
		disk_publish(pool->uuid8, NULL);
	pool_raw_free(pool->raw);
	for (unsigned i = 0; !busy && i < POOL_FDS; i++)
		fd_close(&pool->fds[i]);
	free(pool->name);
	free(pool->path);
	free(pool);
}

int pools_open(struct pools **ret, struct reactor *reactor, const struct pool_config *configs,
	unsigned count)
{
	if (count > POOLS_MAX)
		return -E2BIG;
	struct pools *pools = calloc(1, sizeof(*pools));
	if (pools == NULL)
		return -ENOMEM;
	pools->reactor = reactor;
	pools->open_root = pool_root_open;
	pools->timer.fn = pools_on_timer;
	pools->told.fn = told_on_timer;
	list_init(&pools->queue);
	int r = ring_lane_open(&pools->strays, reactor->ring);
	for (unsigned i = 0; r == 0 && i < count; i++) {
		pools->at[i] = pool_new(pools, &configs[i]);
		if (pools->at[i] != NULL)
			pools->count++;
		if (pools->at[i] == NULL || pools->at[i]->name == NULL ||
			pools->at[i]->path == NULL)
			r = -ENOMEM;
		else
			r = ring_lane_open(&pools->at[i]->lane, reactor->ring);
	}
	if (r < 0) {
		pools_close(pools);
		return r;
	}
	*ret = pools;
	return 0;
}

void pools_serve_as(struct pools *pools, const char *node)
{
	snprintf(pools->node, sizeof(pools->node), "%s", node);
}

void pools_start(struct pools *pools, void (*on_loaded)(void *arg),
	void (*on_changed)(void *arg, struct pool *pool), void *arg)
{
	pools->on_loaded = on_loaded;
	pools->on_changed = on_changed;
	pools->arg = arg;
	pools->started = true;
	pools->quick_until_ns =
		ring_now_ns(pools->reactor->ring) + POOL_QUICK_FOR_MS * UINT64_C(1000000);
	pools_on_timer(&pools->timer);
	pools_tell_when_loaded(pools);
}

void pools_drain(struct pools *pools)
{
	pools->draining = true;
	ring_timer_cancel(pools->reactor->ring, &pools->timer);
	for (unsigned i = 0; i < pools->count; i++)
		pool_trash_stop(pools->at[i]);
	for (unsigned i = 0; i < pools->count; i++)
		pool_raw_wake(pools->at[i]);
	for (unsigned i = 0; i < pools->count; i++)
		thin_keep_drain(pools->at[i]);
	for (struct list *l; (l = list_pop(&pools->queue)) != NULL;) {
		struct pool_job *job = container_of(l, struct pool_job, link);
		job->on_end(job, -ECANCELED);
	}
}

bool pools_idle(const struct pools *pools)
{
	for (unsigned i = 0; i < pools->count; i++)
		if (pools->at[i]->task != NULL || pools->at[i]->trash != NULL ||
			thin_keep_busy(pools->at[i]))
			return false;
	return pools->jobs == 0;
}

void pools_close(struct pools *pools)
{
	if (pools == NULL)
		return;
	pools_drain(pools);
	ring_timer_cancel(pools->reactor->ring, &pools->told);
	for (unsigned i = 0; i < pools->count; i++)
		pool_free(pools->at[i]);
	free(pools);
}
