/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernel may refuse while a listening socket is made: what is said of it, and what is
 * left behind. */
#include "rpc/listen.h"
#include "unit/refused.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static char dir[] = "/tmp/ringvol-listen-XXXXXX";
static char path[64], endpoint[80];
static unsigned slept;

/* ---- the calls ---- */

enum {
	NOTHING,
	OPEN,
	MKDIRAT,
	FLOCK,
	SOCKET,
	CONNECT,
	UNLINKAT,
	FCHMOD,
	BIND,
	LISTEN,
	FSTATAT,
	SET
};

int __real_open64(const char *file, int flags, ...);
int __wrap_open64(const char *file, int flags, ...);
int __wrap_open64(const char *file, int flags, ...)
{
	return refuses(OPEN) ? -1 : __real_open64(file, flags, 0);
}

int __real_mkdirat(int at, const char *name, mode_t mode);
int __wrap_mkdirat(int at, const char *name, mode_t mode);
int __wrap_mkdirat(int at, const char *name, mode_t mode)
{
	return refuses(MKDIRAT) ? -1 : __real_mkdirat(at, name, mode);
}

int __real_flock(int fd, int operation);
int __wrap_flock(int fd, int operation);
int __wrap_flock(int fd, int operation)
{
	return refuses(FLOCK) ? -1 : __real_flock(fd, operation);
}

int __real_socket(int domain, int type, int protocol);
int __wrap_socket(int domain, int type, int protocol);
int __wrap_socket(int domain, int type, int protocol)
{
	return refuses(SOCKET) ? -1 : __real_socket(domain, type, protocol);
}

int __real_connect(int fd, const struct sockaddr *to, socklen_t len);
int __wrap_connect(int fd, const struct sockaddr *to, socklen_t len);
int __wrap_connect(int fd, const struct sockaddr *to, socklen_t len)
{
	return refuses(CONNECT) ? -1 : __real_connect(fd, to, len);
}

int __real_unlinkat(int at, const char *name, int flags);
int __wrap_unlinkat(int at, const char *name, int flags);
int __wrap_unlinkat(int at, const char *name, int flags)
{
	return refuses(UNLINKAT) ? -1 : __real_unlinkat(at, name, flags);
}

int __real_fchmod(int fd, mode_t mode);
int __wrap_fchmod(int fd, mode_t mode);
int __wrap_fchmod(int fd, mode_t mode)
{
	return refuses(FCHMOD) ? -1 : __real_fchmod(fd, mode);
}

int __real_bind(int fd, const struct sockaddr *to, socklen_t len);
int __wrap_bind(int fd, const struct sockaddr *to, socklen_t len);
int __wrap_bind(int fd, const struct sockaddr *to, socklen_t len)
{
	return refuses(BIND) ? -1 : __real_bind(fd, to, len);
}

int __real_listen(int fd, int backlog);
int __wrap_listen(int fd, int backlog);
int __wrap_listen(int fd, int backlog)
{
	return refuses(LISTEN) ? -1 : __real_listen(fd, backlog);
}

int __real_fstatat64(int at, const char *name, struct stat *ret, int flags);
int __wrap_fstatat64(int at, const char *name, struct stat *ret, int flags);
int __wrap_fstatat64(int at, const char *name, struct stat *ret, int flags)
{
	return refuses(FSTATAT) ? -1 : __real_fstatat64(at, name, ret, flags);
}

int __real_setsockopt(int fd, int level, int name, const void *value, socklen_t len);
int __wrap_setsockopt(int fd, int level, int name, const void *value, socklen_t len);
int __wrap_setsockopt(int fd, int level, int name, const void *value, socklen_t len)
{
	return refuses(SET) ? -1 : __real_setsockopt(fd, level, name, value, len);
}

void __wrap_clock_sleep_ms(unsigned ms);
void __wrap_clock_sleep_ms(unsigned ms)
{
	slept += ms;
}

/* ---- the tests ---- */

static void setup(void)
{
	cr_assert_not_null(mkdtemp(dir));
	snprintf(path, sizeof(path), "%s/csi.sock", dir);
	snprintf(endpoint, sizeof(endpoint), "unix://%s", path);
}

