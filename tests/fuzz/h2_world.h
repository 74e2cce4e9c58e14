/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One connection for the HTTP/2 targets: the real h2_conn on a simulated ring, with the identity,
 * health and reflection services and a toy service with one method of each kind. What it sends is
 * parsed and held against what a gRPC server may send.
 */
#ifndef RINGVOL_TESTS_H2_WORLD_H
#define RINGVOL_TESTS_H2_WORLD_H

#include "base/buf.h"
#include "fuzz.h"
#include "rpc/h2.h"
#include "simring/sim.h"

#include <nghttp2/nghttp2.h>

enum { H2_WORLD_HELD = 32, H2_WORLD_STREAMS = 1024 };

/* What was sent on one stream. */
struct h2_sent {
	bool headers, ended, reset, grpc;
	uint8_t prefix[5]; /* of the message under way */
	unsigned prefix_len;
	uint32_t message_left;
};

struct h2_world {
	struct ring_sim sim;
	struct ring *ring;
	struct h2_turns turns;
	struct session *session;
	bool inside;   /* in feed() or output(): on_wake is not allowed */
	int fed;       /* the last result of feed() */
	struct buf in; /* sent by the server, not yet parsed */
	bool settings_seen;
	nghttp2_hd_inflater *inflater;
	struct h2_sent sent[H2_WORLD_STREAMS]; /* by stream id / 2; later ones are not looked at */
};

struct h2_world *h2_world_open(bool small_limits);
/* False when the connection is over. */
bool h2_world_feed(struct h2_world *w, const uint8_t *data, size_t len);
void h2_world_output(struct h2_world *w, size_t limit);
void h2_world_advance(struct h2_world *w, uint64_t ms);
/* Ends the i-th call that is held, if there is one. */
void h2_world_end_held(struct h2_world *w, unsigned i);
void h2_world_set_health(bool serving);
void h2_world_close(struct h2_world *w);

#endif
