/* SPDX-License-Identifier: Apache-2.0 */
/* The map from errors to gRPC statuses, and the refusal of calls that never became an operation. */
#include "csi/status.h"

#include "base/log.h"

enum grpc_status csi_status(enum err_code code)
{
	switch (code) {
	case ERR_OK:
		return GRPC_OK;
	case ERR_INVALID:
		return GRPC_INVALID_ARGUMENT;
	case ERR_NOT_FOUND:
		return GRPC_NOT_FOUND;
	case ERR_EXISTS:
		return GRPC_ALREADY_EXISTS;
	case ERR_PENDING:
		return GRPC_ABORTED;
	case ERR_NO_ROOM:
		return GRPC_RESOURCE_EXHAUSTED;
	case ERR_RANGE:
		return GRPC_OUT_OF_RANGE;
	case ERR_PRECONDITION:
		return GRPC_FAILED_PRECONDITION;
	case ERR_TIMEOUT:
		return GRPC_DEADLINE_EXCEEDED;
	case ERR_UNAVAILABLE:
		return GRPC_UNAVAILABLE;
	case ERR_UNIMPLEMENTED:
		return GRPC_UNIMPLEMENTED;
	case ERR_DATA_LOSS:
		return GRPC_DATA_LOSS;
	case ERR_KEY:
		return GRPC_UNAUTHENTICATED;
	case ERR_INTERNAL:
		break;
	}
	return GRPC_INTERNAL;
}

void csi_refuse(struct grpc_call *call, const struct err *err)
{
	log_event(LOG_LEVEL_INFO, "call refused",
		log_fields({"op", grpc_call_method(call)}, {"code", err_code_name(err->code)},
			{"error", err->message}));
	grpc_end(call, csi_status(err->code), err->message);
}
