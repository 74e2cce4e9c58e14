/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NodePublishVolume: what was staged appears at the target path, by a bind mount of the staging
 * path (mount volumes) or of the device node (block volumes).
 *
 * Happy path: look at the staging path -> the device -> look at the target -> access modes -> bind.
 * How it can fail: not staged, the target is something else's, a second writer where one is
 * allowed. The bind removes what it created when it fails; a repeat finds what is done already.
 */
#include "csi/request.h"
#include "csi/services.h"
#include "csi/volume_op.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

struct publish {
	struct volume_op n;
	const char *staging_path, *target_path;
	bool read_only;
	bool published; /* found as it should be */
	struct node_others others;
	struct mnt_bind_req bind;
	struct mnt_unmount_req unmount;
};

#define publish_of(op_ptr) container_of(volume_op_of(op_ptr), struct publish, n)

/* ---- staged? ---- */

static bool staging_done(struct op *op)
{
	return publish_of(op)->n.access.block;
}

static int staging_run(struct op *op)
{
	return volume_op_inspect(op, publish_of(op)->staging_path);
}

static int staging_end(struct op *op, int res)
{
	struct publish *p = publish_of(op);
	int r = volume_op_inspect_end(op, res);
	if (r < 0)
		return r;
	struct node_volume *node = node_volume_find(p->n.volume);
	if (node == NULL || !node_info_is_dev(&p->n.info, &node->dev))
		return op_fail(op, ERR_PRECONDITION,
			"volume %s is not staged at %s; call NodeStageVolume first",
			p->n.volume->rec->name, p->staging_path);
	if (p->n.info.fs_read_only && !p->read_only)
		return op_fail(op, ERR_PRECONDITION,
			"volume %s: its file system is read-only, it cannot be published writable",
			p->n.volume->rec->name);
	return 0;
}

/* The device of a block volume, bound again if it went away behind our back. */
static bool attach_done(struct op *op)
{
	return !publish_of(op)->n.access.block;
}

static int attach_run(struct op *op)
{
	struct publish *p = publish_of(op);
	struct node_volume *node = node_volume_find(p->n.volume);
	if (node == NULL || !node->dev.attached || node_volume_has_fs(p->n.volume))
		return op_fail(op, ERR_PRECONDITION,
			"volume %s is not staged as a block volume; call NodeStageVolume first",
			p->n.volume->rec->name);
	volume_op_prepare_backend(&p->n);
	return p->n.backend->attach(p->n.backend, op, &p->n.dev);
}

/* ---- the target ---- */

static int target_run(struct op *op)
{
	return volume_op_inspect(op, publish_of(op)->target_path);
}

/* Never a loop node at a new path. */
static int refuse_bare(struct op *op)
{
	struct publish *p = publish_of(op);
	if (!p->n.access.block || p->published || !p->n.dev.dev.bare)
		return 0;
	return op_fail(op, ERR_PRECONDITION,
		"volume %s: its loop node %s is published elsewhere, by an earlier version, and loop nodes are not published any more: delete the pods that have it, so that it is unstaged and staged again",
		p->n.volume->rec->name, p->n.dev.dev.path);
}

static int target_end(struct op *op, int res)
{
	struct publish *p = publish_of(op);
	const struct mnt_info *info = &p->n.info;
	int r = volume_op_inspect_end(op, res);
	if (r == 0)
		r = volume_op_check_not_nested(op, "target_path");
	if (r < 0)
		return r;
	if (!info->exists)
		return refuse_bare(op);
	struct node_volume *node = node_volume_find(p->n.volume);
	if (info->is_symlink)
		return op_fail(
			op, ERR_INVALID, "target_path: %s is a symbolic link", p->target_path);
	if (info->is_mount && !node_info_is_dev(info, &node->dev))
		return op_fail(op, ERR_EXISTS, "target_path: something else is mounted at %s",
			p->target_path);
	if (!info->is_mount && (p->n.access.block ? !info->is_file : !info->is_dir))
		return op_fail(op, ERR_INVALID, "target_path: %s exists and is not a %s",
			p->target_path, p->n.access.block ? "file" : "directory");
	if (info->is_mount && info->read_only != p->read_only)
		return op_fail(op, ERR_EXISTS, "volume %s is published at %s already, but %s",
			p->n.volume->rec->name, p->target_path,
			info->read_only ? "read-only" : "writable");
	p->published = info->is_mount;
	return refuse_bare(op);
}

