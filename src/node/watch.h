/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The watch over the volumes in use keeps node_health true, so that every question is answered from
 * memory. It asks every NODE_WATCH_MS what the kernel tells by itself (I/O errors by the probes,
 * devices by uevents): two reads when nothing has happened, however many volumes there are. What
 * the kernel does not tell takes a checkup: of each volume in its turn, NODE_CHECKUP_MS apart,
 * unless somebody else has just asked.
 */
#ifndef RINGVOL_NODE_WATCH_H
#define RINGVOL_NODE_WATCH_H

#include "mount/mnt.h"

#include <stdbool.h>

struct node;
struct node_watch;

enum {
	NODE_WATCH_MS = 500,
	NODE_CHECKUP_MS = 60000, /* each volume: latencies, and its file system if nobody asked */
	NODE_ROUND_MS = 2000,    /* those due meanwhile are checked up together */
	NODE_HUNG_CHECKUP_MS = 10000,     /* a volume that hangs */
	NODE_CHECKUPS_MAX = MNT_MANY_MAX, /* at once */
	NODE_ERRORS_QUIET_MS = 10000, /* I/O errors are over after this long without a new one */
	NODE_ERRORS_QUIET_MAX_MS = 600000,
	NODE_ERRORS_RELAPSE_MS = 3600000, /* back within this long: twice as long next time */
	NODE_SLOW_MS = 1000,              /* 99th percentile of a minute's reads and writes */
	NODE_SLOW_OPS_MIN = 100,
	NODE_SLOW_BUCKETS = 14, /* of base/hist.h, from that of NODE_SLOW_MS on */
};

/* 0 or -ENOMEM. Starts at once; without uevents (said in the log) devices are looked at in turn. */
int node_watch_open(struct node *node);
/* False while a checkup is under way; none begins when draining. NULL is legal. */
bool node_watch_idle(const struct node_watch *watch);
void node_watch_close(struct node *node); /* when idle, or without a watch */

#endif
