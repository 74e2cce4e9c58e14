/* SPDX-License-Identifier: Apache-2.0 */
/* A node's channel lives in its `user`. A node that has come back with another address gets a new
 * one. */
#include "controller/reach.h"

#include "controller/home.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct reach {
	struct channel *channel;
	char address[];
};

void reach_close(struct store_node *node)
{
	struct reach *reach = node->user;
	node->user = NULL;
	if (reach == NULL)
		return;
	channel_close(reach->channel);
	free(reach);
}

static int open_reach(
	struct controller *c, struct store_node *node, struct channel **ret, struct err *err)
{
	char peer[sizeof("ringvol://node/") + sizeof(((struct grpc_peer *)NULL)->node_id)];
	size_t size = strlen(node->address) + 1;
	struct reach *reach = malloc(sizeof(*reach) + size);
	if (reach == NULL)
		return err_set(err, ERR_NO_ROOM, "out of memory");
	memcpy(reach->address, node->address, size);
	snprintf(peer, sizeof(peer), "ringvol://node/%s", node->id);
	const struct channel_config config = {
		.ring = c->ring,
		.address = reach->address,
		.work = c->config.work,
		.lane = c->names,
		.registry = c->clients,
		.tls = c->config.tls,
		.peer = peer,
	};
	int r = channel_open(&reach->channel, &config, err);
	if (r < 0) {
		free(reach);
		return r;
	}
	node->user = reach;
	*ret = reach->channel;
	return 0;
}

int reach_node(struct controller *c, struct store_node *node, struct channel **ret, struct err *err)
{
	int r = home_check(node, "this", NULL, err);
	const struct reach *reach = node->user;
	if (r == 0 && reach != NULL && strcmp(reach->address, node->address) != 0) {
		reach_close(node);
		reach = NULL;
	}
	if (r < 0)
		return r;
	if (reach == NULL)
		return open_reach(c, node, ret, err);
	*ret = reach->channel;
	return 0;
}
