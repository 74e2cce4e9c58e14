/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver's half of ublk against a data process made up here: a thread that takes requests off a
 * socket, keeps them for the test to look at, and answers what the test has prepared.
 */
#include "backends/ublk/ublk.h"
#include "backends/ublk/ublkd_proto.h"
#include "base/fd.h"
#include "reactor/ring_uring.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SEEN_MAX = 64, PATIENCE_TURNS = 2000 };

/* ---- the made-up data process ---- */

static struct {
	int listener, conn, stop[2];
	pthread_t thread;
	atomic_int pid, devices, hellos;
	/* Written by the thread before it answers, read by the test after the answer. */
	struct ublkd_request seen[SEEN_MAX];
	ino_t seen_ino[SEEN_MAX];
	atomic_int count;
	/* What the next request that is no HELLO gets. */
	struct ublkd_device device;
	struct err err;
} fake;

static void take_image(struct msghdr *msg, ino_t *ret_ino)
{
	struct cmsghdr *c = CMSG_FIRSTHDR(msg);
	struct stat st;
	int fd;
	*ret_ino = 0;
	if (c == NULL || c->cmsg_type != SCM_RIGHTS)
		return;
	memcpy(&fd, CMSG_DATA(c), sizeof(fd));
	if (fstat(fd, &st) == 0)
		*ret_ino = st.st_ino;
	close(fd);
}

static bool answer_one(void)
{
	struct ublkd_request request = {0};
	char control[CMSG_SPACE(sizeof(int))];
	struct iovec iov = {&request, sizeof(request)};
	struct msghdr msg = {.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = control,
		.msg_controllen = sizeof(control)};
	ssize_t n = recvmsg(fake.conn, &msg, MSG_CMSG_CLOEXEC);
	if (n <= 0)
		return false;
	struct ublkd_reply reply = {.head = request.head};
	reply.pid = atomic_load(&fake.pid);
	if (request.head.type == UBLKD_HELLO) {
		reply.devices = (uint32_t)atomic_load(&fake.devices);
		reply.flags = UBLKD_HAS_UBLK;
		atomic_fetch_add(&fake.hellos, 1);
	} else {
		int at = atomic_load(&fake.count) % SEEN_MAX;
		fake.seen[at] = request;
		take_image(&msg, &fake.seen_ino[at]);
		atomic_fetch_add(&fake.count, 1);
		if (fake.err.code != ERR_OK)
			ublkd_reply_fail(&reply, -EBUSY, &fake.err);
		else
			reply.device = fake.device;
	}
	return send(fake.conn, &reply, sizeof(reply), MSG_NOSIGNAL) == sizeof(reply);
}

static void *fake_main(void *arg)
{
	(void)arg;
	for (;;) {
		struct pollfd fds[] = {{.fd = fake.stop[0], .events = POLLIN},
			{.fd = fake.conn >= 0 ? fake.conn : fake.listener, .events = POLLIN}};
		if (poll(fds, 2, -1) < 0 || fds[0].revents != 0)
			break;
		if (fake.conn < 0)
			fake.conn = accept4(fake.listener, NULL, NULL, SOCK_CLOEXEC);
		else if (!answer_one())
			fd_close(&fake.conn);
	}
	fd_close(&fake.conn);
	fd_close(&fake.listener);
	return NULL;
}

/* ---- the test's side ---- */

static char dir[] = "/tmp/test-backend-ublk-XXXXXX";
static char socket_path[64], control_path[64], image_path[64];
static struct reactor reactor;
static const struct backend *backend;
static atomic_int returned;

static bool fake_listen(const char *path)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	snprintf(address.sun_path, sizeof(address.sun_path), "%s", path);
	unlink(path);
	fake.conn = -1;
	fake.listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	return bind(fake.listener, (struct sockaddr *)&address, sizeof(address)) == 0 &&
	       listen(fake.listener, 8) == 0;
}

static void fake_start(int pid)
{
	fake.pid = pid;
	cr_assert(fake_listen(socket_path));
	cr_assert(pipe2(fake.stop, O_CLOEXEC) == 0);
	cr_assert(pthread_create(&fake.thread, NULL, fake_main, NULL) == 0);
}

static void fake_stop(void)
{
	close(fake.stop[1]);
	pthread_join(fake.thread, NULL);
	close(fake.stop[0]);
}

static void on_returned(void *arg)
{
	(void)arg;
	returned++;
}

static uint64_t start_timeout_ms; /* 0: as long as in earnest */

static void open_backend(bool start)
{
	struct backend_ublk_config config = {
		.socket_path = socket_path,
		.state_dir = dir,
		.control_path = control_path,
		.start = start,
		.start_timeout_ms = start_timeout_ms,
		.on_returned = on_returned,
	};
	cr_assert(backend_ublk_open(&reactor, &config) == 0);
	backend = backend_get(BACKEND_UBLK);
	cr_assert(backend != NULL);
}

