/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Giving back what was deleted: one file of a pool's trash at a time, in bounded pieces. Each piece
 * is a job of its own, so that a drain need not wait long and no thread is kept: erase where the
 * record asks for it (zeros are an operation on the ring, beside the copies), cut the file shorter
 * from its end, unlink it. Every piece can be done twice, so a crash costs nothing but to begin the
 * file again. Only zeros could reach the disk before the rename to trash does, so they wait for it.
 * A file that fails, or that somebody has open, is left for the next look after the pool. Files
 * with other names than ours are left alone.
 *
 * `discard` has the disk below discard the blocks (trim.h). Where they are is known only until they
 * are given back. A mark on the file says that this has begun. A file that is found marked was left
 * by an attempt cut short: all that is free on the disk is discarded for it instead.
 *
 * In a raw pool an image's bytes are in pieces of the disks, which are overwritten whatever its
 * record asks for (trash_raw.h).
 */
#include "pool/trash.h"

#include "blockio/copy.h"
#include "blockio/image.h"
#include "blockio/trim.h"
#include "pool/part.h"
#include "pool/private.h"
#include "pool/raw.h"
#include "pool/trash_raw.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>

enum {
	TRASH_NAMES_MAX = 1024,    /* of one pass */
	TRASH_CUT_BYTES = 1 << 30, /* freed by one job */
};

#define TRASH_PUNCHED "trusted.ringvol.punched"

/* The life of the file that is being given back. It only goes on, to the next line or one below it,
 * and begins again with the next file. */
enum trash_file {
	FILE_CLOSED,
	FILE_ZEROS,   /* to be overwritten, on the loop */
	FILE_ERASING, /* being overwritten */
	FILE_PIECES,  /* in a raw pool: its pieces are overwritten and given back */
	FILE_DISCARD, /* its blocks are discarded */
	FILE_TRIM,    /* where its blocks were is not known: all free ones are discarded */
	FILE_CUT,     /* made shorter, to nothing */
	FILE_GONE,    /* unlinked */
	FILE_FAILED,  /* left for the next look */
};

struct pool_trash {
	struct pool_job job;
	int dirfd, copies_fd;
	char (*names)[TRASH_NAME_BYTES];
	unsigned count, at;
	bool listed, freed, direct_io;
	bool removed; /* a file, in this pass */
	/* the file at names[at] */
	enum trash_file file;
	int fd;
	off_t size;
	bool punched;     /* by an earlier attempt: the blocks it had are not known */
	uint64_t erased;  /* discarded up to here */
	uint64_t trimmed; /* the disk is, up to here */
	struct trim_asked asked;
	struct op zeros; /* overwrites it: a sync, the child, a sync */
	struct copy copy;
	struct trash_raw raw;
	uint64_t raw_done_bytes, raw_size_bytes; /* as the loop has seen them; 0: no pieces */
};

/* ---- names ---- */

static bool is_deleted_name(const char *name)
{
	return strlen(name) == TRASH_NAME_BYTES - 1 &&
	       strspn(name, "0123456789abcdef") == TRASH_NAME_BYTES - 1;
}

static const char *parked_digits(const char *name)
{
	size_t len = strlen(TRASH_PARKED);
	return strncmp(name, TRASH_PARKED, len) == 0 && is_deleted_name(name + len) ? name + len
										    : NULL;
}

bool trash_name_valid(const char *name)
{
	return is_deleted_name(name) || parked_digits(name) != NULL;
}

void trash_name_parked(char ret_name[TRASH_PARKED_NAME_BYTES])
{
	pool_random_hex(stpcpy(ret_name, TRASH_PARKED), TRASH_NAME_BYTES - 1);
}

struct drop {
	int trash_fd, res;
};

static int drop_parked(void *arg, const char *name)
{
	struct drop *d = arg;
	const char *digits = parked_digits(name);
	if (digits != NULL &&
		renameat2(d->trash_fd, name, d->trash_fd, digits, RENAME_NOREPLACE) < 0 &&
		errno != EROFS && errno != EEXIST)
		d->res = -errno;
	return d->res;
}

int trash_drop_parked(int trash_fd)
{
	struct drop d = {.trash_fd = trash_fd};
	/* What cannot be listed stays until it can: a pool is served whatever its trash is like. */
	(void)fd_each_name(trash_fd, drop_parked, &d);
	return d.res;
}

