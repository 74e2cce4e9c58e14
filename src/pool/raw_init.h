/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Making and growing a raw pool: the disks (disk/init.h) and the records on them. For commands.
 * Blocking.
 */
#ifndef RINGVOL_POOL_RAW_INIT_H
#define RINGVOL_POOL_RAW_INIT_H

#include "base/err.h"
#include "base/uuid.h"

#include <stdbool.h>
#include <stdint.h>

struct raw_made {
	bool existed; /* nothing was changed but, for a disk that has moved, its place */
	char uuid[UUID_BYTES];
	uint64_t area_bytes; /* what was added to the room for volumes */
	uint64_t records_bytes;
};

/* As disk_init_begin(). All of the area counts as never zeroed: it belongs to files in the trash,
 * whose overwriting makes it free (pool/trash.h). */
int raw_init(const char *device, const char *path, struct raw_made *ret, struct err *err);

/* As disk_grow_begin(). ERR_PRECONDITION: a driver serves the pool. */
int raw_grow(const char *path, const char *device, struct raw_made *ret, struct err *err);

#endif
