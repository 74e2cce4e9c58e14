/* SPDX-License-Identifier: Apache-2.0 */
/* What a raw pool gives back and takes: its trash, growing, and the zeros between them. The linker
 * puts functions here between pools and maps, so that a test can fail them. */
#include "raw_fixture.h"

#include "disk/places.h"
#include "disk/zero.h"
#include "pool/grow.h"
#include "pool/index.h"
#include "pool/load.h"
#include "pool/raw_devices.h"
#include "pool/trash.h"

#include <pthread.h>
#include <sys/xattr.h>

int __real_image_map_write(int fd, const struct image_map *map);
int __wrap_image_map_write(int fd, const struct image_map *map);
int __real_raw_devices_check(const struct disk *disk, const struct image_map *map);
int __wrap_raw_devices_check(const struct disk *disk, const struct image_map *map);
int __wrap_raw_devices_strays(
	const struct disk *disk, int trash_fd, struct area *area, uint64_t *ret_bytes);

static struct {
	unsigned writes;    /* of maps, that succeed before the others fail */
	unsigned fail_next; /* so many fail then */
	int device;         /* what the kernel says of devices */
	unsigned strays;    /* how often it was asked for those of nobody */
	int error;          /* with this */
	bool all_the_same;  /* what fails was written */
} faults = {.writes = 1000, .error = -EIO};

int __wrap_image_map_write(int fd, const struct image_map *map)
{
	if (faults.writes > 0) {
		faults.writes--;
		return __real_image_map_write(fd, map);
	}
	if (faults.fail_next == 0)
		return __real_image_map_write(fd, map);
	faults.fail_next--;
	if (faults.all_the_same)
		cr_assert_eq(__real_image_map_write(fd, map), 0);
	return faults.error;
}

int __wrap_raw_devices_check(const struct disk *disk, const struct image_map *map)
{
	(void)disk;
	(void)map;
	return faults.device;
}

/* There are none. */
int __wrap_raw_devices_strays(
	const struct disk *disk, int trash_fd, struct area *area, uint64_t *ret_bytes)
{
	(void)disk;
	(void)trash_fd;
	(void)area;
	*ret_bytes = 0;
	faults.strays++;
	return 0;
}

static struct {
	unsigned count;
	pthread_t by;
} let_go;

void __real_pool_load_let_go(struct pool_load *load);
void __wrap_pool_load_let_go(struct pool_load *load);
void __wrap_pool_load_let_go(struct pool_load *load)
{
	let_go.by = pthread_self();
	let_go.count++;
	__real_pool_load_let_go(load);
}

static void fail_map_writes(unsigned after, unsigned count)
{
	faults.writes = after;
	faults.fail_next = count;
}

/* The first file of the trash. */
static bool trash_name(struct fixture *f, char name[64])
{
	char path[128];
	snprintf(path, sizeof(path), "%s/trash", f->path);
	DIR *dir = opendir(path);
	bool found = false;
	for (struct dirent *e; !found && (e = readdir(dir)) != NULL;)
		if (e->d_name[0] != '.') {
			snprintf(name, 64, "trash/%.40s", e->d_name);
			found = true;
		}
	closedir(dir);
	return found;
}

static void remove_volume(struct fixture *f, struct pool_object *o)
{
	cr_assert_eq(fixture_remove(f, o), ERR_OK);
}

static enum err_code grow(struct fixture *f, struct pool_object *o, unsigned mib)
{
	struct pool_grow g;
	pool_grow_init(&g, &f->reactor, o, (uint64_t)mib * RAW_MIB);
	return fixture_run(f, &g.op);
}

/* Memory and records say the same. */
static void check_reload(struct fixture *f, uint64_t free_mib)
{
	raw_reopen_pools(f);
	fixture_settle(f);
	cr_assert_eq(raw_free_mib(f), free_mib, "%llu", (unsigned long long)raw_free_mib(f));
	cr_assert_eq(raw_dirty_mib(f), 0);
	cr_assert_eq(f->pool->reserved_bytes, 0);
}

