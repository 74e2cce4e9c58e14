/* SPDX-License-Identifier: Apache-2.0 */
/* The thin pool of a raw pool, against a device mapper in memory, and what dm-thin says. */
#include "disk/mapped.h"
#include "disk/thin_pool.h"
#include "fake_dm.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define POOL "0123abcd-0000-4000-8000-00000000001a"
#define TAG  "ringvol:0123abcd:89abcdef"
#define MIB  (UINT64_C(1) << 20)
#define GIB  (UINT64_C(1) << 30)

enum { INO = 0x1f3, BLOCK = 64 << 10 };

static struct dm dm = {.fd = -1, .call = fake_dm_call};
static const struct disk disk = {
	.uuid = POOL,
	.count = 1,
	.members = {{.major = 8, .minor = 16, .start = 0, .offset = 65 * MIB, .bytes = 8 * GIB}},
};
static struct image_map metadata = {.count = 1, .pieces = {{0, 16 * MIB}}};
static struct image_map data = {.count = 1, .pieces = {{16 * MIB, 1024 * MIB}}};

static struct thin_pool_spec spec(void)
{
	return (struct thin_pool_spec){.disk = &disk,
		.metadata = &metadata,
		.data = &data,
		.block_bytes = BLOCK,
		.low_water_bytes = 256 * MIB};
}

static void make(const struct thin_pool_spec *as)
{
	struct err err = {0};
	cr_assert_eq(thin_pool_make(&dm, as, &err), 0, "%s", err.message);
}

static void expect_refused(const struct thin_pool_spec *as, enum err_code code, const char *words)
{
	struct err err = {0};
	cr_assert_lt(thin_pool_make(&dm, as, &err), 0);
	cr_expect_eq(err.code, code, "%s", err.message);
	cr_expect_not_null(strstr(err.message, words), "'%s' has no '%s'", err.message, words);
}

static struct fake_device *named(const char *name)
{
	for (unsigned i = 0; i < FAKE_DM_DEVICES; i++)
		if (fake_dm_devices[i].there && strcmp(fake_dm_devices[i].name, name) == 0)
			return &fake_dm_devices[i];
	return NULL;
}

static struct fake_device *pool_device(void)
{
	struct fake_device *d = named("ringvol-thinpool-0123abcd");
	cr_assert_not_null(d);
	return d;
}

static struct mapped volume(uint32_t id, uint64_t mib)
{
	static struct image_map map;
	struct mapped mapped;
	struct err err = {0};
	map = (struct image_map){.thin_id = id};
	const struct mapped_spec as = {
		.tag = TAG, .image_ino = INO, .disk = &disk, .map = &map, .size_bytes = mib * MIB};
	cr_assert_eq(mapped_make(&dm, &as, &mapped, &err), 0, "%s", err.message);
	return mapped;
}

/* ---- the pool ---- */

Test(thin_pool, three_devices)
{
	struct thin_pool_spec as = spec();
	make(&as);
	cr_expect_str_eq(pool_device()->uuid, "RINGVOL-thinpool-" POOL);
	cr_expect_str_eq(named("ringvol-thinmeta-0123abcd")->uuid, "RINGVOL-thinmeta-" POOL);
	cr_expect_eq(named("ringvol-thindata-0123abcd")->now.count, 2);
	cr_assert_eq(pool_device()->now.count, 1);
	cr_expect_str_eq(pool_device()->now.targets[0].type, "thin-pool");
	cr_expect_str_eq(pool_device()->now.targets[0].params,
		"253:300 253:301 128 4096 1 no_discard_passdown");
	cr_expect_eq(pool_device()->now.targets[0].length_sectors, 1024 * MIB / 512);
	/* Made again, nothing is loaded. */
	unsigned loads = fake_dm_loads;
	make(&as);
	cr_expect_eq(fake_dm_loads, loads);
}

