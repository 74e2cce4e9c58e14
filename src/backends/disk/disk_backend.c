/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Volumes of raw pools as block devices. Each call is one work job over disk/mapped. The job works
 * on the request only; the step's end moves its error into the operation.
 *
 * Happy path of an attach: the disks of the tag's pool, the image's size and map, the device. Of a
 * detach: the device, by its tag and its image's inode. How it can fail: as mapped does; the image
 * has no map, or one that is shorter than the image; the disks' blocks are larger than those that
 * the volume was made for; ERR_PRECONDITION where the kernel has no device mapper.
 */
#include "backends/disk/disk_backend.h"

#include "base/fd.h"
#include "blockio/blkdev.h"
#include "disk/mapped.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

static_assert(sizeof((struct backend_dev){0}.tag) == sizeof((struct mapped){0}.tag),
	"one tag, two structs");

/* ---- the device mapper ---- */

#define WHO "volumes of pools on raw disks"

static int open_dm(struct dm *dm, struct err *err)
{
	int r = dm_open(dm, DM_CONTROL_PATH);
	return r == 0 ? 0 : dm_fail_open(r, WHO, err);
}

/* Where nothing can be if there is no device mapper. 1: there is none. */
static int open_loaded(struct dm *dm)
{
	int r = dm_is_loaded() ? dm_open(dm, DM_CONTROL_PATH) : -ENXIO;
	return r < 0 && dm_is_absent(r) ? 1 : r;
}

/* ---- devices ---- */

static void cleanup_disk(struct disk **disk)
{
	disk_unref(*disk);
}

#define _cleanup_disk_ __attribute__((cleanup(cleanup_disk)))

/* The first 8 digits of the uuid of the tag's pool. */
static void pool_of(const char *tag, char ret_uuid8[9])
{
	const char *colon = strchr(tag, ':');
	snprintf(ret_uuid8, 9, "%s", colon != NULL ? colon + 1 : "");
}

static struct disk *disk_of(const char *tag)
{
	char uuid8[9];
	pool_of(tag, uuid8);
	return disk_published(uuid8);
}

/* st_dev of the images of the tag's pool; 0: it cannot be told now. */
static uint64_t records_of(struct dm *dm, const char *tag)
{
	_cleanup_disk_ struct disk *disk = disk_of(tag);
	if (disk != NULL && disk->records_dev != 0)
		return disk->records_dev;
	/* Nobody serves the pool in this process: the device that its records are mounted from. */
	char uuid8[9], name[DM_NAME_LEN];
	struct dm_device device;
	pool_of(tag, uuid8);
	snprintf(name, sizeof(name), "ringvol-records-%s", uuid8);
	return dm_look_name(dm, name, &device) == 0 ? makedev(device.major, device.minor) : 0;
}

/* One that leads nowhere serves no image, and goes when nobody has it open. */
static void dev_from_mapped(
	const struct mapped *mapped, uint64_t image_dev, struct backend_dev *dev)
{
	bool leads = mapped->size_bytes != 0;
	*dev = (struct backend_dev){
		.attached = true,
		.major = mapped->major,
		.minor = mapped->minor,
		.size_bytes = mapped->size_bytes,
		.image_dev = leads ? image_dev : 0,
		.image_ino = leads ? mapped->image_ino : 0,
		.direct_io = true,
		.read_only = mapped->read_only,
		.suspended = leads && mapped->suspended,
		.going_away = mapped->going_away || (mapped->retired && mapped->open),
		.found = mapped->found,
	};
	snprintf(dev->path, sizeof(dev->path), "/dev/dm-%u", mapped->minor);
	memcpy(dev->tag, mapped->tag, sizeof(dev->tag));
}

/* ---- attach ---- */

struct image {
	uint64_t dev, ino, size_bytes;
	struct image_map map;
};