/* ---- zeros, places ---- */

Test(raw_space, zeros)
{
	struct fixture f;
	struct pool_root root;
	struct err err = {0};
	struct image_map all = {0}, mine = {0}, before = {0};
	raw_make(&f, 200);
	cr_assert_eq(raw_open_root(f.path, RAW_NODE, &root, &err), 0);
	cr_assert_eq(image_map_add(&all, RAW_START, 200 * RAW_MIB), 0);
	cr_assert_eq(image_map_add(&mine, RAW_START + 10 * RAW_MIB, 100 * RAW_MIB), 0);
	cr_assert_eq(image_map_add(&before, RAW_START, 10 * RAW_MIB), 0);
	raw_bytes(&all, true, 0xa5);
	uint64_t at = 0;
	for (unsigned calls = 0; at < 100 * RAW_MIB; calls++) {
		int64_t n = disk_zero(root.disk, RAW_START + 10 * RAW_MIB + at, 100 * RAW_MIB - at);
		cr_assert(n > 0 && n <= ZERO_AT_ONCE_BYTES && calls < 2);
		at += (uint64_t)n;
	}
	cr_assert(raw_bytes(&mine, false, 0));
	cr_assert(raw_bytes(&before, false, 0xa5));
	image_map_cut(&mine, 0);
	cr_assert_eq(image_map_add(&mine, RAW_START + 110 * RAW_MIB, 90 * RAW_MIB), 0);
	cr_assert(raw_bytes(&mine, false, 0xa5));
	/* No further than the disk. */
	cr_assert_eq(disk_zero(root.disk, RAW_START + 199 * RAW_MIB, 9 * RAW_MIB), RAW_MIB);
	cr_assert_eq(disk_zero(root.disk, RAW_START + 200 * RAW_MIB, RAW_MIB), -ERANGE);
	cr_assert_eq(disk_flush(root.disk), 0);
	fd_close(&root.disk->members[0].fd);
	cr_assert_eq(disk_zero(root.disk, RAW_START, RAW_MIB), -EBADF);
	cr_assert_eq(disk_flush(root.disk), -EBADF);
	disk_unref(root.disk);
	close(root.fd);
	fixture_sh("rm -rf %s", f.top);
}

Test(raw_space, places)
{
	struct fixture f;
	struct pool_root root;
	struct err err = {0};
	struct image_map map = {0};
	struct copy_places *places;
	raw_make(&f, 64);
	cr_assert_eq(raw_open_root(f.path, RAW_NODE, &root, &err), 0);
	cr_assert_eq(image_map_add(&map, RAW_START + 10 * RAW_MIB, 4 * RAW_MIB), 0);
	cr_assert_eq(image_map_add(&map, RAW_START, 3 * RAW_MIB), 0);
	cr_assert_eq(disk_places(root.disk, &map, &places), 0);
	cr_assert_eq(places->count, 2);
	cr_assert_eq(places->at[0].fd, root.disk->members[0].fd);
	cr_assert_eq(places->at[0].offset, RAW_OFFSET + 10 * RAW_MIB);
	cr_assert_eq(places->at[1].offset, RAW_OFFSET);
	cr_assert_eq(copy_places_bytes(places), 7 * RAW_MIB);
	free(places);
	cr_assert_eq(image_map_add(&map, RAW_START + 63 * RAW_MIB, 2 * RAW_MIB), 0);
	cr_assert_eq(disk_places(root.disk, &map, &places), -ERANGE, "past the end");
	disk_unref(root.disk);
	close(root.fd);
	fixture_sh("rm -rf %s", f.top);
}

/* ---- the trash ---- */

