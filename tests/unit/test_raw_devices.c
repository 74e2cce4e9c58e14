/* SPDX-License-Identifier: Apache-2.0 */
/* Which pieces of a raw pool's disks the kernel has in devices (pool/raw_devices.h). What the
 * kernel says of them, and what becomes of the trash, is the test's, put there by the linker. */
#include "base/buf.h"
#include "disk/mapped.h"
#include "pool/raw_devices.h"
#include "pool/trash_own.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { MIB = DISK_UNIT_BYTES, DEVICES = 4, AREA_MIB = 64, TRASH_FD = 77 };

int __wrap_dm_open(struct dm *ret, const char *control_path);
void __wrap_dm_close(struct dm *dm);
int __wrap_mapped_each(
	struct dm *dm, void (*each)(void *arg, const struct mapped *mapped), void *arg);
int __wrap_mapped_pieces(
	struct dm *dm, const struct disk *disk, const struct mapped *mapped, struct image_map *ret);
int __wrap_trash_own(int trash_fd, const struct image_map *map);
int __wrap_array_grow(void *array, size_t *cap, size_t count, size_t elem_bytes);
int __real_array_grow(void *array, size_t *cap, size_t count, size_t elem_bytes);

/* ---- what the linker puts there ---- */

static struct {
	int open_fails, list_fails, memory_fails;
	unsigned opened, closed, grown;
	struct device {
		struct mapped mapped;
		struct image_map pieces;
		int res;
		unsigned asked;
	} devices[DEVICES];
	unsigned count;
} kernel;

int __wrap_dm_open(struct dm *ret, const char *control_path)
{
	cr_assert_str_eq(control_path, DM_CONTROL_PATH);
	*ret = (struct dm){.fd = -1};
	kernel.opened += kernel.open_fails == 0;
	return kernel.open_fails;
}

void __wrap_dm_close(struct dm *dm)
{
	cr_assert_eq(dm->fd, -1);
	kernel.closed++;
}

int __wrap_mapped_each(
	struct dm *dm, void (*each)(void *arg, const struct mapped *mapped), void *arg)
{
	cr_assert_eq(dm->fd, -1);
	for (unsigned i = 0; i < kernel.count; i++)
		each(arg, &kernel.devices[i].mapped);
	return kernel.list_fails;
}

int __wrap_mapped_pieces(
	struct dm *dm, const struct disk *disk, const struct mapped *mapped, struct image_map *ret)
{
	cr_assert(dm->fd == -1 && disk->count == 1);
	struct device *d = &kernel.devices[mapped->minor];
	d->asked++;
	*ret = d->pieces;
	return d->res;
}

int __wrap_array_grow(void *array, size_t *cap, size_t count, size_t elem_bytes)
{
	kernel.grown++;
	return kernel.memory_fails != 0 ? kernel.memory_fails
					: __real_array_grow(array, cap, count, elem_bytes);
}

static struct {
	int fails[DEVICES];
	struct image_map maps[DEVICES];
	unsigned count;
} trash;

int __wrap_trash_own(int trash_fd, const struct image_map *map)
{
	cr_assert_eq(trash_fd, TRASH_FD);
	cr_assert_lt(trash.count, DEVICES);
	trash.maps[trash.count] = *map;
	return trash.fails[trash.count++];
}

/* ---- the world ---- */

static const struct disk disk = {
	.uuid = "5f1e0000-0000-4000-8000-00000000001a", .count = 1, .refs = 1};

static struct image_map map_of(unsigned at_mib, unsigned mib)
{
	struct image_map map = {0};
	cr_assert_eq(image_map_add(&map, (uint64_t)at_mib * MIB, (uint64_t)mib * MIB), 0);
	return map;
}

static struct device *add_device(const char *tag, unsigned at_mib, unsigned mib)
{
	struct device *d = &kernel.devices[kernel.count];
	*d = (struct device){.mapped = {.minor = kernel.count++}, .pieces = map_of(at_mib, mib)};
	strcpy(d->mapped.tag, tag);
	return d;
}

static void reset(void)
{
	memset(&kernel, 0, sizeof(kernel));
	memset(&trash, 0, sizeof(trash));
}

