/* SPDX-License-Identifier: Apache-2.0 */
/* Which node is to make a volume. A function of what the store has, without effects. */
#ifndef RINGVOL_CONTROLLER_PLACE_H
#define RINGVOL_CONTROLLER_PLACE_H

#include "base/err.h"
#include "controller/store.h"
#include "csi.pb-c.h"

#include <stdint.h>

struct place {
	const Csi__V1__TopologyRequirement *topology; /* NULL: anywhere */
	const char *pool;                             /* by name */
	uint64_t size_bytes;                          /* 0: whatever fits */
	const struct store_node *source; /* has the content it is made of; NULL: it is empty */
	const char *image;               /* or a golden image by name; NULL: none */
};

/*
 * Nodes that are present, match a requisite term (any node does if there is none), and have a ready
 * pool of that name can make it. The first preferred term that one of them matches decides; among
 * several those that have the source or the image, then the one whose pool has most room.
 *
 * A pool that has told of less room than is needed comes last; it is asked if there is no other,
 * for it knows better. ERR_NO_ROOM: no node can, and what those that match lack; ERR_UNAVAILABLE:
 * no node has joined.
 */
int place_choose(const struct store *store, const struct place *place, struct store_node **ret,
	struct err *err);

/* Where a volume can move: the present node whose ready pool of that name has most room, and not
 * the one that it is on. ERR_PRECONDITION: there is none. */
int place_elsewhere(const struct store *store, const char *pool, const struct store_node *not_on,
	const struct store_node **ret, struct err *err);

#endif
