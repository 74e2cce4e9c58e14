/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The members of a group that is being made, after they have their bytes: records, then (where
 * there is not one log) names in the trash, data, names. Until the group's file has its name they
 * count for nothing. What fails takes back the names it gave; what was done before it has an undo.
 */
#include "pool/group_members.h"

#include "pool/group_make.h"
#include "pool/index.h"
#include "pool/private.h"
#include "pool/raw.h"
#include "pool/sync.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/xattr.h>

#define make_of(op_ptr) container_of(op_ptr, struct pool_group_make, op)

int group_fail_sys(struct op *op, int res, const char *what)
{
	const struct pool_group_make *m = make_of(op);
	return res < 0 ? pool_fail_sys(m->pool, &op->err, res, "%s group snapshot %s in pool %s",
				 what, m->group->name, m->pool->name)
		       : 0;
}

bool group_is_copied(const struct pool_group_part *p)
{
	return !p->share && !p->source->rec->unformatted;
}

bool group_copy_done(struct op *op)
{
	const struct pool_group_make *m = make_of(op);
	for_each_part (p, m)
		if (group_is_copied(p))
			return false;
	return true;
}

/* ---- records ---- */

/* "<key of the group>.<its random part>.<number>": so that no client's snapshot is in the way, nor
 * what an attempt cut short has left. */
static int complete_record(const struct pool_group_make *m, struct pool_group_part *p, unsigned i)
{
	char name[RECORD_NAME_MAX + 1], source_id[RECORD_ID_MAX], group_id[RECORD_ID_MAX];
	const struct pool_group *group = m->group;
	struct record rec = *p->source->rec;
	rec.born = ""; /* it is made in this pool */
	rec.moves = 0;
	snprintf(name, sizeof(name), "%s.%s.%u", group->key, group->random, i);
	pool_object_id(p->source, source_id);
	snprintf(group_id, sizeof(group_id), "%s.%s.%s", m->pool->uuid8, group->key, group->random);
	rec.kind = RECORD_SNAPSHOT;
	rec.name = name;
	rec.created_ns = group->created_ns;
	pool_random_hex(rec.random, 8);
	/* The bytes it shares are allocated anyway, and it is never written to. */
	rec.thick = false;
	rec.allow_mode_change = false;    /* what is made of it says so itself */
	rec.attach = RECORD_ATTACH_LOCAL; /* likewise */
	rec.source = RECORD_SOURCE_VOLUME;
	rec.source_id = source_id;
	rec.shares_extents = p->share;
	rec.family = p->share ? pool_family(p->source->rec) : "";
	rec.group = group_id;
	rec.limits = (struct io_limits){0};
	rec.claim = m->claim;
	p->rec = record_new(&rec);
	if (p->rec == NULL)
		return -ENOMEM;
	record_id_print(m->pool->uuid8, p->rec, m->group->members[i]);
	return 0;
}

static int write_record(const struct pool_group_part *p)
{
	char text[RECORD_BYTES_MAX];
	int len = record_print(p->rec, text, sizeof(text));
	if (len < 0)
		return len;
	if (fsetxattr(p->fd, RECORD_XATTR, text, (size_t)len, XATTR_CREATE) < 0)
		return -errno;
	/* Only people read the claim: it may be left out where there is no room. */
	if (p->rec->claim[0] != '\0')
		(void)fsetxattr(p->fd, RECORD_CLAIM_XATTR, p->rec->claim, strlen(p->rec->claim), 0);
	return 0;
}

static int record_job(void *arg)
{
	struct pool_group_make *m = arg;
	int r = 0;
	for (unsigned i = 0; r == 0 && i < m->count; i++)
		r = write_record(&m->parts[i]);
	return r;
}

int group_record_run(struct op *op)
{
	struct pool_group_make *m = make_of(op);
	int r = 0;
	for (unsigned i = 0; r == 0 && i < m->count; i++)
		r = complete_record(m, &m->parts[i], i);
	m->group->count = m->count;
	return r < 0 ? group_fail_sys(op, r, "recording") : op_work(op, record_job, m);
}

int group_record_end(struct op *op, int res)
{
	return group_fail_sys(op, res, "recording");
}

/* ---- park, data ---- */

bool group_one_log(struct op *op)
{
	return pool_one_log(&make_of(op)->pool->features);
}

