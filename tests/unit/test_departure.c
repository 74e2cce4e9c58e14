/* SPDX-License-Identifier: Apache-2.0 */
/* Volumes that leave a pool, come back, and move in: the note, its load after a crash at any point,
 * and the part that may be all there is of a volume. */
#include "pool_fixture.h"

#include "pool/arrival.h"
#include "pool/depart.h"
#include "pool/departure_file.h"
#include "pool/index.h"
#include "pool/private.h"

#include <criterion/criterion.h>
#include <sys/file.h>
#include <sys/xattr.h>
#include <time.h>

enum { MIB = 1 << 20 };

#define THERE "deadbeef"
#define GRANT "00112233445566778899aabbccddeeff"

static struct fixture f;

/* ---- faults of the calls that a note is made durable with ---- */

static int fail_fsync = -1, fail_rename = -1; /* -1: never; n: the nth from now on */
static bool rename_all_the_same;
static ino_t fail_fsync_of; /* the next one of this file */

int __real_fsync(int fd);
int __wrap_fsync(int fd);
int __wrap_fsync(int fd)
{
	struct stat st;
	if (fail_fsync_of != 0 && fstat(fd, &st) == 0 && st.st_ino == fail_fsync_of) {
		fail_fsync_of = 0;
		errno = EIO;
		return -1;
	}
	if (fail_fsync >= 0 && fail_fsync-- == 0) {
		errno = EIO;
		return -1;
	}
	return __real_fsync(fd);
}

int __real_renameat(int from_fd, const char *from, int to_fd, const char *to);
int __wrap_renameat(int from_fd, const char *from, int to_fd, const char *to);
int __wrap_renameat(int from_fd, const char *from, int to_fd, const char *to)
{
	if (fail_rename >= 0 && fail_rename-- == 0) {
		if (rename_all_the_same)
			(void)__real_renameat(from_fd, from, to_fd, to);
		errno = EIO;
		return -1;
	}
	return __real_renameat(from_fd, from, to_fd, to);
}

/* ---- the file ---- */

static struct pool_departure sample(const char *id, unsigned moves)
{
	struct pool_departure d = {
		.moves = moves, .to = THERE, .node_id = "node-b", .grant = GRANT};
	snprintf(d.id, sizeof(d.id), "%s", id);
	return d;
}

Test(departure, file_round_trip)
{
	char text[DEPARTURE_TEXT_MAX];
	struct pool_departure d = sample("01234567.v.89abcdef", 3), *back = NULL;
	strcpy(d.node_id, "a%b\nc");
	int len = departure_print(&d, text, sizeof(text));
	cr_assert_gt(len, 0);
	cr_assert_eq(departure_parse(text, (size_t)len, "v", &back), 0);
	cr_assert_str_eq(back->id, d.id);
	cr_assert_str_eq(back->key, "v");
	cr_assert_eq(back->moves, 3);
	cr_assert_str_eq(back->to, THERE);
	cr_assert_str_eq(back->node_id, d.node_id);
	cr_assert_str_eq(back->grant, GRANT);
	cr_assert_null(back->why);
	free(back);
	cr_assert_eq(departure_parse(text, (size_t)len, "w", &back), -EBADMSG);
	for (int i = 0; i < len; i++) {
		text[i] ^= 1;
		cr_assert_lt(departure_parse(text, (size_t)len, "v", &back), 0, "byte %d", i);
		text[i] ^= 1;
		cr_assert_lt(departure_parse(text, (size_t)i, "v", &back), 0, "length %d", i);
	}
	cr_assert_eq(departure_print(&d, text, 60), -E2BIG);
	d.moves = 0;
	len = departure_print(&d, text, sizeof(text));
	cr_assert_eq(departure_parse(text, (size_t)len, "v", &back), -EBADMSG);
	/* The longest has room. */
	memset(d.node_id, '\n', sizeof(d.node_id) - 1);
	d.moves = UINT64_MAX;
	memset(d.id, 0, sizeof(d.id));
	snprintf(d.id, sizeof(d.id), "01234567.%063d.89abcdef", 1);
	len = departure_print(&d, text, sizeof(text));
	cr_assert_gt(len, 0);
	cr_assert_eq(
		departure_parse(text, (size_t)len,
			"000000000000000000000000000000000000000000000000000000000000001", &back),
		0);
	free(back);
}

/* ---- leaving ---- */

static char id[RECORD_ID_MAX];

static struct pool_object *volume(const char *name)
{
	return pools_find_name(f.pools, RECORD_VOLUME, name);
}