Test(thin_pool, grows_and_changes_in_use)
{
	struct thin_pool_spec as = spec();
	struct thin_status status;
	make(&as);
	cr_assert_eq(thin_pool_create(&dm, POOL, 7), 0);
	volume(7, 64);
	cr_assert_eq(image_map_add(&data, 2048 * MIB, 512 * MIB), 0);
	make(&as);
	cr_expect_eq(pool_device()->now.targets[0].length_sectors, 1536 * MIB / 512);
	cr_expect_eq(named("ringvol-thindata-0123abcd")->now.count, 3);
	/* At longer metadata dm-thin looks when its own table is swapped in. */
	cr_assert_eq(image_map_add(&metadata, 4096 * MIB, 16 * MIB), 0);
	unsigned loads = fake_dm_loads;
	make(&as);
	cr_expect_eq(fake_dm_loads, loads + 2);
	as.fails_when_full = true;
	make(&as);
	cr_expect_not_null(
		strstr(pool_device()->now.targets[0].params, "2 no_discard_passdown error_if_no"));
	cr_assert_eq(thin_pool_status(&dm, POOL, &status), 0);
	cr_expect(status.fails_when_full && status.data_total == 1536 * 16);
	as.fails_when_full = false;
	make(&as);
	cr_assert_eq(thin_pool_status(&dm, POOL, &status), 0);
	cr_expect_not(status.fails_when_full);
}

Test(thin_pool, one_left_suspended_goes_on)
{
	struct thin_pool_spec as = spec();
	make(&as);
	for (unsigned i = 0; i < 3; i++)
		fake_dm_devices[i].suspended = true;
	make(&as);
	cr_expect_not(pool_device()->suspended || fake_dm_devices[0].suspended);
}

Test(thin_pool, what_is_in_the_way_is_refused)
{
	struct thin_pool_spec as = spec();
	struct dm_device device;
	fake_thin_absent = true;
	expect_refused(&as, ERR_PRECONDITION, "modprobe dm_thin_pool");
	cr_expect_not(
		fake_dm_devices[0].there || fake_dm_devices[1].there || fake_dm_devices[2].there);
	fake_thin_absent = false;
	fake_dm_fail_with = -EINVAL;
	fake_dm_fail_request = DM_DEV_SUSPEND;
	struct err err = {0};
	cr_expect_lt(thin_pool_make(&dm, &as, &err), 0);
	cr_expect_not(fake_dm_devices[0].there);
	cr_assert_eq(dm_create(&dm, "ringvol-thinpool-0123abcd", "LVM-x", &device), 0);
	expect_refused(&as, ERR_PRECONDITION, "is not ours");
	fake_dm_reboot(false);
	make(&as);
	snprintf(pool_device()->now.targets[0].params, DM_PARAMS_BYTES, "%s",
		"253:300 253:301 128 4096 1 skip_block_zeroing");
	expect_refused(&as, ERR_PRECONDITION, "is not ours");
}

Test(thin_pool, goes_when_nothing_stands_on_it)
{
	struct thin_pool_spec as = spec();
	bool busy;
	struct thin_status status;
	make(&as);
	pool_device()->open = 1;
	cr_assert_eq(thin_pool_remove(&dm, POOL, &busy), 0);
	cr_expect(busy);
	cr_expect_eq(thin_pool_status(&dm, POOL, &status), 0);
	pool_device()->open = 0;
	cr_assert_eq(thin_pool_remove(&dm, POOL, &busy), 0);
	cr_expect_not(busy);
	for (unsigned i = 0; i < FAKE_DM_DEVICES; i++)
		cr_expect_not(fake_dm_devices[i].there);
	cr_assert_eq(thin_pool_remove(&dm, POOL, &busy), 0);
	cr_expect_eq(thin_pool_status(&dm, POOL, &status), -ENXIO);
	cr_expect_eq(thin_pool_create(&dm, POOL, 1), -ENXIO);
}

/* ---- volumes ---- */

