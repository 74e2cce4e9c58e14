/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Disks of raw pools on loop devices: found, opened, claimed, refused, made and grown, all but for
 * what is on the records, which needs a device mapper; their device is made in a fake one.
 */
#include "base/clock.h"
#include "base/fd.h"
#include "blockio/image_map.h"
#include "blockio_env.h"
#include "disk/fresh.h"
#include "disk/init.h"
#include "disk/owner.h"
#include "disk/place.h"
#include "disk/records_device.h"
#include "fake_dm.h"
#include "pool/layout.h"
#include "pool/raw_init.h"

#include <dirent.h>
#include <sys/file.h>

#define MIB (UINT64_C(1) << 20)

enum { DISK_MIB = 1100, RECORDS_MIB = 320, LOOPS = 4 };

static struct lodev loops[LOOPS];
static unsigned loop_count;
static char device[LOOPS][32];

static void finish(void)
{
	for (unsigned i = 0; i < loop_count; i++)
		if (loops[i].minor != UINT32_MAX)
			env_detach(&loops[i]);
	env_close();
}

/* One more disk; its number. */
static unsigned plug(const char *image)
{
	loops[loop_count] = env_attach(image);
	snprintf(device[loop_count], sizeof(device[0]), "/dev/loop%u", loops[loop_count].minor);
	return loop_count++;
}

static void unplug(unsigned disk)
{
	env_detach(&loops[disk]);
	loops[disk].minor = UINT32_MAX;
}

static void open_env(void)
{
	ENV_NEEDS_LOOP();
	env_open();
	env_image("first", DISK_MIB * MIB);
	plug("first");
	cr_assert_eq(mkdirat(env.dirfd, "pool", 0700), 0);
}

static struct disk_header header_of(unsigned disk)
{
	struct disk_found found;
	_cleanup_fd_ int fd = open(device[disk], O_RDONLY | O_CLOEXEC);
	cr_assert_eq(disk_found_read(fd, device[disk], &found), 0);
	return found.header;
}

static void write_header(unsigned disk, const struct disk_header *h)
{
	_cleanup_fd_ int fd = open(device[disk], O_RDWR | O_CLOEXEC);
	cr_assert_eq(disk_header_write(fd, h), 0);
}

/* As disk_init_begin() and disk_init_end() make it, but for the records. */
static struct disk_header make_pool(void)
{
	struct disk_header h = {
		.count = 1,
		.size_bytes = DISK_MIB * MIB,
		.records_offset = MIB,
		.records_bytes = RECORDS_MIB * MIB,
		.offset = (RECORDS_MIB + 1) * MIB,
		.bytes = (DISK_MIB - RECORDS_MIB - 2) * MIB,
		.generation = 2,
	};
	struct disk_place place = {0};
	uuid_draw(h.pool);
	uuid_draw(h.disk);
	memcpy(h.disks[0], h.disk, sizeof(h.disk));
	write_header(0, &h);
	memcpy(place.pool, h.pool, sizeof(h.pool));
	memcpy(place.disk, h.disk, sizeof(h.disk));
	strcpy(place.device, device[0]);
	cr_assert_eq(disk_place_write(env_path("pool"), &place), 0);
	return h;
}

static struct disk *open_disk(enum disk_use use, const char *node)
{
	struct disk *disk = NULL;
	struct err err = {0};
	cr_assert_eq(disk_open(env_path("pool"), use, node, &disk, &err), 0, "%s", err.message);
	return disk;
}

static void expect_refused(
	enum disk_use use, const char *node, enum err_code code, const char *words)
{
	struct disk *disk = NULL;
	struct err err = {0};
	cr_assert_lt(disk_open(env_path("pool"), use, node, &disk, &err), 0, "no '%s'", words);
	cr_expect_eq(err.code, code, "%s", err.message);
	cr_expect_not_null(strstr(err.message, words), "'%s' has no '%s'", err.message, words);
	cr_expect_null(disk);
}

TestSuite(disk_init, .init = open_env, .fini = finish, .timeout = 120);

/* ---- the place ---- */

Test(disk_init, the_place_names_the_disk)
{
	struct disk_place place = {0}, got;
	struct err err = {0};
	const char *path = env_path("pool");
	cr_expect(!disk_is_raw_pool(path));
	cr_expect_eq(disk_place_read(path, &got), -ENOENT);
	cr_assert_eq(disk_place_prepare(path, &got, &err), 0, "%s", err.message);
	cr_expect_str_empty(got.pool);
	uuid_draw(place.pool);
	uuid_draw(place.disk);
	strcpy(place.device, "/dev/disk/by-id/nvme-1");
	cr_assert_eq(disk_place_write(path, &place), 0);
	cr_expect(disk_is_raw_pool(path));
	cr_assert_eq(disk_place_prepare(path, &got, &err), 0, "%s", err.message);
	cr_expect_arr_eq(&got, &place, sizeof(got));
	strcpy(place.device, "sdb");
	cr_expect_eq(disk_place_write(path, &place), -EINVAL);
	cr_expect_eq(disk_place_write(env_path("nowhere"), &place), -ENOENT);
}

