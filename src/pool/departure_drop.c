/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Happy path: the note is unlinked, and the directory synced. How it can fail: with what these fail
 * with, and then the note counts as there, because a power loss may bring it back.
 */
#include "pool/departure_drop.h"

#include "pool/index.h"
#include "pool/private.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#define drop_of(op_ptr) container_of(op_ptr, struct pool_departure_drop, op)

struct pool_object *pool_departure_leftover(const struct pool_departure *d)
{
	struct pool_object *o = pool_index_find(d->pool, RECORD_VOLUME, d->key);
	return o != NULL && pool_entry(o)->left && pool_object_has_id(o, d->id) ? o : NULL;
}

static int drop_job(void *arg)
{
	const struct pool_departure_drop *d = arg;
	if (unlinkat(d->departed_fd, d->key, 0) < 0 && errno != ENOENT)
		return -errno;
	return fsync(d->departed_fd) < 0 ? -errno : 0;
}

static int drop_run(struct op *op)
{
	struct pool_departure_drop *d = drop_of(op);
	const struct pool *pool = d->departure->pool;
	int r = pool_check_ready(pool, &op->err);
	if (r < 0)
		return r;
	if (d->departure->why != NULL)
		return pool_departure_refuse(d->departure, &op->err);
	d->departed_fd = pool->fds[POOL_FD_DEPARTED];
	memcpy(d->key, d->departure->key, sizeof(d->key));
	return op_work(op, drop_job, d);
}

static int drop_end(struct op *op, int res)
{
	struct pool_departure_drop *d = drop_of(op);
	if (res < 0)
		return op_fail_sys(op, res, "taking away the note of %s in pool %s",
			d->departure->id, d->departure->pool->name);
	pool_departure_put_aside(d->departure);
	return 0;
}

static const struct op_step drop_steps[] = {
	{"unlink", .run = drop_run, .end = drop_end},
	{NULL},
};

void pool_departure_drop_init(
	struct pool_departure_drop *d, struct reactor *reactor, struct pool_departure *departure)
{
	*d = (struct pool_departure_drop){.departure = departure};
	op_init(&d->op, reactor, "departure_drop", drop_steps, NULL);
	d->op.lane = departure->pool->lane;
}
