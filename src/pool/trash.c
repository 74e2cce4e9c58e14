/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Giving back what was deleted. One file of a pool's trash at a time, in bounded pieces, each a job
 * of its own, so that a drain need not wait long and no thread is kept: erase where the record asks
 * for it (zeros are an operation on the ring, beside the copies), cut the file shorter from its
 * end, unlink it. Every piece can be done twice, so a crash costs nothing but to begin the file
 * again. Only zeros could reach the disk before the rename to trash does, so they wait for it. A
 * file that fails is left for the next look after the pool. Files that are not named as ours are
 * left alone.
 *
 * `discard` has the disk below discard the blocks (trim.h). Where they are is known only until they
 * are given back: a mark on the file says that this has begun, and one that is found marked, by an
 * attempt that was cut short, has all that is free on the disk discarded instead.
 */
#include "blockio/trim.h"
#include "pool/private.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>

enum {
	TRASH_NAMES_MAX = 1024,    /* of one pass */
	TRASH_CUT_BYTES = 1 << 30, /* freed by one job */
	/* A job's answers. */
	TRASH_MORE = 1,  /* there is more to do */
	TRASH_ZEROS = 2, /* the file is to be overwritten, on the loop */
};

#define TRASH_PUNCHED "trusted.ringvol.punched"

struct pool_trash {
	struct pool_job job;
	int dirfd;
	char (*names)[POOL_TRASH_NAME_BYTES];
	unsigned count, at;
	bool read, freed, direct_io;
	bool removed; /* a file, in this pass */
	/* the file at names[at] */
	int fd;
	off_t size, erased;
	enum record_erase erase;
	bool punched;     /* by an earlier attempt: where its blocks were is not known */
	uint64_t trimmed; /* the disk is, up to here */
	struct op zeros;  /* overwrites it: a sync, the child, a sync */
	struct copy copy;
	bool zeroing;
};

static bool is_trash_name(const char *name)
{
	return strlen(name) == POOL_TRASH_NAME_BYTES - 1 &&
	       strspn(name, "0123456789abcdef") == POOL_TRASH_NAME_BYTES - 1;
}

static int read_names(struct pool_trash *t)
{
	_cleanup_dir_ DIR *dir = NULL;
	int opened = fd_open_dir(t->dirfd, &dir);
	if (opened < 0)
		return opened;
	t->names = calloc(TRASH_NAMES_MAX, sizeof(*t->names));
	if (t->names == NULL)
		return -ENOMEM;
	struct dirent *entry;
	while (t->count < TRASH_NAMES_MAX && (entry = readdir(dir)) != NULL)
		if (is_trash_name(entry->d_name))
			strcpy(t->names[t->count++], entry->d_name);
	t->read = true;
	return 0;
}

/* How its last wish reads. The key is not known any more, but the record's sum is. -ENODATA alone
 * says that there is none: what cannot be read may ask for anything. */
static int read_erase(int fd, enum record_erase *ret_erase)
{
	char text[RECORD_BYTES_MAX + 1] = {0};
	enum record_erase erase = RECORD_ERASE_NONE;
	if (fgetxattr(fd, RECORD_XATTR, text, sizeof(text) - 1) < 0 && errno != ENODATA)
		return -errno;
	if (strstr(text, "\nerase=zero\n") != NULL)
		erase = RECORD_ERASE_ZERO;
	else if (strstr(text, "\nerase=discard\n") != NULL)
		erase = RECORD_ERASE_DISCARD;
	*ret_erase = erase;
	return 0;
}

static int open_file(struct pool_trash *t)
{
	struct stat st;
	int flags = O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
	t->fd = openat(t->dirfd, t->names[t->at], flags | (t->direct_io ? O_DIRECT : 0));
	if (t->fd < 0)
		return -errno;
	if (fstat(t->fd, &st) < 0)
		return -errno;
	if (!S_ISREG(st.st_mode))
		return -EMEDIUMTYPE;
	t->size = st.st_size;
	t->erased = 0;
	t->trimmed = 0;
	t->punched = fgetxattr(t->fd, TRASH_PUNCHED, NULL, 0) >= 0;
	return read_erase(t->fd, &t->erase);
}

/* A disk that takes no discards, which was not asked for when the volume was made, keeps nothing
 * from being given back. */
static int discard_piece(struct pool_trash *t)
{
	uint64_t at = (uint64_t)t->erased;
	/* A full disk must not keep what would make room. */
	if (at == 0 && fsetxattr(t->fd, TRASH_PUNCHED, "", 0, 0) < 0 && errno != ENOSPC)
		return -errno;
	int r = trim_punch(t->fd, &at, (uint64_t)t->size);
	if (r < 0 && r != -EOPNOTSUPP)
		return r;
	t->erased = r < 0 ? t->size : (off_t)at;
	t->freed = true;
	return TRASH_MORE;
}

