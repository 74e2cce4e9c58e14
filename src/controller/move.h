/* SPDX-License-Identifier: Apache-2.0 */
/* ringvol.v1.Move: a volume changes its node and keeps its id. */
#ifndef RINGVOL_CONTROLLER_MOVE_H
#define RINGVOL_CONTROLLER_MOVE_H

#include "controller/route.h"

route_fn move_volume;
route_learn_fn learn_moved; /* of TakeVolume's answer, which becomes MoveVolume's */

#endif
