/* SPDX-License-Identifier: Apache-2.0 */
/* Timers of a ring: each calls a function once, from ring_turn(). */
#ifndef RINGVOL_REACTOR_RING_TIMER_H
#define RINGVOL_REACTOR_RING_TIMER_H

#include <stdbool.h>
#include <stdint.h>

struct ring;
struct ring_timer;
typedef void ring_timer_fn(struct ring_timer *timer);

/* Embed it; zero-initialised it is idle. Arming and cancelling take effect at once: after
 * ring_timer_cancel() the callback does not run, and the memory may go. A timer that a callback
 * arms runs in a later turn, even with no delay. */
struct ring_timer {
	ring_timer_fn *fn;
	uint64_t due_ns;
	unsigned slot; /* the ring's: 1 + index in its heap, 0 when idle */
};

/* (Re-)arms the timer. Out of memory here ends the process: a lost deadline is a lost promise. */
void ring_timer_arm(struct ring *ring, struct ring_timer *timer, uint64_t delay_ms);
void ring_timer_cancel(struct ring *ring, struct ring_timer *timer);
bool ring_timer_armed(const struct ring_timer *timer);

/* ---- for the ring and its engines ---- */

/* When the first timer is due; UINT64_MAX: none is armed. */
uint64_t ring_timer_next_ns(const struct ring *ring);
/* Runs what was due when the kernel was entered. order: the ring's at the start of the turn; what
 * is armed in this turn waits, even with no delay. */
void ring_timer_run(struct ring *ring, uint64_t order);

#endif
