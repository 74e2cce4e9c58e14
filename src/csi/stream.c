/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Happy path: a message is sent; when the client's windows are full the op waits; the client reads,
 * and the op goes on. It fails when the client reads nothing for CSI_READER_MS or the driver shuts
 * down. A client that goes away wakes the op as well, which then finds nobody to work for.
 */
#include "csi/stream.h"

#include <errno.h>

static void wake(struct csi_stream *stream, int res)
{
	if (!stream->waiting)
		return;
	stream->waiting = false;
	ring_timer_cancel(stream->op->reactor->ring, &stream->patience);
	op_complete(stream->op, res);
}

static void on_writable(struct grpc_call *call, void *arg)
{
	(void)call;
	wake(arg, 0);
}

static void on_patience(struct ring_timer *timer)
{
	wake(container_of(timer, struct csi_stream, patience), -ETIMEDOUT);
}

void csi_stream_open(struct csi_stream *stream, struct op *op, struct grpc_call *call)
{
	*stream = (struct csi_stream){.op = op, .call = call, .patience.fn = on_patience};
	grpc_on_writable(call, on_writable, stream);
}

void csi_stream_lose(struct csi_stream *stream)
{
	stream->call = NULL;
	wake(stream, 0);
}

void csi_stream_stop(void *arg)
{
	struct csi_stream *stream = arg;
	stream->stopped = true;
	wake(stream, 0);
}

int csi_stream_check(const struct csi_stream *stream, int res)
{
	struct op *op = stream->op;
	if (stream->stopped)
		return op_fail(op, ERR_UNAVAILABLE,
			"the driver is shutting down; go on with starting_offset behind what was received");
	if (res == -ETIMEDOUT)
		return op_fail(op, ERR_TIMEOUT,
			"the client has read nothing for %d s; go on with starting_offset behind what was received",
			CSI_READER_MS / 1000);
	return res;
}

int csi_stream_send(struct csi_stream *stream, const ProtobufCMessage *message)
{
	if (grpc_send(stream->call, message))
		return 0;
	stream->waiting = true;
	ring_timer_arm(stream->op->reactor->ring, &stream->patience, CSI_READER_MS);
	return op_wait(stream->op);
}