static int check(unsigned at_mib, unsigned mib)
{
	const struct image_map map = map_of(at_mib, mib);
	return raw_devices_check(&disk, &map);
}

/* ---- which devices count ---- */

Test(raw_devices, a_device_of_the_pool_keeps_what_it_leads_to)
{
	add_device("ringvol:5f1e0000:00000001", 0, 4);
	add_device("ringvol:5f1e0000:00000002", 10, 4);
	add_device("ringvol:5f1e0000:00000003", 20, 4);
	cr_expect_eq(check(4, 6), 0);
	cr_expect_eq(check(13, 7), -EBUSY);
	cr_expect(kernel.devices[1].asked == 2 && kernel.devices[2].asked == 1, "one is enough");
	cr_expect_eq(check(23, 1), -EBUSY);
	cr_expect_eq(check(24, 1), 0);
	cr_expect(kernel.opened == 4 && kernel.closed == 4);
}

Test(raw_devices, others_do_not_count)
{
	add_device("ringvol:5f1e0001:00000001", 0, 4);
	add_device("ringvol:5f1e00001:0000001", 0, 4);
	add_device("ringvol:5f1e0000:00000003", 0, 4)->mapped.retired = true;
	cr_expect_eq(check(0, 8), 0);
	for (unsigned i = 0; i < kernel.count; i++)
		cr_expect_eq(kernel.devices[i].asked, 0, "%u", i);
	add_device("ringvol:5f1e0000:00000004", 0, 4);
	cr_expect_eq(check(0, 8), -EBUSY);
}

/* What of a device is on the pool's disks counts, whatever else it leads to. */
Test(raw_devices, devices_that_go_meanwhile_or_lead_elsewhere)
{
	static const struct {
		int res, want;
		unsigned next_asked;
	} cases[] = {{-ENXIO, 0, 1}, {-ERANGE, -EBUSY, 0}, {-EIO, -EIO, 0}, {0, -EBUSY, 0}};
	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		reset();
		add_device("ringvol:5f1e0000:00000001", 0, 4)->res = cases[i].res;
		add_device("ringvol:5f1e0000:00000002", 8, 4);
		cr_expect_eq(check(0, 4), cases[i].want, "%u", i);
		cr_expect_eq(kernel.devices[1].asked, cases[i].next_asked, "%u", i);
		cr_expect_eq(kernel.closed, 1);
	}
}

Test(raw_devices, what_nobody_can_tell)
{
	static const struct {
		int open_fails, list_fails, memory_fails, want;
		unsigned closed;
	} cases[] = {{-ENOENT, 0, 0, 0, 0}, {-ENXIO, 0, 0, 0, 0}, {-ENODEV, 0, 0, 0, 0},
		{-EACCES, 0, 0, -EACCES, 0}, {0, -EIO, 0, -EIO, 1}, {0, 0, -ENOMEM, -ENOMEM, 1}};
	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		uint64_t bytes = 17;
		reset();
		add_device("ringvol:5f1e0000:00000001", 0, 4);
		add_device("ringvol:5f1e0000:00000002", 0, 4);
		kernel.open_fails = cases[i].open_fails;
		kernel.list_fails = cases[i].list_fails;
		kernel.memory_fails = cases[i].memory_fails;
		cr_expect_eq(check(0, 4), cases[i].want, "%u", i);
		cr_expect_eq(kernel.closed, cases[i].closed, "%u", i);
		cr_expect_eq(kernel.devices[0].asked, 0, "%u", i);
		/* Where memory is short nobody goes on asking for it. */
		cr_expect(cases[i].memory_fails == 0 || kernel.grown == 1);
		struct area *area = area_new();
		cr_expect_eq(raw_devices_strays(&disk, TRASH_FD, area, &bytes), cases[i].want);
		cr_expect(bytes == 0 && trash.count == 0);
		area_free(area);
	}
}

/* ---- strays ---- */

/* 64 MiB, of which 4 to 6, 10 and 40 to 48 are some image's. */
static struct area *make_area(void)
{
	struct area *area = area_new();
	cr_assert_eq(area_add(area, 0, (uint64_t)AREA_MIB * MIB), 0);
	cr_assert_eq(area_occupy(area, 4 * MIB, 2 * MIB), 0);
	cr_assert_eq(area_occupy(area, 10 * MIB, MIB), 0);
	cr_assert_eq(area_occupy(area, 40 * MIB, 8 * MIB), 0);
	return area;
}

