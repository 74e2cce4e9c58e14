/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A guard's life: look, make, remove. Owns no memory; the kernel keeps all there is to know.
 *
 * Happy path of making: look (none) -> create -> load the table -> swap it in. Each can be
 * repeated: a guard without a table gets one, a guard whose device below has grown gets a new
 * table, and a guard that is as it should be costs two calls. How it can fail: its name belongs to
 * another, it stands over another device, somebody still has it open after it was told to go, the
 * device below is somebody's for himself.
 */
#include "backends/dm/guard.h"

#include "disk/tagged.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define KEEPER_UUID "RINGVOL-keeper"

enum { GUARD_TARGETS = 2 };

_Static_assert(sizeof((struct guard){0}.tag) == TAGGED_TAG_BYTES, "one tag, two structs");

static int names_of(const char *tag, char ret_name[DM_NAME_LEN], char ret_uuid[DM_UUID_LEN])
{
	return tagged_names(tag, GUARD_UUID_PREFIX, ret_name, ret_uuid);
}

/* ---- tables ---- */

int guard_table(const struct guard_spec *spec, struct dm_target ret[2])
{
	uint64_t sectors = spec->size_bytes / DM_SECTOR_BYTES;
	if (sectors <= TAGGED_TAIL_SECTORS)
		return -EINVAL;
	const uint64_t starts[] = {0, sectors - TAGGED_TAIL_SECTORS};
	const uint64_t lengths[] = {sectors - TAGGED_TAIL_SECTORS, TAGGED_TAIL_SECTORS};
	for (unsigned i = 0; i < GUARD_TARGETS; i++) {
		ret[i] = (struct dm_target){
			.start_sectors = starts[i], .length_sectors = lengths[i]};
		dm_linear(&ret[i], spec->major, spec->minor, starts[i]);
	}
	return 0;
}

/* Whether it is the table of a guard, and over what. */
static bool guard_parse(const struct dm_target *targets, unsigned count, uint32_t *ret_major,
	uint32_t *ret_minor, uint64_t *ret_size_bytes)
{
	uint32_t dev_major = 0, dev_minor = 0;
	uint64_t end = 0;
	if (count != GUARD_TARGETS)
		return false;
	for (unsigned i = 0; i < GUARD_TARGETS; i++) {
		uint32_t major_now, minor_now;
		uint64_t offset;
		if (!dm_linear_parse(&targets[i], &major_now, &minor_now, &offset))
			return false;
		if (i > 0 && (major_now != dev_major || minor_now != dev_minor))
			return false;
		if (targets[i].start_sectors != end || offset != end)
			return false;
		dev_major = major_now;
		dev_minor = minor_now;
		if (__builtin_add_overflow(end, targets[i].length_sectors, &end))
			return false;
	}
	if (targets[1].length_sectors != TAGGED_TAIL_SECTORS || targets[0].length_sectors == 0 ||
		end > UINT64_MAX / DM_SECTOR_BYTES)
		return false;
	*ret_major = dev_major;
	*ret_minor = dev_minor;
	*ret_size_bytes = end * DM_SECTOR_BYTES;
	return true;
}

/* ---- looking ---- */

static void put_device(const char *tag, const struct dm_device *device, struct guard *ret)
{
	*ret = (struct guard){
		.major = device->major,
		.minor = device->minor,
		.suspended = device->suspended,
		.read_only = device->read_only,
		.going_away = device->going_away,
		.open = device->open_count > 0,
	};
	snprintf(ret->tag, sizeof(ret->tag), "%s", tag);
}

