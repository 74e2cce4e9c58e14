/* SPDX-License-Identifier: Apache-2.0 */
/* Time that passes in a simulated ring. */
#ifndef RINGVOL_TESTS_SIM_TIME_H
#define RINGVOL_TESTS_SIM_TIME_H

#include "reactor/ring.h"

#include <criterion/criterion.h>

struct sim_wait {
	struct ring_timer timer;
	bool over;
};

static inline void sim_wait_over(struct ring_timer *timer)
{
	container_of(timer, struct sim_wait, timer)->over = true;
}

/* Turns the ring until so much of its time has passed. */
static inline void sim_pass_ms(struct ring *ring, uint64_t ms)
{
	struct sim_wait wait = {.timer = {.fn = sim_wait_over}};
	ring_timer_arm(ring, &wait.timer, ms);
	while (!wait.over)
		cr_assert_eq(ring_turn(ring, true), 0);
}

#endif
