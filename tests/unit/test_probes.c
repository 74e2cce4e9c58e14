/* SPDX-License-Identifier: Apache-2.0 */
/* The probes over real loop devices: exact counts, errors, limits, and what stands in without BPF.
 */
#include "probes/probes.h"

#include "base/fd.h"
#include "blockio_env.h"
#include "probes/bpf.h"
#include "probes/load.h"
#include "probes/sysfs.h"
#include "reactor/ring_uring.h"
#include "reactor/spawn.h"

#include <bpf/btf.h>
#include <bpf/libbpf.h>
#include <dirent.h>
#include <linux/bpf.h>
#include <linux/capability.h>
#include <linux/fs.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>

enum { MIB = 1 << 20, IO = 4096, FAKE = 15000 /* a minor number no device has */ };

static struct reactor reactor;
static struct probes *probes;
static bool loaded, marked;

static void setup(void)
{
	if (!env_has_loop())
		return;
	env_open();
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

TestSuite(probes, .init = setup, .fini = teardown);

/* ---- exact counts, beside others ---- */

/* Any process may read a loop device at any time (udev, blkid, a tool that looks for file systems),
 * and the probes are to count that, too. The block layer's own counters tell: where they have more
 * reads than we made, an attempt says nothing, and is made again from the start. */
static struct {
	bool on;        /* this test is made again when it was disturbed */
	bool disturbed; /* nothing is expected of this attempt any more */
	unsigned count;
	uint32_t minor[4]; /* the devices, and their reads when they were attached */
	uint64_t before[4];
	_Atomic uint64_t own; /* reads of ours, on all of them */
} attempt;

enum { ATTEMPTS_MAX = 8, IDLE_MS_MAX = 1000 };

static uint64_t block_layer_reads(uint32_t minor)
{
	struct probe_sysfs now;
	cr_assert_eq(probe_sysfs_read(LODEV_MAJOR, minor, &now), 0);
	/* A read is over for its process some moments before it is counted. */
	for (unsigned ms = 0; now.in_flight[PROBE_READ] != 0 && ms < IDLE_MS_MAX; ms++) {
		usleep(1000);
		cr_assert_eq(probe_sysfs_read(LODEV_MAJOR, minor, &now), 0);
	}
	return now.ops[PROBE_READ];
}

/* After the probes were read: what they have counted meanwhile is in the block layer's by now. */
static void look_for_others(void)
{
	uint64_t reads = 0;
	for (unsigned i = 0; i < attempt.count; i++)
		reads += block_layer_reads(attempt.minor[i]) - attempt.before[i];
	attempt.disturbed |= attempt.on && reads > attempt.own;
}

static void begin_again(void)
{
	work_close(reactor.work);
	probes_close(probes);
	cr_assert_eq(work_open(&reactor.work, reactor.ring, 1), 0);
	cr_assert_eq(probes_open(&probes, &reactor), 0);
	probe_spoil = NULL;
	loaded = attempt.disturbed = false;
	(void)unlinkat(env.dirfd, "a", 0);
	(void)unlinkat(env.dirfd, "b", 0);
	attempt.count = 0;
	attempt.own = 0;
}

#define EXACT_TEST(name)                                                                           \
	static void name(void);                                                                    \
	Test(probes, name)                                                                         \
	{                                                                                          \
		attempt.on = true;                                                                 \
		name();                                                                            \
		for (unsigned i = 1; attempt.disturbed; i++) {                                     \
			cr_assert_lt(i, ATTEMPTS_MAX, "others read the device each time");         \
			begin_again();                                                             \
			name();                                                                    \
		}                                                                                  \
	}                                                                                          \
	static void name(void)

#define EXPECT_EQ(...)                                                                             \
	do {                                                                                       \
		if (!attempt.disturbed)                                                            \
			cr_expect_eq(__VA_ARGS__);                                                 \
	} while (0)

/* ---- what the tests do ---- */

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

static int marker_run(struct work_job *job)
{
	(void)job;
	return 0;
}

static void marker_end(struct work_job *job, int res)
{
	(void)job;
	(void)res;
	marked = true;
}

/* Until the jobs that make room are over: there is one thread, so they end before the marker. */
static void settle(void)
{
	do {
		static struct work_job marker;
		marker = (struct work_job){.run = marker_run, .on_end = marker_end};
		marked = false;
		cr_assert_eq(work_submit(reactor.work, &marker), 0);
		while (!marked)
			cr_assert_eq(ring_turn(reactor.ring, true), 0);
	} while (work_queue_depth(reactor.work) != 0);
}

#define NEEDS_BPF()                                                                                \
	do {                                                                                       \
		char why[PROBES_WHY_MAX];                                                          \
		ENV_NEEDS_LOOP();                                                                  \
		if (probes_try(why) < 0)                                                           \
			cr_skip("%s", why);                                                        \
		load();                                                                            \
		cr_assert_eq(probes_state(probes), PROBES_BPF, "%s", probes_why(probes));          \
	} while (0)

static struct lodev env_attach_image(const char *image)
{
	env_image(image, 16 * MIB);
	struct lodev dev = env_attach(image);
	(void)env_runs("udevadm", "settle"); /* it reads new devices, where there is one */
	if (attempt.on) {
		attempt.minor[attempt.count] = dev.minor;
		attempt.before[attempt.count++] = block_layer_reads(dev.minor);
	}
	return dev;
}

static struct lodev tracked_device(const char *image)
{
	struct lodev dev = env_attach_image(image);
	cr_assert_eq(probes_track(probes, PROBE_REQUESTS, LODEV_MAJOR, dev.minor, &probes), 0);
	return dev;
}

static struct probe_counters counters_of(const struct lodev *dev)
{
	struct probe_counters c;
	cr_assert_eq(probes_read(probes, LODEV_MAJOR, dev->minor, &c), 0);
	look_for_others();
	return c;
}

static const char *device_path(const struct lodev *dev)
{
	static char paths[8][32]; /* a test may keep that many */
	static unsigned at;
	char *path = paths[at++ % 8];
	snprintf(path, sizeof(paths[0]), "/dev/loop%u", dev->minor);
	return path;
}

/* Where there is a udev it looks into a device that was open for writing: read only, then. */
static int open_path(const char *path, int flags)
{
	int fd = open(path, flags | O_DIRECT | O_CLOEXEC);
	cr_assert_geq(fd, 0);
	return fd;
}

static int open_device(const struct lodev *dev)
{
	return open_path(device_path(dev), O_RDWR);
}

enum { READS = 2000 };

/* Some kernels are built to run nobody's tracing programs while process 1 runs, not even for an
 * interrupt: of thousands of requests a few are lost there. */
static bool loses_some(void)
{
	struct btf *btf = btf__load_vmlinux_btf();
	int id = btf__find_by_name_kind(btf, "bpf_prog_aux", BTF_KIND_STRUCT);
	bool found = false;
	const struct btf_type *type = id > 0 ? btf__type_by_id(btf, (uint32_t)id) : NULL;
	for (int i = 0; type != NULL && i < btf_vlen(type); i++)
		if (strcmp(btf__name_by_offset(btf, btf_members(type)[i].name_off), "init_owned") ==
			0)
			found = true;
	btf__free(btf);
	return found;
}

static void expect(const struct probe_counters *c, enum probe_op op, uint64_t ops, uint64_t bytes)
{
	const struct probe_op_counters *o = &c->op[op];
	if (attempt.on && loses_some() && (o->ops < ops || o->in_flight != 0))
		attempt.disturbed |= ops < READS;
	if (attempt.disturbed)
		return;
	cr_expect_eq(hist_total(&o->latency), o->ops);
	cr_expect_leq(hist_total(&o->queue), o->ops);
	cr_expect(o->ops == 0 ? o->busy_ns == 0 : o->busy_ns > o->ops * 100);
	if (ops >= READS && loses_some()) {
		cr_expect(o->ops <= ops && o->ops >= ops - ops / 50, "%lu ops of %lu", o->ops, ops);
		return;
	}
	cr_expect_eq(o->ops, ops, "%s: %lu ops, not %lu", probe_op_names[op], o->ops, ops);
	cr_expect_eq(
		o->bytes, bytes, "%s: %lu bytes, not %lu", probe_op_names[op], o->bytes, bytes);
	cr_expect_eq(o->in_flight, 0, "%s: %u in flight", probe_op_names[op], o->in_flight);
}

static void read_blocks(int fd, unsigned count)
{
	static _Thread_local char buf[IO] __attribute__((aligned(IO)));
	attempt.own += count;
	for (unsigned i = 0; i < count; i++)
		cr_assert_eq(pread(fd, buf, IO, (off_t)(i % 1024) * IO), IO);
}

static ssize_t read_once(int fd, char *buf, size_t len, off_t at)
{
	attempt.own++;
	return pread(fd, buf, len, at);
}

EXACT_TEST(every_kind_is_counted_exactly)
{
	NEEDS_BPF();
	struct lodev dev = tracked_device("a");
	int fd = open_device(&dev);
	static char buf[MIB / 8] __attribute__((aligned(IO)));
	struct probe_counters c = counters_of(&dev);
	for (int op = 0; op < PROBE_OPS; op++)
		expect(&c, op, 0, 0);
	cr_expect(c.exact);

	for (int i = 0; i < 7; i++)
		cr_assert_eq(pwrite(fd, buf, IO, i * 3 * IO), IO);
	read_blocks(fd, 5);
	cr_assert_eq(read_once(fd, buf, sizeof(buf), 0), sizeof(buf));
	cr_assert_eq(fsync(fd), 0);
	cr_assert_eq(fsync(fd), 0);
	cr_assert_eq(ioctl(fd, BLKDISCARD, (uint64_t[]){0, 2 * MIB}), 0);
	c = counters_of(&dev);
	expect(&c, PROBE_READ, 6, 5 * IO + MIB / 8);
	expect(&c, PROBE_WRITE, 7, 7 * IO);
	expect(&c, PROBE_FLUSH, 2, 0);
	expect(&c, PROBE_DISCARD, 1, 2 * MIB);
	for (int op = 0; op < PROBE_OPS; op++)
		cr_expect_eq(c.op[op].errors, 0);

	/* Zeroes without data. */
	cr_assert_eq(ioctl(fd, BLKZEROOUT, (uint64_t[]){0, MIB}), 0);
	c = counters_of(&dev);
	expect(&c, PROBE_WRITE, 7, 7 * IO);
	expect(&c, PROBE_DISCARD, 2, 3 * MIB);
	close(fd);
	env_detach(&dev);
}

/* RWF_DSYNC is FUA, for a loop device a write and a flush (one request that completes twice), and
 * then an fsync. */
EXACT_TEST(a_write_through_is_one_write_and_its_flushes)
{
	NEEDS_BPF();
	struct lodev dev = tracked_device("a");
	static char buf[IO] __attribute__((aligned(IO)));
	int fd = open_device(&dev);
	struct iovec iov = {buf, IO};
	for (int i = 0; i < 10; i++)
		cr_assert_eq(pwritev2(fd, &iov, 1, i * IO, RWF_DSYNC), IO);
	struct probe_counters c = counters_of(&dev);
	expect(&c, PROBE_WRITE, 10, 10 * IO);
	expect(&c, PROBE_FLUSH, 20, 0);
	close(fd);
	env_detach(&dev);
}

struct reader {
	const char *path;
	pthread_t thread;
	unsigned count;
};

static void *reader_run(void *arg)
{
	struct reader *r = arg;
	int fd = open_path(r->path, O_RDONLY);
	read_blocks(fd, r->count);
	close(fd);
	return NULL;
}

/* The nth reads READS + n blocks. */
static void run_readers(
	struct reader *readers, unsigned n, const char *const *paths, unsigned count)
{
	for (unsigned i = 0; i < n; i++) {
		readers[i] = (struct reader){.path = paths[i % count], .count = READS + i};
		cr_assert_eq(pthread_create(&readers[i].thread, NULL, reader_run, &readers[i]), 0);
	}
	for (unsigned i = 0; i < n; i++)
		pthread_join(readers[i].thread, NULL);
}

EXACT_TEST(counts_are_exact_under_concurrency)
{
	NEEDS_BPF();
	struct lodev devs[2] = {tracked_device("a"), tracked_device("b")};
	const char *const paths[] = {device_path(&devs[0]), device_path(&devs[1])};
	struct reader readers[8];
	run_readers(readers, 8, paths, 2);
	struct probe_counters c = counters_of(&devs[0]);
	expect(&c, PROBE_READ, 4 * READS + 0 + 2 + 4 + 6, (4 * READS + 12) * (uint64_t)IO);
	c = counters_of(&devs[1]);
	expect(&c, PROBE_READ, 4 * READS + 1 + 3 + 5 + 7, (4 * READS + 16) * (uint64_t)IO);
	env_detach(&devs[0]);
	env_detach(&devs[1]);
}

static void set_queue(const struct lodev *dev, const char *name, const char *value)
{
	char path[64];
	snprintf(path, sizeof(path), "/sys/block/loop%u/queue/%s", dev->minor, name);
	cr_assert_eq(fd_write_file(AT_FDCWD, path, value), 0);
}

/* With one, requests have tags of their own, and the driver's only while they are out. */
EXACT_TEST(a_scheduler_changes_nothing)
{
	NEEDS_BPF();
	struct lodev dev = tracked_device("a");
	const char *const path = device_path(&dev);
	struct reader readers[4];
	(void)env_runs("modprobe", "-q", "mq-deadline");
	set_queue(&dev, "scheduler", "mq-deadline");
	set_queue(&dev, "nomerges", "2"); /* of readers that are side by side */
	run_readers(readers, 4, &path, 1);
	int fd = open_device(&dev);
	cr_assert_eq(fsync(fd), 0);
	struct probe_counters c = counters_of(&dev);
	expect(&c, PROBE_READ, 4 * READS + 0 + 1 + 2 + 3, (4 * READS + 6) * (uint64_t)IO);
	expect(&c, PROBE_FLUSH, 1, 0);
	close(fd);
	set_queue(&dev, "nomerges", "0");
	set_queue(&dev, "scheduler", "none");
	env_detach(&dev);
}

/* ---- null_blk, where the kernel has it: many queues, or as slow as one likes ---- */

#define null_device(...)                                                                           \
	(env_runs("modprobe", "-q", "-r", "null_blk") == 0 &&                                      \
		env_runs("modprobe", "-q", "null_blk", "nr_devices=1", __VA_ARGS__) == 0)

static dev_t track_null(void)
{
	struct stat st;
	cr_assert_eq(stat("/dev/nullb0", &st), 0);
	cr_assert_eq(
		probes_track(probes, PROBE_REQUESTS, major(st.st_rdev), minor(st.st_rdev), &probes),
		0);
	return st.st_rdev;
}

static struct probe_counters counters_of_null(dev_t rdev)
{
	struct probe_counters c;
	cr_assert_eq(probes_read(probes, major(rdev), minor(rdev), &c), 0);
	return c;
}

static struct probe_op_counters null_reads(const char *depth)
{
	if (!null_device("submit_queues=2", depth, "no_sched=1"))
		cr_skip("this kernel has no null_blk");
	dev_t rdev = track_null();
	const char *const path = "/dev/nullb0";
	struct reader readers[8];
	run_readers(readers, 8, &path, 1);
	struct probe_counters c = counters_of_null(rdev);
	probes_untrack(probes, major(rdev), minor(rdev), &probes);
	cr_assert(null_device("completion_nsec=0"));
	return c.op[PROBE_READ];
}

Test(probes, many_queues)
{
	NEEDS_BPF();
	struct probe_counters c = {.op[PROBE_READ] = null_reads("hw_queue_depth=128")};
	expect(&c, PROBE_READ, 8 * READS + 28, (8 * READS + 28) * (uint64_t)IO);
}

/* The second queue's have no marks, so on kernels that leave programs out nobody makes good for it.
 */
Test(probes, queues_beyond_the_marks)
{
	NEEDS_BPF();
	struct probe_op_counters reads = null_reads("hw_queue_depth=512");
	cr_expect_leq(reads.ops, 8 * READS + 28);
	cr_expect_geq(reads.ops, 4 * READS);
	cr_expect_eq(reads.bytes, reads.ops * IO);
	cr_expect_eq(hist_total(&reads.latency), reads.ops);
}

Test(probes, what_is_in_flight_is_seen_and_timed)
{
	NEEDS_BPF();
	/* Half a second an I/O. */
	if (!null_device("irqmode=2", "completion_nsec=500000000"))
		cr_skip("this kernel has no null_blk");
	dev_t rdev = track_null();
	struct reader reader = {.path = "/dev/nullb0", .count = 2};
	cr_assert_eq(pthread_create(&reader.thread, NULL, reader_run, &reader), 0);
	struct probe_counters c;
	do
		c = counters_of_null(rdev);
	while (c.op[PROBE_READ].in_flight == 0);
	cr_expect_eq(c.op[PROBE_READ].in_flight, 1);
	cr_expect_eq(c.op[PROBE_WRITE].in_flight, 0);
	pthread_join(reader.thread, NULL);
	c = counters_of_null(rdev);
	expect(&c, PROBE_READ, 2, 2 * IO);
	cr_expect_geq(c.op[PROBE_READ].busy_ns, 1000000000);
	cr_expect_geq(hist_quantile_ns(&c.op[PROBE_READ].latency, 0.5), 440000000);
	probes_untrack(probes, major(rdev), minor(rdev), &probes);
	cr_assert(null_device("completion_nsec=0"));
}

/* ---- errors and reuse ---- */

static void count_failed(void *arg, const void *owner)
{
	cr_expect_eq(owner, (const void *)&probes);
	++*(unsigned *)arg;
}

static unsigned failed_now(void)
{
	unsigned count = 0;
	probes_each_failed(probes, count_failed, &count);
	return count;
}

static void expect_failed(unsigned expected, const char *what)
{
	unsigned count = failed_now();
	look_for_others();
	EXPECT_EQ(count, expected, "%s", what);
}

/* The image loses its second half: a read across the new end comes back in two parts, one of them
 * an error; a read behind it fails. */
EXACT_TEST(errors_are_counted_with_code_and_time)
{
	NEEDS_BPF();
	struct lodev dev = tracked_device("a");
	static char buf[4 * IO] __attribute__((aligned(IO)));
	int fd = open_device(&dev);
	cr_assert_eq(truncate(env_path("a"), 8 * MIB), 0);
	cr_assert_eq(read_once(fd, buf, IO, 0), IO);
	cr_assert_eq(read_once(fd, buf, IO, 9 * MIB), -1);
	cr_assert_eq(errno, EIO);
	struct probe_counters c = counters_of(&dev);
	expect(&c, PROBE_READ, 2, IO);
	EXPECT_EQ(c.op[PROBE_READ].errors, 1);
	EXPECT_EQ(c.op[PROBE_READ].last_errno, EIO);
	cr_expect_gt(c.op[PROBE_READ].last_error_ns, c.since_ns);
	EXPECT_EQ(c.op[PROBE_WRITE].errors, 0);

	cr_assert_leq(read_once(fd, buf, 4 * IO, 8 * MIB - 2 * IO), 2 * IO);
	c = counters_of(&dev);
	expect(&c, PROBE_READ, 3, 3 * IO);
	EXPECT_EQ(c.op[PROBE_READ].errors, 2);
	expect_failed(2, "each error names its device");
	expect_failed(0, "once");
	for (unsigned i = 0; i < 100; i++)
		cr_assert_eq(read_once(fd, buf, IO, 9 * MIB), -1);
	expect_failed(1, "too many to be kept: all that are tracked");
	expect_failed(0, "once");
	cr_assert_eq(read_once(fd, buf, IO, 9 * MIB), -1);
	expect_failed(1, "one");
	close(fd);
	env_detach(&dev);
}

/* ---- errors while the driver takes them out ---- */

/* In place of the programs' variables: their page is read-only until the driver first writes to it,
 * and right then a request fails. */
static struct {
	int fd;
	struct probe_tracked *programs; /* their view */
	void *page;                     /* the driver's */
} shared;

static int load_shared(struct probe_loaded *ret, char ret_why[PROBES_WHY_MAX])
{
	int r = probe_load_here(ret, ret_why);
	if (r < 0)
		return r;
	close(ret->fd[PROBE_FD_VARIABLES]);
	ret->fd[PROBE_FD_VARIABLES] = shared.fd = memfd_create("tracked", MFD_CLOEXEC);
	cr_assert_eq(ftruncate(shared.fd, sizeof(struct probe_tracked)), 0);
	return 0;
}

static void fail_one(uint32_t minor)
{
	uint64_t at = __atomic_fetch_add(&shared.programs->errors, 1, __ATOMIC_SEQ_CST);
	shared.programs->failed[at % PROBE_FAILED] = LODEV_MAJOR << 20 | minor;
}

static void on_first_write(int sig)
{
	(void)sig;
	if (mprotect(shared.page, IO, PROT_READ | PROT_WRITE) < 0)
		_exit(1);
	fail_one(1000);
}

static struct probe_bpf *open_shared(void)
{
	struct probe_bpf *bpf;
	char why[PROBES_WHY_MAX], line[512];
	uintptr_t start = 0;
	cr_assert_eq(probe_bpf_open(&bpf, load_shared, why), 0, "%s", why);
	FILE *maps = fopen("/proc/self/maps", "re");
	cr_assert_not_null(maps);
	while (fgets(line, sizeof(line), maps) != NULL)
		if (strstr(line, "memfd:tracked") != NULL)
			start = strtoul(line, NULL, 16);
	fclose(maps);
	cr_assert_neq(start, 0);
	size_t in_page = offsetof(struct probe_tracked, errors) / IO * IO;
	cr_assert_leq(sizeof(struct probe_tracked), in_page + IO);
	shared.page = (void *)(start + in_page);
	shared.programs = mmap(NULL, sizeof(struct probe_tracked), PROT_READ | PROT_WRITE,
		MAP_SHARED, shared.fd, 0);
	cr_assert_neq(shared.programs, MAP_FAILED);
	struct sigaction action = {.sa_handler = on_first_write};
	cr_assert_eq(sigaction(SIGSEGV, &action, NULL), 0);
	return bpf;
}

/* Nobody hears of less because one more request fails in the middle of being told. */
static void told_while_failing(uint32_t before)
{
	uint32_t major, minor;
	NEEDS_BPF();
	struct probe_bpf *bpf = open_shared();
	for (uint32_t i = 0; i < before; i++)
		fail_one(i);
	cr_assert_eq(mprotect(shared.page, IO, PROT_READ), 0);
	cr_expect_eq(probe_bpf_failed(bpf, &major, &minor), -EOVERFLOW);
	cr_expect_eq(shared.programs->errors, before + 1, "one has failed meanwhile");
	cr_expect_eq(probe_bpf_failed(bpf, &major, &minor), -EAGAIN, "all were told");
	for (uint32_t i = 2000; i < 2000 + PROBE_FAILED; i++) {
		fail_one(i);
		cr_assert_eq(probe_bpf_failed(bpf, &major, &minor), 0, "%u", i);
		cr_expect_eq(major, LODEV_MAJOR);
		cr_expect_eq(minor, i);
	}
	munmap(shared.programs, sizeof(struct probe_tracked));
	probe_bpf_close(bpf);
}

Test(probes, an_error_while_too_many_are_forgotten)
{
	told_while_failing(PROBE_FAILED + 36);
}

Test(probes, an_error_that_makes_them_too_many)
{
	told_while_failing(PROBE_FAILED);
}

EXACT_TEST(a_number_given_to_another_starts_from_zero)
{
	NEEDS_BPF();
	int another;
	struct lodev dev = tracked_device("a");
	int fd = open_device(&dev);
	read_blocks(fd, 3);
	cr_assert_eq(probes_track(probes, PROBE_REQUESTS, LODEV_MAJOR, dev.minor, &probes), 0);
	struct probe_counters c = counters_of(&dev);
	expect(&c, PROBE_READ, 3, 3 * IO);

	probes_untrack(probes, LODEV_MAJOR, dev.minor, &probes);
	cr_assert_eq(probes_read(probes, LODEV_MAJOR, dev.minor, &c), -ENOENT);
	read_blocks(fd, 2);
	cr_assert_eq(probes_track(probes, PROBE_REQUESTS, LODEV_MAJOR, dev.minor, &probes), 0);
	c = counters_of(&dev);
	expect(&c, PROBE_READ, 0, 0);
	read_blocks(fd, 4);

	/* Behind the owner's back. */
	cr_assert_eq(probes_track(probes, PROBE_REQUESTS, LODEV_MAJOR, dev.minor, &another), 0);
	c = counters_of(&dev);
	expect(&c, PROBE_READ, 0, 0);
	read_blocks(fd, 1);
	probes_untrack(probes, LODEV_MAJOR, dev.minor, &probes);
	c = counters_of(&dev);
	expect(&c, PROBE_READ, 1, IO);
	close(fd);
	env_detach(&dev);
}

/* A device in use when the driver starts again: what is under way then is nobody's. */
EXACT_TEST(tracked_before_loading_counts_from_then)
{
	ENV_NEEDS_LOOP();
	struct lodev dev = tracked_device("a");
	int fd = open_device(&dev);
	read_blocks(fd, 3);
	struct probe_counters c = counters_of(&dev);
	cr_expect(!c.exact);
	read_blocks(fd, 2);
	c = counters_of(&dev);
	EXPECT_EQ(c.op[PROBE_READ].ops, 2);
	NEEDS_BPF();
	c = counters_of(&dev);
	expect(&c, PROBE_READ, 0, 0);
	read_blocks(fd, 4);
	c = counters_of(&dev);
	expect(&c, PROBE_READ, 4, 4 * IO);
	close(fd);
	env_detach(&dev);
}

EXACT_TEST(room_comes_and_goes_with_the_devices)
{
	NEEDS_BPF();
	struct probes_memory few, many, after;
	probes_memory(probes, &few);
	for (unsigned i = 0; i < 1000; i++) {
		cr_assert_eq(
			probes_track(probes, PROBE_REQUESTS, LODEV_MAJOR, FAKE + i, &probes), 0);
		if (i % 10 == 0)
			settle();
	}
	struct lodev dev = tracked_device("a");
	settle();
	probes_memory(probes, &many);
	cr_expect_eq(many.devices, 1001);
	uint64_t once = few.kernel_bytes + few.driver_bytes;
	cr_expect_leq(once, 640 * 1024);
	cr_expect_leq((many.kernel_bytes + many.driver_bytes - once) / many.devices, 8192);

	int fd = open_device(&dev);
	read_blocks(fd, 9);
	struct probe_counters c = counters_of(&dev);
	cr_expect(c.exact);
	expect(&c, PROBE_READ, 9, 9 * IO);

	for (unsigned i = 0; i < 1000; i++)
		probes_untrack(probes, LODEV_MAJOR, FAKE + i, &probes);
	settle();
	probes_untrack(probes, LODEV_MAJOR, dev.minor, &probes);
	settle();
	probes_memory(probes, &after);
	cr_expect_eq(after.devices, 0);
	cr_expect_leq(after.kernel_bytes, few.kernel_bytes + 4 * 128 * 1024);
	close(fd);
	env_detach(&dev);
}

EXACT_TEST(beyond_the_limits_sysfs_counts)
{
	NEEDS_BPF();
	struct probe_counters c;
	/* A third major number, a minor number past the table. */
	cr_assert_eq(probes_track(probes, PROBE_REQUESTS, 259, 1, &probes), 0);
	struct lodev dev = tracked_device("a");
	cr_assert_eq(probes_track(probes, PROBE_REQUESTS, 251, 1, &probes), 0);
	cr_expect_eq(probes_read(probes, 251, 1, &c), -ENOENT);
	cr_assert_eq(probes_track(probes, PROBE_REQUESTS, LODEV_MAJOR, PROBE_MINORS, &probes), 0);
	cr_expect_eq(probes_read(probes, LODEV_MAJOR, PROBE_MINORS, &c), -ENOENT);
	int fd = open_device(&dev);
	read_blocks(fd, 2);
	c = counters_of(&dev);
	cr_expect(c.exact);
	expect(&c, PROBE_READ, 2, 2 * IO);
	close(fd);
	env_detach(&dev);
}

/* Every slot is taken; one more is counted from sysfs until another goes. */
Test(probes, the_last_slot)
{
	ENV_NEEDS_LOOP();
	struct rlimit files = {4096, 4096}; /* a descriptor for each chunk */
	cr_assert_eq(setrlimit(RLIMIT_NOFILE, &files), 0);
	struct lodev dev = env_attach_image("a");
	unsigned tracked = 0;
	for (unsigned i = 0; tracked < PROBES_DEVICES_MAX; i++)
		if (i != dev.minor) {
			cr_assert_eq(probes_track(probes, PROBE_REQUESTS,
					     i < PROBE_MINORS ? LODEV_MAJOR : 259, i % PROBE_MINORS,
					     &probes),
				0);
			tracked++;
		}
	NEEDS_BPF();
	settle();
	cr_assert_eq(probes_track(probes, PROBE_REQUESTS, LODEV_MAJOR, dev.minor, &probes), 0);
	settle();
	struct probe_counters c = counters_of(&dev);
	cr_expect(!c.exact);
	probes_untrack(probes, 259, 0, &probes);
	settle();
	c = counters_of(&dev);
	cr_expect(!c.exact, "a slot is taken when a device is tracked");
	probes_untrack(probes, LODEV_MAJOR, dev.minor, &probes);
	cr_assert_eq(probes_track(probes, PROBE_REQUESTS, LODEV_MAJOR, dev.minor, &probes), 0);
	c = counters_of(&dev);
	cr_expect(c.exact);
	env_detach(&dev);
}

/* No memory or descriptors for another chunk. */
Test(probes, without_room_sysfs_counts_and_later_bpf)
{
	NEEDS_BPF();
	settle();
	struct rlimit files;
	cr_assert_eq(getrlimit(RLIMIT_NOFILE, &files), 0);
	rlim_t before = files.rlim_cur;
	files.rlim_cur = 0;
	cr_assert_eq(setrlimit(RLIMIT_NOFILE, &files), 0);
	for (unsigned i = 0; i < 2 * PROBE_CHUNK_SLOTS; i++)
		cr_assert_eq(
			probes_track(probes, PROBE_REQUESTS, LODEV_MAJOR, FAKE + i, &probes), 0);
	settle();
	files.rlim_cur = before;
	cr_assert_eq(setrlimit(RLIMIT_NOFILE, &files), 0);
	struct probe_counters c;
	cr_expect_eq(probes_read(probes, LODEV_MAJOR, FAKE, &c), 0);
	cr_expect_eq(
		probes_read(probes, LODEV_MAJOR, FAKE + 2 * PROBE_CHUNK_SLOTS - 1, &c), -ENOENT);
	/* The next one that comes asks again. */
	cr_assert_eq(probes_track(probes, PROBE_REQUESTS, LODEV_MAJOR, FAKE - 1, &probes), 0);
	settle();
	cr_expect_eq(probes_read(probes, LODEV_MAJOR, FAKE + 2 * PROBE_CHUNK_SLOTS - 1, &c), 0);
	cr_expect(c.exact);
}

/* ---- without BPF ---- */

static void expect_sysfs_counts(void)
{
	struct lodev dev = tracked_device("a");
	int fd = open_device(&dev);
	struct probe_counters c = counters_of(&dev);
	cr_expect(!c.exact);
	EXPECT_EQ(c.op[PROBE_READ].ops, 0);
	read_blocks(fd, 5);
	cr_assert_eq(fsync(fd), 0);
	c = counters_of(&dev);
	EXPECT_EQ(c.op[PROBE_READ].ops, 5);
	EXPECT_EQ(c.op[PROBE_READ].bytes, 5 * IO);
	cr_expect_eq(c.op[PROBE_FLUSH].ops, 1);
	probes_untrack(probes, LODEV_MAJOR, dev.minor, &probes);
	cr_expect_eq(probes_read(probes, LODEV_MAJOR, dev.minor, &c), -ENOENT);
	cr_assert_eq(probes_track(probes, PROBE_REQUESTS, LODEV_MAJOR, dev.minor, &probes), 0);
	c = counters_of(&dev);
	EXPECT_EQ(c.op[PROBE_READ].ops, 0);
	close(fd);
	env_detach(&dev);
}

/* Of this thread, and of what it starts: a program that root starts has them all again otherwise.
 */
static void drop_capabilities(void)
{
	struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
	struct __user_cap_data_struct data[2];
	cr_assert_eq(prctl(PR_CAPBSET_DROP, CAP_BPF), 0);
	cr_assert_eq(prctl(PR_CAPBSET_DROP, CAP_PERFMON), 0);
	cr_assert_eq(prctl(PR_CAPBSET_DROP, CAP_SYS_ADMIN), 0);
	cr_assert_eq(syscall(SYS_capget, &head, data), 0);
	for (int i = 0; i < 2; i++)
		data[i].effective = data[i].permitted = data[i].inheritable = 0;
	/* For the loop device. */
	data[0].effective = data[0].permitted = 1U << CAP_DAC_OVERRIDE;
	cr_assert_eq(syscall(SYS_capset, &head, data), 0);
}

struct powerless {
	int (*try)(char ret_why[PROBES_WHY_MAX]);
	char why[PROBES_WHY_MAX];
};

static void *powerless_run(void *arg)
{
	struct powerless *p = arg;
	drop_capabilities();
	cr_expect_eq(p->try(p->why), -EPERM);
	return NULL;
}

static void expect_says_which(int (*try)(char ret_why[PROBES_WHY_MAX]))
{
	struct powerless p = {.try = try};
	pthread_t thread;
	cr_assert_eq(pthread_create(&thread, NULL, powerless_run, &p), 0);
	pthread_join(thread, NULL);
	cr_expect(strstr(p.why, "CAP_BPF") != NULL, "%s", p.why);
}

Test(probes, without_capabilities_says_which)
{
	ENV_NEEDS_LOOP();
	expect_says_which(probes_try);
}

/* r5 was never set. */
static void spoil_program(struct bpf_object *object)
{
	struct bpf_program *program = bpf_object__find_program_by_name(object, "rq_complete");
	*(struct bpf_insn *)bpf_program__insns(program) = (struct bpf_insn){
		.code = BPF_ALU64 | BPF_MOV | BPF_X, .dst_reg = BPF_REG_6, .src_reg = BPF_REG_5};
}

EXACT_TEST(refused_by_the_verifier_sysfs_counts)
{
	ENV_NEEDS_LOOP();
	char why[PROBES_WHY_MAX];
	if (probes_try(why) < 0)
		cr_skip("%s", why);
	probe_spoil = spoil_program;
	probes_start(probes, false, NULL, NULL);
	while (probes_state(probes) == PROBES_LOADING)
		cr_assert_eq(ring_turn(reactor.ring, true), 0);
	cr_assert_eq(probes_state(probes), PROBES_SYSFS);
	cr_expect(strstr(probes_why(probes), "verifier") != NULL, "%s", probes_why(probes));
	cr_expect(strstr(probes_why(probes), "R5 !read_ok") != NULL, "%s", probes_why(probes));
	expect_sysfs_counts();
}

/* ---- the process that loads them ---- */

/* What the loading process answers instead of loading anything: it is told in its environment. */
#define ANSWER "RINGVOL_TEST_ANSWER"

enum { MANY = 2 * PROBE_FDS }; /* more than the receiver has room for */

static int answer(int fd, const char *how)
{
	int res, fds[MANY];
	unsigned count, bytes;
	char control[CMSG_SPACE(sizeof(fds))] __attribute__((aligned(8))) = {0};
	struct probe_message message[2] = {0}; /* and more bytes than one has */
	if (strcmp(how, "none") == 0)
		pause();
	if (sscanf(how, "%d %u %u", &res, &count, &bytes) != 3)
		return 1;
	message->res = res;
	struct iovec iov = {message, bytes};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
	if (count != 0) {
		msg.msg_control = control;
		msg.msg_controllen = CMSG_SPACE(count * sizeof(int));
		struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
		*c = (struct cmsghdr){.cmsg_len = CMSG_LEN(count * sizeof(int)),
			.cmsg_level = SOL_SOCKET,
			.cmsg_type = SCM_RIGHTS};
		for (unsigned i = 0; i < count; i++)
			fds[i] = STDIN_FILENO;
		memcpy(CMSG_DATA(c), fds, count * sizeof(int));
	}
	return sendmsg(fd, &msg, MSG_NOSIGNAL) == (ssize_t)bytes ? 0 : 1;
}

/* This program started again by probes_start(). */
__attribute__((constructor)) static void loader(int argc, char **argv)
{
	if (argc != 3 || strcmp(argv[1], "probes") != 0)
		return;
	const char *how = getenv(ANSWER);
	_exit(how == NULL ? probes_loader_main(atoi(argv[2])) : answer(atoi(argv[2]), how));
}

static void load_apart(void)
{
	probes_start(probes, true, on_loaded, &loaded);
	while (!loaded)
		cr_assert_eq(ring_turn(reactor.ring, true), 0);
}

EXACT_TEST(loaded_by_a_process_of_its_own)
{
	ENV_NEEDS_LOOP();
	char why[PROBES_WHY_MAX];
	if (probes_try(why) < 0)
		cr_skip("%s", why);
	load_apart();
	cr_assert_eq(probes_state(probes), PROBES_BPF, "%s", probes_why(probes));
	struct lodev dev = tracked_device("a");
	int fd = open_device(&dev);
	read_blocks(fd, 5);
	struct probe_counters c = counters_of(&dev);
	cr_expect(c.exact);
	EXPECT_EQ(c.op[PROBE_READ].ops, 5);
	close(fd);
	probes_untrack(probes, LODEV_MAJOR, dev.minor, &probes);
	env_detach(&dev);
}

Test(probes, the_loading_process_ends_without_an_answer)
{
	ENV_NEEDS_LOOP(); /* as the suite does */
	spawn_self_exe = "/bin/false";
	load_apart();
	cr_expect_eq(probes_state(probes), PROBES_SYSFS);
	cr_expect(
		strstr(probes_why(probes), "without an answer") != NULL, "%s", probes_why(probes));
}

Test(probes, the_loading_process_cannot_be_started)
{
	ENV_NEEDS_LOOP(); /* as the suite does */
	spawn_self_exe = "/nonexistent/ringvol";
	load_apart();
	cr_expect_eq(probes_state(probes), PROBES_SYSFS);
	cr_expect(
		strstr(probes_why(probes), "cannot be started") != NULL, "%s", probes_why(probes));
}

/* By a shutdown, which would have to wait for it; the signal may come before there is a process. */
Test(probes, the_loading_process_is_stopped)
{
	ENV_NEEDS_LOOP(); /* as the suite does */
	cr_assert_eq(setenv(ANSWER, "none", 1), 0);
	probes_start(probes, true, on_loaded, &loaded);
	probes_stop();
	while (!loaded)
		cr_assert_eq(ring_turn(reactor.ring, true), 0);
	cr_expect_eq(probes_state(probes), PROBES_SYSFS);
	cr_expect(
		strstr(probes_why(probes), "without an answer") != NULL, "%s", probes_why(probes));
}

static int try_apart(char ret_why[PROBES_WHY_MAX])
{
	struct probe_loaded none;
	int r = probe_load_apart(&none, ret_why);
	cr_expect_eq(none.count, 0);
	return r;
}

/* Its reason is the driver's: here that nothing is allowed. */
Test(probes, the_loading_process_says_why_not)
{
	ENV_NEEDS_LOOP();
	expect_says_which(try_apart);
}

static unsigned open_descriptors(void)
{
	unsigned count = 0;
	DIR *open = opendir("/proc/self/fd");
	cr_assert(open != NULL);
	while (readdir(open) != NULL)
		count++;
	closedir(open);
	return count;
}

static int loaded_from(int res, unsigned count, size_t bytes, char why[PROBES_WHY_MAX])
{
	char how[64];
	struct probe_loaded got;
	snprintf(how, sizeof(how), "%d %u %zu", res, count, bytes);
	cr_assert_eq(setenv(ANSWER, how, 1), 0);
	int r = probe_load_apart(&got, why);
	cr_expect_eq(got.count, r == 0 ? PROBE_FDS : 0, "%s", how);
	for (unsigned i = 0; i < got.count; i++)
		cr_expect_eq(close(got.fd[i]), 0);
	return r;
}

/* No descriptor of an answer that is none stays here. */
Test(loading_process, a_wrong_answer_leaves_nothing)
{
	enum { ALL = sizeof(struct probe_message) };
	static const struct {
		int res;
		unsigned count;
		size_t bytes;
	} wrong[] = {{0, 0, ALL}, {1, 0, ALL}, {0, 1, ALL}, {0, PROBE_FDS - 1, ALL},
		{0, PROBE_FDS + 1, ALL}, {0, PROBE_FDS + 2, ALL}, {0, MANY, ALL}, {-EPERM, 1, ALL},
		{-EPERM, PROBE_FDS, ALL}, {0, PROBE_FDS, ALL - 1}, {0, PROBE_FDS, 1},
		{0, PROBE_FDS, ALL + 1}};
	char why[PROBES_WHY_MAX];
	unsigned before = open_descriptors();
	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		int r = loaded_from(wrong[i].res, wrong[i].count, wrong[i].bytes, why);
		cr_expect_eq(r, -EPROTO, "answer %zu: %d", i, r);
		cr_expect(strstr(why, "an answer that is none") != NULL, "%s", why);
		cr_expect_eq(open_descriptors(), before, "answer %zu", i);
	}
	cr_expect_eq(loaded_from(0, PROBE_FDS, ALL, why), 0, "the right one");
	cr_expect_eq(loaded_from(-ENOMEM, 0, ALL, why), -ENOMEM, "its refusal");
	cr_expect_eq(open_descriptors(), before);
}

