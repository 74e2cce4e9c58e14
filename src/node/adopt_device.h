/* SPDX-License-Identifier: Apache-2.0 */
/* What a scan does with one device that it has found. Each starts a part of the scan. */
#ifndef RINGVOL_NODE_ADOPT_DEVICE_H
#define RINGVOL_NODE_ADOPT_DEVICE_H

#include "node/adopt_part.h"

/* One whose volume is gone. */
void adopt_clear_start(struct adopt *a, const struct pool *pool, const struct backend_dev *found);
/* Brings the volume's image to the data process that serves the device. */
void adopt_resume_start(
	struct adopt *a, const struct pool_object *volume, const struct backend_dev *found);
/* Lets one go on that a run cut short has left suspended, and looks for our marks then. volume
 * NULL: nobody knows it, so that no operation has suspended it. */
void adopt_wake_start(struct adopt *a, const struct pool *pool, const struct pool_object *volume,
	const struct backend_dev *found);

#endif
