/* SPDX-License-Identifier: Apache-2.0 */
/* The devices of raw pools' volumes, against a device mapper in memory (fake_dm.h). */
#include "disk/mapped.h"
#include "disk/tagged.h"
#include "fake_dm.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#define TAG  "ringvol:0123abcd:89abcdef"
#define NAME "ringvol-0123abcd-89abcdef"
#define UUID "RINGVOL-disk-0123abcd-89abcdef-1f3"
#define MIB  (UINT64_C(1) << 20)

enum { INO = 0x1f3 };

static struct dm dm = {.fd = -1, .call = fake_dm_call};

/* Two disks; the addresses of the second follow those of the first. */
static const struct disk disk = {
	.count = 2,
	.members = {{.major = 8, .minor = 16, .start = 0, .offset = 65 * MIB, .bytes = 1000 * MIB},
		{.major = 259, .minor = 0, .start = 1000 * MIB, .offset = MIB, .bytes = 500 * MIB}},
};
static const struct image_map map = {
	.count = 2, .pieces = {{10 * MIB, 64 * MIB}, {1100 * MIB, 32 * MIB}}};
static const struct mapped_spec spec = {
	.tag = TAG, .image_ino = INO, .disk = &disk, .map = &map, .size_bytes = 64 * MIB};

static struct fake_device *only(void)
{
	cr_assert(fake_dm_devices[0].there && !fake_dm_devices[1].there);
	return &fake_dm_devices[0];
}

static struct mapped make(const struct mapped_spec *as)
{
	struct mapped mapped;
	struct err err = {0};
	cr_assert_eq(mapped_make(&dm, as, &mapped, &err), 0, "%s", err.message);
	return mapped;
}

static void expect_refused(const struct mapped_spec *as, enum err_code code, const char *words)
{
	struct mapped mapped;
	struct err err = {0};
	cr_assert_lt(mapped_make(&dm, as, &mapped, &err), 0);
	cr_expect_eq(err.code, code);
	cr_expect_not_null(strstr(err.message, words), "'%s' has no '%s'", err.message, words);
}

static bool remove_it(void)
{
	struct err err = {0};
	bool waits;
	cr_assert_eq(mapped_remove(&dm, TAG, INO, &waits, &err), 0, "%s", err.message);
	return waits;
}

static void expect_target(unsigned i, uint64_t start_mib, uint64_t mib, const char *params)
{
	const struct dm_target *t = &only()->now.targets[i];
	cr_expect_eq(t->start_sectors, start_mib * MIB / 512);
	cr_expect_eq(t->length_sectors, mib * MIB / 512);
	cr_expect_str_eq(t->type, "linear");
	cr_expect_str_eq(t->params, params);
}

/* ---- tables ---- */

Test(mapped, the_last_unit_is_a_target_of_its_own)
{
	struct mapped mapped = make(&spec);
	cr_expect_str_eq(only()->name, NAME);
	cr_expect_str_eq(only()->uuid, UUID);
	cr_assert_eq(only()->now.count, 2);
	expect_target(0, 0, 63, "8:16 153600");
	expect_target(1, 63, 1, "8:16 282624");
	cr_expect(mapped.major == FAKE_DM_MAJOR && mapped.minor == FAKE_DM_MINOR);
	cr_expect_eq(mapped.image_ino, INO);
	cr_expect_eq(mapped.size_bytes, 64 * MIB);
	cr_expect_str_eq(mapped.tag, TAG);
	cr_expect_not(mapped.found || mapped.suspended || mapped.open);
}

Test(mapped, pieces_on_two_disks)
{
	struct mapped_spec all = spec;
	all.size_bytes = 96 * MIB;
	make(&all);
	cr_assert_eq(only()->now.count, 3);
	expect_target(0, 0, 64, "8:16 153600");
	expect_target(1, 64, 31, "259:0 206848");
	expect_target(2, 95, 1, "259:0 270336");
}

