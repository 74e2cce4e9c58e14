/* SPDX-License-Identifier: Apache-2.0 */
/* Holds, parts, attachments and new images of unformatted volumes, whose calls and requests fail
 * one after the other: nothing is left, and the next attempt succeeds. */
#include "failing_calls.h"
#include "raw_fixture.h"

#include "pool/amend.h"
#include "pool/attach.h"
#include "pool/grow.h"
#include "pool/hold_file.h"
#include "pool/hold_make.h"
#include "pool/index.h"
#include "pool/part.h"
#include "pool/renew.h"

#include <sys/xattr.h>

FAILING_CALL(int, fremovexattr, (int fd, const char *name), (fd, name), name)
FAILING_CALL(int, flock, (int fd, int operation), (fd, operation), "")
FAILING_CALL(int, fstatat64, (int dir, const char *name, struct stat64 *ret, int flags),
	(dir, name, ret, flags), name)
FAILING_CALL(ssize_t, fgetxattr, (int fd, const char *name, void *value, size_t size),
	(fd, name, value, size), name)

static struct fixture f;

static int request_fails(void *arg, uint64_t nth, const struct io_uring_sqe *sqe)
{
	(void)arg;
	(void)nth;
	(void)sqe;
	return call_fails("request", "") ? -failing.error : 0;
}

static struct ring_sim sim = {.fault = request_fails};

static void open_world(enum fixture_fs fs)
{
	failing.in_loop = true;
	fixture_open_in(&f, fs, &sim);
}

static struct pool_object *find(const char *name)
{
	struct pool_object *o = pools_find_name(f.pools, RECORD_VOLUME, name);
	cr_assert_not_null(o);
	return o;
}

/* Whether one failed, which is what the operation's error says. */
static bool ran_into(const struct op *op)
{
	bool hit = fail_no_call();
	cr_assert_eq(op->err.code != ERR_OK, hit, "%s: %s", failing.what, op->err.message);
	if (hit)
		cr_expect_not_null(strstr(op->err.message, strerror(EIO)), "%s: %s", failing.what,
			op->err.message);
	return hit;
}

static void expect_idle(unsigned fds)
{
	pool_trash_kick(f.pool);
	unsigned now = fixture_count_fds(&f);
	cr_expect_eq(now, fds, "%s: %u, %u before", failing.what, now, fds);
	cr_expect_eq(f.pool->ops, 0, "%s", failing.what);
	cr_expect_eq(f.pool->reserved_bytes, 0, "%s", failing.what);
	cr_expect_eq(fixture_count(&f, "trash"), 0, "%s", failing.what);
}

/* ---- holds ---- */

static enum err_code hold_with(struct pool_hold_make *m, const char *volume_name)
{
	static char id[RECORD_ID_MAX];
	struct pool_object *o = find("v");
	pool_object_id(o, id);
	pool_hold_make_init(m, &f.reactor, o, pool_features(f.pool)->reflink);
	m->node_id = "node-2";
	m->volume_name = volume_name;
	m->source_id = id;
	return fixture_run(&f, &m->op);
}

static void expect_no_hold(unsigned fds)
{
	expect_idle(fds);
	cr_expect_null(pool_hold_next(f.pool, NULL), "%s", failing.what);
	cr_expect(f.pool->hold_count == 0 && f.pool->holds_making == 0, "%s", failing.what);
	cr_expect_eq(fixture_count(&f, "copies"), 0, "%s", failing.what);
}

static void check_holds(enum fixture_fs fs, unsigned at_least)
{
	unsigned count = 0;
	open_world(fs);
	fixture_make_volume(&f, "v", RAW_MIB);
	unsigned fds = fixture_count_fds(&f);
	for (bool hit = true; hit; count += hit) {
		struct pool_hold_make m;
		fail_call(NULL, NULL, (int)count, EIO);
		hold_with(&m, "copy");
		hit = ran_into(&m.op);
		pool_hold_make_free(&m);
		if (hit)
			expect_no_hold(fds);
	}
	cr_expect_geq(count, at_least, "%u", count);
	cr_expect_eq(f.pool->hold_count, 1);
	pool_hold_drop(pool_hold_next(f.pool, NULL));
	expect_no_hold(fds);
	fixture_close(&f);
}

