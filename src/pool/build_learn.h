/* SPDX-License-Identifier: Apache-2.0 */
/* A name that is taken by a file that the index does not know: it is read into the index. For
 * build.c: waits of the current step. */
#ifndef RINGVOL_POOL_BUILD_LEARN_H
#define RINGVOL_POOL_BUILD_LEARN_H

#include "pool/build.h"

int build_learn_run(struct op *op);
void build_learn_end(struct pool_build *b, int res);

#endif
