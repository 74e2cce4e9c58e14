/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who the driver and this node are, and whether they can serve: GetPluginInfo, Probe, NodeGetInfo,
 * Inspect.Health. Each reads configuration and pool states only.
 */
#include "csi/messages.h"
#include "csi/services.h"
#include "csi/topology.h"
#include "inspect.pb-c.h"
#include "node/devices.h"

#include <errno.h>

int csi_plugin_info(struct csi_query *q)
{
	Csi__V1__GetPluginInfoResponse *response = q->response;
	response->name = csi_bytes(q->csi->config.driver_name);
	response->vendor_version = csi_bytes(RINGVOL_VERSION);
	return 0;
}

int csi_node_info(struct csi_query *q)
{
	Csi__V1__NodeGetInfoResponse *response = q->response;
	response->node_id = csi_bytes(q->csi->config.node_id);
	response->max_volumes_per_node = node_allocatable(q->csi->node, q->csi->config.max_volumes);
	response->accessible_topology = csi_topology_message(q->arena, q->csi);
	return response->accessible_topology == NULL ? -ENOMEM : 0;
}

/* Sidecars ask at their start and wait for a yes, or end at an error; some restart the driver when
 * it stays away. So a pool that is missing stops nothing as long as another one is there, nor does
 * a data process that does not answer, as long as loop volumes are known; that is said elsewhere
 * (csi_check_ready). */
static bool can_serve(const struct csi *csi)
{
	const struct pool *pool = pools_at(csi->pools, 0);
	if (csi->node->draining)
		return false;
	if (pool == NULL)
		return node_adopted(csi->node, NULL);
	for (unsigned i = 0; (pool = pools_at(csi->pools, i)) != NULL; i++)
		if (pool_state(pool) == POOL_READY && node_knows_pool(csi->node, pool))
			return true;
	return false;
}

int csi_probe(struct csi_query *q)
{
	Csi__V1__ProbeResponse *response = q->response;
	response->ready = csi_message_new(q->arena, &csi__v1__bool_value__descriptor);
	if (response->ready == NULL)
		return -ENOMEM;
	response->ready->value = can_serve(q->csi);
	return 0;
}

int csi_inspect_health(struct csi_query *q)
{
	Ringvol__V1__HealthResponse *response = q->response;
	struct err live = {0}, ready = {0};
	response->live = csi_check_live(q->csi, &live) == 0;
	response->ready = csi_check_ready(q->csi, &ready) == 0;
	const char *live_why = arena_strdup(q->arena, live.message);
	const char *ready_why = arena_strdup(q->arena, ready.message);
	if (live_why == NULL || ready_why == NULL)
		return -ENOMEM;
	response->live_why = csi_bytes(live_why);
	response->ready_why = csi_bytes(ready_why);
	return 0;
}
