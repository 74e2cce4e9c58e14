/* SPDX-License-Identifier: Apache-2.0 */
/* Pools on real directories with the kernel's ring: loading, building, finding, removing, growing,
 * going away and coming back. */
#include "blockio/trim.h"
#include "pool_fixture.h"

#include "base/clock.h"
#include "pool/grow.h"
#include "pool/index.h"

#include <linux/fiemap.h>
#include <linux/fs.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/xattr.h>

enum { MIB = 1 << 20 };

static int sub_open(struct fixture *f, const char *sub, const char *name, int flags)
{
	char path[256];
	snprintf(path, sizeof(path), "%s/%s/%s", f->path, sub, name);
	return open(path, flags | O_CLOEXEC, 0600);
}

/* ---- making and loading ---- */

Test(pool, init)
{
	struct fixture f;
	struct fs_features features;
	bool existed;
	struct err err = {0};
	fixture_make(&f, FIXTURE_DIR, false);
	cr_assert_eq(pool_init_dir(f.path, &features, &existed, &err), 0);
	cr_assert(existed);

	/* Not empty. */
	char other[128];
	snprintf(other, sizeof(other), "%s/other", f.top);
	fixture_sh("mkdir %s && touch %s/file", other, other);
	cr_assert_eq(pool_init_dir(other, &features, &existed, &err), -EBUSY);
	cr_assert_eq(err.code, ERR_PRECONDITION);
	cr_assert_not_null(strstr(err.message, "file"));
	/* lost+found is no file of anybody's; an attempt cut short is taken up. */
	fixture_sh("rm %s/file; mkdir %s/lost+found %s/volumes", other, other, other);
	err_clear(&err);
	cr_assert_eq(pool_init_dir(other, &features, &existed, &err), 0, "%s", err.message);
	cr_assert_not(existed);
	/* But a volumes directory with something in it is somebody's. */
	fixture_sh("rm %s/ringvol.pool; touch %s/volumes/x", other, other);
	cr_assert_eq(pool_init_dir(other, &features, &existed, &err), -EBUSY);
	/* Damaged. */
	fixture_sh("rm %s/volumes/x; echo hello > %s/ringvol.pool", other, other);
	err_clear(&err);
	cr_assert_eq(pool_init_dir(other, &features, &existed, &err), -EBUSY);
	/* Missing, and in a missing directory. */
	snprintf(other, sizeof(other), "%s/new", f.top);
	err_clear(&err);
	cr_assert_eq(pool_init_dir(other, &features, &existed, &err), 0, "%s", err.message);
	err_clear(&err);
	cr_assert_eq(pool_init_dir("/proc/ringvol/x", &features, &existed, &err), -ENOENT);
	fixture_sh("rm -rf %s", f.top);
}

Test(pool, missing_and_locked)
{
	struct fixture f;
	fixture_make(&f, FIXTURE_DIR, true);
	fixture_open_ring(&f, NULL);
	char gone[128], fresh[128];
	snprintf(gone, sizeof(gone), "%s/gone", f.top);
	snprintf(fresh, sizeof(fresh), "%s/fresh", f.top);
	struct pool_config configs[] = {
		{.name = "empty", .path = f.path},
		{.name = "gone", .path = gone},
		{.name = "fresh", .path = fresh, .init = true},
		{.name = "twice", .path = fresh},
	};
	fixture_open_configs(&f, configs, 3);
	cr_assert_eq(pool_state(pools_at(f.pools, 0)), POOL_MISSING);
	cr_assert_not_null(strstr(pool_why(f.pool), "ringvol pool init"), "%s", pool_why(f.pool));
	cr_assert_eq(pool_state(pools_at(f.pools, 1)), POOL_MISSING);
	cr_assert_eq(pool_state(pools_at(f.pools, 2)), POOL_READY);
	cr_assert_str_eq(pool_uuid8(f.pool), "");
	cr_assert_eq(pool_dirfd(f.pool, RECORD_VOLUME), -1);
	cr_assert_null(pools_at(f.pools, 3));
	cr_assert_eq(pools_by_name(f.pools, "fresh"), pools_at(f.pools, 2));
	cr_assert_eq(
		pools_by_uuid8(f.pools, pool_uuid8(pools_at(f.pools, 2))), pools_at(f.pools, 2));

	struct pool_object *o;
	struct err err = {0};
	cr_assert_eq(
		pools_find_id(f.pools, RECORD_VOLUME, "00000000.a.00000000", &o, &err), -EAGAIN);
	cr_assert_eq(err.code, ERR_UNAVAILABLE);

	/* A second driver. */
	struct pools *second;
	struct fixture g = {.reactor = f.reactor};
	cr_assert_eq(pools_open(&second, &f.reactor, &configs[3], 1), 0);
	pools_start(second, fixture_on_loaded, fixture_on_changed, &g);
	while (!g.loaded)
		fixture_turn(&f);
	cr_assert_eq(pool_state(pools_at(second, 0)), POOL_MISSING);
	cr_assert_not_null(strstr(pool_why(pools_at(second, 0)), "another driver"));
	pools_close(second);
	fixture_close(&f);
}

static void *let_go(void *arg)
{
	nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
	close(*(int *)arg);
	return NULL;
}

/* As that of a driver just killed. */
Test(pool, a_lock_on_its_way_out_is_waited_for)
{
	struct fixture f;
	fixture_open(&f, FIXTURE_DIR);
	fixture_close_pools(&f);
	char path[160];
	snprintf(path, sizeof(path), "%s/ringvol.pool", f.path);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	cr_assert(fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0);
	pthread_t other;
	cr_assert_eq(pthread_create(&other, NULL, let_go, &fd), 0);
	fixture_open_pools(&f);
	cr_assert_eq(pool_state(f.pool), POOL_READY, "%s", pool_why(f.pool));
	pthread_join(other, NULL);
	fixture_close(&f);
}

Test(pool, quarantine)
{
	struct fixture f;
	fixture_open(&f, FIXTURE_DIR);
	fixture_make_volume(&f, "good", MIB);
	fixture_make_volume(&f, "damaged", MIB);
	fixture_make_volume(&f, "moved", MIB);
	fixture_make_volume(&f, "cut", 4 * MIB);
	fixture_close_pools(&f);
	int fd = sub_open(&f, "volumes", "damaged", O_RDONLY);
	cr_assert_eq(fsetxattr(fd, RECORD_XATTR, "hello", 5, 0), 0);
	close(fd);
	fd = sub_open(&f, "volumes", "cut", O_RDWR);
	cr_assert_eq(ftruncate(fd, MIB), 0);
	close(fd);
	close(sub_open(&f, "volumes", "none", O_WRONLY | O_CREAT));
	fixture_sh(
		"cd %s/volumes && mkfifo fifo && mkdir dir && ln -s good link && touch .x -- -y && "
		"mv moved other && cp -a good ../snapshots/good",
		f.path);
	fixture_open_pools(&f);
	cr_assert_eq(pool_count(f.pool, RECORD_VOLUME), 8);

	static const char *const bad[] = {"damaged", "none", "fifo", "dir", "link", "other"};
	for (unsigned i = 0; i < 6; i++) {
		struct pool_object *o = pools_find_name(f.pools, RECORD_VOLUME, bad[i]);
		cr_assert_not_null(o, "%s", bad[i]);
		cr_assert_null(o->rec);
		cr_assert_not_null(o->why);
		cr_assert_eq(fixture_remove(&f, o), ERR_DATA_LOSS);
		struct record rec = fixture_volume(bad[i], MIB);
		cr_assert_eq(fixture_build(&f, &rec, NULL, NULL), ERR_EXISTS);
		char id[RECORD_ID_MAX];
		struct err err = {0};
		snprintf(id, sizeof(id), "%s.%s.00000000", pool_uuid8(f.pool), bad[i]);
		pools_find_id(f.pools, RECORD_VOLUME, id, &o, &err);
		cr_assert_eq(err.code, ERR_DATA_LOSS);
	}
	cr_assert_null(pools_find_name(f.pools, RECORD_SNAPSHOT, "good")->rec);
	cr_assert_eq(pools_find_name(f.pools, RECORD_VOLUME, "cut")->image, POOL_IMAGE_TRUNCATED);
	cr_assert_eq(pools_find_name(f.pools, RECORD_VOLUME, "good")->image, POOL_IMAGE_WHOLE);
	/* Only what is sound is listed. */
	struct pool_walk walk = {0};
	cr_assert_str_eq(pools_next(f.pools, RECORD_VOLUME, &walk)->key, "cut");
	cr_assert_str_eq(pools_next(f.pools, RECORD_VOLUME, &walk)->key, "good");
	cr_assert_null(pools_next(f.pools, RECORD_VOLUME, &walk));
	fixture_close(&f);
}

