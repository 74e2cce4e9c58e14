/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The open batch (csi->stats_open) and those under way, which belong to their helper call; one that
 * is over is kept for the next (csi->stats_spare).
 *
 * Happy path: the first to come opens a batch and posts its departure for the next turn -> others
 * of this turn join -> one helper call -> each member's step ends with its own result.
 * How it can fail: the call overstays, its helper dies or cannot be had: -EAGAIN for all members.
 * One alone is not worth a batch and gets -EAGAIN, too.
 */
#include "node/stats.h"

#include "node/health.h"
#include "node/mounts.h"
#include "node/node.h"
#include "node/volume.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

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
	       nv->health.hung_ns != 0 || node_hung_since(node, nv->volume) != 0;
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
	node_note(node, nv, NODE_FS_SHUT_DOWN, &health->shut_down_ns, info->shut_down);
	/* A read-only mount sees its file system as what it is, and cannot tell whether it was
	 * meant to be. */
	if (!mount->read_only)
		node_note(node, nv, NODE_FS_READ_ONLY, &health->read_only_ns, info->fs_read_only);
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
