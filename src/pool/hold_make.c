/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Happy path: room is admitted, the image gets its name and is durable, then the file that says for
 * whom is linked, which is the commit.
 *
 * How it can fail: no room; the volume's extents cannot be shared though it is held still for no
 * more than that. Before the commit a failure takes away what has a name.
 */
#include "pool/hold_make.h"

#include "base/fd.h"
#include "pool/hold_file.h"
#include "pool/index.h"
#include "pool/private.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>

static struct pool_hold_make *make_of(struct op *op)
{
	return container_of(op, struct pool_hold_make, op);
}

/* What the hold is of: its own strings, and the record as it is now. */
static int describe(struct pool_hold_make *m)
{
	struct pool_hold *hold = calloc(1, sizeof(*hold));
	m->text = malloc(HOLD_TEXT_MAX);
	if (hold == NULL || m->text == NULL) {
		free(hold);
		return -ENOMEM;
	}
	m->hold = hold;
	hold->move = m->move;
	list_init(&hold->link);
	strcpy(hold->name, HOLD_PREFIX);
	pool_random_hex(hold->name + strlen(HOLD_PREFIX), HOLD_DIGITS);
	pool_random_hex(hold->grant, POOL_GRANT_BYTES - 1);
	struct record rec = *m->source->rec;
	rec.limits = (struct io_limits){0}; /* the copy has what its own request says */
	/* Of which group it is matters here alone, and an older driver would not read it. */
	rec.group = "";
	hold->rec = record_new(&rec);
	if (hold->rec == NULL)
		return -ENOMEM;
	int n = record_print(hold->rec, m->text, HOLD_TEXT_MAX);
	if (n < 0)
		return n;
	m->text_len = (unsigned)n;
	if (!hold_take_field(hold->node_id, sizeof(hold->node_id), m->node_id) ||
		!hold_take_field(hold->volume_name, sizeof(hold->volume_name), m->volume_name) ||
		!hold_take_field(hold->source_id, sizeof(hold->source_id), m->source_id))
		return -EINVAL;
	return 0;
}

static int begin_run(struct op *op)
{
	struct pool_hold_make *m = make_of(op);
	struct pool *pool = m->source->pool;
	int r = pool_check_ready(pool, &op->err);
	if (r < 0)
		return r;
	if (m->source->rec == NULL || m->source->image != POOL_IMAGE_WHOLE)
		return op_fail(op, ERR_DATA_LOSS, "%s in pool %s cannot be copied: %s",
			m->source->key, pool->name,
			m->source->rec == NULL ? m->source->why : "its image is not whole");
	unsigned count = pool->hold_count + pool->holds_making;
	if (count >= POOL_HOLDS_MAX)
		return op_fail(op, ERR_NO_ROOM,
			"%u volumes and snapshots of pool %s are being copied to other nodes, "
			"which is the limit",
			count, pool->name);
	r = describe(m);
	if (r < 0)
		return op_fail_sys(op, r, "granting a copy of %s", m->source->rec->name);
	m->copies_fd = pool->fds[POOL_FD_COPIES];
	m->dir_fd = pool_fd_of(pool, m->source->kind);
	r = pool_op_begin(pool, &op->err);
	pool->holds_making += r == 0;
	return r;
}

static int begin_undo(struct op *op)
{
	make_of(op)->source->pool->holds_making--;
	pool_op_finish(make_of(op)->source->pool);
	return 0;
}

static int admit_run(struct op *op)
{
	struct pool_hold_make *m = make_of(op);
	m->room.pool = m->source->pool;
	m->room.bytes = m->need_bytes;
	return pool_admit(op, &m->room);
}

static int admit_end(struct op *op, int res)
{
	return pool_admit_end(op, &make_of(op)->room, res);
}

static int admit_undo(struct op *op)
{
	pool_admit_release(&make_of(op)->room);
	return 0;
}

/* ---- its image ---- */

static bool is_snapshot(struct op *op)
{
	return make_of(op)->source->kind == RECORD_SNAPSHOT;
}

