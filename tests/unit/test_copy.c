/* SPDX-License-Identifier: Apache-2.0 */
/* The copy on the kernel's ring: real files, direct I/O, many at once. Faults are in sim/. */
#include "blockio/copy.h"
#include "reactor/ring_bufs.h"
#include "reactor/ring_uring.h"

#include "blockio_env.h"

#include <linux/fs.h>
#include <sys/ioctl.h>
#include <time.h>

enum { KIB = 1 << 10, MIB = 1 << 20, SMALL = 2 * MIB, COPIES = 12, ZEROS = -2 };

static struct reactor reactor;
static unsigned running;
static unsigned beside_last_small; /* copies that still ran when the last small one ended */

static void open_all(void)
{
	env_open();
	cr_assert(ring_open(&reactor.ring, &(struct ring_config){0}) == 0);
	cr_assert(work_open(&reactor.work, reactor.ring, 2) == 0);
}

static void close_all(void)
{
	work_close(reactor.work);
	ring_close(reactor.ring);
	env_close();
}

TestSuite(copy, .init = open_all, .fini = close_all);

static void on_end(struct op *op)
{
	struct copy *copy = container_of(op, struct copy, op);
	running--;
	if (copy->size <= SMALL)
		beside_last_small = running;
}

/* src_fd ZEROS: overwrites dst with zeros. */
static void start_in(struct lane *lane, struct copy *copy, int src_fd, int dst_fd, uint64_t size)
{
	*copy = (struct copy){.src_fd = src_fd, .dst_fd = dst_fd, .size = size};
	if (src_fd == ZEROS)
		copy->kind = COPY_ZEROS;
	copy_init(copy, &reactor);
	copy->op.on_end = on_end;
	copy->op.lane = lane;
	op_start(&copy->op);
	running++;
}

static void start(struct copy *copy, int src_fd, int dst_fd, uint64_t size)
{
	start_in(NULL, copy, src_fd, dst_fd, size);
}

static void run(void)
{
	while (running > 0)
		cr_assert(ring_turn(reactor.ring, true) == 0);
}

static int open_file(const char *name, int flags)
{
	int fd = openat(env.dirfd, name, O_RDWR | O_CREAT | O_CLOEXEC | flags, 0600);
	cr_assert(fd >= 0);
	return fd;
}

/* Data in random places; what is written is never zero. */
static void fill(const char *name, uint64_t size, unsigned extents, unsigned seed)
{
	static uint8_t mem[512 * KIB];
	int fd = open_file(name, 0);
	cr_assert(ftruncate(fd, (off_t)size) == 0);
	srand(seed);
	for (unsigned i = 0; i < extents; i++) {
		uint64_t len = 1 + (uint64_t)rand() % sizeof mem, at = (uint64_t)rand() % size;
		if (at + len > size)
			len = size - at;
		for (uint64_t j = 0; j < len; j++)
			mem[j] = (uint8_t)(1 + (seed + i + j * 7) % 255);
		cr_assert(pwrite(fd, mem, len, (off_t)at) == (ssize_t)len);
	}
	cr_assert(fsync(fd) == 0);
	close(fd);
}

static bool same(const char *a, const char *b, uint64_t size)
{
	static uint8_t mem_a[MIB], mem_b[MIB];
	int fd_a = open_file(a, 0), fd_b = open_file(b, 0);
	bool equal = true;
	for (uint64_t at = 0; at < size && equal; at += MIB) {
		size_t len = size - at < MIB ? size - at : MIB;
		memset(mem_a, 0, sizeof mem_a);
		memset(mem_b, 0, sizeof mem_b);
		cr_assert(pread(fd_a, mem_a, len, (off_t)at) >= 0);
		cr_assert(pread(fd_b, mem_b, len, (off_t)at) >= 0);
		equal = memcmp(mem_a, mem_b, len) == 0;
	}
	close(fd_a);
	close(fd_b);
	return equal;
}

static uint64_t allocated(const char *name)
{
	struct stat st;
	cr_assert(fstatat(env.dirfd, name, &st, 0) == 0);
	return (uint64_t)st.st_blocks * 512;
}

