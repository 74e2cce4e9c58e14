/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the kernel is asked for when images are trimmed, hinted at, grown and looked at, and what
 * its answers become. Its calls are the test's own (the linker puts them there): they say what a
 * file system would, and they fail.
 */
#include "blockio/extents.h"
#include "blockio/fs_moves.h"
#include "blockio/image.h"
#include "blockio/trim.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/btrfs.h>
#include <linux/falloc.h>
#include <linux/fiemap.h>
#include <linux/fs.h>
#include <linux/fsmap.h>
#include <linux/magic.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

enum {
	K = 4096,
	MIB = 1 << 20,
	EXTENTS = 1100,
	FD = 77, /* which nobody asks the kernel about */
	BLOCK_BYTES = 16384,
	KEPT_FLAG = FS_XFLAG_NOATIME,
	DEV = 8 << 8 | 1,
};
#define GIB (1ULL << 30)

enum call {
	NOTHING,
	MAP,
	PUNCH,
	SYNC,
	TRIM,
	GET_HINT,
	SET_HINT,
	SEEK_TO_DATA,
	SEEK_TO_HOLE,
	CLONE,
	INFO,
	STATFS,
	STAT,
	SPACE,
	CALLS,
};

static struct {
	char said[1024]; /* what was asked for, in order */
	unsigned calls[CALLS];
	enum call fails;
	unsigned nth; /* so many of them go well first */
	unsigned times;
	int with;
	struct fiemap_extent extents[EXTENTS]; /* of the file */
	unsigned count, mapped;
	uint64_t asked_to; /* of the last map */
	long fs_type;
	struct fsxattr hint;
	uint64_t data_from, data_to; /* the one extent that lseek() knows */
	uint32_t statx_mask, statx_align;
	struct fsmap space[8]; /* of the disk */
	unsigned space_count;
	uint64_t taken[8]; /* what each FITRIM says that it discards; the last one stays */
	unsigned slept_ms;
	const char *granularity; /* of a partition's disk */
} k;

static void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void say(const char *format, ...)
{
	size_t at = strlen(k.said);
	va_list ap;
	va_start(ap, format);
	vsnprintf(k.said + at, sizeof(k.said) - at, format, ap);
	va_end(ap);
}

static void forget(void)
{
	k.said[0] = '\0';
	memset(k.calls, 0, sizeof(k.calls));
}

static void fail(enum call call, unsigned nth, int with)
{
	forget();
	k.fails = call;
	k.nth = nth;
	k.times = 1;
	k.with = with;
}

/* 0, or -1 and errno. */
static int answer(enum call call)
{
	unsigned n = k.calls[call]++;
	if (call != k.fails || n < k.nth || n >= k.nth + k.times)
		return 0;
	errno = k.with;
	return -1;
}

int __wrap_ioctl(int fd, unsigned long request, ...);
int __wrap_fallocate64(int fd, int mode, off_t at, off_t len);
int __wrap_fsync(int fd);
int __wrap_fstatfs64(int fd, struct statfs *ret);
int __wrap_fstat64(int fd, struct stat *ret);
ssize_t __wrap_fd_read_file(int dirfd, const char *path, char *buf, size_t cap);
int __real_fstat64(int fd, struct stat *ret);
ssize_t __real_fd_read_file(int dirfd, const char *path, char *buf, size_t cap);
void __wrap_clock_sleep_ms(unsigned ms);
off_t __wrap_lseek64(int fd, off_t at, int whence);
long __wrap_syscall(long number, ...);

static int map_extents(struct fiemap *map)
{
	uint64_t from = map->fm_start, to = from + map->fm_length;
	if (answer(MAP) < 0)
		return -1;
	cr_assert_eq(map->fm_flags, FIEMAP_FLAG_SYNC, "what waits to be written counts");
	map->fm_mapped_extents = 0;
	k.asked_to = to;
	for (unsigned i = 0; i < k.count && map->fm_mapped_extents < map->fm_extent_count; i++)
		if (k.extents[i].fe_logical < to &&
			k.extents[i].fe_logical + k.extents[i].fe_length > from)
			map->fm_extents[map->fm_mapped_extents++] = k.extents[i];
	if (k.mapped > 0)
		map->fm_mapped_extents = k.mapped;
	return 0;
}