/* The tail is a piece of its own already; a piece that leads on to the next disk is cut there. */
Test(mapped, tables_at_their_ends)
{
	struct image_map ends = {.count = 2, .pieces = {{998 * MIB, 4 * MIB}, {0, MIB}}};
	struct mapped_spec as = spec;
	struct dm_target targets[4];
	unsigned count;
	as.map = &ends;
	as.size_bytes = 5 * MIB;
	cr_assert_eq(mapped_table(&as, targets, 4, &count), 0);
	cr_assert_eq(count, 3);
	cr_expect_eq(targets[0].length_sectors, 2 * MIB / 512);
	cr_expect_str_eq(targets[1].params, "259:0 2048");
	cr_expect_eq(targets[2].start_sectors, 4 * MIB / 512);
	cr_expect_eq(mapped_table(&as, targets, 2, &count), -E2BIG);
	as.size_bytes = 6 * MIB;
	cr_expect_eq(mapped_table(&as, targets, 4, &count), -EINVAL, "more than the map has");
	as.size_bytes = MIB;
	cr_expect_eq(mapped_table(&as, targets, 4, &count), -EINVAL, "one target is none");
	as.size_bytes = 2 * MIB + 512;
	cr_expect_eq(mapped_table(&as, targets, 4, &count), -EINVAL);
	ends.pieces[0].address = 1498 * MIB;
	as.size_bytes = 5 * MIB;
	cr_expect_eq(mapped_table(&as, targets, 4, &count), -ERANGE);
	expect_refused(&as, ERR_UNAVAILABLE, "disk");
	cr_expect_not(fake_dm_devices[0].there, "what was made for it is gone");
}

Test(mapped, as_many_pieces_as_a_map_takes)
{
	static struct image_map many;
	struct mapped_spec as = spec;
	for (unsigned i = 0; i < IMAGE_MAP_PIECES_MAX; i++)
		cr_assert_eq(image_map_add(&many, i * 3 * MIB, 2 * MIB), 0);
	as.map = &many;
	as.size_bytes = image_map_bytes(&many);
	make(&as);
	cr_expect_eq(only()->now.count, IMAGE_MAP_PIECES_MAX + 1);
	struct mapped again = make(&as);
	cr_expect(again.found && again.size_bytes == as.size_bytes);
	cr_expect_eq(fake_dm_loads, 1);
	static struct image_map seen;
	cr_assert_eq(mapped_pieces(&dm, &disk, &again, &seen), 0);
	cr_expect(image_map_equal(&seen, &many));
}

/* ---- what is there already ---- */

Test(mapped, a_repeat_changes_nothing)
{
	make(&spec);
	cr_expect(make(&spec).found);
	cr_expect_eq(fake_dm_loads, 1);
	cr_expect_eq(fake_dm_resumes, 1);
}

/* What a crash leaves: a device without a table; one whose table is loaded and not in use. */
Test(mapped, half_of_it_is_completed)
{
	struct mapped mapped;
	cr_assert_eq(dm_create(&dm, NAME, UUID, NULL), 0);
	cr_assert_eq(mapped_look(&dm, TAG, INO, &mapped), 0);
	cr_expect(mapped.size_bytes == 0 && !mapped.foreign && !mapped.retired);
	make(&spec);
	struct fake_table table = only()->now;
	only()->now.count = 0;
	only()->next = table;
	cr_expect_eq(make(&spec).size_bytes, 64 * MIB);
	cr_expect_eq(only()->now.count, 2);
}

Test(mapped, it_grows_in_use)
{
	struct mapped_spec grown = spec;
	grown.size_bytes = 96 * MIB;
	make(&spec);
	only()->open = 3;
	struct mapped mapped = make(&grown);
	cr_expect(mapped.found && mapped.open);
	cr_expect_eq(mapped.size_bytes, 96 * MIB);
	cr_expect_eq(only()->now.count, 3);
	expect_refused(&spec, ERR_PRECONDITION, "larger");
	cr_expect_eq(only()->now.count, 3, "none is cut");
}

