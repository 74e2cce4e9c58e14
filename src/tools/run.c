/* SPDX-License-Identifier: Apache-2.0 */
/* Running a program, as posix_spawn and a pipe have it. One that hangs is killed. */
#include "tools/run.h"

#include "base/clock.h"
#include "base/fd.h"
#include "reactor/proc.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

static int spawn(char *const argv[], int file, int out_fd, pid_t *ret_pid)
{
	posix_spawn_file_actions_t files;
	posix_spawn_file_actions_init(&files);
	posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
	posix_spawn_file_actions_adddup2(&files, out_fd, STDOUT_FILENO);
	posix_spawn_file_actions_adddup2(&files, out_fd, STDERR_FILENO);
	if (file >= 0)
		posix_spawn_file_actions_adddup2(&files, file, PROC_FILE);
	int r = -posix_spawnp(ret_pid, argv[0], &files, NULL, argv, environ);
	posix_spawn_file_actions_destroy(&files);
	return r;
}

/* Until its end of the pipe is closed. */
static int read_output(int fd, uint64_t end_ns, char *out, size_t cap)
{
	size_t len = 0;
	char rest[512];
	out[0] = '\0';
	for (;;) {
		uint64_t now_ns = clock_monotonic_ns();
		struct pollfd wait = {.fd = fd, .events = POLLIN};
		if (now_ns >= end_ns ||
			poll(&wait, 1, (int)((end_ns - now_ns + 999999) / 1000000)) == 0)
			return -ETIMEDOUT;
		bool full = len + 1 >= cap;
		ssize_t n = read(fd, full ? rest : out + len, full ? sizeof(rest) : cap - 1 - len);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? -errno : 0;
		len += full ? 0 : (size_t)n;
		out[len] = '\0';
	}
}

static int reap(pid_t pid, uint64_t end_ns)
{
	int status;
	bool killed = false;
	for (;;) {
		pid_t r = waitpid(pid, &status, killed ? 0 : WNOHANG);
		if (r == pid)
			break;
		if (r < 0 && errno != EINTR)
			return -errno;
		if (!killed && clock_monotonic_ns() >= end_ns) {
			kill(pid, SIGKILL);
			killed = true;
			continue;
		}
		poll(NULL, 0, 1);
	}
	if (killed)
		return -ETIMEDOUT;
	return WIFEXITED(status) ? WEXITSTATUS(status) : -EINTR;
}

int tool_run(char *const argv[], int file, unsigned timeout_ms, char *out, size_t cap)
{
	int ends[2];
	pid_t pid;
	if (pipe2(ends, O_CLOEXEC) < 0)
		return -errno;
	_cleanup_fd_ int from = ends[0];
	_cleanup_fd_ int to = ends[1];
	int r = spawn(argv, file, to, &pid);
	fd_close(&to);
	if (r < 0)
		return r;
	uint64_t end_ns = clock_monotonic_ns() + timeout_ms * UINT64_C(1000000);
	r = read_output(from, end_ns, out, cap);
	int status = reap(pid, r < 0 ? 0 : end_ns);
	return r < 0 ? r : status;
}