static enum err_code find(void)
{
	struct pool_object *o;
	struct err err = {0};
	pools_find_id(f.pools, RECORD_VOLUME, id, &o, &err);
	return err.code;
}

static void make(const char *name)
{
	pool_object_id(fixture_make_volume(&f, name, MIB), id);
}

static enum err_code depart_of(struct pool_object *o, const struct pool_departure *note)
{
	struct pool_depart d;
	pool_depart_init(&d, &f.reactor, f.pool, o, note);
	enum err_code code = fixture_run(&f, &d.op);
	pool_depart_free(&d);
	return code;
}

static enum err_code depart(unsigned moves)
{
	struct pool_departure note = sample(id, moves);
	return depart_of(volume("v"), &note);
}

static enum err_code drop(void)
{
	struct pool_departure_drop d;
	pool_departure_drop_init(&d, &f.reactor, pools_departure(f.pools, id));
	return fixture_run(&f, &d.op);
}

static enum err_code create(const char *name)
{
	struct record rec = fixture_volume(name, MIB);
	return fixture_build(&f, &rec, NULL, NULL);
}

/* Nothing of it but the note, whose volume is nowhere here. */
static void check_gone(unsigned moves)
{
	struct pool_walk walk = {0};
	const struct pool_departure *d = pools_departure(f.pools, id);
	cr_assert_not_null(d);
	cr_assert_eq(d->moves, moves);
	cr_assert_str_eq(d->to, THERE);
	cr_assert_str_eq(d->node_id, "node-b");
	cr_assert_str_eq(d->grant, GRANT);
	cr_assert_eq(pool_departure_by_key(f.pool, "v"), d);
	cr_assert_eq(pool_departure_next(f.pool, NULL), d);
	cr_assert_null(pool_departure_next(f.pool, d));
	cr_assert_null(volume("v"));
	cr_assert_null(pools_next(f.pools, RECORD_VOLUME, &walk));
	cr_assert_eq(find(), ERR_UNAVAILABLE);
	cr_assert(pools_id_elsewhere(f.pools, id));
	cr_assert_eq(create("v"), ERR_UNAVAILABLE);
	cr_assert_eq(fixture_count(&f, "departed"), 1);
}

static void check_leaves(enum fixture_fs fs)
{
	struct err err = {0};
	fixture_open(&f, fs);
	make("v");
	unsigned fds = fixture_count_fds(&f);
	uint64_t before = fixture_room(&f).provisioned_bytes;
	cr_assert_eq(depart(1), ERR_OK);
	check_gone(1);
	fixture_settle(&f);
	cr_assert_eq(fixture_count(&f, "volumes"), 0);
	cr_assert_eq(fixture_count(&f, "trash"), 0);
	cr_assert_eq(fixture_room(&f).provisioned_bytes, before - MIB);
	cr_assert_eq(fixture_count_fds(&f), fds);
	pool_departure_refuse(pools_departure(f.pools, id), &err);
	cr_assert(strstr(err.message, THERE) != NULL && strstr(err.message, "node-b") != NULL, "%s",
		err.message);
	/* Once more, and after a restart. */
	cr_assert_eq(depart(1), ERR_OK);
	fixture_reopen_pools(&f);
	check_gone(1);
	cr_assert_eq(depart(1), ERR_OK);
	/* What it is not. */
	struct pool_departure other = sample(id, 1);
	strcpy(other.to, "00000000");
	cr_assert_eq(depart_of(NULL, &other), ERR_UNAVAILABLE);
	other = sample(id, 2);
	cr_assert_eq(depart_of(NULL, &other), ERR_NOT_FOUND);
	/* It is deleted, there. */
	cr_assert_eq(drop(), ERR_OK);
	cr_assert_null(pools_departure(f.pools, id));
	cr_assert_eq(find(), ERR_NOT_FOUND);
	cr_assert_not(pools_id_elsewhere(f.pools, id));
	cr_assert_eq(create("v"), ERR_OK);
	fixture_reopen_pools(&f);
	cr_assert_eq(fixture_count(&f, "departed"), 0);
	cr_assert_not_null(volume("v"));
	fixture_close(&f);
}

Test(departure, leaves, .timeout = 60)
{
	check_leaves(FIXTURE_DIR);
}

Test(departure, leaves_xfs, .timeout = 60)
{
	check_leaves(FIXTURE_XFS);
}

Test(departure, leaves_btrfs, .timeout = 60)
{
	check_leaves(FIXTURE_BTRFS);
}

