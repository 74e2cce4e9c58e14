/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Holds. Happy path: room is admitted, the image gets its name and is durable, then the file that
 * says for whom is linked, which is the commit. The hold is on the pool's list until it is dropped:
 * that file goes first, then the image goes to the trash.
 *
 * How it can fail: no room; the volume's extents cannot be shared though it is held still for no
 * more than that. Before the commit a failure takes away what has a name. After a crash the next
 * load takes away what makes no hold. Nothing here is anybody's only copy.
 */
#include "pool/hold.h"

#include "base/fd.h"
#include "pool/index.h"
#include "pool/private.h"
#include "pool/trash.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>

#define HOLD_PREFIX "send-"
#define HOLD_SUFFIX ".grant"
#define HOLD_HEAD   "ringvol-send 1"
#define HOLD_SENT   "trusted.ringvol.sent"
enum {
	HOLD_DIGITS = 16,
	HOLD_FILE_BYTES = sizeof(HOLD_PREFIX) + HOLD_DIGITS + sizeof(HOLD_SUFFIX),
	HOLD_TEXT_MAX = RECORD_BYTES_MAX + POOL_HOLD_NODE_MAX + 1024,
};

static bool is_hex(const char *text, size_t digits)
{
	return strspn(text, "0123456789abcdef") >= digits;
}

static bool is_image_name(const char *name)
{
	size_t len = strlen(HOLD_PREFIX);
	return strncmp(name, HOLD_PREFIX, len) == 0 && strlen(name) == len + HOLD_DIGITS &&
	       is_hex(name + len, HOLD_DIGITS);
}

static bool is_grant_name(const char *name)
{
	char image[sizeof(HOLD_PREFIX) + HOLD_DIGITS];
	size_t len = sizeof(image) - 1;
	if (strlen(name) != len + strlen(HOLD_SUFFIX) || strcmp(name + len, HOLD_SUFFIX) != 0)
		return false;
	snprintf(image, sizeof(image), "%.*s", (int)len, name);
	return is_image_name(image);
}

bool pool_hold_name_valid(const char *name)
{
	return is_image_name(name) || is_grant_name(name);
}

static void grant_name(const char *image, char ret_name[HOLD_FILE_BYTES])
{
	snprintf(ret_name, HOLD_FILE_BYTES, "%s" HOLD_SUFFIX, image);
}

void pool_hold_free(struct pool_hold *hold)
{
	if (hold == NULL)
		return;
	record_free(hold->rec);
	free(hold);
}

struct pool_hold *pool_hold_next(const struct pool *pool, const struct pool_hold *after)
{
	struct list *next = after == NULL ? pool->holds.next : after->link.next;
	return next == &pool->holds ? NULL : container_of(next, struct pool_hold, link);
}

int pool_holds_fd(const struct pool *pool)
{
	return pool->fds[POOL_FD_COPIES];
}

int pool_hold_note_sent(int fd)
{
	return fsetxattr(fd, HOLD_SENT, "", 0, 0) < 0 || fsync(fd) < 0 ? -errno : 0;
}

int pool_hold_open(int holds_fd, const char *name, bool direct_io)
{
	struct stat st;
	int flags = direct_io ? O_DIRECT : 0;
	int fd = openat(holds_fd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | flags);
	if (fd < 0)
		return -errno;
	/* The ring would not wait for its disk. */
	int r = fstat(fd, &st) < 0 || fcntl(fd, F_SETFL, flags) < 0 ? -errno : 0;
	if (r == 0 && !S_ISREG(st.st_mode))
		r = -EMEDIUMTYPE;
	if (r < 0)
		close(fd);
	return r < 0 ? r : fd;
}

/* ---- the file that says for whom: fields that end with NUL, the record last ---- */

enum hold_field {
	FIELD_HEAD,
	FIELD_GRANT,
	FIELD_NODE,
	FIELD_NAME,
	FIELD_SOURCE,
	FIELD_SHARES,
	FIELDS
};

static int print_hold(const struct pool_hold *hold, char *text, size_t cap)
{
	const char *const fields[FIELDS] = {[FIELD_HEAD] = HOLD_HEAD,
		[FIELD_GRANT] = hold->grant,
		[FIELD_NODE] = hold->node_id,
		[FIELD_NAME] = hold->volume_name,
		[FIELD_SOURCE] = hold->source_id,
		[FIELD_SHARES] = hold->shares ? "1" : "0"};
	size_t at = 0;
	for (unsigned i = 0; i < FIELDS; i++) {
		size_t len = strlen(fields[i]) + 1;
		if (len > cap - at)
			return -E2BIG;
		memcpy(text + at, fields[i], len);
		at += len;
	}
	if (cap - at < RECORD_BYTES_MAX)
		return -E2BIG;
	int n = record_print(hold->rec, text + at, cap - at);
	return n < 0 ? n : (int)at + n;
}

