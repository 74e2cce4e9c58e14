/* SPDX-License-Identifier: Apache-2.0 */
/* What `ringvol check` finds in a raw pool. Its disk is a file; what the kernel says of devices is
 * the test's, put there by the linker. */
#include "raw_fixture.h"

#include "disk/mapped.h"
#include "pool/trash.h"
#include "thin_metadata.h"
#include "tools/check_raw.h"
#include "tools/check_thin.h"

#include <sys/xattr.h>

int __wrap_dm_open(struct dm *ret, const char *control_path);
void __wrap_dm_close(struct dm *dm);
int __wrap_mapped_each(
	struct dm *dm, void (*each)(void *arg, const struct mapped *mapped), void *arg);
int __wrap_mapped_pieces(
	struct dm *dm, const struct disk *disk, const struct mapped *mapped, struct image_map *ret);

static struct {
	bool there;
	struct mapped mapped;
	struct image_map pieces;
	int res;
} device;

int __wrap_dm_open(struct dm *ret, const char *control_path)
{
	(void)control_path;
	*ret = (struct dm){.fd = -1};
	return device.there ? 0 : -ENOENT;
}

void __wrap_dm_close(struct dm *dm)
{
	(void)dm;
}

int __wrap_mapped_each(
	struct dm *dm, void (*each)(void *arg, const struct mapped *mapped), void *arg)
{
	(void)dm;
	each(arg, &device.mapped);
	return 0;
}

int __wrap_mapped_pieces(
	struct dm *dm, const struct disk *disk, const struct mapped *mapped, struct image_map *ret)
{
	(void)dm;
	(void)disk;
	(void)mapped;
	*ret = device.pieces;
	return device.res;
}

struct look {
	struct fixture f;
	struct tool_args args;
	struct check c;
	struct pool_root root;
};

/* A pool with the volumes a, b and c of 10 MiB, and no driver. */
static void look_make(struct look *l)
{
	*l = (struct look){0};
	raw_open(&l->f, 64);
	raw_make_volume(&l->f, "a", 10);
	raw_make_volume(&l->f, "b", 10);
	raw_make_volume(&l->f, "c", 10);
	fixture_close_pools(&l->f);
}

