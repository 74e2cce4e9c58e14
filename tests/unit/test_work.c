/* SPDX-License-Identifier: Apache-2.0 */
/* Worker threads: results come back on the loop, the queue has a limit, closing is clean. */
#include "reactor/work.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <unistd.h>

struct job {
	struct work_job job;
	int id, ends, res;
	pthread_t thread;
	bool signals_blocked;
};

static struct ring *ring;
static struct work *work;
static sem_t gate;
static int ended;

static void setup(void)
{
	cr_assert_eq(ring_open(&ring, &(struct ring_config){0}), 0);
	cr_assert_eq(work_open(&work, ring, WORK_THREADS), 0);
	sem_init(&gate, 0, 0);
	ended = 0;
}

static void teardown(void)
{
	work_close(work);
	ring_close(ring);
	sem_destroy(&gate);
}

TestSuite(work, .init = setup, .fini = teardown);

static int job_run(struct work_job *job)
{
	struct job *j = container_of(job, struct job, job);
	sigset_t mask;
	pthread_sigmask(SIG_SETMASK, NULL, &mask);
	j->signals_blocked = sigismember(&mask, SIGTERM) && sigismember(&mask, SIGCHLD);
	j->thread = pthread_self();
	return -j->id;
}

static int job_run_gated(struct work_job *job)
{
	sem_wait(&gate);
	return job_run(job);
}

static void job_end(struct work_job *job, int res)
{
	struct job *j = container_of(job, struct job, job);
	j->ends++;
	j->res = res;
	ended++;
}

static void turn_until(int count)
{
	while (ended < count)
		cr_assert_eq(ring_turn(ring, true), 0);
}

Test(work, jobs_run_elsewhere_and_end_here)
{
	static struct job jobs[100];
	for (int i = 0; i < 100; i++) {
		jobs[i] = (struct job){.job = {.run = job_run, .on_end = job_end}, .id = i};
		cr_assert_eq(work_submit(work, &jobs[i].job), 0);
	}
	cr_assert_eq(ended, 0);
	turn_until(100);
	for (int i = 0; i < 100; i++) {
		cr_assert_eq(jobs[i].ends, 1);
		cr_assert_eq(jobs[i].res, -i);
		cr_assert(jobs[i].signals_blocked);
		cr_assert_not(pthread_equal(jobs[i].thread, pthread_self()));
	}
	cr_assert_eq(work_queue_depth(work), 0);
}

static void job_end_resubmit(struct work_job *job, int res)
{
	struct job *j = container_of(job, struct job, job);
	j->ends++;
	ended++;
	(void)res;
	if (j->ends < 50)
		cr_assert_eq(work_submit(work, job), 0);
}

Test(work, a_job_may_be_submitted_again_from_its_end)
{
	struct job j = {.job = {.run = job_run, .on_end = job_end_resubmit}};
	cr_assert_eq(work_submit(work, &j.job), 0);
	turn_until(50);
	cr_assert_eq(j.ends, 50);
}

Test(work, one_blocked_job_does_not_hold_up_the_others)
{
	struct job blocked = {.job = {.run = job_run_gated, .on_end = job_end}};
	struct job quick[8];
	cr_assert_eq(work_submit(work, &blocked.job), 0);
	for (int i = 0; i < 8; i++) {
		quick[i] = (struct job){.job = {.run = job_run, .on_end = job_end}, .id = i};
		cr_assert_eq(work_submit(work, &quick[i].job), 0);
	}
	turn_until(8);
	cr_assert_eq(blocked.ends, 0);
	sem_post(&gate);
	turn_until(9);
}

Test(work, the_queue_has_a_limit)
{
	static struct job jobs[WORK_QUEUE_MAX + 1];
	for (int i = 0; i <= WORK_QUEUE_MAX; i++)
		jobs[i] = (struct job){.job = {.run = job_run_gated, .on_end = job_end}};
	for (int i = 0; i < WORK_QUEUE_MAX; i++)
		cr_assert_eq(work_submit(work, &jobs[i].job), 0);
	cr_assert_eq(work_queue_depth(work), WORK_QUEUE_MAX);
	cr_assert_eq(work_submit(work, &jobs[WORK_QUEUE_MAX].job), -EAGAIN);
	for (int i = 0; i < WORK_QUEUE_MAX; i++)
		sem_post(&gate);
	turn_until(1);
	sem_post(&gate);
	cr_assert_eq(work_submit(work, &jobs[WORK_QUEUE_MAX].job), 0);
	turn_until(WORK_QUEUE_MAX + 1);
	for (int i = 0; i <= WORK_QUEUE_MAX; i++)
		cr_assert_eq(jobs[i].ends, 1);
}

Test(work, closing_waits_for_the_running_and_drops_the_queued)
{
	static struct job jobs[20];
	for (int i = 0; i < 20; i++) {
		jobs[i] = (struct job){.job = {.run = job_run_gated, .on_end = job_end}};
		cr_assert_eq(work_submit(work, &jobs[i].job), 0);
	}
	for (int i = 0; i < 20; i++)
		sem_post(&gate);
	work_close(work);
	cr_assert_eq(ring_turn(ring, false), 0);
	cr_assert_eq(ended, 0);
	cr_assert_eq(work_open(&work, ring, 1), 0);
	work_close(NULL);
}

Test(work, no_threads_is_refused)
{
	struct work *none = NULL;
	cr_assert_eq(work_open(&none, ring, 0), -EINVAL);
	cr_assert_null(none);
}
