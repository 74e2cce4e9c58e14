/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Listeners and connections. A multishot accept hands over a socket; the peer is checked; a
 * multishot receive into shared buffers feeds the HTTP/2 connection, and what it answers in one
 * turn of the loop goes out in one send. At most one send is in flight on a connection: while it
 * is, answers wait in the HTTP/2 layer, which pauses streams.
 *
 *   OPEN -> LINGER -> CLOSED -> freed
 *
 * A connection that is finished lingers for a moment: its last bytes (a GOAWAY with the reason) are
 * out, its own side is shut, and what still comes in is thrown away, because closing a socket with
 * unread data destroys what the peer has not read yet. CLOSED waits for the kernel to let go of
 * the requests. Connections fail on their own; a server fails only at start.
 */
#include "rpc/server.h"

#include "base/buf.h"
#include "base/fd.h"
#include "rpc/h2.h"
#include "rpc/listen.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>

enum {
	SERVER_RECV_BUFFERS =
		64, /* shared by all connections; they are held only while being fed */
	SERVER_RECV_BYTES = 8192,
	SERVER_SEND_BYTES = 64 << 10, /* one send */
	SERVER_KEEP_BYTES = 16 << 10, /* of a connection's output buffer between sends */
	SERVER_LINGER_MS = 500,
	SERVER_ACCEPT_PAUSE_MS = 100, /* after EMFILE and the like */
};

/* idle_ms is 0 because the CSI sidecars exit when their connection is lost. */
const struct server_limits server_limits_default = {
	.connections = 1024,
	.streams = 128,
	.header_bytes = 16 << 10,
	.half_open_ms = 10000,
	.idle_ms = 0,
	.write_stall_ms = 30000,
	.ping_min_ms = 5000, /* clients are free to ping every 10 s */
	.send_buffer_bytes = 256 << 10,
};

struct server {
	struct server_config config;
	struct ring_bufs *bufs;
	struct list listeners, conns;
	unsigned open; /* connections that may still carry streams */
	bool draining;
	struct ring_timer drain_timer;
	struct ring_req drained;
	void (*on_drained)(void *arg);
	void *on_drained_arg;
	struct server_stats stats;
};

struct listener {
	struct server *server;
	struct list link;
	struct listen_socket socket;
	bool is_unix, closing;
	struct ring_req accept;
	struct ring_timer pause;
};

enum conn_state { CONN_OPEN, CONN_LINGER, CONN_CLOSED };

struct conn {
	struct server *server;
	struct list link;
	int fd;
	enum conn_state state;
	bool cut; /* nothing more can be sent */
	struct h2_conn *h2;
	struct ring_req recv, send, wake;
	struct ring_timer timer; /* a send without progress; then lingering */
	struct buf out;
	size_t sent;
	uint64_t progress_ns;
};

/* ---- drain ---- */

static void on_drained_posted(struct ring_req *req, int res, uint32_t flags)
{
	(void)flags;
	struct server *server = container_of(req, struct server, drained);
	if (res == 0 && server->on_drained != NULL)
		server->on_drained(server->on_drained_arg);
}

static void drain_check(struct server *server)
{
	if (!server->draining || server->open > 0 || server->on_drained == NULL ||
		server->drained.fn != NULL)
		return;
	ring_timer_cancel(server->config.ring, &server->drain_timer);
	server->drained.fn = on_drained_posted;
	ring_post(server->config.ring, &server->drained, 0);
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
	free(c);
}

/* Ends the HTTP/2 side: calls learn that their client is gone. */
static void conn_end_h2(struct conn *c)
{
	struct server *server = c->server;
	struct h2_conn *h2 = c->h2;
	if (h2 == NULL)
		return;
	if (h2_conn_end(h2) == H2_END_TOO_MANY_PINGS)
		server->stats.too_many_pings++;
	if (h2_conn_end(h2) == H2_END_HALF_OPEN)
		server->stats.half_open_closed++;
	c->h2 = NULL;
	h2_conn_free(h2);
	server->open--;
	drain_check(server);
}

/* May free the connection. */
static void conn_close(struct conn *c)
{
	struct ring *ring = c->server->config.ring;
	if (c->state != CONN_CLOSED) {
		c->state = CONN_CLOSED;
		conn_end_h2(c);
		ring_timer_cancel(ring, &c->timer);
		ring_cancel(ring, &c->recv);
		ring_cancel(ring, &c->send);
		ring_cancel(ring, &c->wake);
	}
	conn_reap(c);
}

