/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A look at a volume in use: whether its device is still what was attached, and how its file system
 * is. What is found goes to node_health. Looks are taken by the watch, by NodeGetVolumeHealth, and
 * in part by NodeGetVolumeStats, which asks the file system anyway.
 */
#ifndef RINGVOL_NODE_CHECKUP_H
#define RINGVOL_NODE_CHECKUP_H

#include "mount/mnt.h"
#include "node/stats.h"
#include "node/volume.h"

/* A child operation, or one by itself; lives until its end. A volume that hangs ends it well, after
 * NODE_STAT_TIMEOUT_MS at most. */
struct node_checkup {
	struct op op;
	struct node *node;
	char id[RECORD_ID_MAX]; /* the volume may go while we look */
	struct mnt_path_req path;
	const struct backend *backend; /* of the device: what it was, and is */
	struct backend_dev was, dev;
	struct mnt_info info;
	struct node_stats stats;
	struct mnt_try_req try_req;
	struct mnt_result result;
};
void node_checkup_init(
	struct node_checkup *look, struct node *node, const struct pool_object *volume);
/* The part that asks for the device: costs 10 us and does not wait. */
void node_check_device(struct node *node, struct node_volume *nv);

#endif
