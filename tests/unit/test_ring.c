/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel's ring: what holds whatever the kernel does. */
#include "base/fd.h"
#include "reactor/ring.h"
#include "reactor/ring_bufs.h"
#include "reactor/ring_uring.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>

struct probe {
	struct ring_req req;
	struct ring *ring;
	int calls, res;
	uint32_t flags;
	uint8_t byte;
};

static struct ring *ring;
static bool inside;

static void on_done(struct ring_req *req, int res, uint32_t flags)
{
	struct probe *p = container_of(req, struct probe, req);
	cr_assert_not(inside, "a callback ran inside the call that armed it");
	cr_assert_eq(req->armed, (flags & IORING_CQE_F_MORE) != 0);
	p->calls++;
	p->res = res;
	p->flags = flags;
}

static void open_ring(unsigned entries)
{
	cr_assert_eq(ring_open(&ring, &(struct ring_config){.entries = entries}), 0);
}

static void setup(void)
{
	open_ring(0);
}

static void teardown(void)
{
	ring_close(ring);
}

static void submit(struct probe *p)
{
	p->req.fn = on_done;
	inside = true;
	ring_submit(ring, &p->req);
	inside = false;
}

static void cancel(struct probe *p)
{
	inside = true;
	ring_cancel(ring, &p->req);
	inside = false;
}

static void turn_until(const struct probe *p, int calls)
{
	for (int i = 0; p->calls < calls; i++) {
		cr_assert_lt(i, 10000);
		cr_assert_eq(ring_turn(ring, true), 0);
	}
}

/* A turn that does not wait, a few times: nothing more may come. */
static void turn_idle(void)
{
	for (int i = 0; i < 3; i++)
		cr_assert_eq(ring_turn(ring, false), 0);
}

TestSuite(ring, .init = setup, .fini = teardown);

Test(ring, features_of_a_kernel_we_support)
{
	const struct ring_features *f = ring_features(ring);
	cr_assert(f->defer_taskrun && f->single_issuer && f->multishot_accept &&
		  f->multishot_recv && f->buf_ring);
}

Test(ring, a_nop_completes_once_and_from_a_turn)
{
	struct probe p = {0};
	io_uring_prep_nop(&p.req.sqe);
	submit(&p);
	cr_assert(p.req.armed);
	turn_until(&p, 1);
	turn_idle();
	cr_assert_eq(p.calls, 1);
	cr_assert_eq(p.res, 0);
	/* and again with the same request */
	io_uring_prep_nop(&p.req.sqe);
	submit(&p);
	turn_until(&p, 2);
}

Test(ring_small, a_full_submission_queue_delays_and_loses_nothing)
{
	open_ring(4);
	static struct probe p[1000];
	for (int i = 0; i < 1000; i++) {
		io_uring_prep_nop(&p[i].req.sqe);
		submit(&p[i]);
	}
	for (int i = 0; i < 1000; i++)
		turn_until(&p[i], 1);
	turn_idle();
	for (int i = 0; i < 1000; i++)
		cr_assert_eq(p[i].calls, 1);
	cr_assert_gt(ring_stats(ring)->sq_full, 0);
	cr_assert_eq(ring_stats(ring)->submitted, 1000);
	cr_assert_eq(ring_stats(ring)->completed, 1000);
	ring_close(ring);
}

Test(ring_small, cancelling_what_waits_for_a_slot)
{
	open_ring(4);
	int fd = eventfd(0, EFD_CLOEXEC);
	static struct probe p[40];
	static uint64_t counts[40];
	for (int i = 0; i < 40; i++) {
		io_uring_prep_read(&p[i].req.sqe, fd, &counts[i], 8, 0);
		submit(&p[i]);
	}
	/* Some are in the submission queue, most in the list behind it. Twice is harmless. */
	for (int i = 0; i < 40; i++) {
		cancel(&p[i]);
		cancel(&p[i]);
	}
	for (int i = 0; i < 40; i++)
		turn_until(&p[i], 1);
	turn_idle();
	for (int i = 0; i < 40; i++) {
		cr_assert_eq(p[i].calls, 1);
		cr_assert_eq(p[i].res, -ECANCELED);
	}
	close(fd);
	ring_close(ring);
}

