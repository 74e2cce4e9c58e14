/* SPDX-License-Identifier: Apache-2.0 */
/* Loading a pool, whose calls fail one after the other: what is said, that nothing stays open, and
 * that the next look at it loads it. In a simulated ring, whose clock does not wait. */
#include "failing_calls.h"
#include "raw_fixture.h"

#include "mount/mnt.h"
#include "pool/amend.h"
#include "pool/index.h"
#include "pool/load.h"

#include <sys/file.h>
#include <sys/statvfs.h>

FAILING_CALL(int, flock, (int fd, int operation), (fd, operation), "")
FAILING_CALL(int, futimens, (int fd, const struct timespec times[2]), (fd, times), "")
FAILING_CALL(int, syncfs, (int fd), (fd), "")
FAILING_CALL(int, fstatfs64, (int fd, struct statfs *ret), (fd, ret), "")

FAILING_CALL(int, fstatvfs64, (int fd, struct statvfs *ret), (fd, ret), "")

/* ---- what is between ---- */

int __real_open64(const char *path, int flags, ...);
int __wrap_open64(const char *path, int flags, ...);
int __wrap_open64(const char *path, int flags, ...)
{
	va_list ap;
	va_start(ap, flags);
	mode_t mode = va_arg(ap, mode_t);
	va_end(ap);
	return call_fails("open64", path) ? -1 : __real_open64(path, flags, mode);
}

int __real_ring_lane_open(struct lane **ret, struct ring *ring);
int __wrap_ring_lane_open(struct lane **ret, struct ring *ring);
int __wrap_ring_lane_open(struct lane **ret, struct ring *ring)
{
	return call_fails("ring_lane_open", "") ? -failing.error : __real_ring_lane_open(ret, ring);
}

static struct fs_features lacks; /* what is set here the file system does not have */
static unsigned read_on;         /* directories, after something has failed */

/* By the directory's name. */
int __real_fd_each_name(int dirfd, int (*each)(void *arg, const char *name), void *arg);
int __wrap_fd_each_name(int dirfd, int (*each)(void *arg, const char *name), void *arg);
int __wrap_fd_each_name(int dirfd, int (*each)(void *arg, const char *name), void *arg)
{
	char link[64], path[256] = "";
	snprintf(link, sizeof(link), "/proc/self/fd/%d", dirfd);
	ssize_t len = readlink(link, path, sizeof(path) - 1);
	cr_assert_gt(len, 0);
	const char *name = strrchr(path, '/');
	if (call_fails("fd_each_name", name == NULL ? "" : name + 1))
		return -failing.error;
	read_on += failing.hit || (lacks.tmpfile != lacks.xattr && strcmp(name, "/trash") != 0);
	return __real_fd_each_name(dirfd, each, arg);
}

int __real_fs_features_probe(int dirfd, struct fs_features *ret);
int __wrap_fs_features_probe(int dirfd, struct fs_features *ret);
int __wrap_fs_features_probe(int dirfd, struct fs_features *ret)
{
	if (call_fails("fs_features_probe", ""))
		return -failing.error;
	int r = __real_fs_features_probe(dirfd, ret);
	ret->tmpfile = ret->tmpfile && !lacks.tmpfile;
	ret->xattr = ret->xattr && !lacks.xattr;
	return r;
}

struct pool_object *__real_pool_index_insert(struct pool *pool, struct pool_found *found);
struct pool_object *__wrap_pool_index_insert(struct pool *pool, struct pool_found *found);
struct pool_object *__wrap_pool_index_insert(struct pool *pool, struct pool_found *found)
{
	return call_fails("pool_index_insert", found->key) ? NULL
							   : __real_pool_index_insert(pool, found);
}

static unsigned no_threads; /* so many times there is none */

int __real_work_submit(struct work *work, struct work_job *job);
int __wrap_work_submit(struct work *work, struct work_job *job);
int __wrap_work_submit(struct work *work, struct work_job *job)
{
	if (no_threads == 0)
		return __real_work_submit(work, job);
	no_threads--;
	return -EAGAIN;
}

static unsigned loads_cleaned;

void __real_pool_load_clean(struct pool_load *load);
void __wrap_pool_load_clean(struct pool_load *load);
void __wrap_pool_load_clean(struct pool_load *load)
{
	loads_cleaned++;
	__real_pool_load_clean(load);
}

static struct helper_call *asked; /* the last one */

