/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ringvol.v1.Inspect says of each thing (proto/inspect.proto). Messages and all they point to
 * lie in the arena, but for what is the csi's or an object's own: pack them before the loop turns.
 */
#ifndef RINGVOL_CSI_INSPECT_ITEMS_H
#define RINGVOL_CSI_INSPECT_ITEMS_H

#include "attach/borrowed.h"
#include "csi/task.h"
#include "inspect.pb-c.h"

/* Each NULL when out of memory. */
Ringvol__V1__Driver *inspect_driver(struct arena *arena, const struct csi *csi);
Ringvol__V1__Pool *inspect_pool(
	struct arena *arena, const struct csi *csi, const struct pool *pool);
Ringvol__V1__Operation *inspect_operation(struct arena *arena, const struct csi_task *task);
Ringvol__V1__Volume *inspect_volume(struct arena *arena, const struct csi *csi,
	const struct pool_object *volume, bool histograms);
Ringvol__V1__Borrowed *inspect_borrowed(
	struct arena *arena, const struct csi *csi, const struct borrowed *from, bool histograms);
Ringvol__V1__Snapshot *inspect_snapshot(struct arena *arena, const struct pool_object *snapshot);
Ringvol__V1__Quarantined *inspect_quarantined(
	struct arena *arena, const struct pool_object *object);

#endif
