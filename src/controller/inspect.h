/* SPDX-License-Identifier: Apache-2.0 */
/* ringvol.v1.Inspect of a cluster: what every node knows, as one stream, and how the nodes are. */
#ifndef RINGVOL_CONTROLLER_INSPECT_H
#define RINGVOL_CONTROLLER_INSPECT_H

#include "rpc/grpc.h"

enum { INSPECT_SILENCE_MS = 3000 }; /* a node that says nothing for so long is left behind */

/* As grpc_service has them; the context is the controller's `self`. */
extern const struct grpc_method inspect_methods[];

#endif
