/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The life of a raw pool's volume device: look, make, remove. Owns no memory; the kernel keeps all
 * there is to know.
 *
 * Happy path of making: look (none) -> create -> load the table -> swap it in. Each can be
 * repeated: a device without a table gets one, one whose image has grown gets a longer one in use,
 * one that was left suspended goes on, and one that is as it should be costs two calls. How it can
 * fail: its name belongs to another, its table leads elsewhere, somebody still has it open after it
 * was let go, a disk is gone.
 */
#include "disk/mapped.h"

#include "base/fd.h"
#include "disk/tagged.h"
#include "disk/thin_names.h"

#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { UNIT_SECTORS = DISK_UNIT_BYTES / DM_SECTOR_BYTES };

_Static_assert((int)DM_TARGETS_MAX > (int)IMAGE_MAP_PIECES_MAX, "a target each, and one more");
_Static_assert((int)UNIT_SECTORS == (int)TAGGED_TAIL_SECTORS, "the last unit is the tail");
_Static_assert(sizeof((struct mapped){0}.tag) == TAGGED_TAG_BYTES, "one tag, two structs");

/* It is large: what lies behind the first `count` is whatever memory had. */
struct table {
	unsigned count;
	struct dm_target targets[DM_TARGETS_MAX];
};

static struct table *table_new(void)
{
	struct table *table = malloc(sizeof(*table));
	if (table != NULL)
		table->count = 0;
	return table;
}

/* ---- names ---- */

/* "RINGVOL-disk-a-b-", which the image's inode follows. */
static int prefix_of(const char *tag, char ret_name[DM_NAME_LEN], char ret_prefix[DM_UUID_LEN])
{
	int r = tagged_names(tag, MAPPED_UUID_PREFIX, ret_name, ret_prefix);
	if (r == 0)
		strcat(ret_prefix, "-");
	return r;
}

static int names_of(
	const char *tag, uint64_t image_ino, char ret_name[DM_NAME_LEN], char ret_uuid[DM_UUID_LEN])
{
	int r = prefix_of(tag, ret_name, ret_uuid);
	size_t len = r == 0 ? strlen(ret_uuid) : 0;
	if (r == 0)
		snprintf(ret_uuid + len, DM_UUID_LEN - len, "%" PRIx64, image_ino);
	return r;
}

/* 0: it is not such a uuid. */
static uint64_t ino_of(const char *uuid, const char *prefix)
{
	size_t len = strlen(prefix);
	uint64_t ino;
	int end = 0;
	if (strncmp(uuid, prefix, len) != 0 ||
		sscanf(uuid + len, "%16" SCNx64 "%n", &ino, &end) != 1 ||
		uuid[len + (size_t)end] != '\0')
		return 0;
	return ino;
}

/* ---- tables ---- */

/* Adds a target behind the others. */
static int add_target(struct dm_target *targets, unsigned cap, unsigned *count,
	const struct disk_member *member, uint64_t offset, uint64_t bytes)
{
	const struct dm_target *last = *count == 0 ? NULL : &targets[*count - 1];
	if (*count == cap)
		return -E2BIG;
	targets[*count] = (struct dm_target){
		.start_sectors = last == NULL ? 0 : last->start_sectors + last->length_sectors,
		.length_sectors = bytes / DM_SECTOR_BYTES,
	};
	dm_linear(&targets[*count], member->major, member->minor, offset / DM_SECTOR_BYTES);
	++*count;
	return 0;
}

