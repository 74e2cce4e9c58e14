/* SPDX-License-Identifier: Apache-2.0 */
/* The step by which a volume goes, or a snapshot: pool_remove, again while somebody looks at a
 * device that was just cleared. */
#ifndef RINGVOL_CSI_REMOVAL_H
#define RINGVOL_CSI_REMOVAL_H

#include "pool/remove.h"
#include "reactor/op.h"

struct csi_removal {
	struct pool_object *object;
	struct pool_remove remove;
	unsigned attempts;
	bool paused;
};

/* run() and end() of the step. */
int csi_removal_run(struct op *op, struct csi_removal *removal);
int csi_removal_end(struct op *op, struct csi_removal *removal, int res);

#endif
