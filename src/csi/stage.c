/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NodeStageVolume: the image becomes a device, and for a mount volume the device is mounted at the
 * staging path.
 *
 * Happy path: look at the path -> look at the image -> attach -> (check and repair) -> mount, with
 * a UUID of its own -> grow, and clean its log (clean_log.h). No image of a volume is ever
 * formatted here: a volume got its file system before it had a name, an encrypted one gets an image
 * that has one (node/first_stage.h), and an image that does not hold what its record says is
 * refused. What an encrypted one holds is seen when its device is there. A volume that was made for
 * block is mounted if its record allows it and the image holds a file system, and not while it is
 * published as a device. How it can fail: another's mount at the path, an image in use elsewhere, a
 * damaged file system, a device that hangs. Before the mount, a device that this attempt attached
 * is detached again. What is mounted stays, whatever fails then (what hangs in a growth cannot be
 * unmounted either): the retry finds it and grows it, or an unstage takes it away.
 */
#include "csi/stage_steps.h"

#include "csi/attach.h"
#include "csi/key.h"
#include "csi/request.h"
#include "csi/services.h"
#include "mount/mnt_fs.h"
#include "node/devices.h"
#include "pool/index.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { FSCK_TIMEOUT_MS = 600000 };

/* A device that is published at once has no path of its own before. */
bool stage_inspect_done(struct op *op)
{
	struct stage *s = stage_of(op);
	return s->whole && s->n.access.block;
}

int stage_inspect_run(struct op *op)
{
	return volume_op_inspect(op, stage_of(op)->staging_path);
}

int stage_inspect_end(struct op *op, int res)
{
	struct stage *s = stage_of(op);
	int r = volume_op_inspect_end(op, res);
	if (r < 0)
		return r;
	if (!s->n.info.exists && !s->whole)
		return op_fail(op, ERR_INVALID,
			"%s: %s does not exist; the orchestrator has to create it", s->field,
			s->staging_path);
	if (s->n.info.exists && !s->n.info.is_dir)
		return op_fail(
			op, ERR_INVALID, "%s: %s is not a directory", s->field, s->staging_path);
	return s->n.access.block ? 0 : volume_op_check_not_nested(op, s->field);
}

/* ---- the device ---- */

/* Of a thin volume on raw disks: what has its bytes is active. */
bool stage_thin_done(struct op *op)
{
	return thin_use_done(stage_of(op)->n.volume);
}

int stage_thin_run(struct op *op)
{
	struct stage *s = stage_of(op);
	return thin_want(op, s->n.volume->pool, &s->thin_wait);
}

int stage_thin_end(struct op *op, int res)
{
	struct stage *s = stage_of(op);
	return thin_use_end(op, s->n.volume->pool, &s->thin_wait, res);
}

static int prepare_attach(struct op *op)
{
	struct stage *s = stage_of(op);
	if (s->n.volume->image == POOL_IMAGE_TRUNCATED)
		return op_fail(op, ERR_DATA_LOSS,
			"volume %s: its image is shorter than its record says",
			s->n.volume->rec->name);
	struct node_volume *node = node_volume_find(s->n.volume);
	s->attached_here = node == NULL || !node->dev.attached;
	s->attached_first = s->attached_here && node_knows_volume(s->n.task.csi->node, s->n.volume);
	volume_op_prepare_backend(&s->n);
	s->n.dev.read_only = s->n.access.block && s->n.access.read_only;
	return 0;
}

static int attach_call(struct op *op)
{
	struct stage *s = stage_of(op);
	return s->n.backend->attach_call(&s->n.dev);
}

bool stage_attach_done(struct op *op)
{
	return stage_of(op)->attached;
}

int stage_attach_run(struct op *op)
{
	struct stage *s = stage_of(op);
	int r = prepare_attach(op);
	return r < 0 ? r : s->n.backend->attach(s->n.backend, op, &s->n.dev);
}