int mapped_table(
	const struct mapped_spec *spec, struct dm_target *ret, unsigned cap, unsigned *ret_count)
{
	unsigned count = 0;
	uint64_t done = 0;
	if (spec->size_bytes % DISK_UNIT_BYTES != 0 || spec->size_bytes <= DISK_UNIT_BYTES ||
		spec->size_bytes > image_map_bytes(spec->map))
		return -EINVAL;
	const uint64_t tail = spec->size_bytes - DISK_UNIT_BYTES;
	for (unsigned i = 0; i < spec->map->count; i++) {
		struct image_piece piece = spec->map->pieces[i];
		while (piece.bytes != 0 && done < spec->size_bytes) {
			uint64_t offset, bytes;
			const struct disk_member *member =
				disk_at(spec->disk, piece.address, &offset, &bytes);
			if (member == NULL)
				return -ERANGE;
			const uint64_t until = (done < tail ? tail : spec->size_bytes) - done;
			bytes = bytes < piece.bytes ? bytes : piece.bytes;
			bytes = bytes < until ? bytes : until;
			int r = add_target(ret, cap, &count, member, offset, bytes);
			if (r < 0)
				return r;
			piece.address += bytes;
			piece.bytes -= bytes;
			done += bytes;
		}
	}
	*ret_count = count;
	return 0;
}

/* The one target of a thin image, over the thin pool of that number. */
static void put_thin(struct table *table, uint32_t id, uint64_t size_bytes, uint32_t pool_major,
	uint32_t pool_minor)
{
	struct dm_target *t = &table->targets[0];
	table->count = 1;
	*t = (struct dm_target){.length_sectors = size_bytes / DM_SECTOR_BYTES, .type = "thin"};
	snprintf(t->params, sizeof(t->params), "%" PRIu32 ":%" PRIu32 " %" PRIu32, pool_major,
		pool_minor, id);
}

/* False for any other table. */
static bool thin_parse(
	const struct table *table, uint32_t *ret_major, uint32_t *ret_minor, uint32_t *ret_id)
{
	char extra;
	return table->count == 1 && strcmp(table->targets[0].type, "thin") == 0 &&
	       sscanf(table->targets[0].params, "%" SCNu32 ":%" SCNu32 " %" SCNu32 "%c", ret_major,
		       ret_minor, ret_id, &extra) == 3 &&
	       *ret_id != 0 && *ret_id <= IMAGE_MAP_THIN_MAX;
}

static bool has_thin_shape(const struct table *table, uint64_t *ret_size_bytes)
{
	uint32_t major, minor, id;
	uint64_t sectors = table->targets[0].length_sectors;
	if (!thin_parse(table, &major, &minor, &id) || sectors == 0 ||
		sectors % UNIT_SECTORS != 0 || sectors > INT64_MAX / DM_SECTOR_BYTES)
		return false;
	*ret_size_bytes = sectors * DM_SECTOR_BYTES;
	return true;
}

/* Whether it is a table of ours, whatever disks it leads to, and of which size. */
static bool has_shape(const struct table *table, uint64_t *ret_size_bytes)
{
	uint64_t end = 0;
	if (table->count == 1)
		return has_thin_shape(table, ret_size_bytes);
	if (table->count < 2 || table->count > DM_TARGETS_MAX ||
		table->targets[table->count - 1].length_sectors != TAGGED_TAIL_SECTORS)
		return false;
	for (unsigned i = 0; i < table->count; i++) {
		const struct dm_target *t = &table->targets[i];
		uint32_t major, minor;
		uint64_t offset;
		if (!dm_linear_parse(t, &major, &minor, &offset) || t->start_sectors != end ||
			t->length_sectors == 0 || t->length_sectors % UNIT_SECTORS != 0 ||
			offset > INT64_MAX / DM_SECTOR_BYTES ||
			__builtin_add_overflow(end, t->length_sectors, &end))
			return false;
	}
	*ret_size_bytes = end * DM_SECTOR_BYTES;
	return end <= INT64_MAX / DM_SECTOR_BYTES;
}