static bool take_field(char *to, size_t cap, const char *from)
{
	return (size_t)snprintf(to, cap, "%s", from) < cap;
}

/* 0; -EBADMSG: it is damaged; -EPROTONOSUPPORT: of a later version; -ENOMEM. */
static int parse_hold(const char *text, size_t len, struct pool_hold *hold)
{
	const char *fields[FIELDS], *end = text + len;
	if (len < sizeof(HOLD_HEAD) || memcmp(text, HOLD_HEAD, sizeof(HOLD_HEAD)) != 0)
		return -EPROTONOSUPPORT;
	for (unsigned i = 0; i < FIELDS; i++) {
		const char *nul = memchr(text, '\0', (size_t)(end - text));
		if (nul == NULL)
			return -EBADMSG;
		fields[i] = text;
		text = nul + 1;
	}
	struct record_id id;
	if (strlen(fields[FIELD_GRANT]) != POOL_GRANT_BYTES - 1 ||
		!is_hex(fields[FIELD_GRANT], POOL_GRANT_BYTES - 1) ||
		!take_field(hold->grant, sizeof(hold->grant), fields[FIELD_GRANT]) ||
		!take_field(hold->node_id, sizeof(hold->node_id), fields[FIELD_NODE]) ||
		!take_field(hold->volume_name, sizeof(hold->volume_name), fields[FIELD_NAME]) ||
		!take_field(hold->source_id, sizeof(hold->source_id), fields[FIELD_SOURCE]) ||
		record_id_parse(hold->source_id, &id) < 0)
		return -EBADMSG;
	hold->shares = strcmp(fields[FIELD_SHARES], "0") != 0;
	return record_parse(text, (size_t)(end - text), id.key, &hold->rec);
}

/* ---- loading ---- */

struct hold_reading {
	int copies_fd;
	struct list *holds;
};

/* What nobody can tell was sent. */
static bool was_sent(int image)
{
	return fgetxattr(image, HOLD_SENT, NULL, 0) >= 0 || errno != ENODATA;
}

/* 0: it is one. -EBADMSG, -ENOENT: it makes none, for certain. Else nobody can tell now. */
static int read_hold(int copies_fd, const char *grant, struct pool_hold *hold)
{
	char text[HOLD_TEXT_MAX];
	struct stat st;
	const int flags = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
	_cleanup_fd_ int image = openat(copies_fd, hold->name, flags);
	if (image < 0 || fstat(image, &st) < 0)
		return -errno;
	_cleanup_fd_ int file = openat(copies_fd, grant, flags);
	ssize_t len = file < 0 ? -1 : read(file, text, sizeof(text));
	if (len < 0)
		return errno == ENOENT ? -EAGAIN : -errno;
	int r = parse_hold(text, (size_t)len, hold);
	if (r < 0)
		return r;
	if (!S_ISREG(st.st_mode) || (uint64_t)st.st_size < hold->rec->size_bytes)
		return -EMEDIUMTYPE;
	hold->sent = was_sent(image);
	hold->allocated_bytes = (uint64_t)st.st_blocks * 512;
	hold->opened = true; /* nobody knows: it has the longer time */
	return 0;
}

static int read_one(void *arg, const char *name)
{
	const struct hold_reading *reading = arg;
	char grant[HOLD_FILE_BYTES];
	struct stat st;
	bool image = is_image_name(name);
	if (!image && !is_grant_name(name))
		return 0;
	if (image) {
		grant_name(name, grant);
		if (fstatat(reading->copies_fd, grant, &st, AT_SYMLINK_NOFOLLOW) == 0 ||
			errno != ENOENT)
			return 0;
	}
	struct pool_hold *hold = calloc(1, sizeof(*hold));
	if (hold == NULL)
		return -ENOMEM;
	snprintf(hold->name, sizeof(hold->name), "%.*s", (int)sizeof(hold->name) - 1, name);
	int r = image ? -ENOENT : read_hold(reading->copies_fd, name, hold);
	hold->dropped = r < 0;
	if (r == 0 || r == -EBADMSG || r == -ENOENT)
		list_push(reading->holds, &hold->link);
	else
		pool_hold_free(hold);
	return 0;
}

int pool_holds_read(int copies_fd, struct list *ret_holds)
{
	struct hold_reading reading = {copies_fd, ret_holds};
	return fd_each_name(copies_fd, read_one, &reading);
}

