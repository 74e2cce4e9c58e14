/* SPDX-License-Identifier: Apache-2.0 */
/* One scan: a look at a backend's devices and their mounts. adopt.h says when. */
#ifndef RINGVOL_NODE_ADOPT_SCAN_H
#define RINGVOL_NODE_ADOPT_SCAN_H

#include "node/adopt.h"

/* What came of it. */
struct node_scan {
	struct err err; /* ERR_OK: all of this is known now */
	uint64_t number;
	uint64_t pool_known[POOLS_MAX]; /* as in node_adoption */
	unsigned adopted, cleared;
	unsigned left_out; /* volumes that were being worked on: they need another scan */
};

/* on_end follows from the loop. -ENOMEM: it does not. */
int node_scan_start(struct node_adoption *adoption,
	void (*on_end)(struct node_adoption *adoption, const struct node_scan *scan));

/* Thaws, and restores single writers, of a volume that has a node state and that no task has alone;
 * it is locked meanwhile. OP_PENDING: on_end follows from the loop, whatever came of it; 0: there
 * is nothing to do; -ENOMEM. */
int node_marks_start(
	struct node *node, struct pool_object *volume, void (*on_end)(void *arg), void *arg);

#endif
