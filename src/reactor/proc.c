/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Child processes. Each has /dev/null as its input, one pipe for both outputs, and behind them the
 * files it is given. Two requests are armed: a poll of its pidfd and a read of the pipe; the child
 * is done when both have ended. What it left behind in its group is killed before it is reaped: its
 * pid, and so the group's, cannot be another's until then. So the pipe normally ends with it. A
 * stray that left the group can hold it open until the deadline.
 *
 * Fails when nothing could be started. After that, or when its lane holds it, on_end always comes.
 * In a ring that runs inline (ring_engine.h) the child is run to its end when its post is
 * dispatched.
 */
#include "reactor/proc.h"

#include "base/clock.h"
#include "base/fd.h"
#include "reactor/ring_engine.h"
#include "reactor/spawn.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

/* ---- starting ---- */

/* Starts the child: pid, pidfd and out_fd are set. */
static int proc_spawn(struct proc *proc)
{
	char path[1024];
	const char *inherited = getenv("PATH");
	int len = snprintf(path, sizeof(path), "PATH=%s", inherited != NULL ? inherited : "");
	if (inherited == NULL || len < 0 || (size_t)len >= sizeof(path))
		strcpy(path, "PATH=/usr/sbin:/usr/bin:/sbin:/bin");
	char *env[] = {path, (char[]){"LC_ALL=C"}, NULL};
	int pipe_fds[2];
	if (pipe2(pipe_fds, O_CLOEXEC) < 0)
		return -errno;
	struct spawn how = {
		.program = proc->argv[0],
		.argv = proc->argv,
		.env = env,
		.fds = {SPAWN_NULL, pipe_fds[1], pipe_fds[1]},
		.fd_count = PROC_FILE + proc->file_count,
		.memory_bytes = proc->memory_bytes,
	};
	_Static_assert(PROC_FILE + PROC_FILES_MAX <= SPAWN_FDS_MAX, "each has a place");
	memcpy(&how.fds[PROC_FILE], proc->files, sizeof(proc->files));
	int r = spawn(&how, &proc->pid, &proc->pidfd);
	close(pipe_fds[1]);
	if (r < 0)
		close(pipe_fds[0]);
	else
		proc->out_fd = pipe_fds[0];
	return r;
}

/* ---- ending ---- */

static int proc_result(struct proc *proc, int status)
{
	if (WIFEXITED(status))
		return WEXITSTATUS(status);
	proc->signal = WTERMSIG(status);
	return proc->timed_out ? -ETIMEDOUT : -EINTR;
}

/* The exited child: its leftovers first, while its pid is still taken. If somebody else has reaped
 * it, nobody knows how it ended, and the number may be another group's by now. */
static void proc_reap(struct proc *proc)
{
	siginfo_t info;
	int status = 0, r;
	do
		r = waitid(P_PID, (id_t)proc->pid, &info, WEXITED | WNOWAIT) < 0 ? -errno : 0;
	while (r == -EINTR);
	if (r == 0) {
		kill(-proc->pid, SIGKILL);
		do
			r = waitpid(proc->pid, &status, 0) < 0 ? -errno : 0;
		while (r == -EINTR);
	}
	fd_close(&proc->pidfd);
	proc->exited = true;
	proc->status = r < 0 ? r : proc_result(proc, status);
}

static void proc_leave_lane(struct proc *proc);

static void proc_try_end(struct proc *proc)
{
	if (!proc->exited || !proc->drained)
		return;
	ring_timer_cancel(proc->ring, &proc->timer);
	fd_close(&proc->out_fd);
	proc_leave_lane(proc);
	proc->output[proc->output_len] = '\0';
	proc->on_end(proc, proc->status);
}

/* It could not be started: what a child would have to end by, has ended. */
static void proc_fail(struct proc *proc, int res)
{
	proc->status = res;
	proc->exited = proc->drained = true;
}

static void proc_on_failed(struct ring_req *req, int res, uint32_t flags)
{
	(void)res;
	(void)flags;
	proc_try_end(container_of(req, struct proc, exit_req));
}

/* Where the next output goes; it is dropped once the buffer is full. */
static char *proc_room(struct proc *proc, size_t *ret_len)
{
	size_t room = sizeof(proc->output) - 1 - proc->output_len;
	*ret_len = room != 0 ? room : sizeof(proc->drain);
	return room != 0 ? proc->output + proc->output_len : proc->drain;
}

static void proc_took(struct proc *proc, size_t len)
{
	if (proc->output_len < sizeof(proc->output) - 1)
		proc->output_len += len;
}

/* ---- on the ring ---- */

static void proc_arm_read(struct proc *proc)
{
	size_t len;
	char *room = proc_room(proc, &len);
	io_uring_prep_read(&proc->read_req.sqe, proc->out_fd, room, (unsigned)len, 0);
	ring_submit(proc->ring, &proc->read_req);
}

static void proc_arm_poll(struct proc *proc)
{
	io_uring_prep_poll_add(&proc->exit_req.sqe, proc->pidfd, POLLIN);
	ring_submit(proc->ring, &proc->exit_req);
}