static void conn_linger(struct conn *c)
{
	c->state = CONN_LINGER;
	conn_end_h2(c);
	buf_free(&c->out);
	shutdown(c->fd, SHUT_WR);
	ring_timer_arm(c->server->config.ring, &c->timer, SERVER_LINGER_MS);
}

static void on_timer(struct ring_timer *timer)
{
	struct conn *c = container_of(timer, struct conn, timer);
	struct ring *ring = c->server->config.ring;
	uint64_t stall_ns = (uint64_t)c->server->config.limits.write_stall_ms * 1000000;
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
		ring_timer_arm(ring, &c->timer, c->server->config.limits.write_stall_ms);
}

/* Sends what there is to send, unless a send is in flight; ends a connection that is through. May
 * free the connection. */
static void conn_flush(struct conn *c)
{
	if (c->state != CONN_OPEN || c->send.armed)
		return;
	if (c->out.len == 0 && h2_conn_output(c->h2, &c->out, SERVER_SEND_BYTES) < 0)
		c->cut = true;
	if (c->out.len > 0) {
		c->sent = 0;
		c->progress_ns = ring_now_ns(c->server->config.ring);
		send_arm(c);
	} else if (c->cut || h2_conn_finished(c->h2)) {
		conn_linger(c);
	}
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
	if (c->out.cap > SERVER_KEEP_BYTES)
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
	else
		conn_flush(c);
}

/* Once a turn, however many calls were answered in it. */
static void conn_wake(void *arg)
{
	struct conn *c = arg;
	if (c->state == CONN_OPEN && !c->wake.armed && !c->send.armed)
		ring_post(c->server->config.ring, &c->wake, 0);
}

/* ---- receiving ---- */

static void recv_arm(struct conn *c)
{
	struct ring *ring = c->server->config.ring;
	if (ring_features(ring)->multishot_recv)
		io_uring_prep_recv_multishot(&c->recv.sqe, c->fd, NULL, 0, 0);
	else
		io_uring_prep_recv(&c->recv.sqe, c->fd, NULL, SERVER_RECV_BYTES, 0);
	c->recv.sqe.flags |= IOSQE_BUFFER_SELECT;
	c->recv.sqe.buf_group = (uint16_t)ring_bufs_group(c->server->bufs);
	ring_submit(ring, &c->recv);
}

static void on_recv(struct ring_req *req, int res, uint32_t flags)
{
	struct conn *c = container_of(req, struct conn, recv);
	struct server *server = c->server;

	if ((flags & IORING_CQE_F_BUFFER) != 0) {
		if (c->state == CONN_OPEN && res > 0) {
			server->stats.bytes_in += (uint64_t)res;
			if (h2_conn_feed(c->h2, ring_bufs_at(server->bufs, flags), (size_t)res) < 0)
				c->cut = true;
		}
		ring_bufs_put(server->bufs, flags);
	}
	if (c->state == CONN_CLOSED) {
		conn_reap(c);
		return;
	}
	/* Without a buffer it is tried again: all are back at the end of this turn. */
	if (res == 0 || (res < 0 && res != -ENOBUFS)) {
		conn_close(c);
		return;
	}
	bool more = (flags & IORING_CQE_F_MORE) != 0;
	if (!more)
		recv_arm(c);
	if (more && (flags & IORING_CQE_F_SOCK_NONEMPTY) != 0)
		conn_wake(c); /* the rest comes in this turn or the next: answer it together */
	else
		conn_flush(c);
}

/* ---- accepting ---- */

/* On a unix socket root and our own user may call. */
static bool peer_admitted(int fd)
{
	struct ucred peer;
	socklen_t len = sizeof(peer);
	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) < 0)
		return false;
	return peer.uid == 0 || peer.uid == geteuid();
}

static void conn_open(struct server *server, int fd)
{
	struct conn *c = calloc(1, sizeof(*c));
	struct h2_config config = {
		.ring = server->config.ring,
		.registry = server->config.registry,
		.limits = &server->config.limits,
		.on_wake = conn_wake,
		.arg = c,
	};
	if (c == NULL || h2_conn_new(&c->h2, &config) < 0) {
		server->stats.refused++;
		free(c);
		close(fd);
		return;
	}
	c->server = server;
	c->fd = fd;
	c->recv.fn = on_recv;
	c->send.fn = on_send;
	c->wake.fn = on_wake_posted;
	c->timer.fn = on_timer;
	list_push(&server->conns, &c->link);
	server->open++;
	server->stats.connections++;
	server->stats.accepted++;
	recv_arm(c);
	conn_wake(c);
}

static void listener_free(struct listener *l)
{
	fd_close(&l->socket.fd);
	list_remove(&l->link);
	free(l);
}

