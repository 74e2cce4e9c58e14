/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of services. A method without a line answers UNIMPLEMENTED; what is advertised is said
 * in capabilities.c.
 */
#include "csi/services.h"

#include "cluster.pb-c.h"
#include "csi.pb-c.h"
#include "csi/borrow.h"
#include "csi/inspect.h"
#include "csi/request.h"
#include "inspect.pb-c.h"

#define ANSWER(fn, ...)                                                                            \
	csi_rpc_run, .row = &(const struct csi_rpc)                                                \
	{                                                                                          \
		.answer = fn, __VA_ARGS__                                                          \
	}
#define OPERATION(its, ...)                                                                        \
	csi_rpc_run, .row = &(const struct csi_rpc)                                                \
	{                                                                                          \
		.operation = &(its), __VA_ARGS__                                                   \
	}
#define STREAM(its, ...) OPERATION(its, .streams = true, __VA_ARGS__)
/* What most of them work on. */
#define A_VOLUME   .kind = RECORD_VOLUME, .id = "volume_id"
#define A_SNAPSHOT .kind = RECORD_SNAPSHOT, .id = "snapshot_id"

static const struct grpc_method identity[] = {
	{"GetPluginInfo", ANSWER(csi_plugin_info)},
	{"GetPluginCapabilities", ANSWER(csi_plugin_capabilities)},
	{"Probe", ANSWER(csi_probe)},
	{NULL},
};

static const struct grpc_method controller[] = {
	/* Left out without --attach: ATTACHED. */
	{"ControllerPublishVolume", OPERATION(csi_controller_publish, A_VOLUME,
					    .required = {"node_id", "volume_capability"})},
	{"ControllerUnpublishVolume", OPERATION(csi_controller_unpublish, A_VOLUME)},
	{"CreateVolume", OPERATION(csi_create_volume, .kind = RECORD_VOLUME, .name = "name")},
	{"DeleteVolume", OPERATION(csi_delete, A_VOLUME)},
	{"ValidateVolumeCapabilities",
		ANSWER(csi_validate_capabilities, A_VOLUME, .required = {"volume_capabilities"})},
	{"ListVolumes", ANSWER(csi_list_volumes)},
	{"GetCapacity", OPERATION(csi_get_capacity, .poll = true)},
	{"ControllerGetCapabilities", ANSWER(csi_controller_capabilities)},
	{"CreateSnapshot", OPERATION(csi_create_snapshot, .kind = RECORD_SNAPSHOT, .name = "name",
				   .id = "source_volume_id")},
	{"DeleteSnapshot", OPERATION(csi_delete, A_SNAPSHOT)},
	{"ListSnapshots", ANSWER(csi_list_snapshots)},
	{"GetSnapshot", ANSWER(csi_get_snapshot, A_SNAPSHOT)},
	{"ControllerExpandVolume", OPERATION(csi_controller_expand, A_VOLUME)},
	{"ControllerModifyVolume", OPERATION(csi_modify_volume, A_VOLUME)},
	{"ControllerGetVolume", ANSWER(csi_get_volume, A_VOLUME)},
	{"ControllerGetVolumeHealth", ANSWER(csi_get_volume_health, A_VOLUME)},
	{"ControllerListVolumeHealth", ANSWER(csi_list_health)},
	{NULL},
};

enum { ATTACHED = 2 };

static const struct grpc_method group[] = {
	{"GroupControllerGetCapabilities", ANSWER(csi_group_capabilities)},
	{"CreateVolumeGroupSnapshot",
		OPERATION(csi_create_group, .required = {"name", "source_volume_ids"})},
	{"DeleteVolumeGroupSnapshot",
		OPERATION(csi_delete_group, .required = {"group_snapshot_id"})},
	{"GetVolumeGroupSnapshot", ANSWER(csi_get_group, .required = {"group_snapshot_id"})},
	{NULL},
};

