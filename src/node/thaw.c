/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Thawing what we have frozen: right after a snapshot or a clone, or as the leftover of an attempt
 * cut short. Happy path of a leftover: look for our mark on the image -> make sure that the path
 * remembered is a mount of its device -> thaw -> unmark.
 *
 * How it can fail: the thaw is refused or overstays. Who froze a volume tries to thaw it until it
 * is thawed, also when the answer is an error and however long nobody can be asked; only a refusal
 * ends that, and a shutdown. Then the mark stays, and the repeat of the request, the next snapshot
 * with a freeze or the next start thaws.
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

enum {
	THAW_ATTEMPTS = 3,
	THAW_PAUSE_MS = 500,
};

/* ---- calls ---- */

int quiesce_call(struct op *op, enum mnt_call call, const char *key, uint64_t timeout_ms)
{
	struct node_quiesce *q = quiesce_of(op);
	memset(&q->result, 0, sizeof(q->result));
	return op_helper(
		op, call, key, &q->on, sizeof(q->on), &q->result, sizeof(q->result), timeout_ms);
}

int quiesce_call_failed(struct op *op, int res, const char *what)
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

void quiesce_set_path(struct node_quiesce *q, const char *path)
{
	node_on(&q->on, path, &q->dev);
}

bool quiesce_take_mount(struct node_quiesce *q)
{
	const struct node_volume *nv = node_volume_find(q->volume);
	if (nv == NULL || !nv->dev.attached || !node_volume_has_fs(q->volume) ||
		list_empty(&nv->mounts))
		return false;
	q->dev = nv->dev;
	quiesce_set_path(q, container_of(nv->mounts.next, struct node_mount, link)->path);
	return true;
}

bool quiesce_no_path(struct op *op)
{
	return quiesce_of(op)->on.at.path[0] == '\0';
}

/* Memory is a hint: is the path a mount of the device? Adoption has just read that. */
static bool is_sure(const struct node_quiesce *q)
{
	bool mounted = q->on.at.path[0] != '\0' && strcmp(q->on.at.path, q->dev.path) != 0;
	return !mounted || q->adopting;
}

bool quiesce_inspect_done(struct op *op)
{
	return is_sure(quiesce_of(op));
}

int quiesce_inspect_run(struct op *op)
{
	struct node_quiesce *q = quiesce_of(op);
	return op_helper(op, MNT_INSPECT, q->id, &q->on.at, sizeof(q->on.at), &q->info,
		sizeof(q->info), NODE_STAT_TIMEOUT_MS);
}

int quiesce_inspect_end(struct op *op, int res)
{
	struct node_quiesce *q = quiesce_of(op);
	if (res == -ETIMEDOUT)
		return quiesce_call_failed(op, res, "looking at its mount");
	if (res < 0)
		q->info = (struct mnt_info){0};
	return 0;
}

bool quiesce_find_done(struct op *op)
{
	const struct node_quiesce *q = quiesce_of(op);
	return is_sure(q) || node_info_is_dev(&q->info, &q->dev);
}

int quiesce_find_run(struct op *op)
{
	struct node_quiesce *q = quiesce_of(op);
	node_others_init(&q->others, op->reactor, &q->dev, NULL, NULL);
	return op_child(op, &q->others.op);
}

int quiesce_find_end(struct op *op, int res)
{
	struct node_quiesce *q = quiesce_of(op);
	if (res < 0)
		return res;
	/* Without any mount the bytes are the device's and its page cache's. */
	bool mounted = q->others.count != 0;
	quiesce_set_path(q, mounted ? q->others.path : q->dev.path);
	q->freeze &= mounted;
	q->marked &= mounted;
	return 0;
}

/* ---- the mark ---- */

