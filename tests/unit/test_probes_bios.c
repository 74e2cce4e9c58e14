/* SPDX-License-Identifier: Apache-2.0 */
/* The probes over devices that take bios: of the device mapper, and zram where there is none. */
#include "probes/probes.h"

#include "base/fd.h"
#include "blockio_env.h"
#include "disk/dm.h"
#include "probes/bpf.h"
#include "probes/load.h"
#include "reactor/ring_uring.h"

#include <bpf/libbpf.h>
#include <linux/bpf.h>
#include <linux/fs.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>

enum { MIB = 1 << 20, IO = 4096, UNIT = MIB / DM_SECTOR_BYTES };

static struct reactor reactor;
static struct probes *probes;
static bool loaded;
static struct dm dm = {.fd = -1};
static char dm_uuid[64];

static void setup(void)
{
	if (!env_has_loop())
		return;
	env_open();
	(void)env_runs("modprobe", "-q", "dm-mod");
	cr_assert_eq(ring_open(&reactor.ring, &(struct ring_config){0}), 0);
	cr_assert_eq(work_open(&reactor.work, reactor.ring, 1), 0);
	cr_assert_eq(probes_open(&probes, &reactor), 0);
}

static void teardown(void)
{
	work_close(reactor.work);
	probes_close(probes);
	ring_close(reactor.ring);
	env_close();
}

TestSuite(probes_bios, .init = setup, .fini = teardown);

static void on_loaded(void *arg)
{
	*(bool *)arg = true;
}

static void load(void)
{
	probes_start(probes, false, on_loaded, &loaded);
	while (!loaded)
		cr_assert_eq(ring_turn(reactor.ring, true), 0);
}

#define NEEDS_BPF()                                                                                \
	do {                                                                                       \
		char why[PROBES_WHY_MAX];                                                          \
		ENV_NEEDS_LOOP();                                                                  \
		if (probes_try(why) < 0)                                                           \
			cr_skip("%s", why);                                                        \
		load();                                                                            \
		cr_assert_eq(probes_state(probes), PROBES_BPF, "%s", probes_why(probes));          \
		cr_assert_str_empty(probes_bios_why(probes));                                      \
	} while (0)

#define NEEDS_DM()                                                                                 \
	do {                                                                                       \
		ENV_NEEDS_LOOP();                                                                  \
		if (dm_open(&dm, DM_CONTROL_PATH) < 0)                                             \
			cr_skip("this kernel has no device mapper");                               \
		NEEDS_BPF();                                                                       \
	} while (0)

/* ---- what the tests do ---- */

struct device {
	uint32_t major, minor;
	int fd; /* read-write, past the page cache */
};

static struct device open_path(const char *path)
{
	struct stat st;
	struct device device = {.fd = open(path, O_RDWR | O_DIRECT | O_CLOEXEC)};
	cr_assert_geq(device.fd, 0, "%s: %s", path, strerror(errno));
	cr_assert_eq(fstat(device.fd, &st), 0);
	device.major = major(st.st_rdev);
	device.minor = minor(st.st_rdev);
	return device;
}

static void track(const struct device *device)
{
	cr_assert_eq(probes_track(probes, PROBE_BIOS, device->major, device->minor, &probes), 0);
}

static struct probe_counters counters_of(const struct device *device)
{
	struct probe_counters c;
	cr_assert_eq(probes_read(probes, device->major, device->minor, &c), 0);
	return c;
}

static char buf[2 * MIB] __attribute__((aligned(IO)));

static void expect(const struct probe_counters *c, enum probe_op op, uint64_t ops, uint64_t bytes)
{
	const struct probe_op_counters *o = &c->op[op];
	const char *what = probe_op_names[op];
	cr_expect_eq(o->ops, ops, "%s: %lu ops, not %lu", what, o->ops, ops);
	cr_expect_eq(o->bytes, bytes, "%s: %lu bytes, not %lu", what, o->bytes, bytes);
	cr_expect_eq(o->in_flight, 0, "%s: %u in flight", what, o->in_flight);
	cr_expect_eq(hist_total(&o->latency), o->ops);
	cr_expect_eq(hist_total(&o->queue), 0);
	cr_expect(o->ops == 0 ? o->busy_ns == 0 : o->busy_ns > 0);
}

/* ---- devices of the device mapper ---- */