/* The address of what a target leads to. */
static int address_of(const struct disk *disk, const struct dm_target *target, uint64_t *ret)
{
	uint32_t major, minor;
	uint64_t offset;
	if (!dm_linear_parse(target, &major, &minor, &offset))
		return -ERANGE;
	offset *= DM_SECTOR_BYTES;
	uint64_t bytes = target->length_sectors * DM_SECTOR_BYTES;
	for (unsigned i = 0; i < disk->count; i++) {
		const struct disk_member *m = &disk->members[i];
		if (m->major != major || m->minor != minor || offset < m->offset ||
			offset - m->offset >= m->bytes || m->bytes - (offset - m->offset) < bytes)
			continue;
		*ret = m->start + (offset - m->offset);
		return 0;
	}
	return -ERANGE;
}

/* Those that are on the disks. -ERANGE: not all of them are, or it is over another thin pool. */
static int pieces_of(
	struct dm *dm, const struct disk *disk, const struct table *table, struct image_map *ret)
{
	int res = 0;
	uint32_t major, minor, its_major, its_minor, id;
	*ret = (struct image_map){0};
	if (thin_parse(table, &major, &minor, &id)) {
		if (thin_number(dm, disk->uuid, &its_major, &its_minor) < 0 || major != its_major ||
			minor != its_minor)
			return -ERANGE;
		ret->thin_id = id;
		return 0;
	}
	for (unsigned i = 0; i < table->count; i++) {
		uint64_t address;
		if (address_of(disk, &table->targets[i], &address) < 0 ||
			image_map_add(ret, address,
				table->targets[i].length_sectors * DM_SECTOR_BYTES) < 0)
			res = -ERANGE;
	}
	return res;
}

/* ---- looking ---- */

static void put_device(
	const char *tag, uint64_t image_ino, const struct dm_device *device, struct mapped *ret)
{
	*ret = (struct mapped){
		.image_ino = image_ino,
		.major = device->major,
		.minor = device->minor,
		.suspended = device->suspended,
		.read_only = device->read_only,
		.going_away = device->going_away,
		.open = device->open_count > 0,
	};
	snprintf(ret->tag, sizeof(ret->tag), "%s", tag);
}

/* *table is that of a device which is ours and leads somewhere, else empty. */
static int look_at(struct dm *dm, const char *tag, uint64_t image_ino,
	const struct dm_device *device, struct table *table, struct mapped *ret)
{
	put_device(tag, image_ino, device, ret);
	table->count = 0;
	if (!device->has_table)
		return 0;
	int r = dm_table(dm, device->uuid, table->targets, DM_TARGETS_MAX, &table->count);
	/* Parameters too long for a linear target are not ours. */
	if (r < 0 && r != -E2BIG)
		return r;
	ret->retired = r == 0 && tagged_is_retired(table->targets, table->count);
	ret->foreign = !ret->retired && !(r == 0 && has_shape(table, &ret->size_bytes));
	if (ret->retired || ret->foreign)
		table->count = 0;
	return 0;
}

/* The device of that uuid, or of that tag. */
static int find(struct dm *dm, const char *tag, uint64_t image_ino, struct dm_device *ret,
	uint64_t *ret_ino)
{
	char name[DM_NAME_LEN], uuid[DM_UUID_LEN];
	*ret_ino = image_ino;
	if (image_ino != 0) {
		int r = names_of(tag, image_ino, name, uuid);
		return r == 0 ? tagged_look(dm, name, uuid, ret) : r;
	}
	int r = prefix_of(tag, name, uuid);
	if (r == 0)
		r = dm_look_name(dm, name, ret);
	if (r < 0)
		return r;
	*ret_ino = ino_of(ret->uuid, uuid);
	return *ret_ino == 0 ? -EEXIST : 0;
}

/* The same with its table, which is the caller's to free. */
static int look(struct dm *dm, const char *tag, uint64_t image_ino, struct mapped *ret,
	struct table **ret_table)
{
	struct dm_device device;
	uint64_t ino;
	int r = find(dm, tag, image_ino, &device, &ino);
	if (r < 0)
		return r;
	*ret_table = table_new();
	return *ret_table == NULL ? -ENOMEM : look_at(dm, tag, ino, &device, *ret_table, ret);
}

