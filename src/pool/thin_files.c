/* SPDX-License-Identifier: Apache-2.0 */
/* Each call can be repeated after it was cut short: what is found is taken as it is. */
#include "pool/thin_files.h"

#include "base/fd.h"
#include "disk/mapped.h"
#include "disk/thin_tree.h"
#include "pool/layout.h"
#include "pool/thin_fill.h"
#include "pool/trash.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/xattr.h>
#include <unistd.h>

/* ---- files ---- */

static int sync_fd(int fd)
{
	return fsync(fd) < 0 ? -errno : 0;
}

static int write_map(int fd, const struct image_map *map)
{
	int r = image_map_write(fd, map);
	return r == 0 && ftruncate(fd, (off_t)image_map_bytes(map)) < 0 ? -errno : r;
}

static int name_one(int dirfd, enum thin_device which, const struct image_map *map)
{
	_cleanup_fd_ int fd = openat(dirfd, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	int r = fd < 0 ? -errno : write_map(fd, map);
	return r == 0 ? fd_link(fd, dirfd, thin_file_name(which)) : r;
}

int thin_files_make(struct thin_files *f, int dirfd, const struct image_map *metadata,
	const struct image_map *data)
{
	f->named = true;
	int r = name_one(dirfd, THIN_METADATA, metadata);
	if (r == 0)
		r = name_one(dirfd, THIN_DATA, data);
	if (r == 0)
		r = sync_fd(dirfd);
	if (r == 0)
		return 0;
	bool gone = r != -EEXIST;
	for (int i = THIN_DATA; i >= THIN_METADATA && gone; i--)
		gone = unlinkat(dirfd, thin_file_name((enum thin_device)i), 0) == 0 ||
		       errno == ENOENT;
	f->named = !gone;
	return r;
}

static int open_file(int dirfd, enum thin_device which)
{
	int fd = openat(dirfd, thin_file_name(which), O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	return fd < 0 ? -errno : fd;
}

/* ---- the mark ---- */

static int set_mark(int dirfd)
{
	_cleanup_fd_ int fd = open_file(dirfd, THIN_METADATA);
	if (fd < 0)
		return fd;
	if (fgetxattr(fd, THIN_ACTIVE_XATTR, NULL, 0) >= 0)
		return 0;
	if (fsetxattr(fd, THIN_ACTIVE_XATTR, "", 0, 0) < 0)
		return -errno;
	return sync_fd(fd);
}

static void remove_mark(int dirfd)
{
	_cleanup_fd_ int fd = open_file(dirfd, THIN_METADATA);
	if (fd >= 0 && fremovexattr(fd, THIN_ACTIVE_XATTR) == 0)
		(void)fsync(fd);
}

/* ---- devices ---- */

#define WHO "thin volumes of pools on raw disks"

static int drop(struct dm *dm, const struct disk *disk)
{
	bool busy = false;
	thin_fill_sweep(dm, disk->uuid);
	int r = thin_pool_remove(dm, disk->uuid, &busy);
	return r == 0 && busy ? -EBUSY : r;
}

int thin_files_drop(const struct disk *disk)
{
	_cleanup_dm_ struct dm dm = {.fd = -1};
	int r = dm_open(&dm, DM_CONTROL_PATH);
	return r == 0 ? drop(&dm, disk) : r;
}

/* A check that was cut short, or a making, has left one: it may lead to what the images do not say
 * any more. Who has it open keeps it. */
static int drop_left(struct dm *dm, const struct disk *disk)
{
	int r = drop(dm, disk);
	return r == -EBUSY ? 0 : r;
}

/* 1: the thin pool's devices are there; 0: they are not. */
static int look_active(
	const struct disk *disk, const struct image_map *metadata, const struct image_map *data)
{
	_cleanup_dm_ struct dm dm = {.fd = -1};
	uint32_t major, minor;
	int r = dm_open(&dm, DM_CONTROL_PATH);
	if (r == 0)
		r = thin_number(&dm, disk->uuid, &major, &minor);
	if (r == -ENXIO)
		return drop_left(&dm, disk);
	if (r < 0)
		return dm_is_absent(r) ? 0 : r;
	if (thin_pool_is_sound(&dm, disk, metadata, data))
		return 1;
	r = drop(&dm, disk);
	return r == -EBUSY ? 1 : r;
}

int thin_files_ask(struct thin_files *f, const struct disk *disk, int dirfd,
	const struct image_map *metadata, const struct image_map *data)
{
	_cleanup_fd_ int fd = open_file(dirfd, THIN_METADATA);
	_cleanup_fd_ int data_fd = open_file(dirfd, THIN_DATA);
	if (fd < 0 || data_fd < 0)
		return fd < 0 ? fd : data_fd;
	f->clean = fgetxattr(fd, THIN_ACTIVE_XATTR, NULL, 0) < 0 && errno == ENODATA;
	int active = look_active(disk, metadata, data);
	f->active = active > 0;
	return active < 0 ? active : thin_super_read(disk, metadata, &f->super);
}

int thin_files_open_metadata(
	struct thin_files *f, const struct disk *disk, const struct image_map *metadata)
{
	_cleanup_dm_ struct dm dm = {.fd = -1};
	char name[DM_NAME_LEN], uuid[DM_UUID_LEN];
	struct mapped mapped;
	const struct mapped_spec spec = {
		.disk = disk, .map = metadata, .size_bytes = image_map_bytes(metadata)};
	err_clear(&f->err);
	int r = dm_open(&dm, DM_CONTROL_PATH);
	if (r < 0)
		return dm_fail_open(r, WHO, &f->err);
	thin_names(THIN_METADATA, disk->uuid, name, uuid);
	r = mapped_make_named(&dm, name, uuid, &spec, &mapped, &f->err);
	if (r < 0)
		return r;
	f->fd = dm_open_node(mapped.major, mapped.minor, O_RDWR);
	return f->fd < 0 ? f->fd : 0;
}

static int rewrite(struct thin_files *f, int dirfd, enum thin_device which,
	const struct image_map *was, const struct image_map *map)
{
	if (image_map_equal(was, map))
		return 0;
	_cleanup_fd_ int fd = open_file(dirfd, which);
	if (fd < 0)
		return fd;
	f->written = true;
	int r = write_map(fd, map);
	return r == 0 ? sync_fd(fd) : r;
}

/* Durable, before any device is as long. */
static int rewrite_both(struct thin_files *f, int dirfd)
{
	int r = rewrite(f, dirfd, THIN_METADATA, &f->was_metadata, f->spec.metadata);
	return r == 0 ? rewrite(f, dirfd, THIN_DATA, &f->was_data, f->spec.data) : r;
}

int thin_files_activate(struct thin_files *f, int dirfd)
{
	_cleanup_dm_ struct dm dm = {.fd = -1};
	err_clear(&f->err);
	int r = dm_open(&dm, DM_CONTROL_PATH);
	if (r < 0)
		return dm_fail_open(r, WHO, &f->err);
	r = rewrite_both(f, dirfd);
	if (r == 0)
		r = set_mark(dirfd);
	if (r < 0)
		return r;
	r = thin_pool_make(&dm, &f->spec, &f->err);
	if (r == 0)
		thin_fill_sweep(&dm, f->spec.disk->uuid);
	return r;
}

int thin_files_look(struct thin_files *f, const struct disk *disk)
{
	_cleanup_dm_ struct dm dm = {.fd = -1};
	int r = dm_open(&dm, DM_CONTROL_PATH);
	return r < 0 ? r : thin_pool_status(&dm, disk->uuid, &f->status);
}

int thin_files_grow(struct thin_files *f, int dirfd)
{
	_cleanup_dm_ struct dm dm = {.fd = -1};
	err_clear(&f->err);
	int r = dm_open(&dm, DM_CONTROL_PATH);
	if (r < 0)
		return dm_fail_open(r, WHO, &f->err);
	r = rewrite_both(f, dirfd);
	return r == 0 ? thin_pool_make(&dm, &f->spec, &f->err) : r;
}

/* ---- the end ---- */

static int to_trash(int dirfd, enum thin_device which, int trash_fd)
{
	char name[TRASH_NAME_BYTES];
	pool_random_hex(name, TRASH_NAME_BYTES - 1);
	int r = renameat2(dirfd, thin_file_name(which), trash_fd, name, RENAME_NOREPLACE);
	return r < 0 ? -errno : 0;
}

/* Read from the disks: each message was followed by a commit. */
static int check_empty(const struct disk *disk, const struct image_map *metadata)
{
	struct thin_ids ids = {0};
	int r = thin_ids_read(disk, metadata, &ids);
	if (r == 0 && ids.count > 0)
		r = -ENOTEMPTY;
	thin_ids_free(&ids);
	return r;
}

int thin_files_retire(
	const struct disk *disk, int dirfd, int trash_fd, const struct image_map *metadata)
{
	_cleanup_dm_ struct dm dm = {.fd = -1};
	bool busy;
	int r = check_empty(disk, metadata);
	if (r == 0)
		r = dm_open(&dm, DM_CONTROL_PATH);
	if (r == 0)
		r = thin_pool_remove(&dm, disk->uuid, &busy);
	if (r < 0)
		return r;
	if (busy)
		return -EBUSY;
	r = to_trash(dirfd, THIN_DATA, trash_fd);
	if (r == 0 || r == -ENOENT)
		r = to_trash(dirfd, THIN_METADATA, trash_fd);
	if (r == 0)
		r = sync_fd(trash_fd);
	return r == 0 ? sync_fd(dirfd) : r;
}

void thin_files_rest(const struct disk *disk, int dirfd)
{
	_cleanup_dm_ struct dm dm = {.fd = -1};
	bool busy;
	if (dm_open(&dm, DM_CONTROL_PATH) == 0 && thin_pool_remove(&dm, disk->uuid, &busy) == 0 &&
		!busy)
		remove_mark(dirfd);
}
