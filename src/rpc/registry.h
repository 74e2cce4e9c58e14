/* SPDX-License-Identifier: Apache-2.0 */
/* The registry's inside, shared by registry.c and call.c. */
#ifndef RINGVOL_RPC_REGISTRY_H
#define RINGVOL_RPC_REGISTRY_H

#include "base/budget.h"
#include "rpc/call.h"

enum { REGISTRY_SLOTS = 256 }; /* a power of two well over GRPC_METHODS_MAX, so probes are short */
_Static_assert(REGISTRY_SLOTS >= 2 * GRPC_METHODS_MAX, "the method table needs empty slots");

struct grpc_registry {
	const struct grpc_service **services;
	unsigned service_count;
	struct grpc_entry entries[GRPC_METHODS_MAX];
	unsigned entry_count;
	const struct grpc_entry *slots[REGISTRY_SLOTS];
	grpc_observe_fn *observe;
	void *observe_arg;
	unsigned in_flight; /* calls that methods have and have not ended */
	struct budget *memory;
};

/* NULL when there is none. path need not end with NUL. */
const struct grpc_entry *grpc_registry_find(
	const struct grpc_registry *registry, const char *path, size_t len);
/* Takes the service added last out again; for an owner that adds several. */
void grpc_registry_undo_add(struct grpc_registry *registry);

#endif
