/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Making a group. All that can be done before the volumes are held still is done before, and all
 * that can be done afterwards is done afterwards: between the two is one trip to a thread, which
 * shares the extents of one volume after the other, or the copies where nothing can be shared.
 *
 * The group's file is there before any member has a name, under a name that says that the group is
 * being made (group_file.h). The members get their names, and count for nothing: their records say
 * that they are of a group. The file's rename is the commit of all. Before it a failure takes back
 * what has a name, and closes what has none; a crash leaves members of a group that is being made,
 * which the next load sweeps. With it group and members are in the index, whatever becomes of the
 * sync.
 *
 * What has to be durable before that rename is: with one log (sync.c) the text of the file alone,
 * because all of the members comes before the rename in the log. Elsewhere the file's name, too;
 * and each member is parked in the trash and synced before it gets its name, then their directory.
 */
#include "pool/group_make.h"

#include "base/clock.h"
#include "blockio/image.h"
#include "pool/build.h"
#include "pool/group_members.h"
#include "pool/group_sync.h"
#include "pool/group_thin.h"
#include "pool/index.h"
#include "pool/private.h"
#include "pool/raw.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define make_of(op_ptr) container_of(op_ptr, struct pool_group_make, op)

/* ---- begin, admit ---- */

static int check_sources(struct op *op)
{
	const struct pool_group_make *m = make_of(op);
	for_each_part (p, m) {
		const struct pool_object *s = p->source;
		if (s->rec == NULL || s->image == POOL_IMAGE_TRUNCATED)
			return op_fail(op, ERR_DATA_LOSS, "%s in pool %s cannot be copied: %s",
				s->key, m->pool->name,
				s->rec == NULL ? s->why : "its image is shorter than it should be");
	}
	return 0;
}

static int check_pool(struct op *op)
{
	const struct pool_group_make *m = make_of(op);
	const struct pool *pool = m->pool;
	if (!pool->probed)
		return op_fail(op, ERR_NO_ROOM,
			"pool %s has been too full since the driver started to find out what its file system can do: "
			"delete volumes or snapshots, or grow its file system",
			pool->name);
	if (pool->groups.dir == GROUPS_UNMADE)
		return op_fail(op, ERR_NO_ROOM,
			"pool %s has no directory groups/, as its file system was full or read-only when the driver started: make room there and restart the driver",
			pool->name);
	if (pool->groups.dir == GROUPS_LOST)
		return op_fail(op, ERR_PRECONDITION,
			"pool %s has lost its directory groups/: look at it with ringvol check, make the directory again and restart the driver",
			pool->name);
	if (pool->index[0].count + pool->index[1].count + m->count > POOL_OBJECTS_MAX ||
		pool->groups.count >= POOL_GROUPS_MAX)
		return op_fail(op, ERR_NO_ROOM,
			"pool %s holds as many volumes, snapshots or group snapshots as it may (%d, of group snapshots %d)",
			pool->name, POOL_OBJECTS_MAX, POOL_GROUPS_MAX);
	return 0;
}

/* There a thick volume shares nothing, and is not copied either. */
static int check_raw(struct op *op)
{
	const struct pool_group_make *m = make_of(op);
	for_each_part (p, m)
		if (m->pool->raw != NULL && (p->source->rec->thick || group_is_copied(p)))
			return op_fail(op, ERR_PRECONDITION,
				"volume %s is thick or has eraseOnDelete, and lies in pool %s on raw disks: there it is in no group snapshot",
				p->source->rec->name, m->pool->name);
	return 0;
}

static int fail_exists(struct op *op)
{
	const struct pool_group_make *m = make_of(op);
	return op_fail(op, ERR_EXISTS, "group snapshot %s already exists in pool %s",
		m->group->name, m->pool->name);
}

static int begin_run(struct op *op)
{
	struct pool_group_make *m = make_of(op);
	struct pool *pool = m->pool;
	int r = pool_check_ready(pool, &op->err);
	if (r == 0)
		r = check_pool(op);
	if (r == 0)
		r = check_sources(op);
	if (r == 0)
		r = check_raw(op);
	if (r < 0)
		return r;
	if (pool_group_find(pool, m->group->key) != NULL)
		return fail_exists(op);
	m->snapshots_fd = pool->fds[POOL_FD_SNAPSHOTS];
	m->volumes_fd = pool->fds[POOL_FD_VOLUMES];
	m->trash_fd = pool->fds[POOL_FD_TRASH];
	m->groups_fd = pool->fds[POOL_FD_GROUPS];
	m->direct_io = pool->features.direct_io;
	return pool_op_begin(pool, &op->err);
}

