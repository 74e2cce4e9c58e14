/* SPDX-License-Identifier: Apache-2.0 */
#include "fake_crypt.h"

#include "backends/backend.h"
#include "backends/loop/lodev.h"
#include "base/fd.h"
#include "base/secret.h"
#include "blockio/luks_room.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/loop.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

static const char magic[8] = "no-luks";
enum { LOOPS_MAX = 256, KEY_MAX = 256 };

static const struct backend *below(void)
{
	return &backend_loop;
}

/* ---- the device above ---- */

static int node_open(uint32_t minor, int flags)
{
	char path[32];
	snprintf(path, sizeof(path), "/dev/loop%u", minor);
	int fd = open(path, flags | O_CLOEXEC);
	return fd < 0 ? -errno : fd;
}

/* The loop device that stands on another one. */
static int above_find(uint32_t minor, uint32_t *ret)
{
	char want[32], path[64], file[128];
	snprintf(want, sizeof(want), "/dev/loop%u\n", minor);
	for (uint32_t i = 0; i < LOOPS_MAX; i++) {
		snprintf(path, sizeof(path), "/sys/block/loop%u/loop/backing_file", i);
		if (fd_read_file(AT_FDCWD, path, file, sizeof(file)) > 0 &&
			strcmp(file, want) == 0) {
			*ret = i;
			return 0;
		}
	}
	return -ENXIO;
}

static int above_make(uint32_t minor, const struct backend_req *req, uint32_t *ret)
{
	_cleanup_fd_ int control = open("/dev/loop-control", O_RDWR | O_CLOEXEC);
	_cleanup_fd_ int file = node_open(minor, req->read_only ? O_RDONLY : O_RDWR);
	if (control < 0 || file < 0)
		return -ENXIO;
	for (unsigned tries = 0; tries < 100; tries++) {
		int free_minor = ioctl(control, LOOP_CTL_GET_FREE);
		_cleanup_fd_ int fd = free_minor < 0 ? -1 : node_open((uint32_t)free_minor, O_RDWR);
		struct loop_config config = {.fd = (uint32_t)file, .block_size = req->block_size};
		config.info.lo_offset = LUKS_HEADER_BYTES;
		if (fd < 0)
			return -ENXIO;
		if (ioctl(fd, LOOP_CONFIGURE, &config) == 0) {
			*ret = (uint32_t)free_minor;
			return 0;
		}
		if (errno != EBUSY)
			return -errno;
	}
	return -EBUSY;
}

static void put_above(struct backend_dev *dev, uint32_t minor)
{
	dev->below_major = dev->major;
	dev->below_minor = dev->minor;
	dev->minor = minor;
	dev->bare = false;
	dev->size_bytes -= LUKS_HEADER_BYTES;
	snprintf(dev->path, sizeof(dev->path), "/dev/loop%u", minor);
}

/* ---- the header ---- */

static int header(const struct backend_req *req, uint32_t minor)
{
	char block[4096] = {0}, want[KEY_MAX] = {0};
	_cleanup_fd_ int fd = node_open(minor, O_RDWR);
	if (fd < 0)
		return fd;
	memcpy(want, secret_bytes(req->secret), secret_len(req->secret));
	if (req->format) {
		memcpy(block, magic, sizeof(magic));
		memcpy(block + sizeof(magic), want, sizeof(want));
		return pwrite(fd, block, sizeof(block), 0) == sizeof(block) && fsync(fd) == 0
			       ? 0
			       : -EIO;
	}
	if (pread(fd, block, sizeof(block), 0) != sizeof(block) ||
		memcmp(block, magic, sizeof(magic)) != 0)
		return -ENODATA;
	return memcmp(block + sizeof(magic), want, sizeof(want)) == 0 ? 0 : -EKEYREJECTED;
}

/* ---- the vtable ---- */

static int detach_call(struct backend_req *req);

static int attach_call(struct backend_req *req)
{
	struct backend_req plain = *req;
	uint32_t minor = 0;
	plain.raw = req->raw && !req->encrypted;
	int r = below()->attach_call(&plain);
	req->err = plain.err;
	if (r < 0)
		return r;
	req->dev = plain.dev;
	if (!req->encrypted)
		return 0;
	uint32_t lower = req->dev.minor;
	if (above_find(lower, &minor) == 0) {
		put_above(&req->dev, minor);
		return 0;
	}
	req->dev.found = false;
	r = req->secret == NULL ? -ENOKEY : header(req, lower);
	if (r == 0)
		r = above_make(lower, req, &minor);
	if (r == 0) {
		put_above(&req->dev, minor);
		return 0;
	}
	int res = r == -EKEYREJECTED ? err_set(&req->err, ERR_KEY, "not its key")
		  : r == -ENOKEY     ? err_set(&req->err, ERR_PRECONDITION, "it needs its key")
				     : err_sys(&req->err, r, "fake header");
	struct backend_req back = {.dev = req->dev};
	(void)detach_call(&back);
	return res;
}

static int attach_job(void *arg)
{
	return attach_call(arg);
}

