/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Looking at one volume in use.
 *
 * Happy path: the device by sysfs, and what it is bound to -> the file system by a helper, at one
 * of its mounts -> what was found goes to memory, and what has changed is logged. How it can fail:
 * the helper's call hangs, which is a finding; the volume goes meanwhile, and nothing is left to
 * say.
 *
 * The helper's call has a key of its own, as that of NodeGetVolumeStats has: it must not wait
 * behind a sync or an unmount that writes back for a minute, and be taken for hanging.
 */
#include "csi/look.h"

#include "base/log.h"
#include "blockio/blkdev.h"
#include "csi/condition.h"
#include "csi/node.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Notes a finding, or that it is over, and logs either once. */
void csi_find(struct csi *csi, struct node_volume *node, enum csi_condition_kind kind,
	uint64_t *since_ns, bool wrong)
{
	char id[RECORD_ID_MAX];
	if (wrong == (*since_ns != 0))
		return;
	*since_ns = wrong ? ring_now_ns(csi->reactor->ring) : 0;
	if ((kind == CSI_IO_ERRORS || kind == CSI_HANGING) && list_empty(&node->health.troubled))
		list_push(&csi->troubled, &node->health.troubled);
	pool_object_id(node->volume, id);
	const char *claim = node->volume->rec->claim;
	log_event(wrong ? LOG_LEVEL_WARN : LOG_LEVEL_INFO,
		wrong ? "volume abnormal" : "volume well again",
		log_fields({"volume", id}, {"claim", claim[0] != '\0' ? claim : NULL},
			{"condition", csi_condition_names[kind]}, {"device", node->dev.path}));
}

void csi_find_hanging(struct csi *csi, struct node_volume *node, bool wrong)
{
	if (node != NULL)
		csi_find(csi, node, CSI_HANGING, &node->health.hung_ns, wrong);
}

void csi_look_device(struct csi *csi, struct node_volume *node)
{
	struct node_health *health = &node->health;
	struct blkdev dev = {0}, above;
	uint32_t major, minor;
	backend_dev_below(&node->dev, &major, &minor);
	int r = blkdev_look(major, minor, &dev);
	if (r == 0 && node->dev.below_major != 0) {
		r = blkdev_look(node->dev.major, node->dev.minor, &above);
		if (r == 0 && above.size_bytes == 0)
			r = -ENOENT;
	}
	if (r < 0 && r != -ENOENT)
		return;
	if (node->detaching)
		return;
	bool gone = r == -ENOENT || dev.size_bytes == 0 || health->other_file ||
		    (health->seq != 0 && health->seq != dev.seq);
	if (health->seq == 0)
		health->seq = dev.seq;
	csi_find(csi, node, CSI_DEVICE_GONE, &health->gone_ns, gone);
}

void csi_look_fs(struct csi *csi, struct node_volume *node, const char *path, int res,
	const struct mnt_info *info)
{
	struct node_health *health = &node->health;
	const struct node_mount *mount = node_volume_mount_at(node, path);
	bool here =
		res == 0 && mount != NULL && !info->is_block && node_info_is_dev(info, &node->dev);
	health->looked_ns = ring_now_ns(csi->reactor->ring);
	if (!here)
		return;
	csi_find(csi, node, CSI_FS_SHUT_DOWN, &health->shut_down_ns, info->shut_down);
	/* A read-only mount sees its file system as what it is, and cannot tell whether it was
	 * meant to be. */
	if (!mount->read_only)
		csi_find(csi, node, CSI_FS_READ_ONLY, &health->read_only_ns, info->fs_read_only);
}

/* ---- the operation ---- */

static struct csi_look *look_of(struct op *op)
{
	return container_of(op, struct csi_look, op);
}

static struct node_volume *node_of(const struct csi_look *look)
{
	struct pool_object *volume;
	struct err gone = {0};
	if (pools_find_id(look->csi->pools, RECORD_VOLUME, look->id, &volume, &gone) < 0)
		return NULL;
	struct node_volume *node = node_volume_find(volume);
	return node == NULL || !node->dev.attached ? NULL : node;
}

static bool device_done(struct op *op)
{
	return node_of(look_of(op)) == NULL;
}

static int device_run(struct op *op)
{
	struct csi_look *look = look_of(op);
	csi_look_device(look->csi, node_of(look));
	return 0;
}

/* The number may be bound anew, or to another file; only the device itself tells. */
static bool image_done(struct op *op)
{
	const struct node_volume *node = node_of(look_of(op));
	return node == NULL || node->detaching || backend_get(node->volume->rec->device) == NULL ||
	       backend_get(node->volume->rec->device)->look == NULL;
}

static int image_job(void *arg)
{
	struct csi_look *look = arg;
	return look->backend->look(look->backend, &look->was, &look->dev);
}

static int image_run(struct op *op)
{
	struct csi_look *look = look_of(op);
	const struct node_volume *node = node_of(look);
	look->backend = backend_get(node->volume->rec->device);
	look->was = node->dev;
	op->lane = pool_lane(node->volume->pool);
	return op_work(op, image_job, look);
}

