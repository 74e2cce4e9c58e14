/* SPDX-License-Identifier: Apache-2.0 */
/* Raw pools whose disk is a file: loading, room, building, cloning, undoing, going away. */
#include "raw_fixture.h"

#include "csi/messages.h"
#include "csi/params.h"
#include "pool/index.h"
#include "pool/renew.h"

#include <sys/xattr.h>

/* ---- load, room ---- */

Test(raw_pool, create_and_reload)
{
	struct fixture f;
	raw_open(&f, 64);
	cr_assert(pool_is_raw(f.pool));
	struct pool_room room = fixture_room(&f);
	cr_assert_eq(room.capacity_bytes, 64 * RAW_MIB);
	cr_assert_eq(room.free_bytes, 64 * RAW_MIB);
	cr_assert_eq(room.available_thick_bytes, 64 * RAW_MIB);

	raw_make_volume(&f, "a", 10);
	struct pool_object *b = raw_make_volume(&f, "b", 20);
	cr_assert_eq(b->allocated_bytes, 20 * RAW_MIB);
	cr_assert_eq(raw_free_mib(&f), 34);
	room = fixture_room(&f);
	cr_assert_eq(room.free_bytes, 34 * RAW_MIB);
	cr_assert_eq(room.provisioned_bytes, 30 * RAW_MIB);
	cr_assert_eq(room.allocated_bytes, 30 * RAW_MIB);
	struct image_map a = raw_map(&f, "volumes/a"), of_b = raw_map(&f, "volumes/b");
	cr_assert_eq(image_map_bytes(&a), 10 * RAW_MIB);
	cr_assert_not(image_map_overlaps(&a, &of_b));
	cr_assert_eq(fixture_count(&f, "trash"), 0);

	raw_reopen_pools(&f);
	cr_assert_eq(raw_free_mib(&f), 34);
	cr_assert_eq(raw_dirty_mib(&f), 0);
	cr_assert_eq(pools_find_name(f.pools, RECORD_VOLUME, "b")->allocated_bytes, 20 * RAW_MIB);
	cr_assert_eq(f.pool->reserved_bytes, 0);
	fixture_close(&f);
}

Test(raw_pool, full)
{
	struct fixture f;
	raw_open(&f, 16);
	raw_make_volume(&f, "a", 10);
	struct record rec = raw_volume("b", 7);
	cr_assert_eq(fixture_build(&f, &rec, NULL, NULL), ERR_NO_ROOM);
	cr_assert_eq(raw_free_mib(&f), 6);
	cr_assert_eq(f.pool->reserved_bytes, 0);
	cr_assert_eq(fixture_room(&f).available_thick_bytes, 6 * RAW_MIB);
	raw_make_volume(&f, "c", 6);
	cr_assert_eq(fixture_room(&f).available_thick_bytes, 0);
	cr_assert_eq(fixture_room(&f).available_bytes, 0);
	fixture_close(&f);
}

/* Every second MiB is taken, so that there are more pieces than a volume may have. */
Test(raw_pool, fragmented)
{
	struct fixture f;
	raw_open(&f, 600);
	for (unsigned i = 0; i < 300; i++)
		cr_assert_eq(
			area_occupy(f.pool->raw->area, RAW_START + 2ULL * i * RAW_MIB, RAW_MIB), 0);
	struct record rec = raw_volume("a", IMAGE_MAP_PIECES_MAX + 1);
	cr_assert_eq(fixture_build(&f, &rec, NULL, NULL), ERR_NO_ROOM);
	/* GetCapacity says as much as is admitted, and not all that is free. */
	struct pool_room room = fixture_room(&f);
	cr_assert_eq(room.free_bytes, 300ULL * RAW_MIB);
	cr_assert_eq(room.available_thick_bytes, (uint64_t)IMAGE_MAP_PIECES_MAX * RAW_MIB);
	/* Not the most: the records of this fixture may be on ext4, whose attributes are small. */
	raw_make_volume(&f, "b", 60);
	struct image_map map = raw_map(&f, "volumes/b");
	cr_assert_eq(map.count, 60);
	fixture_close(&f);
}