static void teardown(void)
{
	unlink(path);
	cr_assert_eq(rmdir(dir), 0, "something is left in it: %m");
}

TestSuite(listen, .init = setup, .fini = teardown);

static void close_it(struct listen_socket *it)
{
	listen_unlink(it);
	close(it->fd);
}

static void assert_refused(const char *where, int call, unsigned nth, int with, const char *said)
{
	struct listen_socket it = {.fd = -1};
	struct err err = {0};
	int fds = open_fds();
	refuse(call, nth, 1, with);
	cr_assert_eq(listen_open(where, &it, &err), -with, "%s: %s", said, err.message);
	cr_assert_eq(refused.times, 0);
	cr_assert_eq(err.code, ERR_INTERNAL);
	cr_assert_eq(err.errnum, with, "%s: %s", said, err.message);
	cr_assert(strncmp(err.message, said, strlen(said)) == 0, "%s", err.message);
	cr_assert_not_null(strstr(err.message, strerror(with)), "%s", err.message);
	cr_assert_eq(open_fds(), fds, "%s", said);
	cr_assert_eq(it.fd, -1);
}

static void assert_listens(const char *where)
{
	struct listen_socket it;
	struct err err = {0};
	cr_assert_eq(listen_open(where, &it, &err), 0, "%s", err.message);
	close_it(&it);
	cr_assert_lt(access(path, F_OK), 0);
}

/* No socket file is there afterwards, and the next attempt is not in its way. */
Test(listen, a_call_that_is_refused)
{
	static const struct {
		int call;
		unsigned nth;
		const char *said;
	} of[] = {{OPEN, 0, "cannot make the directory of /"},
		{MKDIRAT, 0, "cannot make the directory of /"},
		{FLOCK, 0, "cannot lock the directory of /"}, {SOCKET, 0, "cannot make a socket: "},
		{FCHMOD, 0, "cannot set the mode of a socket: "}, {BIND, 0, "cannot bind /"},
		{LISTEN, 0, "cannot listen on /"}, {FSTATAT, 0, "cannot look at /"},
		{FSTATAT, 1, "cannot listen on /"}};
	for (size_t i = 0; i < sizeof(of) / sizeof(of[0]); i++) {
		assert_refused(endpoint, of[i].call, of[i].nth, EIO, of[i].said);
		cr_assert_lt(access(path, F_OK), 0, "%s", of[i].said);
		assert_listens(endpoint);
	}
}

/* A driver that died leaves its socket file; it stays as long as nobody can tell whose it is. */
Test(listen, a_stale_socket_that_cannot_be_looked_at)
{
	struct listen_socket old;
	struct err err = {0};
	cr_assert_eq(listen_open(endpoint, &old, &err), 0, "%s", err.message);
	close(old.fd);
	assert_refused(endpoint, SOCKET, 0, EMFILE, "cannot tell whether /");
	assert_refused(endpoint, CONNECT, 0, EACCES, "cannot tell whether /");
	assert_refused(endpoint, UNLINKAT, 0, EROFS, "cannot remove the stale socket /");
	cr_assert_eq(access(path, F_OK), 0);
	/* Somebody else removes it in between. */
	cr_assert_eq(unlink(path), 0);
	cr_assert_eq(listen_open(endpoint, &old, &err), 0, "%s", err.message);
	close(old.fd);
	refuse(UNLINKAT, 0, 1, ENOENT);
	cr_assert_eq(listen_open(endpoint, &old, &err), -EADDRINUSE, "the file is there yet");
	cr_assert_eq(strncmp(err.message, "cannot bind /", 13), 0, "%s", err.message);
	assert_listens(endpoint);
	cr_assert_eq(slept, 0);
}

