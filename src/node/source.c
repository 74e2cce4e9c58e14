/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The source of a clone, a restore or a snapshot. Happy path: lock -> find -> quiesce (volumes
 * only; a snapshot never changes) -> share or copy its bytes -> thaw.
 *
 * A copy can be stopped when the driver shuts down: the unnamed target goes, the client gets
 * UNAVAILABLE and asks the next run.
 */
#include "node/source.h"

#include "node/node.h"
#include "node/volume.h"
#include "pool/index.h"

#include <errno.h>

enum node_lock_mode node_source_lock_mode(
	const struct node *node, enum record_kind kind, const char *id)
{
	struct pool_object *object;
	struct err ignored = {0};
	/* Whether it is in use will be known when it is to be quiesced. */
	bool in_use = pools_find_id(node->pools, kind, id, &object, &ignored) == 0 &&
		      kind == RECORD_VOLUME &&
		      (node_volume_find(object) != NULL || !node_knows_volume(node, object));
	return in_use ? NODE_EXCLUSIVE : NODE_SHARED;
}

bool node_can_share(const struct pool_object *object, bool thick)
{
	/* What shares extents with a volume that is erased on delete would keep its bytes. One that
	 * is unformatted has none. */
	bool shares = pool_is_raw(object->pool) ? !object->rec->thick
						: pool_features(object->pool)->reflink;
	return shares && !thick && object->rec->erase == RECORD_ERASE_NONE &&
	       !object->rec->unformatted;
}

int node_source_find(struct node_source *source, struct node *node, enum record_kind kind,
	const char *id, bool thick, struct err *err)
{
	struct pool_object *object;
	int r = pools_find_id(node->pools, kind, id, &object, err);
	if (r == 0)
		r = pool_check_not_inline(object, err);
	if (r == 0)
		r = pool_check_ready(object->pool, err);
	if (r < 0)
		return r;
	const struct record *rec = object->rec;
	r = node_check_whole(object, err);
	if (r < 0)
		return r;
	source->node = node;
	source->object = object;
	source->rec = rec;
	if (pool_is_raw(object->pool) && thick && !rec->thick && !rec->unformatted)
		return err_set(err, ERR_PRECONDITION,
			"%s is thin and lies in pool %s on raw disks, and so is what is made of it there: use a class with provisioning: thin",
			rec->name, pool_name(object->pool));
	source->share = node_can_share(object, thick);
	return 0;
}

uint64_t node_share_room(const struct pool_object *object)
{
	/* What is shared already counts as needed again: see pool_room. */
	if (object->shared || object->kind != RECORD_VOLUME)
		return 0;
	uint64_t size = record_image_bytes(object->rec);
	return object->allocated_bytes < size ? object->allocated_bytes : size;
}

uint64_t node_source_shared_room(const struct node_source *source)
{
	return source->share ? node_share_room(source->object) : 0;
}

/* ---- steps ---- */

int node_source_quiesce(struct op *op, struct node_source *source)
{
	if (source->object->kind != RECORD_VOLUME)
		return 0;
	node_quiesce_init(&source->quiesce, source->node, source->object,
		source->share ? NODE_QUIESCE_SHARE : NODE_QUIESCE_COPY);
	return op_child(op, &source->quiesce.op);
}

int node_source_thaw(struct op *op, struct node_source *source)
{
	if (source->quiesce.freeze != NODE_FROZEN)
		return 0;
	node_thaw_init(&source->quiesce);
	return op_child(op, &source->quiesce.op);
}

int node_source_leftover(
	struct op *op, struct node_source *source, struct node *node, const char *id)
{
	struct pool_object *volume;
	struct err gone = {0};
	/* Adoption looks for itself. */
	if (pools_find_id(node->pools, RECORD_VOLUME, id, &volume, &gone) < 0 ||
		!node_knows_volume(node, volume) || node_volume_find(volume) == NULL)
		return 0;
	int r = pool_check_ready(volume->pool, &op->err);
	if (r < 0)
		return r;
	node_quiesce_init(&source->quiesce, node, volume, NODE_QUIESCE_LEFTOVER);
	return op_child(op, &source->quiesce.op);
}

static int refuse_stopped(struct op *op, const struct node_source *source)
{
	err_clear(&op->err);
	return op_fail(op, ERR_UNAVAILABLE,
		"copying %s was stopped because the driver shuts down; try again",
		source->object->rec->name);
}

/* It was quiesced for the instant that sharing takes, which the file system has refused. */
static bool quiesced_too_short(const struct node_source *source)
{
	return source->share && source->quiesce.dev.attached;
}

static int fill(struct op *op, int dst_fd, void *arg)
{
	struct node_source *source = arg;
	if (source->stopped)
		return refuse_stopped(op, source);
	if (quiesced_too_short(source))
		return op_fail(op, ERR_PRECONDITION,
			"volume %s is in use (%s), and pool %s refuses to share its extents: detach "
			"it first, then it can be copied",
			source->object->rec->name, source->quiesce.dev.path,
			pool_name(source->object->pool));
	return pool_clone_fill(op, dst_fd, &source->clone);
}

static int fill_end(struct op *op, int res, void *arg)
{
	struct node_source *source = arg;
	return pool_clone_fill_end(op, res, &source->clone);
}

void node_source_fill(struct node_source *source, struct pool_build *build)
{
	if (source->rec->unformatted)
		return; /* the new image is a hole, too */
	pool_clone_init(&source->clone, source->object);
	source->clone.copy.stop = source->stopped;
	source->clone.build = build;
	build->share_object = source->share ? source->object : NULL;
	build->share_frozen = source->quiesce.freeze == NODE_FROZEN;
	build->fill = fill;
	build->fill_end = fill_end;
	build->fill_arg = source;
	build->fill_writes = true;
}

int node_source_end(struct op *op, const struct node_source *source, int res)
{
	return res < 0 && source->stopped ? refuse_stopped(op, source) : res;
}

void node_source_stop(void *arg)
{
	struct node_source *source = arg;
	source->stopped = true;
	source->clone.copy.stop = true;
}

bool node_source_progress(const void *arg, uint64_t *ret_done, uint64_t *ret_total)
{
	const struct node_source *source = arg;
	const struct copy *copy = &source->clone.copy;
	if (copy->size == 0)
		return false;
	*ret_done = copy->looked_bytes;
	*ret_total = copy->size;
	return true;
}