static void touch(const char *path, off_t size)
{
	int fd = open(path, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
	cr_assert(fd >= 0 && ftruncate(fd, size) == 0);
	close(fd);
}

static void setup(void)
{
	memset(&fake, 0, sizeof(fake));
	returned = 0;
	cr_assert(mkdtemp(dir) != NULL);
	snprintf(socket_path, sizeof(socket_path), "%s/ublkd.sock", dir);
	snprintf(control_path, sizeof(control_path), "%s/ublk-control", dir);
	snprintf(image_path, sizeof(image_path), "%s/image", dir);
	touch(control_path, 0);
	touch(image_path, 1 << 20);
	cr_assert(ring_open(&reactor.ring, &(struct ring_config){0}) == 0);
	cr_assert(work_open(&reactor.work, reactor.ring, 1) == 0);
}

static void teardown(void)
{
	backend_ublk_close();
	work_close(reactor.work);
	ring_close(reactor.ring);
	unlink(socket_path);
	unlink(control_path);
	unlink(image_path);
	rmdir(dir);
}

TestSuite(backend_ublk, .init = setup, .fini = teardown);

struct probe {
	struct op op;
	struct backend_req req;
	int (*call)(const struct backend *backend, struct op *op, struct backend_req *req);
	bool ended;
};

static int probe_run(struct op *op)
{
	struct probe *p = container_of(op, struct probe, op);
	return p->call(backend, op, &p->req);
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

static void run(struct probe *p)
{
	p->ended = false;
	op_init(&p->op, &reactor, "probe", probe_steps, probe_on_end);
	op_start(&p->op);
	while (!p->ended)
		cr_assert(ring_turn(reactor.ring, true) == 0);
}

static void prepare(struct probe *p, int dirfd)
{
	*p = (struct probe){.call = backend->attach,
		.req = {.dirfd = dirfd,
			.image = "image",
			.tag = "ringvol:01234567:89abcdef",
			.block_size = 4096,
			.no_discard = true}};
}

static void prepare_device(uint32_t state)
{
	fake.device = (struct ublkd_device){.state = state,
		.dev_id = 7,
		.major = 259,
		.minor = 3,
		.node = "/dev/ublkb7",
		.tag = "ringvol:01234567:89abcdef",
		.image_dev = 1,
		.image_ino = 2,
		.size_bytes = 1 << 20,
		.flags = UBLKD_DIRECT_IO};
}

Test(backend_ublk, attach_brings_the_image)
{
	struct probe p;
	struct stat st;
	open_backend(false);
	fake_start(100);
	int dirfd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	prepare(&p, dirfd);
	prepare_device(UBLKD_DEV_LIVE);
	run(&p);
	cr_assert(!op_failed(&p.op), "%s", p.op.err.message);
	cr_assert(fake.count == 1 && stat(image_path, &st) == 0);
	const struct ublkd_request *r = &fake.seen[0];
	cr_assert_eq(r->head.type, UBLKD_ATTACH);
	cr_assert_str_eq(r->tag, p.req.tag);
	cr_assert_str_eq(r->path, image_path);
	cr_assert(r->image_ino == st.st_ino && r->image_dev == st.st_dev);
	cr_assert_eq(fake.seen_ino[0], st.st_ino);
	cr_assert(r->block_size == 4096 && r->flags == UBLKD_NO_DISCARD);
	cr_assert(p.req.dev.attached && p.req.dev.major == 259 && p.req.dev.minor == 3);
	cr_assert_str_eq(p.req.dev.path, "/dev/ublkb7");
	cr_assert(p.req.dev.direct_io && !p.req.dev.read_only && !p.req.dev.going_away);

	/* Its device again, by number. */
	p.call = backend->resize;
	fake.device.size_bytes = 2 << 20;
	run(&p);
	cr_assert(!op_failed(&p.op) && p.req.dev.size_bytes == 2 << 20);
	cr_assert(fake.seen[1].head.type == UBLKD_RESIZE && fake.seen[1].dev_id == 7);
	cr_assert(fake.seen[1].image_dev == 1 && fake.seen[1].image_ino == 2);
	cr_assert_eq(fake.seen_ino[1], 0);

	/* Somebody still has it open, then not. */
	p.call = backend->detach;
	fake.device.state = UBLKD_DEV_DETACHING;
	run(&p);
	cr_assert(!op_failed(&p.op) && p.req.dev.attached && p.req.dev.going_away);
	fake.device = (struct ublkd_device){0};
	run(&p);
	cr_assert(!op_failed(&p.op) && !p.req.dev.attached);
	close(dirfd);
	fake_stop();
}

Test(backend_ublk, limits_go_there_and_come_back)
{
	struct probe p;
	const struct io_limits limits = {100, 200, 1 << 20, 2 << 20}, none = {0};
	open_backend(false);
	fake_start(100);
	int dirfd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	prepare(&p, dirfd);
	p.req.limits = limits;
	prepare_device(UBLKD_DEV_LIVE);
	/* An older one takes what it knows, and tells of none. */
	run(&p);
	cr_assert(!op_failed(&p.op), "%s", p.op.err.message);
	cr_assert(io_limits_equal(&fake.seen[0].limits, &limits));
	cr_assert(io_limits_equal(&p.req.dev.limits, &none));
	p.call = backend->limit;
	err_set(&fake.err, ERR_UNIMPLEMENTED, "it does not know this request: upgrade it");
	run(&p);
	cr_assert_eq(p.op.err.code, ERR_UNIMPLEMENTED);
	err_clear(&fake.err);

	fake.device.limits = limits;
	fake.device.throttled = (struct ublk_throttled){{3, 4}, {5, 6}};
	run(&p);
	cr_assert(!op_failed(&p.op), "%s", p.op.err.message);
	cr_assert(fake.seen[2].head.type == UBLKD_LIMIT && fake.seen[2].dev_id == 7);
	cr_assert(io_limits_equal(&fake.seen[2].limits, &limits));
	cr_assert(io_limits_equal(&p.req.dev.limits, &limits));
	cr_assert(p.req.dev.throttled.requests[0] == 3 && p.req.dev.throttled.requests[1] == 4);
	cr_assert(p.req.dev.throttled.wait_ns[0] == 5 && p.req.dev.throttled.wait_ns[1] == 6);
	close(dirfd);
	fake_stop();
}

Test(backend_ublk, its_errors_are_ours)
{
	struct probe p;
	open_backend(false);
	fake_start(100);
	int dirfd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	prepare(&p, dirfd);
	err_set(&fake.err, ERR_NO_ROOM, "no more devices; detach some");
	run(&p);
	cr_assert(p.op.err.code == ERR_NO_ROOM, "%s", p.op.err.message);
	cr_assert(strstr(p.op.err.message, "detach some") != NULL, "%s", p.op.err.message);
	cr_assert(!p.req.dev.attached);
	close(dirfd);
	fake_stop();
}

Test(backend_ublk, no_image_no_question)
{
	struct probe p;
	open_backend(false);
	fake_start(100);
	int dirfd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	prepare(&p, dirfd);
	p.req.image = "no-image";
	run(&p);
	cr_assert(p.op.err.errnum == ENOENT && fake.count == 0, "%s", p.op.err.message);
	close(dirfd);
	fake_stop();
}

Test(backend_ublk, nobody_answers)
{
	struct probe p;
	open_backend(false);
	int dirfd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	prepare(&p, dirfd);
	run(&p);
	cr_assert(p.op.err.code == ERR_UNAVAILABLE, "%s", p.op.err.message);
	cr_assert(strstr(p.op.err.message, socket_path) != NULL, "%s", p.op.err.message);
	close(dirfd);
}

/* ---- a data process that is started: this program again, and a file of the test's says how it
 * goes; without one it does not know the command ---- */

enum { STARTED_LIVES_S = 60 }; /* when the test does not end it */

/* Never says a word, and neither does what it started itself. */
static void started_silent(int dirfd)
{
	(void)fork();
	alarm(STARTED_LIVES_S);
	(void)close(openat(dirfd, "reached", O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
	for (;;)
		pause();
}

/* In the background, one connection to its end. It has left the first one's group before that ends,
 * and listens itself: the client looks whether who did so is alive. */
static void started_serves(const char *path)
{
	int ready[2];
	char word = 0;
	if (pipe2(ready, O_CLOEXEC) < 0)
		_exit(1);
	pid_t pid = fork();
	close(ready[pid == 0 ? 0 : 1]);
	if (pid != 0)
		_exit(pid > 0 && read(ready[0], &word, 1) == 1 ? 0 : 1);
	alarm(STARTED_LIVES_S);
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);
	if (setsid() < 0 || dup2(null, STDOUT_FILENO) < 0 || dup2(null, STDERR_FILENO) < 0 ||
		!fake_listen(path) || write(ready[1], &word, 1) != 1)
		_exit(1);
	prepare_device(UBLKD_DEV_LIVE);
	atomic_store(&fake.pid, getpid());
	fake.conn = accept4(fake.listener, NULL, NULL, SOCK_CLOEXEC);
	while (answer_one())
		;
	_exit(0);
}

__attribute__((constructor)) static void started(int argc, char **argv)
{
	if (argc != 7 || strcmp(argv[1], "ublkd") != 0)
		return;
	int dirfd = open(argv[6], O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (faccessat(dirfd, "silent", F_OK, 0) == 0)
		started_silent(dirfd);
	if (faccessat(dirfd, "serves", F_OK, 0) == 0)
		started_serves(argv[4]);
}

static void in_dir(const char *name, bool there)
{
	char path[64];
	snprintf(path, sizeof(path), "%s/%s", dir, name);
	if (there)
		touch(path, 0);
	else
		cr_assert(unlink(path) == 0);
}

static bool is_in_dir(const char *name)
{
	char path[64];
	snprintf(path, sizeof(path), "%s/%s", dir, name);
	return access(path, F_OK) == 0;
}

/* A resize: unlike an attach it does not begin the watch, which would start others. */
static void run_resize(struct probe *p)
{
	*p = (struct probe){.call = backend->resize,
		.req = {.tag = "ringvol:01234567:89abcdef", .dev = {.path = "/dev/ublkb7"}}};
	run(p);
}

/* The bound is made longer until the process gets as far as being silent. */
Test(backend_ublk, a_data_process_that_never_answers_is_ended)
{
	struct probe p;
	int status;
	/* What the process leaves behind is ours to wait for, and to miss. */
	cr_assert(prctl(PR_SET_CHILD_SUBREAPER, 1) == 0);
	in_dir("silent", true);
	for (start_timeout_ms = 50; !is_in_dir("reached"); start_timeout_ms *= 2) {
		backend_ublk_close();
		open_backend(true);
		run_resize(&p);
		cr_assert(p.op.err.code == ERR_TIMEOUT, "%s", p.op.err.message);
		cr_assert(strstr(p.op.err.message, "the data process (/") != NULL, "%s",
			p.op.err.message);
		cr_assert(strstr(p.op.err.message, "start it by hand") != NULL, "%s",
			p.op.err.message);
		while (waitpid(-1, &status, 0) > 0)
			cr_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
		cr_assert(errno == ECHILD);
	}
	in_dir("silent", false);
	in_dir("reached", false);

	/* The next attempt meets one that works. */
	in_dir("serves", true);
	start_timeout_ms = 0;
	backend_ublk_close();
	open_backend(true);
	run_resize(&p);
	cr_assert(!op_failed(&p.op), "%s", p.op.err.message);
	cr_assert(p.req.dev.attached && p.req.dev.size_bytes == 1 << 20);
	in_dir("serves", false);
	backend_ublk_close();
	cr_assert(waitpid(-1, &status, 0) > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

Test(backend_ublk, the_data_process_does_not_start)
{
	struct probe p;
	open_backend(true);
	int dirfd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	prepare(&p, dirfd);
	run(&p);
	cr_assert(op_failed(&p.op));
	cr_assert(strstr(p.op.err.message, "data process") != NULL, "%s", p.op.err.message);
	close(dirfd);
}

Test(backend_ublk, no_ublk_in_the_kernel)
{
	struct probe p;
	struct err err = {0};
	open_backend(false);
	unlink(control_path);
	int dirfd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	prepare(&p, dirfd);
	run(&p);
	cr_assert(p.op.err.code == ERR_PRECONDITION, "%s", p.op.err.message);
	cr_assert(strstr(p.op.err.message, "ublk_drv") != NULL, "%s", p.op.err.message);
	cr_assert(backend_check(BACKEND_UBLK, true, &err) < 0 && err.code == ERR_PRECONDITION);
	close(dirfd);
	backend_ublk_close();
	err_clear(&err);
	cr_assert(backend_check(BACKEND_UBLK, true, &err) < 0 && err.code == ERR_PRECONDITION);
}

/* Looks for the end of something the watch does. */
static bool turn_until(atomic_int *value, int wanted)
{
	for (int i = 0; i < PATIENCE_TURNS && atomic_load(value) < wanted; i++)
		cr_assert(ring_turn(reactor.ring, true) == 0);
	return atomic_load(value) >= wanted;
}

Test(backend_ublk, another_data_process_is_noticed)
{
	struct probe p;
	open_backend(false);
	fake.devices = 1;
	fake_start(100);
	int dirfd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	prepare(&p, dirfd);
	prepare_device(UBLKD_DEV_LIVE);
	run(&p);
	/* The watch has to meet the first before there can be another. */
	cr_assert(turn_until(&fake.hellos, 2), "nobody watches");
	cr_assert(backend->away_since_ns(backend) == 0);
	fake_stop();
	for (int i = 0; i < PATIENCE_TURNS && backend->away_since_ns(backend) == 0; i++)
		cr_assert(ring_turn(reactor.ring, true) == 0);
	cr_assert(backend->away_since_ns(backend) != 0, "its absence is not noticed");
	fake_start(200);
	fake.devices = 1;
	cr_assert(turn_until(&returned, 1), "nobody was told");
	cr_assert(backend->away_since_ns(backend) == 0);
	close(dirfd);
	fake_stop();
}
