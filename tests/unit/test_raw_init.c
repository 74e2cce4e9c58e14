/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Making and growing raw pools (pool/raw_init.h): what is called in which order, what the trash
 * owns then, and what is left when any of it fails. The records are a directory; what happens to
 * the disks is the test's, put there by the linker.
 */
#include "raw_fixture.h"

#include "disk/init.h"
#include "pool/raw_init.h"

#include <sys/file.h>

int __wrap_disk_open(
	const char *path, enum disk_use use, const char *node, struct disk **ret, struct err *err);
int __wrap_disk_records(struct disk *disk, bool read_only, int *ret_root_fd, struct err *err);
int __wrap_disk_init_begin(
	const char *device, const char *path, struct disk_change *ret, struct err *err);
int __wrap_disk_init_records(const struct disk_change *change, struct err *err);
int __wrap_disk_init_end(struct disk_change *change, struct err *err);
int __wrap_disk_grow_begin(const char *path, struct disk *disk, const char *device,
	struct disk_change *ret, struct err *err);
int __wrap_disk_grow_end(struct disk_change *change, struct err *err);
void __wrap_disk_change_drop(struct disk_change *change);
int __wrap_syncfs(int fd);
void __wrap_clock_sleep_ms(unsigned ms);
int __wrap_unlinkat(int dir, const char *name, int flags);
int __real_unlinkat(int dir, const char *name, int flags);

#define GIB ((uint64_t)1 << 30)

enum { CHANGES = 3, AREA_MIB = 32 };

/* ---- what the linker puts there ---- */

static struct {
	char top[64], records[96]; /* the pool's place is top */
	struct disk disk;
	struct {
		uint64_t start, bytes;
		bool existed;
	} changes[CHANGES];
	unsigned changed;
	const char *device;
	char calls[128]; /* the first letters of those that were made, in order */
	char fails;      /* this one */
	bool loses_trash;
} world;

static int called(char letter, struct err *err)
{
	size_t len = strlen(world.calls);
	cr_assert_lt(len + 1, sizeof(world.calls));
	world.calls[len] = letter;
	return letter == world.fails ? err_set(err, ERR_UNAVAILABLE, "%c failed", letter) : 0;
}

int __wrap_disk_open(
	const char *path, enum disk_use use, const char *node, struct disk **ret, struct err *err)
{
	cr_assert(use == DISK_CHANGE && node == NULL && strcmp(path, world.top) == 0);
	int r = called('o', err);
	if (r == 0)
		*ret = disk_ref(&world.disk);
	return r;
}