Test(pool_calls, a_hold_by_reflink, .timeout = 60)
{
	check_holds(FIXTURE_XFS, 10);
}

Test(pool_calls, a_hold_by_copy, .timeout = 60)
{
	check_holds(FIXTURE_EXT4, 10);
}

/* Who is told of a hold finds it after a power loss. */
Test(pool_calls, a_hold_is_durable_before_anybody_is_told, .timeout = 60)
{
	/* Its bytes, what says for whom before that has a name, and then both and their names. */
	enum { SYNCS = 4 };
	struct pool_hold_make m;
	open_world(FIXTURE_XFS);
	fixture_make_volume(&f, "v", RAW_MIB);
	unsigned fds = fixture_count_fds(&f);
	for (int nth = 0; nth < SYNCS; nth++) {
		fail_call("fsync", NULL, nth, EIO);
		cr_expect_neq(hold_with(&m, "copy"), ERR_OK, "%d", nth);
		cr_expect(ran_into(&m.op), "%d", nth);
		pool_hold_make_free(&m);
		expect_no_hold(fds);
	}
	fail_call("fsync", NULL, SYNCS, EIO);
	cr_expect_eq(hold_with(&m, "copy"), ERR_OK);
	cr_expect_not(fail_no_call());
	pool_hold_make_free(&m);
	fixture_close(&f);
}

Test(pool_calls, a_hold_that_is_refused, .timeout = 60)
{
	char name[4096];
	struct pool_hold_make m;
	open_world(FIXTURE_XFS);
	struct pool_object *v = fixture_make_volume(&f, "v", RAW_MIB);
	unsigned fds = fixture_count_fds(&f);
	v->image = POOL_IMAGE_TRUNCATED;
	cr_expect_eq(hold_with(&m, "copy"), ERR_DATA_LOSS);
	cr_expect_not_null(
		strstr(m.op.err.message, "v in pool p cannot be copied: its image is not whole"),
		"%s", m.op.err.message);
	pool_hold_make_free(&m);
	expect_no_hold(fds);
	v->image = POOL_IMAGE_WHOLE;
	memset(name, 'a', sizeof(name));
	name[sizeof(name) - 1] = '\0';
	cr_expect_neq(hold_with(&m, name), ERR_OK);
	cr_expect_not_null(strstr(m.op.err.message, "granting a copy of v: Invalid argument"), "%s",
		m.op.err.message);
	pool_hold_make_free(&m);
	expect_no_hold(fds);
	cr_expect_eq(hold_with(&m, "copy"), ERR_OK);
	pool_hold_make_free(&m);
	fixture_close(&f);
}

/* A volume in use is held still for no longer than it takes to share its extents. */
Test(pool_calls, a_hold_of_what_is_held_briefly, .timeout = 60)
{
	char id[RECORD_ID_MAX];
	open_world(FIXTURE_EXT4);
	struct pool_object *v = fixture_make_volume(&f, "v", RAW_MIB);
	unsigned fds = fixture_count_fds(&f);
	pool_object_id(v, id);
	struct pool_hold_make m;
	pool_hold_make_init(&m, &f.reactor, v, true);
	m.node_id = "node-2";
	m.volume_name = "copy";
	m.source_id = id;
	m.held_briefly = true;
	cr_expect_eq(fixture_run(&f, &m.op), ERR_PRECONDITION);
	cr_expect_not_null(
		strstr(m.op.err.message, "refuses to share its extents"), "%s", m.op.err.message);
	pool_hold_make_free(&m);
	expect_no_hold(fds);
	fixture_close(&f);
}

static int open_held(bool direct)
{
	return pool_hold_open(pool_holds_fd(f.pool), pool_hold_next(f.pool, NULL)->name, direct);
}

static void make_hold(enum fixture_fs fs)
{
	struct pool_hold_make m;
	open_world(fs);
	fixture_make_volume(&f, "v", RAW_MIB);
	cr_assert_eq(hold_with(&m, "copy"), ERR_OK);
	pool_hold_make_free(&m);
}

