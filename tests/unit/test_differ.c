/* SPDX-License-Identifier: Apache-2.0 */
/* In what two images differ, by reading and by extents: each look against a model that compares
 * every block, at places that are known. */
#include "blockio/differ.h"
#include "blockio/fs_moves.h"
#include "blockio_env.h"

#include <criterion/criterion.h>
#include <linux/fs.h>

enum { K = 4096, MIB = 1 << 20, SIZE = 40 * MIB };

static struct differ d;
static struct extent_ranges got;
static unsigned looks;
static uint64_t differing; /* bytes of the ranges of all looks */

/* What a look is told instead; the linker puts these before our own and the C library's. */
static struct {
	bool on;
	const int *window; /* extents_window()'s result, and nothing differs */
	bool moves;
	unsigned reads, fails_at; /* the read that fails, from 1 on */
	size_t most;              /* that one read brings; every other one is interrupted */
	unsigned behind;          /* data begins so many bytes behind what lseek() says */
} told;

int __real_extents_window(struct extents_window *window, uint64_t from, uint64_t to,
	struct extent_ranges *ret, uint64_t *ret_to);
int __wrap_extents_window(struct extents_window *window, uint64_t from, uint64_t to,
	struct extent_ranges *ret, uint64_t *ret_to);
int __wrap_extents_window(struct extents_window *window, uint64_t from, uint64_t to,
	struct extent_ranges *ret, uint64_t *ret_to)
{
	if (told.window == NULL)
		return __real_extents_window(window, from, to, ret, ret_to);
	cr_assert_eq(window->base_fd, d.base_fd);
	cr_assert_eq(window->target_fd, d.target_fd);
	*ret_to = to;
	return *told.window;
}

bool __real_fs_moves(int fd, const char *dir, char *what);
bool __wrap_fs_moves(int fd, const char *dir, char *what);
bool __wrap_fs_moves(int fd, const char *dir, char *what)
{
	return told.moves || __real_fs_moves(fd, dir, what);
}

off_t __real_lseek64(int fd, off_t at, int whence);
off_t __wrap_lseek64(int fd, off_t at, int whence);
off_t __wrap_lseek64(int fd, off_t at, int whence)
{
	off_t r = __real_lseek64(fd, at, whence);
	return r >= 0 && told.on && whence == SEEK_DATA ? r + told.behind : r;
}

ssize_t __real_pread64(int fd, void *buf, size_t len, off_t at);
ssize_t __wrap_pread64(int fd, void *buf, size_t len, off_t at);
ssize_t __wrap_pread64(int fd, void *buf, size_t len, off_t at)
{
	if (!told.on)
		return __real_pread64(fd, buf, len, at);
	told.reads++;
	errno = told.reads == told.fails_at ? EIO : EINTR;
	if (told.reads == told.fails_at || (told.most > 0 && told.reads % 2 == 0))
		return -1;
	return __real_pread64(fd, buf, told.most > 0 && len > told.most ? told.most : len, at);
}

static void put(int fd, uint64_t at, size_t len, int byte)
{
	uint8_t *bytes = malloc(len);
	memset(bytes, byte, len);
	cr_assert_eq(pwrite(fd, bytes, len, (off_t)at), (ssize_t)len);
	free(bytes);
}

static void punch(int fd, uint64_t at, uint64_t len)
{
	cr_assert_eq(
		fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)at, (off_t)len),
		0);
}

static bool is_told(uint64_t at)
{
	for (unsigned i = 0; i < got.count; i++)
		if (at >= got.at[i].start && at < got.at[i].end)
			return true;
	return false;
}

static bool is_equal(uint64_t at)
{
	static uint8_t base[K], target[K];
	memset(base, 0, K);
	memset(target, 0, K);
	cr_assert_geq(pread(d.base_fd, base, K, (off_t)at), 0);
	cr_assert_geq(pread(d.target_fd, target, K, (off_t)at), 0);
	return memcmp(base, target, K) == 0;
}