int __wrap_disk_records(struct disk *disk, bool read_only, int *ret_root_fd, struct err *err)
{
	cr_assert(disk == &world.disk && !read_only);
	int r = called('r', err);
	if (r == 0)
		*ret_root_fd = open(world.records, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return r;
}

static int begin(char letter, struct disk_change *ret, struct err *err)
{
	int r = called(letter, err);
	cr_assert_lt(world.changed, CHANGES);
	unsigned i = world.changed++;
	*ret = (struct disk_change){.existed = world.changes[i].existed,
		.disk = &world.disk,
		.start = world.changes[i].start,
		.bytes = world.changes[i].bytes,
		.first = {.bytes = AREA_MIB * RAW_MIB, .records_bytes = 3 * RAW_MIB}};
	strcpy(ret->first.pool, RAW_POOL_UUID);
	return r;
}

int __wrap_disk_init_begin(
	const char *device, const char *path, struct disk_change *ret, struct err *err)
{
	cr_assert(strcmp(device, "/dev/sdx") == 0 && strcmp(path, world.top) == 0);
	return begin('b', ret, err);
}

int __wrap_disk_init_records(const struct disk_change *change, struct err *err)
{
	cr_assert_eq(change->disk, &world.disk);
	return called('f', err);
}

static unsigned count_trash(uint64_t *ret_bytes);
static bool is_locked(void);

/* All of it is owned by then. */
static int end(const struct disk_change *change, struct err *err)
{
	uint64_t bytes;
	count_trash(&bytes);
	cr_expect_geq(bytes, change->bytes);
	return called('e', err);
}

int __wrap_disk_init_end(struct disk_change *change, struct err *err)
{
	return end(change, err);
}

int __wrap_disk_grow_begin(const char *path, struct disk *disk, const char *device,
	struct disk_change *ret, struct err *err)
{
	cr_assert(disk == &world.disk && strcmp(path, world.top) == 0);
	cr_assert_eq(device, world.device);
	cr_expect(is_locked(), "no driver begins to serve it meanwhile");
	if (world.loses_trash)
		fixture_sh("rm -r %s/trash", world.records);
	return begin('g', ret, err);
}

int __wrap_disk_grow_end(struct disk_change *change, struct err *err)
{
	cr_expect(is_locked());
	return end(change, err);
}

void __wrap_disk_change_drop(struct disk_change *change)
{
	struct err err = {0};
	cr_assert_eq(change->disk, &world.disk);
	called('d', &err);
}

int __wrap_syncfs(int fd)
{
	struct err err = {0};
	cr_assert_geq(fd, 0);
	errno = EIO;
	return called('s', &err) < 0 ? -1 : 0;
}

void __wrap_clock_sleep_ms(unsigned ms)
{
	cr_assert_gt(ms, 0);
}

int __wrap_unlinkat(int dir, const char *name, int flags)
{
	if (world.fails != 'u' || strcmp(name, "off") != 0)
		return __real_unlinkat(dir, name, flags);
	errno = EROFS;
	return -1;
}

/* ---- the world ---- */

static void world_make(void)
{
	if (geteuid() != 0)
		cr_skip_test("needs root: pools use trusted.* attributes");
	memset(&world, 0, sizeof(world));
	strcpy(world.top, "/tmp/ringvol-pool.XXXXXX");
	cr_assert_not_null(mkdtemp(world.top));
	snprintf(world.records, sizeof(world.records), "%s/records", world.top);
	cr_assert_eq(mkdir(world.records, 0700), 0);
	world.disk = (struct disk){.uuid = RAW_POOL_UUID,
		.count = 1,
		.refs = 1,
		.members = {{.fd = -1, .start = 0, .bytes = AREA_MIB * RAW_MIB}}};
	world.changes[0].bytes = AREA_MIB * RAW_MIB;
	world.changes[1].existed = world.changes[2].existed = true;
}

static void world_drop(void)
{
	cr_expect_eq(world.disk.refs, 1);
	fixture_sh("rm -rf %s", world.top);
}

/* Records as raw_init() makes them. */
static void make_records(void)
{
	struct fs_features features;
	struct err err = {0};
	bool existed;
	_cleanup_fd_ int root = open(world.records, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	cr_assert_eq(pool_init_root(root, "records", RAW_POOL_UUID, &features, &existed, &err), 0);
}

static struct image_map trash_maps[8];

/* Sorted by where they begin. */
static unsigned count_trash(uint64_t *ret_bytes)
{
	char path[128];
	unsigned count = 0;
	*ret_bytes = 0;
	snprintf(path, sizeof(path), "%s/trash", world.records);
	DIR *dir = opendir(path);
	for (const struct dirent *e; dir != NULL && (e = readdir(dir)) != NULL;) {
		_cleanup_fd_ int fd = openat(dirfd(dir), e->d_name, O_RDONLY | O_CLOEXEC);
		struct image_map map;
		if (e->d_name[0] == '.' || image_map_read(fd, &map) < 0 || map.count == 0)
			continue;
		cr_assert_lt(count, 8);
		unsigned at = count++;
		for (; at > 0 && trash_maps[at - 1].pieces[0].address > map.pieces[0].address; at--)
			trash_maps[at] = trash_maps[at - 1];
		trash_maps[at] = map;
		*ret_bytes += image_map_bytes(&map);
	}
	if (dir != NULL)
		closedir(dir);
	return count;
}

static bool is_locked(void)
{
	char path[128];
	snprintf(path, sizeof(path), "%s/" POOL_FILE, world.records);
	_cleanup_fd_ int fd = open(path, O_RDONLY | O_CLOEXEC);
	return fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) < 0;
}

static void put_trash(const char *name, const uint64_t (*pieces)[2], unsigned count)
{
	char path[128];
	struct image_map map = {0};
	snprintf(path, sizeof(path), "%s/trash/%s", world.records, name);
	_cleanup_fd_ int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	for (unsigned i = 0; i < count; i++)
		cr_assert_eq(
			image_map_add(&map, pieces[i][0] * RAW_MIB, pieces[i][1] * RAW_MIB), 0);
	cr_assert_eq(image_map_write(fd, &map), 0);
}

static bool has_trash(const char *name)
{
	char path[128];
	snprintf(path, sizeof(path), "%s/trash/%s", world.records, name);
	return access(path, F_OK) == 0;
}

TestSuite(raw_init, .init = world_make, .fini = world_drop);
TestSuite(raw_grow, .init = world_make, .fini = world_drop);

/* ---- making one ---- */

Test(raw_init, all_of_it_is_owned_before_the_end)
{
	static const struct {
		uint64_t bytes;
		unsigned files;
	} cases[] = {{AREA_MIB * RAW_MIB, 1}, {64 * GIB, 1}, {64 * GIB + RAW_MIB, 2},
		{128 * GIB - RAW_MIB, 2}, {192 * GIB, 3}};
	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct raw_made made = {.existed = true};
		struct err err = {0};
		uint64_t bytes, at = 7 * RAW_MIB;
		if (i > 0)
			fixture_sh("rm -r %s/*", world.records);
		world.changes[0].start = at;
		world.changes[0].bytes = cases[i].bytes;
		world.changed = 0;
		memset(world.calls, 0, sizeof(world.calls));
		cr_assert_eq(raw_init("/dev/sdx", world.top, &made, &err), 0, "%s", err.message);
		cr_expect_str_eq(world.calls, "bfrsed", "%s", world.calls);
		cr_expect(!made.existed && made.area_bytes == cases[i].bytes);
		cr_expect_eq(made.records_bytes, 3 * RAW_MIB);
		cr_expect_str_eq(made.uuid, RAW_POOL_UUID);
		cr_expect_eq(count_trash(&bytes), cases[i].files, "%u", i);
		cr_expect_eq(bytes, cases[i].bytes, "%u", i);
		for (unsigned n = 0; n < cases[i].files; n++) {
			cr_expect(
				trash_maps[n].count == 1 && trash_maps[n].pieces[0].address == at);
			at += trash_maps[n].pieces[0].bytes;
		}
		cr_expect_not(is_locked());
	}
}

