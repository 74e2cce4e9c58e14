/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DeleteVolume: what is not there is deleted, once that is durable. Clones and snapshots do not
 * stand in the way: each image is whole by itself, shared extents are the file system's affair.
 *
 * Happy path: look for its device, and for what was mounted of one that is gone (when memory says
 * that it is attached, or cannot know) -> rename to trash, durable [pool_remove] -> answer; the
 * bytes are reclaimed in the background. How it can fail: the volume is attached, here or by
 * anybody else (the image is locked then); its pool is away, which is never "already deleted".
 */
#include "csi/controller.h"
#include "csi/node.h"

enum {
	REMOVE_ATTEMPTS = 7,
	REMOVE_PAUSE_MS = 20, /* doubled each time: 1.3 s in all */
};

struct deletion {
	struct csi_task task;
	struct pool_object *volume;
	unsigned attempts;
	bool paused;
	struct node_owner owner;
	struct node_others others;
	struct pool_remove remove;
	struct pool *pool; /* where it was, if it is gone already */
	struct pool_settle settle;
};

#define delete_of(op_ptr) csi_task_of(op_ptr, struct deletion)

static void reply_deleted(struct grpc_call *call)
{
	Csi__V1__DeleteVolumeResponse response = CSI__V1__DELETE_VOLUME_RESPONSE__INIT;
	grpc_reply(call, &response.base);
}

/* The image's lock tells of a device nobody remembers, but for those that live on without it. */
static bool device_done(struct op *op)
{
	const struct deletion *d = delete_of(op);
	const struct backend *backend = backend_get(d->volume->rec->device);
	return node_volume_find(d->volume) == NULL &&
	       (backend == NULL || !backend->needs_image_again);
}

static int device_run(struct op *op)
{
	struct deletion *d = delete_of(op);
	node_owner_of_volume(&d->owner, op->reactor, d->volume, NULL);
	return op_child(op, &d->owner.op);
}

static int device_end(struct op *op, int res)
{
	struct deletion *d = delete_of(op);
	const struct node_volume *node = node_volume_find(d->volume);
	const char *name = d->volume->rec->name;
	if (res < 0)
		return res;
	if ((d->owner.found || d->owner.unclear) && node != NULL && !list_empty(&node->mounts))
		return op_fail(op, ERR_PRECONDITION,
			"volume %s is in use: mounted at %s; unpublish and unstage it first", name,
			container_of(node->mounts.next, struct node_mount, link)->path);
	if (d->owner.found || d->owner.unclear)
		return op_fail(op, ERR_PRECONDITION,
			"volume %s is in use: attached as %s; unstage it first", name,
			d->owner.dev.path);
	if (d->owner.tagged && node_dev_volume(d->task.csi->node, &d->owner.tagged_dev) == NULL)
		return op_fail(op, ERR_PRECONDITION,
			"volume %s is in use: its device %s was made to serve another file; unstage the volume first, which detaches it",
			name, d->owner.tagged_dev.path);
	return 0;
}

/* ---- its device went behind our back: what was mounted of it may be there all the same ---- */

static struct node_mount *first_mount(const struct deletion *d)
{
	const struct node_volume *node = node_volume_find(d->volume);
	return node == NULL || list_empty(&node->mounts)
		       ? NULL
		       : container_of(node->mounts.next, struct node_mount, link);
}

static bool mounts_done(struct op *op)
{
	return first_mount(delete_of(op)) == NULL;
}

static int mounts_run(struct op *op)
{
	struct deletion *d = delete_of(op);
	const struct node_mount *mount = first_mount(d);
	const struct backend_dev was = {.major = mount->major, .minor = mount->minor};
	node_others_init(&d->others, op->reactor, &was, NULL, NULL);
	d->others.only = mount->path;
	return op_child(op, &d->others.op);
}

/* One after the other. */
static int mounts_end(struct op *op, int res)
{
	struct deletion *d = delete_of(op);
	if (res < 0)
		return res;
	if (d->others.count > 0)
		return op_fail(op, ERR_PRECONDITION,
			"volume %s is in use: its device was taken away, and is still published at %s; unpublish and unstage it first",
			d->volume->rec->name, d->others.path);
	node_volume_remove_mount(node_volume_find(d->volume), first_mount(d)->path);
	return first_mount(d) == NULL ? 0 : mounts_run(op);
}