Test(ring_small, cancelling_more_than_there_are_slots)
{
	open_ring(4);
	int fd = eventfd(0, EFD_CLOEXEC);
	static struct probe p[100];
	static uint64_t counts[100];
	for (int i = 0; i < 100; i++) {
		io_uring_prep_read(&p[i].req.sqe, fd, &counts[i], 8, 0);
		submit(&p[i]);
	}
	while (ring_stats(ring)->submitted < 100)
		cr_assert_eq(ring_turn(ring, false), 0);
	turn_idle();
	for (int i = 0; i < 100; i++)
		cancel(&p[i]);
	for (int i = 0; i < 100; i++) {
		turn_until(&p[i], 1);
		cr_assert_eq(p[i].res, -ECANCELED);
	}
	close(fd);
	ring_close(ring);
}

Test(ring, cancelling_an_armed_request)
{
	int fd = eventfd(0, EFD_CLOEXEC);
	uint64_t count;
	struct probe p = {0};
	io_uring_prep_read(&p.req.sqe, fd, &count, 8, 0);
	submit(&p);
	turn_idle();
	cr_assert_eq(p.calls, 0);
	cancel(&p);
	turn_until(&p, 1);
	turn_idle();
	cr_assert_eq(p.calls, 1);
	cr_assert_eq(p.res, -ECANCELED);
	/* Idle now: left alone, also by the next user of the request. */
	cancel(&p);
	io_uring_prep_nop(&p.req.sqe);
	submit(&p);
	turn_until(&p, 2);
	cr_assert_eq(p.res, 0);
	close(fd);
}

struct pair {
	struct probe first, second;
};

static void on_first(struct ring_req *req, int res, uint32_t flags)
{
	(void)res;
	(void)flags;
	struct pair *pair = container_of(req, struct pair, first.req);
	pair->first.calls++;
	ring_cancel(ring, &pair->second.req);
}

Test(ring, cancelling_what_was_reaped_in_the_same_batch)
{
	struct pair pair = {0};
	io_uring_prep_nop(&pair.first.req.sqe);
	io_uring_prep_nop(&pair.second.req.sqe);
	pair.first.req.fn = on_first;
	ring_submit(ring, &pair.first.req);
	submit(&pair.second);
	turn_until(&pair.second, 1);
	turn_idle();
	cr_assert_eq(pair.second.calls, 1);
	cr_assert_eq(pair.second.res, 0, "it had succeeded before it was cancelled");
}

Test(ring, post_completes_in_the_next_turn)
{
	struct probe p = {.req.fn = on_done};
	inside = true;
	ring_post(ring, &p.req, -EAGAIN);
	inside = false;
	cr_assert_eq(p.calls, 0);
	cr_assert(p.req.armed);
	cancel(&p);
	cr_assert_eq(ring_turn(ring, true), 0);
	cr_assert_eq(p.calls, 1);
	cr_assert_eq(p.res, -EAGAIN, "a posted result is not interpreted");
}

static void on_post_again(struct ring_req *req, int res, uint32_t flags)
{
	(void)flags;
	struct probe *p = container_of(req, struct probe, req);
	p->calls++;
	p->res = res;
	if (p->calls < 10)
		ring_post(ring, req, p->calls);
}

Test(ring, posting_from_a_callback_takes_a_turn_each)
{
	struct probe p = {.req.fn = on_post_again};
	ring_post(ring, &p.req, 0);
	for (int turn = 1; turn <= 10; turn++) {
		cr_assert_eq(ring_turn(ring, true), 0);
		cr_assert_eq(p.calls, turn);
	}
	turn_idle();
	cr_assert_eq(p.calls, 10);
	cr_assert_eq(p.res, 9);
}

