/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Removing an object: its image is locked, so that it is attached nowhere, and renamed to trash.
 * The rename is the commit: with it the object is out of the index. What the image held is given
 * back later (trash.c). Before it, a failure lets go of the lock and nothing has happened. An image
 * that is not there any more was removed by an attempt cut short: that is success.
 */
#include "pool/remove.h"

#include "blockio/image.h"
#include "pool/index.h"
#include "pool/private.h"
#include "pool/raw.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>

static struct pool_remove *remove_of(struct op *op)
{
	return container_of(op, struct pool_remove, op);
}

static int begin_run(struct op *op)
{
	struct pool_remove *r = remove_of(op);
	if (r->object->rec == NULL)
		return op_fail(op, ERR_DATA_LOSS,
			"%s in pool %s is quarantined and never deleted: %s", r->object->key,
			r->pool->name, r->object->why);
	return pool_op_begin(r->pool, &op->err);
}

static int begin_undo(struct op *op)
{
	pool_op_finish(remove_of(op)->pool);
	return 0;
}

/* It would say that the volume is elsewhere when there is none. */
static bool forget_done(struct op *op)
{
	struct pool_remove *r = remove_of(op);
	r->departure = r->object->kind == RECORD_VOLUME
			       ? pool_departure_of_back(r->pool, r->object->key)
			       : NULL;
	return r->departure == NULL;
}

static int forget_run(struct op *op)
{
	struct pool_remove *r = remove_of(op);
	pool_departure_drop_init(&r->forget, op->reactor, r->departure);
	return op_child(op, &r->forget.op);
}

