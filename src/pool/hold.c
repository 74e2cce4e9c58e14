/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The holds of a pool: found, read at a load, dropped. A hold is on the pool's list until it is
 * dropped: the file that says for whom goes first, then the image goes to the trash. After a crash
 * the next load takes away what makes no hold. Nothing here is anybody's only copy.
 */
#include "pool/hold.h"

#include "base/fd.h"
#include "pool/hold_file.h"
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

#define HOLD_SENT "trusted.ringvol.sent"

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
	int r = hold_parse(text, (size_t)len, hold);
	if (r < 0)
		return r;
	if (!S_ISREG(st.st_mode) || (uint64_t)st.st_size < record_image_bytes(hold->rec))
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
	bool image = hold_is_image_name(name);
	if (!image && !hold_is_grant_name(name))
		return 0;
	if (image) {
		hold_grant_name(name, grant);
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

void pool_hold_enter(struct pool *pool, struct pool_hold *hold)
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
	hold_grant_name(d->hold->name, name);
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
		pool_hold_enter(pool, found);
	}
}
