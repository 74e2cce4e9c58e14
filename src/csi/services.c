/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of services. A method without a line answers UNIMPLEMENTED; what is advertised is said
 * in capabilities.c.
 */
#include "csi/services.h"

#include "csi.pb-c.h"
#include "csi/inspect.h"
#include "csi/request.h"
#include "inspect.pb-c.h"

#define ROW(rpc) csi_rpc_run, .row = &(rpc)

static const struct grpc_method identity[] = {
	{"GetPluginInfo", ROW(csi_plugin_info)},
	{"GetPluginCapabilities", ROW(csi_plugin_capabilities)},
	{"Probe", ROW(csi_probe)},
	{NULL},
};

static const struct grpc_method controller[] = {
	{"CreateVolume", ROW(csi_create_volume)},
	{"DeleteVolume", ROW(csi_delete_volume)},
	{"ValidateVolumeCapabilities", ROW(csi_validate_capabilities)},
	{"ListVolumes", ROW(csi_list_volumes)},
	{"GetCapacity", ROW(csi_get_capacity)},
	{"ControllerGetCapabilities", ROW(csi_controller_capabilities)},
	{"CreateSnapshot", ROW(csi_create_snapshot)},
	{"DeleteSnapshot", ROW(csi_delete_snapshot)},
	{"ListSnapshots", ROW(csi_list_snapshots)},
	{"GetSnapshot", ROW(csi_get_snapshot)},
	{"ControllerExpandVolume", ROW(csi_controller_expand)},
	{"ControllerGetVolume", ROW(csi_get_volume)},
	{"ControllerGetVolumeHealth", ROW(csi_get_volume_health)},
	{"ControllerListVolumeHealth", ROW(csi_list_health)},
	{NULL},
};

static const struct grpc_method node[] = {
	{"NodeStageVolume", ROW(csi_node_stage)},
	{"NodeUnstageVolume", ROW(csi_node_unstage)},
	{"NodePublishVolume", ROW(csi_node_publish)},
	{"NodeUnpublishVolume", ROW(csi_node_unpublish)},
	{"NodeGetVolumeStats", ROW(csi_node_stats)},
	{"NodeExpandVolume", ROW(csi_node_expand)},
	{"NodeGetVolumeHealth", ROW(csi_node_volume_health)},
	{"NodeGetStorageHealth", ROW(csi_node_storage_health)},
	{"NodeGetCapabilities", ROW(csi_node_capabilities)},
	{"NodeGetInfo", ROW(csi_node_info)},
	{NULL},
};

static const struct grpc_method inspect[] = {
	{"List", csi_inspect_list},
	{"Health", ROW(csi_inspect_health)},
	{NULL},
};

int csi_register(struct csi *csi, struct grpc_registry *registry)
{
	static struct grpc_service services[] = {
		{&csi__v1__identity__descriptor, identity, NULL},
		{&csi__v1__controller__descriptor, controller, NULL},
		{&csi__v1__node__descriptor, node, NULL},
		{&ringvol__v1__inspect__descriptor, inspect, NULL},
	};
	/* 0: not CSI, always served. */
	static const unsigned bits[] = {CSI_IDENTITY, CSI_CONTROLLER, CSI_NODE, 0};

	for (unsigned i = 0; i < sizeof(bits) / sizeof(bits[0]); i++) {
		if (bits[i] != 0 && !(csi->config.services & bits[i]))
			continue;
		services[i].context = csi;
		int r = grpc_registry_add(registry, &services[i], csi_check_request);
		if (r < 0)
			return r;
	}
	return 0;
}