/* ---- build, find, list, remove ---- */

static void check_build(enum fixture_fs fs)
{
	struct fixture f;
	fixture_open(&f, fs);
	unsigned fds = fixture_count_fds(&f);
	struct pool_object *o = fixture_make_volume(&f, "pvc-1", 16 * MIB), *found;
	struct stat st;
	struct err err = {0};
	char id[RECORD_ID_MAX], again[RECORD_ID_MAX];
	cr_assert_str_eq(o->key, "pvc-1");
	cr_assert_eq(fstatat(pool_dirfd(f.pool, RECORD_VOLUME), "pvc-1", &st, 0), 0);
	cr_assert_eq(st.st_size, 16 * MIB);
	cr_assert_eq(st.st_mode & 07777, 0600);
	pool_object_id(o, id);
	cr_assert_eq(pools_find_id(f.pools, RECORD_VOLUME, id, &found, &err), 0);
	cr_assert_eq(found, o);
	cr_assert_eq(pools_find_name(f.pools, RECORD_VOLUME, "pvc-1"), o);
	cr_assert_null(pools_find_name(f.pools, RECORD_SNAPSHOT, "pvc-1"));
	struct record rec = fixture_volume("pvc-1", MIB);
	cr_assert_eq(fixture_build(&f, &rec, NULL, NULL), ERR_EXISTS);
	cr_assert_eq(fixture_count_fds(&f), fds);

	fixture_reopen_pools(&f);
	cr_assert_eq(pools_find_id(f.pools, RECORD_VOLUME, id, &o, &err), 0);
	cr_assert_eq(o->rec->size_bytes, 16 * MIB);
	cr_assert_gt(o->rec->created_ns, 0);

	/* A later object of the same name has another id. */
	fds = fixture_count_fds(&f);
	cr_assert_eq(fixture_remove(&f, o), ERR_OK);
	cr_assert_neq(pools_find_id(f.pools, RECORD_VOLUME, id, &o, &err), 0);
	cr_assert_eq(err.code, ERR_NOT_FOUND);
	o = fixture_make_volume(&f, "pvc-1", MIB);
	pool_object_id(o, again);
	cr_assert_str_neq(id, again);
	err_clear(&err);
	pools_find_id(f.pools, RECORD_VOLUME, id, &o, &err);
	cr_assert_eq(err.code, ERR_NOT_FOUND);
	fixture_settle(&f);
	cr_assert_eq(fixture_count(&f, "trash"), 0);
	cr_assert_eq(fixture_count(&f, "volumes"), 1);
	cr_assert_eq(fixture_count_fds(&f), fds);

	static const struct {
		const char *id;
		enum err_code code;
	} ids[] = {
		{"", ERR_NOT_FOUND},
		{"../../etc/passwd", ERR_NOT_FOUND},
		{"00000000.pvc-1.00000000", ERR_UNAVAILABLE},
		{"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
		 "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
			ERR_INVALID},
	};
	for (unsigned i = 0; i < sizeof(ids) / sizeof(ids[0]); i++) {
		err_clear(&err);
		pools_find_id(f.pools, RECORD_VOLUME, ids[i].id, &o, &err);
		cr_assert_eq(err.code, ids[i].code, "%s", ids[i].id);
	}
	fixture_close(&f);
}

Test(pool, build_dir)
{
	check_build(FIXTURE_DIR);
}

Test(pool, build_xfs)
{
	check_build(FIXTURE_XFS);
}

/* ---- what a loss of power leaves ---- */

/* A change of an earlier run that was not synced is durable when the pool is ready: seen in a copy
 * of the disk, which has what was written to it by then. */
static void check_load_makes_durable(enum fixture_fs fs, const char *options)
{
	struct fixture f;
	char path[160], value[4] = "";
	fixture_open(&f, fs);
	fixture_make_volume(&f, "pvc-1", MIB);
	fixture_close_pools(&f);
	snprintf(path, sizeof(path), "%s/volumes/pvc-1", f.path);
	cr_assert_eq(setxattr(path, "trusted.changed", "yes", 3, 0), 0);
	fixture_open_pools(&f);
	cr_assert_eq(pool_state(f.pool), POOL_READY, "%s", pool_why(f.pool));
	cr_assert_eq(fixture_sh("cp --sparse=always %s %s.copy && mkdir %s/copy && "
				"mount -o loop,%s %s.copy %s/copy",
			     f.image, f.image, f.top, options, f.image, f.top),
		0);
	snprintf(path, sizeof(path), "%s/copy/volumes/pvc-1", f.top);
	ssize_t len = getxattr(path, "trusted.changed", value, sizeof(value));
	snprintf(path, sizeof(path), "%s/copy", f.top);
	umount2(path, MNT_DETACH);
	cr_assert_eq(len, 3, "the change is not on the disk");
	fixture_close(&f);
}

Test(pool, loading_makes_durable_on_xfs)
{
	check_load_makes_durable(FIXTURE_XFS, "nouuid");
}

Test(pool, loading_makes_durable_on_ext4)
{
	check_load_makes_durable(FIXTURE_EXT4, "rw");
}

/* ---- where there is not one log ---- */

static struct fixture *staging;
static const char *fails_at;
static unsigned seen_staged;

static unsigned count_staged(struct fixture *f)
{
	char path[128];
	snprintf(path, sizeof(path), "%s/trash", f->path);
	DIR *dir = opendir(path);
	unsigned count = 0;
	for (struct dirent *e; (e = readdir(dir)) != NULL;)
		count += strncmp(e->d_name, "new-", 4) == 0;
	closedir(dir);
	return count;
}

/* Before the file's own sync its key is not there, whatever else makes the directory durable. */
static int look_at_step(void *arg, const char *op_name, const char *step_name)
{
	(void)arg;
	if (strcmp(op_name, "pool_build") != 0)
		return 0;
	if (strcmp(step_name, "data") == 0) {
		cr_assert_eq(fixture_count(staging, "volumes"), 0);
		seen_staged += count_staged(staging) == 1;
	}
	return fails_at != NULL && strcmp(step_name, fails_at) == 0 ? -EIO : 0;
}

