/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The filter that encrypts, over a backend and a device mapper in memory. The child is a script: it
 * keeps the order that it was given, and does what the test says.
 */
#include "backends/crypt/crypt.h"
#include "backends/crypt/crypt_dev.h"
#include "backends/crypt/luks_child.h"
#include "base/fd.h"
#include "base/secret.h"
#include "fake_dm.h"
#include "reactor/ring_uring.h"
#include "reactor/spawn.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#define TAG "ringvol:0123abcd:89abcdef"
static const char name[] = "ringvol-crypt-0123abcd-89abcdef-c",
		  uuid[] = "RINGVOL-crypt-0123abcd-89abcdef-c";

enum { LOOP = 7, INO = 12, MIB = 1 << 20, KEY_BYTES = 40 };

/* ---- the backend below ---- */

static struct {
	struct backend_dev dev; /* attached or not */
	int fail;               /* the next call */
	unsigned attaches, detaches, resizes;
	bool was_encrypted, was_raw;
} below;

static int answer(struct backend_req *req)
{
	int r = below.fail;
	below.fail = 0;
	below.was_encrypted = req->encrypted || req->format || req->secret != NULL;
	below.was_raw = req->raw;
	return r < 0 ? err_sys(&req->err, r, "below") : 0;
}

static int below_attach(const struct backend *backend, struct op *op, struct backend_req *req)
{
	(void)backend;
	int r = answer(req);
	if (r < 0)
		return backend_end(op, req, r);
	below.attaches++;
	req->dev = below.dev;
	req->dev.found = below.dev.attached;
	req->dev.attached = below.dev.attached = true;
	return 0;
}

static int below_detach(const struct backend *backend, struct op *op, struct backend_req *req)
{
	(void)backend;
	cr_expect_eq(req->dev.major, LOOP);
	cr_expect_eq(req->dev.minor, 3);
	cr_expect_eq(req->dev.below_major, 0);
	cr_expect(strcmp(req->dev.path, "/dev/loop3") == 0 ||
		  strcmp(req->dev.path, below.dev.path) == 0);
	int r = answer(req);
	if (r < 0)
		return backend_end(op, req, r);
	below.detaches++;
	req->dev.attached = below.dev.attached = false;
	return 0;
}

static int below_resize(const struct backend *backend, struct op *op, struct backend_req *req)
{
	(void)backend;
	int r = answer(req);
	if (r < 0)
		return backend_end(op, req, r);
	below.resizes++;
	req->dev.size_bytes = below.dev.size_bytes;
	return 0;
}

static int below_scan(const struct backend *backend,
	void (*each)(void *arg, const struct backend_dev *dev), void *arg, struct err *err)
{
	(void)backend;
	(void)err;
	each(arg, &below.dev);
	return 0;
}

static int below_look(
	const struct backend *backend, const struct backend_dev *dev, struct backend_dev *ret)
{
	(void)backend;
	cr_expect_eq(dev->major, LOOP);
	*ret = below.dev;
	return below.dev.attached ? 0 : -ENXIO;
}

static int below_set_read_only(
	const struct backend *backend, const struct backend_dev *dev, bool read_only)
{
	(void)backend;
	(void)dev;
	below.dev.read_only = read_only;
	return 0;
}

static const struct backend fake_below = {
	.type = BACKEND_LOOP,
	.name = "loop",
	.attach = below_attach,
	.detach = below_detach,
	.resize = below_resize,
	.scan = below_scan,
	.look = below_look,
	.set_read_only = below_set_read_only,
};

/* ---- the kernel, and the child ---- */

static char dir[64];
static int no_dm; /* what opening it answers */

static const char *at(const char *file)
{
	static char path[128];
	snprintf(path, sizeof(path), "%s/%s", dir, file);
	return path;
}

