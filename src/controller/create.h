/* SPDX-License-Identifier: Apache-2.0 */
/* CreateVolume and CreateSnapshot: names, placement, and content that another node has. */
#ifndef RINGVOL_CONTROLLER_CREATE_H
#define RINGVOL_CONTROLLER_CREATE_H

#include "controller/route.h"

route_fn create_volume, create_snapshot;

#endif
