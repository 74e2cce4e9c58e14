/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What nodes are told of each other: who has something, packed once for all of them. A node brings
 * it along when it joins a controller that has just started, which knows then who is missing.
 */
#ifndef RINGVOL_CONTROLLER_ROSTER_H
#define RINGVOL_CONTROLLER_ROSTER_H

#include "base/buf.h"
#include "controller/store.h"

/* A packed ControllerReport with the roster alone, in place of what `out` had. 0 or -ENOMEM. */
int roster_pack(const struct store *store, struct buf *out);

#endif