/* One look at [from, to): in order, within it, and never less than the truth. */
static uint64_t look(uint64_t from, uint64_t to)
{
	uint64_t reached = 0, last = from;
	told.on = true;
	cr_assert_eq(differ_look(&d, from, to, &got, &reached), 0);
	told.on = false;
	looks++;
	cr_assert_gt(reached, from);
	cr_assert_leq(reached, to);
	cr_assert_eq(reached % K, 0);
	cr_assert_leq(got.count, EXTENT_RANGES_MAX);
	for (unsigned i = 0; i < got.count; i++) {
		cr_assert_geq(got.at[i].start, last);
		cr_assert_gt(got.at[i].end, got.at[i].start);
		cr_assert_eq(got.at[i].start % K + got.at[i].end % K, 0);
		last = got.at[i].end;
		differing += got.at[i].end - got.at[i].start;
	}
	cr_assert_leq(last, reached);
	for (uint64_t at = from; at < reached; at += K)
		cr_assert(is_told(at) || is_equal(at), "at %llu", (unsigned long long)at);
	return reached;
}

/* Bytes that are said to differ. */
static uint64_t look_at_all(uint64_t size)
{
	looks = 0;
	differing = 0;
	for (uint64_t at = 0; at < size;)
		at = look(at, size);
	return differing;
}

static void open_differ(int base, int target, bool shares)
{
	d = (struct differ){.base_fd = base, .target_fd = target, .shares = shares};
	cr_assert_eq(differ_open(&d), 0);
}

static void close_differ(void)
{
	differ_close(&d);
	differ_close(&d);
	close(d.base_fd);
	close(d.target_fd);
}

/* ---- by reading ---- */

static void open_files(uint64_t base, uint64_t target)
{
	env_open();
	open_differ(env_file("base", base), env_file("target", target), false);
}

static void close_files(void)
{
	close_differ();
	env_close();
}

Test(differ, holes_are_zeros)
{
	open_files(SIZE, SIZE);
	cr_assert_eq(look_at_all(SIZE), 0);
	cr_assert_eq(looks, 1, "nothing is read of two holes");
	put(d.base_fd, 3 * MIB, MIB, 0);
	put(d.target_fd, 9 * MIB, MIB, 0);
	cr_assert_eq(look_at_all(SIZE), 0);
	put(d.base_fd, 20 * MIB, MIB, 1);
	cr_assert_eq(look_at_all(SIZE), MIB, "what became a hole");
	put(d.target_fd, 30 * MIB, MIB, 1);
	cr_assert_eq(look_at_all(SIZE), 2 * MIB, "what was a hole");
	close_files();
}

/* A byte, at the ends of grains, blocks and the image. */
Test(differ, one_byte_is_a_grain)
{
	static const uint64_t places[] = {0, DIFFER_GRAIN_BYTES - 1, DIFFER_GRAIN_BYTES,
		DIFFER_BLOCK_BYTES - 1, DIFFER_BLOCK_BYTES, DIFFER_READ_BYTES - 1,
		DIFFER_READ_BYTES, 2 * DIFFER_READ_BYTES - 1, SIZE - 1};
	open_files(SIZE, SIZE);
	put(d.base_fd, 0, SIZE, 7);
	put(d.target_fd, 0, SIZE, 7);
	cr_assert_eq(look_at_all(SIZE), 0);
	cr_assert_eq(looks, 3, "so much is read at once");
	for (unsigned i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
		put(d.target_fd, places[i], 1, 8);
		cr_assert_eq(look_at_all(SIZE), DIFFER_GRAIN_BYTES, "at %llu",
			(unsigned long long)places[i]);
		put(d.target_fd, places[i], 1, 7);
	}
	close_files();
}

Test(differ, looks_end_where_they_are_told_to)
{
	open_files(SIZE, SIZE);
	put(d.target_fd, 0, SIZE, 1);
	cr_assert_eq(look(K, 3 * K), 3 * K);
	cr_assert_eq(got.count, 1);
	cr_assert_eq(got.at[0].start, K);
	cr_assert_eq(got.at[0].end, 3 * K);
	cr_assert_eq(look(SIZE - K, SIZE), SIZE);
	cr_assert_eq(look(0, SIZE), DIFFER_READ_BYTES);
	/* Data behind the end of a look is not part of it. */
	punch(d.target_fd, 0, 10 * MIB);
	cr_assert_eq(look(0, 10 * MIB), 10 * MIB);
	cr_assert_eq(got.count, 0);
	put(d.base_fd, 30 * MIB, MIB, 1);
	cr_assert_eq(look(0, 9 * MIB), 9 * MIB);
	cr_assert_eq(got.count, 0);
	close_files();
}

