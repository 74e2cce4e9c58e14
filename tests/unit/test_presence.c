/* SPDX-License-Identifier: Apache-2.0 */
/* Which images are asked for, what the watch names, and what comes of an answer; and what a pool
 * reserves, in memory alone. */
#include "pool_memory.h"

#include "pool/presence.h"
#include "pool/trash.h"
#include "sim_time.h"
#include "simring/sim.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

static struct ring_sim sim;
static struct reactor reactor;
static struct pools pools;
static struct pool pool;
static struct pool_presence p;

static void setup(void)
{
	cr_assert_eq(ring_sim_open(&reactor.ring, &sim), 0);
	pools.reactor = &reactor;
	pool = (struct pool){.pools = &pools, .name = "p", .life = POOL_SERVED};
	list_init(&pool.holds);
	sim_pass_ms(reactor.ring, 5);
	p = (struct pool_presence){0};
}

static void teardown(void)
{
	pool_presence_free(&p);
	cr_assert(p.at == NULL && p.count == 0 && p.cap == 0);
	drop_all(&pool);
	ring_close(reactor.ring);
}

TestSuite(presence, .init = setup, .fini = teardown);

static struct pool_object *put_one(enum record_kind kind, const char *name)
{
	struct record rec = volume(name);
	rec.kind = kind;
	return put(&pool, &rec, 0);
}

static void check_asked(unsigned at, enum record_kind kind, const char *key)
{
	cr_assert_lt(at, p.count);
	cr_expect_eq(p.at[at].kind, kind, "%u: %s", at, key);
	cr_expect_str_eq(p.at[at].key, key);
}

/* ---- asked for ---- */

Test(presence, what_was_wrong_is_asked_for_each_time)
{
	put_one(RECORD_VOLUME, "a");
	put_one(RECORD_VOLUME, "c");
	struct pool_object *b = put_one(RECORD_VOLUME, "b"), *s = put_one(RECORD_SNAPSHOT, "s");
	pool.images_grown = 3;
	pool.images_renewed = 4;
	pool_presence_ask(&pool, &p);
	cr_assert_eq(p.count, 0);
	cr_assert(p.grown == 3 && p.renewed == 4 && !p.lost);
	pool_image_found(b, POOL_IMAGE_MISSING);
	pool_image_found(s, POOL_IMAGE_TRUNCATED);
	cr_assert_eq(pool.images_wrong, 2);
	pool_presence_ask(&pool, &p);
	cr_assert_eq(p.count, 2);
	check_asked(0, RECORD_VOLUME, "b");
	check_asked(1, RECORD_SNAPSHOT, "s");
}

/* In turn, from the end, so many a look; where it is not watched it begins again. */
Test(presence, a_sweep_asks_for_all_of_them_once)
{
	enum { VOLUMES = POOL_PRESENCE_MAX + 1, SNAPSHOTS = 2 };
	char key[16];
	for (unsigned i = 0; i < VOLUMES; i++) {
		snprintf(key, sizeof(key), "v%04u", i);
		put_one(RECORD_VOLUME, key);
	}
	put_one(RECORD_SNAPSHOT, "s0");
	put_one(RECORD_SNAPSHOT, "s1");
	for (unsigned watched = 0; watched < 2; watched++) {
		pool.images_unwatched = !watched;
		pool.images_sweep =
			watched ? VOLUMES + SNAPSHOTS + 1 : 0; /* some have gone since */
		pool_presence_free(&p);
		pool_presence_ask(&pool, &p);
		cr_assert_eq(p.count, POOL_PRESENCE_MAX);
		check_asked(0, RECORD_SNAPSHOT, "s1");
		check_asked(1, RECORD_SNAPSHOT, "s0");
		snprintf(key, sizeof(key), "v%04u", VOLUMES - 1);
		check_asked(2, RECORD_VOLUME, key);
		check_asked(POOL_PRESENCE_MAX - 1, RECORD_VOLUME, "v0003");
		cr_assert_eq(pool.images_sweep, 3);
		pool_presence_free(&p);
		pool_presence_ask(&pool, &p);
		cr_assert_eq(p.count, 3);
		check_asked(0, RECORD_VOLUME, "v0002");
		check_asked(2, RECORD_VOLUME, "v0000");
		cr_assert_eq(pool.images_sweep, 0);
		pool_presence_free(&p);
		pool_presence_ask(&pool, &p);
		cr_assert_eq(p.count, watched ? 0 : POOL_PRESENCE_MAX);
	}
	pool_presence_free(&p);
	drop_all(&pool);
	pool.images_unwatched = true;
	pool.images_sweep = 0;
	pool_presence_ask(&pool, &p);
	cr_assert(p.count == 0 && pool.images_sweep == 0, "there is none");
}

