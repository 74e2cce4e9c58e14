/* SPDX-License-Identifier: Apache-2.0 */
/* The records of a raw pool: their mount, and the making of a pool around them. The device mapper
 * is in memory (fake_dm.h), and so is what the kernel says of a mount; mkfs.xfs is a script. */
#include "base/clock.h"
#include "base/fd.h"
#include "blockio_env.h"
#include "disk/init.h"
#include "disk/mkfs.h"
#include "disk/place.h"
#include "fake_dm.h"

#include <linux/fs.h>
#include <linux/major.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/sysmacros.h>

#define MIB       (UINT64_C(1) << 20)
#define GIB       (UINT64_C(1) << 30)
#define POOL_UUID "0123abcd-0000-4000-8000-00000000001a"

int __wrap_dm_open(struct dm *ret, const char *path);
void __wrap_clock_sleep_ms(unsigned ms);
int __wrap_fsopen(const char *name, unsigned flags);
int __wrap_fsconfig(int fd, unsigned cmd, const char *key, const void *value, int aux);
int __wrap_fsmount(int fd, unsigned flags, unsigned attrs);
int __real_open64(const char *path, int flags, ...);
int __wrap_open64(const char *path, int flags, ...);
int __real_fstat64(int fd, struct stat *st);
int __wrap_fstat64(int fd, struct stat *st);
int __real_poll(struct pollfd *fds, nfds_t count, int ms);
int __wrap_poll(struct pollfd *fds, nfds_t count, int ms);

static int dm_open_res;
static unsigned sleeps, sleep_ms;

int __wrap_dm_open(struct dm *ret, const char *path)
{
	cr_expect_str_eq(path, DM_CONTROL_PATH);
	if (dm_open_res == 0)
		*ret = (struct dm){.fd = -1, .call = fake_dm_call};
	return dm_open_res;
}

void __wrap_clock_sleep_ms(unsigned ms)
{
	sleeps++;
	sleep_ms = ms;
}

/* ---- mounts ---- */

/* One attempt at a mount, as the kernel answers it. The last one is repeated. */
struct attempt {
	int open, create, mount; /* errno of fsopen(), of fsconfig(), of fsmount() */
	const char *log[4];      /* what it says then */
	bool unused;             /* the device went before it was mounted */
	bool other;              /* its number was another's by then */
};
static const struct attempt *attempts;
static unsigned attempt_count, attempt_at, mount_attrs;
static char asked[512]; /* of all attempts, one after the other */
static int log_fd = -1;
static uint64_t root_dev; /* of what was mounted */
static ino_t root_ino;
static const char *node_leads_to; /* /dev/dm-300 is this device */
static int node_fd = -1;
static dev_t node_dev;

static const struct attempt *attempt(void)
{
	return &attempts[attempt_at < attempt_count ? attempt_at : attempt_count - 1];
}

static int answer(int errnum)
{
	errno = errnum;
	return errnum == 0 ? 0 : -1;
}

int __wrap_fsopen(const char *name, unsigned flags)
{
	int fds[2];
	cr_expect_str_eq(name, "xfs");
	cr_expect_eq(flags, FSOPEN_CLOEXEC);
	if (attempt()->open != 0)
		return answer(attempts[attempt_at++].open);
	cr_assert_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds), 0);
	log_fd = fds[1];
	return fds[0];
}

static void say_log(const struct attempt *now)
{
	for (unsigned i = 0; i < 4 && now->log[i] != NULL; i++)
		cr_assert_gt(write(log_fd, now->log[i], strlen(now->log[i])), 0);
	close(log_fd);
}

int __wrap_fsconfig(int fd, unsigned cmd, const char *key, const void *value, int aux)
{
	const struct attempt *now = attempt();
	size_t len = strlen(asked);
	(void)fd;
	cr_expect_eq(aux, 0);
	snprintf(asked + len, sizeof(asked) - len, "%s%s%s ",
		cmd == FSCONFIG_CMD_CREATE ? "create" : key, cmd == FSCONFIG_SET_STRING ? "=" : "",
		cmd == FSCONFIG_SET_STRING ? (const char *)value : "");
	if (cmd != FSCONFIG_CMD_CREATE)
		return 0;
	say_log(now);
	if (now->create != 0)
		attempt_at++;
	return answer(now->create);
}

