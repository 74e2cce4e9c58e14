/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The Identity service: who the driver is, what it serves, and whether its pools are well. Reads
 * configuration and pool states only; the one failure is a pool that is missing or sick.
 */
#include "csi/fields.h"

#include <errno.h>

static void get_plugin_info(struct grpc_call *call, const ProtobufCMessage *request)
{
	(void)request;
	const struct csi *csi = grpc_call_context(call);
	Csi__V1__GetPluginInfoResponse response = CSI__V1__GET_PLUGIN_INFO_RESPONSE__INIT;
	response.name = csi_bytes(csi->config.driver_name);
	response.vendor_version = csi_bytes(RINGVOL_VERSION);
	grpc_reply(call, &response.base);
}

static void get_plugin_capabilities(struct grpc_call *call, const ProtobufCMessage *request)
{
	(void)request;
	const struct csi *csi = grpc_call_context(call);
	Csi__V1__PluginCapability__Service controller = CSI__V1__PLUGIN_CAPABILITY__SERVICE__INIT;
	Csi__V1__PluginCapability__Service topology = CSI__V1__PLUGIN_CAPABILITY__SERVICE__INIT;
	Csi__V1__PluginCapability__VolumeExpansion expansion =
		CSI__V1__PLUGIN_CAPABILITY__VOLUME_EXPANSION__INIT;
	Csi__V1__PluginCapability caps[3], *list[3];
	Csi__V1__GetPluginCapabilitiesResponse response =
		CSI__V1__GET_PLUGIN_CAPABILITIES_RESPONSE__INIT;
	size_t n = 0;

	for (size_t i = 0; i < 3; i++) {
		csi__v1__plugin_capability__init(&caps[i]);
		list[i] = &caps[i];
	}
	topology.type = CSI__V1__PLUGIN_CAPABILITY__SERVICE__TYPE__VOLUME_ACCESSIBILITY_CONSTRAINTS;
	caps[n].type_case = CSI__V1__PLUGIN_CAPABILITY__TYPE_SERVICE;
	caps[n++].service = &topology;
	expansion.type = CSI__V1__PLUGIN_CAPABILITY__VOLUME_EXPANSION__TYPE__ONLINE;
	caps[n].type_case = CSI__V1__PLUGIN_CAPABILITY__TYPE_VOLUME_EXPANSION;
	caps[n++].volume_expansion = &expansion;
	if (csi->config.services & CSI_CONTROLLER) {
		controller.type = CSI__V1__PLUGIN_CAPABILITY__SERVICE__TYPE__CONTROLLER_SERVICE;
		caps[n].type_case = CSI__V1__PLUGIN_CAPABILITY__TYPE_SERVICE;
		caps[n++].service = &controller;
	}
	response.capabilities = list;
	response.n_capabilities = n;
	grpc_reply(call, &response.base);
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

static void probe(struct grpc_call *call, const ProtobufCMessage *request)
{
	(void)request;
	struct csi *csi = grpc_call_context(call);
	Csi__V1__BoolValue ready = CSI__V1__BOOL_VALUE__INIT;
	Csi__V1__ProbeResponse response = CSI__V1__PROBE_RESPONSE__INIT;

	ready.value = can_serve(csi);
	response.ready = &ready;
	grpc_reply(call, &response.base);
}

const struct grpc_method csi_identity_methods[] = {
	{"GetPluginInfo", get_plugin_info},
	{"GetPluginCapabilities", get_plugin_capabilities},
	{"Probe", probe},
	{NULL},
};
