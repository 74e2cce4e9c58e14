/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NodeGetVolumeStats, NodeGetVolumeHealth and NodeExpandVolume of a borrowed volume.
 *
 * Happy path of the first two: ask the file system -> look at the connection -> answer. They take
 * no lock, and a volume that goes meanwhile is not found. Of a growth: the owner shows the device
 * larger -> the cover grows -> (encrypted: what was opened over it does, which needs no key) -> the
 * file system grows, and its log is made clean. How it can fail: a
 * statfs that hangs, which is a DEADLINE_EXCEEDED and a condition; the owner has not grown it yet.
 */
#include "csi/borrow.h"

#include "csi/health.h"
#include "csi/messages.h"
#include "csi/request.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

struct look {
	struct borrow_op b;
	char key[HELPER_KEY_BYTES];
	bool hangs, asked; /* the file system: does not answer; has answered */
	uint64_t size_bytes;
};

#define look_of(op_ptr) container_of(borrow_of(op_ptr), struct look, b)

static int gone(struct op *op)
{
	struct look *l = look_of(op);
	return op_fail(
		op, ERR_NOT_FOUND, "volume %s is not at volume_path %s", l->b.n.task.id, l->b.path);
}

/* ---- asking its file system ---- */

/* By the key of looks, beside any operation. */
static int ask_run(struct op *op)
{
	struct look *l = look_of(op);
	snprintf(l->b.n.path.path, sizeof(l->b.n.path.path), "%s", l->b.path);
	node_stats_key(l->b.n.task.id, l->key);
	return volume_op_helper_by(op, l->key, MNT_STATS, &l->b.n.path, sizeof(l->b.n.path),
		&l->b.n.info, sizeof(l->b.n.info), NODE_STAT_TIMEOUT_MS);
}

static int ask_end(struct op *op, int res)
{
	struct look *l = look_of(op);
	struct borrowed *one = borrow_entry(&l->b);
	l->hangs = res == -ETIMEDOUT;
	l->asked = res == 0;
	if (one != NULL && l->hangs && one->hanging_ns == 0)
		one->hanging_ns = ring_now_ns(op->reactor->ring);
	else if (one != NULL && !l->hangs)
		one->hanging_ns = 0;
	return res;
}

static int stats_end(struct op *op, int res)
{
	struct look *l = look_of(op);
	int r = volume_op_inspect_end(op, ask_end(op, res));
	if (r < 0)
		return r;
	return l->b.n.info.exists && borrow_entry(&l->b) != NULL &&
			       node_info_is_dev(&l->b.n.info, &l->b.n.dev.dev)
		       ? 0
		       : gone(op);
}

/* ---- the connection ---- */

static int look_run(struct op *op)
{
	struct look *l = look_of(op);
	const struct borrowed *one = borrow_entry(&l->b);
	memcpy(l->b.ask.tag, l->b.tag, sizeof(l->b.ask.tag));
	if (one != NULL)
		memcpy(l->b.ask.subsystem, one->subsystem, sizeof(l->b.ask.subsystem));
	node_stats_key(l->b.n.task.id, l->key);
	return volume_op_helper_by(op, l->key, (enum mnt_call)ATTACH_LOOK, &l->b.ask,
		sizeof(l->b.ask), &l->b.info, sizeof(l->b.info), ATTACH_LOOK_TIMEOUT_MS);
}

/* What cannot be told is told as a condition: nothing is there. */
static int look_end(struct op *op, int res)
{
	(void)op;
	(void)res;
	return 0;
}

/* ---- stats ---- */

static Csi__V1__VolumeUsage *usage_new(struct arena *arena, Csi__V1__VolumeUsage__Unit unit,
	uint64_t total, uint64_t used, uint64_t available)
{
	Csi__V1__VolumeUsage *usage = csi_message_new(arena, &csi__v1__volume_usage__descriptor);
	if (usage == NULL)
		return NULL;
	usage->unit = unit;
	usage->total = (int64_t)total;
	usage->used = (int64_t)used;
	usage->available = (int64_t)available;
	return usage;
}