int __wrap_helpers_submit(struct helpers *helpers, struct helper_call *call);
int __wrap_helpers_submit(struct helpers *helpers, struct helper_call *call)
{
	(void)helpers;
	asked = call;
	return 0;
}

/* ---- the world ---- */

static struct fixture f;
static struct ring_sim sim;

static void open_world(enum fixture_fs fs)
{
	failing.in_loop = true;
	fixture_open_in(&f, fs, &sim);
	fixture_make_volume(&f, "v", RAW_MIB);
}

static bool raw;

static void open_pools(void)
{
	if (raw)
		raw_open_pools(&f);
	else
		fixture_open_pools(&f);
}

static void expect_said(const char *said)
{
	cr_expect_not_null(
		strstr(pool_why(f.pool), said), "%s: %s: %s", failing.what, said, pool_why(f.pool));
}

/* Everything is there, and works. */
static void expect_whole(const char *what)
{
	cr_expect_eq(pool_state(f.pool), POOL_READY, "%s: %s", what, pool_why(f.pool));
	cr_expect_eq(pool_count(f.pool, RECORD_VOLUME), 1, "%s", what);
	struct pool_object *o = pools_find_name(f.pools, RECORD_VOLUME, "v");
	cr_assert_not_null(o, "%s", what);
	cr_expect(o->rec != NULL && o->image == POOL_IMAGE_WHOLE, "%s", what);
}

static unsigned close_and_count(void)
{
	unsigned fds = 0;
	fixture_close_pools(&f);
	for (int fd = 0; fd < 1024; fd++)
		fds += fcntl(fd, F_GETFD) >= 0;
	return fds;
}

/* What was loaded, while a call is to fail: the state and a part of the sentence. Afterwards the
 * next look at it finds it whole, and as many descriptors are open as before. */
static void expect_load(unsigned fds, enum pool_state state, const char *said)
{
	char what[sizeof(failing.what)];
	read_on = 0;
	open_pools();
	cr_expect_eq(read_on > 0, state == POOL_READY, "%s: %u were read", said, read_on);
	cr_expect(fail_no_call(), "%s: it was not met", said);
	strcpy(what, failing.what);
	cr_expect_eq(pool_state(f.pool), state, "%s: %s", what, pool_why(f.pool));
	expect_said(said);
	if (state != POOL_READY)
		cr_expect_eq(pool_dirfd(f.pool, RECORD_VOLUME), -1, "%s", what);
	fixture_wait_state(&f, POOL_READY);
	expect_whole(what);
	unsigned now = close_and_count();
	cr_expect_eq(now, fds, "%s: %u descriptors, %u before", what, now, fds);
}

struct load_case {
	const char *function, *name;
	int error;
	enum pool_state state;
	const char *said;
	int nth;
};

static void expect_loads(const struct load_case *cases, unsigned count)
{
	unsigned fds = close_and_count();
	for (unsigned i = 0; i < count; i++) {
		fail_call(cases[i].function, cases[i].name, cases[i].nth, cases[i].error);
		expect_load(fds, cases[i].state, cases[i].said);
	}
	open_pools();
}

/* ---- a directory pool ---- */

Test(pool_load, a_call_fails, .timeout = 60)
{
	static const struct load_case cases[] = {
		{"openat64", "ringvol.pool", EIO, POOL_SICK, "/ringvol.pool: Input/output error"},
		{"openat64", "ringvol.pool", ENOENT, POOL_MISSING, "has no ringvol.pool file"},
		{"flock", "", EIO, POOL_SICK, "/ringvol.pool: Input/output error"},
		{"mkdirat", "templates", ENOSPC, POOL_SICK, "/templates: No space left"},
		{"mkdirat", "trash", EACCES, POOL_SICK, "/trash: Permission denied"},
		{"mkdirat", "trash", EROFS, POOL_READY, ""},
		{"mkdirat", "snapshots", EIO, POOL_SICK, "/snapshots: Input/output error"},
		{"openat64", "volumes", EIO, POOL_SICK, "/volumes: Input/output error"},
		{"openat64", "copies", ENOTDIR, POOL_SICK, "/copies: Not a directory"},
		{"openat64", "departed", EIO, POOL_SICK, "/departed: Input/output error"},
		{"fd_each_name", "volumes", EIO, POOL_SICK, "/volumes: Input/output error"},
		{"fd_each_name", "snapshots", EIO, POOL_SICK, "/snapshots: Input/output error"},
		{"fd_each_name", "departed", EIO, POOL_SICK, "/departed: Input/output error"},
		{"fd_each_name", "groups", EIO, POOL_SICK, "/groups: Input/output error"},
		/* What is copied, and what is deleted, keep no pool away. */
		{"fd_each_name", "copies", EIO, POOL_READY, ""},
		{"fd_each_name", "trash", EIO, POOL_READY, ""},
		{"openat64", "v", EMFILE, POOL_SICK, "/volumes: Too many open files"},
		{"openat64", "v", ENFILE, POOL_SICK, "/volumes: Too many open files in system"},
		{"futimens", "", EIO, POOL_SICK, "/ringvol.pool: Input/output error"},
		{"fsync", "", EIO, POOL_SICK, "/ringvol.pool: Input/output error"},
		{"fs_features_probe", "", EIO, POOL_SICK, ": Input/output error"},
		{"pool_index_insert", "v", ENOMEM, POOL_SICK, "out of memory while loading it"},
	};
	open_world(FIXTURE_XFS);
	expect_loads(cases, sizeof(cases) / sizeof(cases[0]));
	fixture_close(&f);
}

