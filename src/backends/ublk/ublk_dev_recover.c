/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Takes over what the data process before this one left: looks through state files and the kernel's
 * devices once, then recovers or removes each.
 *
 * The happy path of a recovery: the kernel says QUIESCED; open the image and lock it, which waits
 * for the last I/O of the dead process; START_USER_RECOVERY, open and serve the queues,
 * END_USER_RECOVERY, note it. The kernel then issues again what was in flight.
 *
 * Whatever fails is tried again until it succeeds: I/O waits meanwhile, and there is nothing better
 * for it. The image may be out of sight (another mount namespace), until a driver brings it.
 */
#include "backends/ublk/ublk_dev_priv.h"

#include "base/fd.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the steps ---- */

static int look_run(struct op *op)
{
	dev_of(op)->verdict = VERDICT_NONE;
	dev_of(op)->call.info = (struct ublk_abi_info){0};
	return ublk_dev_command(op, UBLK_ABI_GET_INFO, 0);
}

static int look_end(struct op *op, int res)
{
	struct ublk_dev *dev = dev_of(op);
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
	dev->made = true;
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
	return dev_of(op)->queues_out != 0;
}

static int image_run(struct op *op)
{
	struct ublk_dev *dev = dev_of(op);
	if (dev->image_fd < 0) {
		dev->image_fd = dev->brought_fd;
		dev->brought_fd = -1;
	}
	return ublk_dev_job(op, dev_image_job);
}

/* A second try finds the lock taken, by us. */
static bool image_done(struct op *op)
{
	return dev_of(op)->char_fd >= 0;
}

static int close_run(struct op *op)
{
	return ublk_dev_job(op, dev_close_job);
}

static int begin_run(struct op *op)
{
	return ublk_dev_command(op, UBLK_ABI_START_RECOVERY, 0);
}

static int finish_run(struct op *op)
{
	dev_of(op)->record.recoveries++;
	return ublk_dev_command(op, UBLK_ABI_END_RECOVERY, (uint64_t)getpid());
}

