/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The devices of a thin pool, and what is said to it. Owns no memory.
 *
 * Happy path of making: the device over the metadata's pieces, the one over the data's, the pool
 * over both. Growing is the same: a longer table of the device below is swapped in first, and then
 * the pool's own table once more, at which dm-thin looks how large they are. How it can fail: as
 * mapped.h does; the kernel knows no `thin-pool`; dm-thin does not take the metadata (EINVAL, and
 * the kernel log says why).
 */
#include "disk/thin_pool.h"

#include "base/fd.h"
#include "disk/mapped.h"
#include "disk/tagged.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MIB ((uint64_t)1 << 20)
#define GIB ((uint64_t)1 << 30)
#define TIB ((uint64_t)1 << 40)

/* ---- sizes ---- */

/* Each mapping of a block takes 16 bytes or more of metadata: 64 KiB blocks of 16 TiB take 4 GiB or
 * more. */
uint32_t thin_block_bytes(uint64_t area_bytes)
{
	return area_bytes < 16 * TIB ? 64 << 10 : 256 << 10;
}

/* A thousandth, as lvm2 has it. dm-thin uses 15.8 GiB at most. */
uint64_t thin_metadata_bytes(uint64_t area_bytes)
{
	uint64_t bytes = area_bytes / 1024 / DISK_UNIT_BYTES * DISK_UNIT_BYTES;
	return bytes < 16 * MIB ? 16 * MIB : bytes > 15 * GIB ? 15 * GIB : bytes;
}

/* ---- making ---- */

struct making {
	struct dm *dm;
	const struct thin_pool_spec *spec;
	char name[DM_NAME_LEN], uuid[DM_UUID_LEN];
	struct mapped below[2]; /* by enum thin_device */
	struct dm_device device;
	struct dm_target target; /* as it is to be */
};

static int make_below(struct making *m, enum thin_device which, struct err *err)
{
	char name[DM_NAME_LEN], uuid[DM_UUID_LEN];
	const struct image_map *map = which == THIN_METADATA ? m->spec->metadata : m->spec->data;
	const struct mapped_spec spec = {
		.disk = m->spec->disk,
		.map = map,
		.size_bytes = image_map_bytes(map),
	};
	thin_names(which, m->spec->disk->uuid, name, uuid);
	return mapped_make_named(m->dm, name, uuid, &spec, &m->below[which], err);
}

static int put_target(struct making *m)
{
	const struct mapped *metadata = &m->below[THIN_METADATA], *data = &m->below[THIN_DATA];
	const struct thin_table table = {
		.metadata_major = metadata->major,
		.metadata_minor = metadata->minor,
		.data_major = data->major,
		.data_minor = data->minor,
		.block_bytes = m->spec->block_bytes,
		.low_water_blocks = m->spec->low_water_bytes / m->spec->block_bytes,
		.fails_when_full = m->spec->fails_when_full,
	};
	m->target = (struct dm_target){
		.length_sectors = data->size_bytes / DM_SECTOR_BYTES, .type = "thin-pool"};
	int len = thin_table_print(&table, m->target.params, sizeof(m->target.params));
	return len < 0 ? len : 0;
}

/* Whether the table in use says what is wanted. -EEXIST: it is not one of ours. */
static int is_right(const struct making *m, bool *ret)
{
	struct dm_target now;
	struct thin_table has, wants;
	unsigned count = 0;
	*ret = false;
	if (!m->device.has_table)
		return 0;
	int r = dm_table(m->dm, m->uuid, &now, 1, &count);
	if (r < 0)
		return r == -E2BIG ? -EEXIST : r;
	if (count != 1 || strcmp(now.type, "thin-pool") != 0 ||
		thin_table_parse(now.params, &has) < 0 ||
		thin_table_parse(m->target.params, &wants) < 0 ||
		has.block_bytes != wants.block_bytes ||
		has.metadata_major != wants.metadata_major ||
		has.metadata_minor != wants.metadata_minor || has.data_major != wants.data_major ||
		has.data_minor != wants.data_minor)
		return -EEXIST;
	*ret = now.length_sectors == m->target.length_sectors &&
	       has.low_water_blocks == wants.low_water_blocks &&
	       has.fails_when_full == wants.fails_when_full && !m->below[THIN_METADATA].loaded &&
	       !m->below[THIN_DATA].loaded;
	return 0;
}

static int refuse_load(const struct making *m, int res, struct err *err)
{
	if (res == -EINVAL && !dm_has_target(m->dm, "thin-pool"))
		return err_set(err, ERR_PRECONDITION,
			"thin volumes of pools on raw disks need dm-thin, which this node's kernel lacks: load its module (modprobe dm_thin_pool)");
	if (res == -EINVAL || res == -EILSEQ)
		return err_set(err, ERR_DATA_LOSS,
			"the kernel does not take the metadata of the thin pool %s, they may be damaged: see the kernel log, stop the driver and run 'ringvol check --repair'",
			m->name);
	return err_sys(err, res, "making the thin pool's device %s", m->name);
}

