/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Builds that are refused: by the kernel at each of their calls, by a pool that takes nothing on,
 * and for a source that is damaged. Who asked is told what it was, nothing is left, nothing stays
 * reserved, and the next one succeeds.
 */
#include "raw_fixture.h"
#include "refused.h"

#include "pool/build.h"
#include "pool/index.h"

#include <linux/fs.h>
#include <stdarg.h>
#include <sys/ioctl.h>
#include <sys/xattr.h>

static struct fixture f;

/* ---- the calls ---- */

enum call { NOTHING, MAKE, ALLOCATE, LENGTHEN, MAP, RECORD, SYNC, SHARE };

static ino_t synced; /* whose sync SYNC is */

int __real_openat64(int dir, const char *name, int flags, ...);
int __wrap_openat64(int dir, const char *name, int flags, ...);
int __wrap_openat64(int dir, const char *name, int flags, ...)
{
	va_list ap;
	va_start(ap, flags);
	mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(ap, mode_t) : 0;
	va_end(ap);
	if ((flags & O_TMPFILE) == O_TMPFILE && refuses(MAKE))
		return -1;
	return __real_openat64(dir, name, flags, mode);
}

int __real_fallocate64(int fd, int mode, off_t at, off_t len);
int __wrap_fallocate64(int fd, int mode, off_t at, off_t len);
int __wrap_fallocate64(int fd, int mode, off_t at, off_t len)
{
	return refuses(ALLOCATE) ? -1 : __real_fallocate64(fd, mode, at, len);
}

int __real_ftruncate64(int fd, off_t size);
int __wrap_ftruncate64(int fd, off_t size);
int __wrap_ftruncate64(int fd, off_t size)
{
	return size > 0 && refuses(LENGTHEN) ? -1 : __real_ftruncate64(fd, size);
}

int __real_fsetxattr(int fd, const char *name, const void *value, size_t size, int flags);
int __wrap_fsetxattr(int fd, const char *name, const void *value, size_t size, int flags);
int __wrap_fsetxattr(int fd, const char *name, const void *value, size_t size, int flags)
{
	if (strcmp(name, IMAGE_MAP_XATTR) == 0 && refuses(MAP))
		return -1;
	if (strcmp(name, RECORD_XATTR) == 0 && refuses(RECORD))
		return -1;
	return __real_fsetxattr(fd, name, value, size, flags);
}

int __real_fsync(int fd);
int __wrap_fsync(int fd);
int __wrap_fsync(int fd)
{
	struct stat st;
	if (fstat(fd, &st) == 0 && st.st_ino == synced && refuses(SYNC))
		return -1;
	return __real_fsync(fd);
}

int __real_ioctl(int fd, unsigned long request, ...);
int __wrap_ioctl(int fd, unsigned long request, ...);
int __wrap_ioctl(int fd, unsigned long request, ...)
{
	va_list ap;
	va_start(ap, request);
	void *arg = va_arg(ap, void *);
	va_end(ap);
	return request == FICLONE && refuses(SHARE) ? -1 : __real_ioctl(fd, request, arg);
}

/* ---- one build ---- */

static struct err told;

static enum err_code build(const struct record *rec, struct pool_object *source, bool moves)
{
	return fixture_build_as(&f, rec, source, moves, NULL, &told);
}

static void says(enum err_code code, const char *part)
{
	cr_assert_eq(told.code, code, "%d: %s", told.code, told.message);
	cr_assert_not_null(strstr(told.message, part), "%s", told.message);
}

static void check_nothing_left(unsigned volumes)
{
	fixture_settle(&f);
	cr_assert_eq(fixture_count(&f, "volumes"), volumes);
	cr_assert_eq(fixture_count(&f, "trash"), 0);
	cr_assert_eq(f.pool->reserved_bytes, 0);
	cr_assert_eq(f.pool->ops, 0);
}

struct trial {
	enum call call;
	int with;
	enum err_code code;
	const char *says;
};

