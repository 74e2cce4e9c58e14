/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Holding a volume still. Happy path of a mounted volume: make sure that the path remembered is a
 * mount of its device -> sync. With a freeze: thaw what an earlier attempt left -> sync (so that
 * the freeze is short: 49 ms with 30 MB dirty) -> measure the image, which has grown by what was
 * synced -> mark the image -> freeze; later thaw -> unmark. A raw device is only synced.
 *
 * How it can fail: the file system is busy or sick and a call overstays; somebody else froze it; it
 * is in use in a way that no freeze covers. The mark is set before the freeze and removed after the
 * thaw, so whoever finds it and no operation running may thaw. Somebody else's freeze is never
 * thawed: the kernel refuses a second freeze with EBUSY, and then the mark goes again.
 *
 * Who froze it tries to thaw it until it is thawed, also when the answer is an error and however
 * long nobody can be asked; only a refusal ends that, and a shutdown. Then the mark stays, and the
 * repeat of the request, the next snapshot with a freeze or the next start thaws.
 *
 * A freeze that overstays may still come about when the device answers again. It is thawed once
 * behind it, and the mark stays unless that is certain to have helped.
 */
#include "csi/quiesce.h"

#include "base/fd.h"
#include "blockio/boot_mark.h"

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
	THAW_ATTEMPTS = 3,
	THAW_PAUSE_MS = 500,
};

#define quiesce_of(op_ptr) container_of(op_ptr, struct csi_quiesce, op)

/* A call for this volume. Thaws go by a key of their own: no call that hangs may keep them from
 * being tried, and while one of them hangs no more are. */
static int call_helper(struct op *op, enum mnt_call call, const char *key, uint64_t timeout_ms)
{
	struct csi_quiesce *q = quiesce_of(op);
	memset(&q->result, 0, sizeof(q->result));
	return op_helper(op, call, key, &q->path, sizeof(q->path), &q->result, sizeof(q->result),
		timeout_ms);
}

static int call_failed(struct op *op, int res, const char *what)
{
	struct csi_quiesce *q = quiesce_of(op);
	struct node_volume *node = node_volume_find(q->volume);
	q->result.why[sizeof(q->result.why) - 1] = '\0';
	if (res == -ETIMEDOUT && node != NULL && node->overstayed_ns == 0)
		node->overstayed_ns = ring_now_ns(op->reactor->ring);
	if (res == -ETIMEDOUT)
		return op_fail(op, ERR_TIMEOUT,
			"volume %s: %s does not end in time; see the kernel log for %s, then try again",
			q->volume->rec->name, what, q->dev.path);
	if (q->result.why[0] != '\0')
		return op_fail_sys(
			op, res, "volume %s: %s: %s", q->volume->rec->name, what, q->result.why);
	return op_fail_sys(op, res, "volume %s: %s", q->volume->rec->name, what);
}

/* ---- what is to be done? ---- */

/* How else a volume that cannot be copied while it is in use could be. */
static const char *remedy(const struct csi_quiesce *q)
{
	return pool_features(q->volume->pool)->reflink
		       ? "detach it first (with eraseOnDelete no extents are shared)"
		       : "detach it first, or use a pool on XFS or btrfs";
}

/* False when none is known, or it is a raw device's. */
static bool take_mount(struct csi_quiesce *q)
{
	const struct node_volume *node = node_volume_find(q->volume);
	if (node == NULL || !node->dev.attached || q->volume->rec->fs == FSIMG_NONE ||
		list_empty(&node->mounts))
		return false;
	q->dev = node->dev;
	snprintf(q->path.path, sizeof(q->path.path), "%s",
		container_of(node->mounts.next, struct node_mount, link)->path);
	return true;
}

static int decide_run(struct op *op)
{
	struct csi_quiesce *q = quiesce_of(op);
	const struct record *rec = q->volume->rec;
	const struct node_volume *node = node_volume_find(q->volume);
	if (!csi_knows_volume(q->csi, q->volume))
		return op_fail(op, ERR_UNAVAILABLE,
			"devices of an earlier run are still being looked for; try again");
	if (node == NULL || !node->dev.attached)
		return 0;
	q->dev = node->dev;
	if (take_mount(q)) {
		q->freeze = !q->reflink || rec->snapshot_freeze;
		return 0;
	}
	if (rec->fs == FSIMG_NONE && !q->reflink)
		return op_fail(op, ERR_PRECONDITION,
			"block volume %s is attached (%s), and a copy of it would be torn: %s",
			rec->name, q->dev.path, remedy(q));
	snprintf(q->path.path, sizeof(q->path.path), "%s", q->dev.path);
	return 0;
}