Test(departure, refuses_what_is_not_it)
{
	fixture_open(&f, FIXTURE_DIR);
	make("v");
	struct pool_departure note = sample(id, 0);
	cr_assert_eq(depart_of(volume("v"), &note), ERR_INVALID);
	note = sample("01234567.v.89abcdef", 1);
	cr_assert_eq(depart_of(volume("v"), &note), ERR_INVALID);
	cr_assert_eq(depart_of(NULL, &note), ERR_NOT_FOUND);
	cr_assert_eq(find(), ERR_OK);
	cr_assert_eq(fixture_count(&f, "departed"), 0);
	fixture_close(&f);
}

/* What is attached, or open anywhere else, does not leave. */
Test(departure, refuses_what_is_in_use)
{
	fixture_open(&f, FIXTURE_DIR);
	make("v");
	int fd = openat(pool_dirfd(f.pool, RECORD_VOLUME), "v", O_RDWR | O_CLOEXEC);
	cr_assert_eq(flock(fd, LOCK_EX), 0);
	cr_assert_eq(depart(1), ERR_PRECONDITION);
	cr_assert_eq(flock(fd, LOCK_UN), 0);
	cr_assert_eq(depart(1), ERR_PRECONDITION);
	cr_assert_null(pools_departure(f.pools, id));
	cr_assert_eq(find(), ERR_OK);
	cr_assert_eq(fixture_count(&f, "departed"), 0);
	close(fd);
	cr_assert_eq(depart(1), ERR_OK);
	check_gone(1);
	fixture_close(&f);
}

/* ---- faults and crashes ---- */

/* Before the note has its name nothing has happened; from then on the volume is in no use, and only
 * a repeat tells that it has left. */
Test(departure, note_fails_anywhere, .timeout = 60)
{
	fixture_open(&f, FIXTURE_DIR);
	make("v");
	fail_fsync = 0;
	cr_assert_neq(depart(1), ERR_OK);
	cr_assert_eq(find(), ERR_OK);
	fail_rename = 0;
	cr_assert_neq(depart(1), ERR_OK);
	cr_assert_eq(find(), ERR_OK);
	cr_assert_null(pools_departure(f.pools, id));
	cr_assert_eq(fixture_count(&f, "departed"), 0);
	for (int nth = 1; nth < 3; nth++) {
		fail_fsync = nth;
		cr_assert_neq(depart(1), ERR_OK, "%d", nth);
		cr_assert_eq(fail_fsync, -1);
		cr_assert_eq(fixture_count(&f, "volumes"), 1);
		check_gone(1);
		cr_assert(pools_departure(f.pools, id)->unsynced);
		fail_fsync = 0; /* the directory's */
		struct pool_departure note = sample(id, 1);
		struct pool_object *o = pool_next_object(f.pool, RECORD_VOLUME, "");
		cr_assert_not_null(o);
		cr_assert_neq(depart_of(o, &note), ERR_OK);
		cr_assert_eq(fixture_count(&f, "volumes"), 1);
		if (nth == 1) {
			cr_assert_eq(depart_of(o, &note), ERR_OK);
		} else {
			fixture_reopen_pools(&f); /* it makes durable what it reads */
			cr_assert_not(pools_departure(f.pools, id)->unsynced);
		}
		check_gone(1);
		cr_assert_eq(fixture_count(&f, "volumes"), 0);
		cr_assert_eq(drop(), ERR_OK);
		make("v");
	}
	fail_rename = 0;
	rename_all_the_same = true;
	cr_assert_neq(depart(1), ERR_OK);
	check_gone(1);
	fixture_close(&f);
}

Test(departure, drop_fails)
{
	fixture_open(&f, FIXTURE_DIR);
	make("v");
	cr_assert_eq(depart(1), ERR_OK);
	fail_fsync = 0;
	cr_assert_neq(drop(), ERR_OK);
	cr_assert_eq(find(), ERR_UNAVAILABLE);
	cr_assert_eq(create("v"), ERR_UNAVAILABLE);
	const struct pool_departure *gone = pools_departure(f.pools, id);
	cr_assert_eq(drop(), ERR_OK);
	cr_assert_eq(find(), ERR_NOT_FOUND);
	/* Somebody may still read it: it is freed with the pool. */
	cr_assert_eq(f.pool->departures_dead.next, &gone->link);
	fixture_close(&f);
}

static int departed_fd(void)
{
	char path[128];
	snprintf(path, sizeof(path), "%s/departed", f.path);
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	cr_assert_geq(fd, 0);
	return fd;
}