static void on_stop(struct ring_req *req, int res, uint32_t flags)
{
	(void)res;
	(void)flags;
	container_of(req, struct probe, req)->calls++;
	ring_stop(ring);
}

Test(ring, run_until_stopped)
{
	struct probe p = {.req.fn = on_stop};
	io_uring_prep_nop(&p.req.sqe);
	ring_submit(ring, &p.req);
	cr_assert_eq(ring_run(ring), 0);
	cr_assert_eq(p.calls, 1);
}

Test(ring, every_other_errno_reaches_the_owner)
{
	struct probe p = {0};
	io_uring_prep_read(&p.req.sqe, -1, &p.byte, 1, 0);
	submit(&p);
	turn_until(&p, 1);
	cr_assert_eq(p.res, -EBADF);
}

/* ---- receiving with provided buffers ---- */

static void arm_multishot(struct probe *p, int fd, struct ring_bufs *bufs)
{
	io_uring_prep_recv_multishot(&p->req.sqe, fd, NULL, 0, 0);
	p->req.sqe.flags |= IOSQE_BUFFER_SELECT;
	p->req.sqe.buf_group = (uint16_t)ring_bufs_group(bufs);
	submit(p);
}

Test(ring, multishot_receive_ends_without_buffers_and_goes_on_when_rearmed)
{
	struct ring_bufs *bufs;
	int fds[2];
	cr_assert_eq(ring_bufs_open(ring, 2, 64, &bufs), 0);
	cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
	struct probe p = {0};
	arm_multishot(&p, fds[0], bufs);
	uint32_t held[2];
	for (int i = 0; i < 2; i++) {
		cr_assert_eq(write(fds[1], i == 0 ? "one" : "two", 3), 3);
		turn_until(&p, i + 1);
		cr_assert_eq(p.res, 3);
		cr_assert(p.flags & IORING_CQE_F_BUFFER);
		cr_assert(p.flags & IORING_CQE_F_MORE);
		cr_assert_arr_eq(ring_bufs_at(bufs, p.flags), i == 0 ? "one" : "two", 3);
		held[i] = p.flags;
	}
	cr_assert_neq(ring_bufs_at(bufs, held[0]), ring_bufs_at(bufs, held[1]));
	cr_assert_eq(write(fds[1], "three", 5), 5);
	turn_until(&p, 3);
	cr_assert_eq(p.res, -ENOBUFS);
	cr_assert_not(p.flags & IORING_CQE_F_MORE);
	cr_assert_not(p.req.armed);
	ring_bufs_put(bufs, held[0]);
	ring_bufs_put(bufs, held[1]);
	arm_multishot(&p, fds[0], bufs);
	turn_until(&p, 4);
	cr_assert_eq(p.res, 5);
	cr_assert_arr_eq(ring_bufs_at(bufs, p.flags), "three", 5);
	ring_bufs_put(bufs, p.flags);
	/* The end of the stream ends the multishot. */
	close(fds[1]);
	turn_until(&p, 5);
	cr_assert_eq(p.res, 0);
	cr_assert_not(p.flags & IORING_CQE_F_MORE);
	ring_bufs_close(bufs);
	close(fds[0]);
}

Test(ring, cancelling_a_multishot_receive)
{
	struct ring_bufs *bufs;
	int fds[2];
	cr_assert_eq(ring_bufs_open(ring, 4, 64, &bufs), 0);
	cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
	struct probe p = {0};
	arm_multishot(&p, fds[0], bufs);
	turn_idle();
	cancel(&p);
	turn_until(&p, 1);
	cr_assert_eq(p.res, -ECANCELED);
	cr_assert_not(p.flags & IORING_CQE_F_MORE);
	ring_bufs_close(bufs);
	close(fds[0]);
	close(fds[1]);
}

