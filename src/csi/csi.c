/* SPDX-License-Identifier: Apache-2.0 */
/* The services' context: its life, and how well it is. */
#include "csi/csi.h"

#include "base/log.h"
#include "csi.pb-c.h"
#include "csi/condition.h"
#include "csi/node_state.h"
#include "csi/task.h"
#include "csi/watch.h"
#include "inspect.pb-c.h"

#include <errno.h>
#include <stdlib.h>

int csi_open(struct csi **ret, const struct csi_config *config, struct reactor *reactor,
	struct pools *pools)
{
	struct csi *csi = calloc(1, sizeof(*csi));
	if (csi == NULL)
		return -ENOMEM;
	csi->config = *config;
	csi->reactor = reactor;
	csi->pools = pools;
	csi->start_ns = ring_now_ns(reactor->ring);
	list_init(&csi->tasks);
	list_init(&csi->holds);
	list_init(&csi->refreshes);
	list_init(&csi->measures);
	list_init(&csi->attached);
	list_init(&csi->troubled);
	csi->long_timer.fn = csi_task_on_timer;
	csi_follow_clock(csi);
	*ret = csi;
	return 0;
}

void csi_close(struct csi *csi)
{
	if (csi == NULL)
		return;
	csi_adopt_no_more(csi);
	csi_watch_close(csi);
	ring_timer_cancel(csi->reactor->ring, &csi->long_timer);
	char id[RECORD_ID_MAX] = "";
	struct pool_object *volume;
	while ((volume = pools_next(csi->pools, RECORD_VOLUME, id)) != NULL) {
		pool_object_id(volume, id);
		node_volume_free(volume->node);
		volume->node = NULL;
	}
	free(csi->stats_spare);
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
	if (csi->draining)
		return err_set(err, ERR_UNAVAILABLE, "the driver is shutting down");
	return csi_adopted(csi, err) ? 0 : -EAGAIN;
}
