/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Timers: a binary heap of entries by deadline; each timer knows its slot, so that cancelling is
 * a swap and a sift. The heap only grows (24 bytes a timer armed at once). It cannot fail but for
 * memory, and that ends the process.
 */
#include "reactor/ring_timer.h"

#include "reactor/ring_engine.h"

#include <assert.h>
#include <stdlib.h>

static bool before(const struct ring_timer_entry *a, const struct ring_timer_entry *b)
{
	return a->due_ns != b->due_ns ? a->due_ns < b->due_ns : a->order < b->order;
}

static void heap_put(struct ring *ring, unsigned i, struct ring_timer_entry entry)
{
	ring->timers[i] = entry;
	entry.timer->slot = i + 1;
}

/* Puts `entry` into its place, which is somewhere above or below the hole at i. */
static void heap_place(struct ring *ring, unsigned i, struct ring_timer_entry entry)
{
	while (i > 0 && before(&entry, &ring->timers[(i - 1) / 2])) {
		heap_put(ring, i, ring->timers[(i - 1) / 2]);
		i = (i - 1) / 2;
	}
	for (;;) {
		unsigned child = 2 * i + 1;
		if (child >= ring->timer_count)
			break;
		if (child + 1 < ring->timer_count &&
			before(&ring->timers[child + 1], &ring->timers[child]))
			child++;
		if (!before(&ring->timers[child], &entry))
			break;
		heap_put(ring, i, ring->timers[child]);
		i = child;
	}
	heap_put(ring, i, entry);
}

bool ring_timer_armed(const struct ring_timer *timer)
{
	return timer->slot != 0;
}

void ring_timer_cancel(struct ring *ring, struct ring_timer *timer)
{
	if (timer->slot == 0)
		return;
	unsigned i = timer->slot - 1;
	assert(i < ring->timer_count && ring->timers[i].timer == timer);
	timer->slot = 0;
	ring->timer_count--;
	if (i != ring->timer_count)
		heap_place(ring, i, ring->timers[ring->timer_count]);
}

void ring_timer_arm(struct ring *ring, struct ring_timer *timer, uint64_t delay_ms)
{
	assert(timer->fn != NULL);
	ring_timer_cancel(ring, timer);
	if (ring->timer_count == ring->timer_cap) {
		unsigned cap = ring->timer_cap != 0 ? ring->timer_cap * 2 : 64;
		struct ring_timer_entry *timers = reallocarray(ring->timers, cap, sizeof(*timers));
		if (timers == NULL)
			abort();
		ring->timers = timers;
		ring->timer_cap = cap;
	}
	/* From the clock as it is: a long turn must not shorten the deadlines armed at its end. */
	uint64_t delay_ns, due_ns;
	if (__builtin_mul_overflow(delay_ms, (uint64_t)1000000, &delay_ns) ||
		__builtin_add_overflow(ring_clock_ns(ring), delay_ns, &due_ns))
		due_ns = UINT64_MAX - 1;
	timer->due_ns = due_ns;
	unsigned i = ring->timer_count++;
	heap_place(ring, i,
		(struct ring_timer_entry){
			.due_ns = due_ns, .order = ring->timer_order++, .timer = timer});
}

uint64_t ring_timer_next_ns(const struct ring *ring)
{
	return ring->timer_count != 0 ? ring->timers[0].due_ns : UINT64_MAX;
}

/*
 * What was due when the kernel was last asked, and no more: this process may have stood still since
 * then, after the kernel had let go of it, and what completed meanwhile is not in hand yet.
 */
void ring_timer_run(struct ring *ring, uint64_t order)
{
	while (ring->timer_count != 0 && ring->timers[0].due_ns <= ring->asked_ns &&
		ring->timers[0].order < order) {
		struct ring_timer *timer = ring->timers[0].timer;
		ring_timer_cancel(ring, timer);
		timer->fn(timer);
	}
}
