/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The states of connections and streams, and what is counted of a stream: bytes in its connection
 * and in the budget that all connections have (struct budget).
 *
 *   HEADERS -> BODY -> RUNNING -> ANSWERED, and from each to ANSWERED when it is refused.
 *   HEADERS -> REFUSED -> ANSWERED for what is no gRPC: an HTTP error, when the request has ended.
 */
#include "rpc/h2_state.h"

#include "reactor/ring_chore.h"
#include "rpc/registry.h"

#include <assert.h>
#include <errno.h>

/* ---- the connection ---- */

void h2_conn_to(struct h2_conn *conn, enum h2_conn_state state)
{
	assert(state > conn->state);
	conn->state = state;
}

void h2_conn_wake(struct h2_conn *conn)
{
	if (!conn->busy && conn->config.on_wake != NULL)
		conn->config.on_wake(conn->config.arg);
}

void h2_conn_check(struct h2_conn *conn, int nghttp2_result)
{
	if (nghttp2_result == 0 || conn->state == H2_CONN_BROKEN)
		return;
	h2_conn_to(conn, H2_CONN_BROKEN);
	conn->error = nghttp2_result == NGHTTP2_ERR_NOMEM ? -ENOMEM : -EPROTO;
}

/* ---- a stream ---- */

static const bool transitions[5][5] = {
	[H2_STREAM_HEADERS] =
		{[H2_STREAM_REFUSED] = true, [H2_STREAM_BODY] = true, [H2_STREAM_ANSWERED] = true},
	[H2_STREAM_REFUSED] = {[H2_STREAM_ANSWERED] = true},
	[H2_STREAM_BODY] = {[H2_STREAM_RUNNING] = true, [H2_STREAM_ANSWERED] = true},
	[H2_STREAM_RUNNING] = {[H2_STREAM_ANSWERED] = true},
};

void h2_stream_to(struct h2_stream *s, enum h2_stream_state state)
{
	assert(transitions[s->state][state]);
	s->state = state;
}

bool h2_stream_has(const struct h2_stream *s, unsigned flag)
{
	return s->call.entry != NULL && (s->call.entry->flags & flag) != 0;
}

void h2_stream_not_urgent(struct h2_stream *s)
{
	if (s->urgent)
		ring_urgent_end(s->conn->config.ring);
	s->urgent = false;
}

void h2_stream_to_answered(struct h2_stream *s)
{
	h2_stream_to(s, H2_STREAM_ANSWERED);
	ring_timer_cancel(s->conn->config.ring, &s->deadline);
	list_remove(&s->paused);
	h2_stream_not_urgent(s);
	h2_stream_drop_input(s);
}

/* Without the memory for a WINDOW_UPDATE the client would wait for one for ever. */
void h2_stream_consume(struct h2_stream *s, size_t len)
{
	if (len > 0)
		h2_conn_check(
			s->conn, nghttp2_session_consume_stream(s->conn->session, s->id, len));
}

void h2_stream_drop_turn(struct h2_stream *s)
{
	list_remove(&s->ready);
	s->conn->waiting_bytes -= s->waiting_bytes;
	s->waiting_bytes = 0;
}

void h2_stream_free_input(struct h2_stream *s)
{
	s->conn->partial_bytes -= s->in.len;
	budget_give(s->conn->config.registry->memory, s->in.cap);
	buf_free_secret(&s->in);
}

void h2_stream_drop_input(struct h2_stream *s)
{
	list_remove(&s->half_open);
	h2_stream_drop_turn(s);
	h2_stream_free_input(s);
	s->in_at = 0;
	s->call.request = NULL;
	s->call.taken = false;
	h2_stream_consume(s, s->unconsumed);
	s->unconsumed = 0;
}

void h2_stream_drop_output(struct h2_stream *s)
{
	s->conn->queued_bytes -= s->out.len - s->out_at;
	budget_give(s->conn->config.registry->memory, s->out.cap);
	buf_free(&s->out);
	s->out_at = 0;
}
