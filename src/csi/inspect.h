/* SPDX-License-Identifier: Apache-2.0 */
/* Inspect.List: everything the driver knows, as a stream. */
#ifndef RINGVOL_CSI_INSPECT_H
#define RINGVOL_CSI_INSPECT_H

#include "rpc/grpc.h"

grpc_method_fn csi_inspect_list;

#endif