static void look_open(struct look *l)
{
	struct err err = {0};
	struct survey *s = &l->c.survey;
	l->args.arena = arena_new(0);
	l->c.args = &l->args;
	cr_assert_eq(raw_open_root(l->f.path, RAW_NODE, &l->root, &err), 0);
	memset(s->fds, 0xff, sizeof(s->fds));
	s->lock_fd = -1;
	s->disk = l->root.disk;
	strcpy(s->uuid, RAW_POOL_UUID);
	s->fds[SURVEY_ROOT] = l->root.fd;
	for (unsigned i = SURVEY_VOLUMES; i < SURVEY_DIRS; i++)
		s->fds[i] =
			openat(l->root.fd, survey_dir_names[i], O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	cr_assert_eq(survey_objects(s, RECORD_VOLUME, &l->c.objects[0], &l->c.counts[0]), 0);
}

static void look_begin(struct look *l)
{
	look_open(l);
	check_raw(&l->c);
}

static void look_end(struct look *l)
{
	check_close(&l->c);
	arena_unref(l->args.arena);
	l->c = (struct check){0};
}

static void look_close(struct look *l)
{
	look_end(l);
	fixture_close(&l->f);
}

static int open_volume(struct look *l, const char *name)
{
	char path[128];
	snprintf(path, sizeof(path), "%s/volumes/%s", l->f.path, name);
	int fd = open(path, O_RDWR | O_CLOEXEC);
	cr_assert(fd >= 0);
	return fd;
}

static void set_map(struct look *l, const char *name, const struct image_map *map)
{
	int fd = open_volume(l, name);
	cr_assert_eq(image_map_write(fd, map), 0);
	close(fd);
}

/* All there is. */
static void expect(struct look *l, const char *kind, const char *path)
{
	cr_assert_eq(l->c.count, 1, "%zu, first %s", l->c.count, l->c.findings[0].message);
	const struct check_finding *f = &l->c.findings[0];
	cr_expect_str_eq(f->kind, kind);
	cr_expect_str_eq(f->path, path, "%s", f->path);
	cr_expect_eq(f->severity, CHECK_PROBLEM);
	cr_expect_null(f->repair);
	cr_expect(f->message[0] != '\0' && f->remedy[0] != '\0');
}

Test(check_raw, a_sound_pool)
{
	struct look l;
	look_make(&l);
	look_begin(&l);
	cr_expect_eq(l.c.count, 0);
	cr_expect_eq(l.c.counts[0], 3);
	cr_expect_eq(l.c.objects[0][1].allocated_bytes, 10 * RAW_MIB);
	look_close(&l);
}

Test(check_raw, damaged_maps)
{
	struct look l;
	look_make(&l);
	int fd = open_volume(&l, "b");
	cr_assert_eq(fremovexattr(fd, IMAGE_MAP_XATTR), 0);
	look_begin(&l);
	expect(&l, "MapDamaged", "volumes/b");
	look_end(&l);
	cr_assert_eq(fsetxattr(fd, IMAGE_MAP_XATTR, "x", 1, 0), 0);
	close(fd);
	look_begin(&l);
	expect(&l, "MapDamaged", "volumes/b");
	look_close(&l);
}

Test(check_raw, a_file_without_record_and_map)
{
	struct look l;
	look_make(&l);
	int fd = open_volume(&l, "b");
	cr_assert_eq(fremovexattr(fd, IMAGE_MAP_XATTR), 0);
	cr_assert_eq(fremovexattr(fd, RECORD_XATTR), 0);
	close(fd);
	look_begin(&l);
	expect(&l, "MapDamaged", "volumes/b");
	look_end(&l);
	fixture_sh("mv %s/volumes/b %s/trash/0123456789abcdef", l.f.path, l.f.path);
	look_begin(&l);
	expect(&l, "MapDamaged", "trash/0123456789abcdef");
	look_close(&l);
}

Test(check_raw, what_a_repair_has_found)
{
	struct look l;
	look_make(&l);
	fixture_sh("mkdir %s/lost+found", l.f.path);
	look_begin(&l);
	cr_expect_eq(l.c.count, 0);
	look_end(&l);
	fixture_sh("touch %s/lost+found/131", l.f.path);
	look_begin(&l);
	expect(&l, "MapDamaged", "lost+found/131");
	look_close(&l);
}

Test(check_raw, of_what_is_deleted_too)
{
	struct look l;
	char path[128];
	look_make(&l);
	snprintf(path, sizeof(path), "%s/trash/0123456789abcdef", l.f.path);
	close(open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600));
	look_begin(&l);
	cr_expect_eq(l.c.count, 0, "it never had a byte");
	look_end(&l);
	cr_assert_eq(setxattr(path, IMAGE_MAP_XATTR, "x", 1, 0), 0);
	look_begin(&l);
	expect(&l, "MapDamaged", "trash/0123456789abcdef");
	look_close(&l);
}

Test(check_raw, a_map_shorter_than_the_record)
{
	struct look l;
	look_make(&l);
	struct image_map map = raw_map(&l.f, "volumes/b");
	image_map_cut(&map, 9 * RAW_MIB);
	set_map(&l, "b", &map);
	look_begin(&l);
	expect(&l, "MapShort", "volumes/b");
	look_close(&l);
}

Test(check_raw, pieces_on_no_disk)
{
	struct look l;
	struct image_map map = {0};
	look_make(&l);
	cr_assert_eq(image_map_add(&map, RAW_START + 60 * RAW_MIB, 10 * RAW_MIB), 0);
	set_map(&l, "c", &map);
	look_begin(&l);
	expect(&l, "MapOffDisks", "volumes/c");
	look_close(&l);
}

Test(check_raw, two_with_the_same_pieces)
{
	struct look l;
	look_make(&l);
	struct image_map a = raw_map(&l.f, "volumes/a"), map = {0};
	/* The second half of a's and what is behind it is b's; c has nothing to do with it. */
	cr_assert_eq(image_map_add(&map, RAW_START + 50 * RAW_MIB, 10 * RAW_MIB), 0);
	set_map(&l, "c", &map);
	image_map_cut(&map, 0);
	cr_assert_eq(image_map_add(&map, a.pieces[0].address + 5 * RAW_MIB, 10 * RAW_MIB), 0);
	set_map(&l, "b", &map);
	look_begin(&l);
	expect(&l, "MapsOverlap", "volumes/b");
	cr_expect(strstr(l.c.findings[0].message, "volumes/a") != NULL);
	look_close(&l);
}

