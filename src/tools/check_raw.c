/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What can be wrong with the maps of a raw pool: each by itself, all against each other, and those
 * of volumes against their devices. Nothing is changed.
 *
 * Beside a driver pieces move on while the maps are read: from a deleted image to a new one. So two
 * maps that seem to have the same piece are read once more, both.
 */
#include "tools/check_raw.h"

#include "base/buf.h"
#include "disk/mapped.h"
#include "disk/thin_tree.h"
#include "pool/raw_load.h"
#include "tools/check_thin.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define THIN_SPACE ((uint64_t)1 << 63)

struct piece {
	uint64_t address, bytes;
	enum survey_dir dir;
	const char *name;
};

struct maps {
	struct check *c;
	struct piece *pieces;
	size_t count, cap;
	enum survey_dir dir;
	struct image_map map; /* of the file that is looked at */
};

static const char *path_of(struct check *c, enum survey_dir dir, const char *name)
{
	return tool_text(c->args, "%s/%s", survey_dir_names[dir], name);
}

/* ---- each by itself ---- */

static const struct pool_found *volume_named(const struct check *c, const char *key)
{
	for (size_t i = 0; i < c->counts[RECORD_VOLUME]; i++)
		if (strcmp(c->objects[RECORD_VOLUME][i].key, key) == 0)
			return &c->objects[RECORD_VOLUME][i];
	return NULL;
}

static void add_damaged(struct check *c, const char *path, int res)
{
	bool later = res == -EPROTONOSUPPORT;
	check_add(c, .kind = "MapDamaged", .path = path,
		.message = tool_text(c->args,
			"its map says where on the disks it lies, and %s: the pool gives nothing "
			"out and overwrites nothing until that is known",
			res == -ENODATA ? "is missing"
			: later         ? "is of a later version of ringvol"
			: res == -EBADMSG
				? "is damaged"
				: tool_text(c->args, "cannot be read (%s)", strerrordesc_np(-res))),
		.remedy =
			later ? "serve the pool with that version"
			      : "look for errors of the first disk in the kernel log; restore the "
				"records, or restore what the volume held elsewhere and move the "
				"file away");
}

static bool is_on_disks(const struct disk *disk, const struct image_piece *piece)
{
	uint64_t offset, left;
	return disk_at(disk, piece->address, &offset, &left) != NULL && left >= piece->bytes;
}

static void look_at_map(struct maps *m, const char *name, const char *path)
{
	struct check *c = m->c;
	const struct pool_found *o = m->dir == SURVEY_VOLUMES ? volume_named(c, name) : NULL;
	unsigned off = 0;
	for (unsigned i = 0; i < m->map.count; i++)
		off += !is_on_disks(c->survey.disk, &m->map.pieces[i]);
	if (off > 0)
		check_add(c, .kind = "MapOffDisks", .path = path,
			.message = tool_text(c->args,
				"%u of its %u pieces are on none of the pool's disks", off,
				m->map.count),
			.remedy = "a disk was replaced by a smaller one, or the map is of another "
				  "pool: bring the disk back");
	uint64_t bytes = image_map_bytes(&m->map);
	if (o != NULL && o->rec != NULL && record_allocates(o->rec) && m->map.thin_id == 0 &&
		bytes < record_image_bytes(o->rec))
		check_add(c, .kind = "MapShort", .path = path,
			.message = tool_text(c->args,
				"its map has %llu bytes, its record says %llu: the rest is lost",
				(unsigned long long)bytes,
				(unsigned long long)record_image_bytes(o->rec)),
			.remedy = "restore it from a copy");
}

/* An id of the thin pool is one, too, in a space of its own. */
static void add_pieces(struct maps *m, const char *name)
{
	if (m->map.thin_id != 0)
		m->map.pieces[m->map.count++] =
			(struct image_piece){THIN_SPACE + m->map.thin_id, 1};
	for (unsigned i = 0; i < m->map.count; i++) {
		if (array_grow(&m->pieces, &m->cap, m->count, sizeof(*m->pieces)) < 0) {
			m->c->args->failed = true;
			return;
		}
		m->pieces[m->count++] = (struct piece){
			m->map.pieces[i].address, m->map.pieces[i].bytes, m->dir, name};
	}
}

/* A file without a map is in nobody's way, unless it had one. */
static bool needs_map(const struct check *c, enum survey_dir dir, const char *name)
{
	bool trash = dir == SURVEY_TRASH;
	return (trash || dir == SURVEY_VOLUMES || dir == SURVEY_SNAPSHOTS) &&
	       pool_raw_lost_map(c->survey.fds[dir], name, trash);
}

static int look_at_name(void *arg, const char *name)
{
	struct maps *m = arg;
	struct check *c = m->c;
	const char *path = path_of(c, m->dir, name);
	int r = pool_raw_map(c->survey.fds[m->dir], name, &m->map);
	if (r == 0) {
		look_at_map(m, name, path);
		add_pieces(m, tool_text(c->args, "%s", name));
	} else if (r != -ENODATA || needs_map(c, m->dir, name)) {
		add_damaged(c, path, r);
	}
	return 0;
}

/* ---- against each other ---- */

static int compare_address(const void *a, const void *b)
{
	const struct piece *x = a, *y = b;
	return x->address < y->address ? -1 : x->address > y->address;
}

static bool still_overlap(const struct check *c, const struct piece *a, const struct piece *b)
{
	struct image_map x, y;
	return pool_raw_map(c->survey.fds[a->dir], a->name, &x) == 0 &&
	       pool_raw_map(c->survey.fds[b->dir], b->name, &y) == 0 && image_map_overlaps(&x, &y);
}

