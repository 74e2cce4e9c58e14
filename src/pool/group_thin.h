/* SPDX-License-Identifier: Apache-2.0 */
/* Steps of pool_group_make in a raw pool, where members are ids of the thin pool. For group_make.c.
 */
#ifndef RINGVOL_POOL_GROUP_THIN_H
#define RINGVOL_POOL_GROUP_THIN_H

#include "reactor/op.h"

struct pool_group_make;
struct pool_group_part;

/* The pool is not a raw one. */
bool group_no_thin(struct op *op);
/* The thin pool is there and active, and gives an id for each member that has bytes. */
int group_ids_run(struct op *op);
int group_ids_end(struct op *op, int res);
int group_ids_undo(struct op *op);
/* A file without blocks, with its id, or of an unformatted one with no piece. Blocking. */
int group_thin_open(const struct pool_group_make *m, const struct pool_group_part *p);
/* Every file has its id and a name in the trash, durable, before dm-thin hears of any. Undone, they
 * are deleted images. */
int group_keep_call(struct op *op);
int group_keep_end(struct op *op, int res);
int group_keep_undo(struct op *op);
/* All origins are held still, and dm-thin is told of all members. Blocking. */
int group_say(struct pool_group_make *m);
int group_say_end(struct op *op, int res);

#endif