static void plant_note(unsigned moves)
{
	char text[DEPARTURE_TEXT_MAX];
	struct pool_departure d = sample(id, moves);
	bool named = false;
	int len = departure_print(&d, text, sizeof(text)), fd = departed_fd();
	cr_assert_eq(departure_write(fd, "v", text, (size_t)len, &named), 0);
	cr_assert(named);
	close(fd);
}

/* The driver was killed behind the note. */
Test(departure, load_takes_away_what_has_left)
{
	fixture_open(&f, FIXTURE_DIR);
	make("v");
	char left[RECORD_ID_MAX];
	strcpy(left, id);
	make("w");
	strcpy(id, left);
	fixture_close_pools(&f);
	plant_note(1);
	/* And in the midst of writing another. */
	fixture_sh("touch %s/departed/+new-0123456789abcdef %s/departed/+stranger", f.path, f.path);
	fixture_open_pools(&f);
	cr_assert_eq(pool_state(f.pool), POOL_READY, "%s", pool_why(f.pool));
	fixture_settle(&f);
	cr_assert_null(volume("v"));
	cr_assert_not_null(volume("w"));
	cr_assert_eq(find(), ERR_UNAVAILABLE);
	cr_assert_eq(fixture_count(&f, "volumes"), 1);
	cr_assert_eq(fixture_count(&f, "trash"), 0);
	cr_assert_eq(fixture_count(&f, "departed"), 2, "the note and what is not ours");
	fixture_close(&f);
}

/* It has moved as often as the note says: it is here again. */
Test(departure, load_forgets_a_note_of_what_is_back)
{
	fixture_open(&f, FIXTURE_DIR);
	struct record rec = fixture_volume("v", MIB);
	struct pool_build b;
	strcpy(rec.random, "89abcdef");
	rec.moves = 2;
	rec.created_ns = 1;
	cr_assert_eq(pool_build_init_moved(&b, &f.reactor, f.pool, &rec), 0);
	cr_assert_eq(fixture_run(&f, &b.op), ERR_OK);
	pool_object_id(b.ret_object, id);
	pool_build_free(&b);
	fixture_close_pools(&f);
	plant_note(2);
	fixture_open_pools(&f);
	cr_assert_eq(find(), ERR_OK);
	cr_assert_null(pools_departure(f.pools, id));
	cr_assert_eq(fixture_count(&f, "departed"), 0);
	fixture_close(&f);
}

/* A note is never guessed at. */
Test(departure, load_of_a_damaged_note)
{
	struct pool_object *o;
	struct err err = {0};
	fixture_open(&f, FIXTURE_DIR);
	make("v");
	fixture_close_pools(&f);
	fixture_sh("echo nonsense > %s/departed/v; mkfifo %s/departed/w", f.path, f.path);
	fixture_open_pools(&f);
	cr_assert_eq(pool_state(f.pool), POOL_READY);
	o = volume("v");
	cr_assert_not_null(o);
	cr_assert_null(o->rec);
	cr_assert_not_null(strstr(o->why, "departed/"));
	cr_assert_eq(find(), ERR_UNAVAILABLE);
	cr_assert_null(pools_departure(f.pools, id));
	cr_assert_not_null(pool_departure_by_key(f.pool, "v")->why);
	cr_assert_eq(fixture_count(&f, "volumes"), 1);
	/* Without a volume of its name: no id of that name is gone for good. */
	snprintf(id, sizeof(id), "%s.w.00000000", pool_uuid8(f.pool));
	cr_assert_eq(find(), ERR_UNAVAILABLE);
	cr_assert_eq(create("w"), ERR_UNAVAILABLE);
	cr_assert_eq(create("x"), ERR_OK);
	struct pool_departure_drop d;
	pool_departure_drop_init(&d, &f.reactor, pool_departure_by_key(f.pool, "w"));
	cr_assert_eq(fixture_run(&f, &d.op), ERR_UNAVAILABLE);
	cr_assert_eq(pool_departure_refuse(pool_departure_by_key(f.pool, "w"), &err), -EAGAIN);
	cr_assert_not_null(strstr(err.message, "departed/w"), "%s", err.message);
	fixture_close(&f);
}

/* A pool of an older driver has no departed/. */
Test(departure, directory_is_made)
{
	fixture_open(&f, FIXTURE_DIR);
	make("v");
	fixture_close_pools(&f);
	fixture_sh("rmdir %s/departed", f.path);
	fixture_open_pools(&f);
	cr_assert_eq(pool_state(f.pool), POOL_READY, "%s", pool_why(f.pool));
	cr_assert_eq(depart(1), ERR_OK);
	check_gone(1);
	fixture_close(&f);
}