static int image_end(struct op *op, int res)
{
	struct csi_look *look = look_of(op);
	struct node_volume *node = node_of(look);
	op->lane = NULL; /* the calls that follow are no pool's */
	/* What was let go or attached meanwhile is not what was looked at. */
	if (node == NULL || node->detaching || node->dev.major != look->was.major ||
		node->dev.minor != look->was.minor || (res < 0 && res != -ENXIO))
		return 0;
	node->health.other_file =
		res == 0 &&
		!backend_dev_serves(&look->dev, node->volume->image_dev, node->volume->image_ino);
	if (res == -ENXIO || node->health.other_file)
		csi_find(look->csi, node, CSI_DEVICE_GONE, &node->health.gone_ns, true);
	return 0;
}

static bool fs_done(struct op *op)
{
	return look_of(op)->path.path[0] == '\0';
}

static int ask_alone(struct op *op)
{
	struct csi_look *look = look_of(op);
	look->batched = false;
	int r = op_helper(op, MNT_STATS, look->key, &look->path, sizeof(look->path), &look->info,
		sizeof(look->info), CSI_STAT_TIMEOUT_MS);
	/* No helper to be had: another time. */
	if (r == -EAGAIN)
		return 0;
	return r < 0 ? op_fail_sys(op, r, "volume %s: helper process", look->id) : r;
}

/* With others, unless somebody would have to wait for it. */
static int fs_run(struct op *op)
{
	struct csi_look *look = look_of(op);
	const struct node_volume *node = node_of(look);
	if (node == NULL || stats_alone(look->csi, node))
		return ask_alone(op);
	look->batched = true;
	int r = stats_batch_join(look->csi, &look->member, op, look->path.path, &look->info);
	return r == -ENOMEM ? ask_alone(op) : r;
}

static int fs_end(struct op *op, int res)
{
	struct csi_look *look = look_of(op);
	if (look->batched && res == -EAGAIN)
		return ask_alone(op);
	struct node_volume *node = node_of(look);
	if (node == NULL)
		return 0;
	csi_find_hanging(look->csi, node, res == -ETIMEDOUT);
	csi_look_fs(look->csi, node, look->path.path, res, &look->info);
	return 0;
}

/* Whatever comes of it, the probes have seen it. Without a file system to ask it also tells whether
 * the volume still hangs. */
static bool read_done(struct op *op)
{
	const struct node_volume *node = node_of(look_of(op));
	return node == NULL || node->health.other_file ||
	       !(node->health.try_read || (fs_done(op) && node->health.hung_ns != 0));
}

static int read_run(struct op *op)
{
	struct csi_look *look = look_of(op);
	struct node_volume *node = node_of(look);
	node->health.try_read = false;
	snprintf(look->try_req.device, sizeof(look->try_req.device), "%s", node->dev.path);
	int r = op_helper(op, MNT_TRY_READ, look->key, &look->try_req, sizeof(look->try_req),
		&look->result, sizeof(look->result), CSI_STAT_TIMEOUT_MS);
	return r == -EAGAIN ? 0 : r;
}

static int read_end(struct op *op, int res)
{
	struct csi_look *look = look_of(op);
	struct node_volume *node = node_of(look);
	if (node == NULL)
		return 0;
	if (res == -ETIMEDOUT || fs_done(op))
		csi_find_hanging(look->csi, node, res == -ETIMEDOUT);
	if (fs_done(op))
		node->health.looked_ns = ring_now_ns(look->csi->reactor->ring);
	return 0;
}

static const struct op_step look_steps[] = {
	{"device", .done = device_done, .run = device_run},
	{"image", .done = image_done, .run = image_run, .end = image_end},
	{"file system", .done = fs_done, .run = fs_run, .end = fs_end},
	{"read", .done = read_done, .run = read_run, .end = read_end},
	{NULL},
};

/* Where to look: a writable mount if there is one, the staging path first. */
static const struct node_mount *best_mount(const struct node_volume *node)
{
	const struct node_mount *best = NULL;
	list_for_each (link, &node->mounts) {
		const struct node_mount *mount = container_of(link, struct node_mount, link);
		if (best == NULL || (best->read_only && !mount->read_only) ||
			(mount->staging && best->read_only == mount->read_only))
			best = mount;
	}
	return best;
}

void csi_look_key(const char *id, char ret_key[HELPER_KEY_BYTES])
{
	snprintf(ret_key, HELPER_KEY_BYTES, "look/%s", id);
}

uint64_t csi_hung_since(const struct csi *csi, const struct pool_object *volume)
{
	const struct helpers *helpers = csi->reactor->helpers;
	char id[RECORD_ID_MAX], key[HELPER_KEY_BYTES];
	if (helpers_hung_count(helpers) == 0)
		return 0;
	pool_object_id(volume, id);
	csi_look_key(id, key);
	uint64_t since_ns = helpers_hung_since(helpers, id);
	uint64_t look_since_ns = helpers_hung_since(helpers, key);
	return since_ns == 0 || (look_since_ns != 0 && look_since_ns < since_ns) ? look_since_ns
										 : since_ns;
}

void csi_look_init(struct csi_look *look, struct csi *csi, const struct pool_object *volume)
{
	const struct node_volume *node = node_volume_find(volume);
	const struct node_mount *mount = node == NULL ? NULL : best_mount(node);
	*look = (struct csi_look){.csi = csi};
	pool_object_id(volume, look->id);
	csi_look_key(look->id, look->key);
	if (mount != NULL && node_volume_has_fs(volume))
		snprintf(look->path.path, sizeof(look->path.path), "%s", mount->path);
	op_init(&look->op, csi->reactor, "look", look_steps, NULL);
}
