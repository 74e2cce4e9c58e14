/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NodeGetVolumeStats: bytes and inodes of a mounted file system, size and allocated bytes of a
 * block volume, and (1.12) the volume's condition.
 *
 * It takes no lock, holds no pointer to the volume across a wait, and its helper call has the key
 * of looks, so it is served beside any other operation; a statfs that hangs ends as
 * DEADLINE_EXCEEDED and makes the volume abnormal.
 */
#include "csi/messages.h"
#include "csi/request.h"
#include "csi/services.h"
#include "csi/volume_op.h"
#include "node/checkup.h"
#include "node/health.h"
#include "pool/index.h"
#include "pool/raw_measure.h"
#include "pool/room.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

struct stats {
	struct volume_op n;
	const char *path;
	struct node_stats ask;
	struct statx image; /* stx_mask 0: it could not be looked at */
	char image_name[RECORD_KEY_MAX];
	/* of a thin volume of a raw pool */
	struct raw_measure thin;
	uint64_t thin_bytes;
};

#define stats_of(op_ptr) container_of(volume_op_of(op_ptr), struct stats, n)

static int no_helper(struct op *op, int res)
{
	return res == -EAGAIN ? op_fail(op, ERR_NO_ROOM, "too many calls wait for a helper process")
			      : res;
}

static int stats_run(struct op *op)
{
	return no_helper(op, node_stats_run(op, &stats_of(op)->ask));
}

/* The volume may go while we wait: the pointer is not kept, see prepare(). */
static int find_again(struct op *op, struct pool_object **ret)
{
	struct stats *s = stats_of(op);
	return pools_find_id(s->n.task.csi->pools, RECORD_VOLUME, s->n.task.id, ret, &op->err);
}

static int stats_end(struct op *op, int res)
{
	struct stats *s = stats_of(op);
	struct pool_object *volume;
	res = node_stats_end(op, &s->ask, res);
	if (res == OP_PENDING || res == -EAGAIN)
		return no_helper(op, res);
	int r = find_again(op, &volume);
	if (r < 0)
		return r;
	const struct node_volume *node = node_volume_find(volume);
	r = volume_op_inspect_end(op, res);
	if (r < 0)
		return r;
	if (!s->n.info.exists || node == NULL || !node_info_is_dev(&s->n.info, &node->dev))
		return op_fail(op, ERR_NOT_FOUND, "volume %s is not at volume_path %s",
			volume->rec->name, s->path);
	return 0;
}

static bool image_done(struct op *op)
{
	return !stats_of(op)->ask.is_block;
}

/* An image or a pool that is gone is a condition, which the answer has. */
static int image_run(struct op *op)
{
	struct stats *s = stats_of(op);
	struct pool_object *volume;
	int r = find_again(op, &volume);
	if (r < 0)
		return r;
	int dirfd = pool_dirfd(volume->pool, RECORD_VOLUME);
	if (dirfd < 0)
		return 0;
	memcpy(s->image_name, volume->key, sizeof(s->image_name));
	io_uring_prep_statx(op_sqe(op), dirfd, s->image_name, AT_SYMLINK_NOFOLLOW,
		STATX_SIZE | STATX_BLOCKS, &s->image);
	return op_submit(op);
}

/* How much of a thin image has blocks is asked of its device. */
static bool blocks_done(struct op *op)
{
	struct stats *s = stats_of(op);
	struct pool_object *volume;
	struct err ignored = {0};
	s->thin.id = 0;
	if (s->ask.is_block &&
		pools_find_id(s->n.task.csi->pools, RECORD_VOLUME, s->n.task.id, &volume,
			&ignored) == 0 &&
		pool_is_raw(volume->pool))
		raw_measure_put(&s->thin, volume);
	return s->thin.id == 0;
}

static int blocks_job(void *arg)
{
	struct stats *s = arg;
	return raw_measure(&s->thin, &s->thin_bytes);
}

static int blocks_run(struct op *op)
{
	return op_work(op, blocks_job, stats_of(op));
}

