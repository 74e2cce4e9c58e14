/* SPDX-License-Identifier: Apache-2.0 */
/* Formatting: what templates and mkfs leave in an image is the file system asked for, one mkfs
 * makes a template for all who wait, a bad one is made again, and a failure leaves nothing. */
#include "pool_fixture.h"

#include "pool/private.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <stdarg.h>
#include <stdint.h>
#include <sys/prctl.h>

enum { MIB = 1 << 20 };

static bool have(const char *tool)
{
	return fixture_sh("command -v %s >/dev/null 2>&1", tool) == 0;
}

static struct fsimg_spec spec_of(enum fsimg_type type)
{
	return (struct fsimg_spec){
		.type = type,
		.size_bytes = fsimg_min_bytes(type),
		.block_size = 4096,
		.mkfs_options = "",
	};
}

static void check_image(struct fixture *f, const char *name, const struct fsimg_spec *spec)
{
	struct fsimg_probe probe;
	struct stat st;
	int fd = openat(pool_dirfd(f->pool, RECORD_VOLUME), name, O_RDONLY | O_CLOEXEC);
	cr_assert_geq(fd, 0);
	cr_assert_eq(fstat(fd, &st), 0);
	cr_assert_eq((uint64_t)st.st_size, spec->size_bytes);
	cr_assert_eq(fsimg_probe_fd(fd, &probe), 0);
	cr_assert_eq(probe.type, spec->type, "%s", probe.found);
	cr_assert_not(probe.errors);
	cr_assert_not(probe.ambivalent);
	close(fd);
}

static enum err_code format(struct fixture *f, const char *name, const struct fsimg_spec *spec,
	bool thick, struct err *ret_err)
{
	static const uint8_t uuid[16] = {1, 2, 3, 4, 5, 6, 0x87, 8, 0x89};
	struct pool_format *fill = malloc(sizeof(*fill));
	struct pool_build b;
	struct record rec = fixture_volume(name, spec->size_bytes);
	rec.thick = thick;
	rec.fs = spec->type;
	pool_format_init(fill, f->pool, spec, uuid);
	cr_assert_eq(pool_build_init(&b, &f->reactor, f->pool, &rec), 0);
	pool_build_format(&b, fill);
	enum err_code code = fixture_run(f, &b.op);
	if (ret_err != NULL)
		*ret_err = b.op.err;
	else
		cr_assert_eq(code, ERR_OK, "%s: %s", b.op.err.step, b.op.err.message);
	pool_build_free(&b);
	free(fill);
	return code;
}

static void check_format(enum fixture_fs fs, enum fsimg_type type, const char *tool, bool thick)
{
	struct fixture f;
	if (!have(tool))
		cr_skip_test("mkfs is not installed");
	fixture_open(&f, fs);
	struct fsimg_spec spec = spec_of(type);
	unsigned fds = fixture_count_fds(&f);
	format(&f, "one", &spec, thick, NULL);
	format(&f, "two", &spec, thick, NULL);
	cr_assert_eq(fixture_count_fds(&f), fds);
	check_image(&f, "one", &spec);
	check_image(&f, "two", &spec);
	cr_assert_eq(fixture_count(&f, "templates"), type == FSIMG_BTRFS ? 0 : 1);
	/* The template itself is untouched by what volumes write. */
	if (type == FSIMG_EXT4)
		cr_assert_eq(fixture_sh("e2fsck -fn %s/templates/* >/dev/null 2>&1", f.path), 0);
	fixture_reopen_pools(&f);
	format(&f, "three", &spec, thick, NULL);
	check_image(&f, "three", &spec);
	fixture_close(&f);
}

Test(template, ext4_by_reflink)
{
	check_format(FIXTURE_XFS, FSIMG_EXT4, "mkfs.ext4", false);
}

Test(template, ext4_thick)
{
	check_format(FIXTURE_XFS, FSIMG_EXT4, "mkfs.ext4", true);
}

Test(template, ext4_by_copy)
{
	check_format(FIXTURE_DIR, FSIMG_EXT4, "mkfs.ext4", false);
}

Test(template, xfs_by_reflink)
{
	check_format(FIXTURE_XFS, FSIMG_XFS, "mkfs.xfs", false);
}

Test(template, btrfs_is_made_afresh)
{
	check_format(FIXTURE_DIR, FSIMG_BTRFS, "mkfs.btrfs", false);
}

