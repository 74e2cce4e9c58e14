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

#include "node/checkup.h"
#include "node/node.h"

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
		struct stats_member *member = container_of(link, struct stats_member, link);
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
		.timeout_ms = STATS_BATCH_MS,
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

bool stats_alone(const struct node *node, const struct node_volume *nv)
{
	return ring_now_ns(node->reactor->ring) < nv->alone_until_ns || nv->health.hung_ns != 0 ||
	       node_hung_since(node, nv->volume) != 0;
}

int stats_batch_join(struct node *node, struct stats_member *member, struct op *op,
	const char *path, struct mnt_info *ret_info)
{
	size_t path_bytes = strlen(path) + 1;
	struct stats_batch *batch =
		path_bytes > MNT_PATH_BYTES ? NULL : open_batch(node, path_bytes);
	if (batch == NULL)
		return -ENOMEM;
	int r = op_wait(op);
	if (r < 0)
		return r;
	*member = (struct stats_member){.op = op, .info = ret_info};
	memcpy(batch->req.paths + batch->path_bytes, path, path_bytes);
	batch->path_bytes += path_bytes;
	batch->req.count++;
	list_push(&batch->members, &member->link);
	return r;
}