int stage_attach_end(struct op *op, int res)
{
	struct stage *s = stage_of(op);
	int r = backend_end(op, &s->n.dev, res);
	/* Opening an encrypted image takes memory as well, which is another thing to be short of.
	 */
	if (!s->n.dev.encrypted)
		node_devices_note(
			s->n.task.csi->node, s->n.backend->type, r < 0 ? op->err.code : ERR_OK);
	if (r < 0)
		return r;
	struct node_volume *node = node_volume_get(s->n.volume);
	if (node == NULL)
		return op_fail(op, ERR_NO_ROOM, "out of memory");
	/* A device of an earlier run is not detached if this attempt fails. */
	s->attached_here &= !s->n.dev.dev.found;
	s->attached_first &= s->attached_here;
	node_volume_set_dev(s->n.task.csi->node, node, &s->n.dev.dev);
	node->marks_read |= s->attached_first;
	node->as_fs &= !list_empty(&node->mounts);
	s->mounted = node_info_is_dev(&s->n.info, &node->dev);
	s->attached = true;
	return 0;
}

int stage_attach_undo(struct op *op)
{
	struct stage *s = stage_of(op);
	struct node_volume *node = node_volume_find(s->n.volume);
	if (!s->attached_here || s->mounted || node == NULL)
		return 0;
	node_volume_clear_dev(s->n.task.csi->node, node);
	node_volume_forget(s->n.volume);
	return s->n.backend->detach(s->n.backend, op, &s->n.dev);
}

/* Where the backend attaches in one call, it follows the look at the image. */
int stage_probe_run(struct op *op)
{
	static const struct op_call calls[] = {
		{"probe", .fn = stage_probe_call, .end = stage_probe_end},
		{"attach", .fn = attach_call, .end = stage_attach_end, .undo = stage_attach_undo},
	};
	struct stage *s = stage_of(op);
	bool attach =
		s->n.backend->attach_call != NULL && s->n.volume->image != POOL_IMAGE_TRUNCATED;
	int r = attach ? prepare_attach(op) : 0;
	return r < 0 ? r : op_calls(op, calls, attach ? 2 : 1);
}

/* ---- what is mounted at the path ---- */

bool stage_check_mount_done(struct op *op)
{
	return !stage_of(op)->n.info.is_mount;
}

int stage_check_mount_run(struct op *op)
{
	struct stage *s = stage_of(op);
	if (!s->mounted)
		return op_fail(op, ERR_PRECONDITION,
			"%s: something else is mounted at %s; unmount it first", s->field,
			s->staging_path);
	if (s->whole && s->n.info.fs_read_only && !s->whole_read_only)
		return op_fail(op, ERR_PRECONDITION,
			"volume %s: its file system is read-only, it cannot be published writable",
			s->n.volume->rec->name);
	if (s->whole)
		return 0;
	if (s->n.info.read_only != s->n.access.read_only)
		return op_fail(op, ERR_EXISTS, "volume %s is staged at %s already, but %s",
			s->n.volume->rec->name, s->staging_path,
			s->n.info.read_only ? "read-only" : "writable");
	return 0;
}

/* A volume is mounted with one label. Where none is asked for, the mount's is not looked at: the
 * table of mounts is long. */
bool stage_check_label_done(struct op *op)
{
	return stage_check_mount_done(op) || stage_of(op)->n.access.label[0] == '\0';
}

int stage_check_label_run(struct op *op)
{
	struct stage *s = stage_of(op);
	return volume_op_helper_by(op, s->n.task.id, MNT_LABEL, &s->n.path, sizeof(s->n.path),
		&s->label, sizeof(s->label), NODE_STAT_TIMEOUT_MS);
}

int stage_check_label_end(struct op *op, int res)
{
	struct stage *s = stage_of(op);
	if (res < 0) {
		memcpy(s->n.result.why, s->label.why, sizeof(s->n.result.why));
		return volume_op_fail(op, res, "inspection", s->staging_path);
	}
	if (strcmp(s->label.label, s->n.access.label) == 0)
		return 0;
	return op_fail(op, ERR_EXISTS,
		"volume %s is %s at %s already, with %s%s; %s it there first",
		s->n.volume->rec->name, s->whole ? "published" : "staged", s->staging_path,
		s->label.label[0] != '\0' ? "the SELinux label " : "no SELinux label",
		s->label.label, s->whole ? "unpublish" : "unstage");
}

