/* SPDX-License-Identifier: Apache-2.0 */
/* The controller's parts, opened and registered together. */
#include "controller/controller.h"

#include "controller/capacity.h"
#include "controller/forward.h"
#include "controller/inspect.h"
#include "controller/join.h"
#include "controller/reach.h"
#include "controller/route.h"
#include "csi.pb-c.h"
#include "csi/request.h"
#include "inspect.pb-c.h"
#include "move.pb-c.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

static void on_drop(void *arg, struct store_node *node)
{
	(void)arg;
	reach_close(node);
}

static int open_joins(struct controller *c)
{
	const struct joins_config config = {
		.ring = c->ring,
		.store = c->store,
		.driver_name = c->config.driver_name,
		.version = c->config.version,
		.instance = c->instance,
		.on_left = on_drop,
		.is_passed_on = forward_is_under_way,
		.arg = c,
	};
	return joins_open(&c->joins, &config);
}

static int open_parts(struct controller *c, struct err *err)
{
	uint64_t drawn[2];
	if (getrandom(drawn, sizeof(drawn), 0) != sizeof(drawn))
		return err_sys(err, -errno, "random bytes");
	snprintf(c->instance, sizeof(c->instance), "%016llx%016llx", (unsigned long long)drawn[0],
		(unsigned long long)drawn[1]);
	int r = store_open(&c->store);
	if (r == 0)
		store_configure(c->store,
			&(struct store_config){
				.on_drop = on_drop, .is_asked = forward_is_under_way, .arg = c});
	if (r == 0)
		r = ring_lane_open(&c->names, c->ring);
	if (r == 0)
		r = capacity_open(&c->capacity, c->ring);
	if (r == 0 && c->config.node == NULL)
		r = open_joins(c);
	return r < 0 ? err_set(err, ERR_NO_ROOM, "out of memory") : 0;
}

int controller_open(struct controller **ret, struct ring *ring,
	const struct controller_config *config, struct err *err)
{
	struct controller *c = calloc(1, sizeof(*c));
	if (c == NULL)
		return err_set(err, ERR_NO_ROOM, "out of memory");
	c->config = *config;
	c->ring = ring;
	list_init(&c->forwards);
	c->self.config = (struct csi_config){
		.driver_name = config->driver_name,
		.node_id = "",
		.services = CSI_IDENTITY | CSI_CONTROLLER | CSI_GROUP | CSI_SNAPSHOT_METADATA,
		.controller_expand = config->controller_expand,
		.health = config->health,
		.attach = config->attach,
	};
	int r = open_parts(c, err);
	if (r < 0) {
		controller_close(c);
		return r;
	}
	*ret = c;
	return 0;
}

void controller_close(struct controller *c)
{
	if (c == NULL)
		return;
	struct store_node *node = NULL;
	while (c->store != NULL && (node = store_node_next(c->store, node)) != NULL)
		reach_close(node);
	channel_close(c->only);
	capacity_close(c->capacity);
	joins_close(c->joins);
	store_close(c->store);
	free(c);
}

static int open_only(struct controller *c)
{
	const struct channel_config config = {
		.ring = c->ring,
		.address = c->config.node,
		.registry = c->clients,
	};
	struct err err = {0};
	return channel_open(&c->only, &config, &err);
}

int controller_register(
	struct controller *c, struct grpc_registry *clients, struct grpc_registry *nodes)
{
	const struct grpc_service services[CONTROLLER_SERVICES] = {
		{&csi__v1__identity__descriptor, route_identity, &c->self},
		{&csi__v1__controller__descriptor,
			c->config.attach ? route_controller : route_controller + ROUTE_ATTACHED,
			&c->self},
		{&csi__v1__snapshot_metadata__descriptor, route_snapshot_metadata, &c->self},
		{&csi__v1__group_controller__descriptor, route_group, &c->self},
		{&ringvol__v1__inspect__descriptor, inspect_methods, &c->self},
		{&ringvol__v1__move__descriptor, route_move, &c->self},
	};
	unsigned count = CONTROLLER_SERVICES - (c->config.node != NULL ? 1 : 0);
	c->clients = clients;
	int r = c->config.node != NULL ? open_only(c) : joins_register(c->joins, nodes);
	memcpy(c->services, services, sizeof(services));
	for (unsigned i = 0; r == 0 && i < count; i++)
		r = grpc_registry_add(clients, &c->services[i], csi_check_request);
	return r;
}

void controller_drain(struct controller *c)
{
	c->draining = true;
	forward_end_streams(c);
	capacity_drain(c->capacity);
	if (c->joins != NULL)
		joins_drain(c->joins);
}