Test(mapped, one_left_suspended_goes_on_with_the_table_it_has)
{
	struct dm_target table[2];
	make(&spec);
	for (int i = 0; i < 2; i++) {
		struct mapped mapped;
		/* The table of a driver that was killed while it let go of the device. */
		cr_assert_eq(tagged_table_retired(spec.size_bytes, table), 0);
		cr_assert_eq(dm_load(&dm, UUID, table, 2, false), 0);
		only()->suspended = true;
		cr_assert_eq(mapped_look(&dm, TAG, 0, &mapped), 0);
		cr_expect(mapped.suspended && mapped.image_ino == INO);
		if (i == 0)
			make(&spec);
		else
			cr_assert_eq(mapped_wake(&dm, mapped.tag, mapped.image_ino), 0);
		cr_expect_not(only()->suspended);
		cr_expect_str_eq(only()->now.targets[0].type, "linear");
	}
}

/* ---- what is not ours ---- */

Test(mapped, another_has_its_name)
{
	struct mapped mapped;
	cr_assert_eq(dm_create(&dm, NAME, "LVM-x", NULL), 0);
	expect_refused(&spec, ERR_PRECONDITION, NAME);
	cr_expect_eq(mapped_look(&dm, TAG, INO, &mapped), -EEXIST);
	cr_expect_eq(mapped_look(&dm, TAG, 0, &mapped), -EEXIST);
	cr_expect_not(remove_it());
	cr_expect(only()->there && only()->now.count == 0, "it is not touched");
}

/* The device of another image of that tag, as a guard or an image that was replaced. */
Test(mapped, another_image_has_its_name)
{
	struct mapped_spec other = spec;
	struct mapped mapped;
	other.image_ino = INO + 1;
	make(&other);
	expect_refused(&spec, ERR_PRECONDITION, NAME);
	cr_expect_not(remove_it());
	cr_expect(only()->there);
	cr_assert_eq(mapped_look(&dm, TAG, 0, &mapped), 0);
	cr_expect_eq(mapped.image_ino, INO + 1);
}

/* Its uuid stays ours: it is removed, and not made again beside it. */
Test(mapped, somebody_has_renamed_it)
{
	struct mapped mapped;
	make(&spec);
	strcpy(only()->name, "renamed");
	expect_refused(&spec, ERR_PRECONDITION, NAME);
	cr_expect_eq(mapped_look(&dm, TAG, INO, &mapped), -EEXIST);
	cr_expect_eq(mapped_look(&dm, TAG, 0, &mapped), -ENXIO);
	cr_expect_not(remove_it());
	cr_expect_not(fake_dm_devices[0].there);
}

Test(mapped, a_table_that_is_not_ours)
{
	static const struct dm_target tables[][2] = {
		{{0, 131072, "linear", "8:16 153600"}, {0, 0, "", ""}},
		{{0, 129024, "linear", "8:16 153600"}, {129024, 2048, "zero", ""}},
		{{0, 129024, "linear", "8:16 153600"}, {129024, 4096, "linear", "8:16 282624"}},
		{{0, 129024, "linear", "8:16 153600"}, {131072, 2048, "linear", "8:16 282624"}},
		{{0, 129025, "linear", "8:16 153600"}, {129025, 2048, "linear", "8:16 282624"}},
		{{0, 129024, "linear", "8:16 153600 x"}, {129024, 2048, "linear", "8:16 282624"}},
		{{0, 129024, "snapshot", "8:16 153600"}, {129024, 2048, "linear", "8:16 282624"}},
	};
	make(&spec);
	for (unsigned i = 0; i < sizeof(tables) / sizeof(tables[0]); i++) {
		struct err err = {0};
		struct mapped mapped;
		struct image_map seen;
		bool waits;
		memcpy(only()->now.targets, tables[i], sizeof(tables[i]));
		only()->now.count = tables[i][1].type[0] != '\0' ? 2 : 1;
		expect_refused(&spec, ERR_PRECONDITION, "dmsetup table");
		cr_assert_eq(mapped_look(&dm, TAG, INO, &mapped), 0);
		cr_expect(mapped.foreign && mapped.size_bytes == 0, "table %u", i);
		cr_expect_eq(mapped_pieces(&dm, &disk, &mapped, &seen), -ERANGE);
		cr_expect_lt(mapped_remove(&dm, TAG, INO, &waits, &err), 0, "table %u", i);
		cr_expect_eq(err.code, ERR_PRECONDITION, "nobody knows what it reaches");
		cr_expect(only()->there, "table %u", i);
	}
}