static void look_for_overlaps(struct maps *m)
{
	struct check *c = m->c;
	const struct piece *farthest = NULL, *told = NULL;
	if (m->count > 0)
		qsort(m->pieces, m->count, sizeof(*m->pieces), compare_address);
	for (size_t i = 0; i < m->count; i++) {
		const struct piece *p = &m->pieces[i];
		/* Each image once in a row. */
		bool again = told != NULL && told->name == p->name;
		if (farthest != NULL && p->address - farthest->address < farthest->bytes &&
			!again && still_overlap(c, p, farthest)) {
			check_add(c, .kind = "MapsOverlap", .path = path_of(c, p->dir, p->name),
				.message = tool_text(c->args,
					"it has pieces of the disks that %s has as well: what is "
					"written to one is in both",
					path_of(c, farthest->dir, farthest->name)),
				.remedy = "use neither; find out from the data whose the pieces "
					  "are, save that, and move the other's file away while no "
					  "driver serves the pool");
			told = p;
		}
		if (farthest == NULL || p->address + p->bytes > farthest->address + farthest->bytes)
			farthest = p;
	}
}

/* ---- against devices ---- */

struct devices_of {
	struct check *c;
	struct dm dm;
};

static const struct pool_found *volume_of(const struct check *c, const struct mapped *mapped)
{
	for (size_t i = 0; i < c->counts[RECORD_VOLUME]; i++)
		if (c->objects[RECORD_VOLUME][i].image_ino == mapped->image_ino)
			return &c->objects[RECORD_VOLUME][i];
	return NULL;
}

/* A device may be shorter than the map: its volume is being grown. */
static void look_at_device(void *arg, const struct mapped *mapped)
{
	struct devices_of *d = arg;
	struct check *c = d->c;
	struct image_map map, pieces = {0};
	char prefix[32];
	int len = snprintf(prefix, sizeof(prefix), "ringvol:%.8s:", c->survey.uuid);
	const struct pool_found *o = volume_of(c, mapped);
	if (strncmp(mapped->tag, prefix, (size_t)len) != 0 || mapped->retired || o == NULL)
		return;
	int r = mapped_pieces(&d->dm, c->survey.disk, mapped, &pieces);
	if ((r < 0 && r != -ERANGE) ||
		pool_raw_map(c->survey.fds[SURVEY_VOLUMES], o->key, &map) < 0)
		return;
	if (map.thin_id == 0)
		image_map_cut(&map, image_map_bytes(&pieces));
	if (r == 0 && image_map_equal(&map, &pieces))
		return;
	check_add(c, .kind = "DeviceDiffers",
		.path = tool_text(c->args, "/dev/dm-%u", mapped->minor),
		.message = tool_text(c->args,
			"it is volume %s's, but leads to other parts of the disks than the "
			"volume's map",
			o->key),
		.remedy = "end what uses it: it reads and writes what is not the volume's; then "
			  "'dmsetup remove' it");
}

static void look_at_devices(struct check *c)
{
	struct devices_of d = {.c = c};
	/* That devices cannot be asked is said elsewhere. */
	if (dm_open(&d.dm, DM_CONTROL_PATH) < 0)
		return;
	(void)mapped_each(&d.dm, look_at_device, &d);
	dm_close(&d.dm);
}

static int look_at_lost(void *arg, const char *name)
{
	struct check *c = arg;
	check_add(c, .kind = "MapDamaged", .path = tool_text(c->args, "lost+found/%s", name),
		.message = "a repair of the records has put it there, and what it occupies is not "
			   "known: the pool gives nothing out and overwrites nothing",
		.remedy = "while no driver serves the pool, move it back to where its record says, "
			  "or away if it is none of the pool's");
	return 0;
}

void check_raw(struct check *c)
{
	struct maps m = {.c = c};
	for (m.dir = SURVEY_VOLUMES; m.dir < SURVEY_GROUPS; m.dir++)
		/* That one cannot be listed was said with its names. */
		(void)survey_each(&c->survey, m.dir, look_at_name, &m);
	m.dir = SURVEY_THIN;
	(void)survey_each(&c->survey, m.dir, look_at_name, &m);
	(void)pool_raw_each_lost(c->survey.fds[SURVEY_ROOT], look_at_lost, c);
	look_for_overlaps(&m);
	free(m.pieces);
	check_thin(c);
	look_at_devices(c);
}

/* ---- what a volume holds ---- */

int check_raw_head(const struct check *c, const struct pool_found *o)
{
	enum { HEAD_BYTES = IMAGE_MAP_ALIGN };
	struct image_map map;
	void *mem = NULL;
	int r = pool_raw_map(c->survey.fds[SURVEY_VOLUMES], o->key, &map);
	if (r < 0 || (map.count == 0 && map.thin_id == 0))
		return r < 0 ? r : -ENODATA;
	int fd = memfd_create("ringvol-head", MFD_CLOEXEC);
	if (fd < 0)
		return -errno;
	if (posix_memalign(&mem, 4096, HEAD_BYTES) != 0)
		r = -ENOMEM;
	else if (map.thin_id != 0)
		r = check_thin_read(c, map.thin_id, mem, HEAD_BYTES);
	else
		r = thin_image_read(c->survey.disk, &map, 0, mem, HEAD_BYTES);
	if (r == 0 &&
		(pwrite(fd, mem, HEAD_BYTES, 0) < 0 || ftruncate(fd, (off_t)o->image_bytes) < 0))
		r = -errno;
	free(mem);
	if (r < 0)
		close(fd);
	return r < 0 ? r : fd;
}
