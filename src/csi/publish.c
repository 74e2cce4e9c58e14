/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NodePublishVolume: what was staged appears at the target path, by a bind mount of the staging
 * path (mount volumes) or of the device node (block volumes).
 *
 * Happy path: look at the staging path -> the device -> look at the target -> access modes -> bind.
 * How it can fail: not staged, the target is something else's, a second writer where one is
 * allowed. The bind removes what it created when it fails; a repeat finds what is done already.
 *
 * Where nothing is staged (--staging off), a publish is *whole*: the steps of a stage, then these.
 * The first one mounts the file system at its target; those that follow bind it from a place where
 * it is published already, as the kernel says. There is no directory of ours in between, so nothing
 * of ours stays when the last target is let go (release.c). An inline volume is published so in any
 * case, and made before (inline.h).
 */
#include "csi/attach.h"
#include "csi/inline.h"
#include "csi/key.h"
#include "csi/request.h"
#include "csi/services.h"
#include "csi/stage_steps.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

struct publish {
	struct stage s;
	const char *target_path;
	bool is_inline;
	struct inline_make *make; /* NULL: there is no inline volume to be made */
	bool read_only;
	bool published; /* found as it should be */
	struct node_others others;
	struct mnt_bind_req bind;
	struct mnt_unmount_req unmount;
};

#define publish_of(op_ptr) container_of(stage_of(op_ptr), struct publish, s)

/* ---- an inline volume: it is made first ---- */

static bool make_done(struct op *op)
{
	return publish_of(op)->make == NULL;
}

static int make_run(struct op *op)
{
	return csi_inline_make_run(op, publish_of(op)->make);
}

static int make_end(struct op *op, int res)
{
	return csi_inline_make_end(op, publish_of(op)->make, res);
}

static bool confine_done(struct op *op)
{
	return !publish_of(op)->is_inline;
}

static struct node_mount *other_place(const struct publish *p)
{
	const struct node_volume *node = node_volume_find(p->s.n.volume);
	if (node == NULL)
		return NULL;
	list_for_each (link, &node->mounts) {
		struct node_mount *mount = container_of(link, struct node_mount, link);
		if (strcmp(mount->path, p->target_path) != 0)
			return mount;
	}
	return NULL;
}

/* One pod has it, at one place, which after a restart may have another name: that of the kernel. */
static int confine_run(struct op *op)
{
	struct publish *p = publish_of(op);
	const Csi__V1__NodePublishVolumeRequest *req = (const void *)p->s.n.task.request;
	p->read_only = p->s.whole_read_only = req->readonly || p->s.n.access.read_only;
	stage_begin(&p->s, req->volume_capability);
	int r = csi_inline_confine(&p->s.n.access, &op->err);
	if (r < 0 || other_place(p) == NULL)
		return r;
	node_others_init(&p->others, op->reactor, &node_volume_find(p->s.n.volume)->dev,
		p->target_path, NULL);
	return op_child(op, &p->others.op);
}

static int confine_end(struct op *op, int res)
{
	struct publish *p = publish_of(op);
	if (res < 0)
		return res;
	if (p->others.count > 0)
		return op_fail(op, ERR_EXISTS,
			"inline volume %s is published at %s, and has no other place",
			p->s.n.volume->rec->name, p->others.path);
	for (struct node_mount *mount; (mount = other_place(p)) != NULL;)
		node_volume_remove_mount(node_volume_find(p->s.n.volume), mount->path);
	return 0;
}

/* ---- not staged: published already? ---- */

static const struct node_mount *published_elsewhere(const struct publish *p)
{
	const struct node_volume *node = node_volume_find(p->s.n.volume);
	const struct node_mount *best = NULL;
	if (node == NULL || p->s.n.access.block)
		return NULL;
	list_for_each (link, &node->mounts) {
		const struct node_mount *mount = container_of(link, struct node_mount, link);
		if (strcmp(mount->path, p->target_path) != 0 &&
			(best == NULL || (best->read_only && !mount->read_only)))
			best = mount;
	}
	return best;
}

static bool elsewhere_done(struct op *op)
{
	return published_elsewhere(publish_of(op)) == NULL;
}

static int elsewhere_run(struct op *op)
{
	struct publish *p = publish_of(op);
	p->s.staging_path = arena_strdup(p->s.n.task.arena, published_elsewhere(p)->path);
	if (p->s.staging_path == NULL)
		return op_fail(op, ERR_NO_ROOM, "out of memory");
	return volume_op_inspect(op, p->s.staging_path);
}

