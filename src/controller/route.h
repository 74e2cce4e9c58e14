/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who answers an RPC: a row for each. Answered here are names and capabilities; from the store,
 * lists and capacities; creates go where their name is at home or is placed (create.h); the rest
 * goes to the node that has the pool of the id that the request carries.
 *
 * With config.node all of the Controller service goes to that one process.
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
	/* What was asked for is already so where a pool is gone for good. */
	bool deletes;
	/* What a good answer tells; NULL: nothing. */
	route_learn_fn *learn;
};

/* Rows of csi.v1.Identity and csi.v1.Controller, as grpc_service has them. */
extern const struct grpc_method route_identity[], route_controller[];

#endif
