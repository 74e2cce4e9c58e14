/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A refresh measures anew what volumes hold and pools have free, for somebody who wants to see it
 * (`ringvol ls`, a scrape). Nobody waits for a pool that does not answer longer than they like, and
 * only the first of them waits that long.
 */
#ifndef RINGVOL_NODE_REFRESH_H
#define RINGVOL_NODE_REFRESH_H

#include "pool/pool.h"
#include "pool/room.h"

struct node;

/* One pool's, under way, on node->measures. */
struct node_measure {
	struct pool_measure measure;
	struct list link;
	struct node *node;
	uint64_t start_ns;
	bool overdue; /* nobody waits for it any more */
};

/* Embed it; zero-initialised it waits for nothing. */
struct node_refresh {
	void (*on_end)(struct node_refresh *refresh); /* from the loop, once */
	/* private */
	struct node *node;
	struct list link;
	struct ring_timer patience;
	uint64_t start_ns;
	bool waiting;
};

/* Measures every pool that is ready and was last measured more than max_age_ms ago, or joins the
 * measure under way; on_end follows when all have ended, or patience_ms later. False: there is
 * nothing to wait for. */
bool node_refresh_start(
	struct node *node, struct node_refresh *refresh, uint64_t max_age_ms, uint64_t patience_ms);
/* on_end is not called any more. */
void node_refresh_cancel(struct node_refresh *refresh);

#endif