static int image_read(const struct backend_req *req, struct image *ret, struct err *err)
{
	_cleanup_fd_ int fd =
		openat(req->dirfd, req->image, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
	struct stat st;
	if (fd < 0 && errno == ENOENT) {
		err_set(err, ERR_NOT_FOUND, "image %s is missing", req->image);
		return -ENOENT;
	}
	if (fd < 0)
		return err_sys(err, -errno, "opening image %s", req->image);
	if (fstat(fd, &st) < 0)
		return err_sys(err, -errno, "looking at image %s", req->image);
	int r = image_map_read(fd, &ret->map);
	if (r == -ENODATA || r == -EBADMSG)
		return err_set(err, ERR_DATA_LOSS,
			"image %s has %s map of its pieces: see 'ringvol check'", req->image,
			r == -ENODATA ? "no" : "a damaged");
	if (r < 0)
		return err_sys(err, r, "reading the map of image %s", req->image);
	if (ret->map.thin_id == 0 && image_map_bytes(&ret->map) < (uint64_t)st.st_size)
		return err_set(err, ERR_DATA_LOSS,
			"the map of image %s has fewer bytes than the image: see 'ringvol check'",
			req->image);
	ret->dev = st.st_dev;
	ret->ino = st.st_ino;
	ret->size_bytes = (uint64_t)st.st_size;
	return 0;
}

/* A device has the logical blocks of its disks; smaller ones cannot be had of it. */
static int check_blocks(const struct backend_req *req, const struct disk *disk,
	const struct image_map *map, struct err *err)
{
	for (unsigned i = 0; i < map->count; i++) {
		uint64_t offset, bytes;
		int size = 0;
		const struct disk_member *member =
			disk_at(disk, map->pieces[i].address, &offset, &bytes);
		if (member == NULL || ioctl(member->fd, BLKSSZGET, &size) < 0)
			continue; /* the table says what is wrong */
		if ((uint32_t)size > req->block_size)
			return err_set(err, ERR_PRECONDITION,
				"the volume was made for blocks of %u bytes, and the disk %s has blocks of %d: copy it into a pool on disks with %u",
				req->block_size, member->path, size, req->block_size);
	}
	return 0;
}

/* By the node's flag alone: a table that takes no writes could not be made to take them again. */
static int set_flag(const struct backend_req *req, struct backend_dev *dev, struct err *err)
{
	if (!req->read_only || dev->read_only)
		return 0;
	int r = blkdev_set_read_only(dev->path, true);
	if (r < 0)
		return err_sys(err, r, "making %s read-only", dev->path);
	dev->read_only = true;
	return 0;
}

/* The device as large as the image, whatever of it is there. */
static int make(
	struct dm *dm, const struct backend_req *req, struct backend_dev *ret, struct err *err)
{
	_cleanup_disk_ struct disk *disk = disk_of(req->tag);
	_cleanup_free_ struct image *image = calloc(1, sizeof(*image));
	struct mapped mapped;
	if (image == NULL)
		return err_sys(err, -ENOMEM, "attaching image %s", req->image);
	if (disk == NULL)
		return err_set(err, ERR_UNAVAILABLE,
			"the disks of the volume's pool are not there now: see 'ringvol doctor'");
	int r = image_read(req, image, err);
	if (r == 0)
		r = check_blocks(req, disk, &image->map, err);
	if (r < 0)
		return r;
	const struct mapped_spec spec = {
		.tag = req->tag,
		.image_ino = image->ino,
		.disk = disk,
		.map = &image->map,
		.size_bytes = image->size_bytes,
	};
	r = mapped_make(dm, &spec, &mapped, err);
	if (r < 0)
		return r;
	dev_from_mapped(&mapped, image->dev, ret);
	r = set_flag(req, ret, err);
	if (r < 0 && !mapped.found) {
		struct err ignored = {0};
		(void)backend_disk_detach(ret, &ignored);
	}
	return r;
}

static int make_now(struct backend_req *req, struct backend_dev *ret)
{
	_cleanup_dm_ struct dm dm = {.fd = -1};
	int r = open_dm(&dm, &req->err);
	return r == 0 ? make(&dm, req, ret, &req->err) : r;
}

static int attach_call(struct backend_req *req)
{
	struct backend_dev dev;
	int r = make_now(req, &dev);
	if (r == 0)
		req->dev = dev;
	return r;
}

static int attach_job(void *arg)
{
	return attach_call(arg);
}

static int attach(const struct backend *backend, struct op *op, struct backend_req *req)
{
	(void)backend;
	return op_work(op, attach_job, req);
}

/* ---- detach, resize ---- */

/* Who has it open afterwards reaches nothing by it: it is nobody's device any more. */
int backend_disk_detach(struct backend_dev *dev, struct err *err)
{
	_cleanup_dm_ struct dm dm = {.fd = -1};
	bool waits;
	int r = open_loaded(&dm);
	if (r < 0)
		return err_sys(err, r, "letting go of %s: opening %s", dev->path, DM_CONTROL_PATH);
	r = r > 0 ? 0 : mapped_remove(&dm, dev->tag, dev->image_ino, &waits, err);
	if (r < 0)
		return r;
	dev->attached = dev->going_away = false;
	return 0;
}

static int detach_job(void *arg)
{
	struct backend_req *req = arg;
	return backend_disk_detach(&req->dev, &req->err);
}

static int detach(const struct backend *backend, struct op *op, struct backend_req *req)
{
	(void)backend;
	return op_work(op, detach_job, req);
}

static int resize_job(void *arg)
{
	struct backend_req *req = arg;
	struct backend_dev dev;
	int r = make_now(req, &dev);
	if (r == 0)
		req->dev.size_bytes = dev.size_bytes;
	return r;
}

static int resize(const struct backend *backend, struct op *op, struct backend_req *req)
{
	(void)backend;
	return op_work(op, resize_job, req);
}

/* ---- looking ---- */

struct scan {
	struct dm *dm;
	void (*each)(void *arg, const struct backend_dev *dev);
	void *arg;
};

static void scan_on_device(void *arg, const struct mapped *mapped)
{
	struct scan *scan = arg;
	struct backend_dev dev;
	if (mapped->foreign)
		return;
	dev_from_mapped(mapped, records_of(scan->dm, mapped->tag), &dev);
	scan->each(scan->arg, &dev);
}

int backend_disk_scan(
	void (*each)(void *arg, const struct backend_dev *dev), void *arg, struct err *err)
{
	_cleanup_dm_ struct dm dm = {.fd = -1};
	struct scan scan = {.dm = &dm, .each = each, .arg = arg};
	int r = open_loaded(&dm);
	if (r > 0)
		return 0;
	if (r == 0)
		r = mapped_each(&dm, scan_on_device, &scan);
	return r < 0 ? err_sys(err, r, "looking through the device-mapper devices") : 0;
}

static int scan(const struct backend *backend,
	void (*each)(void *arg, const struct backend_dev *dev), void *arg, struct err *err)
{
	(void)backend;
	return backend_disk_scan(each, arg, err);
}

static int wake(const struct backend_dev *dev, struct err *err)
{
	_cleanup_dm_ struct dm dm = {.fd = -1};
	int r = open_dm(&dm, err);
	if (r < 0)
		return r;
	r = mapped_wake(&dm, dev->tag, dev->image_ino);
	return r < 0 ? err_sys(err, r, "resuming the device of %s", dev->tag) : 0;
}

/* The uuid of a number of the device mapper's, as sysfs has it. False: it is no device of ours now.
 */
static bool uuid_of(const struct backend_dev *dev, char ret[DM_UUID_LEN])
{
	return blkdev_read(dev->major, dev->minor, "dm/uuid", ret, DM_UUID_LEN) > 0 &&
	       strncmp(ret, MAPPED_UUID_PREFIX, strlen(MAPPED_UUID_PREFIX)) == 0;
}

/* "RINGVOL-disk-a-b-ino": as the tag, and the inode. */
static bool uuid_parse(const char *uuid, char ret_tag[64], uint64_t *ret_ino)
{
	char pool[9], random[9];
	unsigned long long ino;
	if (sscanf(uuid, MAPPED_UUID_PREFIX "%8[0-9a-f]-%8[0-9a-f]-%16llx", pool, random, &ino) !=
		3)
		return false;
	snprintf(ret_tag, 64, "ringvol:%s:%s", pool, random);
	*ret_ino = ino;
	return true;
}

/* Whether it leads to other places than the disks of its pool, where these are known. */
static int leads_elsewhere(struct dm *dm, const struct mapped *mapped, bool *ret)
{
	_cleanup_disk_ struct disk *disk = disk_of(mapped->tag);
	_cleanup_free_ struct image_map *map = calloc(1, sizeof(*map));
	*ret = false;
	if (map == NULL)
		return -ENOMEM;
	if (disk == NULL || mapped->size_bytes == 0)
		return 0;
	int r = mapped_pieces(dm, disk, mapped, map);
	*ret = r == -ERANGE;
	return r == -ERANGE ? 0 : r;
}

static int look(
	const struct backend *backend, const struct backend_dev *dev, struct backend_dev *ret)
{
	(void)backend;
	_cleanup_dm_ struct dm dm = {.fd = -1};
	char uuid[DM_UUID_LEN], tag[64];
	struct mapped mapped;
	uint64_t ino;
	bool elsewhere = false;
	bool was_ours = dev->below_major == 0 && strncmp(dev->path, "/dev/dm-", 8) == 0;
	if (dev->below_major != 0 || !uuid_of(dev, uuid) || !uuid_parse(uuid, tag, &ino))
		return was_ours ? -ENXIO : -EOPNOTSUPP;
	int r = dm_open(&dm, DM_CONTROL_PATH);
	if (r == 0)
		r = mapped_look(&dm, tag, ino, &mapped);
	if (r == 0)
		r = leads_elsewhere(&dm, &mapped, &elsewhere);
	if (r < 0)
		return dm_is_absent(r) || r == -EEXIST ? -ENXIO : r;
	if (mapped.major != dev->major || mapped.minor != dev->minor)
		return -ENXIO;
	if (elsewhere)
		mapped.size_bytes = 0;
	dev_from_mapped(&mapped, records_of(&dm, tag), ret);
	return 0;
}

static int set_read_only(
	const struct backend *backend, const struct backend_dev *dev, bool read_only)
{
	struct backend_dev now;
	int r = look(backend, dev, &now);
	if (r < 0 || now.read_only == read_only)
		return r == -EOPNOTSUPP ? -ENXIO : r;
	return blkdev_set_read_only(now.path, read_only);
}

/* ---- the vtable ---- */

static int check(const struct backend *backend, bool raw, struct err *err)
{
	(void)backend;
	(void)raw;
	bool there = access(DM_CONTROL_PATH, F_OK) == 0 && dm_is_loaded();
	return there ? 0 : dm_fail_open(-ENODEV, WHO, err);
}

static const struct backend backend_disk = {
	.type = BACKEND_DISK,
	.name = "disk",
	.devices_max = DM_MINORS,
	.check = check,
	.attach_call = attach_call,
	.attach = attach,
	.detach = detach,
	.resize = resize,
	.scan = scan,
	.wake = wake,
	.look = look,
	.set_read_only = set_read_only,
};

void backend_disk_open(void)
{
	struct dm dm;
	if (dm_open(&dm, DM_CONTROL_PATH) == 0)
		dm_close(&dm);
	backend_add(&backend_disk);
}

void backend_disk_close(void)
{
	backend_remove(&backend_disk);
}
