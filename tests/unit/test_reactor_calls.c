/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the kernel refuses to the reactor when it starts threads and processes: whoever asked
 * is told, and nothing is left of it. The calls are the test's own (the linker puts them there).
 */
#include "reactor/proc.h"
#include "reactor/ring_engine.h"
#include "reactor/spawn.h"
#include "reactor/work.h"
#include "simring/sim.h"

#include "refused.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static struct ring *ring;
static struct ring_sim sim;

/* ---- the calls ---- */

enum call { NOTHING, PIPE, SOCKETPAIR, CLONE, PIDFD, THREAD, EVENTFD };

static bool undisturbed = true;

int __real_pipe2(int fds[2], int flags);
int __wrap_pipe2(int fds[2], int flags);
int __wrap_pipe2(int fds[2], int flags)
{
	return refuses(PIPE) ? -1 : __real_pipe2(fds, flags);
}

int __real_socketpair(int domain, int type, int protocol, int fds[2]);
int __wrap_socketpair(int domain, int type, int protocol, int fds[2]);
int __wrap_socketpair(int domain, int type, int protocol, int fds[2])
{
	return refuses(SOCKETPAIR) ? -1 : __real_socketpair(domain, type, protocol, fds);
}

int __real_clone(int (*fn)(void *), void *stack, int flags, void *arg, ...);
int __wrap_clone(int (*fn)(void *), void *stack, int flags, void *arg, ...);
int __wrap_clone(int (*fn)(void *), void *stack, int flags, void *arg, ...)
{
	/* A handler of ours would run in the child, on our memory. */
	sigset_t mask;
	pthread_sigmask(SIG_SETMASK, NULL, &mask);
	undisturbed = undisturbed && sigismember(&mask, SIGTERM) && sigismember(&mask, SIGCHLD);
	return refuses(CLONE) ? -1 : __real_clone(fn, stack, flags, arg);
}

long __real_syscall(long number, ...);
long __wrap_syscall(long number, ...);
long __wrap_syscall(long number, ...)
{
	long args[6];
	va_list ap;
	va_start(ap, number);
	for (unsigned i = 0; i < 6; i++)
		args[i] = va_arg(ap, long);
	va_end(ap);
	if (number == SYS_pidfd_open && refuses(PIDFD))
		return -1;
	return __real_syscall(number, args[0], args[1], args[2], args[3], args[4], args[5]);
}

int __real_pthread_create(
	pthread_t *ret, const pthread_attr_t *attr, void *(*fn)(void *), void *arg);
int __wrap_pthread_create(
	pthread_t *ret, const pthread_attr_t *attr, void *(*fn)(void *), void *arg);
int __wrap_pthread_create(
	pthread_t *ret, const pthread_attr_t *attr, void *(*fn)(void *), void *arg)
{
	return refuses(THREAD) ? refused.with : __real_pthread_create(ret, attr, fn, arg);
}

int __real_eventfd(unsigned count, int flags);
int __wrap_eventfd(unsigned count, int flags);
int __wrap_eventfd(unsigned count, int flags)
{
	return refuses(EVENTFD) ? -1 : __real_eventfd(count, flags);
}

/* ---- what is left ---- */

static int fds_before;

static void open_ring(bool simulated)
{
	sim = (struct ring_sim){.seed = 5};
	cr_assert_eq(ring_sim_open(&ring, simulated ? &sim : NULL), 0);
	fds_before = open_fds();
}

/* No zombie, no descriptor, and signals come as before. */
static void assert_clean(void)
{
	sigset_t mask;
	cr_assert_eq(open_fds(), fds_before);
	cr_assert_eq(waitpid(-1, NULL, WNOHANG), -1);
	cr_assert_eq(errno, ECHILD);
	cr_assert(undisturbed);
	pthread_sigmask(SIG_SETMASK, NULL, &mask);
	cr_assert_not(sigismember(&mask, SIGTERM));
}

/* ---- child processes ---- */

struct child {
	struct proc proc;
	int ends, res;
};

static void on_end(struct proc *proc, int res)
{
	struct child *c = container_of(proc, struct child, proc);
	c->ends++;
	c->res = res;
}

