/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NodeUnpublishVolume and NodeUnstageVolume: from a path, whatever else is known.
 *
 * kubelet repeats these calls for ever on any error, and makes them for volumes that are long gone.
 * So they work from the path. If nothing is there, they have succeeded. A mount of one of our
 * devices is unmounted whether the volume is known or not. But the mount of a known volume goes
 * only if the call has the id of that volume (node/owner.h tells which volume a device belongs to),
 * and a mount of anything else is never touched. No mount and no memory may tell of a device (that
 * of a raw block volume, while its pool is away): it is looked for by the volume's image, or by its
 * tag, which is in the volume's id.
 *
 * A device may have been freed behind our back, and its number given to another volume. A mount of
 * it that we remember is unmounted all the same; the device is not touched.
 *
 * Happy path: look at the path -> find the owner of the device there -> (unstage only) sync ->
 * unmount -> (unstage only) detach, unless other nodes have it, too. How it can fail: the mount is
 * busy, still published elsewhere, another volume's, or hangs; the kernel does not say which
 * devices there are. Each call can be repeated; what was released stays released.
 */
#include "csi/release.h"

#include "csi/inline.h"
#include "csi/request.h"
#include "csi/services.h"
#include "node/checkup.h"
#include "node/devices.h"
#include "node/health.h"
#include "pool/index.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static int inspect_run(struct op *op)
{
	return volume_op_inspect(op, release_of(op)->path);
}

/* Only the process that serves the device can change what it is: then memory is right about it. */
static bool is_trusted(struct release *r)
{
	const struct node_volume *node = release_state(r);
	return node != NULL && node->dev.attached && r->n.backend != NULL &&
	       r->n.backend->look == NULL;
}

static int inspect_end(struct op *op, int res)
{
	struct release *r = release_of(op);
	int result = volume_op_inspect_end(op, res);
	if (result < 0 || !is_trusted(r))
		return result;
	r->mine = release_state(r)->dev;
	if (node_info_is_dev(&r->n.info, &r->mine))
		r->at = AT_OURS;
	return 0;
}

/* ---- nothing may still be published, of what is unstaged ---- */

/* Staged by an earlier run, where nothing is staged any more and nobody will unstage it. */
static const char *left_staged(struct release *r)
{
	const struct node_mount *mount =
		r->detaches && !r->unstage ? node_volume_staged(release_state(r)) : NULL;
	return mount != NULL && strcmp(mount->path, r->path) != 0 ? mount->path : "";
}

static struct node_mount *other_mount(struct release *r)
{
	const struct node_volume *node = release_state(r);
	if (node == NULL)
		return NULL;
	list_for_each (link, &node->mounts) {
		struct node_mount *mount = container_of(link, struct node_mount, link);
		if (strcmp(mount->path, r->path) != 0 && strcmp(mount->path, left_staged(r)) != 0)
			return mount;
	}
	return NULL;
}

static bool is_of(const struct node_mount *mount, const struct backend_dev *dev)
{
	return dev->attached && mount->major == dev->major && mount->minor == dev->minor;
}

/* Whether it is unstaged, if by the wrong call. */
static bool is_unstaged(struct release *r)
{
	const struct node_mount *mount = node_volume_mount_at(release_state(r), r->path);
	return r->detaches ||
	       (mount != NULL && (mount->staging || (mount->first && !release_state(r)->whole)));
}

/* Whether memory has all mounts of it. An orchestrator that stages has unpublished all before it
 * unstages; one that does not, counts on us. */
static bool is_known(struct release *r)
{
	return release_state(r) != NULL &&
	       (r->unstage || node_knows_volume(r->n.task.csi->node, r->n.volume));
}

static bool others_done(struct op *op)
{
	struct release *r = release_of(op);
	if (!is_unstaged(r) || r->at == AT_STRANGE)
		return true;
	/* There may be a device that memory has no mounts of. */
	return other_mount(r) == NULL && (is_known(r) || !r->mine.attached);
}

/* Of a device that is not the volume's any more only what memory knows of counts. */
static int others_run(struct op *op)
{
	struct release *r = release_of(op);
	const struct node_mount *mount = other_mount(r);
	r->all_others = mount == NULL || is_of(mount, &r->mine);
	if (r->all_others) {
		node_others_init(&r->others, op->reactor, &r->mine, r->path, left_staged(r));
	} else {
		const struct backend_dev was = {.major = mount->major, .minor = mount->minor};
		node_others_init(&r->others, op->reactor, &was, NULL, NULL);
		r->others.only = mount->path;
	}
	return op_child(op, &r->others.op);
}

