/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The controller of a cluster: services that it registers, and how they find what they need.
 *
 *   store.h     what nodes have told
 *   join.h      the nodes' side of it: Cluster.Join
 *   route.h     a row for each RPC of CSI: who answers it, and how that is found
 *   place.h     which node is to make a volume
 *   lists.h     ListVolumes, ListSnapshots, ControllerListVolumeHealth, from the store
 *   capacity.h  GetCapacity, from the store
 */
#ifndef RINGVOL_CONTROLLER_CONTROLLER_H
#define RINGVOL_CONTROLLER_CONTROLLER_H

#include "controller/store.h"
#include "reactor/ring.h"
#include "rpc/channel.h"
#include "rpc/grpc.h"

struct joins; /* join.h */

struct controller_config {
	const char *driver_name;
	const char *version;
	struct tls *tls;         /* for calls to nodes */
	struct work *work;       /* resolves names */
	unsigned health;         /* whose health capabilities are advertised: csi/csi.h's bits */
	bool controller_expand;
};

struct controller {
	struct controller_config config;
	struct ring *ring;
	struct store *store;
	struct joins *joins;
	char instance[33];
	bool draining;
};

int controller_open(
	struct controller **ret, struct ring *ring, const struct controller_config *config);
void controller_close(struct controller *controller);
/* Identity, Controller, Inspect for clients on the endpoint; Cluster for nodes on --listen. */
int controller_register(struct controller *controller, struct grpc_registry *clients,
	struct grpc_registry *nodes);

#endif
