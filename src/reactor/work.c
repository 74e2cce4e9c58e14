/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Worker threads. A job goes to `waiting`; a thread runs it, moves it to `finished`, and writes the
 * eventfd if that list was empty; the loop, which always has a read of the eventfd armed, calls
 * on_end. A ring that runs inline (ring_engine.h) has no threads: a job runs when its post is
 * dispatched.
 *
 * A lane lets as many jobs into `waiting` as it may have threads, and the next one when one of them
 * has run. All threads serve all lanes. There are enough for all that lanes let in: what waits gets
 * a thread, even if every job of other lanes hangs. Threads start when there is more to do than
 * idle threads. A thread that has nothing to do ends if more of them idle than one lane needs.
 *
 * Fails at WORK_QUEUE_MAX jobs of a lane, or when not even one thread can be started.
 */
#include "reactor/work.h"

#include "base/clock.h"
#include "base/fd.h"
#include "reactor/ring_engine.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/eventfd.h>

enum { WORK_STACK_BYTES = 256 * 1024 };

struct worker {
	struct work *work;
	struct list link; /* work.workers */
	pthread_t thread;
	bool ended; /* guarded by the work's lock */
};

struct work {
	struct ring *ring;
	unsigned depth;     /* submitted, on_end not called; the loop's */
	struct list posted; /* jobs of a ring that runs them inline */

	int wake_fd;
	uint64_t wake_count;
	struct ring_req wake_req;

	unsigned lane_threads;
	struct list workers; /* the loop's; also those that have ended and not been joined */

	pthread_mutex_t lock; /* guards what follows */
	pthread_cond_t more;
	struct list waiting, finished;
	unsigned waiting_count, idle_threads, thread_count;
	bool closing;
};

/* ---- lanes; with the lock held ---- */

static void let_in(struct work *work, struct work_job *job)
{
	job->lane->last_ns = clock_monotonic_ns();
	list_push(&work->waiting, &job->link);
	work->waiting_count++;
}

static void take_back(struct work *work, struct work_job *job)
{
	job->lane->jobs.inside--;
	list_remove(&job->link);
	work->waiting_count--;
}

/* One of the lane's jobs has run. */
static void lane_go_on(struct work *work, struct lane *lane)
{
	struct list *next = lane_leave(&lane->jobs);
	if (next != NULL)
		let_in(work, container_of(next, struct work_job, link));
}

/* ---- threads ---- */

/* NULL: the thread is not needed any more. */
static struct work_job *work_next(struct work *work)
{
	while (list_empty(&work->waiting) && !work->closing &&
		work->idle_threads < work->lane_threads) {
		work->idle_threads++;
		pthread_cond_wait(&work->more, &work->lock);
		work->idle_threads--;
	}
	if (work->closing || list_empty(&work->waiting))
		return NULL;
	work->waiting_count--;
	return container_of(list_pop(&work->waiting), struct work_job, link);
}

static void *work_thread(void *arg)
{
	struct worker *worker = arg;
	struct work *work = worker->work;
	struct work_job *job;
	pthread_mutex_lock(&work->lock);
	while ((job = work_next(work)) != NULL) {
		pthread_mutex_unlock(&work->lock);
		int res = job->run(job);
		pthread_mutex_lock(&work->lock);
		lane_go_on(work, job->lane);
		job->res = res;
		bool first = list_empty(&work->finished);
		list_push(&work->finished, &job->link);
		if (!first)
			continue;
		/* Without the lock, or the loop would wake up only to wait for it; work_close()
		 * joins this thread before it closes the descriptor. It cannot block: the count is
		 * far from its limit. */
		pthread_mutex_unlock(&work->lock);
		if (eventfd_write(work->wake_fd, 1) < 0)
			abort();
		pthread_mutex_lock(&work->lock);
	}
	work->thread_count--;
	worker->ended = true;
	pthread_mutex_unlock(&work->lock);
	return NULL;
}

static void work_arm_wake(struct work *work)
{
	io_uring_prep_read(
		&work->wake_req.sqe, work->wake_fd, &work->wake_count, sizeof(work->wake_count), 0);
	ring_submit(work->ring, &work->wake_req);
}

static void work_on_wake(struct ring_req *req, int res, uint32_t flags)
{
	(void)flags;
	struct work *work = container_of(req, struct work, wake_req);
	assert(res == sizeof(work->wake_count));
	(void)res;
	work_arm_wake(work);
	struct list finished, *node;
	list_init(&finished);
	pthread_mutex_lock(&work->lock);
	list_splice(&finished, &work->finished);
	pthread_mutex_unlock(&work->lock);
	while ((node = list_pop(&finished)) != NULL) {
		struct work_job *job = container_of(node, struct work_job, link);
		work->depth--;
		job->lane->depth--;
		job->on_end(job, job->res);
	}
}

static int worker_create(struct worker *worker)
{
	pthread_attr_t attr;
	sigset_t all, old;
	sigfillset(&all);
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, WORK_STACK_BYTES);
	/* A thread inherits the mask: signals are the loop's. */
	pthread_sigmask(SIG_SETMASK, &all, &old);
	int r = pthread_create(&worker->thread, &attr, work_thread, worker);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	pthread_attr_destroy(&attr);
	return -r;
}

