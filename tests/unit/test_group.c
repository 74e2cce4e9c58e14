/* SPDX-License-Identifier: Apache-2.0 */
/* Groups of snapshots in a pool: their file, their making and deletion, and what a load makes of
 * what a crash left. */
#include "failing_calls.h"
#include "group_world.h"

#include "pool/group_file.h"
#include "pool/private.h"
#include "pool/record_text.h"

/* ---- the file ---- */

static struct pool_group *sample(void)
{
	struct pool_group *g = pool_group_new("g-1", 2);
	strcpy(g->name, "g-1");
	strcpy(g->random, "01234567");
	g->created_ns = 1700000000000000001;
	g->count = 2;
	strcpy(g->members[0], "89abcdef.g-1.01234567.0.00000000");
	strcpy(g->members[1], "89abcdef.g-1.01234567.1.11111111");
	return g;
}

Test(group, file_round_trip)
{
	char text[GROUP_TEXT_MAX];
	struct pool_group *g = sample(), *back = NULL;
	int len = group_print(g, text, sizeof(text));
	cr_assert_gt(len, 0);
	cr_assert_eq(group_parse(text, (size_t)len, "g-1", &back), 0);
	cr_assert_str_eq(back->name, g->name);
	cr_assert_str_eq(back->random, g->random);
	cr_assert_eq(back->created_ns, g->created_ns);
	cr_assert_eq(back->count, 2);
	cr_assert_str_eq(back->members[1], g->members[1]);
	pool_group_free(back);
	cr_assert_eq(group_parse(text, (size_t)len, "g-2", &back), -EBADMSG);
	for (int i = 0; i < len; i++) {
		text[i] ^= 1;
		cr_assert_lt(group_parse(text, (size_t)len, "g-1", &back), 0, "byte %d", i);
		text[i] ^= 1;
		cr_assert_lt(group_parse(text, (size_t)i, "g-1", &back), 0, "length %d", i);
	}
	cr_assert_eq(group_print(g, text, 100), -E2BIG);
	pool_group_free(g);
}

Test(group, file_of_a_later_version_or_without_sense)
{
	static const struct {
		const char *lines;
		int res;
	} all[] = {
		{"name=g\nrandom=01234567\ncreated_ns=1\nmember=89abcdef.a.00000000\n", 0},
		{"name=g\nrandom=01234567\ncreated_ns=1\nmember=89abcdef.a.00000000\nnews=1\n",
			-EPROTONOSUPPORT},
		{"name=g\nrandom=01234567\ncreated_ns=1\n", -EBADMSG},
		{"name=g\nrandom=01234567\nmember=89abcdef.a.00000000\n", -EBADMSG},
		{"random=01234567\nname=g\ncreated_ns=1\nmember=89abcdef.a.00000000\n", -EBADMSG},
		{"name=g\nname=g\nrandom=01234567\ncreated_ns=1\nmember=89abcdef.a.00000000\n",
			-EBADMSG},
		{"name=g\nrandom=0123456\ncreated_ns=1\nmember=89abcdef.a.00000000\n", -EBADMSG},
		{"name=g\nrandom=01234567\ncreated_ns=1\nmember=nonsense\n", -EBADMSG},
		{"name=g\nrandom=01234567\ncreated_ns=1\nmember=89abcdef.a.00000000\n"
		 "member=89abcdef.a.00000000\n",
			-EBADMSG},
		{"name=g\nrandom=01234567\ncreated_ns=01\nmember=89abcdef.a.00000000\n", -EBADMSG},
		{"name\n", -EBADMSG},
	};
	char text[1024];
	for (unsigned i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		struct pool_group *g = NULL;
		struct record_text o = {.buf = text, .cap = sizeof(text)};
		record_text_put(&o, "ringvol-group 1\n");
		record_text_put(&o, all[i].lines);
		int len = record_text_end(&o);
		cr_assert_eq(group_parse(text, (size_t)len, "g", &g), all[i].res, "%u", i);
		pool_group_free(g);
	}
	struct record_text o = {.buf = text, .cap = sizeof(text)};
	struct pool_group *g = NULL;
	record_text_put(&o, "ringvol-group 2\nname=g\n");
	int len = record_text_end(&o);
	cr_assert_eq(group_parse(text, (size_t)len, "g", &g), -EPROTONOSUPPORT);
}

