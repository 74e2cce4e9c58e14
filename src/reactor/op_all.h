/* SPDX-License-Identifier: Apache-2.0 */
/* A step that runs several operations at once. */
#ifndef RINGVOL_REACTOR_OP_ALL_H
#define RINGVOL_REACTOR_OP_ALL_H

#include "reactor/op.h"

/* Embed it where the operation lives. */
struct op_all {
	unsigned left;
	int res;
	struct err err; /* of the first that failed */
};

/*
 * A wait (op.h): starts `count` operations, each already op_init()ed, its on_end replaced. The step
 * ends when all of them have ended, with the error of the first that failed; the others are not
 * cut short. nth: the i-th operation; NULL: there is none of that number. 0 if there is none at
 * all.
 */
int op_all(struct op *op, struct op_all *all, unsigned count,
	struct op *(*nth)(void *arg, unsigned i), void *arg);

#endif
