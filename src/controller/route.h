/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who answers an RPC: a row for each. Answered here are names and capabilities; from the store,
 * lists and capacities; creates go where their name is at home or is placed (create.h); deletes of
 * volumes, and moves, have files of their own; the rest goes to the node that has the object of the
 * id that the request carries.
 *
 * With config.node all of the Controller and SnapshotMetadata services goes to that one process.
 */
#ifndef RINGVOL_CONTROLLER_ROUTE_H
#define RINGVOL_CONTROLLER_ROUTE_H

#include "controller/controller.h"

struct forward;
struct route;

typedef void route_fn(
	struct controller *controller, struct grpc_call *call, const struct route *route);
typedef void route_learn_fn(struct forward *f);

struct route {
	const char *path; /* "/csi.v1.Controller/DeleteVolume" */
	route_fn *run;
	/* By id: the number of the field, and of what kind it is. */
	uint32_t id;
	enum store_kind kind;
	/* Of a second object, which has to be on the same node; 0: there is none. */
	uint32_t other_id;
	/* Of the id of a node that has to be known; 0: there is none. */
	uint32_t node_id;
	/* The answer is any number of messages, each passed on as it comes. */
	bool streams;
	/* What was asked for is already so where a pool is gone for good. */
	bool deletes;
	/* What a good answer tells; NULL: nothing. */
	route_learn_fn *learn;
};

/* The first rows of route_controller: left out without --attach. */
enum { ROUTE_ATTACHED = 2 };

/* Rows of csi.v1.Identity, Controller, GroupController and SnapshotMetadata, as grpc_service has
 * them. */
extern const struct grpc_method route_identity[], route_controller[], route_group[],
	route_snapshot_metadata[];
/* Of ringvol.v1.Move; not with config.node. */
extern const struct grpc_method route_move[];

#endif