Test(pool_load, where_there_is_not_one_log, .timeout = 60)
{
	static const struct load_case cases[] = {
		{"syncfs", "", EIO, POOL_SICK, "/ringvol.pool: Input/output error"},
	};
	open_world(FIXTURE_NO_JOURNAL);
	expect_loads(cases, 1);
	fixture_close(&f);
}

/* Each of them asks for something that is needed. */
Test(pool_load, a_file_system_does_not_answer, .timeout = 60)
{
	unsigned count = 0;
	open_world(FIXTURE_XFS);
	unsigned fds = close_and_count();
	for (;; count++) {
		fail_call("fstatfs64", "", (int)count, EIO);
		read_on = 0;
		fixture_open_pools(&f);
		if (!fail_no_call())
			break;
		cr_expect_eq(read_on, 0, "%u", count);
		cr_expect_eq(pool_state(f.pool), POOL_SICK, "%u", count);
		expect_said(": Input/output error");
		fixture_wait_state(&f, POOL_READY);
		expect_whole("fstatfs64");
		cr_expect_eq(close_and_count(), fds, "%u", count);
	}
	cr_expect_geq(count, 2);
	fixture_close(&f);
}

/* An object whose file cannot be opened keeps its name, and nobody touches it. */
Test(pool_load, a_file_cannot_be_opened, .timeout = 60)
{
	open_world(FIXTURE_XFS);
	fixture_close_pools(&f);
	fail_call("openat64", "v", 0, EIO);
	fixture_open_pools(&f);
	cr_expect(fail_no_call());
	cr_expect_eq(pool_state(f.pool), POOL_READY, "%s", pool_why(f.pool));
	struct pool_object *o = pools_find_name(f.pools, RECORD_VOLUME, "v");
	cr_assert_not_null(o);
	cr_expect_null(o->rec);
	cr_expect_str_eq(o->why, "its record cannot be read");
	cr_expect_eq(fixture_remove(&f, o), ERR_DATA_LOSS);
	struct pool_amend a;
	pool_amend_init(&a, &f.reactor, o, &(struct pool_amendment){0});
	cr_expect_eq(fixture_run(&f, &a.op), ERR_DATA_LOSS);
	cr_expect_not_null(
		strstr(a.op.err.message, "v in pool p is quarantined: its record cannot be read"),
		"%s", a.op.err.message);
	fixture_reopen_pools(&f);
	expect_whole("reopened");
	fixture_close(&f);
}

/* A full file system cannot be asked what it can do: until it is asked again, nothing is made. */
Test(pool_load, a_full_file_system, .timeout = 60)
{
	static const int errors[] = {ENOSPC, EDQUOT};
	open_world(FIXTURE_XFS);
	for (unsigned i = 0; i < 2; i++) {
		fixture_close_pools(&f);
		fail_call("fs_features_probe", "", 0, errors[i]);
		fixture_open_pools(&f);
		cr_expect(fail_no_call());
		expect_whole("full");
		cr_expect_not(f.pool->probed);
		cr_expect(pool_features(f.pool)->tmpfile && pool_features(f.pool)->xattr);
		struct record rec = fixture_volume("w", RAW_MIB);
		cr_expect_eq(fixture_build(&f, &rec, NULL, NULL), ERR_NO_ROOM);
		while (!f.pool->probed)
			fixture_turn(&f);
		expect_whole("asked again");
		struct pool_object *o = fixture_make_volume(&f, "w", RAW_MIB);
		cr_expect_eq(fixture_remove(&f, o), ERR_OK);
		fixture_settle(&f);
	}
	fixture_close(&f);
}