Test(raw_init, the_records_are_a_pool_of_that_uuid)
{
	struct raw_made made;
	struct err err = {0};
	char path[128], uuid[UUID_BYTES];
	cr_assert_eq(raw_init("/dev/sdx", world.top, &made, &err), 0, "%s", err.message);
	snprintf(path, sizeof(path), "%s/" POOL_FILE, world.records);
	_cleanup_fd_ int fd = open(path, O_RDONLY | O_CLOEXEC);
	cr_assert_eq(pool_file_read(fd, uuid), 0);
	cr_expect_str_eq(uuid, RAW_POOL_UUID);
}

Test(raw_init, one_that_is_there_stays_as_it_is)
{
	struct raw_made made = {0};
	struct err err = {0};
	world.changes[0].existed = true;
	world.changes[0].bytes = 0;
	cr_assert_eq(raw_init("/dev/sdx", world.top, &made, &err), 0, "%s", err.message);
	cr_expect_str_eq(world.calls, "bd");
	cr_expect(made.existed && made.area_bytes == AREA_MIB * RAW_MIB);
	cr_expect_eq(made.records_bytes, 3 * RAW_MIB);
	cr_expect_str_eq(made.uuid, RAW_POOL_UUID);
}

/* The change is dropped as a crash leaves it, and nobody is told of a pool. */
Test(raw_init, each_step_fails)
{
	static const struct {
		char fails;
		const char *calls, *why;
		enum err_code code;
	} cases[] = {
		{'b', "b", "b failed", ERR_UNAVAILABLE},
		{'f', "bfd", "f failed", ERR_UNAVAILABLE},
		{'r', "bfrd", "r failed", ERR_UNAVAILABLE},
		{'s', "bfrsd", "writing the records of /tmp/", ERR_INTERNAL},
		{'e', "bfrsed", "e failed", ERR_UNAVAILABLE},
	};
	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct raw_made made = {.records_bytes = 17};
		struct err err = {0};
		world.changed = 0;
		memset(world.calls, 0, sizeof(world.calls));
		world.fails = cases[i].fails;
		cr_expect_lt(raw_init("/dev/sdx", world.top, &made, &err), 0, "%u", i);
		cr_expect_str_eq(world.calls, cases[i].calls, "%s", world.calls);
		cr_expect_eq(err.code, cases[i].code, "%u: %d", i, err.code);
		cr_expect_not_null(strstr(err.message, cases[i].why), "%s", err.message);
		cr_expect_eq(made.records_bytes, 17);
	}
}

