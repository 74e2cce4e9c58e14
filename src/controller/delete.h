/* SPDX-License-Identifier: Apache-2.0 */
/* DeleteVolume, also of volumes that have moved. */
#ifndef RINGVOL_CONTROLLER_DELETE_H
#define RINGVOL_CONTROLLER_DELETE_H

#include "controller/route.h"

route_fn delete_volume;

#endif
