/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The sweep of inline volumes: one whose pod is gone goes as well. An unpublish takes an inline
 * volume away; the sweep is for what nobody unpublished, because kubelet or the driver was away.
 *
 * A pod is gone if its directory is not there, twice in NODE_SWEEP_AGAIN_MS, while the directory of
 * all pods is there and is not empty. An empty one may be a mount point on which nothing is mounted
 * yet, and tells nothing. Whoever has the volume mounted keeps it.
 */
#ifndef RINGVOL_NODE_SWEEP_H
#define RINGVOL_NODE_SWEEP_H

#include <stdbool.h>
#include <stdint.h>

struct node;
struct node_sweep;

enum {
	NODE_SWEEP_MS = 60000,      /* from one look at all of them to the next; at first sooner */
	NODE_SWEEP_NEXT_MS = 50,    /* from one volume to the next */
	NODE_SWEEP_AGAIN_MS = 2000, /* between two looks at a directory that is not there */
};

/* 0 or -ENOMEM. */
int node_sweep_open(struct node *node);
bool node_sweep_idle(const struct node_sweep *sweep); /* NULL is legal */
void node_sweep_close(struct node *node);             /* when idle, or without one */

#endif