Test(check_raw, devices)
{
	struct look l;
	struct stat st;
	look_make(&l);
	int fd = open_volume(&l, "b");
	cr_assert_eq(fstat(fd, &st), 0);
	close(fd);
	device.there = true;
	device.mapped = (struct mapped){
		.tag = "ringvol:5f1e0000:0badcafe", .image_ino = st.st_ino, .minor = 7};
	device.pieces = raw_map(&l.f, "volumes/b");
	look_begin(&l);
	cr_expect_eq(l.c.count, 0);
	look_end(&l);
	/* Of a volume that is being grown. */
	image_map_cut(&device.pieces, 7 * RAW_MIB);
	look_begin(&l);
	cr_expect_eq(l.c.count, 0);
	look_end(&l);
	device.pieces = raw_map(&l.f, "volumes/a");
	look_begin(&l);
	expect(&l, "DeviceDiffers", "/dev/dm-7");
	cr_expect(strstr(l.c.findings[0].message, "volume b") != NULL);
	look_end(&l);
	device.res = -ERANGE;
	look_begin(&l);
	expect(&l, "DeviceDiffers", "/dev/dm-7");
	look_end(&l);
	/* Gone meanwhile, let go, another pool's. */
	device.res = -ENXIO;
	look_begin(&l);
	cr_expect_eq(l.c.count, 0);
	look_end(&l);
	device.res = 0;
	device.mapped.retired = true;
	look_begin(&l);
	cr_expect_eq(l.c.count, 0);
	look_end(&l);
	device.mapped.retired = false;
	strcpy(device.mapped.tag, "ringvol:5f1e0001:0badcafe");
	look_begin(&l);
	cr_expect_eq(l.c.count, 0);
	look_close(&l);
}

/* The file system of a volume is looked at on the disk, not in its file. */
Test(check_raw, what_a_volume_holds)
{
	struct look l;
	look_make(&l);
	struct image_map map = raw_map(&l.f, "volumes/b");
	image_map_cut(&map, RAW_MIB);
	raw_bytes(&map, true, 0xbb);
	look_begin(&l);
	const struct pool_found *b = &l.c.objects[0][1];
	uint8_t mem[4096];
	struct stat st;
	int fd = check_raw_head(&l.c, b);
	cr_assert_geq(fd, 0);
	cr_expect(fstat(fd, &st) == 0 && st.st_size == 10 * RAW_MIB);
	cr_expect_eq(pread(fd, mem, sizeof(mem), RAW_MIB - 4096), 4096);
	cr_expect(mem[0] == 0xbb && mem[4095] == 0xbb);
	cr_expect_eq(pread(fd, mem, sizeof(mem), RAW_MIB), 4096);
	cr_expect_eq(mem[0], 0);
	close(fd);
	fd_close(&l.root.disk->members[0].fd);
	cr_expect_eq(check_raw_head(&l.c, b), -EBADF);
	look_end(&l);
	fd = open_volume(&l, "b");
	cr_assert_eq(fremovexattr(fd, IMAGE_MAP_XATTR), 0);
	close(fd);
	look_begin(&l);
	cr_expect_eq(check_raw_head(&l.c, &l.c.objects[0][1]), -ENODATA);
	look_close(&l);
}

/* ---- the thin pool ---- */

enum { META_MIB = 16, META_AT = 32, DATA_AT = 50 }; /* where its images lie, MiB */

static struct meta_super super_of(uint64_t ids_block)
{
	return (struct meta_super){.transaction = 1,
		.details = ids_block,
		.mappings = 2,
		.metadata_used = 10,
		.metadata_total = META_MIB * RAW_MIB / META_BLOCK,
		.data_total = 64,
		.block_bytes = THIN_BLOCK_MIN,
		.version = 2};
}

static void put_block(uint64_t number, const uint8_t *block)
{
	int fd = open(raw_root.disk, O_WRONLY | O_CLOEXEC);
	off_t at = RAW_OFFSET + (off_t)META_AT * RAW_MIB + (off_t)(number * META_BLOCK);
	cr_assert_eq(pwrite(fd, block, META_BLOCK, at), META_BLOCK);
	close(fd);
}

static void put_super(const struct meta_super *s)
{
	uint8_t block[META_BLOCK];
	meta_write_super(block, s);
	put_block(0, block);
}

