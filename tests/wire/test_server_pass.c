/* SPDX-License-Identifier: Apache-2.0 */
/* The server on a unix socket where a protocol of its owner's is spoken, whose answers may have a
 * descriptor along with them; and one where HTTP is. */
#include "server_client.h"
#include "unit/refused.h"

#include "provider/varlink.h"
#include "rpc/http1.h"

#include <fcntl.h>
#include <sys/stat.h>

enum { LARGE = 3 << 20 };

static unsigned calls;
static int context;

/* "plain", "fd", or "large", an answer of many sends that has one. */
static void on_call(struct varlink_call *call, const char *method, json_t *parameters, void *arg)
{
	(void)parameters;
	cr_assert_eq(arg, &context);
	calls++;
	int fd = strcmp(method, "plain") == 0 ? -1 : open("/dev/zero", O_RDONLY | O_CLOEXEC);
	char *text = calloc(1, LARGE + 1);
	memset(text, 'x', strcmp(method, "large") == 0 ? LARGE : 1);
	varlink_reply(call, json_pack("{s:s}", "text", text), fd);
	free(text);
}

static int open_other(
	void *arg, void (*on_wake)(void *wake_arg), void *wake_arg, struct session **ret)
{
	return varlink_session_new(on_call, arg, on_wake, wake_arg, ret);
}

static void http_text(struct http1_call *call, void *arg)
{
	(void)arg;
	http1_reply(call, 200, "text");
}

static const struct http1_route routes[] = {{"/text", http_text, NULL}, {NULL, NULL, NULL}};

static void setup_pass(void)
{
	setup();
	struct server_config config = {.ring = ring,
		.registry = registry,
		.limits = server_limits_default,
		.http_routes = routes,
		.http_limits = server_http_limits_default,
		.open_other = open_other,
		.open_other_arg = &context};
	cr_assert_eq(server_open(&server, &config), 0);
}

TestSuite(pass, .init = setup_pass, .fini = teardown);

static void serve_other(void)
{
	struct err err = {0};
	cr_assert_eq(server_listen_other_unix(server, endpoint, &err), 0, "%s", err.message);
}

static void ask(int fd, const char *method)
{
	char text[64];
	int len = snprintf(text, sizeof(text), "{\"method\":\"%s\"}", method);
	cr_assert_eq(send(fd, text, (size_t)len + 1, MSG_NOSIGNAL), len + 1);
}

/* What there is to read, of cap bytes at most; the descriptor that came along or -1. */
static ssize_t receive(int fd, char *data, size_t cap, int *ret_fd)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(4 * sizeof(int))];
	} control;
	struct iovec bytes = {data, cap};
	struct msghdr message = {.msg_iov = &bytes,
		.msg_iovlen = 1,
		.msg_control = control.bytes,
		.msg_controllen = sizeof(control.bytes)};
	ssize_t n = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
	struct cmsghdr *head = n > 0 ? CMSG_FIRSTHDR(&message) : NULL;
	*ret_fd = -1;
	if (head == NULL)
		return n;
	cr_assert_eq(head->cmsg_level, SOL_SOCKET);
	cr_assert_eq(head->cmsg_type, SCM_RIGHTS);
	cr_assert_eq(head->cmsg_len, CMSG_LEN(sizeof(int)), "one");
	cr_assert_null(CMSG_NXTHDR(&message, head));
	memcpy(ret_fd, CMSG_DATA(head), sizeof(int));
	return n;
}

/* The whole of an answer, which ends with a NUL; closes the descriptor. */
static size_t assert_answer_with(int fd, bool with)
{
	static char data[8192];
	size_t len = 0;
	bool got = false;
	int passed;
	do {
		ssize_t n;
		turn_until((n = receive(fd, data, sizeof(data), &passed)) != -1 || errno != EAGAIN);
		cr_assert_gt(n, 0);
		if (passed >= 0) {
			struct stat is, zero;
			cr_assert(len == 0 && !got, "with the first byte, once");
			got = true;
			cr_assert(fstat(passed, &is) == 0 && stat("/dev/zero", &zero) == 0);
			cr_assert_eq(is.st_rdev, zero.st_rdev);
			close(passed);
		}
		len += (size_t)n;
		if (memchr(data, '\0', (size_t)n) != NULL) {
			cr_assert_eq(data[n - 1], '\0', "and nothing after it");
			break;
		}
	} while (true);
	cr_assert_eq(got, with);
	return len;
}

