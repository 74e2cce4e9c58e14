/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Volumes as loop devices: each call is one work job over lodev. The job works on the request only;
 * the step's end moves its error into the operation.
 */
#include "backends/backend.h"

#include "blockio/lodev.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

static_assert(sizeof((struct backend_dev){0}.tag) == LODEV_TAG_BYTES, "one tag, two structs");

static void dev_from_lodev(const struct lodev *lo, struct backend_dev *dev)
{
	*dev = (struct backend_dev){
		.attached = true,
		.major = LODEV_MAJOR,
		.minor = lo->minor,
		.size_bytes = lo->size_bytes,
		.image_dev = lo->image_dev,
		.image_ino = lo->image_ino,
		.direct_io = lo->direct_io,
		.read_only = lo->read_only,
		.going_away = lo->going_away,
	};
	snprintf(dev->path, sizeof dev->path, "/dev/loop%u", lo->minor);
	memcpy(dev->tag, lo->tag, sizeof dev->tag);
}

static struct lodev dev_to_lodev(const struct backend_dev *dev)
{
	struct lodev lo = {
		.minor = dev->minor,
		.image_dev = dev->image_dev,
		.image_ino = dev->image_ino,
	};
	memcpy(lo.tag, dev->tag, sizeof lo.tag);
	return lo;
}

/* ---- work jobs ---- */

static int attach_job(void *arg)
{
	struct backend_req *req = arg;
	struct lodev lo;
	struct lodev_spec spec = {
		.dirfd = req->dirfd,
		.image = req->image,
		.block_size = req->block_size,
		.direct_io = req->direct_io,
		.read_only = req->read_only,
		.no_discard = req->no_discard,
	};
	memcpy(spec.tag, req->tag, sizeof spec.tag);
	int r = lodev_attach(&spec, &lo, &req->err);
	if (r < 0)
		return r;
	dev_from_lodev(&lo, &req->dev);
	return 0;
}

static int detach_job(void *arg)
{
	struct backend_req *req = arg;
	struct lodev lo = dev_to_lodev(&req->dev);
	bool still_bound;
	int r = lodev_detach(&lo, &still_bound, &req->err);
	if (r < 0)
		return r;
	req->dev.attached = still_bound;
	req->dev.going_away = still_bound;
	return 0;
}

static int resize_job(void *arg)
{
	struct backend_req *req = arg;
	struct lodev lo = dev_to_lodev(&req->dev);
	return lodev_resize(&lo, &req->dev.size_bytes, &req->err);
}

/* ---- the vtable ---- */

static int loop_attach(const struct backend *backend, struct op *op, struct backend_req *req)
{
	(void)backend;
	return op_work(op, attach_job, req);
}

static int loop_detach(const struct backend *backend, struct op *op, struct backend_req *req)
{
	(void)backend;
	return op_work(op, detach_job, req);
}

static int loop_resize(const struct backend *backend, struct op *op, struct backend_req *req)
{
	(void)backend;
	return op_work(op, resize_job, req);
}

struct scan {
	void (*each)(void *arg, const struct backend_dev *dev);
	void *arg;
};

static void scan_on_device(void *arg, const struct lodev *lo)
{
	const struct scan *scan = arg;
	struct backend_dev dev;
	dev_from_lodev(lo, &dev);
	scan->each(scan->arg, &dev);
}

static int loop_scan(const struct backend *backend,
	void (*each)(void *arg, const struct backend_dev *dev), void *arg, struct err *err)
{
	(void)backend;
	struct scan scan = {each, arg};
	int r = lodev_scan(scan_on_device, &scan);
	return r < 0 ? err_sys(err, r, "looking through the loop devices in /sys/block") : 0;
}

static int loop_look(
	const struct backend *backend, const struct backend_dev *dev, struct backend_dev *ret)
{
	(void)backend;
	struct lodev lo;
	if (dev->major != LODEV_MAJOR)
		return -EOPNOTSUPP;
	int r = lodev_status(dev->minor, &lo);
	if (r < 0)
		return r == -ENOENT ? -ENXIO : r;
	dev_from_lodev(&lo, ret);
	return 0;
}

static int loop_set_read_only(
	const struct backend *backend, const struct backend_dev *dev, bool read_only)
{
	(void)backend;
	return lodev_set_read_only(dev->minor, read_only);
}

const struct backend backend_loop = {
	.type = BACKEND_LOOP,
	.name = "loop",
	.attach_is_job = true,
	.attach = loop_attach,
	.detach = loop_detach,
	.resize = loop_resize,
	.scan = loop_scan,
	.look = loop_look,
	.set_read_only = loop_set_read_only,
};