static void worker_join(struct worker *worker)
{
	pthread_join(worker->thread, NULL);
	list_remove(&worker->link);
	free(worker);
}

static bool worker_ended(struct worker *worker)
{
	pthread_mutex_lock(&worker->work->lock);
	bool ended = worker->ended;
	pthread_mutex_unlock(&worker->work->lock);
	return ended;
}

/* Needs the lock not held, and the thread counted. False when the system refuses another one. */
static bool work_start_thread(struct work *work)
{
	list_for_each_safe (node, &work->workers) {
		struct worker *worker = container_of(node, struct worker, link);
		if (worker_ended(worker))
			worker_join(worker);
	}
	struct worker *worker = calloc(1, sizeof(*worker));
	if (worker == NULL)
		return false;
	worker->work = work;
	if (worker_create(worker) < 0) {
		free(worker);
		return false;
	}
	list_push(&work->workers, &worker->link);
	return true;
}

/* ---- opening and closing ---- */

int work_open(struct work **ret_work, struct ring *ring, unsigned threads)
{
	if (threads == 0)
		return -EINVAL;
	struct work *work = calloc(1, sizeof(*work));
	if (work == NULL)
		return -ENOMEM;
	*work = (struct work){
		.ring = ring, .lane_threads = threads, .wake_fd = -1, .wake_req.fn = work_on_wake};
	list_init(&work->posted);
	list_init(&work->workers);
	list_init(&work->waiting);
	list_init(&work->finished);
	pthread_mutex_init(&work->lock, NULL);
	pthread_cond_init(&work->more, NULL);
	if (!ring_runs_inline(ring)) {
		work->wake_fd = eventfd(0, EFD_CLOEXEC);
		if (work->wake_fd < 0) {
			int r = -errno;
			work_close(work);
			return r;
		}
		work_arm_wake(work);
	}
	*ret_work = work;
	return 0;
}

void work_close(struct work *work)
{
	if (work == NULL)
		return;
	pthread_mutex_lock(&work->lock);
	work->closing = true;
	pthread_cond_broadcast(&work->more);
	pthread_mutex_unlock(&work->lock);
	struct list *node;
	list_for_each_safe (worker, &work->workers)
		worker_join(container_of(worker, struct worker, link));
	ring_discard(work->ring, &work->wake_req);
	while ((node = list_pop(&work->posted)) != NULL)
		ring_discard(work->ring, &container_of(node, struct work_job, link)->posted);
	fd_close(&work->wake_fd);
	pthread_cond_destroy(&work->more);
	pthread_mutex_destroy(&work->lock);
	list_for_each (lane, &work->ring->lanes)
		lane_forget_jobs(container_of(lane, struct lane, link));
	free(work);
}

/* ---- inline ---- */

static void work_on_posted(struct ring_req *req, int res, uint32_t flags)
{
	(void)res;
	(void)flags;
	struct work_job *job = container_of(req, struct work_job, posted);
	list_remove(&job->link);
	job->on_end(job, job->run(job));
}

/* ---- the loop's side ---- */

unsigned work_queue_depth(const struct work *work)
{
	unsigned depth = work->depth;
	list_for_each (pos, &work->posted)
		depth++;
	return depth;
}

bool work_lane_stuck(struct work *work, const struct lane *lane, uint64_t ms)
{
	pthread_mutex_lock(&work->lock);
	bool stuck = !list_empty(&lane->jobs.held) &&
		     clock_monotonic_ns() - lane->last_ns > ms * 1000000;
	pthread_mutex_unlock(&work->lock);
	return stuck;
}

static int submit_inline(struct work *work, struct work_job *job)
{
	unsigned depth = 0;
	list_for_each (pos, &work->posted)
		depth += container_of(pos, struct work_job, link)->lane == job->lane;
	if (depth >= WORK_QUEUE_MAX)
		return -EAGAIN;
	list_push(&work->posted, &job->link);
	job->posted = (struct ring_req){.fn = work_on_posted};
	ring_post(work->ring, &job->posted, 0);
	return 0;
}

int work_submit(struct work *work, struct work_job *job)
{
	assert(job->run != NULL && job->on_end != NULL);
	if (job->lane == NULL)
		job->lane = &work->ring->shared;
	struct lane *lane = job->lane;
	if (ring_runs_inline(work->ring))
		return submit_inline(work, job);
	if (lane->depth >= WORK_QUEUE_MAX)
		return -EAGAIN;
	pthread_mutex_lock(&work->lock);
	bool inside = lane_enter(&lane->jobs, work->lane_threads, &job->link);
	if (inside)
		let_in(work, job);
	/* idle_threads counts those signalled and not yet awake too, hence the comparison. */
	bool start = inside && work->waiting_count > work->idle_threads &&
		     work->thread_count < work->lane_threads * work->ring->lane_count;
	work->thread_count += start;
	pthread_mutex_unlock(&work->lock);
	/* After the lock, or the thread would wake up only to wait for it. */
	if (inside)
		pthread_cond_signal(&work->more);
	work->depth++;
	lane->depth++;
	if (!start || work_start_thread(work))
		return 0;
	pthread_mutex_lock(&work->lock);
	bool none = --work->thread_count == 0;
	if (none)
		take_back(work, job);
	pthread_mutex_unlock(&work->lock);
	work->depth -= none;
	lane->depth -= none;
	return none ? -EAGAIN : 0;
}
