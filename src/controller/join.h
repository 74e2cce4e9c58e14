/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cluster.Join: nodes tell what they have (hear.h), and are told which classes of GetCapacity are
 * asked for, and who else there is. A node is here for as long as its call is.
 *
 * Either side says something every JOIN_HEARTBEAT_MS. A node that is silent for JOIN_SILENCE_MS, or
 * does not read what it is told, is cut off: it is absent then, and may join again.
 */
#ifndef RINGVOL_CONTROLLER_JOIN_H
#define RINGVOL_CONTROLLER_JOIN_H

#include "controller/store.h"
#include "reactor/ring.h"
#include "rpc/grpc.h"

enum {
	JOIN_HEARTBEAT_MS = 5000,
	JOIN_SILENCE_MS = 15000,
	JOIN_TICK_MS = 250,
	/* After the start, until it is known who is missing, unless a node brings a roster: longer
	 * than a node waits between two dials (MEMBER_REDIAL_MAX_MS). */
	JOIN_SETTLE_MS = 3000,
	JOIN_ROSTER_MS = 1000,       /* between two rosters to a node, at least */
	JOIN_ROSTER_FEW = 64,        /* nodes, to which it is told while others still come */
	JOIN_ROSTER_LATE_MS = 10000, /* to more of them, when it does not settle */
	JOIN_ROSTER_TICK_BYTES = 512
				 << 10, /* of rosters in a tick: a large one goes round slowly */
	JOIN_CLASSES_MS = 10,           /* new classes of so long are told together */
	JOIN_QUIET_MS = 60000,          /* the same refusal is logged once in that time */
};

struct joins;

struct joins_config {
	struct ring *ring;
	struct store *store;
	const char *driver_name, *version, *instance; /* these outlive it */
	/* A node has told all that it has; a node has left. NULL: nobody cares. */
	void (*on_joined)(void *arg, struct store_node *node);
	void (*on_left)(void *arg, struct store_node *node);
	/* hear.h; NULL likewise. */
	bool (*is_passed_on)(void *arg, enum store_kind kind, const char *key);
	void *arg;
};

int joins_open(struct joins **ret, const struct joins_config *config); /* 0 or -ENOMEM */
/* Serves Cluster, for nodes. As grpc_registry_add(). */
int joins_register(struct joins *joins, struct grpc_registry *nodes);
/* There is a new class: nodes are told soon. */
void joins_tell_classes(struct joins *joins);
/* Ends all calls, and takes no new ones. Nodes stay as they are: what runs at them may end. */
void joins_drain(struct joins *joins);
/* Its registry is not used any more, and no call is left (joins_drain()). NULL is legal. */
void joins_close(struct joins *joins);

struct joins_stats {
	unsigned calls;   /* just now */
	uint64_t joined;  /* nodes that have told all, each time */
	uint64_t left;    /* and ended */
	uint64_t refused; /* calls that were ended for what they said */
	uint64_t silent;  /* calls that were cut off for saying, or reading, nothing */
	unsigned at_two;  /* pools that two nodes say they have */
};
void joins_stats(const struct joins *joins, struct joins_stats *ret);

#endif