/* ---- who else? ---- */

static bool is_other(const struct publish *p, const struct node_mount *mount)
{
	return strcmp(mount->path, p->target_path) != 0 &&
	       strcmp(mount->path, p->staging_path) != 0;
}

/* Nobody else has it, or everybody is allowed to: then there is nothing to look up. Nor for a
 * repeat, which adds no place (and which an adopted mount may know by another path, see
 * volume_op_mark_writer). */
static bool others_done(struct op *op)
{
	struct publish *p = publish_of(op);
	struct node_volume *node = node_volume_find(p->n.volume);
	if (p->published)
		return true;
	list_for_each (link, &node->mounts) {
		struct node_mount *mount = container_of(link, struct node_mount, link);
		if (is_other(p, mount) &&
			(p->n.access.single_writer || mount->single_writer ||
				(p->n.access.block && mount->read_only != p->read_only)))
			return false;
	}
	return true;
}

static int others_run(struct op *op)
{
	struct publish *p = publish_of(op);
	struct node_volume *node = node_volume_find(p->n.volume);
	node_others_init(&p->others, op->reactor, &node->dev, p->target_path, p->staging_path);
	return op_child(op, &p->others.op);
}

static int others_end(struct op *op, int res)
{
	struct publish *p = publish_of(op);
	if (res < 0)
		return res;
	struct node_volume *node = node_volume_find(p->n.volume);
	if (p->others.count == 0) { /* unmounted behind our back */
		list_for_each_safe (link, &node->mounts) {
			struct node_mount *mount = container_of(link, struct node_mount, link);
			if (is_other(p, mount))
				node_volume_remove_mount(node, mount->path);
		}
		return 0;
	}
	list_for_each (link, &node->mounts) {
		struct node_mount *mount = container_of(link, struct node_mount, link);
		if (is_other(p, mount) && (p->n.access.single_writer || mount->single_writer))
			return op_fail(op, ERR_PRECONDITION,
				"volume %s is published at %s already and its access mode SINGLE_NODE_SINGLE_WRITER allows one place only",
				p->n.volume->rec->name, p->others.path);
	}
	return op_fail(op, ERR_PRECONDITION,
		"block volume %s is published at %s already; a device is read-only for all or for none",
		p->n.volume->rec->name, p->others.path);
}

/* ---- read-only block devices: the mount's flag does not protect a device node ---- */

static int mode_job(struct op *op)
{
	const struct publish *p = publish_of(op);
	return p->n.backend->set_read_only(p->n.backend, &p->n.dev.dev, p->read_only);
}

static bool mode_done(struct op *op)
{
	struct publish *p = publish_of(op);
	/* Also where nothing seems to change: ublk's data process knows how a device was attached,
	 * not what it was made since. */
	return !p->n.access.block || p->published;
}

static int mode_end(struct op *op, int res)
{
	struct publish *p = publish_of(op);
	if (res < 0)
		return op_fail_sys(op, res, "making %s %s", p->n.dev.dev.path,
			p->read_only ? "read-only" : "writable");
	node_volume_find(p->n.volume)->dev.read_only = p->read_only;
	return 0;
}

/* ---- a single writer is one for the next run of the driver as well ---- */

