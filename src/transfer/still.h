/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A volume that leaves for good: it is held still for the node that takes it, while that reads what
 * has changed since the grant's image was made, and then it leaves (pool/departure.h).
 *
 * Still means: nobody uses it, its image is locked, and so is the volume, for every call of CSI. Or
 * the node that takes it uses it alone, over an export, and has suspended it: then the image is not
 * locked, as its device is attached. Export and device end when the volume has left (parting.h).
 *
 * Memory alone. It ends when the volume has left, when the other node closes the copy, says nothing
 * for TRANSFER_STILL_MS, or with this process: then the volume is what it was before.
 */
#ifndef RINGVOL_TRANSFER_STILL_H
#define RINGVOL_TRANSFER_STILL_H

#include "pool/hold.h"
#include "rpc/grpc.h"
#include "transfer/transfer.h"

struct still;

/* Whether that node alone uses the volume, over an export. */
bool still_is_lent(const struct pool_object *volume, const char *node_id);
/* That of the volume that the hold is an image of; NULL: it is not held still. */
struct still *still_of(const struct transfer *transfer, const struct pool_hold *hold);
/* Lets the volume go, unless it is leaving just now. NULL is legal. */
void still_close(struct still *still);
/* Lets go of those whose time is over. */
void stills_sweep(struct transfer *transfer);
/* At the end: nothing is under way. */
void stills_free(struct transfer *transfer);

/* Of ringvol.v1.Transfer. */
grpc_method_fn still_volume, leave_volume;

#endif