static int open_call(struct op *op)
{
	struct pool_hold_make *m = make_of(op);
	bool direct = pool_features(m->source->pool)->direct_io;
	int flags = O_TMPFILE | O_RDWR | O_CLOEXEC | (direct ? O_DIRECT : 0);
	m->fd = openat(m->copies_fd, ".", flags, 0600);
	if (m->fd < 0)
		return -errno;
	uint64_t size = record_image_bytes(m->hold->rec);
	if (ftruncate(m->fd, (off_t)size) < 0)
		return -errno;
	if (!m->share)
		return 0;
	_cleanup_fd_ int from =
		openat(m->dir_fd, m->source->key, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	int r = from < 0 ? -errno : pool_share_extents(from, m->fd, size);
	m->shared = r == 0;
	return r == -EOPNOTSUPP || r == -EXDEV ? 0 : r;
}

static int close_job(void *arg)
{
	struct pool_hold_make *m = arg;
	fd_close(&m->fd);
	return 0;
}

static int open_undo(struct op *op)
{
	return op_work(op, close_job, make_of(op));
}

static bool copy_done(struct op *op)
{
	return is_snapshot(op) || make_of(op)->shared;
}

static int refuse_stopped(struct op *op)
{
	err_clear(&op->err);
	return op_fail(op, ERR_UNAVAILABLE,
		"copying %s was stopped because the driver shuts down; try again",
		make_of(op)->source->rec->name);
}

static int copy_run(struct op *op)
{
	struct pool_hold_make *m = make_of(op);
	if (m->stopped)
		return refuse_stopped(op);
	if (m->held_briefly)
		return op_fail(op, ERR_PRECONDITION,
			"volume %s is in use, and pool %s refuses to share its extents: detach "
			"it first, then it can be copied",
			m->source->rec->name, m->source->pool->name);
	pool_clone_init(&m->clone, m->source);
	return pool_clone_fill(op, m->fd, &m->clone);
}

static int copy_end(struct op *op, int res)
{
	struct pool_hold_make *m = make_of(op);
	res = pool_clone_fill_end(op, res, &m->clone);
	return res < 0 && m->stopped ? refuse_stopped(op) : res;
}

static int name_call(struct op *op)
{
	struct pool_hold_make *m = make_of(op);
	/* As any image has it: its record says how it is erased at last. */
	if (m->fd >= 0 && fsetxattr(m->fd, RECORD_XATTR, m->text, m->text_len, 0) < 0)
		return -errno;
	if (m->fd >= 0)
		return fd_link(m->fd, m->copies_fd, m->hold->name);
	return linkat(m->dir_fd, m->source->key, m->copies_fd, m->hold->name, 0) < 0 ? -errno : 0;
}

static int unname_job(void *arg)
{
	const struct pool_hold_make *m = arg;
	return unlinkat(m->copies_fd, m->hold->name, 0) < 0 ? -errno : 0;
}

static int name_undo(struct op *op)
{
	return op_work(op, unname_job, make_of(op));
}

/* After it has its name: the log of btrfs takes no note of a file without one. */
static int data_run(struct op *op)
{
	io_uring_prep_fsync(op_sqe(op), make_of(op)->fd, 0);
	return op_submit(op);
}

/* ---- for whom ---- */

static int write_grant(const struct pool_hold_make *m, const char *name)
{
	_cleanup_fd_ int fd = openat(m->copies_fd, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	if (fd < 0)
		return -errno;
	ssize_t n = write(fd, m->text, m->text_len);
	if (n != (ssize_t)m->text_len)
		return n < 0 ? -errno : -ENOSPC;
	if (fsync(fd) < 0)
		return -errno;
	int r = fd_link(fd, m->copies_fd, name);
	if (r < 0)
		return r;
	r = fsync(fd) < 0 || fsync(m->copies_fd) < 0 ? -errno : 0;
	if (r < 0)
		unlinkat(m->copies_fd, name, 0);
	return r;
}

static int grant_job(void *arg)
{
	struct pool_hold_make *m = arg;
	struct stat st;
	char name[HOLD_FILE_BYTES];
	hold_grant_name(m->hold->name, name);
	if (fstatat(m->copies_fd, m->hold->name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return -errno;
	m->hold->allocated_bytes = (uint64_t)st.st_blocks * 512;
	return write_grant(m, name);
}

static int grant_run(struct op *op)
{
	struct pool_hold_make *m = make_of(op);
	m->hold->shares = m->shared || (m->source->kind == RECORD_SNAPSHOT &&
					       pool_features(m->source->pool)->reflink);
	int n = hold_print(m->hold, m->text, HOLD_TEXT_MAX);
	if (n < 0)
		return op_fail_sys(op, n, "granting a copy of %s", m->source->rec->name);
	m->text_len = (unsigned)n;
	return op_work(op, grant_job, m);
}

static int grant_end(struct op *op, int res)
{
	struct pool_hold_make *m = make_of(op);
	struct pool *pool = m->source->pool;
	if (res < 0)
		return op_fail_sys(op, res, "granting a copy of %s in pool %s",
			m->source->rec->name, pool->name);
	pool_admit_release(&m->room);
	if (!m->shared && m->source->kind == RECORD_VOLUME)
		pool_room_used(pool, m->hold->allocated_bytes);
	pool->holds_making--;
	pool_op_finish(pool);
	pool_hold_enter(pool, m->hold);
	/* What shares the blocks of a volume makes it need others. */
	pool_family_update(pool, pool_hold_family(m->hold));
	m->ret_hold = m->hold;
	m->hold = NULL;
	return 0;
}

static const struct op_call open_calls[] = {
	{"open", .fn = open_call, .undo = open_undo},
};

static int open_run(struct op *op)
{
	return op_calls(op, open_calls, 1);
}

static const struct op_call name_calls[] = {
	{"name", .fn = name_call, .undo = name_undo},
};

static int name_run(struct op *op)
{
	return op_calls(op, name_calls, 1);
}

static const struct op_step make_steps[] = {
	{"begin", .run = begin_run, .undo = begin_undo},
	{"admit", .run = admit_run, .end = admit_end, .undo = admit_undo},
	{"open", .run = open_run, .done = is_snapshot},
	{"copy", .run = copy_run, .end = copy_end, .done = copy_done},
	{"name", .run = name_run},
	{"data", .run = data_run, .done = is_snapshot},
	{"grant", .run = grant_run, .end = grant_end, .flags = OP_COMMIT},
	{NULL},
};

void pool_hold_make_init(
	struct pool_hold_make *m, struct reactor *reactor, struct pool_object *source, bool share)
{
	*m = (struct pool_hold_make){.source = source, .share = share, .fd = -1};
	op_init(&m->op, reactor, "pool_hold", make_steps, NULL);
	m->op.lane = source->pool->lane;
}

void pool_hold_make_stop(struct pool_hold_make *m)
{
	m->stopped = true;
	m->clone.copy.stop = true;
}

void pool_hold_make_free(struct pool_hold_make *m)
{
	fd_close(&m->fd);
	free(m->text);
	m->text = NULL;
	pool_hold_free(m->hold);
	m->hold = NULL;
}