Test(group, file_of_too_many_members)
{
	struct pool_group *g = pool_group_new("g", POOL_GROUP_MEMBERS_MAX + 1), *back = NULL;
	char text[GROUP_TEXT_MAX + 256];
	strcpy(g->name, "g");
	strcpy(g->random, "01234567");
	for (unsigned more = 0; more < 2; more++) {
		g->count = POOL_GROUP_MEMBERS_MAX + more;
		for (unsigned i = 0; i < g->count; i++)
			snprintf(g->members[i], sizeof(g->members[i]), "89abcdef.m%u.00000000", i);
		int len = group_print(g, text, sizeof(text));
		cr_assert_gt(len, 0);
		cr_assert_eq(group_parse(text, (size_t)len, "g", &back), more ? -EBADMSG : 0);
	}
	pool_group_free(back);
	pool_group_free(g);
}

/* ---- making and deleting ---- */

/* Its life: made, found after a restart, deleted. */
static void life(enum fixture_fs fs)
{
	struct pool_group *g = NULL;
	struct err err = {0};
	char id[RECORD_ID_MAX];
	open_pool(fs);
	struct pool_room before = fixture_room(&f);
	cr_assert_eq(make("g", &g), ERR_OK);
	cr_assert_not(g->unsynced);
	pool_group_id(g, id);
	is_whole(id);
	cr_assert_eq(pools_find_group_name(f.pools, "g"), g);
	cr_assert_eq(pool_next_group(f.pool, ""), g);
	cr_assert_null(pool_next_group(f.pool, "g"));
	for (unsigned i = 0; i < VOLUMES; i++)
		write_byte("volumes", volumes[i]->key, 'z');
	is_whole(id);
	cr_assert_eq(volumes[0]->shared, pool_features(f.pool)->reflink);
	cr_assert_eq(make("g", NULL), ERR_EXISTS);
	cr_assert_eq(fixture_count(&f, "snapshots"), VOLUMES);
	fixture_reopen_pools(&f);
	find_volumes();
	is_whole(id);
	cr_assert_eq(fixture_count(&f, "trash"), 0);
	cr_assert_eq(make("another", NULL), ERR_OK);
	cr_assert_eq(drop(pools_find_group_name(f.pools, "g")), ERR_OK);
	cr_assert_eq(pools_find_group(f.pools, id, &g, &err), -ENOENT);
	cr_assert_eq(err.code, ERR_NOT_FOUND);
	cr_assert_null(pools_group_removal_unsynced(f.pools, id));
	cr_assert_eq(drop(pools_find_group_name(f.pools, "another")), ERR_OK);
	fixture_settle(&f);
	cr_assert_eq(fixture_count(&f, "snapshots"), 0);
	cr_assert_eq(fixture_count(&f, "groups"), 0);
	cr_assert_eq(fixture_count(&f, "trash"), 0);
	cr_assert_eq(pool_count(f.pool, RECORD_SNAPSHOT), 0);
	cr_assert_not(volumes[0]->shared);
	struct pool_room after = fixture_room(&f);
	cr_assert_eq(after.provisioned_bytes, before.provisioned_bytes);
	fixture_close(&f);
}

Test(group, lives_on_xfs, .timeout = 60)
{
	life(FIXTURE_XFS);
}

Test(group, lives_on_ext4, .timeout = 60)
{
	life(FIXTURE_EXT4);
}

Test(group, lives_without_a_journal, .timeout = 60)
{
	life(FIXTURE_NO_JOURNAL);
}

Test(group, lives_on_btrfs, .timeout = 60)
{
	life(FIXTURE_BTRFS);
}

