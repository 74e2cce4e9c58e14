/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Groups of snapshots in a raw pool, over a dm-thin in memory, with each step, then each request
 * and job failed in turn, and the pool as a crash there leaves it loaded again. There is the whole
 * group or nothing of it, each id that dm-thin knows has a file, and no device stays suspended.
 */
#include "../unit/failing_calls.h"
#include "thin_world.h"

#include "disk/mapped.h"
#include "pool/group_make.h"
#include "pool/group_remove.h"
#include "pool/group_sync.h"

enum { VOLUMES = 3, FORMATTED = 2 };

static const char *const names[VOLUMES] = {"a", "b", "secret"};

/* Two with bytes, and one that was never staged. */
static void make_volumes(struct fixture *f)
{
	for (unsigned i = 0; i < VOLUMES; i++) {
		struct record rec = thin_volume(names[i], 6);
		if (i >= FORMATTED) {
			rec.encryption = RECORD_LUKS2;
			rec.unformatted = true;
		}
		cr_assert_eq(build(f, &rec, NULL), ERR_OK);
	}
}

static enum err_code make(struct fixture *f, const char *name)
{
	struct pool_group_make m;
	struct pool_group_part parts[VOLUMES];
	for (unsigned i = 0; i < VOLUMES; i++)
		parts[i] = (struct pool_group_part){
			.source = find(f, names[i]), .share = i < FORMATTED};
	cr_assert_eq(pool_group_make_init(&m, &f->reactor, f->pool, name, "", parts, VOLUMES), 0);
	enum err_code code = fixture_run(f, &m.op);
	if (code != ERR_OK)
		fprintf(stderr, "make: %s: %s\n", m.op.err.step, m.op.err.message);
	pool_group_make_free(&m);
	return code;
}

static enum err_code drop(struct fixture *f, const char *name)
{
	struct pool_group_remove r;
	pool_group_remove_init(&r, &f->reactor, pools_find_group_name(f->pools, name));
	enum err_code code = fixture_run(f, &r.op);
	pool_group_remove_free(&r);
	return code;
}

static void is_whole(struct fixture *f, const char *name)
{
	struct err err = {0};
	struct pool_group *g = pools_find_group_name(f->pools, name);
	cr_assert_not_null(g);
	cr_assert_eq(pool_group_check(g, &err), 0, "%s: %s", fault.what, err.message);
	cr_assert_eq(g->count, VOLUMES);
	for (unsigned i = 0; i < VOLUMES; i++) {
		const char *why;
		struct pool_object *o = pool_group_member(g, i, &why);
		uint32_t id = pool_entry(o)->thin_id;
		cr_assert_eq(id != 0, i < FORMATTED);
		cr_assert_eq(o->rec->unformatted, i >= FORMATTED);
		cr_assert_eq(o->rec->shares_extents, i < FORMATTED);
		cr_assert(id == 0 || fake_thin_has(id));
	}
}

/* ---- devices ---- */

static struct dm dm = {.fd = -1, .call = fake_dm_call};

static void tag_of(const struct pool_object *o, char ret[64])
{
	snprintf(ret, 64, "ringvol:%.8s:%s", RAW_POOL_UUID, o->rec->random);
}

static void attach(struct fixture *f, const char *name)
{
	char tag[64], path[64];
	struct mapped mapped;
	struct err err = {0};
	const struct pool_object *o = find(f, name);
	snprintf(path, sizeof(path), "volumes/%s", name);
	struct image_map map = raw_map(f, path);
	tag_of(o, tag);
	const struct mapped_spec spec = {.tag = tag,
		.image_ino = o->image_ino,
		.disk = f->pool->raw->disk,
		.map = &map,
		.size_bytes = 6 * RAW_MIB};
	cr_assert_eq(mapped_make(&dm, &spec, &mapped, &err), 0, "%s", err.message);
}

static void detach(struct fixture *f, const char *name)
{
	char tag[64];
	bool waits;
	struct err err = {0};
	const struct pool_object *o = find(f, name);
	tag_of(o, tag);
	cr_assert_eq(mapped_remove(&dm, tag, o->image_ino, &waits, &err), 0, "%s", err.message);
}

static void none_suspended(void)
{
	for (unsigned i = 0; i < FAKE_DM_DEVICES; i++)
		cr_assert_not(fake_dm_devices[i].suspended, "%s: %s", fault.what,
			fake_dm_devices[i].name);
	cr_assert_eq(fake_thin_torn, 0);
	cr_assert_eq(fake_thin_moving, 0);
}

/* ---- what fails leaves nothing ---- */

static void rests(struct fixture *f, unsigned files)
{
	fixture_settle(f);
	check_files(f);
	cr_assert_eq(fixture_count(f, "trash"), 0, "%s", fault.what);
	cr_assert_eq(
		f->pool->raw->thin.files, files, "%s: %u", fault.what, f->pool->raw->thin.files);
	cr_assert_eq(fake_thin_count, files, "%s", fault.what);
	cr_assert(f->pool->reserved_bytes == 0 && f->pool->ops == 0, "%s", fault.what);
	none_suspended();
}