Test(raw_space, deleted_bytes_are_zeros_before_they_are_free)
{
	struct fixture f;
	raw_open(&f, 64);
	struct pool_object *o = raw_make_volume(&f, "a", 10);
	struct image_map map = raw_map(&f, "volumes/a");
	raw_make_volume(&f, "b", 5);
	struct image_map other = raw_map(&f, "volumes/b");
	raw_bytes(&map, true, 0xaa);
	raw_bytes(&other, true, 0xbb);
	remove_volume(&f, o);
	cr_assert_eq(raw_dirty_mib(&f) + raw_free_mib(&f), 59);
	cr_assert_eq(fixture_room(&f).available_thick_bytes, 59 * RAW_MIB);
	fixture_settle(&f);
	cr_assert_eq(raw_dirty_mib(&f), 0);
	cr_assert_eq(raw_free_mib(&f), 59);
	cr_assert_eq(fixture_count(&f, "trash"), 0);
	cr_assert(raw_bytes(&map, false, 0));
	cr_assert(raw_bytes(&other, false, 0xbb));
	check_reload(&f, 59);
	fixture_close(&f);
}

/* From the end, a GiB at a time; each map on the way has just what is not free yet. */
Test(raw_space, a_large_one_is_given_back_in_parts, .timeout = 120)
{
	struct fixture f;
	char name[64];
	unsigned steps = 0;
	uint64_t done, size, free_mib = 212;
	raw_open(&f, 2500);
	struct pool_object *o = raw_make_volume(&f, "a", 2288);
	struct image_map whole = raw_map(&f, "volumes/a");
	raw_bytes(&whole, true, 0xaa);
	remove_volume(&f, o);
	bool told = false;
	while (steps < 2 && !pools_idle(f.pools)) {
		fixture_turn(&f);
		if (pool_erasing(f.pool, &done, &size)) {
			told = true;
			cr_assert(size <= 2288ull * RAW_MIB && done <= size);
			/* What was given back was overwritten. */
			cr_assert_geq(done, (raw_free_mib(&f) - 212) * RAW_MIB);
		}
		if (raw_free_mib(&f) == free_mib)
			continue;
		free_mib = raw_free_mib(&f);
		steps++;
		cr_assert_eq(free_mib, steps == 1 ? 452 : 1476);
		cr_assert_eq(raw_dirty_mib(&f), 2500 - free_mib);
		cr_assert(trash_name(&f, name));
		struct image_map map = raw_map(&f, name);
		cr_assert_eq(image_map_bytes(&map) / RAW_MIB, 2500 - free_mib);
	}
	cr_assert_eq(steps, 2);
	cr_assert(told);
	/* A driver that starts then goes on where it was. */
	fixture_close_pools(&f);
	cr_assert_eq(fixture_count(&f, "trash"), 1);
	struct image_map left = raw_map(&f, name);
	raw_open_pools(&f);
	cr_assert_eq(raw_free_mib(&f), 1476);
	cr_assert_eq(raw_dirty_mib(&f), 1024);
	cr_assert_eq(image_map_bytes(&left) / RAW_MIB, 1024);
	fixture_settle(&f);
	cr_assert_eq(raw_free_mib(&f), 2500);
	cr_assert(raw_bytes(&whole, false, 0));
	cr_assert_not(pool_erasing(f.pool, &done, &size));
	fixture_close(&f);
}

/* An image in many pieces, none of whose neighbours is touched. */
Test(raw_space, many_pieces)
{
	struct fixture f;
	struct pool_object *odd[8];
	struct image_map kept[8];
	char name[32];
	raw_open(&f, 64);
	for (unsigned i = 0; i < 8; i++) {
		snprintf(name, sizeof(name), "odd%u", i);
		odd[i] = raw_make_volume(&f, name, 4);
		snprintf(name, sizeof(name), "even%u", i);
		raw_make_volume(&f, name, 4);
		snprintf(name, sizeof(name), "volumes/even%u", i);
		kept[i] = raw_map(&f, name);
		raw_bytes(&kept[i], true, 0xbb);
	}
	for (unsigned i = 0; i < 8; i++)
		remove_volume(&f, odd[i]);
	fixture_settle(&f);
	struct pool_object *big = raw_make_volume(&f, "big", 30);
	struct image_map map = raw_map(&f, "volumes/big");
	cr_assert_eq(map.count, 8);
	raw_bytes(&map, true, 0xaa);
	remove_volume(&f, big);
	fixture_settle(&f);
	cr_assert(raw_bytes(&map, false, 0));
	for (unsigned i = 0; i < 8; i++)
		cr_assert(raw_bytes(&kept[i], false, 0xbb));
	check_reload(&f, 32);
	fixture_close(&f);
}