static struct child child_of(const char *program, const char *arg)
{
	return (struct child){
		.proc = {.argv = {program, arg, NULL}, .timeout_ms = 20000, .on_end = on_end}};
}

static void run(struct child *c)
{
	cr_assert_eq(proc_start(ring, &c->proc), 0);
	while (c->ends == 0)
		cr_assert_eq(ring_turn(ring, true), 0);
	cr_assert_eq(c->ends, 1);
}

static const struct {
	enum call call;
	int with;
} refusals[] = {{PIPE, EMFILE}, {CLONE, EAGAIN}, {PIDFD, EMFILE}, {PIDFD, ENOSYS}};

/* It is told at once, or from its end where it runs inline. None keeps a place of its lane, and one
 * that ran already is killed. */
Test(reactor_calls, a_child_that_cannot_be_started)
{
	for (unsigned i = 0; i < 8; i++) {
		bool simulated = i % 2 != 0;
		int want = -refusals[i / 2].with;
		struct child none = child_of("sleep", "1000");
		open_ring(simulated);
		refuse(refusals[i / 2].call, 0, UINT32_MAX, -want);
		for (unsigned n = 0; n <= LANE_CHILDREN_MAX; n++) {
			cr_assert_eq(proc_start(ring, &none.proc), simulated ? 0 : want);
			if (simulated)
				cr_assert_eq(ring_sim_settle(ring, 1000), 0);
			assert_clean();
		}
		cr_assert_eq(none.ends, simulated ? LANE_CHILDREN_MAX + 1 : 0);
		cr_assert_eq(none.res, simulated ? want : 0);
		refuse(NOTHING, 0, 0, 0);
		struct child some = child_of("true", NULL);
		run(&some);
		cr_assert_eq(some.res, 0);
		assert_clean();
		ring_close(ring);
	}
}

Test(reactor_calls, a_process_of_our_own_that_cannot_be_started)
{
	static const int errnums[] = {EMFILE, EAGAIN, ENFILE};
	static const enum call calls[] = {SOCKETPAIR, CLONE, PIDFD};
	pid_t pid = -1;
	int pidfd = -1, fd = -1;
	fds_before = open_fds();
	spawn_self_exe = "/bin/true";
	for (unsigned i = 0; i < 3; i++) {
		refuse(calls[i], 0, 1, errnums[i]);
		cr_assert_eq(spawn_self("nothing", &pid, &pidfd, &fd), -errnums[i]);
		cr_assert(pid == -1 && pidfd == -1 && fd == -1);
		assert_clean();
	}
	spawn_self_exe = "/no/such/program";
	cr_assert_eq(spawn_self("nothing", &pid, &pidfd, &fd), -ENOENT);
	assert_clean();
}

/* The kernel's ring, but for the first poll: it ends with ENOMEM. */
static unsigned polls;
static const struct ring_engine *kernels;

static void start_and_refuse(struct ring *r, struct ring_req *req)
{
	if (req->sqe.opcode != IORING_OP_POLL_ADD || polls++ > 0) {
		kernels->start(r, req);
		return;
	}
	ring_req_set(req, RING_POSTED, (uint32_t)-ENOMEM);
	kernels->post(r, req);
}

/* Nobody would notice its end: it is killed, and that is waited for. */
Test(reactor_calls, a_child_that_cannot_be_polled, .timeout = 60)
{
	open_ring(false);
	kernels = ring->engine;
	struct ring_engine own = *kernels;
	own.start = start_and_refuse;
	ring->engine = &own;
	struct child c = child_of("sleep", "1000");
	run(&c);
	ring->engine = kernels;
	cr_assert_eq(polls, 2);
	cr_assert_eq(c.res, -EINTR);
	cr_assert_eq(c.proc.signal, SIGKILL);
	assert_clean();
	ring_close(ring);
}