int mapped_look(struct dm *dm, const char *tag, uint64_t image_ino, struct mapped *ret)
{
	_cleanup_free_ struct table *table = NULL;
	return look(dm, tag, image_ino, ret, &table);
}

int mapped_pieces(
	struct dm *dm, const struct disk *disk, const struct mapped *mapped, struct image_map *ret)
{
	_cleanup_free_ struct table *table = NULL;
	struct mapped now;
	int r = look(dm, mapped->tag, mapped->image_ino, &now, &table);
	if (r < 0)
		return r;
	if (table->count == 0 && !now.foreign)
		return -ENXIO;
	r = pieces_of(dm, disk, table, ret);
	return now.foreign ? -ERANGE : r;
}

/* ---- making ---- */

/* What mapped_make() works on. */
struct making {
	struct dm *dm;
	const struct mapped_spec *spec;
	char name[DM_NAME_LEN], uuid[DM_UUID_LEN];
	struct image_map there, wanted; /* where it leads, and where it is to lead */
	bool made;                      /* the device, by us and just now */
	struct dm_device device;
	struct table table; /* the one in use; the last member, because of its size */
};

static struct making *making_new(void)
{
	struct making *m = malloc(sizeof(*m));
	if (m != NULL)
		memset(m, 0, offsetof(struct making, table.targets));
	return m;
}

static int refuse_name(const struct making *m, struct err *err)
{
	return err_set(err, ERR_PRECONDITION,
		"a device-mapper device has the name %s, or another name with its uuid, and is not ours: see 'dmsetup info -c' and remove or rename it with dmsetup",
		m->name);
}

static int refuse_table(
	const char *name, const struct mapped *mapped, const char *what, struct err *err)
{
	return err_set(err, ERR_PRECONDITION,
		"the device %s (/dev/dm-%u) %s: see 'dmsetup table %s', end what uses it and remove it with 'dmsetup remove %s'",
		name, mapped->minor, what, name, name);
}

/* A device that is there and cannot be used. Who has had one open since before it was let go must
 * not have the volume again by its coming back. */
static int refuse(struct making *m, const struct mapped *mapped, struct err *err)
{
	if (mapped->going_away || (mapped->retired && mapped->open))
		return err_set(err, ERR_PRECONDITION,
			"the volume's device /dev/dm-%u (%s) was let go and a process still has it open: end that process (fuser -v /dev/dm-%u)",
			mapped->minor, m->name, mapped->minor);
	if (mapped->foreign)
		return refuse_table(m->name, mapped, "has a table that is not ours", err);
	if (m->table.count == 0)
		return 0;
	if (mapped->size_bytes > m->spec->size_bytes)
		return refuse_table(m->name, mapped, "is larger than the volume's image", err);
	m->wanted = *m->spec->map;
	image_map_cut(&m->wanted, mapped->size_bytes);
	if (pieces_of(m->dm, m->spec->disk, &m->table, &m->there) < 0 ||
		!image_map_equal(&m->wanted, &m->there))
		return refuse_table(m->name, mapped,
			"leads to other places of the disks than the image's map says", err);
	return 0;
}

static int thin_table(struct making *m, struct err *err)
{
	const struct mapped_spec *spec = m->spec;
	uint32_t major, minor;
	if (spec->size_bytes == 0 || spec->size_bytes % DISK_UNIT_BYTES != 0)
		return err_sys(err, -EINVAL, "the table of the device-mapper device %s", m->name);
	int r = thin_number(m->dm, spec->disk->uuid, &major, &minor);
	if (r == -ENXIO)
		return err_set(err, ERR_UNAVAILABLE,
			"the thin pool that the volume is in is not active: see 'ringvol doctor'");
	if (r < 0)
		return err_sys(
			err, r, "looking for the thin pool of the volume's device %s", m->name);
	put_thin(&m->table, spec->map->thin_id, spec->size_bytes, major, minor);
	return 0;
}

