/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes a device, grows or limits one, and ends one.
 *
 * The happy path of an attach: lock the image, ADD_DEV, the state file ("making"), SET_PARAMS, open
 * and serve the queues, START_DEV, the state file ("live"). Whatever fails, the end of the device
 * clears away what is there, and only then is the failure answered.
 *
 * The happy path of an end: see that nobody uses the device (a detach only), the state file
 * ("ending"), STOP_DEV, the queues end, close everything, DEL_DEV, remove the file, close the image
 * and with it the lock. Every step is skipped when it holds already, so the same steps also end an
 * attach that failed and what a dead data process left half made. Once the file says "ending" there
 * is no way back: a step that fails is tried again, for ever, the device says why, and the requests
 * that wait are told. A command that the kernel still has is not given to it again meanwhile
 * (ublk_ctl.h). After a DEL_DEV that was not answered in time the kernel is asked first whether the
 * device is still ours.
 */
#include "backends/ublk/ublk_dev_life.h"

#include "base/clock.h"
#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

enum { QUEUES_END_MS = 8000 }; /* for queues to end after the device was stopped */

/* ---- the end ---- */

static bool use_done(struct op *op)
{
	return ublk_dev_of(op)->state == DEV_ENDING || ublk_dev_of(op)->major == 0;
}

/* Mounts, device mapper and their like have a device exclusively. */
static int use_job(void *arg)
{
	struct ublk_dev *dev = arg;
	char node[32];
	snprintf(node, sizeof(node), "/dev/ublkb%u", dev->record.dev_id);
	_cleanup_fd_ int fd = open(node, O_RDONLY | O_EXCL | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0 && errno == EBUSY)
		return err_set(&dev->job_err, ERR_PRECONDITION,
			"%s is in use by a mount or another device (grep ublkb%u "
			"/proc/*/mountinfo, lsblk); end that first",
			node, dev->record.dev_id);
	return 0;
}

static int use_run(struct op *op)
{
	return ublk_dev_job(op, use_job);
}

static bool mark_done(struct op *op)
{
	const struct ublk_dev *dev = ublk_dev_of(op);
	return !dev->recorded || dev->record.phase == UBLK_PHASE_ENDING;
}

static int mark_job(void *arg)
{
	return ublk_dev_write_state(arg, UBLK_PHASE_ENDING);
}

static int mark_run(struct op *op)
{
	return ublk_dev_job(op, mark_job);
}

static void throttle(struct ublk_dev *dev, const struct io_limits *limits)
{
	ublk_throttle_set(&dev->throttle, limits, clock_monotonic_ns());
	ublk_io_throttles_changed(dev->devs->config.io);
}

static bool stop_done(struct op *op)
{
	return ublk_dev_of(op)->kernel == KERNEL_HAS_NOT;
}

static int stop_run(struct op *op)
{
	struct ublk_dev *dev = ublk_dev_of(op);
	if (dev->state == DEV_DETACHING)
		ublk_dev_set_state(dev, DEV_ENDING);
	/* The kernel waits for requests that wait for a limit. */
	throttle(dev, &(struct io_limits){0});
	return ublk_dev_command(op, UBLK_ABI_STOP_DEV, 0);
}

static int gone_is_fine(struct op *op, int res)
{
	return res == -ENODEV || res == -ENOENT ? 0 : ublk_dev_command_end(op, res);
}

/* ---- is the number still ours? ---- */

static bool sure_done(struct op *op)
{
	return ublk_dev_of(op)->kernel != KERNEL_MAY_HAVE;
}

static int sure_run(struct op *op)
{
	ublk_dev_of(op)->call.info = (struct ublk_abi_info){0};
	return ublk_dev_command(op, UBLK_ABI_GET_INFO, 0);
}

/* Ours is gone if another's has its number: we give it to no other device of ours before this one
 * is forgotten. */
static int sure_end(struct op *op, int res)
{
	struct ublk_dev *dev = ublk_dev_of(op);
	int r = gone_is_fine(op, res);
	if (r < 0)
		return r;
	bool ours = res >= 0 && dev->call.info.server_flags == ublk_dev_server_flags(dev->devs);
	dev->kernel = ours ? KERNEL_HAS : KERNEL_HAS_NOT;
	return 0;
}

/* ---- queues ---- */

static bool queues_done(struct op *op)
{
	return ublk_dev_of(op)->queues_out == 0;
}