static void check_copy(uint64_t size, unsigned extents, unsigned seed, int flags)
{
	struct copy copy;
	unlinkat(env.dirfd, "src", 0);
	unlinkat(env.dirfd, "dst", 0);
	fill("src", size, extents, seed);
	int src = open_file("src", flags), dst = open_file("dst", flags);
	cr_assert(ftruncate(dst, (off_t)size) == 0);
	start(&copy, src, dst, size);
	run();
	cr_assert(!op_failed(&copy.op), "seed %u: %s", seed, copy.op.err.message);
	cr_assert(copy.looked_bytes == size && copy.done_bytes <= size);
	cr_assert(copy.state == NULL);
	cr_assert((fcntl(dst, F_GETFL) & O_DIRECT) == flags);
	struct stat st;
	cr_assert(fstat(dst, &st) == 0 && (uint64_t)st.st_size == size);
	close(src);
	close(dst);
	cr_assert(same("src", "dst", size), "seed %u size %llu", seed, (unsigned long long)size);
	/* Holes stay holes; the file system may round, and so do we, to 4096 each side. */
	cr_assert(allocated("dst") <= allocated("src") + extents * 16 * KIB, "seed %u", seed);
}

Test(copy, random_extents_buffered_and_direct)
{
	unsigned seed = (unsigned)time(NULL);
	printf("seed %u\n", seed);
	for (unsigned i = 0; i < 6; i++) {
		check_copy(24 * MIB, 5 + 20 * i, seed + i, 0);
		check_copy(24 * MIB, 5 + 20 * i, seed + i, O_DIRECT);
	}
}

Test(copy, more_extents_than_a_batch)
{
	struct copy copy;
	int src = open_file("src", 0), dst = open_file("dst", 0);
	for (off_t at = 0; at < 64 * MIB; at += 128 * KIB)
		cr_assert(pwrite(src, &at, sizeof at, at + 8) == sizeof at);
	cr_assert(ftruncate(src, 64 * MIB) == 0 && ftruncate(dst, 64 * MIB) == 0);
	start(&copy, src, dst, 64 * MIB);
	run();
	cr_assert(!op_failed(&copy.op) && same("src", "dst", 64 * MIB));
	cr_assert(copy.done_bytes == 512 * 4 * KIB, "%llu", (unsigned long long)copy.done_bytes);
	cr_assert(allocated("dst") <= 3 * MIB);
	close(src);
	close(dst);
}

/* A buffer for which there is no place among the registered ones does as well. */
Test(copy, buffers_that_are_not_registered)
{
	static uint8_t mem[RING_FIXED_MAX][4096] __attribute__((aligned(4096)));
	int taken[RING_FIXED_MAX];
	unsigned count = 0; /* memory that may be locked can be less than there are places */
	while (count < RING_FIXED_MAX &&
		(taken[count] = ring_fixed_add(reactor.ring, mem[count], sizeof mem[count])) >= 0)
		count++;
	cr_assert(ring_fixed_add(reactor.ring, mem[0], sizeof mem[0]) < 0);
	check_copy(9 * MIB + 100, 40, 7, 0);
	check_copy(9 * MIB + 100, 40, 7, O_DIRECT);
	while (count > 0)
		ring_fixed_remove(reactor.ring, taken[--count]);
}

Test(copy, odd_sizes)
{
	static const uint64_t sizes[] = {
		1, 511, 512, 4095, 4096, 4097, MIB - 1, MIB + 1, 3 * MIB + 700, 9 * MIB + 4095};
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		check_copy(sizes[i], 40, 7, 0);
		check_copy(sizes[i], 40, 7, O_DIRECT);
	}
}

