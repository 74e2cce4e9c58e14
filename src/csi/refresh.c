/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One round of measures at a time, one child operation for each pool; who asks meanwhile joins. The
 * round ends when the last pool has answered, well or not: what could not be measured stays as it
 * was known. A drain waits for the round (csi_drain).
 */
#include "csi/refresh.h"

#include "csi/task.h"

#include <stdlib.h>

struct measure {
	struct pool_measure measure;
	struct csi *csi;
};

static void on_measured(struct op *op)
{
	struct measure *m = container_of(op, struct measure, measure.op);
	struct csi *csi = m->csi;
	free(m);
	if (--csi->refreshing > 0)
		return;
	for (struct list *l; (l = list_pop(&csi->refreshes)) != NULL;) {
		struct csi_refresh *refresh = container_of(l, struct csi_refresh, link);
		refresh->waiting = false;
		refresh->on_end(refresh);
	}
	csi_tell_idle(csi);
}

static void start_round(struct csi *csi)
{
	struct pool *pool;
	for (unsigned i = 0; (pool = pools_at(csi->pools, i)) != NULL; i++) {
		struct measure *m = pool_state(pool) == POOL_READY ? calloc(1, sizeof(*m)) : NULL;
		if (m == NULL)
			continue;
		m->csi = csi;
		csi->refreshing++;
		pool_measure_init(&m->measure, csi->reactor, pool, CSI_REFRESH_AGE_MS);
		m->measure.op.on_end = on_measured;
		op_start(&m->measure.op);
	}
}

bool csi_refresh_start(struct csi *csi, struct csi_refresh *refresh)
{
	if (csi->refreshing == 0 && !csi->draining)
		start_round(csi);
	if (csi->refreshing == 0)
		return false;
	refresh->waiting = true;
	list_push(&csi->refreshes, &refresh->link);
	return true;
}

void csi_refresh_cancel(struct csi_refresh *refresh)
{
	if (!refresh->waiting)
		return;
	refresh->waiting = false;
	list_remove(&refresh->link);
}
