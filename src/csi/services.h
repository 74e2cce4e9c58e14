/* SPDX-License-Identifier: Apache-2.0 */
/* The services, and what answers or carries out each RPC (rpc.h). */
#ifndef RINGVOL_CSI_SERVICES_H
#define RINGVOL_CSI_SERVICES_H

#include "csi/rpc.h"

/* Adds the services that config.services names, and Inspect. 0 or -errno of grpc_registry_add(). */
int csi_register(struct csi *csi, struct grpc_registry *registry);

/* Adds what a controller of the cluster may call, and nobody else: Controller and Inspect. */
int csi_register_routed(struct csi *csi, struct grpc_registry *registry);
/* Adds ringvol.v1.Member, for controllers. csi->transfer is set. */
int csi_register_member(struct csi *csi, struct grpc_registry *registry, unsigned peers);

/* ---- a file each ---- */

extern const struct csi_operation csi_create_volume, csi_create_snapshot;
extern const struct csi_operation csi_create_group, csi_delete_group;
extern const struct csi_operation csi_delete; /* of volumes and snapshots */
extern const struct csi_operation csi_modify_volume;
extern const struct csi_operation csi_controller_publish, csi_controller_unpublish;
extern const struct csi_operation csi_controller_expand, csi_node_expand;
extern const struct csi_operation csi_get_capacity;
extern const struct csi_operation csi_grant_copy, csi_take_volume;
extern const struct csi_operation csi_get_departure, csi_drop_departure;
extern const struct csi_operation csi_metadata; /* of one snapshot, or of what two differ in */
extern const struct csi_operation csi_node_stage, csi_node_publish;
extern const struct csi_operation csi_node_release; /* NodeUnpublish and NodeUnstage */
extern const struct csi_operation csi_node_stats, csi_node_volume_health;

csi_answer_fn csi_plugin_info, csi_probe, csi_node_info, csi_inspect_health;
csi_answer_fn csi_plugin_capabilities, csi_controller_capabilities, csi_node_capabilities;
csi_answer_fn csi_validate_capabilities;
csi_answer_fn csi_list_volumes, csi_get_volume, csi_list_snapshots, csi_get_snapshot;
csi_answer_fn csi_group_capabilities, csi_get_group;
csi_answer_fn csi_offer_copy;
csi_answer_fn csi_list_health, csi_get_volume_health, csi_node_storage_health;

#endif