/* ---- maps that are not sound ---- */

static void set_map(struct fixture *f, const char *name, const struct image_map *map)
{
	char path[256];
	snprintf(path, sizeof(path), "%s/%s", f->path, name);
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	cr_assert(fd >= 0, "%s", path);
	if (map == NULL)
		cr_assert_eq(fsetxattr(fd, IMAGE_MAP_XATTR, "hello", 5, 0), 0);
	else
		cr_assert_eq(image_map_write(fd, map), 0);
	close(fd);
}

static void check_quarantined(struct fixture *f, const char *name, const char *why)
{
	struct pool_object *o = pools_find_name(f->pools, RECORD_VOLUME, name);
	cr_assert_not_null(o);
	cr_assert_null(o->rec, "%s", name);
	cr_assert_not_null(strstr(o->why, why), "%s", o->why);
	cr_assert_eq(fixture_remove(f, o), ERR_DATA_LOSS);
}

static enum err_code build_why(struct fixture *f, const char *name, unsigned mib, const char *part)
{
	struct pool_build b;
	struct record rec = raw_volume(name, mib);
	cr_assert_eq(pool_build_init(&b, &f->reactor, f->pool, &rec), 0);
	enum err_code code = fixture_run(f, &b.op);
	cr_assert_not_null(strstr(b.op.err.message, part), "%s", b.op.err.message);
	pool_build_free(&b);
	return code;
}

Test(raw_pool, overlapping_maps)
{
	struct fixture f;
	raw_open(&f, 64);
	raw_make_volume(&f, "a", 8);
	raw_make_volume(&f, "b", 8);
	raw_make_volume(&f, "c", 8);
	struct image_map a = raw_map(&f, "volumes/a"), b = raw_map(&f, "volumes/b");
	fixture_close_pools(&f);
	/* b's map says the last half of a's and the first of its own. */
	struct image_map both = {0};
	image_map_add(&both, a.pieces[0].address + 4 * RAW_MIB, 4 * RAW_MIB);
	image_map_add(&both, b.pieces[0].address, 4 * RAW_MIB);
	set_map(&f, "volumes/b", &both);
	raw_open_pools(&f);
	check_quarantined(&f, "a", "same pieces");
	check_quarantined(&f, "b", "same pieces");
	/* What either says is taken; what none says is free, as ever. */
	cr_assert_eq(raw_free_mib(&f), 64 - 8 - 4 - 8);
	struct pool_object *c = pools_find_name(f.pools, RECORD_VOLUME, "c");
	cr_assert_not_null(c->rec);
	struct image_map d = raw_map(&f, "volumes/c");
	raw_make_volume(&f, "d", 44);
	/* Nothing that is in the trash is overwritten: whose it is is not known. */
	raw_bytes(&d, true, 0xaa);
	cr_assert_eq(fixture_remove(&f, c), ERR_OK);
	fixture_settle(&f);
	cr_assert(raw_bytes(&d, false, 0xaa));
	cr_assert_eq(raw_dirty_mib(&f), 8);
	cr_assert_eq(build_why(&f, "e", 4, "same pieces"), ERR_UNAVAILABLE);
	fixture_close(&f);
}

Test(raw_pool, a_map_that_cannot_be_read)
{
	struct fixture f;
	raw_open(&f, 64);
	raw_make_volume(&f, "a", 8);
	raw_make_volume(&f, "b", 8);
	fixture_close_pools(&f);
	set_map(&f, "volumes/a", NULL);
	raw_open_pools(&f);
	check_quarantined(&f, "a", "map is damaged");
	cr_assert_eq(build_why(&f, "c", 4, "volumes/a"), ERR_DATA_LOSS);
	cr_assert_eq(fixture_room(&f).available_bytes, 0);
	/* The others are there, and can go. */
	struct pool_object *b = pools_find_name(f.pools, RECORD_VOLUME, "b");
	cr_assert_not_null(b->rec);
	cr_assert_eq(fixture_remove(&f, b), ERR_OK);
	fixture_settle(&f);
	fixture_close(&f);
}

