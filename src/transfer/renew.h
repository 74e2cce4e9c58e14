/* SPDX-License-Identifier: Apache-2.0 */
/* RenewCopy: a grant of what a volume that is to leave has by now, beside the earlier one. */
#ifndef RINGVOL_TRANSFER_RENEW_H
#define RINGVOL_TRANSFER_RENEW_H

#include "rpc/grpc.h"

/* Of ringvol.v1.Transfer. */
grpc_method_fn renew_copy;

#endif
