/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A server's connections: how they are opened and counted, which of them goes when there are too
 * many, and how all of them end. Opening fails for want of memory only; the socket is closed then.
 */
#include "rpc/server_conns.h"

#include "rpc/registry.h"

#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

struct server_conn {
	struct conn conn;
	struct server *server;
	struct speaks *speaks;
	struct remote *remote; /* NULL once closed */
	struct list link;
	bool asked; /* it was asked to leave for another connection */
};

static struct server_conn *of_conn(struct conn *conn)
{
	return container_of(conn, struct server_conn, conn);
}

/* ---- what conn.c tells ---- */

static void on_flush(struct conn *conn)
{
	struct server *server = of_conn(conn)->server;
	server->on_conn_flush(server);
}

static void on_end(struct conn *conn, const struct session *session)
{
	struct server *server = of_conn(conn)->server;
	if (session->end == SESSION_END_TOO_MANY_PINGS)
		server->stats.too_many_pings++;
	if (session->end == SESSION_END_HALF_OPEN)
		server->stats.half_open_closed++;
	if (session->end == SESSION_END_FLOODED)
		server->stats.flooded++;
	server->open--;
	server->on_conn_end(server);
}

static void on_close(struct conn *conn)
{
	struct server_conn *c = of_conn(conn);
	c->speaks->connections--;
	remote_drop(c->remote);
	c->remote = NULL;
}

static void on_free(struct conn *conn)
{
	struct server_conn *c = of_conn(conn);
	list_remove(&c->link);
	c->server->stats.connections--;
	free(c);
}

void conns_init(struct server *server)
{
	list_init(&server->conns);
	server->host = (struct conn_host){
		.ring = server->config.ring,
		.bufs = server->bufs,
		.memory = server->config.registry->memory,
		.bytes_in = &server->stats.bytes_in,
		.bytes_out = &server->stats.bytes_out,
		.on_flush = on_flush,
		.on_end = on_end,
		.on_close = on_close,
		.on_free = on_free,
	};
}

/* ---- opening ---- */

void conns_open(struct server *server, struct speaks *speaks, int fd, const struct remote_key *key)
{
	struct server_conn *c = calloc(1, sizeof(*c));
	struct session *session;
	if (c != NULL)
		c->remote = remote_add(&speaks->remotes, key);
	if (c != NULL)
		conn_init(&c->conn, &server->host, fd);
	if (c == NULL || c->remote == NULL ||
		speaks->open(server, fd, conn_wake, &c->conn, &session) < 0) {
		server->stats.refused++;
		if (c != NULL && c->remote != NULL)
			remote_drop(c->remote);
		free(c);
		close(fd);
		return;
	}
	c->server = server;
	c->speaks = speaks;
	list_push(&server->conns, &c->link);
	speaks->connections++;
	server->open++;
	server->stats.connections++;
	server->stats.accepted++;
	conn_begin(&c->conn, session, speaks->limits->write_stall_ms);
}

/* ---- making room ---- */

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
	struct server_conn *conn;
	enum spare_class class;
	uint64_t since_ns;
};

/* A client sends its first request at once: a tenth of what it is allowed. */
static uint64_t fresh_ns(const struct server_conn *c)
{
	return (uint64_t)c->speaks->limits->half_open_ms * (1000000 / 10);
}

static struct spare conn_spare(struct server_conn *c, uint64_t now_ns)
{
	struct spare spare = {.conn = c, .class = SPARE_NONE};
	int unread = 0;
	if (c->conn.state == CONN_LINGER)
		spare.class = SPARE_OVER;
	if (c->conn.state != CONN_OPEN || c->asked)
		return spare;
	enum session_wait waits = c->conn.session->ops->waits(c->conn.session, &spare.since_ns);
	/* What is being sent is an answer, or our greeting to who has not asked yet: many may come
	 * in one turn. */
	if (waits == SESSION_BUSY || (c->conn.send.armed && waits != SESSION_HALF_OPEN))
		return spare;
	if (ioctl(c->conn.fd, FIONREAD, &unread) == 0 && unread > 0)
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
static void ask_to_leave(struct server_conn *c)
{
	c->asked = true;
	c->conn.session->ops->drain(c->conn.session);
	conn_wake(&c->conn);
}

bool conns_make_room(
	struct server *server, const struct speaks *speaks, const struct remote *remote)
{
	struct spare best = {.class = SPARE_NONE};
	uint64_t now_ns = ring_now_ns(server->config.ring);
	list_for_each (n, &server->conns) {
		struct server_conn *c = container_of(n, struct server_conn, link);
		if (c->speaks != speaks || c->conn.state == CONN_CLOSED ||
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
		conn_close(&best.conn->conn);
	return true;
}

void conns_drain(struct server *server)
{
	list_for_each_safe (n, &server->conns) {
		struct server_conn *c = container_of(n, struct server_conn, link);
		if (c->conn.state != CONN_OPEN)
			continue;
		c->conn.session->ops->drain(c->conn.session);
		conn_wake(&c->conn);
	}
}

void conns_cut(struct server *server)
{
	list_for_each_safe (l, &server->conns)
		conn_close(&container_of(l, struct server_conn, link)->conn);
}
