/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NodeStageVolume and NodePublishVolume of a borrowed volume.
 *
 * Happy path of a stage: look at the path -> connect, cover -> (encrypted: open it with the key) ->
 * see that the device holds what its owner says -> (check and repair) -> mount -> grow, and clean
 * its log. Nothing is ever formatted here: its owner has made its file system. Of a publish: is it
 * staged, look at the target, who else has it, bind. Without staging a publish is both, as in
 * publish.c.
 *
 * How it can fail: the publish_context says what cannot be; the owner does not answer, or refuses
 * this node; another's mount at the path. Before the mount, a connection that this attempt made
 * ends again. A repeat finds what is done. What is mounted stays, whatever fails then.
 */
#include "csi/borrow.h"

#include "blockio/blkdev.h"
#include "csi/request.h"
#include "node/node.h"
#include "pool/pool.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { FSCK_TIMEOUT_MS = 600000 };

struct lend {
	struct borrow_op b;
	const char *target_path; /* of a publish */
	bool whole;              /* without staging */
	bool local;              /* it is in a pool of this node by now */
	bool read_only;          /* the publish */
	bool mounted;            /* b.path: found mounted as it should be */
	bool published;          /* the target: likewise */
	uint8_t uuid[16];
	struct proc proc;
	struct mnt_mount_req mount;
	struct mnt_bind_req bind;
};

#define lend_of(op_ptr) container_of(borrow_of(op_ptr), struct lend, b)

static const char *id_of(const struct lend *l)
{
	return l->b.n.task.id;
}

/* ---- the path ---- */

static bool inspect_done(struct op *op)
{
	const struct lend *l = lend_of(op);
	return l->whole && l->b.n.access.block;
}

static int inspect_run(struct op *op)
{
	return volume_op_inspect(op, lend_of(op)->b.path);
}

static int inspect_end(struct op *op, int res)
{
	struct lend *l = lend_of(op);
	const struct mnt_info *info = &l->b.n.info;
	int r = volume_op_inspect_end(op, res);
	if (r < 0)
		return r;
	if (!info->exists && !l->whole)
		return op_fail(op, ERR_INVALID,
			"%s: %s does not exist; the orchestrator has to create it", l->b.field,
			l->b.path);
	if (info->exists && !info->is_dir)
		return op_fail(op, ERR_INVALID, "%s: %s is not a directory", l->b.field, l->b.path);
	return l->b.n.access.block ? 0 : volume_op_check_not_nested(op, l->b.field);
}

/* ---- the device ---- */

/* What is mounted is not read beside its file system. */
static int take_run(struct op *op)
{
	struct lend *l = lend_of(op);
	const struct borrowed *one = borrow_entry(&l->b);
	bool mounted = one != NULL && l->b.n.info.is_mount &&
		       node_info_is_dev(&l->b.n.info, &l->b.n.dev.dev);
	l->b.take.probe = !l->b.n.access.block && !mounted;
	l->local = one != NULL && one->local; /* and there is nobody to connect to */
	return l->local ? borrow_call(op, ATTACH_LOOK, ATTACH_LOOK_TIMEOUT_MS)
			: borrow_take_run(op);
}

static int look_end(struct op *op, int res)
{
	struct lend *l = lend_of(op);
	int r = borrow_call_end(op, res, "looking at it");
	l->b.info.found = true;
	if (r == 0 && !l->b.info.there)
		r = op_fail(op, ERR_UNAVAILABLE,
			"volume %s: its device on this node is gone; unstage it, and stage it again",
			id_of(l));
	return r < 0 ? r : borrow_put(op);
}

static int take_end(struct op *op, int res)
{
	struct lend *l = lend_of(op);
	int r = l->local ? look_end(op, res) : borrow_take_end(op, res);
	if (r == 0)
		l->mounted = node_info_is_dev(&l->b.n.info, &l->b.n.dev.dev);
	return r;
}

/* ---- staged elsewhere? ---- */

static bool elsewhere_done(struct op *op)
{
	const struct lend *l = lend_of(op);
	const struct borrowed *one = borrow_entry(&l->b);
	return l->whole || one->staging == NULL || strcmp(one->staging, l->b.path) == 0;
}

