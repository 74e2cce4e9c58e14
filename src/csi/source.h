/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a clone, a restore or a snapshot is made from: finding it, holding it still, its bytes as a
 * fill for pool_build, and stopping a long copy. Shared by create_volume.c and create_snapshot.c.
 */
#ifndef RINGVOL_CSI_SOURCE_H
#define RINGVOL_CSI_SOURCE_H

#include "csi/quiesce.h"
#include "csi/task.h"

struct csi_source {
	struct csi *csi;
	struct pool_object *object;
	bool share;  /* by sharing extents, not by a copy */
	bool parked; /* shutting down: the copy is to stop */
	struct csi_quiesce quiesce;
	struct pool_clone clone;
};

/* Locks what the id names: shared, but exclusive for a volume that has, or may have, to be held
 * still. */
void csi_source_lock(struct csi_task *task, enum record_kind kind, const char *id);
/* ERR_DATA_LOSS for one whose image is gone or cut short: nothing is acknowledged of it. */
int csi_check_whole(const struct pool_object *object, struct err *err);
/* Finds and checks it. thick: the target's. Errors as pools_find_id(), ERR_UNAVAILABLE, and
 * ERR_DATA_LOSS (its image is short). */
int csi_source_find(struct csi_source *source, struct csi *csi, enum record_kind kind,
	const char *id, bool thick, struct err *err);
/* Room that sharing takes beyond the new object's own size: blocks of the source's that may be
 * needed a second time once it is written to. */
uint64_t csi_source_shared_room(const struct csi_source *source);

/* For steps: before and after the build. release is the undo of hold as well. */
int csi_source_hold(struct op *op, struct csi_source *source);
int csi_source_release(struct op *op, struct csi_source *source);
/* Instead of all these where what was to be built is there already: the attempt that built it may
 * have left the volume of that id frozen. */
int csi_source_leftover(struct op *op, struct csi_source *source, struct csi *csi, const char *id);
/* Makes the source's bytes the build's. */
void csi_source_fill(struct csi_source *source, struct pool_build *build);
/* The end of the build's step. */
int csi_source_end(struct op *op, const struct csi_source *source, int res);
/* Stops a copy, also one that has not begun. */
void csi_source_park(struct csi_source *source);
/* Bytes looked at and in all; false while nothing is copied. */
bool csi_source_progress(const struct csi_source *source, uint64_t *ret_done, uint64_t *ret_total);

#endif
