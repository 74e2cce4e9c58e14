/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The client of a task that streams (a row with .streams): one, which reads as fast as it likes. A
 * step sends, and where the client has to read first it waits for that, or until the client goes.
 */
#ifndef RINGVOL_CSI_STREAM_H
#define RINGVOL_CSI_STREAM_H

#include "reactor/op.h"
#include "rpc/grpc.h"

/* A client that reads nothing for so long is given up: its task keeps locks. */
enum { CSI_READER_MS = 300000 };

struct csi_stream {
	struct op *op;
	struct grpc_call *call; /* NULL: the client has gone */
	struct ring_timer patience;
	bool waiting; /* the op waits for the client */
	bool stopped; /* shutting down */
};

void csi_stream_open(struct csi_stream *stream, struct op *op, struct grpc_call *call);
/* The client has gone, and the call is about to be ended. */
void csi_stream_lose(struct csi_stream *stream);
/* Shutting down. A csi_task_copy.stop; stream: a struct csi_stream. */
void csi_stream_stop(void *stream);

/* ---- for steps ---- */

/* Nobody listens any more: what is left need not be made. */
static inline bool csi_stream_is_over(const struct csi_stream *stream)
{
	return stream->call == NULL;
}
/* What follows from here, to be called in a step's end() with what that got: 0, or the op's error
 * (the client does not read, or the driver ends). */
int csi_stream_check(const struct csi_stream *stream, int res);
/* Sends a message; it is packed before this returns. 0: more may follow. OP_PENDING: a wait is
 * armed, and the step's end() is called again when there is room. */
int csi_stream_send(struct csi_stream *stream, const ProtobufCMessage *message);

#endif