/* One whose backlog is full is alive. */
Test(listen, a_socket_that_is_in_use)
{
	struct listen_socket live, it = {.fd = -1};
	struct err err = {0};
	cr_assert_eq(listen_open(endpoint, &live, &err), 0, "%s", err.message);
	refuse(CONNECT, 0, 100, EAGAIN);
	cr_assert_eq(listen_open(endpoint, &it, &err), -EADDRINUSE);
	cr_assert_eq(strncmp(err.message, "another process serves /", 24), 0, "%s", err.message);
	cr_assert_eq(slept, 25 * 20);
	cr_assert_eq(it.fd, -1);
	/* It dies while it is looked at. */
	slept = 0;
	close(live.fd);
	refuse(CONNECT, 0, 3, EAGAIN);
	err_clear(&err);
	cr_assert_eq(listen_open(endpoint, &it, &err), 0, "%s", err.message);
	cr_assert_eq(slept, 3 * 20);
	close_it(&it);
}

/* Two that start at once: the later one waits for the earlier one's look, and not for ever. */
Test(listen, a_directory_that_is_locked)
{
	struct listen_socket it = {.fd = -1};
	struct err err = {0};
	int fds = open_fds(), lock = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	cr_assert_eq(__real_flock(lock, LOCK_EX), 0);
	cr_assert_eq(listen_open(endpoint, &it, &err), -EBUSY);
	cr_assert_eq(
		strncmp(err.message, "cannot lock the directory of /", 30), 0, "%s", err.message);
	cr_assert_eq(slept, 40 * 50);
	cr_assert_lt(access(path, F_OK), 0);
	close(lock);
	cr_assert_eq(open_fds(), fds);

	slept = 0;
	refuse(FLOCK, 0, 2, EWOULDBLOCK);
	assert_listens(endpoint);
	refuse(FLOCK, 0, 1, EINTR);
	assert_listens(endpoint);
	cr_assert_eq(slept, 3 * 50);
}

/* ---- TCP ---- */

static const char *free_port(void)
{
	static char text[64];
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(at);
	int fd = __real_socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	cr_assert_eq(__real_bind(fd, (struct sockaddr *)&at, len), 0);
	cr_assert_eq(getsockname(fd, (struct sockaddr *)&at, &len), 0);
	close(fd);
	snprintf(text, sizeof(text), "tcp://127.0.0.1:%u", ntohs(at.sin_port));
	return text;
}

Test(listen, a_tcp_socket_that_is_refused)
{
	const char *tcp = free_port();
	assert_refused(tcp, SOCKET, 0, EMFILE, "cannot make a socket: ");
	for (unsigned i = 0; i < 6; i++)
		assert_refused(tcp, SET, i, EIO, "cannot set up a socket: ");
	assert_refused(tcp, BIND, 0, EADDRINUSE, "cannot listen on tcp://127.0.0.1:");
	assert_refused(tcp, LISTEN, 0, EADDRINUSE, "cannot listen on tcp://127.0.0.1:");
	assert_listens(tcp);
}

static int option(int fd, int level, int name)
{
	int value = -1;
	socklen_t len = sizeof(value);
	cr_assert_eq(getsockopt(fd, level, name, &value, &len), 0);
	return value;
}

/* Who went without a word is known to be gone after a minute: 30 s, and three times 10. */
Test(listen, what_a_tcp_socket_is_set_to)
{
	struct listen_socket it;
	struct err err = {0};
	cr_assert_eq(listen_open(free_port(), &it, &err), 0, "%s", err.message);
	cr_assert_not(it.is_unix);
	cr_assert_eq(option(it.fd, SOL_SOCKET, SO_REUSEADDR), 1);
	cr_assert_eq(option(it.fd, IPPROTO_TCP, TCP_NODELAY), 1);
	cr_assert_eq(option(it.fd, SOL_SOCKET, SO_KEEPALIVE), 1);
	cr_assert_eq(option(it.fd, IPPROTO_TCP, TCP_KEEPIDLE), 30);
	cr_assert_eq(option(it.fd, IPPROTO_TCP, TCP_KEEPINTVL), 10);
	cr_assert_eq(option(it.fd, IPPROTO_TCP, TCP_KEEPCNT), 3);
	cr_assert_eq(option(it.fd, SOL_SOCKET, SO_ACCEPTCONN), 1);
	close(it.fd);
}