/* One record at a time, from where the one before has ended. */
static int map_space(struct fsmap_head *head)
{
	uint64_t from = head->fmh_keys[0].fmr_physical + head->fmh_keys[0].fmr_length;
	cr_assert_eq(head->fmh_keys[0].fmr_device, DEV);
	cr_assert_eq(head->fmh_keys[1].fmr_device, DEV);
	if (answer(SPACE) < 0)
		return -1;
	head->fmh_entries = 0;
	for (unsigned i = 0; i < k.space_count && head->fmh_entries == 0; i++)
		if (k.space[i].fmr_physical >= from ||
			(head->fmh_keys[0].fmr_length == 0 &&
				k.space[i].fmr_physical + k.space[i].fmr_length > from))
			head->fmh_recs[head->fmh_entries++] = k.space[i];
	return 0;
}

int __wrap_ioctl(int fd, unsigned long request, ...)
{
	va_list ap;
	va_start(ap, request);
	void *arg = va_arg(ap, void *);
	va_end(ap);
	cr_assert_eq(fd, FD);
	if (request == FS_IOC_FIEMAP)
		return map_extents(arg);
	if (request == FITRIM) {
		struct fstrim_range *range = arg;
		say("trim %llu+%llu;", (unsigned long long)range->start,
			(unsigned long long)range->len);
		unsigned nth = k.calls[TRIM] < 7 ? k.calls[TRIM] : 7;
		range->len = k.taken[nth];
		return answer(TRIM);
	}
	if (request == FS_IOC_GETFSMAP)
		return map_space(arg);
	if (request == FS_IOC_FSGETXATTR) {
		*(struct fsxattr *)arg = k.hint;
		return answer(GET_HINT);
	}
	if (request == FS_IOC_FSSETXATTR) {
		const struct fsxattr *hint = arg;
		say("hint %x %u %u;", hint->fsx_xflags, hint->fsx_extsize, hint->fsx_cowextsize);
		return answer(SET_HINT);
	}
	if (request == FICLONE)
		return answer(CLONE);
	cr_assert_eq(request, BTRFS_IOC_FS_INFO);
	for (uint8_t i = 0; i < 16; i++)
		((struct btrfs_ioctl_fs_info_args *)arg)->fsid[i] = (uint8_t)(0xf0 - i);
	return answer(INFO);
}

int __wrap_fallocate64(int fd, int mode, off_t at, off_t len)
{
	cr_assert_eq(mode & ~FALLOC_FL_KEEP_SIZE, mode != 0 ? FALLOC_FL_PUNCH_HOLE : 0);
	cr_assert(mode == 0 || fd == FD);
	say("%s %lld+%lld;", mode != 0 ? "punch" : "allocate", (long long)at, (long long)len);
	return answer(PUNCH);
}

int __wrap_fsync(int fd)
{
	cr_assert_eq(fd, FD);
	say("sync;");
	return answer(SYNC);
}

int __wrap_fstatfs64(int fd, struct statfs *ret)
{
	cr_assert_eq(fd, FD);
	*ret = (struct statfs){.f_type = k.fs_type, .f_bsize = BLOCK_BYTES};
	return answer(STATFS);
}

int __wrap_fstat64(int fd, struct stat *ret)
{
	if (fd != FD)
		return __real_fstat64(fd, ret);
	*ret = (struct stat){.st_dev = DEV};
	return answer(STAT);
}

ssize_t __wrap_fd_read_file(int dirfd, const char *path, char *buf, size_t cap)
{
	if (strncmp(path, "/sys/dev/block/", 15) != 0)
		return __real_fd_read_file(dirfd, path, buf, cap);
	return k.granularity == NULL || strcmp(path, "/sys/dev/block/8:1/../queue/"
						     "discard_granularity") != 0
		       ? -ENOENT
		       : snprintf(buf, cap, "%s\n", k.granularity);
}

void __wrap_clock_sleep_ms(unsigned ms)
{
	k.slept_ms += ms;
}

off_t __wrap_lseek64(int fd, off_t at, int whence)
{
	cr_assert_eq(fd, FD);
	if (answer(whence == SEEK_DATA ? SEEK_TO_DATA : SEEK_TO_HOLE) < 0)
		return -1;
	if (whence == SEEK_HOLE)
		return (uint64_t)at < k.data_to ? (off_t)k.data_to : at;
	if ((uint64_t)at < k.data_to)
		return (uint64_t)at < k.data_from ? (off_t)k.data_from : at;
	errno = ENXIO;
	return -1;
}

/* statx() alone. */
long __wrap_syscall(long number, ...)
{
	va_list ap;
	va_start(ap, number);
	int fd = va_arg(ap, int);
	const char *path = va_arg(ap, const char *);
	(void)va_arg(ap, int);
	(void)va_arg(ap, unsigned);
	uint8_t *ret = va_arg(ap, uint8_t *);
	va_end(ap);
	cr_assert(number == SYS_statx && fd == FD && path[0] == '\0');
	memcpy(ret, &k.statx_mask, sizeof(k.statx_mask));
	memcpy(ret + 156, &k.statx_align, sizeof(k.statx_align));
	return 0;
}

