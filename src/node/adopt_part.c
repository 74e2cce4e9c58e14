/* SPDX-License-Identifier: Apache-2.0 */
/* Owns the count of a scan's parts under way. Happy path: new -> start -> over, and the last one
 * ends the scan's step. How it can fail: without memory a part is left out, and the scan fails. */
#include "node/adopt_part.h"

#include "node/node.h"
#include "pool/pool.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

void adopt_part_over(struct adopt *a)
{
	if (--a->pending == 0)
		op_complete(&a->op, a->res);
}

void *adopt_part_new(struct adopt *a, size_t size)
{
	void *memory = calloc(1, size);
	if (memory == NULL)
		a->res = -ENOMEM;
	else
		a->pending++;
	return memory;
}

void adopt_part_start(struct adopt *a, struct op *op, const struct pool *pool, const char *name,
	const struct op_step *steps, void (*on_end)(struct op *op))
{
	op_init(op, a->node->reactor, name, steps, on_end);
	op->lane = pool_lane(pool);
	op_start(op);
}

void adopt_part_share(struct adopt *a, struct node_lock *lock, const char *key, const char *what)
{
	bool shared = node_lock_share_volume(&a->node->locks, lock, key, what);
	assert(shared);
	(void)shared;
}