static bool writer_done(struct op *op)
{
	struct publish *p = publish_of(op);
	struct node_mount *mount =
		node_volume_mount_at(node_volume_find(p->n.volume), p->target_path);
	return !p->n.access.single_writer || (mount != NULL && mount->single_writer);
}

/* A pool that cannot take the mark (it is full, or read-only) keeps no pod from its volume. */
static int writer_run(struct op *op)
{
	return volume_op_mark_writer(op, publish_of(op)->target_path);
}

/* ---- the bind ---- */

static bool bind_done(struct op *op)
{
	return publish_of(op)->published;
}

static int bind_run(struct op *op)
{
	struct publish *p = publish_of(op);
	snprintf(p->bind.source, sizeof(p->bind.source), "%s",
		p->n.access.block ? p->n.dev.dev.path : p->staging_path);
	snprintf(p->bind.target, sizeof(p->bind.target), "%s", p->target_path);
	p->bind.block = p->n.access.block;
	p->bind.read_only = p->read_only;
	return volume_op_helper(op, MNT_BIND, &p->bind, sizeof(p->bind), CSI_MOUNT_TIMEOUT_MS);
}

static int bind_end(struct op *op, int res)
{
	struct publish *p = publish_of(op);
	if (res == -ENOENT)
		return op_fail(op, ERR_INVALID,
			"target_path: the parent directory of %s does not exist; the orchestrator has to create it",
			p->target_path);
	return res == 0 ? 0 : volume_op_fail(op, res, "bind mount", p->target_path);
}

static int bind_undo(struct op *op)
{
	struct publish *p = publish_of(op);
	struct node_volume *node = node_volume_find(p->n.volume);
	snprintf(p->unmount.target, sizeof(p->unmount.target), "%s", p->target_path);
	p->unmount.dev_major = node->dev.major;
	p->unmount.dev_minor = node->dev.minor;
	p->unmount.remove = true;
	return volume_op_helper(
		op, MNT_UNMOUNT, &p->unmount, sizeof(p->unmount), CSI_MOUNT_TIMEOUT_MS);
}

static int remember_run(struct op *op)
{
	struct publish *p = publish_of(op);
	struct node_volume *node = node_volume_find(p->n.volume);
	if (node_volume_add_mount(node, p->target_path, p->read_only, p->n.access.single_writer) <
		0)
		return op_fail(op, ERR_NO_ROOM, "out of memory");
	return 0;
}

static const struct op_step steps[] = {
	{"staging", .done = staging_done, .run = staging_run, .end = staging_end},
	{"attach", .done = attach_done, .run = attach_run, .end = volume_op_device_end},
	{"target", .run = target_run, .end = target_end},
	{"others", .done = others_done, .run = others_run, .end = others_end},
	{"mode", .done = mode_done, .call = mode_job, .end = mode_end},
	{"writer", .done = writer_done, .run = writer_run, .end = volume_op_ignore},
	{"bind", .done = bind_done, .run = bind_run, .end = bind_end, .undo = bind_undo},
	{"remember", .run = remember_run},
	{"limits", .done = volume_op_limits_done, .run = volume_op_limits, .end = volume_op_ignore},
	{NULL},
};

static int prepare(struct csi_task *task, struct err *err)
{
	const Csi__V1__NodePublishVolumeRequest *req = (const void *)task->request;
	struct publish *p = container_of(task, struct publish, n.task);
	p->staging_path = csi_str(req->staging_target_path);
	p->target_path = csi_str(req->target_path);
	if (p->staging_path[0] == '\0')
		return err_set(err, ERR_PRECONDITION,
			"staging_target_path is missing; this driver needs NodeStageVolume first");
	int r = csi_check_path("staging_target_path", p->staging_path, err);
	if (r == 0)
		r = volume_op_find(&p->n, req->volume_capability, err);
	p->read_only = req->readonly || p->n.access.read_only;
	return r;
}

const struct csi_operation csi_node_publish = {sizeof(struct publish), prepare, steps, NULL};