static int elsewhere_run(struct op *op)
{
	struct lend *l = lend_of(op);
	node_others_init(&l->b.others, op->reactor, &l->b.n.dev.dev, NULL, NULL);
	l->b.others.only = borrow_entry(&l->b)->staging;
	return op_child(op, &l->b.others.op);
}

static int elsewhere_end(struct op *op, int res)
{
	struct lend *l = lend_of(op);
	if (res < 0)
		return res;
	if (l->b.others.count > 0)
		return op_fail(op, ERR_PRECONDITION,
			"volume %s is staged at %s already, and a volume is staged at one path only; unstage it there first",
			id_of(l), l->b.others.path);
	return 0;
}

/* A publish without staging: it may be published already, and is bound from there. */
static bool source_done(struct op *op)
{
	const struct lend *l = lend_of(op);
	return !l->whole || l->b.n.access.block || l->mounted;
}

static int source_run(struct op *op)
{
	struct lend *l = lend_of(op);
	node_others_init(&l->b.others, op->reactor, &l->b.n.dev.dev, l->target_path, NULL);
	return op_child(op, &l->b.others.op);
}

static int source_end(struct op *op, int res)
{
	struct lend *l = lend_of(op);
	if (res < 0 || l->b.others.count == 0)
		return res;
	l->b.path = arena_strdup(l->b.n.task.arena, l->b.others.path);
	if (l->b.path == NULL)
		return op_fail(op, ERR_NO_ROOM, "out of memory");
	l->mounted = true;
	return 0;
}

/* ---- what is mounted at the path ---- */

static int check_mount_run(struct op *op)
{
	struct lend *l = lend_of(op);
	const struct mnt_info *info = &l->b.n.info;
	if (!info->is_mount)
		return 0;
	if (!l->mounted || !node_info_is_dev(info, &l->b.n.dev.dev))
		return op_fail(op, ERR_PRECONDITION,
			"%s: something else is mounted at %s; unmount it first", l->b.field,
			l->b.path);
	bool read_only = l->whole ? l->read_only : l->b.n.access.read_only;
	if (info->read_only != read_only)
		return op_fail(op, ERR_EXISTS, "volume %s is %s at %s already, but %s", id_of(l),
			l->whole ? "published" : "staged", l->b.path,
			info->read_only ? "read-only" : "writable");
	return 0;
}

/* ---- the mount ---- */

static bool mount_done(struct op *op)
{
	const struct lend *l = lend_of(op);
	return l->b.n.access.block || l->mounted;
}

static bool fsck_done(struct op *op)
{
	const struct lend *l = lend_of(op);
	return mount_done(op) || !l->b.info.probe.errors || l->b.n.access.read_only;
}

static int fsck_run(struct op *op)
{
	struct lend *l = lend_of(op);
	int r = fsimg_fsck_argv(
		l->b.n.fs, l->b.n.dev.dev.path, l->b.n.dev.dev.size_bytes, &l->proc);
	if (r == -EOPNOTSUPP)
		return 0;
	l->proc.timeout_ms = FSCK_TIMEOUT_MS;
	return op_proc(op, &l->proc);
}

static int fsck_end(struct op *op, int res)
{
	struct lend *l = lend_of(op);
	if (res == -ENOENT)
		return op_fail(op, ERR_PRECONDITION,
			"volume %s needs a check and %s is not installed (package e2fsprogs)",
			id_of(l), l->proc.argv[0]);
	if (res < 0)
		return op_fail_sys(op, res, "volume %s: %s on %s", id_of(l), l->proc.argv[0],
			l->b.n.dev.dev.path);
	if (fsimg_fsck_result(l->b.n.fs, res) < 0)
		return op_fail(op, ERR_DATA_LOSS,
			"volume %s: %s could not mend its file system (exit %d); run it by hand on the volume's own node",
			id_of(l), l->proc.argv[0], res);
	return 0;
}

