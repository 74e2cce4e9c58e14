/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Holding a volume still. Happy path of a mounted volume: sync at the path remembered -> measure
 * the image, which has grown by what was synced. With a freeze: thaw what an earlier attempt left
 * -> sync (so that the freeze is short: 49 ms with 30 MB dirty) -> measure -> mark the image ->
 * freeze; later thaw -> unmark (thaw.c). A raw device is only synced and measured.
 *
 * Memory is a hint: every call names the device and is refused where another is mounted. Then the
 * kernel's list of mounts says where the device's is, and it is synced there.
 *
 * How it can fail: the file system is busy or sick and a call overstays; somebody else froze it; it
 * is in use in a way that no freeze covers. The mark is set before the freeze and removed after the
 * thaw, so whoever finds it and no operation running may thaw. Somebody else's freeze is never
 * thawed: the kernel refuses a second freeze with EBUSY, and then the mark goes again.
 *
 * A freeze that overstays may still come about when the device answers again. It is thawed once
 * behind it, and the mark stays unless that is certain to have helped.
 */
#include "node/node.h"
#include "node/quiesce_priv.h"
#include "node/volume.h"

#include "base/fd.h"
#include "blockio/boot_mark.h"
#include "node/health.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
	LOCK_ATTEMPTS = 6,
	LOCK_PAUSE_MS = 50,
};

/* ---- what is to be done? ---- */

/* How else a volume that cannot be copied while it is in use could be. */
static const char *remedy(const struct node_quiesce *q)
{
	return pool_features(q->volume->pool)->reflink
		       ? "detach it first (with eraseOnDelete no extents are shared)"
		       : "detach it first, or use a pool on XFS or btrfs";
}

static int decide_run(struct op *op)
{
	struct node_quiesce *q = quiesce_of(op);
	const struct record *rec = q->volume->rec;
	const struct node_volume *nv = node_volume_find(q->volume);
	if (!node_knows_volume(q->node, q->volume))
		return op_fail(op, ERR_UNAVAILABLE,
			"devices of an earlier run are still being looked for; try again");
	if (nv == NULL || !nv->dev.attached)
		return 0;
	q->dev = nv->dev;
	if (quiesce_take_mount(q)) {
		bool hold = !q->reflink || (rec->snapshot_freeze && !q->brief);
		q->freeze = hold || nv->grown;
		q->brief = !hold;
		return 0;
	}
	if (rec->fs == FSIMG_NONE && !q->reflink)
		return op_fail(op, ERR_PRECONDITION,
			"block volume %s is attached (%s), and a copy of it would be torn: %s",
			rec->name, q->dev.path, remedy(q));
	quiesce_set_path(q, q->dev.path);
	return 0;
}

/* ---- a copy of what is not attached: is that so? ---- */

static int lock_job(void *arg)
{
	const struct node_quiesce *q = arg;
	_cleanup_fd_ int fd = quiesce_open_image(q);
	if (fd < 0)
		return fd;
	return flock(fd, LOCK_SH | LOCK_NB) < 0 ? -errno : 0;
}

static bool lock_done(struct op *op)
{
	const struct node_quiesce *q = quiesce_of(op);
	return q->reflink || q->dev.attached;
}

static int lock_run(struct op *op)
{
	return op_work(op, lock_job, quiesce_of(op));
}

/* A device just cleared lives on for a moment while somebody looks at it (udev, losetup -a), and
 * the image's lock with it. */
static int lock_end(struct op *op, int res)
{
	struct node_quiesce *q = quiesce_of(op);
	const char *name = q->volume->rec->name;
	bool paused = q->attempts % 2 == 1;
	if (paused || (res == -EWOULDBLOCK && q->attempts / 2 + 1 < LOCK_ATTEMPTS)) {
		q->attempts++;
		return paused ? op_work(op, lock_job, q) : op_sleep(op, LOCK_PAUSE_MS);
	}
	if (res == -EWOULDBLOCK)
		return op_fail(op, ERR_PRECONDITION,
			"volume %s: its image is attached elsewhere; detach it first", name);
	return res < 0 ? op_fail_sys(op, res, "volume %s: opening its image", name) : 0;
}

