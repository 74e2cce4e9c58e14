/* SPDX-License-Identifier: Apache-2.0 */
/* Groups of snapshots in a pool: their file, their making and deletion, and what a load makes of
 * what a crash left. */
#include "pool_fixture.h"

#include "pool/group_file.h"
#include "pool/group_make.h"
#include "pool/group_remove.h"
#include "pool/group_sync.h"
#include "pool/index.h"
#include "pool/record_text.h"

#include <criterion/criterion.h>

enum { MIB = 1 << 20, VOLUMES = 3 };

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

static struct fixture f;
static struct pool_object *volumes[VOLUMES];
static char ids[VOLUMES][RECORD_ID_MAX];

static void write_byte(const char *sub, const char *key, char c)
{
	char path[256];
	snprintf(path, sizeof(path), "%s/%s/%s", f.path, sub, key);
	_cleanup_fd_ int fd = open(path, O_RDWR | O_CLOEXEC);
	cr_assert_eq(pwrite(fd, &c, 1, 4096), 1);
}

static char read_byte(const char *sub, const char *key)
{
	char path[256], c = '?';
	snprintf(path, sizeof(path), "%s/%s/%s", f.path, sub, key);
	_cleanup_fd_ int fd = open(path, O_RDONLY | O_CLOEXEC);
	cr_assert_eq(pread(fd, &c, 1, 4096), 1);
	return c;
}

static void find_volumes(void)
{
	for (unsigned i = 0; i < VOLUMES; i++) {
		char name[8];
		snprintf(name, sizeof(name), "v%u", i);
		volumes[i] = pools_find_name(f.pools, RECORD_VOLUME, name);
		cr_assert_not_null(volumes[i]);
		pool_object_id(volumes[i], ids[i]);
	}
}

static void open_pool(enum fixture_fs fs)
{
	fixture_open(&f, fs);
	for (unsigned i = 0; i < VOLUMES; i++) {
		char name[8];
		snprintf(name, sizeof(name), "v%u", i);
		fixture_make_volume(&f, name, MIB);
		write_byte("volumes", name, (char)('a' + i));
	}
	find_volumes();
}

static enum err_code make(const char *name, struct pool_group **ret)
{
	struct pool_group_make m;
	struct pool_group_part parts[VOLUMES];
	for (unsigned i = 0; i < VOLUMES; i++)
		parts[i] = (struct pool_group_part){
			.source = volumes[i], .share = pool_features(f.pool)->reflink};
	cr_assert_eq(pool_group_make_init(&m, &f.reactor, f.pool, name, "ns/g", parts, VOLUMES), 0);
	enum err_code code = fixture_run(&f, &m.op);
	if (ret != NULL)
		*ret = m.ret_group;
	if (code != ERR_OK)
		fprintf(stderr, "make: %s: %s\n", m.op.err.step, m.op.err.message);
	pool_group_make_free(&m);
	return code;
}

static enum err_code drop(struct pool_group *group)
{
	struct pool_group_remove r;
	pool_group_remove_init(&r, &f.reactor, group);
	enum err_code code = fixture_run(&f, &r.op);
	if (code != ERR_OK)
		fprintf(stderr, "remove: %s: %s\n", r.op.err.step, r.op.err.message);
	pool_group_remove_free(&r);
	return code;
}

static void is_whole(const char *id)
{
	struct pool_group *g = NULL;
	struct err err = {0};
	const char *why;
	cr_assert_eq(pools_find_group(f.pools, id, &g, &err), 0, "%s", err.message);
	cr_assert_eq(pool_group_check(g, &err), 0, "%s", err.message);
	cr_assert_eq(g->count, VOLUMES);
	for (unsigned i = 0; i < VOLUMES; i++) {
		struct pool_object *o = pool_group_member(g, i, &why);
		cr_assert_str_eq(o->rec->group, id);
		cr_assert_str_eq(o->rec->source_id, ids[i]);
		cr_assert_str_eq(o->rec->claim, "ns/g");
		cr_assert_eq(o->rec->created_ns, g->created_ns);
		cr_assert_eq(read_byte("snapshots", o->key), 'a' + (char)i);
	}
}

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

static void sh_in_pool(const char *fmt, const char *what)
{
	char command[160];
	snprintf(command, sizeof(command), fmt, what);
	cr_assert_eq(fixture_sh("cd %s && %s", f.path, command), 0, "%s", command);
}

static void make_one(char ret_id[RECORD_ID_MAX], char ret_key[RECORD_KEY_MAX])
{
	struct pool_group *g = NULL;
	const char *why;
	cr_assert_eq(make("g", &g), ERR_OK);
	pool_group_id(g, ret_id);
	strcpy(ret_key, pool_group_member(g, 1, &why)->key);
}

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

static int mkdir_errno, fsync_fails = -1; /* 0: none; the nth fsync from now on, -1: none */

