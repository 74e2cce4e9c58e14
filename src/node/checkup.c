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
#include "node/checkup.h"

#include "base/log.h"
#include "blockio/blkdev.h"
#include "node/health.h"
#include "node/mounts.h"
#include "node/node.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Notes a finding, or that it is over, and logs either once. */
void node_note(struct node *node, struct node_volume *nv, enum node_condition_kind kind,
	uint64_t *since_ns, bool wrong)
{
	char id[RECORD_ID_MAX];
	if (wrong == (*since_ns != 0))
		return;
	*since_ns = wrong ? ring_now_ns(node->reactor->ring) : 0;
	if ((kind == NODE_IO_ERRORS || kind == NODE_HANGING) && list_empty(&nv->health.troubled))
		list_push(&node->troubled, &nv->health.troubled);
	pool_object_id(nv->volume, id);
	const char *claim = nv->volume->rec->claim;
	log_event(wrong ? LOG_LEVEL_WARN : LOG_LEVEL_INFO,
		wrong ? "volume abnormal" : "volume well again",
		log_fields({"volume", id}, {"claim", claim[0] != '\0' ? claim : NULL},
			{"condition", node_condition_names[kind]}, {"device", nv->dev.path}));
}

void node_note_hanging(struct node *node, struct node_volume *nv, bool wrong)
{
	if (nv != NULL)
		node_note(node, nv, NODE_HANGING, &nv->health.hung_ns, wrong);
}

void node_check_device(struct node *node, struct node_volume *nv)
{
	struct node_health *health = &nv->health;
	struct blkdev dev = {0}, above;
	uint32_t major, minor;
	backend_dev_below(&nv->dev, &major, &minor);
	int r = blkdev_look(major, minor, &dev);
	if (r == 0 && nv->dev.below_major != 0) {
		r = blkdev_look(nv->dev.major, nv->dev.minor, &above);
		if (r == 0 && above.size_bytes == 0)
			r = -ENOENT;
	}
	if (r < 0 && r != -ENOENT)
		return;
	if (nv->detaching)
		return;
	bool gone = r == -ENOENT || dev.size_bytes == 0 || health->other_file ||
		    (health->seq != 0 && health->seq != dev.seq);
	if (health->seq == 0)
		health->seq = dev.seq;
	node_note(node, nv, NODE_DEVICE_GONE, &health->gone_ns, gone);
}

void node_check_fs(struct node *node, struct node_volume *nv, const char *path, int res,
	const struct mnt_info *info)
{
	struct node_health *health = &nv->health;
	const struct node_mount *mount = node_volume_mount_at(nv, path);
	bool here =
		res == 0 && mount != NULL && !info->is_block && node_info_is_dev(info, &nv->dev);
	health->looked_ns = ring_now_ns(node->reactor->ring);
	if (!here)
		return;
	node_note(node, nv, NODE_FS_SHUT_DOWN, &health->shut_down_ns, info->shut_down);
	/* A read-only mount sees its file system as what it is, and cannot tell whether it was
	 * meant to be. */
	if (!mount->read_only)
		node_note(node, nv, NODE_FS_READ_ONLY, &health->read_only_ns, info->fs_read_only);
}

/* ---- the operation ---- */

static struct node_checkup *look_of(struct op *op)
{
	return container_of(op, struct node_checkup, op);
}

static struct node_volume *node_of(const struct node_checkup *look)
{
	struct pool_object *volume;
	struct err gone = {0};
	if (pools_find_id(look->node->pools, RECORD_VOLUME, look->id, &volume, &gone) < 0)
		return NULL;
	struct node_volume *nv = node_volume_find(volume);
	return nv == NULL || !nv->dev.attached ? NULL : nv;
}

static bool device_done(struct op *op)
{
	return node_of(look_of(op)) == NULL;
}

static int device_run(struct op *op)
{
	struct node_checkup *look = look_of(op);
	node_check_device(look->node, node_of(look));
	return 0;
}

/* The number may be bound anew, or to another file; only the device itself tells. */
static bool image_done(struct op *op)
{
	const struct node_volume *nv = node_of(look_of(op));
	return nv == NULL || nv->detaching || backend_get(nv->volume->rec->device) == NULL ||
	       backend_get(nv->volume->rec->device)->look == NULL;
}

static int image_job(void *arg)
{
	struct node_checkup *look = arg;
	return look->backend->look(look->backend, &look->was, &look->dev);
}

static int image_run(struct op *op)
{
	struct node_checkup *look = look_of(op);
	const struct node_volume *nv = node_of(look);
	look->backend = backend_get(nv->volume->rec->device);
	look->was = nv->dev;
	op->lane = pool_lane(nv->volume->pool);
	return op_work(op, image_job, look);
}

