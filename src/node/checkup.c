/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checking up on one volume in use.
 *
 * Happy path: the device by sysfs, and what it is bound to -> the file system by a helper, at one
 * of its mounts -> what was found goes to memory, and what has changed is logged. How it can fail:
 * the helper's call hangs, which is a finding; the volume goes meanwhile, and nothing is left to
 * say.
 *
 * The helper's call has a key of its own (node_stats_key): it must not wait behind a sync or an
 * unmount that writes back for a minute, and be taken for hanging.
 *
 * Calls go in batches: the first to come opens one (node->stats_open) and posts its departure for
 * the next turn -> others of this turn join -> one helper call -> each member's step ends with its
 * own result. A batch that is over is kept for the next (node->stats_spare). How it can fail: the
 * call overstays, its helper dies or cannot be had: -EAGAIN for all members. One alone is not worth
 * a batch and gets -EAGAIN, too.
 */
#include "node/checkup.h"

#include "blockio/blkdev.h"
#include "node/health.h"
#include "node/node.h"
#include "node/owner.h"
#include "pool/index.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- asking a file system ---- */

struct stats_batch {
	struct node *node;
	struct ring_req departure;
	struct helper_call call;
	struct list members;
	size_t path_bytes;
	struct mnt_many_req req;
	struct mnt_many_info infos[MNT_MANY_MAX];
};

static void end_all(struct stats_batch *batch, bool answered)
{
	struct node *node = batch->node;
	for (unsigned i = 0; !list_empty(&batch->members); i++) {
		struct list *link = list_pop(&batch->members);
		struct node_stats *member = container_of(link, struct node_stats, link);
		if (answered)
			*member->info = batch->infos[i].info;
		op_complete(member->op, answered ? batch->infos[i].res : -EAGAIN);
	}
	if (node->stats_spare == NULL)
		node->stats_spare = batch;
	else
		free(batch);
}

static void on_answer(struct helper_call *call, int res)
{
	struct stats_batch *batch = container_of(call, struct stats_batch, call);
	end_all(batch, res == 0 && call->resp_len == batch->req.count * sizeof(batch->infos[0]));
}

static void on_departure(struct ring_req *req, int res, uint32_t flags)
{
	(void)res;
	(void)flags;
	struct stats_batch *batch = container_of(req, struct stats_batch, departure);
	if (batch->node->stats_open == batch)
		batch->node->stats_open = NULL;
	batch->call = (struct helper_call){
		.fn = MNT_STATS_MANY,
		.req = &batch->req,
		.req_len = offsetof(struct mnt_many_req, paths) + batch->path_bytes,
		.resp = batch->infos,
		.resp_cap = batch->req.count * sizeof(batch->infos[0]),
		.timeout_ms = NODE_STATS_BATCH_MS,
		.on_end = on_answer,
	};
	if (batch->req.count == 1 ||
		helpers_submit(batch->node->reactor->helpers, &batch->call) < 0)
		end_all(batch, false);
}

static struct stats_batch *open_batch(struct node *node, size_t path_bytes)
{
	struct stats_batch *batch = node->stats_open;
	if (batch != NULL && batch->req.count < MNT_MANY_MAX &&
		path_bytes <= sizeof(batch->req.paths) - batch->path_bytes)
		return batch;
	batch = node->stats_spare != NULL ? node->stats_spare : malloc(sizeof(*batch));
	if (batch == NULL)
		return NULL;
	node->stats_spare = NULL;
	batch->node = node;
	batch->departure = (struct ring_req){.fn = on_departure};
	batch->path_bytes = 0;
	batch->req.count = 0;
	list_init(&batch->members);
	ring_post(node->reactor->ring, &batch->departure, 0);
	node->stats_open = batch;
	return batch;
}

/* -ENOMEM: it is to be asked alone. */
static int join_batch(struct op *op, struct node_stats *stats)
{
	const char *path = stats->path->path;
	size_t path_bytes = strlen(path) + 1;
	struct stats_batch *batch =
		path_bytes > MNT_PATH_BYTES ? NULL : open_batch(stats->node, path_bytes);
	if (batch == NULL)
		return -ENOMEM;
	int r = op_wait(op);
	if (r < 0)
		return r;
	stats->op = op;
	memcpy(batch->req.paths + batch->path_bytes, path, path_bytes);
	batch->path_bytes += path_bytes;
	batch->req.count++;
	list_push(&batch->members, &stats->link);
	return r;
}