static int add_name(void *arg, const char *name)
{
	struct pool_trash *t = arg;
	if (is_deleted_name(name))
		strcpy(t->names[t->count++], name);
	return t->count == TRASH_NAMES_MAX;
}

static int list_names(struct pool_trash *t)
{
	t->names = calloc(TRASH_NAMES_MAX, sizeof(*t->names));
	if (t->names == NULL)
		return -ENOMEM;
	int r = fd_each_name(t->dirfd, add_name, t);
	(void)pool_parts_sweep(t->copies_fd);
	/* A directory that is damaged further on is no reason to keep what was found. */
	t->listed = r >= 0 || t->count != 0;
	return t->listed ? 0 : r;
}

/* ---- the pieces: on a thread ---- */

static void enter(struct pool_trash *t, enum trash_file file)
{
	assert(file == FILE_CLOSED ? t->file >= FILE_GONE : file > t->file);
	t->file = file;
}

/* -ENODATA alone says that there is no record: what cannot be read may ask for anything. */
static int read_erase(int fd, enum record_erase *ret_erase, bool *ret_recorded)
{
	char text[RECORD_BYTES_MAX + 1] = {0};
	ssize_t len = fgetxattr(fd, RECORD_XATTR, text, sizeof(text) - 1);
	if (len < 0 && errno != ENODATA)
		return -errno;
	*ret_recorded = len >= 0;
	*ret_erase = record_text_erase(text);
	return 0;
}

static int unlink_name(struct pool_trash *t)
{
	if (unlinkat(t->dirfd, t->names[t->at], 0) < 0 && errno != ENOENT)
		return -errno;
	t->removed = true;
	enter(t, FILE_GONE);
	return 0;
}

/* A snapshot is deleted while it is attached by hand if another node copies it (remove.c), and what
 * is deleted may be attached then. 0: nobody has it. */
static int lock_unused(int fd)
{
	int r = image_lock(fd);
	return r > 0 ? -EBUSY : r;
}

/* A snapshot that another node is copying has a second name (hold.h): its bytes go with the last.
 */
static int open_file(struct pool_trash *t)
{
	struct stat st;
	enum record_erase erase;
	bool recorded;
	int flags = O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
	t->fd = openat(t->dirfd, t->names[t->at], flags | (t->direct_io ? O_DIRECT : 0));
	if (t->fd < 0 || fstat(t->fd, &st) < 0)
		return -errno;
	if (!S_ISREG(st.st_mode))
		return -EMEDIUMTYPE;
	if (st.st_nlink > 1)
		return unlink_name(t);
	int r = read_erase(t->fd, &erase, &recorded);
	if (r == 0 && recorded)
		r = lock_unused(t->fd);
	if (r == 0 && t->raw.disk != NULL) {
		r = trash_raw_open(&t->raw, t->fd);
		if (r == 0)
			enter(t, FILE_PIECES);
		if (r != -ENODATA)
			return r;
		/* It may have lost its map: what it occupied is not known, and the file says so. */
		r = st.st_size > 0 ? -EBUSY : 0;
	}
	if (r < 0)
		return r;
	t->size = st.st_size;
	t->erased = 0;
	t->trimmed = 0;
	t->punched = fgetxattr(t->fd, TRASH_PUNCHED, NULL, 0) >= 0;
	if (erase == RECORD_ERASE_ZERO && t->size > 0)
		enter(t, FILE_ZEROS);
	else if (erase == RECORD_ERASE_DISCARD && t->size > 0)
		enter(t, FILE_DISCARD);
	else
		enter(t, erase == RECORD_ERASE_DISCARD && t->punched ? FILE_TRIM : FILE_CUT);
	return 0;
}

/* 1: nothing is under way at the disk. The file stays until then: after a power loss it says that
 * something was left to do. */
static int settled(struct pool_trash *t)
{
	return t->asked.count == 0 ? 1 : trim_settle(t->fd, &t->asked);
}

/* A disk that takes no discards keeps nothing from being given back: whether it takes them was not
 * asked when the volume was made. */
