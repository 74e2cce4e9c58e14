/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A reactor and pools in a directory of their own, for tests of src/pool. Mounts live in a mount
 * namespace of the test's process, so they and their loop devices go with it, however it ends.
 */
#ifndef RINGVOL_TESTS_POOL_FIXTURE_H
#define RINGVOL_TESTS_POOL_FIXTURE_H

#include "base/fd.h"
#include "pool/fill.h"
#include "pool/layout.h"
#include "pool/pool.h"
#include "pool/pools.h"
#include "pool/remove.h"
#include "simring/sim.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

enum fixture_fs {
	FIXTURE_DIR,
	FIXTURE_XFS,
	FIXTURE_EXT4,
	FIXTURE_NO_JOURNAL,
	FIXTURE_BTRFS,
	FIXTURE_TMPFS
};

struct fixture {
	char top[64];  /* the temp directory */
	char path[96]; /* the pool's */
	char image[96];
	bool mounted;
	struct reactor reactor;
	struct op_observer observer;
	struct pools *pools;
	struct pool *pool;
	bool loaded;
	unsigned changes;
};

static inline int fixture_sh(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static inline int fixture_sh(const char *fmt, ...)
{
	char command[512];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(command, sizeof(command), fmt, ap);
	va_end(ap);
	return system(command);
}

static inline bool fixture_mount(struct fixture *f, enum fixture_fs fs)
{
	static const char *const mkfs[] = {[FIXTURE_XFS] = "xfs -f",
		[FIXTURE_EXT4] = "ext4 -F",
		[FIXTURE_NO_JOURNAL] = "ext4 -F -O ^has_journal",
		[FIXTURE_BTRFS] = "btrfs -f"};
	if (fs == FIXTURE_DIR)
		return true;
	if (unshare(CLONE_NEWNS) < 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
		return false;
	if (fs == FIXTURE_TMPFS)
		f->mounted = mount("tmpfs", f->path, "tmpfs", 0, "size=256m") == 0;
	else
		f->mounted =
			fixture_sh(
				"truncate -s 2G %s && mkfs.%s -q %s >/dev/null && mount -o loop %s %s",
				f->image, mkfs[fs], f->image, f->image, f->path) == 0;
	return f->mounted;
}

/* Makes the directory, a pool unless bare. Skips the test where the machine cannot. */
static inline void fixture_make(struct fixture *f, enum fixture_fs fs, bool bare)
{
	*f = (struct fixture){0};
	if (geteuid() != 0)
		cr_skip_test("needs root: pools use trusted.* attributes");
	strcpy(f->top, "/tmp/ringvol-pool.XXXXXX");
	cr_assert_not_null(mkdtemp(f->top));
	snprintf(f->path, sizeof(f->path), "%s/pool", f->top);
	snprintf(f->image, sizeof(f->image), "%s/image", f->top);
	cr_assert_eq(mkdir(f->path, 0700), 0);
	if (!fixture_mount(f, fs)) {
		fixture_sh("rm -rf %s", f->top);
		cr_skip_test("this machine cannot mount such a file system here");
	}
	if (bare)
		return;
	struct fs_features features;
	bool existed = true;
	struct err err = {0};
	int r = pool_init_dir(f->path, &features, &existed, &err);
	if (r == -EBUSY) {
		umount2(f->path, MNT_DETACH);
		fixture_sh("rm -rf %s", f->top);
		cr_skip_test("this file system cannot hold a pool");
	}
	cr_assert_eq(r, 0, "%s", err.message);
	cr_assert_not(existed);
}

static inline void fixture_open_ring(struct fixture *f, struct ring_sim *sim)
{
	int r = ring_sim_open(&f->reactor.ring, sim);
	if (r == -EPERM || r == -ENOSYS)
		cr_skip_test("io_uring is not available here");
	cr_assert_eq(r, 0);
	f->reactor.observer = &f->observer;
	cr_assert_eq(work_open(&f->reactor.work, f->reactor.ring, WORK_THREADS), 0);
}

static inline void fixture_turn(struct fixture *f)
{
	cr_assert_eq(ring_turn(f->reactor.ring, true), 0);
}

static inline void fixture_on_loaded(void *arg)
{
	((struct fixture *)arg)->loaded = true;
}

static inline void fixture_on_changed(void *arg, struct pool *pool)
{
	(void)pool;
	((struct fixture *)arg)->changes++;
}

static inline void fixture_open_configs(
	struct fixture *f, const struct pool_config *configs, unsigned count)
{
	f->loaded = false;
	cr_assert_eq(pools_open(&f->pools, &f->reactor, configs, count), 0);
	f->pool = pools_at(f->pools, 0);
	pools_start(f->pools, fixture_on_loaded, fixture_on_changed, f);
	while (!f->loaded)
		fixture_turn(f);
}

static inline void fixture_open_pools(struct fixture *f)
{
	struct pool_config config = {
		.name = "p", .path = f->path, .overcommit = 1.0, .reserve_pct = 5};
	fixture_open_configs(f, &config, 1);
}

static inline void fixture_close_pools(struct fixture *f)
{
	pools_drain(f->pools);
	while (!pools_idle(f->pools))
		fixture_turn(f);
	pools_close(f->pools);
	f->pools = NULL;
}

static inline void fixture_reopen_pools(struct fixture *f)
{
	fixture_close_pools(f);
	fixture_open_pools(f);
}

/* sim: NULL: the kernel's ring. */
static inline void fixture_open_in(struct fixture *f, enum fixture_fs fs, struct ring_sim *sim)
{
	fixture_make(f, fs, false);
	fixture_open_ring(f, sim);
	fixture_open_pools(f);
	cr_assert_eq(pool_state(f->pool), POOL_READY, "%s", pool_why(f->pool));
}

static inline void fixture_open(struct fixture *f, enum fixture_fs fs)
{
	fixture_open_in(f, fs, NULL);
}

static inline void fixture_close(struct fixture *f)
{
	if (f->pools != NULL)
		fixture_close_pools(f);
	work_close(f->reactor.work);
	ring_close(f->reactor.ring);
	if (f->mounted)
		umount2(f->path, MNT_DETACH);
	fixture_sh("rm -rf %s", f->top);
}

/* ---- running one operation ---- */

static bool fixture_ended;

static inline void fixture_on_end(struct op *op)
{
	(void)op;
	fixture_ended = true;
}

/* To the end; the error's code. */
static inline enum err_code fixture_run(struct fixture *f, struct op *op)
{
	fixture_ended = false;
	op->on_end = fixture_on_end;
	op_start(op);
	while (!fixture_ended)
		fixture_turn(f);
	return op->err.code;
}

static inline void fixture_wait_state(struct fixture *f, enum pool_state state)
{
	while (pool_state(f->pool) != state)
		fixture_turn(f);
}

static inline unsigned fixture_count(struct fixture *f, const char *sub)
{
	char path[128];
	snprintf(path, sizeof(path), "%s/%s", f->path, sub);
	DIR *dir = opendir(path);
	unsigned count = 0;
	for (struct dirent *e; dir != NULL && (e = readdir(dir)) != NULL;)
		count += e->d_name[0] != '.';
	if (dir != NULL)
		closedir(dir);
	return count;
}

/* Until nothing runs in the background: the trash is empty. */
static inline void fixture_settle(struct fixture *f)
{
	while (!pools_idle(f->pools))
		fixture_turn(f);
}

static inline struct record fixture_volume(const char *name, uint64_t size_bytes)
{
	return (struct record){
		.kind = RECORD_VOLUME, .name = name, .size_bytes = size_bytes, .block_size = 512};
}

/* source: NULL builds an empty image; it is shared unless the record says thick. moves: it keeps
 * its identity. What is said of a failure is in *ret_err. */
static inline enum err_code fixture_build_as(struct fixture *f, const struct record *rec,
	struct pool_object *source, bool moves, struct pool_object **ret, struct err *ret_err)
{
	struct pool_build b;
	struct pool_clone c;
	cr_assert_eq(pool_build_init(&b, &f->reactor, f->pool, rec), 0);
	b.keeps_identity = moves;
	if (source != NULL) {
		pool_clone_init(&c, source);
		c.build = &b;
		b.share_object = rec->thick ? NULL : source;
		b.fill = pool_clone_fill;
		b.fill_end = pool_clone_fill_end;
		b.fill_arg = &c;
		b.fill_writes = true;
	}
	enum err_code code = fixture_run(f, &b.op);
	if (ret != NULL)
		*ret = b.ret_object;
	*ret_err = b.op.err;
	pool_build_free(&b);
	return code;
}

static inline enum err_code fixture_build(struct fixture *f, const struct record *rec,
	struct pool_object *source, struct pool_object **ret)
{
	struct err err;
	enum err_code code = fixture_build_as(f, rec, source, false, ret, &err);
	if (code != ERR_OK)
		fprintf(stderr, "build: %s: %s\n", err.step, err.message);
	return code;
}

static inline struct pool_object *fixture_make_volume(
	struct fixture *f, const char *name, uint64_t size_bytes)
{
	struct record rec = fixture_volume(name, size_bytes);
	struct pool_object *o = NULL;
	cr_assert_eq(fixture_build(f, &rec, NULL, &o), ERR_OK);
	cr_assert_not_null(o);
	return o;
}

static inline enum err_code fixture_remove(struct fixture *f, struct pool_object *o)
{
	struct pool_remove r;
	pool_remove_init(&r, &f->reactor, o);
	return fixture_run(f, &r.op);
}

static inline struct pool_room fixture_room(struct fixture *f)
{
	struct pool_measure m;
	struct pool_room room;
	pool_measure_init(&m, &f->reactor, f->pool, 0);
	cr_assert_eq(fixture_run(f, &m.op), ERR_OK);
	pool_room(f->pool, &room);
	return room;
}

/* When nothing runs in the background, which has some of its own. */
static inline unsigned fixture_count_fds(struct fixture *f)
{
	fixture_settle(f);
	DIR *dir = opendir("/proc/self/fd");
	unsigned count = 0;
	while (readdir(dir) != NULL)
		count++;
	closedir(dir);
	return count;
}

#endif
