/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The backend over the data process. Owns the connection, the calls under way, and the ping.
 *
 * The happy path of a request: (attach: open the image) -> ask. When nobody answers and starting a
 * data process is ours to do: start one, which takes until its socket answers, and ask again. Every
 * request converges, so asking again is always right.
 * It fails with the data process's own errors, with ERR_UNAVAILABLE when there is none, and with
 * ERR_PRECONDITION on a kernel without ublk, which is found before anything is asked.
 *
 * The steps of a request outlive what the caller gave (an undo has no end), so they are a struct of
 * their own, given back when the next request begins.
 */
#include "backends/ublk/ublk.h"

#include "backends/ublk/ublkc.h"
#include "base/fd.h"
#include "blockio/blkdev.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

_Static_assert(sizeof((struct backend_dev){0}.tag) == UBLKD_TAG_BYTES, "one tag, two structs");
_Static_assert(sizeof((struct backend_dev){0}.path) == sizeof((struct ublkd_device){0}.node),
	"one path, two structs");

/* One request, or one ping. */
struct ublk_call {
	struct op op;
	struct list link; /* ublk.calls */
	struct backend_req *req;
	struct ublkc_call call;
	struct proc start;
	int image_fd;
	bool absent; /* nobody answered the first time */
};

static struct ublk {
	struct reactor *reactor;
	struct backend_ublk_config config;
	struct ublkc *client;
	struct list calls; /* those under way, and those that ended and wait to be given back */
	char program[PATH_MAX];
	struct ring_timer ping_timer;
	struct ublk_call ping;
	atomic_bool in_use; /* there is, or may be, a device */
	int32_t pid;        /* of the data process that answered last; 0: none has */
	uint64_t away_ns;   /* since when pings have no answer; 0: the last one had one */
} * ublk;

/* ---- devices ---- */

void backend_ublk_dev(const struct ublkd_device *from, struct backend_dev *to)
{
	*to = (struct backend_dev){
		.attached = from->state != UBLKD_DEV_NONE,
		.major = from->major,
		.minor = from->minor,
		.size_bytes = from->size_bytes,
		.image_dev = from->image_dev,
		.image_ino = from->image_ino,
		.direct_io = from->flags & UBLKD_DIRECT_IO,
		.read_only = from->flags & UBLKD_READ_ONLY,
		.going_away = from->state == UBLKD_DEV_DETACHING,
		.limits = from->limits,
	};
	for (unsigned write = 0; write < 2; write++) {
		to->throttled.requests[write] = from->throttled.requests[write];
		to->throttled.wait_ns[write] = from->throttled.wait_ns[write];
	}
	snprintf(to->path, sizeof(to->path), "%.*s", (int)sizeof(from->node) - 1, from->node);
	snprintf(to->tag, sizeof(to->tag), "%.*s", (int)sizeof(from->tag) - 1, from->tag);
}

/* The number in /dev/ublkb7. */
static int dev_id(const struct backend_dev *dev, uint32_t *ret)
{
	char extra;
	return sscanf(dev->path, "/dev/ublkb%u%c", ret, &extra) == 1 ? 0 : -EINVAL;
}

/* A ublk block node takes no ioctl but the block layer's own (drivers/block/ublk_drv.c, ub_fops has
 * none), so a raw one needs no guard. */
static int ublk_check(const struct backend *backend, bool raw, struct err *err)
{
	(void)backend;
	(void)raw;
	if (access(ublk->config.control_path, F_OK) == 0)
		return 0;
	return err_set(err, ERR_PRECONDITION,
		"device: ublk is not available on this node: there is no %s; load the kernel module "
		"ublk_drv (Linux 6.8 or newer: modprobe ublk_drv), or use device: loop",
		ublk->config.control_path);
}

/* ---- asking ---- */

static struct ublk_call *call_of(struct op *op)
{
	return container_of(op, struct ublk_call, op);
}

