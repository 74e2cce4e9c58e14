/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A lane is what may hang together: the calls on one pool, or on one disk. It has its own share of
 * the ring's threads, of work's threads, of children and of helpers. So a disk that hangs stops
 * nobody but its own lane.
 *
 * A gate is one such share. It lets a number of members in and holds the others, in order, until
 * one of those inside leaves. It knows its members by their list nodes and owns none of them.
 *
 * NULL, wherever a lane is asked for: the ring's shared lane. ring_lane_open() makes the others.
 */
#ifndef RINGVOL_REACTOR_LANE_H
#define RINGVOL_REACTOR_LANE_H

#include "base/list.h"

#include <stdint.h>

/* What one lane may have at once. The shared lane's requests and helpers are not counted: they are
 * bound by what there is of them in all. */
enum {
	LANE_REQUESTS_MAX = 64, /* of the ring, each in a thread of the kernel's if it blocks */
	LANE_CHILDREN_MAX = 16,
	LANE_HELPERS_MAX = 256, /* busy or hung */
};

struct lane_gate {
	unsigned inside;
	struct list held;
};

struct lane {
	struct list link;          /* the ring's lanes */
	struct lane_gate requests; /* by ring_req.link */
	struct lane_gate children; /* by proc.link */
	unsigned helpers;
	/* Work's. Its lock guards the gate and last_ns. */
	struct lane_gate jobs; /* by work_job.link; inside: a thread has it, or it waits for one */
	uint64_t last_ns;      /* when the last job was let in, CLOCK_MONOTONIC */
	unsigned depth;        /* jobs submitted whose on_end was not called */
};

static inline void lane_forget_jobs(struct lane *lane)
{
	list_init(&lane->jobs.held);
	lane->jobs.inside = lane->depth = 0;
}

static inline void lane_init(struct lane *lane)
{
	*lane = (struct lane){0};
	list_init(&lane->link);
	list_init(&lane->requests.held);
	list_init(&lane->children.held);
	lane_forget_jobs(lane);
}

/* True: it is inside now, and its node is on no list of the gate's. False: the gate holds it.
 * list_remove() takes a member that is held away; it was never inside then. */
static inline bool lane_enter(struct lane_gate *gate, unsigned max, struct list *node)
{
	if (gate->inside < max) {
		gate->inside++;
		return true;
	}
	list_push(&gate->held, node);
	return false;
}

/* One leaves. Returns the member that is inside instead, or NULL. */
static inline struct list *lane_leave(struct lane_gate *gate)
{
	struct list *next = list_pop(&gate->held);
	if (next == NULL)
		gate->inside--;
	return next;
}

#endif