/* What stays when a file of the trash fails, and what comes of it at the next look. */
static void check_left(struct fixture *f, const struct image_map *map)
{
	fixture_settle(f);
	cr_assert_eq(raw_dirty_mib(f), 10);
	cr_assert_eq(raw_free_mib(f), 54);
	cr_assert_eq(fixture_count(f, "trash"), 1);
	faults.device = 0;
	pool_trash_kick(f->pool);
	fixture_settle(f);
	cr_assert_eq(raw_free_mib(f), 64);
	cr_assert_eq(raw_dirty_mib(f), 0);
	cr_assert(raw_bytes(map, false, 0));
	check_reload(f, 64);
}

Test(raw_space, what_a_device_leads_to_is_left)
{
	struct fixture f;
	raw_open(&f, 64);
	struct pool_object *o = raw_make_volume(&f, "a", 10);
	struct image_map map = raw_map(&f, "volumes/a");
	raw_bytes(&map, true, 0xaa);
	faults.device = -EBUSY;
	remove_volume(&f, o);
	fixture_settle(&f);
	cr_assert(raw_bytes(&map, false, 0xaa));
	faults.device = -EACCES; /* nobody can tell */
	pool_trash_kick(f.pool);
	fixture_settle(&f);
	cr_assert(raw_bytes(&map, false, 0xaa));
	check_left(&f, &map);
	fixture_close(&f);
}

/* Zeros, but still the image's. */
Test(raw_space, a_map_that_cannot_be_cut_is_left)
{
	for (unsigned count = 1; count <= 2; count++) {
		struct fixture f;
		raw_open(&f, 64);
		struct pool_object *o = raw_make_volume(&f, "a", 10);
		struct image_map map = raw_map(&f, "volumes/a");
		raw_bytes(&map, true, 0xaa);
		fail_map_writes(0, count);
		remove_volume(&f, o);
		check_left(&f, &map);
		fixture_close(&f);
	}
}

/* Records without room for a shorter map keep nothing from being given back. */
Test(raw_space, full_records, .timeout = 120)
{
	static const unsigned sizes[] = {10, 1200};
	faults.error = -ENOSPC;
	for (unsigned i = 0; i < 2; i++) {
		struct fixture f;
		raw_open(&f, 1300);
		struct pool_object *o = raw_make_volume(&f, "a", sizes[i]);
		struct image_map map = raw_map(&f, "volumes/a");
		raw_bytes(&map, true, 0xaa);
		fail_map_writes(0, 1000);
		remove_volume(&f, o);
		fixture_settle(&f);
		fail_map_writes(1000, 0);
		cr_assert_eq(raw_free_mib(&f), 1300);
		cr_assert_eq(raw_dirty_mib(&f), 0);
		cr_assert_eq(fixture_count(&f, "trash"), 0);
		cr_assert(raw_bytes(&map, false, 0));
		check_reload(&f, 1300);
		fixture_close(&f);
	}
}

/* Full at the first cut, and no more at the next. */
Test(raw_space, full_records_for_a_while, .timeout = 120)
{
	struct fixture f;
	raw_open(&f, 1300);
	struct pool_object *o = raw_make_volume(&f, "a", 1200);
	struct image_map map = raw_map(&f, "volumes/a");
	raw_bytes(&map, true, 0xaa);
	faults.error = -ENOSPC;
	fail_map_writes(0, 1);
	remove_volume(&f, o);
	fixture_settle(&f);
	cr_assert_eq(raw_free_mib(&f), 1300);
	cr_assert(raw_bytes(&map, false, 0));
	check_reload(&f, 1300);
	fixture_close(&f);
}