/* A read of it waits for its disk, and of what is no file there is none. */
Test(pool_calls, what_is_held_is_opened, .timeout = 60)
{
	make_hold(FIXTURE_XFS);
	unsigned fds = fixture_count_fds(&f);
	for (int direct = 0; direct < 2; direct++) {
		int fd = open_held(direct);
		cr_assert_geq(fd, 0);
		cr_expect_eq(fcntl(fd, F_GETFL) & O_NONBLOCK, 0);
		cr_expect_eq((fcntl(fd, F_GETFL) & O_DIRECT) != 0, direct);
		close(fd);
	}
	cr_assert_eq(
		fixture_sh("cd %s/copies && rm %s && mkdir %s", f.path,
			pool_hold_next(f.pool, NULL)->name, pool_hold_next(f.pool, NULL)->name),
		0);
	cr_expect_eq(open_held(false), -EMEDIUMTYPE);
	cr_expect_eq(fixture_count_fds(&f), fds);
	fixture_close(&f);
}

/* What was sent is not sent to another one: also not where a restart cannot tell. */
Test(pool_calls, what_was_sent_is_known_after_a_restart, .timeout = 60)
{
	make_hold(FIXTURE_XFS);
	int fd = open_held(false);
	fail_call("fsync", NULL, 0, EIO);
	cr_expect_eq(pool_hold_note_sent(fd), -EIO);
	cr_expect(fail_no_call());
	cr_assert_eq(fremovexattr(fd, "trusted.ringvol.sent"), 0);
	fixture_reopen_pools(&f);
	cr_expect_not(pool_hold_next(f.pool, NULL)->sent);
	fixture_close_pools(&f);
	fail_call("fgetxattr", "trusted.ringvol.sent", 0, EIO);
	fixture_open_pools(&f);
	cr_expect(fail_no_call());
	cr_expect(pool_hold_next(f.pool, NULL)->sent);
	cr_assert_eq(pool_hold_note_sent(fd), 0);
	close(fd);
	fixture_reopen_pools(&f);
	cr_expect(pool_hold_next(f.pool, NULL)->sent);
	fixture_close(&f);
}

/* Nor is one taken away of which nobody can tell whether it is granted. */
Test(pool_calls, a_hold_in_doubt_stays, .timeout = 60)
{
	char grant[HOLD_FILE_BYTES];
	make_hold(FIXTURE_XFS);
	hold_grant_name(pool_hold_next(f.pool, NULL)->name, grant);
	static const int errors[] = {EIO, ENOENT};
	for (unsigned i = 0; i < 2; i++) {
		fixture_close_pools(&f);
		fail_call("openat64", grant, 0, errors[i]);
		fixture_open_pools(&f);
		cr_expect(fail_no_call());
		cr_expect_null(pool_hold_next(f.pool, NULL));
		fixture_settle(&f);
		cr_expect_eq(fixture_count(&f, "copies"), 2);
	}
	fixture_close_pools(&f);
	fail_call("fstatat64", grant, 0, EIO);
	fixture_open_pools(&f);
	cr_expect(fail_no_call());
	cr_expect_eq(f.pool->hold_count, 1);
	fixture_settle(&f);
	cr_expect_eq(fixture_count(&f, "copies"), 2);
	fixture_close(&f);
}

/* Each once. */
Test(pool_calls, holds_when_the_pool_comes_back, .timeout = 60)
{
	struct pool_hold_make m;
	make_hold(FIXTURE_DIR);
	struct pool_hold *first = pool_hold_next(f.pool, NULL);
	fixture_settle(&f);
	cr_assert_eq(fixture_sh("mv %s %s/away", f.path, f.top), 0);
	fixture_wait_state(&f, POOL_MISSING);
	cr_expect_eq(hold_with(&m, "another"), ERR_UNAVAILABLE);
	pool_hold_make_free(&m);
	cr_assert_eq(fixture_sh("mv %s/away %s", f.top, f.path), 0);
	fixture_wait_state(&f, POOL_READY);
	fixture_settle(&f);
	cr_expect_eq(f.pool->hold_count, 1);
	cr_expect_eq(pool_hold_next(f.pool, NULL), first);
	cr_expect_null(pool_hold_next(f.pool, first));
	cr_expect_eq(fixture_count(&f, "copies"), 2);
	fixture_close(&f);
}

