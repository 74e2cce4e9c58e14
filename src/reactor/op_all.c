/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Children that run at once. Each counts down when it ends, and the last one ends the step. It
 * fails as its children do; which of several errors is told is up to whose end comes first.
 */
#include "reactor/op_all.h"

#include <errno.h>

static void end_one(struct op *op, struct op_all *all)
{
	if (--all->left > 0)
		return;
	if (all->res < 0 && op->phase != OP_UNDOING)
		op->err = all->err;
	op_complete(op, all->res);
}

static void on_end(struct op *child)
{
	struct op *op = child->parent;
	struct op_all *all = op->all;
	if (op_failed(child) && all->res == 0) {
		all->res = child->err.errnum > 0 ? -child->err.errnum : -EIO;
		all->err = child->err;
	}
	end_one(op, all);
}

int op_all(struct op *op, struct op_all *all, unsigned count,
	struct op *(*nth)(void *arg, unsigned i), void *arg)
{
	*all = (struct op_all){0};
	op->all = all;
	for (unsigned i = 0; i < count; i++) {
		struct op *child = nth(arg, i);
		if (child == NULL)
			continue;
		child->parent = op;
		child->on_end = on_end;
		if (child->lane == NULL)
			child->lane = op->lane;
		all->left++;
		op_start(child); /* it runs from the loop, when all are counted */
	}
	return all->left == 0 ? 0 : op_wait(op);
}