static size_t childs_path(const char *ours)
{
	static char path[4096];
	struct child c = child_of("/bin/sh", "-c");
	c.proc.argv[2] = "echo $PATH";
	if (ours != NULL)
		setenv("PATH", ours, 1);
	else
		unsetenv("PATH");
	run(&c);
	cr_assert_eq(c.res, 0);
	snprintf(path, sizeof(path), "%s", c.proc.output);
	path[strcspn(path, "\n")] = '\0';
	if (ours != NULL && strcmp(path, ours) == 0)
		return strlen(ours);
	cr_assert_str_eq(path, "/usr/sbin:/usr/bin:/sbin:/bin");
	return 0;
}

/* Where ours is missing, or too long to be handed on whole. */
Test(reactor_calls, a_child_has_our_path_or_the_usual_one)
{
	static char path[2048];
	open_ring(false);
	cr_assert_eq(childs_path(NULL), 0);
	cr_assert_eq(childs_path("/bin:/nowhere"), 13);
	memset(path, 'x', 1018);
	cr_assert_eq(childs_path(path), 1018);
	path[1018] = 'x';
	cr_assert_eq(childs_path(path), 0);
	memset(path, 'x', sizeof(path) - 1);
	cr_assert_eq(childs_path(path), 0);
	ring_close(ring);
}

/* ---- threads ---- */

static struct work *work;
static sem_t gate;
static unsigned jobs_ended;

static int pass(struct work_job *job)
{
	(void)job;
	return 7;
}

static int wait_at_gate(struct work_job *job)
{
	(void)job;
	sem_wait(&gate);
	return 7;
}

static void on_job_end(struct work_job *job, int res)
{
	(void)job;
	cr_assert_eq(res, 7);
	jobs_ended++;
}

static int submit(struct work_job *job, int (*fn)(struct work_job *job))
{
	*job = (struct work_job){.run = fn, .on_end = on_job_end};
	return work_submit(work, job);
}

static void turn_until(unsigned count)
{
	while (jobs_ended < count)
		cr_assert_eq(ring_turn(ring, true), 0);
}

/* Without any thread a job is refused, and nothing is kept of it; with one it waits for that. */
Test(reactor_calls, threads_that_cannot_be_started)
{
	enum { THREADS = 2, TRIES = 5 };
	static struct work_job jobs[TRIES];
	open_ring(false);
	sem_init(&gate, 0, 0);
	cr_assert_eq(work_open(&work, ring, THREADS), 0);
	refuse(THREAD, 0, TRIES, EAGAIN);
	for (unsigned i = 0; i < TRIES; i++) {
		cr_assert_eq(submit(&jobs[i], pass), -EAGAIN);
		cr_assert_eq(work_queue_depth(work), 0);
		cr_assert_eq(ring->shared.depth, 0);
	}
	cr_assert_eq(submit(&jobs[0], wait_at_gate), 0);
	refuse(THREAD, 0, UINT32_MAX, EAGAIN);
	for (unsigned i = 1; i < TRIES; i++)
		cr_assert_eq(submit(&jobs[i], pass), 0);
	cr_assert_eq(work_queue_depth(work), TRIES);
	sem_post(&gate);
	turn_until(TRIES);
	cr_assert_eq(work_queue_depth(work), 0);
	/* Those that were refused count for nothing: both may start again. */
	refuse(NOTHING, 0, 0, 0);
	cr_assert_eq(submit(&jobs[0], wait_at_gate), 0);
	cr_assert_eq(submit(&jobs[1], pass), 0);
	turn_until(TRIES + 1);
	sem_post(&gate);
	turn_until(TRIES + 2);
	work_close(work);
	assert_clean();
	ring_close(ring);
	sem_destroy(&gate);
}

Test(reactor_calls, work_without_an_eventfd)
{
	open_ring(false);
	refuse(EVENTFD, 0, 1, EMFILE);
	cr_assert_eq(work_open(&work, ring, 1), -EMFILE);
	assert_clean();
	cr_assert_eq(ring_turn(ring, false), 0);
	struct work_job job;
	cr_assert_eq(work_open(&work, ring, 1), 0);
	cr_assert_eq(submit(&job, pass), 0);
	turn_until(1);
	work_close(work);
	ring_close(ring);
}