static int ask_alone(struct op *op, struct node_stats *stats)
{
	stats->batched = false;
	node_stats_key(stats->id, stats->key);
	return op_helper(op, MNT_STATS, stats->key, stats->path, sizeof(*stats->path), stats->info,
		sizeof(*stats->info), NODE_STAT_TIMEOUT_MS);
}

/* A call on it may take long, as far as is known, or somebody unmounts it. */
static bool has_to_be_alone(const struct node *node, const struct node_volume *nv)
{
	return nv == NULL || ring_now_ns(node->reactor->ring) < nv->alone_until_ns ||
	       nv->health.since_ns[NODE_HANGING] != 0 || node_hung_since(node, nv->volume) != 0;
}

/* Judges an answer for the file system mounted at `path`: res of the helper call. */
static void note_fs(struct node *node, struct node_volume *nv, const char *path, int res,
	const struct mnt_info *info)
{
	struct node_health *health = &nv->health;
	const struct node_mount *mount = node_volume_mount_at(nv, path);
	bool here =
		res == 0 && mount != NULL && !info->is_block && node_info_is_dev(info, &nv->dev);
	health->looked_ns = ring_now_ns(node->reactor->ring);
	if (!here)
		return;
	node_note(node, nv, NODE_FS_SHUT_DOWN, info->shut_down);
	/* A read-only mount sees its file system as what it is, and cannot tell whether it was
	 * meant to be. */
	if (!mount->read_only)
		node_note(node, nv, NODE_FS_READ_ONLY, info->fs_read_only);
}

int node_stats_run(struct op *op, struct node_stats *stats)
{
	memset(stats->info, 0, sizeof(*stats->info));
	stats->batched = !has_to_be_alone(stats->node, node_volume_by_id(stats->node, stats->id));
	int r = stats->batched ? join_batch(op, stats) : -ENOMEM;
	return r == -ENOMEM ? ask_alone(op, stats) : r;
}

int node_stats_end(struct op *op, struct node_stats *stats, int res)
{
	if (stats->batched && res == -EAGAIN)
		return ask_alone(op, stats);
	struct node_volume *nv = node_volume_by_id(stats->node, stats->id);
	/* Of a block volume nothing was asked that its device answers: that is left to a checkup.
	 */
	if (nv != NULL && (res == -ETIMEDOUT || !stats->is_block))
		node_note_hanging(stats->node, nv, res == -ETIMEDOUT);
	if (nv != NULL && !stats->is_block)
		note_fs(stats->node, nv, stats->path->path, res, stats->info);
	return res;
}

/* ---- looking at a device ---- */

void node_check_device(struct node *node, struct node_volume *nv)
{
	struct node_health *health = &nv->health;
	struct blkdev dev = {0}, above;
	uint32_t major, minor;
	backend_dev_below(&nv->dev, &major, &minor);
	int r = blkdev_look(major, minor, &dev);
	if (r == 0 && nv->dev.below_major != 0) {
		r = blkdev_look(nv->dev.major, nv->dev.minor, &above);
		if (r == 0 && above.size_bytes == 0)
			r = -ENOENT;
	}
	if (r < 0 && r != -ENOENT)
		return;
	if (nv->detaching)
		return;
	bool gone = r == -ENOENT || dev.size_bytes == 0 || health->other_file ||
		    (health->seq != 0 && health->seq != dev.seq);
	if (health->seq == 0)
		health->seq = dev.seq;
	node_note(node, nv, NODE_DEVICE_GONE, gone);
}

/* ---- the operation ---- */

static struct node_checkup *checkup_of(struct op *op)
{
	return container_of(op, struct node_checkup, op);
}

static struct node_volume *node_of(const struct node_checkup *c)
{
	return node_volume_by_id(c->node, c->id);
}

static bool device_done(struct op *op)
{
	return node_of(checkup_of(op)) == NULL;
}

static int device_run(struct op *op)
{
	struct node_checkup *c = checkup_of(op);
	node_check_device(c->node, node_of(c));
	return 0;
}

