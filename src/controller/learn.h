/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What answers tell: a list that follows a create has what was created, before its node reports it.
 * Each looks at a forward whose node has answered OK; what does not fit the store is left to the
 * node's reports.
 */
#ifndef RINGVOL_CONTROLLER_LEARN_H
#define RINGVOL_CONTROLLER_LEARN_H

#include "base/err.h"
#include "controller/route.h"

/* Whether a create's answer has an id of the name that was asked for, in a pool of the node. Else
 * ERR_INTERNAL; ERR_UNAVAILABLE: no node has told of the pool yet. Both name the node. */
int learn_check_made(const struct forward *f, struct err *err);
route_learn_fn learn_made;  /* CreateVolume, CreateSnapshot */
route_learn_fn learn_gone;  /* DeleteVolume, DeleteSnapshot */
route_learn_fn learn_grown; /* ControllerExpandVolume */

#endif
