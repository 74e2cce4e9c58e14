/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The device mapper's ioctls and the guard, against a device mapper in memory (fake_dm.h), and
 * against answers that no kernel gives.
 */
#include "backends/dm/guard.h"
#include "disk/tagged.h"
#include "fake_dm.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/sysmacros.h>

enum { LOOP = 7 };

#define TAG "ringvol:0123abcd:89abcdef"
static const char name[] = "ringvol-0123abcd-89abcdef", uuid[] = "RINGVOL-guard-0123abcd-89abcdef";

static struct dm dm = {.fd = -1, .call = fake_dm_call};
static const struct guard_spec spec = {
	.tag = TAG, .major = LOOP, .minor = 3, .size_bytes = 64 << 20};

static struct fake_device *only(void)
{
	cr_assert(fake_dm_devices[0].there);
	return &fake_dm_devices[0];
}

static struct guard make_guard(const struct guard_spec *as)
{
	struct guard guard;
	struct err err = {0};
	cr_assert_eq(guard_make(&dm, as, &guard, &err), 0, "%s", err.message);
	return guard;
}

static void expect_refused(const struct guard_spec *as, const char *words)
{
	struct guard guard;
	struct err err = {0};
	cr_assert_lt(guard_make(&dm, as, &guard, &err), 0);
	cr_expect_eq(err.code, ERR_PRECONDITION);
	cr_expect_not_null(strstr(err.message, words), "'%s' has no '%s'", err.message, words);
}

/* ---- the guard ---- */

Test(guard, two_targets_over_one_device)
{
	struct guard guard = make_guard(&spec);
	const struct fake_device *d = only();
	cr_expect_str_eq(d->name, name);
	cr_expect_str_eq(d->uuid, uuid);
	cr_assert_eq(d->now.count, 2);
	cr_expect_eq(d->now.targets[0].start_sectors, 0);
	cr_expect_eq(d->now.targets[0].length_sectors, (63 << 20) / 512);
	cr_expect_str_eq(d->now.targets[0].params, "7:3 0");
	cr_expect_str_eq(d->now.targets[1].type, "linear");
	cr_expect_eq(d->now.targets[1].start_sectors, (63 << 20) / 512);
	cr_expect_eq(d->now.targets[1].length_sectors, (1 << 20) / 512);
	cr_expect_str_eq(d->now.targets[1].params, "7:3 129024");
	cr_expect_eq(guard.major, FAKE_DM_MAJOR);
	cr_expect_eq(guard.minor, 300);
	cr_expect(guard.below_major == LOOP && guard.below_minor == 3);
	cr_expect_eq(guard.size_bytes, 64 << 20);
	cr_expect_str_eq(guard.tag, TAG);
}

Test(guard, a_repeat_changes_nothing)
{
	make_guard(&spec);
	make_guard(&spec);
	cr_expect_eq(fake_dm_loads, 1);
	cr_expect_eq(fake_dm_resumes, 1);
}

/* What a crash leaves: a device without a table; one whose table is loaded and not in use. */
Test(guard, half_of_it_is_completed)
{
	cr_assert_eq(dm_create(&dm, name, uuid, NULL), 0);
	make_guard(&spec);
	cr_expect_eq(only()->now.count, 2);
	struct dm_target table[2];
	only()->now.count = 0;
	cr_assert_eq(guard_table(&spec, table), 0);
	cr_assert_eq(dm_load(&dm, uuid, table, 2, false), 0);
	make_guard(&spec);
	cr_expect_eq(only()->now.count, 2);
	cr_expect_not(fake_dm_devices[1].there);
}

Test(guard, one_that_somebody_suspended_goes_on)
{
	make_guard(&spec);
	only()->suspended = true;
	make_guard(&spec);
	cr_expect_not(only()->suspended);
	cr_expect_eq(fake_dm_loads, 1);
}

Test(guard, it_grows_in_use_and_keeps_its_mode)
{
	struct guard_spec grown = spec;
	grown.size_bytes *= 2;
	grown.read_only = true;
	make_guard(&spec);
	only()->open = 3;
	struct guard guard = make_guard(&grown);
	cr_expect_eq(guard.size_bytes, 128 << 20);
	cr_expect(guard.read_only && guard.open);
	cr_expect_str_eq(only()->now.targets[1].params, "7:3 260096");
}