Test(raw_pool, a_volume_without_map)
{
	struct fixture f;
	raw_open(&f, 64);
	raw_make_volume(&f, "a", 8);
	fixture_close_pools(&f);
	fixture_sh("setfattr -x " IMAGE_MAP_XATTR " %s/volumes/a; touch %s/volumes/.other", f.path,
		f.path);
	raw_open_pools(&f);
	check_quarantined(&f, "a", "no map");
	cr_assert_eq(build_why(&f, "c", 4, "volumes/a"), ERR_DATA_LOSS);
	fixture_close(&f);
}

/* A repair that clears a file's attributes takes record and map together. */
Test(raw_pool, a_file_without_record_and_map)
{
	struct fixture f;
	raw_open(&f, 64);
	raw_make_volume(&f, "a", 8);
	fixture_close_pools(&f);
	fixture_sh("cd %s/volumes && setfattr -x " IMAGE_MAP_XATTR " a && setfattr -x " RECORD_XATTR
		   " a",
		f.path);
	raw_open_pools(&f);
	cr_assert_eq(build_why(&f, "c", 4, "volumes/a"), ERR_DATA_LOSS);
	fixture_close_pools(&f);
	fixture_sh("mv %s/volumes/a %s/trash/0123456789abcdef", f.path, f.path);
	raw_open_pools(&f);
	fixture_settle(&f);
	cr_assert_eq(build_why(&f, "c", 4, "trash/0123456789abcdef"), ERR_DATA_LOSS);
	cr_assert_eq(fixture_count(&f, "trash"), 1);
	fixture_close(&f);
}

Test(raw_pool, what_a_repair_has_found)
{
	struct fixture f;
	raw_open(&f, 64);
	fixture_close_pools(&f);
	fixture_sh("mkdir %s/lost+found && touch %s/lost+found/131", f.path, f.path);
	raw_open_pools(&f);
	cr_assert_eq(build_why(&f, "c", 4, "lost+found/131"), ERR_DATA_LOSS);
	fixture_close(&f);
}

Test(raw_pool, a_map_off_the_disks_or_too_short)
{
	struct fixture f;
	raw_open(&f, 64);
	raw_make_volume(&f, "a", 8);
	raw_make_volume(&f, "b", 8);
	struct image_map a = raw_map(&f, "volumes/a"), b = raw_map(&f, "volumes/b");
	fixture_close_pools(&f);
	struct image_map off = {0};
	image_map_add(&off, RAW_START + 62 * RAW_MIB, 8 * RAW_MIB);
	set_map(&f, "volumes/a", &off);
	image_map_cut(&b, 4 * RAW_MIB);
	set_map(&f, "volumes/b", &b);
	(void)a;
	raw_open_pools(&f);
	check_quarantined(&f, "a", "none of the disks");
	check_quarantined(&f, "b", "shorter");
	cr_assert_eq(raw_free_mib(&f), 64 - 2 - 4);
	raw_make_volume(&f, "c", 58);
	fixture_close(&f);
}

/* ---- zeros ---- */

Test(raw_pool, a_create_waits_for_zeros)
{
	struct fixture f;
	raw_open(&f, 32);
	struct pool_object *a = raw_make_volume(&f, "a", 30);
	struct image_map map = raw_map(&f, "volumes/a");
	raw_bytes(&map, true, 0xaa);
	cr_assert_eq(fixture_remove(&f, a), ERR_OK);
	cr_assert_eq(raw_dirty_mib(&f), 30);
	struct pool_room room;
	pool_room(f.pool, &room);
	cr_assert_eq(room.available_thick_bytes, 32 * RAW_MIB);
	raw_make_volume(&f, "b", 32);
	cr_assert_eq(raw_dirty_mib(&f), 0);
	map = raw_map(&f, "volumes/b");
	cr_assert(raw_bytes(&map, false, 0));
	fixture_settle(&f);
	cr_assert_eq(fixture_count(&f, "trash"), 0);
	fixture_close(&f);
}