/* Memory was wrong: they were unmounted behind our back. */
static void forget_others(struct release *r)
{
	struct node_volume *node = release_state(r);
	if (!r->all_others) {
		node_volume_remove_mount(node, other_mount(r)->path);
		return;
	}
	if (node == NULL)
		return;
	list_for_each_safe (link, &node->mounts) {
		struct node_mount *mount = container_of(link, struct node_mount, link);
		if (strcmp(mount->path, r->path) != 0 && strcmp(mount->path, left_staged(r)) != 0 &&
			is_of(mount, &r->mine))
			node_volume_remove_mount(node, mount->path);
	}
}

static int others_end(struct op *op, int res)
{
	struct release *r = release_of(op);
	if (res < 0)
		return res;
	if (r->others.count > 0 && r->detaches && !r->unstage) {
		r->detaches = false; /* somebody else has it still */
		return 0;
	}
	if (r->others.count > 0 && !r->unstage)
		return op_fail(op, ERR_PRECONDITION,
			"%s: volume %s is staged at %s, and still published at %s; unpublish it there, then unstage it",
			r->field, r->n.task.id, r->path, r->others.path);
	if (r->others.count > 0)
		return op_fail(op, ERR_PRECONDITION,
			"volume %s is still published at %s; unpublish it first", r->n.task.id,
			r->others.path);
	forget_others(r);
	return other_mount(r) != NULL ? others_run(op) : 0;
}

/* ---- the release ---- */

/* What was written has to reach the image now. A mount in another namespace would keep the file
 * system alive, and its dirty pages would be missing in a snapshot taken after this. The last
 * unmount would have to write them anyway. */
static bool sync_done(struct op *op)
{
	struct release *r = release_of(op);
	return !r->detaches || r->at != AT_OURS || r->n.info.fs_read_only;
}

static int sync_run(struct op *op)
{
	struct release *r = release_of(op);
	node_on(&r->on, r->path, &r->mine);
	return volume_op_helper(op, MNT_SYNC, &r->on, sizeof(r->on), CSI_MOUNT_TIMEOUT_MS);
}

static int sync_end(struct op *op, int res)
{
	/* A file system that cannot write must still be let go; one that hangs says so. */
	return res == -ETIMEDOUT ? volume_op_fail(op, res, "sync", release_of(op)->path) : 0;
}

static bool unmount_done(struct op *op)
{
	struct release *r = release_of(op);
	/* The staging directory is the orchestrator's; the target path may be ours to remove. */
	return !r->n.info.exists || r->at == AT_STRANGE || (r->unstage && !r->n.info.is_mount);
}

static int unmount_run(struct op *op)
{
	struct release *r = release_of(op);
	snprintf(r->unmount.target, sizeof(r->unmount.target), "%s", r->path);
	r->unmount.dev_major = r->n.info.is_mount ? r->n.info.dev_major : 0;
	r->unmount.dev_minor = r->n.info.is_mount ? r->n.info.dev_minor : 0;
	/* What lies in a volume is a tenant's. */
	r->unmount.remove = !r->unstage && volume_op_nested_in(&r->n) == NULL;
	r->unmount.trusted = r->n.volume != NULL;
	return volume_op_helper(
		op, MNT_UNMOUNT, &r->unmount, sizeof(r->unmount), CSI_MOUNT_TIMEOUT_MS);
}

/* It may be busy because we look at it: the watch and statistics do so beside everything else. From
 * now on they ask for this volume alone. First those that asked for several volumes together get
 * their answer, then the unmount waits in line with those that ask alone, by their key. */
static int unmount_again(struct op *op)
{
	struct release *r = release_of(op);
	struct node_volume *node = release_state(r);
	if (r->attempt++ == UNMOUNT_FIRST) {
		if (node != NULL)
			node->alone_until_ns =
				ring_now_ns(op->reactor->ring) + NODE_ALONE_MS * UINT64_C(1000000);
		return op_sleep(op, NODE_STATS_BATCH_MS);
	}
	node_stats_key(r->n.task.id, r->look_key);
	return op_helper(op, MNT_UNMOUNT, r->look_key, &r->unmount, sizeof(r->unmount),
		&r->n.result, sizeof(r->n.result), CSI_MOUNT_TIMEOUT_MS);
}

