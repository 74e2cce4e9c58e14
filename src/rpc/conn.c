/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One connection between its socket and its session. What the kernel receives into shared buffers
 * feeds the session, and what that answers in one turn of the loop goes out in one send. At most
 * one send is in flight on a connection: while it is, answers wait in the session, which pauses
 * what makes them.
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

#include "base/fd.h"
#include "reactor/ring_bufs.h"
#include "rpc/registry.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

enum {
	CONN_SEND_BYTES = 64 << 10, /* one send */
	CONN_KEEP_BYTES = 16 << 10, /* of a connection's output buffer between sends */
	CONN_LINGER_MS = 500,
};

enum conn_state { CONN_OPEN, CONN_LINGER, CONN_CLOSED };

struct conn {
	struct server *server;
	struct speaks *speaks;
	struct remote *remote; /* NULL once closed */
	struct list link;
	int fd;
	enum conn_state state;
	bool paced; /* as the session was last */
	bool ended; /* the peer has sent its last byte */
	bool cut;   /* nothing more can be sent */
	bool asked; /* it was asked to leave for another connection */
	struct session *session;
	struct ring_req recv, send, wake;
	struct ring_timer timer; /* a send without progress; then lingering */
	struct buf out;
	size_t out_counted; /* of out, in the budget of requests and answers */
	size_t sent;
	uint64_t progress_ns;
};

static void recv_next(struct conn *c);

/* The output buffer has grown or gone. */
static void out_count(struct conn *c)
{
	struct budget *memory = c->server->config.registry->memory;
	budget_give(memory, c->out_counted);
	budget_add(memory, c->out.cap);
	c->out_counted = c->out.cap;
}

/* ---- how connections end ---- */

/* Frees a closed connection once the kernel holds none of its requests. */
static void conn_reap(struct conn *c)
{
	if (c->recv.armed || c->send.armed || c->wake.armed)
		return;
	fd_close(&c->fd);
	list_remove(&c->link);
	c->server->stats.connections--;
	buf_free(&c->out);
	out_count(c);
	free(c);
}

/* Calls learn that their client is gone. */
static void conn_end_session(struct conn *c)
{
	struct server *server = c->server;
	struct session *session = c->session;
	if (session == NULL)
		return;
	if (session->end == SESSION_END_TOO_MANY_PINGS)
		server->stats.too_many_pings++;
	if (session->end == SESSION_END_HALF_OPEN)
		server->stats.half_open_closed++;
	if (session->end == SESSION_END_FLOODED)
		server->stats.flooded++;
	c->session = NULL;
	session->ops->free(session);
	server->open--;
	server->on_conn_end(server);
}

/* Whether the peer might take the end of the connection for the end of an answer. */
static bool conn_mid_answer(const struct conn *c)
{
	if (c->state != CONN_OPEN || c->session->ops->mid_answer == NULL)
		return false;
	return c->send.armed || c->session->ops->mid_answer(c->session);
}

/* May free the connection. */
static void conn_close(struct conn *c)
{
	static const struct linger reset = {.l_onoff = 1, .l_linger = 0};
	struct ring *ring = c->server->config.ring;
	if (c->state != CONN_CLOSED) {
		if (conn_mid_answer(c))
			setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
		c->state = CONN_CLOSED;
		c->speaks->connections--;
		remote_drop(c->remote);
		c->remote = NULL;
		conn_end_session(c);
		ring_timer_cancel(ring, &c->timer);
		ring_cancel(ring, &c->recv);
		ring_cancel(ring, &c->send);
		ring_cancel(ring, &c->wake);
	}
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
	ring_timer_arm(c->server->config.ring, &c->timer, CONN_LINGER_MS);
	recv_next(c);
}

static void on_timer(struct ring_timer *timer)
{
	struct conn *c = container_of(timer, struct conn, timer);
	struct ring *ring = c->server->config.ring;
	uint64_t stall_ns = (uint64_t)c->speaks->limits->write_stall_ms * 1000000;
	uint64_t due = c->progress_ns + stall_ns, now = ring_now_ns(ring);

	if (c->state == CONN_OPEN && !c->send.armed)
		return;
	if (c->state == CONN_OPEN && now < due) {
		ring_timer_arm(ring, timer, (due - now + 999999) / 1000000);
		return;
	}
	conn_close(c);
}