Test(raw_space, a_disk_that_fails_is_left)
{
	struct fixture f;
	raw_open(&f, 64);
	struct pool_object *o = raw_make_volume(&f, "a", 10);
	struct image_map map = raw_map(&f, "volumes/a");
	raw_bytes(&map, true, 0xaa);
	int *fd = &f.pool->raw->disk->members[0].fd, good = dup(*fd);
	int bad = open(raw_root.disk, O_RDONLY | O_CLOEXEC);
	cr_assert(dup2(bad, *fd) >= 0);
	remove_volume(&f, o);
	fixture_settle(&f);
	cr_assert_eq(raw_free_mib(&f), 54);
	/* Who waits for it is told. */
	struct record rec = raw_volume("b", 60);
	cr_assert_eq(fixture_build(&f, &rec, NULL, NULL), ERR_UNAVAILABLE);
	cr_assert(dup2(good, *fd) >= 0);
	close(good);
	close(bad);
	check_left(&f, &map);
	fixture_close(&f);
}

Test(raw_space, a_deleted_image_with_a_damaged_map_is_left)
{
	struct fixture f;
	char path[128];
	raw_open(&f, 64);
	struct pool_object *o = raw_make_volume(&f, "a", 10);
	struct image_map map = raw_map(&f, "volumes/a");
	raw_bytes(&map, true, 0xaa);
	snprintf(path, sizeof(path), "%s/volumes/a", f.path);
	cr_assert_eq(setxattr(path, IMAGE_MAP_XATTR, "x", 1, 0), 0);
	remove_volume(&f, o);
	struct pool_object *b = raw_make_volume(&f, "b", 5);
	fixture_settle(&f);
	cr_assert_eq(fixture_count(&f, "trash"), 1);
	/* From the next load on nobody knows what is free, nor what another image may have. */
	unsigned strays = faults.strays;
	cr_assert_gt(strays, 0);
	raw_reopen_pools(&f);
	fixture_settle(&f);
	cr_assert_eq(faults.strays, strays, "whose the devices are is not known");
	b = pools_find_name(f.pools, RECORD_VOLUME, "b");
	remove_volume(&f, b);
	fixture_settle(&f);
	cr_assert_eq(fixture_count(&f, "trash"), 2);
	cr_assert(raw_bytes(&map, false, 0xaa));
	struct record rec = raw_volume("c", 1);
	cr_assert_eq(fixture_build(&f, &rec, NULL, NULL), ERR_DATA_LOSS);
	fixture_close(&f);
}

Test(raw_space, what_two_images_have_is_not_overwritten)
{
	struct fixture f;
	char path[128];
	raw_open(&f, 64);
	raw_make_volume(&f, "a", 10);
	raw_make_volume(&f, "b", 10);
	struct pool_object *c = raw_make_volume(&f, "c", 10);
	struct image_map map = raw_map(&f, "volumes/a"), other = raw_map(&f, "volumes/c");
	raw_bytes(&map, true, 0xaa);
	raw_bytes(&other, true, 0xcc);
	snprintf(path, sizeof(path), "%s/volumes/b", f.path);
	int fd = open(path, O_RDWR | O_CLOEXEC);
	cr_assert_eq(image_map_write(fd, &map), 0);
	close(fd);
	raw_reopen_pools(&f);
	c = pools_find_name(f.pools, RECORD_VOLUME, "c");
	remove_volume(&f, c);
	fixture_settle(&f);
	cr_assert_eq(fixture_count(&f, "trash"), 1);
	cr_assert(raw_bytes(&other, false, 0xcc));
	fixture_close(&f);
}

