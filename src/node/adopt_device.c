/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Owns nothing beyond an operation: each of these is a part of a scan (adopt_part.h) and is freed
 * at its end. How they can fail: the log tells it, and the device stays as it is. One that stays
 * suspended lets the scan fail, so that another follows.
 */
#include "node/adopt_device.h"

#include "base/log.h"
#include "node/adopt_marks.h"
#include "node/limits.h"
#include "node/node.h"
#include "node/volume.h"
#include "pool/index.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* An operation of its own, on a device found. */
struct on_device {
	struct op op;
	struct adopt *adopt;
	int (*call)(const struct backend *backend, struct op *op, struct backend_req *req);
	struct backend_req req;
	struct node_lock lock; /* of a resume: a detach meanwhile would be undone by it */
	char image[RECORD_KEY_MAX], id[RECORD_ID_MAX];
};

#define on_device_of(op_ptr) container_of(op_ptr, struct on_device, op)

static int device_run(struct op *op)
{
	struct on_device *d = on_device_of(op);
	return d->call(d->adopt->backend, op, &d->req);
}

static int device_end(struct op *op, int res)
{
	return backend_end(op, &on_device_of(op)->req, res);
}

/* ---- clearing devices whose volume is gone ---- */

static const struct op_step clear_steps[] = {
	{"detach", .run = device_run, .end = device_end},
	{NULL},
};

static void clear_finished(struct op *op)
{
	struct on_device *d = on_device_of(op);
	log_event(LOG_LEVEL_INFO, "device of a deleted volume cleared",
		log_fields({"device", d->req.dev.path}, {"tag", d->req.tag},
			{"error", op_failed(op) ? op->err.message : NULL}));
	adopt_part_over(d->adopt);
	free(d);
}

void adopt_clear_start(struct adopt *a, const struct pool *pool, const struct backend_dev *found)
{
	struct on_device *d = adopt_part_new(a, sizeof(*d));
	if (d == NULL)
		return;
	d->adopt = a;
	d->call = a->backend->detach;
	d->req.dirfd = -1;
	d->req.dev = *found;
	snprintf(d->req.tag, sizeof(d->req.tag), "%.63s", found->tag);
	a->scan.cleared++;
	adopt_part_start(a, &d->op, pool, "clear device", clear_steps, clear_finished);
}

/* ---- bringing the image to the data process that serves the device ---- */

static const struct op_step resume_steps[] = {
	{"attach", .run = device_run, .end = device_end},
	{NULL},
};

static void resume_finished(struct op *op)
{
	struct on_device *d = on_device_of(op);
	struct node *node = d->adopt->node;
	struct node_volume *nv = node_volume_by_id(node, d->id);
	if (op_failed(op))
		log_event(LOG_LEVEL_WARN, "a device in use waits for its image",
			log_fields({"volume", d->id}, {"error", op->err.message}));
	else if (nv != NULL) {
		node_volume_set_dev(node, nv, &d->req.dev);
		if (node_limits_matter(nv))
			node_limits_follow(node, nv);
	}
	node_lock_release(&node->locks, &d->lock);
	adopt_part_over(d->adopt);
	free(d);
}

void adopt_resume_start(
	struct adopt *a, const struct pool_object *volume, const struct backend_dev *found)
{
	struct on_device *d = adopt_part_new(a, sizeof(*d));
	if (d == NULL)
		return;
	d->adopt = a;
	d->call = a->backend->attach;
	node_volume_request(volume, &d->req);
	if (d->req.encrypted && !found->crypt) /* only others use it, who open it themselves */
		node_request_stored(&d->req);
	memcpy(d->image, volume->key, sizeof(d->image)); /* the volume may go meanwhile */
	d->req.image = d->image;
	d->req.read_only = found->read_only;
	pool_object_id(volume, d->id);
	adopt_part_share(a, &d->lock, volume->key, "its device is being taken over");
	adopt_part_start(a, &d->op, volume->pool, "resume device", resume_steps, resume_finished);
}

/* ---- letting go on what was left suspended ---- */

static int wake_call(struct op *op)
{
	struct on_device *d = on_device_of(op);
	return d->adopt->backend->wake(&d->req.dev, &d->req.err);
}

static const struct op_step wake_steps[] = {
	{"wake", .call = wake_call, .end = device_end},
	{NULL},
};

static void wake_finished(struct op *op)
{
	struct on_device *d = on_device_of(op);
	struct node_volume *nv = node_volume_by_id(d->adopt->node, d->id);
	if (op_failed(op)) {
		log_event(LOG_LEVEL_WARN, "a device in use that was left suspended stays so",
			log_fields({"device", d->req.dev.path}, {"tag", d->req.dev.tag},
				{"error", op->err.message}));
		d->adopt->res = -EAGAIN; /* by another scan */
	} else if (nv != NULL && !nv->marks_read) {
		adopt_marks_start(d->adopt, nv->volume);
	}
	if (d->id[0] != '\0')
		node_lock_release(&d->adopt->node->locks, &d->lock);
	adopt_part_over(d->adopt);
	free(d);
}

/* volume NULL: nobody knows it, so that no operation has suspended it. */
void adopt_wake_start(struct adopt *a, const struct pool *pool, const struct pool_object *volume,
	const struct backend_dev *found)
{
	struct on_device *d = adopt_part_new(a, sizeof(*d));
	if (d == NULL)
		return;
	d->adopt = a;
	d->req.dev = *found;
	if (volume != NULL) {
		pool_object_id(volume, d->id);
		adopt_part_share(a, &d->lock, volume->key, "its device is being taken over");
	}
	adopt_part_start(a, &d->op, pool, "wake device", wake_steps, wake_finished);
}