/* As serve leaves itself, below a bounding set as ringvol.service's: this process cannot be dumped,
 * and no child of it has the capability to look into it all the same. */
static void be_closed(void)
{
	cr_assert_eq(prctl(PR_SET_DUMPABLE, 0), 0);
	if (prctl(PR_CAPBSET_DROP, CAP_SYS_PTRACE) < 0)
		cr_skip_test("needs CAP_SETPCAP to give up another one");
}

Test(template, ext4_and_mkfs_may_not_look_into_us)
{
	be_closed();
	check_format(FIXTURE_DIR, FSIMG_EXT4, "mkfs.ext4", false);
}

Test(template, xfs_and_mkfs_may_not_look_into_us)
{
	be_closed();
	check_format(FIXTURE_DIR, FSIMG_XFS, "mkfs.xfs", false);
}

Test(template, btrfs_and_mkfs_may_not_look_into_us)
{
	be_closed();
	check_format(FIXTURE_DIR, FSIMG_BTRFS, "mkfs.btrfs", false);
}

/* ---- one mkfs for all ---- */

static unsigned ended;

static void count_end(struct op *op)
{
	(void)op;
	ended++;
}

static unsigned mkfs_runs;

static void count_mkfs(void *arg, const char *op_name, const char *step, uint64_t ns)
{
	(void)arg;
	(void)op_name;
	(void)ns;
	mkfs_runs += strcmp(step, "mkfs") == 0;
}

Test(template, single_flight)
{
	enum { COUNT = 20 };
	static struct pool_template templates[COUNT];
	struct fixture f;
	if (!have("mkfs.ext4"))
		cr_skip_test("mkfs is not installed");
	fixture_open(&f, FIXTURE_DIR);
	f.observer.after = count_mkfs;
	unsigned fds = fixture_count_fds(&f);
	for (unsigned i = 0; i < COUNT; i++) {
		struct fsimg_spec spec = spec_of(FSIMG_EXT4);
		spec.size_bytes += i % 2 * MIB;
		pool_template_init(&templates[i], &f.reactor, f.pool, &spec);
		templates[i].op.on_end = count_end;
		op_start(&templates[i].op);
	}
	while (ended < COUNT)
		fixture_turn(&f);
	for (unsigned i = 0; i < COUNT; i++) {
		cr_assert_eq(templates[i].op.err.code, ERR_OK, "%s", templates[i].op.err.message);
		cr_assert_geq(templates[i].fd, 0);
		close(templates[i].fd);
	}
	cr_assert_eq(mkfs_runs, 2);
	cr_assert_eq(fixture_count(&f, "templates"), 2);
	cr_assert_eq(fixture_count_fds(&f), fds);
	fixture_close(&f);
}

/* Of those who wait, one gets no descriptor. */
static bool dup_fails;

int __real_fcntl64(int fd, int cmd, ...);
int __wrap_fcntl64(int fd, int cmd, ...);

int __wrap_fcntl64(int fd, int cmd, ...)
{
	va_list ap;
	va_start(ap, cmd);
	long arg = va_arg(ap, long);
	va_end(ap);
	if (cmd == F_DUPFD_CLOEXEC && dup_fails) {
		dup_fails = false;
		errno = EMFILE;
		return -1;
	}
	return __real_fcntl64(fd, cmd, arg);
}

static void after_mkfs(void *arg, const char *op_name, const char *step, uint64_t ns)
{
	(void)arg;
	(void)op_name;
	(void)ns;
	dup_fails |= strcmp(step, "mkfs") == 0;
}

Test(template, one_who_waits_gets_no_descriptor)
{
	enum { COUNT = 3 };
	static struct pool_template templates[COUNT];
	struct fixture f;
	unsigned without = 0;
	if (!have("mkfs.ext4"))
		cr_skip_test("mkfs is not installed");
	fixture_open(&f, FIXTURE_DIR);
	f.observer.after = after_mkfs;
	struct fsimg_spec spec = spec_of(FSIMG_EXT4);
	for (unsigned i = 0; i < COUNT; i++) {
		pool_template_init(&templates[i], &f.reactor, f.pool, &spec);
		templates[i].op.on_end = count_end;
		op_start(&templates[i].op);
	}
	while (ended < COUNT)
		fixture_turn(&f);
	cr_assert_not(dup_fails);
	for (unsigned i = 0; i < COUNT; i++) {
		bool has = templates[i].fd >= 0;
		cr_assert_eq(op_failed(&templates[i].op), !has);
		without += !has;
		fd_close(&templates[i].fd);
	}
	cr_assert_eq(without, 1);
	fixture_close(&f);
}