static void accept_arm(struct listener *l)
{
	struct ring *ring = l->server->config.ring;
	if (ring_features(ring)->multishot_accept)
		io_uring_prep_multishot_accept(
			&l->accept.sqe, l->socket.fd, NULL, NULL, SOCK_CLOEXEC);
	else
		io_uring_prep_accept(&l->accept.sqe, l->socket.fd, NULL, NULL, SOCK_CLOEXEC);
	ring_submit(ring, &l->accept);
}

static void on_pause_end(struct ring_timer *timer)
{
	accept_arm(container_of(timer, struct listener, pause));
}

static void on_accept(struct ring_req *req, int res, uint32_t flags)
{
	struct listener *l = container_of(req, struct listener, accept);
	struct server *server = l->server;

	if (res >= 0) {
		if (l->closing || server->stats.connections >= server->config.limits.connections ||
			(l->is_unix && !peer_admitted(res))) {
			server->stats.refused++;
			close(res);
		} else {
			conn_open(server, res);
		}
	}
	if ((flags & IORING_CQE_F_MORE) != 0)
		return;
	if (l->closing)
		listener_free(l);
	else if (res >= 0 || res == -ECONNABORTED)
		accept_arm(l);
	else /* no descriptors or memory: try again, but do not spin */
		ring_timer_arm(server->config.ring, &l->pause, SERVER_ACCEPT_PAUSE_MS);
}

static void listener_close(struct listener *l)
{
	if (l->closing)
		return;
	l->closing = true;
	listen_unlink(&l->socket);
	ring_timer_cancel(l->server->config.ring, &l->pause);
	if (l->accept.armed)
		ring_cancel(l->server->config.ring, &l->accept);
	else
		listener_free(l);
}

int server_listen(struct server *server, const char *endpoint, struct err *err)
{
	struct listener *l = calloc(1, sizeof(*l));
	if (l == NULL)
		return err_sys(err, -ENOMEM, "cannot listen on %s", endpoint);
	int res = listen_open(endpoint, &l->socket, err);
	if (res < 0) {
		free(l);
		return res;
	}
	l->server = server;
	l->is_unix = l->socket.is_unix;
	l->accept.fn = on_accept;
	l->pause.fn = on_pause_end;
	list_push(&server->listeners, &l->link);
	accept_arm(l);
	return 0;
}

/* ---- the server ---- */

int server_open(struct server **ret, const struct server_config *config)
{
	struct server *server = calloc(1, sizeof(*server));
	if (server == NULL)
		return -ENOMEM;
	server->config = *config;
	list_init(&server->listeners);
	list_init(&server->conns);
	int res =
		ring_bufs_open(config->ring, SERVER_RECV_BUFFERS, SERVER_RECV_BYTES, &server->bufs);
	if (res < 0) {
		free(server);
		return res;
	}
	*ret = server;
	return 0;
}

static void cut_all(struct server *server)
{
	list_for_each_safe (l, &server->conns)
		conn_close(container_of(l, struct conn, link));
}

static void on_drain_timeout(struct ring_timer *timer)
{
	struct server *server = container_of(timer, struct server, drain_timer);
	cut_all(server);
	drain_check(server);
}

void server_drain(
	struct server *server, uint64_t timeout_ms, void (*on_drained)(void *arg), void *arg)
{
	assert(!server->draining);
	server->draining = true;
	server->on_drained = on_drained;
	server->on_drained_arg = arg;
	server->drain_timer.fn = on_drain_timeout;
	ring_timer_arm(server->config.ring, &server->drain_timer, timeout_ms);
	list_for_each_safe (l, &server->listeners)
		listener_close(container_of(l, struct listener, link));
	list_for_each_safe (n, &server->conns) {
		struct conn *c = container_of(n, struct conn, link);
		if (c->state != CONN_OPEN)
			continue;
		h2_conn_drain(c->h2);
		conn_wake(c);
	}
	drain_check(server);
}

void server_close(struct server *server)
{
	if (server == NULL)
		return;
	struct ring *ring = server->config.ring;
	list_for_each_safe (l, &server->listeners)
		listener_close(container_of(l, struct listener, link));
	server->on_drained = NULL;
	ring_timer_cancel(ring, &server->drain_timer);
	cut_all(server);
	while (!list_empty(&server->listeners) || !list_empty(&server->conns) ||
		server->drained.armed) {
		if (ring_turn(ring, true) < 0)
			return; /* the kernel may still write to this memory */
	}
	ring_bufs_close(server->bufs);
	free(server);
}

const struct server_stats *server_stats(const struct server *server)
{
	return &server->stats;
}
