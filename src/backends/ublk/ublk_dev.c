/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bottom of the data process's devices: the table of states, waiting requests, and shared
 * steps, which are control commands, jobs, the image and its lock, the queues, and the state file.
 */
#include "backends/ublk/ublk_dev.h"

#include "base/buf.h"
#include "base/clock.h"
#include "base/fd.h"
#include "blockio/image.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>

enum {
	LOCK_WAIT_MS = 128, /* the longest of the waits, each twice the one before */
	RETRY_MS = 2000,
	NODE_WAIT_MS = 100, /* for /dev/ublkcN, where udev makes it */
};

/* "rvol", in the upper half of what a device carries; the state directory's number is below. */
#define SERVER_MAGIC UINT64_C(0x72766f6c)

static const bool may_follow[DEV_STATES][DEV_STATES] = {
	[DEV_FOUND] = {[DEV_ENDING] = true},
	[DEV_ATTACHING] = {[DEV_LIVE] = true, [DEV_ENDING] = true},
	[DEV_LIVE] = {[DEV_RESIZING] = true, [DEV_DETACHING] = true},
	[DEV_RESIZING] = {[DEV_LIVE] = true},
	[DEV_DETACHING] = {[DEV_LIVE] = true, [DEV_RECOVERING] = true, [DEV_ENDING] = true},
	[DEV_RECOVERING] = {[DEV_LIVE] = true, [DEV_DETACHING] = true, [DEV_ENDING] = true},
};

void ublk_dev_set_state(struct ublk_dev *dev, enum ublk_dev_state state)
{
	assert(may_follow[dev->state][state]);
	dev->state = state;
}

uint64_t ublk_dev_server_flags(const struct ublk_devs *devs)
{
	return SERVER_MAGIC << 32 | devs->instance;
}

/* ---- devices ---- */

struct ublk_dev *ublk_dev_new(struct ublk_devs *devs, enum ublk_dev_state state)
{
	struct ublk_dev *dev = calloc(1, sizeof(*dev));
	if (dev == NULL)
		return NULL;
	dev->devs = devs;
	dev->state = state;
	dev->record.dev_id = UINT32_MAX;
	dev->image_fd = dev->char_fd = dev->brought_fd = -1;
	dev->retry_ms = UBLK_DEV_RETRY_FIRST_MS;
	list_init(&dev->waits);
	list_push(&devs->all, &dev->link);
	devs->count++;
	return dev;
}

void ublk_dev_free(struct ublk_dev *dev)
{
	assert(!ublk_dev_busy(dev) && dev->queues_out == 0);
	ring_timer_cancel(dev->devs->config.reactor->ring, &dev->timer);
	ublk_dev_wake(dev, &(struct err){0}, true);
	list_remove(&dev->link);
	dev->devs->count--;
	fd_close(&dev->image_fd);
	fd_close(&dev->brought_fd);
	free(dev);
}

void ublk_dev_event(struct ublk_dev *dev, const char *what, const struct err *err)
{
	const struct ublk_devs_config *config = &dev->devs->config;
	if (config->on_event != NULL)
		config->on_event(config->arg, dev, what, err);
}

void ublk_dev_retry(struct ublk_dev *dev, ring_timer_fn *fn)
{
	dev->timer = (struct ring_timer){.fn = fn};
	ring_timer_arm(dev->devs->config.reactor->ring, &dev->timer, dev->retry_ms);
	dev->retry_ms = dev->retry_ms * 2 < RETRY_MS ? dev->retry_ms * 2 : RETRY_MS;
}

/* What hangs with one image may hang with all of its file system. NULL: out of memory. */
static struct lane *lane_of(struct ublk_devs *devs, uint64_t image_dev)
{
	for (size_t i = 0; i < devs->lane_count; i++)
		if (devs->lanes[i].image_dev == image_dev)
			return devs->lanes[i].lane;
	if (array_grow(&devs->lanes, &devs->lane_cap, devs->lane_count, sizeof(*devs->lanes)) < 0)
		return NULL;
	struct ublk_lane *lane = &devs->lanes[devs->lane_count];
	lane->image_dev = image_dev;
	if (ring_lane_open(&lane->lane, devs->config.reactor->ring) < 0)
		return NULL;
	devs->lane_count++;
	return lane->lane;
}