/* ---- the trash of a raw pool ---- */

/* Its bytes are free when no map has them after a power loss. */
Test(pool_calls, what_is_not_durably_cut_is_not_free, .timeout = 60)
{
	/* Of its file as it is, of its zeros, and as it is cut. */
	enum { SYNCS = 3 };
	failing.in_loop = true;
	raw_make(&f, 64);
	fixture_open_ring(&f, &sim);
	raw_open_pools(&f);
	for (int nth = 0; nth <= SYNCS; nth++) {
		cr_assert_eq(fixture_remove(&f, raw_make_volume(&f, "v", 8)), ERR_OK);
		fail_call("fsync", NULL, nth, EIO);
		fixture_settle(&f);
		bool hit = fail_no_call();
		cr_expect_eq(hit, nth < SYNCS, "%d", nth);
		cr_expect_eq(raw_free_mib(&f), hit ? 56 : 64, "%d", nth);
		cr_expect_eq(fixture_count(&f, "trash"), hit, "%d", nth);
		pool_trash_kick(f.pool);
		fixture_settle(&f);
		cr_expect_eq(raw_free_mib(&f), 64, "%d", nth);
		cr_expect_eq(fixture_count(&f, "trash"), 0, "%d", nth);
	}
	fixture_close(&f);
}

/* The map, the image and the record, each before what needs it. The map stays once it is durable.
 */
Test(pool_calls, what_grows_in_a_raw_pool_is_durable, .timeout = 60)
{
	static const int nths[] = {0, 1, 1, 2};
	failing.in_loop = true;
	raw_make(&f, 64);
	fixture_open_ring(&f, &sim);
	raw_open_pools(&f);
	struct pool_object *o = raw_make_volume(&f, "v", 8);
	fixture_settle(&f);
	for (unsigned i = 0; i < 4; i++) {
		struct pool_grow g;
		pool_grow_init(&g, &f.reactor, o, 16 * RAW_MIB);
		fail_call("fsync", NULL, nths[i], EIO);
		fixture_run(&f, &g.op);
		cr_expect_eq(ran_into(&g.op), i < 3, "%u", i);
		cr_expect_eq(o->rec->size_bytes, (i < 3 ? 8 : 16) * RAW_MIB, "%u", i);
		struct image_map map = raw_map(&f, "volumes/v");
		uint64_t has = image_map_bytes(&map) / RAW_MIB;
		cr_expect_eq(has, i == 0 ? 8 : 16, "%u", i);
		cr_expect_eq(raw_free_mib(&f) + has, 64, "%u", i);
	}
	fixture_close(&f);
}

/* ---- attachments ---- */

/* What the image says of them is what memory says. */
static void expect_attached(const char *node)
{
	char path[160], text[1024];
	struct attachments *a = NULL;
	snprintf(path, sizeof(path), "%s/volumes/v", f.path);
	ssize_t len = getxattr(path, ATTACHMENTS_XATTR, text, sizeof(text));
	if (len >= 0)
		cr_assert_eq(attachments_parse(text, (size_t)len, &a), 0);
	const struct attachments *all[] = {a, find("v")->attachments};
	for (unsigned i = 0; i < 2; i++) {
		cr_expect_eq(all[i] == NULL, node == NULL, "%u: %s", i, failing.what);
		if (node != NULL && all[i] != NULL)
			cr_expect_not_null(
				attachments_find(all[i], node), "%u: %s", i, failing.what);
	}
	attachments_free(a);
}

/* NULL: to none. */
static enum err_code attach(const char *node, int nth, int error)
{
	struct attachment one = {.node = node, .mode = ATTACHMENT_WRITER, .export = "", .key = ""};
	struct pool_attach *a = pool_attach_new(
		&f.reactor, find("v"), node == NULL ? NULL : attachments_with(NULL, &one));
	cr_assert_not_null(a);
	fail_call(NULL, NULL, nth, error);
	enum err_code code = fixture_run(&f, &a->op);
	if (error == EIO)
		ran_into(&a->op);
	else if (fail_no_call())
		cr_expect_not_null(strstr(a->op.err.message, "has no room for one more note"), "%s",
			a->op.err.message);
	pool_attach_free(a);
	return code;
}