int __real_mkdirat(int dirfd, const char *name, mode_t mode);
int __wrap_mkdirat(int dirfd, const char *name, mode_t mode);
int __wrap_mkdirat(int dirfd, const char *name, mode_t mode)
{
	if (mkdir_errno == 0 || strcmp(name, "groups") != 0)
		return __real_mkdirat(dirfd, name, mode);
	errno = mkdir_errno;
	return -1;
}

int __real_fsync(int fd);
int __wrap_fsync(int fd);
int __wrap_fsync(int fd)
{
	struct stat st, root;
	char groups[128];
	snprintf(groups, sizeof(groups), "%s/groups", f.path);
	bool its = fstat(fd, &st) == 0 &&
		   ((stat(groups, &root) == 0 && root.st_ino == st.st_ino) ||
			   (stat(f.path, &root) == 0 && root.st_ino == st.st_ino));
	if (!its || fsync_fails < 0 || fsync_fails-- > 0)
		return __real_fsync(fd);
	errno = EIO;
	return -1;
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
		mkdir_errno = all[i].error;
		fixture_reopen_pools(&f);
		cr_expect_eq(pool_state(f.pool) == POOL_READY, all[i].served, "%u", i);
		if (!all[i].served)
			cr_expect_not_null(strstr(pool_why(f.pool), strerror(all[i].error)), "%s",
				pool_why(f.pool));
		if (all[i].served) {
			find_volumes();
			cr_expect_eq(make("g", NULL), ERR_NO_ROOM, "%u", i);
		}
		mkdir_errno = 0;
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
	for (int nth = 0; nth < 2; nth++) {
		sh_in_pool("rmdir %s", "groups");
		fsync_fails = nth;
		fixture_reopen_pools(&f);
		cr_expect_neq(pool_state(f.pool), POOL_READY, "%d", nth);
		cr_expect_eq(fsync_fails, -1);
		fsync_fails = -1;
		fixture_reopen_pools(&f);
		cr_assert_eq(pool_state(f.pool), POOL_READY);
	}
	fixture_close(&f);
}

/* ---- what fails leaves nothing ---- */

struct fault {
	const char *op_name;
	int left;
	bool calls, hit;
	char at[64];
};

static int fault_now(struct fault *fault, bool call, const char *op_name, const char *step_name)
{
	bool of_remove = strcmp(fault->op_name, "group_remove") == 0;
	if ((strcmp(op_name, fault->op_name) != 0 &&
		    !(of_remove && strcmp(op_name, "group_sync") == 0)) ||
		call != fault->calls || fault->hit || fault->left-- > 0)
		return 0;
	fault->hit = true;
	snprintf(fault->at, sizeof(fault->at), "%s", step_name);
	return -EIO;
}

static int fault_step(void *arg, const char *op_name, const char *step_name)
{
	return fault_now(arg, false, op_name, step_name);
}

static int fault_call(void *arg, const char *op_name, const char *step_name)
{
	return fault_now(arg, true, op_name, step_name);
}

static bool make_fails(struct fault *fault, unsigned fds)
{
	enum err_code code = make("g", NULL);
	struct pool_group *g = pools_find_group_name(f.pools, "g");
	cr_assert_eq(code != ERR_OK, fault->hit, "%s", fault->at);
	cr_assert_eq(fixture_count(&f, "snapshots"), g != NULL ? VOLUMES : 0, "%s", fault->at);
	cr_assert_eq(fixture_count(&f, "groups"), g != NULL, "%s", fault->at);
	cr_assert_eq(fixture_count_fds(&f), fds, "%s", fault->at);
	bool hit = fault->hit;
	fault->hit = true;
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
	enum err_code code = drop(g);
	cr_assert_eq(code != ERR_OK, fault->hit, "%s", fault->at);
	bool hit = fault->hit;
	fault->hit = true;
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
	struct fault fault = {"", 0, false, true, ""};
	open_pool(fs);
	f.observer = (struct op_observer){
		.before = fault_step, .before_call = fault_call, .arg = &fault};
	for (unsigned what = 0; what < 4; what++)
		for (int n = 0;; n++, count++) {
			bool removing = what >= 2;
			unsigned fds = fixture_count_fds(&f);
			fault = (struct fault){removing ? "group_remove" : "pool_group", n,
				what % 2 == 1, false, ""};
			if (!(removing ? remove_fails(&fault) : make_fails(&fault, fds)))
				break;
		}
	cr_assert_geq(count, at_least, "%u", count);
	f.observer = (struct op_observer){0};
	fixture_close(&f);
}

Test(group, fails_anywhere_on_xfs, .timeout = 120)
{
	fails_anywhere(FIXTURE_XFS, 20);
}

Test(group, fails_anywhere_on_btrfs, .timeout = 120)
{
	fails_anywhere(FIXTURE_BTRFS, 25);
}

Test(group, fails_anywhere_where_it_is_copied, .timeout = 120)
{
	fails_anywhere(FIXTURE_EXT4, 20);
}