void ublk_dev_start(struct ublk_dev *dev, const char *name, const struct op_step *steps,
	void (*on_end)(struct op *op))
{
	ring_timer_cancel(dev->devs->config.reactor->ring, &dev->timer);
	err_clear(&dev->job_err);
	op_init(&dev->op, dev->devs->config.reactor, name, steps, on_end);
	dev->op.lane = lane_of(dev->devs, dev->record.image_dev);
	op_start(&dev->op);
}

bool ublk_dev_has_id(const struct ublk_devs *devs, uint32_t dev_id)
{
	list_for_each (node, &devs->all)
		if (container_of(node, struct ublk_dev, link)->record.dev_id == dev_id)
			return true;
	return false;
}

/* ---- requests that wait ---- */

void ublk_dev_answer(struct ublk_wait *wait, const struct ublk_dev *dev)
{
	int res = wait->err.code == ERR_OK ? 0 : wait->err.errnum > 0 ? -wait->err.errnum : -EIO;
	wait->on_end(wait, dev, res);
}

void ublk_dev_wake(struct ublk_dev *dev, const struct err *err, bool ends)
{
	list_for_each_safe (node, &dev->waits) {
		struct ublk_wait *wait = container_of(node, struct ublk_wait, link);
		if (wait->ends && !ends)
			continue;
		list_remove(node);
		wait->err = !wait->ends && dev->cause.code != ERR_OK ? dev->cause : *err;
		ublk_dev_answer(wait, dev->state == DEV_ENDING ? NULL : dev);
	}
}

bool ublk_dev_end_is_wanted(const struct ublk_dev *dev)
{
	list_for_each (node, &dev->waits)
		if (container_of(node, struct ublk_wait, link)->ends)
			return true;
	return false;
}

/* ---- commands and jobs ---- */

static void on_command(struct ublk_ctl_call *call, int res)
{
	op_complete(&container_of(call, struct ublk_dev, call)->op, res);
}

int ublk_dev_command(struct op *op, uint32_t command, uint64_t data)
{
	struct ublk_dev *dev = ublk_dev_of(op);
	dev->call.command = command;
	dev->call.dev_id = dev->record.dev_id;
	dev->call.data = data;
	dev->call.on_end = on_command;
	int pending = op_wait(op);
	ublk_ctl_submit(dev->devs->config.ctl, &dev->call);
	return pending;
}

int ublk_dev_command_end(struct op *op, int res)
{
	struct ublk_dev *dev = ublk_dev_of(op);
	const char *name = ublk_ctl_name(dev->call.command);
	if (res >= 0)
		return res;
	if (res == -ETIMEDOUT)
		return err_set(&op->err, ERR_TIMEOUT,
			"the kernel does not return from ublk's %s (device %d); it may never: see "
			"'dmesg', and reboot the node if devices cannot be made any more",
			name, (int)dev->call.dev_id);
	if (dev->call.command == UBLK_ABI_ADD_DEV && (res == -EACCES || res == -ENOSPC))
		return err_set(&op->err, ERR_NO_ROOM,
			"the kernel makes no more ublk devices (%s): detach some, or raise the "
			"module parameter ublks_max of ublk_drv",
			strerrordesc_np(-res));
	/* The module is missing: it says so better. */
	if (ublk_ctl_ready(dev->devs->config.ctl, &op->err) < 0)
		return res;
	return op_fail_sys(op, res, "ublk's %s for device %d", name, (int)dev->call.dev_id);
}

int ublk_dev_job(struct op *op, int (*fn)(void *dev))
{
	err_clear(&ublk_dev_of(op)->job_err);
	return op_work(op, fn, ublk_dev_of(op));
}

int ublk_dev_job_end(struct op *op, int res)
{
	struct ublk_dev *dev = ublk_dev_of(op);
	if (res < 0 && dev->job_err.code != ERR_OK)
		op->err = dev->job_err;
	return res;
}

/* ---- what the kernel can do ---- */

bool ublk_dev_features_done(struct op *op)
{
	return ublk_dev_of(op)->devs->features_known;
}

