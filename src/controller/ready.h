/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a controller knows all that it has to. */
#ifndef RINGVOL_CONTROLLER_READY_H
#define RINGVOL_CONTROLLER_READY_H

#include "controller/controller.h"

/* 0, or ERR_UNAVAILABLE: draining, or not everybody who is known has joined. */
int ready_check(const struct controller *controller, struct err *err);

#endif
