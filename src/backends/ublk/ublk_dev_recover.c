/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Takes over a device that the data process before this one left: asks the kernel what it is, then
 * recovers or removes it.
 *
 * The happy path of a recovery: the kernel says QUIESCED; open the image and lock it, which waits
 * for the last I/O of the dead process; START_USER_RECOVERY, open and serve the queues,
 * END_USER_RECOVERY, the state file. The kernel then issues again what was in flight.
 *
 * Whatever fails is tried again until it succeeds: I/O waits meanwhile, and there is nothing better
 * for it. The image may be out of sight (another mount namespace), until a driver brings it.
 */
#include "backends/ublk/ublk_dev_recover.h"

#include "backends/ublk/ublk_dev_life.h"
#include "base/fd.h"

#include <errno.h>
#include <string.h>

/* ---- the steps ---- */

static int look_run(struct op *op)
{
	ublk_dev_of(op)->verdict = VERDICT_NONE;
	ublk_dev_of(op)->call.info = (struct ublk_abi_info){0};
	return ublk_dev_command(op, UBLK_ABI_GET_INFO, 0);
}

static int look_end(struct op *op, int res)
{
	struct ublk_dev *dev = ublk_dev_of(op);
	const struct ublk_abi_info *info = &dev->call.info;
	struct err no_module = {0};
	dev->verdict = VERDICT_NONE;
	/* Without the module there is no device at all. */
	if (res < 0 && ublk_ctl_ready(dev->devs->config.ctl, &no_module) < 0 &&
		no_module.code == ERR_PRECONDITION)
		res = -ENODEV;
	if (res == -ENODEV || res == -ENOENT)
		dev->verdict = VERDICT_GONE;
	else if (res < 0)
		return ublk_dev_command_end(op, res);
	else if (info->server_flags != ublk_dev_server_flags(dev->devs))
		dev->verdict = VERDICT_OTHERS;
	else if (dev->record.phase != UBLK_PHASE_LIVE || info->state == UBLK_ABI_DEAD)
		dev->verdict = VERDICT_UNFINISHED;
	if (dev->verdict != VERDICT_NONE)
		return op_fail(
			op, ERR_NOT_FOUND, "device %u has nothing to recover", dev->record.dev_id);
	dev->kernel = KERNEL_HAS;
	if (info->state != UBLK_ABI_QUIESCED)
		return op_fail(op, ERR_UNAVAILABLE,
			"the data process before this one (pid %d) is still ending", info->pid);
	dev->record.queues = info->queues;
	dev->record.depth = info->depth;
	dev->zero_copy = info->flags & UBLK_ABI_F_AUTO_BUF;
	return 0;
}

static bool served(struct op *op)
{
	return ublk_dev_of(op)->queues_out != 0;
}

static int image_run(struct op *op)
{
	struct ublk_dev *dev = ublk_dev_of(op);
	if (dev->image_fd < 0) {
		dev->image_fd = dev->brought_fd;
		dev->brought_fd = -1;
	}
	return ublk_dev_image_run(op);
}

/* A second try finds the lock taken, by us. */
static bool image_done(struct op *op)
{
	return ublk_dev_of(op)->char_fd >= 0;
}

static int begin_run(struct op *op)
{
	return ublk_dev_command(op, UBLK_ABI_START_RECOVERY, 0);
}

static int finish_run(struct op *op)
{
	ublk_dev_of(op)->record.recoveries++;
	return ublk_dev_command(op, UBLK_ABI_END_RECOVERY, (uint64_t)getpid());
}

static const struct op_step recover_steps[] = {
	{"look", .done = served, .run = look_run, .end = look_end},
	{"features", .done = ublk_dev_features_done, .run = ublk_dev_features_run,
		.end = ublk_dev_features_end},
	{"image", .done = image_done, .run = image_run, .end = ublk_dev_job_end},
	{"close", .done = served, .run = ublk_dev_close_run, .end = ublk_dev_job_end},
	{"begin", .done = served, .run = begin_run, .end = ublk_dev_command_end},
	{"open", .done = served, .run = ublk_dev_open_run, .end = ublk_dev_job_end},
	{"serve", .done = served, .run = ublk_dev_serve_run, .end = ublk_dev_serve_end},
	{"finish", .run = finish_run, .end = ublk_dev_command_end},
	{"note", .run = ublk_dev_note_run, .end = ublk_dev_job_end},
	{NULL},
};

static const struct op_step look_steps[] = {
	{"look", .run = look_run, .end = look_end},
	{NULL},
};

/* ---- what comes after ---- */

static void on_retry(struct ring_timer *timer)
{
	ublk_dev_recover(container_of(timer, struct ublk_dev, timer));
}

static void on_look_retry(struct ring_timer *timer)
{
	ublk_dev_look(container_of(timer, struct ublk_dev, timer));
}

/* True when there is nothing to recover: the device is on its way out. */
static bool let_go(struct ublk_dev *dev)
{
	if (dev->verdict == VERDICT_NONE)
		return false;
	if (dev->verdict == VERDICT_OTHERS && !dev->recorded) {
		/* Never ours: it leaves the table without being touched. */
		ublk_dev_free(dev);
		return true;
	}
	/* Without a device of ours only the file goes. */
	bool unfinished = dev->verdict == VERDICT_UNFINISHED;
	dev->kernel = unfinished ? KERNEL_HAS : KERNEL_HAS_NOT;
	ublk_dev_event(dev,
		unfinished ? "removing a device that was not finished"
			   : "removing the state file of a device that is gone",
		NULL);
	ublk_dev_set_state(dev, DEV_ENDING);
	ublk_dev_end(dev);
	return true;
}

static void on_looked(struct op *op)
{
	struct ublk_dev *dev = ublk_dev_of(op);
	if (!let_go(dev)) {
		dev->why = op->err;
		ublk_dev_retry(dev, on_look_retry);
	}
}

static void on_recovered(struct op *op)
{
	struct ublk_dev *dev = ublk_dev_of(op);
	if (!op_failed(op)) {
		err_clear(&dev->why);
		dev->retry_ms = UBLK_DEV_RETRY_FIRST_MS;
		ublk_dev_set_state(dev, DEV_LIVE);
		fd_close(&dev->brought_fd);
		ublk_dev_event(dev, "recovered", NULL);
		ublk_dev_wake(dev, &op->err, false);
		if (ublk_dev_end_is_wanted(dev)) /* in use: it stays live */
			ublk_dev_end_if_unused(dev, NULL);
		return;
	}
	if (let_go(dev))
		return;
	if (dev->why.code == ERR_OK || strcmp(dev->why.message, op->err.message) != 0)
		ublk_dev_event(dev, "a device cannot be recovered yet", &op->err);
	dev->why = op->err;
	if (ublk_dev_end_is_wanted(dev)) {
		ublk_dev_end_if_unused(dev, ublk_dev_recover);
	} else if (dev->brought_fd >= 0 && dev->image_fd < 0) {
		/* It came while this try was on its way without it. */
		ublk_dev_recover(dev);
	} else {
		ublk_dev_wake(dev, &op->err, false);
		ublk_dev_retry(dev, on_retry);
	}
}

void ublk_dev_recover(struct ublk_dev *dev)
{
	ublk_dev_start(dev, "ublk recover", recover_steps, on_recovered);
}

void ublk_dev_look(struct ublk_dev *dev)
{
	ublk_dev_start(dev, "ublk look", look_steps, on_looked);
}
