/* SPDX-License-Identifier: Apache-2.0 */
/* What the process does with itself while copies are under way. */
#ifndef RINGVOL_TRANSFER_BULK_H
#define RINGVOL_TRANSFER_BULK_H

#include "transfer/transfer.h"

/* After a change of stats.sends or stats.pulls. */
void bulk_counted(struct transfer *transfer);

#endif