static int open_call(struct op *op)
{
	struct pool_remove *r = remove_of(op);
	r->fd = openat(r->dirfd, r->key, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	return r->fd < 0 ? -errno : 0;
}

static int open_end(struct op *op, int res)
{
	struct pool_remove *r = remove_of(op);
	if (res == -ENOENT) {
		r->state = REMOVE_GONE;
		return 0;
	}
	if (res < 0)
		return op_fail_sys(op, res, "opening the image of %s in pool %s",
			r->object->rec->name, r->pool->name);
	return 0;
}

static int open_undo(struct op *op)
{
	fd_close(&remove_of(op)->fd);
	return 0;
}

/* Another name of a snapshot's image is what another node copies (hold.h), and we have it open for
 * that. It stays, so what is read goes on; a volume's image has one name. */
static bool held_for_copy(const struct pool_remove *r)
{
	struct stat st;
	return r->object->kind == RECORD_SNAPSHOT && fstat(r->fd, &st) == 0 && st.st_nlink > 1;
}

static int lock_call(struct op *op)
{
	int res = image_lock(remove_of(op)->fd);
	return res == 1 && held_for_copy(remove_of(op)) ? 0 : res;
}

static int lock_end(struct op *op, int res)
{
	struct pool_remove *r = remove_of(op);
	if (res == -EWOULDBLOCK)
		return op_fail(op, ERR_PRECONDITION, "%s is attached to a device: detach it first",
			r->object->rec->name);
	if (res == 1)
		return op_fail(op, ERR_PRECONDITION,
			"%s: its image is open in another process, or attached by hand; fuser and losetup -j name them: %s",
			r->object->rec->name, r->object->key);
	return res < 0 ? op_fail_sys(op, res, "locking the image of %s", r->object->rec->name) : 0;
}

/* Out of the index and put aside: the caller may read it until the operation ends. */
static void leave_index(struct pool_remove *r)
{
	char family[RECORD_ID_MAX], id[RECORD_ID_MAX];
	/* In the trash, until it is overwritten. What is gone is not there. */
	if (r->pool->raw != NULL && pool_entry(r->object)->thin_id == 0 && r->state != REMOVE_GONE)
		r->pool->raw->dirty_bytes += r->object->allocated_bytes;
	else if (pool_entry(r->object)->thin_id != 0 && r->state == REMOVE_GONE)
		thin_drop_id(r->pool);
	strcpy(family, pool_family(r->object->rec));
	pool_object_id(r->object, id);
	pool_index_remove(r->object);
	r->pool->sync[r->object->kind].removed++;
	list_push(&r->pool->dead, &pool_entry(r->object)->link);
	pool_op_finish(r->pool);
	/* It may have been of a family, or the founder of one. */
	pool_family_update(r->pool, family);
	pool_family_update(r->pool, id);
}

static int rename_call(struct op *op)
{
	const struct pool_remove *r = remove_of(op);
	int res = renameat2(r->dirfd, r->key, r->trash_fd, r->trash_name, RENAME_NOREPLACE);
	return res < 0 ? -errno : 0;
}

static int rename_end(struct op *op, int res)
{
	struct pool_remove *r = remove_of(op);
	if (res < 0)
		return op_fail_sys(op, res, "moving the image of %s to the trash of pool %s",
			r->object->rec->name, r->pool->name);
	fd_close(&r->fd);
	leave_index(r);
	r->state = REMOVE_RENAMED;
	return 0;
}

static bool gone_done(struct op *op)
{
	return remove_of(op)->state != REMOVE_GONE;
}

static int gone_run(struct op *op)
{
	leave_index(remove_of(op));
	return 0;
}

static int sync_call(struct op *op)
{
	return pool_sync_call(&remove_of(op)->sync);
}

static bool sync_done(struct op *op)
{
	return remove_of(op)->state == REMOVE_SYNCED;
}

static int sync_run(struct op *op)
{
	struct pool_remove *r = remove_of(op);
	return pool_sync_dir(op, r->pool, r->object->kind, &r->sync);
}

static int sync_end(struct op *op, int res)
{
	struct pool_remove *r = remove_of(op);
	if (res == 0)
		pool_sync_removed(r->pool, r->object->kind, &r->sync);
	if (res == 0 && !r->synced_from && !pool_one_log(&r->pool->features)) {
		r->synced_from = true;
		io_uring_prep_fsync(op_sqe(op), r->pool->fds[POOL_FD_TRASH], 0);
		return op_submit(op);
	}
	r->state = REMOVE_SYNCED;
	pool_object_free(r->object);
	r->object = NULL;
	pool_trash_kick(r->pool);
	return res < 0 ? op_fail_sys(op, res, "making a deletion durable in pool %s", r->pool->name)
		       : 0;
}

/* The sync comes last: it is left to a step where it is shared. */
static const struct op_call remove_calls[] = {
	{"open", .fn = open_call, .end = open_end, .undo = open_undo},
	{"lock", .fn = lock_call, .end = lock_end},
	{"rename", .fn = rename_call, .end = rename_end, .flags = OP_COMMIT},
	{"sync", .fn = sync_call, .end = sync_end},
};

static int open_run(struct op *op)
{
	struct pool_remove *r = remove_of(op);
	r->dirfd = pool_fd_of(r->pool, r->object->kind);
	r->key = r->object->key;
	pool_random_hex(r->trash_name, TRASH_NAME_BYTES - 1);
	r->trash_fd = r->pool->fds[POOL_FD_TRASH];
	bool alone = pool_sync_alone(r->pool, r->object->kind, &r->sync);
	return op_calls(op, remove_calls, alone ? 4 : 3);
}

static const struct op_step remove_steps[] = {
	{"begin", .run = begin_run, .undo = begin_undo},
	{"forget departure", .run = forget_run, .done = forget_done},
	{"open", .run = open_run},
	{"rename", .run = gone_run, .done = gone_done, .flags = OP_COMMIT},
	{"sync", .run = sync_run, .end = sync_end, .done = sync_done},
	{NULL},
};

void pool_remove_init(struct pool_remove *r, struct reactor *reactor, struct pool_object *object)
{
	*r = (struct pool_remove){.object = object, .pool = object->pool, .fd = -1};
	op_init(&r->op, reactor, "pool_remove", remove_steps, NULL);
	r->op.lane = r->pool->lane;
}