static int linear_table(struct making *m, struct err *err)
{
	const struct mapped_spec *spec = m->spec;
	int r = mapped_table(spec, m->table.targets, DM_TARGETS_MAX, &m->table.count);
	if (r == -ERANGE)
		return err_set(err, ERR_UNAVAILABLE,
			"the volume has a part on a disk that the pool does not have here: see 'ringvol doctor'");
	if (r < 0)
		return err_sys(err, r, "the table of the device-mapper device %s", m->name);
	return 0;
}

static int load(struct making *m, struct err *err)
{
	bool thin = m->spec->map->thin_id != 0;
	int r = thin ? thin_table(m, err) : linear_table(m, err);
	if (r < 0)
		return r;
	r = dm_load(m->dm, m->uuid, m->table.targets, m->table.count, false);
	if (r == -ENODATA && thin)
		return err_set(err, ERR_DATA_LOSS,
			"the thin pool has no volume %" PRIu32
			", where the map of the volume's image says its bytes are: see 'ringvol check'",
			m->spec->map->thin_id);
	if (r == -EINVAL && thin)
		return err_set(err, ERR_UNAVAILABLE,
			"the thin pool that the volume is in takes no requests: see 'ringvol doctor' and the kernel log");
	if (r == -ENODEV || r == -ENXIO || r == -ENOENT)
		return err_set(err, ERR_UNAVAILABLE,
			"a disk of the pool is gone, so that the volume's device %s cannot be made: see the kernel log, and bring the disk back",
			m->name);
	if (r == -EBUSY)
		return err_set(err, ERR_PRECONDITION,
			"a disk of the pool is mounted or held by somebody else, so that the volume's device %s cannot be made: end that use (lsblk, fuser -v)",
			m->name);
	if (r < 0)
		return err_sys(err, r, "loading the table of the device-mapper device %s", m->name);
	r = dm_resume(m->dm, m->uuid, &m->device);
	return r < 0 ? err_sys(err, r, "swapping in the table of the device-mapper device %s",
			       m->name)
		     : 0;
}

/* What somebody loaded beside the table in use is not ours to swap in. */
static int wake(struct dm *dm, const char *uuid, struct dm_device *device)
{
	int r = dm_clear(dm, uuid);
	return r == 0 ? dm_resume(dm, uuid, device) : r;
}

/* The device itself, if it is not there. */
static int find_or_create(struct making *m, struct mapped *mapped, struct err *err)
{
	*mapped = (struct mapped){0};
	int r = tagged_look_settled(m->dm, m->name, m->uuid, &m->device);
	if (r == 0)
		r = look_at(m->dm, m->spec->tag, m->spec->image_ino, &m->device, &m->table, mapped);
	if (r == -ENXIO) {
		r = dm_create(m->dm, m->name, m->uuid, &m->device);
		m->made = r == 0;
		if (r == -EBUSY) /* somebody was quicker */
			r = -EEXIST;
	}
	if (r == -EEXIST)
		return refuse_name(m, err);
	return r < 0 ? err_sys(err, r, "making the device-mapper device %s", m->name) : 0;
}

static int make(struct making *m, struct mapped *ret, struct err *err)
{
	int r = find_or_create(m, ret, err);
	if (r == 0)
		r = refuse(m, ret, err);
	bool right = r == 0 && m->table.count != 0 && ret->size_bytes == m->spec->size_bytes;
	if (r < 0 || (right && !ret->suspended))
		return r;
	if (right) {
		r = wake(m->dm, m->uuid, &m->device);
		if (r < 0)
			return err_sys(err, r, "resuming the device-mapper device %s", m->name);
	} else {
		r = load(m, err);
	}
	if (r < 0 && m->made) { /* or a name without a device stays behind */
		bool waits;
		(void)dm_remove(m->dm, m->uuid, &waits);
	}
	if (r < 0)
		return r;
	/* What was loaded is what is there. */
	put_device(m->spec->tag, m->spec->image_ino, &m->device, ret);
	ret->size_bytes = m->spec->size_bytes;
	ret->loaded = !right;
	return 0;
}