/* More than one look takes: then all are asked for in turn. */
Test(presence, too_many_names_are_as_if_they_were_lost)
{
	enum { NAMES_MAX = 16384 };
	char key[16];
	for (unsigned i = 0; i <= NAMES_MAX; i++) {
		snprintf(key, sizeof(key), "v%06u", i);
		struct pool_object *o = put_one(RECORD_VOLUME, key);
		pool_image_found(o, i < NAMES_MAX ? POOL_IMAGE_MISSING : POOL_IMAGE_WHOLE);
	}
	pool_presence_ask(&pool, &p);
	cr_assert_eq(p.count, NAMES_MAX);
	cr_assert_not(p.lost);
	pool_presence_free(&p);
	pool_image_found(pool_index_find(&pool, RECORD_VOLUME, key), POOL_IMAGE_MISSING);
	pool_presence_ask(&pool, &p);
	cr_assert_eq(p.count, NAMES_MAX);
	cr_assert(p.lost);
	while (pool.index[RECORD_VOLUME].count > 0) /* from the end, where nothing moves */
		drop(pool.index[RECORD_VOLUME].at[pool.index[RECORD_VOLUME].count - 1]);
	cr_assert_eq(pool.images_wrong, 0);
}

/* ---- looked at ---- */

static void write_event(int fd, int wd, uint32_t mask, const char *name)
{
	_Alignas(struct inotify_event) char mem[sizeof(struct inotify_event) + 32] = {0};
	struct inotify_event *event = (struct inotify_event *)mem;
	*event = (struct inotify_event){.wd = wd, .mask = mask, .len = name[0] != '\0' ? 32 : 0};
	snprintf(mem + sizeof(*event), 32, "%s", name);
	size_t len = sizeof(*event) + event->len;
	cr_assert_eq(write(fd, mem, len), (ssize_t)len);
}

static char top[] = "/tmp/ringvol-presence.XXXXXX";
static int fds[POOL_FDS];

