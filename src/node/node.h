/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What this node knows of its volumes, and what it does with them by itself. Nothing here knows who
 * asks for it: the services (csi) and the metrics read it and call it.
 *
 *   volume.h   one volume in use: its device, its mounts
 *   lock.h     who works on an object, alone or beside others
 *   adopt.h    finding the devices and mounts of earlier runs
 *   devices.h  how many volumes the node can have
 *   health.h   what is wrong with a volume or a pool
 *   watch.h    keeps that true: decides when which volume is checked up (checkup.h)
 *   limits.h   puts their I/O limits in force
 *   trim.h     has volumes give back what they do not use, by schedule
 *   sweep.h    has inline volumes go with their pods
 *   exports.h  gives volumes to other nodes that they are attached to
 *   refresh.h  measuring what volumes hold, for somebody who wants to see it
 *   source.h   what a clone or a snapshot is made from: quiesce.h holds it still
 */
#ifndef RINGVOL_NODE_NODE_H
#define RINGVOL_NODE_NODE_H

#include "node/adopt.h"
#include "node/lock.h"
#include "pool/pool.h"
#include "probes/probes.h"
#include "reactor/op.h"

enum {
	NODE_STAT_TIMEOUT_MS = 2000,  /* inspect and statfs */
	NODE_SYNC_TIMEOUT_MS = 30000, /* syncfs before a snapshot */
	NODE_FREEZE_TIMEOUT_MS = 5000,
};

struct node_trim;
struct node_exports;
struct node_exports_config;
struct node_sweep;
struct node_watch;
struct node_limits;
struct stats_batch;

struct node {
	struct reactor *reactor;
	struct pools *pools;
	struct probes *probes; /* what devices do; set before node_adopt(), or NULL */
	/* No checkup, scan, trim, sweep, measure or look at limits begins any more; on_quiet runs
	 * when one ends.
	 */
	bool draining;
	void (*on_quiet)(void *arg);
	void *on_quiet_arg;
	struct node_locks locks;
	/* adopt.h */
	struct node_adoption adoption[BACKEND_TYPES];
	uint64_t scans; /* begun, of any backend: a scan's number */
	void (*on_adopted)(void *arg);
	void *on_adopted_arg;
	/* The volumes in use, checked up longest ago first; those of them that hang or have I/O
	 * errors. */
	struct list attached, troubled;
	struct node_watch *watch;   /* NULL: nobody watches */
	struct node_trim *trim;     /* NULL: nothing is trimmed by schedule */
	struct node_sweep *sweep;   /* sweep.h; NULL: nobody sweeps */
	struct node_limits *limits; /* NULL: nobody enforces any */
	/* exports.h; NULL, both: no volume is attached to nodes by this driver. */
	struct node_exports *exports;
	const struct node_exports_config *export_config;
	struct stats_batch *stats_open, *stats_spare; /* checkup.h; NULL: none */
	struct list formatting;                       /* first_stage.h */
	struct list refreshes;                        /* waiting, refresh.h */
	struct list measures;                         /* under way for them */
	int64_t clock_zero_unix;                      /* health.h: when the ring's clock was 0 */
	uint64_t no_device_ns[BACKEND_TYPES];         /* devices.h; 0: there are some */
};

/* 0 or -ENOMEM. */
int node_open(struct node **ret, struct reactor *reactor, struct pools *pools);
/* Nothing of it may be under way. Forgets what is known of every volume. NULL is legal. */
void node_close(struct node *node);

/* Begins nothing any more. on_quiet runs whenever something has ended that node_quiet() asks for.
 */
void node_drain(struct node *node, void (*on_quiet)(void *arg), void *arg);
/* No checkup, trim, measure or look at limits is under way. */
bool node_quiet(const struct node *node);
/* One of them has ended. */
static inline void node_tell_quiet(const struct node *node)
{
	if (node->on_quiet != NULL)
		node->on_quiet(node->on_quiet_arg);
}

#endif
