/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sessions of the data process: owns the listening socket, connections, and the requests whose
 * answer is not sent yet.
 *
 * The happy path: accept, see that the other end is root's, receive a packet (and a descriptor with
 * an ATTACH), hand it to the devices, send the reply when its operation has ended. A request lives
 * on when its connection goes; then nobody is told.
 *
 * It fails a session, never the process: another user, a packet that is none of ours, a client that
 * does not read. Requests above the limit are refused one by one. A session above the limit takes
 * the place of one that has nothing under way, whose client connects again when it has something to
 * say (backends/ublk/ublkc.h); so nobody keeps the driver out by holding connections.
 */
#include "backends/ublk/ublkd_server.h"

#include "backends/ublk/ublkd_proto.h"
#include "base/fd.h"
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

enum {
	BACKLOG = 64,
	STALL_MS = 10000, /* a client that takes no reply for so long is cut off */
};

struct session {
	struct ublkd_server *server;
	struct list link;
	int fd;
	pid_t pid; /* of the client, 0 if it is in another namespace */
	bool closing;
	bool served;            /* has asked something */
	unsigned requests;      /* not freed yet */
	uint64_t idle_since_ns; /* while there is none */
	struct ring_req recv;
	struct msghdr msg;
	struct iovec iov;
	_Alignas(struct cmsghdr) char control[CMSG_SPACE(4 * sizeof(int))];
	struct ublkd_request incoming;
};

struct request {
	struct session *session;
	struct ublk_wait wait;
	uint64_t start_ns;
	bool quiet; /* asked again and again, and nothing was to be done */
	struct ublkd_request in;
	struct ublkd_reply reply;
	struct ring_req send;
	struct ring_timer stall;
};

struct ublkd_server {
	struct ring *ring;
	struct ublk_devs *devs;
	const char *path;
	int fd, lock_fd;
	bool closing;
	struct ring_req accept;
	struct list sessions;
	unsigned session_count;
};

/* ---- how sessions end ---- */

static void session_reap(struct session *s)
{
	if (!s->closing || s->recv.armed || s->requests != 0)
		return;
	fd_close(&s->fd);
	list_remove(&s->link);
	s->server->session_count--;
	free(s);
}

static void session_close(struct session *s)
{
	if (!s->closing) {
		s->closing = true;
		shutdown(s->fd, SHUT_RDWR);
		ring_cancel(s->server->ring, &s->recv);
	}
	session_reap(s);
}

/* ---- replies ---- */

static void request_free(struct request *r)
{
	struct session *s = r->session;
	ring_timer_cancel(s->server->ring, &r->stall);
	s->requests--;
	s->idle_since_ns = ring_now_ns(s->server->ring);
	free(r);
	session_reap(s);
}

static void on_sent(struct ring_req *req, int res, uint32_t flags)
{
	struct request *r = container_of(req, struct request, send);
	(void)flags;
	if (res < 0)
		session_close(r->session);
	request_free(r);
}

static void on_stall(struct ring_timer *timer)
{
	struct request *r = container_of(timer, struct request, stall);
	session_close(r->session); /* and with it the send */
}

static void request_reply(struct request *r)
{
	struct session *s = r->session;
	if (s->closing) {
		request_free(r);
		return;
	}
	r->reply.head = r->in.head;
	r->reply.head.version = UBLKD_VERSION;
	r->send = (struct ring_req){.fn = on_sent};
	io_uring_prep_send(&r->send.sqe, s->fd, &r->reply, sizeof(r->reply), MSG_NOSIGNAL);
	ring_submit(s->server->ring, &r->send);
	r->stall = (struct ring_timer){.fn = on_stall};
	ring_timer_arm(s->server->ring, &r->stall, STALL_MS);
}

static void request_refuse(struct request *r, enum err_code code, const char *why)
{
	struct err err = {0};
	int res = err_set(&err, code, "%s", why);
	ublkd_reply_fail(&r->reply, res, &err);
	request_reply(r);
}

/* ---- requests ---- */

