/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The helper's side: receive, run the function, send, until the socket is closed. It is started
 * with nothing else open and dies with the driver's thread that started it. A message no driver
 * of ours sends ends it.
 */
#include "reactor/helper_child.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdalign.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>

static int serve_one(
	int fd, const uint8_t *message, size_t len, helper_fn *const *table, unsigned count)
{
	alignas(max_align_t) static uint8_t resp[HELPER_MESSAGE_BYTES];
	struct helper_request request;
	if (len < sizeof(request))
		return -EBADMSG;
	memcpy(&request, message, sizeof(request));
	if (request.fn >= count)
		return -EBADMSG;
	size_t resp_len = HELPER_MESSAGE_BYTES - sizeof(struct helper_answer);
	if (resp_len > request.resp_cap)
		resp_len = request.resp_cap;
	size_t resp_cap = resp_len;
	struct helper_answer answer = {0};
	answer.res = table[request.fn](
		message + sizeof(request), len - sizeof(request), resp, &resp_len);
	/* A function that failed early has not set the length; what it sends back then is zeros. */
	if (resp_len > resp_cap)
		resp_len = 0;
	struct iovec iov[] = {{&answer, sizeof(answer)}, {resp, resp_len}};
	struct msghdr msg = {.msg_iov = iov, .msg_iovlen = 2};
	ssize_t n;
	do
		n = sendmsg(fd, &msg, MSG_NOSIGNAL);
	while (n < 0 && errno == EINTR);
	/* Requests carry secrets (mount options). */
	explicit_bzero(resp, resp_cap);
	return n < 0 ? -errno : 0;
}

int helper_main(int fd, helper_fn *const *table, unsigned count)
{
	alignas(max_align_t) static uint8_t message[HELPER_MESSAGE_BYTES];
	/* Neither a lock nor a core file may survive the driver. Should it have died before this,
	 * the socket says so. */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	prctl(PR_SET_DUMPABLE, 0);
	setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
	fcntl(fd, F_SETFD, FD_CLOEXEC);
	for (;;) {
		ssize_t n = recv(fd, message, sizeof(message), 0);
		if (n < 0 && errno == EINTR)
			continue;
		if (n == 0)
			return EXIT_SUCCESS;
		if (n < 0 || serve_one(fd, message, (size_t)n, table, count) < 0)
			return EXIT_FAILURE;
		explicit_bzero(message, (size_t)n);
	}
}