static void write_file(const char *file, const char *text, mode_t mode)
{
	_cleanup_fd_ int fd = open(at(file), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode);
	cr_assert(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
}

/* What the child does behind its order. */
static void child_does(const char *script)
{
	write_file("does", script, 0600);
}

static struct fake_device *put_device(uint64_t bytes)
{
	struct fake_device *d = &fake_dm_devices[0];
	*d = (struct fake_device){.there = true};
	snprintf(d->name, sizeof(d->name), "%s", name);
	snprintf(d->uuid, sizeof(d->uuid), "%s", uuid);
	d->now.count = bytes != 0;
	d->now.targets[0] = (struct dm_target){.length_sectors = bytes / 512, .type = "crypt"};
	snprintf(d->now.targets[0].params, DM_PARAMS_BYTES, "aes-xts-plain64 00 0 7:3 32768");
	return d;
}

/* What the child has made or grown is there the next time that somebody asks. */
static int call_kernel(struct dm *dm, unsigned long request, struct dm_ioctl *head)
{
	if (unlink(at("made")) == 0)
		put_device(below.dev.size_bytes - 16 * MIB);
	if (unlink(at("half")) == 0)
		put_device(0);
	cr_expect_not(request == DM_TABLE_STATUS && head->flags & DM_STATUS_TABLE_FLAG,
		"the driver reads a table with a key in it");
	return fake_dm_call(dm, request, head);
}

static int open_kernel(struct dm *ret, const char *control_path)
{
	(void)control_path;
	*ret = (struct dm){.fd = -1, .call = call_kernel};
	return no_dm;
}

/* ---- the world ---- */

static struct reactor reactor;
static struct crypt *filter;
static struct secret *secret;

static void setup(void)
{
	char script[256];
	snprintf(dir, sizeof(dir), "/tmp/ringvol-crypt-XXXXXX");
	cr_assert_not_null(mkdtemp(dir));
	snprintf(script, sizeof(script),
		"#!/bin/sh\ncat <&3 >%s/order\necho \"$@\" >%s/args\ncd %s\n. ./does\n", dir, dir,
		dir);
	write_file("child", script, 0700);
	spawn_self_exe = strdup(at("child"));
	child_does("touch made");
	below.dev = (struct backend_dev){.major = LOOP,
		.minor = 3,
		.bare = true,
		.size_bytes = 80 * MIB,
		.image_dev = 1,
		.image_ino = INO,
		.path = "/dev/null", /* opened for the child */
		.tag = TAG};
	uint8_t key[KEY_BYTES];
	memset(key, 'k', sizeof(key));
	secret = secret_new(key, sizeof(key));
	cr_assert_not_null(secret);
	cr_assert(ring_open(&reactor.ring, &(struct ring_config){0}) == 0);
	cr_assert(work_open(&reactor.work, reactor.ring, 1) == 0);
	filter = crypt_open(&fake_below, open_kernel);
	cr_assert_not_null(filter);
}

static void teardown(void)
{
	crypt_close(filter);
	cr_expect_eq(backend_get(BACKEND_LOOP), &fake_below);
	work_close(reactor.work);
	ring_close(reactor.ring);
	secret_free(secret);
	static const char *const files[] = {
		"child", "does", "order", "args", "made", "half", "lock"};
	for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++)
		unlink(at(files[i]));
	rmdir(dir);
	free((char *)(uintptr_t)spawn_self_exe);
}

TestSuite(crypt, .init = setup, .fini = teardown, .timeout = 60);

/* In a mount namespace of their own, work threads too. */
static void setup_alone(void)
{
	if (unshare(CLONE_NEWNS) < 0)
		cr_skip_test("needs root");
	cr_assert_eq(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL), 0);
	setup();
}

static void teardown_alone(void)
{
	if (filter != NULL)
		teardown();
}

TestSuite(crypt_alone, .init = setup_alone, .fini = teardown_alone, .timeout = 60);

typedef int backend_call(const struct backend *backend, struct op *op, struct backend_req *req);

struct probe {
	struct op op;
	struct backend_req req;
	backend_call *call;
	bool ended;
};

static int probe_run(struct op *op)
{
	struct probe *p = container_of(op, struct probe, op);
	return p->call(backend_get(BACKEND_LOOP), op, &p->req);
}

static int probe_end(struct op *op, int res)
{
	return backend_end(op, &container_of(op, struct probe, op)->req, res);
}

static const struct op_step probe_steps[] = {
	{"call", .run = probe_run, .end = probe_end},
	{NULL},
};

static void probe_on_end(struct op *op)
{
	container_of(op, struct probe, op)->ended = true;
}

static void run(struct probe *p, backend_call *call)
{
	p->ended = false;
	p->call = call;
	op_init(&p->op, &reactor, "probe", probe_steps, probe_on_end);
	op_start(&p->op);
	while (!p->ended)
		cr_assert(ring_turn(reactor.ring, true) == 0);
}

static struct probe encrypted(void)
{
	return (struct probe){.req = {.dirfd = -1,
				      .image = "image",
				      .tag = TAG,
				      .block_size = 4096,
				      .no_discard = true,
				      .raw = true,
				      .encrypted = true,
				      .secret = secret}};
}

static struct probe attached(void)
{
	struct probe p = encrypted();
	run(&p, backend_get(BACKEND_LOOP)->attach);
	cr_assert_not(op_failed(&p.op), "%s", p.op.err.message);
	return p;
}