int quiesce_open_image(const struct node_quiesce *q)
{
	int fd = openat(q->dirfd, q->volume->key, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	return fd < 0 ? -errno : fd;
}

static int look_job(void *arg)
{
	struct node_quiesce *q = arg;
	_cleanup_fd_ int fd = quiesce_open_image(q);
	if (fd < 0)
		return fd;
	q->marked = boot_mark_get(fd, BOOT_MARK_FROZEN, NULL);
	return 0;
}

static int unmark_job(void *arg)
{
	const struct node_quiesce *q = arg;
	_cleanup_fd_ int fd = quiesce_open_image(q);
	if (fd < 0)
		return fd;
	int r = boot_mark_remove(fd, BOOT_MARK_FROZEN);
	return r == 0 && q->cleaned ? boot_mark_remove(fd, BOOT_MARK_GROWN) : r;
}

int quiesce_look_run(struct op *op)
{
	return op_work(op, look_job, quiesce_of(op));
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

int quiesce_unmark_run(struct op *op)
{
	struct node_quiesce *q = quiesce_of(op);
	return q->marked ? op_work(op, unmark_job, q) : 0;
}

/* ---- thaw ---- */

/* Who has frozen a volume does not go away and leave it so, as long as a thaw may yet come about:
 * its writers hang. At a shutdown the next run thaws. Adoption waits for no second one that
 * overstays: nothing is copied of any volume until it is through. */
static int thaw_failed(struct op *op, int res)
{
	struct node_quiesce *q = quiesce_of(op);
	bool may_come = res == -EAGAIN || res == -ETIMEDOUT || res == -EPIPE;
	bool insists = may_come && q->frozen && !q->node->draining;
	bool enough = q->attempts / 2 + 1 >= THAW_ATTEMPTS || (q->adopting && res == -ETIMEDOUT);
	int r = quiesce_call_failed(op, res, "thaw");
	if (enough && !insists)
		return r;
	err_clear(&op->err);
	q->attempts++;
	return op_sleep(op, THAW_PAUSE_MS);
}

/* One that finds no room among the calls that wait has failed like any other. */
static int thaw_try(struct op *op)
{
	int r = quiesce_call(op, MNT_THAW, quiesce_of(op)->thaw_key, NODE_FREEZE_TIMEOUT_MS);
	return r < 0 ? thaw_failed(op, r) : r;
}

int quiesce_thaw_run(struct op *op)
{
	quiesce_of(op)->attempts = 0;
	return thaw_try(op);
}

/* Each failure is followed by a pause and another attempt; the results alternate. */
int quiesce_thaw_end(struct op *op, int res)
{
	struct node_quiesce *q = quiesce_of(op);
	if (q->attempts % 2 == 1) {
		q->attempts++;
		return thaw_try(op);
	}
	if (res < 0)
		return thaw_failed(op, res);
	node_note_hanging(q->node, node_volume_find(q->volume), false);
	q->frozen = false;
	return 0;
}

bool quiesce_unmarked(struct op *op)
{
	return !quiesce_of(op)->marked;
}

int quiesce_unmark_end(struct op *op, int res)
{
	struct node_quiesce *q = quiesce_of(op);
	struct node_volume *nv = node_volume_find(q->volume);
	/* A mark left behind costs a needless thaw or freeze, no more. */
	if (res == 0 && q->cleaned && nv != NULL)
		nv->grown = false;
	q->marked = false;
	return 0;
}

/* ---- the operations ---- */

static const struct op_step leftover_steps[] = {
	{"look for mark", .done = quiesce_no_path, .run = quiesce_look_run,
		.end = look_leftover_end},
	{"inspect", .done = quiesce_inspect_done, .run = quiesce_inspect_run,
		.end = quiesce_inspect_end},
	{"find mount", .done = quiesce_find_done, .run = quiesce_find_run, .end = quiesce_find_end},
	{"thaw leftover", .done = quiesce_unmarked, .run = quiesce_thaw_run,
		.end = quiesce_thaw_end},
	{"unmark leftover", .done = quiesce_unmarked, .run = quiesce_unmark_run,
		.end = quiesce_unmark_end},
	{NULL},
};

static const struct op_step thaw_steps[] = {
	{"thaw", .done = quiesce_unmarked, .run = quiesce_thaw_run, .end = quiesce_thaw_end},
	{"unmark", .done = quiesce_unmarked, .run = quiesce_unmark_run, .end = quiesce_unmark_end},
	{NULL},
};

void node_thaw_init(struct node_quiesce *q)
{
	quiesce_op_init(q, "thaw", thaw_steps);
}

void node_thaw_leftover_init(
	struct node_quiesce *q, struct node *node, struct pool_object *volume, bool adopting)
{
	node_quiesce_init(q, node, volume, true);
	q->adopting = adopting;
	(void)quiesce_take_mount(q);
	quiesce_op_init(q, "thaw leftover", leftover_steps);
}