Test(ring, bufs_cycle_through_the_group_many_times)
{
	struct ring_bufs *bufs;
	int fds[2];
	cr_assert_eq(ring_bufs_open(ring, 4, 16, &bufs), 0);
	cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
	struct probe p = {0};
	arm_multishot(&p, fds[0], bufs);
	for (int i = 0; i < 1000; i++) {
		uint8_t byte = (uint8_t)i;
		cr_assert_eq(write(fds[1], &byte, 1), 1);
		turn_until(&p, i + 1);
		cr_assert_eq(p.res, 1);
		cr_assert_eq(*ring_bufs_at(bufs, p.flags), byte);
		ring_bufs_put(bufs, p.flags);
	}
	cancel(&p);
	turn_until(&p, 1001);
	ring_bufs_close(bufs);
	close(fds[0]);
	close(fds[1]);
}

static struct probe *victim;

static void on_done_discard(struct ring_req *req, int res, uint32_t flags)
{
	on_done(req, res, flags);
	ring_discard(ring, &victim->req);
}

/* What a discarded request has received already is thrown away, its buffer is not. */
Test(ring, discarding_a_receive_gives_its_buffers_back)
{
	struct ring_bufs *bufs;
	int first[2], fds[2];
	cr_assert_eq(ring_bufs_open(ring, 2, 16, &bufs), 0);
	cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, first), 0);
	cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
	for (int i = 0; i < 10; i++) {
		struct probe p = {0}, q = {0};
		victim = &p;
		io_uring_prep_recv(&q.req.sqe, first[0], &q.byte, 1, 0);
		submit(&q);
		q.req.fn = on_done_discard;
		arm_multishot(&p, fds[0], bufs);
		turn_idle();
		cr_assert_eq(write(first[1], "x", 1), 1);
		cr_assert_eq(write(fds[1], "y", 1), 1);
		turn_until(&q, 1); /* both have completed; q's callback comes first */
		cr_assert_eq(p.calls, 0);
		char rest;
		cr_assert_lt(recv(fds[0], &rest, 1, MSG_DONTWAIT), 0);
	}
	struct probe p = {0};
	arm_multishot(&p, fds[0], bufs);
	cr_assert_eq(write(fds[1], "z", 1), 1);
	turn_until(&p, 1);
	cr_assert_eq(p.res, 1, "%s", strerror(-p.res));
	cr_assert_eq(*ring_bufs_at(bufs, p.flags), 'z');
	ring_discard(ring, &p.req);
	ring_bufs_close(bufs);
	for (int i = 0; i < 2; i++) {
		close(first[i]);
		close(fds[i]);
	}
}

Test(ring, bufs_are_shared_by_size)
{
	struct ring_bufs *own, *a, *b, *c;
	cr_assert_eq(ring_bufs_open(ring, 2, 16, &own), 0);
	cr_assert_eq(ring_bufs_share(ring, 2, 16, &a), 0);
	cr_assert_eq(ring_bufs_share(ring, 2, 16, &b), 0);
	cr_assert_eq(ring_bufs_share(ring, 2, 32, &c), 0);
	cr_assert(a == b && a != own && a != c);
	ring_bufs_close(a);
	cr_assert_eq(ring_bufs_group(b), ring_bufs_group(a)); /* it is still there */
	ring_bufs_close(b);
	/* Groups come and go with connections: their ids are given back. */
	int given = ring_bufs_group(c);
	ring_bufs_close(c);
	cr_assert_eq(ring_bufs_open(ring, 2, 32, &c), 0);
	cr_assert_leq(ring_bufs_group(c), given);
	cr_assert_neq(ring_bufs_group(c), ring_bufs_group(own));
	ring_bufs_close(c);
	ring_bufs_close(own);
	cr_assert_eq(ring_bufs_share(ring, 3, 16, &a), -EINVAL);
}

