/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A group in a raw pool. The rule for ids is that of every build (build_thin.c): a file has the id
 * in its map, and a name in the trash, both durable, before dm-thin hears of it. So whatever crash
 * comes, there is a file for each id that dm-thin knows; and until the group's own file is there,
 * each of these is trash, or a member without a group, of which the next load makes trash. In one
 * trip to a thread the devices of all volumes are suspended, dm-thin is told of one member after
 * the other, and the devices go on.
 *
 * How it can fail: the thin pool cannot be had; it refuses a message; a volume's file system is
 * frozen by somebody else. What dm-thin may know by then is deleted with its file.
 */
#include "pool/group_thin.h"

#include "pool/build_thin.h"
#include "pool/group_make.h"
#include "pool/group_members.h"
#include "pool/private.h"
#include "pool/raw.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define make_of(op_ptr) container_of(op_ptr, struct pool_group_make, op)

bool group_no_thin(struct op *op)
{
	return make_of(op)->pool->raw == NULL;
}

/* ---- ids ---- */

static bool has_bytes(const struct pool_group_part *p)
{
	return pool_raw_has_id(p->source->rec);
}

static int take_ids(struct op *op)
{
	struct pool_group_make *m = make_of(op);
	int r = 0;
	m->disk = disk_ref(m->pool->raw->disk);
	for_each_part (p, m) {
		if (r == 0 && has_bytes(p)) {
			p->thin_origin = pool_entry(p->source)->thin_id;
			r = thin_take_id(m->pool, &p->thin_id, &op->err);
		}
	}
	if (r < 0)
		(void)group_ids_undo(op);
	return r;
}

static bool wants_ids(struct op *op)
{
	const struct pool_group_make *m = make_of(op);
	for_each_part (p, m)
		if (has_bytes(p))
			return true;
	return false;
}

int group_ids_run(struct op *op)
{
	struct pool_group_make *m = make_of(op);
	int r = wants_ids(op) ? thin_want(op, m->pool, &m->thin_wait) : 0;
	return r == 0 ? take_ids(op) : r;
}

int group_ids_end(struct op *op, int res)
{
	struct pool_group_make *m = make_of(op);
	int r = thin_want_end(op, m->pool, &m->thin_wait, res);
	return r == 0 ? take_ids(op) : r;
}

/* What is deleted has its id until dm-thin has forgotten it; what could not be, until the pool is
 * loaded again. */
int group_ids_undo(struct op *op)
{
	struct pool_group_make *m = make_of(op);
	bool dropped = false;
	for_each_part (p, m) {
		dropped |= p->dropped;
		if (p->thin_id != 0 && !p->dropped && !p->parked && !p->linked)
			thin_drop_id(m->pool);
		p->thin_id = 0;
	}
	if (dropped)
		pool_trash_kick(m->pool);
	return 0;
}

/* ---- files ---- */

int group_thin_open(const struct pool_group_make *m, const struct pool_group_part *p)
{
	struct image_map map = {.thin_id = p->thin_id};
	(void)m;
	int r = image_map_write(p->fd, &map);
	return r == 0 && ftruncate(p->fd, (off_t)record_image_bytes(p->source->rec)) < 0 ? -errno
											 : r;
}

/* Of one that dm-thin may know a deleted image is made. */
static int let_go(const struct pool_group_make *m, struct pool_group_part *p)
{
	const char *deleted = p->parked_name + strlen(TRASH_PARKED);
	if (!p->parked)
		return 0;
	bool known = p->thin_id != 0 && m->said && !p->thin_alien;
	int r = known ? renameat2(
				m->trash_fd, p->parked_name, m->trash_fd, deleted, RENAME_NOREPLACE)
		      : unlinkat(m->trash_fd, p->parked_name, 0);
	if (r < 0)
		return -errno;
	p->parked = false;
	p->dropped = known;
	return 0;
}

static int let_all_go(struct pool_group_make *m)
{
	int res = 0;
	for_each_part (p, m) {
		int r = let_go(m, p);
		res = r < 0 ? r : res;
	}
	return res;
}

int group_keep_call(struct op *op)
{
	struct pool_group_make *m = make_of(op);
	int r = group_park_all(m);
	/* One log has the maps, the sizes and the names in this order. */
	if (r == 0 && fsync(m->trash_fd) < 0)
		r = -errno;
	if (r < 0)
		(void)let_all_go(m);
	return r;
}

int group_keep_end(struct op *op, int res)
{
	return group_fail_sys(op, res, "making durable the maps of");
}

static int let_all_go_job(void *arg)
{
	return let_all_go(arg);
}

int group_keep_undo(struct op *op)
{
	return op_work(op, let_all_go_job, make_of(op));
}

/* ---- said ---- */

static int snap_all(struct pool_group_make *m, struct thin_snap *snaps)
{
	_cleanup_dm_ struct dm dm = {.fd = -1};
	unsigned count = 0, at = 0;
	int r = dm_open(&dm, DM_CONTROL_PATH);
	for (unsigned i = 0; r == 0 && i < m->count; i++) {
		const struct pool_group_part *p = &m->parts[i];
		if (p->thin_id == 0)
			continue;
		bool frozen = m->is_frozen != NULL && m->is_frozen(m->hold_arg, i);
		snaps[count] = (struct thin_snap){.id = p->thin_id, .origin = p->thin_origin};
		r = thin_still_of(p->source, frozen, &snaps[count++].still);
	}
	if (r < 0 || count == 0)
		return r;
	m->said = true;
	r = thin_pool_snap(&dm, m->disk->uuid, snaps, count, &at);
	/* Nobody's to delete: no file had it. */
	for_each_part (p, m)
		p->thin_alien = r == -EEXIST && p->thin_id == snaps[at].id;
	return r;
}

int group_say(struct pool_group_make *m)
{
	struct thin_snap *snaps = calloc(m->count, sizeof(*snaps));
	int r = snaps == NULL ? -ENOMEM : snap_all(m, snaps);
	free(snaps);
	return r;
}

int group_say_end(struct op *op, int res)
{
	const struct pool_group_make *m = make_of(op);
	return res < 0 ? thin_fail(&op->err, res, m->pool, m->group->name) : 0;
}
