/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening the disks of a raw pool. Happy path: read ringvol.disk, look for the headers that name
 * the pool, sort them by the first one's list, open each, and for a driver write who serves it.
 *
 * It fails where a disk is missing, says what contradicts another, or is another node's; never with
 * half of the disks. What is written is the first disk's header alone, and a hint.
 */
#include "base/clock.h"
#include "base/fd.h"
#include "disk/find.h"
#include "disk/header.h"
#include "disk/owner.h"
#include "disk/place.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

struct opening {
	const char *path;
	enum disk_use use;
	const char *node;
	struct disk_place place;
	struct disk_finds finds;
	struct disk_found *members[DISK_MEMBERS_MAX];
};

/* ---- which ---- */

/* Why the first disk is not there: what its last place says now. */
static int fail_missing(const struct opening *o, struct err *err)
{
	struct disk_found found;
	const char *device = o->place.device;
	_cleanup_fd_ int fd = open(device, O_RDONLY | O_DIRECT | O_NONBLOCK | O_CLOEXEC);
	int r = fd < 0 ? -errno : disk_found_read(fd, device, &found);
	if (r == -EBADMSG)
		return err_set(err, ERR_DATA_LOSS,
			"the header of %s and its copy are both damaged; it was the disk of the pool "
			"at %s",
			device, o->path);
	if (r == -EPROTONOSUPPORT)
		return err_set(err, ERR_PRECONDITION,
			"the header of %s is of a later version of ringvol: run that version",
			device);
	if (r < 0 && r != -ENOENT && r != -ENXIO && r != -ENODEV && r != -ENODATA && r != -ENOTBLK)
		return err_set(err, ERR_UNAVAILABLE,
			"%s, the disk of the pool at %s, cannot be read (%s): look for its errors in "
			"the kernel log",
			device, o->path, strerrordesc_np(-r));
	return err_set(err, ERR_UNAVAILABLE,
		"the disk of the pool at %s is not there, it was %s: plug it in or attach it",
		o->path, device);
}

/* The disk of that uuid. NULL with *err set: none, or two. */
static struct disk_found *pick(const struct opening *o, const char *uuid, struct err *err)
{
	struct disk_found *picked = NULL;
	for (unsigned i = 0; i < o->finds.count; i++) {
		struct disk_found *f = &o->finds.found[i];
		if (strcmp(f->header.disk, uuid) != 0)
			continue;
		if (picked != NULL) {
			err_set(err, ERR_PRECONDITION,
				"%s and %s say that they are the same disk of the pool at %s: one is "
				"a copy, take it away",
				picked->path, f->path, o->path);
			return NULL;
		}
		picked = f;
	}
	return picked;
}

static int check_member(
	const struct opening *o, const struct disk_found *f, unsigned index, struct err *err)
{
	if (f->header.index != index || f->header.state == DISK_MAKING)
		return err_set(err, ERR_PRECONDITION,
			"%s says another thing of the pool at %s than its first disk: run "
			"'ringvol pool grow' to its end",
			f->path, o->path);
	if (f->device_bytes < f->header.size_bytes)
		return err_set(err, ERR_UNAVAILABLE,
			"%s is smaller than the disk of the pool at %s was: it has %" PRIu64
			" bytes of %" PRIu64 ", make it as large again",
			f->path, o->path, f->device_bytes, f->header.size_bytes);
	return 0;
}

static int pick_first(struct opening *o, struct err *err)
{
	o->members[0] = pick(o, o->place.disk, err);
	if (err->code != ERR_OK)
		return -EBUSY;
	if (o->members[0] == NULL)
		return fail_missing(o, err);
	const struct disk_header *first = &o->members[0]->header;
	if (first->index == 0 && first->state == DISK_MAKING)
		return err_set(err, ERR_PRECONDITION,
			"'ringvol pool init --device %s %s' did not end: run it again",
			o->members[0]->path, o->path);
	if (first->index == 0 && first->state == DISK_GROWING && o->use == DISK_SERVE)
		return err_set(err, ERR_PRECONDITION,
			"'ringvol pool grow %s' did not end: run it again", o->path);
	return check_member(o, o->members[0], 0, err);
}