/* ---- repair and growth before the mount ---- */

/* No tool is let at a device that somebody has: it would only fail and look like a damaged file
 * system. If it is another namespace's mount that has it, ours succeeds; if it is a tool, the mount
 * is refused. */
bool stage_check_users_done(struct op *op)
{
	struct stage *s = stage_of(op);
	return s->n.access.block || s->mounted || !(s->probe.errors || s->offline_growth);
}

int stage_check_users_run(struct op *op)
{
	return op_work(op, stage_users_job, stage_of(op));
}

int stage_check_users_end(struct op *op, int res)
{
	stage_of(op)->in_use = res == -EBUSY;
	return 0;
}

/* Of what others have mounted, too, nothing is repaired beneath them. */
bool stage_fsck_done(struct op *op)
{
	return stage_of(op)->n.access.several || stage_check_users_done(op) || stage_of(op)->in_use;
}

int stage_fsck_run(struct op *op)
{
	struct stage *s = stage_of(op);
	int r = fsimg_fsck_argv(s->n.fs, s->n.dev.dev.path, s->n.volume->rec->size_bytes, &s->proc);
	if (r == -EOPNOTSUPP)
		return 0;
	if (r == 0 && s->offline_growth) {
		/* resize2fs insists on a full check; argv ends with the device. */
		unsigned i = 1;
		for (; s->proc.argv[i] != NULL; i++)
			;
		s->proc.argv[i] = s->proc.argv[i - 1];
		s->proc.argv[i - 1] = "-f";
	}
	s->proc.timeout_ms = FSCK_TIMEOUT_MS;
	return op_proc(op, &s->proc);
}

int stage_fsck_end(struct op *op, int res)
{
	struct stage *s = stage_of(op);
	const struct record *rec = s->n.volume->rec;
	if (res == -ENOENT)
		return op_fail(op, ERR_PRECONDITION,
			"volume %s needs a check and %s is not installed (package e2fsprogs)",
			rec->name, s->proc.argv[0]);
	if (res < 0)
		return op_fail_sys(op, res, "volume %s: %s on %s", rec->name, s->proc.argv[0],
			s->n.dev.dev.path);
	if (fsimg_fsck_result(s->n.fs, res) < 0)
		return op_fail(op, ERR_DATA_LOSS,
			"volume %s: %s could not mend its file system (exit %d); run it by hand on the image",
			rec->name, s->proc.argv[0], res);
	return 0;
}

bool stage_grow_offline_done(struct op *op)
{
	struct stage *s = stage_of(op);
	return s->mounted || s->in_use || !s->offline_growth;
}

int stage_grow_offline_run(struct op *op)
{
	struct stage *s = stage_of(op);
	s->proc = (struct proc){
		.argv = {"resize2fs", s->n.dev.dev.path, NULL},
		.timeout_ms = FSCK_TIMEOUT_MS,
	};
	return op_proc(op, &s->proc);
}

int stage_grow_offline_end(struct op *op, int res)
{
	struct stage *s = stage_of(op);
	if (res == 0)
		return 0;
	if (res < 0)
		return op_fail_sys(op, res, "volume %s: resize2fs", s->n.volume->rec->name);
	return op_fail(op, ERR_INTERNAL, "volume %s: resize2fs failed (exit %d): %.200s",
		s->n.volume->rec->name, res, s->proc.output);
}

/* A btrfs copy (clone or restore) carries its source's id, and older kernels (before 6.7) refuse to
 * mount both. Its superblock gets an id of its own. Not while a log tree waits to be replayed: the
 * tool commits a transaction, which writes over the log's blocks. Then the kernel has to tell them
 * apart, see stage_mount_end(), and the next stage does it. */
bool stage_new_uuid_done(struct op *op)
{
	struct stage *s = stage_of(op);
	return s->n.access.block || s->mounted || s->n.fs != FSIMG_BTRFS || s->probe.dirty ||
	       s->probe.errors || memcmp(s->probe.uuid, s->uuid, sizeof(s->uuid)) == 0;
}

