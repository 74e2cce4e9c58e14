/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Worker threads. A job goes to `waiting`, a thread runs it and moves it to `finished`, writes the
 * eventfd if that list was empty, and the loop, which always has a read of the eventfd armed, calls
 * on_end. Threads start when there is more to do than idle threads, and stay. In a simulated ring
 * there are none: a job runs when its post is dispatched.
 *
 * Fails at WORK_QUEUE_MAX jobs, or when not even one thread can be started.
 */
#include "reactor/work.h"

#include "base/fd.h"
#include "reactor/ring_priv.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/eventfd.h>

enum { WORK_STACK_BYTES = 256 * 1024 };

struct work {
	struct ring *ring;
	unsigned depth;        /* submitted, on_end not called; the loop's */
	struct list simulated; /* jobs posted in a simulated ring */

	int wake_fd;
	uint64_t wake_count;
	struct ring_req wake_req;

	pthread_t *threads;
	unsigned thread_count, thread_max;

	pthread_mutex_t lock; /* guards what follows */
	pthread_cond_t more;
	struct list waiting, finished;
	unsigned waiting_count, idle_threads;
	bool closing;
};

static void *work_thread(void *arg)
{
	struct work *work = arg;
	pthread_mutex_lock(&work->lock);
	for (;;) {
		while (list_empty(&work->waiting) && !work->closing) {
			work->idle_threads++;
			pthread_cond_wait(&work->more, &work->lock);
			work->idle_threads--;
		}
		if (work->closing)
			break;
		struct work_job *job =
			container_of(list_pop(&work->waiting), struct work_job, link);
		work->waiting_count--;
		pthread_mutex_unlock(&work->lock);
		int res = job->run(job);
		pthread_mutex_lock(&work->lock);
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
		job->on_end(job, job->res);
	}
}

/* Needs the lock not held. False when the system refuses another thread. */
static bool work_start_thread(struct work *work)
{
	pthread_attr_t attr;
	sigset_t all, old;
	sigfillset(&all);
	pthread_attr_init(&attr);
	pthread_attr_setstacksize(&attr, WORK_STACK_BYTES);
	/* A thread inherits the mask: signals are the loop's. */
	pthread_sigmask(SIG_SETMASK, &all, &old);
	int r = pthread_create(&work->threads[work->thread_count], &attr, work_thread, work);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	pthread_attr_destroy(&attr);
	if (r == 0)
		work->thread_count++;
	return r == 0;
}

int work_open(struct work **ret_work, struct ring *ring, unsigned threads)
{
	if (threads == 0)
		return -EINVAL;
	struct work *work = calloc(1, sizeof(*work));
	if (work == NULL)
		return -ENOMEM;
	work->ring = ring;
	list_init(&work->simulated);
	list_init(&work->waiting);
	list_init(&work->finished);
	pthread_mutex_init(&work->lock, NULL);
	pthread_cond_init(&work->more, NULL);
	work->thread_max = threads;
	work->threads = calloc(threads, sizeof(*work->threads));
	int r = work->threads != NULL ? 0 : -ENOMEM;
	work->wake_fd = -1;
	if (r == 0 && !ring_simulated(ring)) {
		work->wake_fd = eventfd(0, EFD_CLOEXEC);
		r = work->wake_fd >= 0 ? 0 : -errno;
	}
	if (r < 0) {
		work_close(work);
		return r;
	}
	work->wake_req.fn = work_on_wake;
	if (!ring_simulated(ring))
		work_arm_wake(work);
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
	for (unsigned i = 0; i < work->thread_count; i++)
		pthread_join(work->threads[i], NULL);
	ring_discard(work->ring, &work->wake_req);
	struct list *node;
	while ((node = list_pop(&work->simulated)) != NULL)
		ring_discard(work->ring, &container_of(node, struct work_job, link)->posted);
	fd_close(&work->wake_fd);
	pthread_cond_destroy(&work->more);
	pthread_mutex_destroy(&work->lock);
	free(work->threads);
	free(work);
}

/* ---- simulated ---- */

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
	list_for_each (pos, &work->simulated)
		depth++;
	return depth;
}

int work_submit(struct work *work, struct work_job *job)
{
	assert(job->run != NULL && job->on_end != NULL);
	if (ring_simulated(work->ring)) {
		if (work_queue_depth(work) >= WORK_QUEUE_MAX)
			return -EAGAIN;
		list_push(&work->simulated, &job->link);
		job->posted = (struct ring_req){.fn = work_on_posted};
		ring_post(work->ring, &job->posted, 0);
		return 0;
	}
	if (work->depth >= WORK_QUEUE_MAX)
		return -EAGAIN;
	pthread_mutex_lock(&work->lock);
	list_push(&work->waiting, &job->link);
	work->waiting_count++;
	/* idle_threads counts those signalled and not yet awake too, hence the comparison. */
	bool busy = work->waiting_count > work->idle_threads;
	pthread_mutex_unlock(&work->lock);
	/* After the lock, or the thread would wake up only to wait for it. */
	pthread_cond_signal(&work->more);
	work->depth++;
	if (busy && work->thread_count < work->thread_max && !work_start_thread(work) &&
		work->thread_count == 0) {
		work->depth--;
		list_remove(&job->link);
		work->waiting_count--;
		return -EAGAIN;
	}
	return 0;
}
