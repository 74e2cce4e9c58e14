/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Making a raw pool and growing it. What an area of a disk held before it came to the pool may be
 * anybody's bytes. So all of it is owned by files in the trash, durable, before the header says
 * that it is the pool's: from then on it is like what deleted volumes held.
 *
 * A crash leaves a header that says so (disk/header.h), and the next attempt goes on. Files of
 * an attempt to grow that was cut short own addresses that no disk has; they are removed first.
 */
#include "pool/raw_init.h"

#include "base/fd.h"
#include "blockio/image_map.h"
#include "disk/init.h"
#include "pool/layout.h"
#include "pool/raw_load.h"
#include "pool/trash_own.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

/* Of one file: the trash is overwritten file by file, and a file is an image to those that look. */
#define OWNED_BYTES ((uint64_t)64 << 30)

/* All of it, durable. */
static int own(int root, uint64_t start, uint64_t bytes)
{
	int r = 0;
	_cleanup_fd_ int trash_fd = openat(root, pool_dir_names[POOL_FD_TRASH],
		O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (trash_fd < 0)
		return -errno;
	for (uint64_t done = 0; r == 0 && done < bytes; done += OWNED_BYTES) {
		struct image_map map = {0};
		r = image_map_add(&map, start + done,
			bytes - done < OWNED_BYTES ? bytes - done : OWNED_BYTES);
		if (r == 0)
			r = trash_own(trash_fd, &map);
	}
	return r == 0 && syncfs(root) < 0 ? -errno : r;
}

static void tell(const struct disk_change *change, struct raw_made *ret)
{
	*ret = (struct raw_made){
		.existed = change->existed,
		.area_bytes = change->existed ? change->first.bytes : change->bytes,
		.records_bytes = change->first.records_bytes,
	};
	memcpy(ret->uuid, change->first.pool, sizeof(ret->uuid));
}

/* ---- making one ---- */

static int fill_records(const struct disk_change *change, const char *path, struct err *err)
{
	struct fs_features features;
	bool existed;
	_cleanup_fd_ int root = -1;
	int r = disk_init_records(change, err);
	if (r == 0)
		r = disk_records(change->disk, false, &root, err);
	if (r == 0)
		r = pool_init_root(root, path, change->disk->uuid, &features, &existed, err);
	if (r < 0)
		return r;
	r = own(root, change->start, change->bytes);
	return r < 0 ? err_sys(err, r, "writing the records of %s", path) : 0;
}

int raw_init(const char *device, const char *path, struct raw_made *ret, struct err *err)
{
	struct disk_change change;
	int r = disk_init_begin(device, path, &change, err);
	if (r < 0)
		return r;
	if (!change.existed) {
		r = fill_records(&change, path, err);
		if (r == 0)
			r = disk_init_end(&change, err);
	}
	if (r == 0)
		tell(&change, ret);
	disk_change_drop(&change);
	return r;
}

/* ---- growing one ---- */

/* A driver keeps the pool's lock as long as it serves it. */
static int take_lock(int root, const char *path, int *ret_fd, struct err *err)
{
	_cleanup_fd_ int fd = openat(root, POOL_FILE, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return err_sys(err, -errno, "opening " POOL_FILE " of the pool at %s", path);
	int r = pool_lock_take(fd);
	if (r < 0)
		return r == -EWOULDBLOCK
			       ? err_set(err, ERR_PRECONDITION,
					 "a driver serves the pool at %s: stop it first, its "
					 "volumes stay in use meanwhile; " POOL_LOCK_LEFT,
					 path)
			       : err_sys(err, r, "locking the pool at %s", path);
	*ret_fd = fd;
	fd = -1;
	return 0;
}

struct sweep {
	int trash_fd;
	const struct disk *disk;
};

/* What an attempt to grow has left: its pieces are on no disk. */
static int sweep_one(void *arg, const char *name)
{
	const struct sweep *s = arg;
	struct image_map map;
	uint64_t offset, left;
	if (pool_raw_map(s->trash_fd, name, &map) < 0 || map.count == 0)
		return 0;
	const struct image_piece *last = &map.pieces[map.count - 1];
	if (disk_at(s->disk, last->address, &offset, &left) != NULL)
		return 0;
	return unlinkat(s->trash_fd, name, 0) < 0 ? -errno : 0;
}

static int sweep(int root, const struct disk *disk)
{
	_cleanup_fd_ int fd = openat(root, pool_dir_names[POOL_FD_TRASH],
		O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	struct sweep s = {fd, disk};
	int r = fd < 0 ? -errno : fd_each_name(fd, sweep_one, &s);
	return r == 0 && syncfs(root) < 0 ? -errno : r;
}

/* One disk. */
static int grow_by(struct disk *disk, const char *path, const char *device, int root,
	struct raw_made *ret, struct err *err)
{
	struct disk_change change;
	int r = disk_grow_begin(path, disk, device, &change, err);
	if (r < 0)
		return r;
	if (!change.existed) {
		r = own(root, change.start, change.bytes);
		if (r < 0)
			(void)err_sys(err, r, "writing the records of %s", path);
		else
			r = disk_grow_end(&change, err);
	}
	if (r == 0)
		tell(&change, ret);
	disk_change_drop(&change);
	return r;
}

/* Each disk that has grown is a change of its own: cut short between two, the pool is sound, and
 * the next attempt takes in the others. */
static int grow(struct disk *disk, const char *path, const char *device, int root,
	struct raw_made *ret, struct err *err)
{
	struct raw_made made;
	uint64_t bytes = 0;
	int r = sweep(root, disk);
	if (r < 0)
		return err_sys(err, r, "looking through the trash of the pool at %s", path);
	r = grow_by(disk, path, device, root, &made, err);
	while (r == 0 && !made.existed && device == NULL) {
		bytes += made.area_bytes;
		r = grow_by(disk, path, NULL, root, &made, err);
	}
	if (r == 0 && bytes != 0) {
		made.existed = false;
		made.area_bytes = bytes;
	}
	if (r == 0)
		*ret = made;
	return r;
}

int raw_grow(const char *path, const char *device, struct raw_made *ret, struct err *err)
{
	struct disk *disk;
	_cleanup_fd_ int root = -1, lock = -1;
	int r = disk_open(path, DISK_CHANGE, NULL, &disk, err);
	if (r < 0)
		return r;
	r = disk_records(disk, false, &root, err);
	if (r == 0)
		r = take_lock(root, path, &lock, err);
	if (r == 0)
		r = grow(disk, path, device, root, ret, err);
	disk_unref(disk);
	return r;
}