Test(copy, nothing_to_copy)
{
	struct copy copy;
	int src = open_file("src", 0), dst = open_file("dst", 0);
	start(&copy, src, dst, 0);
	run();
	cr_assert(!op_failed(&copy.op));
	cr_assert(ftruncate(src, 8 * MIB) == 0 && ftruncate(dst, 8 * MIB) == 0);
	start(&copy, src, dst, 8 * MIB);
	run();
	cr_assert(!op_failed(&copy.op) && copy.done_bytes == 0 && copy.looked_bytes == 8 * MIB);
	cr_assert(allocated("dst") == 0);
	close(src);
	close(dst);
}

Test(copy, zeros_are_not_written)
{
	struct copy copy;
	int src = open_file("src", 0), dst = open_file("dst", 0);
	static uint8_t zeros[MIB];
	for (int i = 0; i < 4; i++)
		cr_assert(pwrite(src, zeros, MIB, i * MIB) == MIB);
	cr_assert(pwrite(src, "x", 1, 2 * MIB + 5) == 1);
	cr_assert(ftruncate(dst, 4 * MIB) == 0);
	start(&copy, src, dst, 4 * MIB);
	run();
	cr_assert(!op_failed(&copy.op) && copy.done_bytes == 4 * MIB);
	cr_assert(same("src", "dst", 4 * MIB));
	cr_assert(allocated("dst") <= MIB + 64 * KIB);
	close(src);
	close(dst);
}

/* Wherever in it. */
Test(copy, one_byte_of_a_chunk_is_data)
{
	static const unsigned places[] = {0, 1, MIB / 2, MIB - 2, MIB - 1};
	static uint8_t zeros[MIB];
	struct copy copy;
	int src = open_file("src", 0), dst = open_file("dst", 0);
	for (unsigned i = 0; i < 5; i++) {
		cr_assert(pwrite(src, zeros, MIB, (off_t)i * MIB) == MIB);
		cr_assert(pwrite(src, "x", 1, (off_t)i * MIB + places[i]) == 1);
	}
	cr_assert(ftruncate(dst, 5 * MIB) == 0);
	start(&copy, src, dst, 5 * MIB);
	run();
	cr_assert(!op_failed(&copy.op));
	cr_assert(same("src", "dst", 5 * MIB));
	close(src);
	close(dst);
}

Test(copy, src_shorter_than_size)
{
	struct copy copy;
	fill("src", 3 * MIB + 100, 30, 3);
	int src = open_file("src", 0), dst = open_file("dst", 0);
	cr_assert(ftruncate(dst, 8 * MIB) == 0);
	start(&copy, src, dst, 8 * MIB);
	run();
	cr_assert(!op_failed(&copy.op) && same("src", "dst", 8 * MIB));
	close(src);
	close(dst);
}

static void copy_many(void)
{
	static struct copy copies[COPIES];
	char src_name[16], dst_name[16];
	for (unsigned i = 0; i < COPIES; i++) {
		uint64_t size = i % 2 ? SMALL : 16 * MIB;
		snprintf(src_name, sizeof src_name, "src%u", i);
		snprintf(dst_name, sizeof dst_name, "dst%u", i);
		fill(src_name, size, 20, i);
		int src = open_file(src_name, O_DIRECT), dst = open_file(dst_name, O_DIRECT);
		cr_assert(ftruncate(dst, (off_t)size) == 0);
		start(&copies[i], src, dst, size);
	}
	run();
	for (unsigned i = 0; i < COPIES; i++) {
		snprintf(src_name, sizeof src_name, "src%u", i);
		snprintf(dst_name, sizeof dst_name, "dst%u", i);
		cr_assert(!op_failed(&copies[i].op), "%s", copies[i].op.err.message);
		cr_assert(same(src_name, dst_name, copies[i].size));
		close(copies[i].src_fd);
		close(copies[i].dst_fd);
		cr_assert(unlinkat(env.dirfd, src_name, 0) == 0);
		cr_assert(unlinkat(env.dirfd, dst_name, 0) == 0);
	}
}

/* More copies than there are buffers for; all are served, a short one before a long one ends. On a
 * busy disk a short one may be unlucky once. */
Test(copy, many_share_the_buffers)
{
	for (unsigned attempt = 0; beside_last_small == 0; attempt++) {
		cr_assert_lt(attempt, 5);
		copy_many();
	}
}

