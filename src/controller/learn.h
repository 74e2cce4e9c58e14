/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What answers tell: a list that follows a create has what was created, before its node reports it.
 * Each looks at a forward whose node has answered OK; what does not fit the store is left to the
 * node's reports.
 */
#ifndef RINGVOL_CONTROLLER_LEARN_H
#define RINGVOL_CONTROLLER_LEARN_H

#include "controller/route.h"

route_learn_fn learn_made;  /* CreateVolume, CreateSnapshot */
route_learn_fn learn_gone;  /* DeleteVolume, DeleteSnapshot */
route_learn_fn learn_grown; /* ControllerExpandVolume */

#endif