static const struct op_step recover_steps[] = {
	{"look", .done = served, .run = look_run, .end = look_end},
	{"features", .done = dev_features_done, .run = dev_features_run, .end = dev_features_end},
	{"image", .done = image_done, .run = image_run, .end = ublk_dev_job_end},
	{"close", .done = served, .run = close_run, .end = ublk_dev_job_end},
	{"begin", .done = served, .run = begin_run, .end = ublk_dev_command_end},
	{"open", .done = served, .run = dev_open_run, .end = ublk_dev_job_end},
	{"serve", .done = served, .run = dev_serve_run, .end = dev_serve_end},
	{"finish", .run = finish_run, .end = ublk_dev_command_end},
	{"settle", .run = dev_settle_run, .end = ublk_dev_job_end},
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

static void on_looked(struct op *op);

static void on_look_retry(struct ring_timer *timer)
{
	ublk_dev_start(
		container_of(timer, struct ublk_dev, timer), "ublk look", look_steps, on_looked);
}

/* True when the look has settled that there is nothing to recover. */
static bool settle_look(struct ublk_dev *dev)
{
	if (dev->verdict == VERDICT_NONE)
		return false;
	if (dev->verdict == VERDICT_OTHERS && !dev->recorded) {
		/* Never ours: it leaves the table without being touched. */
		ublk_dev_free(dev);
		return true;
	}
	/* Without a device of ours only the file goes. */
	dev->made = dev->verdict == VERDICT_UNFINISHED;
	ublk_dev_event(dev,
		dev->made ? "removing a device that was not finished"
			  : "removing the state file of a device that is gone",
		NULL);
	ublk_dev_set_state(dev, DEV_ENDING);
	ublk_dev_end(dev);
	return true;
}

static void on_looked(struct op *op)
{
	struct ublk_dev *dev = dev_of(op);
	dev->busy = false;
	if (!settle_look(dev)) {
		dev->why = op->err;
		ublk_dev_retry(dev, on_look_retry);
	}
}

static void on_recovered(struct op *op)
{
	struct ublk_dev *dev = dev_of(op);
	dev->busy = false;
	if (!op_failed(op)) {
		err_clear(&dev->why);
		dev->retry_ms = DEV_RETRY_FIRST_MS;
		ublk_dev_set_state(dev, DEV_LIVE);
		fd_close(&dev->brought_fd);
		ublk_dev_event(dev, "recovered", NULL);
		ublk_dev_wake(dev, &op->err, false);
		if (dev->end_asked)
			ublk_dev_end_if_unused(dev);
		return;
	}
	if (settle_look(dev))
		return;
	if (dev->why.code == ERR_OK || strcmp(dev->why.message, op->err.message) != 0)
		ublk_dev_event(dev, "a device cannot be recovered yet", &op->err);
	dev->why = op->err;
	if (dev->end_asked) {
		ublk_dev_end_if_unused(dev);
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

/* ---- the start ---- */

static void on_record(void *arg, uint32_t dev_id, const struct ublk_record *record)
{
	struct ublk_devs *devs = arg;
	const struct err damaged = {.code = ERR_DATA_LOSS,
		.message = "its state file is damaged, so nobody knows its image; it is left "
			   "alone: end its users, remove the file and start again"};
	struct ublk_dev *dev = ublk_dev_new(devs, DEV_RECOVERING);
	if (dev == NULL)
		return;
	dev->record.dev_id = dev_id;
	dev->recorded = true;
	if (record == NULL) {
		dev->why = damaged;
		ublk_dev_event(dev, "a device cannot be recovered", &damaged);
		return;
	}
	dev->record = *record;
	/* Who asks before it is recovered is to know its mounts, and a detach whether it has any.
	 * A device that is gone has no disk. */
	struct err gone = {0};
	(void)ublk_dev_read_disk(dev, &gone);
}

/* Devices the kernel has; an empty directory, or none, without the module. */
static int find_devices(struct ublk_devs *devs)
{
	_cleanup_dir_ DIR *dir = opendir("/sys/class/ublk-char");
	if (dir == NULL)
		return errno == ENOENT ? 0 : -errno;
	for (;;) {
		errno = 0;
		const struct dirent *entry = readdir(dir);
		if (entry == NULL)
			return -errno;
		unsigned dev_id;
		char rest;
		if (sscanf(entry->d_name, "ublkc%u%c", &dev_id, &rest) != 1 ||
			ublk_dev_has_id(devs, dev_id))
			continue;
		struct ublk_dev *dev = ublk_dev_new(devs, DEV_FOUND);
		if (dev == NULL)
			return -ENOMEM;
		dev->record.dev_id = dev_id;
	}
}

static void on_features(struct ublk_ctl_call *call, int res)
{
	struct ublk_devs *devs = container_of(call, struct ublk_devs, features_call);
	devs->features_asked = false;
	if (res >= 0)
		devs->features = call->features;
}

int ublk_devs_adopt(struct ublk_devs *devs, struct err *err)
{
	struct err no_module = {0};
	if (ublk_ctl_ready(devs->config.ctl, &no_module) == 0) {
		devs->features_call = (struct ublk_ctl_call){
			.command = UBLK_ABI_GET_FEATURES, .on_end = on_features};
		devs->features_asked = true;
		ublk_ctl_submit(devs->config.ctl, &devs->features_call);
	}
	int r = ublk_state_each(devs->config.state_dirfd, on_record, devs);
	if (r < 0)
		return err_sys(err, r, "reading the state files");
	r = find_devices(devs);
	if (r < 0)
		return err_sys(err, r, "looking for ublk devices in /sys/class/ublk-char");
	list_for_each (node, &devs->all) {
		struct ublk_dev *dev = container_of(node, struct ublk_dev, link);
		if (dev->state == DEV_FOUND)
			ublk_dev_start(dev, "ublk look", look_steps, on_looked);
		else if (dev->record.phase != 0)
			ublk_dev_recover(dev);
	}
	return 0;
}