static int make_pool(struct making *m, struct err *err)
{
	bool right, made = false;
	int r = put_target(m);
	if (r == 0)
		r = tagged_look_settled(m->dm, m->name, m->uuid, &m->device);
	if (r == -ENXIO) {
		r = dm_create(m->dm, m->name, m->uuid, &m->device);
		made = r == 0;
	}
	if (r == 0)
		r = is_right(m, &right);
	if (r == -EEXIST || r == -EBUSY)
		return err_set(err, ERR_PRECONDITION,
			"a device-mapper device has the name %s and is not ours: see 'dmsetup table %s' and remove or rename it with dmsetup",
			m->name, m->name);
	if (r < 0)
		return err_sys(err, r, "looking at the thin pool's device %s", m->name);
	if (right && !m->device.suspended)
		return 0;
	if (right)
		r = dm_clear(m->dm, m->uuid);
	else
		r = dm_load(m->dm, m->uuid, &m->target, 1, false);
	if (r == 0)
		r = dm_resume(m->dm, m->uuid, NULL);
	if (r < 0 && made) {
		bool waits;
		(void)dm_remove(m->dm, m->uuid, &waits);
	}
	return r < 0 ? refuse_load(m, r, err) : 0;
}

/* Where the pool was not made, what it was to stand on holds pieces of the disks for nothing. */
static void drop_below(struct making *m)
{
	bool waits;
	for (unsigned i = 0; i < 2; i++) {
		char name[DM_NAME_LEN], uuid[DM_UUID_LEN];
		thin_names(i, m->spec->disk->uuid, name, uuid);
		if (m->below[i].major != 0 && !m->below[i].found)
			(void)dm_remove(m->dm, uuid, &waits);
	}
}

int thin_pool_make(struct dm *dm, const struct thin_pool_spec *spec, struct err *err)
{
	_cleanup_free_ struct making *m = calloc(1, sizeof(*m));
	if (m == NULL)
		return err_sys(err, -ENOMEM, "making a thin pool");
	m->dm = dm;
	m->spec = spec;
	thin_names(THIN_POOL, spec->disk->uuid, m->name, m->uuid);
	int r = make_below(m, THIN_METADATA, err);
	if (r == 0)
		r = make_below(m, THIN_DATA, err);
	if (r == 0)
		r = make_pool(m, err);
	if (r < 0)
		drop_below(m);
	return r;
}

/* ---- removing ---- */

int thin_pool_remove(struct dm *dm, const char *pool_uuid, bool *ret_busy)
{
	char name[DM_NAME_LEN], uuid[DM_UUID_LEN];
	struct dm_device device;
	bool waits;
	*ret_busy = false;
	/* The last one, the pool, first. */
	for (int i = THIN_DEVICES - 1; i >= 0; i--) {
		thin_names((enum thin_device)i, pool_uuid, name, uuid);
		int r = dm_look(dm, uuid, &device);
		if (r == -ENXIO)
			continue;
		if (r == 0 && device.open_count > 0) {
			*ret_busy = true;
			return 0;
		}
		if (r == 0)
			r = dm_remove(dm, uuid, &waits);
		if (r < 0)
			return r;
		if (waits) { /* somebody has just opened it */
			*ret_busy = true;
			return 0;
		}
	}
	return 0;
}

/* ---- looking ---- */

/* Its status in its own words. -ENXIO: it has no table either. */
static int status_of(struct dm *dm, const char *uuid, const char *type, struct dm_target *ret)
{
	int r = dm_status(dm, uuid, ret);
	if (r == -ENODATA)
		return -ENXIO;
	return r < 0 ? r : strcmp(ret->type, type) != 0 ? -EBADMSG : 0;
}

int thin_pool_status(struct dm *dm, const char *pool_uuid, struct thin_status *ret)
{
	char name[DM_NAME_LEN], uuid[DM_UUID_LEN];
	struct dm_target target;
	thin_names(THIN_POOL, pool_uuid, name, uuid);
	int r = status_of(dm, uuid, "thin-pool", &target);
	return r < 0 ? r : thin_status_parse(target.params, ret);
}

static bool leads_to_member(const struct disk *disk, const struct dm_target *target)
{
	uint32_t major, minor;
	uint64_t offset;
	if (!dm_linear_parse(target, &major, &minor, &offset))
		return false;
	for (unsigned i = 0; i < disk->count; i++)
		if (disk->members[i].major == major && disk->members[i].minor == minor)
			return true;
	return false;
}

/* Whether it begins where the map does, and no part of it is on a disk that came back as another
 * device. */
static bool leads_right(
	struct dm *dm, const struct disk *disk, enum thin_device which, const struct image_map *map)
{
	char name[DM_NAME_LEN], uuid[DM_UUID_LEN];
	const struct mapped_spec spec = {
		.disk = disk, .map = map, .size_bytes = image_map_bytes(map)};
	unsigned has = 0, wants = 0;
	_cleanup_free_ struct dm_target *now = calloc(2 * DM_TARGETS_MAX, sizeof(*now));
	struct dm_target *right = now + DM_TARGETS_MAX;
	thin_names(which, disk->uuid, name, uuid);
	if (now == NULL || dm_table(dm, uuid, now, DM_TARGETS_MAX, &has) < 0 ||
		mapped_table(&spec, right, DM_TARGETS_MAX, &wants) < 0)
		return false;
	for (unsigned i = 0; i < has; i++)
		if (!leads_to_member(disk, &now[i]))
			return false;
	return has > 0 && wants > 0 && strcmp(now[0].params, right[0].params) == 0;
}