static void add_extent(uint64_t at, uint64_t bytes, uint64_t place, uint32_t flags)
{
	k.extents[k.count++] = (struct fiemap_extent){
		.fe_logical = at, .fe_length = bytes, .fe_physical = place, .fe_flags = flags};
}

/* ---- pieces of a file that goes ---- */

static struct trim_asked asked;

static int punch_at(uint64_t *at, uint64_t size)
{
	return trim_punch(FD, at, size, &asked);
}

/* In order of their places; what is widened so that it meets is one, and goes as far as any. */
Test(trim_calls, places_are_discarded_once_the_punch_is_durable)
{
	uint64_t at = 0;
	add_extent(0, 4 * MIB, 40ULL * MIB, 0);
	add_extent(4 * MIB, MIB, 41ULL * MIB, 0);     /* within the one before */
	add_extent(5 * MIB, 2 * MIB, MIB / 2, 0);     /* at the disk's beginning */
	add_extent(8 * MIB, MIB, 46ULL * MIB, 0);     /* meets the first, widened */
	add_extent(9 * MIB, MIB, 49ULL * MIB + K, 0); /* does not by a block */
	add_extent(10 * MIB, MIB, 20ULL * MIB, 0);    /* further in front */
	cr_assert_eq(punch_at(&at, 16 * MIB), 0);
	cr_assert_eq(at, 16 * MIB);
	char want[256];
	snprintf(want, sizeof(want), "punch 0+%d;sync;trim 0+%d;trim %d+%d;trim %d+%d;trim %d+%d;",
		16 * MIB, 3 * MIB + MIB / 2, 19 * MIB, 3 * MIB, 39 * MIB, 9 * MIB, 48 * MIB + K,
		3 * MIB);
	cr_assert_str_eq(k.said, want);
}

Test(trim_calls, what_is_nowhere_is_left_alone)
{
	static const uint32_t flags[] = {FIEMAP_EXTENT_UNKNOWN, FIEMAP_EXTENT_DELALLOC,
		FIEMAP_EXTENT_ENCODED, FIEMAP_EXTENT_NOT_ALIGNED, FIEMAP_EXTENT_DATA_INLINE};
	uint64_t at = K;
	for (unsigned i = 0; i < sizeof(flags) / sizeof(flags[0]); i++)
		add_extent(i * MIB, MIB, 100ULL * MIB, flags[i]);
	cr_assert_eq(punch_at(&at, 16 * MIB), 0);
	cr_assert_str_eq(k.said, "", "nothing is punched, and nothing synced");
	cr_assert_eq(at, 16 * MIB);
	add_extent(8 * MIB, MIB, 10ULL * MIB, FIEMAP_EXTENT_SHARED);
	at = K;
	cr_assert_eq(punch_at(&at, 16 * MIB), 0);
	char want[128];
	snprintf(want, sizeof(want), "punch %d+%d;sync;trim %d+%d;", K, 16 * MIB - K, 9 * MIB,
		3 * MIB);
	cr_assert_str_eq(k.said, want);
}

/* A piece is 1 GiB, or less where there are more extents than one look has. */
Test(trim_calls, pieces_have_an_end)
{
	uint64_t at = 0;
	add_extent(GIB - K, 2 * K, 0, 0);
	cr_assert_eq(punch_at(&at, GIB + 3 * K), 0);
	cr_assert_eq(at, GIB);
	cr_assert_eq(punch_at(&at, GIB + 3 * K), 0);
	cr_assert_eq(at, GIB + 3 * K);
	cr_assert_str_eq(k.said, "punch 0+1073741824;sync;trim 0+1056768;"
				 "punch 1073741824+12288;sync;trim 0+1056768;");
	forget();
	k.count = 0;
	for (unsigned i = 0; i < EXTENTS; i++)
		add_extent(2ULL * i * K, K, 2ULL * i * K, 0);
	at = 0;
	cr_assert_eq(punch_at(&at, GIB), 0);
	cr_assert_eq(at, (2ULL * 1023 + 1) * K, "behind the last that was seen");
	cr_assert_str_eq(k.said, "punch 0+8384512;sync;trim 0+9433088;");
	forget();
	cr_assert_eq(punch_at(&at, GIB), 0);
	cr_assert_eq(at, GIB);
	cr_assert_str_eq(k.said, "punch 8384512+1065357312;sync;trim 7340032+2715648;");
}

