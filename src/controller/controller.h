/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The controller of a cluster: services that it registers, and how they find what they need.
 *
 *   store.h     what nodes have told
 *   join.h      the nodes' side of it: Cluster.Join
 *   route.h     a row for each RPC of CSI: who answers it, and how that is found
 *   create.h    creates: names, placement, copies between nodes
 *   delete.h    DeleteVolume, also of what has moved
 *   move.h      volumes that change their node
 *   place.h     which node is to make a volume
 *   home.h      which node has a pool or a name, and what is said while it is away
 *   forward.h   a call passed on to a node
 *   learn.h     what the answers tell
 *   lists.h     ListVolumes, ListSnapshots, ControllerListVolumeHealth, from the store
 *   capacity.h  GetCapacity, from the store
 *   ready.h     whether all of it is known
 *   inspect.h   what every node knows, as one stream
 */
#ifndef RINGVOL_CONTROLLER_CONTROLLER_H
#define RINGVOL_CONTROLLER_CONTROLLER_H

#include "base/hist.h"
#include "controller/store.h"
#include "csi/csi.h"
#include "reactor/ring.h"
#include "rpc/channel.h"
#include "rpc/grpc.h"

struct joins;    /* join.h */
struct capacity; /* capacity.h */

struct controller_config {
	const char *driver_name;
	const char *version;
	struct tls *tls;   /* for calls to nodes */
	struct work *work; /* resolves names */
	unsigned health;   /* whose health capabilities are advertised: csi/csi.h's bits */
	bool controller_expand, attach;
	/* unix:///PATH of the one process that all Controller RPCs go to, which is not asked to
	 * join; NULL: a cluster. */
	const char *node;
};

enum {
	CONTROLLER_SERVICES = 6, /* for clients; the last not with config.node */
	CONTROLLER_ROUTES_MAX = 32,
};

/* Calls of one RPC that were passed on to a node. */
struct controller_routed {
	const char *method;
	uint64_t failed;  /* that ended otherwise than OK */
	struct hist time; /* ns, from the request to the end of the answer */
	uint64_t sum_ns;
};

struct controller {
	struct controller_config config;
	/* What the services of csi/ are asked for that need no pool: names and capabilities. Its
	 * config is ours, and nothing else of it is set. */
	struct csi self;
	struct ring *ring;
	struct store *store;
	struct joins *joins;
	struct capacity *capacity;
	struct grpc_registry *clients; /* what calls to nodes take counts in its memory */
	struct lane *names;            /* where nodes' addresses are resolved */
	struct channel *only;          /* config.node's */
	struct list forwards;          /* under way: struct forward */
	struct grpc_service services[CONTROLLER_SERVICES];
	struct controller_routed routed[CONTROLLER_ROUTES_MAX];
	unsigned routed_count;
	char instance[33];
	bool draining;
};

/* The strings of config must outlive it. 0, -ENOMEM, -EINVAL with err. */
int controller_open(struct controller **ret, struct ring *ring,
	const struct controller_config *config, struct err *err);
void controller_close(struct controller *controller); /* NULL is legal */
/* Identity, Controller, SnapshotMetadata, Inspect for clients on the endpoint; Cluster for nodes on
 * --listen (NULL with config.node). */
int controller_register(
	struct controller *controller, struct grpc_registry *clients, struct grpc_registry *nodes);
/* Clients are about to be gone: nothing new is begun. */
void controller_drain(struct controller *controller);

#endif
