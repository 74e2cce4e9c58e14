/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What NodeStageVolume looks at before there is a device. Happy path: the volume is staged nowhere
 * else -> it is in use in no other mode -> tools of a killed run have ended -> its image holds the
 * file system that is to be mounted.
 *
 * How it can fail: as refusals, which touch nothing. Memory is a hint: where it says that a volume
 * is in use, the kernel's list of mounts is asked.
 */
#include "csi/stage.h"

#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

enum {
	TOOLS_ATTEMPTS = 60,
	TOOLS_PAUSE_MS = 50,
};

/* ---- one staging path a volume ---- */

static struct node_mount *staged_elsewhere(const struct stage *s)
{
	struct node_volume *node = node_volume_find(s->n.volume);
	if (node == NULL)
		return NULL;
	list_for_each (link, &node->mounts) {
		struct node_mount *mount = container_of(link, struct node_mount, link);
		if (mount->staging && strcmp(mount->path, s->staging_path) != 0)
			return mount;
	}
	return NULL;
}

bool stage_elsewhere_done(struct op *op)
{
	return stage_of(op)->whole || staged_elsewhere(stage_of(op)) == NULL;
}

int stage_elsewhere_run(struct op *op)
{
	struct stage *s = stage_of(op);
	node_others_init(&s->others, op->reactor, &node_volume_find(s->n.volume)->dev, NULL, NULL);
	s->others.only = staged_elsewhere(s)->path;
	return op_child(op, &s->others.op);
}

int stage_elsewhere_end(struct op *op, int res)
{
	struct stage *s = stage_of(op);
	struct node_mount *mount = staged_elsewhere(s);
	if (res < 0)
		return res;
	if (s->others.count > 0)
		return op_fail(op, ERR_PRECONDITION,
			"volume %s is staged at %s already, and a volume is staged at one path only; unstage it there first",
			s->n.volume->rec->name, mount->path);
	/* Unmounted behind our back. */
	node_volume_remove_mount(node_volume_find(s->n.volume), mount->path);
	return 0;
}

/* ---- one mode at a time ---- */

/* Only of a volume that may change its mode can it be used in the other one. */
bool stage_mode_done(struct op *op)
{
	struct stage *s = stage_of(op);
	struct node_volume *node = node_volume_find(s->n.volume);
	return node == NULL || list_empty(&node->mounts) ||
	       node_volume_has_fs(s->n.volume) == !s->n.access.block;
}

int stage_mode_run(struct op *op)
{
	struct stage *s = stage_of(op);
	node_others_init(&s->others, op->reactor, &node_volume_find(s->n.volume)->dev, NULL, NULL);
	return op_child(op, &s->others.op);
}

int stage_mode_end(struct op *op, int res)
{
	struct stage *s = stage_of(op);
	struct node_volume *node = node_volume_find(s->n.volume);
	if (res < 0)
		return res;
	if (s->others.count > 0)
		return op_fail(op, ERR_PRECONDITION,
			"volume %s is in use as a %s volume at %s and cannot be a %s volume meanwhile; unpublish and unstage it there first",
			s->n.volume->rec->name, s->n.access.block ? "mount" : "block",
			s->others.path, s->n.access.block ? "block" : "mount");
	/* Unmounted behind our back. */
	list_for_each_safe (link, &node->mounts)
		node_volume_remove_mount(node, container_of(link, struct node_mount, link)->path);
	return 0;
}

/* ---- tools of a run that was killed ---- */

/* A check or growth that a driver has started goes on when the driver is killed, and has the device
 * for itself; what it leaves is only looked at when it has ended. Whoever has it for longer than we
 * wait is told of by the mount. */
int stage_users_job(void *arg)
{
	const struct stage *s = arg;
	_cleanup_fd_ int fd = open(s->n.dev.dev.path, O_RDONLY | O_EXCL | O_CLOEXEC);
	return fd < 0 && errno == EBUSY ? -EBUSY : 0;
}

/* A fresh device is nobody's, and a mounted one is the file system's. */
bool stage_tools_done(struct op *op)
{
	struct stage *s = stage_of(op);
	struct node_volume *node = node_volume_find(s->n.volume);
	return s->n.access.block || node == NULL || !node->dev.attached ||
	       !list_empty(&node->mounts) || node_info_is_dev(&s->n.info, &node->dev);
}

int stage_tools_run(struct op *op)
{
	struct stage *s = stage_of(op);
	s->n.dev.dev = node_volume_find(s->n.volume)->dev;
	s->attempts = 0;
	return op_work(op, stage_users_job, s);
}

