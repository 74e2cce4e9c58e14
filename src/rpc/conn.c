/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One connection between its socket and its session. What the kernel receives into shared buffers
 * feeds the session, and what that answers in one turn of the loop goes out in one send. At most
 * one send is in flight on a connection: while it is, answers wait in the session, which pauses
 * what makes them. A connection that is bulk receives once at a time, by a chore.
 *
 *   OPEN -> LINGER -> CLOSED -> freed
 *
 * A connection that is finished lingers for a moment: its last bytes (a GOAWAY with the reason) are
 * out, its own side is shut, and what still comes in is thrown away, because closing a socket with
 * unread data destroys what the peer has not read yet. One that is given up in the middle of an
 * answer of HTTP is reset instead, because a body may end where its connection does. CLOSED waits
 * for the kernel to let go of the requests. Connections fail on their own.
 */
#include "rpc/conn.h"

#include "base/budget.h"
#include "base/fd.h"
#include "base/secret.h"
#include "reactor/ring_bufs.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
	CONN_SEND_BYTES = 64 << 10, /* one send */
	CONN_KEEP_BYTES =
		2 << 10, /* of a connection's output buffer between sends: many are idle */
	CONN_LINGER_MS = 500,
	CONN_REST_MS = 500,     /* after a send: if none is in flight, buffers are given back */
	CONN_RECV_BUFFERS = 64, /* of all connections; they are held only while being fed */
	/* Likewise of those that are bulk: larger ones, as each is received for itself. */
	CONN_BULK_BUFFERS = 4,
	CONN_BULK_BYTES = 64 << 10,
};

/* A descriptor on its way to the peer, on a unix socket. */
struct conn_pass {
	int fd;
	struct msghdr message;
	struct iovec bytes;
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control;
};

static void recv_next(struct conn *c);

/* The output buffer has grown or gone. */
static void out_count(struct conn *c)
{
	if (c->host->memory != NULL) {
		budget_give(c->host->memory, c->out_counted);
		budget_add(c->host->memory, c->out.cap);
	}
	c->out_counted = c->out.cap;
}

/* The kernel has it, or nobody will. */
static void pass_end(struct conn *c)
{
	if (c->pass == NULL)
		return;
	fd_close(&c->pass->fd);
	free(c->pass);
	c->pass = NULL;
}

/* ---- how connections end ---- */

/* Frees a closed connection once the kernel holds none of its requests. */
static void conn_reap(struct conn *c)
{
	if (c->recv.armed || c->send.armed || c->wake.armed)
		return;
	fd_close(&c->fd);
	pass_end(c);
	buf_free(&c->out);
	out_count(c);
	c->host->on_free(c);
}

/* Calls learn that their other end is gone. */
static void conn_end_session(struct conn *c)
{
	struct session *session = c->session;
	if (session == NULL)
		return;
	c->session = NULL;
	c->host->on_end(c, session);
	session->ops->free(session);
}

/* Whether the peer might take the end of the connection for the end of an answer. */
static bool conn_mid_answer(const struct conn *c)
{
	if (c->state != CONN_OPEN || c->session->ops->mid_answer == NULL)
		return false;
	return c->send.armed || c->session->ops->mid_answer(c->session);
}

static void conn_to_closed(struct conn *c)
{
	static const struct linger reset = {.l_onoff = 1, .l_linger = 0};
	if (conn_mid_answer(c))
		setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
	c->state = CONN_CLOSED;
	if (c->host->on_close != NULL)
		c->host->on_close(c);
	conn_end_session(c);
	ring_timer_cancel(c->host->ring, &c->timer);
	ring_chore_cancel(&c->chore);
}

void conn_close(struct conn *c)
{
	struct ring *ring = c->host->ring;
	if (c->state != CONN_CLOSED) {
		conn_to_closed(c);
		ring_cancel(ring, &c->recv);
		ring_cancel(ring, &c->send);
		ring_cancel(ring, &c->wake);
	}
	conn_reap(c);
}

void conn_discard(struct conn *c)
{
	struct ring *ring = c->host->ring;
	if (c->state != CONN_CLOSED)
		conn_to_closed(c);
	ring_discard(ring, &c->recv);
	ring_discard(ring, &c->send);
	ring_discard(ring, &c->wake);
	conn_reap(c);
}

/* May free the connection. */
static void conn_linger(struct conn *c)
{
	if (c->ended || conn_mid_answer(c)) { /* no unread data to wait for; no end to show */
		conn_close(c);
		return;
	}
	c->state = CONN_LINGER;
	conn_end_session(c);
	buf_free(&c->out);
	out_count(c);
	shutdown(c->fd, SHUT_WR);
	ring_timer_arm(c->host->ring, &c->timer, CONN_LINGER_MS);
	recv_next(c);
}

