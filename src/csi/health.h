/* SPDX-License-Identifier: Apache-2.0 */
/* A volume's health as CSI 1.13 tells it. */
#ifndef RINGVOL_CSI_HEALTH_H
#define RINGVOL_CSI_HEALTH_H

#include "base/arena.h"
#include "csi.pb-c.h"
#include "csi/csi.h"
#include "node/health.h"

/* In `arena`; NULL when out of memory. */
Csi__V1__VolumeHealth *csi_health_message(
	struct arena *arena, const struct csi *csi, const struct pool_object *volume);

/* The same of conditions that are known. */
Csi__V1__VolumeHealth *csi_health_of(struct arena *arena, const char *id,
	const struct node_condition *conditions, unsigned count);

#endif
