/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The client of the data process: owns one connection, what waits to be sent on it and what waits
 * for a reply. At the end the blocking scan, which asks without a loop.
 *
 * The happy path: the first call connects (a unix socket answers at once), HELLO goes out and its
 * reply opens the connection; calls are sent in order as far as the socket takes them, and each
 * reply ends the call its id names. A connection that breaks ends what was sent on it with
 * ERR_UNAVAILABLE; what was not sent yet gets a new connection. Nothing is sent twice from here:
 * whether to ask again is the caller's to say.
 *
 * It fails when nobody listens, when the other end is not root's, or speaks another language.
 *
 * The happy path of a scan: connect, HELLO, then LIST again and again, each from the id behind the
 * last. When nobody listens the state files say it: a file whose device the kernel still has is a
 * device that waits for the next data process. A damaged file fails the scan, for its device may be
 * on any image.
 */
#include "backends/ublk/ublkc.h"

#include "backends/ublk/ublk_state.h"
#include "base/fd.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

enum {
	HELLO_MS =
		5000, /* for the first reply; a data process that recovers answers all the same */
};

enum conn_state { CONN_NONE, CONN_HELLO, CONN_OPEN, CONN_CLOSING };

struct ublkc {
	struct ring *ring;
	const char *path;
	enum conn_state state;
	int fd;
	struct list waiting, sent; /* ublkc_call.link */
	uint64_t next_id;
	struct ring_req recv, writable;
	struct ring_timer hello_timer;
	struct ublkd_reply incoming;
	bool ending; /* ublkc_close() was called */
};

/* ---- calls ---- */

/* The call is on no list and its timer idle afterwards. */
static void call_end(struct ublkc_call *call, int res)
{
	list_remove(&call->link);
	ring_timer_cancel(call->client->ring, &call->timer);
	call->on_end(call, res);
}

static void on_call_turn(struct ring_req *req, int res, uint32_t flags)
{
	struct ublkc_call *call = container_of(req, struct ublkc_call, turn);
	(void)flags;
	call_end(call, res);
}

/* Ends it from the loop; it stays on no list meanwhile. */
static void call_post(struct ublkc_call *call, int res)
{
	list_remove(&call->link);
	ring_timer_cancel(call->client->ring, &call->timer);
	call->turn = (struct ring_req){.fn = on_call_turn};
	ring_post(call->client->ring, &call->turn, res);
}

static void on_call_timeout(struct ring_timer *timer)
{
	struct ublkc_call *call = container_of(timer, struct ublkc_call, timer);
	int r = err_set(&call->err, ERR_TIMEOUT,
		call->sent ? "the data process does not answer in time; it goes on, ask again"
			   : "the data process at %s takes no requests; see its log",
		call->client->path);
	call_end(call, r);
}

static void fail_all(struct ublkc *c, struct list *calls, const char *what)
{
	struct list *node;
	while ((node = list_pop(calls)) != NULL) {
		struct ublkc_call *call = container_of(node, struct ublkc_call, link);
		call_post(call, err_set(&call->err, ERR_UNAVAILABLE,
					"the data process at %s %s; ask again when 'ringvol ublkd' "
					"is running",
					c->path, what));
	}
}

/* ---- the connection ---- */

static void conn_start(struct ublkc *c);

/* Called again as each request of the old connection completes; then the next may begin. */
static void conn_closed(struct ublkc *c)
{
	if (c->recv.armed || c->writable.armed)
		return;
	fd_close(&c->fd);
	c->state = CONN_NONE;
	if (!list_empty(&c->waiting) && !c->ending)
		conn_start(c);
}

static void conn_break(struct ublkc *c, const char *what)
{
	bool greeted = c->state == CONN_OPEN;
	c->state = CONN_CLOSING;
	ring_timer_cancel(c->ring, &c->hello_timer);
	fail_all(c, &c->sent, what);
	/* One that never got through HELLO would not fare better the second time. */
	if (!greeted)
		fail_all(c, &c->waiting, what);
	ring_cancel(c->ring, &c->recv);
	ring_cancel(c->ring, &c->writable);
	conn_closed(c);
}

static void conn_flush(struct ublkc *c);

static void on_writable(struct ring_req *req, int res, uint32_t flags)
{
	struct ublkc *c = container_of(req, struct ublkc, writable);
	(void)flags;
	if (c->state == CONN_CLOSING)
		conn_closed(c);
	else if (res < 0)
		conn_break(c, "cannot be written to");
	else
		conn_flush(c);
}