/* How much of a block volume is used only its own node knows. */
static void fill_usage(struct look *l, Csi__V1__NodeGetVolumeStatsResponse *response)
{
	struct arena *arena = l->b.n.task.arena;
	const struct mnt_info *info = &l->b.n.info;
	Csi__V1__VolumeUsage **usage = arena_alloc(arena, 2 * sizeof(*usage));
	if (usage == NULL || (info->shut_down && info->total_bytes == 0))
		return;
	usage[0] = usage_new(arena, CSI__V1__VOLUME_USAGE__UNIT__BYTES, info->total_bytes,
		info->is_block ? 0 : info->used_bytes, info->is_block ? 0 : info->avail_bytes);
	if (!info->is_block && info->total_inodes != 0)
		usage[1] = usage_new(arena, CSI__V1__VOLUME_USAGE__UNIT__INODES, info->total_inodes,
			info->used_inodes, info->free_inodes);
	response->usage = usage;
	response->n_usage = usage[0] == NULL ? 0 : usage[1] == NULL ? 1 : 2;
}

static int stats_answer_run(struct op *op)
{
	struct look *l = look_of(op);
	struct csi *csi = l->b.n.task.csi;
	struct arena *arena = l->b.n.task.arena;
	Csi__V1__NodeGetVolumeStatsResponse *response = (void *)l->b.n.task.response;
	struct node_condition conditions[NODE_CONDITION_KINDS];
	fill_usage(l, response);
	if (!(csi->config.health & CSI_HEALTH_1_12))
		return 0;
	unsigned count = borrow_conditions(arena, &l->b, &l->b.n.info, conditions);
	response->volume_condition = csi_message_new(arena, &csi__v1__volume_condition__descriptor);
	if (response->volume_condition == NULL)
		return op_fail(op, ERR_NO_ROOM, "out of memory");
	response->volume_condition->abnormal = count != 0;
	response->volume_condition->message =
		csi_bytes(count != 0 ? conditions[0].reason : "the volume is well");
	return 0;
}

static const struct op_step stats_steps[] = {
	{"stats", .run = ask_run, .end = stats_end},
	{"connection", .run = look_run, .end = look_end},
	{"answer", .run = stats_answer_run},
	{NULL},
};

static int find_at(struct look *l, const char *path, struct err *err)
{
	struct err why = {0};
	l->b.path = path;
	int r = borrow_find(&l->b, err);
	if (r == 0 && csi_check_path("volume_path", path, &why) < 0)
		r = err_set(err, ERR_NOT_FOUND, "volume %s is not there: %.200s", l->b.n.task.id,
			why.message);
	return r;
}

static int stats_prepare(struct csi_task *task, struct err *err)
{
	struct look *l = container_of(task, struct look, b.n.task);
	return find_at(l, csi_field(task->request, "volume_path"), err);
}

const struct csi_operation csi_borrow_stats = {
	sizeof(struct look), stats_prepare, stats_steps, borrow_cleanup};

/* ---- health ---- */

static bool health_ask_done(struct op *op)
{
	return look_of(op)->b.path[0] == '\0';
}

/* A volume that hangs is an answer, not an error; so is a path where nothing is. */
static int health_ask_end(struct op *op, int res)
{
	struct look *l = look_of(op);
	(void)ask_end(op, res);
	l->asked &= l->b.n.info.exists && node_info_is_dev(&l->b.n.info, &l->b.n.dev.dev);
	return 0;
}

static int health_answer_run(struct op *op)
{
	struct look *l = look_of(op);
	struct csi_task *task = &l->b.n.task;
	Csi__V1__NodeGetVolumeHealthResponse *response = (void *)task->response;
	struct node_condition conditions[NODE_CONDITION_KINDS];
	unsigned count =
		borrow_conditions(task->arena, &l->b, l->asked ? &l->b.n.info : NULL, conditions);
	response->volume_health = csi_health_of(task->arena, task->id, conditions, count);
	return response->volume_health != NULL ? 0 : op_fail(op, ERR_NO_ROOM, "out of memory");
}

static const struct op_step health_steps[] = {
	{"stats", .done = health_ask_done, .run = ask_run, .end = health_ask_end},
	{"connection", .run = look_run, .end = look_end},
	{"answer", .run = health_answer_run},
	{NULL},
};