static int mount_run(struct op *op)
{
	struct lend *l = lend_of(op);
	struct mnt_mount_req *req = &l->mount;
	fsimg_uuid_of(id_of(l), l->uuid);
	snprintf(req->device, sizeof(req->device), "%s", l->b.n.dev.dev.path);
	snprintf(req->target, sizeof(req->target), "%s", l->b.path);
	snprintf(req->options, sizeof(req->options), "%s", l->b.n.access.options);
	snprintf(req->label, sizeof(req->label), "%s", l->b.n.access.label);
	req->type = l->b.n.fs;
	req->read_only = l->b.n.access.read_only;
	req->view_read_only = l->whole && l->read_only;
	req->make_target = l->whole;
	/* As on its own node: a copy has the UUID of what it was made from until it is mounted. */
	req->set_uuid = req->type == FSIMG_EXT4 && !req->read_only &&
			memcmp(l->b.info.probe.uuid, l->uuid, sizeof(l->uuid)) != 0;
	memcpy(req->uuid, l->uuid, sizeof(req->uuid));
	return volume_op_helper(op, MNT_MOUNT, req, sizeof(*req), CSI_MOUNT_TIMEOUT_MS);
}

static int mount_end(struct op *op, int res)
{
	struct lend *l = lend_of(op);
	if (res == -EEXIST && l->b.n.fs == FSIMG_BTRFS)
		return op_fail(op, ERR_PRECONDITION,
			"volume %s: a copy of this btrfs is mounted, and this kernel cannot mount both (6.7 and newer can): unstage that one first",
			id_of(l));
	if (res == -ENOENT && l->whole)
		return op_fail(op, ERR_INVALID,
			"target_path: the parent directory of %s does not exist; the orchestrator has to create it",
			l->b.path);
	return res < 0 ? volume_op_fail(op, res, "mount", l->b.path) : 0;
}

static bool grow_done(struct op *op)
{
	const struct lend *l = lend_of(op);
	return l->b.n.access.block || l->mounted || l->b.n.access.read_only ||
	       (l->whole && l->read_only) ||
	       l->b.info.probe.fs_bytes + POOL_SIZE_ALIGN > l->b.n.dev.dev.size_bytes;
}

static int grow_run(struct op *op)
{
	struct lend *l = lend_of(op);
	return volume_op_grow(op, l->b.path, l->b.n.fs);
}

static int grow_end(struct op *op, int res)
{
	return res == 0 ? 0 : volume_op_fail(op, res, "growth", lend_of(op)->b.path);
}

static bool clean_done(struct op *op)
{
	return grow_done(op) || borrow_clean_done(op);
}

static int remember_run(struct op *op)
{
	struct lend *l = lend_of(op);
	struct borrowed *one = borrow_entry(&l->b);
	if (l->whole || one == NULL)
		return 0;
	return borrowed_set_path(&one->staging, l->b.path) < 0
		       ? op_fail(op, ERR_NO_ROOM, "out of memory")
		       : 0;
}

/* clang-format off */
#define BORROW_STEPS \
	{"key", .run = borrow_key_run}, \
	{"inspect", .done = inspect_done, .run = inspect_run, .end = inspect_end}, \
	{"take", .run = take_run, .end = take_end, .undo = borrow_take_undo}, \
	{"hold cover", .done = borrow_open_done, .call = borrow_hold_call, \
		.end = borrow_hold_end, .undo = borrow_hold_undo}, \
	{"open", .done = borrow_open_done, .run = borrow_open_run, .end = borrow_open_end}, \
	{"look at what was opened", .done = borrow_open_done, .run = borrow_opened_run, \
		.end = borrow_opened_end}, \
	{"check other staging path", .done = elsewhere_done, .run = elsewhere_run, \
		.end = elsewhere_end}, \
	{"published elsewhere", .done = source_done, .run = source_run, .end = source_end}, \
	{"check what is mounted", .run = check_mount_run}, \
	{"check file system", .done = fsck_done, .run = fsck_run, .end = fsck_end}, \
	{"mount", .done = mount_done, .run = mount_run, .end = mount_end, .flags = OP_COMMIT}, \
	{"remember", .run = remember_run}, \
	{"grow", .done = grow_done, .run = grow_run, .end = grow_end}, \
	{"clean log", .done = clean_done, .run = borrow_clean_run, .end = borrow_clean_end}
/* clang-format on */

static const struct op_step stage_steps[] = {
	BORROW_STEPS,
	{NULL},
};

static int stage_prepare(struct csi_task *task, struct err *err)
{
	const Csi__V1__NodeStageVolumeRequest *req = (const void *)task->request;
	struct lend *l = container_of(task, struct lend, b.n.task);
	l->b.path = csi_str(req->staging_target_path);
	l->b.field = task->rpc->paths[0];
	int r = borrow_find_terms(&l->b, req->volume_capability, err);
	return r == 0 ? borrow_check_key(&l->b, req->secrets, req->n_secrets, "node-stage", err)
		      : r;
}