Test(pool_load, a_file_system_that_can_hold_none, .timeout = 60)
{
	open_world(FIXTURE_XFS);
	for (unsigned i = 0; i < 2; i++) {
		unsigned fds = close_and_count();
		lacks = (struct fs_features){.tmpfile = i == 0, .xattr = i == 1};
		read_on = 0;
		fixture_open_pools(&f);
		cr_expect_eq(read_on, 0);
		cr_expect_eq(pool_state(f.pool), POOL_SICK);
		expect_said(i == 0 ? "has no O_TMPFILE, a pool needs it"
				   : "has no trusted.* attributes, a pool needs it");
		cr_expect_eq(close_and_count(), fds);
		lacks = (struct fs_features){0};
		fixture_open_pools(&f);
		expect_whole("mended");
	}
	fixture_close(&f);
}

/* What an earlier run was building cannot be moved away. */
static void check_parked(void)
{
	static const struct {
		int error;
		enum pool_state state;
		unsigned trash;
	} cases[] = {{EIO, POOL_SICK, 1}, {EROFS, POOL_READY, 1}, {EEXIST, POOL_READY, 1}};
	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		fixture_close_pools(&f);
		cr_assert_eq(fixture_sh("touch %s/trash/new-0123456789abcdef", f.path), 0);
		fail_call("renameat2", "0123456789abcdef", 0, cases[i].error);
		read_on = 0;
		open_pools();
		cr_expect_eq(read_on > 0, cases[i].state == POOL_READY);
		cr_expect_eq(pool_state(f.pool), cases[i].state, "%s", pool_why(f.pool));
		expect_said(cases[i].state == POOL_SICK ? "/trash: Input/output error" : "");
		cr_expect_eq(fixture_count(&f, "trash"), cases[i].trash);
		cr_expect(fail_no_call());
		fixture_close_pools(&f);
		open_pools();
		expect_whole("reopened");
		fixture_settle(&f);
		cr_expect_eq(fixture_count(&f, "trash"), 0);
	}
	fixture_close(&f);
}

Test(pool_load, what_was_being_built_stays, .timeout = 60)
{
	open_world(FIXTURE_XFS);
	check_parked();
}

/* ---- a raw pool ---- */

static void open_raw_world(void)
{
	failing.in_loop = raw = true;
	raw_make(&f, 16);
	fixture_open_ring(&f, &sim);
	raw_open_pools(&f);
	raw_make_volume(&f, "v", 4);
	raw_root.unready = true;
}

/* There nothing is made again but thin/, which older ones do not have. */
Test(pool_load, a_call_on_a_raw_pool_fails, .timeout = 60)
{
	static const struct load_case cases[] = {
		{"mkdirat", "thin", EIO, POOL_SICK, "/thin: Input/output error"},
		{"mkdirat", "thin", EROFS, POOL_READY, ""},
		{"openat64", "thin", EIO, POOL_SICK, "/thin: Input/output error"},
		{"openat64", "thin", ENOENT, POOL_READY, ""},
		{"openat64", "templates", ENOENT, POOL_SICK, "/templates: No such file"},
		{"fd_each_name", "templates", EIO, POOL_SICK, "/templates: Input/output error"},
		{"fd_each_name", "templates", EIO, POOL_SICK,
			"pool p: reading the maps: Input/output error", 1},
		{"openat64", "ringvol.pool", EIO, POOL_SICK, "/ringvol.pool: Input/output error"},
		{"pool_index_insert", "v", ENOMEM, POOL_SICK, "out of memory while loading it"},
	};
	open_raw_world();
	expect_loads(cases, sizeof(cases) / sizeof(cases[0]));
	fixture_close(&f);
}

Test(pool_load, what_was_being_built_in_a_raw_pool_stays, .timeout = 60)
{
	open_raw_world();
	check_parked();
}