/* The pool goes away and is back, with another note and without one. */
Test(departure, survives_the_pools_absence, .timeout = 60)
{
	fixture_open(&f, FIXTURE_DIR);
	make("v");
	cr_assert_eq(depart(1), ERR_OK);
	const struct pool_departure *d = pools_departure(f.pools, id);
	for (unsigned round = 0; round < 2; round++) {
		fixture_sh("mv %s %s.away", f.path, f.path);
		while (pool_state(f.pool) == POOL_READY)
			fixture_turn(&f);
		cr_assert_null(pools_departure(f.pools, id));
		cr_assert_eq(find(), ERR_UNAVAILABLE);
		if (round == 1)
			fixture_sh("rm %s.away/departed/v", f.path);
		fixture_sh("mv %s.away %s", f.path, f.path);
		while (pool_state(f.pool) != POOL_READY)
			fixture_turn(&f);
		cr_assert_eq(pools_departure(f.pools, id), round == 0 ? d : NULL);
	}
	cr_assert_eq(find(), ERR_NOT_FOUND);
	fixture_close(&f);
}

/* ---- pools and volumes that are not right ---- */

static enum err_code told(struct op *op, const char *part)
{
	enum err_code code = fixture_run(&f, op);
	cr_assert_not_null(strstr(op->err.message, part), "%s", op->err.message);
	return code;
}

static enum err_code depart_told(const char *part)
{
	struct pool_departure note = sample(id, 1);
	struct pool_depart d;
	pool_depart_init(&d, &f.reactor, f.pool, volume("v"), &note);
	enum err_code code = told(&d.op, part);
	pool_depart_free(&d);
	return code;
}

Test(departure, of_a_pool_that_is_lost)
{
	struct pool_departure_drop d;
	fixture_open(&f, FIXTURE_DIR);
	make("v");
	f.pool->life = POOL_AWAY;
	strcpy(f.pool->why, "pool p is away");
	struct pool_departure note = sample(id, 1);
	struct pool_depart leaves;
	pool_depart_init(
		&leaves, &f.reactor, f.pool, pool_index_find(f.pool, RECORD_VOLUME, "v"), &note);
	cr_assert_eq(told(&leaves.op, "pool p is away"), ERR_UNAVAILABLE);
	pool_depart_free(&leaves);
	cr_assert_eq(fixture_count(&f, "departed"), 0);
	f.pool->life = POOL_SERVED;
	cr_assert_eq(depart(1), ERR_OK);
	pool_departure_drop_init(&d, &f.reactor, pools_departure(f.pools, id));
	f.pool->life = POOL_AWAY;
	cr_assert_eq(told(&d.op, "pool p is away"), ERR_UNAVAILABLE);
	f.pool->life = POOL_SERVED;
	check_gone(1);
	cr_assert_eq(drop(), ERR_OK);
	fixture_close(&f);
}

/* What nobody can read does not leave; of what is gone already nothing stays. */
Test(departure, of_a_damaged_volume)
{
	char path[128];
	fixture_open(&f, FIXTURE_DIR);
	make("v");
	fixture_sh("mv %s/volumes/v %s/keep; ln -s ../../keep %s/volumes/v", f.path, f.top, f.path);
	cr_assert_eq(depart_told("Too many levels of symbolic links"), ERR_INTERNAL);
	cr_assert_eq(find(), ERR_OK);
	cr_assert_eq(fixture_count(&f, "departed"), 0);
	fixture_sh("rm %s/volumes/v; mv %s/keep %s/volumes/v", f.path, f.top, f.path);
	fixture_close_pools(&f);
	snprintf(path, sizeof(path), "%s/volumes/v", f.path);
	cr_assert_eq(setxattr(path, RECORD_XATTR, "damaged", 7, 0), 0);
	fixture_open_pools(&f);
	cr_assert_eq(depart_told("v in pool p is quarantined and never moved: "), ERR_DATA_LOSS);
	cr_assert_eq(fixture_count(&f, "departed"), 0);
	fixture_sh("rm %s/volumes/v", f.path);
	fixture_reopen_pools(&f);
	make("v");
	fixture_sh("rm %s/volumes/v", f.path);
	cr_assert_eq(depart_told(""), ERR_OK);
	check_gone(1);
	fixture_close(&f);
}

