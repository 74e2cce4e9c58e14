/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls from within the process, without a socket: something of the driver's own asks for what a
 * client would ask for, and gets the same checks, locks and metrics. Tests call so as well.
 */
#ifndef RINGVOL_RPC_GRPC_LOCAL_H
#define RINGVOL_RPC_GRPC_LOCAL_H

#include "rpc/grpc.h"

struct grpc_local {
	/* Each message sent, packed; then the end. */
	void (*on_message)(struct grpc_local *local, const uint8_t *data, size_t len);
	void (*on_end)(struct grpc_local *local, enum grpc_status status, const char *message);
	const struct grpc_peer *peer; /* who calls; NULL: a client of this host */
	bool full;                    /* the client has to read before more is sent */
	struct grpc_call *call;       /* under way; NULL: it has ended */
};

/* Dispatches a packed request as if it came from a stream. path: "/csi.v1.Identity/Probe". */
void grpc_dispatch_local(struct grpc_registry *registry, const char *path, const uint8_t *request,
	size_t len, struct grpc_local *local);
/* The client reads what it was sent: one more message may come, or as many as there are. */
void grpc_local_read(struct grpc_local *local, bool all);
/* The caller goes away. on_end is not called. */
void grpc_local_leave(struct grpc_local *local);

#endif
