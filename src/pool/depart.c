/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Happy path: the image is locked by nobody, so it is attached nowhere; the note is written, named
 * and synced; then the image goes to the trash. The note is the commit.
 *
 * How it can fail: before the note has its name, with nothing done. Then a sync fails: the note may
 * be durable or not, the other pool must not be told, and the volume must not be used either. It
 * counts as left, and a repeat syncs once more.
 */
#include "pool/depart.h"

#include "base/fd.h"
#include "blockio/image.h"
#include "pool/departure_file.h"
#include "pool/index.h"
#include "pool/private.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define depart_of(op_ptr) container_of(op_ptr, struct pool_depart, op)

static bool is_noted(const struct pool_depart *d)
{
	return d->ret_note != NULL && d->ret_note->moves >= d->note.moves;
}

static bool note_done(struct op *op)
{
	const struct pool_depart *d = depart_of(op);
	return is_noted(d) && !d->ret_note->unsynced;
}

/* ---- begin ---- */

static bool same_way(const struct pool_departure *a, const struct pool_departure *b)
{
	return strcmp(a->to, b->to) == 0 && strcmp(a->node_id, b->node_id) == 0;
}

static int check_volume(struct op *op)
{
	const struct pool_depart *d = depart_of(op);
	const struct pool_object *o = d->volume;
	if (o == NULL)
		return is_noted(d) ? 0
				   : op_fail(op, ERR_NOT_FOUND, "volume %s is not in pool %s",
					     d->note.id, d->pool->name);
	if (o->rec == NULL)
		return op_fail(op, ERR_DATA_LOSS,
			"%s in pool %s is quarantined and never moved: %s", o->key, d->pool->name,
			o->why);
	if (o->kind != RECORD_VOLUME || !pool_object_has_id(o, d->note.id) ||
		(o->rec->moves >= d->note.moves && !pool_entry(d->volume)->left))
		return op_fail(op, ERR_INVALID, "volume %s in pool %s is not the one that leaves",
			o->rec->name, d->pool->name);
	return 0;
}

static int begin_run(struct op *op)
{
	struct pool_depart *d = depart_of(op);
	struct pool_departure *there = pool_departure_by_key(d->pool, d->note.key);
	int r = pool_check_ready(d->pool, &op->err);
	if (r < 0)
		return r;
	d->ret_note = there;
	if (there != NULL && (there->why != NULL || strcmp(there->id, d->note.id) != 0 ||
				     (is_noted(d) && !same_way(there, &d->note))))
		return pool_departure_refuse(there, &op->err);
	r = check_volume(op);
	if (r < 0)
		return r;
	r = departure_print(&d->note, d->text, sizeof(d->text));
	if (r < 0)
		return op_fail_sys(
			op, r, "noting that %s leaves pool %s", d->note.id, d->pool->name);
	d->text_len = (unsigned)r;
	d->made = calloc(1, sizeof(*d->made));
	if (d->made == NULL)
		return op_fail_sys(op, -ENOMEM, "noting that %s leaves", d->note.id);
	d->volumes_fd = pool_fd_of(d->pool, RECORD_VOLUME);
	d->departed_fd = d->pool->fds[POOL_FD_DEPARTED];
	if (d->volume != NULL)
		memcpy(d->image, d->volume->key, sizeof(d->image));
	r = note_done(op) ? 0 : pool_op_begin(d->pool, &op->err);
	d->changes = r == 0 && !note_done(op);
	return r;
}

static void changes_no_more(struct pool_depart *d)
{
	if (d->changes)
		pool_op_finish(d->pool);
	d->changes = false;
}

static int begin_undo(struct op *op)
{
	changes_no_more(depart_of(op));
	return 0;
}

/* ---- note ---- */

/* Of an image that is gone there is nothing that could be attached. */
static int lock_image(const struct pool_depart *d, int *ret_fd)
{
	if (d->image[0] == '\0' || d->attached)
		return 0;
	*ret_fd = openat(d->volumes_fd, d->image, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	if (*ret_fd < 0)
		return errno == ENOENT ? 0 : -errno;
	return image_lock(*ret_fd);
}

static int note_job(void *arg)
{
	struct pool_depart *d = arg;
	_cleanup_fd_ int image = -1;
	if (is_noted(d))
		return fsync(d->departed_fd) < 0 ? -errno : 0;
	int r = lock_image(d, &image);
	d->locked = r == -EWOULDBLOCK || r == 1;
	return r != 0 ? (r < 0 ? r : -EWOULDBLOCK)
		      : departure_write(
				d->departed_fd, d->note.key, d->text, d->text_len, &d->named);
}

static int note_run(struct op *op)
{
	return op_work(op, note_job, depart_of(op));
}

/* The note is there. One that it replaces was of an earlier time that the volume left. */
static void enter(struct pool_depart *d)
{
	struct pool_departure *note = d->made;
	*note = d->note;
	list_init(&note->link);
	note->unsynced = true;
	note->back = false;
	note->why = NULL;
	if (d->ret_note != NULL)
		pool_departure_put_aside(d->ret_note);
	pool_departure_enter(d->pool, note);
	d->ret_note = note;
	d->made = NULL;
	pool_entry(d->volume)->left = true;
}

static int note_end(struct op *op, int res)
{
	struct pool_depart *d = depart_of(op);
	const char *name = d->note.id;
	if (d->named)
		enter(d);
	if (res < 0 && d->locked)
		return op_fail(op, ERR_PRECONDITION,
			"volume %s is attached to a device, or its image is open in another process: detach it first",
			name);
	if (res < 0)
		return op_fail_sys(
			op, res, "noting in pool %s that %s leaves it", d->pool->name, name);
	d->ret_note->unsynced = false;
	changes_no_more(d);
	return 0;
}

/* ---- the image ---- */

static bool remove_done(struct op *op)
{
	const struct pool_depart *d = depart_of(op);
	return d->volume == NULL || d->attached;
}

static int remove_run(struct op *op)
{
	struct pool_depart *d = depart_of(op);
	pool_remove_init(&d->remove, op->reactor, d->volume);
	return op_child(op, &d->remove.op);
}

/* The volume has left in any case. */
static int remove_end(struct op *op, int res)
{
	struct pool_depart *d = depart_of(op);
	(void)res;
	d->volume = d->remove.object; /* NULL: it is gone */
	err_clear(&op->err);
	return 0;
}

static const struct op_step depart_steps[] = {
	{"begin", .run = begin_run, .undo = begin_undo},
	{"note", .run = note_run, .end = note_end, .done = note_done, .flags = OP_COMMIT},
	{"remove", .run = remove_run, .end = remove_end, .done = remove_done},
	{NULL},
};

void pool_depart_init(struct pool_depart *d, struct reactor *reactor, struct pool *pool,
	struct pool_object *volume, const struct pool_departure *note)
{
	struct record_id id;
	*d = (struct pool_depart){.pool = pool, .volume = volume, .note = *note};
	if (record_id_parse(note->id, &id) == 0)
		memcpy(d->note.key, id.key, sizeof(d->note.key));
	op_init(&d->op, reactor, "pool_depart", depart_steps, NULL);
	d->op.lane = pool->lane;
}

void pool_depart_free(struct pool_depart *d)
{
	free(d->made);
	d->made = NULL;
}