/* Looks and pauses alternate. */
int stage_tools_end(struct op *op, int res)
{
	struct stage *s = stage_of(op);
	bool paused = s->attempts % 2 == 1;
	if (!paused && (res != -EBUSY || s->attempts / 2 == TOOLS_ATTEMPTS))
		return 0;
	s->attempts++;
	return paused ? op_work(op, stage_users_job, s) : op_sleep(op, TOOLS_PAUSE_MS);
}

/* ---- the image ---- */

/* What a tenant wrote into a block volume is looked through for all that it could be. The mount
 * flags were looked up for ext4, as long as nobody knew. */
static int probe_other_mode(struct stage *s)
{
	s->unfit = fsimg_why_unfit(&s->probe);
	if (s->unfit != NULL)
		return -EMEDIUMTYPE;
	return csi_access_parse(s->cap, s->probe.type, &s->other_access, &s->other_err) < 0 ? -EBADR
											    : 0;
}

/* What it holds is seen through its device alone. */
static bool bytes_in_device(const struct stage *s)
{
	return s->n.volume->rec->encryption != RECORD_PLAIN || pool_is_raw(s->n.volume->pool);
}

/* -EUCLEAN: it holds something else; -EMEDIUMTYPE: what it holds is not mounted, -EBADR: not with
 * these flags. The attach may be the next call, and nothing is attached because of any of it: so
 * all is decided here. */
int stage_probe_call(struct op *op)
{
	struct stage *s = stage_of(op);
	const char *path = bytes_in_device(s) ? s->n.dev.dev.path : s->image;
	_cleanup_fd_ int fd = openat(s->dirfd, path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	int r = s->n.changes_mode ? fsimg_probe_fd(fd, &s->probe)
				  : fsimg_probe_expected(fd, s->n.fs, &s->probe);
	if (r < 0)
		return r;
	if (s->probe.needs_more) {
		s->unfit = fsimg_why_unfit(&s->probe);
		return -EMEDIUMTYPE;
	}
	bool wrong = s->n.fs == FSIMG_NONE ? s->probe.type == FSIMG_NONE : s->probe.type != s->n.fs;
	if (s->probe.ambivalent || wrong)
		return -EUCLEAN;
	return s->n.changes_mode ? probe_other_mode(s) : 0;
}

static bool nothing_to_mount(struct stage *s)
{
	struct node_volume *node = node_volume_find(s->n.volume);
	return s->n.access.block || (node != NULL && node_info_is_dev(&s->n.info, &node->dev));
}

bool stage_probe_done(struct op *op)
{
	struct stage *s = stage_of(op);
	return bytes_in_device(s) || nothing_to_mount(s);
}

bool stage_probe_device_done(struct op *op)
{
	struct stage *s = stage_of(op);
	return !bytes_in_device(s) || nothing_to_mount(s);
}

static int other_mode_failed(struct op *op, int res)
{
	struct stage *s = stage_of(op);
	const char *name = s->n.volume->rec->name;
	if (res == -EBADR)
		return op_fail(op, s->other_err.code, "%s", s->other_err.message);
	if (res == -EMEDIUMTYPE)
		return op_fail(op, ERR_PRECONDITION,
			"volume %s was made as a block volume and is not mounted: its file system %s",
			name, s->unfit);
	return op_fail(op, ERR_PRECONDITION,
		"volume %s was made as a block volume and holds %s, not %s; what is to be mounted has to be written to it first",
		name, s->probe.found[0] != '\0' ? s->probe.found : "no file system",
		s->n.fs == FSIMG_NONE ? "ext4, xfs or btrfs" : fsimg_name(s->n.fs));
}

int stage_probe_end(struct op *op, int res)
{
	struct stage *s = stage_of(op);
	const struct record *rec = s->n.volume->rec;
	if (res == 0 && s->n.changes_mode) {
		s->n.fs = s->probe.type;
		s->n.access = s->other_access;
	}
	if (res == 0)
		return 0;
	if (res != -EUCLEAN && res != -EMEDIUMTYPE && res != -EBADR)
		return op_fail_sys(op, res, "volume %s: reading its image", rec->name);
	if (s->probe.ambivalent)
		return op_fail(op, ERR_DATA_LOSS,
			"volume %s: its image holds contradicting signatures; nothing is touched, look at it with blkid",
			rec->name);
	if (s->n.changes_mode)
		return other_mode_failed(op, res);
	if (res == -EMEDIUMTYPE)
		return op_fail(op, ERR_DATA_LOSS,
			"volume %s: its file system %s; nothing is mounted, restore it from a snapshot or delete it",
			rec->name, s->unfit);
	return op_fail(op, ERR_DATA_LOSS,
		"volume %s: its record says %s, its image holds %s; nothing is formatted, restore it from a snapshot or delete it",
		rec->name, fsimg_name(rec->fs),
		s->probe.found[0] != '\0' ? s->probe.found : "no file system");
}