/* What cannot be asked is a condition, and the last answer stands. */
static int blocks_end(struct op *op, int res)
{
	struct stats *s = stats_of(op);
	struct pool_object *volume;
	int r = find_again(op, &volume);
	if (r == 0 && res == 0)
		pool_object_measured(volume, s->thin_bytes);
	return r;
}

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

/* Of a block volume. In a raw pool the image is a file without blocks. */
static uint64_t used_bytes(const struct stats *s, const struct pool_object *volume)
{
	return pool_is_raw(volume->pool) ? volume->allocated_bytes : s->image.stx_blocks * 512;
}

static void fill_usage(struct stats *s, const struct pool_object *volume,
	Csi__V1__NodeGetVolumeStatsResponse *response)
{
	struct arena *arena = s->n.task.arena;
	const struct mnt_info *info = &s->n.info;
	Csi__V1__VolumeUsage **usage = arena_alloc(arena, 2 * sizeof(*usage));
	/* A file system that has shut down may not say. */
	if (usage == NULL || (!s->ask.is_block && info->shut_down && info->total_bytes == 0))
		return;
	if (s->ask.is_block && s->image.stx_mask == 0) {
		usage[0] = usage_new(
			arena, CSI__V1__VOLUME_USAGE__UNIT__BYTES, info->total_bytes, 0, 0);
	} else if (s->ask.is_block) {
		uint64_t used = used_bytes(s, volume), total = s->image.stx_size;
		if (volume->rec->encryption != RECORD_PLAIN && total > LUKS_HEADER_BYTES)
			total -= LUKS_HEADER_BYTES; /* the volume's */
		usage[0] = usage_new(arena, CSI__V1__VOLUME_USAGE__UNIT__BYTES, total,
			used < total ? used : total, used < total ? total - used : 0);
	} else {
		usage[0] = usage_new(arena, CSI__V1__VOLUME_USAGE__UNIT__BYTES, info->total_bytes,
			info->used_bytes, info->avail_bytes);
		/* btrfs has no inode table: it reports none, and so do we. */
		if (info->total_inodes != 0)
			usage[1] = usage_new(arena, CSI__V1__VOLUME_USAGE__UNIT__INODES,
				info->total_inodes, info->used_inodes, info->free_inodes);
	}
	response->usage = usage;
	response->n_usage = usage[0] == NULL ? 0 : usage[1] == NULL ? 1 : 2;
}

static int answer_run(struct op *op)
{
	struct stats *s = stats_of(op);
	struct csi *csi = s->n.task.csi;
	Csi__V1__NodeGetVolumeStatsResponse *response = (void *)s->n.task.response;
	struct pool_object *volume;
	int r = find_again(op, &volume);
	if (r < 0)
		return r;
	fill_usage(s, volume, response);
	if (csi->config.health & CSI_HEALTH_1_12)
		response->volume_condition = csi_condition_message(s->n.task.arena, csi, volume);
	return 0;
}

static const struct op_step steps[] = {
	{"stats", .run = stats_run, .end = stats_end},
	{"image", .done = image_done, .run = image_run, .end = volume_op_ignore},
	{"blocks", .done = blocks_done, .run = blocks_run, .end = blocks_end},
	{"answer", .run = answer_run},
	{NULL},
};

static int prepare(struct csi_task *task, struct err *err)
{
	struct stats *s = container_of(task, struct stats, n.task);
	s->path = csi_field(task->request, "volume_path");
	s->n.takes_inline = true;
	int r = volume_op_find(&s->n, NULL, err);
	if (r == 0)
		r = volume_op_check_path(&s->n, s->path, err);
	if (r < 0)
		return r;
	snprintf(s->n.path.path, sizeof(s->n.path.path), "%s", s->path);
	s->ask = (struct node_stats){
		.node = task->csi->node,
		.id = task->id,
		.path = &s->n.path,
		.info = &s->n.info,
		.is_block = !node_volume_has_fs(s->n.volume),
	};
	s->n.volume = NULL;
	return 0;
}

const struct csi_operation csi_node_stats = {sizeof(struct stats), prepare, steps, NULL};