Test(ring, bufs_refuse_nonsense)
{
	struct ring_bufs *bufs = NULL;
	cr_assert_eq(ring_bufs_open(ring, 3, 64, &bufs), -EINVAL);
	cr_assert_eq(ring_bufs_open(ring, 0, 64, &bufs), -EINVAL);
	cr_assert_eq(ring_bufs_open(ring, 4, 0, &bufs), -EINVAL);
	cr_assert_null(bufs);
	ring_bufs_close(NULL);
}

/* ---- lanes ---- */

enum { LANE_READS = LANE_REQUESTS_MAX + 20 };

static struct lane *lane_open(void)
{
	struct lane *lane;
	cr_assert_eq(ring_lane_open(&lane, ring), 0);
	return lane;
}

/* Reads of an eventfd that counts down by one for each: they wait until it is written. */
static void lane_read(struct probe *p, int count, struct lane *lane, int fd)
{
	static uint64_t value;
	for (int i = 0; i < count; i++) {
		p[i].req.lane = lane;
		io_uring_prep_read(&p[i].req.sqe, fd, &value, sizeof(value), 0);
		submit(&p[i]);
	}
	turn_idle();
}

Test(ring, a_lane_lets_so_many_in_and_the_next_when_one_has_ended)
{
	int fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
	static struct probe p[LANE_READS];
	lane_read(p, LANE_READS, lane_open(), fd);
	cr_assert_eq(ring_stats(ring)->submitted, LANE_REQUESTS_MAX);
	cr_assert_eq(eventfd_write(fd, 3), 0);
	while (ring_stats(ring)->completed < 3)
		cr_assert_eq(ring_turn(ring, true), 0);
	turn_idle();
	cr_assert_eq(ring_stats(ring)->submitted, LANE_REQUESTS_MAX + 3);
	cr_assert_eq(eventfd_write(fd, LANE_READS - 3), 0);
	for (int i = 0; i < LANE_READS; i++) {
		turn_until(&p[i], 1);
		cr_assert_eq(p[i].res, 8);
	}
	close(fd);
}

Test(ring, cancelling_what_waits_for_its_lane)
{
	int fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
	static struct probe p[LANE_READS];
	struct lane *lane = lane_open();
	lane_read(p, LANE_READS, lane, fd);
	for (int i = LANE_REQUESTS_MAX; i < LANE_READS; i++) {
		cancel(&p[i]);
		cancel(&p[i]);
	}
	for (int i = LANE_REQUESTS_MAX; i < LANE_READS; i++) {
		turn_until(&p[i], 1);
		cr_assert_eq(p[i].res, -ECANCELED);
	}
	/* Those had no place to leave to another. */
	lane_read(&p[LANE_REQUESTS_MAX], 1, lane, fd);
	cr_assert_eq(ring_stats(ring)->submitted, LANE_REQUESTS_MAX);
	/* One that has, does. */
	cancel(&p[0]);
	turn_until(&p[0], 1);
	turn_idle();
	cr_assert_eq(p[0].res, -ECANCELED);
	cr_assert_eq(ring_stats(ring)->submitted, LANE_REQUESTS_MAX + 1);
	cr_assert_eq(eventfd_write(fd, LANE_REQUESTS_MAX), 0);
	for (int i = 1; i < LANE_REQUESTS_MAX; i++)
		turn_until(&p[i], 1);
	turn_until(&p[LANE_REQUESTS_MAX], 2);
	turn_idle();
	close(fd);
}