static void make_dirs(void)
{
	static const struct {
		enum pool_fd fd;
		const char *name;
	} dirs[] = {{POOL_FD_VOLUMES, "volumes"}, {POOL_FD_SNAPSHOTS, "snapshots"}};
	cr_assert_not_null(mkdtemp(top));
	int root = open(top, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	for (unsigned i = 0; i < 2; i++) {
		cr_assert_eq(mkdirat(root, dirs[i].name, 0700), 0);
		fds[dirs[i].fd] = openat(root, dirs[i].name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	}
	close(root);
}

static void drop_dirs(void)
{
	char command[64];
	close(fds[POOL_FD_VOLUMES]);
	close(fds[POOL_FD_SNAPSHOTS]);
	snprintf(command, sizeof(command), "rm -r %s", top);
	cr_assert_eq(system(command), 0);
}

Test(presence, events_name_what_is_looked_at)
{
	int pair[2];
	struct stat st;
	make_dirs();
	cr_assert_eq(pipe2(pair, O_NONBLOCK | O_CLOEXEC), 0);
	fds[POOL_FD_EVENTS] = pair[0];
	int fd = openat(fds[POOL_FD_SNAPSHOTS], "s", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	cr_assert(ftruncate(fd, 1234) == 0 && fstat(fd, &st) == 0);
	close(fd);
	write_event(pair[1], 1, IN_DELETE, "gone");
	write_event(pair[1], 2, IN_CLOSE_WRITE, "s");
	/* Of no directory of ours, of the directory itself, and of no key. */
	write_event(pair[1], 3, IN_DELETE, "other");
	write_event(pair[1], 0, IN_DELETE, "other");
	write_event(pair[1], 1, IN_DELETE, "");
	write_event(pair[1], 1, IN_DELETE, ".hidden");
	pool_presence_look(&p, fds);
	cr_assert_eq(p.count, 2);
	cr_assert_not(p.lost);
	check_asked(0, RECORD_VOLUME, "gone");
	cr_assert_eq(p.at[0].res, -ENOENT);
	check_asked(1, RECORD_SNAPSHOT, "s");
	cr_assert_eq(p.at[1].res, 0);
	cr_assert_eq(p.at[1].size_bytes, 1234);
	cr_assert(p.at[1].image_dev == st.st_dev && p.at[1].image_ino == st.st_ino);
	write_event(pair[1], -1, IN_Q_OVERFLOW, "");
	pool_presence_look(&p, fds);
	cr_assert(p.lost);
	cr_assert_eq(p.count, 2);
	close(pair[0]);
	close(pair[1]);
	drop_dirs();
}

/* As the kernel names it: what is deleted, moved away or may have been cut. */
Test(presence, the_watch_tells_what_was_touched)
{
	make_dirs();
	int fd = pool_presence_watch(fds[POOL_FD_VOLUMES], fds[POOL_FD_SNAPSHOTS]);
	cr_assert_geq(fd, 0);
	fds[POOL_FD_EVENTS] = fd;
	pool_presence_look(&p, fds);
	cr_assert_eq(p.count, 0);
	close(openat(fds[POOL_FD_VOLUMES], "v", O_RDWR | O_CREAT | O_CLOEXEC, 0600));
	close(openat(fds[POOL_FD_SNAPSHOTS], "s", O_RDWR | O_CREAT | O_CLOEXEC, 0600));
	close(openat(fds[POOL_FD_VOLUMES], "v", O_RDONLY | O_CLOEXEC));
	cr_assert_eq(renameat(fds[POOL_FD_VOLUMES], "v", fds[POOL_FD_VOLUMES], "w"), 0);
	cr_assert_eq(unlinkat(fds[POOL_FD_SNAPSHOTS], "s", 0), 0);
	pool_presence_look(&p, fds);
	cr_assert_eq(p.count, 4);
	check_asked(0, RECORD_VOLUME, "v");
	check_asked(1, RECORD_SNAPSHOT, "s");
	check_asked(2, RECORD_VOLUME, "v");
	check_asked(3, RECORD_SNAPSHOT, "s");
	close(fd);
	cr_assert_eq(pool_presence_watch(-1, fds[POOL_FD_SNAPSHOTS]), -ENOENT);
	cr_assert_eq(pool_presence_watch(fds[POOL_FD_VOLUMES], fds[POOL_FD_VOLUMES]), -EPROTO);
	drop_dirs();
}

/* ---- what was found ---- */

Test(presence, an_answer_changes_what_is_known)
{
	static const struct {
		const char *what;
		int res;
		uint64_t size;
		unsigned grown, renewed;
		enum pool_image was, is;
		bool other_file;
	} all[] = {
		{"whole", 0, 8 * MIB, 0, 0, POOL_IMAGE_WHOLE, POOL_IMAGE_WHOLE, true},
		{"larger", 0, 9 * MIB, 0, 0, POOL_IMAGE_WHOLE, POOL_IMAGE_WHOLE, true},
		{"cut", 0, 8 * MIB - 1, 0, 0, POOL_IMAGE_WHOLE, POOL_IMAGE_TRUNCATED, true},
		{"gone", -ENOENT, 0, 0, 0, POOL_IMAGE_WHOLE, POOL_IMAGE_MISSING, false},
		{"nobody knows", -EIO, 0, 0, 0, POOL_IMAGE_MISSING, POOL_IMAGE_MISSING, false},
		{"still gone", -ENOENT, 0, 0, 0, POOL_IMAGE_MISSING, POOL_IMAGE_MISSING, false},
		{"back", 0, 8 * MIB, 0, 0, POOL_IMAGE_MISSING, POOL_IMAGE_WHOLE, true},
		{"grown meanwhile", 0, 4 * MIB, 1, 0, POOL_IMAGE_WHOLE, POOL_IMAGE_WHOLE, true},
		{"grown, and gone", -ENOENT, 0, 1, 0, POOL_IMAGE_WHOLE, POOL_IMAGE_MISSING, false},
		{"renewed", 0, 8 * MIB, 0, 1, POOL_IMAGE_TRUNCATED, POOL_IMAGE_WHOLE, false},
	};
	struct pool_object *o = put_one(RECORD_VOLUME, "v"), *other = put_one(RECORD_VOLUME, "w");
	struct pool_object *q = put_quarantined(&pool, RECORD_VOLUME, "q", MIB);
	for (unsigned i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		struct pool_presence_item items[] = {{.kind = RECORD_VOLUME,
							     .key = "v",
							     .res = all[i].res,
							     .size_bytes = all[i].size,
							     .image_dev = 5,
							     .image_ino = 6},
			{.kind = RECORD_VOLUME, .key = "nobody", .res = -ENOENT},
			{.kind = RECORD_VOLUME, .key = "q", .res = -ENOENT},
			{.kind = RECORD_SNAPSHOT, .key = "w", .res = -ENOENT}};
		struct pool_presence found = {.at = items, .count = 4};
		pool_image_found(o, POOL_IMAGE_WHOLE);
		cr_assert_eq(o->wrong_since_ns, 0);
		pool_image_found(o, all[i].was);
		uint64_t was_ns = o->wrong_since_ns;
		cr_assert_eq(was_ns != 0, all[i].was != POOL_IMAGE_WHOLE);
		sim_pass_ms(reactor.ring, 1000);
		o->image_dev = o->image_ino = 1;
		pool.images_grown = all[i].grown;
		pool.images_renewed = all[i].renewed;
		pool.images_sweep = 0;
		pool_presence_apply(&pool, &found);
		cr_expect_eq(o->image, all[i].is, "%s: %d", all[i].what, (int)o->image);
		cr_expect_eq(pool.images_wrong, all[i].is != POOL_IMAGE_WHOLE, "%s", all[i].what);
		cr_expect_eq(o->image_dev == 5 && o->image_ino == 6, all[i].other_file, "%s",
			all[i].what);
		cr_expect_eq(o->wrong_since_ns,
			all[i].is == POOL_IMAGE_WHOLE    ? 0
			: all[i].was == POOL_IMAGE_WHOLE ? ring_now_ns(reactor.ring)
							 : was_ns,
			"%s", all[i].what);
		cr_expect_eq(pool.images_sweep, all[i].renewed ? 3 : 0, "%s", all[i].what);
	}
	cr_assert(other->image == POOL_IMAGE_WHOLE && q->image == POOL_IMAGE_WHOLE);
	put_one(RECORD_SNAPSHOT, "s");
	pool.images_renewed = 0;
	pool_presence_apply(&pool, &(struct pool_presence){.lost = true});
	cr_assert_eq(pool.images_sweep, 4, "all, snapshots too");
}

/* ---- reserved, and used ---- */

TestSuite(reserved, .init = setup, .fini = teardown);

/* What was reserved goes over to what is there bit by bit, and never below nothing. */
Test(reserved, is_given_back_bit_by_bit)
{
	for (unsigned thick = 0; thick < 2; thick++) {
		struct pool_admission a = {.pool = &pool, .thick = thick, .reserved = 10};
		pool.reserved_bytes = 15;
		pool.reserved_thin_bytes = thick ? 5 : 15;
		pool_admit_has(&a, 4);
		cr_expect_eq(a.reserved, 6);
		cr_expect_eq(pool.reserved_bytes, 11);
		cr_expect_eq(pool.reserved_thin_bytes, thick ? 5 : 11);
		pool_admit_has(&a, 7);
		cr_expect_eq(a.reserved, 0);
		cr_expect_eq(pool.reserved_bytes, 5);
		cr_expect_eq(pool.reserved_thin_bytes, 5);
		pool_admit_release(&a);
		cr_expect_eq(pool.reserved_bytes, 5);
	}
}

Test(reserved, what_is_used_is_not_free)
{
	struct pool_object *o = put_one(RECORD_VOLUME, "v");
	pool.free_bytes = 5 * MIB;
	pool_object_measured(o, 2 * MIB);
	cr_assert(pool.free_bytes == 3 * MIB && pool.used_bytes == 2 * MIB);
	cr_assert(o->allocated_bytes == 2 * MIB && pool.sum_allocated == 2 * MIB);
	/* What it gave back is counted by the next measure. */
	pool_object_measured(o, MIB);
	cr_assert(pool.free_bytes == 3 * MIB && pool.used_bytes == 2 * MIB);
	cr_assert(pool.sum_allocated == MIB && pool.sum_own == MIB);
	pool_room_used(&pool, 4 * MIB);
	cr_assert(pool.free_bytes == 0 && pool.used_bytes == 6 * MIB);
	pool.measured_ns = ring_now_ns(reactor.ring);
	cr_assert(pool_room_known(&pool, 1000));
	cr_assert_not(pool_room_known(&pool, 0));
	sim_pass_ms(reactor.ring, 1000);
	cr_assert(pool_room_known(&pool, 2000));
	cr_assert_not(pool_room_known(&pool, 900));
	pool.life = POOL_AWAY;
	cr_assert_not(pool_room_known(&pool, 2000));
	pool.life = POOL_SERVED;
	pool_room_stale(&pool);
	cr_assert_not(pool_room_known(&pool, 1000000));
}

/* The size below which a file system is full: a 256th of it, and 16 MiB at most. */
Test(reserved, a_pool_is_full_below_a_limit_and_not_at_it)
{
	static const struct {
		enum pool_usage_level was;
		uint64_t capacity, free;
		enum pool_usage_level is;
	} all[] = {
		{POOL_ROOMY, 0, 0, POOL_ROOMY},
		{POOL_FULL, 0, 0, POOL_ROOMY},
		{POOL_ROOMY, 25600, 99, POOL_FULL},
		{POOL_ROOMY, 25600, 100, POOL_NEARLY_FULL},
		{POOL_ROOMY, 25600, 767, POOL_NEARLY_FULL},
		{POOL_ROOMY, 25600, 768, POOL_ROOMY},
		{POOL_NEARLY_FULL, 25600, 99, POOL_FULL},
		{POOL_NEARLY_FULL, 25600, 1023, POOL_NEARLY_FULL},
		{POOL_NEARLY_FULL, 25600, 1024, POOL_ROOMY},
		{POOL_FULL, 25600, 199, POOL_FULL},
		{POOL_FULL, 25600, 200, POOL_NEARLY_FULL},
		{POOL_FULL, 25600, 1024, POOL_ROOMY},
		{POOL_ROOMY, UINT64_C(1) << 40, (16 << 20) - 1, POOL_FULL},
		{POOL_ROOMY, UINT64_C(1) << 40, 16 << 20, POOL_NEARLY_FULL},
	};
	for (unsigned i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		pool.usage = (struct pool_usage){.level = all[i].was, .since_ns = 7};
		pool_usage_see(&pool, all[i].capacity, all[i].free);
		const struct pool_usage *usage = pool_usage(&pool);
		cr_expect_eq(usage->level, all[i].is, "%u: %d", i, (int)usage->level);
		cr_expect_eq(usage->capacity_bytes, all[i].capacity);
		cr_expect_eq(usage->free_bytes, all[i].free);
		cr_expect_eq(usage->since_ns,
			all[i].is == all[i].was ? 7 : ring_now_ns(reactor.ring), "%u", i);
	}
}

/* ---- lives ---- */

TestSuite(life, .init = setup, .fini = teardown);

static unsigned changes;

static void on_changed(void *arg, struct pool *its)
{
	cr_assert(arg == &changes && its == &pool);
	changes++;
}

/* Each as others see it, and told once where that has changed. */
Test(life, is_seen_from_outside)
{
	static const struct {
		enum pool_life life;
		enum pool_state state;
		bool loaded, answers, changed;
	} steps[] = {
		{POOL_AWAY, POOL_MISSING, false, true, true},
		{POOL_AWAY, POOL_MISSING, false, true, false},
		{POOL_UNREAD, POOL_SICK, false, true, true},
		{POOL_UNREAD_MUTE, POOL_SICK, false, false, false},
		{POOL_SERVED, POOL_READY, true, true, true},
		{POOL_READ_ONLY, POOL_SICK, true, true, true},
		{POOL_MUTE, POOL_SICK, true, false, false},
		{POOL_SERVED, POOL_READY, true, true, true},
		{POOL_AWAY, POOL_MISSING, false, true, true},
	};
	struct err err = {0};
	pool.life = POOL_NEW;
	pool.fds[POOL_FD_VOLUMES] = 10;
	pool.fds[POOL_FD_SNAPSHOTS] = 11;
	pool.fds[POOL_FD_LOCK] = 12;
	pools.arg = &changes;
	pools.on_changed = on_changed;
	cr_assert_eq(pool_state(&pool), POOL_LOADING);
	cr_assert(pool_is_being_read(&pool) && pool_answers(&pool));
	for (unsigned i = 0; i < sizeof(steps) / sizeof(steps[0]); i++) {
		uint64_t since_ns = pool.state_since_ns;
		bool ready = steps[i].state == POOL_READY;
		changes = 0;
		sim_pass_ms(reactor.ring, 10);
		pool_enter(&pool, steps[i].life, "why %u", i);
		cr_expect_eq(pool_state(&pool), steps[i].state, "%u", i);
		cr_expect_eq(pool_loaded(&pool), steps[i].loaded, "%u", i);
		cr_expect_eq(pool_answers(&pool), steps[i].answers, "%u", i);
		cr_expect_eq(changes, steps[i].changed, "%u", i);
		cr_expect_eq(pool_state_since_ns(&pool),
			steps[i].changed ? ring_now_ns(reactor.ring) : since_ns, "%u", i);
		cr_expect_eq(pool_dirfd(&pool, RECORD_VOLUME), ready ? 10 : -1, "%u", i);
		cr_expect_eq(pool_dirfd(&pool, RECORD_SNAPSHOT), ready ? 11 : -1, "%u", i);
		cr_expect_eq(pool_lock_fd(&pool), steps[i].loaded ? 12 : -1, "%u", i);
		cr_expect_eq(pool_is_being_read(&pool), steps[i].life == POOL_UNREAD_MUTE, "%u", i);
		err_clear(&err);
		pool.ops = 1;
		cr_expect_eq(pool_op_begin(&pool, &err) == 0, ready, "%u", i);
		cr_expect_eq(pool.ops, ready ? 2 : 1, "%u", i);
		cr_expect_eq(err.code, ready ? ERR_OK : ERR_UNAVAILABLE, "%u", i);
		cr_expect_str_eq(err.message, ready ? "" : pool_why(&pool));
		pool_op_finish(&pool);
		cr_expect_eq(pool.ops, ready ? 1 : 0, "%u", i);
	}
	cr_expect_str_eq(pool_why(&pool), "why 8");
	pools.on_changed = NULL;
}

/* That it will be known soon is said for a minute. */
Test(life, a_load_that_hangs_is_waited_for)
{
	pool.life = POOL_NEW;
	pool_enter(&pool, POOL_UNREAD_MUTE, "hangs");
	sim_pass_ms(reactor.ring, POOL_UNREAD_WAIT_MS - 1000);
	cr_assert(pool_is_being_read(&pool));
	sim_pass_ms(reactor.ring, 1001);
	cr_assert_not(pool_is_being_read(&pool));
}

static unsigned told;

static void on_told(struct ring_timer *timer)
{
	(void)timer;
	told++;
}

/* When the last one is no longer new, once, and not before they have started. */
Test(life, all_are_read_when_none_is_new)
{
	struct pool other = {.pools = &pools, .life = POOL_AWAY};
	pools.count = 2;
	pools.at[0] = &other;
	pools.at[1] = &pool;
	pools.told.fn = on_told;
	told = 0;
	for (unsigned i = 0; i < 4; i++) {
		pool.life = i == 0 ? POOL_NEW : POOL_SERVED;
		pools.started = i != 1;
		pools.loaded_told = i == 2;
		pools_tell_when_loaded(&pools);
		sim_pass_ms(reactor.ring, 1);
		cr_expect_eq(told, i == 3, "%u", i);
	}
	cr_assert_eq(pools_at(&pools, 1), &pool);
	cr_assert_null(pools_at(&pools, 2));
	pools.count = 0;
}

Test(life, blocks_are_as_large_as_shared_ones_have_to_be)
{
	static const uint32_t aligns[][2] = {{0, 512}, {512, 512}, {513, 513}, {4096, 4096}};
	for (unsigned i = 0; i < 4; i++) {
		pool.features.shared_dio_align = aligns[i][0];
		cr_expect_eq(pool_block_size(&pool), aligns[i][1]);
	}
}

/* Without a uuid it is nobody's. */
Test(life, pools_are_told_apart)
{
	struct pool other = {.pools = &pools, .name = "other"};
	pools.count = 2;
	pools.at[0] = &other;
	pools.at[1] = &pool;
	strcpy(pool.uuid8, "01234567");
	cr_assert_eq(pools_by_uuid8(&pools, "01234567"), &pool);
	cr_assert_null(pools_by_uuid8(&pools, ""));
	cr_assert_null(pools_by_uuid8(&pools, "01234568"));
	cr_assert_eq(pools_by_name(&pools, "p"), &pool);
	cr_assert_eq(pools_by_name(&pools, "other"), &other);
	cr_assert_null(pools_by_name(&pools, "q"));
	pools.count = 0;
}

/* ---- names of the trash ---- */

Test(trash, names_of_ours)
{
	static const struct {
		const char *name;
		bool valid;
	} all[] = {{"0123456789abcdef", true}, {"0123456789abcde", false},
		{"0123456789abcdef0", false}, {"0123456789abcdeg", false},
		{"0123456789ABCDEF", false}, {"new-0123456789abcdef", true},
		{"new-0123456789abcde", false}, {"new-0123456789abcdef0", false},
		{"new-0123456789abcdeg", false}, {"neu-0123456789abcdef", false}, {"new-", false},
		{"", false}};
	for (unsigned i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		cr_expect_eq(trash_name_valid(all[i].name), all[i].valid, "%s", all[i].name);
	char name[TRASH_PARKED_NAME_BYTES], again[TRASH_PARKED_NAME_BYTES];
	trash_name_parked(name);
	trash_name_parked(again);
	cr_assert(trash_name_valid(name) && strncmp(name, "new-", 4) == 0);
	cr_assert_eq(strlen(name), sizeof(name) - 1);
	cr_assert_str_neq(name, again);
}