static int discard_piece(struct pool_trash *t)
{
	int r = settled(t);
	if (r == 0)
		return 0;
	/* A full disk must not keep what would make room. */
	if (r > 0 && t->erased == 0 && fsetxattr(t->fd, TRASH_PUNCHED, "", 0, 0) < 0 &&
		errno != ENOSPC)
		return -errno;
	if (r > 0 && t->erased < (uint64_t)t->size)
		r = trim_punch(t->fd, &t->erased, (uint64_t)t->size, &t->asked);
	if (r < 0 && r != -EOPNOTSUPP)
		return r;
	t->freed = true;
	if (r < 0 || (t->erased >= (uint64_t)t->size && t->asked.count == 0))
		enter(t, t->punched ? FILE_TRIM : FILE_CUT);
	return 0;
}

static int trim_piece(struct pool_trash *t)
{
	int r = settled(t);
	if (r > 0)
		r = trim_disk(t->fd, &t->trimmed, &t->asked);
	if (r < 0 && r != -EOPNOTSUPP)
		return r;
	if (r < 0 || t->trimmed == UINT64_MAX)
		enter(t, FILE_CUT);
	return 0;
}

/* Cut to nothing before it goes: XFS frees the blocks of an unlinked file some time later, and what
 * is free would not be known when the trash is empty. */
static int cut_piece(struct pool_trash *t)
{
	off_t rest = t->size > TRASH_CUT_BYTES ? t->size - TRASH_CUT_BYTES : 0;
	if (ftruncate(t->fd, rest) < 0)
		return -errno;
	t->freed = true;
	t->size = rest;
	return rest > 0 ? 0 : unlink_name(t);
}

static int pieces_piece(struct pool_trash *t)
{
	int r = trash_raw_piece(&t->raw, t->fd);
	if (r <= 0)
		return r;
	r = unlink_name(t);
	if (r == 0 && t->raw.uncut && fsync(t->dirfd) < 0)
		r = -errno;
	if (r == 0)
		trash_raw_gone(&t->raw);
	return r;
}

static void next_file(struct pool_trash *t)
{
	trim_asked_clear(&t->asked);
	fd_close(&t->fd);
	t->at++;
	enter(t, FILE_CLOSED);
}

static int trash_run(struct pool_job *job)
{
	static int (*const pieces[])(struct pool_trash * t) = {
		[FILE_CLOSED] = open_file,
		[FILE_PIECES] = pieces_piece,
		[FILE_DISCARD] = discard_piece,
		[FILE_TRIM] = trim_piece,
		[FILE_CUT] = cut_piece,
	};
	struct pool_trash *t = container_of(job, struct pool_trash, job);
	int r = t->listed ? 0 : list_names(t);
	if (r < 0 || t->at == t->count)
		return r;
	if (pieces[t->file](t) < 0)
		enter(t, FILE_FAILED);
	if (t->file >= FILE_GONE)
		next_file(t);
	return 0;
}

/* ---- overwriting: on the loop ---- */

static struct pool_trash *zeros_of(struct op *op)
{
	return container_of(op, struct pool_trash, zeros);
}

/* Nothing says that the rename is durable: its sync may have failed, or be under way. If the zeros
 * were on disk and the rename were not, a power loss would bring the volume back empty. A full sync
 * of a file that was renamed forces the log up to that (XFS, ext4: the rename changed its ctime).
 */
static int rename_sync_run(struct op *op)
{
	io_uring_prep_fsync(op_sqe(op), zeros_of(op)->fd, 0);
	return op_submit(op);
}

static int zeros_run(struct op *op)
{
	struct pool_trash *t = zeros_of(op);
	/* It may have been stopped before it began. */
	t->copy = (struct copy){.kind = COPY_ZEROS,
		.src_fd = -1,
		.dst_fd = t->fd,
		.size = (uint64_t)t->size,
		.stop = t->copy.stop};
	copy_init(&t->copy, op->reactor);
	return op_child(op, &t->copy.op);
}

/* Before the blocks are given back: else the zeros may never reach the disk. */
static int zeros_sync_run(struct op *op)
{
	io_uring_prep_fsync(op_sqe(op), zeros_of(op)->fd, IORING_FSYNC_DATASYNC);
	return op_submit(op);
}