static int unmount_end(struct op *op, int res)
{
	struct release *r = release_of(op);
	if (r->attempt == UNMOUNT_WAITS || (res == -EBUSY && r->attempt != UNMOUNT_LAST)) {
		int again = unmount_again(op);
		if (again >= 0)
			return again;
		res = -EBUSY;
	}
	if (res == -EBUSY)
		return op_fail(op, ERR_PRECONDITION,
			"%s: %s is in use: a process has files open or its working directory there",
			r->field, r->path);
	if (res == 0 && r->n.result.stays && r->away.code != ERR_OK)
		return op_fail(op, ERR_UNAVAILABLE,
			"%s: what an earlier call has left at %s goes when it is known whose it is: %s",
			r->field, r->path, r->away.message);
	return res == 0 ? 0 : volume_op_fail(op, res, "unmount", r->path);
}

static bool staging_done(struct op *op)
{
	struct release *r = release_of(op);
	return !r->detaches || left_staged(r)[0] == '\0';
}

static int staging_run(struct op *op)
{
	struct release *r = release_of(op);
	const struct node_mount *mount = node_volume_mount_at(release_state(r), left_staged(r));
	snprintf(r->unmount.target, sizeof(r->unmount.target), "%s", mount->path);
	r->unmount.dev_major = mount->major;
	r->unmount.dev_minor = mount->minor;
	r->unmount.remove = false;
	return volume_op_helper(
		op, MNT_UNMOUNT, &r->unmount, sizeof(r->unmount), CSI_MOUNT_TIMEOUT_MS);
}

static int staging_end(struct op *op, int res)
{
	struct release *r = release_of(op);
	if (res < 0)
		return volume_op_fail(op, res, "unmount", r->unmount.target);
	node_volume_remove_mount(release_state(r), r->unmount.target);
	return 0;
}

/* What marked the path as the only writer's goes with it. A mark that stays is only believed where
 * the volume is mounted. */
static bool writer_done(struct op *op)
{
	struct release *r = release_of(op);
	struct node_mount *mount = node_volume_mount_at(release_state(r), r->path);
	return mount == NULL || !mount->single_writer;
}

static int writer_run(struct op *op)
{
	return volume_op_mark_writer(op, NULL);
}

/* A pod less: what it was limited to is the others'. It also ends what looks at the device. */
static bool limits_done(struct op *op)
{
	struct release *r = release_of(op);
	struct node_volume *node = release_state(r);
	if (node != NULL && r->at != AT_STRANGE)
		node_volume_remove_mount(node, r->path);
	return volume_op_limits_done(op);
}

/* Detach what unstage released: the volume's device, or that of a volume nobody knows any more. */
static bool detach_done(struct op *op)
{
	struct release *r = release_of(op);
	return !r->detaches || r->exports || !r->mine.attached || r->n.backend == NULL;
}

/* The watch is not to take it for gone. */
static void set_detaching(struct release *r, bool detaching)
{
	struct node_volume *node = release_state(r);
	if (node != NULL)
		node->detaching = detaching;
}

static int detach_run(struct op *op)
{
	struct release *r = release_of(op);
	r->n.dev = (struct backend_req){.dirfd = -1, .dev = r->mine};
	memcpy(r->n.dev.tag, r->mine.tag, sizeof(r->n.dev.tag));
	set_detaching(r, true);
	int result = r->n.backend->detach(r->n.backend, op, &r->n.dev);
	if (result < 0)
		set_detaching(r, false);
	return result;
}

static bool unmark_done(struct op *op)
{
	struct release *r = release_of(op);
	return !r->detaches || r->deletes || release_state(r) == NULL || !release_state(r)->whole;
}

static int unmark_run(struct op *op)
{
	return volume_op_mark_whole(op, false);
}

static int unmark_end(struct op *op, int res)
{
	(void)res;
	release_state(release_of(op))->whole = false;
	return 0;
}