/* Nothing is being sent, and the timer was armed by the last send. */
static void conn_rest(struct conn *c)
{
	if (c->out.len == 0) {
		buf_free(&c->out);
		out_count(c);
	}
	if (c->session->ops->rest != NULL)
		c->session->ops->rest(c->session);
}

static void on_timer(struct ring_timer *timer)
{
	struct conn *c = container_of(timer, struct conn, timer);
	struct ring *ring = c->host->ring;
	uint64_t stall_ns = (uint64_t)c->write_stall_ms * 1000000;
	uint64_t due = c->progress_ns + stall_ns, now = ring_now_ns(ring);

	if (c->state == CONN_OPEN && !c->send.armed) {
		conn_rest(c);
		return;
	}
	if (c->state == CONN_OPEN && now < due) {
		ring_timer_arm(ring, timer, (due - now + 999999) / 1000000);
		return;
	}
	c->error = c->state == CONN_OPEN ? -ETIMEDOUT : c->error;
	conn_close(c);
}

/* ---- sending ---- */

/* Takes the descriptor that the session has put out with what it has just put out. */
static void pass_take(struct conn *c)
{
	const struct session_ops *ops = c->session->ops;
	int fd = ops->pass == NULL || c->out.len == 0 ? -1 : ops->pass(c->session);
	if (fd < 0)
		return;
	c->pass = malloc(sizeof(*c->pass));
	if (c->pass == NULL) {
		close(fd);
		c->out.len = 0; /* nothing that names a descriptor goes without it */
		c->cut = true;
		return;
	}
	c->pass->fd = fd;
}

static const struct msghdr *pass_message(struct conn *c)
{
	struct conn_pass *pass = c->pass;
	pass->bytes = (struct iovec){c->out.data, c->out.len};
	pass->message = (struct msghdr){.msg_iov = &pass->bytes,
		.msg_iovlen = 1,
		.msg_control = pass->control.bytes,
		.msg_controllen = sizeof(pass->control.bytes)};
	struct cmsghdr *head = CMSG_FIRSTHDR(&pass->message);
	*head = (struct cmsghdr){.cmsg_level = SOL_SOCKET,
		.cmsg_type = SCM_RIGHTS,
		.cmsg_len = CMSG_LEN(sizeof(int))};
	memcpy(CMSG_DATA(head), &pass->fd, sizeof(int));
	return &pass->message;
}

static void send_arm(struct conn *c)
{
	struct ring *ring = c->host->ring;
	if (c->pass != NULL)
		io_uring_prep_sendmsg(&c->send.sqe, c->fd, pass_message(c), MSG_NOSIGNAL);
	else
		io_uring_prep_send(&c->send.sqe, c->fd, c->out.data + c->sent, c->out.len - c->sent,
			MSG_NOSIGNAL);
	ring_submit(ring, &c->send);
	/* Set once and looked at when it fires, so that a busy connection leaves it alone. */
	if (!ring_timer_armed(&c->timer))
		ring_timer_arm(ring, &c->timer,
			c->write_stall_ms < CONN_REST_MS ? c->write_stall_ms : CONN_REST_MS);
}

/* Sends what there is to send, unless a send is in flight; ends a connection that is through. May
 * free the connection. */
static void conn_flush(struct conn *c)
{
	if (c->state != CONN_OPEN || c->send.armed)
		return;
	const struct session_ops *ops = c->session->ops;
	if (c->host->on_flush != NULL)
		c->host->on_flush(c);
	if (c->out.len == 0 && ops->output(c->session, &c->out, CONN_SEND_BYTES) < 0)
		c->cut = true;
	if (c->pass == NULL)
		pass_take(c);
	if (c->out.cap != c->out_counted)
		out_count(c);
	if (c->out.len > 0) {
		c->sent = 0;
		c->progress_ns = ring_now_ns(c->host->ring);
		send_arm(c);
	} else if (c->cut || ops->finished(c->session)) {
		conn_linger(c);
		return;
	}
	recv_next(c);
}

static void on_send(struct ring_req *req, int res, uint32_t flags)
{
	(void)flags;
	struct conn *c = container_of(req, struct conn, send);
	if (c->state == CONN_CLOSED) {
		conn_reap(c);
		return;
	}
	if (res <= 0) {
		c->error = res;
		conn_close(c);
		return;
	}
	if (c->host->bytes_out != NULL)
		*c->host->bytes_out += (uint64_t)res;
	pass_end(c);
	c->progress_ns = ring_now_ns(c->host->ring);
	c->sent += (size_t)res;
	if (c->sent < c->out.len) {
		send_arm(c);
		return;
	}
	c->out.len = 0;
	/* Scrapers come once a minute: between, nothing is kept for them. */
	if (c->out.cap > CONN_KEEP_BYTES || c->paced)
		buf_free(&c->out);
	conn_flush(c);
}

