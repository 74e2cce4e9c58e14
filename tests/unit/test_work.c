/* SPDX-License-Identifier: Apache-2.0 */
/* Worker threads: results come back on the loop, the queue has a limit, closing is clean. */
#include "base/clock.h"
#include "reactor/ring_uring.h"
#include "reactor/work.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
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

/* ---- lanes ---- */

static struct lane *open_lane(void)
{
	struct lane *lane;
	cr_assert_eq(ring_lane_open(&lane, ring), 0);
	return lane;
}

static struct job job_of(struct lane *lane, int (*run)(struct work_job *job))
{
	return (struct job){.job = {.run = run, .on_end = job_end, .lane = lane}};
}

static void submit(struct job *jobs, int count, struct lane *lane, int (*run)(struct work_job *job))
{
	for (int i = 0; i < count; i++) {
		jobs[i] = job_of(lane, run);
		cr_assert_eq(work_submit(work, &jobs[i].job), 0);
	}
}

static void open_gate(int jobs)
{
	for (int i = 0; i < jobs; i++)
		sem_post(&gate);
}

/* All but one hang, with more jobs than all threads; that one and the jobs without a lane go on. */
Test(work, lanes_that_hang_hold_up_no_other)
{
	enum { HANGING = 3, EACH = 4 * WORK_THREADS, QUICK = 50 };
	static struct job hanging[HANGING][EACH], well[QUICK], common[QUICK];
	for (int i = 0; i < HANGING; i++)
		submit(hanging[i], EACH, open_lane(), job_run_gated);
	submit(well, QUICK, open_lane(), job_run);
	submit(common, QUICK, NULL, job_run);
	turn_until(2 * QUICK);
	for (int i = 0; i < QUICK; i++)
		cr_assert_eq(well[i].ends + common[i].ends, 2);
	cr_assert_eq(work_queue_depth(work), HANGING * EACH);
	open_gate(HANGING * EACH);
	turn_until(2 * QUICK + HANGING * EACH);
	cr_assert_eq(work_queue_depth(work), 0);
}

Test(work, jobs_without_a_lane_that_hang_hold_up_none)
{
	static struct job hanging[2 * WORK_THREADS], well[8];
	submit(hanging, 2 * WORK_THREADS, NULL, job_run_gated);
	submit(well, 8, open_lane(), job_run);
	turn_until(8);
	open_gate(2 * WORK_THREADS);
	turn_until(8 + 2 * WORK_THREADS);
}

static atomic_int inside, most_inside;

static int job_run_counted(struct work_job *job)
{
	int now = atomic_fetch_add(&inside, 1) + 1;
	int most = atomic_load(&most_inside);
	while (now > most && !atomic_compare_exchange_weak(&most_inside, &most, now))
		;
	sem_wait(&gate);
	atomic_fetch_sub(&inside, 1);
	return job_run(job);
}

/* Though other lanes have left more of them idle. */
Test(work, a_lane_has_all_its_threads_and_no_more)
{
	enum { COUNT = 5 * WORK_THREADS };
	static struct job others[COUNT], jobs[COUNT];
	submit(jobs, COUNT, open_lane(), job_run_counted);
	submit(others, COUNT, open_lane(), job_run);
	turn_until(COUNT);
	while (atomic_load(&inside) < WORK_THREADS)
		sched_yield();
	open_gate(COUNT);
	turn_until(2 * COUNT);
	cr_assert_eq(atomic_load(&most_inside), WORK_THREADS);
}

Test(work, a_lane_is_stuck_when_none_of_its_jobs_can_begin)
{
	static struct job jobs[WORK_THREADS + 1];
	const uint64_t up_ms = clock_monotonic_ns() / 1000000; /* far longer than any of this */
	struct lane *lane = open_lane(), *other = open_lane();
	cr_assert_not(work_lane_stuck(work, lane, 0));
	submit(jobs, WORK_THREADS, lane, job_run_gated);
	cr_assert_not(work_lane_stuck(work, lane, 0), "nobody waits");
	submit(jobs + WORK_THREADS, 1, lane, job_run_gated);
	while (!work_lane_stuck(work, lane, 0))
		sched_yield();
	cr_assert_not(work_lane_stuck(work, lane, up_ms));
	cr_assert_not(work_lane_stuck(work, other, 0));
	open_gate(1);
	turn_until(1);
	cr_assert_not(work_lane_stuck(work, lane, 0), "the last one has begun");
	open_gate(WORK_THREADS);
	turn_until(WORK_THREADS + 1);
}