static int unpark(const struct pool_group_make *m)
{
	int r = 0;
	for_each_part (p, m) {
		if (p->parked && unlinkat(m->trash_fd, p->parked_name, 0) < 0)
			r = -errno;
		p->parked = false;
	}
	return r;
}

bool group_park_done(struct op *op)
{
	return make_of(op)->disk != NULL || group_one_log(op);
}

int group_park_all(struct pool_group_make *m)
{
	int r = 0;
	for (unsigned i = 0; r == 0 && i < m->count; i++) {
		struct pool_group_part *p = &m->parts[i];
		trash_name_parked(p->parked_name);
		r = fd_link(p->fd, m->trash_fd, p->parked_name);
		p->parked = r == 0;
	}
	return r;
}

int group_park_call(struct op *op)
{
	struct pool_group_make *m = make_of(op);
	int r = group_park_all(m);
	if (r < 0)
		(void)unpark(m);
	return r;
}

int group_park_end(struct op *op, int res)
{
	return group_fail_sys(op, res, "parking");
}

static int unpark_job(void *arg)
{
	return unpark(arg);
}

int group_park_undo(struct op *op)
{
	return op_work(op, unpark_job, make_of(op));
}

/* Written data has to be durable before the group is, and all of it where there is not one log. */
static int data_next(struct op *op)
{
	struct pool_group_make *m = make_of(op);
	while (m->at < m->count && group_one_log(op) && !group_is_copied(&m->parts[m->at]))
		m->at++;
	if (m->at == m->count)
		return 0;
	io_uring_prep_fsync(op_sqe(op), m->parts[m->at].fd, 0);
	return op_submit(op);
}

bool group_data_done(struct op *op)
{
	return group_one_log(op) && group_copy_done(op);
}

int group_data_run(struct op *op)
{
	make_of(op)->at = 0;
	return data_next(op);
}

int group_data_end(struct op *op, int res)
{
	if (res < 0)
		return group_fail_sys(op, res, "making durable the data of");
	make_of(op)->at++;
	return data_next(op);
}

/* ---- the names of the members ---- */

/* What dm-thin knows goes back to the trash, from where the undo of another step deletes it. */
static int unlink_one(const struct pool_group_make *m, struct pool_group_part *p)
{
	if (!p->linked)
		return 0;
	if (m->disk == NULL) {
		p->linked = false;
		return unlinkat(m->snapshots_fd, p->rec->key, 0) < 0 ? -errno : 0;
	}
	if (renameat2(m->snapshots_fd, p->rec->key, m->trash_fd, p->parked_name, RENAME_NOREPLACE) <
		0)
		return -errno;
	p->linked = false;
	p->parked = true;
	return 0;
}

static int unlink_all(struct pool_group_make *m)
{
	int res = 0;
	for_each_part (p, m) {
		int r = unlink_one(m, p);
		res = r < 0 ? r : res;
	}
	return res;
}

static int link_one(const struct pool_group_make *m, struct pool_group_part *p)
{
	int r = p->parked ? renameat2(m->trash_fd, p->parked_name, m->snapshots_fd, p->rec->key,
				    RENAME_NOREPLACE) < 0
				    ? -errno
				    : 0
			  : fd_link(p->fd, m->snapshots_fd, p->rec->key);
	p->linked = r == 0;
	p->parked &= r < 0;
	return r;
}

int group_link_call(struct op *op)
{
	struct pool_group_make *m = make_of(op);
	int r = 0;
	for (unsigned i = 0; r == 0 && i < m->count; i++)
		r = link_one(m, &m->parts[i]);
	if (r < 0)
		(void)unlink_all(m);
	return r;
}

int group_link_end(struct op *op, int res)
{
	return group_fail_sys(op, res, "naming the members of");
}

static int unlink_job(void *arg)
{
	return unlink_all(arg);
}

int group_link_undo(struct op *op)
{
	return op_work(op, unlink_job, make_of(op));
}

int group_members_run(struct op *op)
{
	io_uring_prep_fsync(op_sqe(op), make_of(op)->snapshots_fd, 0);
	return op_submit(op);
}

int group_members_end(struct op *op, int res)
{
	return group_fail_sys(op, res, "making durable the members of");
}
