/* SPDX-License-Identifier: Apache-2.0 */
/* Groups of snapshots: where they are made, and what a controller learns of their members. */
#ifndef RINGVOL_CONTROLLER_GROUPS_H
#define RINGVOL_CONTROLLER_GROUPS_H

#include "controller/route.h"

/* CreateVolumeGroupSnapshot: goes to the node that has the pools of all its volumes. */
route_fn create_group;
/* The members of a group that was made, or is gone. */
route_learn_fn learn_group, learn_group_gone;

#endif