int ublk_dev_features_run(struct op *op)
{
	ublk_dev_of(op)->call.features = 0;
	return ublk_dev_command(op, UBLK_ABI_GET_FEATURES, 0);
}

int ublk_dev_features_end(struct op *op, int res)
{
	struct ublk_dev *dev = ublk_dev_of(op);
	const uint64_t needed = UBLK_ABI_F_RECOVERY | UBLK_ABI_F_RECOVERY_REISSUE;
	if (res == -EOPNOTSUPP || res == -EINVAL ||
		(res >= 0 && (dev->call.features & needed) != needed))
		return op_fail(op, ERR_PRECONDITION,
			"this kernel's ublk is too old to outlive its server; Linux 6.5 or newer "
			"is needed, or use loop devices");
	if (res < 0)
		return ublk_dev_command_end(op, res);
	dev->devs->features = dev->call.features;
	dev->devs->features_known = true;
	return 0;
}

/* ---- the image ---- */

static int image_open(struct ublk_dev *dev)
{
	const struct ublk_record *rec = &dev->record;
	int flags = (rec->flags & UBLKD_READ_ONLY ? O_RDONLY : O_RDWR) |
		    (rec->flags & UBLKD_DIRECT_IO ? O_DIRECT : 0) | O_NOFOLLOW | O_CLOEXEC |
		    O_NONBLOCK;
	if (rec->path[0] == '\0')
		return err_set(&dev->job_err, ERR_NOT_FOUND,
			"/dev/ublkb%u waits for the driver to bring its image", rec->dev_id);
	dev->image_fd = open(rec->path, flags);
	if (dev->image_fd < 0)
		return err_set(&dev->job_err, ERR_NOT_FOUND,
			"/dev/ublkb%u waits for its image %s (%s): mount its pool, or stage the "
			"volume again",
			rec->dev_id, rec->path, strerrordesc_np(errno));
	return 0;
}

/* For a moment the lock may be that of a device on its way out, or of what the last data process
 * still had in flight. */
static int lock_image(struct ublk_dev *dev)
{
	int r = image_lock(dev->image_fd);
	for (unsigned ms = 1; r != 0 && ms <= LOCK_WAIT_MS; ms *= 2) {
		clock_sleep_ms(ms);
		r = image_lock(dev->image_fd);
	}
	if (r == -EWOULDBLOCK)
		return err_set(&dev->job_err, ERR_PRECONDITION,
			"image %s is locked by a loop device or another process; 'lslocks' and "
			"'losetup -a' name it: end it",
			dev->record.path);
	if (r == 1)
		return err_set(&dev->job_err, ERR_PRECONDITION,
			"image %s is open elsewhere, perhaps on a loop device ('losetup -a'); "
			"detach it there",
			dev->record.path);
	return r < 0 ? err_sys(&dev->job_err, r, "locking image %s", dev->record.path) : 0;
}

static int image_check(struct ublk_dev *dev)
{
	struct ublk_record *rec = &dev->record;
	struct stat st;
	int flags = fcntl(dev->image_fd, F_GETFL);
	if (flags < 0 || fstat(dev->image_fd, &st) < 0)
		return err_sys(&dev->job_err, -errno, "looking at image %s", rec->path);
	if (!S_ISREG(st.st_mode) || st.st_dev != rec->image_dev || st.st_ino != rec->image_ino)
		return err_set(&dev->job_err, ERR_NOT_FOUND,
			"%s is not the image that was attached: mount its pool again", rec->path);
	if (st.st_size % rec->block_size != 0 || st.st_size == 0)
		return err_set(&dev->job_err, ERR_DATA_LOSS,
			"image %s has %lld bytes, no multiple of %u", rec->path,
			(long long)st.st_size, rec->block_size);
	if ((flags & O_ACCMODE) != (rec->flags & UBLKD_READ_ONLY ? O_RDONLY : O_RDWR))
		return err_set(&dev->job_err, ERR_INVALID,
			"the descriptor of image %s is not open as its device is to be", rec->path);
	/* As loop does: smaller sectors than direct I/O can have go through the page cache. */
	if (flags & O_DIRECT && image_dio_align(dev->image_fd) > rec->block_size) {
		flags &= ~O_DIRECT;
		if (fcntl(dev->image_fd, F_SETFL, flags) < 0)
			return err_sys(&dev->job_err, -errno, "switching direct I/O off");
	}
	rec->flags &= ~(uint32_t)UBLKD_DIRECT_IO;
	rec->flags |= flags & O_DIRECT ? UBLKD_DIRECT_IO : 0;
	dev->size_bytes = (uint64_t)st.st_size;
	dev->blksize = (uint32_t)st.st_blksize;
	return 0;
}