/* Of what is let in, some wait for a slot and have not begun either. */
Test(ring_small, cancelling_what_was_let_in_and_waits_for_a_slot)
{
	open_ring(4);
	int fd = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
	static struct probe p[LANE_READS];
	static uint64_t value;
	struct lane *lane = lane_open();
	for (int i = 0; i < LANE_READS; i++) {
		p[i].req.lane = lane;
		io_uring_prep_read(&p[i].req.sqe, fd, &value, sizeof(value), 0);
		submit(&p[i]);
	}
	cr_assert_lt(ring_stats(ring)->submitted, LANE_REQUESTS_MAX);
	for (int i = 0; i < LANE_READS; i++)
		cancel(&p[i]);
	for (int i = 0; i < LANE_READS; i++) {
		turn_until(&p[i], 1);
		cr_assert_eq(p[i].res, -ECANCELED);
	}
	turn_idle();
	/* All places are free again, and no more than these. */
	uint64_t before = ring_stats(ring)->submitted;
	lane_read(p, LANE_READS, lane, fd);
	for (int i = 0; i < 100; i++)
		cr_assert_eq(ring_turn(ring, false), 0);
	cr_assert_eq(ring_stats(ring)->submitted - before, LANE_REQUESTS_MAX);
	cr_assert_eq(eventfd_write(fd, LANE_READS), 0);
	for (int i = 0; i < LANE_READS; i++)
		turn_until(&p[i], 2);
	close(fd);
	ring_close(ring);
}

static void on_opened(struct ring_req *req, int res, uint32_t flags)
{
	on_done(req, res, flags);
	if (res >= 0)
		close(res);
}

/* Opening a fifo that nobody writes to blocks its thread. More such requests than the ring has
 * threads for both lanes and for what has none. */
Test(ring, a_lane_that_hangs_leaves_the_others_their_threads)
{
	enum { HUNG = 4 * LANE_REQUESTS_MAX };
	char dir[] = "/tmp/ringvol-ring-XXXXXX";
	cr_assert_not_null(mkdtemp(dir));
	int dir_fd = open(dir, O_DIRECTORY | O_CLOEXEC);
	cr_assert_eq(mkfifoat(dir_fd, "fifo", 0600), 0);
	struct lane *hangs = lane_open(), *answers = lane_open();
	static struct probe p[HUNG];
	for (int i = 0; i < HUNG; i++) {
		p[i].req.lane = hangs;
		io_uring_prep_openat(&p[i].req.sqe, dir_fd, "fifo", O_RDONLY | O_CLOEXEC, 0);
		io_uring_sqe_set_flags(&p[i].req.sqe, IOSQE_ASYNC);
		p[i].req.fn = on_opened;
		ring_submit(ring, &p[i].req);
	}
	turn_idle();
	struct probe others[] = {{.req.lane = answers}, {.req.lane = NULL}};
	for (int i = 0; i < 2; i++) {
		io_uring_prep_fsync(&others[i].req.sqe, dir_fd, 0);
		io_uring_sqe_set_flags(&others[i].req.sqe, IOSQE_ASYNC);
		submit(&others[i]);
		turn_until(&others[i], 1);
		cr_assert_eq(others[i].res, 0);
	}
	for (int i = 0; i < HUNG; i++)
		cr_assert_eq(p[i].calls, 0);
	int writer = openat(dir_fd, "fifo", O_RDWR | O_NONBLOCK | O_CLOEXEC);
	cr_assert_geq(writer, 0);
	for (int i = 0; i < HUNG; i++) {
		turn_until(&p[i], 1);
		cr_assert_geq(p[i].res, 0);
	}
	close(writer);
	cr_assert_eq(unlinkat(dir_fd, "fifo", 0), 0);
	close(dir_fd);
	cr_assert_eq(rmdir(dir), 0);
}

/* ---- closing ---- */

Test(ring_small, closing_waits_for_what_is_in_flight_and_calls_nobody)
{
	open_ring(4);
	int fd = eventfd(0, EFD_CLOEXEC);
	static struct probe p[20];
	uint64_t *counts = calloc(20, 8);
	for (int i = 0; i < 20; i++) {
		io_uring_prep_read(&p[i].req.sqe, fd, &counts[i], 8, 0);
		submit(&p[i]);
	}
	cr_assert_eq(ring_turn(ring, false), 0);
	ring_close(ring);
	free(counts);
	cr_assert_eq(eventfd_write(fd, 1), 0);
	for (int i = 0; i < 20; i++)
		cr_assert_eq(p[i].calls, 0);
	close(fd);
	ring_close(NULL);
}
