/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A look at a volume in use: whether its device is still what was attached, and how its file system
 * is. What is found goes to node_health. Looks are taken by the watch, by NodeGetVolumeHealth, and
 * in part by NodeGetVolumeStats, which asks the file system anyway.
 */
#ifndef RINGVOL_CSI_LOOK_H
#define RINGVOL_CSI_LOOK_H

#include "blockio/mnt.h"
#include "csi/node_state.h"
#include "csi/stats_batch.h"

/* A child operation, or one by itself; lives until its end. A volume that hangs ends it well, after
 * CSI_STAT_TIMEOUT_MS at most. */
struct csi_look {
	struct op op;
	struct csi *csi;
	char id[RECORD_ID_MAX]; /* the volume may go while we look */
	char key[HELPER_KEY_BYTES];
	struct mnt_path_req path;
	const struct backend *backend; /* of the device: what it was, and is */
	struct backend_dev was, dev;
	bool batched;
	struct stats_member member;
	struct mnt_info info;
	struct mnt_try_req try_req;
	struct mnt_result result;
};
void csi_look_init(struct csi_look *look, struct csi *csi, const struct pool_object *volume);
/* The key of its helper calls and of those for statistics: another call with it begins when none of
 * them is under way. */
void csi_look_key(const char *id, char ret_key[HELPER_KEY_BYTES]);
/* Since when (ring_now_ns) a call on the volume has been hanging, of an operation or of a look; 0
 * if none is. */
uint64_t csi_hung_since(const struct csi *csi, const struct pool_object *volume);

/* The part that asks for the device: costs 10 us and does not wait. */
void csi_look_device(struct csi *csi, struct node_volume *node);
/* The part that judges an answer for the file system mounted at `path`: res of the helper call. */
void csi_look_fs(struct csi *csi, struct node_volume *node, const char *path, int res,
	const struct mnt_info *info);

#endif