static int pick_all(struct opening *o, struct err *err)
{
	int r = disk_find(o->place.pool, &o->finds);
	if (r < 0)
		return err_sys(err, r, "looking for the disks of the pool at %s", o->path);
	r = pick_first(o, err);
	if (r < 0)
		return r;
	const struct disk_header *first = &o->members[0]->header;
	for (unsigned i = 1; i < first->count; i++) {
		o->members[i] = pick(o, first->disks[i], err);
		if (err->code != ERR_OK)
			return -EBUSY;
		if (o->members[i] == NULL)
			return err_set(err, ERR_UNAVAILABLE,
				"disk %u of the %u of the pool at %s is not there: plug it in or "
				"attach it",
				i + 1, first->count, o->path);
		r = check_member(o, o->members[i], i, err);
		if (r < 0)
			return r;
	}
	return 0;
}

/* ---- opening ---- */

static int open_member(const struct opening *o, const struct disk_found *f, struct disk_member *ret,
	struct err *err)
{
	struct disk_found now;
	_cleanup_fd_ int fd =
		disk_found_open(f, (o->use == DISK_LOOK ? O_RDONLY : O_RDWR) | O_DIRECT);
	int r = fd < 0 ? fd : disk_found_read(fd, f->path, &now);
	if (r == 0 && strcmp(now.header.disk, f->header.disk) != 0)
		r = -ENODEV;
	if (r < 0)
		return err_set(err, ERR_UNAVAILABLE,
			"%s, a disk of the pool at %s, cannot be opened (%s): look for its errors in "
			"the kernel log",
			f->path, o->path, strerrordesc_np(-r));
	*ret = (struct disk_member){
		.major = f->major,
		.minor = f->minor,
		.fd = fd,
		.start = f->header.start,
		.offset = f->header.offset,
		.bytes = f->header.bytes,
		.damaged = f->damaged,
		.larger = f->device_bytes - f->header.size_bytes >= DISK_UNIT_BYTES,
	};
	memcpy(ret->uuid, f->header.disk, sizeof(ret->uuid));
	memcpy(ret->path, f->path, sizeof(ret->path));
	fd = -1;
	return 0;
}

static int open_members(const struct opening *o, struct disk *disk, struct err *err)
{
	const struct disk_header *first = &o->members[0]->header;
	memcpy(disk->uuid, first->pool, sizeof(disk->uuid));
	disk->records_offset = first->records_offset;
	disk->records_bytes = first->records_bytes;
	for (unsigned i = 0; i < first->count; i++) {
		struct disk_member *m = &disk->members[i];
		int r = open_member(o, o->members[i], m, err);
		if (r < 0)
			return r;
		disk->count++;
		if (o->members[i]->block_size > disk->block_size)
			disk->block_size = o->members[i]->block_size;
	}
	return 0;
}

/* ---- whose ---- */

/* Whether the header on the disk is still the one that was read. */
static int check_unchanged(
	const struct disk_member *m, const struct disk_header *read, struct err *err)
{
	struct disk_found now;
	int r = disk_found_read(m->fd, m->path, &now);
	if (r < 0)
		return err_sys(err, r, "reading the header of %s", m->path);
	return now.header.generation == read->generation
		       ? 0
		       : err_set(err, ERR_UNAVAILABLE,
				 "the header of %s has just been written by another process: try again",
				 m->path);
}

/* What is damaged is whole again by it. A `pool grow` may have written since it was read. */
static int write_header(const struct disk_member *m, struct disk_header *header, struct err *err)
{
	int r = check_unchanged(m, header, err);
	if (r < 0)
		return r;
	header->generation++;
	r = disk_header_write(m->fd, header);
	return r < 0 ? err_sys(err, r, "writing the header of %s", m->path) : 0;
}