static void await_writable(struct ublkc *c)
{
	c->writable.fn = on_writable;
	io_uring_prep_poll_add(&c->writable.sqe, c->fd, POLLOUT);
	ring_submit(c->ring, &c->writable);
}

static void conn_flush(struct ublkc *c)
{
	while (c->state == CONN_OPEN && !c->writable.armed && !list_empty(&c->waiting)) {
		struct ublkc_call *call = container_of(c->waiting.next, struct ublkc_call, link);
		int r = ublkd_send(c->fd, &call->request, call->fd);
		if (r == -EAGAIN) {
			await_writable(c);
			return;
		}
		if (r < 0) {
			conn_break(c, "has closed its connection");
			return;
		}
		call->sent = true;
		list_remove(&call->link);
		list_push(&c->sent, &call->link);
	}
}

static void take_hello(struct ublkc *c)
{
	ring_timer_cancel(c->ring, &c->hello_timer);
	c->state = CONN_OPEN;
	conn_flush(c);
}

static void take_reply(struct ublkc *c)
{
	list_for_each (node, &c->sent) {
		struct ublkc_call *call = container_of(node, struct ublkc_call, link);
		if (call->request.head.id != c->incoming.head.id)
			continue;
		call->reply = c->incoming;
		call_end(call, ublkd_reply_result(&call->reply, &call->err));
		return;
	}
	/* The reply to a call that has timed out. */
}

static void recv_arm(struct ublkc *c);

static void on_recv(struct ring_req *req, int res, uint32_t flags)
{
	struct ublkc *c = container_of(req, struct ublkc, recv);
	(void)flags;
	if (c->state == CONN_CLOSING) {
		conn_closed(c);
		return;
	}
	if (res <= 0) {
		conn_break(c, "has ended");
		return;
	}
	if (ublkd_check_reply(&c->incoming, (size_t)res) < 0) {
		conn_break(c, "answers in a language of its own: another program has the socket");
		return;
	}
	if (c->state == CONN_HELLO)
		take_hello(c);
	else
		take_reply(c);
	if (c->state == CONN_OPEN)
		recv_arm(c);
}

static void recv_arm(struct ublkc *c)
{
	c->recv.fn = on_recv;
	io_uring_prep_recv(&c->recv.sqe, c->fd, &c->incoming, sizeof(c->incoming), 0);
	ring_submit(c->ring, &c->recv);
}

static void on_hello_timeout(struct ring_timer *timer)
{
	conn_break(container_of(timer, struct ublkc, hello_timer), "does not answer");
}

static void conn_start(struct ublkc *c)
{
	const struct ublkd_request hello = {.head = {.type = UBLKD_HELLO}};
	int fd = ublkd_connect(c->path);
	int r = fd < 0 ? fd : ublkd_send(fd, &hello, -1);
	if (r < 0) {
		fd_close(&fd);
		fail_all(c, &c->waiting, ublkd_connect_why(r));
		return;
	}
	c->fd = fd;
	c->state = CONN_HELLO;
	c->hello_timer.fn = on_hello_timeout;
	ring_timer_arm(c->ring, &c->hello_timer, HELLO_MS);
	recv_arm(c);
}

/* ---- entry points ---- */

int ublkc_open(struct ublkc **ret, struct ring *ring, const char *socket_path)
{
	struct ublkc *c = calloc(1, sizeof(*c));
	if (c == NULL)
		return -ENOMEM;
	c->ring = ring;
	c->path = socket_path;
	c->fd = -1;
	c->next_id = 1;
	list_init(&c->waiting);
	list_init(&c->sent);
	*ret = c;
	return 0;
}

void ublkc_close(struct ublkc *c)
{
	if (c == NULL)
		return;
	c->ending = true; /* or what waits would have it connect again, and nothing end that */
	if (c->state == CONN_HELLO || c->state == CONN_OPEN)
		conn_break(c, "is not needed any more");
	while (c->state != CONN_NONE)
		if (ring_turn(c->ring, true) < 0)
			return; /* the kernel may still write to this memory */
	free(c);
}

void ublkc_submit(struct ublkc *c, struct ublkc_call *call, uint64_t timeout_ms)
{
	call->client = c;
	call->request.head.id = c->next_id++;
	call->sent = false;
	call->timer = (struct ring_timer){.fn = on_call_timeout};
	list_init(&call->link);
	list_push(&c->waiting, &call->link);
	ring_timer_arm(c->ring, &call->timer, timeout_ms);
	if (c->state == CONN_NONE)
		conn_start(c);
	else
		conn_flush(c);
}

/* ---- the scan ---- */