enum fault_kind {
	STEPS,
	REQUESTS, /* and jobs */
	SYSTEM_CALLS,
	FAULT_KINDS
};

/* False: nothing met the fault. */
static bool try_make(struct fixture *f, enum fault_kind kind, int n)
{
	unsigned fds = count_fds(f), files = f->pool->raw->thin.files;
	if (kind == SYSTEM_CALLS)
		fail_call(NULL, NULL, n, EIO);
	else
		arm("pool_group", kind == REQUESTS, n);
	enum err_code code = make(f, "g");
	bool hit = disarm();
	hit = fail_no_call() || hit;
	if (kind == SYSTEM_CALLS)
		snprintf(fault.what, sizeof(fault.what), "%s", failing.what);
	cr_assert(!hit || code != ERR_OK || kind != SYSTEM_CALLS, "%s", fault.what);
	cr_assert(hit || code == ERR_OK, "%s", fault.what);
	check_files(f);
	none_suspended();
	sweep_trash(f);
	if (pools_find_group_name(f->pools, "g") == NULL) {
		cr_assert_neq(code, ERR_OK);
		cr_assert_eq(fixture_count(f, "snapshots"), 0, "%s", fault.what);
		rests(f, files);
		cr_assert_eq(count_fds(f), fds, "%s", fault.what);
		cr_assert_eq(make(f, "g"), ERR_OK, "%s", fault.what);
	}
	is_whole(f, "g");
	cr_assert_eq(drop(f, "g"), ERR_OK, "%s", fault.what);
	sweep_trash(f);
	cr_assert_eq(fixture_count(f, "snapshots"), 0, "%s", fault.what);
	rests(f, files);
	return hit;
}

Test(thin_groups, fail_anywhere, .timeout = 250)
{
	struct fixture f;
	struct ring_sim sim;
	open_sim(&f, &sim, 1);
	make_volumes(&f);
	failing.in_loop = true;
	for (unsigned attached = 0; attached < 2; attached++) {
		for (unsigned i = 0; attached && i < FORMATTED; i++)
			attach(&f, names[i]);
		fake_thin_moving = 0;
		for (unsigned kind = 0; kind < FAULT_KINDS; kind++) {
			int n = 0;
			while (try_make(&f, (enum fault_kind)kind, n))
				n++;
			cr_assert_geq(n, 8);
		}
	}
	for (unsigned i = 0; i < FORMATTED; i++)
		detach(&f, names[i]);
	fixture_close(&f);
	bytes_drop();
}

/* Each call of the kernel's in turn, at every volume. */
Test(thin_groups, dm_refuses, .timeout = 100)
{
	static const struct {
		unsigned long request;
		int error;
		enum err_code code;
	} all[] = {
		{DM_DEV_SUSPEND, -EBUSY, ERR_PRECONDITION},
		{DM_TARGET_MSG, -EOPNOTSUPP, ERR_UNAVAILABLE},
		{DM_TARGET_MSG, -EEXIST, ERR_UNAVAILABLE},
		{DM_TARGET_MSG, -ENODATA, ERR_DATA_LOSS},
		{DM_TARGET_MSG, -EIO, ERR_INTERNAL},
	};
	struct fixture f;
	struct ring_sim sim;
	open_sim(&f, &sim, 2);
	make_volumes(&f);
	for (unsigned i = 0; i < FORMATTED; i++)
		attach(&f, names[i]);
	fake_thin_moving = 0;
	for (unsigned i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		fake_dm_fail_request = all[i].request;
		fake_dm_fail_with = all[i].error;
		enum err_code code = make(&f, "g");
		cr_assert_eq(code, all[i].code, "%u: %d", i, code);
		cr_assert_null(pools_find_group_name(f.pools, "g"));
		sweep_trash(&f);
		rests(&f, FORMATTED);
		cr_assert_eq(fixture_count(&f, "snapshots"), 0, "%u", i);
	}
	cr_assert_eq(make(&f, "g"), ERR_OK);
	is_whole(&f, "g");
	/* Thick ones share nothing there. */
	cr_assert_eq(drop(&f, "g"), ERR_OK);
	for (unsigned i = 0; i < FORMATTED; i++)
		detach(&f, names[i]);
	remove_named(&f, "a");
	raw_make_volume(&f, "a", 4);
	cr_assert_eq(make(&f, "g"), ERR_PRECONDITION);
	cr_assert_eq(f.pool->ops, 0);
	fixture_close(&f);
	bytes_drop();
}