Test(raw_pool, what_is_gone_is_not_dirty)
{
	struct fixture f;
	raw_open(&f, 32);
	struct pool_object *a = raw_make_volume(&f, "a", 8);
	fixture_sh("rm %s/volumes/a", f.path);
	cr_assert_eq(fixture_remove(&f, a), ERR_OK);
	cr_assert_eq(raw_dirty_mib(&f), 0);
	fixture_close(&f);
}

/* What was parked when the driver was killed may have been written to. */
Test(raw_pool, what_was_parked_is_overwritten)
{
	struct fixture f;
	struct image_map map = {0};
	raw_open(&f, 32);
	fixture_close_pools(&f);
	image_map_add(&map, RAW_START + 4 * RAW_MIB, 8 * RAW_MIB);
	set_map(&f, "trash/new-0123456789abcdef", &map);
	raw_bytes(&map, true, 0xaa);
	raw_open_pools(&f);
	fixture_settle(&f);
	cr_assert_eq(raw_free_mib(&f), 32);
	cr_assert_eq(raw_dirty_mib(&f), 0);
	cr_assert(raw_bytes(&map, false, 0));
	cr_assert_eq(fixture_count(&f, "trash"), 0);
	fixture_close(&f);
}

Test(raw_pool, a_create_that_waits_ends_with_the_driver)
{
	struct fixture f;
	struct pool_build b;
	raw_open(&f, 32);
	struct pool_object *a = raw_make_volume(&f, "a", 30);
	struct record rec = raw_volume("b", 30);
	cr_assert_eq(fixture_remove(&f, a), ERR_OK);
	cr_assert_eq(pool_build_init(&b, &f.reactor, f.pool, &rec), 0);
	fixture_ended = false;
	b.op.on_end = fixture_on_end;
	op_start(&b.op);
	while (list_empty(&f.pool->raw->waiting) && !fixture_ended)
		fixture_turn(&f);
	cr_assert_not(fixture_ended, "%s", b.op.err.message);
	pools_drain(f.pools);
	while (!fixture_ended)
		fixture_turn(&f);
	cr_assert_eq(b.op.err.code, ERR_UNAVAILABLE);
	cr_assert_not_null(strstr(b.op.err.message, "shuts down"), "%s", b.op.err.message);
	pool_build_free(&b);
	fixture_close(&f);
}

/* ---- clones, undoing ---- */

Test(raw_pool, clone)
{
	struct fixture f;
	raw_open(&f, 64);
	struct pool_object *a = raw_make_volume(&f, "a", 8), *b = NULL;
	struct image_map map = raw_map(&f, "volumes/a"), half = map;
	raw_bytes(&map, true, 0xaa);
	image_map_cut(&half, 4 * RAW_MIB);
	raw_bytes(&half, true, 0);
	unsigned fds = fixture_count_fds(&f);
	struct record rec = raw_volume("b", 12);
	cr_assert_eq(fixture_build(&f, &rec, a, &b), ERR_OK);
	cr_assert_eq(fixture_count_fds(&f), fds);
	cr_assert_not(b->rec->shares_extents);
	map = raw_map(&f, "volumes/b");
	cr_assert_eq(image_map_bytes(&map), 12 * RAW_MIB);
	half = map;
	image_map_cut(&half, 4 * RAW_MIB);
	cr_assert(raw_bytes(&half, false, 0));
	struct image_map next = {0};
	image_map_add(&next, map.pieces[0].address + 4 * RAW_MIB, 4 * RAW_MIB);
	cr_assert(raw_bytes(&next, false, 0xaa));
	next = (struct image_map){0};
	image_map_add(&next, map.pieces[0].address + 8 * RAW_MIB, 4 * RAW_MIB);
	cr_assert(raw_bytes(&next, false, 0));
	raw_reopen_pools(&f);
	cr_assert_eq(raw_free_mib(&f), 64 - 20);
	fixture_close(&f);
}

static const char *refused;
static int refuse_step(void *arg, const char *op_name, const char *step_name)
{
	(void)arg;
	return refused != NULL && strcmp(op_name, "pool_build") == 0 &&
			       strcmp(step_name, refused) == 0
		       ? -EIO
		       : 0;
}

