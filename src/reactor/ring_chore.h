/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chores: work of the loop that nobody waits for, such as the next chunk of a copy. Each is small;
 * one that has more to do is wanted again. They run at the end of a turn, behind all that has
 * completed, and for RING_CHORES_TURN_NS of it at most. While something urgent is under way (an
 * RPC) they wait, for RING_CHORES_WAIT_MS at most: then what is under way at that moment counts as
 * long, and no chore waits for it. So an RPC never stands behind a copy, and a copy always goes on.
 * What cannot wait, as it is with the kernel already, is kept small while RPCs come.
 */
#ifndef RINGVOL_REACTOR_RING_CHORE_H
#define RINGVOL_REACTOR_RING_CHORE_H

#include "base/list.h"
#include "reactor/ring_timer.h"

#include <liburing.h>
#include <stdbool.h>

struct ring;

enum {
	RING_CHORES_TURN_NS = 200000,
	RING_CHORES_WAIT_MS = 10,
	RING_CHORES_PAUSE = 2, /* turns after something urgent has ended: its answer goes first */
	RING_CHORES_SMALL_MS = 50, /* after something urgent has begun: another may follow */
};

/* Embed it; zero-initialised it is idle. */
struct ring_chore {
	void (*fn)(struct ring_chore *chore);
	struct list link; /* the ring's: wanted */
};

/* Runs it once, in this turn or a later one. It is wanted already: nothing. */
void ring_chore_want(struct ring *ring, struct ring_chore *chore);
/* It does not run, and the memory may go. An idle one is left alone. */
void ring_chore_cancel(struct ring_chore *chore);

/* Something that somebody waits for begins and ends. */
void ring_urgent_begin(struct ring *ring);
void ring_urgent_end(struct ring *ring);
/* Chores wait just now. Whoever is fed by others may stop them meanwhile. */
bool ring_chores_wait(const struct ring *ring);
/* Something urgent has begun a moment ago (RING_CHORES_SMALL_MS): what a chore begins now had
 * better be small, at the price of more of them. */
bool ring_chores_small(const struct ring *ring);

/* What is read or written for a chore stands behind what is not, where a disk's scheduler cares. */
static inline void ring_sqe_chore(struct io_uring_sqe *sqe)
{
	enum { CLASS_SHIFT = 13, CLASS_BE = 2, LOWEST = 7 };
	sqe->ioprio = CLASS_BE << CLASS_SHIFT | LOWEST;
}

/* ---- for the ring ---- */

struct ring_chores {
	struct list wanted;
	unsigned urgent, ignored; /* under way, and those of them that are long */
	unsigned pause;           /* so many turns yet */
	uint64_t small_until_ns;
	struct ring_timer patience;
};

void ring_chores_init(struct ring_chores *chores);
/* Some can run: the next turn does not wait. */
bool ring_chores_due(const struct ring *ring);
/* At the end of a turn. */
void ring_chores_run(struct ring *ring);

#endif
