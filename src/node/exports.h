/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keeping the exports of this node: those that the attachments of its volumes tell of are adopted
 * after a restart of the driver, and made again after one of the node; those that no attachment
 * tells of are ended, in the pools that are served here alone. A failure is logged and tried again.
 */
#ifndef RINGVOL_NODE_EXPORTS_H
#define RINGVOL_NODE_EXPORTS_H

#include "node/export.h"

struct node_exports;

enum {
	NODE_EXPORTS_MS = 10000,   /* from one look at all volumes to the next */
	NODE_EXPORTS_NEXT_MS = 20, /* from one volume to the next */
};

/* The strings of config outlive it. 0 or -ENOMEM. */
int node_exports_open(struct node *node, const struct node_exports_config *config);
bool node_exports_idle(const struct node_exports *exports); /* NULL is legal */
void node_exports_close(struct node *node);                 /* when idle, or without one */

#endif
