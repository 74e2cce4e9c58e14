/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cleaning the log of a file system that grows. Happy path: (before) look for a freeze of ours that
 * is left -> mark the image; (after) freeze and thaw in one call -> unmark. A helper that is at
 * that call ends it, also when the driver is killed meanwhile. A repeat that finds nothing to grow
 * takes the mark away and freezes nobody. All of it is quiesce.c's, with its rules for calls
 * that overstay; the mark is this file's.
 *
 * How it can fail: as any freeze. A volume stays marked then, and nothing is lost but time.
 */
#include "node/clean_log.h"

#include "base/fd.h"
#include "blockio/boot_mark.h"
#include "node/node.h"
#include "node/volume.h"

#include <errno.h>
#include <string.h>

#define clean_of(op_ptr) container_of(op_ptr, struct node_clean_log, op)

/* ---- before ---- */

static int leftover_run(struct op *op)
{
	struct node_clean_log *c = clean_of(op);
	node_quiesce_init(&c->quiesce, c->node, c->volume, NODE_QUIESCE_LEFTOVER);
	return op_child(op, &c->quiesce.op);
}

static int mark_job(struct op *op)
{
	struct node_clean_log *c = clean_of(op);
	_cleanup_fd_ int fd = node_open_image(c->dirfd, c->volume);
	if (fd < 0)
		return fd;
	/* Memory may not know of an earlier run's yet. */
	c->marked = boot_mark_get(fd, BOOT_MARK_GROWN, NULL);
	return c->marked ? 0 : boot_mark_set(fd, BOOT_MARK_GROWN, "");
}

static int mark_end(struct op *op, int res)
{
	struct node_clean_log *c = clean_of(op);
	if (res < 0)
		return op_fail_sys(
			op, res, "volume %s: marking its image as growing", c->volume->rec->name);
	node_volume_find(c->volume)->grown = true;
	return 0;
}

static const struct op_step prepare_steps[] = {
	{"thaw leftover", .run = leftover_run},
	{"mark growth", .call = mark_job, .end = mark_end},
	{NULL},
};

/* ---- after ---- */

static bool is_clean(struct op *op)
{
	return !clean_of(op)->dirty;
}

static bool is_dirty(struct op *op)
{
	return clean_of(op)->dirty;
}

static int clean_run(struct op *op)
{
	struct node_clean_log *c = clean_of(op);
	node_quiesce_init(&c->quiesce, c->node, c->volume, NODE_QUIESCE_LOG);
	return op_child(op, &c->quiesce.op);
}

static int unmark_job(void *arg)
{
	const struct node_clean_log *c = arg;
	_cleanup_fd_ int fd = node_open_image(c->dirfd, c->volume);
	return fd < 0 ? fd : boot_mark_remove(fd, BOOT_MARK_GROWN);
}

static int unmark_run(struct op *op)
{
	return op_work(op, unmark_job, clean_of(op));
}

/* A mark left behind costs a needless freeze, no more. */
static int unmark_end(struct op *op, int res)
{
	node_volume_find(clean_of(op)->volume)->grown = res < 0;
	return 0;
}

static const struct op_step clean_steps[] = {
	{"freeze and thaw", .done = is_clean, .run = clean_run},
	{"unmark growth", .done = is_dirty, .run = unmark_run, .end = unmark_end},
	{NULL},
};

/* ---- the operations ---- */

static void clean_init(struct node_clean_log *c, const struct op_step *steps)
{
	c->dirfd = pool_dirfd(c->volume->pool, RECORD_VOLUME);
	op_init(&c->op, c->node->reactor, "clean log", steps, NULL);
	c->op.lane = pool_lane(c->volume->pool);
}

void node_clean_log_prepare_init(
	struct node_clean_log *c, struct node *node, struct pool_object *volume)
{
	c->node = node;
	c->volume = volume;
	clean_init(c, prepare_steps);
}

void node_clean_log_init(struct node_clean_log *c, bool grown)
{
	c->dirty = grown || c->marked;
	clean_init(c, clean_steps);
}
