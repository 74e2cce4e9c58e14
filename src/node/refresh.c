/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures under way (node->measures, at most one of each pool) and the refreshes that wait for
 * them (node->refreshes).
 *
 * Happy path: each pool that was measured too long ago is measured -> the last measure ends -> all
 * refreshes end. How it can fail: what could not be measured stays as it was known. A refresh loses
 * patience: the measures it waited for are overdue, and nobody waits for them any more; they may
 * end when they like. A drain waits for all of them (node_drain).
 */
#include "node/refresh.h"

#include "node/node.h"

#include <stdlib.h>

static bool worth_waiting(const struct node *node)
{
	list_for_each (link, &node->measures)
		if (!container_of(link, struct node_measure, link)->overdue)
			return true;
	return false;
}

static void end_waits(struct node *node)
{
	while (!worth_waiting(node) && !list_empty(&node->refreshes)) {
		struct node_refresh *refresh =
			container_of(node->refreshes.next, struct node_refresh, link);
		node_refresh_cancel(refresh);
		refresh->on_end(refresh);
	}
}

static void on_measured(struct op *op)
{
	struct node_measure *m = container_of(op, struct node_measure, measure.op);
	struct node *node = m->node;
	list_remove(&m->link);
	free(m);
	end_waits(node);
	node_tell_quiet(node);
}

static void on_patience(struct ring_timer *timer)
{
	struct node_refresh *refresh = container_of(timer, struct node_refresh, patience);
	struct node *node = refresh->node;
	list_for_each (link, &node->measures) {
		struct node_measure *m = container_of(link, struct node_measure, link);
		m->overdue |= m->start_ns <= refresh->start_ns;
	}
	node_refresh_cancel(refresh);
	refresh->on_end(refresh);
	end_waits(node);
}

static bool is_measured(const struct node *node, const struct pool *pool)
{
	list_for_each (link, &node->measures)
		if (container_of(link, struct node_measure, link)->measure.pool == pool)
			return true;
	return false;
}

static void start_measures(struct node *node, uint64_t max_age_ms)
{
	struct pool *pool;
	for (unsigned i = 0; (pool = pools_at(node->pools, i)) != NULL; i++) {
		if (pool_state(pool) != POOL_READY || pool_room_known(pool, max_age_ms) ||
			is_measured(node, pool))
			continue;
		struct node_measure *m = calloc(1, sizeof(*m));
		if (m == NULL)
			continue;
		m->node = node;
		m->start_ns = ring_now_ns(node->reactor->ring);
		list_push(&node->measures, &m->link);
		pool_measure_init(&m->measure, node->reactor, pool, max_age_ms);
		m->measure.op.on_end = on_measured;
		op_start(&m->measure.op);
	}
}

bool node_refresh_start(
	struct node *node, struct node_refresh *refresh, uint64_t max_age_ms, uint64_t patience_ms)
{
	if (!node->draining)
		start_measures(node, max_age_ms);
	if (!worth_waiting(node))
		return false;
	refresh->node = node;
	refresh->start_ns = ring_now_ns(node->reactor->ring);
	refresh->patience.fn = on_patience;
	refresh->waiting = true;
	list_push(&node->refreshes, &refresh->link);
	ring_timer_arm(node->reactor->ring, &refresh->patience, patience_ms);
	return true;
}

void node_refresh_cancel(struct node_refresh *refresh)
{
	if (!refresh->waiting)
		return;
	refresh->waiting = false;
	list_remove(&refresh->link);
	ring_timer_cancel(refresh->node->reactor->ring, &refresh->patience);
}