static void expect_failed(const struct probe *p, enum err_code code, const char *words)
{
	cr_expect_eq(
		p->op.err.code, code, "%s: %s", err_code_name(p->op.err.code), p->op.err.message);
	cr_expect_not_null(
		strstr(p->op.err.message, words), "'%s' has no '%s'", p->op.err.message, words);
}

static bool child_ran(void)
{
	return access(at("order"), F_OK) == 0;
}

static struct luks_order order_of_child(uint8_t buf[LUKS_ORDER_BYTES_MAX])
{
	struct luks_order order = {0};
	_cleanup_fd_ int fd = open(at("order"), O_RDONLY | O_CLOEXEC);
	ssize_t len = read(fd, buf, LUKS_ORDER_BYTES_MAX);
	cr_assert(len > 0);
	cr_assert_eq(luks_order_parse(buf, (size_t)len, &order), 0);
	return order;
}

static void expect_dev(const struct backend_dev *dev)
{
	cr_expect(dev->attached && dev->crypt && !dev->bare);
	cr_expect(dev->major == FAKE_DM_MAJOR && dev->minor == FAKE_DM_MINOR);
	cr_expect(dev->below_major == LOOP && dev->below_minor == 3);
	cr_expect(dev->image_dev == 1 && dev->image_ino == INO);
	cr_expect_eq(dev->size_bytes, below.dev.size_bytes - 16 * MIB);
	cr_expect_str_eq(dev->path, "/dev/dm-300");
	cr_expect_str_eq(dev->tag, TAG);
}

/* ---- attach ---- */

Test(crypt, a_child_with_the_key_makes_the_device)
{
	uint8_t buf[LUKS_ORDER_BYTES_MAX];
	char args[64] = "";
	struct probe p = encrypted();
	p.req.format = true;
	run(&p, backend_get(BACKEND_LOOP)->attach);
	cr_assert_not(op_failed(&p.op), "%s", p.op.err.message);
	expect_dev(&p.req.dev);
	cr_expect_not(p.req.dev.found);
	cr_expect_not(below.was_encrypted, "the backend below knows nothing of it");
	cr_expect_not(below.was_raw, "dm-crypt is guard enough");
	struct luks_order order = order_of_child(buf);
	cr_expect_eq(order.what, LUKS_OPEN);
	cr_expect_eq(order.driver, getpid());
	cr_expect(order.format && order.no_discard && !order.read_only);
	cr_expect_eq(order.sector_bytes, 4096);
	cr_expect(order.major == LOOP && order.minor == 3);
	cr_expect_str_eq(order.path, "/dev/null");
	cr_expect_str_eq(order.name, name);
	cr_expect_str_eq(order.uuid, uuid);
	cr_expect_eq(order.key_len, KEY_BYTES);
	cr_expect_eq(memcmp(order.key, secret_bytes(secret), KEY_BYTES), 0);
	cr_assert(fd_read_file(AT_FDCWD, at("args"), args, sizeof(args)) > 0);
	cr_expect_str_eq(args, "luks 3\n", "nothing of the key is an argument");
}

Test(crypt, a_class_with_512_byte_blocks_has_them)
{
	uint8_t buf[LUKS_ORDER_BYTES_MAX];
	struct probe p = encrypted();
	p.req.block_size = 512;
	p.req.read_only = true;
	run(&p, backend_get(BACKEND_LOOP)->attach);
	cr_assert_not(op_failed(&p.op));
	struct luks_order order = order_of_child(buf);
	cr_expect(order.sector_bytes == 512 && order.read_only && !order.format);
}

Test(crypt, what_is_there_is_found_without_a_key)
{
	put_device(64 * MIB);
	below.dev.attached = true;
	struct probe p = encrypted();
	p.req.secret = NULL;
	run(&p, backend_get(BACKEND_LOOP)->attach);
	cr_assert_not(op_failed(&p.op), "%s", p.op.err.message);
	expect_dev(&p.req.dev);
	cr_expect(p.req.dev.found);
	cr_expect_not(child_ran());
}

Test(crypt, one_that_was_left_suspended_goes_on)
{
	put_device(64 * MIB)->suspended = true;
	(void)attached();
	cr_expect_not(fake_dm_devices[0].suspended);
	cr_expect_not(child_ran());
}

