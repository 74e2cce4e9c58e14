/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Happy path: the caller alone uses the volume, over an export -> the volume is locked -> it gets
 * another grant for the same node -> the lock is let go. A repeated call gets the same one, as long
 * as nothing of it was read.
 *
 * How it can fail: another call works on the volume, this one among them; an image from before is
 * still being read; and as making any grant does. There is none to be had where the caller does not
 * use the volume, where there is no room, where the volume has another size by now, and where its
 * file system does not say which blocks two images share: then both would be read whole for each
 * pass.
 */
#include "transfer/renew.h"

#include "blockio/extents.h"
#include "cluster.pb-c.h"
#include "pool/index.h"
#include "transfer/grant.h"
#include "transfer/still.h"

#include <stdlib.h>
#include <string.h>

struct renew {
	struct op op;
	struct transfer *transfer;
	struct grpc_call *call;
	struct pool_hold *hold; /* the earlier one; this counts as a reader of it */
	struct node_lock lock;
	bool locked, making;
	struct grant_make make;
};

#define renew_of(op_ptr) container_of(op_ptr, struct renew, op)

/* ---- the steps ---- */

static bool can_compare(const struct pool_hold *hold, const struct pool_object *volume)
{
	const struct fs_features *features = pool_features(hold->pool);
	return hold->shares && features->reflink && extents_comparable(features->fs_type) &&
	       node_can_share(volume, false);
}

/* Of this move, one that was dropped while it was read: it has its blocks until that ends. */
static bool is_held_up(const struct pool_hold *hold)
{
	for (struct pool_hold *h = NULL; (h = pool_hold_next(hold->pool, h)) != NULL;)
		if (h->dropped && h->move && strcmp(h->source_id, hold->source_id) == 0 &&
			strcmp(h->node_id, hold->node_id) == 0)
			return true;
	return false;
}

static int lock_run(struct op *op)
{
	struct renew *n = renew_of(op);
	struct node *node = n->transfer->node;
	const struct pool_hold *hold = n->hold;
	struct pool_object *volume;
	if (hold->dropped)
		return op_fail(op, ERR_UNAVAILABLE, "the grant was closed meanwhile");
	int r = pools_find_id(node->pools, RECORD_VOLUME, hold->source_id, &volume, &op->err);
	if (r < 0)
		return r;
	if (!still_is_lent(volume, hold->node_id))
		return op_fail(op, ERR_PRECONDITION,
			"volume %s is not used by node %s alone, over an export: it is copied as it was when it was granted",
			hold->volume_name, hold->node_id);
	if (!can_compare(hold, volume))
		return op_fail(op, ERR_PRECONDITION,
			"pool %s does not say in what two images of volume %s differ: it is not copied pass by pass",
			pool_name(hold->pool), hold->volume_name);
	if (record_image_bytes(volume->rec) != record_image_bytes(hold->rec))
		return op_fail(op, ERR_PRECONDITION,
			"volume %s has grown since it was granted: ask for another grant",
			hold->volume_name);
	if (is_held_up(hold))
		return op_fail(op, ERR_UNAVAILABLE,
			"an earlier image of volume %s is still being read", hold->volume_name);
	node_lock_init(&n->lock, NODE_EXCLUSIVE, "volume", hold->rec->key);
	n->lock.what = "it is copied to another node";
	const struct node_lock *other = node_lock_conflict(&node->locks, &n->lock);
	if (other != NULL)
		return op_fail(op, ERR_UNAVAILABLE, "volume %s is worked on by another call%s%s",
			hold->volume_name, other->what != NULL ? ": " : "",
			other->what != NULL ? other->what : "");
	node_lock_take(&node->locks, &n->lock);
	n->locked = true;
	return 0;
}

static int grant_run(struct op *op)
{
	struct renew *n = renew_of(op);
	grant_make_init(
		&n->make, n->transfer, n->hold->source_id, n->hold->node_id, n->hold->volume_name);
	n->make.move = true;
	n->make.renews = n->hold;
	n->making = true;
	return op_child(op, &n->make.op);
}

static const struct op_step renew_steps[] = {
	{"lock", .run = lock_run},
	{"grant", .run = grant_run},
	{NULL},
};

/* ---- the method ---- */

static void renew_free(struct renew *n)
{
	if (n->locked)
		node_lock_release(&n->transfer->node->locks, &n->lock);
	if (n->making)
		grant_make_free(&n->make);
	grant_let_go(n->transfer, n->hold);
	free(n);
}

static void renew_ended(struct op *op)
{
	struct renew *n = renew_of(op);
	Ringvol__V1__RenewCopyResponse response = RINGVOL__V1__RENEW_COPY_RESPONSE__INIT;
	struct grpc_call *call = n->call;
	char grant[POOL_GRANT_BYTES];
	strcpy(grant, n->make.grant);
	response.grant = (ProtobufCBinaryData){strlen(grant), (uint8_t *)grant};
	bool failed = op_failed(op);
	struct err err = op->err;
	bool none = err.code == ERR_PRECONDITION || err.code == ERR_NO_ROOM;
	enum grpc_status status = none ? GRPC_FAILED_PRECONDITION : GRPC_UNAVAILABLE;
	renew_free(n); /* who hears of it may ask for the volume at once */
	if (failed)
		grpc_end(call, status, err.message);
	else
		grpc_reply(call, &response.base);
}

void renew_copy(struct grpc_call *call, const ProtobufCMessage *request)
{
	const Ringvol__V1__RenewCopyRequest *req = (const void *)request;
	struct transfer *t = grpc_call_context(call);
	struct pool_hold *hold = grant_of_call(call, req->grant);
	if (hold == NULL)
		return;
	if (!hold->move) {
		grpc_end(call, GRPC_FAILED_PRECONDITION,
			"the grant is of no volume that is to leave");
		return;
	}
	struct renew *n = calloc(1, sizeof(*n));
	if (n == NULL) {
		grpc_end(call, GRPC_RESOURCE_EXHAUSTED, "out of memory");
		return;
	}
	*n = (struct renew){.transfer = t, .call = call, .hold = hold};
	grant_keep(t, hold);
	op_init(&n->op, t->reactor, "renew_copy", renew_steps, renew_ended);
	n->op.lane = pool_lane(hold->pool);
	op_start(&n->op);
}