int __wrap_fsmount(int fd, unsigned flags, unsigned attrs)
{
	const struct attempt *now = attempt();
	struct stat st;
	(void)fd;
	cr_expect_eq(flags, FSMOUNT_CLOEXEC);
	mount_attrs = attrs;
	attempt_at++;
	if (now->mount != 0)
		return answer(now->mount);
	fake_dm_devices[0].open = now->unused ? 0 : 1;
	int root = __real_open64("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	cr_assert_eq(__real_fstat64(root, &st), 0);
	root_ino = st.st_ino;
	root_dev = makedev(FAKE_DM_MAJOR, FAKE_DM_MINOR + now->other);
	return root;
}

int __wrap_fstat64(int fd, struct stat *st)
{
	int r = __real_fstat64(fd, st);
	if (r == 0 && root_ino != 0 && st->st_ino == root_ino)
		st->st_dev = root_dev;
	if (r == 0 && node_fd >= 0 && fd == node_fd)
		st->st_rdev = node_dev;
	return r;
}

int __wrap_open64(const char *path, int flags, ...)
{
	if (node_leads_to == NULL || strcmp(path, "/dev/dm-300") != 0)
		return __real_open64(path, flags & ~O_CREAT);
	node_fd = __real_open64(node_leads_to, flags);
	fake_dm_devices[0].open = node_fd >= 0;
	return node_fd;
}

static int open_fds(void)
{
	int count = 0;
	for (int fd = 0; fd < 256; fd++)
		count += fcntl(fd, F_GETFD) >= 0;
	return count;
}

static const struct disk the_disk = {
	.uuid = POOL_UUID,
	.count = 1,
	.members = {{.path = "/dev/sdb", .major = 8, .minor = 16}},
	.records_offset = MIB,
	.records_bytes = 320 * MIB,
};

/* With a descriptor of the root, nothing else is left open: neither a mount nor the context. */
static int records(bool read_only, const struct attempt *all, unsigned count, struct err *err)
{
	struct disk disk = the_disk;
	int root = -1, before = open_fds();
	*err = (struct err){0};
	attempts = all;
	attempt_count = count;
	attempt_at = sleeps = 0;
	asked[0] = '\0';
	int res = disk_records(&disk, read_only, &root, err);
	cr_expect_eq(open_fds(), before + (res == 0));
	cr_expect_eq(root >= 0, res == 0);
	cr_expect_eq(disk.records_dev, res == 0 ? makedev(FAKE_DM_MAJOR, FAKE_DM_MINOR) : 0);
	/* The device goes, or it goes with the mount. */
	cr_expect(!fake_dm_devices[0].there || fake_dm_devices[0].deferred);
	cr_expect_eq(fake_dm_devices[0].there, fake_dm_devices[0].open != 0);
	fd_close(&root);
	fake_dm_reboot(false);
	return res;
}

#define RECORDS(read_only, err, ...)                                                               \
	records(read_only, (const struct attempt[]){__VA_ARGS__},                                  \
		sizeof((const struct attempt[]){__VA_ARGS__}) / sizeof(struct attempt), err)
#define ATTRS (MOUNT_ATTR_NOSUID | MOUNT_ATTR_NODEV | MOUNT_ATTR_NOEXEC)

Test(disk_records, they_are_mounted_for_a_driver_and_for_who_looks)
{
	struct err err;
	cr_assert_eq(RECORDS(false, &err, {0}), 0, "%s", err.message);
	cr_expect_str_eq(asked, "source=/dev/dm-300 nouuid create ");
	cr_expect_eq(mount_attrs, ATTRS);
	cr_assert_eq(RECORDS(true, &err, {0}), 0, "%s", err.message);
	cr_expect_str_eq(asked, "source=/dev/dm-300 nouuid ro norecovery create ");
	cr_expect_eq(mount_attrs, ATTRS | MOUNT_ATTR_RDONLY);
	cr_expect_eq(sleeps, 0);
}

Test(disk_records, who_looks_shares_what_a_driver_has_mounted)
{
	struct records_user {
		const char *asked;
		unsigned open, sleeps;
	} users[] = {
		{"source=/dev/dm-300 nouuid ro norecovery create source=/dev/dm-300 nouuid create ",
			1, 0},
		/* The driver is gone by now: its log is not replayed. */
		{"source=/dev/dm-300 nouuid ro norecovery create "
		 "source=/dev/dm-300 nouuid ro norecovery create ",
			0, 1},
	};
	for (unsigned i = 0; i < 2; i++) {
		struct dm dm = {.fd = -1, .call = fake_dm_call};
		struct dm_device device;
		struct dm_target target = {.length_sectors = 320 * MIB / 512};
		struct err err;
		dm_linear(&target, 8, 16, MIB / 512);
		cr_assert_eq(dm_create(&dm, "ringvol-records-0123abcd",
				     "RINGVOL-records-" POOL_UUID, &device),
			0);
		cr_assert_eq(dm_load(&dm, device.uuid, &target, 1, false), 0);
		cr_assert_eq(dm_resume(&dm, device.uuid, &device), 0);
		fake_dm_devices[0].open = users[i].open;
		fake_dm_devices[0].read_only = users[i].open == 0;
		cr_assert_eq(RECORDS(true, &err, {.create = EBUSY}, {0}), 0, "%s", err.message);
		cr_expect_str_eq(asked, users[i].asked);
		cr_expect_eq(mount_attrs, ATTRS | MOUNT_ATTR_RDONLY);
		cr_expect_eq(sleeps, users[i].sleeps);
	}
}

/* All of them mean that another process is just letting go. */
Test(disk_records, what_passes_is_waited_for)
{
	static const int passing[] = {EAGAIN, EBUSY, ENXIO, ENOENT, ENODEV};
	struct err err;
	for (unsigned i = 0; i < sizeof(passing) / sizeof(passing[0]); i++) {
		cr_assert_eq(
			RECORDS(false, &err, {.create = passing[i]}, {0}), 0, "%s", err.message);
		cr_expect_eq(sleeps, 1);
		cr_expect_eq(sleep_ms, 50);
		cr_assert_eq(
			RECORDS(false, &err, {.mount = passing[i]}, {0}), 0, "%s", err.message);
		cr_expect_eq(sleeps, 1);
	}
	cr_assert_eq(RECORDS(false, &err, {.other = true}, {0}), 0, "%s", err.message);
	cr_expect_eq(sleeps, 1);
	cr_assert_eq(RECORDS(false, &err, {.unused = true}, {.unused = true}, {0}), 0);
	cr_expect_eq(sleeps, 2);
	fake_dm_fail_with = -ENXIO;
	fake_dm_fail_request = DM_TABLE_LOAD;
	cr_assert_eq(RECORDS(false, &err, {0}), 0, "%s", err.message);
	cr_expect_eq(sleeps, 1);
}

static void expect_refused(int res, const struct err *err, enum err_code code, const char *words)
{
	cr_expect_lt(res, 0, "no '%s'", words);
	cr_expect_eq(err->code, code, "%s", err->message);
	cr_expect_not_null(strstr(err->message, words), "'%s' has no '%s'", err->message, words);
}

Test(disk_records, what_does_not_pass_is_waited_for_in_vain)
{
	struct err err;
	int r = RECORDS(false, &err, {.create = EBUSY, .log = {"e busy"}});
	expect_refused(r, &err, ERR_UNAVAILABLE,
		"the records of the pool on /dev/sdb are being read by another process "
		"(fuser -v /dev/dm-300)");
	cr_expect_eq(sleeps, 59);
	r = RECORDS(true, &err, {.create = EBUSY});
	expect_refused(r, &err, ERR_UNAVAILABLE, "are being read by another process");
	cr_expect_eq(sleeps, 59);
	r = RECORDS(false, &err, {.unused = true});
	expect_refused(r, &err, ERR_UNAVAILABLE, "are being read by another process");
	r = RECORDS(false, &err, {.create = ENXIO});
	expect_refused(r, &err, ERR_UNAVAILABLE,
		"mounting the records of the pool on /dev/sdb: No such device or address");
	cr_expect_eq(sleeps, 59);
}

Test(disk_records, why_they_cannot_be_mounted)
{
	struct err err;
	int r = RECORDS(false, &err, {.open = ENODEV});
	expect_refused(r, &err, ERR_PRECONDITION,
		"this kernel has no XFS, which the records of the pool on /dev/sdb are on");
	r = RECORDS(false, &err, {.open = EPERM});
	expect_refused(r, &err, ERR_UNAVAILABLE,
		"mounting the records of the pool on /dev/sdb: Operation not permitted");
	r = RECORDS(false, &err,
		{.create = EUCLEAN,
			.log = {"i of another one", "e ", "e bad sums", "e last\nmore"}});
	expect_refused(r, &err, ERR_DATA_LOSS,
		"the records of the pool on /dev/sdb are damaged (bad sums): look");
	r = RECORDS(false, &err, {.create = EINVAL});
	expect_refused(r, &err, ERR_DATA_LOSS, "are damaged (Invalid argument): look");
	r = RECORDS(false, &err, {.create = EIO, .log = {"e superblock read failed"}});
	expect_refused(r, &err, ERR_UNAVAILABLE, "on /dev/sdb: superblock read failed");
	cr_expect_eq(sleeps, 0);
	/* What it said of an earlier attempt does not count. */
	r = RECORDS(false, &err, {.create = EBUSY, .log = {"e busy"}}, {.create = EIO});
	expect_refused(r, &err, ERR_UNAVAILABLE, "on /dev/sdb: Input/output error");
	cr_expect_eq(sleeps, 1);
	r = RECORDS(false, &err, {.mount = EIO});
	expect_refused(r, &err, ERR_UNAVAILABLE, "on /dev/sdb: Input/output error");
	cr_expect_eq(sleeps, 0);
}

Test(disk_records, without_their_device_nothing_is_mounted)
{
	struct err err;
	fake_dm_fail_with = -EIO;
	fake_dm_fail_request = DM_DEV_CREATE;
	int r = RECORDS(false, &err, {0});
	expect_refused(r, &err, ERR_INTERNAL,
		"making the device-mapper device ringvol-records-0123abcd: Input/output error");
	dm_open_res = -ENODEV;
	r = RECORDS(false, &err, {0});
	expect_refused(r, &err, ERR_PRECONDITION, "raw pools need the device mapper");
	cr_expect_eq(sleeps, 0);
	cr_expect_str_empty(asked);
}

/* ---- making a pool ---- */

static struct lodev loops[2];
static unsigned loop_count;
static char device[2][32];

static void plug(const char *name, uint64_t bytes)
{
	env_image(name, bytes);
	loops[loop_count] = env_attach(name);
	snprintf(device[loop_count], sizeof(device[0]), "/dev/loop%u", loops[loop_count].minor);
	loop_count++;
}

static void write_script(const char *text)
{
	int fd = openat(env.dirfd, "bin/mkfs.xfs", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0700);
	cr_assert_geq(fd, 0);
	dprintf(fd, "#!/bin/sh\n%s\n", text);
	close(fd);
}

static void open_env(void)
{
	ENV_NEEDS_LOOP();
	env_open();
	cr_assert_eq(mkdirat(env.dirfd, "bin", 0700), 0);
	setenv("PATH", env_path("bin"), 1);
	setenv("DIR", env.dir, 1);
}

static void finish(void)
{
	setenv("PATH", "/usr/sbin:/usr/bin:/sbin:/bin", 1);
	for (unsigned i = 0; i < loop_count; i++)
		env_detach(&loops[i]);
	env_close();
}

TestSuite(disk_making, .init = open_env, .fini = finish, .timeout = 120);

static struct disk_change begin(const char *place)
{
	struct disk_change change;
	struct err err = {0};
	cr_assert_eq(
		disk_init_begin(device[0], env_path(place), &change, &err), 0, "%s", err.message);
	return change;
}

static void expect_not_begun(
	const char *of, const char *place, enum err_code code, const char *words)
{
	struct disk_change change;
	struct err err = {0};
	int before = open_fds();
	expect_refused(disk_init_begin(of, env_path(place), &change, &err), &err, code, words);
	cr_expect_eq(open_fds(), before);
}

static struct disk_header header_of(const char *path)
{
	struct disk_header h = {0};
	bool damaged;
	_cleanup_fd_ int fd = open(path, O_RDONLY | O_CLOEXEC);
	uint64_t size;
	cr_assert_eq(ioctl(fd, BLKGETSIZE64, &size), 0);
	cr_assert_eq(disk_header_read(fd, size, &h, &damaged), 0);
	cr_expect(!damaged);
	return h;
}

/* The records' part grows with the disk, between two limits. */
Test(disk_making, how_a_disk_is_divided)
{
	static const struct {
		uint64_t bytes, records_mib;
	} sizes[] = {
		{GIB, 320},
		{4 * GIB - MIB, 320},
		{4 * GIB, 512},
		{128 * GIB, 512},
		{128 * GIB + 256 * MIB, 513},
		{200 * GIB + 100 * MIB + 4096, 800},
		{GIB << 10, 4096},
		{GIB << 11, 4096},
	};
	for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		char name[16];
		snprintf(name, sizeof(name), "disk%u", i);
		plug(name, sizes[i].bytes);
		struct disk_change change = begin("pool");
		struct disk_header h = header_of(device[0]);
		uint64_t size = sizes[i].bytes / MIB * MIB, records = sizes[i].records_mib * MIB;
		cr_expect_eq(h.size_bytes, size);
		cr_expect_eq(h.records_offset, MIB);
		cr_expect_eq(h.records_bytes, records, "%u", i);
		cr_expect_eq(h.offset, MIB + records);
		cr_expect_eq(h.bytes, size - records - 2 * MIB);
		cr_expect_eq(h.start, 0);
		cr_expect_eq(change.start, 0);
		cr_expect_eq(change.bytes, h.bytes);
		disk_change_drop(&change);
		env_detach(&loops[--loop_count]);
	}
}

