/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a build begins. Happy path: the pool is ready, nothing of that name is there, and none has
 * left (departure.h). A volume that comes back to where it left is let in, by its id and by having
 * moved once more; its note goes when it is there, durably. What is left of it counts no more, and
 * the next load takes it away.
 */
#include "pool/build_begin.h"

#include "pool/arrival.h"
#include "pool/build_part.h"
#include "pool/departure.h"
#include "pool/index.h"
#include "pool/private.h"

#include <string.h>

int build_fail_exists(struct op *op)
{
	const struct pool_build *b = pool_build_of(op);
	return op_fail(op, ERR_EXISTS, "%s already exists in pool %s", b->rec->name, b->pool->name);
}

int build_fail_moving(struct op *op)
{
	const struct pool_build *b = pool_build_of(op);
	return op_fail(op, ERR_UNAVAILABLE,
		"a move of volume %s to pool %s is under way: try again when it is over",
		b->rec->name, b->pool->name);
}

static bool comes_back(const struct pool_build *b, const struct pool_departure *d)
{
	char id[RECORD_ID_MAX];
	record_id_print(b->pool->uuid8, b->rec, id);
	return b->keeps_identity && d->why == NULL && strcmp(d->id, id) == 0 &&
	       b->rec->moves > d->moves;
}

static int check_departure(struct op *op)
{
	struct pool_build *b = pool_build_of(op);
	struct pool_departure *d =
		b->rec->kind == RECORD_VOLUME ? pool_departure_by_key(b->pool, b->rec->key) : NULL;
	if (d == NULL)
		return 0;
	if (!comes_back(b, d))
		return pool_departure_refuse(d, &op->err);
	b->departure = d;
	return 0;
}

int build_begin_run(struct op *op)
{
	struct pool_build *b = pool_build_of(op);
	struct pool *pool = b->pool;
	int r = pool_check_ready(pool, &op->err);
	if (r < 0)
		return r;
	if (!pool->probed)
		return op_fail(op, ERR_NO_ROOM,
			"pool %s has been too full since the driver started to find out what its file system can do: "
			"delete volumes or snapshots, or grow its file system",
			pool->name);
	if (b->keeps_identity && pool->raw != NULL)
		return op_fail(op, ERR_PRECONDITION,
			"pool %s is on raw disks, and no volume moves there", pool->name);
	r = check_departure(op);
	if (r < 0)
		return r;
	/* What has left and is not in the trash yet has the name on disk. */
	if (pool_index_find(pool, b->rec->kind, b->rec->key) != NULL)
		return build_fail_exists(op);
	if (pool->index[0].count + pool->index[1].count >= POOL_OBJECTS_MAX)
		return op_fail(op, ERR_NO_ROOM,
			"pool %s holds %d volumes and snapshots, which is the limit", pool->name,
			POOL_OBJECTS_MAX);
	return pool_op_begin(pool, &op->err);
}

int build_begin_undo(struct op *op)
{
	pool_op_finish(pool_build_of(op)->pool);
	return 0;
}

int build_check_part(const struct pool_build *b)
{
	return b->kind == RECORD_VOLUME && pool_part_is_finished(b->copies_fd, b->rec->key) ? -EBUSY
											    : 0;
}

/* ---- it was here before ---- */

void build_has_arrived(struct pool_build *b)
{
	if (b->departure != NULL)
		b->departure->back = true;
	if (b->keeps_identity && b->ret_object != NULL)
		pool_arrival_forget(b->pool, b->ret_object->key);
}

bool build_forget_done(struct op *op)
{
	return pool_build_of(op)->departure == NULL;
}

int build_forget_run(struct op *op)
{
	struct pool_build *b = pool_build_of(op);
	pool_departure_drop_init(&b->forget, op->reactor, b->departure);
	return op_child(op, &b->forget.op);
}

int build_forget_end(struct op *op, int res)
{
	(void)res;
	err_clear(&op->err);
	return 0;
}
