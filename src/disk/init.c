/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Making a device the first disk of a raw pool.
 *
 * Happy path: the place is empty and the device holds nothing; a header that says "making" goes
 * onto it, then the file system for records, then what the pool puts there, then a header that is
 * sound, then ringvol.disk. A crash before the sound header leaves "making", by which the next
 * attempt knows that the device is its own; after it, the next attempt has but ringvol.disk to
 * write. So does the same command on another node, to which the disk has moved.
 */
#include "disk/init.h"

#include "base/fd.h"
#include "disk/fresh.h"
#include "disk/mkfs.h"
#include "disk/place.h"
#include "disk/records_device.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#define MIB ((uint64_t)1 << 20)
#define GIB ((uint64_t)1 << 30)

/* What its volumes' records, maps and templates' names may need, and the log. mkfs.xfs takes no
 * less than 300 MiB. */
static uint64_t records_bytes_for(uint64_t size)
{
	const uint64_t least = size < 4 * GIB ? 320 * MIB : 512 * MIB, most = 4 * GIB;
	uint64_t bytes = size / 256 / DISK_UNIT_BYTES * DISK_UNIT_BYTES;
	return bytes < least ? least : bytes > most ? most : bytes;
}

static void describe(uint64_t device_bytes, struct disk_header *ret)
{
	struct disk_header h = {
		.count = 1,
		.size_bytes = device_bytes / DISK_UNIT_BYTES * DISK_UNIT_BYTES,
		.records_offset = DISK_UNIT_BYTES,
		.generation = 1,
		.state = DISK_MAKING,
	};
	uuid_draw(h.pool);
	uuid_draw(h.disk);
	memcpy(h.disks[0], h.disk, sizeof(h.disk));
	h.records_bytes = records_bytes_for(h.size_bytes);
	h.offset = h.records_offset + h.records_bytes;
	h.bytes = h.size_bytes - DISK_UNIT_BYTES - h.offset;
	*ret = h;
}

/* As disk_open() would, of a disk that is not sound yet. */
static int open_making(
	const struct disk_header *h, const struct disk_found *found, struct disk **ret)
{
	struct disk *disk = calloc(1, sizeof(*disk));
	int fd = disk_found_open(found, O_RDWR | O_DIRECT);
	if (disk == NULL || fd < 0) {
		int r = disk == NULL ? -ENOMEM : fd;
		fd_close(&fd);
		free(disk);
		return r;
	}
	*disk = (struct disk){
		.count = 1,
		.records_offset = h->records_offset,
		.records_bytes = h->records_bytes,
		.block_size = found->block_size,
		.refs = 1,
	};
	memcpy(disk->uuid, h->pool, sizeof(disk->uuid));
	disk->members[0] = (struct disk_member){
		.major = found->major,
		.minor = found->minor,
		.fd = fd,
		.offset = h->offset,
		.bytes = h->bytes,
	};
	memcpy(disk->members[0].uuid, h->disk, sizeof(h->disk));
	memcpy(disk->members[0].path, found->path, sizeof(found->path));
	*ret = disk;
	return 0;
}

static int write_place(
	const char *path, const struct disk_header *h, const char *device, struct err *err)
{
	struct disk_place place = {0};
	memcpy(place.pool, h->pool, sizeof(place.pool));
	memcpy(place.disk, h->disk, sizeof(place.disk));
	strcpy(place.device, device);
	int r = disk_place_write(path, &place);
	return r < 0 ? err_sys(err, r, "writing %s/" DISK_FILE, path) : 0;
}

/* The device is a disk of a pool. */
static int take_again(const struct disk_fresh *fresh, const char *path,
	const struct disk_place *place, struct disk_change *ret, struct err *err)
{
	const struct disk_header *h = &fresh->found.header;
	if (place->pool[0] != '\0' && strcmp(place->pool, h->pool) != 0)
		return err_set(err, ERR_PRECONDITION,
			"%s is a disk of the raw pool %.8s, and %s is the place of the pool %.8s",
			fresh->found.path, h->pool, path, place->pool);
	if (h->index != 0)
		return err_set(err, ERR_PRECONDITION,
			"%s is disk %u of the raw pool %.8s: name its first disk",
			fresh->found.path, h->index + 1, h->pool);
	int r = write_place(path, h, fresh->found.path, err);
	if (r < 0)
		return r;
	*ret = (struct disk_change){.existed = true, .path = path, .first = *h, .fd = -1};
	return 0;
}

static int take(
	const struct disk_fresh *fresh, const char *path, struct disk_change *ret, struct err *err)
{
	struct disk_change change = {.path = path, .fd = -1};
	describe(fresh->found.device_bytes, &change.first);
	int r = disk_fresh_mark(fresh->fd, &change.first);
	if (r == 0)
		r = open_making(&change.first, &fresh->found, &change.disk);
	if (r < 0)
		return err_sys(err, r, "writing the header of %s", fresh->found.path);
	change.bytes = change.first.bytes;
	*ret = change;
	return 0;
}

int disk_init_begin(const char *device, const char *path, struct disk_change *ret, struct err *err)
{
	struct disk_place place;
	struct disk_fresh fresh;
	struct dm dm;
	/* Without it nothing is begun. */
	int r = records_dm_open(&dm, err);
	if (r < 0)
		return r;
	dm_close(&dm);
	r = disk_place_prepare(path, &place, err);
	if (r < 0)
		return r;
	r = disk_fresh_open(device, &fresh, err);
	if (r < 0)
		return r;
	if (fresh.ours && fresh.found.header.state != DISK_MAKING)
		r = take_again(&fresh, path, &place, ret, err);
	else if (place.pool[0] != '\0')
		r = err_set(err, ERR_PRECONDITION,
			"%s is the place of the raw pool %.8s, whose disk was %s, and not of %s: see "
			"'ringvol pool grow' for adding a disk",
			path, place.pool, place.device, device);
	else
		r = take(&fresh, path, ret, err);
	/* Or the device mapper could not have it. */
	fd_close(&fresh.fd);
	return r;
}

int disk_init_records(const struct disk_change *change, struct err *err)
{
	struct records_device device;
	int r = records_device_open(change->disk, false, &device, err);
	if (r < 0)
		return r;
	r = records_device_make(&device, err);
	/* From then on it goes with us, or with a mkfs that outlives us. */
	_cleanup_fd_ int fd = r == 0 ? open(device.path, O_RDONLY | O_CLOEXEC) : -1;
	if (r == 0 && fd < 0)
		r = -errno;
	/* Or it was taken away meanwhile, and the number is another's. */
	if (r == 0 && !records_device_is(&device, fd))
		r = -ENXIO;
	records_device_let_go(&device);
	if (r == 0)
		r = disk_mkfs(device.path, change->disk->uuid, err);
	records_device_close(&device);
	return r < 0 && err->code == ERR_OK ? err_sys(err, r, "making the device %s", device.name)
					    : r;
}

int disk_init_end(struct disk_change *change, struct err *err)
{
	const struct disk_member *m = &change->disk->members[0];
	change->first.state = DISK_SOUND;
	change->first.generation++;
	int r = disk_header_write(m->fd, &change->first);
	if (r < 0)
		return err_sys(err, r, "writing the header of %s", m->path);
	return write_place(change->path, &change->first, m->path, err);
}

void disk_change_drop(struct disk_change *change)
{
	disk_unref(change->disk);
	change->disk = NULL;
	fd_close(&change->fd);
}