Test(pool_calls, attachments, .timeout = 60)
{
	static const char *const nodes[] = {"node-1", "node-2", NULL, "node-3"};
	open_world(FIXTURE_XFS);
	fixture_make_volume(&f, "v", RAW_MIB);
	unsigned fds = fixture_count_fds(&f);
	const char *before = NULL;
	for (unsigned i = 0; i < sizeof(nodes) / sizeof(nodes[0]); before = nodes[i++]) {
		int nth = 0;
		for (; attach(nodes[i], nth, EIO) != ERR_OK; nth++) {
			expect_attached(before);
			expect_idle(fds);
		}
		cr_expect_eq(nth, 3, "%d", nth);
		expect_attached(nodes[i]);
		expect_idle(fds);
	}
	cr_expect_eq(attach("node-4", 1, ENOSPC), ERR_NO_ROOM);
	f.pool->life = POOL_READ_ONLY;
	cr_expect_eq(attach("node-4", 9, ENOSPC), ERR_UNAVAILABLE);
	f.pool->life = POOL_SERVED;
	expect_idle(fds);
	expect_attached("node-3");
	fixture_reopen_pools(&f);
	expect_attached("node-3");
	/* Somebody has taken the note away: what is to be gone is. */
	char path[160];
	snprintf(path, sizeof(path), "%s/volumes/v", f.path);
	cr_assert_eq(removexattr(path, ATTACHMENTS_XATTR), 0);
	cr_expect_eq(attach(NULL, 9, EIO), ERR_OK);
	expect_attached(NULL);
	fixture_close(&f);
}

/* ---- parts ---- */

static int open_part(int dir, const char *of, struct pool_part *part, int *ret_fd)
{
	uint64_t allocated;
	*part = (struct pool_part){0};
	strcpy(part->of, of);
	*ret_fd = -1;
	int r = pool_part_open(dir, "part-v", part, RAW_MIB, 0, ret_fd, &allocated);
	cr_assert_eq(r == 0, *ret_fd >= 0);
	return r;
}