/* ---- sending ---- */

static void send_arm(struct conn *c)
{
	struct ring *ring = c->server->config.ring;
	io_uring_prep_send(
		&c->send.sqe, c->fd, c->out.data + c->sent, c->out.len - c->sent, MSG_NOSIGNAL);
	ring_submit(ring, &c->send);
	/* Set once and looked at when it fires, so that a busy connection leaves it alone. */
	if (!ring_timer_armed(&c->timer))
		ring_timer_arm(ring, &c->timer, c->speaks->limits->write_stall_ms);
}

/* Sends what there is to send, unless a send is in flight; ends a connection that is through. May
 * free the connection. */
static void conn_flush(struct conn *c)
{
	if (c->state != CONN_OPEN || c->send.armed)
		return;
	const struct session_ops *ops = c->session->ops;
	c->server->on_conn_flush(c->server);
	if (c->out.len == 0 && ops->output(c->session, &c->out, CONN_SEND_BYTES) < 0)
		c->cut = true;
	if (c->out.cap != c->out_counted)
		out_count(c);
	if (c->out.len > 0) {
		c->sent = 0;
		c->progress_ns = ring_now_ns(c->server->config.ring);
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
		conn_close(c);
		return;
	}
	c->server->stats.bytes_out += (uint64_t)res;
	c->progress_ns = ring_now_ns(c->server->config.ring);
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

/* Once a turn, however many calls were answered in it. */
static void conn_wake(void *arg)
{
	struct conn *c = arg;
	if (c->state == CONN_OPEN && !c->wake.armed && (!c->send.armed || c->session->dead))
		ring_post(c->server->config.ring, &c->wake, 0);
}

/* ---- receiving ---- */

/* Receives on, unless it does or the session has enough. */
static void recv_next(struct conn *c)
{
	struct ring *ring = c->server->config.ring;
	if (c->recv.armed || c->ended)
		return;
	if (c->state == CONN_OPEN)
		c->paced = c->session->paced;
	if (c->paced && c->state == CONN_OPEN && !c->session->ops->wants_input(c->session))
		return;
	if (ring_features(ring)->multishot_recv && !c->paced)
		io_uring_prep_recv_multishot(&c->recv.sqe, c->fd, NULL, 0, 0);
	else
		io_uring_prep_recv(&c->recv.sqe, c->fd, NULL, SERVER_RECV_BYTES, 0);
	c->recv.sqe.flags |= IOSQE_BUFFER_SELECT;
	c->recv.sqe.buf_group = (uint16_t)ring_bufs_group(c->server->bufs);
	ring_submit(ring, &c->recv);
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
	struct server *server = c->server;

	if ((flags & IORING_CQE_F_BUFFER) != 0) {
		if (c->state == CONN_OPEN && res > 0) {
			const uint8_t *data = ring_bufs_at(server->bufs, flags);
			server->stats.bytes_in += (uint64_t)res;
			if (c->session->ops->feed(c->session, data, (size_t)res) < 0)
				c->cut = true;
		}
		ring_bufs_put(server->bufs, flags);
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

/* ---- for the server ---- */

void conn_open(struct server *server, struct speaks *speaks, int fd, const struct remote_key *key)
{
	struct conn *c = calloc(1, sizeof(*c));
	if (c != NULL)
		c->remote = remote_add(&speaks->remotes, key);
	if (c == NULL || c->remote == NULL ||
		speaks->open(server, fd, conn_wake, c, &c->session) < 0) {
		server->stats.refused++;
		if (c != NULL && c->remote != NULL)
			remote_drop(c->remote);
		free(c);
		close(fd);
		return;
	}
	c->server = server;
	c->speaks = speaks;
	c->fd = fd;
	c->recv.fn = on_recv;
	c->send.fn = on_send;
	c->wake.fn = on_wake_posted;
	c->timer.fn = on_timer;
	list_push(&server->conns, &c->link);
	speaks->connections++;
	server->open++;
	server->stats.connections++;
	server->stats.accepted++;
	recv_next(c);
	conn_wake(c);
}

/* Why a connection may be closed for another, best reason first. */
enum spare_class {
	SPARE_OVER,   /* it lingers */
	SPARE_MUTE,   /* no whole request for longer than a client needs to send one */
	SPARE_IDLE,   /* it has asked before */
	SPARE_FRESH,  /* its request may be on the way */
	SPARE_UNREAD, /* a part of it is here, and was not looked at yet */
	SPARE_NONE,
};

struct spare {
	struct conn *conn;
	enum spare_class class;
	uint64_t since_ns;
};

/* A client sends its first request at once: a tenth of what it is allowed. */
static uint64_t fresh_ns(const struct conn *c)
{
	return (uint64_t)c->speaks->limits->half_open_ms * (1000000 / 10);
}

static struct spare conn_spare(struct conn *c, uint64_t now_ns)
{
	struct spare spare = {.conn = c, .class = SPARE_NONE};
	int unread = 0;
	if (c->state == CONN_LINGER)
		spare.class = SPARE_OVER;
	if (c->state != CONN_OPEN || c->send.armed || c->asked)
		return spare;
	enum session_wait waits = c->session->ops->waits(c->session, &spare.since_ns);
	if (waits == SESSION_BUSY)
		return spare;
	if (ioctl(c->fd, FIONREAD, &unread) == 0 && unread > 0)
		spare.class = SPARE_UNREAD;
	else if (waits == SESSION_IDLE)
		spare.class = SPARE_IDLE;
	else
		spare.class = now_ns - spare.since_ns < fresh_ns(c) ? SPARE_FRESH : SPARE_MUTE;
	return spare;
}

/* Among connections that may still be of use, the remote end with the most loses one first: a
 * client that opens many shuts out itself and nobody else. */
static bool spare_before(const struct spare *a, const struct spare *b)
{
	unsigned ours = a->conn->remote->connections, theirs = b->conn->remote->connections;
	if ((a->class <= SPARE_MUTE || b->class <= SPARE_MUTE) && a->class != b->class)
		return a->class < b->class;
	if (ours != theirs)
		return ours > theirs;
	return a->class != b->class ? a->class < b->class : a->since_ns < b->since_ns;
}

/* Its next request may be here already, and not looked at yet: then it is answered. */
static void ask_to_leave(struct conn *c)
{
	c->asked = true;
	c->session->ops->drain(c->session);
	conn_wake(c);
}

bool conns_make_room(
	struct server *server, const struct speaks *speaks, const struct remote *remote)
{
	struct spare best = {.class = SPARE_NONE};
	uint64_t now_ns = ring_now_ns(server->config.ring);
	list_for_each (n, &server->conns) {
		struct conn *c = container_of(n, struct conn, link);
		if (c->speaks != speaks || c->state == CONN_CLOSED ||
			(remote != NULL && c->remote != remote))
			continue;
		struct spare spare = conn_spare(c, now_ns);
		if (spare.class != SPARE_NONE && (best.conn == NULL || spare_before(&spare, &best)))
			best = spare;
	}
	if (best.conn == NULL)
		return false;
	server->stats.made_room++;
	/* Asking is not for ever: a connection that does not go is closed in the end. */
	unsigned most = speaks->limits->connections;
	if (best.class == SPARE_IDLE && speaks->connections < most + most / 8)
		ask_to_leave(best.conn);
	else
		conn_close(best.conn);
	return true;
}

void conns_drain(struct server *server)
{
	list_for_each_safe (n, &server->conns) {
		struct conn *c = container_of(n, struct conn, link);
		if (c->state != CONN_OPEN)
			continue;
		c->session->ops->drain(c->session);
		conn_wake(c);
	}
}

void conns_cut(struct server *server)
{
	list_for_each_safe (l, &server->conns)
		conn_close(container_of(l, struct conn, link));
}