Test(disk_init, a_damaged_place_is_no_place)
{
	static const char *const wrong[] = {
		"",
		"ringvol-disk 2\n",
		"ringvol-disk 1\npool=1\n",
		"ringvol-disk 1\ndevice=/dev/sdb\n",
		"ringvol-disk 1\npool=5f1e0000-0000-4000-8000-00000000001a\n"
		"disk=d15c0000-0000-4000-8000-000000000001\ndevice=sdb\n",
		"ringvol-disk 1\npool=5f1e0000-0000-4000-8000-00000000001a\n"
		"disk=d15c0000-0000-4000-8000-000000000001\ndevice=/dev/sdb\nmore\n",
	};
	const char *path = env_path("pool"), *file = env_path("pool/" DISK_FILE);
	struct disk_place got;
	for (unsigned i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		struct err err = {0};
		FILE *f = fopen(file, "we");
		cr_assert_not_null(f);
		fputs(wrong[i], f);
		fclose(f);
		cr_expect_eq(disk_place_read(path, &got), -EBADMSG, "%u", i);
		cr_expect_lt(disk_place_prepare(path, &got, &err), 0);
		cr_expect_eq(err.code, ERR_PRECONDITION);
	}
	expect_refused(DISK_LOOK, NULL, ERR_DATA_LOSS, "pool init");
}

