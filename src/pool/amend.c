/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Another record for a volume whose bytes stay as they are. The attribute is replaced as a whole,
 * by one transaction of the pool's file system, and made durable before memory follows. How it can
 * fail: the pool is not ready, or cannot write. Then memory says what it said, and the image gets
 * its old record back. After a crash, or where that fails too, it has either record: nobody was
 * told of the new one, and the next attempt writes it again.
 */
#include "pool/amend.h"

#include "base/fd.h"
#include "pool/private.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/xattr.h>

static struct pool_amend *amend_of(struct op *op)
{
	return container_of(op, struct pool_amend, op);
}

/* Nothing is left to do: the record says so already. */
static bool is_amended(struct op *op)
{
	const struct pool_amend *a = amend_of(op);
	const struct record *rec = a->object->rec;
	return rec != NULL && rec->erase == a->to.erase &&
	       rec->snapshot_freeze == a->to.snapshot_freeze &&
	       io_limits_equal(&rec->limits, &a->to.limits);
}

static int begin_run(struct op *op)
{
	struct pool_amend *a = amend_of(op);
	if (a->object->rec == NULL)
		return op_fail(op, ERR_DATA_LOSS, "%s in pool %s is quarantined: %s",
			a->object->key, pool_name(a->object->pool), a->object->why);
	return pool_op_begin(a->object->pool, &op->err);
}

static int begin_undo(struct op *op)
{
	pool_op_finish(amend_of(op)->object->pool);
	return 0;
}

static int open_run(struct op *op)
{
	struct pool_amend *a = amend_of(op);
	io_uring_prep_openat(op_sqe(op), pool_fd_of(a->object->pool, a->object->kind),
		a->object->key, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0);
	return op_submit(op);
}

static int open_end(struct op *op, int res)
{
	struct pool_amend *a = amend_of(op);
	if (res < 0)
		return op_fail_sys(op, res, "opening the image of %s", a->object->rec->name);
	a->fd = res;
	return 0;
}

static int open_undo(struct op *op)
{
	fd_close(&amend_of(op)->fd);
	return 0;
}

static int fail_record(struct op *op, int res)
{
	struct pool_amend *a = amend_of(op);
	record_free(a->rec);
	a->rec = NULL;
	return op_fail_sys(op, res, "writing the record of %s", a->object->rec->name);
}

static int record_run(struct op *op)
{
	struct pool_amend *a = amend_of(op);
	struct record rec = *a->object->rec;
	rec.erase = a->to.erase;
	rec.snapshot_freeze = a->to.snapshot_freeze;
	rec.limits = a->to.limits;
	a->rec = record_new(&rec);
	int len = a->rec == NULL ? -ENOMEM
				 : record_print(a->rec, a->record_text, sizeof(a->record_text));
	if (len < 0)
		return fail_record(op, len);
	io_uring_prep_fsetxattr(
		op_sqe(op), a->fd, RECORD_XATTR, a->record_text, XATTR_REPLACE, (unsigned)len);
	return op_submit(op);
}

static int record_end(struct op *op, int res)
{
	return res < 0 ? fail_record(op, res) : 0;
}

/* The image says again what memory says, as far as it lets us. */
static int record_undo(struct op *op)
{
	struct pool_amend *a = amend_of(op);
	record_free(a->rec);
	a->rec = NULL;
	int len = record_print(a->object->rec, a->record_text, sizeof(a->record_text));
	if (len < 0)
		return len;
	io_uring_prep_fsetxattr(
		op_sqe(op), a->fd, RECORD_XATTR, a->record_text, XATTR_REPLACE, (unsigned)len);
	return op_submit(op);
}

static int sync_run(struct op *op)
{
	io_uring_prep_fsync(op_sqe(op), amend_of(op)->fd, 0);
	return op_submit(op);
}

static int sync_end(struct op *op, int res)
{
	return res < 0 ? op_fail_sys(op, res, "making the record of %s durable",
				 amend_of(op)->object->rec->name)
		       : 0;
}

static int apply_run(struct op *op)
{
	struct pool_amend *a = amend_of(op);
	record_free(a->object->rec);
	a->object->rec = a->rec;
	a->rec = NULL;
	pool_op_finish(a->object->pool);
	fd_close(&a->fd);
	return 0;
}

static const struct op_step steps[] = {
	{"begin", .run = begin_run, .undo = begin_undo, .done = is_amended},
	{"open", .run = open_run, .end = open_end, .undo = open_undo, .done = is_amended},
	{"record", .run = record_run, .end = record_end, .undo = record_undo, .done = is_amended},
	{"sync", .run = sync_run, .end = sync_end, .done = is_amended},
	{"apply", .run = apply_run, .done = is_amended},
	{NULL},
};

void pool_amend_init(struct pool_amend *a, struct reactor *reactor, struct pool_object *object,
	const struct pool_amendment *to)
{
	*a = (struct pool_amend){.object = object, .to = *to, .fd = -1};
	op_init(&a->op, reactor, "pool_amend", steps, NULL);
	a->op.lane = object->pool->lane;
}