static int health_prepare(struct csi_task *task, struct err *err)
{
	const Csi__V1__NodeGetVolumeHealthRequest *req = (const void *)task->request;
	struct look *l = container_of(task, struct look, b.n.task);
	const char *paths[] = {
		csi_str(req->volume_publish_path), csi_str(req->staging_target_path)};
	const char *path = paths[0][0] != '\0' ? paths[0] : paths[1];
	l->b.path = path;
	return path[0] != '\0' ? find_at(l, path, err) : borrow_find(&l->b, err);
}

const struct csi_operation csi_borrow_health = {
	sizeof(struct look), health_prepare, health_steps, borrow_cleanup};

/* ---- growth ---- */

static int inspect_run(struct op *op)
{
	return volume_op_inspect(op, look_of(op)->b.path);
}

static bool is_block(const struct look *l)
{
	const struct borrowed *one = borrow_entry(&l->b);
	return l->b.n.info.is_block || (one != NULL && one->block);
}

static int inspect_end(struct op *op, int res)
{
	struct look *l = look_of(op);
	int r = volume_op_inspect_end(op, res);
	if (r < 0)
		return r;
	if (borrow_entry(&l->b) != NULL &&
		(node_info_is_dev(&l->b.n.info, &l->b.n.dev.dev) || is_block(l)))
		return 0;
	return op_fail(op, l->b.n.info.exists ? ERR_PRECONDITION : ERR_NOT_FOUND,
		"volume %s is not staged or published at volume_path %s", l->b.n.task.id,
		l->b.path);
}

static int grow_run(struct op *op)
{
	struct look *l = look_of(op);
	l->b.ask.want_bytes = l->size_bytes;
	return borrow_call(op, ATTACH_GROW, ATTACH_GIVE_TIMEOUT_MS);
}

static int grow_end(struct op *op, int res)
{
	int r = borrow_call_end(op, res, "growth");
	return r < 0 ? r : borrow_put(op);
}

static bool fs_done(struct op *op)
{
	return is_block(look_of(op));
}

static int fs_run(struct op *op)
{
	return volume_op_grow(op, look_of(op)->b.path, FSIMG_NONE);
}

static int fs_end(struct op *op, int res)
{
	struct look *l = look_of(op);
	if (res == -EPERM || res == -EROFS)
		return op_fail(op, ERR_PRECONDITION, "growth of %s: %s", l->b.path,
			l->b.n.result.why[0] != '\0' ? l->b.n.result.why
						     : "the file system is read-only");
	return res == 0 ? 0 : volume_op_fail(op, res, "growth", l->b.path);
}

static bool clean_done(struct op *op)
{
	return fs_done(op) || borrow_clean_done(op);
}

static int expand_answer_run(struct op *op)
{
	struct look *l = look_of(op);
	Csi__V1__NodeExpandVolumeResponse *response = (void *)l->b.n.task.response;
	response->capacity_bytes = (int64_t)l->b.n.dev.dev.size_bytes;
	return 0;
}

static const struct op_step expand_steps[] = {
	{"inspect", .run = inspect_run, .end = inspect_end},
	{"device", .run = grow_run, .end = grow_end},
	{"hold cover", .done = borrow_open_done, .call = borrow_hold_call, .end = borrow_hold_end},
	{"opened device", .done = borrow_open_done, .run = borrow_open_run, .end = borrow_open_end},
	{"look at it", .done = borrow_open_done, .run = borrow_opened_run,
		.end = borrow_opened_end},
	{"file system", .done = fs_done, .run = fs_run, .end = fs_end},
	{"clean log", .done = clean_done, .run = borrow_clean_run, .end = borrow_clean_end},
	{"answer", .run = expand_answer_run},
	{NULL},
};

static int expand_prepare(struct csi_task *task, struct err *err)
{
	const Csi__V1__NodeExpandVolumeRequest *req = (const void *)task->request;
	struct look *l = container_of(task, struct look, b.n.task);
	uint64_t limit = 0;
	int r = find_at(l, csi_str(req->volume_path), err);
	if (r == 0)
		r = csi_capacity(req->capacity_range, l->b.n.dev.dev.size_bytes,
			l->b.n.dev.dev.size_bytes, &l->size_bytes, &limit, err);
	return r;
}

const struct csi_operation csi_borrow_expand = {
	sizeof(struct look), expand_prepare, expand_steps, borrow_open_cleanup};
