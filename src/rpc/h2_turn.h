/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which call runs next, over all connections of a ring. Calls run at once while a turn of the loop
 * has done little; later ones wait for the next turns. Then connections take turns by what their
 * calls cost: a client that asks for much waits for its own calls, and others do not. While a
 * client has not read much of its answers, no call of its connection runs.
 */
#ifndef RINGVOL_RPC_H2_TURN_H
#define RINGVOL_RPC_H2_TURN_H

#include "reactor/ring.h"

struct h2_conn;
struct h2_stream;

enum {
	H2_TURN_BYTES = 256 << 10,   /* answers packed in a turn before calls wait for the next */
	H2_TURN_SHARE = 64 << 10,    /* of a connection before it is another's turn */
	H2_TURN_CALL_BYTES = 1 << 10 /* what a call counts for beside its answer */
};

/* One for each ring with connections. It is idle when go.armed is false. */
struct h2_turns {
	struct ring *ring;
	struct ring_req go;
	struct list conns; /* with calls that wait, in the order of their turns */
	uint64_t turn;     /* of the ring that left_bytes is for */
	size_t left_bytes;
	uint64_t waited; /* calls that did not run at once, since start */
};

void h2_turns_init(struct h2_turns *turns, struct ring *ring);

/* Runs the stream's call, now or in its turn. False: so much of its connection waits already that
 * the call has to be refused. */
bool h2_turn_run(struct h2_stream *s);
/* The connection's client has caused so much work. */
void h2_turn_charge(struct h2_conn *conn, size_t bytes);
/* Output has left the connection: its calls may go on. */
void h2_turn_room(struct h2_conn *conn);

#endif
