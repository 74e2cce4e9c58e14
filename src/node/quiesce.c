/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Holding a volume still, and thawing it.
 *
 * Happy path of a mounted volume: sync at the path remembered -> measure the image, which has grown
 * by what was synced. With a freeze: thaw what an earlier attempt left -> sync (so that the freeze
 * is short: 49 ms with 30 MB dirty) -> measure -> mark the image -> freeze; later thaw -> unmark.
 * Of a leftover: look for our mark on the image -> make sure that the path remembered is a mount of
 * its device -> thaw -> unmark. A raw device is only synced and measured.
 *
 * Memory is a hint: every call names the device and is refused where another is mounted. Then the
 * kernel's list of mounts says where the device's is, and it is synced there.
 *
 * How it can fail: the file system is busy or sick and a call overstays; somebody else froze it; it
 * is in use in a way that no freeze covers. The mark is set before the freeze and removed after the
 * thaw, so an operation that finds it while no other runs may thaw. Somebody else's freeze is never
 * thawed: the kernel refuses a second freeze with EBUSY, and then the mark goes again.
 *
 * A freeze that overstays may still come about when the device answers again. It is thawed once
 * behind it, and the mark stays unless that is certain to have helped. A thaw that is refused or
 * overstays is tried again. The operation that froze the volume tries until it is thawed, also when
 * its own answer is an error, and however long no helper is to be had; only a refusal ends that,
 * and a shutdown. Then the mark stays, and the repeat of the request, the next snapshot with a
 * freeze or the next start thaws.
 */
#include "node/quiesce.h"

#include "base/fd.h"
#include "blockio/boot_mark.h"
#include "node/health.h"
#include "node/node.h"
#include "node/volume.h"
#include "pool/index.h"

#include <errno.h>
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

#define quiesce_of(op_ptr) container_of(op_ptr, struct node_quiesce, op)

/* ---- calls ---- */

static int call_helper(struct op *op, enum mnt_call call, const char *key, uint64_t timeout_ms)
{
	struct node_quiesce *q = quiesce_of(op);
	memset(&q->result, 0, sizeof(q->result));
	return op_helper(
		op, call, key, &q->on, sizeof(q->on), &q->result, sizeof(q->result), timeout_ms);
}

static int call_failed(struct op *op, int res, const char *what)
{
	struct node_quiesce *q = quiesce_of(op);
	struct node_volume *nv = node_volume_find(q->volume);
	q->result.why[sizeof(q->result.why) - 1] = '\0';
	if (res == -ETIMEDOUT) {
		node_note_hanging(q->node, nv, true);
		return op_fail(op, ERR_TIMEOUT,
			"volume %s: %s does not end in time; see the kernel log for %s, then try again",
			q->volume->rec->name, what, q->dev.path);
	}
	if (res == -EXDEV)
		return op_fail(op, ERR_UNAVAILABLE,
			"volume %s: %s: the mount of %s is not found at %s (%s); try again",
			q->volume->rec->name, what, q->dev.path, q->on.at.path, q->result.why);
	if (q->result.why[0] != '\0')
		return op_fail_sys(
			op, res, "volume %s: %s: %s", q->volume->rec->name, what, q->result.why);
	return op_fail_sys(op, res, "volume %s: %s", q->volume->rec->name, what);
}

/* ---- where it is mounted ---- */

static void set_path(struct node_quiesce *q, const char *path)
{
	node_on(&q->on, path, &q->dev);
}

bool node_can_freeze(const struct pool_object *volume)
{
	const struct node_volume *nv = node_volume_find(volume);
	return nv != NULL && nv->dev.attached && node_volume_has_fs(volume) &&
	       !list_empty(&nv->mounts);
}

static bool take_mount(struct node_quiesce *q)
{
	const struct node_volume *nv = node_volume_find(q->volume);
	if (!node_can_freeze(q->volume))
		return false;
	q->dev = nv->dev;
	set_path(q, container_of(nv->mounts.next, struct node_mount, link)->path);
	return true;
}

static bool no_path(struct op *op)
{
	return quiesce_of(op)->on.at.path[0] == '\0';
}

static bool unmarked(struct op *op)
{
	return !quiesce_of(op)->marked;
}

static bool not_moved(struct op *op)
{
	return !quiesce_of(op)->moved;
}

/* Memory is a hint: is the path a mount of the device? Adoption has just read that. */
static bool is_sure(const struct node_quiesce *q)
{
	bool mounted = q->on.at.path[0] != '\0' && strcmp(q->on.at.path, q->dev.path) != 0;
	return !mounted || q->why == NODE_QUIESCE_ADOPTED;
}