/* The last one of a full look may go on behind the piece. */
Test(trim_calls, a_piece_of_many_extents_ends_no_later_than_others)
{
	uint64_t at = 0;
	for (unsigned i = 0; i < 1024; i++)
		add_extent(1ULL * i * K, K, 0, 0);
	k.extents[1023].fe_length = 4 * GIB;
	cr_assert_eq(punch_at(&at, 8 * GIB), 0);
	cr_assert_eq(at, GIB);
}

Test(trim_calls, a_piece_that_fails_is_not_passed)
{
	static const struct {
		enum call call;
		int with, res;
		bool passed; /* what was punched is not punched again */
		const char *said;
	} cases[] = {
		{MAP, EOPNOTSUPP, -EOPNOTSUPP, false, ""},
		{PUNCH, EIO, -EIO, false, "punch 0+4096;"},
		{SYNC, EIO, -EIO, false, "punch 0+4096;sync;"},
		{TRIM, EIO, -EIO, true, "punch 0+4096;sync;trim 0+1052672;"},
		{TRIM, EOPNOTSUPP, -EOPNOTSUPP, true, "punch 0+4096;sync;trim 0+1052672;"},
		{TRIM, ENOTTY, -EOPNOTSUPP, true, "punch 0+4096;sync;trim 0+1052672;"},
		/* The file system ends before that place. */
		{TRIM, EINVAL, 0, true,
			"punch 0+4096;sync;trim 0+1052672;trim 1072693248+2101248;"},
	};
	add_extent(0, K, 0, 0);
	add_extent(0, K, GIB, 0);
	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		uint64_t at = 0;
		fail(cases[i].call, 0, cases[i].with);
		cr_assert_eq(punch_at(&at, K), cases[i].res, "case %u", i);
		cr_assert_eq(at, cases[i].passed ? K : 0, "case %u", i);
		cr_assert_str_eq(k.said, cases[i].said, "case %u", i);
	}
}

/* ---- the disk below ---- */

Test(trim_calls, what_a_refusal_says_of_the_disk)
{
	static const struct {
		int with, probe, disk;
		bool takes_discards, is_end;
	} cases[] = {
		{0, 0, 0, true, false},
		{EINVAL, 0, 0, true, true},
		{EOPNOTSUPP, 0, -EOPNOTSUPP, false, true},
		{ENOTTY, 0, -EOPNOTSUPP, false, true},
		{EPERM, 0, -EPERM, false, false},
		{EIO, -EIO, -EIO, true, false},
	};
	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		uint64_t at = 32 * GIB;
		bool takes = cases[i].with == EIO || !cases[i].takes_discards;
		fail(cases[i].with != 0 ? TRIM : NOTHING, 0, cases[i].with);
		cr_assert_eq(trim_probe(FD, &takes), cases[i].probe, "case %u", i);
		cr_assert_eq(takes, cases[i].takes_discards, "case %u", i);
		cr_assert_str_eq(k.said, "trim 0+0;");
		forget();
		cr_assert_eq(trim_disk(FD, &at, &asked), cases[i].disk, "case %u", i);
		cr_assert_eq(at, cases[i].is_end ? UINT64_MAX : 48 * GIB, "case %u", i);
		cr_assert_str_eq(k.said, "trim 34359738368+17179869184;");
	}
}

Test(trim_calls, a_btrfs_is_trimmed_at_once)
{
	uint64_t at = 0;
	k.fs_type = BTRFS_SUPER_MAGIC;
	cr_assert_eq(trim_disk(FD, &at, &asked), 0);
	cr_assert_eq(at, UINT64_MAX);
	cr_assert_str_eq(k.said, "trim 0+18446744073709551615;");
	at = 0;
	fail(TRIM, 0, EIO);
	cr_assert_eq(trim_disk(FD, &at, &asked), -EIO);
	at = 0;
	fail(STATFS, 0, EIO);
	cr_assert_eq(trim_disk(FD, &at, &asked), 0);
	cr_assert_eq(at, 16 * GIB, "what it is was not told");
}

/* ---- a file system that only asks (XFS) ---- */

static void add_space(uint64_t at, uint64_t bytes, uint64_t owner)
{
	if (k.space_count > 0)
		k.space[k.space_count - 1].fmr_flags &= ~(uint32_t)FMR_OF_LAST;
	k.space[k.space_count++] = (struct fsmap){.fmr_device = DEV,
		.fmr_flags = FMR_OF_SPECIAL_OWNER | FMR_OF_LAST,
		.fmr_physical = at,
		.fmr_owner = owner,
		.fmr_length = bytes};
}

