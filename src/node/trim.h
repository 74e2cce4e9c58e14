/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Trimming by schedule (--trim-interval). A thin volume takes room when it is written to; what its
 * files gave back stays taken until its file system is asked to discard what it does not use
 * (FITRIM). So each thin volume in use is trimmed once in an interval. Its moment follows from the
 * wall clock and its id: they are spread over the interval, and a restart moves none of them. One
 * at which the driver is away, or the volume not in use, is left out.
 *
 * Gently: one volume at a time on the whole node, a window of its file system at a time, and after
 * each at least as long a rest. An operation on the volume goes first.
 */
#ifndef RINGVOL_NODE_TRIM_H
#define RINGVOL_NODE_TRIM_H

#include <stdbool.h>
#include <stdint.h>

struct node;
struct node_trim;

enum {
	NODE_TRIM_CALL_MS = 20000, /* of one window at most; then the trim is over */
	NODE_TRIM_REST_MS = 1000,  /* while an operation has the volume... */
	NODE_TRIM_RESTS_MAX = 60,  /* ...so often; then it is over */
};

/* Since the start. */
struct node_trim_stats {
	uint64_t done, failed; /* trims */
	/* What volumes had allocated before a trim and no more after it, shared blocks included. */
	uint64_t returned_bytes;
};

/* 0 or -ENOMEM. interval_s 0: nothing is ever trimmed. */
int node_trim_open(struct node *node, uint64_t interval_s);
/* False while a volume is trimmed; none begins when draining. NULL is legal. */
bool node_trim_idle(const struct node_trim *trim);
struct node_trim_stats node_trim_stats(const struct node_trim *trim); /* NULL is legal */
void node_trim_close(struct node *node); /* when idle, or without one */

#endif
