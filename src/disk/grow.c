/* SPDX-License-Identifier: Apache-2.0 */
/*
 * More room for a raw pool: another disk, or a disk that has become larger.
 *
 * Happy path: the first disk's header says "growing", so that no driver serves the pool; the caller
 * has the new part owned by the trash; then the header of the disk that is new or larger is
 * written, then the first disk's. An attempt cut short is begun anew by the next one, with whatever
 * disk that names: nothing is on the new part yet.
 */
#include "disk/init.h"

#include "base/fd.h"
#include "disk/fresh.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

/* Where the addresses of a disk begin, so that each can grow by itself: 256 TiB apart. */
enum { ADDRESS_SHIFT = 48 };

static int read_header(const struct disk_member *m, struct disk_found *ret, struct err *err)
{
	int r = disk_found_read(m->fd, m->path, ret);
	return r < 0 ? err_sys(err, r, "reading the header of %s", m->path) : 0;
}

static int write_header(int fd, const struct disk_header *header, const char *what, struct err *err)
{
	int r = disk_header_write(fd, header);
	return r < 0 ? err_sys(err, r, "writing the header of %s", what) : 0;
}

/* ---- a disk that is larger than it was ---- */

static uint64_t units(uint64_t bytes)
{
	return bytes / DISK_UNIT_BYTES * DISK_UNIT_BYTES;
}

/* The first that has grown: 1; 0: none has. */
static int find_grown(struct disk *disk, struct disk_change *change, struct err *err)
{
	for (unsigned i = 0; i < disk->count; i++) {
		struct disk_found found;
		int r = read_header(&disk->members[i], &found, err);
		if (r < 0)
			return r;
		struct disk_header *h = &found.header;
		uint64_t more = units(found.device_bytes) - h->size_bytes;
		if (units(found.device_bytes) <= h->size_bytes ||
			h->bytes + more > (uint64_t)1 << ADDRESS_SHIFT)
			continue;
		change->start = h->start + h->bytes;
		change->bytes = more;
		h->size_bytes += more;
		h->bytes += more;
		h->generation++;
		if (i == 0) {
			change->grown = *h;
			return 1;
		}
		change->grown = *h;
		change->fd = fcntl(disk->members[i].fd, F_DUPFD_CLOEXEC, 0);
		return change->fd < 0 ? err_sys(err, -errno, "growing %s", found.path) : 1;
	}
	return 0;
}

/* ---- one more disk ---- */

static bool is_listed(const struct disk_header *first, const char *uuid)
{
	for (unsigned i = 0; i < first->count; i++)
		if (strcmp(first->disks[i], uuid) == 0)
			return true;
	return false;
}

/* 1: it is one of the pool's already. */
static int check_new(const struct disk *disk, const struct disk_header *first,
	const struct disk_fresh *fresh, struct err *err)
{
	const struct disk_header *h = &fresh->found.header;
	if (fresh->ours && strcmp(h->pool, first->pool) == 0 && is_listed(first, h->disk))
		return 1;
	/* "making" may be a leaf of any attempt; a sound one only of this pool's. */
	if (fresh->ours && h->state != DISK_MAKING && strcmp(h->pool, first->pool) != 0)
		return err_set(err, ERR_PRECONDITION, "%s is a disk of the raw pool %.8s",
			fresh->found.path, h->pool);
	if (fresh->ours && h->state != DISK_MAKING &&
		(first->state != DISK_GROWING || h->index != first->count))
		return err_set(err, ERR_PRECONDITION,
			"%s is disk %u of this pool and may have volumes, but the header of the first "
			"disk, %s, lists %u: that one is an old one, restore its latest backup",
			fresh->found.path, h->index + 1, disk->members[0].path, first->count);
	if (first->count == DISK_MEMBERS_MAX)
		return err_set(
			err, ERR_PRECONDITION, "a raw pool has %u disks at most", DISK_MEMBERS_MAX);
	if (fresh->found.block_size > disk->block_size)
		return err_set(err, ERR_PRECONDITION,
			"%s has blocks of %u bytes, and the disks of the pool have %u: volumes could "
			"not be written to it in theirs",
			fresh->found.path, fresh->found.block_size, disk->block_size);
	return 0;
}