/* What is in the trash must be there durably before the note may go. */
Test(departure, load_that_is_not_durable)
{
	struct stat st;
	fixture_open(&f, FIXTURE_DIR);
	make("v");
	cr_assert_eq(fstat(pool_dirfd(f.pool, RECORD_VOLUME), &st), 0);
	fixture_close_pools(&f);
	plant_note(1);
	fail_fsync_of = st.st_ino;
	fixture_open_pools(&f);
	cr_assert_eq(fail_fsync_of, 0);
	cr_assert_eq(pool_state(f.pool), POOL_SICK, "%s", pool_why(f.pool));
	cr_assert_not_null(strstr(pool_why(f.pool), "Input/output error"), "%s", pool_why(f.pool));
	fixture_reopen_pools(&f);
	cr_assert_eq(pool_state(f.pool), POOL_READY, "%s", pool_why(f.pool));
	check_gone(1);
	fixture_close(&f);
}

/* Of a pool that is read-only, and is of a driver that knew of none, none has left. */
Test(departure, load_without_a_directory, .timeout = 60)
{
	fixture_open(&f, FIXTURE_XFS);
	make("v");
	fixture_close_pools(&f);
	fixture_sh("rmdir %s/departed", f.path);
	cr_assert_eq(mount(NULL, f.path, NULL, MS_REMOUNT | MS_RDONLY, NULL), 0);
	fixture_open_pools(&f);
	cr_assert_eq(pool_state(f.pool), POOL_SICK);
	cr_assert_not_null(strstr(pool_why(f.pool), "read-only"), "%s", pool_why(f.pool));
	cr_assert_eq(find(), ERR_OK);
	cr_assert_not_null(volume("v"));
	cr_assert_eq(mount(NULL, f.path, NULL, MS_REMOUNT, NULL), 0);
	fixture_reopen_pools(&f);
	cr_assert_eq(depart(1), ERR_OK);
	check_gone(1);
	fixture_close(&f);
}

/* ---- moving in ---- */

static struct record moved(const char *name, const char *born, unsigned moves)
{
	struct record rec = fixture_volume(name, MIB);
	strcpy(rec.random, "89abcdef");
	rec.created_ns = 1234567;
	rec.born = born;
	rec.moves = moves;
	return rec;
}

static enum err_code build_moved(const struct record *rec, struct pool_part *part)
{
	struct pool_build b;
	cr_assert_eq(pool_build_init_moved(&b, &f.reactor, f.pool, rec), 0);
	b.part = part;
	enum err_code code = fixture_run(&f, &b.op);
	if (code != ERR_OK)
		fprintf(stderr, "build: %s: %s\n", b.op.err.step, b.op.err.message);
	pool_build_free(&b);
	return code;
}

Test(departure, keeps_its_identity)
{
	struct pool_object *o;
	fixture_open(&f, FIXTURE_DIR);
	struct record rec = moved("v", THERE, 1);
	cr_assert_eq(build_moved(&rec, NULL), ERR_OK);
	strcpy(id, THERE ".v.89abcdef");
	for (unsigned i = 0; i < 2; i++) {
		cr_assert_eq(find(), ERR_OK);
		o = volume("v");
		cr_assert_eq(o->rec->created_ns, 1234567);
		cr_assert_eq(o->rec->moves, 1);
		cr_assert_not(o->rec->shares_extents);
		fixture_reopen_pools(&f);
	}
	cr_assert_eq(build_moved(&rec, NULL), ERR_EXISTS);
	/* On from here, as any. */
	cr_assert_eq(depart(2), ERR_OK);
	check_gone(2);
	fixture_close(&f);
}

/* Only the very volume that left comes back, and it has moved once more. */
Test(departure, comes_back)
{
	fixture_open(&f, FIXTURE_DIR);
	struct record rec = moved("v", "", 2);
	cr_assert_eq(build_moved(&rec, NULL), ERR_OK);
	snprintf(id, sizeof(id), "%s.v.89abcdef", pool_uuid8(f.pool));
	cr_assert_eq(depart(3), ERR_OK);
	rec.moves = 3;
	cr_assert_eq(build_moved(&rec, NULL), ERR_UNAVAILABLE);
	struct record other = moved("v", "", 4);
	strcpy(other.random, "00000000");
	cr_assert_eq(build_moved(&other, NULL), ERR_UNAVAILABLE);
	other = moved("v", THERE, 4);
	cr_assert_eq(build_moved(&other, NULL), ERR_UNAVAILABLE);
	rec.moves = 4;
	cr_assert_eq(build_moved(&rec, NULL), ERR_OK);
	cr_assert_eq(find(), ERR_OK);
	cr_assert_null(pools_departure(f.pools, id));
	cr_assert_eq(fixture_count(&f, "departed"), 0);
	cr_assert_eq(depart(5), ERR_OK);
	check_gone(5);
	/* The note cannot go: it counts no more, and goes at the next load. */
	rec.moves = 6;
	fixture_sh("chattr +i %s/departed/v 2>/dev/null", f.path);
	cr_assert_eq(build_moved(&rec, NULL), ERR_OK);
	cr_assert_eq(find(), ERR_OK);
	cr_assert_null(pools_departure(f.pools, id));
	fixture_sh("chattr -i %s/departed/v 2>/dev/null", f.path);
	fixture_reopen_pools(&f);
	cr_assert_eq(find(), ERR_OK);
	cr_assert_eq(fixture_count(&f, "departed"), 0);
	fixture_close(&f);
}