static int image_job(void *arg)
{
	struct ublk_dev *dev = arg;
	int r = dev->image_fd < 0 ? image_open(dev) : 0;
	if (r == 0)
		r = image_check(dev);
	if (r == 0)
		r = lock_image(dev);
	if (r < 0)
		fd_close(&dev->image_fd);
	return r;
}

int ublk_dev_image_run(struct op *op)
{
	return ublk_dev_job(op, image_job);
}

/* ---- queues ---- */

static void on_queue_served(struct ublk_queue *queue, int res)
{
	struct ublk_dev *dev = ublk_queue_owner(queue);
	if (res < 0) {
		dev->queues_out--;
		if (dev->queues_res == 0)
			dev->queues_res = res;
	}
	if (--dev->queues_asked == 0)
		op_complete(&dev->op, dev->queues_res);
}

static void on_queue_end(struct ublk_queue *queue, int res)
{
	struct ublk_dev *dev = ublk_queue_owner(queue);
	struct err err = {0};
	dev->queues_out--;
	if (res < 0)
		err_sys(&err, res, "the kernel refuses a queue of /dev/ublkb%u",
			dev->record.dev_id);
	else if (dev->state == DEV_LIVE)
		err_set(&err, ERR_INTERNAL, "/dev/ublkb%u was stopped by somebody else",
			dev->record.dev_id);
	if (err.code != ERR_OK)
		ublk_dev_event(dev, "a queue has ended", &err);
	/* Whoever stopped the device waits for this with a bound (ublk_dev_life.c). */
	if (dev->queues_out == 0 && ring_timer_armed(&dev->timer) && ublk_dev_busy(dev)) {
		ring_timer_cancel(dev->devs->config.reactor->ring, &dev->timer);
		op_complete(&dev->op, 0);
	}
}

static int open_job(void *arg)
{
	struct ublk_dev *dev = arg;
	char node[32];
	snprintf(node, sizeof(node), "/dev/ublkc%u", dev->record.dev_id);
	dev->char_fd = open(node, O_RDWR | O_CLOEXEC);
	for (unsigned ms = 0; dev->char_fd < 0 && errno == ENOENT && ms < NODE_WAIT_MS; ms++) {
		clock_sleep_ms(1);
		dev->char_fd = open(node, O_RDWR | O_CLOEXEC);
	}
	if (dev->char_fd < 0 && errno == ENOENT)
		return err_set(&dev->job_err, ERR_PRECONDITION,
			"%s does not appear in /dev: the data process needs the host's /dev", node);
	if (dev->char_fd < 0)
		return err_sys(&dev->job_err, -errno, "opening %s", node);
	ublk_throttle_set(&dev->throttle, &dev->record.limits, clock_monotonic_ns());
	for (uint16_t i = 0; i < dev->record.queues; i++) {
		const struct ublk_queue_spec spec = {
			.char_fd = dev->char_fd,
			.image_fd = dev->image_fd,
			.id = i,
			.depth = dev->record.depth,
			.zero_copy = dev->zero_copy,
			.direct_io = dev->record.flags & UBLKD_DIRECT_IO,
			.keep_blocks = dev->record.flags & UBLKD_NO_DISCARD,
			.throttle = &dev->throttle,
			.on_served = on_queue_served,
			.on_end = on_queue_end,
			.owner = dev,
		};
		int r = ublk_queue_new(&dev->queue[i], &spec);
		if (r < 0)
			return err_sys(&dev->job_err, r, "mapping queue %u of %s", i, node);
	}
	return 0;
}

int ublk_dev_open_run(struct op *op)
{
	return ublk_dev_job(op, open_job);
}