Test(pool_calls, parts, .timeout = 60)
{
	struct pool_part part;
	char path[160], key[RECORD_KEY_MAX];
	bool finished;
	int fd, nth;
	open_world(FIXTURE_XFS);
	snprintf(path, sizeof(path), "%s/another", f.path);
	cr_assert_eq(mkdir(path, 0700), 0);
	int dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	unsigned fds = fixture_count_fds(&f);
	/* Made: one that does not say what it is made of is none. */
	static const char *const made[] = {"openat64", "flock", "fsetxattr"};
	for (unsigned i = 0; i < 3; i++) {
		fail_call(made[i], NULL, 0, EIO);
		cr_expect_eq(open_part(dir, "a", &part, &fd), -EIO, "%s", made[i]);
		cr_expect(fail_no_call());
		cr_expect_eq(fixture_count(&f, "another"), 0, "%s", made[i]);
	}
	cr_assert_eq(open_part(dir, "89abcdef.v.01234567 a", &part, &fd), 0);
	cr_assert_eq(pool_part_note(fd, &part, RAW_MIB, 4096), 0);
	close(fd);
	/* Taken up, or not, and then it stays as it is. */
	static const char *const taken[] = {"openat64", "flock", "unlinkat"};
	for (unsigned i = 0; i < 3; i++) {
		fail_call(taken[i], NULL, 0, EIO);
		cr_expect_eq(open_part(dir, i < 2 ? "89abcdef.v.01234567 a" : "b", &part, &fd),
			-EIO, "%s", taken[i]);
		cr_expect(fail_no_call());
		cr_assert_eq(open_part(dir, "89abcdef.v.01234567 a", &part, &fd), 0);
		cr_expect_eq(part.from_bytes, 4096, "%s", taken[i]);
		close(fd);
	}
	fail_call("ftruncate64", NULL, 0, EIO);
	cr_assert_eq(open_part(dir, "89abcdef.v.01234567 a", &part, &fd), 0);
	cr_expect(fail_no_call() && part.from_bytes == 0); /* it is begun anew */
	close(fd);
	fail_call("openat64", "part-v", 0, EIO);
	cr_expect_eq(pool_part_find(dir, "89abcdef", "01234567", key, &finished), -EIO);
	fail_call("openat64", "part-v", 0, ENOENT);
	cr_expect_eq(pool_part_find(dir, "89abcdef", "01234567", key, &finished), 0);
	cr_expect(fail_no_call());
	cr_expect_eq(pool_part_find(dir, "89abcdef", "01234567", key, &finished), 1);
	/* Finished: only when all of it is durable. */
	cr_assert_eq(open_part(dir, "89abcdef.v.01234567 a", &part, &fd), 0);
	struct record rec = fixture_volume("v", RAW_MIB);
	rec.mkfs_options = rec.source_id = rec.family = rec.claim = "";
	for (nth = 0; nth < 5; nth++) {
		fail_call(NULL, NULL, nth, EIO);
		cr_expect_eq(pool_part_finish(dir, fd, &rec, "x", 1), -EIO, "%s", failing.what);
		cr_expect(fail_no_call());
		cr_expect_eq(pool_part_fd_is_finished(fd), nth > 2, "%s", failing.what);
	}
	cr_expect_eq(pool_part_finish(dir, fd, &rec, "x", 1), 0);
	fail_call("fremovexattr", NULL, 0, EIO);
	cr_expect_eq(pool_part_unfinish(fd), -EIO);
	cr_expect(fail_no_call() && pool_part_fd_is_finished(fd));
	fail_call("fsync", NULL, 0, EIO);
	cr_expect_eq(pool_part_unfinish(fd), -EIO);
	cr_expect_eq(pool_part_finish(dir, fd, &rec, "x", 1), 0);
	for (nth = 0; nth < 2; nth++) {
		fail_call("fremovexattr", NULL, nth, EIO);
		cr_expect_eq(pool_part_forget(fd), -EIO);
		cr_expect(fail_no_call());
	}
	cr_expect_eq(pool_part_forget(fd), 0);
	cr_expect_eq(pool_part_find(dir, "89abcdef", "01234567", key, &finished), 0);
	close(fd);
	cr_expect_eq(fixture_count_fds(&f), fds);
	close(dir);
	fixture_close(&f);
}

/* ---- another record ---- */

static ssize_t record_text_of(const char *name, char text[RECORD_BYTES_MAX])
{
	char path[160];
	snprintf(path, sizeof(path), "%s/volumes/%s", f.path, name);
	ssize_t len = getxattr(path, RECORD_XATTR, text, RECORD_BYTES_MAX);
	cr_assert_gt(len, 0);
	return len;
}

Test(pool_calls, an_amendment, .timeout = 60)
{
	static char before[RECORD_BYTES_MAX], now[RECORD_BYTES_MAX];
	open_world(FIXTURE_XFS);
	struct pool_object *v = fixture_make_volume(&f, "v", RAW_MIB);
	unsigned fds = fixture_count_fds(&f);
	ssize_t len = record_text_of("v", before);
	const struct record *was = v->rec;
	int nth = 0;
	for (bool hit = true; hit; nth += hit) {
		struct pool_amend a;
		pool_amend_init(
			&a, &f.reactor, v, &(struct pool_amendment){.limits = {.read_iops = 7}});
		fail_call(NULL, NULL, nth, EIO);
		fixture_run(&f, &a.op);
		hit = ran_into(&a.op);
		cr_expect_eq(a.fd, -1);
		expect_idle(fds);
		ssize_t now_len = record_text_of("v", now);
		cr_expect_eq(
			now_len == len && memcmp(before, now, (size_t)len) == 0, hit, "%d", nth);
		cr_expect_eq(v->rec == was, hit, "%d", nth);
	}
	cr_expect_geq(nth, 3, "%d", nth);
	cr_expect_eq(v->rec->limits.read_iops, 7);
	fixture_reopen_pools(&f);
	cr_expect_eq(find("v")->rec->limits.read_iops, 7);
	fixture_close(&f);
}

/* ---- the new image of an unformatted volume ---- */

static struct pool_renew renew;