Test(crypt, without_a_key_nothing_is_opened)
{
	struct probe p = encrypted();
	p.req.secret = NULL;
	run(&p, backend_get(BACKEND_LOOP)->attach);
	expect_failed(&p, ERR_PRECONDITION, "node-stage-secret");
	cr_expect_not(child_ran());
	cr_expect_not(below.dev.attached, "what was attached for it is let go");
	/* A publish of a block volume whose dm-crypt somebody took away. */
	below.dev.attached = true;
	p = encrypted();
	p.req.secret = NULL;
	run(&p, backend_get(BACKEND_LOOP)->attach);
	expect_failed(&p, ERR_PRECONDITION, "unstage and stage it again");
}

Test(crypt, each_answer_of_the_child_has_its_error)
{
	static const struct {
		enum luks_code code;
		enum err_code error;
		const char *words;
	} cases[] = {
		{LUKS_WRONG_KEY, ERR_KEY, "node-stage secret"},
		{LUKS_NO_HEADER, ERR_DATA_LOSS, "lost its header"},
		{LUKS_OTHER_SHAPE, ERR_PRECONDITION, "because"},
		{LUKS_NO_LIBRARY, ERR_PRECONDITION, "because"},
		{LUKS_NO_DM_CRYPT, ERR_PRECONDITION, "because"},
		{LUKS_NO_MEMORY, ERR_NO_ROOM, "because"},
		{LUKS_BUSY, ERR_UNAVAILABLE, "because"},
		{LUKS_FAILED, ERR_INTERNAL, "because"},
		{1, ERR_INTERNAL, "exit 1"},
	};
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		char script[128];
		snprintf(script, sizeof(script),
			"echo noise; echo; echo 'ringvol luks: because of it'; exit %d",
			cases[i].code);
		child_does(script);
		struct probe p = encrypted();
		run(&p, backend_get(BACKEND_LOOP)->attach);
		expect_failed(&p, cases[i].error, cases[i].words);
		cr_expect_null(strstr(p.op.err.message, "kkkk"));
		cr_expect_null(strstr(p.op.err.message, "noise"));
		cr_expect_not(below.dev.attached);
	}
}

Test(crypt, a_child_that_dies_leaves_nothing)
{
	child_does("touch half; kill -9 $$");
	struct probe p = encrypted();
	run(&p, backend_get(BACKEND_LOOP)->attach);
	expect_failed(&p, ERR_INTERNAL, "ringvol luks");
	cr_expect_not(fake_dm_devices[0].there, "half of a device");
	cr_expect_not(below.dev.attached);
}

/* A child in a slow call outlives a driver that is killed, and the next driver waits for it. */
Test(crypt, the_child_keeps_the_lock_of_the_pool)
{
	write_file("lock", "", 0600);
	int fd = open(at("lock"), O_RDWR | O_CLOEXEC);
	cr_assert(fd >= 0 && flock(fd, LOCK_EX) == 0);
	child_does("flock -n 5 || exit 10; flock -n lock true && exit 10; touch made");
	struct probe p = encrypted();
	p.req.lock_fd = fd;
	run(&p, backend_get(BACKEND_LOOP)->attach);
	cr_assert_not(op_failed(&p.op), "the child's is another: %s", p.op.err.message);
	_cleanup_fd_ int other = open(at("lock"), O_RDWR | O_CLOEXEC);
	cr_assert_lt(flock(other, LOCK_EX | LOCK_NB), 0);
	close(fd);
	cr_expect_eq(flock(other, LOCK_EX | LOCK_NB), 0, "nobody else has kept it");
}

Test(crypt, a_child_that_cannot_start_leaves_nothing)
{
	cr_assert_eq(unlink(at("child")), 0);
	struct probe p = encrypted();
	run(&p, backend_get(BACKEND_LOOP)->attach);
	cr_expect(op_failed(&p.op));
	cr_expect_not(below.dev.attached);
}

Test(crypt, a_child_that_made_nothing_is_not_believed)
{
	child_does("true");
	struct probe p = encrypted();
	run(&p, backend_get(BACKEND_LOOP)->attach);
	expect_failed(&p, ERR_INTERNAL, "just made");
	cr_expect_not(below.dev.attached);
}

Test(crypt, a_wrong_key_takes_nothing_away_that_was_found)
{
	below.dev.attached = true;
	child_does("exit 11");
	struct probe p = encrypted();
	run(&p, backend_get(BACKEND_LOOP)->attach);
	expect_failed(&p, ERR_KEY, "");
	cr_expect(below.dev.attached);
}

