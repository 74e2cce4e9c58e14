/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes a device, and grows one.
 *
 * The happy path: lock the image, ADD_DEV, the state file ("making"), SET_PARAMS, open and serve
 * the queues, START_DEV, the state file ("live"). Whatever fails, the end of the device
 * (ublk_dev_end.c) clears away what is there, and only then is the failure answered.
 */
#include "backends/ublk/ublk_dev_priv.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int image_run(struct op *op)
{
	return ublk_dev_job(op, dev_image_job);
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
	struct ublk_dev *dev = dev_of(op);
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
	struct ublk_dev *dev = dev_of(op);
	if (res < 0)
		return ublk_dev_command_end(op, res);
	const struct ublk_abi_info *info = &dev->call.info;
	dev->made = true;
	dev->record.queues = info->queues;
	dev->record.depth = info->depth;
	dev->zero_copy = info->flags & UBLK_ABI_F_AUTO_BUF;
	return 0;
}

static int record_job(void *arg)
{
	struct ublk_dev *dev = arg;
	dev->record.phase = UBLK_PHASE_MAKING;
	int r = ublk_state_write(dev->devs->config.state_dirfd, &dev->record);
	return r < 0 ? err_sys(&dev->job_err, r, "writing a state file") : 0;
}

static int record_run(struct op *op)
{
	dev_of(op)->recorded = true;
	return ublk_dev_job(op, record_job);
}

/* ---- SET_PARAMS ---- */

static int params_run(struct op *op)
{
	struct ublk_dev *dev = dev_of(op);
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
	{"features", .done = dev_features_done, .run = dev_features_run, .end = dev_features_end},
	{"image", .run = image_run, .end = ublk_dev_job_end},
	{"add", .run = add_run, .end = add_end},
	{"record", .run = record_run, .end = ublk_dev_job_end},
	{"params", .run = params_run, .end = ublk_dev_command_end},
	{"open", .run = dev_open_run, .end = ublk_dev_job_end},
	{"serve", .run = dev_serve_run, .end = dev_serve_end},
	{"start", .run = start_run, .end = ublk_dev_command_end},
	{"settle", .run = dev_settle_run, .end = ublk_dev_job_end},
	{NULL},
};

static void on_attached(struct op *op)
{
	struct ublk_dev *dev = dev_of(op);
	dev->busy = false;
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
	return ublk_dev_command(op, UBLK_ABI_UPDATE_SIZE, dev_of(op)->size_bytes / 512);
}

static const struct op_step resize_steps[] = {
	{"size", .run = size_run, .end = ublk_dev_job_end},
	{"update", .run = update_run, .end = ublk_dev_command_end},
	{NULL},
};

static void on_resized(struct op *op)
{
	struct ublk_dev *dev = dev_of(op);
	dev->busy = false;
	ublk_dev_set_state(dev, DEV_LIVE);
	ublk_dev_wake(dev, &op->err, true);
}

void ublk_dev_resize(struct ublk_dev *dev)
{
	ublk_dev_start(dev, "ublk resize", resize_steps, on_resized);
}