static void enter_hold(struct pool *pool, struct pool_hold *hold)
{
	hold->pool = pool;
	list_push(&pool->holds, &hold->link);
	pool->hold_count++;
}

/* ---- dropping ---- */

struct hold_drop {
	struct pool_job job;
	struct pool_hold *hold;
	int copies_fd, trash_fd;
};

/* It may have to be erased. */
static int discard_image(int copies_fd, const char *name, int trash_fd)
{
	char trash[TRASH_NAME_BYTES];
	pool_random_hex(trash, TRASH_NAME_BYTES - 1);
	return renameat2(copies_fd, name, trash_fd, trash, RENAME_NOREPLACE) < 0 ? -errno : 0;
}

static int drop_run(struct pool_job *job)
{
	const struct hold_drop *d = container_of(job, struct hold_drop, job);
	char name[HOLD_FILE_BYTES];
	grant_name(d->hold->name, name);
	if (unlinkat(d->copies_fd, name, 0) < 0 && errno != ENOENT)
		return -errno;
	return discard_image(d->copies_fd, d->hold->name, d->trash_fd);
}

static void drop_on_end(struct pool_job *job, int res)
{
	struct hold_drop *d = container_of(job, struct hold_drop, job);
	struct pool *pool = job->pool;
	(void)res; /* what is left is found by the next load */
	if (pool != NULL)
		pool_trash_kick(pool);
	pool_hold_free(d->hold);
	free(d);
}

/* False: out of memory. */
static bool drop_files(struct pool *pool, struct pool_hold *hold)
{
	struct hold_drop *d = calloc(1, sizeof(*d));
	if (d == NULL)
		return false;
	list_remove(&hold->link);
	d->hold = hold;
	d->copies_fd = pool->fds[POOL_FD_COPIES];
	d->trash_fd = pool->fds[POOL_FD_TRASH];
	d->job.run = drop_run;
	d->job.on_end = drop_on_end;
	list_init(&d->job.link);
	pool_job_submit(pool, &d->job);
	return true;
}

void pool_hold_drop(struct pool_hold *hold)
{
	struct pool *pool = hold->pool;
	char family[RECORD_ID_MAX];
	strcpy(family, pool_hold_family(hold));
	hold->dropped = true;
	if (!drop_files(pool, hold))
		return; /* it is dropped at the next look */
	pool->hold_count--;
	pool_family_update(pool, family);
}

/* ---- taking over what was read ---- */

static bool is_known(const struct pool *pool, const struct pool_hold *found)
{
	for (struct pool_hold *h = NULL; (h = pool_hold_next(pool, h)) != NULL;)
		if (strcmp(h->name, found->name) == 0)
			return true;
	return false;
}

void pool_holds_adopt(struct pool *pool, struct list *holds)
{
	list_for_each_safe (l, holds) {
		struct pool_hold *found = container_of(l, struct pool_hold, link);
		if (is_known(pool, found))
			continue;
		if (found->dropped) {
			(void)drop_files(pool, found); /* else by the next load */
			continue;
		}
		list_remove(&found->link);
		enter_hold(pool, found);
	}
}

/* ---- making ---- */

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
	list_init(&hold->link);
	strcpy(hold->name, HOLD_PREFIX);
	pool_random_hex(hold->name + strlen(HOLD_PREFIX), HOLD_DIGITS);
	pool_random_hex(hold->grant, POOL_GRANT_BYTES - 1);
	hold->rec = record_new(m->source->rec);
	if (hold->rec == NULL)
		return -ENOMEM;
	int n = record_print(hold->rec, m->text, HOLD_TEXT_MAX);
	if (n < 0)
		return n;
	m->text_len = (unsigned)n;
	if (!take_field(hold->node_id, sizeof(hold->node_id), m->node_id) ||
		!take_field(hold->volume_name, sizeof(hold->volume_name), m->volume_name) ||
		!take_field(hold->source_id, sizeof(hold->source_id), m->source_id))
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
	if (ftruncate(m->fd, (off_t)m->hold->rec->size_bytes) < 0)
		return -errno;
	if (!m->share)
		return 0;
	_cleanup_fd_ int from =
		openat(m->dir_fd, m->source->key, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	int r = from < 0 ? -errno : pool_share_extents(from, m->fd, m->hold->rec->size_bytes);
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
	grant_name(m->hold->name, name);
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
	int n = print_hold(m->hold, m->text, HOLD_TEXT_MAX);
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
	enter_hold(pool, m->hold);
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
