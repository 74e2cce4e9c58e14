/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ends a device, whatever is there of it: after a detach, after an attach that failed, and what a
 * dead data process left half made.
 *
 * The happy path: see that nobody has it (a detach only), the state file ("ending"), STOP_DEV, the
 * queues end, close everything, DEL_DEV, remove the file, close the image and with it the lock.
 * Every step is skipped when it holds already. Once the file says "ending" there is no way back: a
 * step that fails is tried again, for ever, and the device says why; those who wait are told. A
 * command that the kernel still has is not given to it again meanwhile (ublk_ctl.h), and after a
 * DEL_DEV that was not answered in time the kernel is asked first whether the device is still ours.
 */
#include "backends/ublk/ublk_dev_priv.h"

#include "base/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>

static bool use_done(struct op *op)
{
	return dev_of(op)->state == DEV_ENDING || dev_of(op)->major == 0;
}

/* Mounts, device mapper and their like hold a device exclusively. */
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
	const struct ublk_dev *dev = dev_of(op);
	return !dev->recorded || dev->record.phase == UBLK_PHASE_ENDING;
}

static int mark_job(void *arg)
{
	struct ublk_dev *dev = arg;
	dev->record.phase = UBLK_PHASE_ENDING;
	int r = ublk_state_write(dev->devs->config.state_dirfd, &dev->record);
	if (r < 0)
		dev->record.phase = UBLK_PHASE_LIVE;
	return r < 0 ? err_sys(&dev->job_err, r, "writing the state file of device %u",
			       dev->record.dev_id)
		     : 0;
}

static int mark_run(struct op *op)
{
	return ublk_dev_job(op, mark_job);
}

static bool stop_done(struct op *op)
{
	return !dev_of(op)->made;
}

static int stop_run(struct op *op)
{
	struct ublk_dev *dev = dev_of(op);
	if (dev->state == DEV_DETACHING)
		ublk_dev_set_state(dev, DEV_ENDING);
	return ublk_dev_command(op, UBLK_ABI_STOP_DEV, 0);
}

static int gone_is_fine(struct op *op, int res)
{
	return res == -ENODEV || res == -ENOENT ? 0 : ublk_dev_command_end(op, res);
}

/* ---- whose the number is ---- */

static bool sure_done(struct op *op)
{
	return !dev_of(op)->unsure;
}

static int sure_run(struct op *op)
{
	dev_of(op)->call.info = (struct ublk_abi_info){0};
	return ublk_dev_command(op, UBLK_ABI_GET_INFO, 0);
}

/* Ours is gone if another's has its number: we give it to no other device of ours before this one
 * is forgotten. */
static int sure_end(struct op *op, int res)
{
	struct ublk_dev *dev = dev_of(op);
	int r = gone_is_fine(op, res);
	if (r < 0)
		return r;
	dev->unsure = false;
	dev->made = res >= 0 && dev->call.info.server_flags == ublk_dev_server_flags(dev->devs);
	return 0;
}

/* ---- queues ---- */

static bool queues_done(struct op *op)
{
	return dev_of(op)->queues_out == 0;
}

static void on_queues_bound(struct ring_timer *timer)
{
	struct ublk_dev *dev = container_of(timer, struct ublk_dev, timer);
	op_complete(&dev->op, -ETIMEDOUT);
}

/* The last queue's end completes the step, or the bound does. */
static int queues_run(struct op *op)
{
	struct ublk_dev *dev = dev_of(op);
	dev->timer = (struct ring_timer){.fn = on_queues_bound};
	ring_timer_arm(dev->devs->config.reactor->ring, &dev->timer, DEV_QUEUES_MS);
	return op_wait(op);
}

static int queues_end(struct op *op, int res)
{
	if (res < 0)
		return op_fail(op, ERR_TIMEOUT,
			"the kernel does not give the requests of device %u back, or its image "
			"hangs; see 'dmesg'",
			dev_of(op)->record.dev_id);
	return 0;
}

static int close_run(struct op *op)
{
	return ublk_dev_job(op, dev_close_job);
}

/* ---- deletion ---- */

static int delete_run(struct op *op)
{
	return ublk_dev_command(op, UBLK_ABI_DEL_ASYNC, 0);
}

static int delete_end(struct op *op, int res)
{
	int r = gone_is_fine(op, res);
	dev_of(op)->made = r < 0;
	dev_of(op)->unsure = res == -ETIMEDOUT;
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
	{"close", .run = close_run, .end = ublk_dev_job_end},
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
	struct ublk_dev *dev = dev_of(op);
	dev->busy = false;
	if (!op_failed(op)) {
		if (dev->state == DEV_DETACHING)
			ublk_dev_set_state(dev, DEV_ENDING);
		ublk_dev_free(dev);
		return;
	}
	dev->why = op->err;
	if (dev->state == DEV_DETACHING) {
		/* Nothing has happened to it yet. */
		ublk_dev_set_state(dev, dev->before);
		ublk_dev_wake(dev, &op->err, true);
		if (dev->state == DEV_RECOVERING)
			ublk_dev_recover(dev);
		return;
	}
	ublk_dev_event(dev, "a device cannot be removed yet", &op->err);
	ublk_dev_wake(dev, &op->err, true);
	ublk_dev_retry(dev, on_retry);
}

void ublk_dev_end_if_unused(struct ublk_dev *dev)
{
	dev->before = dev->state;
	dev->end_asked = false;
	ublk_dev_set_state(dev, DEV_DETACHING);
	ublk_dev_end(dev);
}

void ublk_dev_end(struct ublk_dev *dev)
{
	ublk_dev_start(dev, "ublk end", end_steps, on_ended);
}
