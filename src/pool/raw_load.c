/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What of a raw pool's area is occupied: the sum of the maps of all its files. Happy path: every
 * directory's files are asked for their maps, the pieces are sorted and become what is not free.
 * What is in the trash counts as dirty.
 *
 * How it can fail: a map is damaged, leads to where no disk is, or has a piece that another map has
 * too. Then the volume is quarantined; of two that have the same piece, both. What their maps say
 * stays occupied. Where a map cannot be read at all, nobody knows what is free, and nothing is
 * given out (pool_raw.unread). The rest of the pool is served.
 */
#include "pool/raw_load.h"

#include "base/buf.h"
#include "base/fd.h"
#include "pool/private.h"
#include "pool/raw_devices.h"
#include "pool/trash.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct piece {
	uint64_t address, bytes;
	struct pool_found *owner; /* NULL: no volume's */
};

/* An id in the thin pool. */
struct thin_id {
	uint32_t id;
	struct pool_found *owner; /* NULL: no volume's or snapshot's */
};

struct reading {
	struct pool_raw *raw;
	struct pool_found *found;
	size_t found_count;
	struct piece *pieces;
	size_t count, cap;
	int dir, dirfd; /* dir: an enum pool_fd */
	int trash_fd;
	int thin_there; /* 1: thin/data is */
	struct image_map map;
	struct thin_id *ids;
	size_t id_count, id_cap;
};

/* ---- one file ---- */

static void quarantine(struct pool_found *o, const char *why)
{
	if (o == NULL || o->rec == NULL)
		return;
	record_free(o->rec);
	o->rec = NULL;
	o->why = why;
}

struct wanted {
	enum record_kind kind;
	const char *key;
};

static int compare_key(const void *wanted, const void *found)
{
	const struct wanted *w = wanted;
	const struct pool_found *o = found;
	return w->kind != o->kind ? (w->kind < o->kind ? -1 : 1) : strcmp(w->key, o->key);
}

/* The volume or snapshot of that name. */
static struct pool_found *object_of(const struct reading *r, const char *name)
{
	const struct wanted w = {r->dir == POOL_FD_VOLUMES ? RECORD_VOLUME : RECORD_SNAPSHOT, name};
	if ((r->dir != POOL_FD_VOLUMES && r->dir != POOL_FD_SNAPSHOTS) || r->found_count == 0)
		return NULL;
	return bsearch(&w, r->found, r->found_count, sizeof(*r->found), compare_key);
}

