/* SPDX-License-Identifier: Apache-2.0 */
/* A helper's own side (reactor/helper_child.h), with the test as its driver: what it answers, what
 * it has given up, and when it ends. */
#include "reactor/helper.h"
#include "reactor/helper_child.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- the functions ---- */

enum { FN_SAY, FN_EARLY, FN_MORE, FN_PEEK, FN_SELF, FN_SIGNALS, FN_COUNT };

static int own_fd; /* in the helper */

/* What it was asked. */
static int fn_say(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	*resp_len = req_len < *resp_len ? req_len : *resp_len;
	memcpy(resp, req, *resp_len);
	return 0;
}

/* Fails before it says how much it has to tell. */
static int fn_early(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	(void)req;
	(void)req_len;
	(void)resp;
	(void)resp_len;
	return -EINVAL;
}

/* Says that it has told more than there is room for. */
static int fn_more(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	(void)req;
	(void)req_len;
	memset(resp, 0x5a, *resp_len);
	*resp_len += 1;
	return -EDOM;
}

/* What is in its memory behind the request. */
static int fn_peek(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	(void)req_len;
	memcpy(resp, req, *resp_len);
	return 0;
}

/* What a helper has given up. */
static int fn_self(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	struct rlimit core;
	int signal_at_death = 0;
	(void)req;
	(void)req_len;
	prctl(PR_GET_PDEATHSIG, &signal_at_death);
	getrlimit(RLIMIT_CORE, &core);
	uint64_t all = (prctl(PR_GET_DUMPABLE) == 0 ? 1 : 0) |
		       (signal_at_death == SIGKILL ? 2 : 0) |
		       (core.rlim_cur == 0 && core.rlim_max == 0 ? 4 : 0) |
		       (fcntl(own_fd, F_GETFD) & FD_CLOEXEC ? 8 : 0);
	memcpy(resp, &all, sizeof(all));
	*resp_len = sizeof(all);
	return 0;
}

static void on_signal(int sig)
{
	(void)sig;
}

/* Lets signals interrupt it, and ends as one does that was interrupted. */
static int fn_signals(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	const struct sigaction action = {.sa_handler = on_signal};
	(void)req;
	(void)req_len;
	(void)resp;
	*resp_len = 0;
	sigaction(SIGUSR1, &action, NULL);
	errno = EINTR;
	return -EINTR;
}

static helper_fn *const table[FN_COUNT] = {
	[FN_SAY] = fn_say,
	[FN_EARLY] = fn_early,
	[FN_MORE] = fn_more,
	[FN_PEEK] = fn_peek,
	[FN_SELF] = fn_self,
	[FN_SIGNALS] = fn_signals,
};

/* ---- the driver ---- */

/* A helper with this test as its driver. */
static pid_t serve(int *ret_fd)
{
	int fds[2];
	cr_assert_eq(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, fds), 0);
	fflush(NULL);
	pid_t pid = fork();
	cr_assert_geq(pid, 0);
	if (pid == 0) {
		close(fds[0]);
		own_fd = fds[1];
		_exit(helper_main(own_fd, table, FN_COUNT));
	}
	close(fds[1]);
	*ret_fd = fds[0];
	return pid;
}

static int ended(pid_t pid)
{
	int status;
	cr_assert_eq(waitpid(pid, &status, 0), pid);
	cr_assert(WIFEXITED(status), "%#x", status);
	return WEXITSTATUS(status);
}

/* False: the helper has so many requests before it that there is no room for one more. */
static bool ask_with(int fd, unsigned fn, uint32_t resp_cap, const char *text, int flags)
{
	struct helper_request request = {.fn = fn, .resp_cap = resp_cap};
	char message[256];
	memcpy(message, &request, sizeof(request));
	memcpy(message + sizeof(request), text, strlen(text));
	ssize_t len = (ssize_t)(sizeof(request) + strlen(text));
	ssize_t n = send(fd, message, (size_t)len, flags);
	cr_assert(n == len || (n < 0 && errno == EAGAIN));
	return n == len;
}

static void ask(int fd, unsigned fn, uint32_t resp_cap, const char *text)
{
	cr_assert(ask_with(fd, fn, resp_cap, text, 0));
}

