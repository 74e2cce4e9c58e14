/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Happy path: an image in the trash -> a device with a fresh header over it, under a tag that is no
 * volume's -> mkfs, as a child that gets the open device, whatever its number is then -> what mkfs
 * wrote is synced, the device goes -> the image becomes the volume's.
 *
 * How it can fail: as the backend, as mkfs, for want of room. What was done is undone: the device
 * goes, the image is trash. After kill -9 the device is left. It has our tag and no volume's image,
 * so adoption clears it; until then its image stays in the trash.
 */
#include "node/first_stage.h"

#include "base/fd.h"
#include "node/node.h"
#include "pool/index.h"
#include "pool/layout.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

static struct node_first_stage *first_of(struct op *op)
{
	return container_of(op, struct node_first_stage, op);
}

static const char *name_of(const struct node_first_stage *f)
{
	return f->volume->rec->name;
}

/* ---- its image ---- */

static int image_run(struct op *op)
{
	struct node_first_stage *f = first_of(op);
	pool_renew_make_init(&f->renew, op->reactor, f->volume);
	return op_child(op, &f->renew.op);
}

static int image_undo(struct op *op)
{
	struct node_first_stage *f = first_of(op);
	if (f->renew.committed)
		return 0;
	pool_renew_drop_init(&f->renew, op->reactor);
	return op_child(op, &f->renew.op);
}

/* ---- its device ---- */

static int attach_run(struct op *op)
{
	struct node_first_stage *f = first_of(op);
	char random[9];
	node_volume_request(f->volume, &f->dev);
	f->dev.dirfd = f->renew.trash_fd;
	f->dev.image = f->renew.name;
	f->dev.raw = false; /* no tenant gets it */
	f->dev.dev = (struct backend_dev){0};
	f->dev.format = true;
	f->dev.limits = (struct io_limits){0}; /* they are the tenant's, and this is ours */
	f->dev.secret = f->key;
	pool_random_hex(random, 8);
	node_tag(pool_uuid8(f->volume->pool), random, f->dev.tag);
	memcpy(f->formatting.tag, f->dev.tag, sizeof(f->formatting.tag));
	list_push(&f->node->formatting, &f->formatting.link);
	return f->backend->attach(f->backend, op, &f->dev);
}

static int detach_run(struct op *op)
{
	struct node_first_stage *f = first_of(op);
	return f->attached ? f->backend->detach(f->backend, op, &f->dev) : 0;
}

static int attach_end(struct op *op, int res)
{
	struct node_first_stage *f = first_of(op);
	int r = backend_end(op, &f->dev, res);
	if (r < 0)
		return r;
	f->attached = true;
	return 0;
}

static int check_run(struct op *op)
{
	const struct node_first_stage *f = first_of(op);
	const struct backend_dev *dev = &f->dev.dev;
	if (!dev->found && dev->size_bytes == f->volume->rec->size_bytes)
		return 0;
	return op_fail(op, ERR_INTERNAL,
		"volume %s: the device to format it on, %s, has %llu bytes instead of %llu",
		name_of(f), dev->path, (unsigned long long)dev->size_bytes,
		(unsigned long long)f->volume->rec->size_bytes);
}

/* A device that this could not take away is tried once more by the undo of its attach. */
static int detach_end(struct op *op, int res)
{
	struct node_first_stage *f = first_of(op);
	int r = backend_end(op, &f->dev, res);
	f->attached = r < 0;
	return r;
}

/* ---- its file system ---- */

static bool raw_block(struct op *op)
{
	return first_of(op)->spec.type == FSIMG_NONE;
}

/* The number may be another's by now: it is asked once, and what is open stays what it is. */
static int open_call(struct op *op)
{
	struct node_first_stage *f = first_of(op);
	struct stat st;
	f->fd = open(f->dev.dev.path, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
	if (f->fd < 0 || fstat(f->fd, &st) < 0)
		return -errno;
	return S_ISBLK(st.st_mode) && major(st.st_rdev) == f->dev.dev.major &&
			       minor(st.st_rdev) == f->dev.dev.minor
		       ? 0
		       : -ENODEV;
}

static int device_end(struct op *op, int res)
{
	const struct node_first_stage *f = first_of(op);
	return res < 0 ? op_fail_sys(op, res, "volume %s: formatting it on %s", name_of(f),
				 f->dev.dev.path)
		       : 0;
}

static int close_job(void *arg)
{
	struct node_first_stage *f = arg;
	fd_close(&f->fd);
	return 0;
}

static int open_undo(struct op *op)
{
	return op_work(op, close_job, first_of(op));
}

static int open_end(struct op *op, int res)
{
	struct node_first_stage *f = first_of(op);
	if (res < 0)
		fd_close(&f->fd);
	return device_end(op, res);
}

static int mkfs_run(struct op *op)
{
	struct node_first_stage *f = first_of(op);
	pool_mkfs_init(&f->mkfs, op->reactor, &f->spec, f->fd, f->uuid);
	return op_child(op, &f->mkfs.op);
}

/* An error of what the tool left to the kernel is told here or never. */
static int sync_call(struct op *op)
{
	struct node_first_stage *f = first_of(op);
	int r = fsync(f->fd) < 0 ? -errno : 0;
	fd_close(&f->fd);
	return r;
}

/* ---- the commit ---- */

static int commit_run(struct op *op)
{
	struct node_first_stage *f = first_of(op);
	pool_renew_commit_init(&f->renew, op->reactor);
	return op_child(op, &f->renew.op);
}

static const struct op_step steps[] = {
	{"make image", .run = image_run, .undo = image_undo},
	{"attach", .run = attach_run, .end = attach_end, .undo = detach_run},
	{"check device", .run = check_run},
	{"open device", .done = raw_block, .call = open_call, .end = open_end, .undo = open_undo},
	{"mkfs", .done = raw_block, .run = mkfs_run},
	{"sync", .done = raw_block, .call = sync_call, .end = device_end},
	{"detach", .run = detach_run, .end = detach_end},
	{"commit", .run = commit_run, .flags = OP_COMMIT},
	{NULL},
};

struct node_first_stage *node_first_stage_new(
	struct node *node, struct pool_object *volume, const struct secret *key)
{
	const struct record *rec = volume->rec;
	struct node_first_stage *f = calloc(1, sizeof(*f));
	if (f == NULL)
		return NULL;
	f->node = node;
	f->volume = volume;
	f->backend = backend_get(rec->device);
	f->key = key;
	f->fd = -1;
	f->renew.fd = -1;
	list_init(&f->formatting.link);
	pool_object_id(volume, f->id);
	fsimg_uuid_of(f->id, f->uuid);
	f->spec = (struct fsimg_spec){
		.type = rec->fs,
		.size_bytes = rec->size_bytes,
		.block_size = rec->block_size,
		.mkfs_options = rec->mkfs_options,
		.reads_as_noise = true,
	};
	op_init(&f->op, node->reactor, "first stage", steps, NULL);
	f->op.lane = pool_lane(volume->pool);
	return f;
}

void node_first_stage_free(struct node_first_stage *f)
{
	if (f == NULL)
		return;
	list_remove(&f->formatting.link);
	fd_close(&f->fd);
	if (f->renew.object != NULL)
		pool_renew_free(&f->renew);
	free(f);
}