static int elsewhere_end(struct op *op, int res)
{
	struct publish *p = publish_of(op);
	int r = volume_op_inspect_end(op, res);
	if (r < 0)
		return r;
	struct node_volume *node = node_volume_find(p->s.n.volume);
	if (node_info_is_dev(&p->s.n.info, &node->dev))
		return 0;
	/* Unmounted behind our back. */
	node_volume_remove_mount(node, p->s.staging_path);
	p->s.staging_path = p->target_path;
	return elsewhere_done(op) ? 0 : elsewhere_run(op);
}

/* Without it the next run of the driver would take the first target for a staging path. */
static bool mark_done(struct op *op)
{
	const struct publish *p = publish_of(op);
	if (p->is_inline)
		return true;
	const struct node_volume *node = node_volume_find(p->s.n.volume);
	return p->s.n.access.block || p->s.staging_path != p->target_path ||
	       (node != NULL && node->whole);
}

static int mark_run(struct op *op)
{
	return volume_op_mark_whole(op, true);
}

static int mark_end(struct op *op, int res)
{
	const struct publish *p = publish_of(op);
	return res == 0 ? 0
			: op_fail_sys(op, res, "volume %s: marking its image as published",
				  p->s.n.volume->rec->name);
}

/* ---- staged? ---- */

static bool staging_done(struct op *op)
{
	return publish_of(op)->s.n.access.block;
}

static int staging_run(struct op *op)
{
	return volume_op_inspect(op, publish_of(op)->s.staging_path);
}

static int staging_end(struct op *op, int res)
{
	struct publish *p = publish_of(op);
	int r = volume_op_inspect_end(op, res);
	if (r < 0)
		return r;
	struct node_volume *node = node_volume_find(p->s.n.volume);
	if (node == NULL || !node_info_is_dev(&p->s.n.info, &node->dev))
		return op_fail(op, ERR_PRECONDITION,
			"volume %s is not staged at %s; call NodeStageVolume first",
			p->s.n.volume->rec->name, p->s.staging_path);
	if (p->s.n.info.fs_read_only && !p->read_only)
		return op_fail(op, ERR_PRECONDITION,
			"volume %s: its file system is read-only, it cannot be published writable",
			p->s.n.volume->rec->name);
	return 0;
}

/* The device of a block volume, bound again if it went away behind our back. */
static bool attach_done(struct op *op)
{
	return !publish_of(op)->s.n.access.block;
}

static int attach_run(struct op *op)
{
	struct publish *p = publish_of(op);
	struct node_volume *node = node_volume_find(p->s.n.volume);
	if (node == NULL || !node->dev.attached || node_volume_has_fs(p->s.n.volume))
		return op_fail(op, ERR_PRECONDITION,
			"volume %s is not staged as a block volume; call NodeStageVolume first",
			p->s.n.volume->rec->name);
	volume_op_prepare_backend(&p->s.n);
	return p->s.n.backend->attach(p->s.n.backend, op, &p->s.n.dev);
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
	if (!p->s.n.access.block || p->published || !p->s.n.dev.dev.bare)
		return 0;
	return op_fail(op, ERR_PRECONDITION,
		"volume %s: its loop node %s is published elsewhere, by an earlier version, and loop nodes are not published any more: delete the pods that have it, so that it is unstaged and staged again",
		p->s.n.volume->rec->name, p->s.n.dev.dev.path);
}

static int target_end(struct op *op, int res)
{
	struct publish *p = publish_of(op);
	const struct mnt_info *info = &p->s.n.info;
	int r = volume_op_inspect_end(op, res);
	if (r == 0)
		r = volume_op_check_not_nested(op, "target_path");
	if (r < 0)
		return r;
	if (!info->exists)
		return refuse_bare(op);
	struct node_volume *node = node_volume_find(p->s.n.volume);
	if (info->is_symlink)
		return op_fail(
			op, ERR_INVALID, "target_path: %s is a symbolic link", p->target_path);
	if (info->is_mount && !node_info_is_dev(info, &node->dev))
		return op_fail(op, ERR_EXISTS, "target_path: something else is mounted at %s",
			p->target_path);
	if (!info->is_mount && (p->s.n.access.block ? !info->is_file : !info->is_dir))
		return op_fail(op, ERR_INVALID, "target_path: %s exists and is not a %s",
			p->target_path, p->s.n.access.block ? "file" : "directory");
	if (info->is_mount && info->read_only != p->read_only)
		return op_fail(op, ERR_EXISTS, "volume %s is published at %s already, but %s",
			p->s.n.volume->rec->name, p->target_path,
			info->read_only ? "read-only" : "writable");
	p->published = info->is_mount;
	return refuse_bare(op);
}

