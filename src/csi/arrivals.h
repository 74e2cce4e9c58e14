/* SPDX-License-Identifier: Apache-2.0 */
/* Volumes that move here and may have left where they were (pool/arrival.h), and those that are
 * here and whose covers are still to go on over them (cover.h): they are gone on with, without
 * anybody who asks. */
#ifndef RINGVOL_CSI_ARRIVALS_H
#define RINGVOL_CSI_ARRIVALS_H

#include "csi/csi.h"
#include "rpc/grpc_local.h"

enum { CSI_ARRIVALS_MS = 2000 }; /* from one attempt to the next */

/* Zeroed by the owner. */
struct csi_arrivals {
	struct csi *csi;
	struct grpc_registry *registry; /* it has ringvol.v1.Member */
	struct ring_timer timer;
	struct grpc_local local;
	bool calling;
	unsigned next; /* counts attempts: which one is tried */
};

void csi_arrivals_open(
	struct csi_arrivals *arrivals, struct csi *csi, struct grpc_registry *registry);
/* No more attempts. One that is under way ends as any task does. One that is zero is legal. */
void csi_arrivals_close(struct csi_arrivals *arrivals);

#endif