int stage_new_uuid_run(struct op *op)
{
	struct stage *s = stage_of(op);
	fsimg_retag_argv(s->n.dev.dev.path, s->uuid, s->uuid_text, &s->proc);
	return op_proc(op, &s->proc);
}

/* ---- the mount ---- */

bool stage_mount_done(struct op *op)
{
	struct stage *s = stage_of(op);
	return s->n.access.block || s->mounted;
}

int stage_mount_run(struct op *op)
{
	struct stage *s = stage_of(op);
	struct mnt_mount_req *req = &s->mount;
	snprintf(req->device, sizeof(req->device), "%s", s->n.dev.dev.path);
	snprintf(req->target, sizeof(req->target), "%s", s->staging_path);
	snprintf(req->options, sizeof(req->options), "%s", s->n.access.options);
	snprintf(req->label, sizeof(req->label), "%s", s->n.access.label);
	req->type = s->n.fs;
	req->read_only = s->n.access.read_only;
	req->view_read_only = s->whole_read_only;
	req->make_target = s->whole;
	/* A template's or source's UUID is still in the copy. XFS is mounted nouuid, btrfs got its
	 * own before; ext4 gets it with the mount. */
	req->set_uuid = req->type == FSIMG_EXT4 && !req->read_only &&
			memcmp(s->probe.uuid, s->uuid, sizeof(s->uuid)) != 0;
	memcpy(req->uuid, s->uuid, sizeof(req->uuid));
	return volume_op_helper(op, MNT_MOUNT, req, sizeof(*req), CSI_MOUNT_TIMEOUT_MS);
}

static int holder_job(void *arg)
{
	struct stage *s = arg;
	return blkdev_find_holder(s->n.dev.dev.path, &s->holder);
}

/* The holder's pid is 0 when it is not seen from here. */
static int mount_in_use(struct op *op)
{
	struct stage *s = stage_of(op);
	const char *device = s->n.dev.dev.path;
	if (s->holder.pid == 0)
		return op_fail(op, ERR_PENDING,
			"volume %s: %s is in use by somebody who is not seen from here (fuser -v %s on the node); try again later",
			s->n.volume->rec->name, device, device);
	return op_fail(op, ERR_PENDING,
		"volume %s: %s is in use by %s (pid %d), perhaps a tool of an earlier run; try again when it has ended",
		s->n.volume->rec->name, device, s->holder.name, (int)s->holder.pid);
}

int stage_mount_end(struct op *op, int res)
{
	struct stage *s = stage_of(op);
	if (res == -EEXIST && s->n.fs == FSIMG_BTRFS)
		return op_fail(op, ERR_PRECONDITION,
			"volume %s: a copy of this btrfs is mounted, and this kernel cannot mount both (6.7 and newer can): unstage that one first",
			s->n.volume->rec->name);
	if (s->asked)
		return mount_in_use(op);
	if (res == -EBUSY) {
		s->asked = true;
		return op_work(op, holder_job, s);
	}
	if (res == -ENOENT && s->whole)
		return op_fail(op, ERR_INVALID,
			"target_path: the parent directory of %s does not exist; the orchestrator has to create it",
			s->staging_path);
	return res < 0 ? volume_op_fail(op, res, "mount", s->staging_path) : 0;
}

bool stage_remember_done(struct op *op)
{
	return stage_of(op)->n.access.block;
}

int stage_remember_run(struct op *op)
{
	struct stage *s = stage_of(op);
	struct node_volume *node = node_volume_find(s->n.volume);
	node->as_fs = s->n.changes_mode;
	if (s->whole && node_volume_mount_at(node, s->staging_path) != NULL)
		return 0;
	bool read_only = s->n.access.read_only || s->whole_read_only;
	if (node_volume_add_mount(node, s->staging_path, read_only, false) < 0)
		return op_fail(op, ERR_NO_ROOM, "out of memory");
	node_volume_mount_at(node, s->staging_path)->staging = !s->whole;
	return 0;
}

