/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The growth of a mounted file system ends with its log clean. After quick online growths the log
 * of XFS does not recover (Linux 6.1 to 7.2: "daddr out of range"): the volume mounts neither from
 * a copy taken then nor after a loss of power. Syncing does not help; a freeze and thaw does.
 *
 * Child operations for before and after MNT_GROW. Between them the image carries a mark and memory
 * knows (node_volume.grown): a copy of the volume then freezes it first, also in the next run of
 * the driver. The caller has locked the volume exclusively.
 */
#ifndef RINGVOL_NODE_CLEAN_LOG_H
#define RINGVOL_NODE_CLEAN_LOG_H

#include "node/quiesce.h"

struct node_clean_log {
	struct op op;
	struct node *node;
	struct pool_object *volume;
	int dirfd;   /* of its image */
	bool marked; /* by the operation before this growth: it is cleaned whatever this one does */
	bool dirty;  /* there is something to clean */
	struct node_quiesce quiesce;
};

/* Before the growth: thaws what an earlier attempt left frozen, where a growth would hang, and
 * marks the image. */
void node_clean_log_prepare_init(
	struct node_clean_log *c, struct node *node, struct pool_object *volume);
/* After it, by the same struct: sync, freeze, thaw, and the mark is gone. Nothing is frozen where
 * nothing has grown since the log was clean. Errors as node_quiesce_init(); then the mark stays,
 * and the repeat or the next copy cleans the log. */
void node_clean_log_init(struct node_clean_log *c, bool grown);

#endif