static void no_connection(int fd, int fds)
{
	close(fd);
	turn_until(server_stats(server)->connections == 0);
	cr_assert_eq(open_fds(), fds);
}

Test(pass, a_descriptor_goes_along_with_its_answer)
{
	static const char *const methods[] = {"plain", "fd", "plain", "fd", "fd", "plain"};
	serve_other();
	int fds = open_fds(), fd = dial();
	for (unsigned i = 0; i < 6; i++) {
		ask(fd, methods[i]);
		assert_answer_with(fd, strcmp(methods[i], "fd") == 0);
		cr_assert_eq(calls, i + 1);
		/* Ours are the two ends of the connection. */
		cr_assert_eq(open_fds(), fds + 2, "what has gone out is closed");
	}
	no_connection(fd, fds);
}

/* Sent ahead: each answer has its own. */
Test(pass, descriptors_of_calls_in_a_row)
{
	char data[1024];
	unsigned answers = 0, passed_count = 0;
	int passed;
	serve_other();
	int fds = open_fds(), fd = dial();
	for (unsigned i = 0; i < 3; i++) {
		ask(fd, "fd");
		ask(fd, "plain");
	}
	while (answers < 6) {
		ssize_t n;
		turn_until((n = receive(fd, data, sizeof(data), &passed)) != -1 || errno != EAGAIN);
		cr_assert_gt(n, 0);
		for (ssize_t i = 0; i < n; i++)
			answers += data[i] == '\0';
		if (passed >= 0)
			passed_count++;
		cr_assert(passed < 0 || close(passed) == 0);
	}
	cr_assert_eq(answers, 6);
	cr_assert_eq(passed_count, 3);
	no_connection(fd, fds);
}

/* Of an answer that goes out in many sends the first one has it. */
Test(pass, a_descriptor_with_a_large_answer)
{
	serve_other();
	int fds = open_fds(), fd = dial();
	ask(fd, "large");
	cr_assert_gt(assert_answer_with(fd, true), LARGE);
	ask(fd, "plain");
	assert_answer_with(fd, false);
	no_connection(fd, fds);
}

/* Nobody reads any more: a descriptor that did not go out is closed. */
Test(pass, a_client_that_does_not_wait)
{
	serve_other();
	int fds = open_fds();
	for (unsigned i = 0; i < 2; i++) {
		int fd = dial();
		turn_until(server_stats(server)->connections == 1);
		ask(fd, "fd");
		if (i == 1) {
			cr_assert_eq(shutdown(fd, SHUT_RD), 0);
			turn_until(calls == 2);
		}
		no_connection(fd, fds);
	}
	cr_assert_eq(calls, 2);
}

/* What is on its way when the server goes: the client does not read the large answer. */
Test(pass, closing_with_a_descriptor_on_its_way)
{
	serve_other();
	int fds = open_fds(), fd = dial();
	ask(fd, "large");
	turn_until(calls == 1);
	server_close(server);
	server = NULL;
	close(fd);
	cr_assert_lt(open_fds(), fds, "the listening socket is closed, too");
	cr_assert_lt(access(path, F_OK), 0);
}

/* ---- HTTP ---- */

Test(pass, http_on_a_unix_socket)
{
	static const char request[] = "GET /text HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
	char text[1024] = "";
	size_t len = 0;
	struct stat st;
	struct err err = {0};
	cr_assert_eq(server_listen_http_unix(server, endpoint, &err), 0, "%s", err.message);
	cr_assert(lstat(path, &st) == 0 && S_ISSOCK(st.st_mode));
	cr_assert_eq(st.st_mode & 07777, 0600);
	int fd = dial();
	cr_assert_eq(send(fd, request, strlen(request), MSG_NOSIGNAL), (ssize_t)strlen(request));
	for (ssize_t n = 1; n != 0;) {
		turn_until((n = recv(fd, text + len, sizeof(text) - 1 - len, 0)) != -1 ||
			   errno != EAGAIN);
		cr_assert_geq(n, 0);
		len += (size_t)n;
	}
	cr_assert_eq(strncmp(text, "HTTP/1.1 200 ", 13), 0, "%s", text);
	cr_assert_str_eq(text + len - 5, "text\n");
	close(fd);
	/* Somebody serves there: the second is told so. */
	cr_assert_eq(server_listen_other_unix(server, endpoint, &err), -EADDRINUSE);
}