static int look_at(
	struct dm *dm, const char *tag, const struct dm_device *device, struct guard *ret)
{
	struct dm_target targets[GUARD_TARGETS];
	unsigned count = 0;
	put_device(tag, device, ret);
	if (!device->has_table)
		return 0;
	int r = dm_table(dm, device->uuid, targets, GUARD_TARGETS, &count);
	/* Parameters too long for a linear target are no guard's. */
	if (r < 0 && r != -E2BIG)
		return r;
	ret->retired = r == 0 && tagged_is_retired(targets, count);
	ret->foreign = !ret->retired && !(r == 0 && guard_parse(targets, count, &ret->below_major,
							    &ret->below_minor, &ret->size_bytes));
	return 0;
}

bool guard_exists(struct dm *dm, const char *tag)
{
	char name[DM_NAME_LEN], uuid[DM_UUID_LEN];
	struct dm_device device;
	return names_of(tag, name, uuid) == 0 && dm_look(dm, uuid, &device) == 0;
}

/* The device of the tag, whatever its table is. Its names are told in any case but -EINVAL. */
static int find(struct dm *dm, const char *tag, char ret_name[DM_NAME_LEN],
	char ret_uuid[DM_UUID_LEN], struct dm_device *ret)
{
	int r = names_of(tag, ret_name, ret_uuid);
	return r == 0 ? tagged_look(dm, ret_name, ret_uuid, ret) : r;
}

int guard_look(struct dm *dm, const char *tag, struct guard *ret)
{
	char name[DM_NAME_LEN], uuid[DM_UUID_LEN];
	struct dm_device device;
	int r = find(dm, tag, name, uuid, &device);
	return r == 0 ? look_at(dm, tag, &device, ret) : r;
}

/* ---- making ---- */

static bool is_right(const struct guard_spec *spec, const struct guard *guard)
{
	return guard->below_major == spec->major && guard->below_minor == spec->minor &&
	       guard->size_bytes == spec->size_bytes;
}

/* A guard that is there and cannot be used. Who has had one open since before it was let go must
 * not have the volume again by its coming back. */
static int refuse(
	const struct guard_spec *spec, const struct guard *guard, const char *name, struct err *err)
{
	if (guard->going_away || (guard->retired && guard->open))
		return err_set(err, ERR_PRECONDITION,
			"the volume's device /dev/dm-%u (%s) was let go and a process still has it open: end that process (fuser -v /dev/dm-%u)",
			guard->minor, name, guard->minor);
	if (guard->foreign)
		return err_set(err, ERR_PRECONDITION,
			"the device %s (/dev/dm-%u) has a table that is not ours: see 'dmsetup table %s', and remove it with 'dmsetup remove %s'",
			name, guard->minor, name, name);
	if (guard->below_major != 0 &&
		(guard->below_major != spec->major || guard->below_minor != spec->minor))
		return err_set(err, ERR_PRECONDITION,
			"the device %s (/dev/dm-%u) stands over %u:%u and not over %u:%u, where the volume's image is: remove it with 'dmsetup remove %s'",
			name, guard->minor, guard->below_major, guard->below_minor, spec->major,
			spec->minor, name);
	return 0;
}

static int refuse_name(const char *name, struct err *err)
{
	return err_set(err, ERR_PRECONDITION,
		"a device-mapper device has the name %s, or another name with its uuid, and is not ours: see 'dmsetup info -c' and remove or rename it with dmsetup",
		name);
}

/* What was loaded is what is there. */
static void put_loaded(
	const struct guard_spec *spec, const struct dm_device *device, struct guard *ret)
{
	put_device(spec->tag, device, ret);
	ret->below_major = spec->major;
	ret->below_minor = spec->minor;
	ret->size_bytes = spec->size_bytes;
}