/* A thaw is tried where the device is mounted for sure; a sync finds out by itself. */
static bool inspect_done(struct op *op)
{
	return unmarked(op) || is_sure(quiesce_of(op));
}

static int inspect_run(struct op *op)
{
	struct node_quiesce *q = quiesce_of(op);
	return op_helper(op, MNT_INSPECT, q->id, &q->on.at, sizeof(q->on.at), &q->info,
		sizeof(q->info), NODE_STAT_TIMEOUT_MS);
}

static int inspect_end(struct op *op, int res)
{
	struct node_quiesce *q = quiesce_of(op);
	if (res == -ETIMEDOUT)
		return call_failed(op, res, "looking at its mount");
	if (res < 0)
		q->info = (struct mnt_info){0};
	return 0;
}

static bool find_done(struct op *op)
{
	const struct node_quiesce *q = quiesce_of(op);
	return unmarked(op) || is_sure(q) || node_info_is_dev(&q->info, &q->dev);
}

static int find_run(struct op *op)
{
	struct node_quiesce *q = quiesce_of(op);
	node_others_init(&q->others, op->reactor, &q->dev, NULL, NULL);
	return op_child(op, &q->others.op);
}

static int find_end(struct op *op, int res)
{
	struct node_quiesce *q = quiesce_of(op);
	if (res < 0)
		return res;
	/* Without any mount the bytes are the device's and its page cache's. */
	bool mounted = q->others.count != 0;
	set_path(q, mounted ? q->others.path : q->dev.path);
	if (!mounted)
		q->plan = NODE_PLAN_SYNC;
	q->marked &= mounted;
	return 0;
}

/* ---- the mark ---- */

static int look_job(struct op *op)
{
	struct node_quiesce *q = quiesce_of(op);
	_cleanup_fd_ int fd = node_open_image(q->dirfd, q->volume);
	if (fd < 0)
		return fd;
	q->marked = boot_mark_get(fd, BOOT_MARK_FROZEN, NULL);
	return 0;
}

static int mark_job(void *arg)
{
	const struct node_quiesce *q = arg;
	_cleanup_fd_ int fd = node_open_image(q->dirfd, q->volume);
	return fd < 0 ? fd : boot_mark_set(fd, BOOT_MARK_FROZEN, "");
}

static int unmark_job(void *arg)
{
	const struct node_quiesce *q = arg;
	_cleanup_fd_ int fd = node_open_image(q->dirfd, q->volume);
	if (fd < 0)
		return fd;
	int r = boot_mark_remove(fd, BOOT_MARK_FROZEN);
	return r == 0 && q->freeze == NODE_FREEZE_OVER ? boot_mark_remove(fd, BOOT_MARK_GROWN) : r;
}

/* Without a mark there is nothing to be thawed, nor to look for where. */
static int look_leftover_end(struct op *op, int res)
{
	struct node_quiesce *q = quiesce_of(op);
	if (res < 0 && res != -ENOENT)
		return op_fail_sys(op, res, "volume %s: looking whether it was left frozen",
			q->volume->rec->name);
	if (!q->marked)
		q->on.at.path[0] = '\0';
	return 0;
}

static int unmark_run(struct op *op)
{
	struct node_quiesce *q = quiesce_of(op);
	return q->marked ? op_work(op, unmark_job, q) : 0;
}

/* ---- thaw ---- */

/* The operation that has frozen a volume does not leave it so as long as a thaw may yet come about:
 * the volume's writers hang. At a shutdown the next run thaws. Adoption does not wait for a second
 * thaw that overstays: nothing is copied of any volume until adoption is through. */
static int thaw_failed(struct op *op, int res)
{
	struct node_quiesce *q = quiesce_of(op);
	bool may_come = res == -EAGAIN || res == -ETIMEDOUT || res == -EPIPE;
	bool insists = may_come && q->freeze == NODE_FROZEN && !q->node->draining;
	bool enough = q->attempts / 2 + 1 >= THAW_ATTEMPTS ||
		      (q->why == NODE_QUIESCE_ADOPTED && res == -ETIMEDOUT);
	int r = call_failed(op, res, "thaw");
	if (enough && !insists)
		return r;
	err_clear(&op->err);
	q->attempts++;
	return op_sleep(op, THAW_PAUSE_MS);
}

