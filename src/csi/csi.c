/* SPDX-License-Identifier: Apache-2.0 */
/* The services' context: its life, and how well it is. */
#include "csi/csi.h"

#include <errno.h>
#include <stdlib.h>

int csi_open(struct csi **ret, const struct csi_config *config, struct reactor *reactor,
	struct pools *pools)
{
	struct csi *csi = calloc(1, sizeof(*csi));
	int r = csi == NULL ? -ENOMEM : node_open(&csi->node, reactor, pools);
	if (r == 0)
		r = borrows_open(&csi->borrows, reactor);
	if (r < 0) {
		if (csi != NULL)
			node_close(csi->node);
		free(csi);
		return r;
	}
	csi->config = *config;
	csi->reactor = reactor;
	csi->pools = pools;
	csi->start_ns = ring_now_ns(reactor->ring);
	list_init(&csi->tasks);
	*ret = csi;
	return 0;
}

void csi_close(struct csi *csi)
{
	if (csi == NULL)
		return;
	ring_timer_cancel(csi->reactor->ring, &csi->long_timer);
	borrows_close(csi->borrows);
	node_close(csi->node);
	free(csi);
}

int csi_check_live(const struct csi *csi, struct err *err)
{
	const struct pool *pool;
	for (unsigned i = 0; (pool = pools_at(csi->pools, i)) != NULL; i++)
		if (!pool_answers(pool))
			return err_set(err, ERR_UNAVAILABLE, "%s", pool_why(pool));
	return 0;
}

int csi_check_ready(const struct csi *csi, struct err *err)
{
	const struct pool *pool;
	for (unsigned i = 0; (pool = pools_at(csi->pools, i)) != NULL; i++) {
		enum pool_state state = pool_state(pool);
		if (state == POOL_MISSING || state == POOL_SICK)
			return err_set(err, ERR_PRECONDITION, "pool %s (%s) is %s: %s",
				pool_name(pool), pool_path(pool),
				state == POOL_MISSING ? "missing" : "sick", pool_why(pool));
	}
	for (unsigned i = 0; (pool = pools_at(csi->pools, i)) != NULL; i++)
		if (pool_state(pool) == POOL_LOADING)
			return err_set(err, ERR_UNAVAILABLE, "%s", pool_why(pool));
	if (csi->node->draining)
		return err_set(err, ERR_UNAVAILABLE, "the driver is shutting down");
	return node_adopted(csi->node, err) ? 0 : -EAGAIN;
}
