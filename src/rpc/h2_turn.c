/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The queue of calls that wait for their turn: deficit round robin over connections. A connection
 * has a credit in bytes; its calls cost H2_TURN_CALL_BYTES and what they pack. With credit the
 * first connection runs a call; without, it gets H2_TURN_SHARE more and goes to the end. A turn of
 * the loop ends this when it has done H2_TURN_BYTES of work.
 *
 * A waiting call is a stream in BODY whose request is decoded, on its connection's `ready`. It
 * leaves by running, or with its stream: refused (deadline), reset, lost. A connection whose
 * requests take too much while they wait is refused more of them.
 */
#include "rpc/h2_turn.h"

#include "reactor/ring_chore.h"
#include "rpc/h2_state.h"

enum { TURN_WAITING_MAX_BYTES = 32 << 20 }; /* decoded requests of a connection that wait */

static void on_go(struct ring_req *req, int res, uint32_t flags);

void h2_turns_init(struct h2_turns *turns, struct ring *ring)
{
	*turns = (struct h2_turns){.ring = ring, .go.fn = on_go, .left_bytes = H2_TURN_BYTES};
	list_init(&turns->conns);
}

static void turn_renew(struct h2_turns *turns)
{
	uint64_t turn = ring_stats(turns->ring)->turns;
	if (turns->turn == turn)
		return;
	turns->turn = turn;
	turns->left_bytes = H2_TURN_BYTES;
}

/* Turns that have passed give a connection its share again, so that no debt outlives what caused
 * it. */
static void credit_renew(struct h2_conn *conn)
{
	uint64_t passed = conn->config.turns->turn - conn->credit_turn;
	conn->credit_turn = conn->config.turns->turn;
	if (passed > (uint64_t)(H2_TURN_SHARE - conn->credit_bytes) / H2_TURN_SHARE)
		conn->credit_bytes = H2_TURN_SHARE;
	else
		conn->credit_bytes += (int64_t)passed * H2_TURN_SHARE;
}

/* Whether its client reads what it is sent, and will be sent more. */
static bool conn_reads(const struct h2_conn *conn)
{
	return conn->state < H2_CONN_CLOSING &&
	       conn->queued_bytes < conn->config.limits->send_buffer_bytes;
}

static void turns_go(struct h2_turns *turns)
{
	if (!turns->go.armed)
		ring_post(turns->ring, &turns->go, 0);
}

static void conn_join(struct h2_conn *conn)
{
	struct h2_turns *turns = conn->config.turns;
	if (!conn_reads(conn) || list_empty(&conn->ready))
		return;
	if (list_empty(&conn->turn))
		list_push(&turns->conns, &conn->turn);
	turns_go(turns);
}

void h2_turn_charge(struct h2_conn *conn, size_t bytes)
{
	struct h2_turns *turns = conn->config.turns;
	turn_renew(turns);
	credit_renew(conn);
	turns->left_bytes -= bytes < turns->left_bytes ? bytes : turns->left_bytes;
	conn->credit_bytes -= (int64_t)bytes;
}

static void run(struct h2_stream *s)
{
	h2_turn_charge(s->conn, H2_TURN_CALL_BYTES);
	h2_stream_to(s, H2_STREAM_RUNNING);
	s->urgent = !h2_stream_has(s, GRPC_STREAM_IN | GRPC_ENDLESS);
	if (s->urgent)
		ring_urgent_begin(s->conn->config.ring);
	grpc_call_run(&s->call);
}

/* False: too much of this connection's waits already. */
static bool wait_for_turn(struct h2_stream *s)
{
	struct h2_conn *conn = s->conn;
	size_t bytes = s->call.arena != NULL ? arena_size(s->call.arena) : 0;
	if (!list_empty(&conn->ready) && conn->waiting_bytes + bytes > TURN_WAITING_MAX_BYTES)
		return false;
	conn->config.turns->waited++;
	conn->waiting_bytes += bytes;
	s->waiting_bytes = bytes;
	if (list_empty(&conn->ready))
		credit_renew(conn); /* from here on its debt is paid back by rounds */
	list_push(&conn->ready, &s->ready);
	conn_join(conn);
	return true;
}

bool h2_turn_run(struct h2_stream *s)
{
	struct h2_conn *conn = s->conn;
	struct h2_turns *turns = conn->config.turns;
	turn_renew(turns);
	if (!list_empty(&turns->conns) || !list_empty(&conn->ready) || turns->left_bytes == 0 ||
		!conn_reads(conn))
		return wait_for_turn(s);
	run(s);
	return true;
}

void h2_turn_room(struct h2_conn *conn)
{
	conn_join(conn);
}

static void on_go(struct ring_req *req, int res, uint32_t flags)
{
	(void)flags;
	struct h2_turns *turns = container_of(req, struct h2_turns, go);
	if (res < 0)
		return;
	turn_renew(turns);
	while (turns->left_bytes > 0 && !list_empty(&turns->conns)) {
		struct h2_conn *conn = container_of(turns->conns.next, struct h2_conn, turn);
		list_remove(&conn->turn);
		if (list_empty(&conn->ready) || !conn_reads(conn))
			continue; /* h2_turn_room() brings it back */
		if (conn->credit_bytes <= 0) {
			conn->credit_bytes += H2_TURN_SHARE;
			list_push(&turns->conns, &conn->turn);
			continue;
		}
		list_push_front(&turns->conns, &conn->turn);
		struct h2_stream *s = container_of(conn->ready.next, struct h2_stream, ready);
		h2_stream_drop_turn(s);
		run(s);
	}
	if (!list_empty(&turns->conns))
		turns_go(turns);
}
