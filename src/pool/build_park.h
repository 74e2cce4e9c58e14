/* SPDX-License-Identifier: Apache-2.0 */
/* The name that the image of a build has in the trash before it has its key. For build.c and what a
 * build in a raw pool does beside. */
#ifndef RINGVOL_POOL_BUILD_PARK_H
#define RINGVOL_POOL_BUILD_PARK_H

#include "pool/build.h"

/* Draws the name. */
void build_name_parked(struct pool_build *b);
/* Gives it to the image of a raw pool, durably, with size and map. Blocking; arg: the build. */
int build_park_job(void *arg);
/* The end of the step, or call, that does so. */
int build_park_end(struct op *op, int res);
/* Takes it away. An image that somebody may have written to, or that dm-thin knows, becomes a
 * deleted one instead: b->dropped. Blocking. */
int build_unpark(struct pool_build *b, bool used);

#endif