Test(thin_pool, a_volume_is_one_target)
{
	struct thin_pool_spec as = spec();
	struct image_map seen, other = {.thin_id = 8};
	struct mapped mapped, same;
	struct err err = {0};
	uint64_t bytes;
	bool waits;
	make(&as);
	cr_assert_eq(thin_pool_create(&dm, POOL, 7), 0);
	cr_expect_eq(thin_pool_create(&dm, POOL, 7), -EEXIST);
	mapped = volume(7, 64);
	const struct fake_device *d = named("ringvol-0123abcd-89abcdef");
	cr_assert_eq(d->now.count, 1);
	cr_expect_str_eq(d->now.targets[0].params, "253:302 7");
	cr_assert_eq(mapped_look(&dm, TAG, INO, &same), 0);
	cr_expect(!same.foreign && same.size_bytes == 64 * MIB);
	cr_assert_eq(mapped_pieces(&dm, &disk, &mapped, &seen), 0);
	cr_expect_eq(seen.thin_id, 7);
	cr_expect_eq(thin_volume_bytes(&dm, d->uuid, &bytes), 0);
	cr_expect_eq(bytes, 0);
	fake_thins[0].used = true;
	cr_expect_eq(thin_volume_bytes(&dm, d->uuid, &bytes), 0);
	cr_expect_eq(bytes, FAKE_THIN_BYTES);
	cr_expect_eq(thin_pool_delete(&dm, POOL, 7), -EBUSY);
	/* It grows in use, and never becomes another's. */
	mapped = volume(7, 128);
	cr_expect(mapped.found && mapped.size_bytes == 128 * MIB);
	cr_assert_eq(thin_pool_create(&dm, POOL, 8), 0);
	const struct mapped_spec wrong = {.tag = TAG,
		.image_ino = INO,
		.disk = &disk,
		.map = &other,
		.size_bytes = 128 * MIB};
	cr_expect_lt(mapped_make(&dm, &wrong, &mapped, &err), 0);
	cr_expect_eq(err.code, ERR_PRECONDITION);
	cr_assert_eq(mapped_remove(&dm, TAG, INO, &waits, &err), 0);
	cr_expect_eq(thin_volume_bytes(&dm, "RINGVOL-disk-0123abcd-89abcdef-1f3", &bytes), -ENXIO);
	cr_expect_eq(thin_pool_delete(&dm, POOL, 7), 0);
	cr_expect_eq(thin_pool_delete(&dm, POOL, 7), -ENODATA);
}

Test(thin_pool, a_volume_without_its_pool_or_id_has_no_device)
{
	struct thin_pool_spec as = spec();
	struct image_map map = {.thin_id = 9};
	const struct mapped_spec one = {
		.tag = TAG, .image_ino = INO, .disk = &disk, .map = &map, .size_bytes = 64 * MIB};
	struct mapped mapped;
	struct err err = {0};
	cr_expect_lt(mapped_make(&dm, &one, &mapped, &err), 0);
	cr_expect_eq(err.code, ERR_UNAVAILABLE, "%s", err.message);
	make(&as);
	err_clear(&err);
	cr_expect_lt(mapped_make(&dm, &one, &mapped, &err), 0);
	cr_expect_eq(err.code, ERR_DATA_LOSS, "%s", err.message);
	cr_expect_null(named("ringvol-0123abcd-89abcdef"));
}

/* ---- snapshots ---- */

static int snap(uint32_t id, uint32_t origin, const struct thin_still *still)
{
	struct thin_snap one = {.id = id, .origin = origin, .still = *still};
	unsigned at = 7;
	int r = thin_pool_snap(&dm, POOL, &one, 1, &at);
	cr_expect_eq(at, 0);
	return r;
}

Test(thin_pool, an_origin_in_use_is_held_still_for_a_moment)
{
	struct thin_pool_spec as = spec();
	struct dm_device crypt;
	struct dm_target over = {.length_sectors = 64 * MIB / 512, .type = "crypt"};
	const struct thin_still still = {.count = 2,
		.uuids = {"RINGVOL-crypt-0123abcd-89abcdef-1f3",
			"RINGVOL-disk-0123abcd-89abcdef-1f3"}};
	make(&as);
	cr_assert_eq(thin_pool_create(&dm, POOL, 7), 0);
	/* Nothing is attached. */
	cr_assert_eq(snap(8, 7, &still), 0);
	volume(7, 64);
	cr_assert_eq(snap(9, 7, &still), 0);
	cr_assert_eq(dm_create(&dm, "ringvol-crypt-x", still.uuids[0], &crypt), 0);
	cr_assert_eq(dm_load(&dm, still.uuids[0], &over, 1, false), 0);
	cr_assert_eq(dm_resume(&dm, still.uuids[0], NULL), 0);
	cr_assert_eq(snap(10, 7, &still), 0);
	cr_expect_eq(fake_thin_torn, 0);
	cr_expect_eq(snap(10, 7, &still), -EEXIST);
	cr_expect_eq(snap(11, 77, &still), -ENODATA);
	/* Each call fails in turn; nothing stays suspended but what cannot be resumed. */
	fake_dm_fail_request = DM_TARGET_MSG;
	fake_dm_fail_with = -EOPNOTSUPP;
	cr_expect_eq(snap(11, 7, &still), -EOPNOTSUPP);
	fake_dm_fail_request = DM_DEV_SUSPEND;
	fake_dm_fail_with = -EBUSY;
	cr_expect_eq(snap(11, 7, &still), -EBUSY);
	for (unsigned i = 0; i < FAKE_DM_DEVICES; i++)
		cr_expect_not(fake_dm_devices[i].suspended);
	cr_expect_eq(fake_thin_count, 4);
}