Test(guard, another_has_its_name)
{
	cr_assert_eq(dm_create(&dm, name, "LVM-x", NULL), 0);
	expect_refused(&spec, name);
	cr_expect_eq(only()->now.count, 0, "it is not touched");
	bool waits;
	struct err err = {0};
	cr_expect_eq(guard_remove(&dm, TAG, LOOP, 3, &waits, &err), 0);
	cr_expect(only()->there);
}

Test(guard, its_uuid_has_another_name)
{
	cr_assert_eq(dm_create(&dm, "renamed", uuid, NULL), 0);
	expect_refused(&spec, name);
}

Test(guard, it_stands_over_another_device)
{
	struct guard_spec other = spec;
	struct err err = {0};
	bool waits;
	other.minor = 4;
	make_guard(&other);
	expect_refused(&spec, "7:4");
	expect_refused(&spec, "dmsetup remove");
	cr_expect_eq(guard_remove(&dm, TAG, LOOP, 3, &waits, &err), 0);
	cr_expect(only()->there, "it is not this device's");
}

Test(guard, a_table_that_is_not_ours)
{
	static const struct dm_target tables[][2] = {
		{{0, 131072, "linear", "7:3 0"}, {0, 0, "", ""}},
		{{0, 129024, "linear", "7:3 0"}, {129024, 2048, "linear", "7:4 129024"}},
		{{0, 129024, "linear", "7:3 8"}, {129024, 2048, "linear", "7:3 129024"}},
		{{0, 129024, "linear", "7:3 0"}, {129024, 2048, "zero", ""}},
		{{0, 129024, "linear", "7:3 0"}, {129024, 4096, "linear", "7:3 129024"}},
		{{0, 129024, "linear", "7:3 0 x"}, {129024, 2048, "linear", "7:3 129024"}},
	};
	struct err err = {0};
	bool waits;
	make_guard(&spec);
	for (unsigned i = 0; i < sizeof(tables) / sizeof(tables[0]); i++) {
		struct guard guard;
		memcpy(only()->now.targets, tables[i], sizeof(tables[i]));
		only()->now.count = tables[i][1].type[0] != '\0' ? 2 : 1;
		expect_refused(&spec, "dmsetup table");
		cr_assert_eq(guard_look(&dm, TAG, &guard), 0);
		cr_expect(guard.foreign && guard.below_major == 0, "table %u", i);
		cr_expect_eq(guard_remove(&dm, TAG, LOOP, 3, &waits, &err), 0);
		cr_expect(only()->there, "table %u", i);
	}
}

Test(guard, the_device_below_is_in_use)
{
	fake_dm_fail_with = -EBUSY;
	fake_dm_fail_request = DM_TABLE_LOAD;
	expect_refused(&spec, "7:3");
	cr_expect_not(fake_dm_devices[0].there, "what was made for it is gone");
}

Test(guard, every_call_may_fail)
{
	static const unsigned long requests[] = {
		DM_DEV_STATUS, DM_DEV_CREATE, DM_TABLE_LOAD, DM_DEV_SUSPEND};
	for (unsigned i = 0; i < sizeof(requests) / sizeof(requests[0]); i++) {
		struct guard guard;
		struct err err = {0};
		bool waits;
		fake_dm_fail_with = -ENOMEM;
		fake_dm_fail_request = requests[i];
		cr_expect_lt(guard_make(&dm, &spec, &guard, &err), 0, "request %u", i);
		cr_expect_eq(err.errnum, ENOMEM);
		cr_expect_not_null(strstr(err.message, name), "%s", err.message);
		make_guard(&spec);
		cr_assert_eq(guard_remove(&dm, TAG, LOOP, 3, &waits, &err), 0);
		cr_expect_not(fake_dm_devices[0].there);
	}
}

Test(guard, removal_waits_for_who_has_it_open)
{
	struct err err = {0};
	bool waits = true;
	cr_expect_eq(guard_remove(&dm, TAG, LOOP, 3, &waits, &err), 0, "none is there");
	cr_expect_not(waits);
	make_guard(&spec);
	only()->open = 1;
	cr_assert_eq(guard_remove(&dm, TAG, LOOP, 3, &waits, &err), 0);
	cr_expect(waits && only()->there);
	cr_expect_eq(only()->now.count, 2, "it stays a device of two parts");
	cr_expect_str_eq(only()->now.targets[0].type, "error", "and leads nowhere");
	cr_expect_str_eq(only()->now.targets[1].type, "error");
	expect_refused(&spec, "fuser");
	only()->deferred = false; /* killed before it asked for that */
	expect_refused(&spec, "fuser");
	only()->open = 0;
	cr_assert_eq(guard_remove(&dm, TAG, LOOP, 3, &waits, &err), 0);
	cr_expect(!waits && !fake_dm_devices[0].there);
}

