/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether the images are still there, and whole. Somebody may delete, move or cut one short by
 * hand.
 *
 * Happy path: an inotify watch on volumes/ and snapshots/ names what was touched. The look that
 * each pool gets every POOL_CHECK_MS (pools.c) takes the names and asks the file system for those
 * files on its thread, and the loop compares them with the records. An image that was found wrong
 * is asked for again each time, until it is whole. What our own operations touch is asked for too,
 * once, and found whole. How it can fail: no inotify (its instances are limited for a user), or
 * events were lost. Then all files are asked for in turn, POOL_PRESENCE_MAX a look.
 */
#include "pool/presence.h"

#include "base/buf.h"
#include "pool/index.h"
#include "pool/private.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
	EVENT_BYTES = 16384,
	NAMES_MAX = 16384, /* of one look; the kernel keeps as many events */
};

/* IN_CLOSE_WRITE: to truncate a file is to open it. Writes themselves are not watched: on older
 * kernels each write of a buffered loop device would be an event. */
static const uint32_t EVENTS = IN_DELETE | IN_MOVED_FROM | IN_CLOSE_WRITE | IN_ONLYDIR;

int pool_presence_watch(int volumes_fd, int snapshots_fd)
{
	const int dirs[] = {[RECORD_VOLUME] = volumes_fd, [RECORD_SNAPSHOT] = snapshots_fd};
	char path[32];
	_cleanup_fd_ int fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
	if (fd < 0)
		return -errno;
	for (int kind = 0; kind < 2; kind++) {
		snprintf(path, sizeof(path), "/proc/self/fd/%d", dirs[kind]);
		int wd = inotify_add_watch(fd, path, EVENTS);
		if (wd < 0)
			return -errno;
		/* The kernel counts from 1; take_events() goes by it. */
		if (wd != kind + 1)
			return -EPROTO;
	}
	int taken = fd;
	fd = -1;
	return taken;
}

void pool_presence_free(struct pool_presence *p)
{
	free(p->at);
	p->at = NULL;
	p->count = p->cap = 0;
}

/* What finds no memory, or too many before it, is dropped: then all are asked for. */
static void add(struct pool_presence *p, enum record_kind kind, const char *key)
{
	if (p->count == NAMES_MAX || array_grow(&p->at, &p->cap, p->count, sizeof(*p->at)) < 0) {
		p->lost = true;
		return;
	}
	struct pool_presence_item *image = &p->at[p->count++];
	*image = (struct pool_presence_item){.kind = kind};
	strcpy(image->key, key);
}

/* ---- on the loop: which to ask for ---- */

void pool_presence_ask(struct pool *pool, struct pool_presence *p)
{
	unsigned wrong = pool->images_wrong;
	p->grown = pool->images_grown;
	p->renewed = pool->images_renewed;
	for (unsigned kind = 0; kind < 2; kind++)
		for (size_t i = 0; wrong > 0 && i < pool->index[kind].count; i++) {
			const struct pool_object *o = pool->index[kind].at[i];
			if (o->image == POOL_IMAGE_WHOLE)
				continue;
			add(p, kind, o->key);
			wrong--;
		}
	if (!pool->images_unwatched && pool->images_sweep == 0)
		return;
	size_t volumes = pool->index[RECORD_VOLUME].count;
	size_t all = volumes + pool->index[RECORD_SNAPSHOT].count, at = pool->images_sweep;
	if (at == 0 || at > all)
		at = all;
	/* Backwards, so that what is deleted meanwhile moves nothing out of the way. */
	for (unsigned n = 0; n < POOL_PRESENCE_MAX && at > 0; n++) {
		at--;
		enum record_kind kind = at < volumes ? RECORD_VOLUME : RECORD_SNAPSHOT;
		add(p, kind, pool->index[kind].at[at < volumes ? at : at - volumes]->key);
	}
	pool->images_sweep = at;
}

/* ---- on a thread ---- */

static void take_events(struct pool_presence *p, int fd)
{
	_Alignas(struct inotify_event) char mem[EVENT_BYTES];
	ssize_t len;
	while ((len = read(fd, mem, sizeof(mem))) > 0) {
		const struct inotify_event *event;
		for (char *at = mem; at < mem + len; at += sizeof(*event) + event->len) {
			event = (const struct inotify_event *)at;
			if (event->mask & IN_Q_OVERFLOW)
				p->lost = true;
			else if ((event->wd == 1 || event->wd == 2) && event->len != 0 &&
				 record_key_valid(event->name))
				add(p, event->wd - 1, event->name);
		}
	}
}

void pool_presence_look(struct pool_presence *p, const int fds[POOL_FDS])
{
	take_events(p, fds[POOL_FD_EVENTS]);
	for (size_t i = 0; i < p->count; i++) {
		struct pool_presence_item *image = &p->at[i];
		struct stat st;
		int dirfd = fds[image->kind == RECORD_VOLUME ? POOL_FD_VOLUMES : POOL_FD_SNAPSHOTS];
		image->res = fstatat(dirfd, image->key, &st, AT_SYMLINK_NOFOLLOW) < 0 ? -errno : 0;
		if (image->res < 0)
			continue;
		image->size_bytes = (uint64_t)st.st_size;
		image->image_dev = st.st_dev;
		image->image_ino = st.st_ino;
	}
}

/* ---- on the loop: what was found ---- */

void pool_image_found(struct pool_object *o, enum pool_image image)
{
	bool was = o->image != POOL_IMAGE_WHOLE, is = image != POOL_IMAGE_WHOLE;
	if (is && !was)
		o->wrong_since_ns = ring_now_ns(o->pool->pools->reactor->ring);
	if (!is)
		o->wrong_since_ns = 0;
	o->pool->images_wrong += (unsigned)is - (unsigned)was;
	o->image = image;
}

void pool_presence_apply(struct pool *pool, const struct pool_presence *p)
{
	/* From the end, where pool_presence_ask() begins. */
	bool renewed = p->renewed != pool->images_renewed;
	if (p->lost || renewed)
		pool->images_sweep =
			pool->index[RECORD_VOLUME].count + pool->index[RECORD_SNAPSHOT].count;
	for (size_t i = 0; i < p->count; i++) {
		const struct pool_presence_item *image = &p->at[i];
		struct pool_object *o = pool_index_find(pool, image->kind, image->key);
		if (o == NULL || o->rec == NULL || (image->res < 0 && image->res != -ENOENT))
			continue;
		bool truncated = image->res == 0 && image->size_bytes < record_image_bytes(o->rec);
		/* Maybe another file, put there by hand; or the one before ours (renew.h). */
		if (image->res == 0 && !renewed) {
			o->image_dev = image->image_dev;
			o->image_ino = image->image_ino;
		}
		/* Its record may have grown since its file was looked at. */
		if (truncated && p->grown != pool->images_grown)
			continue;
		pool_image_found(o, image->res == -ENOENT ? POOL_IMAGE_MISSING
				    : truncated           ? POOL_IMAGE_TRUNCATED
							  : POOL_IMAGE_WHOLE);
	}
}
