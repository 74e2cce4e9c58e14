/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keeping the exports of this node: those that the attachments of its volumes tell of are adopted
 * after a restart of the driver, and made again after one of the node; those that no attachment
 * tells of are ended, in the pools that are served here alone. A failure is logged and tried again.
 *
 * After a reboot the address is closed until all of them are there again: the kernel's client that
 * comes before its volume is told never to come again.
 */
#ifndef RINGVOL_NODE_EXPORTS_H
#define RINGVOL_NODE_EXPORTS_H

#include "node/export.h"

struct node_exports;

enum {
	NODE_EXPORTS_MS = 10000,      /* from one look at all volumes to the next */
	NODE_EXPORTS_NEXT_MS = 20,    /* from one volume to the next */
	NODE_EXPORTS_CLOSED_MS = 200, /* between looks while the address is closed */
	/* For what is missing, a pool or a volume, the address stays closed for so long. */
	NODE_EXPORTS_WAIT_MS = 30000,
};

/* The strings of config outlive it. 0 or -ENOMEM. */
int node_exports_open(struct node *node, const struct node_exports_config *config);
/* True: nothing new is exported yet, as it would open the address before others are there. */
bool node_exports_closed(struct node *node, const struct pool_object *volume);
bool node_exports_idle(const struct node_exports *exports); /* NULL is legal */
void node_exports_close(struct node *node);                 /* when idle, or without one */

#endif
