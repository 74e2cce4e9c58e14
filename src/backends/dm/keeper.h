/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The keeper: one small device-mapper device of ours that stays on the node. All devices of the
 * device mapper share caches of the kernel's, which come with the first and go with the last one.
 * The first creation and the last removal wait for grace periods, 15 to 50 ms (Linux 6.12, by a
 * clock that counts instructions; scripts/vm/bench.sh dm). With a keeper no guard is the first or
 * the last. It serves no sector: its table is one `error` target. `dmsetup remove ringvol-keeper`
 * takes it away.
 */
#ifndef RINGVOL_BACKENDS_DM_KEEPER_H
#define RINGVOL_BACKENDS_DM_KEEPER_H

#include "backends/dm/dm.h"

#define KEEPER_NAME "ringvol-keeper"

/* Makes what is missing of it. 0 or -errno; -EBUSY: its name is another's. Without one everything
 * works, more slowly. Synchronous, for work jobs. */
int keeper_make(struct dm *dm);

#endif
