/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The step of a build that has a part (part.h) in the place of an unnamed file: it opens the part,
 * or makes it, before room is asked for, because what the part has already is not asked for again.
 * Undone, it keeps the part if the fill said so, or if it had progress and the fill has not begun,
 * and else removes it.
 */
#include "pool/build_part.h"

#include "base/fd.h"
#include "pool/build_begin.h"
#include "pool/private.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/xattr.h>
#include <unistd.h>

bool build_part_done(struct op *op)
{
	return pool_build_of(op)->part == NULL;
}

static int part_job(void *arg)
{
	struct pool_build *b = arg;
	return pool_part_open(b->parked_fd, b->parked_name, b->part, record_image_bytes(b->rec),
		b->direct_io ? O_DIRECT : 0, &b->fd, &b->part_bytes);
}

int build_part_run(struct op *op)
{
	struct pool_build *b = pool_build_of(op);
	b->direct_io = b->pool->features.direct_io;
	b->parked_fd = b->pool->fds[POOL_FD_COPIES];
	b->part->keep = false;
	pool_part_name(b->rec->key, b->parked_name);
	return op_work(op, part_job, b);
}

int build_part_end(struct op *op, int res)
{
	const struct pool_build *b = pool_build_of(op);
	if (res == -EBUSY || (res == 0 && b->part->finished && !b->keeps_identity))
		return build_fail_moving(op);
	if (res < 0)
		return op_fail_sys(
			op, res, "making a file for %s in pool %s", b->rec->name, b->pool->name);
	b->part->keep = b->part->from_bytes > 0;
	return 0;
}

static int drop_part_job(void *arg)
{
	struct pool_build *b = arg;
	if (!b->part->keep && !b->part->stays && !pool_part_fd_is_finished(b->fd))
		(void)unlinkat(b->parked_fd, b->parked_name, 0);
	fd_close(&b->fd);
	return 0;
}

int build_part_undo(struct op *op)
{
	return op_work(op, drop_part_job, pool_build_of(op));
}

void pool_build_measured(struct pool_build *b, uint64_t allocated_bytes)
{
	if (allocated_bytes <= b->part_bytes)
		return;
	pool_admit_has(&b->room, allocated_bytes - b->part_bytes);
	pool_room_used(b->pool, allocated_bytes - b->part_bytes);
	b->part_bytes = allocated_bytes;
}

int build_part_attachments(const struct pool_build *b)
{
	if (b->attachments != NULL)
		return attachments_write(b->fd, b->attachments);
	if (b->part == NULL || fremovexattr(b->fd, ATTACHMENTS_XATTR) == 0)
		return 0;
	return errno == ENODATA ? 0 : -errno;
}
