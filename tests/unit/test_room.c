/* SPDX-License-Identifier: Apache-2.0 */
/* What a pool promises: never more than there is, whatever runs at once, and all of it again when
 * everything is deleted. */
#include "pool_fixture.h"

#include "pool/build_part.h"
#include "pool/index.h"
#include "pool/private.h"

#include <errno.h>
#include <semaphore.h>
#include <stdint.h>

enum { MIB = 1 << 20 };

static uint64_t available(struct fixture *f)
{
	return fixture_room(f).available_bytes;
}

/* Measured, with the trash empty. A file system may keep a few blocks for itself. */
static void same_as_before(struct fixture *f, uint64_t before)
{
	fixture_settle(f);
	uint64_t now = available(f);
	cr_assert(now <= before && before - now <= 2 * MIB, "%llu MiB before, %llu now",
		(unsigned long long)before / MIB, (unsigned long long)now / MIB);
}

Test(room, comes_back)
{
	struct fixture f;
	fixture_open(&f, FIXTURE_XFS);
	uint64_t before = available(&f);
	struct pool_room room = fixture_room(&f);
	cr_assert_gt(before, 512 * MIB);
	cr_assert_leq(before, room.free_bytes - room.capacity_bytes / 100 * 5);
	cr_assert_eq(before % POOL_SIZE_ALIGN, 0);

	struct pool_object *thin = fixture_make_volume(&f, "thin", 64 * MIB), *thick;
	pool_room(f.pool, &room); /* at once, and as measured */
	cr_assert_leq(room.available_bytes, before - 64 * MIB);
	same_as_before(&f, before - 64 * MIB);
	struct record rec = fixture_volume("thick", 64 * MIB);
	rec.thick = true;
	cr_assert_eq(fixture_build(&f, &rec, NULL, &thick), ERR_OK);
	pool_room(f.pool, &room);
	cr_assert_leq(room.available_bytes, before - 128 * MIB);
	same_as_before(&f, before - 128 * MIB);
	cr_assert_eq(fixture_room(&f).provisioned_bytes, 128 * MIB);

	/* What a volume writes it was promised: attached ones are measured. */
	char *data = calloc(1, MIB);
	memset(data, 'x', MIB);
	int fd = openat(pool_dirfd(f.pool, RECORD_VOLUME), "thin", O_WRONLY | O_CLOEXEC);
	thin->node = &f;
	for (int i = 0; i < 32; i++)
		cr_assert_eq(pwrite(fd, data, MIB, (off_t)i * MIB), MIB);
	cr_assert_eq(fsync(fd), 0);
	close(fd);
	free(data);
	same_as_before(&f, before - 128 * MIB);
	cr_assert_geq(thin->allocated_bytes, 32 * MIB);
	thin->node = NULL;

	/* The promise ends at once, the blocks are free when they are. */
	cr_assert_eq(fixture_remove(&f, thin), ERR_OK);
	pool_room(f.pool, &room);
	cr_assert_eq(room.provisioned_bytes, 64 * MIB);
	cr_assert_leq(room.available_bytes, before - 64 * MIB);
	same_as_before(&f, before - 64 * MIB);
	cr_assert_eq(fixture_remove(&f, thick), ERR_OK);
	same_as_before(&f, before);
	fixture_reopen_pools(&f);
	same_as_before(&f, before);
	fixture_close(&f);
}

static uint64_t available_now(struct fixture *f)
{
	struct pool_measure m;
	struct pool_room room;
	pool_measure_init(&m, &f->reactor, f->pool, 3600000);
	m.free_now = true;
	cr_assert_eq(fixture_run(f, &m.op), ERR_OK);
	pool_room(f->pool, &room);
	return room.available_bytes;
}

static void use_up(int fd, uint64_t bytes)
{
	cr_assert_eq(posix_fallocate(fd, 0, (off_t)bytes), 0);
	cr_assert_eq(fsync(fd), 0);
}