/* Whether it leads to the disks that there are, and takes writes. */
Test(thin_pool, sound_is_what_leads_where_the_maps_do)
{
	static const struct {
		const char *name, *type, *params;
		bool first; /* of its targets; else the last one */
	} wrong[] = {
		{"ringvol-thinmeta-0123abcd", "linear", "8:16 1", true},
		{"ringvol-thinmeta-0123abcd", "linear", "8:17 133120"},
		{"ringvol-thinmeta-0123abcd", "linear", "9:16 133120"},
		{"ringvol-thinmeta-0123abcd", "striped", "8:16 133120"},
		{"ringvol-thindata-0123abcd", "linear", "9:16 165888"},
	};
	static const struct {
		const char *words;
		bool sound;
	} says[] = {
		{"0 10/4096 5/16384 - rw no_discard_passdown queue_if_no_space - 1024 ", true},
		{"0 10/4096 5/16384 - out_of_data_space no_discard_passdown queue_if_no_space - 1024 ",
			true},
		{"0 10/4096 5/16384 - ro no_discard_passdown queue_if_no_space - 1024 ", false},
		{"0 10/4096 5/16384 - rw no_discard_passdown queue_if_no_space needs_check 1024 ",
			false},
		{"Fail", false},
		{"nonsense", false},
	};
	struct thin_pool_spec as = spec();
	cr_expect(!thin_pool_is_sound(&dm, &disk, &metadata, &data));
	make(&as);
	cr_assert(thin_pool_is_sound(&dm, &disk, &metadata, &data));
	for (unsigned i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		struct fake_device *d = named(wrong[i].name);
		struct dm_target *t = &d->now.targets[wrong[i].first ? 0 : d->now.count - 1],
				 was = *t;
		strcpy(t->type, wrong[i].type);
		strcpy(t->params, wrong[i].params);
		cr_expect(!thin_pool_is_sound(&dm, &disk, &metadata, &data), "%u", i);
		*t = was;
	}
	for (unsigned i = 0; i < sizeof(says) / sizeof(says[0]); i++) {
		fake_thin_pool_words = says[i].words;
		cr_expect_eq(
			thin_pool_is_sound(&dm, &disk, &metadata, &data), says[i].sound, "%u", i);
	}
	fake_thin_pool_words = NULL;
	cr_expect(thin_pool_is_sound(&dm, &disk, &metadata, &data));
	named("ringvol-thindata-0123abcd")->there = false;
	cr_expect(!thin_pool_is_sound(&dm, &disk, &metadata, &data));
}