/* While another mount namespace still uses the device, the kernel keeps it, and the image's lock
 * with it: nothing can attach or delete the volume meanwhile. That is no reason to make kubelet
 * repeat this for ever. */
static int detach_end(struct op *op, int res)
{
	struct release *r = release_of(op);
	int result = backend_end(op, &r->n.dev, res);
	set_detaching(r, result == 0);
	if (result == 0)
		node_devices_freed(r->n.task.csi->node, r->n.backend->type);
	return result;
}

/* What memory knew of a device that is no longer the volume's goes as well. */
static bool forget_done(struct op *op)
{
	struct release *r = release_of(op);
	return !r->detaches || r->exports || r->at == AT_STRANGE;
}

static int forget_run(struct op *op)
{
	struct release *r = release_of(op);
	struct err gone = {0};
	if (r->n.volume == NULL) /* its pool may have come meanwhile */
		(void)pools_find_id(
			r->n.task.csi->pools, RECORD_VOLUME, r->n.task.id, &r->n.volume, &gone);
	struct node_volume *node = release_state(r);
	if (node != NULL) {
		node_volume_clear_dev(r->n.task.csi->node, node);
		node_volume_forget(r->n.volume);
	}
	return 0;
}

/* ---- what was inline ends ---- */

static bool remove_done(struct op *op)
{
	struct release *r = release_of(op);
	return !r->deletes || !r->detaches || r->at == AT_STRANGE || r->n.volume == NULL;
}

static int remove_run(struct op *op)
{
	struct release *r = release_of(op);
	r->removal.object = r->n.volume;
	return csi_removal_run(op, &r->removal);
}

/* Once it is gone nothing of it may be read. */
static int remove_end(struct op *op, int res)
{
	struct release *r = release_of(op);
	int result = csi_removal_end(op, &r->removal, res);
	if (result < 0 && csi_inline_left(op, r->n.volume))
		return 0;
	if (result == 0)
		r->n.volume = NULL;
	return result;
}

static const struct op_step steps[] = {
	{"inspect", .run = inspect_run, .end = inspect_end},
	{"owner", .done = release_owner_done, .run = release_owner_run, .end = release_owner_end},
	{"look for device", .done = release_device_done, .run = release_device_run,
		.end = release_device_end},
	{"others", .done = others_done, .run = others_run, .end = others_end},
	{"sync", .done = sync_done, .run = sync_run, .end = sync_end},
	{"unmount", .done = unmount_done, .run = unmount_run, .end = unmount_end},
	{"unmount staging", .done = staging_done, .run = staging_run, .end = staging_end},
	{"writer", .done = writer_done, .run = writer_run, .end = volume_op_ignore},
	{"limits", .done = limits_done, .run = volume_op_limits, .end = volume_op_ignore},
	{"unmark", .done = unmark_done, .run = unmark_run, .end = unmark_end},
	{"detach", .done = detach_done, .run = detach_run, .end = detach_end},
	{"forget", .done = forget_done, .run = forget_run},
	{"remove", .done = remove_done, .run = remove_run, .end = remove_end},
	{NULL},
};

static int prepare(struct csi_task *task, struct err *err)
{
	(void)err;
	struct release *r = container_of(task, struct release, n.task);
	r->unstage = task->request->descriptor == &csi__v1__node_unstage_volume_request__descriptor;
	r->detaches = r->unstage || !task->csi->config.staging;
	r->field = task->rpc->paths[0];
	r->path = csi_field(task->request, r->field);
	/* Unknown, or its pool is away: the path says enough of what is mounted there. */
	int found =
		pools_find_id(task->csi->pools, RECORD_VOLUME, task->id, &r->n.volume, &r->away);
	if (found < 0 &&
		(r->away.code != ERR_UNAVAILABLE || pools_id_elsewhere(task->csi->pools, task->id)))
		err_clear(&r->away);
	if (found == 0) {
		csi_task_names(task, r->n.volume->rec);
		r->deletes = csi_inline_owns(r->n.volume->rec, r->path) && !r->unstage;
		r->detaches |= r->deletes;
		r->exports = attachments_exported(r->n.volume->attachments);
		task->lane = pool_lane(r->n.volume->pool);
		r->n.backend = backend_get(r->n.volume->rec->device);
	}
	return 0;
}

const struct csi_operation csi_node_release = {sizeof(struct release), prepare, steps, NULL};