static void check_staging(enum fixture_fs fs)
{
	static const char *const fails[] = {"park", "data", "link"};
	struct fixture f;
	fixture_open(&f, fs);
	staging = &f;
	f.observer.before = look_at_step;
	struct record rec = fixture_volume("pvc-1", MIB);
	for (unsigned i = 0; i < sizeof(fails) / sizeof(fails[0]); i++) {
		fails_at = fails[i];
		cr_assert_eq(fixture_build(&f, &rec, NULL, NULL), ERR_INTERNAL);
		cr_assert_eq(fixture_count(&f, "trash"), 0);
		cr_assert_eq(fixture_count(&f, "volumes"), 0);
	}
	fails_at = NULL;
	seen_staged = 0;
	cr_assert_eq(fixture_build(&f, &rec, NULL, NULL), ERR_OK);
	cr_assert_eq(seen_staged, 1);
	cr_assert_eq(fixture_count(&f, "trash"), 0);
	cr_assert_eq(fixture_count(&f, "volumes"), 1);
	/* A file the index does not know has the name. */
	fixture_close_pools(&f);
	fixture_open_pools(&f);
	fixture_sh("touch %s/volumes/pvc-2", f.path);
	rec = fixture_volume("pvc-2", MIB);
	f.observer.before = NULL;
	cr_assert_eq(fixture_build(&f, &rec, NULL, NULL), ERR_EXISTS);
	cr_assert_eq(fixture_count(&f, "trash"), 0);
	/* What a crash leaves. */
	fixture_close_pools(&f);
	fixture_sh("cd %s/trash && touch new-0123456789abcdef new-mine", f.path);
	fixture_open_pools(&f);
	fixture_settle(&f);
	cr_assert_eq(fixture_count(&f, "trash"), 1);
	cr_assert_eq(fixture_count(&f, "volumes"), 2);
	fixture_close(&f);
}

Test(pool, staged_on_btrfs)
{
	check_staging(FIXTURE_BTRFS);
}

Test(pool, staged_on_tmpfs)
{
	check_staging(FIXTURE_TMPFS);
}

Test(pool, names)
{
	struct fixture f;
	fixture_open(&f, FIXTURE_DIR);
	static const char *const names[] = {"..", ".", "/", "a/../b", "\xF0\x9F\x92\xBE", "a b\n%",
		"=0123456789abcdef0123456789abcdef01234567",
		("nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn"
		 "nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn")};
	enum { COUNT = sizeof(names) / sizeof(names[0]) };
	for (unsigned i = 0; i < COUNT; i++)
		fixture_make_volume(&f, names[i], MIB);
	cr_assert_eq(fixture_count(&f, "volumes"), COUNT);
	fixture_reopen_pools(&f);
	cr_assert_eq(pool_count(f.pool, RECORD_VOLUME), COUNT);
	for (unsigned i = 0; i < COUNT; i++) {
		struct pool_object *o = pools_find_name(f.pools, RECORD_VOLUME, names[i]);
		cr_assert_not_null(o, "%s", names[i]);
		cr_assert_str_eq(o->rec->name, names[i]);
	}
	fixture_close(&f);
}

/* A file under the name that the index does not know is left from an answer that was lost. */
Test(pool, leftover_is_learned)
{
	struct fixture f;
	fixture_open(&f, FIXTURE_DIR);
	fixture_make_volume(&f, "known", MIB);
	fixture_sh("cp -a --sparse=always %s/volumes/known %s/keep", f.path, f.top);
	cr_assert_eq(fixture_remove(&f, pools_find_name(f.pools, RECORD_VOLUME, "known")), ERR_OK);
	fixture_settle(&f);
	fixture_sh("cp -a --sparse=always %s/keep %s/volumes/known", f.top, f.path);
	unsigned fds = fixture_count_fds(&f);
	struct record rec = fixture_volume("known", MIB);
	cr_assert_eq(fixture_build(&f, &rec, NULL, NULL), ERR_EXISTS);
	struct pool_object *o = pools_find_name(f.pools, RECORD_VOLUME, "known");
	cr_assert_not_null(o);
	cr_assert_not_null(o->rec);
	cr_assert_eq(fixture_count_fds(&f), fds);
	/* It may not be durable, and what it takes is not measured. */
	cr_assert(o->unsynced);
	cr_assert_not(pool_room_known(f.pool, 1000000));
	/* And the other way round: the image of one we know is gone. */
	fixture_sh("rm %s/volumes/known", f.path);
	cr_assert_eq(fixture_remove(&f, o), ERR_OK);
	cr_assert_eq(pool_count(f.pool, RECORD_VOLUME), 0);
	fixture_close(&f);
}

Test(pool, listing_survives_deletion)
{
	struct fixture f;
	fixture_make(&f, FIXTURE_DIR, true);
	fixture_open_ring(&f, NULL);
	char second[128];
	snprintf(second, sizeof(second), "%s/second", f.top);
	struct pool_config configs[] = {{.name = "a", .path = f.path, .init = true},
		{.name = "b", .path = second, .init = true}};
	fixture_open_configs(&f, configs, 2);
	static const char *const names[] = {"a", "a-b", "a.b", "b", "Z", "\xC3\xA9", "c", "d"};
	for (unsigned p = 0; p < 2; p++) {
		f.pool = pools_at(f.pools, p);
		for (unsigned i = 0; i < 8; i++)
			fixture_make_volume(&f, names[i], MIB);
	}
	unsigned count = 0;
	char last_pool[16] = "", last_key[RECORD_KEY_MAX] = "";
	struct pool_walk walk = {0};
	for (struct pool_object *o; (o = pools_next(f.pools, RECORD_VOLUME, &walk)) != NULL;
		count++) {
		int pool_order = strcmp(pool_uuid8(o->pool), last_pool);
		cr_assert(pool_order > 0 || (pool_order == 0 && strcmp(o->key, last_key) > 0));
		strcpy(last_pool, pool_uuid8(o->pool));
		strcpy(last_key, o->key);
		cr_assert_eq(fixture_remove(&f, o), ERR_OK);
	}
	cr_assert_eq(count, 16);
	fixture_close(&f);
}

Test(pool, remove_refuses_what_is_attached)
{
	struct fixture f;
	fixture_open(&f, FIXTURE_DIR);
	struct pool_object *o = fixture_make_volume(&f, "busy", MIB);
	int fd = sub_open(&f, "volumes", "busy", O_RDWR);
	cr_assert_eq(flock(fd, LOCK_EX | LOCK_NB), 0);
	unsigned fds = fixture_count_fds(&f);
	cr_assert_eq(fixture_remove(&f, o), ERR_PRECONDITION);
	cr_assert_eq(fixture_count_fds(&f), fds);
	cr_assert_eq(pools_find_name(f.pools, RECORD_VOLUME, "busy"), o);
	close(fd);
	cr_assert_eq(fixture_remove(&f, o), ERR_OK);
	fixture_close(&f);
}

static enum err_code format(struct fixture *f, const struct record *rec, struct pool_object **ret)
{
	static struct pool_format fill;
	static const uint8_t uuid[16] = {1};
	struct fsimg_spec spec = {.type = rec->fs,
		.size_bytes = rec->size_bytes,
		.block_size = rec->block_size,
		.mkfs_options = ""};
	struct pool_build b;
	cr_assert_eq(pool_build_init(&b, &f->reactor, f->pool, rec), 0);
	pool_format_init(&fill, f->pool, &spec, uuid);
	pool_build_format(&b, &fill);
	enum err_code code = fixture_run(f, &b.op);
	*ret = b.ret_object;
	pool_build_free(&b);
	return code;
}

static unsigned count_shared_extents(int fd)
{
	static union {
		struct fiemap map;
		char room[sizeof(struct fiemap) + 256 * sizeof(struct fiemap_extent)];
	} f;
	f.map = (struct fiemap){.fm_length = FIEMAP_MAX_OFFSET,
		.fm_flags = FIEMAP_FLAG_SYNC,
		.fm_extent_count = 256};
	cr_assert_eq(ioctl(fd, FS_IOC_FIEMAP, &f.map), 0);
	cr_assert_gt(f.map.fm_mapped_extents, 0);
	cr_assert_lt(f.map.fm_mapped_extents, 256);
	unsigned count = 0;
	for (unsigned i = 0; i < f.map.fm_mapped_extents; i++)
		count += (f.map.fm_extents[i].fe_flags & FIEMAP_EXTENT_SHARED) != 0;
	return count;
}

