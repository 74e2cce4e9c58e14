/* SPDX-License-Identifier: Apache-2.0 */
/* What quiesce.c and thaw.c have in common: both are steps over a struct node_quiesce. */
#ifndef RINGVOL_NODE_QUIESCE_PRIV_H
#define RINGVOL_NODE_QUIESCE_PRIV_H

#include "node/quiesce.h"

#define quiesce_of(op_ptr) container_of(op_ptr, struct node_quiesce, op)

/* Jobs have the pool's threads. */
void quiesce_op_init(struct node_quiesce *q, const char *name, const struct op_step *steps);
/* A call for this volume. Thaws go by a key of their own (thaw_key): no call that hangs may keep
 * them from being tried, and while one of them hangs no more are. */
int quiesce_call(struct op *op, enum mnt_call call, const char *key, uint64_t timeout_ms);
/* The message of one that failed; what: was tried. */
int quiesce_call_failed(struct op *op, int res, const char *what);
/* A descriptor or -errno. For work jobs: the volume's lock keeps key and directory as they are. */
int quiesce_open_image(const struct node_quiesce *q);
/* What calls are about from now on. */
void quiesce_set_path(struct node_quiesce *q, const char *path);
/* Device and path from memory. False when none is known, or it is a raw device's. */
bool quiesce_take_mount(struct node_quiesce *q);
bool quiesce_no_path(struct op *op);

/* ---- steps, all of thaw.c ---- */

/* The path is made one where the device is mounted, or the device's own where it is nowhere. */
bool quiesce_inspect_done(struct op *op);
int quiesce_inspect_run(struct op *op);
int quiesce_inspect_end(struct op *op, int res);
bool quiesce_find_done(struct op *op);
int quiesce_find_run(struct op *op);
int quiesce_find_end(struct op *op, int res);
/* Our mark on the image: seen, gone. */
int quiesce_look_run(struct op *op);
bool quiesce_unmarked(struct op *op);
int quiesce_unmark_run(struct op *op);
int quiesce_unmark_end(struct op *op, int res);
/* Again and again, as thaw.c says. */
int quiesce_thaw_run(struct op *op);
int quiesce_thaw_end(struct op *op, int res);

#endif
