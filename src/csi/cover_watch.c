/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One suspended cover at a time, in turns. Happy path: its volume is in no pool of this node, and
 * all of these are ready -> the parts are looked through for one of it, which says its key -> by
 * that the volume is locked -> once more, there is no finished part -> it is resumed.
 *
 * How it can fail: a part cannot be read, or somebody has the volume; then it is looked again. A
 * cover that no part and no call of this run tells of is not ours to resume: it stays, and the log
 * says so once.
 */
#include "csi/cover_watch.h"

#include "base/log.h"
#include "node/node.h"
#include "node/volume.h"
#include "pool/hold.h"
#include "pool/index.h"
#include "pool/part.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static struct csi_cover_watch *watch_of(struct op *op)
{
	return container_of(op, struct csi_cover_watch, op);
}

static void arm(struct csi_cover_watch *w)
{
	ring_timer_arm(w->csi->reactor->ring, &w->timer, CSI_COVERS_MS);
}

/* ---- looking for a part ---- */

static int look_job(void *arg)
{
	struct csi_cover_watch *w = arg;
	int found = 0;
	for (unsigned i = 0; i < w->n_pools && found >= 0 && !w->finished; i++) {
		int r = pool_part_find(
			w->copies_fds[i], w->pool_uuid8, w->random, w->key, &w->finished);
		found = r != 0 ? r : found;
	}
	return found;
}

static int look_run(struct op *op)
{
	struct csi_cover_watch *w = watch_of(op);
	const struct pool *pool;
	w->n_pools = 0;
	w->finished = false;
	for (unsigned i = 0; (pool = pools_at(w->csi->pools, i)) != NULL; i++) {
		int r = pool_check_ready(pool, &op->err);
		if (r < 0)
			return r;
		w->copies_fds[w->n_pools++] = pool_holds_fd(pool);
	}
	return op_work(op, look_job, w);
}

static struct borrowed *entry(const struct csi_cover_watch *w)
{
	return borrows_find(w->csi->borrows, w->tag);
}

static int look_end(struct op *op, int res)
{
	struct csi_cover_watch *w = watch_of(op);
	struct borrowed *one = entry(w);
	if (res < 0)
		return op_fail_sys(op, res, "looking for the part of a volume that moves here");
	if (one == NULL || !one->suspended || w->finished)
		return op_fail(op, ERR_PENDING, "it is gone on with");
	if (res == 0 && !one->ours)
		return op_fail(op, ERR_NOT_FOUND,
			"this driver knows of no move of it: if nobody else does, resume it with 'dmsetup resume'");
	return 0;
}

/* ---- nobody else works on it ---- */

static int lock_run(struct op *op)
{
	struct csi_cover_watch *w = watch_of(op);
	struct node_locks *locks = &w->csi->node->locks;
	node_lock_init(&w->lock, NODE_EXCLUSIVE, "volume", w->key);
	w->lock.what = "its device goes on after a move that was cut";
	if (node_lock_conflict(locks, &w->lock) != NULL)
		return op_fail(op, ERR_PENDING, "it is worked on");
	node_lock_take(locks, &w->lock);
	w->locked = true;
	return 0;
}

/* ---- it goes on ---- */

static int resume_run(struct op *op)
{
	struct csi_cover_watch *w = watch_of(op);
	cover_resume_init(&w->cover, w->csi, entry(w));
	return op_child(op, &w->cover.op);
}

static const struct op_step steps[] = {
	{"look for part", .run = look_run, .end = look_end},
	{"have alone", .run = lock_run},
	{"look again", .run = look_run, .end = look_end},
	{"resume", .run = resume_run},
	{NULL},
};

static void log_end(const struct csi_cover_watch *w, const struct op *op)
{
	struct borrowed *one = entry(w);
	if (!op_failed(op)) {
		log_event(LOG_LEVEL_INFO,
			"a volume of another node goes on after a move that was cut",
			log_fields({"tag", w->tag}));
	} else if (op->err.code != ERR_PENDING && (one == NULL || !one->told)) {
		log_event(LOG_LEVEL_WARN, "the device of a volume of another node is suspended",
			log_fields({"tag", w->tag}, {"error", op->err.message}));
		if (one != NULL)
			one->told = true;
	}
}

static void ended(struct op *op)
{
	struct csi_cover_watch *w = watch_of(op);
	log_end(w, op);
	if (w->locked)
		node_lock_release(&w->csi->node->locks, &w->lock);
	w->locked = false;
	if (!w->closed)
		arm(w);
}

/* ---- in turns ---- */

/* The first one that nobody else goes on with; the next time the others come first. */
static struct borrowed *next_of(const struct csi_cover_watch *w)
{
	struct borrows *b = w->csi->borrows;
	list_for_each (link, &b->all) {
		struct borrowed *one = container_of(link, struct borrowed, link);
		if (!one->suspended || csi_cover_own(w->csi, one) != NULL)
			continue;
		list_remove(&one->link);
		list_push(&b->all, &one->link);
		return one;
	}
	return NULL;
}

static void on_timer(struct ring_timer *timer)
{
	struct csi_cover_watch *w = container_of(timer, struct csi_cover_watch, timer);
	const struct borrowed *one = next_of(w);
	if (one == NULL) {
		arm(w);
		return;
	}
	(void)node_split_tag(one->tag, w->pool_uuid8, w->random); /* all covers' are so */
	memcpy(w->tag, one->tag, sizeof(w->tag));
	snprintf(w->key, sizeof(w->key), "%s", one->ours ? one->key : "");
	op_init(&w->op, w->csi->reactor, "cover_watch", steps, ended);
	op_start(&w->op);
}

void csi_cover_watch_open(struct csi_cover_watch *w, struct csi *csi)
{
	*w = (struct csi_cover_watch){.csi = csi};
	w->timer.fn = on_timer;
	arm(w);
}

void csi_cover_watch_close(struct csi_cover_watch *w)
{
	if (w->csi == NULL)
		return;
	w->closed = true;
	ring_timer_cancel(w->csi->reactor->ring, &w->timer);
}

bool csi_cover_watch_idle(const struct csi_cover_watch *w)
{
	return w->csi == NULL || !op_running(&w->op);
}
