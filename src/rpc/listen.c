/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes listening sockets. A unix socket: its directory is made, the directory is locked (so that
 * two starting drivers do not take each other's fresh socket for a stale one), what is in the way
 * is looked at, and the new socket is bound 0600 and listens. TCP: loopback addresses only, but for
 * HTTP and TLS.
 *
 * It fails on addresses it does not understand or serve (ERR_INVALID), on a path that is taken by
 * a live server or by something that is no socket, and on what the system calls say.
 */
#include "rpc/listen.h"

#include "base/address.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/options.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>

enum {
	LISTEN_BACKLOG = 4096, /* the kernel cuts it to net.core.somaxconn */
	LOCK_TRIES = 40,
	LIVE_TRIES = 25,
	LIVE_WAIT_MS = 20,
	LOCK_WAIT_MS = 50,
};

/* Opens the directory of `path`, making what is missing of it 0750. The fd or -errno. */
static int dir_open(const char *path)
{
	_cleanup_fd_ int dir = open(path[0] == '/' ? "/" : ".", O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (dir < 0)
		return -errno;
	const char *last = strrchr(path, '/');
	for (const char *p = path; last != NULL && p < last;) {
		size_t len = strcspn(p, "/");
		char name[256];
		if (len >= sizeof(name))
			return -ENAMETOOLONG;
		memcpy(name, p, len);
		name[len] = '\0';
		p += len + 1;
		if (len == 0)
			continue;
		if (mkdirat(dir, name, 0750) < 0 && errno != EEXIST)
			return -errno;
		int next = openat(dir, name, O_PATH | O_DIRECTORY | O_CLOEXEC);
		if (next < 0)
			return -errno;
		fd_close(&dir);
		dir = next;
	}
	/* For flock a real descriptor is needed. */
	int fd = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return fd < 0 ? -errno : fd;
}

static int dir_lock(int dir)
{
	for (int i = 0; i < LOCK_TRIES; i++) {
		if (flock(dir, LOCK_EX | LOCK_NB) == 0)
			return 0;
		if (errno != EWOULDBLOCK && errno != EINTR)
			return -errno;
		clock_sleep_ms(LOCK_WAIT_MS);
	}
	return -EBUSY;
}

/* Whether somebody listens on the socket file. 0: nobody; -EADDRINUSE; another -errno. */
static int probe_once(const struct sockaddr_un *address)
{
	_cleanup_fd_ int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return -errno;
	if (connect(fd, (const struct sockaddr *)address, sizeof(*address)) == 0)
		return -EADDRINUSE;
	if (errno == ECONNREFUSED || errno == ENOENT)
		return 0;
	return errno == EAGAIN ? -EADDRINUSE : -errno; /* EAGAIN: its backlog is full */
}

/* The kernel takes an io_uring down some time after its process has gone, and with it the socket an
 * accept was armed on: a driver started right after a kill -9 meets the dead one's listener. */
static int probe_live(const struct sockaddr_un *address)
{
	int res = probe_once(address);
	for (int i = 0; res == -EADDRINUSE && i < LIVE_TRIES; i++) {
		clock_sleep_ms(LIVE_WAIT_MS);
		res = probe_once(address);
	}
	return res;
}

static int stale_remove(
	int dir, const char *name, const struct sockaddr_un *address, struct err *err)
{
	struct stat st;
	if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return errno == ENOENT
			       ? 0
			       : err_sys(err, -errno, "cannot look at %s", address->sun_path);
	if (!S_ISSOCK(st.st_mode))
		return err_set(err, ERR_EXISTS,
			"%s is in the way of the socket and is not a socket; remove it",
			address->sun_path);
	int res = probe_live(address);
	if (res == -EADDRINUSE)
		return err_sys(err, res, "another process serves %s", address->sun_path);
	if (res < 0)
		return err_sys(err, res, "cannot tell whether %s is in use", address->sun_path);
	if (unlinkat(dir, name, 0) < 0 && errno != ENOENT)
		return err_sys(err, -errno, "cannot remove the stale socket %s", address->sun_path);
	return 0;
}

static int listen_unix(
	const struct sockaddr_un *address, struct listen_socket *ret, struct err *err)
{
	const char *path = address->sun_path;
	_cleanup_fd_ int dir = dir_open(path);
	if (dir < 0)
		return err_sys(err, dir, "cannot make the directory of %s", path);
	int res = dir_lock(dir);
	if (res < 0)
		return err_sys(err, res, "cannot lock the directory of %s", path);
	const char *name = strrchr(path, '/') != NULL ? strrchr(path, '/') + 1 : path;
	res = stale_remove(dir, name, address, err);
	if (res < 0)
		return res;

	_cleanup_fd_ int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return err_sys(err, -errno, "cannot make a socket");
	/* The file gets the socket's own mode less the umask: 0600 from its first instant. */
	if (fchmod(fd, 0600) < 0)
		return err_sys(err, -errno, "cannot set the mode of a socket");
	if (bind(fd, (const struct sockaddr *)address, sizeof(*address)) < 0)
		return err_sys(err, -errno, "cannot bind %s", path);
	struct stat st;
	if (listen(fd, LISTEN_BACKLOG) < 0 || fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0) {
		res = -errno;
		unlinkat(dir, name, 0);
		return err_sys(err, res, "cannot listen on %s", path);
	}
	*ret = (struct listen_socket){
		.fd = fd, .is_unix = true, .dev = st.st_dev, .ino = st.st_ino};
	memcpy(ret->path, path, sizeof(ret->path));
	fd = -1;
	return 0;
}

/* Other addresses than the loopback's are refused: there is no authentication. */
int listen_parse_endpoint(const char *text, struct endpoint *ret, struct err *err)
{
	struct endpoint e = {.len = sizeof(struct sockaddr_un)};
	struct sockaddr_un *un = (struct sockaddr_un *)&e.address;
	if (strncmp(text, "unix:", 5) == 0) {
		const char *path = text + (strncmp(text, "unix://", 7) == 0 ? 7 : 5);
		int r = options_socket(path, true, err);
		if (r < 0)
			return r;
		un->sun_family = AF_UNIX;
		strcpy(un->sun_path, path);
	} else if (strncmp(text, "tcp://", 6) == 0) {
		const char *address = text + 6;
		if ((strncmp(address, "127.0.0.1:", 10) != 0 &&
			    strncmp(address, "[::1]:", 6) != 0) ||
			address_parse(address, &e.address, &e.len) < 0)
			return err_set(err, ERR_INVALID,
				"tcp is served on the loopback only, at a port from 1 to 65535: "
				"tcp://127.0.0.1:PORT or tcp://[::1]:PORT");
	} else {
		return err_set(err, ERR_INVALID, "not unix:///PATH or tcp://127.0.0.1:PORT");
	}
	*ret = e;
	return 0;
}

/* text: as the user wrote it, for messages. */
static int listen_tcp(const struct sockaddr_storage *address, socklen_t len, const char *text,
	struct listen_socket *ret, struct err *err)
{
	_cleanup_fd_ int fd = socket(address->ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return err_sys(err, -errno, "cannot make a socket");
	/* Who went without a word, with his host or his cable, is known to be gone after a minute.
	 */
	int one = 1, idle_s = 30, every_s = 10, tries = 3;
	if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) < 0 ||
		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)) < 0 ||
		setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one)) < 0 ||
		setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof(idle_s)) < 0 ||
		setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &every_s, sizeof(every_s)) < 0 ||
		setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &tries, sizeof(tries)) < 0)
		return err_sys(
			err, -errno, "cannot set up a socket"); /* accepted ones inherit it */
	if (bind(fd, (const struct sockaddr *)address, len) < 0 || listen(fd, LISTEN_BACKLOG) < 0)
		return err_sys(err, -errno, "cannot listen on %s", text);
	*ret = (struct listen_socket){.fd = fd};
	fd = -1;
	return 0;
}

int listen_open_any(const char *text, struct listen_socket *ret, struct err *err)
{
	struct sockaddr_storage address;
	socklen_t len;
	if (address_parse(text, &address, &len) < 0)
		return err_set(err, ERR_INVALID, "\"%s\" is not ADDR:PORT or [ADDR]:PORT", text);
	return listen_tcp(&address, len, text, ret, err);
}

int listen_open(const char *endpoint, struct listen_socket *ret, struct err *err)
{
	struct endpoint e;
	struct err why = {0};
	if (listen_parse_endpoint(endpoint, &e, &why) < 0)
		return err_set(err, ERR_INVALID, "%s: %s", endpoint, why.message);
	if (e.address.ss_family == AF_UNIX)
		return listen_unix((const struct sockaddr_un *)&e.address, ret, err);
	return listen_tcp(&e.address, e.len, endpoint, ret, err);
}

void listen_unlink(struct listen_socket *s)
{
	struct stat st;
	if (s->is_unix && lstat(s->path, &st) == 0 && st.st_dev == s->dev && st.st_ino == s->ino)
		unlink(s->path);
	s->is_unix = false;
}