/* All who wait get the error, and the next one tries again. */
Test(template, failure_is_everybodys)
{
	enum { COUNT = 5 };
	static struct pool_template templates[COUNT];
	struct fixture f;
	if (!have("mkfs.ext4"))
		cr_skip_test("mkfs is not installed");
	fixture_open(&f, FIXTURE_DIR);
	unsigned fds = fixture_count_fds(&f);
	struct fsimg_spec spec = spec_of(FSIMG_EXT4);
	spec.mkfs_options = "-N 4000000000";
	for (unsigned i = 0; i < COUNT; i++) {
		pool_template_init(&templates[i], &f.reactor, f.pool, &spec);
		templates[i].op.on_end = count_end;
		op_start(&templates[i].op);
	}
	while (ended < COUNT)
		fixture_turn(&f);
	for (unsigned i = 0; i < COUNT; i++) {
		cr_assert_eq(templates[i].op.err.code, ERR_INTERNAL);
		cr_assert_not_null(strstr(templates[i].op.err.message, "mkfs.ext4"), "%s",
			templates[i].op.err.message);
		cr_assert_eq(templates[i].fd, -1);
	}
	cr_assert_eq(fixture_count(&f, "templates"), 0);
	cr_assert_eq(fixture_count_fds(&f), fds);
	struct err err;
	cr_assert_eq(format(&f, "v", &spec, false, &err), ERR_INTERNAL);
	cr_assert_eq(fixture_count(&f, "volumes"), 0);
	spec.mkfs_options = "";
	format(&f, "v", &spec, false, NULL);
	cr_assert_eq(fixture_count_fds(&f), fds);
	fixture_close(&f);
}

Test(template, missing_mkfs_is_named)
{
	struct fixture f;
	fixture_open(&f, FIXTURE_DIR);
	setenv("PATH", "/nonexistent", 1);
	struct fsimg_spec spec = spec_of(FSIMG_EXT4);
	struct err err = {0};
	enum err_code code = format(&f, "v", &spec, false, &err);
	setenv("PATH", "/usr/sbin:/usr/bin:/sbin:/bin", 1);
	cr_assert_eq(code, ERR_PRECONDITION, "%s", err.message);
	cr_assert_not_null(strstr(err.message, "e2fsprogs"), "%s", err.message);
	cr_assert_eq(fixture_count(&f, "volumes") + fixture_count(&f, "templates"), 0);
	fixture_close(&f);
}

/* In the place of mkfs.ext4; NULL: there is a file, which is no program. */
static void install(struct fixture *f, const char *does)
{
	char path[128];
	snprintf(path, sizeof(path), "%s/bin", f->top);
	(void)mkdir(path, 0700);
	setenv("PATH", path, 1);
	snprintf(path, sizeof(path), "%s/bin/mkfs.ext4", f->top);
	(void)unlink(path);
	int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, does != NULL ? 0700 : 0600);
	cr_assert_geq(fd, 0);
	if (does != NULL)
		dprintf(fd, "#!/bin/sh\n%s\n", does);
	close(fd);
}

static void uninstall(void)
{
	setenv("PATH", "/usr/sbin:/usr/bin:/sbin:/bin", 1);
}

/* What it said last is told, and nothing of it is left. */
Test(template, mkfs_that_does_not_do_it)
{
	static const struct {
		const char *does, *options, *says;
		enum err_code code;
	} all[] = {
		{"echo first; echo 'no luck  '; exit 3", "",
			"mkfs.ext4 failed with exit status 3: no luck", ERR_INTERNAL},
		{"echo out of luck; kill -9 $$", "",
			"mkfs.ext4 was killed by signal 9: out of luck", ERR_INTERNAL},
		{"exit 0", "", "mkfs.ext4 said it was done, but there is no ext4", ERR_INTERNAL},
		{NULL, "", "running mkfs.ext4: Permission denied", ERR_INTERNAL},
		{"exit 0", "-b 1024", "the mkfs options for ext4 cannot be used: Invalid argument",
			ERR_INVALID},
	};
	struct fixture f;
	if (!have("mkfs.ext4"))
		cr_skip_test("mkfs is not installed");
	fixture_open(&f, FIXTURE_DIR);
	struct fsimg_spec spec = spec_of(FSIMG_EXT4);
	unsigned fds = fixture_count_fds(&f);
	for (unsigned i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		struct err err = {0};
		install(&f, all[i].does);
		spec.mkfs_options = all[i].options;
		cr_assert_eq(format(&f, "v", &spec, false, &err), all[i].code, "%s", err.message);
		cr_assert_not_null(strstr(err.message, all[i].says), "%s", err.message);
		cr_assert_eq(fixture_count(&f, "volumes") + fixture_count(&f, "templates"), 0);
		cr_assert_eq(fixture_count_fds(&f), fds);
	}
	uninstall();
	spec.mkfs_options = "";
	format(&f, "v", &spec, false, NULL);
	check_image(&f, "v", &spec);
	fixture_close(&f);
}