Test(probes_why, each_reason_has_its_remedy)
{
	static const struct {
		int error;
		const char *says;
	} cases[] = {
		{-EPERM, "CAP_BPF and CAP_PERFMON"},
		{-ENOSYS, "CONFIG_BPF_SYSCALL"},
		{-ESRCH, "tracepoints"},
		{-ENOMEM, "Cannot allocate memory"},
	};
	if (access("/sys/kernel/btf/vmlinux", R_OK) < 0)
		cr_skip("this kernel has no BTF, which is the reason then");
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		char why[PROBES_WHY_MAX] = "";
		probe_why_begin();
		probe_why_end(cases[i].error, why);
		cr_expect(strstr(why, cases[i].says) != NULL, "%s", why);
	}
}

Test(probes_sysfs, the_block_layers_line_is_read)
{
	struct probe_sysfs s;
	cr_assert_eq(
		probe_sysfs_parse(
			"     336        2    40960       42       99        3     8000       "
			"17        5       40       60        4        0     2048        1       "
			"11       13\n",
			"       3        2\n", &s),
		0);
	cr_expect_eq(s.ops[PROBE_READ], 336);
	cr_expect_eq(s.bytes[PROBE_READ], 40960 * 512);
	cr_expect_eq(s.busy_ns[PROBE_READ], 42000000);
	cr_expect_eq(s.ops[PROBE_WRITE], 99);
	cr_expect_eq(s.bytes[PROBE_WRITE], 8000 * 512);
	cr_expect_eq(s.busy_ns[PROBE_WRITE], 17000000);
	cr_expect_eq(s.ops[PROBE_DISCARD], 4);
	cr_expect_eq(s.bytes[PROBE_DISCARD], 2048 * 512);
	cr_expect_eq(s.busy_ns[PROBE_DISCARD], 1000000);
	cr_expect_eq(s.ops[PROBE_FLUSH], 11);
	cr_expect_eq(s.bytes[PROBE_FLUSH], 0);
	cr_expect_eq(s.busy_ns[PROBE_FLUSH], 13000000);
	cr_expect_eq(s.in_flight[PROBE_READ], 3);
	cr_expect_eq(s.in_flight[PROBE_WRITE], 2);
}

Test(probes_sysfs, what_is_no_such_line_is_refused)
{
	static const char good[] = "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17";
	static const char *const bad[] = {"", "1 2 3 4 5 6 7 8 9 10 11", "-1 2 3",
		"1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 x",
		"99999999999999999999 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17"};
	struct probe_sysfs s;
	cr_expect_eq(probe_sysfs_parse(good, "0 0", &s), 0);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		cr_expect_eq(probe_sysfs_parse(bad[i], "0 0", &s), -EINVAL, "\"%s\"", bad[i]);
	cr_expect_eq(probe_sysfs_parse(good, "0", &s), -EINVAL);
	cr_expect_eq(probe_sysfs_read(0, 0, &s), -ENOENT);
}
