/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Adoption: the devices and mounts that earlier runs left on this node are found again. One look at
 * the devices of a backend is a scan. Each backend is scanned by itself, so that a data process
 * which does not answer keeps no loop volume from being known.
 */
#ifndef RINGVOL_NODE_ADOPT_H
#define RINGVOL_NODE_ADOPT_H

#include "backends/backend.h"
#include "base/err.h"
#include "pool/pool.h"
#include "reactor/ring.h"

struct node;

enum {
	NODE_ADOPT_RETRY_MS = 5000, /* after a scan that failed */
	NODE_ADOPT_AGAIN_MS = 1000, /* for volumes that were being worked on */
};

enum node_adoption_state {
	NODE_ADOPT_IDLE,
	NODE_ADOPT_SCANNING,
	NODE_ADOPT_SCANNING_AGAIN, /* and another scan follows: it was asked for meanwhile */
};

/* What is known of one backend's devices of earlier runs. */
struct node_adoption {
	struct node *node;
	const struct backend *backend;
	enum node_adoption_state state;
	/* The number of the last scan that succeeded, 0: none has. A volume of a higher or equal
	 * number (pool_object.left_out) was left out by it or by one since: somebody worked on it.
	 */
	uint64_t known_scan;
	/* Per pool: 1 + pool_state_since_ns() of the state it was ready in when its volumes were
	 * looked for. So what was known before it went is not taken for what is so now. 0: its
	 * volumes were not looked for. */
	uint64_t pool_known[POOLS_MAX];
	struct ring_timer retry; /* the next scan after one that failed */
	struct err why;          /* why the last one failed; ERR_OK: it did not */
};

/* Finds the devices and mounts that earlier runs left (a work job for each backend), clears devices
 * of volumes that are no more. To be called when pools are loaded, and again when a pool appears;
 * what fails is repeated by itself. on_done runs from the loop whenever no scan is under way any
 * more, whatever came of it, after repeats as well. */
void node_adopt(struct node *node, void (*on_done)(void *arg), void *arg);
bool node_adopting(const struct node *node);
/* Whether all of them are known (node_knows_devices), of the pools that are ready. False: *why says
 * what is not, unless it is NULL. */
bool node_adopted(const struct node *node, struct err *why);
/* Whether those of any backend are known in this pool. */
bool node_knows_pool(const struct node *node, const struct pool *pool);
void node_adopt_no_more(struct node *node); /* no repeats: a drain, or the end */

#endif
