/* SPDX-License-Identifier: Apache-2.0 */
/* What a build in a raw pool does beside: pieces of the disks for the image. For build.c. */
#ifndef RINGVOL_POOL_BUILD_RAW_H
#define RINGVOL_POOL_BUILD_RAW_H

#include "pool/build.h"

/* The step "pieces": takes them, and waits for zeros if need be. Undone, it gives them back unless
 * something was written to them: then the trash has them. */
bool build_pieces_done(struct op *op);
int build_pieces_run(struct op *op);
int build_pieces_end(struct op *op, int res);
int build_pieces_undo(struct op *op);

/* The step "park", of a build that writes: the image gets a name in the trash, durable. Undone, it
 * loses it, or where something was written becomes a deleted image. Its end is build_park.h's. */
bool build_park_done(struct op *op);
int build_park_run(struct op *op);
int build_park_undo(struct op *op);

/* What the disks keep in caches. Blocking; arg: the build. */
int build_flush_job(void *arg);

#endif