static struct device make_dm(const struct dm_target *targets, unsigned count)
{
	char path[32];
	struct dm_device made;
	snprintf(dm_uuid, sizeof(dm_uuid), "RINGVOL-test-%s", env.dir + strlen(env.dir) - 6);
	cr_assert_eq(dm_create(&dm, dm_uuid, dm_uuid, &made), 0);
	cr_assert_eq(dm_load(&dm, dm_uuid, targets, count, false), 0);
	cr_assert_eq(dm_resume(&dm, dm_uuid, &made), 0);
	snprintf(path, sizeof(path), "/dev/dm-%u", made.minor);
	(void)env_runs("udevadm", "settle");
	return open_path(path);
}

static void remove_dm(const struct device *device)
{
	bool waits;
	probes_untrack(probes, device->major, device->minor, &probes);
	close(device->fd);
	cr_expect_eq(dm_remove(&dm, dm_uuid, &waits), 0);
}

static struct dm_target linear(unsigned from, unsigned units, unsigned minor, unsigned at)
{
	struct dm_target target = {.start_sectors = (uint64_t)from * UNIT,
		.length_sectors = (uint64_t)units * UNIT,
		.type = "linear"};
	snprintf(target.params, sizeof(target.params), "%u:%u %u", LODEV_MAJOR, minor, at * UNIT);
	return target;
}

/* 8 MiB, the second half of which lies before the first: a request across both is two below. */
static struct device two_halves(struct lodev *below)
{
	env_image("a", 16 * MIB);
	*below = env_attach("a");
	const struct dm_target targets[] = {
		linear(0, 4, below->minor, 8), linear(4, 4, below->minor, 0)};
	struct device device = make_dm(targets, 2);
	track(&device);
	return device;
}

Test(probes_bios, what_is_split_is_counted_once)
{
	struct lodev below;
	NEEDS_DM();
	struct device device = two_halves(&below);
	for (int i = 0; i < 50; i++)
		cr_assert_eq(pwrite(device.fd, buf, IO, i * 3 * IO), IO);
	for (int i = 0; i < 10; i++)
		cr_assert_eq(pread(device.fd, buf, 2 * IO, 4 * MIB - IO), 2 * IO);
	cr_assert_eq(pwrite(device.fd, buf, 64 * IO, 4 * MIB - 5 * IO), 64 * IO);
	struct probe_counters c = counters_of(&device);
	cr_expect(c.exact);
	expect(&c, PROBE_READ, 10, 20 * IO);
	expect(&c, PROBE_WRITE, 51, 114 * IO);
	expect(&c, PROBE_FLUSH, 0, 0);
	for (int op = 0; op < PROBE_OPS; op++)
		cr_expect_eq(c.op[op].errors, 0);
	remove_dm(&device);
	env_detach(&below);
}

/* A write through is one write here, which asks for what else it needs. */
Test(probes_bios, flushes_and_discards_are_kinds_of_their_own)
{
	struct lodev below;
	NEEDS_DM();
	struct device device = two_halves(&below);
	struct iovec iov = {buf, IO};
	cr_assert_eq(fsync(device.fd), 0);
	cr_assert_eq(fsync(device.fd), 0);
	cr_assert_eq(ioctl(device.fd, BLKDISCARD, (uint64_t[]){3 * MIB, 2 * MIB}), 0);
	struct probe_counters c = counters_of(&device);
	expect(&c, PROBE_WRITE, 0, 0);
	expect(&c, PROBE_FLUSH, 2, 0);
	expect(&c, PROBE_DISCARD, 1, 2 * MIB);
	for (int i = 0; i < 5; i++)
		cr_assert_eq(pwritev2(device.fd, &iov, 1, i * IO, RWF_DSYNC), IO);
	c = counters_of(&device);
	expect(&c, PROBE_WRITE, 5, 5 * IO);
	cr_expect_leq(c.op[PROBE_FLUSH].ops, 7);
	remove_dm(&device);
	env_detach(&below);
}

static void count_failed(void *arg, const void *owner)
{
	cr_expect_eq(owner, (const void *)&probes);
	++*(unsigned *)arg;
}