Test(mapped, it_leads_elsewhere)
{
	static const char *const params[] = {
		"8:16 153608", "8:16 155648", "8:32 153600", "259:0 1024000", "259:0 0"};
	make(&spec);
	for (unsigned i = 0; i < sizeof(params) / sizeof(params[0]); i++) {
		struct mapped mapped;
		struct image_map seen;
		strcpy(only()->now.targets[0].params, params[i]);
		expect_refused(&spec, ERR_PRECONDITION, "other places");
		cr_assert_eq(mapped_look(&dm, TAG, INO, &mapped), 0);
		int r = mapped_pieces(&dm, &disk, &mapped, &seen);
		cr_expect_eq(r, i == 1 ? 0 : -ERANGE, "%s: %d", params[i], r);
		/* What is still written to through it is not free. */
		cr_expect_eq(image_map_bytes(&seen), i == 1 ? 64 * MIB : MIB, "%s", params[i]);
	}
	cr_expect_not(remove_it(), "it has our uuid");
	cr_expect_not(fake_dm_devices[0].there);
}

/* ---- what fails ---- */

Test(mapped, every_call_may_fail)
{
	static const unsigned long requests[] = {
		DM_DEV_STATUS, DM_DEV_CREATE, DM_TABLE_LOAD, DM_DEV_SUSPEND};
	for (unsigned i = 0; i < sizeof(requests) / sizeof(requests[0]); i++) {
		struct mapped mapped;
		struct err err = {0};
		fake_dm_fail_with = -ENOMEM;
		fake_dm_fail_request = requests[i];
		cr_expect_lt(mapped_make(&dm, &spec, &mapped, &err), 0, "request %u", i);
		cr_expect_eq(err.errnum, ENOMEM);
		cr_expect_not_null(strstr(err.message, NAME), "%s", err.message);
		cr_expect_not(fake_dm_devices[0].there, "request %u", i);
		make(&spec);
		cr_expect_not(remove_it());
		cr_expect_not(fake_dm_devices[0].there);
	}
}

Test(mapped, a_call_fails_on_one_that_is_there)
{
	static const unsigned long requests[] = {DM_TABLE_STATUS, DM_TABLE_CLEAR, DM_DEV_SUSPEND};
	make(&spec);
	for (unsigned i = 0; i < sizeof(requests) / sizeof(requests[0]); i++) {
		struct mapped mapped;
		struct err err = {0};
		only()->suspended = true;
		fake_dm_fail_with = -EIO;
		fake_dm_fail_request = requests[i];
		cr_expect_lt(mapped_make(&dm, &spec, &mapped, &err), 0, "request %u", i);
		cr_expect_eq(err.errnum, EIO);
		cr_expect(only()->there, "it is not undone");
	}
	make(&spec);
	cr_expect_not(only()->suspended);
}

Test(mapped, a_disk_is_gone_or_held)
{
	fake_dm_fail_request = DM_TABLE_LOAD;
	fake_dm_fail_with = -ENODEV;
	expect_refused(&spec, ERR_UNAVAILABLE, "gone");
	fake_dm_fail_with = -EBUSY;
	expect_refused(&spec, ERR_PRECONDITION, "lsblk");
	cr_expect_not(fake_dm_devices[0].there);
	struct mapped_spec as = spec;
	as.tag = "other:tag";
	struct mapped mapped;
	struct err err = {0};
	bool waits;
	cr_expect_lt(mapped_make(&dm, &as, &mapped, &err), 0);
	cr_expect_eq(mapped_look(&dm, "ringvol:../x", INO, &mapped), -EINVAL);
	cr_expect_eq(mapped_remove(&dm, "other:tag", INO, &waits, &err), 0);
}

/* ---- removing ---- */

