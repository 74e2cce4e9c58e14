/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lists of the whole cluster, from what nodes have told. An entry is what its node packed; what an
 * absent node last told stays in. While it is not known who is missing, a list is UNAVAILABLE.
 */
#ifndef RINGVOL_CONTROLLER_LISTS_H
#define RINGVOL_CONTROLLER_LISTS_H

#include "controller/route.h"

enum {
	LISTS_PAGE_MAX = 4096,      /* entries, where the client leaves it open */
	LISTS_PAGE_BYTES = 3500000, /* then the page ends: GRPC_MESSAGE_MAX_BYTES is 4 MiB */
	LISTS_SCAN_MAX = 10000,     /* objects looked at for one page */
};

/* Of calls with GRPC_RAW: ListVolumes, ListSnapshots, ControllerListVolumeHealth. */
route_fn list_volumes, list_snapshots, list_health;

#endif