/* One request of which a part fails is one error, and none of its bytes counts. */
Test(probes_bios, errors_are_counted_with_code_and_time)
{
	NEEDS_DM();
	env_image("a", 16 * MIB);
	struct lodev below = env_attach("a");
	const struct dm_target targets[] = {linear(0, 4, below.minor, 0),
		{.start_sectors = 4 * UNIT, .length_sectors = 4 * UNIT, .type = "error"}};
	struct device device = make_dm(targets, 2);
	track(&device);
	cr_assert_eq(pread(device.fd, buf, IO, 0), IO);
	for (int i = 0; i < 3; i++)
		cr_assert_eq(pwrite(device.fd, buf, IO, 5 * MIB), -1);
	cr_assert_eq(errno, EIO);
	struct probe_counters c = counters_of(&device);
	expect(&c, PROBE_READ, 1, IO);
	expect(&c, PROBE_WRITE, 3, 0);
	cr_expect_eq(c.op[PROBE_READ].errors, 0);
	cr_expect_eq(c.op[PROBE_WRITE].errors, 3);
	cr_expect_eq(c.op[PROBE_WRITE].last_errno, EIO);
	cr_expect_gt(c.op[PROBE_WRITE].last_error_ns, c.since_ns);

	cr_assert_leq(pread(device.fd, buf, 2 * IO, 4 * MIB - IO), IO);
	c = counters_of(&device);
	cr_expect_geq(c.op[PROBE_READ].errors, 1);
	cr_expect_eq(c.op[PROBE_READ].in_flight, 0);
	unsigned told = 0;
	probes_each_failed(probes, count_failed, &told);
	cr_expect_geq(told, 4);
	remove_dm(&device);
	env_detach(&below);
}

/* Half a second a request. */
Test(probes_bios, what_is_in_flight_is_seen_and_timed)
{
	struct stat st;
	NEEDS_DM();
	if (env_runs("modprobe", "-q", "-r", "null_blk") != 0 ||
		env_runs("modprobe", "-q", "null_blk", "nr_devices=1", "irqmode=2",
			"completion_nsec=500000000") != 0 ||
		stat("/dev/nullb0", &st) < 0)
		cr_skip("this kernel has no null_blk");
	struct dm_target target = {.length_sectors = UNIT, .type = "linear"};
	snprintf(target.params, sizeof(target.params), "%u:%u 0", major(st.st_rdev),
		minor(st.st_rdev));
	struct device device = make_dm(&target, 1);
	track(&device);
	pid_t reader = fork();
	cr_assert_geq(reader, 0);
	if (reader == 0)
		_exit(pread(device.fd, buf, IO, 0) == IO ? 0 : 1);
	struct probe_counters c;
	do
		c = counters_of(&device);
	while (c.op[PROBE_READ].in_flight == 0);
	cr_expect_eq(c.op[PROBE_READ].in_flight, 1);
	cr_expect_eq(c.op[PROBE_WRITE].in_flight, 0);
	int status;
	cr_assert_eq(waitpid(reader, &status, 0), reader);
	cr_expect_eq(status, 0);
	c = counters_of(&device);
	expect(&c, PROBE_READ, 1, IO);
	cr_expect_geq(c.op[PROBE_READ].busy_ns, 500000000);
	remove_dm(&device);
	cr_expect_eq(env_runs("modprobe", "-q", "-r", "null_blk"), 0);
}

/* ---- zram ---- */

static char zram[16]; /* the number of the one that this test has made */

static struct device make_zram(void)
{
	char path[64];
	ssize_t n = fd_read_file(AT_FDCWD, "/sys/class/zram-control/hot_add", zram, sizeof(zram));
	cr_assert_gt(n, 0);
	zram[strcspn(zram, "\n")] = '\0';
	snprintf(path, sizeof(path), "/sys/block/zram%s/disksize", zram);
	cr_assert_eq(fd_write_file(AT_FDCWD, path, "16M"), 0);
	(void)env_runs("udevadm", "settle");
	snprintf(path, sizeof(path), "/dev/zram%s", zram);
	return open_path(path);
}

static void remove_zram(const struct device *device)
{
	probes_untrack(probes, device->major, device->minor, &probes);
	close(device->fd);
	cr_expect_eq(fd_write_file(AT_FDCWD, "/sys/class/zram-control/hot_remove", zram), 0);
}

#define NEEDS_ZRAM()                                                                               \
	do {                                                                                       \
		ENV_NEEDS_LOOP();                                                                  \
		(void)env_runs("modprobe", "-q", "zram");                                          \
		if (access("/sys/class/zram-control/hot_add", R_OK) < 0)                           \
			cr_skip("this kernel has no zram");                                        \
	} while (0)