/* A file that never had a byte on the disks. */
Test(raw_space, files_without_a_map_are_unlinked)
{
	struct fixture f;
	char path[128];
	raw_open(&f, 64);
	snprintf(path, sizeof(path), "%s/trash/0123456789abcdef", f.path);
	close(open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600));
	pool_trash_kick(f.pool);
	fixture_settle(&f);
	cr_assert_eq(fixture_count(&f, "trash"), 0);
	cr_assert_eq(raw_free_mib(&f), 64);
	fixture_close(&f);
}

Test(raw_space, a_build_waits_for_zeros)
{
	struct fixture f;
	raw_open(&f, 64);
	struct pool_object *a = raw_make_volume(&f, "a", 30), *b = raw_make_volume(&f, "b", 30);
	struct image_map map = raw_map(&f, "volumes/a");
	raw_bytes(&map, true, 0xaa);
	map = raw_map(&f, "volumes/b");
	raw_bytes(&map, true, 0xbb);
	remove_volume(&f, a);
	remove_volume(&f, b);
	raw_make_volume(&f, "c", 62);
	map = raw_map(&f, "volumes/c");
	cr_assert(raw_bytes(&map, false, 0));
	fixture_settle(&f);
	check_reload(&f, 2);
	fixture_close(&f);
}

/* ---- growing ---- */

Test(raw_space, grow)
{
	struct fixture f;
	raw_open(&f, 64);
	struct pool_object *o = raw_make_volume(&f, "a", 10);
	struct pool_object *b = raw_make_volume(&f, "b", 4);
	cr_assert_eq(grow(&f, o, 20), ERR_OK);
	cr_assert_eq(o->rec->size_bytes, 20 * RAW_MIB);
	cr_assert_eq(o->allocated_bytes, 20 * RAW_MIB);
	cr_assert_eq(raw_free_mib(&f), 40);
	struct image_map map = raw_map(&f, "volumes/a");
	cr_assert_eq(image_map_bytes(&map), 20 * RAW_MIB);
	cr_assert_eq(fixture_room(&f).provisioned_bytes, 24 * RAW_MIB);
	cr_assert_eq(grow(&f, o, 20), ERR_OK, "again");
	/* What follows behind it is another's; and when that has gone, it grows there. */
	cr_assert_eq(map.count, 2);
	remove_volume(&f, b);
	fixture_settle(&f);
	cr_assert_eq(grow(&f, o, 60 + 5), ERR_NO_ROOM);
	cr_assert_eq(o->rec->size_bytes, 20 * RAW_MIB);
	cr_assert_eq(raw_free_mib(&f), 44);
	cr_assert_eq(grow(&f, o, 64), ERR_OK);
	check_reload(&f, 0);
	o = pools_find_name(f.pools, RECORD_VOLUME, "a");
	cr_assert_eq(o->allocated_bytes, 64 * RAW_MIB);
	fixture_close(&f);
}

Test(raw_space, growing_waits_for_zeros)
{
	struct fixture f;
	raw_open(&f, 64);
	struct pool_object *a = raw_make_volume(&f, "a", 10), *b = raw_make_volume(&f, "b", 50);
	struct image_map map = raw_map(&f, "volumes/b");
	raw_bytes(&map, true, 0xbb);
	remove_volume(&f, b);
	cr_assert_eq(grow(&f, a, 60), ERR_OK);
	map = raw_map(&f, "volumes/a");
	cr_assert(raw_bytes(&map, false, 0));
	check_reload(&f, 4);
	fixture_close(&f);
}

/* Fails step or call number `nth` of growing. */
static unsigned fail_at, met;

static int before_step(void *arg, const char *op_name, const char *step_name)
{
	(void)arg;
	(void)step_name;
	return strcmp(op_name, "pool_grow") == 0 && met++ == fail_at ? -EIO : 0;
}