static void fill_up(struct fixture *f)
{
	int fd = sub_open(f, ".", "filler", O_RDWR | O_CREAT);
	off_t at = 0;
	for (off_t len = 256 * MIB; len >= 4096;)
		if (fallocate(fd, 0, at, len) == 0)
			at += len;
		else
			len /= 2;
	cr_assert_eq(errno, ENOSPC);
	close(fd);
}

static const char secret[] = "the-secret-bytes";

static void write_secrets(struct fixture *f, const char *name)
{
	char data[4096];
	for (unsigned i = 0; i < sizeof(data); i += 16)
		memcpy(data + i, secret, 16);
	int fd = sub_open(f, "volumes", name, O_RDWR);
	for (off_t at = 0; at < 70 * MIB; at += MIB)
		cr_assert_eq(pwrite(fd, data, sizeof(data), at), sizeof(data));
	cr_assert_eq(fsync(fd), 0);
	close(fd);
}

/* In the image the pool's file system lives in. */
static bool find_secrets(struct fixture *f)
{
	return fixture_sh("sync -f %s; grep -q %s %s", f->path, secret, f->image) == 0;
}

static void check_erase(enum record_erase erase, bool stays)
{
	struct fixture f;
	bool discards = false;
	fixture_open(&f, FIXTURE_XFS);
	if (erase == RECORD_ERASE_DISCARD) { /* not each loop device is one that takes them */
		cr_assert_eq(trim_probe(pool_dirfd(f.pool, RECORD_VOLUME), &discards), 0);
		if (!discards) {
			fixture_close(&f);
			cr_skip_test("the loop device that the pool was given takes no discards");
		}
	}
	struct record rec = fixture_volume("secret", 70 * MIB);
	rec.erase = erase;
	struct pool_object *o;
	cr_assert_eq(fixture_build(&f, &rec, NULL, &o), ERR_OK);
	write_secrets(&f, "secret");
	cr_assert(find_secrets(&f));
	cr_assert_eq(fixture_remove(&f, o), ERR_OK);
	fixture_settle(&f);
	cr_assert_eq(fixture_count(&f, "trash"), 0);
	cr_assert_eq(find_secrets(&f), stays);
	fixture_close(&f);
}

/* Which shows that the next one looks in the right place. */
Test(pool, erase_none)
{
	check_erase(RECORD_ERASE_NONE, true);
}

Test(pool, erase_zero)
{
	check_erase(RECORD_ERASE_ZERO, false);
}

/* Zeros over an extent that is shared with the template would go elsewhere, if there is room. */
Test(pool, erase_zero_of_what_was_formatted)
{
	struct fixture f;
	if (fixture_sh("command -v mkfs.ext4 >/dev/null 2>&1") != 0)
		cr_skip_test("mkfs is not installed");
	fixture_open(&f, FIXTURE_XFS);
	if (!pool_features(f.pool)->reflink) {
		fixture_close(&f);
		cr_skip_test("no reflink here");
	}
	/* With a template that is made first, one that is known, and as others have it. */
	static const struct {
		const char *name;
		enum record_erase erase;
	} volumes[] = {{"new", RECORD_ERASE_ZERO}, {"known", RECORD_ERASE_ZERO},
		{"plain", RECORD_ERASE_NONE}};
	struct pool_object *o[3];
	for (unsigned i = 0; i < 3; i++) {
		struct record rec = fixture_volume(volumes[i].name, 70 * MIB);
		rec.fs = FSIMG_EXT4;
		rec.erase = volumes[i].erase;
		cr_assert_eq(format(&f, &rec, &o[i]), ERR_OK);
		int fd = sub_open(&f, "volumes", volumes[i].name, O_RDONLY);
		cr_assert_eq(count_shared_extents(fd) > 0, rec.erase == RECORD_ERASE_NONE, "%s",
			rec.name);
		close(fd);
	}
	write_secrets(&f, "new");
	write_secrets(&f, "known");
	cr_assert(find_secrets(&f));
	fill_up(&f);
	cr_assert_eq(fixture_remove(&f, o[0]), ERR_OK);
	fixture_settle(&f);
	cr_assert_eq(fixture_count(&f, "trash"), 0);
	fill_up(&f);
	cr_assert_eq(fixture_remove(&f, o[1]), ERR_OK);
	fixture_settle(&f);
	cr_assert_eq(fixture_count(&f, "trash"), 0);
	cr_assert_not(find_secrets(&f));
	fixture_close(&f);
}

/* The pool is not mounted with discard: the disk below is told by us. A loop device of another's
 * test may have been left without discards. */
Test(pool, erase_discard)
{
	check_erase(RECORD_ERASE_DISCARD, false);
}

/* btrfs answers 0 behind its end as well, and a trim piece by piece would never be over. */
Test(pool, a_trim_of_the_whole_disk_ends)
{
	static const enum fixture_fs kinds[] = {FIXTURE_XFS, FIXTURE_EXT4, FIXTURE_BTRFS};
	for (unsigned i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		struct fixture f;
		uint64_t at = 0;
		fixture_open(&f, kinds[i]);
		for (unsigned pieces = 0; at != UINT64_MAX && pieces < 4; pieces++) {
			int fd = pool_dirfd(f.pool, RECORD_VOLUME);
			struct trim_asked asked = {0};
			int r = trim_disk(fd, &at, &asked);
			cr_expect_eq(asked.count, r == 0 && i == 0 && at != UINT64_MAX);
			while (asked.count > 0)
				cr_assert_geq(trim_settle(fd, &asked), 0);
			cr_expect(r == 0 || r == -EOPNOTSUPP, "file system %u: %d", i, r);
		}
		cr_expect_eq(at, UINT64_MAX, "file system %u", i);
		fixture_close(&f);
	}
}

Test(pool, trash_is_swept_at_start)
{
	struct fixture f;
	fixture_open(&f, FIXTURE_DIR);
	fixture_close_pools(&f);
	fixture_sh("cd %s/trash && truncate -s 3G 0123456789abcdef && touch fedcba9876543210 mine",
		f.path);
	fixture_open_pools(&f);
	fixture_settle(&f);
	cr_assert_eq(fixture_count(&f, "trash"), 1); /* what is not named as ours */
	fixture_close(&f);
}

/* As EIO would, a record longer than any fails to be read. No record is another thing. */
Test(pool, trash_whose_record_cannot_be_read_stays)
{
	static char text[2 * RECORD_BYTES_MAX];
	struct fixture f;
	fixture_open(&f, FIXTURE_XFS);
	fixture_close_pools(&f);
	int fd = sub_open(&f, "trash", "0123456789abcdef", O_RDWR | O_CREAT);
	close(sub_open(&f, "trash", "fedcba9876543210", O_RDWR | O_CREAT));
	cr_assert_eq(ftruncate(fd, MIB), 0);
	memset(text, 'x', sizeof(text));
	cr_assert_eq(fsetxattr(fd, RECORD_XATTR, text, sizeof(text), 0), 0);
	fixture_open_pools(&f);
	fixture_settle(&f);
	struct stat st;
	cr_assert_eq(fixture_count(&f, "trash"), 1);
	cr_assert_eq(fstat(fd, &st), 0);
	cr_assert_eq(st.st_size, MIB);
	/* Not for ever. */
	cr_assert_eq(fsetxattr(fd, RECORD_XATTR, text, RECORD_BYTES_MAX, 0), 0);
	close(fd);
	cr_assert_eq(fixture_remove(&f, fixture_make_volume(&f, "v", MIB)), ERR_OK);
	fixture_settle(&f);
	cr_assert_eq(fixture_count(&f, "trash"), 0);
	fixture_close(&f);
}