Test(disk_making, a_disk_is_ours_from_the_beginning_and_sound_at_the_end)
{
	plug("disk", GIB);
	struct disk_place place;
	int before = open_fds();
	struct disk_change change = begin("pool");
	cr_expect(!change.existed);
	cr_expect_eq(open_fds(), before + 1, "the disk is open, and not exclusively");
	struct disk_header h = header_of(device[0]);
	const struct disk *disk = change.disk;
	const struct disk_member *m = &disk->members[0];
	cr_expect_eq(h.state, DISK_MAKING);
	cr_expect_eq(h.generation, 1);
	cr_expect_eq(h.count, 1);
	cr_expect_eq(h.index, 0);
	cr_expect(uuid_valid(h.pool) && uuid_valid(h.disk));
	cr_expect_str_neq(h.pool, h.disk);
	cr_expect_str_eq(h.disks[0], h.disk);
	cr_expect_str_eq(disk->uuid, h.pool);
	cr_expect_str_eq(m->uuid, h.disk);
	cr_expect_str_eq(m->path, device[0]);
	cr_expect_eq(m->major, LOOP_MAJOR);
	cr_expect_eq(m->minor, loops[0].minor);
	cr_expect_eq(m->offset, h.offset);
	cr_expect_eq(m->bytes, h.bytes);
	cr_expect_neq(fcntl(m->fd, F_GETFL) & O_DIRECT, 0);
	cr_expect_eq(disk->count, 1);
	cr_expect_eq(disk->records_offset, h.records_offset);
	cr_expect_eq(disk->records_bytes, h.records_bytes);
	cr_expect_eq(disk->block_size, 512);
	cr_expect_eq(disk_place_read(env_path("pool"), &place), -ENOENT);

	/* Cut short: it is begun anew, as another pool. */
	change.fd = open("/dev/null", O_RDONLY | O_CLOEXEC); /* a second disk, as of `pool grow` */
	disk_change_drop(&change);
	cr_expect_null(change.disk);
	cr_expect_eq(open_fds(), before);
	change = begin("pool");
	cr_expect_str_neq(header_of(device[0]).pool, h.pool);
	struct err err = {0};
	cr_assert_eq(disk_init_end(&change, &err), 0, "%s", err.message);
	h = header_of(device[0]);
	cr_expect_eq(h.state, DISK_SOUND);
	cr_expect_eq(h.generation, 2);
	cr_assert_eq(disk_place_read(env_path("pool"), &place), 0);
	cr_expect_str_eq(place.pool, h.pool);
	cr_expect_str_eq(place.disk, h.disk);
	cr_expect_str_eq(place.device, device[0]);
	disk_change_drop(&change);
	cr_expect_eq(open_fds(), before);
}