/* What is free is asked without a look at the images, and errs towards too little. */
Test(room, free_at_this_moment)
{
	struct fixture f;
	fixture_open(&f, FIXTURE_XFS);
	struct pool_object *thin = fixture_make_volume(&f, "thin", 64 * MIB);
	thin->node = &f;
	uint64_t before = available(&f);
	cr_assert_eq(available_now(&f), before);

	/* Somebody else's. */
	char path[128];
	snprintf(path, sizeof(path), "%s/other", f.path);
	int other = open(path, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
	use_up(other, 32 * MIB);
	uint64_t now = available_now(&f);
	cr_assert(now <= before - 32 * MIB && now >= before - 34 * MIB);
	cr_assert_eq(ftruncate(other, 0), 0);
	cr_assert_eq(fsync(other), 0);
	close(other);
	cr_assert_leq(available_now(&f), now, "what came back may be a volume's");
	same_as_before(&f, before);

	/* A volume's, which was promised it: known when the images are looked at. */
	int fd = openat(pool_dirfd(f.pool, RECORD_VOLUME), "thin", O_RDWR | O_CLOEXEC);
	use_up(fd, 32 * MIB);
	close(fd);
	cr_assert_leq(available_now(&f), before - 32 * MIB);
	same_as_before(&f, before);
	thin->node = NULL;
	fixture_close(&f);
}

static int fail_free(void *arg, const char *op_name, const char *step_name)
{
	(void)arg;
	return strcmp(op_name, "pool_measure") == 0 && strcmp(step_name, "free") == 0 ? -EIO : 0;
}

/* One that the file system does not answer says nothing of what is free. */
Test(room, that_is_not_known_at_this_moment)
{
	struct fixture f;
	struct pool_measure m;
	fixture_open(&f, FIXTURE_XFS);
	uint64_t before = fixture_room(&f).available_bytes;
	f.observer.before_call = fail_free;
	pool_measure_init(&m, &f.reactor, f.pool, 3600000);
	m.free_now = true;
	cr_assert_neq(fixture_run(&f, &m.op), ERR_OK);
	cr_expect_not_null(strstr(m.op.err.message, "measuring pool p"), "%s", m.op.err.message);
	struct pool_room room;
	pool_room(f.pool, &room);
	cr_expect_eq(room.available_bytes, before);
	f.observer.before_call = NULL;
	fixture_close(&f);
}

Test(room, limits)
{
	struct fixture f;
	fixture_open(&f, FIXTURE_XFS);
	uint64_t left = available(&f);
	struct record rec = fixture_volume("all", left + MIB);
	cr_assert_eq(fixture_build(&f, &rec, NULL, NULL), ERR_NO_ROOM);
	rec.size_bytes = left;
	struct pool_object *o;
	cr_assert_eq(fixture_build(&f, &rec, NULL, &o), ERR_OK);
	rec = fixture_volume("more", MIB);
	cr_assert_eq(fixture_build(&f, &rec, NULL, NULL), ERR_NO_ROOM);
	/* A snapshot asks for what its volume may need again. */
	cr_assert_eq(fixture_remove(&f, o), ERR_OK);
	fixture_settle(&f);
	struct pool_build b;
	rec = fixture_volume("snap", MIB);
	rec.kind = RECORD_SNAPSHOT;
	cr_assert_eq(pool_build_init(&b, &f.reactor, f.pool, &rec), 0);
	b.need_bytes = left + MIB;
	cr_assert_eq(fixture_run(&f, &b.op), ERR_NO_ROOM);
	pool_build_free(&b);
	fixture_close(&f);
}

/* The sums, in MiB: what is left to promise, and what a volume that asks for too much is told. */
Test(room, to_the_mebibyte)
{
	static const struct {
		uint64_t capacity, free, own, size, reserved;
		unsigned reserve_pct;
		double overcommit;
		uint64_t thin, thick;
	} table[] = {
		{1000, 1000, 0, 0, 0, 0, 1.0, 1000, 1000},
		{1000, 1000, 0, 0, 0, 5, 1.0, 950, 950},
		{1000, 900, 100, 300, 0, 5, 1.0, 650, 650},
		{1000, 900, 100, 300, 50, 5, 1.0, 600, 600},
		{1000, 900, 100, 300, 50, 5, 2.0, 1550, 800},
		{1000, 400, 600, 700, 0, 5, 1.0, 250, 250},
		{1000, 400, 600, 950, 0, 5, 1.0, 0, 0},
		{1000, 30, 0, 0, 0, 5, 1.0, 0, 0},
		{1000, 30, 400, 100, 0, 5, 1.0, 280, 0},
	};
	for (unsigned i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
		struct pool pool = {.name = "p",
			.capacity_bytes = table[i].capacity * MIB,
			.free_bytes = table[i].free * MIB,
			.sum_own = table[i].own * MIB,
			.sum_size = table[i].size * MIB,
			.sum_allocated = 7 * MIB,
			.reserved_bytes = table[i].reserved * MIB,
			.reserve_pct = table[i].reserve_pct,
			.overcommit = table[i].overcommit};
		struct pool_room room;
		pool_room(&pool, &room);
		cr_expect_eq(room.available_bytes / MIB, table[i].thin, "%u: %llu", i,
			(unsigned long long)(room.available_bytes / MIB));
		cr_expect_eq(room.available_thick_bytes / MIB, table[i].thick, "%u: %llu", i,
			(unsigned long long)(room.available_thick_bytes / MIB));
		cr_expect(room.capacity_bytes == pool.capacity_bytes &&
			  room.free_bytes == pool.free_bytes &&
			  room.provisioned_bytes == pool.sum_size &&
			  room.allocated_bytes == pool.sum_allocated);
		for (unsigned thick = 0; thick < 2; thick++) {
			uint64_t most = thick ? room.available_thick_bytes : room.available_bytes;
			struct pool_admission a = {
				.pool = &pool, .bytes = most + 1, .thick = thick};
			struct op op = {0};
			char want[200];
			snprintf(want, sizeof(want),
				"pool p has %llu MiB left to promise, %llu MiB are needed: delete "
				"volumes or snapshots, grow its file system, or raise overcommit",
				(unsigned long long)(most / MIB),
				(unsigned long long)(most / MIB + 1));
			cr_expect_lt(pool_admit_end(&op, &a, 0), 0);
			cr_expect_eq(op.err.code, ERR_NO_ROOM);
			cr_expect_str_eq(op.err.message, want);
			a.bytes = most;
			cr_expect_eq(pool_admit_end(&op, &a, 0), 0, "%u", i);
			cr_expect_eq(pool.reserved_bytes, table[i].reserved * MIB + most);
			pool_admit_release(&a);
			pool_admit_release(&a);
			cr_expect_eq(pool.reserved_bytes, table[i].reserved * MIB);
			cr_expect_eq(pool_admit_end(&op, &a, -EIO), -EIO);
		}
	}
}

/* Where more is promised than there is, nothing is promised any more, not even nothing. */
Test(room, more_is_promised_than_there_is)
{
	struct pool pool = {.name = "p",
		.capacity_bytes = 1000 * MIB,
		.free_bytes = 100 * MIB,
		.sum_size = 100 * MIB,
		.overcommit = 1.0};
	struct pool_admission a = {.pool = &pool};
	struct op op = {0};
	cr_expect_eq(pool_admit_end(&op, &a, 0), 0);
	pool.sum_size += 3 * MIB + 1;
	cr_expect_lt(pool_admit_end(&op, &a, 0), 0);
	cr_expect_eq(op.err.code, ERR_NO_ROOM);
	cr_expect_str_eq(op.err.message,
		"pool p has promised its volumes 4 MiB more than it has, as snapshots or others on its "
		"file system hold it: delete volumes or snapshots, grow its file system, or raise "
		"overcommit");
	a.has_bytes = 4 * MIB;
	cr_expect_eq(pool_admit_end(&op, &a, 0), 0, "it has them already");
}

/* What a copy has written counts as used, and no more as promised; what it had once stays so. */
Test(room, of_a_copy_that_is_measured)
{
	struct pool pool = {.name = "p", .free_bytes = 100 * MIB, .reserved_bytes = 10 * MIB};
	static struct pool_build b;
	b.pool = &pool;
	b.room = (struct pool_admission){
		.pool = &pool, .bytes = 10 * MIB, .reserved = 10 * MIB, .thick = true};
	static const struct {
		uint64_t has, promised, free;
	} all[] = {{4, 6, 96}, {3, 6, 96}, {4, 6, 96}, {5, 5, 95}, {12, 0, 88}};
	for (unsigned i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		pool_build_measured(&b, all[i].has * MIB);
		cr_expect_eq(pool.reserved_bytes, all[i].promised * MIB, "%u", i);
		cr_expect_eq(pool.free_bytes, all[i].free * MIB, "%u", i);
	}
}

Test(room, overcommit_is_for_thin_volumes)
{
	struct fixture f;
	fixture_make(&f, FIXTURE_XFS, false);
	fixture_open_ring(&f, NULL);
	struct pool_config config = {
		.name = "p", .path = f.path, .overcommit = 10.0, .reserve_pct = 0};
	fixture_open_configs(&f, &config, 1);
	struct pool_room room = fixture_room(&f);
	cr_assert_geq(room.available_bytes, room.free_bytes * 9);
	cr_assert_leq(room.available_thick_bytes, room.free_bytes);
	struct record rec = fixture_volume("thick", room.free_bytes / MIB * MIB + MIB);
	rec.thick = true;
	cr_assert_eq(fixture_build(&f, &rec, NULL, NULL), ERR_NO_ROOM);
	rec.thick = false;
	cr_assert_eq(fixture_build(&f, &rec, NULL, NULL), ERR_OK);
	fixture_close(&f);
}

static unsigned ended;

static void count_end(struct op *op)
{
	(void)op;
	ended++;
}

/* Creates that run at once cannot promise the same bytes twice. */
static void check_parallel(bool thick)
{
	enum { COUNT = 64 };
	static struct pool_build builds[COUNT];
	struct fixture f;
	fixture_open(&f, FIXTURE_XFS);
	uint64_t before = available(&f), size = before / 40 / MIB * MIB;
	unsigned fds = fixture_count_fds(&f), made = 0, refused = 0;
	ended = 0;
	for (unsigned i = 0; i < COUNT; i++) {
		char name[16];
		snprintf(name, sizeof(name), "v%u", i);
		struct record rec = fixture_volume(name, size);
		rec.thick = thick;
		cr_assert_eq(pool_build_init(&builds[i], &f.reactor, f.pool, &rec), 0);
		builds[i].op.on_end = count_end;
		op_start(&builds[i].op);
	}
	while (ended < COUNT)
		fixture_turn(&f);
	for (unsigned i = 0; i < COUNT; i++) {
		made += builds[i].op.err.code == ERR_OK;
		refused += builds[i].op.err.code == ERR_NO_ROOM;
		pool_build_free(&builds[i]);
	}
	cr_assert_eq(made + refused, COUNT);
	cr_assert(made >= 39 && made <= 40 + before % size / size + 1, "%u made", made);
	cr_assert_leq(made * size, before);
	cr_assert_eq(fixture_count_fds(&f), fds);
	struct pool_room room = fixture_room(&f);
	cr_assert_eq(room.provisioned_bytes, made * size);

	struct pool_object *o;
	struct pool_walk walk = {0};
	while ((o = pools_next(f.pools, RECORD_VOLUME, &walk)) != NULL)
		cr_assert_eq(fixture_remove(&f, o), ERR_OK);
	same_as_before(&f, before);
	fixture_close(&f);
}

Test(room, parallel_thin)
{
	check_parallel(false);
}

Test(room, parallel_thick)
{
	check_parallel(true);
}

/* A snapshot makes its volume's blocks shared: each may be needed again. */
Test(room, snapshots)
{
	struct fixture f;
	fixture_open(&f, FIXTURE_XFS);
	if (!pool_features(f.pool)->reflink) {
		fixture_close(&f);
		cr_skip_test("no reflink here");
	}
	struct pool_object *v = fixture_make_volume(&f, "v", 64 * MIB), *s;
	char *data = malloc(MIB), id[RECORD_ID_MAX];
	memset(data, 'x', MIB);
	int fd = openat(pool_dirfd(f.pool, RECORD_VOLUME), "v", O_WRONLY | O_CLOEXEC);
	for (int i = 0; i < 16; i++)
		cr_assert_eq(pwrite(fd, data, MIB, (off_t)i * MIB), MIB);
	fsync(fd);
	close(fd);
	free(data);
	v->node = &f;
	uint64_t before = available(&f);
	v->node = NULL;
	struct record rec = fixture_volume("s", 64 * MIB);
	rec.kind = RECORD_SNAPSHOT;
	rec.source = RECORD_SOURCE_VOLUME;
	pool_object_id(v, id);
	rec.source_id = id;
	cr_assert_eq(fixture_build(&f, &rec, v, &s), ERR_OK);
	cr_assert_leq(available(&f), before - 16 * MIB);
	cr_assert_geq(available(&f), before - 18 * MIB);
	cr_assert_eq(fixture_remove(&f, s), ERR_OK);
	same_as_before(&f, before);
	fixture_close(&f);
}

static void write_all(struct fixture *f, const char *name, unsigned mib, char c)
{
	char *data = malloc(MIB);
	memset(data, c, MIB);
	int fd = openat(pool_dirfd(f->pool, RECORD_VOLUME), name, O_WRONLY | O_CLOEXEC);
	for (unsigned i = 0; i < mib; i++)
		cr_assert_eq(pwrite(fd, data, MIB, (off_t)i * MIB), MIB);
	cr_assert_eq(fsync(fd), 0);
	close(fd);
	free(data);
	available(f);
}

static enum err_code snapshot(
	struct fixture *f, const char *name, struct pool_object *v, uint64_t need_bytes)
{
	struct pool_build b;
	char id[RECORD_ID_MAX];
	struct record rec = fixture_volume(name, v->rec->size_bytes);
	rec.kind = RECORD_SNAPSHOT;
	rec.source = RECORD_SOURCE_VOLUME;
	pool_object_id(v, id);
	rec.source_id = id;
	cr_assert_eq(pool_build_init(&b, &f->reactor, f->pool, &rec), 0);
	b.share_object = v;
	b.need_bytes = need_bytes;
	enum err_code code = fixture_run(f, &b.op);
	pool_build_free(&b);
	return code;
}

/* One snapshot after another of a volume that is written anew in between: each asks for nothing, as
 * its volume shares all it has already, and yet they end before they take what was promised. */
Test(room, snapshots_end)
{
	enum { V = 64, LEFT = 96 };
	struct fixture f;
	fixture_open(&f, FIXTURE_XFS);
	if (!pool_features(f.pool)->reflink) {
		fixture_close(&f);
		cr_skip_test("no reflink here");
	}
	struct pool_object *v = fixture_make_volume(&f, "v", V * MIB);
	v->node = &f; /* is measured */
	write_all(&f, "v", V, 'a');
	uint64_t w_bytes = available(&f) - (uint64_t)(V + LEFT) * MIB;
	fixture_make_volume(&f, "w", w_bytes);
	cr_assert_eq(snapshot(&f, "s1", v, V * MIB), ERR_OK);
	cr_assert_eq(v->shared, true);
	write_all(&f, "v", V, 'b');
	cr_assert_eq(snapshot(&f, "s2", v, 0), ERR_OK);
	write_all(&f, "v", V, 'c');
	cr_assert_eq(available(&f), 0);
	cr_assert_eq(snapshot(&f, "s3", v, 0), ERR_NO_ROOM);
	/* What a snapshot held is there again when it is gone. */
	cr_assert_eq(fixture_remove(&f, pools_find_name(f.pools, RECORD_SNAPSHOT, "s1")), ERR_OK);
	fixture_settle(&f);
	cr_assert_gt(available(&f), 0);
	cr_assert_eq(snapshot(&f, "s3", v, 0), ERR_OK);
	write_all(&f, "v", V, 'd');
	cr_assert_eq(snapshot(&f, "s4", v, 0), ERR_NO_ROOM);
	/* Everybody gets what was promised. */
	write_all(&f, "v", V, 'e');
	int fd = openat(pool_dirfd(f.pool, RECORD_VOLUME), "w", O_RDWR | O_CLOEXEC);
	cr_assert_eq(posix_fallocate(fd, 0, (off_t)w_bytes), 0);
	close(fd);
	v->node = NULL;
	fixture_close(&f);
}

/* A volume that shares all it has can be snapshot again where nothing else fits any more. */
Test(room, snapshot_at_the_limit)
{
	struct fixture f;
	fixture_open(&f, FIXTURE_XFS);
	if (!pool_features(f.pool)->reflink) {
		fixture_close(&f);
		cr_skip_test("no reflink here");
	}
	struct pool_object *v = fixture_make_volume(&f, "v", MIB);
	write_all(&f, "v", 1, 'a');
	cr_assert_eq(snapshot(&f, "s1", v, MIB), ERR_OK);
	fixture_make_volume(&f, "all", available(&f) - MIB);
	cr_assert_leq(available(&f), MIB);
	cr_assert_eq(snapshot(&f, "s2", v, 0), ERR_OK);
	fixture_close(&f);
}

/* ---- measuring fails ---- */

static enum err_code measure(struct fixture *f, const char *part)
{
	struct pool_measure m;
	pool_measure_init(&m, &f->reactor, f->pool, 0);
	enum err_code code = fixture_run(f, &m.op);
	cr_assert_not_null(strstr(m.op.err.message, part), "%s", m.op.err.message);
	return code;
}

Test(room, of_a_pool_that_is_lost)
{
	struct fixture f;
	fixture_open(&f, FIXTURE_DIR);
	f.pool->life = POOL_AWAY;
	strcpy(f.pool->why, "pool p is away");
	cr_assert_eq(measure(&f, "pool p is away"), ERR_UNAVAILABLE);
	f.pool->life = POOL_SERVED;
	cr_assert_eq(measure(&f, ""), ERR_OK);
	fixture_close(&f);
}

static sem_t goes_on;

static int wait_job(struct work_job *job)
{
	(void)job;
	sem_wait(&goes_on);
	return 0;
}

static unsigned jobs_ended;

static void count_job(struct work_job *job, int res)
{
	(void)job;
	cr_assert_eq(res, 0);
	jobs_ended++;
}

/* Whoever asks next is not told of a measure that never began. */
Test(room, of_a_pool_whose_lane_is_full)
{
	static struct work_job jobs[WORK_QUEUE_MAX + WORK_THREADS + 1];
	struct fixture f;
	unsigned count = 0;
	fixture_open(&f, FIXTURE_DIR);
	cr_assert_eq(sem_init(&goes_on, 0, 0), 0);
	fixture_settle(&f); /* what ends of the pool's own would make room */
	int r = 0;
	while (r == 0) {
		cr_assert_lt(count, sizeof(jobs) / sizeof(jobs[0]));
		jobs[count] = (struct work_job){
			.run = wait_job, .on_end = count_job, .lane = f.pool->lane};
		r = work_submit(f.reactor.work, &jobs[count]);
		count += r == 0;
	}
	cr_assert_eq(r, -EAGAIN);
	for (unsigned i = 0; i < 2; i++) {
		measure(&f, "too many blocking calls");
		cr_assert_null(f.pool->measuring);
	}
	for (unsigned i = 0; i < count; i++)
		sem_post(&goes_on);
	while (jobs_ended < count)
		fixture_turn(&f);
	cr_assert_eq(measure(&f, ""), ERR_OK);
	fixture_close(&f);
}