/* More than one pass takes. Where all of it fails, there is no next one at once. */
Test(pool, trash_of_more_than_one_pass)
{
	enum { PASS = 1024 };
	struct fixture f;
	fixture_open(&f, FIXTURE_DIR);
	/* What is no file cannot be opened as one. */
	fixture_sh("cd %s/trash && seq -f '%%016.0f' %d | xargs mkdir", f.path, PASS + 6);
	cr_assert_eq(fixture_remove(&f, fixture_make_volume(&f, "v", MIB)), ERR_OK);
	/* Each look at a name ends a turn, and so may what looks after the pool. */
	for (unsigned turns = 0; !pools_idle(f.pools); turns++) {
		cr_assert_lt(turns, 4 * PASS);
		fixture_turn(&f);
	}
	unsigned left = fixture_count(&f, "trash");
	cr_assert(left == PASS + 6 || left == PASS + 7, "%u", left); /* v may not be in the pass */
	fixture_sh(
		"cd %s/trash && rmdir 0* && seq -f '%%016.0f' %d | xargs touch", f.path, PASS + 6);
	cr_assert_eq(fixture_remove(&f, fixture_make_volume(&f, "w", MIB)), ERR_OK);
	fixture_settle(&f);
	cr_assert_eq(fixture_count(&f, "trash"), 0);
	fixture_close(&f);
}

/* ---- grow ---- */

static enum err_code grow(struct fixture *f, struct pool_object *o, uint64_t size_bytes)
{
	struct pool_grow g;
	pool_grow_init(&g, &f->reactor, o, size_bytes);
	return fixture_run(f, &g.op);
}

Test(pool, grow)
{
	struct fixture f;
	fixture_open(&f, FIXTURE_XFS);
	struct record thick = fixture_volume("thick", 4 * MIB);
	thick.thick = true;
	struct pool_object *o = fixture_make_volume(&f, "thin", 4 * MIB), *t;
	cr_assert_eq(fixture_build(&f, &thick, NULL, &t), ERR_OK);
	cr_assert_geq(t->allocated_bytes, 4 * MIB);
	unsigned fds = fixture_count_fds(&f);
	cr_assert_eq(grow(&f, o, 8 * MIB), ERR_OK);
	cr_assert_eq(grow(&f, t, 8 * MIB), ERR_OK);
	cr_assert_eq(grow(&f, o, 8 * MIB), ERR_OK);
	cr_assert_eq(grow(&f, o, 2 * MIB), ERR_OK);
	cr_assert_eq(o->rec->size_bytes, 8 * MIB);
	cr_assert_geq(t->allocated_bytes, 8 * MIB);
	cr_assert_eq(grow(&f, o, (uint64_t)1 << 50), ERR_NO_ROOM);
	/* Left larger by an attempt cut short. */
	int fd = sub_open(&f, "volumes", "thin", O_RDWR);
	cr_assert_eq(ftruncate(fd, 32 * MIB), 0);
	close(fd);
	cr_assert_eq(grow(&f, o, 16 * MIB), ERR_OK);
	cr_assert_eq(grow(&f, o, 32 * MIB), ERR_OK);
	cr_assert_eq(fixture_count_fds(&f), fds);
	struct pool_room room = fixture_room(&f);
	cr_assert_eq(room.provisioned_bytes, 40 * MIB);
	fixture_reopen_pools(&f);
	cr_assert_eq(pools_find_name(f.pools, RECORD_VOLUME, "thin")->rec->size_bytes, 32 * MIB);
	cr_assert_eq(pools_find_name(f.pools, RECORD_VOLUME, "thin")->image, POOL_IMAGE_WHOLE);
	fixture_close(&f);
}

static uint64_t thick_room(struct fixture *f)
{
	struct pool_room room;
	pool_room(f->pool, &room);
	return room.available_thick_bytes;
}

static int fail_record(void *arg, const char *op_name, const char *step_name)
{
	(void)arg;
	return strcmp(op_name, "pool_grow") == 0 && strcmp(step_name, "record") == 0 ? -EIO : 0;
}

/* What a thick growth cut short has allocated is nobody else's, and there for the repeat. */
static void check_cut_short(double overcommit)
{
	struct fixture f;
	struct pool_config config = {.name = "p", .overcommit = overcommit, .reserve_pct = 5};
	fixture_make(&f, FIXTURE_XFS, false);
	fixture_open_ring(&f, NULL);
	config.path = f.path;
	fixture_open_configs(&f, &config, 1);
	struct record thick = fixture_volume("thick", 64 * MIB);
	thick.thick = true;
	struct pool_object *t;
	cr_assert_eq(fixture_build(&f, &thick, NULL, &t), ERR_OK);
	fixture_make_volume(&f, "others", fixture_room(&f).available_bytes - 100 * MIB);
	uint64_t size_bytes = 128 * MIB;
	for (unsigned restart = 0; restart < 2; restart++, size_bytes += 24 * MIB) {
		uint64_t before = t->rec->size_bytes, more = size_bytes - before;
		uint64_t left = fixture_room(&f).available_thick_bytes;
		cr_assert(more <= left && left < 2 * more, "not enough for it twice");
		f.observer.before = fail_record;
		cr_assert_neq(grow(&f, t, size_bytes), ERR_OK);
		f.observer.before = NULL;
		cr_assert_eq(t->rec->size_bytes, before);
		cr_assert_leq(thick_room(&f), left - more, "at once");
		cr_assert_leq(fixture_room(&f).available_thick_bytes, left - more);
		cr_assert_geq(t->allocated_bytes, size_bytes);
		if (restart) {
			fixture_close_pools(&f);
			fixture_open_configs(&f, &config, 1);
			t = pools_find_name(f.pools, RECORD_VOLUME, "thick");
		}
		cr_assert_eq(grow(&f, t, before + left + 2 * MIB), ERR_NO_ROOM);
		/* What it shares with a snapshot may be needed once more. */
		t->shared = true;
		cr_assert_eq(grow(&f, t, size_bytes), ERR_NO_ROOM);
		t->shared = false;
		cr_assert_eq(grow(&f, t, size_bytes), ERR_OK);
		cr_assert_eq(t->rec->size_bytes, size_bytes);
		uint64_t now = fixture_room(&f).available_thick_bytes;
		cr_assert(now <= left - more && now + 2 * MIB >= left - more);
	}
	fixture_close(&f);
}

Test(pool, grow_thick_goes_on_where_it_was_cut_short)
{
	check_cut_short(1);
}

Test(pool, grow_thick_goes_on_where_more_is_promised_than_there_is)
{
	check_cut_short(2);
}

/* One whose blocks are not allocated has none of its growth, whatever blocks its file has. */
Test(pool, grow_sparse_needs_room_for_all_of_it)
{
	struct fixture f;
	fixture_open(&f, FIXTURE_XFS);
	struct pool_object *o = fixture_make_volume(&f, "sparse", 4 * MIB);
	cr_assert_eq(fixture_sh("fallocate -l 68M %s/volumes/sparse", f.path), 0);
	fixture_make_volume(&f, "others", fixture_room(&f).available_bytes - 20 * MIB);
	uint64_t left = fixture_room(&f).available_bytes;
	cr_assert_leq(left, 20 * MIB);
	cr_assert_eq(grow(&f, o, 4 * MIB + left + MIB), ERR_NO_ROOM);
	cr_assert_eq(grow(&f, o, 4 * MIB + left), ERR_OK);
	fixture_close(&f);
}

/* Also by the measure that was under way: its numbers may be older. */
Test(pool, grow_cut_short_is_measured_again)
{
	struct fixture f;
	fixture_open(&f, FIXTURE_XFS);
	struct pool_object *o = fixture_make_volume(&f, "v", 4 * MIB);
	fixture_room(&f);
	f.observer.before = fail_record;
	cr_assert_neq(grow(&f, o, 8 * MIB), ERR_OK);
	f.observer.before = NULL;
	cr_assert_eq(fixture_sh("fallocate -l 8M %s/volumes/v", f.path), 0);
	fixture_room(&f);
	cr_assert_geq(o->allocated_bytes, 8 * MIB);
	fixture_close(&f);
}