/* What is taken afterwards is what the map has; the next attempt uses that. */
Test(raw_space, growing_fails_at_each_step, .timeout = 120)
{
	bool met_longer = false;
	for (fail_at = 0;; fail_at++) {
		struct fixture f;
		raw_open(&f, 64);
		struct pool_object *o = raw_make_volume(&f, "a", 10);
		met = 0;
		f.observer.before = before_step;
		enum err_code code = grow(&f, o, 30);
		f.observer.before = NULL;
		if (code == ERR_OK) {
			cr_assert_eq(fail_at, met);
			fixture_close(&f);
			break;
		}
		cr_assert_eq(o->rec->size_bytes, 10 * RAW_MIB);
		struct image_map map = raw_map(&f, "volumes/a");
		uint64_t has = image_map_bytes(&map) / RAW_MIB;
		cr_assert(has == 10 || has == 30);
		met_longer |= has == 30;
		cr_assert_eq(raw_free_mib(&f), 64 - has, "step %u", fail_at);
		cr_assert_eq(o->allocated_bytes / RAW_MIB, has);
		cr_assert_eq(f.pool->reserved_bytes, 0);
		if (fail_at % 2 == 0)
			check_reload(&f, 64 - has);
		o = pools_find_name(f.pools, RECORD_VOLUME, "a");
		/* To less, and to more than what failed. */
		cr_assert_eq(grow(&f, o, 20), ERR_OK);
		cr_assert_eq(raw_free_mib(&f), has == 30 ? 34 : 44);
		cr_assert_eq(grow(&f, o, 40), ERR_OK);
		cr_assert_eq(o->allocated_bytes, 40 * RAW_MIB);
		check_reload(&f, 24);
		fixture_close(&f);
	}
	cr_assert(met_longer);
	cr_assert_gt(fail_at, 8);
}

Test(raw_space, a_longer_map_that_cannot_be_written)
{
	for (unsigned count = 1; count <= 2; count++) {
		struct fixture f;
		raw_open(&f, 64);
		struct pool_object *o = raw_make_volume(&f, "a", 10);
		fail_map_writes(0, count);
		cr_assert_eq(grow(&f, o, 30), ERR_INTERNAL);
		cr_assert_eq(o->rec->size_bytes, 10 * RAW_MIB);
		/* The map is as it was, whether or not it could be written again. */
		cr_assert_eq(raw_free_mib(&f), 54);
		fail_map_writes(1000, 0);
		cr_assert_eq(f.pool->reserved_bytes, 0);
		check_reload(&f, 54);
		fixture_close(&f);
	}
}

/* Which of the two maps is on the disk nobody knows: what the longer one has is not free. */
Test(raw_space, a_longer_map_that_may_have_been_written)
{
	for (unsigned count = 1; count <= 2; count++) {
		struct fixture f;
		raw_open(&f, 64);
		struct pool_object *o = raw_make_volume(&f, "a", 10);
		faults.all_the_same = true;
		fail_map_writes(0, count);
		cr_assert_eq(grow(&f, o, 30), ERR_INTERNAL);
		faults.all_the_same = false;
		fail_map_writes(1000, 0);
		cr_assert_eq(o->rec->size_bytes, 10 * RAW_MIB);
		cr_assert_eq(raw_free_mib(&f), count == 1 ? 54 : 34);
		cr_assert_eq(f.pool->reserved_bytes, 0);
		check_reload(&f, 54);
		fixture_close(&f);
	}
}

static void damage_record(const struct fixture *f)
{
	char path[128];
	snprintf(path, sizeof(path), "%s/volumes/a", f->path);
	cr_assert_eq(setxattr(path, RECORD_XATTR, "damaged", 7, 0), 0);
}