static struct disk_header make_pool(void)
{
	struct err err = {0};
	plug("disk", GIB);
	struct disk_change change = begin("pool");
	cr_assert_eq(disk_init_end(&change, &err), 0, "%s", err.message);
	disk_change_drop(&change);
	return header_of(device[0]);
}

Test(disk_making, a_pool_that_is_there_gets_its_place)
{
	struct disk_header h = make_pool();
	struct disk_place place;
	static const char *const places[] = {"pool", "other"};
	for (unsigned i = 0; i < 2; i++) {
		int before = open_fds();
		struct disk_change change = begin(places[i]);
		cr_expect(change.existed);
		cr_expect_null(change.disk);
		cr_expect_eq(change.bytes, 0);
		cr_expect_str_eq(change.first.pool, h.pool);
		cr_expect_eq(open_fds(), before);
		disk_change_drop(&change);
		cr_assert_eq(disk_place_read(env_path(places[i]), &place), 0);
		cr_expect_str_eq(place.pool, h.pool);
		cr_expect_str_eq(place.disk, h.disk);
		cr_expect_str_eq(place.device, device[0]);
	}
	cr_expect_eq(header_of(device[0]).generation, h.generation, "nothing was written");
}

Test(disk_making, what_is_not_begun)
{
	char words[160];
	struct disk_header h = make_pool(), other = h;
	plug("more", GIB);
	snprintf(words, sizeof(words),
		"is the place of the raw pool %.8s, whose disk was %s, and not of %s", h.pool,
		device[0], device[1]);
	expect_not_begun(device[1], "pool", ERR_PRECONDITION, words);
	uuid_draw(other.pool);
	_cleanup_fd_ int fd = open(device[1], O_RDWR | O_CLOEXEC);
	cr_assert_eq(disk_header_write(fd, &other), 0);
	snprintf(words, sizeof(words), "%s is a disk of the raw pool %.8s, and ", device[1],
		other.pool);
	expect_not_begun(device[1], "pool", ERR_PRECONDITION, words);
	other.index = 2;
	other.count = 0;
	other.start = GIB;
	other.records_offset = other.records_bytes = 0;
	memset(other.disks, 0, sizeof(other.disks));
	cr_assert_eq(disk_header_write(fd, &other), 0);
	snprintf(words, sizeof(words), "is disk 3 of the raw pool %.8s: name its first disk",
		other.pool);
	expect_not_begun(device[1], "new", ERR_PRECONDITION, words);
	expect_not_begun("/dev/null", "new", ERR_INVALID, "is no block device");
	write_script("");
	expect_not_begun(device[0], "bin/mkfs.xfs/a", ERR_INTERNAL, "making the directory");
	expect_not_begun(device[0], "bin/mkfs.xfs", ERR_INTERNAL, "opening");
	dm_open_res = -ENOENT;
	expect_not_begun(device[0], "newer", ERR_PRECONDITION, "raw pools need the device mapper");
	cr_expect_lt(faccessat(env.dirfd, "newer", F_OK, 0), 0, "nothing is begun");
}