static void log_request(const struct request *r, const struct ublkd_device *dev, int res)
{
	static const char *const names[] = {[UBLKD_ATTACH] = "attach",
		[UBLKD_DETACH] = "detach",
		[UBLKD_RESIZE] = "resize",
		[UBLKD_LIMIT] = "limit"};
	char id[16], ms[32];
	uint64_t now_ns = ring_now_ns(r->session->server->ring);
	snprintf(id, sizeof(id), "%u", dev != NULL ? dev->dev_id : r->in.dev_id);
	snprintf(ms, sizeof(ms), "%.1f", (double)(now_ns - r->start_ns) / 1e6);
	log_event(res < 0 ? LOG_LEVEL_WARN : LOG_LEVEL_INFO, "operation done",
		log_fields({"op", names[r->in.head.type]}, {"tag", r->in.tag}, {"device", id},
			{"code", res < 0 ? r->reply.code : "ok"},
			{"error", res < 0 ? r->reply.message : NULL},
			{"step", res < 0 ? r->wait.err.step : NULL}, {"ms", ms}));
}

static void on_wait_end(struct ublk_wait *wait, const struct ublk_dev *dev, int res)
{
	struct request *r = container_of(wait, struct request, wait);
	if (dev != NULL)
		ublk_devs_describe(dev, &r->reply.device);
	if (res < 0)
		ublkd_reply_fail(&r->reply, res, &wait->err);
	if (!r->quiet)
		log_request(r, dev != NULL ? &r->reply.device : NULL, res);
	request_reply(r);
}

static void serve_hello(struct request *r)
{
	const struct ublk_devs *devs = r->session->server->devs;
	r->reply.features = ublk_devs_features(devs);
	if (access("/dev/ublk-control", F_OK) == 0)
		r->reply.flags |= UBLKD_HAS_UBLK;
	if (r->reply.features & UBLK_ABI_F_UPDATE_SIZE)
		r->reply.flags |= UBLKD_CAN_RESIZE;
	r->reply.pid = getpid();
	r->reply.devices = ublk_devs_count(devs);
	snprintf(r->reply.build, sizeof(r->reply.build), "%s", RINGVOL_VERSION);
	request_reply(r);
}

static void serve_list(struct request *r)
{
	const struct ublk_dev *dev = ublk_devs_next(r->session->server->devs, r->in.dev_id);
	if (dev != NULL)
		ublk_devs_describe(dev, &r->reply.device);
	request_reply(r);
}

/* fd: what came along, or -1; the request's from here. */
static void request_serve(struct request *r, int fd)
{
	struct ublk_devs *devs = r->session->server->devs;
	r->wait.on_end = on_wait_end;
	if (r->in.head.type == UBLKD_ATTACH) {
		ublk_devs_attach(devs, &r->in, fd, &r->wait);
		return;
	}
	fd_close(&fd);
	switch (r->in.head.type) {
	case UBLKD_HELLO:
		serve_hello(r);
		break;
	case UBLKD_DETACH:
		ublk_devs_detach(devs, &r->in, &r->wait);
		break;
	case UBLKD_RESIZE:
		ublk_devs_resize(devs, &r->in, &r->wait);
		break;
	case UBLKD_LIMIT:
		r->quiet = ublk_devs_limit(devs, &r->in, &r->wait);
		break;
	case UBLKD_LIST:
		serve_list(r);
		break;
	default:
		request_refuse(r, ERR_UNIMPLEMENTED,
			"the data process (ringvol " RINGVOL_VERSION
			") does not know this request: upgrade it");
	}
}

/* ---- receiving ---- */

static int take_descriptor(struct msghdr *msg)
{
	int taken = -1;
	for (struct cmsghdr *c = CMSG_FIRSTHDR(msg); c != NULL; c = CMSG_NXTHDR(msg, c)) {
		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		for (size_t i = 0; i < count; i++) {
			int fd;
			memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(fd));
			if (taken < 0)
				taken = fd;
			else
				close(fd);
		}
	}
	return taken;
}

static void session_recv(struct session *s);

