/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Holding several volumes still at the same moment, for a group of snapshots. Child operations; the
 * caller has locked the volumes (exclusively those that may be in use).
 *
 * Happy path: all are synced, measured and marked, at once -> (the caller makes all ready) -> all
 * are frozen, at once -> (the caller shares them) -> all are thawed, at once. So nothing that takes
 * long lies between the first freeze and the last thaw.
 *
 * A raw block volume in use has no file system to freeze. One alone is no obstacle: the moment at
 * which it is shared is the group's, because none of the others changes while it is frozen. Two
 * cannot be taken together, but in a raw pool, where all devices are suspended at that moment. And
 * where one volume alone is in use, it is treated as for a snapshot of its own: no freeze is
 * needed, unless its class wants one.
 *
 * How it can fail: as quiesce.h does, of any volume.
 */
#ifndef RINGVOL_NODE_GROUP_HOLD_H
#define RINGVOL_NODE_GROUP_HOLD_H

#include "node/quiesce.h"
#include "reactor/op_all.h"

struct node_group_member {
	struct pool_object *volume;
	bool share; /* its extents; else it is copied while it is held still */
	/* private */
	struct node_quiesce quiesce;
};

struct node_group_hold {
	struct op op;
	struct node *node;
	struct node_group_member *members; /* the caller's; volume and share are set */
	unsigned count;
	/* private */
	struct op_all all;
	struct err failure;
	int res;
};

/* All that takes long: each is looked up, synced, measured and marked. ERR_PRECONDITION,
 * ERR_TIMEOUT and others, as node_quiesce; then nothing is held. */
void node_group_ready_init(struct node_group_hold *h, struct node *node,
	struct node_group_member *members, unsigned count);
/* Freezes those that are to be. When it fails, some may be frozen. These two use h's memory: its
 * own operation must have ended. */
void node_group_freeze_init(struct node_group_hold *h);
/* Lets go of all that is frozen or marked. */
void node_group_release_init(struct node_group_hold *h);

#endif
