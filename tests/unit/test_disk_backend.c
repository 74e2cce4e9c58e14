/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The devices of raw pools on this kernel's device mapper, over two loop devices as disks. It needs
 * the device mapper, which few development machines let a container have: `scripts/vm/tests.sh raw`
 * runs it in a guest.
 */
#include "backends/disk/disk_backend.h"

#include "blockio_env.h"

#include "base/fd.h"
#include "disk/mapped.h"

#include <criterion/criterion.h>
#include <linux/fs.h>

#define MIB (UINT64_C(1) << 20)

enum { DISK_MIB = 128, FIRST_MIB = 8 /* before the area */, CHUNK = 4096 };

static struct fixture {
	const struct backend *backend;
	char uuid8[9];
	struct disk *disk;
	struct lodev loops[2];
	struct backend_req req;
	struct dm dm;
} f = {.dm = {.fd = -1}};

static bool has_dm(void)
{
	return env_has_loop() && dm_is_loaded() && access(DM_CONTROL_PATH, R_OK | W_OK) == 0;
}

#define NEEDS_DM()                                                                                 \
	do {                                                                                       \
		if (f.backend == NULL)                                                             \
			cr_skip_test("no device mapper here");                                     \
	} while (0)

/* ---- a pool of two disks and an image in it ---- */

static struct lodev disk_attach(const char *name, uint32_t block_size)
{
	struct lodev_spec spec = {.dirfd = env.dirfd, .image = name, .block_size = block_size};
	struct lodev dev;
	struct err err = {0};
	snprintf(spec.tag, sizeof(spec.tag), "%s", env.tag);
	env_image(name, DISK_MIB * MIB);
	cr_assert_eq(lodev_attach(&spec, &dev, &err), 0, "%s", err.message);
	return dev;
}

static void pool_open(uint32_t block_size)
{
	struct stat st;
	f.disk = calloc(1, sizeof(*f.disk));
	cr_assert_not_null(f.disk);
	f.disk->refs = 1;
	f.disk->count = 2;
	for (unsigned i = 0; i < 2; i++) {
		struct disk_member *m = &f.disk->members[i];
		static const char *const names[] = {"disk0", "disk1", "disk2", "disk3"};
		f.loops[i] = disk_attach(names[(block_size == 512 ? 0 : 2) + i], block_size);
		*m = (struct disk_member){
			.major = LODEV_MAJOR,
			.minor = f.loops[i].minor,
			.start = i * 2 * DISK_MIB * MIB,
			.offset = FIRST_MIB * MIB,
			.bytes = (DISK_MIB - FIRST_MIB) * MIB,
		};
		snprintf(m->path, sizeof(m->path), "/dev/loop%u", m->minor);
		m->fd = open(m->path, O_RDWR | O_CLOEXEC);
		cr_assert_geq(m->fd, 0);
	}
	cr_assert_eq(fstat(env.dirfd, &st), 0);
	f.disk->records_dev = st.st_dev;
	disk_publish(f.uuid8, f.disk);
}