static int begin_undo(struct op *op)
{
	pool_op_finish(make_of(op)->pool);
	return 0;
}

static int admit_run(struct op *op)
{
	struct pool_group_make *m = make_of(op);
	m->room.pool = m->pool;
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

/* ---- before the volumes are held still: files, sized, and their sources ---- */

static void close_all(struct pool_group_make *m)
{
	for_each_part (p, m) {
		fd_close(&p->fd);
		fd_close(&p->source_fd);
	}
}

static int open_one(const struct pool_group_make *m, struct pool_group_part *p)
{
	int flags = O_RDWR | O_CLOEXEC | (m->direct_io ? O_DIRECT : 0);
	uint64_t size = record_image_bytes(p->source->rec);
	p->fd = openat(m->snapshots_fd, ".", O_TMPFILE | flags, 0600);
	if (p->fd < 0)
		return -errno;
	if (m->disk != NULL)
		return group_thin_open(m, p);
	int r = image_hint_for_size(p->fd, size);
	if (r == 0)
		r = image_resize(p->fd, size, false);
	if (r < 0 || !p->share)
		return r;
	p->source_fd = openat(
		m->volumes_fd, p->source->key, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	return p->source_fd < 0 ? -errno : 0;
}

static int open_call(struct op *op)
{
	struct pool_group_make *m = make_of(op);
	int r = 0;
	for (unsigned i = 0; r == 0 && i < m->count; i++)
		r = open_one(m, &m->parts[i]);
	if (r < 0)
		close_all(m);
	return r;
}

static int open_end(struct op *op, int res)
{
	return group_fail_sys(op, res, "making the files of");
}

static int close_job(void *arg)
{
	close_all(arg);
	return 0;
}

static int open_undo(struct op *op)
{
	return op_work(op, close_job, make_of(op));
}

/* ---- while they are held still ---- */

static int hold_run(struct op *op)
{
	struct pool_group_make *m = make_of(op);
	return m->hold == NULL ? 0 : m->hold(op, m->hold_arg);
}

static int release_run(struct op *op)
{
	struct pool_group_make *m = make_of(op);
	return m->release == NULL ? 0 : m->release(op, m->hold_arg);
}

static int share_call(struct op *op)
{
	struct pool_group_make *m = make_of(op);
	int r = 0;
	if (m->disk != NULL)
		return group_say(m);
	for (unsigned i = 0; r == 0 && i < m->count; i++) {
		const struct pool_group_part *p = &m->parts[i];
		if (p->share)
			r = pool_share_extents(
				p->source_fd, p->fd, record_image_bytes(p->source->rec));
	}
	return r;
}

static int share_end(struct op *op, int res)
{
	struct pool_group_make *m = make_of(op);
	m->group->created_ns = clock_now_ns();
	if (m->disk != NULL)
		return group_say_end(op, res);
	if (res == -EOPNOTSUPP || res == -EXDEV)
		return op_fail(op, ERR_PRECONDITION,
			"pool %s refuses to share the extents of its volumes, so that no group snapshot can be taken of volumes in use: detach them first",
			m->pool->name);
	return group_fail_sys(op, res, "sharing the extents for");
}

static int refuse_stopped(struct op *op)
{
	err_clear(&op->err);
	return op_fail(op, ERR_UNAVAILABLE,
		"group snapshot %s: copying was stopped because the driver shuts down; try again",
		make_of(op)->group->name);
}

/* One after the other: they share a disk. */
static int copy_next(struct op *op)
{
	struct pool_group_make *m = make_of(op);
	while (m->at < m->count && !group_is_copied(&m->parts[m->at]))
		m->at++;
	if (m->at == m->count)
		return 0;
	if (m->stopped)
		return refuse_stopped(op);
	pool_clone_init(&m->clone, m->parts[m->at].source);
	return pool_clone_fill(op, m->parts[m->at].fd, &m->clone);
}

static int copy_run(struct op *op)
{
	make_of(op)->at = 0;
	return copy_next(op);
}

static int copy_end(struct op *op, int res)
{
	struct pool_group_make *m = make_of(op);
	res = pool_clone_fill_end(op, res, &m->clone);
	if (res < 0)
		return m->stopped ? refuse_stopped(op) : res;
	m->at++;
	return copy_next(op);
}

/* ---- the group's file ---- */

/* What has come to have its name after all goes, too: a rename that failed may have come about. */
static int drop_file(struct pool_group_make *m)
{
	struct stat st;
	int r = 0;
	if (m->file_named && unlinkat(m->groups_fd, m->file_name, 0) < 0 && errno != ENOENT)
		r = -errno;
	m->file_named = false;
	if (m->file_fd >= 0 && fstat(m->file_fd, &st) == 0 && st.st_nlink > 0 &&
		unlinkat(m->groups_fd, m->group->key, 0) < 0)
		r = -errno;
	fd_close(&m->file_fd);
	return r;
}

static int write_file(struct pool_group_make *m)
{
	m->file_fd = openat(m->groups_fd, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	if (m->file_fd < 0)
		return -errno;
	ssize_t n = write(m->file_fd, m->text, m->text_len);
	if (n != (ssize_t)m->text_len)
		return n < 0 ? -errno : -ENOSPC;
	int r = fd_link(m->file_fd, m->groups_fd, m->file_name);
	if (r < 0)
		return r;
	m->file_named = true;
	if (fsync(m->file_fd) < 0)
		return -errno;
	bool one_log = pool_one_log(&m->pool->features);
	return !one_log && fsync(m->groups_fd) < 0 ? -errno : 0;
}

static int file_job(void *arg)
{
	struct pool_group_make *m = arg;
	int r = write_file(m);
	if (r < 0)
		(void)drop_file(m);
	return r;
}

static int file_run(struct op *op)
{
	struct pool_group_make *m = make_of(op);
	m->text = malloc(GROUP_TEXT_MAX);
	int n = m->text == NULL ? -ENOMEM : group_print(m->group, m->text, GROUP_TEXT_MAX);
	if (n < 0)
		return group_fail_sys(op, n, "recording");
	m->text_len = (unsigned)n;
	group_aside_name(GROUP_NEW, m->group->random, m->group->key, m->file_name);
	return op_work(op, file_job, m);
}

static int file_end(struct op *op, int res)
{
	return group_fail_sys(op, res, "recording");
}

static int drop_file_job(void *arg)
{
	return drop_file(arg);
}

static int file_undo(struct op *op)
{
	return op_work(op, drop_file_job, make_of(op));
}

/* ---- the commit ---- */

static int commit_call(struct op *op)
{
	const struct pool_group_make *m = make_of(op);
	int r = renameat2(
		m->groups_fd, m->file_name, m->groups_fd, m->group->key, RENAME_NOREPLACE);
	return r < 0 ? -errno : 0;
}

static int enter_member(struct pool_group_make *m, struct pool_group_part *p)
{
	struct stat st = {0};
	fstat(p->fd, &st); /* of an open file: the kernel has it in memory */
	struct pool_found found = {
		.rec = p->rec,
		.kind = RECORD_SNAPSHOT,
		.image_bytes = (uint64_t)st.st_size,
		.allocated_bytes = (uint64_t)st.st_blocks * 512,
		.thin_id = p->thin_id,
		.image_dev = st.st_dev,
		.image_ino = st.st_ino,
	};
	strcpy(found.key, p->rec->key);
	if (p->thin_id != 0) /* it has what its source has; it is measured when that matters */
		found.allocated_bytes = p->source->allocated_bytes;
	p->made = pool_index_insert(m->pool, &found);
	if (p->made == NULL)
		return -ENOMEM;
	p->rec = NULL;
	if (!p->share)
		pool_room_used(m->pool, p->made->allocated_bytes);
	return 0;
}

/* The name is there: the group counts with all its members, and what was reserved no longer does.
 */
static int enter_index(struct pool_group_make *m)
{
	struct pool *pool = m->pool;
	int r = 0;
	pool_admit_release(&m->room);
	pool_op_finish(pool);
	for (unsigned i = 0; r == 0 && i < m->count; i++)
		r = enter_member(m, &m->parts[i]);
	for_each_part (p, m)
		if (p->made != NULL)
			pool_family_update(pool, pool_family(p->made->rec));
	if (r == 0)
		r = pool_group_insert(pool, m->group);
	if (r < 0)
		return r;
	m->group->unsynced = true;
	m->ret_group = m->group;
	m->group = NULL;
	return 0;
}

static int commit_end(struct op *op, int res)
{
	struct pool_group_make *m = make_of(op);
	if (res == -EEXIST)
		return op_fail(op, ERR_EXISTS,
			"pool %s has a file of group snapshot %s that the driver has not read: restart the driver, which reads it",
			m->pool->name, m->group->name);
	if (res < 0)
		return group_fail_sys(op, res, "committing");
	m->file_named = false;
	/* Out of memory here, the group is on disk and the next load knows it; the sync goes on. */
	m->indexed = enter_index(m) == 0;
	return 0;
}

static int sync_run(struct op *op)
{
	struct pool_group_make *m = make_of(op);
	return group_sync_dir(op, m->pool, &m->removed);
}

static int sync_end(struct op *op, int res)
{
	struct pool_group_make *m = make_of(op);
	if (res < 0)
		return op_fail_sys(
			op, res, "making a group snapshot durable in pool %s", m->pool->name);
	group_sync_done(m->pool, m->removed);
	if (!m->indexed)
		return op_fail_sys(op, -ENOMEM, "taking note of a new group snapshot");
	m->ret_group->unsynced = false;
	return 0;
}

static const struct op_step make_steps[] = {
	{"begin", .run = begin_run, .undo = begin_undo},
	{"admit", .run = admit_run, .end = admit_end, .undo = admit_undo},
	{"ids", .run = group_ids_run, .end = group_ids_end, .undo = group_ids_undo,
		.done = group_no_thin},
	{"open", .call = open_call, .end = open_end, .undo = open_undo},
	{"keep", .call = group_keep_call, .end = group_keep_end, .undo = group_keep_undo,
		.done = group_no_thin},
	{"hold", .run = hold_run, .undo = release_run},
	{"share", .call = share_call, .end = share_end},
	{"copy", .run = copy_run, .end = copy_end, .done = group_copy_done},
	{"release", .run = release_run},
	{"record", .run = group_record_run, .end = group_record_end},
	{"file", .run = file_run, .end = file_end, .undo = file_undo},
	{"park", .call = group_park_call, .end = group_park_end, .undo = group_park_undo,
		.done = group_park_done},
	{"data", .run = group_data_run, .end = group_data_end, .done = group_data_done},
	{"link", .call = group_link_call, .end = group_link_end, .undo = group_link_undo},
	{"members", .run = group_members_run, .end = group_members_end, .done = group_one_log},
	{"commit", .call = commit_call, .end = commit_end, .flags = OP_COMMIT},
	{"sync", .run = sync_run, .end = sync_end},
	{NULL},
};

int pool_group_make_init(struct pool_group_make *m, struct reactor *reactor, struct pool *pool,
	const char *name, const char *claim, const struct pool_group_part *parts, unsigned count)
{
	*m = (struct pool_group_make){
		.pool = pool, .reactor = reactor, .claim = claim, .file_fd = -1};
	op_init(&m->op, reactor, "pool_group", make_steps, NULL);
	m->op.lane = pool->lane;
	char key[RECORD_KEY_MAX];
	record_key(name, key);
	m->group = pool_group_new(key, count);
	m->parts = calloc(count, sizeof(*m->parts));
	if (m->group == NULL || m->parts == NULL)
		return -ENOMEM;
	snprintf(m->group->name, sizeof(m->group->name), "%s", name);
	pool_random_hex(m->group->random, 8);
	m->count = count;
	for (unsigned i = 0; i < count; i++)
		m->parts[i] = (struct pool_group_part){.source = parts[i].source,
			.share = parts[i].share,
			.fd = -1,
			.source_fd = -1};
	return 0;
}

void pool_group_make_stop(struct pool_group_make *m)
{
	m->stopped = true;
	m->clone.copy.stop = true;
}

void pool_group_make_free(struct pool_group_make *m)
{
	if (m->parts != NULL) {
		close_all(m);
		for (unsigned i = 0; i < m->count; i++)
			record_free(m->parts[i].rec);
	}
	if (m->disk != NULL)
		disk_unref(m->disk);
	m->disk = NULL;
	free(m->parts);
	m->parts = NULL;
	m->count = 0;
	fd_close(&m->file_fd);
	free(m->text);
	m->text = NULL;
	pool_group_free(m->group);
	m->group = NULL;
}
