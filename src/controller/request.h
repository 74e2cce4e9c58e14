/* SPDX-License-Identifier: Apache-2.0 */
/* Requests that a controller reads, or answers itself, though its calls come as bytes. */
#ifndef RINGVOL_CONTROLLER_REQUEST_H
#define RINGVOL_CONTROLLER_REQUEST_H

#include "base/err.h"
#include "rpc/grpc.h"

/* The call's message, decoded into its arena and checked as every request is (csi/request.h).
 * NULL: err says why. */
ProtobufCMessage *request_unpack(
	const struct grpc_call *call, const ProtobufCMessageDescriptor *type, struct err *err);

#endif