int mapped_make_named(struct dm *dm, const char *name, const char *uuid,
	const struct mapped_spec *spec, struct mapped *ret, struct err *err)
{
	_cleanup_free_ struct making *m = making_new();
	struct mapped_spec tagged = *spec;
	struct mapped mapped;
	if (m == NULL)
		return err_sys(err, -ENOMEM, "the device %s", name);
	if (spec->tag == NULL)
		tagged.tag = "";
	m->dm = dm;
	m->spec = &tagged;
	snprintf(m->name, sizeof(m->name), "%s", name);
	snprintf(m->uuid, sizeof(m->uuid), "%s", uuid);
	int r = make(m, &mapped, err);
	if (r == 0) {
		*ret = mapped;
		ret->found = !m->made;
	}
	return r;
}

int mapped_make(struct dm *dm, const struct mapped_spec *spec, struct mapped *ret, struct err *err)
{
	char name[DM_NAME_LEN], uuid[DM_UUID_LEN];
	int r = names_of(spec->tag, spec->image_ino, name, uuid);
	return r < 0 ? err_sys(err, r, "a device for the tag %s", spec->tag)
		     : mapped_make_named(dm, name, uuid, spec, ret, err);
}

int mapped_wake(struct dm *dm, const char *tag, uint64_t image_ino)
{
	char name[DM_NAME_LEN], uuid[DM_UUID_LEN];
	int r = names_of(tag, image_ino, name, uuid);
	return r == 0 ? wake(dm, uuid, NULL) : r;
}

/* ---- removing ---- */

/* One that somebody has renamed leads to the pieces all the same, and has our uuid. */
static int find_to_remove(struct dm *dm, const char *tag, uint64_t image_ino, struct dm_device *ret,
	uint64_t *ret_ino)
{
	char name[DM_NAME_LEN], uuid[DM_UUID_LEN];
	if (image_ino == 0)
		return find(dm, tag, 0, ret, ret_ino);
	*ret_ino = image_ino;
	int r = names_of(tag, image_ino, name, uuid);
	return r == 0 ? dm_look(dm, uuid, ret) : r;
}

int mapped_remove(
	struct dm *dm, const char *tag, uint64_t image_ino, bool *ret_waits, struct err *err)
{
	_cleanup_free_ struct table *table = table_new();
	struct dm_device device = {0};
	struct mapped mapped = {0};
	uint64_t ino;
	*ret_waits = false;
	int r = table == NULL ? -ENOMEM : find_to_remove(dm, tag, image_ino, &device, &ino);
	if (r == 0)
		r = look_at(dm, tag, ino, &device, table, &mapped);
	if (r == -ENXIO || r == -EEXIST || r == -EINVAL)
		return 0;
	if (r == 0 && mapped.foreign)
		return refuse_table(device.name, &mapped, "has a table that is not ours", err);
	if (r == 0)
		r = tagged_remove(dm, &device, mapped.size_bytes, ret_waits);
	return r < 0 ? err_sys(err, r, "removing the device-mapper device of %s", tag) : 0;
}

/* ---- all of them ---- */

struct each {
	struct dm *dm;
	void (*each)(void *arg, const struct mapped *mapped);
	void *arg;
};

/* One that goes while it is looked at is not there. */
static int on_tag(void *arg, const char *tag)
{
	const struct each *each = arg;
	struct mapped mapped;
	int r = mapped_look(each->dm, tag, 0, &mapped);
	if (r == 0)
		each->each(each->arg, &mapped);
	return r;
}

int mapped_each(struct dm *dm, void (*each)(void *arg, const struct mapped *mapped), void *arg)
{
	return tagged_each(dm, on_tag, &(struct each){dm, each, arg});
}