/* The length of what came with it. */
static size_t answered(int fd, int res, char text[256])
{
	struct helper_answer answer;
	char message[256];
	ssize_t n = recv(fd, message, sizeof(message), 0);
	cr_assert_geq(n, (ssize_t)sizeof(answer));
	memcpy(&answer, message, sizeof(answer));
	cr_assert_eq(answer.res, res);
	memcpy(text, message + sizeof(answer), (size_t)n - sizeof(answer));
	return (size_t)n - sizeof(answer);
}

/* No more than there is room for, and nothing of a call before. */
Test(helper_child, answers_calls)
{
	static const char zeros[64];
	char text[256];
	int fd;
	pid_t pid = serve(&fd);
	ask(fd, FN_SAY, 64, "a secret");
	cr_assert_eq(answered(fd, 0, text), strlen("a secret"));
	cr_assert_eq(memcmp(text, "a secret", strlen("a secret")), 0);
	ask(fd, FN_SAY, 3, "a secret");
	cr_assert_eq(answered(fd, 0, text), 3);
	ask(fd, FN_EARLY, 64, "");
	cr_assert_eq(answered(fd, -EINVAL, text), 64);
	cr_assert_eq(memcmp(text, zeros, 64), 0);
	ask(fd, FN_PEEK, 64, "");
	cr_assert_eq(answered(fd, 0, text), 64);
	cr_assert_eq(memcmp(text, zeros, 64), 0);
	ask(fd, FN_MORE, 2, "");
	cr_assert_eq(answered(fd, -EDOM, text), 0);
	close(fd);
	cr_assert_eq(ended(pid), EXIT_SUCCESS);
}

Test(helper_child, ends_where_it_is_not_understood)
{
	for (unsigned i = 0; i < 2; i++) {
		char c;
		int fd;
		pid_t pid = serve(&fd);
		if (i == 0)
			cr_assert_eq(send(fd, "", 1, 0), 1);
		else
			ask(fd, FN_COUNT, 8, "");
		cr_assert_eq(recv(fd, &c, 1, 0), 0);
		cr_assert_eq(ended(pid), EXIT_FAILURE);
		close(fd);
	}
}

/* Nobody may look into it, and it leaves neither a lock nor a core file. */
Test(helper_child, gives_up_what_it_does_not_need)
{
	char text[256];
	uint64_t all;
	int fd;
	pid_t pid = serve(&fd);
	ask(fd, FN_SELF, sizeof(all), "");
	cr_assert_eq(answered(fd, 0, text), sizeof(all));
	memcpy(&all, text, sizeof(all));
	cr_assert_eq(all, 15);
	close(fd);
	cr_assert_eq(ended(pid), EXIT_SUCCESS);
}

/* Returns when it sleeps. */
static void until_it_waits(pid_t pid)
{
	char path[64], state = 'R';
	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	while (state != 'S') {
		FILE *file = fopen(path, "re");
		cr_assert_not_null(file);
		cr_assert_eq(fscanf(file, "%*d (%*[^)]) %c", &state), 1);
		fclose(file);
		cr_assert_neq(state, 'Z', "it has ended");
	}
}

/* Interrupts it where it waits. */
static void interrupt(pid_t pid)
{
	char path[64], line[128];
	unsigned long pending = 1;
	until_it_waits(pid);
	cr_assert_eq(kill(pid, SIGUSR1), 0);
	snprintf(path, sizeof(path), "/proc/%d/status", pid);
	while (pending != 0) {
		FILE *file = fopen(path, "re");
		cr_assert_not_null(file);
		while (fgets(line, sizeof(line), file) != NULL)
			(void)sscanf(line, "ShdPnd: %lx", &pending);
		fclose(file);
	}
}

/* While it waits for a call, while it waits for room for an answer, and within a call. */
Test(helper_child, a_signal_changes_nothing)
{
	char text[256];
	int fd;
	pid_t pid = serve(&fd);
	ask(fd, FN_SIGNALS, 64, "");
	cr_assert_eq(answered(fd, -EINTR, text), 0);
	interrupt(pid);
	ask(fd, FN_SAY, 64, "one");
	cr_assert_eq(answered(fd, 0, text), strlen("one"));
	unsigned asked = 0;
	for (unsigned i = 0; i < 2; i++) { /* there is room for answers to the first */
		while (ask_with(fd, FN_SAY, 64, "many", MSG_DONTWAIT))
			asked++;
		until_it_waits(pid);
	}
	interrupt(pid);
	for (; asked > 0; asked--)
		cr_assert_eq(answered(fd, 0, text), strlen("many"));
	close(fd);
	cr_assert_eq(ended(pid), EXIT_SUCCESS);
}