Test(template, mkfs_that_takes_too_long)
{
	struct fixture f;
	struct pool_mkfs m;
	static const uint8_t uuid[16] = {1};
	char path[128];
	fixture_open(&f, FIXTURE_DIR);
	struct fsimg_spec spec = spec_of(FSIMG_EXT4);
	install(&f, "exec /bin/sleep 1000");
	snprintf(path, sizeof(path), "%s/image-of-it", f.top);
	int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	pool_mkfs_init(&m, &f.reactor, &spec, fd, uuid);
	fixture_ended = false;
	m.op.on_end = fixture_on_end;
	op_start(&m.op);
	while (!ring_timer_armed(&m.proc.timer))
		fixture_turn(&f);
	ring_timer_arm(f.reactor.ring, &m.proc.timer, 0); /* so much time has passed */
	while (!fixture_ended)
		fixture_turn(&f);
	uninstall();
	cr_assert_eq(m.op.err.code, ERR_TIMEOUT, "%s", m.op.err.message);
	char want[64];
	snprintf(want, sizeof(want), "mkfs.ext4 took longer than %llu s",
		(unsigned long long)m.proc.timeout_ms / 1000);
	cr_assert_str_eq(m.op.err.message, want);
	close(fd);
	fixture_close(&f);
}

/* Whether files of this pool can share extents was not known for all of them. */
Test(template, ext4_by_copy_where_sharing_fails)
{
	struct fixture f;
	if (!have("mkfs.ext4"))
		cr_skip_test("mkfs is not installed");
	fixture_open(&f, FIXTURE_TMPFS);
	cr_assert_not(f.pool->features.reflink);
	f.pool->features.reflink = true;
	struct fsimg_spec spec = spec_of(FSIMG_EXT4);
	unsigned fds = fixture_count_fds(&f);
	format(&f, "one", &spec, false, NULL);
	format(&f, "two", &spec, false, NULL);
	check_image(&f, "one", &spec);
	check_image(&f, "two", &spec);
	cr_assert_eq(fixture_count(&f, "templates"), 1);
	cr_assert_eq(fixture_count_fds(&f), fds);
	fixture_close(&f);
}

Test(template, bad_ones_are_replaced)
{
	struct fixture f;
	if (!have("mkfs.ext4"))
		cr_skip_test("mkfs is not installed");
	fixture_open(&f, FIXTURE_DIR);
	struct fsimg_spec spec = spec_of(FSIMG_EXT4);
	static const char *const damages[] = {
		"truncate -s 1M %s/templates/*",
		"dd if=/dev/zero of=$(echo %s/templates/*) bs=64k count=1 conv=notrunc status=none",
		"t=$(echo %s/templates/*); rm $t; mkdir $t.d; ln -s /etc/passwd $t; rmdir $t.d",
		"rm %s/templates/*",
	};
	format(&f, "v0", &spec, false, NULL);
	for (unsigned i = 0; i < sizeof(damages) / sizeof(damages[0]); i++) {
		char name[8], command[256];
		snprintf(name, sizeof(name), "v%u", i + 1);
		fixture_close_pools(&f);
		snprintf(command, sizeof(command), damages[i], f.path);
		cr_assert_eq(system(command), 0);
		fixture_open_pools(&f);
		format(&f, name, &spec, false, NULL);
		check_image(&f, name, &spec);
		cr_assert_eq(fixture_count(&f, "templates"), 1);
	}
	/* While we run, too. */
	fixture_sh("rm %s/templates/*", f.path);
	format(&f, "last", &spec, false, NULL);
	check_image(&f, "last", &spec);
	fixture_close(&f);
}

/* The extents of a template that is known are shared without another look; what happened to it
 * meanwhile is noticed all the same. */