/* ---- growing what is mounted ---- */

/* Nothing is grown through a mount that is read-only; one that is writable does it some time. */
static bool is_view_read_only(const struct stage *s)
{
	return s->n.access.read_only ||
	       (s->whole && (s->mounted ? s->n.info.read_only : s->whole_read_only));
}

/* A mount that was found may come from an attempt that ended before the growth. */
bool stage_grow_done(struct op *op)
{
	struct stage *s = stage_of(op);
	const struct record *rec = s->n.volume->rec;
	if (s->n.access.block || is_view_read_only(s))
		return true;
	if (s->mounted)
		return s->n.info.fs_read_only ||
		       node_volume_find(s->n.volume)->fitted_bytes == s->n.dev.dev.size_bytes;
	return s->offline_growth || s->probe.fs_bytes + POOL_SIZE_ALIGN > rec->size_bytes;
}

int stage_grow_run(struct op *op)
{
	struct stage *s = stage_of(op);
	return volume_op_grow(op, s->staging_path, s->n.fs);
}

int stage_grow_end(struct op *op, int res)
{
	struct stage *s = stage_of(op);
	/* The mount was found: NodeExpandVolume left it as it is, and said why. */
	if (res == -EPERM && s->mounted)
		return 0;
	return res == 0 ? 0 : volume_op_fail(op, res, "growth", s->staging_path);
}

/* Where the kernel cannot grow ext4 online, a larger image gets its growth before the mount. */
int stage_plan_growth_run(struct op *op)
{
	struct stage *s = stage_of(op);
	const struct record *rec = s->n.volume->rec;
	s->offline_growth = s->n.fs == FSIMG_EXT4 && !s->n.access.read_only &&
			    s->probe.fs_bytes + POOL_SIZE_ALIGN <= rec->size_bytes &&
			    !mnt_can_grow_ext4();
	return 0;
}

int stage_fitted_run(struct op *op)
{
	struct stage *s = stage_of(op);
	if (!is_view_read_only(s) && !s->n.info.fs_read_only)
		node_volume_find(s->n.volume)->fitted_bytes = s->n.dev.dev.size_bytes;
	return 0;
}

static const struct op_step steps[] = {
	STAGE_STEPS,
	{"limits", .done = volume_op_limits_done, .run = volume_op_limits, .end = volume_op_ignore},
	{NULL},
};

void stage_begin(struct stage *s, const Csi__V1__VolumeCapability *cap)
{
	s->dirfd = pool_dirfd(s->n.volume->pool, RECORD_VOLUME);
	s->image = s->n.volume->key;
	s->cap = cap;
	char id[RECORD_ID_MAX]; /* an inline volume is asked for by another one */
	pool_object_id(s->n.volume, id);
	fsimg_uuid_of(id, s->uuid);
}

static int prepare(struct csi_task *task, struct err *err)
{
	const Csi__V1__NodeStageVolumeRequest *req = (const void *)task->request;
	struct stage *s = container_of(task, struct stage, n.task);
	s->staging_path = csi_str(req->staging_target_path);
	s->field = task->rpc->paths[0];
	int r = volume_op_find(&s->n, req->volume_capability, err);
	if (r == 0)
		r = csi_attach_check_use(task->csi, s->n.volume, &s->n.access, err);
	if (r == 0 && s->n.volume->rec->encryption != RECORD_PLAIN)
		r = csi_key_check(
			s->n.volume->rec->name, req->secrets, req->n_secrets, "node-stage", err);
	if (r < 0)
		return r;
	/* It may be in use in the other mode. */
	if (s->n.volume->rec->allow_mode_change && !node_knows_volume(task->csi->node, s->n.volume))
		return err_set(err, ERR_UNAVAILABLE,
			"volume %s: devices of an earlier run are still being looked for; try again",
			s->n.volume->rec->name);
	stage_begin(s, req->volume_capability);
	return 0;
}

const struct csi_operation csi_node_stage = {
	sizeof(struct stage), prepare, steps, volume_op_cleanup};