static struct pool_object *make_unformatted(void)
{
	struct record rec = fixture_volume("v", 4 * RAW_MIB);
	struct pool_object *o = NULL;
	struct attachment one = {
		.node = "node-1", .mode = ATTACHMENT_WRITER, .export = "", .key = ""};
	rec.fs = FSIMG_EXT4;
	rec.encryption = RECORD_LUKS2;
	rec.unformatted = true;
	rec.thick = f.pool->raw != NULL;
	rec.device = f.pool->raw != NULL ? RECORD_DEVICE_MAX : 0;
	rec.mkfs_options = rec.source_id = rec.family = "";
	rec.claim = "shop/data";
	cr_assert_eq(fixture_build(&f, &rec, NULL, &o), ERR_OK);
	struct pool_attach *a = pool_attach_new(&f.reactor, o, attachments_with(NULL, &one));
	cr_assert_eq(fixture_run(&f, &a->op), ERR_OK);
	pool_attach_free(a);
	return o;
}

static void drop_new_image(void)
{
	pool_renew_drop_init(&renew, &f.reactor);
	cr_assert_eq(fixture_run(&f, &renew.op), ERR_OK);
	pool_renew_free(&renew);
}

static bool make_fails(struct pool_object *o, int nth, unsigned fds)
{
	pool_renew_make_init(&renew, &f.reactor, o);
	fail_call(NULL, NULL, nth, EIO);
	fixture_run(&f, &renew.op);
	bool hit = ran_into(&renew.op);
	if (hit)
		pool_renew_free(&renew);
	else
		drop_new_image();
	expect_idle(fds);
	cr_expect(o->rec->unformatted);
	if (f.pool->raw != NULL)
		cr_expect_eq(raw_free_mib(&f), 64, "%s: %d", failing.what, (int)raw_free_mib(&f));
	return hit;
}

/* The image is the old one or the new one, and the record in memory is that of the image. */
static bool commit_fails(struct pool_object *o, int nth, unsigned fds)
{
	pool_renew_make_init(&renew, &f.reactor, o);
	cr_assert_eq(fixture_run(&f, &renew.op), ERR_OK);
	pool_renew_commit_init(&renew, &f.reactor);
	fail_call("openat64", NULL, nth, EIO);
	failing.function = nth == 0 ? "openat64" : nth == 1 ? "renameat2" : "request";
	failing.name = nth == 1 ? "v" : NULL;
	failing.left = nth < 2 ? 0 : nth - 2;
	fixture_run(&f, &renew.op);
	bool hit = ran_into(&renew.op), committed = renew.committed;
	cr_expect_eq(o->rec->unformatted, !committed, "%s", failing.what);
	cr_expect_eq(o->unsynced, committed && hit, "%s", failing.what);
	if (committed)
		pool_renew_free(&renew);
	else
		drop_new_image();
	if (committed && hit) { /* what stays parked goes with the next load */
		raw_reopen_pools(&f);
		o = find("v");
	}
	expect_idle(fds);
	expect_attached("node-1");
	cr_expect_eq(o->rec->unformatted, !committed, "%s", failing.what);
	cr_expect_str_eq(o->rec->claim, "shop/data");
	return hit;
}

Test(pool_calls, a_new_image, .timeout = 60)
{
	open_world(FIXTURE_XFS);
	unsigned fds = fixture_count_fds(&f);
	struct pool_object *o = make_unformatted();
	int nth = 0;
	while (make_fails(o, nth, fds))
		nth++;
	cr_expect_geq(nth, 5, "%d", nth);
	fixture_close(&f);
}

Test(pool_calls, a_new_image_in_a_raw_pool, .timeout = 60)
{
	failing.in_loop = true;
	raw_make(&f, 64);
	fixture_open_ring(&f, &sim);
	raw_open_pools(&f);
	unsigned fds = fixture_count_fds(&f);
	struct pool_object *o = make_unformatted();
	int nth = 0;
	while (make_fails(o, nth, fds))
		nth++;
	cr_expect_geq(nth, 6, "%d", nth);
	for (nth = 0; commit_fails(find("v"), nth, fds); nth++)
		if (!find("v")->rec->unformatted) {
			cr_assert_eq(fixture_remove(&f, find("v")), ERR_OK);
			fixture_settle(&f);
			make_unformatted();
		}
	cr_expect_geq(nth, 4, "%d", nth);
	fixture_close(&f);
}