int ublk_dev_serve_run(struct op *op)
{
	struct ublk_dev *dev = ublk_dev_of(op);
	int r = 0;
	dev->queues_asked = 0;
	dev->queues_res = 0;
	for (unsigned i = 0; i < dev->record.queues && r == 0; i++) {
		r = ublk_queue_start(dev->devs->config.io, dev->queue[i]);
		dev->queues_asked += r == 0;
		dev->queues_out += r == 0;
	}
	if (r < 0)
		dev->queues_res = r;
	if (r < 0 && dev->queues_asked == 0)
		return ublk_dev_serve_end(op, r);
	return op_wait(op);
}

int ublk_dev_serve_end(struct op *op, int res)
{
	if (res == -ENOSPC)
		return op_fail(op, ERR_NO_ROOM,
			"the data process has no room for another queue: start it with more "
			"--threads, or a higher limit on open files");
	if (res < 0)
		return op_fail_sys(
			op, res, "serving the queues of device %u", ublk_dev_of(op)->record.dev_id);
	return 0;
}

static int close_job(void *arg)
{
	struct ublk_dev *dev = arg;
	for (unsigned i = 0; i < UBLKD_QUEUES_MAX; i++) {
		ublk_queue_free(dev->queue[i]);
		dev->queue[i] = NULL;
	}
	fd_close(&dev->char_fd);
	return 0;
}

int ublk_dev_close_run(struct op *op)
{
	return ublk_dev_job(op, close_job);
}

/* ---- the state file ---- */

int ublk_dev_write_state(struct ublk_dev *dev, enum ublk_phase phase)
{
	uint32_t before = dev->record.phase;
	dev->record.phase = phase;
	int r = ublk_state_write(dev->devs->config.state_dirfd, &dev->record);
	if (r == 0)
		return 0;
	dev->record.phase = before;
	return err_sys(&dev->job_err, r, "writing the state file of device %u", dev->record.dev_id);
}

/* Linux up to 6.12 sees that its server has died by the requests that it has to take back from it,
 * and by the block layer's timeout of 30 s if it has none. So one tag is never given to a request.
 * Requests are given tags only where no scheduler does (which ublk's single queues have by default,
 * and loop devices have not). Where sysfs is read-only all works as well, but for that delay. */
static void tune(const struct ublk_dev *dev)
{
	char path[64], text[16];
	snprintf(path, sizeof(path), "/sys/block/ublkb%u/queue/scheduler", dev->record.dev_id);
	(void)fd_write_file(AT_FDCWD, path, "none");
	snprintf(path, sizeof(path), "/sys/block/ublkb%u/queue/nr_requests", dev->record.dev_id);
	snprintf(text, sizeof(text), "%u", dev->record.depth - 1u);
	(void)fd_write_file(AT_FDCWD, path, text);
}

int ublk_dev_read_disk(struct ublk_dev *dev, struct err *err)
{
	const char *dir = dev->devs->config.sys_block;
	char path[128], text[32];
	unsigned long long sectors;
	uint32_t major, minor;
	if (dir == NULL)
		dir = "/sys/block";
	snprintf(path, sizeof(path), "%s/ublkb%u/dev", dir, dev->record.dev_id);
	ssize_t n = fd_read_file(AT_FDCWD, path, text, sizeof(text));
	if (n < 0 || sscanf(text, "%u:%u", &major, &minor) != 2)
		return err_sys(err, n < 0 ? (int)n : -EIO, "reading %s", path);
	snprintf(path, sizeof(path), "%s/ublkb%u/size", dir, dev->record.dev_id);
	n = fd_read_file(AT_FDCWD, path, text, sizeof(text));
	if (n < 0 || sscanf(text, "%llu", &sectors) != 1)
		return err_sys(err, n < 0 ? (int)n : -EIO, "reading %s", path);
	dev->major = major;
	dev->minor = minor;
	dev->size_bytes = sectors * 512;
	return 0;
}

static int note_job(void *arg)
{
	struct ublk_dev *dev = arg;
	int r = ublk_dev_read_disk(dev, &dev->job_err);
	if (r < 0)
		return r;
	if (dev->record.phase == UBLK_PHASE_MAKING)
		tune(dev);
	return ublk_dev_write_state(dev, UBLK_PHASE_LIVE);
}

int ublk_dev_note_run(struct op *op)
{
	return ublk_dev_job(op, note_job);
}