const struct csi_operation csi_borrow_stage = {
	sizeof(struct lend), stage_prepare, stage_steps, borrow_open_cleanup};

/* ---- publish: staged? ---- */

static int staged_run(struct op *op)
{
	struct lend *l = lend_of(op);
	bool there = borrow_entry(&l->b) != NULL && !borrow_is_closed(&l->b);
	if (l->b.n.access.block && there)
		return 0;
	if (!there)
		return op_fail(op, ERR_PRECONDITION,
			"volume %s is not staged at %s; call NodeStageVolume first", id_of(l),
			l->b.path);
	return volume_op_inspect(op, l->b.path);
}

static int staged_end(struct op *op, int res)
{
	struct lend *l = lend_of(op);
	int r = volume_op_inspect_end(op, res);
	if (r < 0)
		return r;
	if (!node_info_is_dev(&l->b.n.info, &l->b.n.dev.dev))
		return op_fail(op, ERR_PRECONDITION,
			"volume %s is not staged at %s; call NodeStageVolume first", id_of(l),
			l->b.path);
	if (l->b.n.info.fs_read_only && !l->read_only)
		return op_fail(op, ERR_PRECONDITION,
			"volume %s: its file system is read-only, it cannot be published writable",
			id_of(l));
	return 0;
}

/* ---- the target ---- */

static bool target_done(struct op *op)
{
	const struct lend *l = lend_of(op);
	return l->whole && !l->b.n.access.block && strcmp(l->b.path, l->target_path) == 0;
}

static int target_run(struct op *op)
{
	return volume_op_inspect(op, lend_of(op)->target_path);
}

static int target_end(struct op *op, int res)
{
	struct lend *l = lend_of(op);
	const struct mnt_info *info = &l->b.n.info;
	bool block = l->b.n.access.block;
	int r = volume_op_inspect_end(op, res);
	if (r == 0)
		r = volume_op_check_not_nested(op, "target_path");
	if (r < 0 || !info->exists)
		return r;
	if (info->is_symlink)
		return op_fail(
			op, ERR_INVALID, "target_path: %s is a symbolic link", l->target_path);
	if (info->is_mount && !node_info_is_dev(info, &l->b.n.dev.dev))
		return op_fail(op, ERR_EXISTS, "target_path: something else is mounted at %s",
			l->target_path);
	if (!info->is_mount && (block ? !info->is_file : !info->is_dir))
		return op_fail(op, ERR_INVALID, "target_path: %s exists and is not a %s",
			l->target_path, block ? "file" : "directory");
	if (info->is_mount && info->read_only != l->read_only)
		return op_fail(op, ERR_EXISTS, "volume %s is published at %s already, but %s",
			id_of(l), l->target_path, info->read_only ? "read-only" : "writable");
	l->published = info->is_mount;
	return 0;
}

/* ---- who else? ---- */

/* Where everybody is allowed to nothing is looked up; nor for a repeat, which adds no place. */
static bool others_done(struct op *op)
{
	const struct lend *l = lend_of(op);
	const struct borrowed *one = borrow_entry(&l->b);
	return l->published || one == NULL || (!l->b.n.access.single_writer && one->writer == NULL);
}

static int others_run(struct op *op)
{
	struct lend *l = lend_of(op);
	node_others_init(&l->b.others, op->reactor, &l->b.n.dev.dev, l->target_path,
		l->whole ? NULL : l->b.path);
	return op_child(op, &l->b.others.op);
}

static int others_end(struct op *op, int res)
{
	struct lend *l = lend_of(op);
	if (res < 0 || l->b.others.count == 0)
		return res;
	return op_fail(op, ERR_PRECONDITION,
		"volume %s is published at %s already and its access mode SINGLE_NODE_SINGLE_WRITER allows one place only",
		id_of(l), l->b.others.path);
}

/* ---- read-only devices: the mount's flag does not protect a device node ---- */

static bool mode_done(struct op *op)
{
	const struct lend *l = lend_of(op);
	return !l->b.n.access.block || l->published;
}

static int mode_call(struct op *op)
{
	const struct lend *l = lend_of(op);
	return blkdev_set_read_only(l->b.n.dev.dev.path, l->read_only);
}

