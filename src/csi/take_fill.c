/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fill of a volume that moves here. Happy path: the part gets the image of the grant, while the
 * volume may be in use -> if it is in use here, it gets later images until little has changed
 * (take_pass.c) -> this node lets nobody else at it; if it is in use here, its cover is
 * suspended (cover.h) -> the volume is held still, and what has changed since is pulled, too -> the
 * part is finished, durably: from then on nothing takes it away -> the volume leaves the other node
 * (the commit) -> the build has what it was then.
 *
 * How it can fail: as the pull. Of a part that is finished, or may be, only that the volume has not
 * left lets go. Its cover stays suspended until then: what is written through it would be lost if
 * the volume has left.
 */
#include "csi/take.h"

#include "pool/index.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* ---- nobody else has it ---- */

int take_lock(struct op *op, struct take *k)
{
	struct node_locks *locks = &k->task.csi->node->locks;
	if (k->locked)
		return 0;
	node_lock_init(&k->lock, NODE_EXCLUSIVE, "volume", k->key);
	k->lock.what = "it is moving to this node";
	const struct node_lock *other = node_lock_conflict(locks, &k->lock);
	if (other != NULL)
		return op_fail(op, ERR_UNAVAILABLE,
			"volume %s is worked on by another call on this node%s%s: try again",
			k->name, other->what != NULL ? ": " : "",
			other->what != NULL ? other->what : "");
	node_lock_take(locks, &k->lock);
	k->locked = true;
	return 0;
}

void take_unlock(struct take *k)
{
	if (k->locked)
		node_lock_release(&k->task.csi->node->locks, &k->lock);
	k->locked = false;
}

/* ---- what it is here ---- */

struct record *take_record(const struct take *k, const struct record *there)
{
	struct record_id id;
	struct record rec = *there;
	(void)record_id_parse(k->task.id, &id); /* it has been parsed before */
	rec.born = strcmp(id.pool, pool_uuid8(k->pool)) == 0 ? "" : id.pool;
	rec.moves++;
	rec.shares_extents = false;
	rec.family = "";
	return record_new(&rec);
}

/* ---- the fill ---- */

static struct take *take_of_fill(struct op *op)
{
	return container_of(op, struct take, fill);
}

static bool fill_finished(struct op *op)
{
	return take_of_fill(op)->finished;
}

static bool fill_begins(struct op *op)
{
	return !take_of_fill(op)->finished;
}

static int settle_job(void *arg)
{
	const struct take *k = arg;
	return fsync(k->fd) < 0 || fsync(k->copies_fds[0]) < 0 ? -errno : 0;
}

/* Whoever has finished the part may have failed to make it durable. */
static int settle_run(struct op *op)
{
	struct take *k = take_of_fill(op);
	k->copies_fds[0] = pool_holds_fd(k->pool);
	return op_work(op, settle_job, k);
}

static int settle_end(struct op *op, int res)
{
	const struct take *k = take_of_fill(op);
	return res == 0 ? 0
			: op_fail_sys(op, res, "making the copy of %s durable in pool %s", k->name,
				  pool_name(k->pool));
}

static int pull_run(struct op *op)
{
	struct take *k = take_of_fill(op);
	pull_read_init(&k->pull, &k->build, k->fd);
	return op_child(op, &k->pull.op);
}

/* In use here, and not in a pool of this node. */
static struct borrowed *cover_of_fill(struct op *op)
{
	const struct take *k = take_of_fill(op);
	struct borrowed *one = csi_cover_of(k->task.csi, k->task.id);
	return one != NULL && !one->local ? one : NULL;
}

/* Where nobody here waits for the end of it, it is not hurried. */
static bool caught_up(struct op *op)
{
	return fill_finished(op) || cover_of_fill(op) == NULL;
}

static int catch_up_run(struct op *op)
{
	return take_catch_up_run(op, take_of_fill(op));
}

static int catch_up_end(struct op *op, int res)
{
	return take_catch_up_end(op, take_of_fill(op), res);
}