/* Of what has no bytes yet dm-thin is told nothing: it need not be active for that. */
Test(thin_groups, of_what_has_no_bytes, .timeout = 100)
{
	struct fixture f;
	struct ring_sim sim;
	struct pool_group_make m;
	open_sim(&f, &sim, 2);
	struct record rec = thin_volume("secret", 6);
	rec.encryption = RECORD_LUKS2;
	rec.unformatted = true;
	cr_assert_eq(build(&f, &rec, NULL), ERR_OK);
	struct pool_group_part part = {.source = find(&f, "secret")};
	cr_assert_eq(pool_group_make_init(&m, &f.reactor, f.pool, "g", "", &part, 1), 0);
	cr_assert_eq(fixture_run(&f, &m.op), ERR_OK, "%s", m.op.err.message);
	pool_group_make_free(&m);
	cr_assert_not_null(pools_find_group_name(f.pools, "g"));
	cr_assert_eq(f.pool->raw->thin.life, THIN_NONE);
	fixture_close(&f);
	bytes_drop();
}

/* ---- whatever is cut short, a load finds all of it or nothing ---- */

static struct {
	struct fixture *f;
	const char *op_name;
	int left;
	bool hit;
	char at[64];
	struct fake_thin thins[FAKE_THIN_IDS];
	unsigned thin_count;
} crash;

/* What a driver that is killed now leaves: a copy of the records, and what dm-thin knows. */
static void crash_now(const char *op_name, const char *step_name)
{
	if (strcmp(op_name, crash.op_name) != 0 || crash.hit || crash.left-- > 0)
		return;
	crash.hit = true;
	snprintf(crash.at, sizeof(crash.at), "%s/%s", op_name, step_name);
	cr_assert_eq(fixture_sh("rm -rf %s/copy && cp -a %s %s/copy", crash.f->top, crash.f->path,
			     crash.f->top),
		0);
	memcpy(crash.thins, fake_thins, sizeof(fake_thins));
	crash.thin_count = fake_thin_count;
}

static int before(void *arg, const char *op_name, const char *step_name)
{
	(void)arg;
	crash_now(op_name, step_name);
	return 0;
}

static void after(void *arg, const char *op_name, const char *step_name, uint64_t ns)
{
	(void)arg;
	(void)ns;
	crash_now(op_name, step_name);
}

/* Whether the group is there, whole. The pool that it was copied from is closed meanwhile. */
static bool load_copy(struct fixture *f)
{
	struct fixture copy = *f;
	struct fake_thin thins[FAKE_THIN_IDS];
	unsigned thin_count = fake_thin_count;
	memcpy(thins, fake_thins, sizeof(thins));
	memcpy(fake_thins, crash.thins, sizeof(fake_thins));
	fake_thin_count = crash.thin_count;
	snprintf(copy.path, sizeof(copy.path), "%s/copy", f->top);
	snprintf(raw_root.records, sizeof(raw_root.records), "%s", copy.path);
	/* The metadata have no device here that thin_check could look at. */
	char metadata[300];
	snprintf(metadata, sizeof(metadata), "%s/thin/metadata", copy.path);
	(void)removexattr(metadata, THIN_ACTIVE_XATTR);
	raw_open_pools(&copy);
	sweep_trash(&copy);
	bool there = pools_find_group_name(copy.pools, "g") != NULL;
	if (there)
		is_whole(&copy, "g");
	cr_assert_eq(fixture_count(&copy, "snapshots"), there ? VOLUMES : 0, "%s", crash.at);
	cr_assert_eq(fixture_count(&copy, "trash"), 0, "%s", crash.at);
	check_files(&copy);
	cr_assert_eq(fake_thin_count, there ? 2 * FORMATTED : FORMATTED, "%s", crash.at);
	fixture_close_pools(&copy);
	snprintf(raw_root.records, sizeof(raw_root.records), "%s", f->path);
	memcpy(fake_thins, thins, sizeof(thins));
	fake_thin_count = thin_count;
	return there;
}

static bool crash_at(struct fixture *f, bool removing, int n)
{
	crash.f = f;
	crash.op_name = removing ? "" : "pool_group";
	crash.left = n;
	crash.hit = false;
	cr_assert_eq(make(f, "g"), ERR_OK);
	if (removing) {
		crash.op_name = "group_remove";
		crash.left = n;
	}
	cr_assert_eq(drop(f, "g"), ERR_OK);
	sweep_trash(f);
	return crash.hit;
}

Test(thin_groups, are_there_or_not_after_a_crash, .timeout = 250)
{
	struct fixture f;
	struct ring_sim sim;
	unsigned with = 0, count = 0;
	open_sim(&f, &sim, 3);
	make_volumes(&f);
	for (unsigned removing = 0; removing < 2; removing++)
		for (int n = 0;; n++) {
			f.observer = (struct op_observer){.before = before, .after = after};
			bool hit = crash_at(&f, removing == 1, n);
			f.observer = (struct op_observer){0};
			if (!hit)
				break;
			fixture_close_pools(&f);
			with += load_copy(&f);
			count++;
			raw_open_pools(&f);
			sweep_trash(&f);
			rests(&f, FORMATTED);
		}
	cr_assert_geq(count, 25);
	cr_assert_gt(with, 4);
	cr_assert_lt(with, count - 10);
	fixture_close(&f);
	bytes_drop();
}