static void try_each(const struct trial *trials, unsigned count, const struct record *rec,
	struct pool_object *source)
{
	unsigned before = source != NULL;
	unsigned fds = fixture_count_fds(&f);
	for (unsigned i = 0; i < count; i++) {
		refuse(trials[i].call, 0, 1, trials[i].with);
		build(rec, source, false);
		cr_assert_eq(refused.times, 0, "%u", i);
		says(trials[i].code, trials[i].says);
		check_nothing_left(before);
		cr_assert_eq(fixture_count_fds(&f), fds, "%u", i);
	}
	cr_assert_eq(build(rec, source, false), ERR_OK, "%s", told.message);
	check_nothing_left(before + 1);
}

/* ---- the kernel ---- */

Test(build, each_call_of_a_thick_one)
{
	static const struct trial trials[] = {
		{MAKE, EMFILE, ERR_INTERNAL, "making a file for v in pool p: Too many open files"},
		{ALLOCATE, EOPNOTSUPP, ERR_PRECONDITION,
			"the file system of pool p cannot allocate ahead: use provisioning thin"},
		{ALLOCATE, EIO, ERR_INTERNAL, "making a file for v in pool p: Input/output"},
		{RECORD, EIO, ERR_INTERNAL, "recording v in pool p: Input/output error"},
	};
	fixture_open(&f, FIXTURE_DIR);
	struct record rec = raw_volume("v", 2);
	try_each(trials, sizeof(trials) / sizeof(trials[0]), &rec, NULL);
	fixture_close(&f);
}

/* Its pieces are free again, and still zeros. */
Test(build, each_call_on_raw_disks)
{
	static const struct trial trials[] = {
		{MAKE, EMFILE, ERR_INTERNAL, "making a file for v in pool p: Too many open files"},
		{MAP, ENOSPC, ERR_NO_ROOM, "making a file for v in pool p: the records of pool p"},
		{LENGTHEN, EIO, ERR_INTERNAL, "making a file for v in pool p: Input/output error"},
		{SYNC, EIO, ERR_INTERNAL, "making the map of v durable in pool p: Input/output"},
		{SYNC, ENOSPC, ERR_NO_ROOM, "making the map of v durable in pool p: the records"},
		{RECORD, ENOSPC, ERR_NO_ROOM, "recording v in pool p: the records of pool p are"},
	};
	struct stat st;
	raw_open(&f, 32);
	cr_assert_eq(fstat(f.pool->fds[POOL_FD_TRASH], &st), 0);
	synced = st.st_ino;
	struct pool_object *source = raw_make_volume(&f, "source", 8);
	struct record rec = raw_volume("v", 24);
	try_each(trials, sizeof(trials) / sizeof(trials[0]), &rec, source);
	cr_assert_eq(raw_free_mib(&f), 0);
	fixture_close(&f);
}

/* ---- the pool ---- */

Test(build, of_a_pool_that_takes_nothing)
{
	fixture_open(&f, FIXTURE_DIR);
	struct record rec = fixture_volume("v", RAW_MIB);
	f.pool->probed = false;
	build(&rec, NULL, false);
	says(ERR_NO_ROOM, "pool p has been too full since the driver started to find out");
	f.pool->probed = true;
	unsigned count = f.pool->index[RECORD_SNAPSHOT].count;
	f.pool->index[RECORD_SNAPSHOT].count = POOL_OBJECTS_MAX;
	build(&rec, NULL, false);
	f.pool->index[RECORD_SNAPSHOT].count = count;
	char want[96];
	snprintf(want, sizeof(want), "pool p holds %d volumes and snapshots, which is the limit",
		POOL_OBJECTS_MAX);
	says(ERR_NO_ROOM, want);
	check_nothing_left(0);
	f.pool->index[RECORD_SNAPSHOT].count = count;
	cr_assert_eq(build(&rec, NULL, false), ERR_OK);
	fixture_close(&f);
}

Test(build, of_what_moves_to_raw_disks)
{
	raw_open(&f, 32);
	struct record rec = raw_volume("v", 4);
	rec.moves = 1;
	build(&rec, NULL, true);
	says(ERR_PRECONDITION, "pool p is on raw disks, and no volume moves there");
	check_nothing_left(0);
	cr_assert_eq(raw_free_mib(&f), 32);
	fixture_close(&f);
}