/* Before a byte is written a failure leaves nothing; afterwards a deleted image. */
Test(raw_pool, a_failed_clone_is_overwritten)
{
	static const char *const before[] = {"pieces", "open", "park", "fill"}, *const after[] = {
											"record",
											"data",
											"link"};
	struct fixture f;
	raw_open(&f, 64);
	f.observer = (struct op_observer){.before = refuse_step};
	struct pool_object *a = raw_make_volume(&f, "a", 8);
	struct image_map map = raw_map(&f, "volumes/a");
	raw_bytes(&map, true, 0xaa);
	struct record rec = raw_volume("b", 8);
	struct image_map all = {0};
	image_map_add(&all, RAW_START + 8 * RAW_MIB, 56 * RAW_MIB);
	cr_assert_eq(map.pieces[0].address, RAW_START);
	for (unsigned i = 0; i < 4; i++) {
		refused = before[i];
		cr_assert_neq(fixture_build(&f, &rec, a, NULL), ERR_OK);
		cr_assert_eq(raw_free_mib(&f), 56, "%s", refused);
		cr_assert_eq(raw_dirty_mib(&f), 0, "%s", refused);
		cr_assert_eq(fixture_count(&f, "trash"), 0, "%s", refused);
		cr_assert_eq(f.pool->reserved_bytes, 0);
	}
	for (unsigned i = 0; i < 3; i++) {
		refused = after[i];
		cr_assert_neq(fixture_build(&f, &rec, a, NULL), ERR_OK);
		cr_assert_eq(raw_free_mib(&f), 48, "%s", refused);
		cr_assert_eq(raw_dirty_mib(&f), 8, "%s", refused);
		cr_assert_eq(f.pool->reserved_bytes, 0);
		fixture_settle(&f);
		cr_assert_eq(raw_free_mib(&f), 56, "%s", refused);
		cr_assert_eq(raw_dirty_mib(&f), 0, "%s", refused);
		cr_assert_eq(fixture_count(&f, "trash"), 0, "%s", refused);
		cr_assert(raw_bytes(&all, false, 0), "%s", refused);
	}
	refused = NULL;
	cr_assert_eq(fixture_build(&f, &rec, a, NULL), ERR_OK);
	fixture_close(&f);
}

/* ---- file systems ---- */

static void copy_out(const struct image_map *map, const char *path)
{
	int from = open(raw_root.disk, O_RDONLY | O_CLOEXEC);
	int to = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	uint8_t *mem = malloc(RAW_MIB), *zeros = calloc(1, RAW_MIB);
	off_t at = 0;
	for (unsigned i = 0; i < map->count; i++)
		for (uint64_t n = 0; n < map->pieces[i].bytes; n += RAW_MIB, at += RAW_MIB) {
			off_t offset = (off_t)(map->pieces[i].address - RAW_START + RAW_OFFSET + n);
			cr_assert_eq(pread(from, mem, RAW_MIB, offset), RAW_MIB);
			if (memcmp(mem, zeros, RAW_MIB) != 0)
				cr_assert_eq(pwrite(to, mem, RAW_MIB, at), RAW_MIB);
		}
	cr_assert_eq(ftruncate(to, at), 0);
	free(mem);
	free(zeros);
	close(from);
	close(to);
}

