/* SPDX-License-Identifier: Apache-2.0 */
/* Steps of pool_group_make for its members: records, and names. For group_make.c. */
#ifndef RINGVOL_POOL_GROUP_MEMBERS_H
#define RINGVOL_POOL_GROUP_MEMBERS_H

#include "reactor/op.h"

struct pool_group_make;
struct pool_group_part;

/* A step's error: "<what> group snapshot G in pool P"; 0 for 0. */
int group_fail_sys(struct op *op, int res, const char *what);
/* Its bytes are copied, and not shared; an unformatted one has none. */
bool group_is_copied(const struct pool_group_part *p);
bool group_copy_done(struct op *op); /* none is */
bool group_one_log(struct op *op);

int group_record_run(struct op *op);
int group_record_end(struct op *op, int res);
/* Each member has a name in the trash until it is linked. -errno: those before it have. Blocking.
 */
int group_park_all(struct pool_group_make *m);
bool group_park_done(struct op *op); /* or it was in another step */
int group_park_call(struct op *op);
int group_park_end(struct op *op, int res);
int group_park_undo(struct op *op);
bool group_data_done(struct op *op);
int group_data_run(struct op *op);
int group_data_end(struct op *op, int res);
int group_link_call(struct op *op);
int group_link_end(struct op *op, int res);
int group_link_undo(struct op *op);
int group_members_run(struct op *op);
int group_members_end(struct op *op, int res);

#endif
