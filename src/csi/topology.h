/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where this node is, in segments: its own, CSI_TOPOLOGY_KEY, and those of --topology (a zone, a
 * rack). Volumes and snapshots are where the node is.
 */
#ifndef RINGVOL_CSI_TOPOLOGY_H
#define RINGVOL_CSI_TOPOLOGY_H

#include "base/arena.h"
#include "base/err.h"
#include "csi.pb-c.h"
#include "csi/csi.h"

#include <stdbool.h>

#define CSI_TOPOLOGY_KEY "topology.ringvol.dev/node"

/* Adds a segment to config->topology; the strings must outlive config. ERR_INVALID: key or value
 * can be no label of Kubernetes, the key is there already (as CSI compares them: without case) or
 * is the node's own, or all are too many. */
int csi_topology_add(
	struct csi_config *config, const char *key, const char *value, struct err *err);

/* All segments, in the arena; NULL: out of memory. */
Csi__V1__Topology *csi_topology_message(struct arena *arena, const struct csi *csi);

/* Whether every segment is one of this node's; NULL is everywhere. */
bool csi_topology_is_here(const Csi__V1__Topology *topology, const struct csi_config *config);
/* 0, or ERR_NO_ROOM: none of requisite is this node. */
int csi_check_topology(
	const Csi__V1__TopologyRequirement *req, const struct csi_config *config, struct err *err);

#endif
