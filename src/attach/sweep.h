/* SPDX-License-Identifier: Apache-2.0 */
/* What earlier runs of the driver have left. Blocking. */
#ifndef RINGVOL_ATTACH_SWEEP_H
#define RINGVOL_ATTACH_SWEEP_H

#include "attach/calls.h"

/* ATTACH_SWEEP (calls.h). */
int attach_sweep(const struct attach_sweep_req *req, struct attach_sweep_info *info);

/* The cover of a volume's tag, of any driver's making: of what an earlier run left. Blocking, for
 * starts: no network is waited for. 0 or -errno. */
int attach_each_cover(
	void (*each)(void *arg, const char *tag, const struct attach_info *info), void *arg);

#endif