/* ---- the part ---- */

static int open_part(const char *of, struct pool_part *part, int *ret_fd)
{
	uint64_t allocated;
	char path[128];
	snprintf(path, sizeof(path), "%s/copies", f.path);
	_cleanup_fd_ int dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	*part = (struct pool_part){0};
	snprintf(part->of, sizeof(part->of), "%s", of);
	return pool_part_open(dir, "part-v", part, MIB, 0, ret_fd, &allocated);
}

static void make_old(void)
{
	char path[128];
	const struct timespec then = {.tv_sec = time(NULL) - POOL_PART_KEEP_S - 60};
	snprintf(path, sizeof(path), "%s/copies/part-v", f.path);
	cr_assert_eq(utimensat(AT_FDCWD, path, (struct timespec[]){then, then}, 0), 0);
}

static void finish_part(const struct record *rec, const char *text)
{
	struct pool_part part;
	int fd;
	char path[128];
	snprintf(path, sizeof(path), "%s/copies", f.path);
	_cleanup_fd_ int dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	cr_assert_eq(open_part("move one", &part, &fd), 0);
	cr_assert_eq(ftruncate(fd, MIB), 0);
	cr_assert_eq(pwrite(fd, "all of it", 9, MIB - 4096), 9);
	cr_assert_eq(pool_part_finish(dir, fd, rec, text, strlen(text)), 0);
	close(fd);
}

/* It may be all there is of a volume: nothing takes it but the build of that very volume. */
Test(departure, finished_part_stays_until_it_is_a_volume, .timeout = 60)
{
	struct pool_part part, other = {.of = "another copy"};
	char read[10] = "";
	int fd;
	fixture_open(&f, FIXTURE_DIR);
	struct record rec = moved("v", THERE, 1);
	finish_part(&rec, "how to go on");
	make_old();
	for (unsigned i = 0; i < 2; i++) {
		cr_assert_eq(open_part("another", &part, &fd), -EBUSY);
		cr_assert_eq(create("v"), ERR_UNAVAILABLE);
		cr_assert_eq(build_moved(&rec, &other), ERR_UNAVAILABLE);
		struct pool_build b;
		struct pool_part same = {.of = "move one"};
		struct record plain = fixture_volume("v", MIB);
		cr_assert_eq(pool_build_init(&b, &f.reactor, f.pool, &plain), 0);
		b.part = &same;
		cr_assert_eq(fixture_run(&f, &b.op), ERR_UNAVAILABLE);
		pool_build_free(&b);
		fixture_reopen_pools(&f);
		fixture_settle(&f);
		const struct pool_arrival *a = pool_arrival_next(f.pool, NULL);
		cr_assert_not_null(a);
		cr_assert_str_eq(a->key, "v");
		cr_assert_eq(a->len, 12);
		cr_assert_eq(memcmp(a->text, "how to go on", 12), 0);
		cr_assert_null(pool_arrival_next(f.pool, a));
	}
	cr_assert_eq(open_part("move one", &part, &fd), 0);
	cr_assert(part.finished);
	cr_assert_eq(part.from_bytes, MIB);
	cr_assert_eq(pread(fd, read, 9, MIB - 4096), 9);
	cr_assert_str_eq(read, "all of it");
	close(fd);
	part = (struct pool_part){.of = "move one"};
	cr_assert_eq(build_moved(&rec, &part), ERR_OK);
	cr_assert(part.finished);
	cr_assert_null(pool_arrival_next(f.pool, NULL));
	cr_assert_eq(fixture_count(&f, "copies"), 0);
	fixture_reopen_pools(&f);
	cr_assert_eq(volume("v")->rec->moves, 1);
	fd = openat(pool_dirfd(f.pool, RECORD_VOLUME), "v", O_RDONLY | O_CLOEXEC);
	cr_assert_eq(pread(fd, read, 9, MIB - 4096), 9);
	cr_assert_str_eq(read, "all of it");
	char names[512] = "";
	ssize_t len = flistxattr(fd, names, sizeof(names));
	for (const char *at = names; len > 0 && at < names + len; at += strlen(at) + 1)
		cr_assert_null(strstr(at, "finished"));
	close(fd);
	fixture_close(&f);
}

