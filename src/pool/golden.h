/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Golden images: snapshots that `ringvol import` made of what an operator has brought along, and
 * that classes and pods may name.
 *
 * The id of the volume that it is of says so: an import fills a volume of the name
 * "import.NAME.<8 hex digits>" (and ".fs" behind it, where a raw image became a file system), and
 * takes the snapshot NAME of it. Names of volumes and snapshots come from operators and sidecars
 * alone, so that no snapshot of a tenant's looks like one.
 */
#ifndef RINGVOL_POOL_GOLDEN_H
#define RINGVOL_POOL_GOLDEN_H

#include "pool/pool.h"

#define GOLDEN_IMPORT_PREFIX "import."

/* What is put before and behind it makes a file name, too. */
enum { GOLDEN_NAME_MAX = 40 };

/* A letter or digit, then letters, digits, '.', '_' and '-': its own key. */
bool golden_name_valid(const char *name);
/* Whether a snapshot of this key, taken of the volume of this id, is a golden image. */
bool golden_is(const char *key, const char *source_id);

/* The golden image of that name in the pools of this node; *ret NULL with 0: none of them has it.
 * ERR_PRECONDITION: two have, or what has the name is no golden image. ERR_DATA_LOSS: it is
 * quarantined. ERR_UNAVAILABLE: a pool that was not read yet may have it. */
int pools_find_golden(
	const struct pools *pools, const char *name, struct pool_object **ret, struct err *err);

#endif
