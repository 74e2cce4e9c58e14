/* SPDX-License-Identifier: Apache-2.0 */
/* ringvol.v1.Transfer: what is granted is told and sent to the node it was granted to. */
#ifndef RINGVOL_TRANSFER_SEND_H
#define RINGVOL_TRANSFER_SEND_H

#include "transfer/transfer.h"

/* peers: bits of enum grpc_peer_role, who may call it; nodes, but in tests. The registry and the
 * transfer live as long as each other; no pull is under way when the registry goes. As
 * grpc_registry_add(). */
int transfer_register(struct transfer *transfer, struct grpc_registry *registry, unsigned peers);

/* ---- for transfer.c ---- */

/* Ends what is being sent. */
void sends_stop(struct transfer *transfer);

#endif
