/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The table of devices, what a start finds of them, and what requests mean in each state. Every
 * device has at most one operation under way. A request that asks for what that operation does
 * waits for its end; another one is told to ask again.
 *
 * Fails on requests that contradict what is there: an image on two devices, a tag on two images,
 * more devices than agreed.
 */
#include "backends/ublk/ublk_devs.h"

#include "backends/ublk/ublk_dev_life.h"
#include "backends/ublk/ublk_dev_recover.h"
#include "base/fd.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- answers ---- */

static void on_wait_turn(struct ring_req *req, int res, uint32_t flags)
{
	struct ublk_wait *wait = container_of(req, struct ublk_wait, turn);
	(void)res;
	(void)flags;
	/* The device may have gone since. */
	const struct ublk_dev *found = NULL;
	list_for_each (node, &wait->devs->all)
		if (container_of(node, struct ublk_dev, link) == wait->dev)
			found = wait->dev;
	ublk_dev_answer(wait, found);
}

/* Ends a request that needs no waiting, from the loop. */
static void answer(struct ublk_devs *devs, struct ublk_wait *wait, struct ublk_dev *dev)
{
	wait->devs = devs;
	wait->dev = dev;
	wait->turn = (struct ring_req){.fn = on_wait_turn};
	ring_post(devs->config.reactor->ring, &wait->turn, 0);
}

static void refuse_busy(struct ublk_devs *devs, struct ublk_wait *wait, const struct ublk_dev *dev)
{
	static const char *const doing[DEV_STATES] = {
		[DEV_FOUND] = "looked at",
		[DEV_ATTACHING] = "attached",
		[DEV_LIVE] = "used",
		[DEV_RESIZING] = "resized or limited",
		[DEV_DETACHING] = "detached",
		[DEV_RECOVERING] = "recovered",
		[DEV_ENDING] = "removed",
	};
	bool told = dev->why.code != ERR_OK;
	err_set(&wait->err, ERR_UNAVAILABLE, "/dev/ublkb%u is just being %s%s%s; ask again later",
		dev->record.dev_id, doing[dev->state], told ? ": " : "",
		told ? dev->why.message : "");
	answer(devs, wait, NULL);
}

/* ---- requests ---- */

static bool same_image(const struct ublk_dev *dev, const struct ublkd_request *request)
{
	return dev->record.image_dev == request->image_dev &&
	       dev->record.image_ino == request->image_ino;
}

static bool same_tag(const struct ublk_dev *dev, const struct ublkd_request *request)
{
	return strcmp(dev->record.tag, request->tag) == 0;
}

static int check_attach(
	const struct ublk_devs *devs, const struct ublkd_request *r, int image_fd, struct err *err)
{
	if (strncmp(r->tag, "ringvol:", 8) != 0)
		return err_set(err, ERR_INVALID, "the tag \"%s\" is not ringvol's", r->tag);
	if (r->block_size != 512 && r->block_size != 4096)
		return err_set(
			err, ERR_INVALID, "block size %u is neither 512 nor 4096", r->block_size);
	if (r->queues > UBLKD_QUEUES_MAX || r->depth > UBLKD_DEPTH_MAX ||
		(r->depth != 0 && r->depth < UBLKD_DEPTH_MIN))
		return err_set(err, ERR_RANGE,
			"%u queues of depth %u: at most %d, of a depth from %d to %d", r->queues,
			r->depth, UBLKD_QUEUES_MAX, UBLKD_DEPTH_MIN, UBLKD_DEPTH_MAX);
	if (r->path[0] != '\0' && r->path[0] != '/')
		return err_set(err, ERR_INVALID, "the image's path %s is not absolute", r->path);
	if (image_fd < 0)
		return err_set(err, ERR_INVALID, "no descriptor of the image came along");
	if (devs->count >= devs->config.devices_max)
		return err_set(err, ERR_NO_ROOM,
			"all %u ublk devices are in use; detach some, or use loop devices",
			devs->config.devices_max);
	return 0;
}

static void attach_new(
	struct ublk_devs *devs, const struct ublkd_request *r, int image_fd, struct ublk_wait *wait)
{
	struct ublk_dev *dev = NULL;
	if (check_attach(devs, r, image_fd, &wait->err) == 0) {
		dev = ublk_dev_new(devs, DEV_ATTACHING);
		if (dev == NULL)
			err_sys(&wait->err, -ENOMEM, "attaching an image");
	}
	if (dev == NULL) {
		fd_close(&image_fd);
		answer(devs, wait, NULL);
		return;
	}
	dev->image_fd = image_fd;
	dev->record.flags = r->flags & (UBLKD_READ_ONLY | UBLKD_NO_DISCARD);
	dev->record.block_size = r->block_size;
	dev->record.queues = r->queues != 0 ? r->queues : UBLKD_QUEUES_DEFAULT;
	dev->record.depth = r->depth != 0 ? r->depth : UBLKD_DEPTH_DEFAULT;
	dev->record.image_dev = r->image_dev;
	dev->record.image_ino = r->image_ino;
	dev->record.limits = r->limits;
	snprintf(dev->record.tag, sizeof(dev->record.tag), "%s", r->tag);
	snprintf(dev->record.path, sizeof(dev->record.path), "%s", r->path);
	list_push(&dev->waits, &wait->link);
	ublk_dev_attach(dev);
}