static int mode_end(struct op *op, int res)
{
	struct lend *l = lend_of(op);
	return res == 0 ? 0
			: op_fail_sys(op, res, "making %s %s", l->b.n.dev.dev.path,
				  l->read_only ? "read-only" : "writable");
}

/* ---- the bind ---- */

static bool bind_done(struct op *op)
{
	const struct lend *l = lend_of(op);
	return l->published || target_done(op);
}

static int bind_run(struct op *op)
{
	struct lend *l = lend_of(op);
	snprintf(l->bind.source, sizeof(l->bind.source), "%s",
		l->b.n.access.block ? l->b.n.dev.dev.path : l->b.path);
	snprintf(l->bind.target, sizeof(l->bind.target), "%s", l->target_path);
	l->bind.block = l->b.n.access.block;
	l->bind.read_only = l->read_only;
	l->bind.writable = l->whole && !l->read_only;
	return volume_op_helper(op, MNT_BIND, &l->bind, sizeof(l->bind), CSI_MOUNT_TIMEOUT_MS);
}

static int bind_end(struct op *op, int res)
{
	struct lend *l = lend_of(op);
	if (res == -ENOENT)
		return op_fail(op, ERR_INVALID,
			"target_path: the parent directory of %s does not exist; the orchestrator has to create it",
			l->target_path);
	return res == 0 ? 0 : volume_op_fail(op, res, "bind mount", l->target_path);
}

static int bind_undo(struct op *op)
{
	struct lend *l = lend_of(op);
	struct mnt_unmount_req *req = &l->b.unmount;
	snprintf(req->target, sizeof(req->target), "%s", l->target_path);
	req->dev_major = l->b.n.dev.dev.major;
	req->dev_minor = l->b.n.dev.dev.minor;
	req->remove = true;
	return volume_op_helper(op, MNT_UNMOUNT, req, sizeof(*req), CSI_MOUNT_TIMEOUT_MS);
}

static int remember_target_run(struct op *op)
{
	struct lend *l = lend_of(op);
	struct borrowed *one = borrow_entry(&l->b);
	if (one == NULL || !l->b.n.access.single_writer)
		return 0;
	return borrowed_set_path(&one->writer, l->target_path) < 0
		       ? op_fail(op, ERR_NO_ROOM, "out of memory")
		       : 0;
}

/* clang-format off */
#define BORROW_PUBLISH_STEPS \
	{"target", .done = target_done, .run = target_run, .end = target_end}, \
	{"others", .done = others_done, .run = others_run, .end = others_end}, \
	{"mode", .done = mode_done, .call = mode_call, .end = mode_end}, \
	{"bind", .done = bind_done, .run = bind_run, .end = bind_end, .undo = bind_undo}, \
	{"remember target", .run = remember_target_run}
/* clang-format on */

static const struct op_step publish_steps[] = {
	{"staging", .run = staged_run, .end = staged_end},
	BORROW_PUBLISH_STEPS,
	{NULL},
};

static const struct op_step whole_steps[] = {
	BORROW_STEPS,
	BORROW_PUBLISH_STEPS,
	{NULL},
};

static int publish_prepare(struct csi_task *task, struct err *err)
{
	const Csi__V1__NodePublishVolumeRequest *req = (const void *)task->request;
	struct lend *l = container_of(task, struct lend, b.n.task);
	l->whole = !task->csi->config.staging;
	l->target_path = csi_str(req->target_path);
	l->b.path = l->whole ? l->target_path : csi_str(req->staging_target_path);
	l->b.field = l->whole ? "target_path" : "staging_target_path";
	if (l->whole)
		task->steps = whole_steps;
	else if (l->b.path[0] == '\0')
		return err_set(err, ERR_PRECONDITION,
			"staging_target_path is missing; this driver needs NodeStageVolume first");
	int r = l->whole ? 0 : csi_check_path("staging_target_path", l->b.path, err);
	if (r == 0)
		r = borrow_find_terms(&l->b, req->volume_capability, err);
	if (r == 0 && l->whole)
		r = borrow_check_key(&l->b, req->secrets, req->n_secrets, "node-publish", err);
	l->read_only = req->readonly || l->b.n.access.read_only;
	return r;
}

const struct csi_operation csi_borrow_publish = {
	sizeof(struct lend), publish_prepare, publish_steps, borrow_open_cleanup};
