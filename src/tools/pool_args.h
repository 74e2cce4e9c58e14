/* SPDX-License-Identifier: Apache-2.0 */
/* Options that several tools take: --endpoint, and --pool as `ringvol serve` has it. */
#ifndef RINGVOL_TOOLS_POOL_ARGS_H
#define RINGVOL_TOOLS_POOL_ARGS_H

#include "base/arena.h"
#include "base/err.h"
#include "pool/pool.h"
#include "tools/inventory.h"

struct pool_args {
	struct arena *arena; /* holds the strings; the caller's */
	struct inventory_pool pools[POOLS_MAX];
	unsigned count;
};

/* "NAME=PATH[,...]", what follows the path is the driver's affair; or "PATH", whose name is its
 * last component. 0 or -EINVAL. */
int pool_args_add(struct pool_args *args, const char *value, struct err *err);

#define POOL_ARGS_HELP                                                                             \
	"a pool to read, as the driver has it; repeatable\n"                                       \
	"PATH alone does as well"

#endif