/* ---- the source ---- */

static struct pool_object *source(void)
{
	return pool_index_find(f.pool, RECORD_VOLUME, "source");
}

static struct record copy_of(bool thick)
{
	static char id[RECORD_ID_MAX];
	struct record rec = fixture_volume("v", 2 * RAW_MIB);
	rec.source = RECORD_SOURCE_VOLUME;
	rec.thick = thick;
	if (source()->rec != NULL)
		pool_object_id(source(), id);
	rec.source_id = id;
	return rec;
}

/* Shared or copied: neither of one that is too short, or whose record cannot be read. */
Test(build, of_a_damaged_source)
{
	fixture_open(&f, FIXTURE_DIR);
	fixture_make_volume(&f, "source", 2 * RAW_MIB);
	for (unsigned thick = 0; thick < 2; thick++) {
		struct record rec = copy_of(thick);
		source()->image = POOL_IMAGE_TRUNCATED;
		refuse(SHARE, 0, 1, EIO);
		build(&rec, source(), false);
		says(ERR_DATA_LOSS,
			"source in pool p cannot be copied: its image is shorter than it should be");
		cr_assert_eq(refused.times, 1, "it is not asked for");
		check_nothing_left(1);
		source()->image = POOL_IMAGE_WHOLE;
	}
	fixture_close_pools(&f);
	char path[128];
	snprintf(path, sizeof(path), "%s/volumes/source", f.path);
	cr_assert_eq(setxattr(path, RECORD_XATTR, "damaged", 7, 0), 0);
	fixture_open_pools(&f);
	cr_assert_null(source()->rec);
	for (unsigned thick = 0; thick < 2; thick++) {
		struct record rec = copy_of(thick);
		rec.source_id = "22222222.source.01234567";
		refuse(SHARE, 0, 1, EIO);
		build(&rec, source(), false);
		says(ERR_DATA_LOSS, "source in pool p cannot be copied: ");
		cr_assert_not_null(strstr(told.message, source()->why));
		check_nothing_left(1);
	}
	fixture_close(&f);
}

/* Where extents cannot be shared bytes are copied; a disk that fails is another matter. */
Test(build, of_a_source_that_cannot_be_shared)
{
	fixture_open(&f, FIXTURE_DIR);
	fixture_make_volume(&f, "source", 2 * RAW_MIB);
	struct record rec = copy_of(false);
	refuse(SHARE, 0, 1, EIO);
	build(&rec, source(), false);
	says(ERR_INTERNAL, "sharing the extents of source: Input/output error");
	check_nothing_left(1);
	refuse(SHARE, 0, 1, EXDEV);
	cr_assert_eq(build(&rec, source(), false), ERR_OK, "%s", told.message);
	cr_assert_eq(refused.times, 0);
	cr_assert_not(pool_index_find(f.pool, RECORD_VOLUME, "v")->rec->shares_extents);
	check_nothing_left(2);
	fixture_close(&f);
}

/* Its pool went away while the copy was being readied. */
static int lose_pool(void *arg, const char *op_name, const char *step_name)
{
	(void)arg;
	if (strcmp(op_name, "pool_clone") == 0 && strcmp(step_name, "open") == 0) {
		f.pool->life = POOL_AWAY;
		strcpy(f.pool->why, "pool p is away");
	}
	return 0;
}

Test(build, of_a_source_that_is_lost)
{
	fixture_open(&f, FIXTURE_DIR);
	fixture_make_volume(&f, "source", 2 * RAW_MIB);
	struct record rec = copy_of(true);
	f.observer.before = lose_pool;
	build(&rec, source(), false);
	f.observer.before = NULL;
	f.pool->life = POOL_SERVED;
	says(ERR_UNAVAILABLE, "pool p is away");
	check_nothing_left(1);
	cr_assert_eq(build(&rec, source(), false), ERR_OK, "%s", told.message);
	fixture_close(&f);
}