/* One that finds no room among the calls that wait has failed like any other. */
static int thaw_try(struct op *op)
{
	int r = call_helper(op, MNT_THAW, quiesce_of(op)->thaw_key, NODE_FREEZE_TIMEOUT_MS);
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
	struct node_quiesce *q = quiesce_of(op);
	if (q->attempts % 2 == 1) {
		q->attempts++;
		return thaw_try(op);
	}
	if (res < 0)
		return thaw_failed(op, res);
	node_note_hanging(q->node, node_volume_find(q->volume), false);
	if (q->freeze == NODE_FROZEN)
		q->freeze = NODE_FREEZE_OVER;
	return 0;
}

static int unmark_end(struct op *op, int res)
{
	struct node_quiesce *q = quiesce_of(op);
	struct node_volume *nv = node_volume_find(q->volume);
	/* A mark left behind costs a needless thaw or freeze, no more. */
	if (res == 0 && q->freeze == NODE_FREEZE_OVER && nv != NULL)
		nv->grown = false;
	q->marked = false;
	return 0;
}

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
	if (take_mount(q)) {
		if (q->why == NODE_QUIESCE_COPY || q->why == NODE_QUIESCE_GROUP ||
			(q->why == NODE_QUIESCE_SHARE && rec->snapshot_freeze))
			q->plan = NODE_PLAN_FREEZE;
		else if (nv->grown)
			q->plan = NODE_PLAN_CLEAN;
		return 0;
	}
	if (rec->fs == FSIMG_NONE && q->why == NODE_QUIESCE_COPY)
		return op_fail(op, ERR_PRECONDITION,
			"block volume %s is attached (%s), and a copy of it would be torn: %s",
			rec->name, q->dev.path, remedy(q));
	set_path(q, q->dev.path);
	return 0;
}

/* ---- a copy of what is not attached: is that so? ---- */

static int lock_job(void *arg)
{
	const struct node_quiesce *q = arg;
	_cleanup_fd_ int fd = node_open_image(q->dirfd, q->volume);
	if (fd < 0)
		return fd;
	return flock(fd, LOCK_SH | LOCK_NB) < 0 ? -errno : 0;
}