/* ---- where is it mounted? ---- */

/* A thaw is tried where the device is mounted for sure; a sync finds out by itself. */
static bool inspect_done(struct op *op)
{
	return quiesce_unmarked(op) || quiesce_inspect_done(op);
}

static bool find_done(struct op *op)
{
	return quiesce_unmarked(op) || quiesce_find_done(op);
}

static bool not_moved(struct op *op)
{
	return !quiesce_of(op)->moved;
}

/* ---- the mark ---- */

static int mark_job(void *arg)
{
	_cleanup_fd_ int fd = quiesce_open_image(arg);
	return fd < 0 ? fd : boot_mark_set(fd, BOOT_MARK_FROZEN, "");
}

static bool freeze_not_wanted(struct op *op)
{
	return !quiesce_of(op)->freeze;
}

/* ---- sync, and what there is to copy before and after it ---- */

static int size_run(struct op *op)
{
	struct node_quiesce *q = quiesce_of(op);
	uint64_t bytes = q->volume->allocated_bytes;
	if (q->reflink || !q->freeze || bytes <= NODE_FREEZE_COPY_MAX)
		return 0;
	return op_fail(op, ERR_PRECONDITION,
		"volume %s is mounted and holds %llu MiB, too much to copy under a freeze (%llu MiB): %s",
		q->volume->rec->name, (unsigned long long)(bytes >> 20), NODE_FREEZE_COPY_MAX >> 20,
		remedy(q));
}

static int measure_job(void *arg)
{
	struct node_quiesce *q = arg;
	struct stat st;
	_cleanup_fd_ int fd = quiesce_open_image(q);
	if (fd < 0 || fstat(fd, &st) < 0)
		return fd < 0 ? fd : -errno;
	q->allocated_bytes = (uint64_t)st.st_blocks * 512;
	return 0;
}

static int measured(struct op *op)
{
	struct node_quiesce *q = quiesce_of(op);
	pool_object_measured(q->volume, q->allocated_bytes);
	return size_run(op);
}

/* Its device has the image open: the kernel tells without a disk, and a thread is not worth it. */
static int measure_run(struct op *op)
{
	struct node_quiesce *q = quiesce_of(op);
	struct stat st;
	if (fd_stat_cached(q->dirfd, q->volume->key, &st) < 0)
		return op_work(op, measure_job, q);
	q->allocated_bytes = (uint64_t)st.st_blocks * 512;
	return measured(op);
}

static int measure_end(struct op *op, int res)
{
	const struct node_quiesce *q = quiesce_of(op);
	if (res < 0)
		return op_fail_sys(op, res, "volume %s: measuring its image", q->volume->rec->name);
	return measured(op);
}

static int sync_run(struct op *op)
{
	return quiesce_call(op, MNT_SYNC, quiesce_of(op)->id, NODE_SYNC_TIMEOUT_MS);
}

static int sync_end(struct op *op, int res)
{
	struct node_quiesce *q = quiesce_of(op);
	bool moved = res == -EXDEV && !q->moved;
	q->moved = moved;
	if (moved)
		return 0;
	if (res < 0)
		return quiesce_call_failed(op, res, "sync");
	node_note_hanging(q->node, node_volume_find(q->volume), false);
	return 0;
}

/* ---- freeze ---- */

static int mark_run(struct op *op)
{
	return op_work(op, mark_job, quiesce_of(op));
}

static int mark_end(struct op *op, int res)
{
	struct node_quiesce *q = quiesce_of(op);
	if (res < 0)
		return op_fail_sys(
			op, res, "volume %s: marking its image as frozen", q->volume->rec->name);
	q->marked = true;
	return 0;
}

