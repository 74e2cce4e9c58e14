/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Happy path: the first that wants a template claims it: template among the records -> id -> map on
 * an unnamed file -> parked in the trash, durable -> message to dm-thin -> device -> bytes, flushed
 * -> device away -> rename to the templates. Others that come meanwhile wait, and get the same id,
 * or the same error.
 *
 * How it can fail: at any call. Then the device goes, and the file is a deleted image, whose id the
 * trash deletes.
 */
#include "pool/thin_template.h"

#include "blockio/copy.h"
#include "disk/thin_pool.h"
#include "pool/private.h"
#include "pool/raw.h"
#include "pool/template.h"
#include "pool/thin_fill.h"
#include "pool/trash.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct thin_making {
	struct thin_template out;
	struct pool *pool;
	struct fsimg_spec spec;
	char name[RECORD_KEY_MAX];
	struct list link;                  /* waiting for another's */
	struct thin_template_entry *entry; /* claimed by this one */
	struct pool_template source;
	/* the thread's and the loop's in turn */
	struct disk *disk;
	int templates_fd, trash_fd;
	char file[THIN_TEMPLATE_FILE_BYTES];
	char parked[TRASH_PARKED_NAME_BYTES];
	uint32_t id;
	uint64_t bytes;
	bool named, deleted; /* the file has a name; it is a deleted image's */
	bool said;           /* dm-thin was told of the id */
	struct thin_fill device;
	struct err err;
	struct copy copy;
	struct copy_places *places;
};

static struct thin_making *making_of(struct op *op)
{
	return container_of(op, struct thin_making, out.op);
}

static struct thin_templates *templates_of(const struct pool *pool)
{
	return &pool->raw->thin.templates;
}

/* ---- claim ---- */

static int claim_run(struct op *op)
{
	struct thin_making *m = making_of(op);
	struct thin_template_entry *e = thin_templates_find(templates_of(m->pool), m->name);
	if (e == NULL) {
		m->entry = thin_templates_add(templates_of(m->pool), m->name);
		if (m->entry == NULL)
			return op_fail_sys(op, -ENOMEM, "formatting");
		strcpy(m->file, m->entry->file);
		return 0;
	}
	m->out.ret_id = e->id;
	if (e->id != 0)
		return 0;
	list_push(&e->waiters, &m->link);
	return op_wait(op);
}

/* Who waited has what the claimer has. */
static void wake(struct thin_making *m, int res)
{
	for (struct list *l; (l = list_pop(&m->entry->waiters)) != NULL;) {
		struct thin_making *waiter = container_of(l, struct thin_making, link);
		waiter->out.ret_id = m->out.ret_id;
		if (res < 0)
			waiter->out.op.err = m->out.op.err;
		op_complete(&waiter->out.op, res);
	}
}

static int claim_undo(struct op *op)
{
	struct thin_making *m = making_of(op);
	if (m->entry == NULL)
		return 0;
	wake(m, op->err.errnum > 0 ? -op->err.errnum : -EIO);
	thin_templates_cancel(templates_of(m->pool), m->entry);
	m->entry = NULL;
	return 0;
}

static bool is_found(struct op *op)
{
	return making_of(op)->out.ret_id != 0;
}

/* ---- source ---- */

static int source_run(struct op *op)
{
	struct thin_making *m = making_of(op);
	pool_template_init(&m->source, op->reactor, m->pool, &m->spec);
	return op_child(op, &m->source.op);
}

static int source_undo(struct op *op)
{
	fd_close(&making_of(op)->source.fd);
	return 0;
}

/* ---- id ---- */

static int id_run(struct op *op)
{
	struct thin_making *m = making_of(op);
	m->places = calloc(1, sizeof(*m->places) + sizeof(m->places->at[0]));
	if (m->places == NULL)
		return op_fail_sys(op, -ENOMEM, "formatting");
	int r = thin_take_id(m->pool, &m->id, &op->err);
	if (r == 0)
		m->disk = disk_ref(m->pool->raw->disk);
	else
		free(m->places);
	return r;
}

static void let_go(struct thin_making *m)
{
	fd_close(&m->source.fd);
	disk_unref(m->disk);
	free(m->places);
	m->places = NULL;
}

static int id_undo(struct op *op)
{
	struct thin_making *m = making_of(op);
	let_go(m);
	if (m->deleted)
		pool_trash_kick(m->pool);
	else if (!m->named)
		thin_drop_id(m->pool);
	return 0; /* else the next load finds it */
}

/* ---- make ---- */

/* Whether dm-thin may know the id. */
static void unpark(struct thin_making *m, bool known)
{
	const char *deleted = m->parked + strlen(TRASH_PARKED);
	if (known)
		m->deleted = renameat2(m->trash_fd, m->parked, m->trash_fd, deleted,
				     RENAME_NOREPLACE) == 0;
	else
		m->named = unlinkat(m->trash_fd, m->parked, 0) < 0;
}