static void proc_on_read(struct ring_req *req, int res, uint32_t flags)
{
	(void)flags;
	struct proc *proc = container_of(req, struct proc, read_req);
	if (res > 0) {
		proc_took(proc, (size_t)res);
		/* A stray may write for ever; after the deadline nobody listens. */
		if (!proc->timed_out || !proc->exited) {
			proc_arm_read(proc);
			return;
		}
	}
	proc->drained = true;
	proc_try_end(proc);
}

static void proc_on_exit(struct ring_req *req, int res, uint32_t flags)
{
	(void)flags;
	struct proc *proc = container_of(req, struct proc, exit_req);
	if (res < 0) {
		/* The kernel would not poll (no memory): without it, at least not for ever. */
		kill(-proc->pid, SIGKILL);
		proc_arm_poll(proc);
		return;
	}
	proc_reap(proc);
	if (proc->timed_out)
		ring_cancel(proc->ring, &proc->read_req);
	proc_try_end(proc);
}

static void proc_on_deadline(struct ring_timer *timer)
{
	struct proc *proc = container_of(timer, struct proc, timer);
	proc->timed_out = true;
	if (proc->exited)
		ring_cancel(proc->ring, &proc->read_req);
	else
		kill(-proc->pid, SIGKILL);
}

/* ---- inline ---- */

static uint64_t real_ms(void)
{
	return clock_monotonic_ns() / 1000000;
}

/* Reads until the pipe and the child have ended, or the deadline. */
static void proc_run_blocking(struct proc *proc)
{
	uint64_t end_ms = real_ms() + proc->timeout_ms;
	while (!proc->exited || !proc->drained) {
		uint64_t now_ms = real_ms();
		if (now_ms >= end_ms && !proc->timed_out) {
			proc->timed_out = true;
			if (!proc->exited)
				kill(-proc->pid, SIGKILL);
		}
		if (proc->timed_out && proc->exited)
			break;
		struct pollfd fds[] = {
			{.fd = proc->drained ? -1 : proc->out_fd, .events = POLLIN},
			{.fd = proc->exited ? -1 : proc->pidfd, .events = POLLIN},
		};
		int wait_ms = proc->timed_out
				      ? -1
				      : (int)(end_ms - now_ms < 1000 ? end_ms - now_ms : 1000);
		if (poll(fds, 2, wait_ms) <= 0)
			continue;
		if (fds[0].revents != 0) {
			size_t len;
			char *room = proc_room(proc, &len);
			ssize_t n = read(proc->out_fd, room, len);
			if (n > 0)
				proc_took(proc, (size_t)n);
			else
				proc->drained = true;
		}
		if (fds[1].revents != 0)
			proc_reap(proc);
	}
	proc->drained = true;
}

static void proc_on_posted(struct ring_req *req, int res, uint32_t flags)
{
	(void)res;
	(void)flags;
	struct proc *proc = container_of(req, struct proc, exit_req);
	int r = proc_spawn(proc);
	if (r == 0)
		proc_run_blocking(proc);
	else
		proc_fail(proc, r);
	proc_try_end(proc);
}

/* ---- entry ---- */

/* 0 or -errno. Its lane has let it in. */
static int proc_begin(struct proc *proc)
{
	struct ring *ring = proc->ring;
	if (ring_runs_inline(ring)) {
		proc->exit_req.fn = proc_on_posted;
		ring_post(ring, &proc->exit_req, 0);
		return 0;
	}
	int r = proc_spawn(proc);
	if (r < 0)
		return r;
	proc_arm_poll(proc);
	proc_arm_read(proc);
	ring_timer_arm(ring, &proc->timer, proc->timeout_ms);
	return 0;
}

static struct lane *proc_lane(const struct proc *proc)
{
	return proc->lane != NULL ? proc->lane : &proc->ring->shared;
}

static void proc_leave_lane(struct proc *proc)
{
	struct list *node = lane_leave(&proc_lane(proc)->children);
	if (node == NULL)
		return;
	struct proc *next = container_of(node, struct proc, link);
	int r = proc_begin(next);
	if (r == 0)
		return;
	/* It was accepted, and so it ends like others, from a callback of its own. */
	proc_fail(next, r);
	next->exit_req.fn = proc_on_failed;
	ring_post(next->ring, &next->exit_req, 0);
}

int proc_start(struct ring *ring, struct proc *proc)
{
	assert(proc->argv[0] != NULL && proc->on_end != NULL && proc->file_count <= PROC_FILES_MAX);
	proc->ring = ring;
	proc->pidfd = proc->out_fd = -1;
	proc->signal = proc->status = 0;
	proc->output_len = 0;
	proc->output[0] = '\0';
	proc->timed_out = proc->exited = proc->drained = false;
	proc->exit_req.fn = proc_on_exit;
	proc->read_req.fn = proc_on_read;
	proc->timer.fn = proc_on_deadline;
	if (!lane_enter(&proc_lane(proc)->children, LANE_CHILDREN_MAX, &proc->link))
		return 0;
	int r = proc_begin(proc);
	if (r < 0)
		proc_leave_lane(proc);
	return r;
}