/* One volume is shared, and another is copied. */
Test(group, of_shared_and_copied_volumes, .timeout = 60)
{
	char id[RECORD_ID_MAX];
	struct pool_group *g = NULL;
	struct pool_group_part parts[VOLUMES];
	open_pool(FIXTURE_XFS);
	for (unsigned copied = 0; copied < VOLUMES; copied++) {
		for (unsigned i = 0; i < VOLUMES; i++)
			parts[i] = (struct pool_group_part){
				.source = volumes[i], .share = i != copied};
		cr_assert_eq(make_parts("g", parts, &g), ERR_OK);
		pool_group_id(g, id);
		is_whole(id);
		fixture_reopen_pools(&f);
		find_volumes();
		is_whole(id);
		cr_assert_eq(drop(pools_find_group_name(f.pools, "g")), ERR_OK);
		find_volumes();
	}
	fixture_close(&f);
}

/* ---- what is durable ---- */

static struct {
	ino_t inodes[64];
	unsigned count;
} synced;

static int note_sync(void *arg, uint64_t nth, const struct io_uring_sqe *sqe)
{
	struct stat st;
	(void)arg;
	(void)nth;
	if (sqe->opcode == IORING_OP_FSYNC && sqe->fsync_flags == 0 && fstat(sqe->fd, &st) == 0 &&
		synced.count < 64)
		synced.inodes[synced.count++] = st.st_ino;
	return 0;
}

static bool was_synced(const char *sub, const char *key)
{
	struct stat st;
	char path[160];
	snprintf(path, sizeof(path), "%s/%s/%s", f.path, sub, key);
	cr_assert_eq(stat(path, &st), 0, "%s", path);
	for (unsigned i = 0; i < synced.count; i++)
		if (synced.inodes[i] == st.st_ino)
			return true;
	return false;
}

/* Of each member: whether its file was, and whether its bytes are the volume's. */
static void expect_synced(bool shared, unsigned copied, bool all)
{
	struct pool_group *g = NULL;
	struct pool_group_part parts[VOLUMES];
	const char *why;
	for (unsigned i = 0; i < VOLUMES; i++)
		parts[i] = (struct pool_group_part){
			.source = volumes[i], .share = shared && i != copied};
	synced.count = 0;
	cr_assert_eq(make_parts("g", parts, &g), ERR_OK);
	for (unsigned i = 0; i < VOLUMES; i++)
		cr_expect_eq(was_synced("snapshots", pool_group_member(g, i, &why)->key),
			all || !parts[i].share, "%u of %u", i, copied);
	cr_expect_eq(was_synced("snapshots", "."), all);
	cr_expect(was_synced("groups", "."));
	cr_assert_eq(drop(g), ERR_OK);
	fixture_settle(&f);
}

/* Bytes that were written, before anything says that they are there; where there is not one log,
 * also what was shared, and the names. */
Test(group, is_durable_when_it_is_there, .timeout = 60)
{
	static const struct {
		enum fixture_fs fs;
		bool shares, one_log;
	} all[] = {{FIXTURE_XFS, true, true}, {FIXTURE_EXT4, false, true},
		{FIXTURE_NO_JOURNAL, false, false}, {FIXTURE_BTRFS, true, false}};
	struct ring_sim sim = {.fault = note_sync};
	for (unsigned i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		open_pool_in(all[i].fs, &sim);
		for (unsigned copied = 0; copied <= VOLUMES; copied++)
			expect_synced(all[i].shares, copied, !all[i].one_log);
		fixture_close(&f);
	}
}

/* ---- whatever is cut short, a load finds all of it or nothing ---- */

struct crash {
	const char *op_name;
	int left;
	bool hit;
	char at[64];
};

/* A copy of the pool as it is now is what a driver that is killed now leaves. */
static void crash_now(struct crash *c, const char *name, const char *where)
{
	if (strcmp(name, c->op_name) != 0 || c->hit || c->left-- > 0)
		return;
	c->hit = true;
	snprintf(c->at, sizeof(c->at), "%s/%s", name, where);
	cr_assert_eq(fixture_sh("rm -rf %s/copy && cp -a --reflink=auto %s %s/copy", f.top, f.path,
			     f.top),
		0);
}