Test(crypt, the_child_is_given_the_device)
{
	child_does("test /proc/self/fd/4 -ef /dev/null && touch made");
	(void)attached();
	below.dev.attached = false;
	fake_dm_devices[0].there = false;
	snprintf(below.dev.path, sizeof(below.dev.path), "/nowhere");
	struct probe p = encrypted();
	run(&p, backend_get(BACKEND_LOOP)->attach);
	expect_failed(&p, ERR_INTERNAL, "opening /nowhere");
}

Test(crypt, half_of_a_device_is_made_anew)
{
	put_device(0);
	struct probe p = attached();
	expect_dev(&p.req.dev);
	cr_expect(child_ran());
}

Test(crypt, one_that_was_let_go_is_made_anew)
{
	struct fake_device *d = put_device(64 * MIB);
	snprintf(d->now.targets[0].type, DM_MAX_TYPE_NAME, "error");
	struct probe p = attached();
	expect_dev(&p.req.dev);
	cr_expect(child_ran());
}

static void expect_refused(const char *words)
{
	struct probe p = encrypted();
	run(&p, backend_get(BACKEND_LOOP)->attach);
	expect_failed(&p, ERR_PRECONDITION, words);
	cr_expect_not(child_ran());
	cr_expect_not(below.dev.attached);
	cr_expect(fake_dm_devices[0].there, "it is not ours to take away");
}

Test(crypt, what_is_not_ours_is_refused_and_left)
{
	struct fake_device *d = put_device(64 * MIB);
	snprintf(d->now.targets[0].type, DM_MAX_TYPE_NAME, "linear");
	expect_refused("not ours");
	put_device(64 * MIB);
	snprintf(d->now.targets[0].params, DM_PARAMS_BYTES, "aes-xts-plain64 00 0 7:4 32768");
	expect_refused("stands over 7:4");
	put_device(64 * MIB);
	snprintf(d->uuid, sizeof(d->uuid), "OTHER");
	expect_refused("has the name");
	put_device(64 * MIB)->deferred = true;
	d->open = 1;
	expect_refused("still has it open");
	put_device(64 * MIB)->open = 1;
	snprintf(d->now.targets[0].type, DM_MAX_TYPE_NAME, "error");
	expect_refused("still has it open");
}

Test(crypt, a_device_published_bare_is_not_built_on)
{
	below.dev.below_major = LOOP;
	below.dev.attached = true;
	struct probe p = encrypted();
	run(&p, backend_get(BACKEND_LOOP)->attach);
	expect_failed(&p, ERR_PRECONDITION, "unpublish");
}

Test(crypt, failures_of_others_are_told)
{
	struct probe p = encrypted();
	below.fail = -EIO;
	run(&p, backend_get(BACKEND_LOOP)->attach);
	expect_failed(&p, ERR_INTERNAL, "below");
	p = encrypted();
	no_dm = -ENOENT;
	run(&p, backend_get(BACKEND_LOOP)->attach);
	expect_failed(&p, ERR_PRECONDITION, "modprobe -a dm_mod dm_crypt");
	cr_expect_not(below.dev.attached);
	p = encrypted();
	no_dm = -EACCES;
	run(&p, backend_get(BACKEND_LOOP)->attach);
	expect_failed(&p, ERR_INTERNAL, DM_CONTROL_PATH);
	no_dm = 0;
	static const unsigned long requests[] = {
		DM_DEV_STATUS, DM_TABLE_STATUS, DM_TABLE_DEPS, DM_DEV_SUSPEND};
	for (size_t i = 0; i < sizeof(requests) / sizeof(requests[0]); i++) {
		put_device(64 * MIB)->suspended = true;
		below.dev.attached = true;
		fake_dm_fail_request = requests[i];
		fake_dm_fail_with = -EIO;
		p = encrypted();
		run(&p, backend_get(BACKEND_LOOP)->attach);
		expect_failed(&p, ERR_INTERNAL, "device-mapper device");
		cr_expect(fake_dm_devices[0].there && below.dev.attached);
	}
	p = encrypted();
	snprintf(p.req.tag, sizeof(p.req.tag), "nonsense");
	run(&p, backend_get(BACKEND_LOOP)->attach);
	expect_failed(&p, ERR_INTERNAL, "nonsense");
}

/* ---- detach ---- */

Test(crypt, both_are_taken_away)
{
	struct probe p = attached();
	run(&p, backend_get(BACKEND_LOOP)->detach);
	cr_assert_not(op_failed(&p.op), "%s", p.op.err.message);
	cr_expect_not(p.req.dev.attached);
	cr_expect_not(fake_dm_devices[0].there);
	cr_expect_eq(below.detaches, 1);
	run(&p, backend_get(BACKEND_LOOP)->detach);
	cr_expect_not(op_failed(&p.op), "gone is gone");
}