Test(pool_load, records_of_a_raw_pool_that_are_not_its, .timeout = 60)
{
	static const char other[] = "ringvol-pool 1\nuuid=6a2b0000-0000-4000-8000-00000000001b\n";
	char path[160];
	open_raw_world();
	snprintf(path, sizeof(path), "%s/ringvol.pool", f.path);
	for (unsigned i = 0; i < 2; i++) {
		unsigned fds = close_and_count();
		cr_assert_eq(fixture_sh("mv %s %s/mine", path, f.top), 0);
		int fd = i == 0 ? -1 : open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
		cr_assert(i == 0 || write(fd, other, sizeof(other) - 1) == sizeof(other) - 1);
		fd_close(&fd);
		raw_open_pools(&f);
		cr_expect_eq(pool_state(f.pool), POOL_SICK);
		expect_said(
			i == 0 ? "have no ringvol.pool file, they are damaged"
			       : "holds the records of another pool (6a2b0000 instead of 5f1e0000)");
		cr_expect_eq(fixture_sh("mv %s/mine %s", f.top, path), 0);
		fixture_wait_state(&f, POOL_READY);
		expect_whole("mended");
		cr_expect_eq(close_and_count(), fds);
		raw_open_pools(&f);
	}
	fixture_close(&f);
}

/* ---- looks at a pool that is loaded ---- */

struct look_case {
	const char *function, *name;
	int error;
	enum pool_state state;
	const char *said;
};

/* The next look fails, and the one after it does not. Nothing of it is loaded anew but what has
 * gone. */
static void expect_look(const struct look_case *c)
{
	const struct pool_object *o = pools_find_name(f.pools, RECORD_VOLUME, "v");
	fail_call(c->function, c->name, 0, c->error);
	fixture_wait_state(&f, c->state);
	cr_expect(fail_no_call(), "%s", c->said);
	expect_said(c->said);
	cr_expect_eq(pool_answers(f.pool), c->state == POOL_MISSING, "%s", c->said);
	fixture_wait_state(&f, POOL_READY);
	expect_whole(failing.what);
	cr_expect(pool_answers(f.pool));
	cr_expect_eq(pools_find_name(f.pools, RECORD_VOLUME, "v"), o);
}

Test(pool_load, a_look_fails, .timeout = 60)
{
	open_world(FIXTURE_XFS);
	fixture_settle(&f);
	unsigned fds = fixture_count_fds(&f);
	const struct look_case cases[] = {
		{"open64", f.path, EIO, POOL_SICK, "fail: Input/output error"},
		{"open64", f.path, ENOENT, POOL_MISSING, "has gone from"},
		{"openat64", "ringvol.pool", EIO, POOL_SICK, "fail: Input/output error"},
		{"openat64", "ringvol.pool", ELOOP, POOL_MISSING, "has gone from"},
		{"fstatvfs64", "", EIO, POOL_SICK, "fail: Input/output error"},
	};
	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		expect_look(&cases[i]);
	cr_expect_eq(fixture_count_fds(&f), fds);
	/* One that could not be asked yet what its file system can do. */
	f.pool->probed = false;
	expect_look(&(struct look_case){
		"fs_features_probe", "", EIO, POOL_SICK, "fail: Input/output error"});
	cr_expect(f.pool->probed);
	fixture_close(&f);
}

Test(pool_load, a_look_at_a_raw_pool_fails, .timeout = 60)
{
	static const struct look_case cases[] = {
		{"openat64", "ringvol.pool", EIO, POOL_MISSING, "has lost its records"},
		{"openat64", "ringvol.pool", EACCES, POOL_SICK, "fail: Permission denied"},
		{"fstatvfs64", "", EIO, POOL_SICK, "fail: Input/output error"},
	};
	open_raw_world();
	fixture_settle(&f);
	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		expect_look(&cases[i]);
	fixture_close(&f);
}

/* ---- a pool that comes back as it was once ---- */