int pool_raw_map(int dirfd, const char *name, struct image_map *ret)
{
	struct stat st;
	_cleanup_fd_ int fd =
		openat(dirfd, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	if (fd < 0)
		return errno == ENOENT || errno == ELOOP || errno == ENXIO ? -ENODATA : -errno;
	if (fstat(fd, &st) < 0)
		return -errno;
	return S_ISREG(st.st_mode) ? image_map_read(fd, ret) : -ENODATA;
}

bool pool_raw_lost_map(int dirfd, const char *name, bool trash)
{
	struct stat st;
	if (fstatat(dirfd, name, &st, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISREG(st.st_mode))
		return false;
	return trash ? st.st_size > 0 : record_key_valid(name);
}

/* Templates have none. */
static bool lost_map(const struct reading *r, const char *name)
{
	bool trash = r->dir == POOL_FD_TRASH;
	return (trash || r->dir == POOL_FD_VOLUMES || r->dir == POOL_FD_SNAPSHOTS) &&
	       pool_raw_lost_map(r->dirfd, name, trash);
}

static int add_pieces(struct reading *r, struct pool_found *owner)
{
	for (unsigned i = 0; i < r->map.count; i++) {
		if (array_grow(&r->pieces, &r->cap, r->count, sizeof(*r->pieces)) < 0)
			return -ENOMEM;
		r->pieces[r->count++] =
			(struct piece){r->map.pieces[i].address, r->map.pieces[i].bytes, owner};
	}
	return 0;
}

static int take_map(struct reading *r, struct pool_found *o)
{
	uint64_t bytes = image_map_bytes(&r->map);
	if (r->dir == POOL_FD_TRASH)
		r->raw->dirty_bytes += bytes;
	if (o != NULL) {
		o->allocated_bytes = bytes;
		o->thin_id = r->map.thin_id;
		if (o->rec != NULL && bytes < pool_raw_bytes(o->rec))
			quarantine(o, "its map is shorter than its record says");
		if (o->rec != NULL && (o->thin_id != 0) != pool_raw_has_id(o->rec))
			quarantine(o,
				o->thin_id != 0
					? "its map says that it is in the thin pool, and its record that it is not"
					: "its map does not say where in the thin pool it is");
	}
	if (r->map.thin_id == 0)
		return add_pieces(r, o);
	if (array_grow(&r->ids, &r->id_cap, r->id_count, sizeof(*r->ids)) < 0)
		return -ENOMEM;
	r->ids[r->id_count++] = (struct thin_id){r->map.thin_id, o};
	return 0;
}

static int read_one(void *arg, const char *name)
{
	struct reading *r = arg;
	struct pool_found *volume = object_of(r, name);
	int res = pool_raw_map(r->dirfd, name, &r->map);
	if (res == -ENOMEM || res == -EMFILE || res == -ENFILE)
		return res;
	if (res == 0)
		return take_map(r, volume);
	/* A file without a map is in nobody's way, unless it had one. */
	if (res == -ENODATA && (volume == NULL || volume->rec == NULL) && !lost_map(r, name))
		return 0;
	quarantine(volume, res == -ENODATA           ? "it has no map of where its bytes are"
			   : res == -EPROTONOSUPPORT ? "its map is of a later version of ringvol"
						     : "its map is damaged");
	if (r->raw->unread[0] == '\0')
		snprintf(r->raw->unread, sizeof(r->raw->unread), "%s/%s", pool_dir_names[r->dir],
			name);
	return 0;
}

/* ---- the thin pool ---- */

/* What a making or a taking away that was cut short has left, and what a repair has: trash. */
static int drop_other(void *arg, const char *name)
{
	struct reading *r = arg;
	char digits[TRASH_NAME_BYTES];
	bool ours = strcmp(name, THIN_METADATA_FILE) == 0 || strcmp(name, THIN_DATA_FILE) == 0;
	if (ours && r->thin_there == 1)
		return 0;
	pool_random_hex(digits, TRASH_NAME_BYTES - 1);
	/* On what is read-only nothing is given out either. */
	if (renameat2(r->dirfd, name, r->trash_fd, digits, RENAME_NOREPLACE) < 0 && errno != EROFS)
		return -errno;
	return 0;
}

static int read_thin_image(struct reading *r, enum thin_device which, struct image_map *ret)
{
	const char *name = thin_file_name(which);
	int res = pool_raw_map(r->dirfd, name, &r->map);
	if (res == -ENOMEM || res == -EMFILE || res == -ENFILE)
		return res;
	if (res == 0 && r->map.thin_id == 0) {
		*ret = r->map;
		return add_pieces(r, NULL);
	}
	r->raw->thin.refused = true;
	if (r->raw->unread[0] == '\0')
		snprintf(r->raw->unread, sizeof(r->raw->unread), THIN_DIR "/%s", name);
	return 0;
}

/* 1: it is there; 0: it is not; else nobody knows. */
static int look_for(int dirfd, const char *name)
{
	if (faccessat(dirfd, name, F_OK, AT_SYMLINK_NOFOLLOW) == 0)
		return 1;
	return errno == ENOENT ? 0 : -errno;
}

static int read_thin(struct reading *r, const int fds[POOL_FDS])
{
	struct pool_thin *thin = &r->raw->thin;
	r->dir = POOL_FD_THIN;
	r->dirfd = fds[POOL_FD_THIN];
	r->trash_fd = fds[POOL_FD_TRASH];
	if (r->dirfd < 0)
		return 0;
	r->thin_there = look_for(r->dirfd, THIN_DATA_FILE);
	int res = r->thin_there < 0 ? r->thin_there : fd_each_name(r->dirfd, drop_other, r);
	if (res < 0)
		return res;
	bool there = r->thin_there == 1;
	thin->life = there ? THIN_DOWN : THIN_NONE;
	if (there)
		res = read_thin_image(r, THIN_METADATA, &thin->metadata);
	return there && res == 0 ? read_thin_image(r, THIN_DATA, &thin->data) : res;
}

static int compare_id(const void *a, const void *b)
{
	const struct thin_id *x = a, *y = b;
	return x->id < y->id ? -1 : x->id > y->id;
}

/* Of two files with one id neither is touched. */
static int choose_ids(struct reading *r)
{
	struct pool_thin *thin = &r->raw->thin;
	_cleanup_free_ uint32_t *ids = calloc(r->id_count + 1, sizeof(*ids));
	if (ids == NULL)
		return -ENOMEM;
	if (r->id_count > 0)
		qsort(r->ids, r->id_count, sizeof(*r->ids), compare_id);
	for (size_t i = 0; i < r->id_count; i++) {
		ids[i] = r->ids[i].id;
		if (i == 0 || ids[i - 1] != ids[i])
			continue;
		quarantine(r->ids[i].owner, "another image has the same place in the thin pool");
		quarantine(
			r->ids[i - 1].owner, "another image has the same place in the thin pool");
	}
	thin->files = (unsigned)r->id_count;
	if (thin_choose_ids(thin, ids, r->id_count) == -EEXIST)
		r->raw->overlaps = true;
	/* Where its images are is not known: what has gone with them neither. */
	if (r->id_count > 0 && thin->life == THIN_NONE) {
		thin->refused = true;
		if (r->raw->unread[0] == '\0')
			snprintf(r->raw->unread, sizeof(r->raw->unread),
				THIN_DIR "/" THIN_DATA_FILE);
	}
	return 0;
}

/* ---- all together ---- */

static int compare_address(const void *a, const void *b)
{
	const struct piece *x = a, *y = b;
	return x->address < y->address ? -1 : x->address > y->address;
}

/* Whoever has the same piece as another is in doubt. Each piece is compared with the one that
 * reaches farthest of those before it: if any of them overlaps it, that one does. */
static void find_overlaps(struct reading *r)
{
	const struct piece *farthest = NULL;
	for (size_t i = 0; i < r->count; i++) {
		const struct piece *p = &r->pieces[i];
		if (farthest != NULL && p->address - farthest->address < farthest->bytes) {
			r->raw->overlaps = true;
			quarantine(p->owner, "another image has the same pieces of the disks");
			quarantine(
				farthest->owner, "another image has the same pieces of the disks");
		}
		if (farthest == NULL || p->address + p->bytes > farthest->address + farthest->bytes)
			farthest = p;
	}
}

static void find_lost(struct reading *r)
{
	for (size_t i = 0; i < r->count; i++) {
		uint64_t offset, left;
		const struct piece *p = &r->pieces[i];
		if (disk_at(r->raw->disk, p->address, &offset, &left) == NULL || left < p->bytes)
			quarantine(p->owner, "its map has pieces that are on none of the disks");
	}
}

/* The first address from there on that a disk has; UINT64_MAX: none. */
static uint64_t next_on_disk(const struct disk *disk, uint64_t address)
{
	uint64_t offset, left, next = UINT64_MAX;
	if (disk_at(disk, address, &offset, &left) != NULL)
		return address;
	for (unsigned i = 0; i < disk->count; i++) {
		uint64_t start = disk->members[i].start;
		if (start > address && start < next)
			next = start;
	}
	return next;
}

/* What is on the disks of [from, to), of which nothing is occupied yet. */
static int occupy(struct pool_raw *raw, uint64_t from, uint64_t to)
{
	while ((from = next_on_disk(raw->disk, from)) < to) {
		uint64_t offset, left;
		disk_at(raw->disk, from, &offset, &left);
		if (left > to - from)
			left = to - from;
		int r = area_occupy(raw->area, from, left);
		if (r < 0)
			return r;
		from += left;
	}
	return 0;
}

/* The union of all pieces. */
static int occupy_all(struct reading *r)
{
	uint64_t end = 0;
	for (size_t i = 0; i < r->count; i++) {
		const struct piece *p = &r->pieces[i];
		uint64_t from = p->address > end ? p->address : end;
		if (p->address + p->bytes <= from)
			continue;
		end = p->address + p->bytes;
		int res = occupy(r->raw, from, end);
		if (res < 0)
			return res;
	}
	return 0;
}

/* Where a repair of the records puts what has lost its name: its map is nobody's then. */
static int read_lost(void *arg, const char *name)
{
	struct pool_raw *raw = arg;
	if (raw->unread[0] == '\0')
		snprintf(raw->unread, sizeof(raw->unread), "lost+found/%s", name);
	return 0;
}

int pool_raw_each_lost(int root, int (*each)(void *arg, const char *name), void *arg)
{
	_cleanup_fd_ int fd =
		openat(root, "lost+found", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return errno == ENOENT || errno == ENOTDIR || errno == ELOOP ? 0 : -errno;
	return fd_each_name(fd, each, arg);
}

static int read_all(struct reading *r, const int fds[POOL_FDS])
{
	/* First, as what is no part of the thin pool goes to the trash. */
	int thin_res = read_thin(r, fds);
	if (thin_res < 0)
		return thin_res;
	for (r->dir = POOL_FD_VOLUMES; r->dir < POOL_DIRS_END; r->dir++) {
		r->dirfd = fds[r->dir];
		int res = fd_each_name(r->dirfd, read_one, r);
		if (res < 0)
			return res;
	}
	if (r->count > 0)
		qsort(r->pieces, r->count, sizeof(*r->pieces), compare_address);
	return choose_ids(r);
}

static int add_area(struct pool_raw *raw, const struct disk *disk)
{
	raw->area = area_new();
	int r = raw->area == NULL ? -ENOMEM : 0;
	for (unsigned i = 0; r == 0 && i < disk->count; i++)
		r = area_add(raw->area, disk->members[i].start, disk->members[i].bytes);
	return r;
}

int pool_raw_load(struct disk *disk, const int fds[POOL_FDS], struct pool_found *found,
	size_t count, struct pool_raw **ret, struct err *err)
{
	struct pool_raw *raw = calloc(1, sizeof(*raw));
	if (raw == NULL)
		return err_sys(err, -ENOMEM, "reading the maps");
	struct reading r = {.raw = raw, .found = found, .found_count = count};
	uint64_t strays = 0;
	list_init(&raw->waiting);
	thin_templates_init(&raw->thin.templates);
	raw->disk = disk;
	int res = add_area(raw, disk);
	if (res == 0)
		res = read_all(&r, fds);
	if (res == 0)
		res = pool_raw_each_lost(fds[POOL_FD_ROOT], read_lost, raw);
	if (res == 0) {
		find_overlaps(&r);
		find_lost(&r);
		res = occupy_all(&r);
	}
	/* Where a map cannot be read, its image's device is no stray: a file that owned the pieces
	 * would contradict the map as soon as that can be read again. Nothing is given out. */
	if (res == 0 && raw->unread[0] == '\0')
		res = raw_devices_strays(disk, fds[POOL_FD_TRASH], raw->area, &strays);
	raw->dirty_bytes += strays;
	free(r.pieces);
	free(r.ids);
	if (res == 0) {
		*ret = raw;
		return 0;
	}
	raw->disk = NULL; /* still the caller's */
	pool_raw_free(raw);
	return err_sys(err, res, "reading the maps");
}