/* Killed between letting go and removing: nobody has it, so it comes back to life. */
Test(guard, a_retired_one_is_used_again)
{
	struct dm_target table[2];
	struct guard guard;
	make_guard(&spec);
	cr_assert_eq(tagged_table_retired(spec.size_bytes, table), 0);
	memcpy(only()->now.targets, table, sizeof(table));
	cr_assert_eq(guard_look(&dm, TAG, &guard), 0);
	cr_expect(guard.retired && !guard.foreign && guard.below_major == 0);
	guard = make_guard(&spec);
	cr_expect_eq(guard.below_minor, 3);
	cr_expect_str_eq(only()->now.targets[0].type, "linear");
}

Test(guard, too_small_for_two)
{
	struct dm_target table[2];
	struct guard_spec small = spec;
	small.size_bytes = 1 << 20;
	cr_expect_eq(guard_table(&small, table), -EINVAL);
	small.size_bytes += 512;
	cr_expect_eq(guard_table(&small, table), 0);
	cr_expect_eq(table[0].length_sectors, 1);
}

static unsigned seen;

static void on_guard(void *arg, const struct guard *guard)
{
	(void)arg;
	seen++;
	cr_expect_str_eq(guard->tag, TAG);
}

Test(guard, only_guards_are_listed)
{
	cr_expect_eq(guard_each(&dm, on_guard, NULL), 0, "none at all");
	cr_assert_eq(dm_create(&dm, "vg-root", "LVM-1", NULL), 0);
	cr_assert_eq(dm_create(&dm, "ringvol-short", "LVM-2", NULL), 0);
	cr_assert_eq(dm_create(&dm, "ringvol-11111111-22222222", "LVM-3", NULL), 0);
	make_guard(&spec);
	cr_assert_eq(guard_each(&dm, on_guard, NULL), 0);
	cr_expect_eq(seen, 1);
}

/* ---- the keeper ---- */

Test(keeper, one_is_made_whatever_fails_and_is_no_guard)
{
	static const unsigned long requests[] = {
		DM_DEV_STATUS, DM_DEV_CREATE, DM_TABLE_LOAD, DM_DEV_SUSPEND};
	for (unsigned i = 0; i < sizeof(requests) / sizeof(requests[0]); i++) {
		fake_dm_devices[0].there = false;
		fake_dm_fail_with = -ENOMEM;
		fake_dm_fail_request = requests[i];
		cr_expect_eq(guard_make_keeper(&dm), -ENOMEM, "request %u", i);
		cr_expect_eq(guard_make_keeper(&dm), 0, "what is missing is made");
		cr_expect_str_eq(only()->name, GUARD_KEEPER_NAME);
		cr_expect_eq(only()->now.count, 1);
		cr_expect_str_eq(only()->now.targets[0].type, "error");
	}
	unsigned before = fake_dm_resumes;
	cr_expect_eq(guard_make_keeper(&dm), 0);
	cr_expect_eq(fake_dm_resumes, before, "it is there");
	cr_expect_not(fake_dm_devices[1].there);
	cr_assert_eq(guard_each(&dm, on_guard, NULL), 0);
	cr_expect_eq(seen, 0);
}

Test(keeper, another_has_its_name)
{
	cr_assert_eq(dm_create(&dm, GUARD_KEEPER_NAME, "LVM-1", NULL), 0);
	cr_expect_eq(guard_make_keeper(&dm), -EBUSY);
	cr_expect_eq(only()->now.count, 0);
}

/* ---- the ioctls ---- */

Test(dm, names_are_checked)
{
	char long_name[DM_NAME_LEN + 1];
	memset(long_name, 'x', sizeof(long_name));
	long_name[DM_NAME_LEN] = '\0';
	cr_expect_eq(dm_create(&dm, long_name, uuid, NULL), -EINVAL);
	cr_expect_eq(dm_create(&dm, "a/b", uuid, NULL), -EINVAL);
	cr_expect_eq(dm_create(&dm, "", uuid, NULL), -EINVAL);
	cr_expect_eq(dm_create(&dm, name, "", NULL), -EINVAL);
	cr_expect_eq(dm_look_name(&dm, long_name, NULL), -EINVAL);
	struct guard guard;
	cr_expect_eq(guard_look(&dm, "another:tag", &guard), -EINVAL);
	cr_expect_eq(guard_look(&dm, "ringvol:../x", &guard), -EINVAL);
}

