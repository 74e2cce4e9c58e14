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

#endif