static void check_format(enum fsimg_type type, const char *check)
{
	static const uint8_t uuid[16] = {1, 2, 3, 4, 5, 6, 0x87, 8, 0x89};
	struct fixture f;
	char out[128];
	raw_open(&f, 1024);
	if (fixture_sh("command -v %.*s >/dev/null", (int)strcspn(check, " "), check) != 0 ||
		fixture_sh("command -v mkfs.%s >/dev/null", fsimg_name(type)) != 0) {
		fixture_close(&f);
		cr_skip_test("the tools of this file system are not installed");
	}
	snprintf(out, sizeof(out), "%s/out", f.top);
	unsigned fds = fixture_count_fds(&f);
	for (unsigned i = 0; i < 2; i++) { /* the second finds a template */
		struct pool_format *fill = malloc(sizeof(*fill));
		struct pool_build b;
		struct record rec = raw_volume(i == 0 ? "a" : "b", 320);
		struct fsimg_spec spec = {
			.type = type, .size_bytes = rec.size_bytes, .block_size = 512};
		rec.fs = type;
		pool_format_init(fill, f.pool, &spec, uuid);
		cr_assert_eq(pool_build_init(&b, &f.reactor, f.pool, &rec), 0);
		pool_build_format(&b, fill);
		cr_assert_eq(
			fixture_run(&f, &b.op), ERR_OK, "%s: %s", b.op.err.step, b.op.err.message);
		pool_build_free(&b);
		free(fill);
		struct image_map map = raw_map(&f, i == 0 ? "volumes/a" : "volumes/b");
		copy_out(&map, out);
		cr_assert_eq(fixture_sh("%s %s >/dev/null 2>&1", check, out), 0, "%s", check);
	}
	cr_assert_eq(fixture_count_fds(&f), fds);
	cr_assert_eq(fixture_count(&f, "templates"), type == FSIMG_BTRFS ? 0 : 1);
	/* Of a template the records keep no more than what was written: not its empty log. */
	cr_assert_eq(fixture_sh("test $(du -sm %s/templates | cut -f1) -lt 12", f.path), 0);
	/* The image's file has no blocks: its bytes are on the disk. */
	struct stat st;
	cr_assert_eq(fstatat(pool_dirfd(f.pool, RECORD_VOLUME), "a", &st, 0), 0);
	cr_assert_leq(st.st_blocks, 16);
	fixture_close(&f);
}

Test(raw_pool, ext4)
{
	check_format(FSIMG_EXT4, "e2fsck -fn");
}

Test(raw_pool, xfs)
{
	check_format(FSIMG_XFS, "xfs_repair -n");
}

Test(raw_pool, btrfs)
{
	check_format(FSIMG_BTRFS, "btrfs check");
}

/* ---- away and back ---- */

Test(raw_pool, a_disk_that_is_not_there)
{
	struct fixture f;
	raw_make(&f, 32);
	fixture_open_ring(&f, NULL);
	raw_root.fails = ERR_UNAVAILABLE;
	raw_open_pools(&f);
	cr_assert_eq(pool_state(f.pool), POOL_MISSING);
	cr_assert_not_null(strstr(pool_why(f.pool), "is not there"), "%s", pool_why(f.pool));
	raw_root.fails = ERR_DATA_LOSS;
	fixture_wait_state(&f, POOL_SICK);
	raw_root.fails = ERR_OK;
	fixture_wait_state(&f, POOL_READY);
	raw_make_volume(&f, "a", 32);
	fixture_close(&f);
}

Test(raw_pool, a_missing_trash_is_not_made_again)
{
	struct fixture f;
	raw_open(&f, 32);
	fixture_close_pools(&f);
	fixture_sh("mv %s/trash %s.trash", f.path, f.path);
	raw_root.fails = ERR_DATA_LOSS; /* not to wait for a pool that is ready */
	raw_open_pools(&f);
	raw_root.fails = ERR_OK;
	while (strstr(pool_why(f.pool), "trash") == NULL)
		fixture_turn(&f);
	cr_assert_neq(pool_state(f.pool), POOL_READY);
	fixture_sh("mv %s.trash %s/trash", f.path, f.path);
	fixture_wait_state(&f, POOL_READY);
	fixture_close(&f);
}

Test(raw_pool, goes_and_comes_back)
{
	struct fixture f;
	raw_open(&f, 32);
	struct pool_object *a = raw_make_volume(&f, "a", 10);
	a->node = &f; /* it is in use */
	/* Another node takes it over, and makes a volume. */
	raw_write_header("node-2");
	fixture_wait_state(&f, POOL_MISSING);
	cr_assert_not_null(strstr(pool_why(f.pool), "node-2"), "%s", pool_why(f.pool));
	struct record rec = raw_volume("b", 8);
	cr_assert_eq(fixture_build(&f, &rec, NULL, NULL), ERR_UNAVAILABLE);
	struct image_map map = {0};
	image_map_add(&map, RAW_START + 16 * RAW_MIB, 4 * RAW_MIB);
	set_map(&f, "volumes/other", &map);
	raw_write_header(RAW_NODE);
	fixture_wait_state(&f, POOL_READY);
	raw_write_header("");
	fixture_wait_state(&f, POOL_MISSING);
	cr_assert_not_null(strstr(pool_why(f.pool), "pool release"), "%s", pool_why(f.pool));
	raw_write_header(RAW_NODE);
	fixture_wait_state(&f, POOL_READY);
	cr_assert_eq(pools_find_name(f.pools, RECORD_VOLUME, "a"), a);
	cr_assert_eq(raw_free_mib(&f), 32 - 10 - 4);
	raw_make_volume(&f, "b", 18);
	fixture_close(&f);
}