static int fail_fill(struct op *op, int fd, void *arg)
{
	(void)fd;
	(void)arg;
	return op_fail(op, ERR_UNAVAILABLE, "the other node is away");
}

/* It is all that the part has: nothing that other images of the pool would have to be there for. */
Test(departure, finished_part_shares_nothing)
{
	struct pool_found found = {0};
	fixture_open(&f, FIXTURE_DIR);
	struct record rec = moved("v", THERE, 1);
	rec.shares_extents = true;
	rec.family = THERE ".w.01234567";
	finish_part(&rec, "");
	cr_assert_eq(fixture_sh("mv %s/copies/part-v %s/copies/v", f.path, f.path), 0);
	int copies = pool_holds_fd(f.pool);
	cr_assert_eq(pool_read_object(copies, "v", RECORD_VOLUME, &found), 0);
	cr_assert_not_null(found.rec, "%s", found.why);
	cr_assert_not(found.rec->shares_extents);
	cr_assert_str_eq(found.rec->family, "");
	record_free(found.rec);
	attachments_free(found.attachments);
	fixture_close(&f);
}

/* The build fails before, in, and behind its fill. */
Test(departure, finished_part_outlives_a_build_that_fails, .timeout = 60)
{
	fixture_open(&f, FIXTURE_DIR);
	struct record rec = moved("v", THERE, 1);
	finish_part(&rec, "");
	struct pool_part part = {.of = "move one"};
	struct pool_build b;
	cr_assert_eq(pool_build_init_moved(&b, &f.reactor, f.pool, &rec), 0);
	b.part = &part;
	b.fill = fail_fill;
	cr_assert_eq(fixture_run(&f, &b.op), ERR_UNAVAILABLE);
	pool_build_free(&b);
	cr_assert_eq(fixture_count(&f, "copies"), 1);
	cr_assert_eq(build_moved(&rec, &part), ERR_OK);
	fixture_close(&f);
}

Test(departure, unfinished_part_is_like_any_other)
{
	struct pool_part part;
	int fd;
	fixture_open(&f, FIXTURE_DIR);
	struct record rec = moved("v", THERE, 1);
	finish_part(&rec, "text");
	cr_assert_eq(open_part("move one", &part, &fd), 0);
	cr_assert_eq(pool_part_unfinish(fd), 0);
	char text[POOL_PART_TEXT_MAX];
	cr_assert_eq(pool_part_text(fd, text), -ENODATA);
	close(fd);
	cr_assert_eq(open_part("another", &part, &fd), 0);
	cr_assert_eq(part.from_bytes, 0);
	cr_assert_not(part.finished);
	close(fd);
	make_old();
	fixture_reopen_pools(&f);
	fixture_settle(&f);
	cr_assert_null(pool_arrival_next(f.pool, NULL));
	cr_assert_eq(fixture_count(&f, "copies"), 0);
	cr_assert_eq(create("v"), ERR_OK);
	fixture_close(&f);
}

/* There is room for the record before anything has left. */
Test(departure, finish_fails_where_the_record_has_no_room)
{
	static char text[POOL_PART_TEXT_MAX + 1];
	struct pool_part part;
	int fd;
	fixture_open(&f, FIXTURE_DIR);
	struct record rec = moved("v", THERE, 1);
	memset(text, 'x', sizeof(text));
	cr_assert_eq(open_part("move one", &part, &fd), 0);
	char path[128];
	snprintf(path, sizeof(path), "%s/copies", f.path);
	_cleanup_fd_ int dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	cr_assert_eq(pool_part_finish(dir, fd, &rec, text, sizeof(text)), -E2BIG);
	cr_assert_eq(pool_part_text(fd, text), -ENODATA);
	for (int nth = 0; nth < 2; nth++) {
		fail_fsync = nth;
		cr_assert_eq(pool_part_finish(dir, fd, &rec, text, 100), -EIO);
	}
	cr_assert_eq(pool_part_finish(dir, fd, &rec, text, 100), 0);
	close(fd);
	fixture_close(&f);
}