/* What was cut off would come back as zeros, under a record that says all is well. */
Test(pool, grow_refuses_what_was_cut_short)
{
	struct fixture f;
	fixture_open(&f, FIXTURE_XFS);
	struct pool_object *o = fixture_make_volume(&f, "cut", 4 * MIB);
	struct pool_room before = fixture_room(&f);
	unsigned fds = fixture_count_fds(&f);
	/* Before the watch has seen it, and when it is known. */
	cr_assert_eq(fixture_sh("truncate -s 2M %s/volumes/cut", f.path), 0);
	for (unsigned i = 0; i < 2; i++) {
		cr_assert_eq(grow(&f, o, 8 * MIB), ERR_DATA_LOSS);
		cr_assert_eq(o->image, POOL_IMAGE_TRUNCATED);
		cr_assert_eq(o->rec->size_bytes, 4 * MIB);
	}
	struct stat st;
	cr_assert_eq(fstatat(pool_dirfd(f.pool, RECORD_VOLUME), "cut", &st, 0), 0);
	cr_assert_eq(st.st_size, 2 * MIB, "it stays as it is");
	cr_assert_eq(fixture_count_fds(&f), fds);
	cr_assert_eq(fixture_room(&f).available_bytes, before.available_bytes);
	fixture_reopen_pools(&f);
	o = pools_find_name(f.pools, RECORD_VOLUME, "cut");
	cr_assert_eq(o->image, POOL_IMAGE_TRUNCATED);
	/* Mended by whoever cut it, it grows. */
	cr_assert_eq(fixture_sh("truncate -s 4M %s/volumes/cut", f.path), 0);
	cr_assert_eq(grow(&f, o, 8 * MIB), ERR_OK);
	cr_assert_eq(o->image, POOL_IMAGE_WHOLE);
	fixture_close(&f);
}

/* ---- what is durable without a journal ---- */

/* Read past the file system: from the device's own bytes. */
static bool is_on_disk(struct fixture *f, const char *name)
{
	return fixture_sh("debugfs -R 'ea_get /volumes/%s " RECORD_XATTR "' %s 2>/dev/null | "
			  "grep -q ringvol-record",
		       name, f->image) == 0;
}

static int fail_sync(void *arg, const char *op_name, const char *step_name)
{
	(void)arg;
	return strcmp(op_name, "pool_build") == 0 && strcmp(step_name, "sync") == 0 ? -EIO : 0;
}

static struct pool_object *make_unsynced(struct fixture *f, const char *name)
{
	struct record rec = fixture_volume(name, MIB);
	f->observer.before = fail_sync;
	cr_assert_neq(fixture_build(f, &rec, NULL, NULL), ERR_OK);
	f->observer.before = NULL;
	struct pool_object *o = pools_find_name(f->pools, RECORD_VOLUME, name);
	cr_assert(o != NULL && o->unsynced);
	return o;
}

Test(pool, without_a_journal_each_file_is_made_durable)
{
	struct fixture f;
	struct pool_resync s;
	char name[16];
	fixture_open(&f, FIXTURE_NO_JOURNAL);
	cr_assert(pool_features(f.pool)->no_journal);
	if (fixture_sh("debugfs -R quit %s 2>/dev/null", f.image) != 0)
		cr_skip_test("needs debugfs");
	/* More inodes than one block has: the directory's is not written with the last one's. */
	for (unsigned i = 0; i < 40; i++) {
		snprintf(name, sizeof(name), "v%u", i);
		fixture_make_volume(&f, name, MIB);
	}
	cr_expect(is_on_disk(&f, "v39"), "made");
	struct pool_object *o = make_unsynced(&f, "settled");
	pool_resync_init(&s, &f.reactor, f.pool, RECORD_VOLUME, o);
	cr_assert_eq(fixture_run(&f, &s.op), ERR_OK);
	cr_expect(is_on_disk(&f, "settled"));
	make_unsynced(&f, "loaded");
	fixture_reopen_pools(&f);
	cr_expect(is_on_disk(&f, "loaded"));
	fixture_close(&f);
}

/* ---- clones ---- */

static void write_at(struct fixture *f, const char *sub, const char *name, off_t at, char c)
{
	char data[4096];
	memset(data, c, sizeof(data));
	int fd = sub_open(f, sub, name, O_WRONLY);
	cr_assert_eq(pwrite(fd, data, sizeof(data), at), sizeof(data));
	cr_assert_eq(fsync(fd), 0);
	close(fd);
}

static char read_at(struct fixture *f, const char *sub, const char *name, off_t at)
{
	char c = '?';
	int fd = sub_open(f, sub, name, O_RDONLY);
	cr_assert_eq(pread(fd, &c, 1, at), 1);
	close(fd);
	return c;
}

static struct pool_object *clone_of(struct fixture *f, enum record_kind kind, const char *name,
	struct pool_object *source, uint64_t size_bytes, bool thick)
{
	char id[RECORD_ID_MAX];
	pool_object_id(source, id);
	struct record rec = fixture_volume(name, size_bytes);
	rec.kind = kind;
	rec.source = source->kind == RECORD_VOLUME ? RECORD_SOURCE_VOLUME : RECORD_SOURCE_SNAPSHOT;
	rec.source_id = id;
	rec.thick = thick;
	struct pool_object *o = NULL;
	cr_assert_eq(fixture_build(f, &rec, source, &o), ERR_OK);
	cr_assert_eq(o->rec->shares_extents, !thick && pool_features(f->pool)->reflink);
	return o;
}

static void check_clone(enum fixture_fs fs, bool thick, bool shares)
{
	struct fixture f;
	fixture_open(&f, fs);
	if (shares && !pool_features(f.pool)->reflink) {
		fixture_close(&f);
		cr_skip_test("no reflink here");
	}
	struct pool_object *v = fixture_make_volume(&f, "v", 16 * MIB), *s, *c;
	write_at(&f, "volumes", "v", 0, 'a');
	write_at(&f, "volumes", "v", 15 * MIB, 'b');
	unsigned fds = fixture_count_fds(&f);
	s = clone_of(&f, RECORD_SNAPSHOT, "s", v, 16 * MIB, false);
	write_at(&f, "volumes", "v", 0, 'x');
	c = clone_of(&f, RECORD_VOLUME, "c", s, 32 * MIB, thick);
	cr_assert_eq(fixture_count_fds(&f), fds);
	struct stat st;
	cr_assert_eq(fstatat(pool_dirfd(f.pool, RECORD_VOLUME), "c", &st, 0), 0);
	cr_assert_eq(st.st_size, 32 * MIB);
	cr_assert_eq(read_at(&f, "snapshots", "s", 0), 'a');
	cr_assert_eq(read_at(&f, "volumes", "c", 0), 'a');
	cr_assert_eq(read_at(&f, "volumes", "c", 4096), 0);
	cr_assert_eq(read_at(&f, "volumes", "c", 15 * MIB), 'b');
	cr_assert_eq(read_at(&f, "volumes", "c", 20 * MIB), 0);
	cr_assert_eq(read_at(&f, "volumes", "v", 0), 'x');
	cr_assert_eq(s->shared, pool_features(f.pool)->reflink);
	cr_assert_eq(v->shared, pool_features(f.pool)->reflink);
	cr_assert_eq(c->shared, shares);
	/* What lay between goes: the two at the ends still share, also after a restart. */
	cr_assert_eq(fixture_remove(&f, s), ERR_OK);
	cr_assert_eq(v->shared, shares);
	cr_assert_eq(c->shared, shares);
	fixture_reopen_pools(&f);
	v = pools_find_name(f.pools, RECORD_VOLUME, "v");
	c = pools_find_name(f.pools, RECORD_VOLUME, "c");
	cr_assert_eq(v->shared, shares);
	cr_assert_eq(c->shared, shares);
	cr_assert_eq(fixture_remove(&f, v), ERR_OK);
	cr_assert_not(c->shared);
	fixture_reopen_pools(&f);
	cr_assert_not(pools_find_name(f.pools, RECORD_VOLUME, "c")->shared);
	fixture_close(&f);
}