static int mend(const struct opening *o, const struct disk *disk, struct err *err)
{
	int r = 0;
	for (unsigned i = 1; r == 0 && i < disk->count; i++)
		if (o->members[i]->damaged)
			r = write_header(&disk->members[i], &o->members[i]->header, err);
	return r;
}

/* A node that has read the header before we wrote ours writes its own over it: it has the disk
 * then. That is over when this time has passed. */
enum { CLAIM_MS = 500 };

/* Once in the life of an ownership. */
static int wait_for_peers(const struct opening *o, const struct disk_member *m,
	const struct disk_header *written, struct err *err)
{
	struct disk_found now;
	clock_sleep_ms(CLAIM_MS);
	int r = disk_found_read(m->fd, m->path, &now);
	if (r < 0)
		return err_sys(err, r, "reading the header of %s", m->path);
	r = disk_owner_check(&now.header, o->node, o->path, err);
	return r < 0 ? r : check_unchanged(m, written, err);
}

static int claim(const struct opening *o, const struct disk *disk, struct err *err)
{
	struct disk_found *first = o->members[0];
	const struct disk_member *m = &disk->members[0];
	struct disk_header header = first->header;
	const char *node = o->use == DISK_SERVE ? o->node : NULL;
	bool asks = o->use == DISK_SERVE || o->use == DISK_CHANGE;
	int r = !asks ? 0 : disk_owner_check(&header, node, o->path, err);
	if (r < 0 || o->use != DISK_SERVE)
		return r;
	bool changed = disk_owner_set(&header, node);
	if (!changed && !first->damaged)
		return 0;
	r = write_header(m, &header, err);
	return r < 0 || !changed ? r : wait_for_peers(o, m, &header, err);
}

/* Only a hint: where it cannot be written, the search finds the disk the next time too. */
static void keep_place(const struct opening *o)
{
	struct stat st;
	struct disk_place place = o->place;
	const struct disk_found *first = o->members[0];
	if (o->use == DISK_LOOK || (stat(place.device, &st) == 0 && S_ISBLK(st.st_mode) &&
					   st.st_rdev == makedev(first->major, first->minor)))
		return;
	memcpy(place.device, first->path, sizeof(place.device));
	(void)disk_place_write(o->path, &place);
}

static int open_all(struct opening *o, struct disk *disk, struct err *err)
{
	int r = disk_place_read(o->path, &o->place);
	if (r == -EBADMSG)
		return err_set(err, ERR_DATA_LOSS,
			"%s/" DISK_FILE " is damaged or of a later version: remove it, and run "
			"'ringvol pool init --device DEV %s' with the pool's disk",
			o->path, o->path);
	if (r == -ENOENT || r == -ENOTDIR)
		return err_set(err, ERR_PRECONDITION,
			"%s is no raw pool: it has no file " DISK_FILE, o->path);
	if (r < 0)
		return err_sys(err, r, "reading %s/" DISK_FILE, o->path);
	r = pick_all(o, err);
	if (r == 0)
		r = open_members(o, disk, err);
	if (r == 0)
		r = claim(o, disk, err);
	if (r == 0 && o->use == DISK_SERVE)
		r = mend(o, disk, err);
	if (r == 0)
		keep_place(o);
	return r;
}

int disk_open(
	const char *path, enum disk_use use, const char *node, struct disk **ret, struct err *err)
{
	struct opening o = {.path = path, .use = use, .node = node};
	struct disk *disk = calloc(1, sizeof(*disk));
	if (disk == NULL)
		return err_set(err, ERR_NO_ROOM, "out of memory");
	disk->refs = 1;
	int r = open_all(&o, disk, err);
	free(o.finds.found);
	if (r < 0)
		disk_unref(disk);
	else
		*ret = disk;
	return r;
}
