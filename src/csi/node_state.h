/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is attached and mounted on this node, per volume (pool_object.node). Rebuilt at start from
 * the devices and mounts found, so it survives any restart; a hint only: node operations look at
 * the kernel before they act.
 */
#ifndef RINGVOL_CSI_NODE_STATE_H
#define RINGVOL_CSI_NODE_STATE_H

#include "backends/backend.h"
#include "csi/csi.h"

struct node_mount {
	struct list link;
	bool staging; /* made by NodeStage (unknown, false, after a restart) */
	bool read_only;
	bool single_writer; /* published as SINGLE_NODE_SINGLE_WRITER (unknown after a restart) */
	char path[];
};

struct node_volume {
	struct backend_dev dev;
	struct list mounts; /* node_mount: staging and publish paths alike */
	/* Since when (ring_now_ns) calls on it have overstayed, 0 when the last one ended in time.
	 * A helper that could be killed hangs no longer, but the volume is no better for it. */
	uint64_t overstayed_ns;
};

/* The volume's state, made when missing. NULL when out of memory. */
struct node_volume *node_volume_get(struct pool_object *volume);
/* NULL when nothing is attached. */
struct node_volume *node_volume_find(const struct pool_object *volume);
/* Forgets the state when nothing is attached any more. */
void node_volume_settle(struct pool_object *volume);
int node_volume_add_mount(
	struct node_volume *node, const char *path, bool read_only, bool single_writer);
void node_volume_remove_mount(struct node_volume *node, const char *path);
struct node_mount *node_volume_mount_at(const struct node_volume *node, const char *path);
void node_volume_free(struct node_volume *node);

/* "ringvol:<pool uuid8>:<random>" */
void node_volume_tag(const struct pool_object *volume, char ret_tag[64]);

#endif
