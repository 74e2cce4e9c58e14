/* SPDX-License-Identifier: Apache-2.0 */
/*
 * clone() as vfork() has it: the child runs on a stack inside ours and in our memory, and this
 * thread stands still until the child is the program or has failed and said so. posix_spawn() does
 * the same, but cannot limit what the child may use before it runs.
 *
 * Until then the child must call nothing but what is safe in a signal handler. All signals are
 * blocked meanwhile: a handler of ours would run in the child, on our memory.
 */
#include "reactor/spawn.h"

#include "base/fd.h"
#include "base/process.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdalign.h>
#include <stddef.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SPAWN_STACK_BYTES = 32 * 1024 };

const char *spawn_self_exe = "/proc/self/exe";

struct start {
	const struct spawn *spawn;
	int errnum; /* why the child is not the program */
};

/* ---- the child ---- */

/* The sanitizer would note what lies on this stack, and never take it back. */
#define IN_CHILD static __attribute__((no_sanitize("address")))

/* A filter of system calls may refuse close_range(): then they close when the program begins. */
IN_CHILD int close_from(unsigned first)
{
	struct rlimit files;
	if (close_range(first, ~0u, 0) == 0)
		return 0;
	if ((errno != ENOSYS && errno != EPERM) || getrlimit(RLIMIT_NOFILE, &files) < 0)
		return -1;
	for (rlim_t fd = first; fd < files.rlim_cur; fd++)
		(void)fcntl((int)fd, F_SETFD, FD_CLOEXEC);
	return 0;
}

/* Each is copied first, above all numbers the child has, where none is in another one's way. */
IN_CHILD int take_fds(const struct spawn *spawn)
{
	int copies[SPAWN_FDS_MAX];
	int count = (int)spawn->fd_count;
	for (int i = 0; i < count; i++) {
		int fd = spawn->fds[i];
		if (fd == SPAWN_NULL)
			fd = open("/dev/null", O_RDWR | O_CLOEXEC);
		copies[i] = fd == SPAWN_SAME ? fd : fcntl(fd, F_DUPFD_CLOEXEC, count);
		if (copies[i] == -1)
			return -1;
	}
	for (int i = 0; i < count; i++)
		if (copies[i] != SPAWN_SAME && dup2(copies[i], i) < 0)
			return -1;
	return close_from((unsigned)count);
}

IN_CHILD int child_main(void *arg)
{
	struct start *start = arg;
	const struct spawn *spawn = start->spawn;
	const struct sigaction by_default = {.sa_handler = SIG_DFL};
	const struct rlimit memory = {spawn->memory_bytes, spawn->memory_bytes};
	sigset_t none;
	sigemptyset(&none);
	for (int sig = 1; sig < NSIG; sig++)
		(void)sigaction(sig, &by_default, NULL); /* some cannot be set, nor need to be */
	/* A limit that is lower already stays. */
	if (spawn->memory_bytes != 0)
		(void)setrlimit(RLIMIT_DATA, &memory);
	process_be_prompt(false);
	if (setpgid(0, 0) == 0 && take_fds(spawn) == 0 &&
		sigprocmask(SIG_SETMASK, &none, NULL) == 0)
		execvpe(spawn->program, (char *const *)(uintptr_t)spawn->argv, spawn->env);
	start->errnum = errno;
	_exit(127);
}

/* ---- the parent ---- */

static void reap(pid_t pid)
{
	while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
		;
}

int spawn(const struct spawn *spawn, pid_t *ret_pid, int *ret_pidfd)
{
	alignas(max_align_t) char stack[SPAWN_STACK_BYTES];
	struct start start = {.spawn = spawn};
	sigset_t all, old;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	pid_t pid =
		clone(child_main, stack + sizeof(stack), CLONE_VM | CLONE_VFORK | SIGCHLD, &start);
	int r = pid < 0 ? -errno : 0;
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (r < 0)
		return r;
	if (start.errnum != 0) {
		reap(pid);
		return -start.errnum;
	}
	int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
	if (pidfd < 0) {
		r = -errno;
		kill(-pid, SIGKILL);
		reap(pid);
		return r;
	}
	*ret_pid = pid;
	*ret_pidfd = pidfd;
	return 0;
}

int spawn_self(const char *command, pid_t *ret_pid, int *ret_pidfd, int *ret_fd)
{
	_cleanup_fd_ int far_fd = -1;
	int fds[2];
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) < 0)
		return -errno;
	far_fd = fds[1];
	const char *argv[] = {"ringvol", command, "3", NULL};
	const struct spawn how = {
		.program = spawn_self_exe,
		.argv = argv,
		.env = environ,
		.fds = {SPAWN_NULL, SPAWN_NULL, SPAWN_SAME, far_fd},
		.fd_count = SPAWN_SELF_FD + 1,
	};
	int r = spawn(&how, ret_pid, ret_pidfd);
	if (r < 0)
		close(fds[0]);
	else
		*ret_fd = fds[0];
	return r;
}
