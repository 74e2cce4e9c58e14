/* SPDX-License-Identifier: Apache-2.0 */
/* Groups of snapshots whose making or deletion fails: what is said, and that nothing is left. */
#include "failing_calls.h"
#include "group_world.h"

/* ---- what fails leaves nothing ---- */

enum fault_kind {
	FAULT_STEPS,
	FAULT_JOBS,
	FAULT_CALLS, /* of the system */
	FAULT_KINDS
};

struct fault {
	const char *op_name;
	int left;
	enum fault_kind kind;
	bool hit;
	char at[96];
};

static int fault_now(
	struct fault *fault, enum fault_kind kind, const char *op_name, const char *step_name)
{
	bool of_remove = strcmp(fault->op_name, "group_remove") == 0;
	if ((strcmp(op_name, fault->op_name) != 0 &&
		    !(of_remove && strcmp(op_name, "group_sync") == 0)) ||
		kind != fault->kind || fault->hit || fault->left-- > 0)
		return 0;
	fault->hit = true;
	snprintf(fault->at, sizeof(fault->at), "%s", step_name);
	return -EIO;
}

static int fault_step(void *arg, const char *op_name, const char *step_name)
{
	return fault_now(arg, FAULT_STEPS, op_name, step_name);
}

static int fault_call(void *arg, const char *op_name, const char *step_name)
{
	return fault_now(arg, FAULT_JOBS, op_name, step_name);
}

static void fault_arm(const struct fault *fault)
{
	if (fault->kind == FAULT_CALLS)
		fail_call(NULL, NULL, fault->left, EIO);
}

/* Whether it was met. */
static bool fault_disarm(struct fault *fault)
{
	bool hit = fault->hit;
	if (fault->kind == FAULT_CALLS) {
		hit = fail_no_call();
		cr_assert(!hit || strstr(failure.message, strerror(EIO)) != NULL, "%s: %s",
			failing.what, failure.message);
		snprintf(fault->at, sizeof(fault->at), "%s", failing.what);
		pool_trash_kick(f.pool);
	}
	fault->hit = true;
	return hit;
}

static bool make_fails(struct fault *fault, unsigned fds)
{
	fault_arm(fault);
	enum err_code code = make("g", NULL);
	bool hit = fault_disarm(fault);
	struct pool_group *g = pools_find_group_name(f.pools, "g");
	cr_assert_eq(code != ERR_OK, hit, "%s", fault->at);
	cr_assert_eq(fixture_count(&f, "snapshots"), g != NULL ? VOLUMES : 0, "%s", fault->at);
	cr_assert_eq(fixture_count(&f, "groups"), g != NULL, "%s", fault->at);
	cr_assert_eq(fixture_count_fds(&f), fds, "%s", fault->at);
	if (g != NULL && code != ERR_OK) {
		struct pool_group_sync s;
		cr_assert(g->unsynced, "%s", fault->at);
		pool_group_sync_init(&s, &f.reactor, f.pool, g);
		cr_assert_eq(fixture_run(&f, &s.op), ERR_OK);
		cr_assert_not(g->unsynced);
	}
	if (g == NULL)
		cr_assert_eq(make("g", NULL), ERR_OK, "%s", fault->at);
	cr_assert_eq(drop(pools_find_group_name(f.pools, "g")), ERR_OK, "%s", fault->at);
	fixture_settle(&f);
	cr_assert_eq(fixture_count(&f, "trash"), 0, "%s", fault->at);
	return hit;
}

static bool remove_fails(struct fault *fault)
{
	char id[RECORD_ID_MAX];
	fault->hit = true;
	cr_assert_eq(make("g", NULL), ERR_OK);
	fault->hit = false;
	struct pool_group *g = pools_find_group_name(f.pools, "g");
	pool_group_id(g, id);
	fault_arm(fault);
	enum err_code code = drop(g);
	bool hit = fault_disarm(fault);
	cr_assert_eq(code != ERR_OK, hit, "%s", fault->at);
	g = pools_find_group_name(f.pools, "g");
	if (g != NULL) {
		struct err err = {0};
		cr_assert_eq(pool_group_check(g, &err), 0, "%s: %s", fault->at, err.message);
		cr_assert_eq(drop(g), ERR_OK, "%s", fault->at);
	} else if (code != ERR_OK && pools_group_removal_unsynced(f.pools, id) != NULL) {
		struct pool_group_sync s;
		pool_group_sync_init(&s, &f.reactor, f.pool, NULL);
		cr_assert_eq(fixture_run(&f, &s.op), ERR_OK);
		pool_group_sync_free(&s);
		cr_assert_null(pools_group_removal_unsynced(f.pools, id));
	}
	cr_assert_eq(pool_count(f.pool, RECORD_SNAPSHOT), 0, "%s", fault->at);
	fixture_settle(&f);
	cr_assert_eq(fixture_count(&f, "snapshots"), 0, "%s", fault->at);
	cr_assert_eq(fixture_count(&f, "trash"), 0, "%s", fault->at);
	return hit;
}