/* ---- their file system ---- */

static int make_records(const struct disk_change *change, struct err *err)
{
	int before = open_fds();
	*err = (struct err){0};
	node_fd = -1;
	int r = disk_init_records(change, err);
	cr_expect_eq(open_fds(), before);
	return r;
}

static void read_said(char *said, size_t cap)
{
	_cleanup_fd_ int fd = openat(env.dirfd, "said", O_RDONLY | O_CLOEXEC);
	ssize_t len = read(fd, said, cap - 1);
	said[len > 0 ? len : 0] = '\0';
}

Test(disk_making, the_file_system_for_records_is_made_on_their_device)
{
	char said[512], want[512];
	struct err err;
	plug("disk", GIB);
	struct disk_change change = begin("pool");
	write_script("echo \"$@\" > $DIR/said");
	node_leads_to = device[0];
	node_dev = makedev(FAKE_DM_MAJOR, FAKE_DM_MINOR);
	cr_assert_eq(make_records(&change, &err), 0, "%s", err.message);
	read_said(said, sizeof(said));
	snprintf(want, sizeof(want),
		"-q -f -K -s size=4096 -i size=1024,maxpct=75 -m uuid=%s -L ringvol /dev/dm-300\n",
		change.disk->uuid);
	cr_expect_str_eq(said, want);
	/* It was to go with us, or with a mkfs that outlives us. */
	const struct fake_device *d = &fake_dm_devices[0];
	cr_expect(d->there && d->deferred);
	cr_expect(!d->now.read_only);
	cr_expect_eq(d->now.targets[0].length_sectors, 320 * MIB / 512);
	disk_change_drop(&change);
}