/* Of the 3 MiB around an extent 1.5 are free, in two places; the others are somebody's. */
static void open_xfs(void)
{
	k.fs_type = XFS_SUPER_MAGIC;
	k.count = k.space_count = 0;
	add_extent(0, MIB, 9ULL * MIB, 0);
	add_space(0, 8 * MIB + MIB / 2, FMR_OWN_FREE); /* half a MiB of the place */
	add_space(8 * MIB + MIB / 2, MIB / 2, FMR_OWN_UNKNOWN);
	add_space(9ULL * MIB, MIB, FMR_OWN_FREE);
	add_space(10ULL * MIB, MIB / 2, FMR_OWN_UNKNOWN);
	add_space(10ULL * MIB + MIB / 2, MIB / 4, FMR_OWN_FREE); /* a file of that number */
	add_space(10ULL * MIB + MIB / 4 * 3, MIB / 4, FMR_OWN_UNKNOWN);
	k.space[4].fmr_flags = 0;
}

static void expect_settled_after(unsigned rounds)
{
	uint64_t at = 0;
	cr_assert_eq(punch_at(&at, MIB), 0);
	cr_assert_eq(asked.count, 1);
	for (unsigned i = 1; i < rounds; i++) {
		cr_assert_eq(trim_settle(FD, &asked), 0, "round %u", i);
		cr_assert_eq(asked.count, 1);
	}
	cr_assert_eq(trim_settle(FD, &asked), 1);
	cr_assert_eq(asked.count, 0);
	cr_assert_null(asked.places);
	cr_assert_eq(k.calls[TRIM], rounds + 1);
	cr_assert_gt(k.slept_ms, 0);
}

static void take(const uint64_t *bytes, unsigned count)
{
	for (unsigned i = 0; i < 8; i++)
		k.taken[i] = bytes[i < count ? i : count - 1];
}

/* Each place is done for itself. The last one lies behind the end, where nothing is asked for. */
Test(trim_calls, of_two_places_one_is_done_earlier)
{
	uint64_t at = 0;
	open_xfs();
	add_extent(MIB, MIB, 30ULL * MIB, 0);
	add_extent(2 * MIB, MIB, 60ULL * MIB, 0);
	add_space(20ULL * MIB, 20ULL * MIB, FMR_OWN_FREE);
	/* The second one is under way in its second pass. */
	take((const uint64_t[]){2 * MIB, 3 * MIB, 0, 2 * MIB, 0, 3 * MIB}, 6);
	fail(TRIM, 2, EINVAL);
	cr_assert_eq(punch_at(&at, 3 * MIB), 0);
	cr_assert_eq(asked.count, 2);
	cr_assert_eq(trim_settle(FD, &asked), 0);
	cr_assert_eq(asked.count, 1);
	forget();
	take((const uint64_t[]){3 * MIB}, 1);
	cr_assert_eq(trim_settle(FD, &asked), 1);
	char want[64];
	snprintf(want, sizeof(want), "trim %d+%d;", 29 * MIB, 3 * MIB);
	cr_assert_str_eq(k.said, want, "%s", k.said);
}

/* The second pass that takes all that is free says that the first one's discards are over. */
Test(trim_calls, xfs_is_asked_until_it_has_taken_all_that_is_free_twice)
{
	open_xfs();
	take((const uint64_t[]){MIB + MIB / 2}, 1);
	expect_settled_after(1);
	cr_assert_str_eq(k.said, "punch 0+1048576;sync;trim 8388608+3145728;trim 8388608+3145728;");
}

/* What is being discarded is passed over. */
Test(trim_calls, xfs_is_asked_again_for_what_it_passed_over)
{
	open_xfs();
	take((const uint64_t[]){MIB + MIB / 2, MIB / 2, MIB + MIB / 2 - 1, MIB + MIB / 2}, 4);
	expect_settled_after(3);
}

Test(trim_calls, a_first_pass_that_was_not_whole_does_not_count)
{
	open_xfs();
	take((const uint64_t[]){0, 2 * MIB}, 2);
	expect_settled_after(2);
}

/* A disk with larger units is not asked for less than one. */
Test(trim_calls, what_is_less_than_the_disks_unit_is_not_waited_for)
{
	open_xfs();
	k.granularity = "1048576";
	take((const uint64_t[]){MIB}, 1);
	expect_settled_after(1);
	open_xfs();
	forget();
	k.granularity = "524288";
	take((const uint64_t[]){MIB, MIB + MIB / 2}, 2);
	expect_settled_after(2);
}

