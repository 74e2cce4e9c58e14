/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Making the keeper: look, create, load, swap in. Each can be repeated, by several drivers of a
 * node too, and each failure leaves what the next attempt goes on with.
 */
#include "backends/dm/keeper.h"

#include <errno.h>

#define KEEPER_UUID "RINGVOL-keeper"

int keeper_make(struct dm *dm)
{
	static const struct dm_target table = {.length_sectors = 8, .type = "error"};
	struct dm_device device;
	int r = dm_look(dm, KEEPER_UUID, &device);
	if (r == 0 && device.has_table && !device.suspended)
		return 0;
	if (r == -ENXIO)
		r = dm_create(dm, KEEPER_NAME, KEEPER_UUID, &device);
	if (r == 0)
		r = dm_load(dm, KEEPER_UUID, &table, 1, true);
	return r == 0 ? dm_resume(dm, KEEPER_UUID, &device) : r;
}
