/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Making changes of a directory durable, many at a time. A sync counts only for changes made before
 * it began, so an operation that asks while one is under way waits for the next. All that asked
 * meanwhile share that next one. An operation that is alone in its pool syncs in the same trip to a
 * thread as it makes its change.
 *
 * A sync fails with what fsync fails with, for all that shared it. What they changed is done then,
 * and not known to be durable, while the file system may go on. A call that is repeated syncs once
 * more (pool_resync), and is answered when that succeeds.
 */
#include "pool/sync.h"

#include "pool/private.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <unistd.h>

enum { MAGIC_XFS = 0x58465342 };

/*
 * XFS, and ext4 with its journal, write all changes of metadata to one log, in order: what is
 * durable makes durable what came before. A directory's fsync then covers the file that was linked
 * into it, with its size, its shared extents and its record, and both directories of a rename.
 * Counted in the block layer (Linux 6.18, flushes and writes of the device for each create): 2 and
 * 1 on XFS, 2 and 2 on ext4, as with the file's fsync before it; with the file's after it 3 and 2,
 * 3 and 3.
 */
bool pool_one_log(const struct fs_features *features)
{
	return features->fs_type == MAGIC_XFS ||
	       (features->fs_type == EXT4_SUPER_MAGIC && !features->no_journal);
}

static void sync_begin(struct pool_sync *sync)
{
	list_splice(&sync->running, &sync->waiting);
	sync->removed_running = sync->removed;
	io_uring_prep_fsync(&sync->req.sqe, pool_fd_of(sync->pool, sync->kind), 0);
	sync->req.lane = sync->pool->lane;
	ring_submit(sync->pool->pools->reactor->ring, &sync->req);
}

static void sync_on_end(struct ring_req *req, int res, uint32_t flags)
{
	(void)flags;
	struct pool_sync *sync = container_of(req, struct pool_sync, req);
	struct list ended, *node;
	list_init(&ended);
	list_splice(&ended, &sync->running);
	if (res == 0)
		sync->removed_durable = sync->removed_running;
	if (!list_empty(&sync->waiting))
		sync_begin(sync);
	while ((node = list_pop(&ended)) != NULL)
		op_complete(container_of(node, struct pool_sync_wait, link)->op, res);
}

void pool_sync_open(struct pool *pool)
{
	for (enum record_kind kind = RECORD_VOLUME; kind <= RECORD_SNAPSHOT; kind++) {
		struct pool_sync *sync = &pool->sync[kind];
		sync->pool = pool;
		sync->kind = kind;
		sync->req.fn = sync_on_end;
		list_init(&sync->running);
		list_init(&sync->waiting);
	}
}

bool pool_sync_alone(struct pool *pool, enum record_kind kind, struct pool_sync_wait *wait)
{
	struct pool_sync *sync = &pool->sync[kind];
	wait->alone = pool->ops == 1 && list_empty(&sync->running);
	wait->fd = pool_fd_of(pool, kind);
	wait->removed = sync->removed;
	return wait->alone;
}

int pool_sync_call(const struct pool_sync_wait *wait)
{
	return fsync(wait->fd) < 0 ? -errno : 0;
}

int pool_sync_dir(
	struct op *op, struct pool *pool, enum record_kind kind, struct pool_sync_wait *wait)
{
	struct pool_sync *sync = &pool->sync[kind];
	wait->op = op;
	wait->alone = false;
	list_push(&sync->waiting, &wait->link);
	if (list_empty(&sync->running))
		sync_begin(sync);
	return op_wait(op);
}

void pool_sync_removed(struct pool *pool, enum record_kind kind, const struct pool_sync_wait *wait)
{
	struct pool_sync *sync = &pool->sync[kind];
	/* The removal of another operation may have been made too late for this sync. */
	if (wait->alone && sync->removed == wait->removed + 1)
		sync->removed_durable = sync->removed;
}

/* ---- once more ---- */

#define resync_of(op_ptr) container_of(op_ptr, struct pool_resync, op)

static bool is_unsynced(const struct pool *pool, enum record_kind kind)
{
	return pool->sync[kind].removed_durable < pool->sync[kind].removed;
}

struct pool *pools_removal_unsynced(
	const struct pools *pools, enum record_kind kind, const char *id)
{
	struct record_id parsed;
	if (record_id_parse(id, &parsed) < 0)
		return NULL;
	struct pool *pool = pools_by_uuid8(pools, parsed.pool);
	if (pool != NULL && is_unsynced(pool, kind))
		return pool;
	/* It may have moved, and what is gone does not say where it was. */
	for (unsigned i = 0; i < pools->count; i++)
		if (is_unsynced(pools->at[i], kind))
			return pools->at[i];
	return NULL;
}

static int resync_end(struct op *op, int res)
{
	return res < 0 ? op_fail_sys(op, res,
				 "making durable in pool %s what an earlier call changed",
				 resync_of(op)->pool->name)
		       : 0;
}

static int ready_run(struct op *op)
{
	return pool_check_ready(resync_of(op)->pool, &op->err);
}

static bool image_done(struct op *op)
{
	return resync_of(op)->object == NULL || pool_one_log(&resync_of(op)->pool->features);
}

static int image_job(void *arg)
{
	const struct pool_resync *s = arg;
	_cleanup_fd_ int fd =
		openat(s->dirfd, s->key, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	return fd < 0 || fsync(fd) < 0 ? -errno : 0;
}

static int image_run(struct op *op)
{
	struct pool_resync *s = resync_of(op);
	s->dirfd = pool_fd_of(s->pool, s->kind);
	s->key = s->object->key;
	return op_work(op, image_job, s);
}

static int directory_run(struct op *op)
{
	struct pool_resync *s = resync_of(op);
	return pool_sync_dir(op, s->pool, s->kind, &s->sync);
}

static int directory_end(struct op *op, int res)
{
	struct pool_resync *s = resync_of(op);
	if (res == 0 && s->object != NULL)
		s->object->unsynced = false;
	return resync_end(op, res);
}

static const struct op_step resync_steps[] = {
	{"ready", .run = ready_run},
	{"image", .run = image_run, .end = resync_end, .done = image_done},
	{"directory", .run = directory_run, .end = directory_end},
	{NULL},
};

void pool_resync_init(struct pool_resync *s, struct reactor *reactor, struct pool *pool,
	enum record_kind kind, struct pool_object *object)
{
	*s = (struct pool_resync){.pool = pool, .kind = kind, .object = object};
	op_init(&s->op, reactor, "pool_resync", resync_steps, NULL);
	s->op.lane = s->pool->lane;
}