Test(trim_calls, where_what_is_free_is_not_told_two_passes_do)
{
	static const enum call calls[] = {SPACE, STAT};
	open_xfs();
	take((const uint64_t[]){0}, 1);
	for (unsigned i = 0; i < 2; i++) {
		fail(calls[i], 0, EOPNOTSUPP);
		k.times = 100;
		expect_settled_after(1);
	}
}

/* Somebody takes what was free, again and again. */
Test(trim_calls, nobody_waits_for_ever)
{
	open_xfs();
	take((const uint64_t[]){MIB}, 1);
	/* 10, 10, 20, 40, 80, 160, 320, and then 640 each time. */
	expect_settled_after(7 + 15);
	cr_assert_eq(k.slept_ms, 640 + 15 * 640);
}

Test(trim_calls, a_later_pass_may_fail)
{
	uint64_t at = 0;
	open_xfs();
	fail(TRIM, 1, EIO);
	cr_assert_eq(punch_at(&at, MIB), 0);
	cr_assert_eq(trim_settle(FD, &asked), -EIO);
	cr_assert_eq(asked.count, 1);
	trim_asked_clear(&asked);
	cr_assert_eq(trim_settle(FD, &asked), 1, "there is nothing to wait for");
	/* The file system was made smaller. */
	at = 0;
	fail(TRIM, 1, EINVAL);
	cr_assert_eq(punch_at(&at, MIB), 0);
	cr_assert_eq(trim_settle(FD, &asked), 1);
}

Test(trim_calls, the_disk_is_waited_for_as_well)
{
	uint64_t at = 0;
	open_xfs();
	take((const uint64_t[]){MIB, 10 * MIB}, 2);
	cr_assert_eq(trim_disk(FD, &at, &asked), 0);
	cr_assert_eq(at, 16 * GIB);
	cr_assert_eq(trim_settle(FD, &asked), 0);
	cr_assert_eq(trim_settle(FD, &asked), 1);
	at = 32 * GIB;
	fail(TRIM, 0, EINVAL);
	cr_assert_eq(trim_disk(FD, &at, &asked), 0);
	cr_assert_eq(at, UINT64_MAX);
	cr_assert_eq(asked.count, 0);
}

/* ---- an image ---- */

Test(image_calls, long_extents_are_asked_for_where_large_images_are)
{
	static const struct {
		uint64_t bytes;
		unsigned extent;
	} sizes[] = {{0, 64 << 10}, {8 * GIB - 1, 64 << 10}, {8 * GIB, MIB}, {100 * GIB, MIB}};
	char want[64];
	k.hint.fsx_xflags = KEPT_FLAG;
	for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		forget();
		cr_assert_eq(image_hint_for_size(FD, sizes[i].bytes), 0);
		snprintf(want, sizeof(want), "hint %x %u %u;",
			KEPT_FLAG | FS_XFLAG_EXTSIZE | FS_XFLAG_COWEXTSIZE, sizes[i].extent,
			sizes[i].extent);
		cr_assert_str_eq(k.said, want);
	}
	/* Without reflinks there is no hint for them. */
	fail(SET_HINT, 0, EINVAL);
	cr_assert_eq(image_hint_extent_size(FD, K), 0);
	snprintf(want, sizeof(want), "hint %x 4096 4096;hint %x 4096 0;",
		KEPT_FLAG | FS_XFLAG_EXTSIZE | FS_XFLAG_COWEXTSIZE, KEPT_FLAG | FS_XFLAG_EXTSIZE);
	cr_assert_str_eq(k.said, want);
}

Test(image_calls, a_hint_that_nobody_takes_is_no_failure)
{
	static const struct {
		enum call call;
		int with;
		unsigned times;
		int res;
		unsigned sets;
	} cases[] = {
		{GET_HINT, ENOTTY, 1, 0, 0},
		{GET_HINT, EOPNOTSUPP, 1, 0, 0},
		{GET_HINT, EIO, 1, -EIO, 0},
		{SET_HINT, ENOTTY, 1, 0, 1},
		{SET_HINT, EOPNOTSUPP, 1, 0, 1},
		{SET_HINT, EPERM, 1, -EPERM, 1},
		{SET_HINT, EINVAL, 2, -EINVAL, 2},
	};
	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		fail(cases[i].call, 0, cases[i].with);
		k.times = cases[i].times;
		cr_assert_eq(image_hint_extent_size(FD, K), cases[i].res, "case %u", i);
		cr_assert_eq(k.calls[SET_HINT], cases[i].sets, "case %u", i);
	}
}