static int before(void *arg, const char *op_name, const char *step_name)
{
	crash_now(arg, op_name, step_name);
	return 0;
}

static void after(void *arg, const char *op_name, const char *step_name, uint64_t ns)
{
	(void)ns;
	crash_now(arg, op_name, step_name);
}

/* Whether the copy has the group, whole; else it has nothing of it. */
static bool load_copy(const char *at)
{
	struct fixture copy = {.reactor = f.reactor};
	struct err err = {0};
	snprintf(copy.path, sizeof(copy.path), "%s/copy", f.top);
	fixture_open_pools(&copy);
	cr_assert_eq(pool_state(copy.pool), POOL_READY, "%s: %s", at, pool_why(copy.pool));
	fixture_settle(&copy);
	struct pool_group *g = pools_find_group_name(copy.pools, "g");
	unsigned want = g != NULL ? VOLUMES : 0;
	if (g != NULL)
		cr_assert_eq(pool_group_check(g, &err), 0, "%s: %s", at, err.message);
	cr_assert_eq(pool_count(copy.pool, RECORD_SNAPSHOT), want, "%s", at);
	cr_assert_eq(fixture_count(&copy, "snapshots"), want, "%s", at);
	cr_assert_eq(fixture_count(&copy, "groups"), g != NULL, "%s", at);
	cr_assert_eq(fixture_count(&copy, "trash"), 0, "%s", at);
	fixture_close_pools(&copy);
	return g != NULL;
}

static void crashes(enum fixture_fs fs, unsigned at_least)
{
	struct crash crash;
	unsigned with = 0, count = 0;
	open_pool(fs);
	f.observer = (struct op_observer){.before = before, .after = after, .arg = &crash};
	for (unsigned removing = 0; removing < 2; removing++)
		for (int n = 0;; n++) {
			crash = (struct crash){"pool_group", removing ? INT32_MAX : n, false, ""};
			cr_assert_eq(make("g", NULL), ERR_OK);
			if (removing)
				crash = (struct crash){"group_remove", n, false, ""};
			bool hit = crash.hit;
			cr_assert_eq(drop(pools_find_group_name(f.pools, "g")), ERR_OK);
			fixture_settle(&f);
			hit |= crash.hit;
			if (!hit)
				break;
			with += load_copy(crash.at);
			count++;
		}
	cr_assert_geq(count, at_least);
	cr_assert_gt(with, 4);
	cr_assert_lt(with, count - 10);
	f.observer = (struct op_observer){0};
	fixture_close(&f);
}

Test(group, is_there_or_not_after_a_crash_on_xfs, .timeout = 120)
{
	crashes(FIXTURE_XFS, 25);
}

Test(group, is_there_or_not_after_a_crash_on_btrfs, .timeout = 120)
{
	crashes(FIXTURE_BTRFS, 30);
}

/* ---- what is missing or damaged ---- */

/* It is never shown as a smaller group, and can be deleted. */
Test(group, that_lacks_a_member, .timeout = 60)
{
	struct err err = {0};
	char id[RECORD_ID_MAX], key[RECORD_KEY_MAX];
	struct pool_group *g;
	open_pool(FIXTURE_XFS);
	make_one(id, key);
	sh_in_pool("rm snapshots/%s", key);
	fixture_reopen_pools(&f);
	find_volumes();
	cr_assert_eq(pools_find_group(f.pools, id, &g, &err), 0);
	cr_assert_lt(pool_group_check(g, &err), 0);
	cr_assert_eq(err.code, ERR_DATA_LOSS);
	cr_assert_eq(make("g", NULL), ERR_EXISTS);
	cr_assert_eq(drop(g), ERR_OK);
	cr_assert_eq(fixture_count(&f, "snapshots"), 0);
	fixture_close(&f);
}