/* As another driver has left it meanwhile. */
Test(pool_load, comes_back_changed, .timeout = 60)
{
	open_world(FIXTURE_DIR);
	struct pool_object *v = pools_find_name(f.pools, RECORD_VOLUME, "v");
	fixture_settle(&f);
	cr_assert_eq(fixture_sh("cp -a %s %s/once", f.path, f.top), 0);
	struct pool_amend a;
	pool_amend_init(&a, &f.reactor, v, &(struct pool_amendment){.limits = {.read_iops = 100}});
	cr_assert_eq(fixture_run(&f, &a.op), ERR_OK);
	const struct record *amended = v->rec;
	cr_assert_eq(amended->limits.read_iops, 100);
	struct pool_object *used = fixture_make_volume(&f, "used", RAW_MIB);
	struct pool_object *idle = fixture_make_volume(&f, "idle", RAW_MIB);
	used->node = &f;
	cr_assert_eq(fixture_sh("mv %s %s/now && mv %s/once %s", f.path, f.top, f.top, f.path), 0);
	fixture_wait_state(&f, POOL_MISSING);
	fixture_wait_state(&f, POOL_READY);

	cr_expect_eq(pools_find_name(f.pools, RECORD_VOLUME, "v"), v);
	cr_expect_eq(v->rec->limits.read_iops, 0);
	cr_expect_eq(v->image, POOL_IMAGE_WHOLE);
	cr_expect_eq(amended->limits.read_iops, 100); /* whoever had it may still read it */
	cr_expect_eq(pools_find_name(f.pools, RECORD_VOLUME, "used"), used);
	cr_expect_eq(used->image, POOL_IMAGE_MISSING);
	cr_expect_null(pools_find_name(f.pools, RECORD_VOLUME, "idle"));
	cr_expect_str_eq(idle->key, "idle");
	cr_expect_eq(fixture_room(&f).provisioned_bytes, 2 * RAW_MIB);
	used->node = NULL;
	fixture_close(&f);
}

/* ---- opening and closing ---- */

Test(pool_load, waits_for_a_thread, .timeout = 60)
{
	open_world(FIXTURE_DIR);
	fixture_close_pools(&f);
	no_threads = 3;
	fixture_open_pools(&f);
	cr_expect_eq(no_threads, 0);
	expect_whole("waited");
	fixture_close(&f);
}

static struct pools *start_pools(void)
{
	struct pools *pools;
	struct pool_config config = {.name = "p", .path = f.path};
	cr_assert_eq(pools_open(&pools, &f.reactor, &config, 1), 0);
	pools_start(pools, fixture_on_loaded, fixture_on_changed, &f);
	return pools;
}

/* Before a thread has begun with it. */
Test(pool_load, is_given_up_when_it_waits_for_a_thread, .timeout = 60)
{
	open_world(FIXTURE_DIR);
	unsigned fds = close_and_count();
	no_threads = UINT32_MAX;
	loads_cleaned = 0;
	struct pools *pools = start_pools();
	no_threads = 0;
	cr_expect_not(pools_idle(pools));
	pools_drain(pools);
	cr_expect(pools_idle(pools));
	cr_expect_eq(loads_cleaned, 1);
	pools_close(pools);
	fixture_open_pools(&f);
	expect_whole("opened again");
	cr_expect_eq(close_and_count(), fds);
	fixture_close(&f);
}

/* As at the end of a driver whose pool hangs: the load goes on, and lets go of what it has. */
Test(pool_load, goes_on_when_the_pools_are_closed, .timeout = 60)
{
	open_world(FIXTURE_DIR);
	unsigned fds = close_and_count();
	loads_cleaned = 0;
	pools_close(start_pools());
	cr_expect_eq(loads_cleaned, 0);
	while (loads_cleaned == 0)
		fixture_turn(&f);
	fixture_open_pools(&f);
	expect_whole("opened again");
	cr_expect_eq(close_and_count(), fds);
	fixture_close(&f);
}

/* A look goes on with the numbers it has: they stay open, and are nobody else's. */
Test(pool_load, a_look_goes_on_when_the_pools_are_closed, .timeout = 60)
{
	open_world(FIXTURE_DIR);
	int fds[POOL_FDS];
	fixture_settle(&f);
	while (f.pool->task == NULL)
		fixture_turn(&f);
	memcpy(fds, f.pool->fds, sizeof(fds));
	loads_cleaned = 0;
	pools_close(f.pools);
	f.pools = NULL;
	cr_expect_eq(loads_cleaned, 0);
	for (unsigned i = 0; i < POOL_FDS; i++)
		cr_expect_geq(fcntl(fds[i], F_GETFD), 0, "%u", i);
	while (loads_cleaned == 0)
		fixture_turn(&f);
	for (unsigned i = 0; i < POOL_FDS; i++)
		fd_close(&fds[i]);
	fixture_close(&f);
}

/* ---- whether its path answers ---- */

