/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whose is what a release has found: the mount at its path, and the device of its volume. The
 * kernel is asked, as a device may have been freed behind our back; memory is believed where the
 * kernel cannot say. Owns nothing.
 *
 * How it can fail: the device is another volume's, or nobody's and the volume is known; it does not
 * say what it is.
 */
#include "csi/release.h"

#include "backends/loop/lodev.h"
#include "blockio/blkdev.h"
#include "pool/index.h"

#include <errno.h>
#include <string.h>

/* ---- whose is the mount at the path? ---- */

bool release_owner_done(struct op *op)
{
	const struct release *r = release_of(op);
	return !r->n.info.is_mount || r->at == AT_OURS;
}

int release_owner_run(struct op *op)
{
	struct release *r = release_of(op);
	const struct node_volume *node = release_state(r);
	node_owner_by_number(&r->owner, op->reactor, r->n.info.dev_major, r->n.info.dev_minor);
	if (node != NULL && node_info_is_dev(&r->n.info, &node->dev))
		r->owner.was = node->dev;
	return op_child(op, &r->owner.op);
}

/* Memory says that we mounted it there, of a device that had this number. */
static bool is_remembered(struct release *r)
{
	const struct node_mount *mount = node_volume_mount_at(release_state(r), r->path);
	return mount != NULL && mount->major == r->n.info.dev_major &&
	       mount->minor == r->n.info.dev_minor;
}

/* A node at a block volume's path that leads to nothing: the device was freed, before this run of
 * the driver perhaps. */
static bool is_dead_node(const struct release *r)
{
	struct blkdev gone;
	return r->n.info.is_block && !r->owner.found && r->n.volume != NULL &&
	       r->n.volume->rec->fs == FSIMG_NONE &&
	       (r->n.info.dev_major == LODEV_MAJOR ||
		       blkdev_look(r->n.info.dev_major, r->n.info.dev_minor, &gone) == -ENOENT);
}

static int refuse_owned(struct op *op, const struct pool_object *whose)
{
	struct release *r = release_of(op);
	return op_fail(op, ERR_PRECONDITION,
		"%s: what is mounted at %s (device %u:%u) is volume %s's, not volume %s's; it is not touched, call with the id of that volume if it should go",
		r->field, r->path, r->n.info.dev_major, r->n.info.dev_minor,
		whose->rec != NULL ? whose->rec->name : whose->key, r->n.task.id);
}

static void take(struct release *r, const struct backend_dev *dev, const struct backend *backend)
{
	r->mine = *dev;
	r->n.backend = backend;
}

int release_owner_end(struct op *op, int res)
{
	struct release *r = release_of(op);
	const struct node_owner *owner = &r->owner;
	if (res < 0)
		return res;
	const struct pool_object *whose =
		owner->found ? node_dev_volume(r->n.task.csi->node, &owner->dev) : NULL;
	bool its = whose != NULL && pool_object_has_id(whose, r->n.task.id);
	bool nobodys = owner->found && whose == NULL && node_dev_may_be(&owner->dev, r->n.task.id);
	r->at = AT_OURS;
	if (its || (nobodys && !is_remembered(r))) {
		take(r, &owner->dev, owner->dev_backend);
		return 0;
	}
	if (owner->unclear && is_remembered(r)) { /* a detach will ask it again */
		take(r, &release_state(r)->dev, owner->dev_backend);
		return 0;
	}
	if (owner->unclear)
		return op_fail(op, ERR_UNAVAILABLE,
			"%s: the device that is mounted at %s (%u:%u) does not say what it is bound to; look for errors of its disk in the kernel log",
			r->field, r->path, r->n.info.dev_major, r->n.info.dev_minor);
	r->at = AT_LEFT;
	if (is_remembered(r) || is_dead_node(r))
		return 0;
	r->at = AT_STRANGE;
	if (whose != NULL)
		return refuse_owned(op, whose);
	/* Of a volume that nobody knows it is not. */
	if (r->n.volume == NULL)
		return 0;
	return op_fail(op, ERR_PRECONDITION,
		"%s: what is mounted at %s (device %u:%u) is not volume %s; it is not touched, unmount it by hand if it should go",
		r->field, r->path, r->n.info.dev_major, r->n.info.dev_minor, r->n.task.id);
}

/* ---- unstage: where is the volume's device? ---- */

bool release_device_done(struct op *op)
{
	struct release *r = release_of(op);
	struct record_id id;
	return !r->detaches || r->mine.attached || r->at == AT_STRANGE ||
	       (r->n.volume != NULL ? r->n.backend == NULL
				    : record_id_parse(r->n.task.id, &id) < 0);
}

int release_device_run(struct op *op)
{
	struct release *r = release_of(op);
	node_owner_of_volume(&r->owner, op->reactor, r->n.volume, r->n.task.id);
	r->owner.backend = r->n.backend;
	return op_child(op, &r->owner.op);
}

int release_device_end(struct op *op, int res)
{
	struct release *r = release_of(op);
	const struct node_owner *owner = &r->owner;
	if (res < 0)
		return res;
	/* One that goes away waits for users elsewhere, see detach_end(). */
	if ((owner->found && !owner->dev.going_away) || owner->unclear)
		take(r, &owner->dev, owner->dev_backend);
	else if (owner->tagged && !owner->tagged_dev.going_away) {
		/* While the pool is away its volume is known by its image alone. */
		const struct pool_object *whose =
			node_dev_volume(r->n.task.csi->node, &owner->tagged_dev);
		if (whose == NULL || pool_object_has_id(whose, r->n.task.id))
			take(r, &owner->tagged_dev, owner->tagged_backend);
	}
	return 0;
}