bool thin_pool_is_sound(struct dm *dm, const struct disk *disk, const struct image_map *metadata,
	const struct image_map *data)
{
	struct thin_status status;
	return thin_pool_status(dm, disk->uuid, &status) == 0 && status.mode <= THIN_DATA_FULL &&
	       !status.needs_check && leads_right(dm, disk, THIN_METADATA, metadata) &&
	       leads_right(dm, disk, THIN_DATA, data);
}

int thin_volume_bytes(struct dm *dm, const char *volume_uuid, uint64_t *ret_mapped_bytes)
{
	struct dm_target target;
	int r = status_of(dm, volume_uuid, "thin", &target);
	return r < 0 ? r : thin_volume_status_parse(target.params, ret_mapped_bytes);
}

/* ---- messages ---- */

static int say(struct dm *dm, const char *pool_uuid, const char *text)
{
	char name[DM_NAME_LEN], uuid[DM_UUID_LEN];
	thin_names(THIN_POOL, pool_uuid, name, uuid);
	return dm_message(dm, uuid, text);
}

/* dm-thin answers a message before it knows whether its commit was written. Where that fails the
 * pool takes no writes any more, and what the message has done is undone. */
static int was_written(struct dm *dm, const char *pool_uuid)
{
	struct thin_status status;
	int r = thin_pool_status(dm, pool_uuid, &status);
	return r == 0 && (status.mode > THIN_DATA_FULL || status.needs_check) ? -EOPNOTSUPP : r;
}

int thin_pool_create(struct dm *dm, const char *pool_uuid, uint32_t id)
{
	char text[64];
	snprintf(text, sizeof(text), "create_thin %" PRIu32, id);
	int r = say(dm, pool_uuid, text);
	return r == 0 ? was_written(dm, pool_uuid) : r;
}

/* The first that is there freezes. *ret_held: how many of them to let go on. */
static int hold(struct dm *dm, const struct thin_still *still, unsigned *ret_held)
{
	bool freeze = !still->frozen;
	for (*ret_held = 0; *ret_held < still->count; ++*ret_held) {
		int r = dm_suspend(dm, still->uuids[*ret_held], freeze);
		if (r < 0 && r != -ENXIO)
			return r;
		freeze = freeze && r == -ENXIO;
	}
	return 0;
}

static int let_go(struct dm *dm, const struct thin_still *still, unsigned held)
{
	int res = 0;
	while (held-- > 0) {
		int r = dm_resume(dm, still->uuids[held], NULL);
		if (r < 0 && r != -ENXIO && res == 0)
			res = r;
	}
	return res;
}

static int say_snap(struct dm *dm, const char *pool_uuid, const struct thin_snap *snap)
{
	char text[64];
	snprintf(text, sizeof(text), "create_snap %" PRIu32 " %" PRIu32, snap->id, snap->origin);
	return say(dm, pool_uuid, text);
}

int thin_pool_snap(struct dm *dm, const char *pool_uuid, struct thin_snap *snaps, unsigned count,
	unsigned *ret_at)
{
	unsigned holding = 0;
	int r = 0, went = 0;
	for (*ret_at = 0; r == 0 && holding < count; holding++) {
		*ret_at = holding;
		r = hold(dm, &snaps[holding].still, &snaps[holding].held);
	}
	for (unsigned i = 0; r == 0 && i < count; i++) {
		*ret_at = i;
		r = say_snap(dm, pool_uuid, &snaps[i]);
	}
	while (holding-- > 0) {
		int one = let_go(dm, &snaps[holding].still, snaps[holding].held);
		went = went == 0 ? one : went;
	}
	if (r == 0)
		r = was_written(dm, pool_uuid);
	return r < 0 ? r : went;
}

int thin_pool_delete(struct dm *dm, const char *pool_uuid, uint32_t id)
{
	char text[64];
	snprintf(text, sizeof(text), "delete %" PRIu32, id);
	int r = say(dm, pool_uuid, text);
	return r == 0 ? was_written(dm, pool_uuid) : r;
}

/* ---- without a device ---- */

int thin_super_read(
	const struct disk *disk, const struct image_map *metadata, struct thin_super *ret)
{
	uint64_t offset, left;
	void *block = NULL;
	const struct disk_member *member =
		metadata->count == 0 ? NULL
				     : disk_at(disk, metadata->pieces[0].address, &offset, &left);
	if (member == NULL)
		return -ERANGE;
	if (posix_memalign(&block, THIN_SUPER_BYTES, THIN_SUPER_BYTES) != 0)
		return -ENOMEM;
	ssize_t n = pread(member->fd, block, THIN_SUPER_BYTES, (off_t)offset);
	int r = n < 0 ? -errno : n < THIN_SUPER_BYTES ? -EIO : thin_super_parse(block, ret);
	free(block);
	return r;
}