static int freeze_run(struct op *op)
{
	const struct node_quiesce *q = quiesce_of(op);
	return quiesce_call(op, q->brief ? MNT_CLEAN : MNT_FREEZE, q->id, NODE_FREEZE_TIMEOUT_MS);
}

static int freeze_end(struct op *op, int res)
{
	struct node_quiesce *q = quiesce_of(op);
	q->overstayed = res == -ETIMEDOUT || res == -EPIPE;
	if (res == -EBUSY)
		return op_fail(op, ERR_PRECONDITION,
			"volume %s is frozen by somebody else; thaw it (fsfreeze -u %s) and try again",
			q->volume->rec->name, q->on.at.path);
	if (res < 0 && !q->overstayed)
		return quiesce_call_failed(op, res, "freeze");
	q->cleaned = !q->overstayed;
	q->frozen = q->cleaned && !q->brief;
	return 0;
}

static bool overstay_done(struct op *op)
{
	return !quiesce_of(op)->overstayed;
}

static bool unmark_done(struct op *op)
{
	const struct node_quiesce *q = quiesce_of(op);
	return !q->brief || !q->marked;
}

static int overstay_run(struct op *op)
{
	return quiesce_call(op, MNT_THAW, quiesce_of(op)->thaw_key, NODE_FREEZE_TIMEOUT_MS);
}

static int overstay_end(struct op *op, int res)
{
	struct node_quiesce *q = quiesce_of(op);
	/* Only when the late freeze is over and done with may the mark go (mark's undo). */
	if (res < 0 || helpers_hung_since(op->reactor->helpers, q->id) != 0)
		q->marked = false;
	return quiesce_call_failed(op, -ETIMEDOUT, "freeze");
}

static const struct op_step quiesce_steps[] = {
	{"decide", .run = decide_run},
	{"check lock", .done = lock_done, .run = lock_run, .end = lock_end},
	{"look for mark", .done = freeze_not_wanted, .run = quiesce_look_run},
	{"inspect", .done = inspect_done, .run = quiesce_inspect_run, .end = quiesce_inspect_end},
	{"find mount", .done = find_done, .run = quiesce_find_run, .end = quiesce_find_end},
	{"thaw leftover", .done = quiesce_unmarked, .run = quiesce_thaw_run,
		.end = quiesce_thaw_end},
	{"unmark leftover", .done = quiesce_unmarked, .run = quiesce_unmark_run,
		.end = quiesce_unmark_end},
	{"check size", .run = size_run},
	{"sync", .done = quiesce_no_path, .run = sync_run, .end = sync_end},
	{"find where else", .done = not_moved, .run = quiesce_find_run, .end = quiesce_find_end},
	{"sync there", .done = not_moved, .run = sync_run, .end = sync_end},
	{"measure", .done = quiesce_no_path, .run = measure_run, .end = measure_end},
	{"mark", .done = freeze_not_wanted, .run = mark_run, .end = mark_end,
		.undo = quiesce_unmark_run},
	{"freeze", .done = freeze_not_wanted, .run = freeze_run, .end = freeze_end},
	{"thaw overstayed", .done = overstay_done, .run = overstay_run, .end = overstay_end},
	{"unmark", .done = unmark_done, .run = quiesce_unmark_run, .end = quiesce_unmark_end},
	{NULL},
};

void quiesce_op_init(struct node_quiesce *q, const char *name, const struct op_step *steps)
{
	op_init(&q->op, q->node->reactor, name, steps, NULL);
	q->op.lane = pool_lane(q->volume->pool);
}

void node_quiesce_init(
	struct node_quiesce *q, struct node *node, struct pool_object *volume, bool reflink)
{
	memset(q, 0, sizeof(*q));
	q->node = node;
	q->volume = volume;
	q->reflink = reflink;
	q->dirfd = pool_dirfd(volume->pool, RECORD_VOLUME);
	pool_object_id(volume, q->id);
	snprintf(q->thaw_key, sizeof(q->thaw_key), "%s thaw", q->id);
	quiesce_op_init(q, "quiesce", quiesce_steps);
}
