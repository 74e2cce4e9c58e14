/* SPDX-License-Identifier: Apache-2.0 */
/* What is known of the I/O limits of one volume in use: nv->limit. limits.h keeps it true. */
#ifndef RINGVOL_NODE_LIMIT_H
#define RINGVOL_NODE_LIMIT_H

#include "base/list.h"
#include "node/cgroup.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

struct node_volume;
struct op;

struct node_limit {
	struct list link; /* of all limited volumes: looked at longest ago first */
	struct node_volume *nv;
	bool busy;           /* a look is under way */
	struct op *waiting;  /* an operation that has the volume alone waits for its end */
	uint64_t looked_ns;  /* 0: as soon as may be */
	uint64_t missing_ns; /* since when a pod's cgroup is waited for; 0: none is */
	/* Pods whose cgroups may have a line for the device. */
	char (*pods)[CGROUP_POD_BYTES];
	unsigned pod_count;
	char why[384]; /* why the limits are not in force; "": they are */
};

/* NULL is legal. */
static inline void node_limit_free(struct node_limit *limit)
{
	if (limit == NULL)
		return;
	list_remove(&limit->link);
	free(limit->pods);
	free(limit);
}

#endif