static int discard_rest(struct pool_trash *t)
{
	int r = trim_disk(t->fd, &t->trimmed);
	if (r < 0 && r != -EOPNOTSUPP)
		return r;
	return TRASH_MORE;
}

static int file_piece(struct pool_trash *t)
{
	if (t->fd < 0)
		return open_file(t) < 0 ? -EIO : TRASH_MORE;
	if (t->erase == RECORD_ERASE_ZERO && t->erased < t->size)
		return TRASH_ZEROS;
	if (t->erase == RECORD_ERASE_DISCARD && t->erased < t->size)
		return discard_piece(t);
	if (t->erase == RECORD_ERASE_DISCARD && t->punched && t->trimmed != UINT64_MAX)
		return discard_rest(t);
	/* To nothing, before it goes: XFS frees the blocks of an unlinked file some time later, and
	 * what is free would not be known when the trash is empty. */
	off_t rest = t->size > TRASH_CUT_BYTES ? t->size - TRASH_CUT_BYTES : 0;
	if (ftruncate(t->fd, rest) < 0)
		return -errno;
	t->freed = true;
	if (rest > 0) {
		t->erased = t->size = rest; /* erased stays true of a shorter file */
		return TRASH_MORE;
	}
	if (unlinkat(t->dirfd, t->names[t->at], 0) < 0 && errno != ENOENT)
		return -errno;
	t->removed = true;
	return 0;
}

static int trash_run(struct pool_job *job)
{
	struct pool_trash *t = container_of(job, struct pool_trash, job);
	if (!t->read) {
		int r = read_names(t);
		if (r < 0)
			return r;
	}
	int r = t->at < t->count ? file_piece(t) : 0;
	if (r == TRASH_ZEROS)
		return r;
	if (t->at < t->count && r != TRASH_MORE) {
		fd_close(&t->fd);
		t->at++;
	}
	return t->at < t->count ? TRASH_MORE : 0;
}

/* ---- overwriting: on the loop ---- */

static struct pool_trash *zeros_of(struct op *op)
{
	return container_of(op, struct pool_trash, zeros);
}

/* Nothing says that the rename is durable: a sync may have failed, or be under way. With the zeros
 * on disk and not the rename, a power loss would bring the volume back empty. A full sync of a file
 * that was renamed forces the log up to that (XFS, ext4: the rename changed its ctime). */
static int zeros_settle_run(struct op *op)
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
	{"settle", .run = zeros_settle_run},
	{"zeros", .run = zeros_run},
	{"sync", .run = zeros_sync_run},
	{NULL},
};

static void trash_free(struct pool_trash *t)
{
	fd_close(&t->fd);
	free(t->names);
	free(t);
}

static void trash_go_on(struct pool_trash *t, int res);

static void zeros_on_end(struct op *op)
{
	struct pool_trash *t = zeros_of(op);
	t->zeroing = false;
	if (op_failed(op)) {
		/* The next look after the pool tries again. */
		fd_close(&t->fd);
		t->at++;
	} else {
		t->erased = t->size;
	}
	trash_go_on(t, t->at < t->count ? TRASH_MORE : 0);
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
	if (res > 0 && pool->loaded && !pool->pools->draining) {
		if (res == TRASH_MORE) {
			pool_job_submit(pool, &t->job);
			return;
		}
		t->zeroing = true;
		t->copy.looked_bytes = 0; /* of the file before */
		op_init(&t->zeros, pool->pools->reactor, "pool_erase", zeros_steps, zeros_on_end);
		t->zeros.lane = pool->lane;
		op_start(&t->zeros);
		return;
	}
	/* A full pass may have left some, and if it removed none the next one would meet the same;
	 * what was deleted meanwhile was not in it. */
	bool full = t->count == TRASH_NAMES_MAX && t->removed;
	bool again = res >= 0 && (pool->trash_wanted || full);
	pool->trash = NULL;
	trash_free(t);
	if (again)
		pool_trash_kick(pool);
}

static void trash_on_end(struct pool_job *job, int res)
{
	trash_go_on(container_of(job, struct pool_trash, job), res);
}

void pool_trash_kick(struct pool *pool)
{
	if (pool->pools->draining || !pool->loaded)
		return;
	pool->trash_wanted = pool->trash != NULL;
	if (pool->trash != NULL)
		return;
	struct pool_trash *t = calloc(1, sizeof(*t));
	if (t == NULL)
		return; /* the next look after the pool comes here again */
	t->fd = -1;
	t->dirfd = pool->fds[POOL_FD_TRASH];
	t->direct_io = pool->features.direct_io;
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
	if (t == NULL || !t->zeroing)
		return false;
	*ret_done_bytes = t->copy.looked_bytes;
	*ret_size_bytes = (uint64_t)t->size;
	return true;
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