static const struct op_step zeros_steps[] = {
	{"sync_rename", .run = rename_sync_run},
	{"zeros", .run = zeros_run},
	{"sync", .run = zeros_sync_run},
	{NULL},
};

static void trash_free(struct pool_trash *t)
{
	trim_asked_clear(&t->asked);
	fd_close(&t->fd);
	trash_raw_end(&t->raw);
	free(t->names);
	free(t);
}

static void trash_go_on(struct pool_trash *t, int res);

static void zeros_on_end(struct op *op)
{
	struct pool_trash *t = zeros_of(op);
	enter(t, op_failed(op) ? FILE_FAILED : FILE_CUT);
	if (t->file == FILE_FAILED)
		next_file(t);
	trash_go_on(t, 0);
}

static void trash_go_on(struct pool_trash *t, int res)
{
	struct pool *pool = t->job.pool;
	if (pool == NULL) {
		trash_free(t);
		return;
	}
	if (t->freed)
		pool_room_stale(pool);
	t->freed = false;
	trash_raw_give(&t->raw, pool);
	t->raw_size_bytes = t->file == FILE_PIECES ? t->raw.size_bytes : 0;
	t->raw_done_bytes = t->raw.size_bytes - t->raw.zeroed_from;
	if (res == 0 && t->at < t->count && pool_loaded(pool) && !pool->pools->draining) {
		if (t->file != FILE_ZEROS) {
			pool_job_submit(pool, &t->job);
			return;
		}
		enter(t, FILE_ERASING);
		t->copy.looked_bytes = 0; /* of the file before */
		op_init(&t->zeros, pool->pools->reactor, "pool_erase", zeros_steps, zeros_on_end);
		t->zeros.lane = pool->lane;
		op_start(&t->zeros);
		return;
	}
	/* A full pass may have left some files. If it removed none, the next one would meet the
	 * same. What was deleted meanwhile was not in it. */
	bool full = t->count == TRASH_NAMES_MAX && t->removed;
	bool again = res >= 0 && (pool->trash_wanted || full);
	pool->trash = NULL;
	trash_free(t);
	pool_raw_wake(pool);
	if (again)
		pool_trash_kick(pool);
}

static void trash_on_end(struct pool_job *job, int res)
{
	trash_go_on(container_of(job, struct pool_trash, job), res);
}

void pool_trash_kick(struct pool *pool)
{
	if (pool->pools->draining || !pool_loaded(pool))
		return;
	pool->trash_wanted = pool->trash != NULL;
	if (pool->trash != NULL)
		return;
	struct pool_trash *t = calloc(1, sizeof(*t));
	if (t == NULL)
		return; /* the next look after the pool comes here again */
	t->fd = -1;
	t->dirfd = pool->fds[POOL_FD_TRASH];
	t->copies_fd = pool->fds[POOL_FD_COPIES];
	t->direct_io = pool->features.direct_io;
	trash_raw_begin(&t->raw, pool);
	t->job.run = trash_run;
	t->job.on_end = trash_on_end;
	list_init(&t->job.link);
	pool->trash = t;
	pool_job_submit(pool, &t->job);
}

void pool_trash_stop(struct pool *pool)
{
	if (pool->trash != NULL)
		pool->trash->copy.stop = true;
}

bool pool_erasing(const struct pool *pool, uint64_t *ret_done_bytes, uint64_t *ret_size_bytes)
{
	const struct pool_trash *t = pool->trash;
	/* Not t->file, which is the thread's. */
	if (t != NULL && t->raw_size_bytes > 0) {
		*ret_done_bytes = t->raw_done_bytes;
		*ret_size_bytes = t->raw_size_bytes;
		return true;
	}
	if (t == NULL || !op_running(&t->zeros))
		return false;
	*ret_done_bytes = t->copy.looked_bytes;
	*ret_size_bytes = (uint64_t)t->size;
	return true;
}

bool pool_trash_busy(const struct pool *pool)
{
	return pool->trash != NULL || !list_empty(&pool->groups.unswept);
}

bool pool_trash_detach(struct pool *pool)
{
	if (pool->trash == NULL)
		return false;
	pool->trash->job.pool = NULL;
	pool->trash->job.pools = NULL;
	pool->trash->copy.stop = true;
	pool->trash = NULL;
	return true;
}