Test(pool, clone_by_reflink)
{
	check_clone(FIXTURE_XFS, false, true);
}

Test(pool, clone_thick)
{
	check_clone(FIXTURE_XFS, true, false);
}

Test(pool, clone_without_reflink)
{
	check_clone(FIXTURE_EXT4, false, false);
}

/* ---- away and back ---- */

Test(pool, goes_and_comes_back)
{
	struct fixture f;
	fixture_open(&f, FIXTURE_DIR);
	struct pool_object *used = fixture_make_volume(&f, "used", MIB);
	struct pool_object *idle = fixture_make_volume(&f, "idle", MIB);
	fixture_make_volume(&f, "grown", MIB);
	used->node = &f;
	int dirfd = pool_dirfd(f.pool, RECORD_VOLUME);
	char id[RECORD_ID_MAX];
	pool_object_id(used, id);

	fixture_sh("mv %s %s/aside && mkdir %s", f.path, f.top, f.path);
	unsigned changes = f.changes;
	fixture_wait_state(&f, POOL_MISSING);
	cr_assert_gt(f.changes, changes);
	cr_assert_eq(pool_dirfd(f.pool, RECORD_VOLUME), -1);
	struct pool_object *o;
	struct err err = {0};
	pools_find_id(f.pools, RECORD_VOLUME, id, &o, &err);
	cr_assert_eq(err.code, ERR_UNAVAILABLE, "%s", err.message);
	struct record rec = fixture_volume("new", MIB);
	cr_assert_eq(fixture_build(&f, &rec, NULL, NULL), ERR_UNAVAILABLE);
	cr_assert_eq(fixture_remove(&f, used), ERR_UNAVAILABLE);
	/* Its lock is free: another driver might serve it, and does, and changes it. */
	fixture_sh("rm %s/aside/volumes/idle", f.top);

	fixture_sh("rmdir %s && mv %s/aside %s", f.path, f.top, f.path);
	fixture_wait_state(&f, POOL_READY);
	cr_assert_eq(pool_dirfd(f.pool, RECORD_VOLUME), dirfd);
	err_clear(&err);
	cr_assert_eq(pools_find_id(f.pools, RECORD_VOLUME, id, &o, &err), 0);
	cr_assert_eq(o, used);
	cr_assert_eq(o->node, &f);
	cr_assert_null(pools_find_name(f.pools, RECORD_VOLUME, "idle"));
	cr_assert_str_eq(idle->rec->name, "idle"); /* whoever held it may still read it */
	cr_assert_eq(pool_count(f.pool, RECORD_VOLUME), 2);
	cr_assert_eq(fixture_build(&f, &rec, NULL, NULL), ERR_OK);

	/* Another pool in its place is not it. */
	fixture_sh("mv %s %s/aside", f.path, f.top);
	struct fs_features features;
	bool existed;
	cr_assert_eq(pool_init_dir(f.path, &features, &existed, &err), 0);
	fixture_wait_state(&f, POOL_MISSING);
	while (strstr(pool_why(f.pool), "another pool") == NULL)
		fixture_turn(&f);
	fixture_close(&f);
}

/* Without memory it was empty, or nobody can know; with it, it is not. */
Test(pool, missing_directories_are_made_again_where_nothing_is_known_of_them)
{
	struct fixture f;
	fixture_open(&f, FIXTURE_DIR);
	fixture_make_volume(&f, "kept", MIB);
	cr_assert_eq(fixture_sh("cd %s && rm -r snapshots templates trash", f.path), 0);
	fixture_reopen_pools(&f);
	cr_assert_eq(pool_state(f.pool), POOL_READY, "%s", pool_why(f.pool));
	cr_assert_eq(pool_count(f.pool, RECORD_VOLUME), 1);
	struct record rec = fixture_volume("snap", MIB);
	rec.kind = RECORD_SNAPSHOT;
	cr_assert_eq(fixture_build(&f, &rec, NULL, NULL), ERR_OK);

	/* It comes back without the directory of what memory knows. */
	fixture_sh("mv %s %s/aside && mkdir %s", f.path, f.top, f.path);
	fixture_wait_state(&f, POOL_MISSING);
	fixture_sh("mv %s/aside/snapshots %s/snapshots && rmdir %s && mv %s/aside %s", f.top, f.top,
		f.path, f.top, f.path);
	fixture_wait_state(&f, POOL_SICK);
	cr_assert_not_null(strstr(pool_why(f.pool), "snapshots"), "%s", pool_why(f.pool));
	fixture_sh("mv %s/snapshots %s/snapshots", f.top, f.path);
	fixture_wait_state(&f, POOL_READY);
	cr_assert_eq(pool_count(f.pool, RECORD_SNAPSHOT), 1);
	cr_assert_eq(fixture_sh("mv %s/volumes %s/volumes", f.path, f.top), 0);
	fixture_reopen_pools(&f);
	cr_assert_eq(pool_state(f.pool), POOL_SICK);
	cr_assert_not_null(strstr(pool_why(f.pool), "volumes"), "%s", pool_why(f.pool));
	fixture_close(&f);
}

Test(pool, read_only)
{
	struct fixture f;
	fixture_open(&f, FIXTURE_XFS);
	struct pool_object *o = fixture_make_volume(&f, "v", MIB);
	cr_assert_eq(mount(NULL, f.path, NULL, MS_REMOUNT | MS_RDONLY, NULL), 0);
	fixture_wait_state(&f, POOL_SICK);
	cr_assert_not_null(strstr(pool_why(f.pool), "read-only"));
	cr_assert_eq(fixture_remove(&f, o), ERR_UNAVAILABLE);
	fixture_reopen_pools(&f);
	cr_assert_eq(pool_state(f.pool), POOL_SICK);
	cr_assert_not_null(pools_find_name(f.pools, RECORD_VOLUME, "v"));
	cr_assert_eq(mount(NULL, f.path, NULL, MS_REMOUNT, NULL), 0);
	fixture_wait_state(&f, POOL_READY);
	cr_assert(pool_features(f.pool)->tmpfile);
	fixture_make_volume(&f, "w", MIB);
	fixture_close(&f);
}

/* It may have gone while the pool was away, and a read-only one is not asked. */
Test(pool, a_journal_is_looked_for_again)
{
	struct fixture f;
	fixture_open(&f, FIXTURE_EXT4);
	cr_assert_not(pool_features(f.pool)->no_journal);
	cr_assert_eq(umount2(f.path, MNT_DETACH), 0);
	fixture_wait_state(&f, POOL_MISSING);
	cr_assert_eq(fixture_sh("tune2fs -f -O ^has_journal %s >/dev/null", f.image), 0);
	cr_assert_eq(fixture_sh("mount -o loop %s %s", f.image, f.path), 0);
	cr_assert_eq(mount(NULL, f.path, NULL, MS_REMOUNT | MS_RDONLY, NULL), 0);
	fixture_wait_state(&f, POOL_SICK);
	cr_assert_eq(mount(NULL, f.path, NULL, MS_REMOUNT, NULL), 0);
	fixture_wait_state(&f, POOL_READY);
	cr_assert(pool_features(f.pool)->no_journal);
	fixture_close(&f);
}

