/* SPDX-License-Identifier: Apache-2.0 */
/* GetCapacity's question, for whoever asks it. */
#ifndef RINGVOL_CSI_GET_CAPACITY_H
#define RINGVOL_CSI_GET_CAPACITY_H

#include "base/arena.h"
#include "csi.pb-c.h"
#include "csi/csi.h"
#include "csi/params.h"
#include "pool/room.h"
#include "reactor/op.h"

/* A child operation, or started by itself. It fails for want of memory alone. */
struct csi_capacity {
	struct op op;
	/* private */
	struct arena *arena;
	struct csi_params params;
	enum fsimg_type fs;
	struct pool *pool; /* NULL: nothing can be made here */
	struct pool_measure measure;
	Csi__V1__GetCapacityResponse *response;
};

/* The request is checked (csi_check_request()); it, the arena and the response, which is filled,
 * live as long as the operation. ERR_INVALID: parameters that no node understands. */
int csi_capacity_init(struct csi_capacity *c, const struct csi *csi, struct arena *arena,
	const Csi__V1__GetCapacityRequest *req, Csi__V1__GetCapacityResponse *response,
	struct err *err);

#endif
