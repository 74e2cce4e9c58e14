/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inline volumes: a pod says in its own spec what it wants, and kubelet's NodePublishVolume brings
 * that in volume_context. Such a volume is an ordinary one whose record names its pod's directory
 * (record.owner). It is made by its publish, and deleted by its unpublish; node/sweep.h deletes
 * what a pod left that is gone.
 *
 * Its id is made by kubelet, and is its name.
 */
#ifndef RINGVOL_CSI_INLINE_H
#define RINGVOL_CSI_INLINE_H

#include "csi/volume_op.h"

/* A volume that is to be made. */
struct inline_make;

/* Whether the publish is of an inline volume. */
bool csi_inline_asked(const Csi__V1__NodePublishVolumeRequest *req);
/* Finds the volume, n->volume and what belongs to it; or plans it: *ret, in the task's arena.
 * ERR_PRECONDITION: the operator has not allowed it. */
int csi_inline_prepare(struct volume_op *n, const Csi__V1__NodePublishVolumeRequest *req,
	struct inline_make **ret, struct err *err);
/* The step that makes it: n->volume and what belongs to it. */
int csi_inline_make_run(struct op *op, struct inline_make *make);
int csi_inline_make_end(struct op *op, struct inline_make *make, int res);
/* NULL is legal. */
void csi_inline_make_free(struct inline_make *make);
/* What every mount of it has besides, whatever its pod asks for. ERR_INVALID: no room for it. */
int csi_inline_confine(struct csi_access *access, struct err *err);
/* Its removal has failed, after its unpublish. True: the sweep (node/sweep.h) does it later, as its
 * pool is away, or somebody else has its image open; the pod need not wait for that. */
bool csi_inline_left(struct op *op, const struct pool_object *volume);
/* Whether the path is its pod's. */
bool csi_inline_owns(const struct record *rec, const char *path);

#endif
