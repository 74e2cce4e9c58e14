/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Looking for a device: one work job. Happy path: the device that memory knows is still bound to
 * the image, which is one ioctl. Else all devices are looked at. How it can fail: the data
 * process does not answer. A device that cannot say what it is does not count as gone.
 */
#include "node/owner.h"

#include "base/fd.h"
#include "mount/mnt_scan.h"
#include "node/node.h"
#include "node/volume.h"
#include "pool/index.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static bool is_it(const struct node_owner *owner, const struct backend_dev *dev)
{
	if (owner->major != 0)
		return dev->attached && dev->major == owner->major && dev->minor == owner->minor;
	return owner->image_ino != 0 && backend_dev_serves(dev, owner->image_dev, owner->image_ino);
}

struct scan {
	struct node_owner *owner;
	const struct backend *backend;
};

static void scan_each(void *arg, const struct backend_dev *dev)
{
	const struct scan *scan = arg;
	struct node_owner *owner = scan->owner;
	bool tagged = owner->tag[0] != '\0' && strcmp(dev->tag, owner->tag) == 0;
	/* Two may be bound to an image, one of them by somebody's hand: the tag says which. */
	if (is_it(owner, dev) && (!owner->found || owner->dev.going_away || tagged)) {
		owner->found = true;
		owner->dev = *dev;
		owner->dev_backend = scan->backend;
	} else if (tagged && !is_it(owner, dev)) {
		owner->tagged = true;
		owner->tagged_dev = *dev;
		owner->tagged_backend = scan->backend;
	}
}

/* True when there is no need to look further. */
static bool look_first(struct node_owner *owner, const struct backend *backend)
{
	struct backend_dev now;
	if (backend->look == NULL)
		return false;
	int r = backend->look(backend, &owner->was, &now);
	if (r == 0 && is_it(owner, &now)) {
		owner->found = true;
		owner->dev = now;
		owner->dev_backend = backend;
	} else if (r < 0 && r != -ENXIO && r != -EOPNOTSUPP) {
		owner->unclear = true;
		owner->dev = owner->was;
		owner->dev_backend = backend;
	}
	return owner->found || owner->unclear || (owner->major != 0 && r == -ENXIO);
}

static int owner_job(struct op *op)
{
	struct node_owner *owner = container_of(op, struct node_owner, op);
	for (unsigned type = 0; type < BACKEND_TYPES; type++) {
		const struct backend *backend = backend_get(type);
		if (backend == NULL || (owner->backend != NULL && backend != owner->backend))
			continue;
		if (owner->was.attached && look_first(owner, backend))
			return 0;
	}
	for (unsigned type = 0; type < BACKEND_TYPES && !owner->found; type++) {
		struct scan scan = {owner, backend_get(type)};
		if (scan.backend == NULL ||
			(owner->backend != NULL && scan.backend != owner->backend))
			continue;
		int r = scan.backend->scan(scan.backend, scan_each, &scan, &owner->why);
		if (r < 0)
			return r;
	}
	return 0;
}

static int owner_end(struct op *op, int res)
{
	const struct node_owner *owner = container_of(op, struct node_owner, op);
	if (res < 0 && owner->why.code != ERR_OK)
		op->err = owner->why;
	return res;
}

static const struct op_step owner_steps[] = {
	{"scan devices", .call = owner_job, .end = owner_end},
	{NULL},
};

void node_owner_by_number(
	struct node_owner *owner, struct reactor *reactor, uint32_t major, uint32_t minor)
{
	*owner = (struct node_owner){.major = major, .minor = minor};
	owner->was = (struct backend_dev){.attached = true, .major = major, .minor = minor};
	op_init(&owner->op, reactor, "node owner", owner_steps, NULL);
}

void node_owner_of_volume(struct node_owner *owner, struct reactor *reactor,
	const struct pool_object *volume, const char *id)
{
	struct record_id parsed;
	*owner = (struct node_owner){.major = 0};
	if (volume != NULL) {
		const struct node_volume *nv = node_volume_find(volume);
		owner->image_dev = volume->image_dev;
		owner->image_ino = volume->image_ino;
		if (nv != NULL)
			owner->was = nv->dev;
		node_volume_tag(volume, owner->tag);
	} else if (record_id_parse(id, &parsed) == 0) {
		node_tag(parsed.pool, parsed.random, owner->tag);
	}
	op_init(&owner->op, reactor, "node owner", owner_steps, NULL);
}

struct pool_object *node_dev_volume(const struct node *node, const struct backend_dev *dev)
{
	return dev->attached ? pools_find_image(node->pools, dev->image_dev, dev->image_ino) : NULL;
}

bool node_dev_may_be(const struct backend_dev *dev, const char *id)
{
	struct record_id parsed;
	char pool[9], random[9], tag[64];
	if (!node_split_tag(dev->tag, pool, random) || record_id_parse(id, &parsed) < 0)
		return strncmp(dev->tag, "ringvol:", strlen("ringvol:")) == 0;
	node_tag(parsed.pool, parsed.random, tag);
	return strcmp(tag, dev->tag) == 0;
}

/* ---- its mounts ---- */

void node_on(struct mnt_on_req *on, const char *path, const struct backend_dev *dev)
{
	snprintf(on->at.path, sizeof(on->at.path), "%s", path);
	on->dev_major = dev->major;
	on->dev_minor = dev->minor;
}

bool node_info_is_dev(const struct mnt_info *info, const struct backend_dev *dev)
{
	return info->is_mount && dev->attached && info->dev_major == dev->major &&
	       info->dev_minor == dev->minor;
}

/* The paths to compare with, as the kernel's list has them. */
struct others_scan {
	struct node_others *others;
	const char *except[2], *only;
};

static void others_each(void *arg, const struct mnt_entry *entry)
{
	const struct others_scan *scan = arg;
	struct node_others *others = scan->others;
	if (entry->dev_major != others->major || entry->dev_minor != others->minor)
		return;
	if (scan->only != NULL && strcmp(scan->only, entry->path) != 0)
		return;
	for (unsigned i = 0; i < 2; i++)
		if (scan->except[i] != NULL && strcmp(scan->except[i], entry->path) == 0)
			return;
	if (others->count++ == 0)
		snprintf(others->path, sizeof(others->path), "%s", entry->path);
}

static char *listed_name(const char *path, int *res)
{
	char *name = path == NULL ? NULL : mnt_scan_name(path);
	if (name == NULL && path != NULL)
		*res = -ENOMEM;
	return name;
}

static int others_job(struct op *op)
{
	struct node_others *others = container_of(op, struct node_others, op);
	int res = 0;
	_cleanup_free_ char *except = listed_name(others->except[0], &res);
	_cleanup_free_ char *except_too = listed_name(others->except[1], &res);
	_cleanup_free_ char *only = listed_name(others->only, &res);
	struct others_scan scan = {others, {except, except_too}, only};
	return res < 0 ? res : mnt_scan(others_each, &scan);
}

static const struct op_step others_steps[] = {
	{"scan mounts", .call = others_job},
	{NULL},
};

void node_others_init(struct node_others *others, struct reactor *reactor,
	const struct backend_dev *dev, const char *except, const char *except_too)
{
	*others = (struct node_others){
		.major = dev->major,
		.minor = dev->minor,
		.except = {except, except_too},
	};
	op_init(&others->op, reactor, "node others", others_steps, NULL);
}