/* Nobody gives back what lies in a pool that is away. */
Test(raw_pool, who_waits_for_room_is_told_when_it_goes)
{
	struct fixture f;
	raw_open(&f, 32);
	fixture_settle(&f);
	raw_waiter_start(&f, f.pool->raw);
	raw_write_header("node-2");
	fixture_wait_state(&f, POOL_MISSING);
	cr_assert(list_empty(&f.pool->raw->waiting));
	raw_waiter_end(&f);
	fixture_close(&f);
}

static void wait_missing(struct fixture *f, const char *why)
{
	fixture_wait_state(f, POOL_MISSING);
	cr_assert_not_null(strstr(pool_why(f->pool), why), "%s", pool_why(f->pool));
}

Test(raw_pool, a_disk_that_is_another_pools_or_does_not_answer)
{
	struct fixture f;
	raw_open(&f, 32);
	raw_write_header_of("5f1e0000-0000-4000-8000-0000000000ff", RAW_DISK_UUID, RAW_NODE);
	wait_missing(&f, "another pool's now");
	raw_write_header(RAW_NODE);
	fixture_wait_state(&f, POOL_READY);
	raw_write_header_of(RAW_POOL_UUID, "d15c0000-0000-4000-8000-0000000000ff", RAW_NODE);
	wait_missing(&f, "another pool's now");
	raw_write_header(RAW_NODE);
	fixture_wait_state(&f, POOL_READY);
	cr_assert_eq(truncate(raw_root.disk, 0), 0);
	wait_missing(&f, "does not reach its disk");
	fixture_close(&f);
}

/* ---- encrypted ones, which get their pieces when they get their file system ---- */

static struct pool_object *make_unformatted(struct fixture *f, const char *name, unsigned mib)
{
	struct record rec = raw_volume(name, mib);
	struct pool_object *o = NULL;
	rec.fs = FSIMG_EXT4;
	rec.encryption = RECORD_LUKS2;
	rec.unformatted = true;
	rec.device = RECORD_DEVICE_MAX;
	rec.claim = "shop/data";
	cr_assert_eq(fixture_build(f, &rec, NULL, &o), ERR_OK);
	return o;
}

static void drop_new_image(struct fixture *f, struct pool_renew *n)
{
	pool_renew_drop_init(n, &f->reactor);
	cr_assert_eq(fixture_run(f, &n->op), ERR_OK);
	pool_renew_free(n);
}