Test(disk_making, a_device_of_the_records_that_is_not_there_or_anothers)
{
	struct err err;
	plug("disk", GIB);
	struct disk_change change = begin("pool");
	write_script("echo > $DIR/said");
	node_dev = makedev(FAKE_DM_MAJOR, FAKE_DM_MINOR + 1);
	expect_refused(make_records(&change, &err), &err, ERR_INTERNAL, "No such file");
	cr_expect(!fake_dm_devices[0].there);
	node_leads_to = device[0];
	int r = make_records(&change, &err);
	expect_refused(r, &err, ERR_INTERNAL, "making the device ringvol-records-");
	cr_expect_eq(r, -ENXIO);
	fake_dm_reboot(false);
	fake_dm_fail_with = -ENXIO;
	fake_dm_fail_request = DM_TABLE_LOAD;
	cr_expect_eq(make_records(&change, &err), -EAGAIN);
	cr_expect_eq(err.code, ERR_INTERNAL);
	fake_dm_fail_with = -EIO;
	fake_dm_fail_request = DM_DEV_CREATE;
	expect_refused(
		make_records(&change, &err), &err, ERR_INTERNAL, "making the device-mapper device");
	cr_expect(!fake_dm_devices[0].there);
	dm_open_res = -ENXIO;
	expect_refused(make_records(&change, &err), &err, ERR_PRECONDITION, "modprobe dm_mod");
	cr_expect_lt(faccessat(env.dirfd, "said", F_OK, 0), 0, "no mkfs was begun");
	disk_change_drop(&change);
}