Test(thin_pool, a_table_of_another_is_refused_and_one_of_ours_is_mended)
{
	static const char *const others[] = {
		"254:300 253:301 128 4096 1 no_discard_passdown",
		"253:302 253:301 128 4096 1 no_discard_passdown",
		"253:300 254:301 128 4096 1 no_discard_passdown",
		"253:300 253:302 128 4096 1 no_discard_passdown",
		"253:300 253:301 256 4096 1 no_discard_passdown",
	};
	struct thin_pool_spec as = spec();
	make(&as);
	struct fake_device *d = pool_device();
	const struct fake_table ours = d->now;
	for (unsigned i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
		strcpy(d->now.targets[0].params, others[i]);
		expect_refused(&as, ERR_PRECONDITION, "ringvol-thinpool-0123abcd and is not ours");
	}
	d->now = ours;
	strcpy(d->now.targets[0].type, "thin");
	expect_refused(&as, ERR_PRECONDITION, "is not ours");
	d->now = ours;
	d->now.count = 2;
	expect_refused(&as, ERR_PRECONDITION, "is not ours");
	/* What it says, another run has said for other options. */
	static const char *const mended[] = {
		"253:300 253:301 128 4095 1 no_discard_passdown",
		"253:300 253:301 128 4096 2 no_discard_passdown error_if_no_space",
		NULL, /* its length */
	};
	for (unsigned i = 0; i < 3; i++) {
		d->now = ours;
		if (mended[i] != NULL)
			strcpy(d->now.targets[0].params, mended[i]);
		else
			d->now.targets[0].length_sectors--;
		make(&as);
		cr_expect_str_eq(d->now.targets[0].params, ours.targets[0].params);
		cr_expect_eq(d->now.targets[0].length_sectors, ours.targets[0].length_sectors);
	}
	/* One whose table was never loaded is completed. */
	d->now.count = 0;
	make(&as);
	cr_expect_eq(d->now.count, 1);
}

Test(thin_pool, what_the_kernel_does_not_take)
{
	static const struct {
		int res;
		enum err_code code;
		const char *words;
	} refusals[] = {
		{-EINVAL, ERR_DATA_LOSS, "metadata of the thin pool ringvol-thinpool-0123abcd"},
		{-EILSEQ, ERR_DATA_LOSS, "run 'ringvol check --repair'"},
		{-EIO, ERR_INTERNAL, "making the thin pool's device ringvol-thinpool-0123abcd"},
	};
	struct thin_pool_spec as = spec();
	make(&as);
	as.fails_when_full = true;
	for (unsigned i = 0; i < sizeof(refusals) / sizeof(refusals[0]); i++) {
		fake_dm_fail_with = refusals[i].res;
		fake_dm_fail_request = DM_TABLE_LOAD;
		expect_refused(&as, refusals[i].code, refusals[i].words);
		cr_expect_not_null(named("ringvol-thinpool-0123abcd"), "it was there before");
		cr_expect_not_null(named("ringvol-thindata-0123abcd"));
	}
	fake_dm_reboot(false);
	fake_dm_fail_with = -EIO;
	fake_dm_fail_request = DM_DEV_STATUS;
	struct err err = {0};
	cr_expect_lt(thin_pool_make(&dm, &as, &err), 0);
	cr_expect_eq(err.code, ERR_INTERNAL, "%s", err.message);
}

/* Somebody opens it after it was looked at. */
static int opens_then(struct dm *with, unsigned long request, struct dm_ioctl *head)
{
	int r = fake_dm_call(with, request, head);
	if (r == 0 && request == DM_DEV_STATUS)
		fake_dm_devices[2].open = 1;
	return r;
}

Test(thin_pool, one_that_was_just_opened_stays)
{
	struct thin_pool_spec as = spec();
	struct dm opening = {.fd = -1, .call = opens_then};
	bool busy;
	make(&as);
	cr_assert_eq(&fake_dm_devices[2], pool_device());
	cr_assert_eq(thin_pool_remove(&opening, POOL, &busy), 0);
	cr_expect(busy);
	cr_expect(fake_dm_devices[0].there && fake_dm_devices[1].there, "it stands on them");
	fake_dm_devices[2].open = 0;
	fake_dm_fail_with = -EIO;
	fake_dm_fail_request = DM_DEV_REMOVE;
	cr_expect_eq(thin_pool_remove(&dm, POOL, &busy), -EIO);
	fake_dm_fail_with = -EIO;
	fake_dm_fail_request = DM_DEV_STATUS;
	cr_expect_eq(thin_pool_remove(&dm, POOL, &busy), -EIO);
	cr_expect(!busy);
	cr_expect(fake_dm_devices[0].there && fake_dm_devices[1].there);
}

