/* SPDX-License-Identifier: Apache-2.0 */
/* A build's part: a file that has a name before its volume has. */
#ifndef RINGVOL_POOL_BUILD_PART_H
#define RINGVOL_POOL_BUILD_PART_H

#include "pool/build.h"

/* The fill of a part has just synced it, and has seen what it has allocated: what it has is no
 * longer free, and no longer to come. */
void pool_build_measured(struct pool_build *b, uint64_t allocated_bytes);

/* ---- for build.c: its step ---- */

static inline struct pool_build *pool_build_of(struct op *op)
{
	return container_of(op, struct pool_build, op);
}
bool build_part_done(struct op *op);
int build_part_run(struct op *op);
int build_part_end(struct op *op, int res);
int build_part_undo(struct op *op);
/* Blocking: the image's attribute is b->attachments. A part may have those of an attempt cut short,
 * which go. */
int build_part_attachments(const struct pool_build *b);

#endif
