/* SPDX-License-Identifier: Apache-2.0 */
/* A stream's life: what its connection tells it. */
#ifndef RINGVOL_RPC_H2_STREAM_H
#define RINGVOL_RPC_H2_STREAM_H

#include "rpc/h2_state.h"

/* 0 or -ENOMEM. */
int h2_stream_open(struct h2_conn *conn, int32_t id);
/* The request's header list is complete. */
void h2_stream_on_headers_end(struct h2_stream *s);
void h2_stream_on_data(struct h2_stream *s, bool last_frame, const uint8_t *data, size_t len);
/* The request's trailers are complete; last_frame: and they end it, as they have to. */
void h2_stream_on_trailers_end(struct h2_stream *s, bool last_frame);
void h2_stream_on_input_end(struct h2_stream *s);
/* The request took longer than half_open_ms. */
void h2_stream_overstayed(struct h2_stream *s);
/* The connection drains: ends an endless call, and what is no gRPC. */
void h2_stream_drain(struct h2_stream *s);
/* The stream is over; the call learns it and lives on until its method ends it. */
void h2_stream_closed(struct h2_stream *s);
/* Lets the connection's paused methods go on as far as there is room. True when one did. */
bool h2_stream_resume_paused(struct h2_conn *conn);

#endif