static void fails_anywhere(enum fixture_fs fs, unsigned at_least)
{
	unsigned count = 0;
	struct fault fault = {.op_name = "", .hit = true};
	open_pool(fs);
	f.observer = (struct op_observer){
		.before = fault_step, .before_call = fault_call, .arg = &fault};
	for (unsigned what = 0; what < 2 * FAULT_KINDS; what++)
		for (int n = 0;; n++, count++) {
			bool removing = what >= FAULT_KINDS;
			unsigned fds = fixture_count_fds(&f);
			fault = (struct fault){.op_name = removing ? "group_remove" : "pool_group",
				.left = n,
				.kind = what % FAULT_KINDS};
			if (!(removing ? remove_fails(&fault) : make_fails(&fault, fds)))
				break;
		}
	cr_assert_geq(count, at_least, "%u", count);
	f.observer = (struct op_observer){0};
	fixture_close(&f);
}

Test(group_failures, fails_anywhere_on_xfs, .timeout = 120)
{
	fails_anywhere(FIXTURE_XFS, 20);
}

Test(group_failures, fails_anywhere_on_btrfs, .timeout = 120)
{
	fails_anywhere(FIXTURE_BTRFS, 25);
}

Test(group_failures, fails_anywhere_where_it_is_copied, .timeout = 120)
{
	fails_anywhere(FIXTURE_EXT4, 20);
}

/* ---- what is said ---- */

static void expect_nothing(unsigned fds)
{
	fixture_settle(&f);
	cr_expect_null(pools_find_group_name(f.pools, "g"));
	cr_expect_eq(pool_count(f.pool, RECORD_SNAPSHOT), 0);
	cr_expect_eq(fixture_count(&f, "snapshots"), 0);
	cr_expect_eq(fixture_count(&f, "trash"), 0);
	cr_expect_eq(fixture_count_fds(&f), fds);
	cr_expect_eq(f.pool->ops, 0);
	cr_expect_eq(f.pool->reserved_bytes, 0);
}

static void expect_refused(enum err_code code, const char *said)
{
	unsigned fds = fixture_count_fds(&f);
	cr_expect_eq(make("g", NULL), code, "%s", failure.message);
	cr_expect_not_null(strstr(failure.message, said), "%s", failure.message);
	expect_nothing(fds);
	cr_expect_eq(fixture_count(&f, "groups"), 0);
}

static void expect_made(void)
{
	cr_expect_eq(make("g", NULL), ERR_OK);
	cr_expect_eq(drop(pools_find_group_name(f.pools, "g")), ERR_OK);
	fixture_settle(&f);
}

Test(group_failures, of_volumes_that_cannot_be_copied, .timeout = 60)
{
	open_pool(FIXTURE_XFS);
	volumes[1]->image = POOL_IMAGE_TRUNCATED;
	expect_refused(ERR_DATA_LOSS,
		"v1 in pool p cannot be copied: its image is shorter than it should be");
	volumes[1]->image = POOL_IMAGE_WHOLE;
	expect_made();
	sh_in_pool("setfattr -n trusted.ringvol -v nonsense volumes/%s", "v2");
	fixture_reopen_pools(&f);
	volumes[0] = pools_find_name(f.pools, RECORD_VOLUME, "v0");
	volumes[1] = pools_find_name(f.pools, RECORD_VOLUME, "v1");
	volumes[2] = pools_find_name(f.pools, RECORD_VOLUME, "v2");
	expect_refused(ERR_DATA_LOSS, "v2 in pool p cannot be copied: its record is damaged");
	volumes[2] = volumes[1];
	expect_made();
	fixture_close(&f);
}