/* ---- who else? ---- */

/* Not where it is staged. */
static const char *staged_at(const struct publish *p)
{
	if (!p->s.whole)
		return p->s.staging_path;
	const struct node_mount *mount = node_volume_staged(node_volume_find(p->s.n.volume));
	return mount != NULL ? mount->path : "";
}

static bool is_other(const struct publish *p, const struct node_mount *mount)
{
	return strcmp(mount->path, p->target_path) != 0 && strcmp(mount->path, staged_at(p)) != 0;
}

/* Nobody else has it, or everybody is allowed to: then there is nothing to look up. Nor for a
 * repeat, which adds no place (and which an adopted mount may know by another path, see
 * volume_op_mark_writer). */
static bool others_done(struct op *op)
{
	struct publish *p = publish_of(op);
	struct node_volume *node = node_volume_find(p->s.n.volume);
	if (p->published)
		return true;
	list_for_each (link, &node->mounts) {
		struct node_mount *mount = container_of(link, struct node_mount, link);
		if (is_other(p, mount) &&
			(p->s.n.access.single_writer || mount->single_writer ||
				(p->s.n.access.block && mount->read_only != p->read_only)))
			return false;
	}
	return true;
}

static int others_run(struct op *op)
{
	struct publish *p = publish_of(op);
	struct node_volume *node = node_volume_find(p->s.n.volume);
	node_others_init(&p->others, op->reactor, &node->dev, p->target_path, staged_at(p));
	return op_child(op, &p->others.op);
}

static int others_end(struct op *op, int res)
{
	struct publish *p = publish_of(op);
	if (res < 0)
		return res;
	struct node_volume *node = node_volume_find(p->s.n.volume);
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
		if (is_other(p, mount) && (p->s.n.access.single_writer || mount->single_writer))
			return op_fail(op, ERR_PRECONDITION,
				"volume %s is published at %s already and its access mode SINGLE_NODE_SINGLE_WRITER allows one place only",
				p->s.n.volume->rec->name, p->others.path);
	}
	return op_fail(op, ERR_PRECONDITION,
		"block volume %s is published at %s already; a device is read-only for all or for none",
		p->s.n.volume->rec->name, p->others.path);
}

/* ---- read-only block devices: the mount's flag does not protect a device node ---- */

static int mode_job(struct op *op)
{
	const struct publish *p = publish_of(op);
	return p->s.n.backend->set_read_only(p->s.n.backend, &p->s.n.dev.dev, p->read_only);
}

static bool mode_done(struct op *op)
{
	struct publish *p = publish_of(op);
	/* Also where nothing seems to change: ublk's data process knows how a device was attached,
	 * not what it was made since. */
	return !p->s.n.access.block || p->published;
}

static int mode_end(struct op *op, int res)
{
	struct publish *p = publish_of(op);
	if (res < 0)
		return op_fail_sys(op, res, "making %s %s", p->s.n.dev.dev.path,
			p->read_only ? "read-only" : "writable");
	node_volume_find(p->s.n.volume)->dev.read_only = p->read_only;
	return 0;
}

/* ---- a single writer is one for the next run of the driver as well ---- */

static bool writer_done(struct op *op)
{
	struct publish *p = publish_of(op);
	struct node_mount *mount =
		node_volume_mount_at(node_volume_find(p->s.n.volume), p->target_path);
	return !p->s.n.access.single_writer || (mount != NULL && mount->single_writer);
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
		p->s.n.access.block ? p->s.n.dev.dev.path : p->s.staging_path);
	snprintf(p->bind.target, sizeof(p->bind.target), "%s", p->target_path);
	p->bind.block = p->s.n.access.block;
	p->bind.read_only = p->read_only;
	p->bind.writable = p->s.whole && !p->read_only;
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
	struct node_volume *node = node_volume_find(p->s.n.volume);
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
	struct node_volume *node = node_volume_find(p->s.n.volume);
	node->whole |= p->s.n.whole || p->is_inline;
	if (node_volume_add_mount(node, p->target_path, p->read_only, p->s.n.access.single_writer) <
		0)
		return op_fail(op, ERR_NO_ROOM, "out of memory");
	return 0;
}