/* What a message has done is undone when its commit cannot be written. */
Test(thin_pool, a_message_counts_when_it_was_written)
{
	static const char *const unwritten[] = {
		"0 10/4096 5/16384 - ro no_discard_passdown queue_if_no_space - 1024 ",
		"0 10/4096 5/16384 - rw no_discard_passdown queue_if_no_space needs_check 1024 ",
	};
	const struct thin_still none = {.count = 0};
	struct thin_pool_spec as = spec();
	uint64_t bytes;
	make(&as);
	cr_assert_eq(thin_pool_create(&dm, POOL, 7), 0);
	for (unsigned i = 0; i < 2; i++) {
		fake_thin_pool_words = unwritten[i];
		cr_expect_eq(thin_pool_create(&dm, POOL, 20 + i), -EOPNOTSUPP);
		cr_expect_eq(snap(30 + i, 7, &none), -EOPNOTSUPP);
		cr_expect_eq(thin_pool_delete(&dm, POOL, 30 + i), -EOPNOTSUPP);
		cr_expect_eq(thin_pool_delete(&dm, POOL, 99), -ENODATA, "what it says goes first");
	}
	fake_thin_pool_words =
		"0 10/4096 5/16384 - out_of_data_space no_discard_passdown queue_if_no_space - 1024 ";
	cr_expect_eq(thin_pool_create(&dm, POOL, 40), 0);
	fake_thin_pool_words = NULL;
	/* A device of another kind, and one without a table. */
	cr_expect_eq(thin_volume_bytes(&dm, pool_device()->uuid, &bytes), -EBADMSG);
	struct thin_status status;
	pool_device()->now.count = 0;
	cr_expect_eq(thin_volume_bytes(&dm, pool_device()->uuid, &bytes), -ENXIO);
	cr_expect_eq(thin_pool_status(&dm, POOL, &status), -ENXIO);
}

/* ---- sizes and words ---- */

Test(thin_pool, sizes)
{
	cr_expect_eq(thin_block_bytes(GIB), 64 << 10);
	cr_expect_eq(thin_block_bytes(16384 * GIB), 256 << 10);
	cr_expect_eq(thin_metadata_bytes(GIB), 16 * MIB);
	cr_expect_eq(thin_metadata_bytes(1000 * GIB + 5), 1000 * MIB);
	cr_expect_eq(thin_metadata_bytes(65536 * GIB), 15 * GIB);
}

Test(thin_pool, status_in_words)
{
	static const char *const wrong[] = {"", "rw", "0 1/2 3/4 - rw", "0 1/2 3/4 - wr x queue -",
		"0 3/2 3/4 - rw a b", "0 1/2 5/4 - rw a b", "0 1/2 -3/4 x"};
	struct thin_status s, was;
	cr_assert_eq(thin_status_parse("1 23/4096 100/16384 - rw no_discard_passdown "
				       "queue_if_no_space - 1024 ",
			     &s),
		0);
	cr_expect(s.mode == THIN_WRITES && !s.needs_check && !s.fails_when_full);
	cr_expect(s.metadata_used == 23 && s.metadata_total == 4096);
	cr_expect(s.data_used == 100 && s.data_total == 16384);
	cr_assert_eq(thin_status_parse("0 1/2 4/4 - out_of_data_space discard_passdown "
				       "error_if_no_space needs_check 64",
			     &s),
		0);
	cr_expect(s.mode == THIN_DATA_FULL && s.needs_check && s.fails_when_full);
	cr_assert_eq(
		thin_status_parse("0 1/2 4/4 77 ro a queue_if_no_space needs_check 64", &s), 0);
	cr_expect(s.mode == THIN_READ_ONLY && s.needs_check);
	cr_assert_eq(thin_status_parse("Fail", &s), 0);
	cr_expect_eq(s.mode, THIN_FAILED);
	was = s;
	for (unsigned i = 3; i < sizeof(wrong) / sizeof(*wrong); i++)
		cr_expect_eq(thin_status_parse(wrong[i], &s), -EBADMSG, "%s", wrong[i]);
	for (unsigned i = 0; i < 2; i++)
		cr_expect_eq(thin_status_parse(wrong[i], &s), -EBADMSG, "%s", wrong[i]);
	cr_expect_eq(memcmp(&s, &was, sizeof(s)), 0);
	uint64_t bytes = 0;
	cr_expect_eq(thin_volume_status_parse("128 20479", &bytes), 0);
	cr_expect_eq(bytes, 64 << 10);
	cr_expect_eq(thin_volume_status_parse("0 -", &bytes), 0);
	cr_expect_eq(bytes, 0);
	cr_expect_eq(thin_volume_status_parse("Fail", &bytes), -ENODATA);
	cr_expect_eq(thin_volume_status_parse("128", &bytes), -EBADMSG);
	cr_expect_eq(thin_volume_status_parse("128 1 2", &bytes), -EBADMSG);
}

