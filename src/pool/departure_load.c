/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loading departures: the notes of departed/ are read, and each looks for its volume. One that has
 * moved less often than the note says has left: a crash came between the note and the trash, where
 * it goes now. One that has moved as often or more is back, and the note goes. A note that cannot
 * be read quarantines the volume of its name: it may have left, and its bytes be another's to
 * change.
 *
 * How it can fail: a volume cannot be moved to the trash, or memory runs out. Then the pool is not
 * loaded, and a later look tries again.
 */
#include "pool/departure_load.h"

#include "base/fd.h"
#include "blockio/image.h"
#include "pool/departure_file.h"
#include "pool/trash.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the directory ---- */

/* A pool of an earlier version has none. Durable before anything is named in it. */
static int open_dir(struct departure_load *l)
{
	const char *name = pool_dir_names[POOL_FD_DEPARTED];
	const int flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
	bool made = false;
	l->fd = openat(l->root_fd, name, flags);
	if (l->fd < 0 && errno == ENOENT) {
		made = mkdirat(l->root_fd, name, 0700) == 0;
		if (!made && errno != EROFS && errno != ENOSPC && errno != EDQUOT)
			return -errno;
		l->fd = made ? openat(l->root_fd, name, flags)
			     : open("/dev/null", O_RDONLY | O_CLOEXEC);
	}
	if (l->fd < 0 || (made && (fsync(l->fd) < 0 || fsync(l->root_fd) < 0)))
		return -errno;
	return 0;
}

/* ---- the volumes ---- */

static int compare_key(const void *key, const void *found)
{
	const struct pool_found *f = found;
	return f->kind != RECORD_VOLUME ? -1 : strcmp(key, f->key);
}

static struct pool_found *find_volume(const struct departure_load *l, const char *key)
{
	return l->found_count == 0
		       ? NULL
		       : bsearch(key, l->found, l->found_count, sizeof(*l->found), compare_key);
}

static void quarantine(struct pool_found *f, const char *why)
{
	record_free(f->rec);
	f->rec = NULL;
	f->why = why;
}

static bool is_its(
	const struct departure_load *l, const struct pool_departure *d, const struct pool_found *f)
{
	char id[RECORD_ID_MAX];
	if (f == NULL || f->rec == NULL)
		return false;
	record_id_print(l->uuid8, f->rec, id);
	return strcmp(id, d->id) == 0;
}

static int to_trash(const struct departure_load *l, const char *key)
{
	char name[TRASH_NAME_BYTES];
	pool_random_hex(name, TRASH_NAME_BYTES - 1);
	int r = renameat2(l->volumes_fd, key, l->trash_fd, name, RENAME_NOREPLACE);
	return r < 0 && errno != ENOENT ? -errno : 0;
}

/* A device is bound to it: whoever knows that lets it go first. */
static bool is_attached(const struct departure_load *l, const char *key)
{
	_cleanup_fd_ int fd =
		openat(l->volumes_fd, key, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	return fd >= 0 && image_lock(fd) != 0;
}

/* 1: the note goes. */
static int settle(struct departure_load *l, const struct pool_departure *d)
{
	struct pool_found *f = find_volume(l, d->key);
	if (d->why != NULL && f != NULL && f->rec != NULL)
		quarantine(f,
			"the note of where a volume of its name has gone to, in departed/, cannot be read");
	if (d->why != NULL || !is_its(l, d, f))
		return 0;
	if (f->rec->moves >= d->moves)
		return 1;
	f->left = true;
	f->stays = l->read_only || is_attached(l, d->key);
	return f->stays ? 0 : to_trash(l, d->key);
}

static int read_one(void *arg, const char *name)
{
	struct departure_load *l = arg;
	struct pool_departure *d;
	if (!record_key_valid(name)) {
		if (!l->read_only && departure_is_new_name(name))
			(void)unlinkat(l->fd, name, 0);
		return 0;
	}
	int r = departure_read(l->fd, name, &d);
	if (r < 0)
		return r == -ENOENT ? 0 : r;
	r = settle(l, d);
	if (r == 0) {
		list_push(l->departures, &d->link);
		return 0;
	}
	free(d);
	if (r > 0 && !l->read_only)
		(void)unlinkat(l->fd, name, 0);
	return r < 0 ? r : 0;
}

/* Those in the trash are none of the pool's. */
static void drop_left(struct departure_load *l)
{
	size_t kept = 0;
	for (size_t i = 0; i < l->found_count; i++) {
		struct pool_found *f = &l->found[i];
		if (f->left && !f->stays) {
			record_free(f->rec);
			attachments_free(f->attachments);
		} else {
			l->found[kept++] = *f;
		}
	}
	l->found_count = kept;
}

int departure_load_run(struct departure_load *l)
{
	int r = open_dir(l);
	if (r == 0)
		r = fd_each_name(l->fd, read_one, l);
	if (r == -ENOTDIR) /* there can be none */
		r = 0;
	size_t before = l->found_count;
	if (r == 0)
		drop_left(l);
	/* Their notes may go at any time from now on. */
	if (r == 0 && l->found_count < before && fsync(l->volumes_fd) < 0)
		r = -errno;
	return r;
}