Test(dm, tables_are_checked)
{
	struct dm_target t = {0, 8, "linear", ""};
	cr_assert_eq(dm_create(&dm, name, uuid, NULL), 0);
	cr_expect_eq(dm_load(&dm, uuid, &t, 0, false), -EINVAL);
	cr_expect_eq(dm_load(&dm, uuid, &t, DM_TARGETS_MAX + 1, false), -E2BIG);
	memset(t.params, 'x', sizeof(t.params));
	cr_expect_eq(dm_load(&dm, uuid, &t, 1, false), -E2BIG);
	cr_expect_eq(
		dm_load(&dm, "nobody", &(struct dm_target){0, 8, "zero", ""}, 1, false), -ENXIO);
}

/* ---- answers that no kernel gives ---- */

static struct answer {
	uint32_t data_start, data_size, target_count, flags;
	unsigned char data[64];
	size_t len;
	unsigned calls;
} bad;

static int bad_call(struct dm *mapper, unsigned long request, struct dm_ioctl *head)
{
	(void)mapper;
	(void)request;
	bad.calls++;
	memcpy((char *)head + sizeof(*head), bad.data, bad.len);
	head->target_count = bad.target_count;
	head->flags |= bad.flags;
	head->data_start = bad.data_start;
	head->data_size = bad.data_size;
	return 0;
}

static void on_name(void *arg, const char *text, uint32_t dev_major, uint32_t dev_minor)
{
	(void)arg;
	cr_assert_lt(strlen(text), sizeof(bad.data));
	(void)dev_major;
	(void)dev_minor;
}

static struct dm liar = {.fd = -1, .call = bad_call};

static int ask_table(void)
{
	struct dm_target targets[2];
	unsigned count;
	return dm_table(&liar, uuid, targets, 2, &count);
}

Test(dm, an_answer_outside_the_buffer)
{
	const uint32_t head = sizeof(struct dm_ioctl);
	static const struct {
		uint32_t start, size;
	} where[] = {{1 << 30, 1 << 30}, {sizeof(struct dm_ioctl), 1 << 30}, {400, 390}};
	for (unsigned i = 0; i < 3; i++) {
		bad = (struct answer){.data_start = where[i].start, .data_size = where[i].size};
		cr_expect_eq(ask_table(), -EPROTO);
		cr_expect_eq(dm_list(&liar, on_name, NULL), -EPROTO);
	}
	/* Cut anywhere: a target, a name. */
	for (uint32_t len = 0; len < sizeof(bad.data); len++) {
		bad = (struct answer){.data_start = head,
			.data_size = head + len,
			.target_count = 2,
			.len = sizeof(bad.data)};
		memset(bad.data, 'x', sizeof(bad.data));
		cr_expect_eq(ask_table(), -EPROTO);
		cr_expect_eq(dm_list(&liar, on_name, NULL), len == 0 ? 0 : -EPROTO);
	}
}

Test(dm, links_that_lead_back)
{
	const uint32_t head = sizeof(struct dm_ioctl);
	bad = (struct answer){.data_start = head,
		.data_size = head + sizeof(bad.data),
		.target_count = 2,
		.len = sizeof(bad.data)};
	cr_expect_eq(ask_table(), -EPROTO, "a target that begins before the last one's end");
	const struct dm_name_list entry = {.dev = 1, .next = 4};
	memcpy(bad.data, &entry, offsetof(struct dm_name_list, name));
	cr_expect_eq(dm_list(&liar, on_name, NULL), -EPROTO);
}

Test(dm, an_answer_that_never_fits)
{
	bad = (struct answer){.data_start = sizeof(struct dm_ioctl),
		.data_size = sizeof(struct dm_ioctl),
		.flags = DM_BUFFER_FULL_FLAG};
	cr_expect_eq(ask_table(), -E2BIG);
	cr_expect_leq(bad.calls, 8);
}

Test(dm, no_device_mapper)
{
	struct dm none;
	cr_expect_eq(dm_open(&none, "/nonexistent/control"), -ENOENT);
	cr_expect_eq(dm_open(&none, "/dev/null"), -EPROTO);
}