/* The number may be bound anew, or to another file; only the device itself tells. */
static bool image_done(struct op *op)
{
	const struct node_volume *nv = node_of(checkup_of(op));
	return nv == NULL || nv->detaching || backend_get(nv->volume->rec->device) == NULL ||
	       backend_get(nv->volume->rec->device)->look == NULL;
}

static int image_job(void *arg)
{
	struct node_checkup *c = arg;
	return c->backend->look(c->backend, &c->was, &c->dev);
}

static int image_run(struct op *op)
{
	struct node_checkup *c = checkup_of(op);
	const struct node_volume *nv = node_of(c);
	c->backend = backend_get(nv->volume->rec->device);
	c->was = nv->dev;
	op->lane = pool_lane(nv->volume->pool);
	return op_work(op, image_job, c);
}

static int image_end(struct op *op, int res)
{
	struct node_checkup *c = checkup_of(op);
	struct node_volume *nv = node_of(c);
	op->lane = NULL; /* the calls that follow are no pool's */
	/* What was let go or attached meanwhile is not what was looked at. */
	if (nv == NULL || nv->detaching || nv->dev.major != c->was.major ||
		nv->dev.minor != c->was.minor || (res < 0 && res != -ENXIO))
		return 0;
	nv->health.other_file = res == 0 && !backend_dev_serves(&c->dev, nv->volume->image_dev,
						    nv->volume->image_ino);
	if (res == -ENXIO)
		node_note(c->node, nv, NODE_DEVICE_GONE, true);
	else
		node_check_device(c->node, nv);
	return 0;
}

static bool fs_done(struct op *op)
{
	return checkup_of(op)->path.path[0] == '\0';
}

static int fs_run(struct op *op)
{
	int r = node_stats_run(op, &checkup_of(op)->stats);
	return r == -EAGAIN ? 0 : r; /* no helper to be had: another time */
}

static int fs_end(struct op *op, int res)
{
	return node_stats_end(op, &checkup_of(op)->stats, res) == OP_PENDING ? OP_PENDING : 0;
}

/* Whatever comes of it, the probes have seen it. Without a file system to ask it also tells whether
 * the volume still hangs. */
static bool read_done(struct op *op)
{
	const struct node_volume *nv = node_of(checkup_of(op));
	return nv == NULL || nv->health.other_file ||
	       !(nv->health.try_read || (fs_done(op) && nv->health.since_ns[NODE_HANGING] != 0));
}

static int read_run(struct op *op)
{
	struct node_checkup *c = checkup_of(op);
	struct node_volume *nv = node_of(c);
	nv->health.try_read = false;
	snprintf(c->try_req.device, sizeof(c->try_req.device), "%s", nv->dev.path);
	int r = op_helper(op, MNT_TRY_READ, c->stats.key, &c->try_req, sizeof(c->try_req),
		&c->result, sizeof(c->result), NODE_STAT_TIMEOUT_MS);
	return r == -EAGAIN ? 0 : r;
}

static int read_end(struct op *op, int res)
{
	struct node_checkup *c = checkup_of(op);
	struct node_volume *nv = node_of(c);
	if (nv == NULL)
		return 0;
	if (res == -ETIMEDOUT || fs_done(op))
		node_note_hanging(c->node, nv, res == -ETIMEDOUT);
	if (fs_done(op))
		nv->health.looked_ns = ring_now_ns(c->node->reactor->ring);
	return 0;
}

static const struct op_step checkup_steps[] = {
	{"device", .done = device_done, .run = device_run},
	{"image", .done = image_done, .run = image_run, .end = image_end},
	{"file system", .done = fs_done, .run = fs_run, .end = fs_end},
	{"read", .done = read_done, .run = read_run, .end = read_end},
	{NULL},
};

void node_checkup_init(struct node_checkup *c, struct node *node, const struct pool_object *volume)
{
	const struct node_volume *nv = node_volume_find(volume);
	const struct node_mount *mount = nv == NULL ? NULL : node_volume_best_mount(nv);
	*c = (struct node_checkup){.node = node};
	c->stats =
		(struct node_stats){.node = node, .id = c->id, .path = &c->path, .info = &c->info};
	pool_object_id(volume, c->id);
	node_stats_key(c->id, c->stats.key);
	if (mount != NULL && node_volume_has_fs(volume))
		snprintf(c->path.path, sizeof(c->path.path), "%s", mount->path);
	op_init(&c->op, node->reactor, "look", checkup_steps, NULL);
}