static void call_on_end(struct ublkc_call *call, int res)
{
	op_complete(&container_of(call, struct ublk_call, call)->op, res);
}

static int ask_run(struct op *op)
{
	struct ublk_call *c = call_of(op);
	c->call.fd = c->image_fd;
	c->call.on_end = call_on_end;
	err_clear(&c->call.err);
	ublkc_submit(ublk->client, &c->call, UBLK_CALL_TIMEOUT_MS);
	return op_wait(op);
}

static int asked(struct op *op, int res)
{
	struct ublk_call *c = call_of(op);
	if (res < 0) {
		op->err = c->call.err;
		return res;
	}
	if (c->req != NULL && c->call.request.head.type == UBLKD_DETACH &&
		c->call.reply.device.state == UBLKD_DEV_NONE)
		c->req->dev.attached = false;
	else if (c->req != NULL)
		backend_ublk_dev(&c->call.reply.device, &c->req->dev);
	return 0;
}

static int ask_end(struct op *op, int res)
{
	struct ublk_call *c = call_of(op);
	c->absent = res < 0 && c->call.err.code == ERR_UNAVAILABLE && ublk->config.start;
	return c->absent ? 0 : asked(op, res);
}

static bool present(struct op *op)
{
	return !call_of(op)->absent;
}

/* The bound ends what has not gone to the background. What has goes on: if it was only slow, the
 * next request finds it serving. */
static int start_run(struct op *op)
{
	struct ublk_call *c = call_of(op);
	c->start = (struct proc){
		.argv = {ublk->program, "ublkd", "--detach", "--socket", ublk->config.socket_path,
			"--state-dir", ublk->config.state_dir, NULL},
		.timeout_ms = ublk->config.start_timeout_ms,
	};
	return op_proc(op, &c->start);
}

static int start_end(struct op *op, int res)
{
	struct ublk_call *c = call_of(op);
	if (res == 0)
		return 0;
	if (res == -ETIMEDOUT)
		return op_fail(op, ERR_TIMEOUT,
			"the data process (%s ublkd) did not serve within %g s of its start: try again; if that does not help, start it by hand and see what it says",
			ublk->program, (double)ublk->config.start_timeout_ms / 1000);
	if (res < 0)
		return op_fail_sys(op, res, "starting the data process (%s ublkd)", ublk->program);
	return op_fail(op, ERR_UNAVAILABLE, "the data process does not start (exit %d): %.250s",
		res, c->start.output);
}

/* ---- the image ---- */

static bool open_done(struct op *op)
{
	return call_of(op)->call.request.head.type != UBLKD_ATTACH;
}

static int open_run(struct op *op)
{
	const struct backend_req *req = call_of(op)->req;
	int flags = (req->read_only ? O_RDONLY : O_RDWR) | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
	io_uring_prep_openat(
		op_sqe(op), req->dirfd, req->image, flags | (req->direct_io ? O_DIRECT : 0), 0);
	return op_submit(op);
}

/* Where the image is for a data process that starts again: what /proc says of the descriptor, which
 * is its path in our mount namespace. It looks for itself whether that is the same file there. */
static int image_path(int fd, char *ret, size_t size)
{
	char link[32];
	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	ssize_t len = readlink(link, ret, size - 1);
	if (len < 0)
		return -errno;
	ret[len] = '\0';
	return 0;
}

static int open_end(struct op *op, int res)
{
	struct ublk_call *c = call_of(op);
	struct stat st;
	if (res < 0)
		return op_fail_sys(op, res, "opening the image %s", c->req->image);
	c->image_fd = res;
	if (fstat(res, &st) < 0)
		return op_fail_sys(op, -errno, "looking at the image %s", c->req->image);
	c->call.request.image_dev = st.st_dev;
	c->call.request.image_ino = st.st_ino;
	int r = image_path(res, c->call.request.path, sizeof(c->call.request.path));
	return r < 0 ? op_fail_sys(op, r, "looking for the image %s", c->req->image) : 0;
}

