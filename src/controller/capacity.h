/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GetCapacity, from what nodes have said. Requests that are alike but for their topology are a
 * class, and nodes say what they would answer to each class, whenever that changes.
 *
 * A request for one node's segments gets that node's answer as it is; one that several nodes match
 * (a zone, no topology) the sum of what is available, the largest volume of them and the smallest
 * of the least. A node that is away has nothing. What a node has not said yet is asked of it, or
 * waited for a moment where several have to say it.
 */
#ifndef RINGVOL_CONTROLLER_CAPACITY_H
#define RINGVOL_CONTROLLER_CAPACITY_H

#include "controller/route.h"

enum {
	CAPACITY_WAIT_MS = 1000, /* for several nodes; then without those that have not said */
	CAPACITY_TICK_MS = 20,
};

struct capacity; /* calls that wait */

int capacity_open(struct capacity **ret, struct ring *ring); /* 0 or -ENOMEM */
/* Ends those that wait with UNAVAILABLE. */
void capacity_drain(struct capacity *capacity);
/* Likewise. NULL is legal. */
void capacity_close(struct capacity *capacity);

/* Of calls with GRPC_RAW. */
route_fn get_capacity;

#endif