Test(group, with_a_damaged_member, .timeout = 60)
{
	struct err err = {0};
	char id[RECORD_ID_MAX], key[RECORD_KEY_MAX];
	struct pool_group *g;
	open_pool(FIXTURE_XFS);
	make_one(id, key);
	sh_in_pool("setfattr -n trusted.ringvol -v nonsense snapshots/%s", key);
	fixture_reopen_pools(&f);
	find_volumes();
	cr_assert_eq(pools_find_group(f.pools, id, &g, &err), 0);
	cr_assert_lt(pool_group_check(g, &err), 0);
	cr_assert_eq(drop(g), ERR_DATA_LOSS);
	cr_assert_eq(fixture_count(&f, "snapshots"), VOLUMES);
	cr_assert_eq(fixture_count(&f, "groups"), 1);
	fixture_close(&f);
}

/* Its members are left as they are: it was committed. */
Test(group, with_a_damaged_file, .timeout = 60)
{
	struct err err = {0};
	char id[RECORD_ID_MAX], key[RECORD_KEY_MAX];
	struct pool_group *g;
	open_pool(FIXTURE_XFS);
	make_one(id, key);
	sh_in_pool("echo nonsense >> groups/%s", "g");
	fixture_reopen_pools(&f);
	find_volumes();
	cr_assert_lt(pools_find_group(f.pools, id, &g, &err), 0);
	cr_assert_eq(err.code, ERR_DATA_LOSS);
	cr_assert_not_null(pools_find_group_name(f.pools, "g"));
	cr_assert_eq(pool_count(f.pool, RECORD_SNAPSHOT), VOLUMES);
	cr_assert_eq(make("g", NULL), ERR_EXISTS);
	fixture_close(&f);
}

/* A directory that is not there says nothing of a group. */
Test(group, whose_directory_is_lost, .timeout = 60)
{
	char id[RECORD_ID_MAX], key[RECORD_KEY_MAX];
	open_pool(FIXTURE_XFS);
	make_one(id, key);
	sh_in_pool("mv groups %s", "elsewhere");
	fixture_reopen_pools(&f);
	find_volumes();
	cr_assert_eq(fixture_count(&f, "snapshots"), VOLUMES);
	cr_assert_eq(fixture_count(&f, "trash"), 0);
	cr_assert_null(pool_next_object(f.pool, RECORD_SNAPSHOT, "")->rec);
	cr_assert_eq(make("g", NULL), ERR_PRECONDITION);
	sh_in_pool("mv %s groups", "elsewhere");
	fixture_reopen_pools(&f);
	find_volumes();
	is_whole(id);
	fixture_close(&f);
}

/* Nothing says that the group was deleted: what is left of it is kept, and whole when the file is
 * back. */
Test(group, whose_file_is_lost, .timeout = 60)
{
	char id[RECORD_ID_MAX], key[RECORD_KEY_MAX];
	open_pool(FIXTURE_XFS);
	make_one(id, key);
	sh_in_pool("mv groups/g %s", "elsewhere");
	for (unsigned i = 0; i < 2; i++) {
		fixture_reopen_pools(&f);
		find_volumes();
		cr_assert_eq(fixture_count(&f, "snapshots"), VOLUMES);
		cr_assert_eq(fixture_count(&f, "trash"), 0);
		const struct pool_object *o = pool_next_object(f.pool, RECORD_SNAPSHOT, "");
		cr_assert_null(o->rec);
		cr_assert_str_eq(o->why, "the file of its group is missing in groups/");
	}
	/* Another group of that name says nothing of the first one's members. */
	cr_assert_eq(make("g", NULL), ERR_OK);
	fixture_reopen_pools(&f);
	find_volumes();
	cr_assert_eq(fixture_count(&f, "snapshots"), 2 * VOLUMES);
	cr_assert_eq(drop(pools_find_group_name(f.pools, "g")), ERR_OK);
	fixture_settle(&f);
	cr_assert_eq(fixture_count(&f, "snapshots"), VOLUMES);
	cr_assert_eq(fixture_count(&f, "groups"), 0);
	sh_in_pool("mv %s groups/g", "elsewhere");
	fixture_reopen_pools(&f);
	find_volumes();
	is_whole(id);
	fixture_close(&f);
}