/* ---- the two ways ---- */

/* From the look at the target on they are one. */
#define PUBLISH_STEPS                                                                              \
	{"target", .run = target_run, .end = target_end},                                          \
		{"others", .done = others_done, .run = others_run, .end = others_end},             \
		{"mode", .done = mode_done, .call = mode_job, .end = mode_end},                    \
		{"writer", .done = writer_done, .run = writer_run, .end = volume_op_ignore},       \
		{"bind", .done = bind_done, .run = bind_run, .end = bind_end, .undo = bind_undo},  \
		{"remember target", .run = remember_run},                                          \
	{                                                                                          \
		"limits", .done = volume_op_limits_done, .run = volume_op_limits,                  \
			  .end = volume_op_ignore                                                  \
	}

static const struct op_step steps[] = {
	{"staging", .done = staging_done, .run = staging_run, .end = staging_end},
	{"attach", .done = attach_done, .run = attach_run, .end = volume_op_device_end},
	PUBLISH_STEPS,
	{NULL},
};

static const struct op_step whole_steps[] = {
	{"make", .done = make_done, .run = make_run, .end = make_end},
	{"confine", .done = confine_done, .run = confine_run, .end = confine_end},
	{"published elsewhere", .done = elsewhere_done, .run = elsewhere_run, .end = elsewhere_end},
	{"mark", .done = mark_done, .run = mark_run, .end = mark_end},
	STAGE_STEPS,
	PUBLISH_STEPS,
	{NULL},
};

static void begin_whole(struct publish *p)
{
	p->s.n.task.steps = whole_steps;
	p->s.whole = true;
	p->s.whole_read_only = p->read_only;
	p->s.staging_path = p->target_path;
	p->s.field = "target_path";
}

static int prepare_whole(
	struct publish *p, const Csi__V1__NodePublishVolumeRequest *req, struct err *err)
{
	struct csi_task *task = &p->s.n.task;
	begin_whole(p);
	const struct record *rec = p->s.n.volume->rec;
	int r = rec->encryption == RECORD_PLAIN ? 0
						: csi_key_check(rec->name, req->secrets,
							  req->n_secrets, "node-publish", err);
	if (r < 0)
		return r;
	/* Nothing but that look tells where else it is published. */
	if (!node_knows_volume(task->csi->node, p->s.n.volume))
		return err_set(err, ERR_UNAVAILABLE,
			"volume %s: devices of an earlier run are still being looked for; try again",
			p->s.n.volume->rec->name);
	stage_begin(&p->s, req->volume_capability);
	return 0;
}

static int prepare_inline(
	struct publish *p, const Csi__V1__NodePublishVolumeRequest *req, struct err *err)
{
	p->is_inline = true;
	begin_whole(p);
	int r = csi_inline_prepare(&p->s.n, req, &p->make, err);
	if (r == 0 && p->make == NULL && !node_knows_volume(p->s.n.task.csi->node, p->s.n.volume))
		return err_set(err, ERR_UNAVAILABLE,
			"volume %s: devices of an earlier run are still being looked for; try again",
			p->s.n.volume->rec->name);
	return r;
}

static int prepare(struct csi_task *task, struct err *err)
{
	const Csi__V1__NodePublishVolumeRequest *req = (const void *)task->request;
	struct publish *p = container_of(task, struct publish, s.n.task);
	bool whole = !task->csi->config.staging;
	p->s.staging_path = csi_str(req->staging_target_path);
	p->target_path = csi_str(req->target_path);
	if (csi_inline_asked(req))
		return prepare_inline(p, req, err);
	if (!whole && p->s.staging_path[0] == '\0')
		return err_set(err, ERR_PRECONDITION,
			"staging_target_path is missing; this driver needs NodeStageVolume first");
	int r = whole ? 0 : csi_check_path("staging_target_path", p->s.staging_path, err);
	if (r == 0)
		r = volume_op_find(&p->s.n, req->volume_capability, err);
	if (r == 0)
		r = csi_attach_check_use(task->csi, p->s.n.volume, &p->s.n.access, err);
	p->read_only = req->readonly || p->s.n.access.read_only;
	return r == 0 && whole ? prepare_whole(p, req, err) : r;
}

static void cleanup(struct csi_task *task)
{
	csi_inline_make_free(container_of(task, struct publish, s.n.task)->make);
	volume_op_cleanup(task);
}

const struct csi_operation csi_node_publish = {sizeof(struct publish), prepare, steps, cleanup};
