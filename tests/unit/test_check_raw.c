/* SPDX-License-Identifier: Apache-2.0 */
/* What `ringvol check` finds in a raw pool. Its disk is a file; what the kernel says of devices is
 * the test's, put there by the linker. */
#include "raw_fixture.h"

#include "disk/mapped.h"
#include "pool/trash.h"
#include "tools/check_raw.h"

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

static void look_begin(struct look *l)
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
