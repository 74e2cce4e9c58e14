/* SPDX-License-Identifier: Apache-2.0 */
/*
 * When a thin pool is looked after (thin_steps.c has what is done then): at once when somebody
 * asks, and every THIN_LOOK_MS as long as it is there. Who wants it waits for the end of the
 * operation, and then has it, or the reason why not.
 */
#include "pool/thin_keep.h"

#include "base/fd.h"
#include "base/log.h"
#include "pool/private.h"
#include "pool/raw.h"
#include "pool/thin_steps.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { THIN_LOOK_MS = 5000 };

static bool is_wanted(const struct thin_keep *k)
{
	return !list_empty(&k->waiting);
}

/* Who waits looks for itself how it has ended. */
static void wake(struct thin_keep *k)
{
	struct list woken;
	list_init(&woken);
	list_splice(&woken, &k->waiting);
	for (struct list *l; (l = list_pop(&woken)) != NULL;)
		op_complete(container_of(l, struct thin_wait, link)->op, 0);
}

/* ---- when ---- */

static void start(struct thin_keep *k);

static void arm(struct thin_keep *k, uint64_t ms)
{
	if (!k->pool->pools->draining)
		ring_timer_arm(k->pool->pools->reactor->ring, &k->timer, ms);
}

/* Since when it is so. */
static void since(struct thin_keep *k)
{
	struct pool_thin *thin = thin_of(k);
	struct pool_thin_state state;
	uint64_t now = ring_now_ns(k->pool->pools->reactor->ring);
	pool_thin_state(k->pool, &state);
	thin->wrong_since_ns = !state.wrong                ? 0
			       : thin->wrong_since_ns != 0 ? thin->wrong_since_ns
							   : now;
	thin->short_since_ns = !state.low                  ? 0
			       : thin->short_since_ns != 0 ? thin->short_since_ns
							   : now;
}

static void tell(struct thin_keep *k)
{
	struct pool_thin *thin = thin_of(k);
	bool said = strcmp(thin->why, k->op.err.message) == 0;
	snprintf(thin->why, sizeof(thin->why), "%s", k->op.err.message);
	thin->why_code = k->op.err.code;
	if (op_failed(&k->op) && !said)
		log_event(LOG_LEVEL_DEBUG, "a thin pool cannot be kept",
			log_fields({"pool", k->pool->name}, {"why", thin->why}));
}

static void on_end(struct op *op)
{
	struct thin_keep *k = thin_keep_of(op);
	disk_unref(k->disk);
	k->disk = NULL;
	if (k->begun) {
		tell(k);
		since(k);
		pool_op_finish(k->pool);
	}
	k->begun = false;
	/* It was taken away while somebody came to want it. */
	if (!op_failed(op) && k->pool->raw != NULL && thin_of(k)->life != THIN_UP && is_wanted(k)) {
		start(k);
		return;
	}
	wake(k);
	if (k->pool->raw == NULL)
		return;
	if (k->again)
		arm(k, 0);
	else if (thin_of(k)->life != THIN_NONE)
		arm(k, THIN_LOOK_MS);
}

static void start(struct thin_keep *k)
{
	struct pool *pool = k->pool;
	ring_timer_cancel(pool->pools->reactor->ring, &k->timer);
	k->again = false;
	if (pool->raw == NULL || (thin_of(k)->life == THIN_NONE && !is_wanted(k)))
		return;
	op_init(&k->op, pool->pools->reactor, "thin_keep", thin_steps, on_end);
	k->op.lane = pool->lane;
	op_start(&k->op);
}

static void on_timer(struct ring_timer *timer)
{
	struct thin_keep *k = container_of(timer, struct thin_keep, timer);
	if (k->checks && k->pool->raw != NULL) {
		/* It may take minutes: who waits comes again. */
		thin_of(k)->checking = true;
		wake(k);
	}
	if (!op_running(&k->op) && !k->pool->pools->draining)
		start(k);
}

static struct thin_keep *keep_get(struct pool *pool)
{
	if (pool->thin_keep == NULL) {
		struct thin_keep *k = calloc(1, sizeof(*k));
		if (k == NULL)
			return NULL;
		k->pool = pool;
		k->timer.fn = on_timer;
		k->files.fd = -1;
		list_init(&k->waiting);
		pool->thin_keep = k;
	}
	return pool->thin_keep;
}

