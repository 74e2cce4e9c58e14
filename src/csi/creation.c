/* SPDX-License-Identifier: Apache-2.0 */
/* The steps that CreateVolume and CreateSnapshot share: see creation.h. */
#include "csi/creation.h"

#include "pool/index.h"

static const char *const kinds[] = {[RECORD_VOLUME] = "volume", [RECORD_SNAPSHOT] = "snapshot"};

void creation_lock_source(struct csi_creation *c, enum record_kind kind)
{
	const struct node *node = c->task.csi->node;
	csi_task_lock_id(
		&c->task, node_source_lock_mode(node, kind, c->source_id), kind, c->source_id);
	c->task.copy = (struct csi_task_copy){node_source_stop, node_source_progress, &c->source};
}

int creation_find(const struct csi_creation *c, struct pool_object **ret, struct err *err)
{
	struct pool_object *object =
		pools_find_name(c->task.csi->pools, c->task.rpc->kind, c->name);
	if (object != NULL && object->rec == NULL)
		return err_set(err, ERR_EXISTS,
			"name %s is taken in pool %s by a quarantined %s (%s): %s; look at it with ringvol check",
			c->name, pool_name(object->pool), kinds[object->kind], object->key,
			object->why != NULL ? object->why : "damaged");
	if (object != NULL && record_is_inline(object->rec))
		return err_set(err, ERR_EXISTS,
			"name %s is that of an inline volume, of %s; choose another", c->name,
			object->rec->claim[0] != '\0' ? object->rec->claim : object->rec->owner);
	*ret = object;
	return 0;
}

int creation_init_build(
	struct csi_creation *c, struct pool *pool, const struct record *rec, struct err *err)
{
	int r = pool_build_init(&c->build, c->task.csi->reactor, pool, rec);
	if (r < 0)
		return err_sys(err, r, "%s %s", kinds[rec->kind], c->name);
	c->building = true;
	if (c->source.object != NULL)
		node_source_fill(&c->source, &c->build);
	return 0;
}

bool creation_exists(struct op *op)
{
	return creation_of(op)->object != NULL;
}

bool creation_durable(struct op *op)
{
	const struct csi_creation *c = creation_of(op);
	return c->object == NULL || !c->object->unsynced;
}

int creation_make_durable(struct op *op)
{
	struct csi_creation *c = creation_of(op);
	pool_resync_init(&c->settle, op->reactor, c->object->pool, c->object->kind, c->object);
	return op_child(op, &c->settle.op);
}

int creation_thaw_leftover(struct op *op)
{
	struct csi_creation *c = creation_of(op);
	return node_source_leftover(op, &c->source, c->task.csi->node, c->source_id);
}

bool creation_measured(struct op *op)
{
	return creation_sourceless(op) || creation_of(op)->source.object->kind != RECORD_VOLUME;
}

int creation_measure(struct op *op)
{
	struct csi_creation *c = creation_of(op);
	pool_measure_init(&c->measure, op->reactor, c->source.object->pool, CSI_MEASURE_MS);
	return op_child(op, &c->measure.op);
}

bool creation_sourceless(struct op *op)
{
	return creation_exists(op) || creation_of(op)->source.object == NULL;
}

int creation_quiesce(struct op *op)
{
	return node_source_quiesce(op, &creation_of(op)->source);
}

bool creation_released(struct op *op)
{
	return creation_of(op)->source.quiesce.freeze != NODE_FROZEN;
}

int creation_release(struct op *op)
{
	return node_source_thaw(op, &creation_of(op)->source);
}

int creation_build_end(struct op *op, int res)
{
	struct csi_creation *c = creation_of(op);
	if (res < 0)
		return node_source_end(op, &c->source, res);
	c->object = c->build.ret_object;
	return 0;
}

void creation_cleanup(struct csi_task *task)
{
	struct csi_creation *c = container_of(task, struct csi_creation, task);
	if (c->building)
		pool_build_free(&c->build);
}