/* An image that has grown: its older copy has zeros there. */
Test(differ, behind_the_end_there_are_zeros)
{
	open_files(10 * MIB + K, SIZE);
	put(d.target_fd, 10 * MIB, 2 * K, 0);
	cr_assert_eq(look_at_all(SIZE), 0);
	put(d.target_fd, SIZE - K, K, 9);
	cr_assert_eq(look_at_all(SIZE), K);
	put(d.base_fd, 10 * MIB, K, 9);
	cr_assert_eq(look_at_all(SIZE), DIFFER_GRAIN_BYTES + K);
	close_files();
}

/* Every second grain: more ranges than one look has. */
Test(differ, many_ranges)
{
	open_files(SIZE, SIZE);
	for (uint64_t at = 0; at < SIZE; at += 2 * DIFFER_GRAIN_BYTES)
		put(d.target_fd, at + DIFFER_GRAIN_BYTES - 1, 1, 1);
	cr_assert_eq(look_at_all(SIZE), SIZE / 2);
	cr_assert_eq(looks, 3);
	close_files();
}

Test(differ, any_places)
{
	unsigned seed = 1;
	open_files(SIZE, SIZE);
	for (unsigned i = 0; i < 40; i++) {
		int fd = i % 2 == 0 ? d.base_fd : d.target_fd;
		uint64_t at = (uint64_t)rand_r(&seed) % (SIZE - MIB);
		if (i % 5 == 4)
			punch(fd, at, (uint64_t)rand_r(&seed) % MIB + 1);
		else
			put(fd, at, (size_t)rand_r(&seed) % MIB + 1, rand_r(&seed) % 3);
		look_at_all(SIZE);
	}
	close_files();
}

Test(differ, errors_are_told)
{
	uint64_t to;
	open_files(MIB, MIB);
	put(d.base_fd, 0, K, 1);
	int fd = d.target_fd;
	d.target_fd = -1;
	cr_assert_eq(differ_look(&d, 0, MIB, &got, &to), -EBADF);
	d.target_fd = openat(env.dirfd, "target", O_WRONLY | O_CLOEXEC);
	cr_assert_eq(differ_look(&d, 0, MIB, &got, &to), -EBADF);
	close(d.target_fd);
	d.target_fd = fd;
	fd = d.base_fd;
	d.base_fd = -1;
	cr_assert_eq(differ_look(&d, 0, MIB, &got, &to), -EBADF);
	d.base_fd = fd;
	close_files();
}

/* The first read of either that fails, whichever it is. */
Test(differ, a_read_that_fails_is_told)
{
	uint64_t to;
	open_files(MIB, MIB);
	put(d.base_fd, 0, MIB, 1);
	put(d.target_fd, 0, MIB, 2);
	told.on = true;
	for (unsigned nth = 1; nth <= 2 * MIB / DIFFER_BLOCK_BYTES; nth++) {
		told.reads = 0;
		told.fails_at = nth;
		cr_assert_eq(differ_look(&d, 0, MIB, &got, &to), -EIO, "read %u", nth);
		cr_assert_eq(told.reads, nth);
	}
	close_files();
}

Test(differ, a_read_that_is_cut_short_or_interrupted_goes_on)
{
	open_files(MIB, MIB - 100);
	put(d.base_fd, 0, MIB - 100, 3);
	put(d.target_fd, 0, MIB - 100, 3);
	told.most = 5000;
	cr_assert_eq(look_at_all(MIB), 0);
	put(d.target_fd, DIFFER_BLOCK_BYTES + 6000, 1, 4);
	put(d.target_fd, MIB - 101, 1, 4);
	cr_assert_eq(look_at_all(MIB), 2 * DIFFER_GRAIN_BYTES);
	cr_assert_gt(told.reads, 2 * MIB / 5000);
	close_files();
}

