/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The services' context: registration, the map from errors to gRPC statuses, and the refusal of
 * calls that never became an operation. Nothing here can fail but for want of memory.
 */
#include "csi/csi.h"

#include "base/log.h"
#include "csi.pb-c.h"
#include "inspect.pb-c.h"

#include <errno.h>
#include <stdlib.h>

int csi_open(struct csi **ret, const struct csi_config *config, struct reactor *reactor,
	struct pools *pools)
{
	struct csi *csi = calloc(1, sizeof(*csi));
	int r = csi == NULL ? -ENOMEM : node_open(&csi->node, reactor, pools);
	if (r < 0) {
		free(csi);
		return r;
	}
	csi->config = *config;
	csi->reactor = reactor;
	csi->pools = pools;
	csi->start_ns = ring_now_ns(reactor->ring);
	list_init(&csi->tasks);
	*ret = csi;
	return 0;
}

void csi_close(struct csi *csi)
{
	if (csi == NULL)
		return;
	ring_timer_cancel(csi->reactor->ring, &csi->long_timer);
	node_close(csi->node);
	free(csi);
}

int csi_register(struct csi *csi, struct grpc_registry *registry)
{
	static struct grpc_service services[] = {
		{&csi__v1__identity__descriptor, csi_identity_methods, NULL},
		{&csi__v1__controller__descriptor, csi_controller_methods, NULL},
		{&csi__v1__node__descriptor, csi_node_methods, NULL},
		{&ringvol__v1__inspect__descriptor, csi_inspect_methods, NULL},
	};
	/* 0: not CSI, always served. */
	static const unsigned bits[] = {CSI_IDENTITY, CSI_CONTROLLER, CSI_NODE, 0};

	for (unsigned i = 0; i < sizeof(bits) / sizeof(bits[0]); i++) {
		if (bits[i] != 0 && !(csi->config.services & bits[i]))
			continue;
		services[i].context = csi;
		int r = grpc_registry_add(registry, &services[i], csi_check_request);
		if (r < 0)
			return r;
	}
	return 0;
}

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
	case ERR_INTERNAL:
		break;
	}
	return GRPC_INTERNAL;
}

void csi_refuse(struct csi *csi, struct grpc_call *call, const struct err *err)
{
	(void)csi;
	log_event(LOG_LEVEL_INFO, "call refused",
		log_fields({"op", grpc_call_method(call)}, {"code", err_code_name(err->code)},
			{"error", err->message}));
	grpc_end(call, csi_status(err->code), err->message);
}
