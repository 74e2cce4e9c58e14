/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the file system of a volume is, asked at one of its mounts by a helper process; what that
 * says of the volume's health is noted. Several volumes are asked by one call: kubelet asks for ten
 * at a time, and what such a call costs is the waking of processes, not the statfs. Those that ask
 * in one turn of the loop go together.
 *
 * One that hangs must not hold up the others: a volume known to hang is asked by itself, and a call
 * that is not back after NODE_STATS_BATCH_MS counts as not made; each member is then asked by
 * itself. So is a volume that somebody unmounts, who can wait for a call of its own and for no
 * other.
 */
#ifndef RINGVOL_NODE_STATS_H
#define RINGVOL_NODE_STATS_H

#include "mount/mnt.h"
#include "reactor/op.h"

struct node;

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

#endif