Test(template, known_ones_that_went_bad_are_made_again)
{
	struct fixture f;
	static const char *const damages[] = {
		"truncate -s 1M %s/templates/*",
		"t=$(echo %s/templates/*); rm $t; ln -s /etc/passwd $t",
		"rm %s/templates/*",
	};
	if (!have("mkfs.ext4"))
		cr_skip_test("mkfs is not installed");
	fixture_open(&f, FIXTURE_XFS);
	if (!pool_features(f.pool)->reflink) {
		fixture_close(&f);
		cr_skip_test("no reflink here");
	}
	f.observer.after = count_mkfs;
	struct fsimg_spec spec = spec_of(FSIMG_EXT4);
	format(&f, "v0", &spec, false, NULL);
	unsigned fds = fixture_count_fds(&f);
	for (unsigned i = 0; i < sizeof(damages) / sizeof(damages[0]); i++) {
		char name[8];
		mkfs_runs = 0;
		snprintf(name, sizeof(name), "k%u", i + 1);
		format(&f, name, &spec, false, NULL);
		check_image(&f, name, &spec);
		cr_assert_eq(mkfs_runs, 0);
		fixture_sh(damages[i], f.path);
		snprintf(name, sizeof(name), "v%u", i + 1);
		format(&f, name, &spec, false, NULL);
		check_image(&f, name, &spec);
		cr_assert_eq(mkfs_runs, 1);
		cr_assert_eq(fixture_count(&f, "templates"), 1);
		cr_assert_eq(fixture_count_fds(&f), fds);
	}
	fixture_close(&f);
}

Test(template, eviction)
{
	struct fixture f;
	if (!have("mkfs.ext4"))
		cr_skip_test("mkfs is not installed");
	fixture_open(&f, FIXTURE_DIR);
	struct fsimg_spec first = spec_of(FSIMG_EXT4);
	for (unsigned i = 0; i < POOL_TEMPLATES_MAX + 5; i++) {
		struct fsimg_spec spec = first;
		struct pool_template t;
		spec.size_bytes += i * MIB;
		pool_template_init(&t, &f.reactor, f.pool, &spec);
		cr_assert_eq(fixture_run(&f, &t.op), ERR_OK, "%s", t.op.err.message);
		close(t.fd);
		/* The first one stays in use. */
		pool_template_init(&t, &f.reactor, f.pool, &first);
		cr_assert_eq(fixture_run(&f, &t.op), ERR_OK);
		close(t.fd);
	}
	cr_assert_eq(fixture_count(&f, "templates"), POOL_TEMPLATES_MAX);
	mkfs_runs = 0;
	f.observer.after = count_mkfs;
	format(&f, "v", &first, false, NULL);
	cr_assert_eq(mkfs_runs, 0);
	fixture_close(&f);
}

/* Of those that nobody has used since we started, to the nanosecond. */
Test(template, the_oldest_go_first)
{
	enum { COUNT = POOL_TEMPLATES_MAX + 2, HALF = COUNT / 2 };
	struct fixture f;
	if (!have("mkfs.ext4"))
		cr_skip_test("mkfs is not installed");
	fixture_open(&f, FIXTURE_DIR);
	int dir = f.pool->fds[POOL_FD_TEMPLATES];
	for (unsigned i = 0; i < COUNT; i++) {
		char name[16];
		/* One after the other, in an order that is none of names. */
		unsigned age = i * 7 % COUNT;
		struct timespec times[2] = {{.tv_nsec = UTIME_OMIT},
			{.tv_sec = 1000000 - age / HALF, .tv_nsec = 1000 - age % HALF}};
		snprintf(name, sizeof(name), "ext4-%02u", age);
		int fd = openat(dir, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
		cr_assert_geq(fd, 0);
		close(fd);
		cr_assert_eq(utimensat(dir, name, times, 0), 0);
	}
	struct fsimg_spec spec = spec_of(FSIMG_EXT4);
	format(&f, "v", &spec, false, NULL);
	cr_assert_eq(fixture_count(&f, "templates"), POOL_TEMPLATES_MAX);
	for (unsigned age = 0; age < COUNT; age++) {
		char name[16];
		snprintf(name, sizeof(name), "ext4-%02u", age);
		cr_assert_eq(faccessat(dir, name, F_OK, 0) == 0, age < COUNT - 3, "%s", name);
	}
	fixture_close(&f);
}