static void session_take(struct session *s, size_t len)
{
	int fd = take_descriptor(&s->msg);
	struct request *r = NULL;
	if (ublkd_check_request(&s->incoming, len) == 0)
		r = calloc(1, sizeof(*r));
	if (r == NULL) {
		fd_close(&fd);
		session_close(s);
		return;
	}
	r->session = s;
	r->in = s->incoming;
	r->start_ns = ring_now_ns(s->server->ring);
	s->served = true;
	s->requests++;
	session_recv(s);
	if (s->requests <= UBLKD_REQUESTS_MAX) {
		request_serve(r, fd);
		return;
	}
	fd_close(&fd);
	request_refuse(r, ERR_NO_ROOM, "too many requests at once; ask again");
}

static void on_recv(struct ring_req *req, int res, uint32_t flags)
{
	struct session *s = container_of(req, struct session, recv);
	(void)flags;
	if (s->closing || res <= 0) {
		/* An empty packet reads as an end, and descriptors may have come with it. */
		int fd = take_descriptor(&s->msg);
		fd_close(&fd);
		session_close(s);
		return;
	}
	session_take(s, (size_t)res);
}

static void session_recv(struct session *s)
{
	s->iov = (struct iovec){&s->incoming, sizeof(s->incoming)};
	memset(s->control, 0, sizeof(s->control)); /* a failed receive leaves what was there */
	s->msg = (struct msghdr){
		.msg_iov = &s->iov,
		.msg_iovlen = 1,
		.msg_control = s->control,
		.msg_controllen = sizeof(s->control),
	};
	s->recv.fn = on_recv;
	io_uring_prep_recvmsg(&s->recv.sqe, s->fd, &s->msg, MSG_CMSG_CLOEXEC);
	ring_submit(s->server->ring, &s->recv);
}

/* ---- accepting ---- */

static unsigned sessions_of(const struct ublkd_server *server, pid_t pid)
{
	unsigned count = 0;
	list_for_each (node, &server->sessions)
		count += container_of(node, struct session, link)->pid == pid;
	return count;
}

/* Whether nothing is lost when it goes: no request is under way, none waits in the socket. */
static bool session_idle(const struct session *s)
{
	int unread = 0;
	return !s->closing && s->requests == 0 && ioctl(s->fd, FIONREAD, &unread) == 0 &&
	       unread == 0;
}

/* Those that never asked go first, then those of the process that has most, then the one that has
 * been idle longest. */
static bool goes_before(
	const struct ublkd_server *server, const struct session *a, const struct session *b)
{
	if (a->served != b->served)
		return !a->served;
	unsigned ours = sessions_of(server, a->pid), theirs = sessions_of(server, b->pid);
	return ours != theirs ? ours > theirs : a->idle_since_ns < b->idle_since_ns;
}

/* False: something is under way in each. */
static bool make_room(struct ublkd_server *server)
{
	struct session *last = NULL;
	char pid[16];
	if (server->session_count < UBLKD_SESSIONS_MAX)
		return true;
	list_for_each (node, &server->sessions) {
		struct session *s = container_of(node, struct session, link);
		if (session_idle(s) && (last == NULL || goes_before(server, s, last)))
			last = s;
	}
	if (last == NULL)
		return false;
	snprintf(pid, sizeof(pid), "%d", last->pid);
	log_event(LOG_LEVEL_INFO, "idle connection closed for another", log_fields({"pid", pid}));
	session_close(last);
	return true;
}

static void session_open(struct ublkd_server *server, int fd)
{
	struct ucred peer = {.uid = (uid_t)-1};
	socklen_t len = sizeof(peer);
	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) < 0 || peer.uid != 0 ||
		!make_room(server)) {
		log_event(LOG_LEVEL_WARN, "connection refused",
			log_fields({"why", peer.uid != 0 ? "not root's" : "too many connections"}));
		close(fd);
		return;
	}
	struct session *s = calloc(1, sizeof(*s));
	if (s == NULL) {
		close(fd);
		return;
	}
	s->server = server;
	s->fd = fd;
	s->pid = peer.pid;
	s->idle_since_ns = ring_now_ns(server->ring);
	list_push(&server->sessions, &s->link);
	server->session_count++;
	session_recv(s);
}

