/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A gate lets `max` through at once and holds the others, in order, until one of those inside
 * leaves. It knows its members by their list nodes and owns none of them.
 */
#ifndef RINGVOL_BASE_GATE_H
#define RINGVOL_BASE_GATE_H

#include "base/list.h"

struct gate {
	unsigned max, inside;
	struct list held;
};

static inline void gate_init(struct gate *gate, unsigned max)
{
	gate->max = max;
	gate->inside = 0;
	list_init(&gate->held);
}

/* True: inside, and the node is on no list of the gate's. False: held. One that is held may be
 * taken off by list_remove(), and has not been inside then. */
static inline bool gate_enter(struct gate *gate, struct list *node)
{
	if (gate->inside < gate->max) {
		gate->inside++;
		return true;
	}
	list_push(&gate->held, node);
	return false;
}

/* One leaves. Returns who is inside instead, or NULL. */
static inline struct list *gate_leave(struct gate *gate)
{
	struct list *next = list_pop(&gate->held);
	if (next == NULL)
		gate->inside--;
	return next;
}

#endif