static int alone_run(struct op *op)
{
	struct take *k = take_of_fill(op);
	k->part.keep = true;
	return take_lock(op, k);
}

static int alone_undo(struct op *op)
{
	take_unlock(take_of_fill(op));
	return 0;
}

static bool suspend_done(struct op *op)
{
	return fill_finished(op) || cover_of_fill(op) == NULL;
}

static int suspend_run(struct op *op)
{
	struct take *k = take_of_fill(op);
	k->pull.suspended = true;
	k->part.stays = true; /* it tells the next run of the driver whose cover this is */
	return cover_suspend(op, &k->cover, k->task.csi, cover_of_fill(op), k->key);
}

static int suspend_end(struct op *op, int res)
{
	return cover_suspend_end(op, &take_of_fill(op)->cover, res);
}

static bool goes_on(struct op *op)
{
	const struct borrowed *one = cover_of_fill(op);
	return one == NULL || !one->suspended;
}

static int go_on_run(struct op *op)
{
	struct take *k = take_of_fill(op);
	cover_resume_init(&k->cover, k->task.csi, cover_of_fill(op));
	return op_child(op, &k->cover.op);
}

/* Where the part may be finished it stays as it is. */
static int suspend_undo(struct op *op)
{
	return take_of_fill(op)->finished || goes_on(op) ? 0 : go_on_run(op);
}

static int still_run(struct op *op)
{
	struct take *k = take_of_fill(op);
	k->part.keep = true;
	pull_still_init(&k->pull);
	return op_child(op, &k->pull.op);
}

static int still_end(struct op *op, int res)
{
	struct take *k = take_of_fill(op);
	if (res < 0)
		return res;
	if (!k->pull.still)
		return op_fail(op, ERR_UNAVAILABLE,
			"%.250s, on node %.60s: it is copied, and moves when nobody uses it",
			k->pull.used_by, k->offer.node_id);
	k->attached = k->pull.attached;
	if (k->pull.suspended && k->attached.mode == 0)
		return op_fail(op, ERR_UNAVAILABLE,
			"volume %s is in use on this node, and is attached to it no more: it moves when nobody uses it",
			k->name);
	return 0;
}

static int spoil_run(struct op *op)
{
	return take_spoil(op, take_of_fill(op));
}

static int spoil_end(struct op *op, int res)
{
	return take_spoil_end(op, take_of_fill(op), res);
}

static int changed_run(struct op *op)
{
	struct take *k = take_of_fill(op);
	pull_changed_init(&k->pull, &k->build, k->fd);
	return op_child(op, &k->pull.op);
}

static int changed_end(struct op *op, int res)
{
	struct take *k = take_of_fill(op);
	k->part.keep = res == 0;
	if (res < 0)
		return res;
	struct record *rec = take_record(k, k->pull.still_rec);
	if (rec == NULL)
		return op_fail(op, ERR_NO_ROOM, "out of memory");
	record_free(k->rec);
	k->rec = rec;
	struct take_text told = {
		.offer = k->offer, .since = k->pull.since, .attached = k->attached};
	memcpy(told.from, k->pull.from, sizeof(told.from));
	k->text_len = take_text_print(&told, k->text);
	return k->text_len < 0 ? op_fail_sys(op, (int)k->text_len, "noting what %s is", k->name)
			       : 0;
}

static int finish_job(void *arg)
{
	struct take *k = arg;
	return fsync(k->fd) < 0 ? -errno
				: pool_part_finish(k->copies_fds[0], k->fd, k->rec, k->text,
					  (size_t)k->text_len);
}

static int finish_run(struct op *op)
{
	struct take *k = take_of_fill(op);
	k->copies_fds[0] = pool_holds_fd(k->pool);
	k->finished = true;
	return op_work(op, finish_job, k);
}

/* Whatever fails from here on, the node goes on with it by itself. */
static int finish_end(struct op *op, int res)
{
	struct take *k = take_of_fill(op);
	/* Where a cover waits for it, also with what may be finished. */
	bool wanted = res == 0 || k->attached.mode != 0;
	int r = wanted ? pool_arrival_add(k->pool, k->key, k->text, (size_t)k->text_len) : 0;
	if (res < 0)
		return settle_end(op, res);
	return r < 0 ? op_fail(op, ERR_NO_ROOM, "out of memory") : 0;
}