/* An image that is on a device already. */
static void attach_old(
	struct ublk_dev *dev, const struct ublkd_request *r, int image_fd, struct ublk_wait *wait)
{
	struct ublk_devs *devs = dev->devs;
	if (!same_image(dev, r) || !same_tag(dev, r)) {
		err_set(&wait->err, ERR_PRECONDITION,
			"the image is on /dev/ublkb%u with the tag \"%s\", or its tag is on another "
			"image; detach that device first",
			dev->record.dev_id, dev->record.tag);
		answer(devs, wait, NULL);
	} else if (dev->state == DEV_LIVE || dev->state == DEV_RESIZING) {
		answer(devs, wait, dev);
	} else if (dev->state == DEV_ATTACHING) {
		list_push(&dev->waits, &wait->link);
	} else if (dev->state == DEV_RECOVERING) {
		/* A descriptor is as good as a path, and may be all there is. */
		fd_close(&dev->brought_fd);
		dev->brought_fd = image_fd;
		image_fd = -1;
		list_push(&dev->waits, &wait->link);
		if (!ublk_dev_busy(dev))
			ublk_dev_recover(dev);
	} else {
		refuse_busy(devs, wait, dev);
	}
	fd_close(&image_fd);
}

void ublk_devs_attach(struct ublk_devs *devs, const struct ublkd_request *request, int image_fd,
	struct ublk_wait *wait)
{
	err_clear(&wait->err);
	wait->ends = false;
	list_for_each (node, &devs->all) {
		struct ublk_dev *dev = container_of(node, struct ublk_dev, link);
		if (!same_image(dev, request) && !same_tag(dev, request))
			continue;
		attach_old(dev, request, image_fd, wait);
		return;
	}
	attach_new(devs, request, image_fd, wait);
}

/* NULL when the device is not what the request names. */
static struct ublk_dev *dev_find(struct ublk_devs *devs, const struct ublkd_request *request)
{
	list_for_each (node, &devs->all) {
		struct ublk_dev *dev = container_of(node, struct ublk_dev, link);
		if (dev->record.dev_id == request->dev_id && same_image(dev, request) &&
			same_tag(dev, request))
			return dev;
	}
	return NULL;
}

void ublk_devs_detach(
	struct ublk_devs *devs, const struct ublkd_request *request, struct ublk_wait *wait)
{
	err_clear(&wait->err);
	struct ublk_dev *dev = dev_find(devs, request);
	bool joins = dev != NULL && (dev->state == DEV_DETACHING || dev->state == DEV_ENDING ||
					    (dev->state == DEV_RECOVERING && ublk_dev_busy(dev)));
	if (dev == NULL) {
		answer(devs, wait, NULL);
	} else if (joins || (!ublk_dev_busy(dev) &&
				    (dev->state == DEV_LIVE || dev->state == DEV_RECOVERING))) {
		list_push(&dev->waits, &wait->link);
		wait->ends = true;
		if (!joins)
			ublk_dev_end_if_unused(
				dev, dev->state == DEV_RECOVERING ? ublk_dev_recover : NULL);
		else if (!ublk_dev_busy(dev))
			ublk_dev_end(dev);
	} else {
		refuse_busy(devs, wait, dev);
	}
}

/* What changes a live device; nothing else may be under way. */
static void change(struct ublk_devs *devs, const struct ublkd_request *request,
	struct ublk_wait *wait, void (*start)(struct ublk_dev *dev))
{
	err_clear(&wait->err);
	wait->ends = false;
	struct ublk_dev *dev = dev_find(devs, request);
	if (dev == NULL) {
		err_set(&wait->err, ERR_NOT_FOUND, "/dev/ublkb%u is not the volume's any more",
			request->dev_id);
		answer(devs, wait, NULL);
	} else if (dev->state != DEV_LIVE || ublk_dev_busy(dev)) {
		refuse_busy(devs, wait, dev);
	} else {
		list_push(&dev->waits, &wait->link);
		ublk_dev_set_state(dev, DEV_RESIZING);
		dev->limits = request->limits;
		start(dev);
	}
}

void ublk_devs_resize(
	struct ublk_devs *devs, const struct ublkd_request *request, struct ublk_wait *wait)
{
	change(devs, request, wait, ublk_dev_resize);
}