static int close_run(struct op *op)
{
	fd_close(&call_of(op)->image_fd);
	return 0;
}

static int open_undo(struct op *op)
{
	return close_run(op);
}

static const struct op_step call_steps[] = {
	{"open", .done = open_done, .run = open_run, .end = open_end, .undo = open_undo},
	{"ask", .run = ask_run, .end = ask_end},
	{"start the data process", .done = present, .run = start_run, .end = start_end},
	{"ask again", .done = present, .run = ask_run, .end = asked},
	{"close", .run = close_run},
	{NULL},
};

/* ---- the ping ---- */

static void ping_arm(void)
{
	if (atomic_load(&ublk->in_use) && !op_running(&ublk->ping.op) &&
		!ring_timer_armed(&ublk->ping_timer))
		ring_timer_arm(ublk->reactor->ring, &ublk->ping_timer, UBLK_PING_MS);
}

static void ping_on_end(struct op *op)
{
	struct ublk_call *c = call_of(op);
	if (op_failed(op) && ublk->away_ns == 0)
		ublk->away_ns = ring_now_ns(ublk->reactor->ring);
	if (!op_failed(op)) {
		int32_t before = ublk->pid;
		ublk->away_ns = 0;
		ublk->pid = c->call.reply.pid;
		if (before != 0 && before != ublk->pid && ublk->config.on_returned != NULL)
			ublk->config.on_returned(ublk->config.arg);
		if (c->call.reply.devices == 0)
			atomic_store(&ublk->in_use, false);
	}
	ring_timer_arm(ublk->reactor->ring, &ublk->ping_timer, UBLK_PING_MS);
	if (!atomic_load(&ublk->in_use))
		ring_timer_cancel(ublk->reactor->ring, &ublk->ping_timer);
}

static void ping_on_timer(struct ring_timer *timer)
{
	(void)timer;
	struct ublk_call *c = &ublk->ping;
	*c = (struct ublk_call){.image_fd = -1};
	c->call.request.head.type = UBLKD_HELLO;
	op_init(&c->op, ublk->reactor, "ublk ping", call_steps, ping_on_end);
	op_start(&c->op);
}

/* ---- the vtable ---- */

static void give_back(void)
{
	list_for_each_safe (l, &ublk->calls) {
		struct ublk_call *c = container_of(l, struct ublk_call, link);
		if (op_running(&c->op))
			continue;
		list_remove(&c->link);
		free(c);
	}
}

/* A call for the current step; NULL: out of memory, which op->err says. */
static struct ublk_call *call_new(struct op *op, struct backend_req *req, enum ublkd_type type)
{
	give_back();
	struct ublk_call *c = calloc(1, sizeof(*c));
	if (c == NULL) {
		err_sys(&op->err, -ENOMEM, "asking the data process");
		return NULL;
	}
	c->req = req;
	c->image_fd = -1;
	c->call.request.head.type = (uint16_t)type;
	memcpy(c->call.request.tag, req->tag, sizeof(c->call.request.tag));
	list_push(&ublk->calls, &c->link);
	op_init(&c->op, op->reactor, "ublk call", call_steps, NULL);
	return c;
}

static uint64_t ublk_away_since_ns(const struct backend *backend)
{
	(void)backend;
	return ublk->away_ns;
}

static int ublk_attach(const struct backend *backend, struct op *op, struct backend_req *req)
{
	int r = ublk_check(backend, req->raw, &op->err);
	if (r < 0)
		return r;
	struct ublk_call *c = call_new(op, req, UBLKD_ATTACH);
	if (c == NULL)
		return -ENOMEM;
	c->call.request.block_size = req->block_size;
	c->call.request.flags =
		(req->read_only ? UBLKD_READ_ONLY : 0) | (req->no_discard ? UBLKD_NO_DISCARD : 0);
	c->call.request.limits = req->limits;
	atomic_store(&ublk->in_use, true);
	ping_arm();
	return op_child(op, &c->op);
}

