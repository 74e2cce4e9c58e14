/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Other attachments for a volume: its attribute is replaced or removed as a whole, by one
 * transaction of the pool's file system, and made durable before memory follows. How it can fail:
 * the pool is not ready, or cannot write; the attributes are full (ext4 has one block for all of
 * them). Then the image gets its old ones back, as far as it lets us.
 */
#include "pool/attach.h"

#include "base/fd.h"
#include "pool/private.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>
#include <unistd.h>

static struct pool_attach *attach_of(struct op *op)
{
	return container_of(op, struct pool_attach, op);
}

static int begin_run(struct op *op)
{
	struct pool_attach *a = attach_of(op);
	int r = pool_op_begin(a->object->pool, &op->err);
	if (r < 0)
		return r;
	a->dirfd = pool_fd_of(a->object->pool, RECORD_VOLUME);
	return 0;
}

static int begin_undo(struct op *op)
{
	pool_op_finish(attach_of(op)->object->pool);
	return 0;
}

static int set(int fd, const char *text, int len)
{
	int r = len > 0 ? fsetxattr(fd, ATTACHMENTS_XATTR, text, (size_t)len, 0)
			: fremovexattr(fd, ATTACHMENTS_XATTR);
	return r < 0 && (len > 0 || errno != ENODATA) ? -errno : 0;
}

static int write_call(struct op *op)
{
	struct pool_attach *a = attach_of(op);
	if (a->len < 0)
		return a->len;
	_cleanup_fd_ int fd =
		openat(a->dirfd, a->object->key, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	int r = set(fd, a->text, a->len);
	if (r == 0 && fsync(fd) < 0) {
		r = -errno;
		(void)set(fd, a->old_text, a->old_len);
	}
	return r;
}

static int write_end(struct op *op, int res)
{
	struct pool_attach *a = attach_of(op);
	const char *name = a->object->rec->name;
	if (res == -ENOSPC || res == -E2BIG || res == -ERANGE)
		return op_fail(op, ERR_NO_ROOM,
			"volume %s: its image has no room for one more note of a node that it is attached to; detach it from one first",
			name);
	if (res < 0)
		return op_fail_sys(op, res, "noting which nodes volume %s is attached to", name);
	attachments_free(a->object->attachments);
	a->object->attachments = a->to;
	a->to = NULL;
	pool_op_finish(a->object->pool);
	return 0;
}

static const struct op_step steps[] = {
	{"begin", .run = begin_run, .undo = begin_undo},
	{"write", .call = write_call, .end = write_end, .flags = OP_COMMIT},
	{NULL},
};

struct pool_attach *pool_attach_new(
	struct reactor *reactor, struct pool_object *object, struct attachments *to)
{
	struct pool_attach *a = calloc(1, sizeof(*a));
	if (a == NULL) {
		attachments_free(to);
		return NULL;
	}
	a->object = object;
	a->to = to;
	a->dirfd = -1;
	if (to != NULL)
		a->len = attachments_print(to, a->text, sizeof(a->text));
	if (object->attachments != NULL)
		a->old_len =
			attachments_print(object->attachments, a->old_text, sizeof(a->old_text));
	op_init(&a->op, reactor, "pool_attach", steps, NULL);
	a->op.lane = object->pool->lane;
	return a;
}

void pool_attach_free(struct pool_attach *a)
{
	if (a == NULL)
		return;
	attachments_free(a->to);
	explicit_bzero(a->text, sizeof(a->text));
	explicit_bzero(a->old_text, sizeof(a->old_text));
	free(a);
}
