/* SPDX-License-Identifier: Apache-2.0 */
/* What the controller's operations share: parameters against records, paging, small checks. */
#ifndef RINGVOL_CSI_CONTROLLER_H
#define RINGVOL_CSI_CONTROLLER_H

#include "backends/backend.h"
#include "csi/fields.h"
#include "csi/task.h"
#include "node/volume.h"

/* ---- parameters ---- */

/* "namespace/name" of the Kubernetes object that this is made for, of kind "pvc" or
 * "volumesnapshot", as the sidecars' --extra-create-metadata names it; "" if they do not, or where
 * it is no such name. In the arena. */
const char *csi_params_claim(
	struct arena *arena, Csi__V1__StringPair **pairs, size_t n, const char *kind);
/* For requests whose parameters have no keys of ours: ERR_INVALID naming the first, except under
 * csi.storage.k8s.io/. */
int csi_params_check_none(Csi__V1__StringPair **pairs, size_t n, struct err *err);
/* The file system to make: the capability's, else the parameter's, else the source's (FSIMG_NONE:
 * there is no source), else ext4; FSIMG_NONE for block. ERR_INVALID: the two contradict each other,
 * or mkfsOptions do not suit it. */
int csi_params_choose_fs(const struct csi_params *params, const struct csi_access *access,
	enum fsimg_type source_fs, enum fsimg_type *ret, struct err *err);
/* 0 when an existing volume is what parameters and capabilities ask for; else ERR_EXISTS naming
 * what differs. */
int csi_params_compare(const struct csi_params *params, const struct csi_access *access,
	const struct pool_object *volume, struct err *err);

/* ---- controller_list.c ---- */

grpc_method_fn csi_list_volumes, csi_list_snapshots, csi_get_snapshot, csi_get_volume;
grpc_method_fn csi_list_health;

/* ---- health.c ---- */

grpc_method_fn csi_get_volume_health;
/* In `arena`; NULL when out of memory. */
Csi__V1__VolumeHealth *csi_health_message(
	struct arena *arena, const struct csi *csi, const struct pool_object *volume);

/* ---- objects.c ---- */

/* The start of an operation on what an id names: its key, where there is one in the id. */
void csi_lock_id(
	struct csi_task *task, enum node_lock_mode mode, enum record_kind kind, const char *id);
/* ERR_EXISTS naming a damaged object that has the name; 0 for a sound one. */
int csi_check_quarantine(const struct pool_object *object, const char *name, struct err *err);
/* The node ids where the volume is in use, and (1.12) its condition; for the two messages that
 * carry them. */
struct csi_usage {
	size_t n_nodes;
	ProtobufCBinaryData *nodes;
	Csi__V1__VolumeCondition *condition; /* NULL when it is not asked for (1.13) */
};
/* 0 or -ENOMEM. */
int csi_usage_fill(struct arena *arena, const struct csi *csi, const struct pool_object *volume,
	struct csi_usage *ret);

#endif
