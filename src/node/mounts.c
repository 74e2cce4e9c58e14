/* SPDX-License-Identifier: Apache-2.0 */
/* Mounts of a device: what a helper's answer says of one, and where the kernel lists them. */
#include "node/mounts.h"

#include "base/fd.h"
#include "mount/mnt_scan.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

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

/* ---- where else is it mounted? ---- */

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

static int others_job(void *arg)
{
	struct node_others *others = arg;
	int res = 0;
	_cleanup_free_ char *except = listed_name(others->except[0], &res);
	_cleanup_free_ char *except_too = listed_name(others->except[1], &res);
	_cleanup_free_ char *only = listed_name(others->only, &res);
	struct others_scan scan = {others, {except, except_too}, only};
	return res < 0 ? res : mnt_scan(others_each, &scan);
}

static int others_run(struct op *op)
{
	return op_work(op, others_job, container_of(op, struct node_others, op));
}

static const struct op_step others_steps[] = {
	{"scan mounts", .run = others_run},
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