static int leave_run(struct op *op)
{
	struct take *k = take_of_fill(op);
	const struct borrowed *one = cover_of_fill(op);
	k->part.keep = true;
	/* Somebody has written to it meanwhile, if it has not left. No number is that one. */
	if (one != NULL && !one->suspended)
		k->pull.since = 0;
	pull_leave_init(&k->pull, pool_uuid8(k->pool));
	return op_child(op, &k->pull.op);
}

static bool left_done(struct op *op)
{
	return take_of_fill(op)->pull.left;
}

static int unfinish_job(void *arg)
{
	return pool_part_unfinish(((const struct take *)arg)->fd);
}

/* It is still where it was, and may have changed: the part is worth nothing. */
static int unfinish_run(struct op *op)
{
	return op_work(op, unfinish_job, take_of_fill(op));
}

static int unfinish_end(struct op *op, int res)
{
	struct take *k = take_of_fill(op);
	if (res < 0)
		return op_fail_sys(op, res, "letting go of a copy of %s", k->name);
	k->finished = false;
	pool_arrival_forget(k->pool, k->key);
	return 0;
}

/* What was suspended in vain, by this call or an earlier one. */
static bool left_or_goes_on(struct op *op)
{
	return left_done(op) || goes_on(op);
}

static int stays_run(struct op *op)
{
	struct take *k = take_of_fill(op);
	k->part.keep = k->part.stays = false;
	return op_fail(op, ERR_UNAVAILABLE,
		"volume %s has not left node %.100s (%.150s): it is copied anew; try again",
		k->name, k->offer.node_id, k->pull.used_by);
}

/* What it was when it left. */
static int identity_run(struct op *op)
{
	struct take *k = take_of_fill(op);
	struct record *made = record_new(k->rec);
	if (made == NULL)
		return op_fail(op, ERR_NO_ROOM, "out of memory");
	record_free(k->build.rec);
	k->build.rec = made;
	if (k->attached.mode == 0)
		return 0;
	const struct attachment own = {
		.node = k->task.csi->config.node_id,
		.mode = k->attached.mode,
		.block = k->attached.block,
		.read_only = k->attached.read_only,
		.export = "",
		.key = "",
	};
	k->build.attachments = attachments_with(NULL, &own);
	return k->build.attachments == NULL ? op_fail(op, ERR_NO_ROOM, "out of memory") : 0;
}

static const struct op_step fill_steps[] = {
	{"make part durable", .run = settle_run, .end = settle_end, .done = fill_begins},
	{"pull", .run = pull_run, .done = fill_finished},
	{"catch up", .run = catch_up_run, .end = catch_up_end, .done = caught_up},
	{"have alone", .run = alone_run, .undo = alone_undo},
	{"suspend", .run = suspend_run, .end = suspend_end, .undo = suspend_undo,
		.done = suspend_done},
	{"hold still", .run = still_run, .end = still_end, .done = fill_finished},
	{"note that it changes", .run = spoil_run, .end = spoil_end, .done = fill_finished},
	{"pull what changed", .run = changed_run, .end = changed_end, .done = fill_finished},
	{"finish part", .run = finish_run, .end = finish_end, .done = fill_finished},
	{"leave", .run = leave_run},
	{"let part go", .run = unfinish_run, .end = unfinish_end, .done = left_done},
	{"go on", .run = go_on_run, .done = left_or_goes_on},
	{"stay there", .run = stays_run, .done = left_done},
	{"identity", .run = identity_run},
	{NULL},
};

int take_fill(struct op *op, int dst_fd, void *arg)
{
	struct take *k = arg;
	k->fd = dst_fd;
	op_init(&k->fill, op->reactor, "take_fill", fill_steps, NULL);
	k->fill.lane = pool_lane(k->pool);
	return op_child(op, &k->fill);
}