/* As on a file system of small blocks: what is said is of whole ones of ours. */
Test(differ, data_may_begin_anywhere)
{
	open_files(MIB, MIB);
	put(d.target_fd, 8 * K + 1024, 1, 1);
	told.behind = 1024;
	cr_assert_eq(look(0, MIB), MIB);
	cr_assert_eq(got.count, 1);
	cr_assert_eq(got.at[0].start, 8 * K);
	close_files();
}

/* Where their extents say nothing just now. What went wrong otherwise is told. */
Test(differ, what_cannot_be_compared_is_read)
{
	static const struct {
		int window;
		bool moves;
		int res;
		unsigned count;
	} cases[] = {
		{0, false, 0, 0},
		{0, true, 0, 1},
		{-EAGAIN, false, 0, 1},
		{-EOPNOTSUPP, false, 0, 1},
		{-EIO, false, -EIO, 0},
		{-EIO, true, -EIO, 0},
	};
	env_open();
	open_differ(env_file("base", MIB), env_file("target", MIB), true);
	put(d.target_fd, 3 * K, 1, 1);
	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		uint64_t to = 0;
		told.window = &cases[i].window;
		told.moves = cases[i].moves;
		got.count = 77;
		cr_assert_eq(differ_look(&d, 0, MIB, &got, &to), cases[i].res, "case %u", i);
		cr_assert_eq(got.count, cases[i].count, "case %u", i);
		cr_assert(cases[i].res < 0 || to == MIB);
	}
	close_files();
}

/* ---- by extents ---- */

static struct lodev disk;

/* On a file system that shares: the target is a clone of the base, as a volume is of its image. */
static void open_clone(void)
{
	ENV_NEEDS_LOOP();
	env_open();
	disk = env_fresh("disk", FSIMG_XFS, 400 * (uint64_t)MIB, "mnt0");
	int base = env_file("mnt0/base", SIZE), target = env_file("mnt0/target", SIZE);
	put(base, 0, SIZE / 2, 5);
	if (ioctl(target, FICLONE, base) < 0)
		cr_skip("mkfs.xfs makes no file system that shares extents");
	open_differ(base, target, true);
}

static void close_clone(void)
{
	struct mnt_result result;
	close_differ();
	cr_assert_eq(env_unmount(env_path("mnt0"), &disk, false, &result), 0);
	env_detach(&disk);
	env_close();
}

Test(differ, by_extents)
{
	open_clone();
	cr_assert_eq(look_at_all(SIZE), 0);
	cr_assert_eq(looks, 1, "nothing is read");
	put(d.target_fd, 3 * K, 1, 6);
	cr_assert_eq(look_at_all(SIZE), K, "a block, and no grain");
	put(d.target_fd, 8 * K, K, 5);
	cr_assert_eq(look_at_all(SIZE), 2 * K, "it lies elsewhere: it is not said to be equal");
	punch(d.target_fd, MIB, 4 * K);
	cr_assert_eq(look_at_all(SIZE), 6 * K, "what became a hole");
	put(d.target_fd, SIZE - K, K, 6);
	cr_assert_eq(look_at_all(SIZE), 7 * K, "what was a hole");
	cr_assert_eq(fallocate(d.target_fd, 0, 30 * MIB, MIB), 0);
	cr_assert_eq(look_at_all(SIZE), 7 * K, "what was never written reads as zeros");
	d.shares = false;
	cr_assert_eq(look_at_all(SIZE), 2 * DIFFER_GRAIN_BYTES + K,
		"by reading: what is the same in two places is equal");
	close_clone();
}

/* More of them than a map takes. */
Test(differ, more_extents_than_fit)
{
	enum { BLOCKS = SIZE / 2 / (2 * K) };
	open_clone();
	for (unsigned i = 0; i < BLOCKS; i++)
		put(d.target_fd, i * 2 * (uint64_t)K, K, 6);
	cr_assert_eq(look_at_all(SIZE), BLOCKS * (uint64_t)K);
	cr_assert_gt(looks, BLOCKS / EXTENTS_MAX);
	close_clone();
}