static void describe(
	const struct disk_header *first, uint64_t device_bytes, struct disk_header *ret)
{
	struct disk_header h = {
		.index = first->count,
		.size_bytes = units(device_bytes),
		.start = (uint64_t)first->count << ADDRESS_SHIFT,
		.offset = DISK_UNIT_BYTES,
		.generation = 1,
		.state = DISK_MAKING,
	};
	h.bytes = h.size_bytes - 2 * DISK_UNIT_BYTES;
	memcpy(h.pool, first->pool, sizeof(h.pool));
	uuid_draw(h.disk);
	*ret = h;
}

/* 1: it is to be added, and held; 0: it is one of the pool's. */
static int take_new(
	struct disk *disk, const char *device, struct disk_change *change, struct err *err)
{
	struct disk_fresh fresh;
	int r = disk_fresh_open(device, &fresh, err);
	if (r < 0)
		return r;
	r = check_new(disk, &change->first, &fresh, err);
	if (r == 0) {
		describe(&change->first, fresh.found.device_bytes, &change->grown);
		change->start = change->grown.start;
		change->bytes = change->grown.bytes;
		if (fresh.fd < 0) /* sound, of an attempt that ended one write too early */
			fresh.fd = disk_found_open(&fresh.found, O_RDWR | O_EXCL);
		r = fresh.fd < 0 ? err_sys(err, fresh.fd, "opening %s", device)
				 : disk_fresh_check(fresh.fd, device, err);
	}
	if (r == 0) {
		r = disk_fresh_mark(fresh.fd, &change->grown);
		if (r < 0)
			(void)err_sys(err, r, "writing the header of %s", device);
	}
	if (r < 0 || r == 1) {
		fd_close(&fresh.fd);
		return r < 0 ? r : 0;
	}
	change->fd = fresh.fd;
	return 1;
}

/* ---- begin and end ---- */

int disk_grow_begin(const char *path, struct disk *disk, const char *device,
	struct disk_change *ret, struct err *err)
{
	struct disk_found first;
	struct disk_change change = {.path = path, .fd = -1};
	int r = read_header(&disk->members[0], &first, err);
	if (r < 0)
		return r;
	change.first = first.header;
	r = device != NULL ? take_new(disk, device, &change, err) : find_grown(disk, &change, err);
	change.existed = r == 0;
	/* An attempt that was cut short, and nothing is left to do for it. */
	enum disk_state state = r > 0 ? DISK_GROWING : DISK_SOUND;
	if (r >= 0 && change.first.state != state) {
		change.first.state = state;
		change.first.generation++;
		r = write_header(disk->members[0].fd, &change.first, disk->members[0].path, err);
	}
	if (r < 0) {
		fd_close(&change.fd);
		return r;
	}
	change.disk = disk_ref(disk);
	*ret = change;
	return 0;
}

int disk_grow_end(struct disk_change *change, struct err *err)
{
	struct disk_header *first = &change->first, *grown = &change->grown;
	const struct disk_member *m = &change->disk->members[0];
	uint64_t generation = first->generation + 1;
	if (grown->index == 0) {
		*first = *grown;
	} else {
		grown->state = DISK_SOUND;
		grown->generation++;
		int r = write_header(change->fd, grown, "the disk that was added", err);
		if (r < 0)
			return r;
		if (grown->index == first->count)
			memcpy(first->disks[first->count++], grown->disk, sizeof(grown->disk));
	}
	first->state = DISK_SOUND;
	first->generation = generation;
	return write_header(m->fd, first, m->path, err);
}