static void make_new_image(struct pool_object *o)
{
	pool_renew_make_init(&renew, &f.reactor, o);
	cr_assert_eq(fixture_run(&f, &renew.op), ERR_OK);
	pool_renew_commit_init(&renew, &f.reactor);
}

/* A device that was just cleared lives on for a moment. */
Test(pool_calls, a_new_image_that_is_still_in_use, .timeout = 60)
{
	char path[256];
	open_world(FIXTURE_XFS);
	unsigned fds = fixture_count_fds(&f);
	struct pool_object *o = make_unformatted();
	make_new_image(o);
	snprintf(path, sizeof(path), "%s/trash/%s", f.path, renew.name);
	int user = open(path, O_RDONLY | O_CLOEXEC);
	cr_assert_geq(user, 0);
	cr_expect_eq(fixture_run(&f, &renew.op), ERR_PRECONDITION);
	cr_expect_not_null(
		strstr(renew.op.err.message, "a device that it was formatted through is still"),
		"%s", renew.op.err.message);
	close(user);
	drop_new_image();
	expect_idle(fds);
	/* Something else has its name. */
	make_new_image(o);
	cr_assert_eq(
		fixture_sh("cd %s/trash && cp -a %s x && mv x %s", f.path, renew.name, renew.name),
		0);
	fixture_run(&f, &renew.op);
	cr_expect_not_null(
		strstr(renew.op.err.message, strerror(ESTALE)), "%s", renew.op.err.message);
	drop_new_image();
	expect_idle(fds);
	cr_expect(o->rec->unformatted);
	/* It ends. */
	make_new_image(o);
	fail_call("flock", NULL, 0, EWOULDBLOCK);
	cr_expect_eq(fixture_run(&f, &renew.op), ERR_OK, "%s", renew.op.err.message);
	cr_expect(fail_no_call());
	pool_renew_free(&renew);
	expect_idle(fds);
	cr_expect_not(o->rec->unformatted);
	fixture_close(&f);
}

/* ---- a directory that is made a pool ---- */

Test(pool_calls, a_directory_is_made_a_pool, .timeout = 60)
{
	static const struct {
		const char *function, *name;
		int least;
		int lacks; /* what the file system cannot do then is no failure */
	} all[] = {{"mkdirat", NULL, 7, 0}, {"openat64", "volumes", 1, 0},
		{"openat64", "ringvol.pool", 1, 0}, {"openat64", ".", 6, 3}, {"write", NULL, 1, 0},
		{"linkat", "ringvol.pool", 1, 0}, {"fsync", NULL, 11, 0}};
	failing.in_loop = true;
	fixture_make(&f, FIXTURE_XFS, true);
	unsigned fds = 0;
	for (int fd = 0; fd < 1024; fd++)
		fds += fcntl(fd, F_GETFD) >= 0;
	for (unsigned i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		int nth = 0, lacking = 0;
		for (bool hit = true; hit; nth += hit) {
			struct fs_features features;
			struct err err = {0};
			bool existed;
			cr_assert_eq(fixture_sh("rm -rf %s/*", f.path), 0);
			fail_call(all[i].function, all[i].name, nth, EIO);
			int r = pool_init_dir(f.path, &features, &existed, &err);
			hit = fail_no_call();
			cr_expect(hit || r == 0, "%s", err.message);
			lacking += hit && r == 0;
			cr_expect(r == 0 || strstr(err.message, strerror(EIO)) != NULL, "%s: %s",
				failing.what, err.message);
			err_clear(&err);
			cr_expect_eq(pool_init_dir(f.path, &features, &existed, &err), 0, "%s: %s",
				failing.what, err.message);
		}
		cr_expect_geq(nth, all[i].least, "%s: %d", all[i].function, nth);
		cr_expect_leq(lacking, all[i].lacks, "%s: %d", all[i].function, lacking);
	}
	for (int fd = 0; fd < 1024; fd++)
		fds -= fcntl(fd, F_GETFD) >= 0;
	cr_expect_eq(fds, 0);
	umount2(f.path, MNT_DETACH);
	fixture_sh("rm -rf %s", f.top);
}