static bool lock_done(struct op *op)
{
	const struct node_quiesce *q = quiesce_of(op);
	return q->why != NODE_QUIESCE_COPY || q->dev.attached;
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

static bool freeze_not_wanted(struct op *op)
{
	return quiesce_of(op)->plan == NODE_PLAN_SYNC;
}

static bool freeze_not_now(struct op *op)
{
	return freeze_not_wanted(op) || quiesce_of(op)->later;
}

/* ---- sync, and what there is to copy before and after it ---- */

static int size_run(struct op *op)
{
	struct node_quiesce *q = quiesce_of(op);
	uint64_t bytes = q->volume->allocated_bytes;
	if (q->why != NODE_QUIESCE_COPY || q->plan == NODE_PLAN_SYNC ||
		bytes <= NODE_FREEZE_COPY_MAX)
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
	_cleanup_fd_ int fd = node_open_image(q->dirfd, q->volume);
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
	return call_helper(op, MNT_SYNC, quiesce_of(op)->id, NODE_SYNC_TIMEOUT_MS);
}

static int sync_end(struct op *op, int res)
{
	struct node_quiesce *q = quiesce_of(op);
	bool moved = res == -EXDEV && !q->moved;
	q->moved = moved;
	if (moved)
		return 0;
	if (res < 0)
		return call_failed(op, res, "sync");
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
	return call_helper(op, q->plan == NODE_PLAN_CLEAN ? MNT_CLEAN : MNT_FREEZE, q->id,
		NODE_FREEZE_TIMEOUT_MS);
}

static int freeze_end(struct op *op, int res)
{
	struct node_quiesce *q = quiesce_of(op);
	if (res == -EBUSY)
		return op_fail(op, ERR_PRECONDITION,
			"volume %s is frozen by somebody else; thaw it (fsfreeze -u %s) and try again",
			q->volume->rec->name, q->on.at.path);
	if (res == -ETIMEDOUT || res == -EPIPE)
		q->freeze = NODE_FREEZE_OVERSTAYED;
	else if (res < 0)
		return call_failed(op, res, "freeze");
	else
		q->freeze = q->plan == NODE_PLAN_CLEAN ? NODE_FREEZE_OVER : NODE_FROZEN;
	return 0;
}

/* A mark without a freeze: none was tried, or it failed. */
static bool thaw_done(struct op *op)
{
	return unmarked(op) || quiesce_of(op)->freeze != NODE_FROZEN;
}

static bool overstay_done(struct op *op)
{
	return quiesce_of(op)->freeze != NODE_FREEZE_OVERSTAYED;
}

static bool unmark_done(struct op *op)
{
	const struct node_quiesce *q = quiesce_of(op);
	return q->plan != NODE_PLAN_CLEAN || !q->marked;
}

static int overstay_run(struct op *op)
{
	return call_helper(op, MNT_THAW, quiesce_of(op)->thaw_key, NODE_FREEZE_TIMEOUT_MS);
}

static int overstay_end(struct op *op, int res)
{
	struct node_quiesce *q = quiesce_of(op);
	/* Only when the late freeze is over and done with may the mark go (mark's undo). */
	if (res < 0 || helpers_hung_since(op->reactor->helpers, q->id) != 0)
		q->marked = false;
	return call_failed(op, -ETIMEDOUT, "freeze");
}

/* ---- the operations ---- */

static const struct op_step quiesce_steps[] = {
	{"decide", .run = decide_run},
	{"check lock", .done = lock_done, .run = lock_run, .end = lock_end},
	{"look for mark", .done = freeze_not_wanted, .call = look_job},
	{"inspect", .done = inspect_done, .run = inspect_run, .end = inspect_end},
	{"find mount", .done = find_done, .run = find_run, .end = find_end},
	{"thaw leftover", .done = unmarked, .run = thaw_run, .end = thaw_end},
	{"unmark leftover", .done = unmarked, .run = unmark_run, .end = unmark_end},
	{"check size", .run = size_run},
	{"sync", .done = no_path, .run = sync_run, .end = sync_end},
	{"find where else", .done = not_moved, .run = find_run, .end = find_end},
	{"sync there", .done = not_moved, .run = sync_run, .end = sync_end},
	{"measure", .done = no_path, .run = measure_run, .end = measure_end},
	{"mark", .done = freeze_not_wanted, .run = mark_run, .end = mark_end, .undo = unmark_run},
	{"freeze", .done = freeze_not_now, .run = freeze_run, .end = freeze_end},
	{"thaw overstayed", .done = overstay_done, .run = overstay_run, .end = overstay_end},
	{"unmark", .done = unmark_done, .run = unmark_run, .end = unmark_end},
	{NULL},
};

static const struct op_step freeze_steps[] = {
	{"freeze", .done = freeze_not_wanted, .run = freeze_run, .end = freeze_end},
	{"thaw overstayed", .done = overstay_done, .run = overstay_run, .end = overstay_end},
	{"unmark", .done = unmark_done, .run = unmark_run, .end = unmark_end},
	{NULL},
};

static const struct op_step leftover_steps[] = {
	{"look for mark", .done = no_path, .call = look_job, .end = look_leftover_end},
	{"inspect", .done = inspect_done, .run = inspect_run, .end = inspect_end},
	{"find mount", .done = find_done, .run = find_run, .end = find_end},
	{"thaw leftover", .done = unmarked, .run = thaw_run, .end = thaw_end},
	{"unmark leftover", .done = unmarked, .run = unmark_run, .end = unmark_end},
	{NULL},
};

static const struct op_step thaw_steps[] = {
	{"thaw", .done = thaw_done, .run = thaw_run, .end = thaw_end},
	{"unmark", .done = unmarked, .run = unmark_run, .end = unmark_end},
	{NULL},
};

static void init(struct node_quiesce *q, const char *name, const struct op_step *steps)
{
	op_init(&q->op, q->node->reactor, name, steps, NULL);
	q->op.lane = pool_lane(q->volume->pool);
}

void node_quiesce_init(struct node_quiesce *q, struct node *node, struct pool_object *volume,
	enum node_quiesce_why why)
{
	memset(q, 0, sizeof(*q));
	q->node = node;
	q->volume = volume;
	q->dirfd = pool_dirfd(volume->pool, RECORD_VOLUME);
	q->why = why;
	pool_object_id(volume, q->id);
	snprintf(q->thaw_key, sizeof(q->thaw_key), "%s thaw", q->id);
	bool leftover = why == NODE_QUIESCE_LEFTOVER || why == NODE_QUIESCE_ADOPTED;
	if (leftover)
		(void)take_mount(q);
	init(q, leftover ? "thaw leftover" : "quiesce", leftover ? leftover_steps : quiesce_steps);
}

void node_quiesce_ready_init(struct node_quiesce *q, struct node *node, struct pool_object *volume,
	enum node_quiesce_why why)
{
	node_quiesce_init(q, node, volume, why);
	q->later = true;
}

void node_freeze_init(struct node_quiesce *q)
{
	q->later = false;
	init(q, "freeze", freeze_steps);
}

void node_thaw_init(struct node_quiesce *q)
{
	init(q, "thaw", thaw_steps);
}