Test(raw_pool, an_unformatted_volume_gets_its_pieces_later)
{
	struct fixture f;
	struct pool_renew *n = malloc(sizeof(*n));
	raw_open(&f, 64);
	struct pool_object *o = make_unformatted(&f, "a", 16);
	unsigned with_header = (unsigned)(record_image_bytes(o->rec) / RAW_MIB);
	cr_assert_geq(with_header, 16);
	cr_assert_eq(raw_free_mib(&f), 64);
	cr_assert_eq(fixture_room(&f).available_thick_bytes, (64ULL - with_header) * RAW_MIB);
	raw_reopen_pools(&f);
	o = pools_find_name(f.pools, RECORD_VOLUME, "a");
	cr_assert_not_null(o->rec);
	cr_assert_eq(fixture_room(&f).available_thick_bytes, (64ULL - with_header) * RAW_MIB);
	/* A first stage that fails leaves a deleted image. */
	pool_renew_make_init(n, &f.reactor, o);
	cr_assert_eq(fixture_run(&f, &n->op), ERR_OK);
	cr_assert_eq(fixture_count(&f, "trash"), 1);
	cr_assert_eq(raw_free_mib(&f), 64 - with_header);
	drop_new_image(&f, n);
	cr_assert_eq(raw_dirty_mib(&f), with_header);
	fixture_settle(&f);
	cr_assert_eq(raw_free_mib(&f), 64);
	/* Driver killed in between. */
	pool_renew_make_init(n, &f.reactor, o);
	cr_assert_eq(fixture_run(&f, &n->op), ERR_OK);
	pool_renew_free(n);
	raw_reopen_pools(&f);
	fixture_settle(&f);
	cr_assert_eq(raw_free_mib(&f), 64);
	o = pools_find_name(f.pools, RECORD_VOLUME, "a");
	pool_renew_make_init(n, &f.reactor, o);
	cr_assert_eq(fixture_run(&f, &n->op), ERR_OK);
	pool_renew_commit_init(n, &f.reactor);
	cr_assert_eq(fixture_run(&f, &n->op), ERR_OK, "%s", n->op.err.message);
	pool_renew_free(n);
	fixture_settle(&f);
	cr_assert_not(o->rec->unformatted);
	cr_assert_eq(fixture_count(&f, "trash"), 0);
	cr_assert_eq(raw_free_mib(&f), 64 - with_header);
	cr_assert_eq(raw_dirty_mib(&f), 0);
	cr_assert_eq(fixture_room(&f).available_thick_bytes, (64ULL - with_header) * RAW_MIB);
	raw_reopen_pools(&f);
	cr_assert_eq(raw_free_mib(&f), 64 - with_header);
	o = pools_find_name(f.pools, RECORD_VOLUME, "a");
	cr_assert_str_eq(o->rec->claim, "shop/data", "the new image has it, too");
	free(n);
	fixture_close(&f);
}

/* ---- what a class may ask for ---- */

static int settle(struct fixture *f, const char *key, const char *value, struct csi_params *ret,
	struct err *err)
{
	Csi__V1__StringPair pair = CSI__V1__STRING_PAIR__INIT, *pairs[] = {&pair};
	pair.key = csi_bytes(key);
	pair.value = csi_bytes(value);
	err_clear(err);
	cr_assert_eq(csi_params_parse(pairs, 1, ret, err), 0, "%s", err->message);
	return csi_params_settle(ret, f->pool, err);
}

Test(raw_pool, what_a_class_may_ask_for)
{
	static const char *const taken[][2] = {{"provisioning", "thick"}, {"device", "disk"},
		{"blockSize", "512"}, {"eraseOnDelete", "zero"}};
	static const char *const refused_here[][3] = {{"device", "loop", "device disk"},
		{"device", "ublk", "device disk"}, {"blockSize", "4096", "blockSize"}};
	struct fixture f;
	struct csi_params params;
	struct err err;
	raw_open(&f, 32);
	for (unsigned i = 0; i < 4; i++) {
		cr_assert_eq(
			settle(&f, taken[i][0], taken[i][1], &params, &err), 0, "%s", err.message);
		cr_assert(params.thick);
		cr_assert_eq(params.device, RECORD_DEVICE_MAX);
	}
	cr_assert_eq(settle(&f, "provisioning", "thin", &params, &err), 0, "%s", err.message);
	cr_assert_not(params.thick);
	for (unsigned i = 0; i < 3; i++) {
		cr_assert_lt(settle(&f, refused_here[i][0], refused_here[i][1], &params, &err), 0);
		cr_assert_eq(err.code, ERR_PRECONDITION);
		cr_assert_not_null(strstr(err.message, refused_here[i][2]), "%s", err.message);
	}
	fixture_close(&f);
	/* In a directory the same are as ever, and disk is refused. */
	fixture_open(&f, FIXTURE_DIR);
	cr_assert_eq(settle(&f, "device", "ublk", &params, &err), 0);
	cr_assert_not(params.thick);
	cr_assert_lt(settle(&f, "device", "disk", &params, &err), 0);
	cr_assert_eq(err.code, ERR_PRECONDITION);
	fixture_close(&f);
}
