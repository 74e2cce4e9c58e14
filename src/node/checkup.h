/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The checkup of a volume in use: whether its device is still what was attached, and how its file
 * system is. What is found is noted in its node_health. The watch checks up, NodeGetVolumeHealth
 * does, and NodeGetVolumeStats in part, which asks the file system anyway.
 *
 * A file system is asked at one of its mounts by a helper process. Several volumes are asked by one
 * call: kubelet asks for ten at a time, and what such a call costs is the waking of processes, not
 * the statfs. Those that ask in one turn of the loop go together. One that hangs must not hold up
 * the others: a volume known to hang is asked by itself, and a call that is not back after
 * NODE_STATS_BATCH_MS counts as not made; each member is then asked by itself. So is a volume that
 * is being unmounted: the unmount can wait for a call of its own and for no other.
 */
#ifndef RINGVOL_NODE_CHECKUP_H
#define RINGVOL_NODE_CHECKUP_H

#include "mount/mnt.h"
#include "node/volume.h"

enum { NODE_STATS_BATCH_MS = 50 };

/* Embed it; lives until the step's end. */
struct node_stats {
	struct node *node;
	const char *id; /* the volume's, which may go meanwhile */
	const struct mnt_path_req *path;
	struct mnt_info *info; /* out */
	bool is_block; /* the path is a block volume's node, which its health is not asked of */
	/* private */
	char key[HELPER_KEY_BYTES];
	struct list link; /* its batch's */
	struct op *op;
	bool batched;
};

/* A step's run: what op_helper() answers. */
int node_stats_run(struct op *op, struct node_stats *stats);
/* The step's end: OP_PENDING when it is asked once more, by itself; else what the call came to,
 * which has been noted. */
int node_stats_end(struct op *op, struct node_stats *stats, int res);

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
void node_checkup_init(struct node_checkup *c, struct node *node, const struct pool_object *volume);
/* The part that asks for the device: costs 10 us and does not wait. */
void node_check_device(struct node *node, struct node_volume *nv);

#endif
