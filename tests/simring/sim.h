/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A seeded stand-in for the kernel's ring, for tests. Requests are carried out with ordinary system
 * calls, one at a time, in an order the seed decides; time is virtual and jumps to the next timer
 * when nothing else is left to do. Work jobs, helper calls and children run in the same order book.
 * The same seed gives the same run.
 */
#ifndef RINGVOL_TESTS_SIM_H
#define RINGVOL_TESTS_SIM_H

#include "reactor/ring.h"

struct ring_sim {
	uint64_t seed;
	/* One read or write in `short_every` transfers only a part (never 0 bytes); 0: never. */
	unsigned short_every;
	/* One request in `eintr_every` completes with -EINTR first; 0: never. */
	unsigned eintr_every;
	/* Called before a request is carried out, `nth` counting from 0. What is not 0 is its
	 * result, such as a negative errno, and nothing is carried out. NULL: no faults. */
	int (*fault)(void *arg, uint64_t nth, const struct io_uring_sqe *sqe);
	void *fault_arg;
	/* So many cancellations miss their request, as the kernel's can; it must be asked again. */
	unsigned missed_cancels;
	/* out: requests carried out so far */
	uint64_t served;
};

/* A ring whose engine is the simulation; NULL for `sim`: the kernel's, as ring_open(). What `sim`
 * says may change while the ring is open. 0 or -errno. */
int ring_sim_open(struct ring **ret_ring, struct ring_sim *sim);
/* Turns until nothing is armed, posted or queued (timers that keep re-arming do not count once
 * virtual time has passed `limit_ms`). Returns 0, or -ETIME when the limit was reached. */
int ring_sim_settle(struct ring *ring, uint64_t limit_ms);

#endif