static int load(struct dm *dm, const struct guard_spec *spec, const char *name, const char *uuid,
	struct guard *ret, struct err *err)
{
	struct dm_device device;
	struct dm_target targets[GUARD_TARGETS];
	int r = guard_table(spec, targets);
	if (r < 0)
		return err_set(err, ERR_INTERNAL, "%u:%u is too small to be guarded", spec->major,
			spec->minor);
	r = dm_load(dm, uuid, targets, GUARD_TARGETS, spec->read_only);
	if (r == -EBUSY)
		return err_set(err, ERR_PRECONDITION,
			"the device %u:%u of the volume is mounted or held by somebody else, so that it cannot be given to a pod: end that use (lsblk, fuser -v)",
			spec->major, spec->minor);
	if (r < 0)
		return err_sys(err, r, "loading the table of the device-mapper device %s", name);
	r = dm_resume(dm, uuid, &device);
	if (r < 0)
		return err_sys(
			err, r, "swapping in the table of the device-mapper device %s", name);
	put_loaded(spec, &device, ret);
	return 0;
}

/* The device itself, if it is not there. */
static int find_or_create(struct dm *dm, const struct guard_spec *spec, const char *name,
	const char *uuid, struct guard *guard, struct err *err)
{
	struct dm_device device;
	int r = tagged_look_settled(dm, name, uuid, &device);
	if (r == 0)
		r = look_at(dm, spec->tag, &device, guard);
	if (r == -ENXIO) {
		*guard = (struct guard){0};
		r = dm_create(dm, name, uuid, &device);
		if (r == -EBUSY) /* somebody was quicker */
			r = -EEXIST;
	}
	if (r == -EEXIST)
		return refuse_name(name, err);
	return r < 0 ? err_sys(err, r, "making the device-mapper device %s", name) : 0;
}

int guard_make(struct dm *dm, const struct guard_spec *spec, struct guard *ret, struct err *err)
{
	char name[DM_NAME_LEN], uuid[DM_UUID_LEN];
	struct dm_device device;
	int r = names_of(spec->tag, name, uuid);
	if (r < 0)
		return err_sys(err, r, "a guard for the tag %s", spec->tag);
	r = find_or_create(dm, spec, name, uuid, ret, err);
	if (r == 0)
		r = refuse(spec, ret, name, err);
	if (r < 0 || (is_right(spec, ret) && !ret->suspended))
		return r;
	bool made = ret->tag[0] == '\0';
	if (is_right(spec, ret)) {
		r = dm_resume(dm, uuid, &device);
		if (r < 0)
			return err_sys(err, r, "resuming the device-mapper device %s", name);
		put_loaded(spec, &device, ret);
	} else {
		r = load(dm, spec, name, uuid, ret, err);
	}
	if (r < 0 && made) { /* or a name without a device stays behind */
		bool waits;
		(void)dm_remove(dm, uuid, &waits);
	}
	return r;
}

/* ---- holding, and another device below ---- */

/* The one of the tag, in use: with a table of ours. */
static int find_used(struct dm *dm, const char *tag, char ret_name[DM_NAME_LEN],
	char ret_uuid[DM_UUID_LEN], struct guard *ret, struct err *err)
{
	struct dm_device device;
	int r = find(dm, tag, ret_name, ret_uuid, &device);
	if (r == 0)
		r = look_at(dm, tag, &device, ret);
	if (r == -ENXIO || r == -EEXIST || (r == 0 && (ret->below_major == 0 || ret->going_away)))
		return err_set(err, ERR_PRECONDITION,
			"there is no device-mapper device %s of ours that is in use", ret_name);
	return r < 0 ? err_sys(err, r, "looking at the device-mapper device of %s", tag) : 0;
}

int guard_suspend(struct dm *dm, const char *tag, struct err *err)
{
	char name[DM_NAME_LEN], uuid[DM_UUID_LEN];
	struct guard guard;
	int r = find_used(dm, tag, name, uuid, &guard, err);
	if (r < 0 || guard.suspended)
		return r;
	r = dm_suspend(dm, uuid, false);
	return r < 0 ? err_sys(err, r, "suspending /dev/dm-%u", guard.minor) : 0;
}

