/* SPDX-License-Identifier: Apache-2.0 */
/* The beginning and the end of what a node knows. Nothing here can fail but for want of memory. */
#include "node/node.h"

#include "node/exports.h"
#include "node/health.h"
#include "node/limits.h"
#include "node/sweep.h"
#include "node/trim.h"
#include "node/volume.h"
#include "node/watch.h"
#include "pool/index.h"

#include <errno.h>
#include <stdlib.h>

int node_open(struct node **ret, struct reactor *reactor, struct pools *pools)
{
	struct node *node = calloc(1, sizeof(*node));
	if (node == NULL)
		return -ENOMEM;
	node->reactor = reactor;
	node->pools = pools;
	node_locks_init(&node->locks);
	list_init(&node->attached);
	list_init(&node->troubled);
	list_init(&node->formatting);
	list_init(&node->refreshes);
	list_init(&node->measures);
	node_follow_clock(node);
	*ret = node;
	return 0;
}

void node_close(struct node *node)
{
	if (node == NULL)
		return;
	node_adopt_no_more(node);
	node_trim_close(node);
	node_sweep_close(node);
	node_exports_close(node);
	node_watch_close(node);
	struct pool_walk walk = {0};
	struct pool_object *volume;
	while ((volume = pools_next(node->pools, RECORD_VOLUME, &walk)) != NULL) {
		node_volume_free(volume->node);
		volume->node = NULL;
	}
	node_limits_close(node);
	free(node->stats_spare);
	free(node);
}

void node_drain(struct node *node, void (*on_quiet)(void *arg), void *arg)
{
	node->draining = true;
	node->on_quiet = on_quiet;
	node->on_quiet_arg = arg;
	node_adopt_no_more(node);
}

bool node_quiet(const struct node *node)
{
	return list_empty(&node->measures) && node_watch_idle(node->watch) &&
	       node_trim_idle(node->trim) && node_sweep_idle(node->sweep) &&
	       node_limits_idle(node) && node_exports_idle(node->exports);
}