static void put_ids(const uint64_t (*ids)[2], unsigned count)
{
	uint8_t block[META_BLOCK];
	meta_write_node(block, 1, true, META_DETAILS, ids, count);
	put_block(1, block);
}

static void thin_image(struct look *l, const char *name, unsigned at_mib, unsigned mib)
{
	char path[128];
	struct image_map map = {0};
	snprintf(path, sizeof(path), "%s/thin/%s", l->f.path, name);
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	cr_assert(fd >= 0);
	cr_assert_eq(image_map_add(
			     &map, RAW_START + (uint64_t)at_mib * RAW_MIB, (uint64_t)mib * RAW_MIB),
		0);
	cr_assert_eq(image_map_write(fd, &map), 0);
	close(fd);
}

static void set_id(struct look *l, const char *name, uint32_t id)
{
	const struct image_map map = {.thin_id = id};
	set_map(l, name, &map);
}

/* a is thick, b and c are 1 and 2 in the thin pool, which knows both; b's first block is the
 * pool's fourth. */
static void thin_make(struct look *l)
{
	uint8_t block[META_BLOCK];
	look_make(l);
	fixture_sh("mkdir -p %s/thin", l->f.path);
	thin_image(l, "metadata", META_AT, META_MIB);
	thin_image(l, "data", DATA_AT, 4);
	set_id(l, "b", 1);
	set_id(l, "c", 2);
	const struct meta_super s = super_of(1);
	put_super(&s);
	put_ids((const uint64_t[][2]){{1, 1}, {2, 0}}, 2);
	meta_write_node(block, 2, true, 8, (const uint64_t[][2]){{1, 3}, {2, 4}}, 2);
	put_block(2, block);
	meta_write_node(block, 3, true, 8, (const uint64_t[][2]){{0, UINT64_C(3) << 24}}, 1);
	put_block(3, block);
	meta_write_node(block, 4, true, 8, NULL, 0);
	put_block(4, block);
}

/* The one finding, which may be one to repair. */
static void expect_thin(struct look *l, enum check_severity severity, const char *kind,
	const char *path, bool repair)
{
	cr_assert_eq(l->c.count, 1, "%zu, first %s", l->c.count, l->c.findings[0].message);
	const struct check_finding *f = &l->c.findings[0];
	cr_expect_str_eq(f->kind, kind);
	cr_expect_str_eq(f->path, path, "%s", f->path);
	cr_expect_eq(f->severity, severity);
	cr_expect_eq(f->repair != NULL, repair);
	cr_expect(f->message[0] != '\0' && f->remedy[0] != '\0');
	look_end(l);
}

Test(check_raw, a_sound_thin_pool)
{
	struct look l;
	uint8_t *mem = NULL;
	thin_make(&l);
	look_begin(&l);
	cr_expect_eq(l.c.count, 0, "%s", l.c.count > 0 ? l.c.findings[0].message : "");
	/* What b holds: one block of the pool, and zeros. */
	int fd = open(raw_root.disk, O_WRONLY | O_CLOEXEC);
	off_t at = RAW_OFFSET + (off_t)DATA_AT * RAW_MIB + 3 * THIN_BLOCK_MIN;
	cr_assert_eq(pwrite(fd, "bytes of b", 10, at), 10);
	close(fd);
	cr_assert_eq(posix_memalign((void **)&mem, 4096, RAW_MIB), 0);
	memset(mem, 7, RAW_MIB);
	cr_assert_eq(check_thin_read(&l.c, 1, mem, RAW_MIB), 0);
	cr_expect(memcmp(mem, "bytes of b", 10) == 0 && mem[THIN_BLOCK_MIN] == 0);
	cr_expect_eq(check_thin_read(&l.c, 2, mem, RAW_MIB), 0);
	cr_expect_eq(mem[0], 0);
	cr_expect_eq(check_thin_read(&l.c, 3, mem, RAW_MIB), -ENODATA);
	free(mem);
	fd = check_raw_head(&l.c, &l.c.objects[0][1]);
	char head[10];
	cr_assert_geq(fd, 0);
	cr_expect(pread(fd, head, 10, 0) == 10 && memcmp(head, "bytes of b", 10) == 0);
	close(fd);
	look_close(&l);
}

