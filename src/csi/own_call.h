/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A call of CSI by something in this same process, as the wait of an operation's step: for those
 * who serve other protocols in calls of CSI (docker, provider).
 */
#ifndef RINGVOL_CSI_OWN_CALL_H
#define RINGVOL_CSI_OWN_CALL_H

#include "base/arena.h"
#include "reactor/op.h"
#include "rpc/grpc_local.h"

#include <protobuf-c/protobuf-c.h>

enum {
	CSI_OWN_MESSAGE_MAX = 512,   /* bytes of an error that are told */
	CSI_OWN_RETRY_MS = 200,      /* between calls that may succeed a little later */
	CSI_OWN_PATIENCE_MS = 30000, /* for all of them of one step */
};

/* Embed it; the owner sets the first five, and has one call at a time. */
struct csi_own_call {
	struct op *op;
	struct arena *arena;
	struct grpc_registry *registry;
	uint64_t patience_ms;
	const bool *draining; /* nothing is tried again */
	/* private */
	const char *path;
	uint8_t *data;
	size_t len;
	struct grpc_local local;
	enum grpc_status status;
	char message[CSI_OWN_MESSAGE_MAX];
	uint64_t patience_end_ns;
	bool pauses;
};

/* In a step's run(), and its end(). The call is made again where another operation was in its way,
 * or what it needs is not there yet. */
int csi_own_call_run(struct csi_own_call *call, const char *path, const ProtobufCMessage *request);
int csi_own_call_end(struct csi_own_call *call, int res);

#endif