Test(crypt, one_that_is_open_leads_nowhere_any_more)
{
	struct probe p = attached();
	fake_dm_devices[0].open = 1;
	run(&p, backend_get(BACKEND_LOOP)->detach);
	cr_assert_not(op_failed(&p.op));
	cr_expect_str_eq(fake_dm_devices[0].now.targets[0].type, "error");
	cr_expect(fake_dm_devices[0].deferred);
	cr_expect_not(below.dev.attached);
}

/* A node that cannot be opened, whatever it is. */
Test(crypt_alone, one_that_may_be_in_use_keeps_its_table)
{
	struct probe p = attached();
	fake_dm_devices[0].open = 1;
	cr_assert_eq(mount("none", "/dev", "tmpfs", 0, NULL), 0);
	cr_assert_eq(symlink("nowhere", "/dev/dm-300"), 0);
	run(&p, backend_get(BACKEND_LOOP)->detach);
	cr_assert_not(op_failed(&p.op), "%s", p.op.err.message);
	cr_expect_str_eq(fake_dm_devices[0].now.targets[0].type, "crypt");
	cr_expect(fake_dm_devices[0].deferred);
}

Test(crypt, half_of_one_goes_with_the_device_below)
{
	put_device(0);
	below.dev.attached = true;
	struct probe p = encrypted();
	p.req.dev = below.dev;
	run(&p, backend_get(BACKEND_LOOP)->detach);
	cr_assert_not(op_failed(&p.op));
	cr_expect_not(fake_dm_devices[0].there);
	cr_expect_not(below.dev.attached);
}

Test(crypt, a_detach_that_fails_keeps_the_device_below)
{
	struct probe p = attached();
	fake_dm_fail_request = DM_DEV_REMOVE;
	fake_dm_fail_with = -EIO;
	run(&p, backend_get(BACKEND_LOOP)->detach);
	expect_failed(&p, ERR_INTERNAL, name);
	cr_expect(below.dev.attached);
	no_dm = -EACCES;
	run(&p, backend_get(BACKEND_LOOP)->detach);
	expect_failed(&p, ERR_INTERNAL, DM_CONTROL_PATH);
	no_dm = 0;
	below.fail = -EIO;
	run(&p, backend_get(BACKEND_LOOP)->detach);
	expect_failed(&p, ERR_INTERNAL, "below");
	no_dm = -ENOENT; /* nothing can be there then */
	run(&p, backend_get(BACKEND_LOOP)->detach);
	cr_expect_not(op_failed(&p.op));
	cr_expect_not(below.dev.attached);
}

/* ---- resize ---- */

Test(crypt, it_grows_without_a_key)
{
	uint8_t buf[LUKS_ORDER_BYTES_MAX];
	struct probe p = attached();
	below.dev.size_bytes = 144 * MIB;
	p.req.secret = NULL;
	run(&p, backend_get(BACKEND_LOOP)->resize);
	cr_assert_not(op_failed(&p.op), "%s", p.op.err.message);
	cr_expect_eq(below.resizes, 1);
	struct luks_order order = order_of_child(buf);
	cr_expect_eq(order.what, LUKS_GROW);
	cr_expect_eq(order.key_len, 0);
	cr_expect_str_eq(order.name, name);
	cr_expect_str_eq(order.path, "/dev/loop3");
	expect_dev(&p.req.dev);
}

Test(crypt, a_resize_cut_short_is_finished_by_the_next_attach)
{
	uint8_t buf[LUKS_ORDER_BYTES_MAX];
	put_device(64 * MIB);
	below.dev.attached = true;
	below.dev.size_bytes = 144 * MIB;
	struct probe p = encrypted();
	p.req.secret = NULL;
	run(&p, backend_get(BACKEND_LOOP)->attach);
	cr_assert_not(op_failed(&p.op), "%s", p.op.err.message);
	cr_expect_eq(order_of_child(buf).what, LUKS_GROW);
	expect_dev(&p.req.dev);
	cr_expect(p.req.dev.found);
}

Test(crypt, a_resize_that_fails_says_so)
{
	struct probe p = attached();
	below.fail = -EIO;
	run(&p, backend_get(BACKEND_LOOP)->resize);
	expect_failed(&p, ERR_INTERNAL, "below");
	child_does("echo 'ringvol luks: because'; exit 10");
	run(&p, backend_get(BACKEND_LOOP)->resize);
	expect_failed(&p, ERR_INTERNAL, "because");
	cr_expect(fake_dm_devices[0].there && below.dev.attached);
}

