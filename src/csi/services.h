/* SPDX-License-Identifier: Apache-2.0 */
/* The services, and the row of each RPC (rpc.h). A row lies in the file that has its code. */
#ifndef RINGVOL_CSI_SERVICES_H
#define RINGVOL_CSI_SERVICES_H

#include "csi/rpc.h"

/* Adds the services that config.services names, and Inspect. 0 or -errno of grpc_registry_add(). */
int csi_register(struct csi *csi, struct grpc_registry *registry);

extern const struct csi_rpc csi_plugin_info, csi_probe, csi_node_info, csi_inspect_health;
extern const struct csi_rpc csi_plugin_capabilities, csi_controller_capabilities,
	csi_node_capabilities, csi_validate_capabilities;
extern const struct csi_rpc csi_create_volume, csi_create_snapshot;
extern const struct csi_rpc csi_delete_volume, csi_delete_snapshot;
extern const struct csi_rpc csi_controller_expand, csi_node_expand;
extern const struct csi_rpc csi_get_capacity;
extern const struct csi_rpc csi_list_volumes, csi_get_volume, csi_list_snapshots, csi_get_snapshot;
extern const struct csi_rpc csi_list_health, csi_get_volume_health, csi_node_volume_health,
	csi_node_storage_health;
extern const struct csi_rpc csi_node_stage, csi_node_publish, csi_node_unpublish, csi_node_unstage;
extern const struct csi_rpc csi_node_stats;

#endif