/* The next poll()s answer so, then the kernel does: 0 says that the time is over. */
static struct {
	unsigned count, interrupted;
	bool over;
} polls;

int __wrap_poll(struct pollfd *fds, nfds_t count, int ms)
{
	polls.count++;
	cr_expect_eq(ms, 10 * 60 * 1000);
	if (polls.interrupted > 0) {
		polls.interrupted--;
		return answer(EINTR);
	}
	return polls.over ? 0 : __real_poll(fds, count, ms);
}

static int mkfs(const char *script, struct err *err)
{
	int before = open_fds();
	*err = (struct err){0};
	polls.count = 0;
	write_script(script);
	int r = disk_mkfs("/dev/dm-3", POOL_UUID, err);
	cr_expect_eq(open_fds(), before);
	cr_expect_eq(
		waitpid(-1, NULL, WNOHANG | __WNOTHREAD), 0, "no child is left but the reaper");
	return r;
}

Test(disk_making, how_mkfs_fails)
{
	struct err err;
	cr_expect_eq(mkfs("exit 0", &err), 0);
	cr_expect_eq(polls.count, 1);
	polls.interrupted = 2;
	cr_expect_eq(mkfs("exit 0", &err), 0);
	cr_expect_eq(polls.count, 3);
	int r = mkfs("echo too small >&2; echo next; exit 1", &err);
	expect_refused(r, &err, ERR_INTERNAL, "mkfs.xfs on /dev/dm-3 failed: too small");
	cr_expect_null(strstr(err.message, "next"));
	r = mkfs("echo on its output; kill -9 $$", &err);
	expect_refused(r, &err, ERR_INTERNAL, "failed: on its output");
	r = mkfs("exit 1", &err);
	expect_refused(r, &err, ERR_INTERNAL, "mkfs.xfs on /dev/dm-3 failed: ");
	polls.over = true;
	r = mkfs("while :; do :; done", &err);
	expect_refused(r, &err, ERR_TIMEOUT, "mkfs.xfs on /dev/dm-3: ");
	cr_assert_eq(unlinkat(env.dirfd, "bin/mkfs.xfs", 0), 0);
	err = (struct err){0};
	r = disk_mkfs("/dev/dm-3", POOL_UUID, &err);
	expect_refused(r, &err, ERR_PRECONDITION, "there is no mkfs.xfs here");
	int fd = openat(env.dirfd, "bin/mkfs.xfs", O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
	close(fd);
	err = (struct err){0};
	r = disk_mkfs("/dev/dm-3", POOL_UUID, &err);
	expect_refused(r, &err, ERR_INTERNAL, "starting mkfs.xfs: Permission denied");
}