Test(image_calls, only_what_holds_no_data_is_punched)
{
	static const struct {
		uint64_t from, to, size;
		const char *said;
	} cases[] = {
		{0, 0, 8 * K, "punch 0+32768;"},
		{0, 8 * K, 8 * K, ""},
		{K, 3 * K, 8 * K, "punch 0+4096;punch 12288+20480;"},
		{0, 3 * K, 8 * K, "punch 12288+20480;"},
		{4 * K, 8 * K, 8 * K, "punch 0+16384;"},
		{9 * K, 12 * K, 8 * K, "punch 0+32768;"}, /* behind the end */
		{8 * K, 12 * K, 8 * K, "punch 0+32768;"},
		{0, 0, 0, ""},
	};
	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		forget();
		k.data_from = cases[i].from;
		k.data_to = cases[i].to;
		cr_assert_eq(image_punch_unwritten(FD, cases[i].size), 0);
		cr_assert_str_eq(k.said, cases[i].said, "case %u", i);
	}
	k.data_from = K;
	k.data_to = 3 * K;
	fail(SEEK_TO_DATA, 0, EIO);
	cr_assert_eq(image_punch_unwritten(FD, 8 * K), -EIO);
	fail(SEEK_TO_HOLE, 0, EIO);
	cr_assert_eq(image_punch_unwritten(FD, 8 * K), -EIO);
	cr_assert_eq(k.calls[SEEK_TO_DATA], 1);
	fail(PUNCH, 1, ENOSPC);
	cr_assert_eq(image_punch_unwritten(FD, 8 * K), -ENOSPC);
}

Test(image_calls, growth_that_is_interrupted_goes_on)
{
	static const struct {
		int with, res;
		const char *said;
	} cases[] = {
		{EINTR, 0, "allocate 0+8192;allocate 0+8192;"},
		{ENOSYS, -EOPNOTSUPP, "allocate 0+8192;"},
		{EOPNOTSUPP, -EOPNOTSUPP, "allocate 0+8192;"},
		{ENOSPC, -ENOSPC, "allocate 0+8192;"},
	};
	char path[] = "/tmp/test-image-calls-XXXXXX";
	int fd = mkostemp(path, O_CLOEXEC);
	cr_assert(fd >= 0 && unlink(path) == 0 && ftruncate(fd, K) == 0);
	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct stat st;
		fail(PUNCH, 0, cases[i].with);
		cr_assert_eq(image_resize(fd, 2 * K, true), cases[i].res, "case %u", i);
		cr_assert_str_eq(k.said, cases[i].said, "case %u", i);
		cr_assert(fstat(fd, &st) == 0 && st.st_size == K);
	}
	fail(NOTHING, 0, 0);
	cr_assert_eq(ftruncate(fd, 0), 0);
	cr_assert_eq(image_resize(fd, 0, true), 0);
	cr_assert_str_eq(k.said, "", "nothing cannot be allocated");
	cr_assert_eq(image_resize(fd, INT64_MAX, true), 0);
	cr_assert_eq(image_resize(fd, INT64_MAX + 1ULL, true), -EFBIG);
	cr_assert_str_eq(k.said, "allocate 0+9223372036854775807;");
	close(fd);
	fd = open("/proc/self/status", O_RDONLY | O_CLOEXEC); /* which nobody can cut */
	fail(PUNCH, 0, ENOSPC);
	cr_assert_eq(image_resize(fd, K, true), -EINVAL);
	close(fd);
}

Test(image_calls, a_reflink_that_cannot_be)
{
	static const int answers[][2] = {{ENOTTY, -EOPNOTSUPP}, {ENOSYS, -EOPNOTSUPP},
		{EOPNOTSUPP, -EOPNOTSUPP}, {EXDEV, -EXDEV}, {ENOSPC, -ENOSPC}};
	for (unsigned i = 0; i < sizeof(answers) / sizeof(answers[0]); i++) {
		fail(CLONE, 0, answers[i][0]);
		cr_assert_eq(image_reflink(3, FD), answers[i][1]);
	}
	cr_assert_eq(image_reflink(3, FD), 0);
}

Test(image_calls, how_aligned_direct_io_has_to_be)
{
	static const struct {
		uint32_t mask, align, said;
	} cases[] = {{0x2000, 0, 0}, {0x2000, 1, 512}, {0x2000, 511, 512}, {0x2000, 512, 512},
		{0x2000, 513, 513}, {0x2000, K, K}, {0x17ff, K, 0}};
	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		k.statx_mask = cases[i].mask;
		k.statx_align = cases[i].align;
		k.fs_type = XFS_SUPER_MAGIC;
		cr_assert_eq(image_dio_align(FD), cases[i].said, "case %u", i);
	}
	k.fs_type = BTRFS_SUPER_MAGIC;
	cr_assert_eq(image_dio_align(FD), BLOCK_BYTES, "btrfs does not tell");
	fail(STATFS, 0, EIO);
	cr_assert_eq(image_dio_align(FD), 0);
}