void thin_keep_kick(struct pool *pool)
{
	if (pool->raw == NULL || pool->pools->draining || !pool_loaded(pool))
		return;
	struct thin_keep *k = keep_get(pool);
	if (k == NULL)
		return; /* who waits asks again */
	if (op_running(&k->op))
		k->again = true;
	else if (thin_of(k)->life != THIN_NONE || is_wanted(k))
		start(k);
}

bool thin_keep_busy(const struct pool *pool)
{
	return pool->thin_keep != NULL && op_running(&pool->thin_keep->op);
}

void thin_keep_drain(struct pool *pool)
{
	struct thin_keep *k = pool->thin_keep;
	if (k == NULL)
		return;
	ring_timer_cancel(pool->pools->reactor->ring, &k->timer);
	wake(k);
}

void thin_keep_close(struct pool *pool)
{
	struct thin_keep *k = pool->thin_keep;
	if (k == NULL)
		return;
	ring_timer_cancel(pool->pools->reactor->ring, &k->timer);
	if (op_running(&k->op))
		return; /* a job that never ended has its memory still */
	if (pool->life == POOL_SERVED && pool->raw != NULL && pool->raw->thin.life == THIN_UP)
		thin_files_rest(pool->raw->disk, pool->fds[POOL_FD_THIN]);
	fd_close(&k->files.fd);
	free(k);
	pool->thin_keep = NULL;
}

/* ---- who wants it ---- */

static int refuse(struct op *op, const struct pool *pool)
{
	const struct pool_thin *thin = &pool->raw->thin;
	if (pool->pools->draining)
		return op_fail(op, ERR_UNAVAILABLE, "the driver shuts down; try again");
	if (thin->checking)
		return op_fail(op, ERR_UNAVAILABLE,
			"the metadata of the thin pool of pool %s are being checked after an unclean stop; try again",
			pool->name);
	return op_fail(op, thin->why[0] != '\0' ? thin->why_code : ERR_UNAVAILABLE, "%s",
		thin->why[0] != '\0' ? thin->why : "the thin pool is not active; try again");
}

/* One that takes no new volume is no use to who wants one. */
static int check_up(struct op *op, const struct pool *pool)
{
	const struct thin_status *status = &pool->raw->thin.status;
	if (!thin_is_wrong(&pool->raw->thin))
		return 0;
	return op_fail(op, ERR_UNAVAILABLE,
		"the thin pool of pool %s %s: see 'ringvol doctor' and the kernel log", pool->name,
		status->mode == THIN_FAILED ? "has failed"
					    : "is read-only, its metadata are full or damaged");
}

int thin_want(struct op *op, struct pool *pool, struct thin_wait *wait)
{
	int r = pool_check_ready(pool, &op->err);
	if (r < 0)
		return r;
	if (pool->raw->thin.life == THIN_UP && !thin_is_wrong(&pool->raw->thin))
		return 0;
	struct thin_keep *k = keep_get(pool);
	if (k == NULL)
		return op_fail_sys(op, -ENOMEM, "making a thin pool");
	if (pool->pools->draining || pool->raw->thin.checking)
		return refuse(op, pool);
	wait->op = op;
	list_push(&k->waiting, &wait->link);
	/* It may be past the step that looks who waits. */
	thin_keep_kick(pool);
	return op_wait(op);
}

int thin_want_end(struct op *op, struct pool *pool, struct thin_wait *wait, int res)
{
	(void)wait;
	if (res < 0)
		return res;
	int r = pool_check_ready(pool, &op->err);
	if (r < 0)
		return r;
	return pool->raw->thin.life == THIN_UP ? check_up(op, pool) : refuse(op, pool);
}

/* ---- who uses what is in it ---- */

bool thin_use_done(const struct pool_object *o)
{
	return o->pool->raw == NULL || o->rec == NULL || !pool_raw_has_id(o->rec);
}

int thin_use_end(struct op *op, struct pool *pool, struct thin_wait *wait, int res)
{
	(void)wait;
	if (res < 0)
		return res;
	int r = pool_check_ready(pool, &op->err);
	if (r < 0)
		return r;
	return pool->raw->thin.life == THIN_UP ? 0 : refuse(op, pool);
}
