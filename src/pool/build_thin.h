/* SPDX-License-Identifier: Apache-2.0 */
/* What a build of a thin image in a raw pool does beside: an id of the thin pool. For build.c. */
#ifndef RINGVOL_POOL_BUILD_THIN_H
#define RINGVOL_POOL_BUILD_THIN_H

#include "pool/build.h"

/* The step "id": the thin pool is there and active, and gives an id. Undone, the id is free again,
 * unless a file has it: that is in the trash then. */
bool build_id_done(struct op *op);
int build_id_run(struct op *op);
int build_id_end(struct op *op, int res);
int build_id_undo(struct op *op);

/* The step "template": what has a file system and no source is a snapshot of a template in the thin
 * pool (thin_template.h). */
bool build_template_done(struct op *op);
int build_template_run(struct op *op);
int build_template_end(struct op *op, int res);

/* It is a snapshot or clone in the thin pool, or has a template there: one message, and no bytes.
 */
bool build_snaps(const struct pool_build *b);
/* Calls of the trip that opens the file: it gets a name in the trash, durable, then dm-thin is
 * told; then, of a build that writes, a device. Undone, the file is a deleted image. The first
 * one's end is build_park.h's. */
bool build_not_thin(struct op *op);
int build_hold_call(struct op *op);
int build_hold_undo(struct op *op);
int build_say_call(struct op *op);
int build_say_end(struct op *op, int res);
bool build_device_done(struct op *op);
int build_device_call(struct op *op);
int build_device_end(struct op *op, int res);
int build_device_undo(struct op *op);

/* What was written is durable, and the device goes (thin_fill_leave()). Blocking. */
int build_thin_flush(struct pool_build *b);

#endif