static void on_queues_bound(struct ring_timer *timer)
{
	struct ublk_dev *dev = container_of(timer, struct ublk_dev, timer);
	op_complete(&dev->op, -ETIMEDOUT);
}

/* The last queue's end completes the step, or the bound does. */
static int queues_run(struct op *op)
{
	struct ublk_dev *dev = ublk_dev_of(op);
	dev->timer = (struct ring_timer){.fn = on_queues_bound};
	ring_timer_arm(dev->devs->config.reactor->ring, &dev->timer, QUEUES_END_MS);
	return op_wait(op);
}

static int queues_end(struct op *op, int res)
{
	if (res < 0)
		return op_fail(op, ERR_TIMEOUT,
			"the kernel does not give the requests of device %u back, or its image "
			"hangs; see 'dmesg'",
			ublk_dev_of(op)->record.dev_id);
	return 0;
}

/* ---- deletion ---- */

static int delete_run(struct op *op)
{
	return ublk_dev_command(op, UBLK_ABI_DEL_ASYNC, 0);
}

static int delete_end(struct op *op, int res)
{
	int r = gone_is_fine(op, res);
	ublk_dev_of(op)->kernel = r == 0              ? KERNEL_HAS_NOT
				  : res == -ETIMEDOUT ? KERNEL_MAY_HAVE
						      : KERNEL_HAS;
	return r;
}

static int forget_job(void *arg)
{
	struct ublk_dev *dev = arg;
	fd_close(&dev->image_fd);
	int r = dev->recorded ? ublk_state_remove(dev->devs->config.state_dirfd, dev->record.dev_id)
			      : 0;
	return r < 0 ? err_sys(&dev->job_err, r, "removing the state file of device %u",
			       dev->record.dev_id)
		     : 0;
}

static int forget_run(struct op *op)
{
	return ublk_dev_job(op, forget_job);
}

static const struct op_step end_steps[] = {
	{"use", .done = use_done, .run = use_run, .end = ublk_dev_job_end},
	{"mark", .done = mark_done, .run = mark_run, .end = ublk_dev_job_end},
	{"sure", .done = sure_done, .run = sure_run, .end = sure_end},
	{"stop", .done = stop_done, .run = stop_run, .end = gone_is_fine},
	{"queues", .done = queues_done, .run = queues_run, .end = queues_end},
	{"close", .run = ublk_dev_close_run, .end = ublk_dev_job_end},
	{"delete", .done = stop_done, .run = delete_run, .end = delete_end},
	{"forget", .run = forget_run, .end = ublk_dev_job_end},
	{NULL},
};

static void on_retry(struct ring_timer *timer)
{
	ublk_dev_end(container_of(timer, struct ublk_dev, timer));
}

static void on_ended(struct op *op)
{
	struct ublk_dev *dev = ublk_dev_of(op);
	bool detaching = dev->state == DEV_DETACHING; /* nothing has happened to it yet */
	if (!op_failed(op)) {
		if (detaching)
			ublk_dev_set_state(dev, DEV_ENDING);
		ublk_dev_free(dev);
		return;
	}
	dev->why = op->err;
	if (detaching)
		ublk_dev_set_state(dev, dev->before);
	else
		ublk_dev_event(dev, "a device cannot be removed yet", &op->err);
	ublk_dev_wake(dev, &op->err, true);
	if (!detaching)
		ublk_dev_retry(dev, on_retry);
	else if (dev->on_in_use != NULL)
		dev->on_in_use(dev);
}

void ublk_dev_end(struct ublk_dev *dev)
{
	ublk_dev_start(dev, "ublk end", end_steps, on_ended);
}

void ublk_dev_end_if_unused(struct ublk_dev *dev, void (*on_in_use)(struct ublk_dev *dev))
{
	dev->before = dev->state;
	dev->on_in_use = on_in_use;
	ublk_dev_set_state(dev, DEV_DETACHING);
	ublk_dev_end(dev);
}

/* ---- ADD_DEV ---- */

static bool can_zero_copy(const struct ublk_dev *dev)
{
	const struct ublk_devs *devs = dev->devs;
	const uint64_t both = UBLK_ABI_F_ZERO_COPY | UBLK_ABI_F_AUTO_BUF;
	return (devs->features & both) == both && dev->record.flags & UBLKD_DIRECT_IO &&
	       ublk_io_has_room(devs->config.io, dev->record.depth * dev->record.queues, true);
}

/* The least number from `from` on that nothing here is about. Others' devices are the kernel's to
 * know: it answers -EEXIST. */
