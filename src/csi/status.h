/* SPDX-License-Identifier: Apache-2.0 */
/* Errors as clients see them. */
#ifndef RINGVOL_CSI_STATUS_H
#define RINGVOL_CSI_STATUS_H

#include "base/err.h"
#include "rpc/grpc.h"

/* The one map from errors to gRPC. */
enum grpc_status csi_status(enum err_code code);
/* Ends a call with an error that was found before an operation began, and logs it. */
void csi_refuse(struct grpc_call *call, const struct err *err);

#endif
