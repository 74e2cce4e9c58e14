/* SPDX-License-Identifier: Apache-2.0 */
/* How a build begins: whether the name is free in the pool, and a volume that moves in. For
 * build.c. */
#ifndef RINGVOL_POOL_BUILD_BEGIN_H
#define RINGVOL_POOL_BUILD_BEGIN_H

#include "pool/build.h"

int build_fail_exists(struct op *op);
/* The step "begin". */
int build_begin_run(struct op *op);
int build_begin_undo(struct op *op);
/* Whether copies/ has the part of a volume that moves in, and the build is not its: -EBUSY.
 * Blocking. For a build that has no part itself (build_part.h looks else). */
int build_check_part(const struct pool_build *b);
int build_fail_moving(struct op *op);
/* The volume has its name: one that moves in has arrived, or is back where it had left. */
void build_has_arrived(struct pool_build *b);
/* The step "forget departure": what a volume that is back had left. */
bool build_forget_done(struct op *op);
int build_forget_run(struct op *op);
int build_forget_end(struct op *op, int res);

#endif