static int fake_attach(const struct backend *backend, struct op *op, struct backend_req *req)
{
	(void)backend;
	return op_work(op, attach_job, req);
}

static bool is_above(const struct backend_dev *dev)
{
	return dev->below_major == LODEV_MAJOR;
}

static int detach_call(struct backend_req *req)
{
	struct backend_dev lower = req->dev;
	if (is_above(&lower)) {
		_cleanup_fd_ int fd = node_open(lower.minor, O_RDWR);
		if (fd >= 0)
			(void)ioctl(fd, LOOP_CLR_FD);
		lower.minor = lower.below_minor;
		lower.below_major = lower.below_minor = 0;
	}
	struct lodev lo = {
		.minor = lower.minor, .image_dev = lower.image_dev, .image_ino = lower.image_ino};
	bool bound = false;
	int r = lodev_detach(&lo, &bound, &req->err);
	/* The one above lives on for a moment. */
	for (unsigned i = 0; r == 0 && bound && i < 200; i++) {
		struct lodev now;
		usleep(5000);
		bound = lodev_status(lo.minor, &now) == 0 && now.image_ino == lo.image_ino;
	}
	if (r == 0)
		req->dev.attached = req->dev.going_away = bound;
	return r;
}

static int detach_job(void *arg)
{
	return detach_call(arg);
}

static int fake_detach(const struct backend *backend, struct op *op, struct backend_req *req)
{
	return is_above(&req->dev) ? op_work(op, detach_job, req)
				   : below()->detach(backend, op, req);
}

static int resize_job(void *arg)
{
	struct backend_req *req = arg;
	struct lodev lo = {.minor = req->dev.below_minor,
		.image_dev = req->dev.image_dev,
		.image_ino = req->dev.image_ino};
	int r = lodev_resize(&lo, &req->dev.size_bytes, &req->err);
	if (r < 0)
		return r;
	req->dev.size_bytes -= LUKS_HEADER_BYTES;
	_cleanup_fd_ int fd = node_open(req->dev.minor, O_RDWR);
	return fd < 0 || ioctl(fd, LOOP_SET_CAPACITY) < 0 ? -EIO : 0;
}

static int fake_resize(const struct backend *backend, struct op *op, struct backend_req *req)
{
	return is_above(&req->dev) ? op_work(op, resize_job, req)
				   : below()->resize(backend, op, req);
}

struct scan {
	void (*each)(void *arg, const struct backend_dev *dev);
	void *arg;
};

static void scan_each(void *arg, const struct backend_dev *dev)
{
	const struct scan *scan = arg;
	struct backend_dev stacked = *dev;
	uint32_t minor;
	if (above_find(dev->minor, &minor) == 0)
		put_above(&stacked, minor);
	scan->each(scan->arg, &stacked);
}

static int fake_scan(const struct backend *backend,
	void (*each)(void *arg, const struct backend_dev *dev), void *arg, struct err *err)
{
	struct scan scan = {each, arg};
	return below()->scan(backend, scan_each, &scan, err);
}

static int fake_look(
	const struct backend *backend, const struct backend_dev *dev, struct backend_dev *ret)
{
	struct backend_dev lower = *dev;
	uint32_t minor;
	if (!is_above(dev))
		return below()->look(backend, dev, ret);
	lower.minor = dev->below_minor;
	lower.below_major = lower.below_minor = 0;
	int r = below()->look(backend, &lower, ret);
	if (r == 0 && (above_find(lower.minor, &minor) < 0 || minor != dev->minor))
		return -ENXIO;
	if (r == 0)
		put_above(ret, minor);
	return r;
}

static int fake_set_read_only(
	const struct backend *backend, const struct backend_dev *dev, bool read_only)
{
	int flag = read_only;
	if (!is_above(dev))
		return below()->set_read_only(backend, dev, read_only);
	_cleanup_fd_ int fd = node_open(dev->minor, O_RDONLY);
	return fd < 0 || ioctl(fd, BLKROSET, &flag) < 0 ? -EIO : 0;
}

void fake_crypt_use(void)
{
	static struct backend filter;
	filter = backend_loop;
	filter.attach_call = attach_call;
	filter.attach = fake_attach;
	filter.detach = fake_detach;
	filter.resize = fake_resize;
	filter.scan = fake_scan;
	filter.look = fake_look;
	filter.set_read_only = fake_set_read_only;
	backend_add(&filter);
}

struct count {
	char prefix[32];
	unsigned found;
};

static void count_each(void *arg, const struct lodev *lo)
{
	struct count *count = arg;
	uint32_t minor;
	count->found += strncmp(lo->tag, count->prefix, strlen(count->prefix)) == 0 &&
			above_find(lo->minor, &minor) == 0;
}

unsigned fake_crypt_count(const char *pool_uuid8)
{
	struct count count = {.found = 0};
	snprintf(count.prefix, sizeof(count.prefix), "ringvol:%.8s:", pool_uuid8);
	(void)lodev_scan(count_each, &count);
	return count.found;
}