static bool no_memory;

/* Ours, so that there is none for a buffer when a test says so. */
int posix_memalign(void **ret, size_t align, size_t size)
{
	void *mem = no_memory ? NULL : aligned_alloc(align, size);
	if (mem != NULL)
		*ret = mem;
	return mem == NULL ? ENOMEM : 0;
}

static bool waited;

static void on_time(struct ring_timer *timer)
{
	(void)timer;
	waited = true;
}

static void turn_for(uint64_t ms, unsigned left)
{
	struct ring_timer timer = {.fn = on_time};
	waited = false;
	ring_timer_arm(reactor.ring, &timer, ms);
	while (!waited && running > left)
		cr_assert(ring_turn(reactor.ring, true) == 0);
	ring_timer_cancel(reactor.ring, &timer);
}

/* A file system that hangs keeps the buffers of its copies, all there are; another lane's copies go
 * on, or fail where there is no memory, and do not wait for what it has. */
static void check_one_lane_hangs(int flags)
{
	enum { HANGING = 3, FINE = 3 };
	static struct copy hanging[HANGING], fine[FINE];
	struct lane *lanes[2];
	struct lodev dev = env_fresh("img", FSIMG_EXT4, 128 * MIB, "mnt0");
	for (unsigned i = 0; i < 2; i++)
		cr_assert(ring_lane_open(&lanes[i], reactor.ring) == 0);
	fill("src", 24 * MIB, 400, 1);
	int mnt = open(env_path("mnt0"), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	int src = open_file("src", 0);
	int dst[HANGING + FINE];
	for (unsigned i = 0; i < HANGING + FINE; i++) {
		char name[32];
		snprintf(name, sizeof name, "%sdst%u", i < HANGING ? "mnt0/" : "", i);
		dst[i] = open_file(name, flags);
		cr_assert(ftruncate(dst[i], 24 * MIB) == 0);
	}
	cr_assert(ioctl(mnt, FIFREEZE, 0) == 0);
	for (unsigned i = 0; i < HANGING; i++)
		start_in(lanes[0], &hanging[i], src, dst[i], 24 * MIB);
	turn_for(500, 0);
	uint64_t hung_bytes = 0;
	for (unsigned i = 0; i < HANGING; i++)
		hung_bytes += hanging[i].done_bytes;
	no_memory = true;
	start_in(lanes[1], &fine[0], src, dst[HANGING], 24 * MIB);
	turn_for(60000, HANGING);
	bool refused = running == HANGING && fine[0].op.err.errnum == ENOMEM;
	no_memory = false;
	for (unsigned i = 0; refused && i < FINE; i++)
		start_in(lanes[1], &fine[i], src, dst[HANGING + i], 24 * MIB);
	turn_for(60000, HANGING);
	bool all_fine = running == HANGING;
	/* Nothing that waits for it could be killed before. */
	cr_assert(ioctl(mnt, FITHAW, 0) == 0);
	cr_assert(hung_bytes == 0, "they did not hang");
	cr_assert(refused);
	cr_assert(all_fine);
	run();
	for (unsigned i = 0; i < HANGING + FINE; i++) {
		const struct copy *copy = i < HANGING ? &hanging[i] : &fine[i - HANGING];
		char name[32];
		snprintf(name, sizeof name, "%sdst%u", i < HANGING ? "mnt0/" : "", i);
		cr_assert(!op_failed(&copy->op), "%s", copy->op.err.message);
		cr_assert(same("src", name, 24 * MIB));
		close(dst[i]);
	}
	close(src);
	close(mnt);
	struct mnt_result result;
	cr_assert(env_unmount(env_path("mnt0"), &dev, true, &result) == 0, "%s", result.why);
	env_detach(&dev);
}

/* Direct writes are the ring's where it keeps them apart, buffered ones are jobs. */
Test(copy, one_lane_cannot_keep_all_buffers, .timeout = 120)
{
	ENV_NEEDS_LOOP();
	check_one_lane_hangs(O_DIRECT);
}

Test(copy, one_lane_cannot_keep_buffered_writes, .timeout = 120)
{
	ENV_NEEDS_LOOP();
	check_one_lane_hangs(0);
}

Test(copy, stop_ends_it)
{
	struct copy copy;
	fill("src", 64 * MIB, 400, 1);
	int src = open_file("src", 0), dst = open_file("dst", 0);
	cr_assert(ftruncate(dst, 64 * MIB) == 0);
	start(&copy, src, dst, 64 * MIB);
	while (copy.done_bytes == 0)
		cr_assert(ring_turn(reactor.ring, true) == 0);
	copy.stop = true;
	run();
	cr_assert(op_failed(&copy.op) && copy.op.err.errnum == ECANCELED);
	cr_assert(copy.done_bytes < 64 * MIB && copy.state == NULL);
	close(src);
	close(dst);
}

/* Without it a disk that cannot be asked without waiting answers EAGAIN for ever; such a disk needs
 * device mapper, where tests/power copies on one. */
Test(copy, the_ring_may_wait_for_src)
{
	struct copy copy;
	fill("src", MIB, 3, 1);
	int src = open_file("src", O_NONBLOCK), dst = open_file("dst", 0);
	cr_assert(fcntl(src, F_GETFL) & O_NONBLOCK);
	start(&copy, src, dst, MIB);
	run();
	cr_assert(copy.op.err.errnum == 0 && same("src", "dst", MIB));
	cr_assert(!(fcntl(src, F_GETFL) & O_NONBLOCK));
	close(src);
	close(dst);
}

Test(copy, failures_are_reported)
{
	struct copy copy;
	fill("src", 4 * MIB, 10, 1);
	int src = open_file("src", 0);
	int read_only = openat(env.dirfd, "src", O_RDONLY | O_CLOEXEC);
	start(&copy, src, read_only, 4 * MIB);
	run();
	cr_assert(copy.op.err.errnum == EBADF && copy.op.err.message[0] != '\0');
	start(&copy, src, -1, 4 * MIB);
	run();
	cr_assert(copy.op.err.errnum == EBADF);
	start(&copy, -1, src, 4 * MIB);
	run();
	cr_assert(copy.op.err.errnum == EBADF);
	start(&copy, src, read_only, UINT64_MAX);
	run();
	cr_assert(copy.op.err.errnum == EFBIG);
	start(&copy, src, read_only, (uint64_t)INT64_MAX - 4095);
	run();
	cr_assert(copy.op.err.errnum == EFBIG);
	close(src);
	close(read_only);
}

/* It is not taken for the end of the data. */
Test(copy, data_that_cannot_be_looked_for)
{
	struct copy copy;
	int ends[2], dst = open_file("dst", 0);
	cr_assert(pipe2(ends, O_CLOEXEC) == 0 && ftruncate(dst, MIB) == 0);
	start(&copy, ends[0], dst, MIB);
	run();
	cr_assert(copy.op.err.errnum == ESPIPE && copy.state == NULL);
	cr_assert_str_eq(copy.op.err.message, "copying an image: looking for data: Illegal seek");
	close(ends[0]);
	close(ends[1]);
	close(dst);
}

/* What a disk's file system had in its last block is not the image's. */
Test(copy, what_is_behind_the_end_of_src_is_zeros)
{
	struct copy copy;
	static uint8_t mem[4 * MIB], got[4096];
	int src = open_file("src", 0), dst = open_file("dst", 0);
	memset(mem, 0x5a, sizeof mem);
	/* All buffers have been used for other data. */
	for (unsigned i = 0; i < 12; i++)
		cr_assert(pwrite(src, mem, sizeof mem, (off_t)(i * sizeof mem)) == sizeof mem);
	cr_assert(ftruncate(dst, 48 * MIB) == 0);
	cr_assert(pwrite(src, "end", 3, 48 * MIB) == 3);
	start(&copy, src, dst, 52 * MIB);
	run();
	cr_assert(!op_failed(&copy.op), "%s", copy.op.err.message);
	ssize_t n = pread(dst, got, sizeof got, 48 * MIB);
	cr_assert(n >= 3 && memcmp(got, "end", 3) == 0);
	for (ssize_t i = 3; i < n; i++)
		cr_assert(got[i] == 0, "byte %zd", i);
	close(src);
	close(dst);
}

Test(copy, full_disk)
{
	ENV_NEEDS_LOOP();
	struct copy copy;
	env_fresh("img", FSIMG_EXT4, 16 * MIB, "mnt0");
	fill("src", 32 * MIB, 300, 1);
	int src = open_file("src", O_DIRECT), dst = open_file("mnt0/dst", O_DIRECT);
	cr_assert(ftruncate(dst, 32 * MIB) == 0);
	start(&copy, src, dst, 32 * MIB);
	run();
	cr_assert(copy.op.err.code == ERR_NO_ROOM, "%s", copy.op.err.message);
	close(src);
	close(dst);
}

/* All data is gone, what was a hole is one still, and nothing past the size was touched. */
static void check_zeros(uint64_t size, unsigned extents, unsigned seed, int flags)
{
	struct copy copy;
	unlinkat(env.dirfd, "src", 0);
	unlinkat(env.dirfd, "dst", 0);
	fill("dst", size, extents, seed);
	int src = open_file("src", 0), dst = open_file("dst", flags);
	cr_assert(ftruncate(src, (off_t)size) == 0);
	uint64_t before = allocated("dst");
	start(&copy, ZEROS, dst, size);
	run();
	cr_assert(!op_failed(&copy.op), "seed %u: %s", seed, copy.op.err.message);
	cr_assert(copy.looked_bytes == size && copy.done_bytes > 0 && copy.done_bytes <= size);
	struct stat st;
	cr_assert(fstat(dst, &st) == 0 && (uint64_t)st.st_size == size);
	cr_assert((fcntl(dst, F_GETFL) & O_DIRECT) == flags);
	close(src);
	close(dst);
	cr_assert(same("src", "dst", size), "seed %u size %llu", seed, (unsigned long long)size);
	cr_assert(allocated("dst") <= before + extents * 16 * KIB, "seed %u: holes were filled",
		seed);
}

Test(copy, zeros_over_data)
{
	unsigned seed = (unsigned)time(NULL);
	printf("seed %u\n", seed);
	for (unsigned i = 0; i < 4; i++) {
		check_zeros(24 * MIB, 3 + 20 * i, seed + i, 0);
		check_zeros(24 * MIB, 3 + 20 * i, seed + i, O_DIRECT);
	}
	check_zeros(3 * MIB + 4097, 9, seed, 0);
	check_zeros(3 * MIB + 4097, 9, seed, O_DIRECT);
}

/* Buffers that carried data for a copy must carry zeros for what follows, and the other way round.
 */
Test(copy, zeros_beside_copies)
{
	static struct copy copies[COPIES];
	int src, dst[COPIES];
	fill("src", 12 * MIB, 30, 7);
	src = open_file("src", 0);
	for (int i = 0; i < COPIES; i++) {
		char name[16];
		snprintf(name, sizeof name, "dst%d", i);
		if (i % 2 == 1)
			fill(name, 12 * MIB, 30, 8);
		dst[i] = open_file(name, 0);
		cr_assert(ftruncate(dst[i], 12 * MIB) == 0);
		start(&copies[i], i % 2 == 1 ? ZEROS : src, dst[i], 12 * MIB);
	}
	run();
	int empty = open_file("empty", 0);
	cr_assert(ftruncate(empty, 12 * MIB) == 0);
	for (int i = 0; i < COPIES; i++) {
		char name[16];
		snprintf(name, sizeof name, "dst%d", i);
		cr_assert(!op_failed(&copies[i].op), "%s", copies[i].op.err.message);
		cr_assert(same(i % 2 == 1 ? "empty" : "src", name, 12 * MIB), "%d", i);
		close(dst[i]);
	}
	close(empty);
	close(src);
}