/* "frozen", which is to be that, and "fine"; not opened yet. */
static void make_two(struct fixture *f, char other[128], struct pool_config configs[2])
{
	fixture_make(f, FIXTURE_XFS, false);
	fixture_open_ring(f, NULL);
	snprintf(other, 128, "%s/other", f->top);
	configs[0] = (struct pool_config){.name = "frozen", .path = f->path};
	configs[1] = (struct pool_config){.name = "fine", .path = other, .init = true};
}

/* A frozen file system lets the load's first write wait. The other pool does not wait with it. */
Test(pool, hanging)
{
	struct fixture f;
	char other[128];
	struct pool_config configs[2];
	make_two(&f, other, configs);
	int fd = open(f.path, O_RDONLY | O_CLOEXEC);
	cr_assert_eq(ioctl(fd, FIFREEZE, 0), 0);
	fixture_open_configs(&f, configs, 2);
	cr_assert_eq(pool_state(f.pool), POOL_SICK);
	cr_assert_not_null(strstr(pool_why(f.pool), "does not answer"), "%s", pool_why(f.pool));
	cr_assert_eq(pool_state(pools_at(f.pools, 1)), POOL_READY);
	cr_assert_not(pools_idle(f.pools));
	cr_assert_eq(ioctl(fd, FITHAW, 0), 0);
	close(fd);
	fixture_wait_state(&f, POOL_READY);
	fixture_make_volume(&f, "v", MIB);
	fixture_close(&f);
}

static unsigned builds_ended;

static void on_build_end(struct op *op)
{
	(void)op;
	builds_ended++;
}

/* A pool that is loaded hangs below operations that have all threads, and its look cannot begin. */
Test(pool, hanging_below_operations)
{
	static struct pool_build builds[WORK_THREADS];
	struct fixture f;
	fixture_open(&f, FIXTURE_XFS);
	fixture_make_volume(&f, "before", MIB);
	int fd = open(f.path, O_RDONLY | O_CLOEXEC);
	cr_assert_eq(ioctl(fd, FIFREEZE, 0), 0);
	for (unsigned i = 0; i < WORK_THREADS; i++) {
		char name[8];
		snprintf(name, sizeof(name), "v%u", i);
		struct record rec = fixture_volume(name, MIB);
		cr_assert_eq(pool_build_init(&builds[i], &f.reactor, f.pool, &rec), 0);
		builds[i].op.on_end = on_build_end;
		op_start(&builds[i].op);
	}
	fixture_wait_state(&f, POOL_SICK);
	cr_assert_not_null(strstr(pool_why(f.pool), "does not answer"), "%s", pool_why(f.pool));
	cr_assert_not(pool_answers(f.pool));
	struct record rec = fixture_volume("more", MIB);
	cr_assert_eq(fixture_build(&f, &rec, NULL, NULL), ERR_UNAVAILABLE, "nobody else goes in");
	cr_assert_eq(builds_ended, 0);
	cr_assert_eq(ioctl(fd, FITHAW, 0), 0);
	close(fd);
	while (builds_ended < WORK_THREADS)
		fixture_turn(&f);
	fixture_wait_state(&f, POOL_READY);
	for (unsigned i = 0; i < WORK_THREADS; i++) {
		cr_assert_eq(builds[i].op.err.code, ERR_OK, "%s", builds[i].op.err.message);
		pool_build_free(&builds[i]);
	}
	cr_assert_eq(pool_count(f.pool, RECORD_VOLUME), 1 + WORK_THREADS);
	fixture_close(&f);
}

static enum err_code make_in(struct fixture *f, unsigned pool, const char *name)
{
	struct pool *first = f->pool;
	struct record rec = fixture_volume(name, MIB);
	struct pool_object *made;
	f->pool = pools_at(f->pools, pool);
	enum err_code code = fixture_build(f, &rec, NULL, &made);
	f->pool = first;
	return code;
}

/* Operations on it have all the threads of their pool and more wait; another pool is worked on,
 * measured and looked after as if nothing were. */
Test(pool, hanging_holds_up_no_other_pool)
{
	enum { HANGING = 3 * WORK_THREADS };
	static struct pool_build builds[HANGING];
	struct fixture f;
	char other[128];
	struct pool_config configs[2];
	make_two(&f, other, configs);
	fixture_open_configs(&f, configs, 2);
	cr_assert_eq(pool_state(f.pool), POOL_READY, "%s", pool_why(f.pool));
	int fd = open(f.path, O_RDONLY | O_CLOEXEC);
	cr_assert_eq(ioctl(fd, FIFREEZE, 0), 0);
	builds_ended = 0;
	for (unsigned i = 0; i < HANGING; i++) {
		char name[8];
		snprintf(name, sizeof(name), "v%u", i);
		struct record rec = fixture_volume(name, MIB);
		cr_assert_eq(pool_build_init(&builds[i], &f.reactor, f.pool, &rec), 0);
		builds[i].op.on_end = on_build_end;
		op_start(&builds[i].op);
	}
	while (work_queue_depth(f.reactor.work) < HANGING)
		fixture_turn(&f);

	struct pool *fine = pools_at(f.pools, 1);
	cr_assert_eq(make_in(&f, 1, "w"), ERR_OK);
	struct pool_measure measure;
	pool_measure_init(&measure, &f.reactor, fine, 0);
	cr_assert_eq(fixture_run(&f, &measure.op), ERR_OK);
	struct pool_object *o = pools_find_name(f.pools, RECORD_VOLUME, "w");
	cr_assert_eq(fixture_remove(&f, o), ERR_OK);
	/* Until the one is found to be sick, which takes looks after both. */
	fixture_wait_state(&f, POOL_SICK);
	cr_assert_eq(pool_state(fine), POOL_READY, "%s", pool_why(fine));
	cr_assert_eq(make_in(&f, 1, "x"), ERR_OK);
	cr_assert_eq(builds_ended, 0);

	cr_assert_eq(ioctl(fd, FITHAW, 0), 0);
	close(fd);
	while (builds_ended < HANGING)
		fixture_turn(&f);
	for (unsigned i = 0; i < HANGING; i++)
		pool_build_free(&builds[i]);
	fixture_wait_state(&f, POOL_READY);
	fixture_close(&f);
}

/* ---- many ---- */

Test(pool, ten_thousand)
{
	struct fixture f;
	fixture_open(&f, FIXTURE_XFS);
	enum { COUNT = 10000 };
	int dirfd = dup(pool_dirfd(f.pool, RECORD_VOLUME));
	for (int i = 0; i < COUNT; i++) {
		char name[32], text[RECORD_BYTES_MAX];
		snprintf(name, sizeof(name), "pvc-%08x", (unsigned)i * 2654435761u);
		struct record rec = fixture_volume(name, MIB), *made;
		strcpy(rec.random, "00000000");
		made = record_new(&rec);
		int len = record_print(made, text, sizeof(text));
		record_free(made);
		int fd = openat(dirfd, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
		cr_assert(fd >= 0 && ftruncate(fd, MIB) == 0 &&
			  fsetxattr(fd, RECORD_XATTR, text, (size_t)len, 0) == 0);
		close(fd);
	}
	close(dirfd);
	fixture_close_pools(&f);
	uint64_t start_ns = clock_monotonic_ns();
	fixture_open_pools(&f);
	fprintf(stderr, "%d objects loaded in %.1f ms\n", COUNT,
		(double)(clock_monotonic_ns() - start_ns) / 1e6);
	cr_assert_eq(pool_count(f.pool, RECORD_VOLUME), COUNT);
	unsigned listed = 0;
	struct pool_walk walk = {0};
	while (pools_next(f.pools, RECORD_VOLUME, &walk) != NULL)
		listed++;
	cr_assert_eq(listed, COUNT);
	fixture_close(&f);
}