static uint32_t id_choose(const struct ublk_devs *devs, uint32_t from)
{
	while (ublk_dev_has_id(devs, from) || ublk_ctl_busy(devs->config.ctl, from))
		from++;
	return from;
}

static void on_added(struct ublk_ctl_call *call, int res);

static void add_send(struct ublk_dev *dev, uint32_t from)
{
	uint32_t dev_id = id_choose(dev->devs, from);
	dev->call.command = UBLK_ABI_ADD_DEV;
	dev->call.dev_id = dev->call.info.dev_id = dev_id;
	dev->call.data = 0;
	dev->call.on_end = on_added;
	ublk_ctl_submit(dev->devs->config.ctl, &dev->call);
}

static void on_added(struct ublk_ctl_call *call, int res)
{
	struct ublk_dev *dev = container_of(call, struct ublk_dev, call);
	if (res == -EEXIST) {
		add_send(dev, call->dev_id + 1);
		return;
	}
	if (res >= 0)
		dev->record.dev_id = call->dev_id; /* at once: nobody else is to choose it */
	op_complete(&dev->op, res);
}

static int add_run(struct op *op)
{
	struct ublk_dev *dev = ublk_dev_of(op);
	const struct ublk_devs *devs = dev->devs;
	const uint64_t if_known = UBLK_ABI_F_UPDATE_SIZE | UBLK_ABI_F_NO_PART_SCAN;
	uint64_t flags = UBLK_ABI_F_RECOVERY | UBLK_ABI_F_RECOVERY_REISSUE |
			 UBLK_ABI_F_IOCTL_ENCODE | (devs->features & if_known);
	if (can_zero_copy(dev))
		flags |= UBLK_ABI_F_ZERO_COPY | UBLK_ABI_F_AUTO_BUF;
	dev->call.info = (struct ublk_abi_info){
		.queues = dev->record.queues,
		.depth = dev->record.depth,
		.max_io_bytes = UBLK_IO_BYTES,
		.pid = getpid(),
		.flags = flags,
		.server_flags = ublk_dev_server_flags(devs),
	};
	int pending = op_wait(op);
	add_send(dev, devs->config.first_id);
	return pending;
}

static int add_end(struct op *op, int res)
{
	struct ublk_dev *dev = ublk_dev_of(op);
	if (res < 0)
		return ublk_dev_command_end(op, res);
	const struct ublk_abi_info *info = &dev->call.info;
	dev->kernel = KERNEL_HAS;
	dev->record.queues = info->queues;
	dev->record.depth = info->depth;
	dev->zero_copy = info->flags & UBLK_ABI_F_AUTO_BUF;
	return 0;
}

static int record_job(void *arg)
{
	return ublk_dev_write_state(arg, UBLK_PHASE_MAKING);
}

static int record_run(struct op *op)
{
	ublk_dev_of(op)->recorded = true;
	return ublk_dev_job(op, record_job);
}

/* ---- SET_PARAMS ---- */

static int params_run(struct op *op)
{
	struct ublk_dev *dev = ublk_dev_of(op);
	const struct ublk_record *rec = &dev->record;
	bool no_discard = rec->flags & UBLKD_NO_DISCARD;
	uint8_t shift = (uint8_t)__builtin_ctz(rec->block_size);
	dev->call.params = (struct ublk_abi_params){
		.len = sizeof(struct ublk_abi_params),
		.types = UBLK_ABI_PARAM_BASIC | UBLK_ABI_PARAM_DISCARD,
		.basic =
			{
				.attrs = UBLK_ABI_ATTR_VOLATILE_CACHE | UBLK_ABI_ATTR_FUA |
					 (rec->flags & UBLKD_READ_ONLY ? UBLK_ABI_ATTR_READ_ONLY
								       : 0),
				.logical_shift = shift,
				.physical_shift = shift,
				.io_opt_shift = shift,
				.io_min_shift = shift,
				.max_sectors = UBLK_IO_BYTES / 512,
				.sectors = dev->size_bytes / 512,
			},
		.discard =
			{
				.granularity = dev->blksize,
				.max_sectors = no_discard ? 0 : UINT32_MAX >> 9,
				.max_zeroes_sectors = UINT32_MAX >> 9,
				.max_segments = no_discard ? 0 : 1,
			},
	};
	/* Requests' pages go to the image's file system as they are, which wants sectors. */
	if (dev->zero_copy) {
		dev->call.params.types |= UBLK_ABI_PARAM_DMA_ALIGN;
		dev->call.params.dma.mask = rec->block_size - 1 < 4095 ? 511 : 4095;
	}
	return ublk_dev_command(op, UBLK_ABI_SET_PARAMS, 0);
}