/* ---- scan, look ---- */

static struct backend_dev scanned;
static unsigned scans;

static void on_scanned(void *arg, const struct backend_dev *dev)
{
	(void)arg;
	scanned = *dev;
	scans++;
}

static void scan(void)
{
	struct err err = {0};
	const struct backend *backend = backend_get(BACKEND_LOOP);
	scans = 0;
	cr_assert_eq(backend->scan(backend, on_scanned, NULL, &err), 0, "%s", err.message);
	cr_assert_eq(scans, 1, "one volume, one device");
}

Test(crypt, a_scan_tells_of_one_device)
{
	below.dev.attached = true;
	scan();
	cr_expect(!scanned.crypt && scanned.major == LOOP && scanned.below_major == 0);
	put_device(64 * MIB);
	scan();
	expect_dev(&scanned);
	put_device(0);
	scan();
	cr_expect(scanned.crypt && scanned.major == LOOP && scanned.below_major == 0,
		"whoever detaches it takes both");
	snprintf(put_device(64 * MIB)->now.targets[0].type, DM_MAX_TYPE_NAME, "linear");
	scan();
	cr_expect_not(scanned.crypt);
	put_device(64 * MIB);
	below.dev.image_ino++;
	scan();
	cr_expect_not(scanned.crypt, "of another image");
	no_dm = -ENXIO;
	scan();
	cr_expect_not(scanned.crypt);
}

Test(crypt, a_scan_that_cannot_know_says_so)
{
	struct err err = {0};
	const struct backend *backend = backend_get(BACKEND_LOOP);
	put_device(64 * MIB);
	fake_dm_fail_request = DM_TABLE_DEPS;
	fake_dm_fail_with = -EIO;
	err_clear(&err);
	cr_expect_lt(backend->scan(backend, on_scanned, NULL, &err), 0);
}