Test(group_failures, in_a_pool_that_takes_none, .timeout = 60)
{
	open_pool(FIXTURE_XFS);
	f.pool->probed = false;
	expect_refused(ERR_NO_ROOM, "has been too full since the driver started");
	f.pool->probed = true;
	expect_made();
	size_t count = f.pool->index[RECORD_VOLUME].count;
	f.pool->index[RECORD_VOLUME].count = POOL_OBJECTS_MAX - VOLUMES + 1;
	cr_expect_eq(make("g", NULL), ERR_NO_ROOM);
	cr_expect_not_null(strstr(failure.message, "as many volumes"), "%s", failure.message);
	f.pool->index[RECORD_VOLUME].count = count;
	f.pool->groups.count = POOL_GROUPS_MAX;
	cr_expect_eq(make("g", NULL), ERR_NO_ROOM);
	cr_expect_not_null(strstr(failure.message, "as many volumes"), "%s", failure.message);
	f.pool->groups.count = 0;
	expect_made();
	fixture_close(&f);
}

/* Where nothing can be shared, what is in use is not copied instead. */
Test(group_failures, where_extents_are_not_shared, .timeout = 60)
{
	open_pool(FIXTURE_EXT4);
	f.pool->features.reflink = true;
	expect_refused(ERR_PRECONDITION, "pool p refuses to share the extents of its volumes");
	f.pool->features.reflink = false;
	expect_made();
	fixture_close(&f);
}

/* A group of which nobody was told, and whose file is there all the same. */
Test(group_failures, when_the_answer_of_its_commit_is_lost, .timeout = 60)
{
	open_pool(FIXTURE_XFS);
	unsigned fds = fixture_count_fds(&f);
	fail_made_call("renameat2", "g", 0, EIO);
	cr_expect_neq(make("g", NULL), ERR_OK);
	cr_expect(fail_no_call());
	cr_expect_not_null(strstr(failure.message, "committing group snapshot g in pool p"), "%s",
		failure.message);
	expect_nothing(fds);
	cr_expect_eq(fixture_count(&f, "groups"), 0);
	expect_made();
	fixture_close(&f);
}

Test(group_failures, whose_name_has_a_file_already, .timeout = 60)
{
	open_pool(FIXTURE_XFS);
	unsigned fds = fixture_count_fds(&f);
	sh_in_pool("touch groups/%s", "g");
	cr_expect_eq(make("g", NULL), ERR_EXISTS);
	cr_expect_not_null(
		strstr(failure.message, "that the driver has not read"), "%s", failure.message);
	expect_nothing(fds);
	/* It is not ours to remove. */
	cr_expect_eq(fixture_count(&f, "groups"), 1);
	sh_in_pool("rm groups/%s", "g");
	expect_made();
	fixture_close(&f);
}

/* Deleting is what makes room. */
Test(group_failures, not_to_be_deleted_without_room, .timeout = 60)
{
	static const int errors[] = {ENOSPC, EDQUOT};
	open_pool(FIXTURE_XFS);
	unsigned fds = fixture_count_fds(&f);
	for (unsigned i = 0; i < 2; i++) {
		cr_assert_eq(make("g", NULL), ERR_OK);
		fail_call("renameat", NULL, 0, errors[i]);
		cr_expect_eq(drop(pools_find_group_name(f.pools, "g")), ERR_OK);
		cr_expect(fail_no_call());
		pool_trash_kick(f.pool);
		expect_nothing(fds);
		cr_expect_eq(fixture_count(&f, "groups"), 0);
	}
	fixture_close(&f);
}

/* ---- when the driver shuts down ---- */

static const char *stop_op, *stop_step;
static unsigned stop_after;

static int stop_before(void *arg, const char *op_name, const char *step_name)
{
	(void)arg;
	if (making != NULL && strcmp(op_name, stop_op) == 0 && strcmp(step_name, stop_step) == 0 &&
		stop_after-- == 0)
		pool_group_make_stop(making);
	return 0;
}

Test(group_failures, when_copying_is_stopped, .timeout = 60)
{
	open_pool(FIXTURE_EXT4);
	f.observer = (struct op_observer){.before = stop_before};
	static const struct {
		const char *op, *step;
		unsigned after;
	} all[] = {{"pool_group", "copy", 0}, {"pool_clone", "copy", 0}, {"pool_clone", "copy", 1},
		{"copy", "copy", 2}};
	for (unsigned i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		stop_op = all[i].op;
		stop_step = all[i].step;
		stop_after = all[i].after;
		expect_refused(ERR_UNAVAILABLE,
			"group snapshot g: copying was stopped because the driver shuts down");
		cr_expect_eq(stop_after, UINT32_MAX, "%u", i);
	}
	expect_made();
	f.observer = (struct op_observer){0};
	fixture_close(&f);
}