Test(mapped, who_has_it_open_reaches_nothing)
{
	struct mapped mapped;
	struct image_map seen;
	cr_expect_not(remove_it(), "none is there");
	make(&spec);
	only()->open = 1;
	cr_expect(remove_it());
	cr_assert_eq(only()->now.count, 2);
	cr_expect_str_eq(only()->now.targets[0].type, "error");
	cr_expect_str_eq(only()->now.targets[1].type, "error");
	cr_assert_eq(mapped_look(&dm, TAG, INO, &mapped), 0);
	cr_expect(mapped.retired && mapped.going_away && mapped.open && mapped.size_bytes == 0);
	cr_expect_eq(mapped_pieces(&dm, &disk, &mapped, &seen), -ENXIO);
	expect_refused(&spec, ERR_PRECONDITION, "fuser");
	only()->deferred = false; /* killed before it asked for that */
	expect_refused(&spec, ERR_PRECONDITION, "fuser");
	only()->open = 0;
	cr_expect_not(remove_it());
	cr_expect_not(fake_dm_devices[0].there);
}

/* Killed between letting go and removing: nobody has it, so it comes back to life. */
Test(mapped, a_retired_one_is_used_again)
{
	struct dm_target table[2];
	make(&spec);
	cr_assert_eq(tagged_table_retired(spec.size_bytes, table), 0);
	memcpy(only()->now.targets, table, sizeof(table));
	cr_expect_eq(make(&spec).size_bytes, 64 * MIB);
	cr_expect_str_eq(only()->now.targets[0].type, "linear");
}

/* It must not count as let go while somebody can still write to its pieces. */
Test(mapped, one_that_cannot_be_retired)
{
	static const unsigned long requests[] = {
		DM_DEV_STATUS, DM_TABLE_STATUS, DM_TABLE_LOAD, DM_DEV_SUSPEND, DM_DEV_REMOVE};
	make(&spec);
	only()->open = 1;
	for (unsigned i = 0; i < sizeof(requests) / sizeof(requests[0]); i++) {
		struct err err = {0};
		bool waits;
		fake_dm_fail_with = -ENOMEM;
		fake_dm_fail_request = requests[i];
		cr_expect_lt(mapped_remove(&dm, TAG, INO, &waits, &err), 0, "request %u", i);
		cr_expect_eq(err.errnum, ENOMEM);
	}
	cr_expect(remove_it());
	cr_expect_str_eq(only()->now.targets[0].type, "error");
	only()->open = 0;
	only()->now.count = 0;
	fake_dm_fail_with = -ENOMEM;
	fake_dm_fail_request = DM_TABLE_LOAD;
	cr_expect_not(remove_it(), "without anybody it needs no table");
}

Test(mapped, removed_by_its_tag_alone)
{
	struct err err = {0};
	bool waits;
	make(&spec);
	cr_assert_eq(mapped_remove(&dm, TAG, 0, &waits, &err), 0);
	cr_expect_not(fake_dm_devices[0].there);
}

/* ---- all of them ---- */

static unsigned seen_count;

static void on_mapped(void *arg, const struct mapped *mapped)
{
	(void)arg;
	seen_count++;
	cr_expect_str_eq(mapped->tag, TAG);
	cr_expect_eq(mapped->image_ino, INO);
}

Test(mapped, only_ours_are_listed)
{
	cr_expect_eq(mapped_each(&dm, on_mapped, NULL), 0, "none at all");
	cr_assert_eq(dm_create(&dm, "vg-root", "LVM-1", NULL), 0);
	cr_assert_eq(dm_create(&dm, "ringvol-0123abcd-00000000", "RINGVOL-guard-0123abcd-00000000",
			     NULL),
		0);
	cr_assert_eq(dm_create(&dm, "ringvol-0123abcd-00000001",
			     "RINGVOL-disk-0123abcd-00000001-xyz", NULL),
		0);
	struct mapped mapped;
	struct err err = {0};
	cr_assert_eq(mapped_make(&dm, &spec, &mapped, &err), 0);
	cr_assert_eq(mapped_each(&dm, on_mapped, NULL), 0);
	cr_expect_eq(seen_count, 1);
	fake_dm_fail_with = -EIO;
	fake_dm_fail_request = DM_LIST_DEVICES;
	cr_expect_eq(mapped_each(&dm, on_mapped, NULL), -EIO);
	fake_dm_fail_with = -EIO;
	fake_dm_fail_request = DM_TABLE_STATUS;
	cr_expect_eq(mapped_each(&dm, on_mapped, NULL), -EIO);
}