static void on_accept(struct ring_req *req, int res, uint32_t flags)
{
	struct ublkd_server *server = container_of(req, struct ublkd_server, accept);
	(void)flags;
	if (server->closing) {
		/* Somebody may still have come. */
		fd_close(&res);
		return;
	}
	if (res >= 0)
		session_open(server, res);
	else
		log_event(LOG_LEVEL_WARN, "accept failed",
			log_fields({"error", strerrordesc_np(-res)}));
	ublkd_server_start(server);
}

void ublkd_server_start(struct ublkd_server *server)
{
	server->accept.fn = on_accept;
	io_uring_prep_accept(&server->accept.sqe, server->fd, NULL, NULL, SOCK_CLOEXEC);
	ring_submit(server->ring, &server->accept);
}

/* ---- the socket ---- */

/* Whoever serves a socket holds the lock of the file beside it. Connecting would not tell: the
 * kernel takes a ring down some time after its process has gone, and with it the listener an accept
 * was armed on. */
static int socket_lock(const char *path, int *ret_fd, struct err *err)
{
	char name[sizeof(((struct sockaddr_un *)NULL)->sun_path) + sizeof(".lock")];
	snprintf(name, sizeof(name), "%s.lock", path);
	_cleanup_fd_ int fd = open(name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0)
		return err_sys(err, -errno, "opening %s", name);
	if (flock(fd, LOCK_EX | LOCK_NB) < 0)
		return err_set(err, ERR_EXISTS,
			"another data process serves %s: end it, or give --socket and --state-dir",
			path);
	*ret_fd = fd;
	fd = -1;
	return 0;
}

static int socket_bind(const char *path, int *ret_fd, int *ret_lock_fd, struct err *err)
{
	struct sockaddr_un addr = {.sun_family = AF_UNIX};
	char dir[sizeof(addr.sun_path)];
	if (strlen(path) >= sizeof(addr.sun_path))
		return err_set(err, ERR_INVALID, "the socket's path %s is longer than %zu bytes",
			path, sizeof(addr.sun_path) - 1);
	strcpy(addr.sun_path, path);
	snprintf(dir, sizeof(dir), "%.*s", (int)(strrchr(path, '/') - path), path);
	_cleanup_fd_ int dirfd = ublk_state_open_dir(dir[0] != '\0' ? dir : "/", true);
	if (dirfd < 0)
		return err_sys(err, dirfd, "making the directory %s", dir);
	_cleanup_fd_ int lock_fd = -1;
	int r = socket_lock(path, &lock_fd, err);
	if (r < 0)
		return r;
	_cleanup_fd_ int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return err_sys(err, -errno, "making a socket");
	unlink(path);
	if (fchmod(fd, 0600) < 0 || bind(fd, (struct sockaddr *)&addr, sizeof(addr)) < 0 ||
		listen(fd, BACKLOG) < 0)
		return err_sys(err, -errno, "listening on %s", path);
	*ret_fd = fd;
	*ret_lock_fd = lock_fd;
	fd = lock_fd = -1;
	return 0;
}

int ublkd_server_open(struct ublkd_server **ret, struct ring *ring, struct ublk_devs *devs,
	const char *path, struct err *err)
{
	struct ublkd_server *server = calloc(1, sizeof(*server));
	if (server == NULL)
		return err_sys(err, -ENOMEM, "opening the server");
	server->ring = ring;
	server->devs = devs;
	server->path = path;
	list_init(&server->sessions);
	int r = socket_bind(path, &server->fd, &server->lock_fd, err);
	if (r < 0) {
		free(server);
		return r;
	}
	*ret = server;
	return 0;
}

void ublkd_server_close(struct ublkd_server *server)
{
	if (server == NULL)
		return;
	unlink(server->path);
	server->closing = true;
	ring_cancel(server->ring, &server->accept);
	list_for_each_safe (node, &server->sessions)
		session_close(container_of(node, struct session, link));
	while (server->accept.armed || !list_empty(&server->sessions))
		if (ring_turn(server->ring, true) < 0)
			return;
	fd_close(&server->fd);
	fd_close(&server->lock_fd);
	free(server);
}
