/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fill that copies another image's data through the ring, where its extents cannot be shared
 * (no reflink, a thick target). A target larger than its source ends in a hole.
 */
#include "pool/private.h"

#include <errno.h>
#include <fcntl.h>

static struct pool_clone *clone_of(struct op *op)
{
	return container_of(op, struct pool_clone, op);
}

static int open_run(struct op *op)
{
	struct pool_clone *c = clone_of(op);
	struct pool_object *source = c->source;
	int r = pool_check_ready(source->pool, &op->err);
	if (r < 0)
		return r;
	if (source->rec == NULL || source->truncated)
		return op_fail(op, ERR_DATA_LOSS, "%s in pool %s cannot be copied: %s", source->key,
			pool_name(source->pool),
			source->rec == NULL ? source->why
					    : "its image is shorter than it should be");
	int flags = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
	if (source->pool->features.direct_io)
		flags |= O_DIRECT;
	io_uring_prep_openat(
		op_sqe(op), pool_fd_of(source->pool, source->kind), source->key, flags, 0);
	return op_submit(op);
}

static int open_end(struct op *op, int res)
{
	struct pool_clone *c = clone_of(op);
	if (res < 0)
		return op_fail_sys(op, res, "opening the image of %s", c->source->rec->name);
	c->src_fd = res;
	return 0;
}

static int copy_run(struct op *op)
{
	struct pool_clone *c = clone_of(op);
	/* It may have been stopped before it began. */
	c->copy = (struct copy){.src_fd = c->src_fd,
		.dst_fd = c->dst_fd,
		.size = c->source->rec->size_bytes,
		.stop = c->copy.stop};
	copy_init(&c->copy, op->reactor);
	return op_child(op, &c->copy.op);
}

static const struct op_step clone_steps[] = {
	{"open", .run = open_run, .end = open_end},
	{"copy", .run = copy_run},
	{NULL},
};

void pool_clone_init(struct pool_clone *c, struct pool_object *source)
{
	*c = (struct pool_clone){.source = source, .src_fd = -1, .dst_fd = -1};
}

int pool_clone_fill(struct op *op, int dst_fd, void *arg)
{
	struct pool_clone *c = arg;
	c->dst_fd = dst_fd;
	c->src_fd = -1;
	op_init(&c->op, op->reactor, "pool_clone", clone_steps, NULL);
	return op_child(op, &c->op);
}

int pool_clone_fill_end(struct op *op, int res, void *arg)
{
	struct pool_clone *c = arg;
	(void)op;
	fd_close(&c->src_fd);
	return res;
}