struct scan {
	const char *path, *state_dir;
	uint64_t timeout_ms;
	void (*each)(void *arg, const struct ublkd_device *dev);
	void *arg;
	struct err *err;
	int res;
};

static int ask(const struct scan *s, int fd, const struct ublkd_request *request,
	struct ublkd_reply *reply)
{
	struct pollfd pfd = {.fd = fd, .events = POLLIN};
	int r = ublkd_send(fd, request, -1);
	if (r == 0 && poll(&pfd, 1, (int)s->timeout_ms) != 1)
		r = -ETIMEDOUT;
	ssize_t n = r == 0 ? recv(fd, reply, sizeof(*reply), MSG_DONTWAIT) : 0;
	if (r == 0 && n <= 0)
		r = n < 0 ? -errno : -ECONNRESET;
	if (r == 0)
		r = ublkd_check_reply(reply, (size_t)n);
	if (r < 0)
		return err_set(s->err, r == -ETIMEDOUT ? ERR_TIMEOUT : ERR_UNAVAILABLE,
			"the data process at %s does not say which devices it has (%s); see its log",
			s->path, strerrordesc_np(-r));
	return ublkd_reply_result(reply, s->err);
}

static int scan_process(const struct scan *s, int fd)
{
	struct ublkd_request request = {.head = {.type = UBLKD_HELLO}};
	struct ublkd_reply reply;
	int r = ask(s, fd, &request, &reply);
	request.head.type = UBLKD_LIST;
	while (r == 0) {
		request.head.id++;
		r = ask(s, fd, &request, &reply);
		if (r < 0 || reply.device.state == UBLKD_DEV_NONE)
			return r;
		s->each(s->arg, &reply.device);
		request.dev_id = reply.device.dev_id + 1;
	}
	return r;
}

static void record_to_device(const struct ublk_record *record, struct ublkd_device *dev)
{
	*dev = (struct ublkd_device){
		.state = UBLKD_DEV_WAITING,
		.dev_id = record->dev_id,
		.image_dev = record->image_dev,
		.image_ino = record->image_ino,
		.block_size = record->block_size,
		.flags = record->flags,
		.queues = record->queues,
		.depth = record->depth,
		.recoveries = record->recoveries,
	};
	memcpy(dev->tag, record->tag, sizeof(dev->tag));
	snprintf(dev->node, sizeof(dev->node), "/dev/ublkb%u", record->dev_id);
	snprintf(dev->why, sizeof(dev->why), "the data process is not running");
	struct stat st;
	if (stat(dev->node, &st) == 0) {
		dev->major = major(st.st_rdev);
		dev->minor = minor(st.st_rdev);
	}
}

static void on_record(void *arg, uint32_t dev_id, const struct ublk_record *record)
{
	struct scan *s = arg;
	char control[64];
	snprintf(control, sizeof(control), "/sys/class/ublk-char/ublkc%u", dev_id);
	if (access(control, F_OK) < 0)
		return; /* left over: the next start of the data process removes it */
	if (record == NULL) {
		s->res = err_set(s->err, ERR_DATA_LOSS,
			"state file %s/dev-%u is damaged: nobody knows the image of /dev/ublkb%u; "
			"start 'ringvol ublkd', which says more",
			s->state_dir, dev_id, dev_id);
		return;
	}
	struct ublkd_device dev;
	record_to_device(record, &dev);
	s->each(s->arg, &dev);
}

static int scan_files(struct scan *s)
{
	_cleanup_fd_ int dirfd = ublk_state_open_dir(s->state_dir, false);
	if (dirfd == -ENOENT)
		return 0;
	int r = dirfd < 0 ? dirfd : ublk_state_each(dirfd, on_record, s);
	if (r < 0)
		return err_sys(s->err, r, "reading the state files in %s", s->state_dir);
	return s->res;
}

int ublkc_scan(const char *socket_path, const char *state_dir, uint64_t timeout_ms,
	void (*each)(void *arg, const struct ublkd_device *dev), void *arg, struct err *err)
{
	struct scan s = {
		.path = socket_path,
		.state_dir = state_dir,
		.timeout_ms = timeout_ms,
		.each = each,
		.arg = arg,
		.err = err,
	};
	_cleanup_fd_ int fd = ublkd_connect(socket_path);
	if (fd == -ENOENT || fd == -ECONNREFUSED)
		return scan_files(&s);
	if (fd < 0)
		return err_set(err, ERR_UNAVAILABLE, "the data process at %s %s", socket_path,
			ublkd_connect_why(fd));
	return scan_process(&s, fd);
}