static int park(struct thin_making *m)
{
	const struct image_map map = {.thin_id = m->id};
	_cleanup_fd_ int fd = openat(m->trash_fd, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	int r = fd < 0 ? -errno : image_map_write(fd, &map);
	if (r == 0 && ftruncate(fd, (off_t)m->spec.size_bytes) < 0)
		r = -errno;
	if (r == 0)
		r = fd_link(fd, m->trash_fd, m->parked);
	m->named = r == 0;
	if (r == 0 && fsync(m->trash_fd) < 0) {
		r = -errno;
		unpark(m, false);
	}
	return r;
}

static int say(const struct thin_making *m)
{
	_cleanup_dm_ struct dm dm = {.fd = -1};
	int r = dm_open(&dm, DM_CONTROL_PATH);
	return r == 0 ? thin_pool_create(&dm, m->disk->uuid, m->id) : r;
}

static int make_call(struct op *op)
{
	struct thin_making *m = making_of(op);
	int r = park(m);
	if (r < 0)
		return r;
	m->said = true;
	r = say(m);
	if (r < 0) {
		/* What it knew before has no file, and is nobody's to delete. */
		unpark(m, r != -EEXIST);
		return r;
	}
	r = thin_fill_open(&m->device, m->disk, m->id, m->spec.size_bytes, &m->err);
	if (r < 0)
		unpark(m, true);
	return r;
}

static int make_end(struct op *op, int res)
{
	struct thin_making *m = making_of(op);
	if (res < 0 && m->err.code != ERR_OK)
		op->err = m->err;
	if (res == 0 || op_failed(op))
		return res;
	return m->said ? thin_fail(&op->err, res, m->pool, "a template")
		       : pool_fail_sys(m->pool, &op->err, res,
				 "making a template in the thin pool of pool %s", m->pool->name);
}

static int drop_job(void *arg)
{
	struct thin_making *m = arg;
	thin_fill_close(&m->device);
	unpark(m, true);
	return 0;
}

static int make_undo(struct op *op)
{
	return op_work(op, drop_job, making_of(op));
}

/* ---- copy, finish ---- */

static int copy_run(struct op *op)
{
	struct thin_making *m = making_of(op);
	m->places->count = 1;
	m->places->at[0] = (struct copy_place){.fd = m->device.fd, .bytes = m->spec.size_bytes};
	m->copy = (struct copy){.src_fd = m->source.fd,
		.dst_fd = -1,
		.dst_places = m->places,
		.size = m->spec.size_bytes};
	copy_init(&m->copy, op->reactor);
	return op_child(op, &m->copy.op);
}

static int finish_call(struct op *op)
{
	struct thin_making *m = making_of(op);
	_cleanup_dm_ struct dm dm = {.fd = -1};
	int r = thin_fill_sync(&m->device);
	if (r == 0)
		r = dm_open(&dm, DM_CONTROL_PATH);
	if (r == 0)
		r = thin_volume_bytes(&dm, m->device.uuid, &m->bytes);
	if (r < 0)
		return r;
	thin_fill_close(&m->device);
	r = renameat2(m->trash_fd, m->parked, m->templates_fd, m->file, RENAME_NOREPLACE);
	return r < 0 ? -errno : 0;
}

static int finish_end(struct op *op, int res)
{
	struct thin_making *m = making_of(op);
	if (res < 0)
		return op_fail_sys(op, res, "making a template in the thin pool of pool %s durable",
			m->pool->name);
	let_go(m);
	thin_templates_made(templates_of(m->pool), m->entry, m->id, m->bytes);
	m->out.ret_id = m->id;
	wake(m, 0);
	m->entry = NULL;
	return 0;
}

static const struct op_step thin_template_steps[] = {
	{"claim", .run = claim_run, .undo = claim_undo},
	{"source", .run = source_run, .undo = source_undo, .done = is_found},
	{"id", .run = id_run, .undo = id_undo, .done = is_found},
	{"make", .call = make_call, .end = make_end, .undo = make_undo, .done = is_found},
	{"copy", .run = copy_run, .done = is_found},
	{"finish", .call = finish_call, .end = finish_end, .done = is_found},
	{NULL},
};

struct thin_template *thin_template_new(
	struct reactor *reactor, struct pool *pool, const struct fsimg_spec *spec)
{
	struct thin_making *m = calloc(1, sizeof(*m));
	if (m == NULL)
		return NULL;
	m->pool = pool;
	m->spec = *spec;
	m->source.fd = m->device.fd = -1;
	m->templates_fd = pool->fds[POOL_FD_TEMPLATES];
	m->trash_fd = pool->fds[POOL_FD_TRASH];
	list_init(&m->link);
	pool_template_name(&m->spec, m->name);
	trash_name_parked(m->parked);
	op_init(&m->out.op, reactor, "thin_template", thin_template_steps, NULL);
	m->out.op.lane = pool->lane;
	return &m->out;
}