Test(raw_init, records_or_an_area_that_cannot_be)
{
	struct raw_made made;
	struct err err = {0};
	world.changes[0].start = 512; /* no unit begins there */
	cr_expect_eq(raw_init("/dev/sdx", world.top, &made, &err), -EINVAL);
	cr_expect_str_eq(world.calls, "bfrd", "%s", world.calls);
	cr_expect_not_null(strstr(err.message, "writing the records of"), "%s", err.message);
	fixture_sh("rm -r %s/* && touch %s/other", world.records, world.records);
	err = (struct err){0};
	world.changed = 0;
	memset(world.calls, 0, sizeof(world.calls));
	cr_expect_lt(raw_init("/dev/sdx", world.top, &made, &err), 0);
	cr_expect_str_eq(world.calls, "bfrd", "%s", world.calls);
	cr_expect_not_null(strstr(err.message, "there is other"), "%s", err.message);
}

/* ---- growing one ---- */

static int grow(struct raw_made *made, struct err *err)
{
	world.changed = 0;
	memset(world.calls, 0, sizeof(world.calls));
	*err = (struct err){0};
	*made = (struct raw_made){.area_bytes = 17};
	int r = raw_grow(world.top, world.device, made, err);
	cr_expect_not(is_locked());
	cr_expect_eq(world.disk.refs, 1);
	return r;
}

Test(raw_grow, by_a_disk)
{
	struct raw_made made;
	struct err err;
	uint64_t bytes;
	make_records();
	world.device = "/dev/sdy";
	world.changes[0].start = (uint64_t)1 << 48;
	cr_assert_eq(grow(&made, &err), 0, "%s", err.message);
	cr_expect_str_eq(world.calls, "orsgsed", "%s", world.calls);
	cr_expect(!made.existed && made.area_bytes == AREA_MIB * RAW_MIB);
	cr_expect_eq(made.records_bytes, 3 * RAW_MIB);
	cr_expect_str_eq(made.uuid, RAW_POOL_UUID);
	cr_expect_eq(count_trash(&bytes), 1);
	cr_expect_eq(trash_maps[0].pieces[0].address, (uint64_t)1 << 48);
	/* That is there already. */
	world.changes[0].existed = true;
	cr_assert_eq(grow(&made, &err), 0, "%s", err.message);
	cr_expect_str_eq(world.calls, "orsgd", "%s", world.calls);
	cr_expect(made.existed && made.area_bytes == AREA_MIB * RAW_MIB);
}

/* Each disk that has grown, and what they have grown by in all. */
Test(raw_grow, by_what_disks_have_grown)
{
	struct raw_made made;
	struct err err;
	uint64_t bytes;
	make_records();
	world.changes[0].bytes = 10 * RAW_MIB;
	world.changes[1].bytes = 20 * RAW_MIB;
	world.changes[1].start = 100 * RAW_MIB;
	world.changes[1].existed = false;
	cr_assert_eq(grow(&made, &err), 0, "%s", err.message);
	cr_expect_str_eq(world.calls, "orsgsedgsedgd", "%s", world.calls);
	cr_expect(!made.existed && made.area_bytes == 30 * RAW_MIB);
	cr_expect_eq(count_trash(&bytes), 2);
	cr_expect_eq(bytes, 30 * RAW_MIB);
	/* None has. */
	world.changes[0].existed = true;
	cr_assert_eq(grow(&made, &err), 0, "%s", err.message);
	cr_expect_str_eq(world.calls, "orsgd", "%s", world.calls);
	cr_expect(made.existed && made.area_bytes == AREA_MIB * RAW_MIB);
}