/* A file of that kind speaks of its own group alone. */
Test(group, aside_names)
{
	static const char *const none[] = {"+new-", "+new-0123456-g", "+new-0123456x-g",
		"+new-01234567g", "+new-01234567-", "+new-01234567-.g", "+old-01234567-g", "g",
		"+gone-01234567-a/b"};
	char name[GROUP_ASIDE_BYTES], random[9], key[RECORD_KEY_MAX], longest[RECORD_KEY_MAX];
	for (unsigned i = 0; i < sizeof(none) / sizeof(none[0]); i++)
		cr_assert_not(group_aside_parse(none[i], random, key), "%s", none[i]);
	memset(longest, 'a', sizeof(longest));
	longest[sizeof(longest) - 1] = '\0';
	for (unsigned i = 0; i < 2; i++) {
		group_aside_name((enum group_aside)i, "89abcdef", longest, name);
		cr_assert_not(record_key_valid(name));
		cr_assert(group_aside_parse(name, random, key));
		cr_assert_str_eq(random, "89abcdef");
		cr_assert_str_eq(key, longest);
	}
}

/* A pool of an older driver gets its directory, and works. */
Test(group, in_a_pool_without_the_directory, .timeout = 60)
{
	open_pool(FIXTURE_XFS);
	sh_in_pool("rmdir %s", "groups");
	fixture_reopen_pools(&f);
	find_volumes();
	cr_assert_eq(make("g", NULL), ERR_OK);
	fixture_close(&f);
}

/* Where there is no room for it, or no way to write it, all else is served. */
Test(group, whose_directory_cannot_be_made, .timeout = 60)
{
	static const struct {
		int error;
		bool served;
	} all[] = {{EROFS, true}, {ENOSPC, true}, {EDQUOT, true}, {EIO, false}, {EPERM, false}};
	open_pool(FIXTURE_XFS);
	for (unsigned i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		sh_in_pool("rmdir %s", "groups");
		fail_call("mkdirat", "groups", 0, all[i].error);
		fixture_reopen_pools(&f);
		cr_expect_eq(pool_state(f.pool) == POOL_READY, all[i].served, "%u", i);
		if (!all[i].served)
			cr_expect_not_null(strstr(pool_why(f.pool), strerror(all[i].error)), "%s",
				pool_why(f.pool));
		if (all[i].served) {
			find_volumes();
			cr_expect_eq(make("g", NULL), ERR_NO_ROOM, "%u", i);
		}
		cr_expect(fail_no_call());
		fixture_reopen_pools(&f);
		cr_assert_eq(pool_state(f.pool), POOL_READY);
	}
	find_volumes();
	cr_assert_eq(make("g", NULL), ERR_OK);
	fixture_close(&f);
}

/* One that is lost again would quarantine members. */
Test(group, whose_directory_is_not_durable, .timeout = 60)
{
	open_pool(FIXTURE_XFS);
	/* The first one is of what lies in the pool. */
	for (int nth = 0; nth < 3; nth++) {
		sh_in_pool("rmdir %s", "groups");
		fail_call("fsync", NULL, nth, EIO);
		fixture_reopen_pools(&f);
		cr_expect_neq(pool_state(f.pool), POOL_READY, "%d", nth);
		cr_expect(fail_no_call());
		fixture_reopen_pools(&f);
		cr_assert_eq(pool_state(f.pool), POOL_READY);
	}
	fixture_close(&f);
}

/* ---- what is odd ---- */

