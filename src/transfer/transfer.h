/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies between nodes. The node that has the source serves it, the node that makes the volume
 * pulls it; a controller tells both (ringvol.v1.Member).
 *
 *   grant.h   the source's side: what may be read, by whom, until when (the pool keeps it: hold.h)
 *   send.h    the source's side: ringvol.v1.Transfer
 *   still.h   likewise, of a volume that leaves for good
 *   parting.h the images that are left of those
 *   offer.h   the target's side: where a copy can be had
 *   pull.h    the target's side: reading it into an image
 *   chunk.h, rate.h, bulk.h: the messages, how fast, their memory
 */
#ifndef RINGVOL_TRANSFER_TRANSFER_H
#define RINGVOL_TRANSFER_TRANSFER_H

#include "base/list.h"
#include "node/node.h"
#include "reactor/op.h"
#include "rpc/grpc.h"
#include "transfer/rate.h"

enum {
	TRANSFER_SENDS_MAX =
		16, /* streams under way; then RESOURCE_EXHAUSTED, and they try again */
	TRANSFER_PULLS_MAX = 16,            /* then UNAVAILABLE, and a client tries again */
	TRANSFER_OFFERS_MAX = 1024,         /* then the oldest goes */
	TRANSFER_OFFER_MS = 10 * 60 * 1000, /* an offer is kept so long; a retry brings another */
	TRANSFER_GRANT_MS = 60 * 1000,      /* a grant that nobody opens */
	/* One whose volume had to be copied: who asked for it comes back later than that. */
	TRANSFER_GRANT_COPIED_MS = 10 * 60 * 1000,
	TRANSFER_IDLE_MS = 30 * 60 * 1000, /* one that was opened, and is not read */
	TRANSFER_STILL_MS = 60 * 1000,     /* a volume held still for a node that says nothing */
	TRANSFER_LOOK_MS = 5000,
};

struct tls; /* rpc/tls.h */

struct transfer_config {
	const char *node_id;
	uint64_t rate_bytes; /* --transfer-rate, bytes a second; 0: no limit */
	struct tls *tls;     /* for calls to other nodes; NULL: their addresses are unix sockets */
};

struct transfer_stats {
	uint64_t sent_bytes, received_bytes;
	uint64_t lost;         /* connections of pulls, which went on by another one */
	uint64_t wrong;        /* chunks that were not as they had to be */
	unsigned sends, pulls; /* under way */
};

struct transfer {
	struct transfer_config config; /* strings are main()'s */
	struct reactor *reactor;
	struct pools *pools;
	struct node *node;
	struct rate rate;
	struct lane *lane; /* for resolving names */
	/* transfer_register()'s: what calls to other nodes hold counts in its memory, too. */
	struct grpc_registry *registry;
	struct transfer_stats stats;
	struct ring_timer timer;
	struct list offers, sends, stills;
	struct parting *parting; /* parting.c's */
	unsigned n_offers;
	struct grpc_service service; /* send.c's */
	bool draining, bulk;
};

/* 0 or -ENOMEM. */
int transfer_open(struct transfer **ret, struct reactor *reactor, struct pools *pools,
	struct node *node, const struct transfer_config *config);
/* What is being sent ends with UNAVAILABLE, and nothing is granted or dropped any more. Pulls are
 * their operations', which stop them. */
void transfer_drain(struct transfer *transfer);
/* Whether what goes on by itself has ended, after a drain. */
bool transfer_idle(const struct transfer *transfer);
/* Nothing is under way, and nobody calls any more. NULL is legal. */
void transfer_close(struct transfer *transfer);

/* Grants of all pools that are kept just now. */
unsigned transfer_grants(const struct transfer *transfer);

#endif