Test(raw_grow, each_step_fails)
{
	static const struct {
		char fails;
		const char *calls, *why;
	} cases[] = {
		{'o', "o", "o failed"},
		{'r', "or", "r failed"},
		{'s', "ors", "looking through the trash of the pool at /tmp/"},
		{'g', "orsg", "g failed"},
		{'e', "orsgsed", "e failed"},
	};
	make_records();
	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct raw_made made;
		struct err err;
		world.fails = cases[i].fails;
		cr_expect_lt(grow(&made, &err), 0, "%u", i);
		cr_expect_str_eq(world.calls, cases[i].calls, "%s", world.calls);
		cr_expect_not_null(strstr(err.message, cases[i].why), "%s", err.message);
		cr_expect_eq(made.area_bytes, 17);
	}
}

Test(raw_grow, without_a_trash_nothing_is_owned)
{
	struct raw_made made;
	struct err err;
	make_records();
	world.loses_trash = true;
	cr_expect_eq(grow(&made, &err), -ENOENT);
	cr_expect_str_eq(world.calls, "orsgd", "%s", world.calls);
	cr_expect_not_null(strstr(err.message, "writing the records of"), "%s", err.message);
	cr_expect_eq(grow(&made, &err), -ENOENT);
	cr_expect_str_eq(world.calls, "or", "%s", world.calls);
	cr_expect_not_null(strstr(err.message, "looking through the trash"), "%s", err.message);
	cr_expect_eq(made.area_bytes, 17);
}

Test(raw_grow, beside_a_driver)
{
	struct raw_made made;
	struct err err = {0};
	char path[128];
	cr_expect_eq(raw_grow(world.top, NULL, &made, &err), -ENOENT);
	cr_expect_not_null(strstr(err.message, "opening " POOL_FILE " of the pool at /tmp/"), "%s",
		err.message);
	make_records();
	snprintf(path, sizeof(path), "%s/" POOL_FILE, world.records);
	_cleanup_fd_ int lock = open(path, O_RDONLY | O_CLOEXEC);
	cr_assert_eq(flock(lock, LOCK_EX), 0);
	err = (struct err){0};
	memset(world.calls, 0, sizeof(world.calls));
	cr_expect_lt(raw_grow(world.top, NULL, &made, &err), 0);
	cr_expect_eq(err.code, ERR_PRECONDITION);
	cr_expect_not_null(
		strstr(err.message, "a driver serves the pool at /tmp/"), "%s", err.message);
	cr_expect_str_eq(world.calls, "or", "%s", world.calls);
}

/* Files of an attempt that was cut short own what no disk has; all others stay. */
Test(raw_grow, what_an_attempt_has_left_goes)
{
	struct raw_made made;
	struct err err;
	make_records();
	world.changes[0].existed = true;
	put_trash("on", (const uint64_t[][2]){{0, 1}}, 1);
	put_trash("last", (const uint64_t[][2]){{AREA_MIB - 1, 1}}, 1);
	put_trash("off", (const uint64_t[][2]){{AREA_MIB, 1}}, 1);
	put_trash("ends-off", (const uint64_t[][2]){{0, 1}, {AREA_MIB + 5, 1}}, 2);
	put_trash("ends-on", (const uint64_t[][2]){{AREA_MIB + 5, 1}, {3, 1}}, 2);
	put_trash("empty", NULL, 0);
	fixture_sh("touch %s/trash/no-map", world.records);
	cr_assert_eq(grow(&made, &err), 0, "%s", err.message);
	cr_expect(has_trash("on") && has_trash("last") && has_trash("ends-on"));
	cr_expect(has_trash("empty") && has_trash("no-map"));
	cr_expect(!has_trash("off") && !has_trash("ends-off"));
	/* One that stays would be taken for the pool's own, later. */
	put_trash("off", (const uint64_t[][2]){{AREA_MIB, 1}}, 1);
	world.fails = 'u';
	cr_expect_eq(grow(&made, &err), -EROFS);
	cr_expect_not_null(strstr(err.message, "looking through the trash"), "%s", err.message);
	cr_expect_str_eq(world.calls, "or", "%s", world.calls);
}
