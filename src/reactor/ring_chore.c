/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A list of chores and a count of what is urgent. Happy path: a chore is wanted, nothing urgent is
 * under way, the turn ends, the chore runs. It cannot fail.
 */
#include "reactor/ring_chore.h"

#include "reactor/ring_engine.h"

#include <assert.h>

static void on_patience(struct ring_timer *timer)
{
	struct ring_chores *chores = container_of(timer, struct ring_chores, patience);
	chores->ignored = chores->urgent;
	chores->pause = 0;
}

void ring_chores_init(struct ring_chores *chores)
{
	*chores = (struct ring_chores){.patience.fn = on_patience};
	list_init(&chores->wanted);
}

bool ring_chores_wait(const struct ring *ring)
{
	return ring->chores.urgent > ring->chores.ignored;
}

bool ring_chores_small(const struct ring *ring)
{
	return ring->engine->clock_ns(ring) < ring->chores.small_until_ns;
}

bool ring_chores_due(const struct ring *ring)
{
	return !list_empty(&ring->chores.wanted) && !ring_chores_wait(ring);
}

/* The timer runs while there is something that waits. */
static void patience_update(struct ring *ring)
{
	struct ring_timer *patience = &ring->chores.patience;
	bool waits = !list_empty(&ring->chores.wanted) && ring_chores_wait(ring);
	if (!waits)
		ring_timer_cancel(ring, patience);
	else if (!ring_timer_armed(patience))
		ring_timer_arm(ring, patience, RING_CHORES_WAIT_MS);
}

void ring_chore_want(struct ring *ring, struct ring_chore *chore)
{
	if (chore->link.next != NULL && !list_empty(&chore->link))
		return;
	list_push(&ring->chores.wanted, &chore->link);
	patience_update(ring);
}

void ring_chore_cancel(struct ring_chore *chore)
{
	if (chore->link.next != NULL)
		list_remove(&chore->link);
}

void ring_urgent_begin(struct ring *ring)
{
	ring->chores.urgent++;
	ring->chores.small_until_ns =
		ring->engine->clock_ns(ring) + RING_CHORES_SMALL_MS * UINT64_C(1000000);
	patience_update(ring);
}

void ring_urgent_end(struct ring *ring)
{
	struct ring_chores *chores = &ring->chores;
	assert(chores->urgent > 0);
	chores->urgent--;
	chores->pause = RING_CHORES_PAUSE;
	if (chores->ignored > chores->urgent)
		chores->ignored = chores->urgent;
	patience_update(ring);
}

void ring_chores_run(struct ring *ring)
{
	struct ring_chores *chores = &ring->chores;
	struct list due, *node;
	if (!ring_chores_due(ring))
		return;
	if (chores->pause > 0) {
		chores->pause--;
		return;
	}
	uint64_t end_ns = ring->engine->clock_ns(ring) + RING_CHORES_TURN_NS;
	list_init(&due);
	list_splice(&due, &chores->wanted);
	while ((node = list_pop(&due)) != NULL) {
		struct ring_chore *chore = container_of(node, struct ring_chore, link);
		chore->fn(chore);
		if (ring->engine->clock_ns(ring) >= end_ns || ring_chores_wait(ring))
			break;
	}
	/* What is left goes before what was wanted meanwhile. */
	list_splice(&due, &chores->wanted);
	list_splice(&chores->wanted, &due);
	patience_update(ring);
}
