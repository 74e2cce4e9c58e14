/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Using a volume from within this process, in calls of CSI's Node service: for those who serve
 * other protocols (docker, provider). Each is the run() of a step whose end() is
 * csi_own_call_end().
 */
#ifndef RINGVOL_CSI_OWN_USE_H
#define RINGVOL_CSI_OWN_USE_H

#include "csi.pb-c.h"
#include "csi/own_call.h"

#include <stdbool.h>

struct pool_object;

/* Users of this node share the volume. Static. */
Csi__V1__VolumeCapability *csi_own_capability(bool block);
/* The volume's id, in the arena. NULL, and the operation has failed: it is in quarantine. name is
 * what its user calls it. */
const char *csi_own_id(
	struct op *op, struct arena *arena, const struct pool_object *volume, const char *name);

struct csi_own_use {
	const char *id; /* NULL: the operation has failed, and so does the step */
	const char *stage_path, *target_path;
	bool block;
	bool staged; /* --staging on */
};
int csi_own_stage(struct csi_own_call *call, const struct csi_own_use *use);
int csi_own_publish(struct csi_own_call *call, const struct csi_own_use *use);
int csi_own_unpublish(struct csi_own_call *call, const struct csi_own_use *use);
int csi_own_unstage(struct csi_own_call *call, const struct csi_own_use *use);

#endif