static int start_run(struct op *op)
{
	return ublk_dev_command(op, UBLK_ABI_START_DEV, (uint64_t)getpid());
}

static const struct op_step attach_steps[] = {
	{"features", .done = ublk_dev_features_done, .run = ublk_dev_features_run,
		.end = ublk_dev_features_end},
	{"image", .run = ublk_dev_image_run, .end = ublk_dev_job_end},
	{"add", .run = add_run, .end = add_end},
	{"record", .run = record_run, .end = ublk_dev_job_end},
	{"params", .run = params_run, .end = ublk_dev_command_end},
	{"open", .run = ublk_dev_open_run, .end = ublk_dev_job_end},
	{"serve", .run = ublk_dev_serve_run, .end = ublk_dev_serve_end},
	{"start", .run = start_run, .end = ublk_dev_command_end},
	{"note", .run = ublk_dev_note_run, .end = ublk_dev_job_end},
	{NULL},
};

static void on_attached(struct op *op)
{
	struct ublk_dev *dev = ublk_dev_of(op);
	if (!op_failed(op)) {
		ublk_dev_set_state(dev, DEV_LIVE);
		ublk_dev_wake(dev, &op->err, true);
		return;
	}
	dev->cause = op->err;
	ublk_dev_set_state(dev, DEV_ENDING);
	ublk_dev_end(dev);
}

void ublk_dev_attach(struct ublk_dev *dev)
{
	ublk_dev_start(dev, "ublk attach", attach_steps, on_attached);
}

/* ---- growing ---- */

static int size_job(void *arg)
{
	struct ublk_dev *dev = arg;
	struct stat st;
	if (!(dev->devs->features & UBLK_ABI_F_UPDATE_SIZE))
		return err_set(&dev->job_err, ERR_PRECONDITION,
			"this kernel cannot grow a ublk device in use (Linux 6.16 can): unpublish "
			"and unstage the volume; it has its new size when it is staged again");
	if (fstat(dev->image_fd, &st) < 0)
		return err_sys(&dev->job_err, -errno, "looking at image %s", dev->record.path);
	if ((uint64_t)st.st_size < dev->size_bytes)
		return err_set(&dev->job_err, ERR_DATA_LOSS,
			"image %s is smaller than /dev/ublkb%u", dev->record.path,
			dev->record.dev_id);
	dev->size_bytes = (uint64_t)st.st_size / dev->record.block_size * dev->record.block_size;
	return 0;
}

static int size_run(struct op *op)
{
	return ublk_dev_job(op, size_job);
}

static int update_run(struct op *op)
{
	return ublk_dev_command(op, UBLK_ABI_UPDATE_SIZE, ublk_dev_of(op)->size_bytes / 512);
}

static const struct op_step resize_steps[] = {
	{"size", .run = size_run, .end = ublk_dev_job_end},
	{"update", .run = update_run, .end = ublk_dev_command_end},
	{NULL},
};

static void on_resized(struct op *op)
{
	struct ublk_dev *dev = ublk_dev_of(op);
	ublk_dev_set_state(dev, DEV_LIVE);
	ublk_dev_wake(dev, &op->err, true);
}

void ublk_dev_resize(struct ublk_dev *dev)
{
	ublk_dev_start(dev, "ublk resize", resize_steps, on_resized);
}

/* ---- limits ---- */

static int limits_job(void *arg)
{
	struct ublk_dev *dev = arg;
	const struct io_limits before = dev->record.limits;
	dev->record.limits = dev->limits;
	int r = ublk_dev_write_state(dev, UBLK_PHASE_LIVE);
	if (r < 0)
		dev->record.limits = before;
	return r;
}

static int limits_run(struct op *op)
{
	return ublk_dev_job(op, limits_job);
}

static int throttle_run(struct op *op)
{
	struct ublk_dev *dev = ublk_dev_of(op);
	throttle(dev, &dev->record.limits);
	return 0;
}

/* In the state file first: the next data process is to know what somebody was told. */
static const struct op_step limit_steps[] = {
	{"note", .run = limits_run, .end = ublk_dev_job_end},
	{"throttle", .run = throttle_run},
	{NULL},
};

void ublk_dev_limit(struct ublk_dev *dev)
{
	ublk_dev_start(dev, "ublk limit", limit_steps, on_resized);
}
