/* SPDX-License-Identifier: Apache-2.0 */
/* What `ringvol check` looks for in a pool. */
#ifndef RINGVOL_TOOLS_CHECK_POOL_H
#define RINGVOL_TOOLS_CHECK_POOL_H

#include "tools/check_findings.h"

/* Opens the pool, with its lock where no driver has it, and reads all of it. */
void check_pool(struct check *c, const char *name, const char *path);
void check_close(struct check *c);

#endif