Test(probes_bios, every_kind_is_counted_exactly)
{
	NEEDS_ZRAM();
	NEEDS_BPF();
	struct device device = make_zram();
	track(&device);
	for (int i = 0; i < 500; i++)
		cr_assert_eq(pwrite(device.fd, buf, IO, i * IO), IO);
	for (int i = 0; i < 300; i++)
		cr_assert_eq(pread(device.fd, buf, 4 * IO, i * IO), 4 * IO);
	cr_assert_eq(ioctl(device.fd, BLKDISCARD, (uint64_t[]){0, MIB}), 0);
	struct probe_counters c = counters_of(&device);
	cr_expect(c.exact);
	expect(&c, PROBE_READ, 300, 1200 * IO);
	expect(&c, PROBE_WRITE, 500, 500 * IO);
	expect(&c, PROBE_DISCARD, 1, MIB);
	remove_zram(&device);
}

Test(probes_bios, tracked_anew_starts_from_zero)
{
	int another;
	NEEDS_ZRAM();
	NEEDS_BPF();
	struct device device = make_zram();
	track(&device);
	cr_assert_eq(pread(device.fd, buf, IO, 0), IO);
	probes_untrack(probes, device.major, device.minor, &probes);
	cr_assert_eq(pread(device.fd, buf, IO, 0), IO);
	track(&device);
	cr_assert_eq(pwrite(device.fd, buf, IO, 0), IO);
	struct probe_counters c = counters_of(&device);
	expect(&c, PROBE_READ, 0, 0);
	expect(&c, PROBE_WRITE, 1, IO);
	/* Behind the owner's back; and the number given to a device of the other kind. */
	cr_assert_eq(probes_track(probes, PROBE_BIOS, device.major, device.minor, &another), 0);
	c = counters_of(&device);
	expect(&c, PROBE_WRITE, 0, 0);
	cr_assert_eq(probes_track(probes, PROBE_REQUESTS, device.major, device.minor, &another), 0);
	cr_assert_eq(pwrite(device.fd, buf, IO, 0), IO);
	c = counters_of(&device);
	expect(&c, PROBE_WRITE, 0, 0);
	probes_untrack(probes, device.major, device.minor, &another);
	remove_zram(&device);
}

/* There is one major number for such devices: the device mapper's. */
Test(probes_bios, of_another_major_number_sysfs_counts)
{
	NEEDS_ZRAM();
	NEEDS_BPF();
	struct device device = make_zram();
	cr_assert_eq(probes_track(probes, PROBE_BIOS, device.major + 1, 1, &probes), 0);
	track(&device);
	cr_assert_eq(pread(device.fd, buf, IO, 0), IO);
	struct probe_counters c = counters_of(&device);
	cr_expect(!c.exact);
	cr_expect_eq(c.op[PROBE_READ].ops, 1);
	remove_zram(&device);
}

/* ---- a kernel that refuses the programs for bios alone ---- */

/* r5 was never set. */
static void spoil_bios(struct bpf_object *object)
{
	struct bpf_program *program = bpf_object__find_program_by_name(object, "bio_complete_2");
	*(struct bpf_insn *)bpf_program__insns(program) = (struct bpf_insn){
		.code = BPF_ALU64 | BPF_MOV | BPF_X, .dst_reg = BPF_REG_6, .src_reg = BPF_REG_5};
}

Test(probes_bios, refused_alone_requests_are_counted)
{
	char why[PROBES_WHY_MAX];
	NEEDS_ZRAM();
	if (probes_try(why) < 0)
		cr_skip("%s", why);
	probe_spoil = spoil_bios;
	cr_expect_eq(probes_try(why), 0);
	cr_expect(strstr(why, "R5 !read_ok") != NULL, "%s", why);
	load();
	cr_assert_eq(probes_state(probes), PROBES_BPF);
	cr_expect_str_empty(probes_why(probes));
	why[0] = '\0';
	cr_expect(
		strstr(probes_bios_why(probes), "verifier") != NULL, "%s", probes_bios_why(probes));

	struct device device = make_zram();
	track(&device);
	cr_assert_eq(pread(device.fd, buf, IO, 0), IO);
	struct probe_counters c = counters_of(&device);
	cr_expect(!c.exact);
	cr_expect_eq(c.op[PROBE_READ].ops, 1);
	cr_expect_eq(c.op[PROBE_READ].bytes, IO);
	remove_zram(&device);

	env_image("a", MIB);
	struct lodev dev = env_attach("a");
	cr_assert_eq(probes_track(probes, PROBE_REQUESTS, LODEV_MAJOR, dev.minor, &probes), 0);
	cr_assert_eq(probes_read(probes, LODEV_MAJOR, dev.minor, &c), 0);
	cr_expect(c.exact);
	probes_untrack(probes, LODEV_MAJOR, dev.minor, &probes);
	env_detach(&dev);
}
