/* SPDX-License-Identifier: Apache-2.0 */
/* A device is made, grown, limited and ended. Each operation ends by itself and wakes the requests
 * that wait for it. */
#ifndef RINGVOL_BACKENDS_UBLK_DEV_LIFE_H
#define RINGVOL_BACKENDS_UBLK_DEV_LIFE_H

#include "backends/ublk/ublk_dev.h"

/* ATTACHING: to LIVE, or, when it fails, to its end. */
void ublk_dev_attach(struct ublk_dev *dev);
/* RESIZING: to LIVE. */
void ublk_dev_resize(struct ublk_dev *dev);
/* Likewise, with dev->limits in force. */
void ublk_dev_limit(struct ublk_dev *dev);
/* DETACHING or ENDING: tried again until nothing is left of the device. */
void ublk_dev_end(struct ublk_dev *dev);
/* LIVE or RECOVERING, to DETACHING. A device in use goes back where it was, and on_in_use goes on
 * with it; NULL: nothing does. */
void ublk_dev_end_if_unused(struct ublk_dev *dev, void (*on_in_use)(struct ublk_dev *dev));

#endif