/* ---- where extents lie, and whether they move ---- */

Test(extents_calls, the_map_of_a_window)
{
	static struct extent_map map;
	add_extent(0, 2 * K, 8 * K, 0);
	add_extent(4 * K, 4 * K, 32 * K, FIEMAP_EXTENT_LAST);
	cr_assert_eq(extents_map(FD, K, 6 * K, &map), 0);
	cr_assert_eq(k.asked_to, 6 * K, "and for no more");
	cr_assert(map.from == K && map.to == 6 * K && map.count == 2);
	cr_assert(map.at[0].start == K && map.at[0].end == 2 * K && map.at[0].physical == 9 * K);
	cr_assert(map.at[1].start == 4 * K && map.at[1].end == 6 * K);
	cr_assert_eq(extents_map(FD, 2 * K, 4 * K, &map), 0);
	cr_assert(map.from == 2 * K && map.to == 4 * K && map.count == 0);
	k.mapped = EXTENTS_MAX + 1;
	cr_assert_eq(extents_map(FD, 0, 6 * K, &map), -EIO, "more than there is room for");
	k.mapped = k.count = 0;
	for (unsigned i = 0; i < EXTENTS; i++)
		add_extent(i * 2ULL * K, K, i * 4ULL * K, 0);
	cr_assert_eq(extents_map(FD, 0, GIB, &map), 0);
	cr_assert(map.count == EXTENTS_MAX && map.to == (2ULL * EXTENTS_MAX - 1) * K);
	fail(MAP, 0, ENOTTY);
	cr_assert_eq(extents_map(FD, 0, 6 * K, &map), -EOPNOTSUPP);
	fail(MAP, 0, EIO);
	cr_assert_eq(extents_map(FD, 0, 6 * K, &map), -EIO);
}

static void tell_operation(const char *dir, const char *operation)
{
	char path[160];
	snprintf(path, sizeof(path), "%s/f0efeeed-eceb-eae9-e8e7-e6e5e4e3e2e1", dir);
	cr_assert(mkdir(path, 0700) == 0 || errno == EEXIST);
	strcat(path, "/exclusive_operation");
	FILE *file = fopen(path, "we");
	cr_assert(file != NULL && fputs(operation, file) >= 0 && fclose(file) == 0);
}

Test(extents_calls, what_a_btrfs_is_at)
{
	static const struct {
		const char *says, *what;
		bool moves;
	} cases[] = {
		{"none\n", "none", false},
		{"balance\n", "balance", true},
		{"balance paused\n", "balance paused", false},
		{"resize", "resize", true},
		{"device remove\n", "device remove", true},
	};
	char dir[] = "/tmp/test-fs-moves-XXXXXX", command[64], what[FS_MOVES_WHAT_BYTES] = "?";
	cr_assert_not_null(mkdtemp(dir));
	k.fs_type = BTRFS_SUPER_MAGIC;
	cr_assert_not(fs_moves(FD, dir, what), "sysfs has nothing of it");
	cr_assert_str_eq(what, "?");
	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		tell_operation(dir, cases[i].says);
		cr_assert_eq(fs_moves(FD, dir, what), cases[i].moves, "%s", cases[i].says);
		cr_assert_str_eq(what, cases[i].what);
	}
	char far[300]; /* the same directory, by a name without an end */
	snprintf(far, sizeof(far), "%s%0*d", dir, (int)(sizeof(far) - strlen(dir) - 1), 0);
	memset(far + strlen(dir), '/', sizeof(far) - strlen(dir) - 1);
	cr_assert_not(fs_moves(FD, far, what));
	fail(INFO, 0, EPERM);
	cr_assert_not(fs_moves(FD, dir, what));
	fail(STATFS, 0, EIO);
	cr_assert_not(fs_moves(FD, dir, what));
	fail(NOTHING, 0, 0);
	k.fs_type = XFS_SUPER_MAGIC;
	cr_assert_not(fs_moves(FD, dir, what));
	k.fs_type = BTRFS_SUPER_MAGIC;
	cr_assert(fs_moves(FD, dir, what));
	snprintf(command, sizeof(command), "rm -rf %s", dir);
	cr_assert_eq(system(command), 0);
}
