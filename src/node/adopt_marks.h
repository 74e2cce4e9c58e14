/* SPDX-License-Identifier: Apache-2.0 */
/* Our marks on the image of a volume just adopted. */
#ifndef RINGVOL_NODE_ADOPT_MARKS_H
#define RINGVOL_NODE_ADOPT_MARKS_H

#include "node/adopt_part.h"

/* A part of the scan: thaws what a run cut short left frozen by our own hand, and knows the single
 * writers again. A volume without mounts has nothing to look for. */
void adopt_marks_start(struct adopt *a, struct pool_object *volume);

#endif