/* There can be no groups; what names one is quarantined. */
Test(group, whose_directory_is_a_file, .timeout = 60)
{
	char id[RECORD_ID_MAX], key[RECORD_KEY_MAX];
	open_pool(FIXTURE_XFS);
	make_one(id, key);
	sh_in_pool("mv groups %s && touch groups", "elsewhere");
	fixture_reopen_pools(&f);
	cr_assert_eq(pool_state(f.pool), POOL_READY, "%s", pool_why(f.pool));
	find_volumes();
	cr_expect_null(pools_find_name(f.pools, RECORD_SNAPSHOT, key)->rec);
	cr_expect_null(pools_find_group_name(f.pools, "g"));
	cr_expect_neq(make("h", NULL), ERR_OK);
	cr_expect_eq(fixture_count(&f, "snapshots"), VOLUMES);
	sh_in_pool("rm groups && mv %s groups", "elsewhere");
	fixture_reopen_pools(&f);
	find_volumes();
	is_whole(id);
	fixture_close(&f);
}

static void make_member(const char *name, const char *group_id)
{
	struct record rec = fixture_volume(name, MIB);
	rec.kind = RECORD_SNAPSHOT;
	rec.source = RECORD_SOURCE_VOLUME;
	rec.source_id = ids[0];
	rec.group = group_id;
	cr_assert_eq(fixture_build(&f, &rec, NULL, NULL), ERR_OK);
}

Test(group, that_does_not_know_its_member, .timeout = 60)
{
	char id[RECORD_ID_MAX], key[RECORD_KEY_MAX];
	static const char *const names[] = {"stray", "alien"};
	static const char *const why[] = {
		"its group does not list it", "its record names a group that is none of this pool"};
	open_pool(FIXTURE_XFS);
	make_one(id, key);
	make_member("stray", id);
	make_member("alien", "00000000.g.00000000");
	/* Other files are in nobody's way. */
	sh_in_pool("touch groups/+other groups/+new-0123456-%s", "g");
	fixture_reopen_pools(&f);
	cr_assert_eq(pool_state(f.pool), POOL_READY, "%s", pool_why(f.pool));
	find_volumes();
	is_whole(id);
	for (unsigned i = 0; i < 2; i++) {
		const struct pool_object *o = pools_find_name(f.pools, RECORD_SNAPSHOT, names[i]);
		cr_assert_not_null(o);
		cr_expect_null(o->rec);
		cr_expect_str_eq(o->why, why[i]);
	}
	cr_expect_eq(fixture_count(&f, "groups"), 3);
	cr_expect_eq(drop(pools_find_group_name(f.pools, "g")), ERR_OK);
	cr_expect_eq(fixture_count(&f, "snapshots"), 2);
	fixture_close(&f);
}

/* ---- a deletion cut short, and a load that cannot go on with it ---- */

static void cut_short(void)
{
	char command[160], *random = pools_find_group_name(f.pools, "g")->random;
	snprintf(command, sizeof(command), "mv groups/g groups/+gone-%s-%%s", random);
	sh_in_pool(command, "g");
}

static void expect_deleted(void)
{
	cr_assert_eq(pool_state(f.pool), POOL_READY, "%s", pool_why(f.pool));
	find_volumes();
	fixture_settle(&f);
	cr_expect_null(pools_find_group_name(f.pools, "g"));
	cr_expect_eq(pool_count(f.pool, RECORD_SNAPSHOT), 0);
	cr_expect_eq(fixture_count(&f, "snapshots"), 0);
	cr_expect_eq(fixture_count(&f, "trash"), 0);
}

Test(group, whose_member_stays_when_it_is_deleted, .timeout = 60)
{
	char id[RECORD_ID_MAX], key[RECORD_KEY_MAX];
	open_pool(FIXTURE_XFS);
	for (int nth = 0; nth < VOLUMES; nth++) {
		make_one(id, key);
		cut_short();
		fail_call("renameat2", NULL, nth, EIO);
		fixture_reopen_pools(&f);
		cr_expect(fail_no_call());
		cr_expect_eq(pool_state(f.pool), POOL_SICK);
		cr_expect_not_null(strstr(pool_why(f.pool), "/groups: Input/output error"), "%s",
			pool_why(f.pool));
		/* What says that it is deleted is there as long as one of them. */
		cr_expect_eq(fixture_count(&f, "groups"), 1);
		cr_expect_eq(fixture_count(&f, "snapshots"), (unsigned)(VOLUMES - nth));
		fixture_reopen_pools(&f);
		expect_deleted();
		cr_expect_eq(fixture_count(&f, "groups"), 0);
	}
	fixture_close(&f);
}