Test(work, a_full_lane_is_no_other_lanes_limit)
{
	static struct job jobs[WORK_QUEUE_MAX], more;
	struct lane *lane = open_lane();
	submit(jobs, WORK_QUEUE_MAX, lane, job_run_gated);
	more = job_of(lane, job_run);
	cr_assert_eq(work_submit(work, &more.job), -EAGAIN);
	more = job_of(open_lane(), job_run);
	cr_assert_eq(work_submit(work, &more.job), 0);
	turn_until(1);
	cr_assert_eq(more.ends, 1);
	open_gate(WORK_QUEUE_MAX);
	turn_until(WORK_QUEUE_MAX + 1);
}

/* Without those the kernel runs for the ring. */
static int count_threads(void)
{
	int count = 0;
	DIR *dir = opendir("/proc/self/task");
	cr_assert_not_null(dir);
	for (struct dirent *e; (e = readdir(dir)) != NULL;) {
		char path[300], name[32] = "";
		snprintf(path, sizeof(path), "/proc/self/task/%s/comm", e->d_name);
		FILE *file = e->d_name[0] == '.' ? NULL : fopen(path, "r");
		if (file == NULL)
			continue;
		count += fgets(name, sizeof(name), file) != NULL && strncmp(name, "iou-", 4) != 0;
		fclose(file);
	}
	closedir(dir);
	return count;
}

/* Many lanes that were busy leave the threads of one. */
Test(work, threads_come_when_needed_and_go)
{
	enum { LANES = 6 };
	static struct job jobs[LANES][WORK_THREADS];
	struct lane *lanes[LANES];
	int at_first = count_threads();
	for (int i = 0; i < LANES; i++)
		lanes[i] = open_lane();
	cr_assert_eq(count_threads(), at_first, "lanes without jobs have none");
	for (int round = 1; round <= 3; round++) {
		atomic_store(&inside, 0);
		for (int i = 0; i < LANES; i++)
			submit(jobs[i], WORK_THREADS, lanes[i], job_run_counted);
		while (atomic_load(&inside) < LANES * WORK_THREADS)
			sched_yield();
		cr_assert_eq(count_threads(), at_first + LANES * WORK_THREADS);
		open_gate(LANES * WORK_THREADS);
		turn_until(round * LANES * WORK_THREADS);
		while (count_threads() > at_first + WORK_THREADS)
			sched_yield();
	}
}

static atomic_int passed;

static int job_run_slow(struct work_job *job)
{
	int r = job_run_counted(job);
	clock_sleep_ms(20); /* so that a close which did not wait would be through before */
	atomic_fetch_add(&passed, 1);
	return r;
}

/* Once the loop's thread waits for others to end: work_close() has begun. */
static void *open_gate_to_close(void *arg)
{
	char path[64];
	long call = 0;
	snprintf(path, sizeof(path), "/proc/self/task/%d/syscall", getpid());
	while (call != SYS_futex) {
		FILE *f = fopen(path, "re");
		if (f == NULL || fscanf(f, "%ld", &call) != 1)
			call = 0; /* "running" */
		if (f != NULL)
			fclose(f);
	}
	open_gate(20);
	return arg;
}

Test(work, closing_waits_for_the_running_and_drops_the_queued)
{
	static struct job jobs[20];
	pthread_t opener;
	atomic_store(&inside, 0);
	submit(jobs, 20, NULL, job_run_slow);
	while (atomic_load(&inside) < WORK_THREADS)
		sched_yield();
	cr_assert_eq(pthread_create(&opener, NULL, open_gate_to_close, NULL), 0);
	work_close(work);
	/* Those that ran have ended, and no other has begun. */
	cr_assert_eq(atomic_load(&passed), WORK_THREADS);
	cr_assert_eq(atomic_load(&inside), 0);
	pthread_join(opener, NULL);
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
