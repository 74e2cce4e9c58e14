/* SPDX-License-Identifier: Apache-2.0 */
/* Devices that the data process before this one left. Each operation is tried again until it
 * succeeds. */
#ifndef RINGVOL_BACKENDS_UBLK_DEV_RECOVER_H
#define RINGVOL_BACKENDS_UBLK_DEV_RECOVER_H

#include "backends/ublk/ublk_dev.h"

/* RECOVERING: to LIVE, or to its end when there is nothing to recover. */
void ublk_dev_recover(struct ublk_dev *dev);
/* FOUND, without a state file: ended if it is ours, else forgotten. */
void ublk_dev_look(struct ublk_dev *dev);

#endif
