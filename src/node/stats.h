/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Statistics of several volumes by one call to one helper process. kubelet asks for ten at a time,
 * and what such a call costs is the waking of processes, not the statfs. Calls that arrive in one
 * turn of the loop go together.
 *
 * One that hangs must not hold up the others: a volume known to hang is asked by itself, and a call
 * that is not back after STATS_BATCH_MS counts as not made; each member is then asked by itself.
 */
#ifndef RINGVOL_NODE_STATS_H
#define RINGVOL_NODE_STATS_H

#include "mount/mnt.h"
#include "node/volume.h"

enum { STATS_BATCH_MS = 50 };

/* Whether it is to be asked alone: a call on it may take long, as far as is known, or somebody
 * unmounts it, who can wait for a call of its own and for no other. */
bool stats_alone(const struct node *node, const struct node_volume *nv);

/* Embed it; lives until the step's end. */
struct stats_member {
	struct list link;
	struct op *op;
	struct mnt_info *info;
};

/* Waits for the current step of `op`. Its end gets what MNT_STATS of path gave, or -EAGAIN: to be
 * asked alone. -ENOMEM likewise, at once. */
int stats_batch_join(struct node *node, struct stats_member *member, struct op *op,
	const char *path, struct mnt_info *ret_info);

#endif