/* A table that an attempt to swap has left loaded goes first. */
int guard_resume(struct dm *dm, const char *tag, struct err *err)
{
	char name[DM_NAME_LEN], uuid[DM_UUID_LEN];
	struct dm_device device;
	int r = find(dm, tag, name, uuid, &device);
	if (r == -ENXIO || r == -EEXIST || (r == 0 && !device.suspended))
		return 0;
	if (r == 0)
		r = dm_clear(dm, uuid);
	if (r == 0)
		r = dm_resume(dm, uuid, &device);
	return r < 0 ? err_sys(err, r, "resuming the device-mapper device of %s", tag) : 0;
}

int guard_swap(struct dm *dm, const struct guard_spec *spec, struct guard *ret, struct err *err)
{
	char name[DM_NAME_LEN], uuid[DM_UUID_LEN];
	int r = find_used(dm, spec->tag, name, uuid, ret, err);
	if (r < 0)
		return r;
	if (ret->below_major == spec->major && ret->below_minor == spec->minor) {
		r = guard_resume(dm, spec->tag, err);
		ret->suspended &= r < 0;
		return r;
	}
	if (!ret->suspended)
		return err_set(err, ERR_PRECONDITION,
			"/dev/dm-%u is not suspended, and cannot go on over %u:%u", ret->minor,
			spec->major, spec->minor);
	if (spec->size_bytes < ret->size_bytes)
		return err_set(err, ERR_PRECONDITION,
			"the device %u:%u is smaller than /dev/dm-%u, which is to stand on it",
			spec->major, spec->minor, ret->minor);
	struct guard_spec same = *spec;
	same.size_bytes = ret->size_bytes;
	same.read_only = ret->read_only;
	return load(dm, &same, name, uuid, ret, err);
}

/* ---- removing ---- */

int guard_remove(struct dm *dm, const char *tag, uint32_t below_major, uint32_t below_minor,
	bool *ret_waits, struct err *err)
{
	char name[DM_NAME_LEN], uuid[DM_UUID_LEN];
	struct dm_device device;
	struct guard guard = {0};
	*ret_waits = false;
	int r = find(dm, tag, name, uuid, &device);
	if (r == 0)
		r = look_at(dm, tag, &device, &guard);
	if (r == -ENXIO || r == -EEXIST || r == -EINVAL)
		return 0;
	bool over_another = guard.below_major != 0 &&
			    (guard.below_major != below_major || guard.below_minor != below_minor);
	if (r == 0 && (guard.foreign || over_another))
		return 0;
	if (r == 0)
		r = tagged_remove(
			dm, &device, guard.below_major != 0 ? guard.size_bytes : 0, ret_waits);
	return r < 0 ? err_sys(err, r, "removing the device-mapper device %s", name) : 0;
}

/* ---- all of them ---- */

struct each {
	struct dm *dm;
	void (*each)(void *arg, const struct guard *guard);
	void *arg;
};

/* One that goes while it is looked at is not there. */
static int on_tag(void *arg, const char *tag)
{
	const struct each *each = arg;
	struct guard guard;
	int r = guard_look(each->dm, tag, &guard);
	if (r == 0)
		each->each(each->arg, &guard);
	return r;
}

int guard_each(struct dm *dm, void (*each)(void *arg, const struct guard *guard), void *arg)
{
	return tagged_each(dm, on_tag, &(struct each){dm, each, arg});
}

/* ---- the keeper ---- */

int guard_make_keeper(struct dm *dm)
{
	static const struct dm_target table = {.length_sectors = 8, .type = "error"};
	struct dm_device device;
	int r = dm_look(dm, KEEPER_UUID, &device);
	if (r == 0 && device.has_table && !device.suspended)
		return 0;
	if (r == -ENXIO)
		r = dm_create(dm, GUARD_KEEPER_NAME, KEEPER_UUID, &device);
	if (r == 0)
		r = dm_load(dm, KEEPER_UUID, &table, 1, true);
	return r == 0 ? dm_resume(dm, KEEPER_UUID, &device) : r;
}