Test(raw_space, without_its_record_nothing_grows)
{
	struct fixture f;
	struct pool_grow g;
	raw_open(&f, 64);
	raw_make_volume(&f, "a", 10);
	fixture_close_pools(&f);
	damage_record(&f);
	raw_open_pools(&f);
	pool_grow_init(&g, &f.reactor, pool_index_find(f.pool, RECORD_VOLUME, "a"), 30 * RAW_MIB);
	cr_assert_eq(fixture_run(&f, &g.op), ERR_DATA_LOSS);
	cr_assert_not_null(strstr(g.op.err.message, "a in pool p is quarantined: "));
	cr_assert_eq(raw_free_mib(&f), 54);
	cr_assert_eq(f.pool->ops, 0);
	fixture_close(&f);
}

Test(raw_space, without_its_map_nothing_grows)
{
	static const char *const texts[] = {NULL, "x", "short"};
	for (unsigned i = 0; i < 3; i++) {
		struct fixture f;
		char path[128];
		raw_open(&f, 64);
		struct pool_object *o = raw_make_volume(&f, "a", 10);
		struct image_map map = raw_map(&f, "volumes/a");
		snprintf(path, sizeof(path), "%s/volumes/a", f.path);
		int fd = open(path, O_RDWR | O_CLOEXEC);
		image_map_cut(&map, 5 * RAW_MIB);
		cr_assert_eq(i == 0 ? fremovexattr(fd, IMAGE_MAP_XATTR)
				    : fsetxattr(fd, IMAGE_MAP_XATTR, "x", 1, 0),
			0);
		if (i == 2)
			cr_assert_eq(image_map_write(fd, &map), 0);
		close(fd);
		cr_assert_eq(grow(&f, o, 30), ERR_DATA_LOSS, "%s", texts[i]);
		cr_assert_eq(raw_free_mib(&f), 54);
		cr_assert_eq(o->rec->size_bytes, 10 * RAW_MIB);
		fixture_close(&f);
	}
}

/* ---- loads that are refused ---- */

static char twin_records[128];

/* Two places whose disks say that they are the same pool. */
static int open_twin(const char *path, const char *node, struct pool_root *ret, struct err *err)
{
	int r = raw_open_root(path, node, ret, err);
	if (r < 0 || strcmp(path, twin_records) != 0)
		return r;
	close(ret->fd);
	ret->fd = open(twin_records, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	cr_assert(ret->fd >= 0);
	return 0;
}

/* Its records are unmounted by that, which waits for a disk. */
Test(raw_space, what_is_refused_is_let_go_on_a_thread)
{
	struct fixture f;
	raw_make(&f, 64);
	fixture_open_ring(&f, NULL);
	snprintf(twin_records, sizeof(twin_records), "%s.twin", f.path);
	fixture_sh("cp -a %s %s", f.path, twin_records);
	struct pool_config configs[] = {{.name = "p", .path = f.path, .overcommit = 1.0},
		{.name = "twin", .path = twin_records, .overcommit = 1.0}};
	cr_assert_eq(pools_open(&f.pools, &f.reactor, configs, 2), 0);
	pools_serve_as(f.pools, RAW_NODE);
	f.pools->open_root = open_twin;
	pools_start(f.pools, fixture_on_loaded, fixture_on_changed, &f);
	while (!f.loaded)
		fixture_turn(&f);
	unsigned refused = pool_state(pools_at(f.pools, 0)) == POOL_READY;
	struct pool *pool = pools_at(f.pools, refused);
	cr_assert_eq(pool_state(pool), POOL_MISSING);
	cr_assert_not_null(strstr(pool_why(pool), "has the same id"), "%s", pool_why(pool));
	cr_assert_eq(pool_state(pools_at(f.pools, 1 - refused)), POOL_READY);
	while (pool->task != NULL)
		fixture_turn(&f);
	cr_assert_eq(let_go.count, 1);
	cr_assert_not(pthread_equal(let_go.by, pthread_self()));
	/* Its lock is free again. */
	char path[256];
	snprintf(path, sizeof(path), "%s/" POOL_FILE, pool_path(pool));
	_cleanup_fd_ int lock = open(path, O_RDONLY | O_CLOEXEC);
	cr_assert_eq(pool_lock_take(lock), 0);
	fixture_close(&f);
}