Test(thin_pool, tables_in_words)
{
	struct thin_table t = {8, 1, 259, 2, 64 << 10, 77, true}, back;
	char buf[DM_PARAMS_BYTES];
	int len = thin_table_print(&t, buf, sizeof(buf));
	cr_assert_gt(len, 0);
	cr_expect_str_eq(buf, "8:1 259:2 128 77 2 no_discard_passdown error_if_no_space");
	for (int cap = 0; cap <= len; cap++)
		cr_expect_eq(thin_table_print(&t, buf, (size_t)cap), -E2BIG);
	cr_assert_eq(thin_table_parse(
			     "8:1 259:2 128 77 2 no_discard_passdown error_if_no_space ", &back),
		0);
	cr_expect(back.metadata_minor == 1 && back.data_major == 259 && back.block_bytes == BLOCK);
	cr_expect(back.low_water_blocks == 77 && back.fails_when_full);
	cr_expect_eq(thin_table_parse("8:1 259:2 127 77 0", &back), -EBADMSG);
	cr_expect_eq(thin_table_parse("8:1 259:2 64 77 0", &back), -EBADMSG);
	cr_expect_eq(thin_table_parse("8:1 259:2 128 77", &back), -EBADMSG);
	cr_expect_eq(thin_table_parse("8:1 259:2 128 77 1 skip_block_zeroing", &back), -EBADMSG);
	cr_expect_eq(thin_table_parse("8:1 259:2 128 77 1 read_only", &back), -EBADMSG);
}

static void put(uint8_t *block, unsigned at, unsigned bytes, uint64_t value)
{
	for (unsigned i = 0; i < bytes; i++)
		block[at + i] = (uint8_t)(value >> 8 * i);
}

Test(thin_pool, the_superblock)
{
	static _Alignas(4096) uint8_t block[THIN_SUPER_BYTES];
	struct disk file = {.uuid = POOL, .count = 1, .members = {{.bytes = GIB}}};
	struct thin_super super;
	file.members[0].fd = open("/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	cr_assert_geq(file.members[0].fd, 0);
	cr_expect_eq(thin_super_read(&file, &metadata, &super), -EIO);
	cr_assert_eq(pwrite(file.members[0].fd, block, sizeof(block), 0), sizeof(block));
	cr_assert_eq(thin_super_read(&file, &metadata, &super), 0);
	cr_expect(super.blank);
	put(block, 4, 4, 1);
	put(block, 32, 8, 27022010);
	put(block, 40, 4, 2);
	put(block, 64, 8, 16384);
	put(block, 72, 8, 100);
	put(block, 336, 4, 128);
	cr_assert_eq(pwrite(file.members[0].fd, block, sizeof(block), 0), sizeof(block));
	cr_assert_eq(thin_super_read(&file, &metadata, &super), 0);
	cr_expect(!super.blank && super.needs_check && super.block_bytes == 64 << 10);
	cr_expect(super.data_used == 100 && super.data_total == 16384);
	put(block, 336, 4, 100);
	cr_expect_eq(thin_super_parse(block, &super), -EBADMSG);
	put(block, 336, 4, 128);
	put(block, 40, 4, 3);
	cr_expect_eq(thin_super_parse(block, &super), -EBADMSG);
	put(block, 32, 8, 1);
	cr_expect_eq(thin_super_parse(block, &super), -EBADMSG);
	metadata.count = 0;
	cr_expect_eq(thin_super_read(&file, &metadata, &super), -ERANGE);
	close(file.members[0].fd);
}