bool ublk_devs_limit(
	struct ublk_devs *devs, const struct ublkd_request *request, struct ublk_wait *wait)
{
	struct ublk_dev *dev = dev_find(devs, request);
	bool same = dev != NULL && io_limits_equal(&dev->record.limits, &request->limits);
	if (same && dev->state == DEV_LIVE && !ublk_dev_busy(dev)) {
		err_clear(&wait->err);
		wait->ends = false;
		answer(devs, wait, dev);
		return true;
	}
	change(devs, request, wait, ublk_dev_limit);
	return false;
}

const struct ublk_dev *ublk_devs_next(const struct ublk_devs *devs, uint32_t dev_id)
{
	const struct ublk_dev *best = NULL;
	list_for_each (node, &devs->all) {
		const struct ublk_dev *dev = container_of(node, struct ublk_dev, link);
		/* Without a tag it is not known to be ours; UINT32_MAX has no device yet. */
		if (dev->record.tag[0] == '\0' || dev->record.dev_id == UINT32_MAX ||
			dev->record.dev_id < dev_id)
			continue;
		if (best == NULL || dev->record.dev_id < best->record.dev_id)
			best = dev;
	}
	return best;
}

void ublk_devs_describe(const struct ublk_dev *dev, struct ublkd_device *ret)
{
	static const uint32_t states[DEV_STATES] = {
		[DEV_FOUND] = UBLKD_DEV_RECOVERING,
		[DEV_ATTACHING] = UBLKD_DEV_ATTACHING,
		[DEV_LIVE] = UBLKD_DEV_LIVE,
		[DEV_RESIZING] = UBLKD_DEV_LIVE,
		[DEV_DETACHING] = UBLKD_DEV_DETACHING,
		[DEV_RECOVERING] = UBLKD_DEV_RECOVERING,
		[DEV_ENDING] = UBLKD_DEV_DETACHING,
	};
	const struct ublk_record *rec = &dev->record;
	*ret = (struct ublkd_device){
		.state = states[dev->state],
		.dev_id = rec->dev_id,
		.major = dev->major,
		.minor = dev->minor,
		.image_dev = rec->image_dev,
		.image_ino = rec->image_ino,
		.size_bytes = dev->size_bytes,
		.block_size = rec->block_size,
		.flags = rec->flags | (dev->zero_copy ? UBLKD_ZERO_COPY : 0),
		.queues = rec->queues,
		.depth = rec->depth,
		.recoveries = rec->recoveries,
		.limits = rec->limits,
	};
	if (dev->state == DEV_RECOVERING && dev->why.code == ERR_NOT_FOUND)
		ret->state = UBLKD_DEV_WAITING;
	snprintf(ret->node, sizeof(ret->node), "/dev/ublkb%u", rec->dev_id);
	memcpy(ret->tag, rec->tag, sizeof(ret->tag));
	if (ret->state != UBLKD_DEV_LIVE)
		memcpy(ret->why, dev->why.message, sizeof(ret->why));
	for (unsigned i = 0; i < UBLKD_QUEUES_MAX && dev->queue[i] != NULL; i++) {
		ublk_queue_count(dev->queue[i], &ret->counters);
		ublk_queue_count_throttled(dev->queue[i], &ret->throttled);
	}
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
	int r;
	const struct dirent *entry;
	while ((entry = fd_next_entry(dir, &r)) != NULL) {
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
	return r;
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
			ublk_dev_look(dev);
		else if (dev->record.phase != 0)
			ublk_dev_recover(dev);
	}
	return 0;
}

/* ---- opening and closing ---- */

int ublk_devs_open(struct ublk_devs **ret, const struct ublk_devs_config *config)
{
	struct ublk_devs *devs = calloc(1, sizeof(*devs));
	if (devs == NULL)
		return -ENOMEM;
	devs->config = *config;
	list_init(&devs->all);
	int r = ublk_state_instance(config->state_dirfd, &devs->instance);
	if (r < 0) {
		free(devs);
		return r;
	}
	*ret = devs;
	return 0;
}

bool ublk_devs_idle(const struct ublk_devs *devs)
{
	list_for_each (node, &devs->all)
		if (ublk_dev_busy(container_of(node, struct ublk_dev, link)))
			return false;
	return true;
}

unsigned ublk_devs_count(const struct ublk_devs *devs)
{
	return devs->count;
}

uint64_t ublk_devs_features(const struct ublk_devs *devs)
{
	return devs->features;
}

void ublk_devs_close(struct ublk_devs *devs)
{
	while (devs != NULL && devs->features_asked)
		if (ring_turn(devs->config.reactor->ring, true) < 0)
			return;
	if (devs != NULL)
		free(devs->lanes);
	free(devs);
}
