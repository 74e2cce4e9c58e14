/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A heap whose N-th allocation fails, alone or with all that follow. The linker puts it between our
 * objects and the C library (--wrap, see tests/meson.build); nghttp2's session has it through its
 * nghttp2_mem. Allocations count only while it is armed and inside the server's functions, not in
 * the test's own.
 *
 * Out of the game by design: the arrays of ring.c, ring_timer.c and ring_sim.c, which end the
 * process when they cannot grow (ring.h says so); heap_spare_ring() grows them before.
 */
#ifndef RINGVOL_TESTS_WIRE_HEAP_H
#define RINGVOL_TESTS_WIRE_HEAP_H

#include "reactor/ring.h"

#include <stdbool.h>

extern struct heap {
	bool armed;
	unsigned inside; /* the server's functions */
	bool lasting;    /* all fail from the N-th on */
	unsigned long fail_at, count, failed;
	long live; /* allocated and not freed */
} heap;

void heap_arm(unsigned long nth, bool lasting);
/* Whether an allocation has failed since it was armed. */
bool heap_disarm(void);
/* Around what a test does by itself between. */
bool heap_hold(void);
void heap_release(bool armed);

void heap_spare_ring(struct ring *ring);

/* The session's functions and ring_turn() are wrapped; other functions of the server are called so.
 */
#define heap_inside(call)                                                                          \
	({                                                                                         \
		heap.inside++;                                                                     \
		__typeof__(call) heap_ret_ = (call);                                               \
		heap.inside--;                                                                     \
		heap_ret_;                                                                         \
	})

#endif
