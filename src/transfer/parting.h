/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Volumes that have left this node, and whose images are still here: they could not go to the
 * trash, or another node used them over an export (still.h). The exports end, the device goes, and
 * then the image. Found by their departures, so that a restart of the driver changes nothing.
 */
#ifndef RINGVOL_TRANSFER_PARTING_H
#define RINGVOL_TRANSFER_PARTING_H

#include "transfer/transfer.h"

/* Goes on with one, if there is one and none is under way. */
void parting_look(struct transfer *transfer);
bool parting_idle(const struct transfer *transfer);
/* None is under way. */
void parting_free(struct transfer *transfer);

#endif