/* Where there is not one log, the file is there until it is durable that they have gone. */
Test(group, whose_members_are_not_durably_gone, .timeout = 60)
{
	char id[RECORD_ID_MAX], key[RECORD_KEY_MAX];
	open_pool(FIXTURE_BTRFS);
	for (int nth = 0; nth < 2; nth++) {
		make_one(id, key);
		cut_short();
		fail_call("fsync", NULL, nth, EIO);
		fixture_reopen_pools(&f);
		cr_expect(fail_no_call());
		pool_trash_kick(f.pool);
		expect_deleted();
		cr_expect_eq(fixture_count(&f, "groups"), 1, "%d", nth);
		fixture_reopen_pools(&f);
		expect_deleted();
		cr_expect_eq(fixture_count(&f, "groups"), 0);
	}
	fixture_close(&f);
}

/* ---- a pool that comes back as it was once ---- */

static struct pool_group *find(const char *name, char ret_id[RECORD_ID_MAX])
{
	struct pool_group *g = pools_find_group_name(f.pools, name);
	cr_assert_not_null(g, "%s", name);
	pool_group_id(g, ret_id);
	return g;
}

Test(group, found_when_the_pool_comes_back, .timeout = 60)
{
	struct ring_sim sim = {0};
	struct pool_group *g;
	struct err err = {0};
	char same_id[RECORD_ID_MAX], once[RECORD_ID_MAX], now[RECORD_ID_MAX], gone[RECORD_ID_MAX];
	open_pool_in(FIXTURE_DIR, &sim);
	cr_assert_eq(make("same", NULL), ERR_OK);
	cr_assert_eq(make("other", NULL), ERR_OK);
	find("other", once);
	cr_assert_eq(fixture_sh("cp -a %s %s/once", f.path, f.top), 0);
	cr_assert_eq(drop(pools_find_group_name(f.pools, "other")), ERR_OK);
	fixture_settle(&f);
	cr_assert_eq(make("other", NULL), ERR_OK);
	cr_assert_eq(make("gone", NULL), ERR_OK);
	const struct pool_group *same = find("same", same_id), *other = find("other", now),
				*of_now = find("gone", gone);
	cr_assert_str_neq(once, now);
	cr_assert_eq(fixture_sh("mv %s %s/now && mv %s/once %s", f.path, f.top, f.top, f.path), 0);
	while (pool_state(f.pool) != POOL_MISSING)
		fixture_turn(&f);
	while (pool_state(f.pool) != POOL_READY)
		fixture_turn(&f);

	find_volumes();
	cr_expect_eq(pools_find_group_name(f.pools, "same"), same);
	is_whole(same_id);
	cr_expect_neq(pools_find_group_name(f.pools, "other"), other);
	is_whole(once);
	cr_expect_eq(pools_find_group(f.pools, now, &g, &err), -ENOENT);
	cr_expect_null(pools_find_group_name(f.pools, "gone"));
	cr_expect_eq(pools_find_group(f.pools, gone, &g, &err), -ENOENT);
	cr_expect_eq(f.pool->groups.count, 2);
	cr_expect_eq(pool_count(f.pool, RECORD_SNAPSHOT), 2 * VOLUMES);
	/* Whoever had them may still read them. */
	cr_expect_str_eq(other->name, "other");
	cr_expect_str_eq(of_now->name, "gone");
	cr_expect_eq(drop(pools_find_group_name(f.pools, "same")), ERR_OK);
	cr_expect_eq(drop(pools_find_group_name(f.pools, "other")), ERR_OK);
	fixture_settle(&f);
	cr_expect_eq(fixture_count(&f, "groups"), 0);
	cr_expect_eq(fixture_count(&f, "snapshots"), 0);
	fixture_close(&f);
}