/* Of a device that is there. */
static int ask_device(struct op *op, struct backend_req *req, enum ublkd_type type)
{
	uint32_t id;
	int r = dev_id(&req->dev, &id);
	if (r < 0)
		return err_sys(&op->err, r, "%s is no ublk device", req->dev.path);
	struct ublk_call *c = call_new(op, req, type);
	if (c == NULL)
		return -ENOMEM;
	c->call.request.dev_id = id;
	c->call.request.image_dev = req->dev.image_dev;
	c->call.request.image_ino = req->dev.image_ino;
	c->call.request.limits = req->limits;
	return op_child(op, &c->op);
}

static int ublk_detach(const struct backend *backend, struct op *op, struct backend_req *req)
{
	(void)backend;
	return ask_device(op, req, UBLKD_DETACH);
}

static int ublk_resize(const struct backend *backend, struct op *op, struct backend_req *req)
{
	(void)backend;
	return ask_device(op, req, UBLKD_RESIZE);
}

static int ublk_limit(const struct backend *backend, struct op *op, struct backend_req *req)
{
	(void)backend;
	return ask_device(op, req, UBLKD_LIMIT);
}

struct scan {
	void (*each)(void *arg, const struct backend_dev *dev);
	void *arg;
};

static void scan_on_device(void *arg, const struct ublkd_device *from)
{
	const struct scan *scan = arg;
	struct backend_dev dev;
	backend_ublk_dev(from, &dev);
	scan->each(scan->arg, &dev);
}

static int ublk_scan(const struct backend *backend,
	void (*each)(void *arg, const struct backend_dev *dev), void *arg, struct err *err)
{
	(void)backend;
	struct scan scan = {each, arg};
	if (access(ublk->config.control_path, F_OK) < 0)
		return 0; /* no driver in the kernel, no devices */
	return ublkc_scan(ublk->config.socket_path, ublk->config.state_dir, UBLK_CALL_TIMEOUT_MS,
		scan_on_device, &scan, err);
}

static int ublk_set_read_only(
	const struct backend *backend, const struct backend_dev *dev, bool read_only)
{
	(void)backend;
	return blkdev_set_read_only(dev->path, read_only);
}

static const struct backend backend_ublk = {
	.type = BACKEND_UBLK,
	.name = "ublk",
	.devices_max = UBLKD_DEVICES_MAX,
	.needs_image_again = true,
	.check = ublk_check,
	.away_since_ns = ublk_away_since_ns,
	.attach = ublk_attach,
	.detach = ublk_detach,
	.resize = ublk_resize,
	.limit = ublk_limit,
	.scan = ublk_scan,
	.set_read_only = ublk_set_read_only,
};

int backend_ublk_open(struct reactor *reactor, const struct backend_ublk_config *config)
{
	struct ublk *u = calloc(1, sizeof(*u));
	if (u == NULL)
		return -ENOMEM;
	u->reactor = reactor;
	u->config = *config;
	if (config->control_path == NULL)
		u->config.control_path = UBLK_CONTROL_PATH;
	if (config->start_timeout_ms == 0)
		u->config.start_timeout_ms = UBLK_START_TIMEOUT_MS;
	list_init(&u->calls);
	u->ping_timer.fn = ping_on_timer;
	/* Not the link itself: an upgraded driver is to start the data process of its version. */
	ssize_t len = readlink("/proc/self/exe", u->program, sizeof(u->program) - 1);
	int r = len < 0 ? -errno : ublkc_open(&u->client, reactor->ring, config->socket_path);
	if (r < 0) {
		free(u);
		return r;
	}
	u->program[len] = '\0';
	ublk = u;
	backend_add(&backend_ublk);
	return 0;
}

void backend_ublk_close(void)
{
	if (ublk == NULL)
		return;
	backend_remove(&backend_ublk);
	ring_timer_cancel(ublk->reactor->ring, &ublk->ping_timer);
	give_back();
	ublkc_close(ublk->client);
	free(ublk);
	ublk = NULL;
}