/* A helper process asks for it. */
static void answer(int res)
{
	while (asked == NULL)
		fixture_turn(&f);
	struct helper_call *call = asked;
	asked = NULL;
	*(struct mnt_info *)call->resp = (struct mnt_info){.total_bytes = 1000, .avail_bytes = 123};
	call->on_end(call, res);
}

static unsigned open_asking(void)
{
	open_world(FIXTURE_DIR);
	unsigned fds = close_and_count();
	f.reactor.helpers = (struct helpers *)&f;
	f.pools = start_pools();
	f.pool = pools_at(f.pools, 0);
	return fds;
}

Test(pool_load, a_path_that_does_not_answer_is_asked_again, .timeout = 60)
{
	unsigned fds = open_asking();
	answer(-ETIMEDOUT);
	cr_expect_eq(pool_state(f.pool), POOL_SICK);
	expect_said("does not answer: look for errors of its disk in the kernel log");
	answer(-ETIMEDOUT);
	answer(0);
	fixture_wait_state(&f, POOL_READY);
	expect_whole("answered");
	/* Also once it is loaded; what it has stays. */
	answer(-ETIMEDOUT);
	cr_expect_eq(pool_state(f.pool), POOL_SICK);
	cr_expect_eq(pool_count(f.pool, RECORD_VOLUME), 1);
	/* No helper could say how full it is; and one can. */
	answer(-EPIPE);
	fixture_wait_state(&f, POOL_READY);
	cr_expect_neq(pool_usage(f.pool)->capacity_bytes, 1000);
	answer(0);
	cr_expect_eq(pool_usage(f.pool)->capacity_bytes, 1000);
	cr_expect_eq(pool_usage(f.pool)->free_bytes, 123);
	expect_whole("answered again");
	cr_expect_eq(close_and_count(), fds);
	fixture_close(&f);
}

/* Nobody overwrites anything on a disk that hangs: who waits for it is told why. */
Test(pool_load, who_waits_for_room_is_told_that_it_does_not_answer, .timeout = 60)
{
	static struct pool_raw part;
	unsigned fds = open_asking();
	answer(0);
	fixture_wait_state(&f, POOL_READY);
	list_init(&part.waiting);
	raw_waiter_start(&f, &part);
	while (asked == NULL)
		fixture_turn(&f);
	f.pool->raw = &part;
	answer(-ETIMEDOUT);
	f.pool->raw = NULL;
	cr_expect(list_empty(&part.waiting));
	raw_waiter_end(&f);
	answer(0);
	fixture_wait_state(&f, POOL_READY);
	cr_expect_eq(close_and_count(), fds);
	fixture_close(&f);
}

/* Nothing is begun then. */
Test(pool_load, a_path_that_answers_when_the_driver_shuts_down, .timeout = 60)
{
	static const int answers[] = {0, -ETIMEDOUT};
	for (unsigned closed = 0; closed < 2; closed++)
		for (unsigned i = 0; i < 2; i++) {
			unsigned fds = open_asking();
			loads_cleaned = 0;
			if (closed)
				pools_close(f.pools);
			else
				pools_drain(f.pools);
			cr_expect_eq(loads_cleaned, 0);
			answer(answers[i]);
			cr_expect_eq(loads_cleaned, 1);
			if (!closed) {
				cr_expect(pools_idle(f.pools));
				cr_expect_eq(pool_state(f.pool) == POOL_SICK, answers[i] < 0);
				pools_close(f.pools);
			}
			f.pools = NULL;
			f.reactor.helpers = NULL;
			fixture_open_pools(&f);
			expect_whole("opened again");
			cr_expect_eq(close_and_count(), fds);
			fixture_close(&f);
		}
}

Test(pool_load, pools_that_cannot_be_opened)
{
	struct pool_config configs[POOLS_MAX + 1];
	struct pools *pools = NULL;
	open_world(FIXTURE_DIR);
	for (unsigned i = 0; i <= POOLS_MAX; i++)
		configs[i] = (struct pool_config){.name = "p", .path = f.path};
	cr_expect_eq(pools_open(&pools, &f.reactor, configs, POOLS_MAX + 1), -E2BIG);
	for (int nth = 0; nth < 3; nth++) {
		fail_call("ring_lane_open", "", nth, ENOMEM);
		cr_expect_eq(pools_open(&pools, &f.reactor, configs, 2), -ENOMEM);
		cr_expect(fail_no_call());
	}
	cr_expect_null(pools);
	pools_close(NULL);
	fixture_close(&f);
}