/* The device below has such a holder. */
static void put_holder(const char *holder_uuid)
{
	static const char *const dirs[] = {
		"7:3", "7:3/holders", "7:3/holders/dm-9", "7:3/holders/dm-9/dm"};
	char path[128];
	cr_assert_eq(mount("none", "/sys/dev/block", "tmpfs", 0, NULL), 0);
	for (size_t i = 0; i < sizeof(dirs) / sizeof(dirs[0]); i++) {
		snprintf(path, sizeof(path), "/sys/dev/block/%s", dirs[i]);
		cr_assert_eq(mkdir(path, 0755), 0);
	}
	_cleanup_fd_ int fd = open(
		"/sys/dev/block/7:3/holders/dm-9/dm/uuid", O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
	cr_assert_gt(write(fd, holder_uuid, strlen(holder_uuid)), 0);
}

Test(crypt_alone, a_device_mapper_that_may_not_be_used_hides_nothing_of_others)
{
	below.dev.attached = true;
	no_dm = -EACCES;
	scan();
	cr_expect(!scanned.crypt && scanned.major == LOOP);
	no_dm = -EPERM;
	scan();
	put_holder("LVM-" TAG);
	scan();
}

Test(crypt_alone, a_dm_crypt_that_cannot_be_looked_at_fails_the_scan)
{
	struct err err = {0};
	const struct backend *backend = backend_get(BACKEND_LOOP);
	below.dev.attached = true;
	put_holder(uuid);
	no_dm = -EACCES;
	cr_expect_lt(backend->scan(backend, on_scanned, NULL, &err), 0);
	cr_expect_not_null(strstr(err.message, "dm-crypt"));
	cr_expect_not_null(strstr(err.message, DM_CONTROL_PATH));
	no_dm = -ENOENT;
	scan();
}

Test(crypt, a_look_sees_both)
{
	const struct backend *backend = backend_get(BACKEND_LOOP);
	struct backend_dev now = {0};
	struct probe p = attached();
	cr_assert_eq(backend->look(backend, &p.req.dev, &now), 0);
	expect_dev(&now);
	fake_dm_devices[0].there = false;
	cr_expect_eq(backend->look(backend, &p.req.dev, &now), -ENXIO);
	put_device(64 * MIB);
	below.dev.attached = false;
	cr_expect_eq(backend->look(backend, &p.req.dev, &now), -ENXIO);
	no_dm = -ENOENT;
	cr_expect_eq(backend->look(backend, &p.req.dev, &now), -ENXIO);
	no_dm = -EACCES;
	cr_expect_eq(backend->look(backend, &p.req.dev, &now), -EACCES);
}

Test(crypt, read_only_is_a_flag_of_the_upper_node)
{
	const struct backend *backend = backend_get(BACKEND_LOOP);
	struct probe p = attached();
	cr_expect_eq(backend->set_read_only(backend, &p.req.dev, false), 0, "it is not");
	cr_expect_lt(backend->set_read_only(backend, &p.req.dev, true), 0, "there is no node");
	cr_expect_not(below.dev.read_only);
}

/* ---- what is not encrypted ---- */

Test(crypt, what_is_not_encrypted_passes_through)
{
	const struct backend *backend = backend_get(BACKEND_LOOP);
	struct backend_dev now;
	struct probe p = encrypted();
	no_dm = -EACCES; /* nobody asks for it */
	p.req.encrypted = false;
	p.req.secret = NULL;
	run(&p, backend->attach);
	cr_assert_not(op_failed(&p.op));
	cr_expect_eq(p.req.dev.major, LOOP);
	cr_expect(below.was_raw);
	run(&p, backend->resize);
	cr_assert_not(op_failed(&p.op));
	cr_expect_eq(backend->look(backend, &p.req.dev, &now), 0);
	cr_expect_eq(backend->set_read_only(backend, &p.req.dev, true), 0);
	cr_expect(below.dev.read_only);
	run(&p, backend->detach);
	cr_assert_not(op_failed(&p.op));
	cr_expect(below.attaches == 1 && below.resizes == 1 && below.detaches == 1);
	cr_expect_not(child_ran());
}

/* ---- orders ---- */

Test(luks_order, comes_out_as_it_went_in)
{
	uint8_t buf[LUKS_ORDER_BYTES_MAX];
	struct luks_order in = {.what = LUKS_OPEN,
				  .driver = 70000,
				  .read_only = true,
				  .sector_bytes = 512,
				  .major = 259,
				  .minor = 70000,
				  .path = "/dev/ublkb0",
				  .name = "name",
				  .uuid = "uuid",
				  .key_len = 3},
			  out;
	luks_order_print(&in, buf);
	memcpy(buf + LUKS_HEAD_BYTES, "key", 3);
	cr_assert_eq(luks_order_parse(buf, LUKS_HEAD_BYTES + 3, &out), 0);
	cr_expect(out.what == in.what && out.read_only && !out.format && !out.no_discard);
	cr_expect_eq(out.driver, 70000);
	cr_expect(out.sector_bytes == 512 && out.major == 259 && out.minor == 70000);
	cr_expect_str_eq(out.path, in.path);
	cr_expect_str_eq(out.name, in.name);
	cr_expect_str_eq(out.uuid, in.uuid);
	cr_expect(out.key_len == 3 && memcmp(out.key, "key", 3) == 0);
}

Test(luks_order, what_is_none_is_refused)
{
	uint8_t good[LUKS_ORDER_BYTES_MAX], bad[LUKS_ORDER_BYTES_MAX];
	const struct luks_order in = {.what = LUKS_OPEN,
		.sector_bytes = 512,
		.path = "/dev/loop0",
		.name = "name",
		.uuid = "uuid",
		.key_len = 3};
	struct luks_order out;
	luks_order_print(&in, good);
	memcpy(good + LUKS_HEAD_BYTES, "key", 3);
	cr_assert_eq(luks_order_parse(good, LUKS_HEAD_BYTES + 3, &out), 0);
	for (size_t len = 0; len < LUKS_HEAD_BYTES + 3; len += 7)
		cr_expect_eq(luks_order_parse(good, len, &out), -EBADMSG);
	cr_expect_eq(luks_order_parse(good, LUKS_HEAD_BYTES + 4, &out), -EBADMSG);
	/* magic, what, flags, sector, key length, path, name, uuid */
	static const struct {
		size_t at;
		uint8_t byte;
	} changes[] = {{0, 'X'}, {8, 2}, {8, 9}, {12, 8}, {16, 1}, {31, 1}, {36, 'x'}, {36, 0},
		{100, 0}, {228, 0}};
	for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++) {
		memcpy(bad, good, LUKS_HEAD_BYTES + 3);
		bad[changes[i].at] = changes[i].byte;
		cr_expect_eq(luks_order_parse(bad, LUKS_HEAD_BYTES + 3, &out), -EBADMSG, "byte %zu",
			changes[i].at);
	}
	memcpy(bad, good, LUKS_HEAD_BYTES + 3);
	memset(bad + 100, 'n', DM_NAME_LEN); /* no end */
	cr_expect_eq(luks_order_parse(bad, LUKS_HEAD_BYTES + 3, &out), -EBADMSG);
}