Test(check_raw, ids_that_one_side_does_not_know)
{
	struct look l;
	thin_make(&l);
	put_ids((const uint64_t[][2]){{1, 1}}, 1);
	look_begin(&l);
	expect_thin(&l, CHECK_PROBLEM, "ThinIdUnknown", "volumes/c", false);
	put_ids((const uint64_t[][2]){{1, 1}, {2, 0}, {7, 32}}, 3);
	look_begin(&l);
	cr_expect(l.c.count == 1 && strstr(l.c.findings[0].message, "2M") != NULL);
	cr_expect(l.c.count == 1 && strstr(l.c.findings[0].remedy, "delete 7") != NULL);
	expect_thin(&l, CHECK_PROBLEM, "ThinIdLeft", "thin/metadata", false);
	/* Beside a driver it is looked at twice. */
	look_open(&l);
	l.c.survey.served = true;
	check_raw(&l.c);
	expect_thin(&l, CHECK_PROBLEM, "ThinIdLeft", "thin/metadata", false);
	/* What is in the trash has one, too, and need not be known. */
	put_ids((const uint64_t[][2]){{1, 1}, {2, 0}}, 2);
	fixture_sh("mv %s/volumes/c %s/trash/0123456789abcdef", l.f.path, l.f.path);
	look_begin(&l);
	cr_expect_eq(l.c.count, 0);
	look_end(&l);
	put_ids((const uint64_t[][2]){{1, 1}}, 1);
	look_begin(&l);
	cr_expect_eq(l.c.count, 0);
	look_close(&l);
}

Test(check_raw, two_with_the_same_id)
{
	struct look l;
	thin_make(&l);
	set_id(&l, "c", 1);
	put_ids((const uint64_t[][2]){{1, 1}}, 1);
	look_begin(&l);
	expect(&l, "MapsOverlap", "volumes/c");
	look_close(&l);
}

Test(check_raw, thin_metadata)
{
	struct look l;
	uint8_t block[META_BLOCK] = {1};
	thin_make(&l);
	struct meta_super s = super_of(1);
	s.needs_check = true;
	put_super(&s);
	look_begin(&l);
	expect_thin(&l, CHECK_PROBLEM, "ThinNeedsCheck", "thin/metadata", true);
	s = super_of(1);
	s.metadata_used = s.metadata_total - 5;
	put_super(&s);
	look_begin(&l);
	expect_thin(&l, CHECK_PROBLEM, "ThinMetadataFull", "thin/metadata", false);
	s = super_of(9);
	put_super(&s);
	look_begin(&l);
	expect_thin(&l, CHECK_PROBLEM, "ThinMetadataDamaged", "thin/metadata", true);
	put_block(0, block);
	look_begin(&l);
	expect_thin(&l, CHECK_PROBLEM, "ThinMetadataDamaged", "thin/metadata", true);
	/* Zeros are what a new thin pool begins with, and not one that images have bytes in. */
	block[0] = 0;
	put_block(0, block);
	look_begin(&l);
	expect_thin(&l, CHECK_PROBLEM, "ThinMetadataDamaged", "thin/metadata", true);
	fixture_sh("rm %s/volumes/b %s/volumes/c", l.f.path, l.f.path);
	look_begin(&l);
	cr_expect_eq(l.c.count, 0);
	look_end(&l);
	fixture_close(&l.f);
}

Test(check_raw, images_of_a_thin_pool)
{
	struct look l;
	thin_make(&l);
	fixture_sh("mv %s/thin/data %s/data", l.f.path, l.f.path);
	look_begin(&l);
	expect_thin(&l, CHECK_PROBLEM, "ThinPoolMissing", "thin/data", false);
	fixture_sh("rm %s/volumes/b %s/volumes/c", l.f.path, l.f.path);
	look_begin(&l);
	expect_thin(&l, CHECK_LEFTOVER, "ThinPoolHalf", "thin/metadata", false);
	fixture_sh("mv %s/data %s/thin/data; setfattr -x " IMAGE_MAP_XATTR " %s/thin/metadata",
		l.f.path, l.f.path, l.f.path);
	look_begin(&l);
	expect_thin(&l, CHECK_PROBLEM, "MapDamaged", "thin/metadata", false);
	fixture_sh("rm -r %s/thin", l.f.path);
	look_begin(&l);
	cr_expect_eq(l.c.count, 0);
	look_close(&l);
}