Test(disk_init, the_place_of_anything_else_is_refused)
{
	struct disk_place got;
	struct err err = {0};
	close(openat(env.dirfd, "pool/file", O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
	cr_expect_lt(disk_place_prepare(env_path("pool"), &got, &err), 0);
	cr_expect_eq(err.code, ERR_PRECONDITION);
	cr_expect_not_null(strstr(err.message, "there is file"), "%s", err.message);
}

/* ---- opening ---- */

Test(disk_init, the_disk_is_found_wherever_it_is)
{
	struct disk_header h = make_pool();
	struct disk_place place;
	uint64_t offset, bytes;
	struct disk *disk = open_disk(DISK_LOOK, NULL);
	cr_expect_str_eq(disk->uuid, h.pool);
	cr_expect_eq(disk->count, 1);
	cr_expect_eq(disk->block_size, 512);
	cr_expect_eq(disk->members[0].bytes, h.bytes);
	cr_expect(!disk->members[0].damaged && !disk->members[0].larger);
	cr_expect_eq(disk_at(disk, MIB, &offset, &bytes), &disk->members[0]);
	cr_expect_eq(offset, h.offset + MIB);
	cr_expect_eq(bytes, h.bytes - MIB);
	cr_expect_null(disk_at(disk, h.bytes, &offset, &bytes));
	cr_expect_lt(pwrite(disk->members[0].fd, "", 1, 0), 0, "for looking");
	disk_unref(disk);

	/* Under another number; what looks changes nothing. */
	env_image("filler", 4 * MIB);
	unsigned filler = plug("filler");
	unplug(0);
	plug("first");
	disk_unref(open_disk(DISK_LOOK, NULL));
	cr_assert_eq(disk_place_read(env_path("pool"), &place), 0);
	cr_expect_str_eq(place.device, device[0]);
	disk_unref(open_disk(DISK_SERVE, "node-1"));
	cr_assert_eq(disk_place_read(env_path("pool"), &place), 0);
	unplug(filler);

	unplug(loop_count - 1);
	expect_refused(DISK_SERVE, "node-1", ERR_UNAVAILABLE, "is not there");
}

Test(disk_init, a_directory_pool_is_no_raw_pool)
{
	expect_refused(DISK_LOOK, NULL, ERR_PRECONDITION, "is no raw pool");
}

Test(disk_init, two_that_say_the_same_are_refused)
{
	struct disk_header h = make_pool();
	env_image("copy", DISK_MIB * MIB);
	unsigned copy = plug("copy");
	write_header(copy, &h);
	expect_refused(DISK_SERVE, "node-1", ERR_PRECONDITION, "are the same disk");
	/* A disk of the pool that is another one is not in the way. */
	uuid_draw(h.disk);
	memcpy(h.disks[0], h.disk, sizeof(h.disk));
	write_header(copy, &h);
	disk_unref(open_disk(DISK_LOOK, NULL));
}

Test(disk_init, what_looks_like_a_volumes_device_is_not_asked)
{
	struct disk_header h = make_pool();
	cr_assert_eq(mkdirat(env.dirfd, "volumes", 0700), 0);
	env_image("volumes/forged", DISK_MIB * MIB);
	write_header(plug("volumes/forged"), &h);
	disk_unref(open_disk(DISK_LOOK, NULL));
}

Test(disk_init, sizes)
{
	struct disk_header h = make_pool();
	int fd = openat(env.dirfd, "first", O_RDWR | O_CLOEXEC);
	cr_assert_eq(ftruncate(fd, (DISK_MIB + 10) * MIB), 0);
	unplug(0);
	unsigned again = plug("first");
	struct disk *disk = open_disk(DISK_LOOK, NULL);
	cr_expect(disk->members[0].larger);
	cr_expect_eq(disk->members[0].bytes, h.bytes);
	disk_unref(disk);
	unplug(again);
	cr_assert_eq(ftruncate(fd, (DISK_MIB - 10) * MIB), 0);
	plug("first");
	expect_refused(DISK_SERVE, "node-1", ERR_UNAVAILABLE, "smaller");
	close(fd);
}

Test(disk_init, what_was_not_ended_is_not_served)
{
	struct disk_header h = make_pool();
	h.state = DISK_MAKING;
	write_header(0, &h);
	expect_refused(DISK_LOOK, NULL, ERR_PRECONDITION, "pool init");
	h.state = DISK_GROWING;
	write_header(0, &h);
	expect_refused(DISK_SERVE, "node-1", ERR_PRECONDITION, "pool grow");
	disk_unref(open_disk(DISK_CHANGE, NULL));
	disk_unref(open_disk(DISK_LOOK, NULL));
}

Test(disk_init, a_damaged_header_is_mended_by_who_serves)
{
	make_pool();
	static const char torn[DISK_HEADER_BYTES] = "ringvol-disk 1\ntorn";
	_cleanup_fd_ int fd = open(device[0], O_RDWR | O_CLOEXEC);
	cr_assert_eq(pwrite(fd, torn, sizeof(torn), 0), sizeof(torn));
	fsync(fd);
	struct disk *disk = open_disk(DISK_LOOK, NULL);
	cr_expect(disk->members[0].damaged);
	disk_unref(disk);
	disk_unref(open_disk(DISK_SERVE, "node-1"));
	disk = open_disk(DISK_LOOK, NULL);
	cr_expect(!disk->members[0].damaged);
	disk_unref(disk);
	cr_assert_eq(pwrite(fd, torn, sizeof(torn), 0), sizeof(torn));
	cr_assert_eq(pwrite(fd, torn, sizeof(torn), (DISK_MIB - 1) * MIB), sizeof(torn));
	fsync(fd);
	expect_refused(DISK_LOOK, NULL, ERR_DATA_LOSS, "both damaged");
}

Test(disk_init, a_disk_that_became_something_else_is_not_ours)
{
	make_pool();
	unplug(0);
	env_mkfs("first", FSIMG_EXT4, DISK_MIB * MIB, "");
	plug("first"); /* the copy is there still */
	expect_refused(DISK_SERVE, "node-1", ERR_UNAVAILABLE, "is not there");
}

/* As md's format 1.0 has it: behind what is mirrored. */
static void write_md(unsigned disk, uint64_t size_bytes, bool there)
{
	uint64_t sector = (size_bytes / 512 - 16) & ~UINT64_C(7);
	const uint32_t magic = 0xa92b4efc, major = 1;
	char block[4096] = {0};
	if (there) {
		memcpy(block, &magic, sizeof(magic));
		memcpy(block + 4, &major, sizeof(major));
		memcpy(block + 144, &sector, sizeof(sector));
	}
	_cleanup_fd_ int fd = open(device[disk], O_RDWR | O_CLOEXEC);
	cr_assert_eq(pwrite(fd, block, sizeof(block), (off_t)(sector * 512)), sizeof(block));
	fsync(fd);
}

Test(disk_init, a_leg_of_a_mirror_is_not_taken_for_it)
{
	const uint64_t leg_bytes = DISK_MIB * MIB + 512 * 1024;
	make_pool();
	_cleanup_fd_ int image = openat(env.dirfd, "first", O_RDWR | O_CLOEXEC);
	cr_assert_eq(ftruncate(image, (off_t)leg_bytes), 0);
	unplug(0);
	unsigned leg = plug("first");
	write_md(leg, leg_bytes, true);
	expect_refused(DISK_SERVE, "node-1", ERR_UNAVAILABLE, "is not there");
	write_md(leg, leg_bytes, false);
	disk_unref(open_disk(DISK_LOOK, NULL));
}

/* ---- whose ---- */

Test(disk_init, one_node_serves_it)
{
	char machine[DISK_MACHINE_MAX];
	disk_machine(machine);
	make_pool();
	struct disk *disk = open_disk(DISK_SERVE, "node-1");
	struct disk_header h = header_of(0);
	cr_expect_str_eq(h.owner, "node-1");
	cr_expect_str_eq(h.owner_machine, machine);
	cr_expect_neq(h.owner_since_ns, 0);
	cr_expect_eq(h.generation, 3);
	cr_expect(disk_owner_is(&h, "node-1") && disk_owner_is(&h, NULL));
	cr_expect(!disk_owner_is(&h, "node-2"));
	disk_unref(disk);
	/* The same node again: nothing is written. */
	disk_unref(open_disk(DISK_SERVE, "node-1"));
	cr_expect_eq(header_of(0).generation, 3);
	expect_refused(DISK_SERVE, "node-2", ERR_UNAVAILABLE, "node-1 serves the pool since 2");
	expect_refused(DISK_SERVE, "node-2", ERR_UNAVAILABLE, "pool release --take-over /tmp/");
	disk_unref(open_disk(DISK_LOOK, NULL));
	disk_unref(open_disk(DISK_CHANGE, NULL));
	/* The same name on another machine. */
	strcpy(h.owner_machine, "another");
	cr_expect(!disk_owner_is(&h, "node-1"));
	h.generation = 9;
	write_header(0, &h);
	expect_refused(DISK_SERVE, "node-1", ERR_UNAVAILABLE, "on another machine");
	expect_refused(DISK_CHANGE, NULL, ERR_UNAVAILABLE, "node-1 serves the pool");
	disk_unref(open_disk(DISK_TAKE_OVER, NULL));
	cr_expect(disk_owner_set(&h, NULL));
	cr_expect(!disk_owner_set(&h, NULL));
	cr_expect_str_empty(h.owner);
	write_header(0, &h);
	disk_unref(open_disk(DISK_SERVE, "node-2"));
	cr_expect_str_eq(header_of(0).owner, "node-2");
}

/* What happens while a node waits for others that claim the pool too. */
static void (*meanwhile)(void);
static struct disk_header written_meanwhile;

void __wrap_clock_sleep_ms(unsigned ms);
void __real_clock_sleep_ms(unsigned ms);

void __wrap_clock_sleep_ms(unsigned ms)
{
	void (*happens)(void) = meanwhile;
	meanwhile = NULL;
	if (happens != NULL)
		happens();
	else
		__real_clock_sleep_ms(ms);
}

/* The other node has read the header before this one has written its own. */
static void other_node(void)
{
	struct disk_header h = header_of(0);
	cr_assert_str_eq(h.owner, "node-1");
	memset(h.owner, 0, sizeof(h.owner));
	strcpy(h.owner, "node-2");
	write_header(0, &h);
}

Test(disk_init, of_two_nodes_that_claim_it_at_once_one_has_it)
{
	make_pool();
	meanwhile = other_node;
	expect_refused(DISK_SERVE, "node-1", ERR_UNAVAILABLE, "node-2 serves the pool");
	cr_expect_null(meanwhile);
	disk_unref(open_disk(DISK_SERVE, "node-2"));
}

static void other_writer(void)
{
	write_header(1, &written_meanwhile);
}

Test(disk_init, a_header_that_was_written_since_is_not_overwritten)
{
	static const char torn[DISK_HEADER_BYTES] = "ringvol-disk 1\ntorn";
	struct disk_header h = make_pool(), second = h;
	env_image("second", DISK_MIB * MIB);
	cr_assert_eq(plug("second"), 1);
	uuid_draw(second.disk);
	second.index = 1;
	second.count = 0;
	memset(second.disks, 0, sizeof(second.disks));
	second.start = UINT64_C(1) << 48;
	second.records_offset = second.records_bytes = 0;
	write_header(1, &second);
	memcpy(h.disks[1], second.disk, sizeof(second.disk));
	h.count = 2;
	h.generation++;
	write_header(0, &h);
	_cleanup_fd_ int fd = open(device[1], O_RDWR | O_CLOEXEC);
	cr_assert_eq(pwrite(fd, torn, sizeof(torn), 0), sizeof(torn));
	fsync(fd);
	second.generation = 9;
	written_meanwhile = second;
	meanwhile = other_writer;
	expect_refused(DISK_SERVE, "node-1", ERR_UNAVAILABLE, "written by another process");
	cr_expect_null(meanwhile);
	cr_expect_eq(header_of(1).generation, 9);
	disk_unref(open_disk(DISK_SERVE, "node-1"));
}

/* ---- taking a device ---- */

static void expect_not_fresh(const char *path, enum err_code code, const char *words)
{
	struct disk_fresh fresh;
	struct err err = {0};
	cr_assert_lt(disk_fresh_open(path, &fresh, &err), 0, "no '%s'", words);
	cr_expect_eq(err.code, code, "%s", err.message);
	cr_expect_not_null(strstr(err.message, words), "'%s' has no '%s'", err.message, words);
}

Test(disk_init, a_device_that_holds_anything_is_refused)
{
	static const enum fsimg_type types[] = {FSIMG_EXT4, FSIMG_XFS, FSIMG_BTRFS};
	for (unsigned i = 0; i < 3; i++) {
		unplug(loop_count - 1);
		env_mkfs("first", types[i], DISK_MIB * MIB, "");
		loop_count = 0;
		plug("first");
		expect_not_fresh(device[0], ERR_PRECONDITION, fsimg_name(types[i]));
	}
	/* One whose checksum is wrong is one all the same. */
	_cleanup_fd_ int fd = open(device[0], O_RDWR | O_CLOEXEC);
	char block[4096];
	cr_assert_eq(pread(fd, block, sizeof(block), 64 << 10), sizeof(block));
	block[600] ^= 1;
	cr_assert_eq(pwrite(fd, block, sizeof(block), 64 << 10), sizeof(block));
	fsync(fd);
	expect_not_fresh(device[0], ERR_PRECONDITION, "btrfs");
}

Test(disk_init, a_device_in_use_or_too_small_is_refused)
{
	struct disk_fresh fresh;
	struct err err = {0};
	cr_assert_eq(disk_fresh_open(device[0], &fresh, &err), 0, "%s", err.message);
	cr_expect(!fresh.ours && fresh.fd >= 0);
	expect_not_fresh(device[0], ERR_PRECONDITION, "held by somebody");
	close(fresh.fd);
	env_image("small", 1000 * MIB);
	expect_not_fresh(device[plug("small")], ERR_PRECONDITION, "has 1000 MiB");
	expect_not_fresh("/dev/null", ERR_INVALID, "no block device");
	expect_not_fresh("/dev/nothing", ERR_INVALID, "No such file");
	expect_not_fresh("nothing", ERR_INVALID, "No such file");
	env_image("volumes", DISK_MIB * MIB);
	struct lodev_spec spec = env_spec("volumes");
	spec.read_only = true;
	cr_assert_eq(lodev_attach(&spec, &loops[loop_count], &err), 0, "%s", err.message);
	snprintf(device[loop_count], sizeof(device[0]), "/dev/loop%u", loops[loop_count].minor);
	expect_not_fresh(device[loop_count++], ERR_PRECONDITION, "cannot be written to");
}

Test(disk_init, a_device_that_was_begun_is_taken_again)
{
	struct disk_header h = make_pool();
	struct disk_fresh fresh;
	struct err err = {0};
	cr_assert_eq(disk_fresh_open(device[0], &fresh, &err), 0, "%s", err.message);
	cr_expect(fresh.ours && fresh.fd < 0, "a sound one is not taken");
	h.state = DISK_MAKING;
	h.generation++;
	write_header(0, &h);
	cr_assert_eq(disk_fresh_open(device[0], &fresh, &err), 0, "%s", err.message);
	cr_expect(fresh.ours && fresh.fd >= 0);
	cr_expect_eq(disk_fresh_mark(fresh.fd, &h), 0);
	close(fresh.fd);
	/* A damaged one is in doubt, until it is wiped. */
	static const char torn[DISK_HEADER_BYTES] = "ringvol-disk 1\ntorn",
			  zeros[DISK_HEADER_BYTES];
	_cleanup_fd_ int fd = open(device[0], O_RDWR | O_CLOEXEC);
	cr_assert_eq(pwrite(fd, torn, sizeof(torn), 0), sizeof(torn));
	cr_assert_eq(pwrite(fd, torn, sizeof(torn), (DISK_MIB - 1) * MIB), sizeof(torn));
	fsync(fd);
	expect_not_fresh(device[0], ERR_PRECONDITION, "are damaged");
	cr_assert_eq(pwrite(fd, zeros, sizeof(zeros), 0), sizeof(zeros));
	fsync(fd);
	cr_assert_eq(disk_fresh_open(device[0], &fresh, &err), 0, "%s", err.message);
	cr_expect(!fresh.ours);
	close(fresh.fd);
}

Test(disk_init, a_leg_of_an_array_that_was_begun_is_refused)
{
	struct disk_header h = make_pool();
	struct disk_fresh fresh;
	struct err err = {0};
	h.state = DISK_MAKING;
	h.generation++;
	write_header(0, &h);
	write_md(0, DISK_MIB * MIB, true);
	expect_not_fresh(device[0], ERR_PRECONDITION, "linux_raid_member");
	write_md(0, DISK_MIB * MIB, false);
	cr_assert_eq(disk_fresh_open(device[0], &fresh, &err), 0, "%s", err.message);
	close(fresh.fd);
}

/* ---- growing ---- */

static struct disk_change begin(struct disk *disk, const char *path)
{
	struct disk_change change;
	struct err err = {0};
	cr_assert_eq(
		disk_grow_begin(env_path("pool"), disk, path, &change, &err), 0, "%s", err.message);
	return change;
}

static void end(struct disk_change *change)
{
	struct err err = {0};
	cr_assert_eq(disk_grow_end(change, &err), 0, "%s", err.message);
	disk_change_drop(change);
}

Test(disk_init, a_second_disk)
{
	struct disk_header h = make_pool();
	env_image("second", DISK_MIB * MIB);
	unsigned second = plug("second");
	struct disk *disk = open_disk(DISK_CHANGE, NULL);

	/* Cut short: nobody serves it, and the next attempt begins anew. */
	struct disk_change change = begin(disk, device[second]);
	cr_expect(!change.existed);
	cr_expect_eq(change.start, UINT64_C(1) << 48);
	cr_expect_eq(change.bytes, (DISK_MIB - 2) * MIB);
	disk_change_drop(&change);
	expect_refused(DISK_SERVE, "node-1", ERR_PRECONDITION, "pool grow");
	change = begin(disk, NULL); /* without it */
	cr_expect(change.existed);
	disk_change_drop(&change);
	disk_unref(open_disk(DISK_SERVE, "node-1"));

	change = begin(disk, device[second]);
	struct disk_header at_its_end = change.grown;
	end(&change);
	cr_expect_gt(header_of(1).generation, at_its_end.generation, "the newer copy counts");
	change = begin(disk, device[second]);
	cr_expect(change.existed);
	disk_change_drop(&change);
	disk_unref(disk);

	disk = open_disk(DISK_SERVE, "node-1");
	uint64_t offset, bytes;
	cr_expect_eq(disk->count, 2);
	cr_expect_eq(disk_at(disk, (UINT64_C(1) << 48) + MIB, &offset, &bytes), &disk->members[1]);
	cr_expect_eq(offset, 2 * MIB);
	cr_expect_eq(disk->members[1].bytes, (DISK_MIB - 2) * MIB);
	disk_unref(disk);

	/* The first disk's header is an old one: the second may have volumes. */
	h = header_of(0);
	h.count = 1;
	h.generation++;
	write_header(0, &h);
	disk = open_disk(DISK_CHANGE, NULL);
	struct err err = {0};
	cr_assert_lt(disk_grow_begin(env_path("pool"), disk, device[second], &change, &err), 0);
	cr_expect_eq(err.code, ERR_PRECONDITION);
	cr_expect_not_null(strstr(err.message, "is disk 2 of this pool"), "%s", err.message);
	disk_unref(disk);
	cr_expect_str_eq(header_of(second).disk, at_its_end.disk, "nothing was written to it");

	/* The first disk's last header was not written: the second is sound, and nobody's. */
	h.state = DISK_GROWING;
	h.generation++;
	write_header(0, &h);
	disk = open_disk(DISK_CHANGE, NULL);
	change = begin(disk, device[second]);
	cr_expect_str_neq(change.grown.disk, at_its_end.disk);
	end(&change);
	disk_unref(disk);
	disk_unref(open_disk(DISK_SERVE, "node-1"));

	unplug(second);
	expect_refused(DISK_SERVE, "node-1", ERR_UNAVAILABLE, "disk 2 of the 2");
	unsigned back = plug("second");
	h = header_of(back);
	h.index = 2;
	h.generation++;
	write_header(back, &h);
	expect_refused(DISK_SERVE, "node-1", ERR_PRECONDITION, "another thing");
}

Test(disk_init, a_disk_that_has_grown)
{
	struct disk_header h = make_pool();
	unplug(0);
	int fd = openat(env.dirfd, "first", O_RDWR | O_CLOEXEC);
	cr_assert_eq(ftruncate(fd, (off_t)((DISK_MIB + 10) * MIB + 4096)), 0);
	close(fd);
	loop_count = 0;
	plug("first");
	struct disk *disk = open_disk(DISK_CHANGE, NULL);
	struct disk_change change = begin(disk, NULL);
	cr_expect_eq(change.start, h.bytes);
	cr_expect_eq(change.bytes, 10 * MIB);
	end(&change);
	change = begin(disk, NULL);
	cr_expect(change.existed);
	disk_change_drop(&change);
	disk_unref(disk);
	disk = open_disk(DISK_SERVE, "node-1");
	cr_expect_eq(disk->members[0].bytes, h.bytes + 10 * MIB);
	cr_expect(!disk->members[0].larger && !disk->members[0].damaged);
	disk_unref(disk);
}

/* The records, which are a plain directory here. */
int __wrap_disk_records(struct disk *disk, bool read_only, int *ret_root_fd, struct err *err);
int __wrap_disk_records(struct disk *disk, bool read_only, int *ret_root_fd, struct err *err)
{
	(void)disk;
	(void)read_only;
	(void)err;
	*ret_root_fd = openat(env.dirfd, "records", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return *ret_root_fd < 0 ? -errno : 0;
}

static void make_larger(const char *image)
{
	_cleanup_fd_ int fd = openat(env.dirfd, image, O_RDWR | O_CLOEXEC);
	cr_assert_eq(ftruncate(fd, (off_t)((DISK_MIB + 10) * MIB)), 0);
}

static void make_records(const char *uuid)
{
	struct fs_features features;
	struct err err = {0};
	bool existed;
	cr_assert_eq(mkdirat(env.dirfd, "records", 0700), 0);
	_cleanup_fd_ int root = openat(env.dirfd, "records", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	cr_assert_eq(pool_init_root(root, "records", uuid, &features, &existed, &err), 0, "%s",
		err.message);
}

Test(disk_init, all_disks_that_have_grown_are_taken_in)
{
	struct disk_header h = make_pool();
	struct raw_made made;
	struct err err = {0};
	make_records(h.pool);
	env_image("second", DISK_MIB * MIB);
	unsigned second = plug("second");
	cr_assert_eq(raw_grow(env_path("pool"), device[second], &made, &err), 0, "%s", err.message);
	cr_expect_eq(made.area_bytes, (DISK_MIB - 2) * MIB);
	unplug(0);
	unplug(second);
	make_larger("first");
	make_larger("second");
	plug("first");
	plug("second");
	/* Cut short in the first one. */
	struct disk *disk = open_disk(DISK_CHANGE, NULL);
	struct disk_change change = begin(disk, NULL);
	disk_change_drop(&change);
	disk_unref(disk);
	expect_refused(DISK_SERVE, "node-1", ERR_PRECONDITION, "pool grow");
	cr_assert_eq(raw_grow(env_path("pool"), NULL, &made, &err), 0, "%s", err.message);
	cr_expect(!made.existed);
	cr_expect_eq(made.area_bytes, 20 * MIB);
	disk = open_disk(DISK_SERVE, "node-1");
	cr_expect_eq(disk->members[0].bytes, h.bytes + 10 * MIB);
	cr_expect_eq(disk->members[1].bytes, (DISK_MIB + 10 - 2) * MIB);
	disk_unref(disk);
	cr_assert_eq(raw_grow(env_path("pool"), NULL, &made, &err), 0, "%s", err.message);
	cr_expect(made.existed);
	/* Somebody has the pool. */
	_cleanup_fd_ int lock = openat(env.dirfd, "records/" POOL_FILE, O_RDONLY | O_CLOEXEC);
	cr_assert_eq(flock(lock, LOCK_EX), 0);
	cr_assert_lt(raw_grow(env_path("pool"), NULL, &made, &err), 0);
	cr_expect_not_null(strstr(err.message, "a driver serves the pool"), "%s", err.message);
}

/* What the files in the trash own, all in all, and how many there are. */
static uint64_t owned_bytes(unsigned *ret_count)
{
	uint64_t bytes = 0;
	*ret_count = 0;
	DIR *dir = opendir(env_path("records/trash"));
	cr_assert_not_null(dir);
	for (const struct dirent *e; (e = readdir(dir)) != NULL;) {
		struct image_map map;
		_cleanup_fd_ int fd = openat(dirfd(dir), e->d_name, O_RDONLY | O_CLOEXEC);
		if (e->d_name[0] == '.')
			continue;
		cr_assert_eq(image_map_read(fd, &map), 0);
		bytes += image_map_bytes(&map);
		++*ret_count;
	}
	closedir(dir);
	return bytes;
}

/* One file owns 64 GiB at most, the last one what is left: no more than the disk has. */
Test(disk_init, a_large_disk_is_owned_by_several_files)
{
	struct disk_header h = make_pool();
	struct raw_made made;
	struct err err = {0};
	unsigned count;
	make_records(h.pool);
	env_image("large", 100 * 1024 * MIB);
	unsigned large = plug("large");
	cr_assert_eq(raw_grow(env_path("pool"), device[large], &made, &err), 0, "%s", err.message);
	cr_expect_eq(made.area_bytes, (100 * 1024 - 2) * MIB);
	cr_expect_eq(owned_bytes(&count), made.area_bytes);
	cr_expect_eq(count, 2);
}

static int lock_of_other;

static void let_go(void)
{
	close(lock_of_other);
}

/* A driver that was killed, or its child, has the lock a little longer. */
Test(disk_init, growing_waits_for_a_driver_that_ends)
{
	struct disk_header h = make_pool();
	struct raw_made made;
	struct err err = {0};
	make_records(h.pool);
	lock_of_other = openat(env.dirfd, "records/" POOL_FILE, O_RDONLY | O_CLOEXEC);
	cr_assert_eq(flock(lock_of_other, LOCK_EX), 0);
	meanwhile = let_go;
	cr_expect_eq(raw_grow(env_path("pool"), NULL, &made, &err), 0, "%s", err.message);
	cr_expect_null(meanwhile);
}

/* Its name may be another's by the time it is opened for writing. */
Test(disk_init, a_path_that_leads_elsewhere_by_now)
{
	struct disk_found found;
	env_image("second", DISK_MIB * MIB);
	unsigned second = plug("second");
	make_pool();
	_cleanup_fd_ int fd = open(device[0], O_RDONLY | O_CLOEXEC);
	cr_assert_eq(disk_found_read(fd, device[0], &found), 0);
	strcpy(found.path, device[second]);
	cr_expect_eq(disk_found_open(&found, O_RDONLY), -ENXIO);
	strcpy(found.path, device[0]);
	_cleanup_fd_ int again = disk_found_open(&found, O_RDONLY);
	cr_expect_geq(again, 0);
}

Test(disk_init, a_disk_of_another_pool_or_with_larger_blocks_is_not_added)
{
	struct disk_header h = make_pool();
	struct disk_change change;
	struct err err = {0};
	env_image("second", DISK_MIB * MIB);
	unsigned second = plug("second");
	struct disk *disk = open_disk(DISK_CHANGE, NULL);
	disk->block_size = 256;
	cr_expect_lt(disk_grow_begin(env_path("pool"), disk, device[second], &change, &err), 0);
	cr_expect_not_null(strstr(err.message, "has blocks of 512 bytes"), "%s", err.message);
	uuid_draw(h.pool);
	write_header(second, &h);
	err = (struct err){0};
	cr_expect_lt(disk_grow_begin(env_path("pool"), disk, device[second], &change, &err), 0);
	cr_expect_not_null(strstr(err.message, "is a disk of the raw pool"), "%s", err.message);
	cr_expect_eq(header_of(0).state, DISK_SOUND, "nothing was begun");
	disk_unref(disk);
}

/* ---- what is published ---- */

Test(disk_published, one_for_each_pool)
{
	struct disk *a = calloc(1, sizeof(*a)), *b = calloc(1, sizeof(*b));
	a->refs = b->refs = 1;
	cr_expect_null(disk_published("0123abcd"));
	disk_publish("0123abcd", a);
	disk_publish("89abcdef", b);
	cr_expect_eq(disk_published("0123abcd"), a);
	cr_expect_eq(a->refs, 3);
	disk_unref(a);
	disk_publish("0123abcd", b);
	cr_expect_eq(a->refs, 1);
	cr_expect_eq(b->refs, 3);
	disk_publish("0123abcd", NULL);
	disk_publish("0123abcd", NULL);
	cr_expect_null(disk_published("0123abcd"));
	disk_publish("89abcdef", NULL);
	cr_expect_eq(b->refs, 1);
	disk_unref(a);
	disk_unref(b);
	disk_unref(NULL);
}

/* ---- the device of the records ---- */

#define POOL_UUID "0123abcd-0000-4000-8000-00000000001a"

static const struct disk fake_disk = {
	.uuid = POOL_UUID,
	.count = 1,
	.members = {{.path = "/dev/sdb", .major = 8, .minor = 16}},
	.records_offset = MIB,
	.records_bytes = 320 * MIB,
};

static struct records_device fake_device(bool read_only)
{
	struct records_device r;
	records_device_describe(&fake_disk, read_only, &r);
	r.dm = (struct dm){.fd = -1, .call = fake_dm_call};
	return r;
}

static void expect_device_refused(struct records_device *r, enum err_code code, const char *words)
{
	struct err err = {0};
	cr_expect_lt(records_device_make(r, &err), 0, "no '%s'", words);
	cr_expect_eq(err.code, code);
	cr_expect_not_null(strstr(err.message, words), "'%s' has no '%s'", err.message, words);
}

Test(records_device, it_is_made_once_and_goes_with_its_user)
{
	struct records_device r = fake_device(true);
	struct fake_device *d = &fake_dm_devices[0];
	struct err err = {0};
	cr_assert_eq(records_device_make(&r, &err), 0, "%s", err.message);
	cr_expect_str_eq(d->name, "ringvol-records-0123abcd");
	cr_expect_str_eq(d->uuid, "RINGVOL-records-" POOL_UUID);
	cr_expect_str_eq(d->now.targets[0].params, "8:16 2048");
	cr_expect_eq(d->now.targets[0].length_sectors, 320 * 2048);
	cr_expect(d->now.read_only);
	cr_expect_str_eq(r.path, "/dev/dm-300");
	cr_assert_eq(records_device_make(&r, &err), 0);
	cr_expect_eq(fake_dm_loads, 1);
	cr_expect(!records_device_used(&r));
	/* A driver writes to it. */
	struct records_device w = fake_device(false);
	d->open = 1;
	cr_expect(records_device_used(&w));
	cr_assert_eq(records_device_make(&w, &err), 0, "%s", err.message);
	cr_expect(!d->now.read_only);
	/* And who looks takes it as it is. */
	cr_assert_eq(records_device_make(&r, &err), 0, "%s", err.message);
	cr_expect(!d->now.read_only);
	cr_expect_eq(fake_dm_loads, 2);
	records_device_close(&r);
	cr_expect(d->there && d->deferred);
	d->open = 0;
	records_device_close(&w);
	cr_expect(!d->there);
}

Test(records_device, one_that_is_half_made_is_completed)
{
	struct records_device r = fake_device(false);
	struct err err = {0};
	fake_dm_fail_with = -EBUSY;
	fake_dm_fail_request = DM_TABLE_LOAD;
	expect_device_refused(&r, ERR_PRECONDITION, "/dev/sdb is mounted or held");
	cr_assert(fake_dm_devices[0].there);
	cr_assert_eq(records_device_make(&r, &err), 0, "%s", err.message);
	fake_dm_devices[0].suspended = true;
	cr_assert_eq(records_device_make(&r, &err), 0, "%s", err.message);
	cr_expect(!fake_dm_devices[0].suspended);
	cr_expect_eq(fake_dm_loads, 1);
}

/* That it is told as itself, the tests with a device mapper show: `pool init` needs it. */
Test(disk_init, another_of_that_number_is_not_the_records_device)
{
	struct records_device r = fake_device(false);
	struct err err = {0};
	_cleanup_fd_ int fd = open(device[0], O_RDONLY | O_CLOEXEC);
	_cleanup_fd_ int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
	cr_expect(!records_device_is(&r, fd), "it is not there");
	cr_assert_eq(records_device_make(&r, &err), 0, "%s", err.message);
	cr_expect(!records_device_is(&r, fd));
	cr_expect(!records_device_is(&r, null));
}

Test(records_device, one_that_leads_elsewhere)
{
	struct records_device r = fake_device(false);
	struct fake_device *d = &fake_dm_devices[0];
	struct err err = {0};
	cr_assert_eq(records_device_make(&r, &err), 0, "%s", err.message);
	strcpy(d->now.targets[0].params, "8:32 2048"); /* the disk has come back as another one */
	d->open = 1;
	expect_device_refused(&r, ERR_UNAVAILABLE, "leads to another place and is in use");
	d->open = 0;
	cr_assert_eq(records_device_make(&r, &err), 0, "%s", err.message);
	cr_expect_str_eq(d->now.targets[0].params, "8:16 2048");
}

Test(records_device, the_name_of_another_and_one_that_goes)
{
	struct records_device r = fake_device(false);
	struct dm_device other;
	struct err err = {0};
	cr_assert_eq(dm_create(&r.dm, "ringvol-records-0123abcd", "other", &other), 0);
	expect_device_refused(&r, ERR_PRECONDITION, "is another device's");
	fake_dm_devices[0].there = false;
	cr_assert_eq(records_device_make(&r, &err), 0, "%s", err.message);
	fake_dm_devices[0].now.count = 0;
	fake_dm_fail_with = -ENXIO;
	fake_dm_fail_request = DM_TABLE_LOAD;
	cr_expect_eq(records_device_make(&r, &err), -EAGAIN);
	fake_dm_fail_with = -ENXIO;
	fake_dm_fail_request = DM_DEV_SUSPEND;
	cr_expect_eq(records_device_make(&r, &err), -EAGAIN);
	cr_expect_eq(err.code, ERR_OK);
	fake_dm_fail_with = -EIO;
	fake_dm_fail_request = DM_DEV_STATUS;
	expect_device_refused(&r, ERR_INTERNAL, "looking for");
	fake_dm_devices[0].there = false;
	fake_dm_fail_with = -EIO;
	fake_dm_fail_request = DM_DEV_CREATE;
	expect_device_refused(&r, ERR_INTERNAL, "making the device");
}