static int image_end(struct op *op, int res)
{
	struct node_checkup *look = look_of(op);
	struct node_volume *nv = node_of(look);
	op->lane = NULL; /* the calls that follow are no pool's */
	/* What was let go or attached meanwhile is not what was looked at. */
	if (nv == NULL || nv->detaching || nv->dev.major != look->was.major ||
		nv->dev.minor != look->was.minor || (res < 0 && res != -ENXIO))
		return 0;
	nv->health.other_file = res == 0 && !backend_dev_serves(&look->dev, nv->volume->image_dev,
						    nv->volume->image_ino);
	if (res == -ENXIO)
		node_note(look->node, nv, NODE_DEVICE_GONE, &nv->health.gone_ns, true);
	else
		node_check_device(look->node, nv);
	return 0;
}

static bool fs_done(struct op *op)
{
	return look_of(op)->path.path[0] == '\0';
}

static int ask_alone(struct op *op)
{
	struct node_checkup *look = look_of(op);
	look->batched = false;
	int r = op_helper(op, MNT_STATS, look->key, &look->path, sizeof(look->path), &look->info,
		sizeof(look->info), NODE_STAT_TIMEOUT_MS);
	/* No helper to be had: another time. */
	if (r == -EAGAIN)
		return 0;
	return r < 0 ? op_fail_sys(op, r, "volume %s: helper process", look->id) : r;
}

/* With others, unless somebody would have to wait for it. */
static int fs_run(struct op *op)
{
	struct node_checkup *look = look_of(op);
	const struct node_volume *nv = node_of(look);
	if (nv == NULL || stats_alone(look->node, nv))
		return ask_alone(op);
	look->batched = true;
	int r = stats_batch_join(look->node, &look->member, op, look->path.path, &look->info);
	return r == -ENOMEM ? ask_alone(op) : r;
}

static int fs_end(struct op *op, int res)
{
	struct node_checkup *look = look_of(op);
	if (look->batched && res == -EAGAIN)
		return ask_alone(op);
	struct node_volume *nv = node_of(look);
	if (nv == NULL)
		return 0;
	node_note_hanging(look->node, nv, res == -ETIMEDOUT);
	node_check_fs(look->node, nv, look->path.path, res, &look->info);
	return 0;
}

/* Whatever comes of it, the probes have seen it. Without a file system to ask it also tells whether
 * the volume still hangs. */
static bool read_done(struct op *op)
{
	const struct node_volume *nv = node_of(look_of(op));
	return nv == NULL || nv->health.other_file ||
	       !(nv->health.try_read || (fs_done(op) && nv->health.hung_ns != 0));
}

static int read_run(struct op *op)
{
	struct node_checkup *look = look_of(op);
	struct node_volume *nv = node_of(look);
	nv->health.try_read = false;
	snprintf(look->try_req.device, sizeof(look->try_req.device), "%s", nv->dev.path);
	int r = op_helper(op, MNT_TRY_READ, look->key, &look->try_req, sizeof(look->try_req),
		&look->result, sizeof(look->result), NODE_STAT_TIMEOUT_MS);
	return r == -EAGAIN ? 0 : r;
}

static int read_end(struct op *op, int res)
{
	struct node_checkup *look = look_of(op);
	struct node_volume *nv = node_of(look);
	if (nv == NULL)
		return 0;
	if (res == -ETIMEDOUT || fs_done(op))
		node_note_hanging(look->node, nv, res == -ETIMEDOUT);
	if (fs_done(op))
		nv->health.looked_ns = ring_now_ns(look->node->reactor->ring);
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
static const struct node_mount *best_mount(const struct node_volume *nv)
{
	const struct node_mount *best = NULL;
	list_for_each (link, &nv->mounts) {
		const struct node_mount *mount = container_of(link, struct node_mount, link);
		if (best == NULL || (best->read_only && !mount->read_only) ||
			(mount->staging && best->read_only == mount->read_only))
			best = mount;
	}
	return best;
}

void node_stats_key(const char *id, char ret_key[HELPER_KEY_BYTES])
{
	snprintf(ret_key, HELPER_KEY_BYTES, "look/%s", id);
}

uint64_t node_hung_since(const struct node *node, const struct pool_object *volume)
{
	const struct helpers *helpers = node->reactor->helpers;
	char id[RECORD_ID_MAX], key[HELPER_KEY_BYTES];
	if (helpers_hung_count(helpers) == 0)
		return 0;
	pool_object_id(volume, id);
	node_stats_key(id, key);
	uint64_t since_ns = helpers_hung_since(helpers, id);
	uint64_t look_since_ns = helpers_hung_since(helpers, key);
	return since_ns == 0 || (look_since_ns != 0 && look_since_ns < since_ns) ? look_since_ns
										 : since_ns;
}

void node_checkup_init(
	struct node_checkup *look, struct node *node, const struct pool_object *volume)
{
	const struct node_volume *nv = node_volume_find(volume);
	const struct node_mount *mount = nv == NULL ? NULL : best_mount(nv);
	*look = (struct node_checkup){.node = node};
	pool_object_id(volume, look->id);
	node_stats_key(look->id, look->key);
	if (mount != NULL && node_volume_has_fs(volume))
		snprintf(look->path.path, sizeof(look->path.path), "%s", mount->path);
	op_init(&look->op, node->reactor, "look", look_steps, NULL);
}