static int forget_run(struct op *op)
{
	struct deletion *d = delete_of(op);
	struct node_volume *node = node_volume_find(d->volume);
	if (node != NULL) {
		node_volume_clear_dev(d->task.csi->node, node);
		node_volume_free(node);
	}
	d->volume->node = NULL;
	return 0;
}

static int remove_run(struct op *op)
{
	struct deletion *d = delete_of(op);
	pool_remove_init(&d->remove, op->reactor, d->volume);
	return op_child(op, &d->remove.op);
}

/* A device just cleared lives on for a moment while somebody looks at it (udev, losetup -a), and
 * the image's lock with it. */
static int remove_end(struct op *op, int res)
{
	struct deletion *d = delete_of(op);
	if (d->paused) {
		d->paused = false;
		return remove_run(op);
	}
	if (res == 0 || op->err.code != ERR_PRECONDITION || ++d->attempts == REMOVE_ATTEMPTS)
		return res;
	d->paused = true;
	return op_sleep(op, (uint64_t)REMOVE_PAUSE_MS << (d->attempts - 1));
}

static int settle_run(struct op *op)
{
	struct deletion *d = delete_of(op);
	pool_settle_init(&d->settle, op->reactor, d->pool, RECORD_VOLUME, NULL);
	return op_child(op, &d->settle.op);
}

static int answer_run(struct op *op)
{
	struct deletion *d = delete_of(op);
	csi_task_response(
		&d->task, Csi__V1__DeleteVolumeResponse, csi__v1__delete_volume_response__init);
	return 0;
}

static const struct op_step delete_steps[] = {
	{"look for device", .done = device_done, .run = device_run, .end = device_end},
	{"look for mounts", .done = mounts_done, .run = mounts_run, .end = mounts_end},
	{"forget", .run = forget_run},
	{"remove", .run = remove_run, .end = remove_end, .flags = OP_COMMIT},
	{"answer", .run = answer_run},
	{NULL},
};

/* It is gone, by a call that has not ended yet, or not well. */
static const struct op_step gone_steps[] = {
	{"settle", .run = settle_run},
	{"answer", .run = answer_run},
	{NULL},
};

void csi_delete_volume(struct grpc_call *call, const ProtobufCMessage *request)
{
	const Csi__V1__DeleteVolumeRequest *req = (const void *)request;
	struct csi *csi = grpc_call_context(call);
	const char *id = csi_str(req->volume_id);
	struct pool_object *volume;
	struct err err = {0};
	int r = id[0] == '\0' ? err_set(&err, ERR_INVALID, "volume_id is missing") : 0;
	if (r == 0)
		r = pools_find_id(csi->pools, RECORD_VOLUME, id, &volume, &err);
	if (r == 0)
		r = pool_check_ready(volume->pool, &err);
	struct pool *gone_from =
		err.code == ERR_NOT_FOUND ? pools_unsettled(csi->pools, RECORD_VOLUME, id) : NULL;
	if (err.code == ERR_NOT_FOUND && gone_from == NULL) {
		reply_deleted(call);
		return;
	}
	if (r < 0 && gone_from == NULL) {
		csi_refuse(csi, call, &err);
		return;
	}
	struct deletion *d = csi_task_new(call, request, sizeof(*d));
	if (d == NULL)
		return;
	if (gone_from != NULL) {
		d->pool = gone_from;
		csi_lock_id(&d->task, NODE_EXCLUSIVE, RECORD_VOLUME, id);
		csi_task_start(&d->task, id, pool_lane(gone_from), gone_steps);
		return;
	}
	d->volume = volume;
	csi_task_claim(&d->task, volume->rec);
	csi_task_lock(&d->task, NODE_EXCLUSIVE, "volume", volume->key);
	csi_task_start(&d->task, volume->rec->name, pool_lane(volume->pool), delete_steps);
}
