/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Starts this program again: a socket pair, the process with its end of it as descriptor 3, a
 * pidfd. It takes about a millisecond. Fails with the errno of what could not be had; nothing is
 * left then.
 */
#include "reactor/self.h"

#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

const char *self_exe = "/proc/self/exe";

static int spawn_process(const char *command, pid_t *ret_pid, int child_fd)
{
	posix_spawnattr_t attr;
	posix_spawn_file_actions_t files;
	sigset_t none, all;
	sigemptyset(&none);
	sigfillset(&all);
	sigdelset(&all, SIGKILL);
	sigdelset(&all, SIGSTOP);
	posix_spawnattr_init(&attr);
	posix_spawn_file_actions_init(&files);
	/* A group of its own: what a terminal sends to the driver must not end calls in flight. */
	posix_spawnattr_setpgroup(&attr, 0);
	posix_spawnattr_setsigmask(&attr, &none);
	posix_spawnattr_setsigdefault(&attr, &all);
	posix_spawnattr_setflags(
		&attr, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
	/* dup2 first: child_fd may be 0 or 1, and it may be 3 (then it only loses CLOEXEC). */
	int r = posix_spawn_file_actions_adddup2(&files, child_fd, SELF_CHILD_FD);
	if (r == 0)
		r = posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDWR, 0);
	if (r == 0)
		r = posix_spawn_file_actions_adddup2(&files, STDIN_FILENO, STDOUT_FILENO);
	if (r == 0)
		r = posix_spawn_file_actions_addclosefrom_np(&files, SELF_CHILD_FD + 1);
	const char *argv[] = {"ringvol", command, "3", NULL};
	if (r == 0)
		r = posix_spawn(
			ret_pid, self_exe, &files, &attr, (char *const *)(uintptr_t)argv, environ);
	posix_spawn_file_actions_destroy(&files);
	posix_spawnattr_destroy(&attr);
	return -r;
}

int self_spawn(const char *command, pid_t *ret_pid, int *ret_pidfd, int *ret_fd)
{
	_cleanup_fd_ int near_fd = -1, far_fd = -1;
	int fds[2];
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) < 0)
		return -errno;
	near_fd = fds[0];
	far_fd = fds[1];
	pid_t pid;
	int r = spawn_process(command, &pid, far_fd);
	if (r < 0)
		return r;
	int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
	if (pidfd < 0) {
		r = -errno;
		kill(pid, SIGKILL);
		while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
			;
		return r;
	}
	*ret_pid = pid;
	*ret_pidfd = pidfd;
	*ret_fd = near_fd;
	near_fd = -1;
	return 0;
}
