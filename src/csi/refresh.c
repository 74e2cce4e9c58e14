/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures under way (csi->measures, one a pool at most) and who waits for them (csi->refreshes).
 *
 * Happy path: a measure for each pool whose last one is too old -> the last of them ends -> all who
 * wait are told. How it can fail: what could not be measured stays as it was known. A measure that
 * somebody lost patience with is overdue, and nobody waits for it any more; it may end when it
 * likes. A drain waits for all of them (csi_tell_idle).
 */
#include "csi/refresh.h"

#include "csi/task.h"

#include <stdlib.h>

static bool worth_waiting(const struct csi *csi)
{
	list_for_each (link, &csi->measures)
		if (!container_of(link, struct csi_measure, link)->overdue)
			return true;
	return false;
}

static void end_waits(struct csi *csi)
{
	while (!worth_waiting(csi) && !list_empty(&csi->refreshes)) {
		struct csi_refresh *refresh =
			container_of(csi->refreshes.next, struct csi_refresh, link);
		csi_refresh_cancel(refresh);
		refresh->on_end(refresh);
	}
}

static void on_measured(struct op *op)
{
	struct csi_measure *m = container_of(op, struct csi_measure, measure.op);
	struct csi *csi = m->csi;
	list_remove(&m->link);
	free(m);
	end_waits(csi);
	csi_tell_idle(csi);
}

static void on_patience(struct ring_timer *timer)
{
	struct csi_refresh *refresh = container_of(timer, struct csi_refresh, patience);
	struct csi *csi = refresh->csi;
	list_for_each (link, &csi->measures) {
		struct csi_measure *m = container_of(link, struct csi_measure, link);
		m->overdue |= m->start_ns <= refresh->start_ns;
	}
	csi_refresh_cancel(refresh);
	refresh->on_end(refresh);
	end_waits(csi);
}

static bool is_measured(const struct csi *csi, const struct pool *pool)
{
	list_for_each (link, &csi->measures)
		if (container_of(link, struct csi_measure, link)->measure.pool == pool)
			return true;
	return false;
}

static void start_measures(struct csi *csi, uint64_t max_age_ms)
{
	struct pool *pool;
	for (unsigned i = 0; (pool = pools_at(csi->pools, i)) != NULL; i++) {
		if (pool_state(pool) != POOL_READY || pool_room_known(pool, max_age_ms) ||
			is_measured(csi, pool))
			continue;
		struct csi_measure *m = calloc(1, sizeof(*m));
		if (m == NULL)
			continue;
		m->csi = csi;
		m->start_ns = ring_now_ns(csi->reactor->ring);
		list_push(&csi->measures, &m->link);
		pool_measure_init(&m->measure, csi->reactor, pool, max_age_ms);
		m->measure.op.on_end = on_measured;
		op_start(&m->measure.op);
	}
}

bool csi_refresh_start(
	struct csi *csi, struct csi_refresh *refresh, uint64_t max_age_ms, uint64_t patience_ms)
{
	if (!csi->draining)
		start_measures(csi, max_age_ms);
	if (!worth_waiting(csi))
		return false;
	refresh->csi = csi;
	refresh->start_ns = ring_now_ns(csi->reactor->ring);
	refresh->patience.fn = on_patience;
	refresh->waiting = true;
	list_push(&csi->refreshes, &refresh->link);
	ring_timer_arm(csi->reactor->ring, &refresh->patience, patience_ms);
	return true;
}

void csi_refresh_cancel(struct csi_refresh *refresh)
{
	if (!refresh->waiting)
		return;
	refresh->waiting = false;
	list_remove(&refresh->link);
	ring_timer_cancel(refresh->csi->reactor->ring, &refresh->patience);
}
