/* SPDX-License-Identifier: Apache-2.0 */
/* All pools of a driver: opened at start, loaded and looked after in the background, closed. */
#ifndef RINGVOL_POOL_POOLS_H
#define RINGVOL_POOL_POOLS_H

#include "pool/pool.h"

struct reactor;

enum { POOL_CHECK_MS = 5000 }; /* how often a pool is looked after */

struct pool_config {
	const char *name;
	const char *path;
	double overcommit;    /* 1.0: promises never exceed space */
	unsigned reserve_pct; /* of the file system, never promised */
	bool init;            /* make it a pool if the directory is empty */
};

/* Copies the configs. Nothing is opened yet. 0 or -errno. */
int pools_open(struct pools **ret, struct reactor *reactor, const struct pool_config *configs,
	unsigned count);
/* Before they start: the name of this node, by which the disks of raw pools know who serves them.
 */
void pools_serve_as(struct pools *pools, const char *node);
/* Starts loading in the background. on_loaded runs (from the loop) when every pool is ready,
 * missing or sick. From then on each pool is looked after every POOL_CHECK_MS: a pool that appears
 * is loaded, one that vanishes becomes missing, and trash is reclaimed. on_changed runs when the
 * state of a pool has changed. */
void pools_start(struct pools *pools, void (*on_loaded)(void *arg),
	void (*on_changed)(void *arg, struct pool *pool), void *arg);
/* Stops background work between two steps; pools_idle() says when nothing is under way. */
void pools_drain(struct pools *pools);
bool pools_idle(const struct pools *pools);
void pools_close(struct pools *pools); /* NULL is legal */

#endif