static const struct grpc_method node[] = {
	/* Left out without staging: STAGED. */
	{"NodeStageVolume",
		OPERATION(csi_node_stage, A_VOLUME, .borrowed = &csi_borrow_stage,
			.paths = {"staging_target_path"}, .required = {"volume_capability"})},
	{"NodeUnstageVolume", OPERATION(csi_node_release, A_VOLUME, .borrowed = &csi_borrow_release,
				      .paths = {"staging_target_path"})},
	{"NodePublishVolume", OPERATION(csi_node_publish, A_VOLUME, .borrowed = &csi_borrow_publish,
				      .paths = {"target_path"}, .required = {"volume_capability"})},
	{"NodeUnpublishVolume", OPERATION(csi_node_release, A_VOLUME,
					.borrowed = &csi_borrow_release, .paths = {"target_path"})},
	{"NodeGetVolumeStats", OPERATION(csi_node_stats, A_VOLUME, .borrowed = &csi_borrow_stats,
				       .required = {"volume_path"}, .poll = true)},
	{"NodeExpandVolume", OPERATION(csi_node_expand, A_VOLUME, .borrowed = &csi_borrow_expand,
				     .required = {"volume_path"})},
	{"NodeGetVolumeHealth", OPERATION(csi_node_volume_health, A_VOLUME,
					.borrowed = &csi_borrow_health, .poll = true)},
	{"NodeGetStorageHealth", ANSWER(csi_node_storage_health)},
	{"NodeGetCapabilities", ANSWER(csi_node_capabilities)},
	{"NodeGetInfo", ANSWER(csi_node_info)},
	{NULL},
};

enum { STAGED = 2 };

static const struct grpc_method snapshot_metadata[] = {
	{"GetMetadataAllocated", STREAM(csi_metadata, A_SNAPSHOT)},
	{"GetMetadataDelta", STREAM(csi_metadata, .kind = RECORD_SNAPSHOT,
				     .id = "target_snapshot_id", .required = {"base_snapshot_id"})},
	{NULL},
};

static const struct grpc_method inspect[] = {
	{"List", csi_inspect_list},
	{"Health", ANSWER(csi_inspect_health)},
	{NULL},
};

static const struct grpc_method member[] = {
	{"GrantCopy", OPERATION(csi_grant_copy, .required = {"source_id", "volume_name"})},
	{"OfferCopy", ANSWER(csi_offer_copy, .required = {"source_id", "volume_name"})},
	{"TakeVolume", OPERATION(csi_take_volume, A_VOLUME, .required = {"volume_name", "pool"},
			       .own_locks = true)},
	{"GetDeparture", OPERATION(csi_get_departure, A_VOLUME)},
	{"DropDeparture", OPERATION(csi_drop_departure, A_VOLUME)},
	{NULL},
};

int csi_register_member(struct csi *csi, struct grpc_registry *registry, unsigned peers)
{
	static struct grpc_service service = {&ringvol__v1__member__descriptor, member, NULL};
	service.context = csi;
	service.peers = peers;
	return grpc_registry_add(registry, &service, csi_check_request);
}

int csi_register(struct csi *csi, struct grpc_registry *registry)
{
	static struct grpc_service services[] = {
		{&csi__v1__identity__descriptor, identity, NULL},
		{&csi__v1__controller__descriptor, controller, NULL},
		{&csi__v1__group_controller__descriptor, group, NULL},
		{&csi__v1__node__descriptor, node, NULL},
		{&csi__v1__snapshot_metadata__descriptor, snapshot_metadata, NULL},
		{&ringvol__v1__inspect__descriptor, inspect, NULL},
	};
	/* 0: not CSI, always served. */
	static const unsigned bits[] = {
		CSI_IDENTITY, CSI_CONTROLLER, CSI_GROUP, CSI_NODE, CSI_SNAPSHOT_METADATA, 0};

	for (unsigned i = 0; i < sizeof(bits) / sizeof(bits[0]); i++) {
		if (bits[i] == CSI_CONTROLLER)
			services[i].methods =
				csi->config.attach ? controller : controller + ATTACHED;
		if (bits[i] == CSI_NODE)
			services[i].methods = csi->config.staging ? node : node + STAGED;
		if (bits[i] != 0 && !(csi->config.services & bits[i]))
			continue;
		services[i].context = csi;
		int r = grpc_registry_add(registry, &services[i], csi_check_request);
		if (r < 0)
			return r;
	}
	return 0;
}

int csi_register_routed(struct csi *csi, struct grpc_registry *registry)
{
	static struct grpc_service services[] = {
		{&csi__v1__controller__descriptor, controller, NULL, 1 << GRPC_PEER_CONTROLLER},
		{&csi__v1__snapshot_metadata__descriptor, snapshot_metadata, NULL,
			1 << GRPC_PEER_CONTROLLER},
		{&csi__v1__group_controller__descriptor, group, NULL, 1 << GRPC_PEER_CONTROLLER},
		{&ringvol__v1__inspect__descriptor, inspect, NULL, 1 << GRPC_PEER_CONTROLLER},
	};
	services[0].methods = csi->config.attach ? controller : controller + ATTACHED;
	int r = 0;
	for (unsigned i = 0; r == 0 && i < sizeof(services) / sizeof(services[0]); i++) {
		services[i].context = csi;
		r = grpc_registry_add(registry, &services[i], csi_check_request);
	}
	return r;
}