static void expect_trash(unsigned i, const unsigned (*pieces)[2], unsigned count)
{
	cr_assert_eq(trash.maps[i].count, count, "%u: %u", i, trash.maps[i].count);
	for (unsigned p = 0; p < count; p++) {
		cr_expect_eq(
			trash.maps[i].pieces[p].address, (uint64_t)pieces[p][0] * MIB, "%u", p);
		cr_expect_eq(trash.maps[i].pieces[p].bytes, (uint64_t)pieces[p][1] * MIB, "%u", p);
	}
}

/* Just what no image has, of what is on the disks. */
Test(raw_devices, what_no_image_has_becomes_a_file_of_the_trash)
{
	uint64_t bytes = 17;
	struct area *area = make_area();
	struct device *d = add_device("ringvol:5f1e0000:00000001", 0, 13);
	cr_assert_eq(image_map_add(&d->pieces, 30 * MIB, 3 * MIB), 0);
	add_device("ringvol:5f1e0000:00000002", 40, 8); /* an image's, all of it */
	add_device("ringvol:5f1e0000:00000003", 62, 5)->res = -ERANGE;
	add_device("ringvol:5f1e0000:00000004", 30, 2); /* the first one's as well */
	cr_expect_eq(raw_devices_strays(&disk, TRASH_FD, area, &bytes), 0);
	cr_assert_eq(trash.count, 2);
	expect_trash(0, (const unsigned[][2]){{0, 4}, {6, 4}, {11, 2}, {30, 3}}, 4);
	expect_trash(1, (const unsigned[][2]){{62, 2}}, 1);
	cr_expect_eq(bytes, 15 * MIB);
	cr_expect_eq(area_free_bytes(area), (AREA_MIB - 11 - 15) * (uint64_t)MIB);
	area_free(area);
}

/* What has no file stays occupied all the same. Records that cannot be written keep no pool away,
 * anything else does. */
Test(raw_devices, a_trash_that_takes_no_file)
{
	static const struct {
		int fails, want;
		unsigned count;
	} cases[] = {{-EROFS, 0, 2}, {-ENOSPC, 0, 2}, {-EIO, -EIO, 1}, {0, 0, 2}};
	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		uint64_t bytes = 17;
		reset();
		struct area *area = make_area();
		add_device("ringvol:5f1e0000:00000001", 0, 4);
		add_device("ringvol:5f1e0000:00000002", 20, 5);
		trash.fails[0] = cases[i].fails;
		cr_expect_eq(
			raw_devices_strays(&disk, TRASH_FD, area, &bytes), cases[i].want, "%u", i);
		cr_expect_eq(trash.count, cases[i].count, "%u", i);
		cr_expect_eq(bytes, (cases[i].count == 2 ? 9 : 4) * (uint64_t)MIB, "%u", i);
		cr_expect_eq(area_free_bytes(area), (AREA_MIB - 11) * (uint64_t)MIB - bytes);
		area_free(area);
	}
}

/* A map takes only so many pieces; then the load fails rather than that some have no owner. */
Test(raw_devices, strays_in_too_many_pieces)
{
	for (unsigned more = 0; more < 2; more++) {
		uint64_t bytes = 17;
		unsigned mib = 2 * (IMAGE_MAP_PIECES_MAX + more);
		struct area *area = area_new();
		reset();
		cr_assert_eq(area_add(area, 0, 1024 * (uint64_t)MIB), 0);
		for (unsigned i = 1; i < mib; i += 2)
			cr_assert_eq(area_occupy(area, i * (uint64_t)MIB, MIB), 0);
		add_device("ringvol:5f1e0000:00000001", 0, mib);
		int r = raw_devices_strays(&disk, TRASH_FD, area, &bytes);
		cr_expect_eq(r, more == 0 ? 0 : -E2BIG, "%d", r);
		cr_expect_eq(trash.count, 1 - more);
		cr_expect_eq(bytes, more == 0 ? IMAGE_MAP_PIECES_MAX * (uint64_t)MIB : 0);
		area_free(area);
	}
}