/* ---- a copy of what is not attached: is that so? ---- */

/* For work jobs: the lock keeps key and directory as they are. */
static int open_image(const struct csi_quiesce *q)
{
	int fd = openat(q->dirfd, q->volume->key, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	return fd < 0 ? -errno : fd;
}

static int lock_job(void *arg)
{
	const struct csi_quiesce *q = arg;
	_cleanup_fd_ int fd = open_image(q);
	if (fd < 0)
		return fd;
	return flock(fd, LOCK_SH | LOCK_NB) < 0 ? -errno : 0;
}

static bool lock_done(struct op *op)
{
	const struct csi_quiesce *q = quiesce_of(op);
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
	struct csi_quiesce *q = quiesce_of(op);
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

/* ---- memory is a hint: is the path a mount of the device? ---- */

static bool is_mounted(const struct csi_quiesce *q)
{
	return q->path.path[0] != '\0' && strcmp(q->path.path, q->dev.path) != 0;
}

static bool inspect_done(struct op *op)
{
	return !is_mounted(quiesce_of(op));
}

static int inspect_run(struct op *op)
{
	struct csi_quiesce *q = quiesce_of(op);
	return op_helper(op, MNT_INSPECT, q->id, &q->path, sizeof(q->path), &q->info,
		sizeof(q->info), CSI_STAT_TIMEOUT_MS);
}

static int inspect_end(struct op *op, int res)
{
	struct csi_quiesce *q = quiesce_of(op);
	if (res == -ETIMEDOUT)
		return call_failed(op, res, "looking at its mount");
	if (res < 0)
		q->info = (struct mnt_info){0};
	return 0;
}

static bool find_done(struct op *op)
{
	const struct csi_quiesce *q = quiesce_of(op);
	return !is_mounted(q) || node_info_is_dev(&q->info, &q->dev);
}

static int find_run(struct op *op)
{
	struct csi_quiesce *q = quiesce_of(op);
	node_others_init(&q->others, op->reactor, &q->dev, NULL, NULL);
	return op_child(op, &q->others.op);
}

static int find_end(struct op *op, int res)
{
	struct csi_quiesce *q = quiesce_of(op);
	if (res < 0)
		return res;
	/* Without any mount the bytes are the device's and its page cache's. */
	bool mounted = q->others.count != 0;
	snprintf(q->path.path, sizeof(q->path.path), "%s", mounted ? q->others.path : q->dev.path);
	q->freeze &= mounted;
	q->marked &= mounted;
	return 0;
}

/* ---- the mark ---- */

static int look_job(void *arg)
{
	struct csi_quiesce *q = arg;
	_cleanup_fd_ int fd = open_image(q);
	if (fd < 0)
		return fd;
	q->marked = boot_mark_get(fd, BOOT_MARK_FROZEN, NULL);
	return 0;
}

static int mark_job(void *arg)
{
	_cleanup_fd_ int fd = open_image(arg);
	return fd < 0 ? fd : boot_mark_set(fd, BOOT_MARK_FROZEN, "");
}

static int unmark_job(void *arg)
{
	_cleanup_fd_ int fd = open_image(arg);
	return fd < 0 ? fd : boot_mark_remove(fd, BOOT_MARK_FROZEN);
}

static bool freeze_not_wanted(struct op *op)
{
	return !quiesce_of(op)->freeze;
}

static int look_run(struct op *op)
{
	return op_work(op, look_job, quiesce_of(op));
}

/* Without a mark there is nothing to be thawed, nor to look for where. */
static int look_leftover_end(struct op *op, int res)
{
	struct csi_quiesce *q = quiesce_of(op);
	if (res < 0 && res != -ENOENT)
		return op_fail_sys(op, res, "volume %s: looking whether it was left frozen",
			q->volume->rec->name);
	if (!q->marked)
		q->path.path[0] = '\0';
	return 0;
}

/* ---- sync, and what there is to copy before and after it ---- */

static int size_run(struct op *op)
{
	struct csi_quiesce *q = quiesce_of(op);
	uint64_t bytes = q->volume->allocated_bytes;
	if (q->reflink || !q->freeze || bytes <= CSI_FREEZE_COPY_MAX)
		return 0;
	return op_fail(op, ERR_PRECONDITION,
		"volume %s is mounted and holds %llu MiB, too much to copy under a freeze (%llu MiB): %s",
		q->volume->rec->name, (unsigned long long)(bytes >> 20), CSI_FREEZE_COPY_MAX >> 20,
		remedy(q));
}

static int measure_job(void *arg)
{
	struct csi_quiesce *q = arg;
	struct stat st;
	_cleanup_fd_ int fd = open_image(q);
	if (fd < 0 || fstat(fd, &st) < 0)
		return fd < 0 ? fd : -errno;
	q->allocated_bytes = (uint64_t)st.st_blocks * 512;
	return 0;
}

static int measure_run(struct op *op)
{
	return op_work(op, measure_job, quiesce_of(op));
}

static int measure_end(struct op *op, int res)
{
	struct csi_quiesce *q = quiesce_of(op);
	if (res < 0)
		return op_fail_sys(op, res, "volume %s: measuring its image", q->volume->rec->name);
	pool_object_measured(q->volume, q->allocated_bytes);
	return size_run(op);
}

static bool sync_done(struct op *op)
{
	return quiesce_of(op)->path.path[0] == '\0';
}

static int sync_run(struct op *op)
{
	return call_helper(op, MNT_SYNC, quiesce_of(op)->id, CSI_SYNC_TIMEOUT_MS);
}

static int sync_end(struct op *op, int res)
{
	struct node_volume *node = node_volume_find(quiesce_of(op)->volume);
	if (res < 0)
		return call_failed(op, res, "sync");
	if (node != NULL)
		node->overstayed_ns = 0;
	return 0;
}

/* ---- freeze ---- */

static int mark_run(struct op *op)
{
	return op_work(op, mark_job, quiesce_of(op));
}

static int mark_end(struct op *op, int res)
{
	struct csi_quiesce *q = quiesce_of(op);
	if (res < 0)
		return op_fail_sys(
			op, res, "volume %s: marking its image as frozen", q->volume->rec->name);
	q->marked = true;
	return 0;
}

static int unmark_run(struct op *op)
{
	struct csi_quiesce *q = quiesce_of(op);
	return q->marked ? op_work(op, unmark_job, q) : 0;
}

static int freeze_run(struct op *op)
{
	return call_helper(op, MNT_FREEZE, quiesce_of(op)->id, CSI_FREEZE_TIMEOUT_MS);
}

static int freeze_end(struct op *op, int res)
{
	struct csi_quiesce *q = quiesce_of(op);
	q->overstayed = res == -ETIMEDOUT || res == -EPIPE;
	if (res == -EBUSY)
		return op_fail(op, ERR_PRECONDITION,
			"volume %s is frozen by somebody else; thaw it (fsfreeze -u %s) and try again",
			q->volume->rec->name, q->path.path);
	if (res < 0 && !q->overstayed)
		return call_failed(op, res, "freeze");
	q->frozen = !q->overstayed;
	return 0;
}

static bool overstay_done(struct op *op)
{
	return !quiesce_of(op)->overstayed;
}

static int overstay_run(struct op *op)
{
	return call_helper(op, MNT_THAW, quiesce_of(op)->thaw_key, CSI_FREEZE_TIMEOUT_MS);
}

static int overstay_end(struct op *op, int res)
{
	struct csi_quiesce *q = quiesce_of(op);
	/* Only when the late freeze is over and done with may the mark go (mark's undo). */
	if (res < 0 || helpers_hung_since(op->reactor->helpers, q->id) != 0)
		q->marked = false;
	return call_failed(op, -ETIMEDOUT, "freeze");
}

/* ---- thaw ---- */

/* Who has frozen a volume does not go away and leave it so, as long as a thaw may yet come about:
 * its writers hang. At a shutdown the next run thaws. */
static int thaw_failed(struct op *op, int res)
{
	struct csi_quiesce *q = quiesce_of(op);
	bool may_come = res == -EAGAIN || res == -ETIMEDOUT || res == -EPIPE;
	bool insists = may_come && q->frozen && !q->csi->draining;
	int r = call_failed(op, res, "thaw");
	if (q->attempts / 2 + 1 >= THAW_ATTEMPTS && !insists)
		return r;
	err_clear(&op->err);
	q->attempts++;
	return op_sleep(op, THAW_PAUSE_MS);
}

/* One that finds no room among the calls that wait has failed like any other. */
static int thaw_try(struct op *op)
{
	int r = call_helper(op, MNT_THAW, quiesce_of(op)->thaw_key, CSI_FREEZE_TIMEOUT_MS);
	return r < 0 ? thaw_failed(op, r) : r;
}

static int thaw_run(struct op *op)
{
	quiesce_of(op)->attempts = 0;
	return thaw_try(op);
}

/* Each failure is followed by a pause and another attempt; the results alternate. */
static int thaw_end(struct op *op, int res)
{
	struct csi_quiesce *q = quiesce_of(op);
	if (q->attempts % 2 == 1) {
		q->attempts++;
		return thaw_try(op);
	}
	if (res < 0)
		return thaw_failed(op, res);
	struct node_volume *node = node_volume_find(q->volume);
	if (node != NULL)
		node->overstayed_ns = 0;
	q->frozen = false;
	return 0;
}

static bool unmark_done(struct op *op)
{
	return !quiesce_of(op)->marked;
}

static int unmark_end(struct op *op, int res)
{
	(void)res; /* A mark left behind costs a needless thaw, no more. */
	quiesce_of(op)->marked = false;
	return 0;
}

static const struct op_step quiesce_steps[] = {
	{"decide", .run = decide_run},
	{"check lock", .done = lock_done, .run = lock_run, .end = lock_end},
	{"inspect", .done = inspect_done, .run = inspect_run, .end = inspect_end},
	{"find mount", .done = find_done, .run = find_run, .end = find_end},
	{"look for mark", .done = freeze_not_wanted, .run = look_run},
	{"thaw leftover", .done = unmark_done, .run = thaw_run, .end = thaw_end},
	{"unmark leftover", .done = unmark_done, .run = unmark_run, .end = unmark_end},
	{"check size", .run = size_run},
	{"sync", .done = sync_done, .run = sync_run, .end = sync_end},
	{"measure", .done = sync_done, .run = measure_run, .end = measure_end},
	{"mark", .done = freeze_not_wanted, .run = mark_run, .end = mark_end, .undo = unmark_run},
	{"freeze", .done = freeze_not_wanted, .run = freeze_run, .end = freeze_end},
	{"thaw overstayed", .done = overstay_done, .run = overstay_run, .end = overstay_end},
	{NULL},
};

static const struct op_step leftover_steps[] = {
	{"look for mark", .done = sync_done, .run = look_run, .end = look_leftover_end},
	{"inspect", .done = inspect_done, .run = inspect_run, .end = inspect_end},
	{"find mount", .done = find_done, .run = find_run, .end = find_end},
	{"thaw leftover", .done = unmark_done, .run = thaw_run, .end = thaw_end},
	{"unmark leftover", .done = unmark_done, .run = unmark_run, .end = unmark_end},
	{NULL},
};

static const struct op_step thaw_steps[] = {
	{"thaw", .done = unmark_done, .run = thaw_run, .end = thaw_end},
	{"unmark", .done = unmark_done, .run = unmark_run, .end = unmark_end},
	{NULL},
};

static void init_op(struct csi_quiesce *q, const char *name, const struct op_step *steps)
{
	op_init(&q->op, q->csi->reactor, name, steps, NULL);
	q->op.lane = pool_lane(q->volume->pool);
}

void csi_quiesce_init(
	struct csi_quiesce *q, struct csi *csi, struct pool_object *volume, bool reflink)
{
	memset(q, 0, sizeof(*q));
	q->csi = csi;
	q->volume = volume;
	q->reflink = reflink;
	q->dirfd = pool_dirfd(volume->pool, RECORD_VOLUME);
	pool_object_id(volume, q->id);
	snprintf(q->thaw_key, sizeof(q->thaw_key), "%s thaw", q->id);
	init_op(q, "quiesce", quiesce_steps);
}

void csi_thaw_init(struct csi_quiesce *q)
{
	init_op(q, "thaw", thaw_steps);
}

void csi_thaw_leftover_init(struct csi_quiesce *q, struct csi *csi, struct pool_object *volume)
{
	csi_quiesce_init(q, csi, volume, true);
	(void)take_mount(q);
	init_op(q, "thaw leftover", leftover_steps);
}
