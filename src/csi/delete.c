/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DeleteVolume and DeleteSnapshot: what is not there is deleted, once that is durable. What was
 * made from it does not stand in the way: each image is whole by itself, shared extents are the
 * file system's affair.
 *
 * Happy path: (volumes only) look for its device, and for what was mounted of one that is gone
 * (when memory says that it is attached, or cannot know) -> rename to trash, durable [pool_remove]
 * -> answer; the bytes are reclaimed in the background. How it can fail: the volume has a device,
 * here or by anybody else (the image is locked then), or is attached to a node (attach.h);
 * something is being made from the snapshot right now (its lock is taken); its pool is away, which
 * is never "already deleted".
 */
#include "csi/attach.h"
#include "csi/removal.h"
#include "csi/services.h"
#include "csi/volume_op.h"
#include "node/owner.h"
#include "pool/index.h"

struct deletion {
	struct csi_task task;
	struct pool_object *object; /* NULL: it is gone */
	struct pool *pool; /* where it was, by a call that has not ended yet, or not well */
	struct node_owner owner;
	struct node_others others;
	struct csi_removal removal;
	struct pool_resync settle;
};

#define delete_of(op_ptr) csi_task_of(op_ptr, struct deletion)

static bool is_gone(struct op *op)
{
	return delete_of(op)->object == NULL;
}

static bool is_no_volume(struct op *op)
{
	return is_gone(op) || delete_of(op)->object->kind != RECORD_VOLUME;
}

/* A device that memory does not know is found by the image's lock, unless its backend serves
 * without one. */
static bool device_done(struct op *op)
{
	if (is_no_volume(op))
		return true;
	const struct pool_object *volume = delete_of(op)->object;
	const struct backend *backend = backend_get(volume->rec->device);
	return node_volume_find(volume) == NULL && (backend == NULL || !backend->needs_image_again);
}

static int device_run(struct op *op)
{
	struct deletion *d = delete_of(op);
	node_owner_of_volume(&d->owner, op->reactor, d->object, NULL);
	return op_child(op, &d->owner.op);
}

static int device_end(struct op *op, int res)
{
	struct deletion *d = delete_of(op);
	const struct node_volume *node = node_volume_find(d->object);
	const char *name = d->object->rec->name;
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
	const struct node_volume *node = node_volume_find(d->object);
	return node == NULL || list_empty(&node->mounts)
		       ? NULL
		       : container_of(node->mounts.next, struct node_mount, link);
}

static bool mounts_done(struct op *op)
{
	return is_no_volume(op) || first_mount(delete_of(op)) == NULL;
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
			d->object->rec->name, d->others.path);
	node_volume_remove_mount(node_volume_find(d->object), first_mount(d)->path);
	return first_mount(d) == NULL ? 0 : mounts_run(op);
}

static int forget_run(struct op *op)
{
	struct deletion *d = delete_of(op);
	struct node_volume *node = node_volume_find(d->object);
	if (node != NULL) {
		node_volume_clear_dev(d->task.csi->node, node);
		node_volume_free(node);
	}
	d->object->node = NULL;
	return 0;
}

static int remove_run(struct op *op)
{
	struct deletion *d = delete_of(op);
	d->removal.object = d->object;
	return csi_removal_run(op, &d->removal);
}

static int remove_end(struct op *op, int res)
{
	return csi_removal_end(op, &delete_of(op)->removal, res);
}

static bool is_there(struct op *op)
{
	return !is_gone(op);
}

static int make_durable_run(struct op *op)
{
	struct deletion *d = delete_of(op);
	pool_resync_init(&d->settle, op->reactor, d->pool, d->task.rpc->kind, NULL);
	return op_child(op, &d->settle.op);
}

static const struct op_step steps[] = {
	{"look for device", .done = device_done, .run = device_run, .end = device_end},
	{"look for mounts", .done = mounts_done, .run = mounts_run, .end = mounts_end},
	{"forget", .done = is_no_volume, .run = forget_run},
	{"remove", .done = is_gone, .run = remove_run, .end = remove_end, .flags = OP_COMMIT},
	{"make durable", .done = is_there, .run = make_durable_run},
	{NULL},
};

/* The device of a volume on raw disks does not lock the image: nothing but the look for devices of
 * earlier runs tells of it. */
static int check_known(const struct node *node, const struct pool_object *object, struct err *err)
{
	if (object->kind != RECORD_VOLUME || object->rec->device != BACKEND_DISK ||
		node_knows_volume(node, object))
		return 0;
	return err_set(err, ERR_UNAVAILABLE,
		"volume %s: devices of an earlier run are still being looked for; try again",
		object->rec->name);
}

static int prepare(struct csi_task *task, struct err *err)
{
	struct deletion *d = container_of(task, struct deletion, task);
	const struct pools *pools = task->csi->pools;
	int r = pools_find_id(pools, task->rpc->kind, task->id, &d->object, err);
	if (r == 0) {
		csi_task_names(task, d->object->rec);
		if (d->object->rec->group[0] != '\0')
			return err_set(err, ERR_INVALID,
				"snapshot %s is a member of group snapshot %s, and is deleted with it alone",
				d->object->rec->name, d->object->rec->group);
		r = pool_check_not_inline(d->object, err);
		if (r == 0)
			r = csi_attach_check_free(task->csi, d->object, err);
		if (r == 0)
			r = pool_check_ready(d->object->pool, err);
		return r == 0 ? check_known(task->csi->node, d->object, err) : r;
	}
	if (err->code != ERR_NOT_FOUND)
		return r;
	d->pool = pools_removal_unsynced(pools, task->rpc->kind, task->id);
	return d->pool == NULL ? CSI_ANSWERED : 0;
}

const struct csi_operation csi_delete = {sizeof(struct deletion), prepare, steps, NULL};