static void volume_size(uint64_t mib)
{
	_cleanup_fd_ int fd = openat(env.dirfd, "volume", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	cr_assert_geq(fd, 0);
	cr_assert_eq(ftruncate(fd, (off_t)(mib * MIB)), 0);
}

/* Replaces the map, and grows the image to it. */
static void set_map(const struct image_map *map)
{
	_cleanup_fd_ int fd = openat(env.dirfd, "volume", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	cr_assert_geq(fd, 0);
	cr_assert_eq(image_map_write(fd, map), 0);
	volume_size(image_map_bytes(map) / MIB);
}

static const struct image_map small = {
	.count = 2, .pieces = {{16 * MIB, 24 * MIB}, {2 * DISK_MIB * MIB, 8 * MIB}}};
static const struct image_map large = {.count = 3,
	.pieces = {{16 * MIB, 24 * MIB}, {2 * DISK_MIB * MIB, 8 * MIB}, {64 * MIB, 32 * MIB}}};

static void open_all(void)
{
	if (!has_dm())
		return;
	env_open();
	backend_disk_open();
	f.backend = backend_get(BACKEND_DISK);
	snprintf(f.uuid8, sizeof(f.uuid8), "%08x", (unsigned)getpid());
	f.req = (struct backend_req){.dirfd = env.dirfd, .image = "volume", .block_size = 512};
	snprintf(f.req.tag, sizeof(f.req.tag), "ringvol:%s:89abcdef", f.uuid8);
	cr_assert_eq(dm_open(&f.dm, DM_CONTROL_PATH), 0);
	pool_open(512);
	set_map(&small);
}

static int pool_close(void)
{
	struct err err = {0};
	bool waits;
	int r = mapped_remove(&f.dm, f.req.tag, 0, &waits, &err);
	for (unsigned i = 0; i < 2; i++)
		fd_close(&f.disk->members[i].fd);
	disk_publish(f.uuid8, NULL);
	disk_unref(f.disk);
	return r;
}

static void close_all(void)
{
	if (f.backend == NULL)
		return;
	(void)pool_close();
	dm_close(&f.dm);
	backend_disk_close();
	env_close();
}

TestSuite(disk_backend, .init = open_all, .fini = close_all, .timeout = 120);

static int attach_err(struct backend_req *req)
{
	req->err = (struct err){0};
	return f.backend->attach_call(req);
}

static struct backend_dev attach_it(void)
{
	cr_assert_eq(attach_err(&f.req), 0, "%s", f.req.err.message);
	return f.req.dev;
}

static void detach_it(void)
{
	struct err err = {0};
	cr_assert_eq(backend_disk_detach(&f.req.dev, &err), 0, "%s", err.message);
	cr_assert_not(f.req.dev.attached);
}

static void expect_refused(enum err_code code, const char *words)
{
	cr_assert_lt(attach_err(&f.req), 0);
	cr_expect_eq(f.req.err.code, code);
	cr_expect_not_null(
		strstr(f.req.err.message, words), "'%s' has no '%s'", f.req.err.message, words);
}

static int open_dev(const struct backend_dev *dev, int flags)
{
	int fd = open(dev->path, flags | O_CLOEXEC);
	cr_assert_geq(fd, 0, "%s: %s", dev->path, strerror(errno));
	return fd;
}

static uint64_t size_of(const struct backend_dev *dev)
{
	uint64_t bytes = 0;
	_cleanup_fd_ int fd = open_dev(dev, O_RDONLY);
	cr_assert_eq(ioctl(fd, BLKGETSIZE64, &bytes), 0);
	return bytes;
}

static void write_chunk(int fd, uint64_t at, char with)
{
	char buf[CHUNK];
	memset(buf, with, sizeof(buf));
	cr_assert_eq(pwrite(fd, buf, sizeof(buf), (off_t)at), CHUNK);
}

static char read_chunk(int fd, uint64_t at)
{
	char buf[CHUNK];
	cr_assert_eq(pread(fd, buf, sizeof(buf), (off_t)at), CHUNK);
	return buf[CHUNK / 2];
}

/* Runs dmsetup on the volume's device. */
static void dmsetup(const char *verb)
{
	char name[64];
	snprintf(name, sizeof(name), "ringvol-%s-89abcdef", f.uuid8);
	cr_assert_eq(env_runs("dmsetup", verb, name), 0);
}

/* ---- attach ---- */

Test(disk_backend, bytes_are_where_the_map_says)
{
	NEEDS_DM();
	struct stat st;
	struct backend_dev dev = attach_it();
	cr_assert_eq(fstatat(env.dirfd, "volume", &st, 0), 0);
	cr_expect(dev.attached && dev.direct_io && !dev.bare && !dev.found && !dev.read_only);
	cr_expect(dev.below_major == 0 && dev.below_minor == 0);
	cr_expect(backend_dev_serves(&dev, st.st_dev, st.st_ino));
	cr_expect_str_eq(dev.tag, f.req.tag);
	cr_expect_eq(size_of(&dev), 32 * MIB);
	_cleanup_fd_ int fd = open_dev(&dev, O_RDWR);
	const uint64_t at[] = {0, 24 * MIB - CHUNK, 24 * MIB, 31 * MIB, 32 * MIB - CHUNK};
	for (unsigned i = 0; i < 5; i++)
		write_chunk(fd, at[i], (char)('a' + i));
	cr_assert_eq(fsync(fd), 0);
	const int *disks[] = {&f.disk->members[0].fd, &f.disk->members[1].fd};
	const uint64_t below[] = {24 * MIB, 48 * MIB - CHUNK, 8 * MIB, 15 * MIB, 16 * MIB - CHUNK};
	for (unsigned i = 0; i < 5; i++)
		cr_expect_eq(read_chunk(*disks[i >= 2], below[i]), 'a' + (char)i);
	cr_expect(attach_it().found);
}

/* With one target the kernel would pass them on, to a process without any capability. */
Test(disk_backend, no_ioctl_reaches_the_disks)
{
	NEEDS_DM();
	set_map(&(struct image_map){.count = 1, .pieces = {{16 * MIB, 24 * MIB}}});
	struct backend_dev dev = attach_it();
	_cleanup_fd_ int fd = open_dev(&dev, O_RDWR);
	cr_expect(ioctl(fd, LOOP_CLR_FD) < 0 && errno == ENOTTY, "%s", strerror(errno));
	struct loop_info64 info = {0};
	cr_expect(ioctl(fd, LOOP_GET_STATUS64, &info) < 0 && errno == ENOTTY);
	const uint64_t range[2] = {0, MIB};
	write_chunk(fd, 0, 'x');
	cr_expect_eq(ioctl(fd, BLKZEROOUT, range), 0);
	cr_expect_eq(read_chunk(fd, 0), 0);
	/* The block layer's own, in the volume. */
	write_chunk(f.disk->members[0].fd, 48 * MIB, 'n');
	const uint64_t all[2] = {0, 24 * MIB};
	cr_expect_eq(ioctl(fd, BLKDISCARD, all), 0);
	cr_expect_eq(read_chunk(f.disk->members[0].fd, 48 * MIB), 'n', "its neighbour's");
}

Test(disk_backend, what_cannot_be_attached)
{
	NEEDS_DM();
	_cleanup_fd_ int fd = openat(env.dirfd, "plain", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	cr_assert_geq(fd, 0);
	f.req.image = "plain";
	expect_refused(ERR_DATA_LOSS, "no map");
	f.req.image = "nobody";
	expect_refused(ERR_NOT_FOUND, "nobody");
	f.req.image = "volume";
	volume_size(40);
	expect_refused(ERR_DATA_LOSS, "fewer");
	volume_size(32);
	disk_publish(f.uuid8, NULL);
	expect_refused(ERR_UNAVAILABLE, "disks");
	disk_publish(f.uuid8, f.disk);
	attach_it();
}

Test(disk_backend, disks_with_larger_blocks)
{
	NEEDS_DM();
	(void)pool_close();
	bool still;
	struct err err = {0};
	for (unsigned i = 0; i < 2; i++)
		cr_assert_eq(lodev_detach(&f.loops[i], &still, &err), 0);
	pool_open(4096);
	expect_refused(ERR_PRECONDITION, "4096");
	f.req.block_size = 4096;
	int size = 0;
	struct backend_dev dev = attach_it();
	_cleanup_fd_ int fd = open_dev(&dev, O_RDONLY);
	cr_expect(ioctl(fd, BLKSSZGET, &size) == 0 && size == 4096);
}

/* ---- in use ---- */

Test(disk_backend, it_grows_in_use)
{
	NEEDS_DM();
	struct backend_dev dev = attach_it();
	_cleanup_fd_ int fd = open_dev(&dev, O_RDWR);
	write_chunk(fd, 32 * MIB - CHUNK, 'z');
	set_map(&large);
	struct backend_dev grown = attach_it();
	cr_expect(grown.found && grown.minor == dev.minor);
	cr_expect_eq(size_of(&dev), 64 * MIB);
	write_chunk(fd, 64 * MIB - CHUNK, 'y');
	cr_assert_eq(fsync(fd), 0);
	cr_expect_eq(read_chunk(f.disk->members[1].fd, 16 * MIB - CHUNK), 'z');
	cr_expect_eq(read_chunk(f.disk->members[0].fd, 104 * MIB - CHUNK), 'y');
	set_map(&small);
	expect_refused(ERR_PRECONDITION, "larger");
	set_map(&large);
}

static struct seen {
	unsigned count;
	struct backend_dev dev;
} seen;

static void on_dev(void *arg, const struct backend_dev *dev)
{
	(void)arg;
	if (strcmp(dev->tag, f.req.tag) != 0)
		return;
	seen.count++;
	seen.dev = *dev;
}

static struct backend_dev scanned(void)
{
	struct err err = {0};
	seen.count = 0;
	cr_assert_eq(f.backend->scan(f.backend, on_dev, NULL, &err), 0, "%s", err.message);
	cr_assert_eq(seen.count, 1);
	return seen.dev;
}

static bool is_suspended(void)
{
	struct mapped mapped;
	cr_assert_eq(mapped_look(&f.dm, f.req.tag, 0, &mapped), 0);
	return mapped.suspended;
}

/* Who looks through the devices changes nothing: an operation may have it so. */
Test(disk_backend, one_left_suspended_goes_on)
{
	NEEDS_DM();
	struct backend_dev dev = attach_it();
	struct err err = {0};
	cr_expect_not(scanned().suspended);
	dmsetup("suspend");
	struct backend_dev seen_dev = scanned();
	cr_expect(backend_dev_serves(&dev, seen_dev.image_dev, seen_dev.image_ino));
	cr_expect(seen_dev.suspended);
	cr_expect(is_suspended());
	cr_expect_eq(f.backend->wake(&seen_dev, &err), 0, "%s", err.message);
	cr_expect_not(is_suspended());
	dmsetup("suspend");
	attach_it();
	cr_expect_not(is_suspended());
	_cleanup_fd_ int fd = open_dev(&dev, O_RDWR);
	write_chunk(fd, 0, 'x');
	cr_expect_eq(fsync(fd), 0);
}

Test(disk_backend, read_only_and_back)
{
	NEEDS_DM();
	f.req.read_only = true;
	struct backend_dev dev = attach_it();
	cr_expect(dev.read_only);
	char buf[CHUNK] = "x";
	_cleanup_fd_ int fd = open_dev(&dev, O_RDWR);
	cr_expect(write(fd, buf, sizeof(buf)) < 0 && errno == EPERM, "%s", strerror(errno));
	f.req.read_only = false;
	set_map(&large);
	attach_it();
	cr_expect_eq(size_of(&dev), 64 * MIB);
	cr_expect(scanned().read_only, "a longer table changes nothing of that");
	cr_assert_eq(f.backend->set_read_only(f.backend, &dev, false), 0);
	cr_expect_not(scanned().read_only);
	write_chunk(fd, 0, 'x');
	cr_assert_eq(f.backend->set_read_only(f.backend, &dev, true), 0);
	cr_expect(scanned().read_only);
}

Test(disk_backend, the_device_says_what_it_is)
{
	NEEDS_DM();
	struct backend_dev now, dev = attach_it(),
				by_number = {.major = dev.major, .minor = dev.minor};
	cr_assert_eq(f.backend->look(f.backend, &by_number, &now), 0);
	cr_expect(backend_dev_serves(&now, dev.image_dev, dev.image_ino));
	cr_expect_str_eq(now.path, dev.path);
	struct backend_dev loop = {.major = LODEV_MAJOR, .minor = f.loops[0].minor};
	cr_expect_eq(f.backend->look(f.backend, &loop, &now), -EOPNOTSUPP);
	/* Somebody's table of our form, beside the pool's area. */
	struct dm_target table[2] = {{.length_sectors = 62 * 2048},
		{.start_sectors = 62 * 2048, .length_sectors = 2048}};
	char uuid[DM_UUID_LEN];
	snprintf(uuid, sizeof(uuid), MAPPED_UUID_PREFIX "%s-89abcdef-%llx", f.uuid8,
		(unsigned long long)dev.image_ino);
	dm_linear(&table[0], LODEV_MAJOR, f.loops[0].minor, 0);
	dm_linear(&table[1], LODEV_MAJOR, f.loops[0].minor, 62 * 2048);
	cr_assert_eq(dm_load(&f.dm, uuid, table, 2, false), 0);
	cr_assert_eq(dm_resume(&f.dm, uuid, NULL), 0);
	cr_assert_eq(f.backend->look(f.backend, &dev, &now), 0);
	cr_expect_not(backend_dev_serves(&now, dev.image_dev, dev.image_ino));
	detach_it();
	usleep(200000);
	cr_expect_eq(f.backend->look(f.backend, &dev, &now), -ENXIO);
	cr_expect_eq(f.backend->set_read_only(f.backend, &dev, true), -ENXIO);
}

/* ---- detach ---- */

Test(disk_backend, who_has_it_open_reaches_nothing)
{
	NEEDS_DM();
	char buf[CHUNK];
	struct backend_dev dev = attach_it();
	int fd = open_dev(&dev, O_RDWR);
	write_chunk(fd, 0, 'w');
	detach_it();
	cr_expect_eq(read_chunk(f.disk->members[0].fd, 24 * MIB), 'w', "what was written is there");
	cr_expect(pread(fd, buf, sizeof(buf), 8 * MIB) < 0 && errno == EIO);
	cr_expect(scanned().going_away);
	cr_expect_eq(scanned().image_ino, 0);
	expect_refused(ERR_PRECONDITION, "fuser");
	close(fd);
	fd = -1;
	attach_it();
	detach_it();
	detach_it();
}

Test(disk_backend, a_mounted_one_that_is_let_go)
{
	NEEDS_DM();
	struct backend_dev dev = attach_it();
	cr_assert_eq(env_runs("mkfs.ext4", "-q", "-F", dev.path), 0);
	char dir[80], path[96], buf[CHUNK] = "x";
	snprintf(dir, sizeof(dir), "%s/mnt0", env.dir);
	snprintf(path, sizeof(path), "%s/file", dir);
	cr_assert_eq(mkdir(dir, 0700), 0);
	cr_assert_eq(mount(dev.path, dir, "ext4", 0, NULL), 0, "%s", strerror(errno));
	detach_it();
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	bool failed = fd < 0 || write(fd, buf, sizeof(buf)) < 0 || fsync(fd) < 0;
	cr_expect(failed, "nothing of it reaches the disk");
	if (fd >= 0)
		close(fd);
	expect_refused(ERR_PRECONDITION, "fuser");
	cr_assert_eq(umount2(dir, MNT_DETACH), 0);
	attach_it();
}

Test(disk_backend, a_disk_that_is_gone)
{
	NEEDS_DM();
	f.disk->members[1].major = 241; /* for local use, and nobody's in a guest */
	expect_refused(ERR_UNAVAILABLE, "gone");
	struct dm_device device;
	char name[64];
	snprintf(name, sizeof(name), "ringvol-%s-89abcdef", f.uuid8);
	cr_expect_eq(dm_look_name(&f.dm, name, &device), -ENXIO, "nothing of it stays");
}

Test(disk_backend, many_in_a_row)
{
	NEEDS_DM();
	struct timespec from, to;
	clock_gettime(CLOCK_MONOTONIC, &from);
	/* Of its own tag each, as the kernel takes away the one before it meanwhile. */
	for (unsigned i = 0; i < 20; i++) {
		snprintf(f.req.tag, sizeof(f.req.tag), "ringvol:%s:%08x", f.uuid8, i);
		attach_it();
		detach_it();
	}
	clock_gettime(CLOCK_MONOTONIC, &to);
	fprintf(stderr, "attach and detach: %.1f ms each time\n",
		((double)(to.tv_sec - from.tv_sec) * 1e3 +
			(double)(to.tv_nsec - from.tv_nsec) / 1e6) /
			20);
}