static void on_wake_posted(struct ring_req *req, int res, uint32_t flags)
{
	(void)res;
	(void)flags;
	struct conn *c = container_of(req, struct conn, wake);
	if (c->state == CONN_CLOSED)
		conn_reap(c);
	else if (c->state == CONN_OPEN && c->session->dead)
		conn_close(c);
	else
		conn_flush(c);
}

void conn_wake(void *arg)
{
	struct conn *c = arg;
	if (c->state == CONN_OPEN && !c->wake.armed && (!c->send.armed || c->session->dead))
		ring_post(c->host->ring, &c->wake, 0);
}

/* ---- receiving ---- */

static void recv_arm(struct conn *c)
{
	c->recv.sqe.flags |= IOSQE_BUFFER_SELECT;
	c->recv.sqe.buf_group = (uint16_t)ring_bufs_group(c->host->bufs);
	ring_submit(c->host->ring, &c->recv);
}

/* Receives on, unless it does or the session has enough. */
static void recv_next(struct conn *c)
{
	struct ring *ring = c->host->ring;
	if (c->recv.armed || c->ended)
		return;
	if (c->state == CONN_OPEN)
		c->paced = c->session->paced;
	if (c->paced && c->state == CONN_OPEN && !c->session->ops->wants_input(c->session))
		return;
	if (c->host->bulk) {
		ring_chore_want(ring, &c->chore);
		return;
	}
	if (ring_features(ring)->multishot_recv && !c->paced)
		io_uring_prep_recv_multishot(&c->recv.sqe, c->fd, NULL, 0, 0);
	else
		io_uring_prep_recv(&c->recv.sqe, c->fd, NULL, SESSION_FEED_BYTES, 0);
	recv_arm(c);
}

static void on_chore(struct ring_chore *chore)
{
	struct conn *c = container_of(chore, struct conn, chore);
	if (c->recv.armed || c->ended)
		return;
	io_uring_prep_recv(&c->recv.sqe, c->fd, NULL, CONN_BULK_BYTES, 0);
	recv_arm(c);
}

static void feed(struct conn *c, const uint8_t *data, size_t len)
{
	if (c->host->bytes_in != NULL)
		*c->host->bytes_in += len;
	while (len > 0 && !c->cut) {
		size_t n = len < SESSION_FEED_BYTES ? len : SESSION_FEED_BYTES;
		if (c->session->ops->feed(c->session, data, n) < 0)
			c->cut = true;
		data += n;
		len -= n;
	}
}

static void on_input_ended(struct conn *c)
{
	c->ended = true;
	if (c->state != CONN_OPEN || c->session->ops->input_ended == NULL) {
		conn_close(c);
		return;
	}
	c->session->ops->input_ended(c->session);
	conn_flush(c);
}

static void on_recv(struct ring_req *req, int res, uint32_t flags)
{
	struct conn *c = container_of(req, struct conn, recv);
	const struct conn_host *host = c->host;

	if ((flags & IORING_CQE_F_BUFFER) != 0) {
		uint8_t *data = ring_bufs_at(host->bufs, flags);
		if (c->state == CONN_OPEN && res > 0)
			feed(c, data, (size_t)res);
		if (c->wipes && res > 0)
			secret_wipe(data, (size_t)res);
		ring_bufs_put(host->bufs, flags);
	}
	if (c->state == CONN_CLOSED) {
		conn_reap(c);
		return;
	}
	if (res == 0) {
		on_input_ended(c);
		return;
	}
	/* Without a buffer it is tried again: all are back at the end of this turn. */
	if (res < 0 && res != -ENOBUFS) {
		c->error = res;
		conn_close(c);
		return;
	}
	bool more = (flags & IORING_CQE_F_MORE) != 0;
	if (!more)
		recv_next(c);
	if (more && (flags & IORING_CQE_F_SOCK_NONEMPTY) != 0)
		conn_wake(c); /* the rest comes in this turn or the next: answer it together */
	else
		conn_flush(c);
}

/* ---- for owners ---- */

int conn_bufs_open(struct ring *ring, bool bulk, struct ring_bufs **ret)
{
	return bulk ? ring_bufs_share(ring, CONN_BULK_BUFFERS, CONN_BULK_BYTES, ret)
		    : ring_bufs_share(ring, CONN_RECV_BUFFERS, SESSION_FEED_BYTES, ret);
}

void conn_init(struct conn *c, const struct conn_host *host, int fd)
{
	*c = (struct conn){.host = host, .fd = fd};
	c->recv.fn = on_recv;
	c->send.fn = on_send;
	c->wake.fn = on_wake_posted;
	c->timer.fn = on_timer;
	c->chore.fn = on_chore;
}

void conn_begin(struct conn *c, struct session *session, unsigned write_stall_ms)
{
	assert(c->session == NULL && c->state == CONN_OPEN);
	c->session = session;
	c->write_stall_ms = write_stall_ms;
	c->paced = session->paced;
	c->wipes = session->secretive;
	recv_next(c);
	conn_wake(c);
}
