/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated ring: a run is a function of its seed, and what it does to files is real. */
#include "reactor/ring_bufs.h"
#include "reactor/work.h"
#include "simring/sim.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

struct probe {
	struct ring_req req;
	int id, calls, res;
	uint32_t flags;
};

enum { MS_NS = 1000000 };

static struct ring *ring;
static struct ring_sim sim;
static int trace[4096], trace_len;
static char dir[] = "/tmp/rv-sim-XXXXXX";
static int dir_fd = -1;

static void on_done(struct ring_req *req, int res, uint32_t flags)
{
	struct probe *p = container_of(req, struct probe, req);
	p->calls++;
	p->res = res;
	p->flags = flags;
	if (trace_len < 4096)
		trace[trace_len++] = p->id;
}

static void open_sim(struct ring_sim config)
{
	sim = config;
	trace_len = 0;
	cr_assert_eq(ring_sim_open(&ring, &sim), 0);
}

static void submit(struct probe *p)
{
	p->req.fn = on_done;
	ring_submit(ring, &p->req);
}

/* Submits, settles, and returns the result. */
static int run(struct probe *p)
{
	p->calls = 0;
	submit(p);
	cr_assert_eq(ring_sim_settle(ring, 1000), 0);
	cr_assert_eq(p->calls, 1);
	return p->res;
}

static void make_dir(void)
{
	cr_assert_not_null(mkdtemp(dir));
	dir_fd = open(dir, O_DIRECTORY | O_CLOEXEC);
}

static void remove_dir(void)
{
	static const char *const names[] = {"a", "b", "c", "link", "x"};
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (unlinkat(dir_fd, names[i], 0) < 0)
			unlinkat(dir_fd, names[i], AT_REMOVEDIR);
	close(dir_fd);
	cr_assert_eq(rmdir(dir), 0);
}

/* ---- order ---- */

static uint64_t nops(uint64_t seed)
{
	static struct probe p[50];
	struct ring_timer unused = {0};
	(void)unused;
	open_sim((struct ring_sim){.seed = seed, .eintr_every = 5});
	for (int i = 0; i < 50; i++) {
		p[i] = (struct probe){.id = i};
		if (i % 5 == 0) {
			p[i].req.fn = on_done;
			ring_post(ring, &p[i].req, i);
			continue;
		}
		io_uring_prep_nop(&p[i].req.sqe);
		submit(&p[i]);
	}
	cr_assert_eq(ring_sim_settle(ring, 1000), 0);
	for (int i = 0; i < 50; i++)
		cr_assert_eq(p[i].calls, 1);
	uint64_t now_ns = ring_now_ns(ring);
	ring_close(ring);
	return now_ns;
}

Test(sim, same_seed_same_run_other_seed_another)
{
	int first[50];
	uint64_t now_ns = nops(42);
	memcpy(first, trace, sizeof(first));
	cr_assert_eq(nops(42), now_ns);
	cr_assert_arr_eq(trace, first, sizeof(first));
	int different = 0;
	for (uint64_t seed = 1; seed <= 10; seed++) {
		nops(seed);
		different += memcmp(trace, first, sizeof(first)) != 0;
	}
	cr_assert_eq(different, 10);
}

Test(sim, nothing_runs_inside_the_arming_call)
{
	open_sim((struct ring_sim){.seed = 1});
	struct probe p = {0};
	io_uring_prep_nop(&p.req.sqe);
	submit(&p);
	cr_assert_eq(p.calls, 0);
	cr_assert_eq(ring_sim_settle(ring, 1), 0);
	cr_assert_eq(p.calls, 1);
	ring_close(ring);
}

/* ---- faults ---- */

Test(sim, interruptions_are_rearmed_unseen)
{
	open_sim((struct ring_sim){.seed = 3, .eintr_every = 1});
	struct probe p[10];
	for (int i = 0; i < 10; i++) {
		p[i] = (struct probe){.id = i};
		io_uring_prep_nop(&p[i].req.sqe);
		cr_assert_eq(run(&p[i]), 0);
	}
	cr_assert_eq(ring_stats(ring)->rearmed, 10);
	cr_assert_eq(sim.served, 10);
	ring_close(ring);
}

static int fail_nth(void *arg, uint64_t nth, const struct io_uring_sqe *sqe)
{
	cr_assert_eq(sqe->opcode, IORING_OP_MKDIRAT);
	return nth == *(uint64_t *)arg ? -EIO : 0;
}

Test(sim, a_fault_is_the_result_and_nothing_is_done, .init = make_dir, .fini = remove_dir)
{
	uint64_t nth = 1;
	open_sim((struct ring_sim){.seed = 3, .fault = fail_nth, .fault_arg = &nth});
	struct probe p = {0};
	io_uring_prep_mkdirat(&p.req.sqe, dir_fd, "a", 0700);
	cr_assert_eq(run(&p), 0);
	io_uring_prep_mkdirat(&p.req.sqe, dir_fd, "b", 0700);
	cr_assert_eq(run(&p), -EIO);
	cr_assert_lt(faccessat(dir_fd, "b", F_OK, 0), 0);
	io_uring_prep_mkdirat(&p.req.sqe, dir_fd, "b", 0700);
	cr_assert_eq(run(&p), 0);
	ring_close(ring);
}

Test(sim, short_transfers_move_something_and_never_all, .init = make_dir, .fini = remove_dir)
{
	open_sim((struct ring_sim){.seed = 9, .short_every = 1});
	int fd = openat(dir_fd, "a", O_CREAT | O_RDWR | O_CLOEXEC, 0600);
	char data[100], back[100] = {0};
	memset(data, 'x', sizeof(data));
	struct probe p = {0};
	unsigned at = 0, transfers = 0;
	while (at < sizeof(data)) {
		io_uring_prep_write(&p.req.sqe, fd, data + at, (unsigned)sizeof(data) - at, at);
		int n = run(&p);
		cr_assert_gt(n, 0);
		at += (unsigned)n;
		transfers++;
	}
	cr_assert_eq(at, sizeof(data));
	cr_assert_gt(transfers, 1);
	io_uring_prep_read(&p.req.sqe, fd, back, sizeof(back), 0);
	int n = run(&p);
	cr_assert(n > 0 && n < 100);
	cr_assert_arr_eq(back, data, (size_t)n);
	close(fd);
	ring_close(ring);
}

Test(sim, cancelled_requests_end_once_usually_cancelled)
{
	int cancelled = 0, done = 0;
	for (uint64_t seed = 0; seed < 100; seed++) {
		open_sim((struct ring_sim){.seed = seed});
		struct probe p = {0};
		io_uring_prep_nop(&p.req.sqe);
		submit(&p);
		ring_cancel(ring, &p.req);
		cr_assert_eq(ring_sim_settle(ring, 10), 0);
		cr_assert_eq(p.calls, 1);
		cancelled += p.res == -ECANCELED;
		done += p.res == 0;
		ring_close(ring);
	}
	cr_assert_eq(cancelled + done, 100);
	cr_assert_gt(cancelled, done);
	cr_assert_gt(done, 0);
}

Test(sim, a_lane_lets_so_many_in_and_what_waits_for_it_can_be_cancelled)
{
	enum { COUNT = 2 * LANE_REQUESTS_MAX };
	for (uint64_t seed = 0; seed < 20; seed++) {
		open_sim((struct ring_sim){.seed = seed, .eintr_every = 5});
		struct lane *lane;
		cr_assert_eq(ring_lane_open(&lane, ring), 0);
		static struct probe p[COUNT];
		for (int i = 0; i < COUNT; i++) {
			p[i] = (struct probe){.req.lane = lane};
			io_uring_prep_nop(&p[i].req.sqe);
			submit(&p[i]);
		}
		cr_assert_eq(ring_stats(ring)->submitted, LANE_REQUESTS_MAX);
		ring_cancel(ring, &p[COUNT - 1].req);
		cr_assert_eq(ring_sim_settle(ring, 100), 0);
		for (int i = 0; i < COUNT; i++) {
			cr_assert_eq(p[i].calls, 1);
			cr_assert_eq(p[i].res, i < COUNT - 1 ? 0 : -ECANCELED);
		}
		/* Interrupted ones are carried out again in their place. */
		cr_assert_eq(ring_stats(ring)->submitted, COUNT - 1 + ring_stats(ring)->rearmed);
		cr_assert_gt(ring_stats(ring)->rearmed, 0);
		ring_close(ring);
	}
}

/* ---- what blocks ---- */

Test(sim, a_request_waits_until_it_can_be_served)
{
	open_sim((struct ring_sim){.seed = 1});
	int fd = eventfd(0, EFD_CLOEXEC);
	uint64_t count = 0;
	struct probe reader = {.id = 1}, poller = {.id = 2};
	io_uring_prep_read(&reader.req.sqe, fd, &count, 8, 0);
	io_uring_prep_poll_add(&poller.req.sqe, fd, POLLIN);
	submit(&reader);
	submit(&poller);
	cr_assert_eq(ring_sim_settle(ring, 1000), -ETIME);
	cr_assert_eq(reader.calls + poller.calls, 0);
	cr_assert_eq(eventfd_write(fd, 7), 0);
	(void)ring_sim_settle(ring, 1000);
	cr_assert_eq(reader.calls, 1);
	cr_assert_eq(reader.res, 8);
	cr_assert_eq(count, 7);
	if (poller.calls == 0) {
		ring_cancel(ring, &poller.req);
		cr_assert_eq(ring_sim_settle(ring, 1000), 0);
	}
	cr_assert_eq(poller.calls, 1);
	close(fd);
	ring_close(ring);
}

Test(sim, sockets_and_provided_buffers)
{
	open_sim((struct ring_sim){.seed = 1});
	struct ring_bufs *bufs;
	int fds[2];
	cr_assert_eq(ring_bufs_open(ring, 2, 8, &bufs), 0);
	cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
	struct probe p = {0}, q = {.id = 1};
	io_uring_prep_recv_multishot(&p.req.sqe, fds[0], NULL, 0, 0);
	p.req.sqe.flags |= IOSQE_BUFFER_SELECT;
	p.req.sqe.buf_group = (uint16_t)ring_bufs_group(bufs);
	submit(&p);
	io_uring_prep_send(&q.req.sqe, fds[1], "0123456789abcdef", 16, 0);
	submit(&q);
	while (p.calls < 2)
		cr_assert_eq(ring_turn(ring, true), 0);
	cr_assert_eq(q.res, 16);
	cr_assert_eq(p.res, 8);
	cr_assert_arr_eq(ring_bufs_at(bufs, p.flags), "89abcdef", 8);
	io_uring_prep_send(&q.req.sqe, fds[1], "!", 1, 0);
	submit(&q);
	cr_assert_eq(ring_sim_settle(ring, 10), 0);
	cr_assert_eq(p.res, -ENOBUFS);
	cr_assert_not(p.flags & IORING_CQE_F_MORE);
	ring_bufs_close(bufs);
	close(fds[0]);
	close(fds[1]);
	ring_close(ring);
}

Test(sim, time_jumps_to_the_next_timeout)
{
	open_sim((struct ring_sim){.seed = 1});
	struct __kernel_timespec ts = {.tv_sec = 3600};
	struct probe p = {0};
	uint64_t start_ns = ring_now_ns(ring);
	io_uring_prep_timeout(&p.req.sqe, &ts, 0, 0);
	submit(&p);
	cr_assert_eq(ring_sim_settle(ring, 7200 * 1000), 0);
	cr_assert_eq(p.res, -ETIME);
	cr_assert_geq(ring_now_ns(ring) - start_ns, 3600ull * 1000000000);
	ring_close(ring);
}

/* ---- every opcode ---- */

Test(sim, files, .init = make_dir, .fini = remove_dir)
{
	open_sim((struct ring_sim){.seed = 1});
	struct probe p = {0};
	struct open_how how = {.flags = O_RDWR | O_CREAT | O_CLOEXEC, .mode = 0600};
	struct statx stx;
	char value[8] = {0};

	io_uring_prep_openat2(&p.req.sqe, dir_fd, "a", &how);
	int fd = run(&p);
	cr_assert_geq(fd, 0);
	io_uring_prep_write(&p.req.sqe, fd, "hello", 5, 0);
	cr_assert_eq(run(&p), 5);
	io_uring_prep_fallocate(&p.req.sqe, fd, 0, 0, 8192);
	cr_assert_eq(run(&p), 0);
	io_uring_prep_fsync(&p.req.sqe, fd, IORING_FSYNC_DATASYNC);
	cr_assert_eq(run(&p), 0);
	io_uring_prep_statx(&p.req.sqe, dir_fd, "a", 0, STATX_SIZE, &stx);
	cr_assert_eq(run(&p), 0);
	cr_assert_eq(stx.stx_size, 8192);
	io_uring_prep_fsetxattr(&p.req.sqe, fd, "user.ringvol", "v1", 0, 2);
	int r = run(&p);
	if (r != -EOPNOTSUPP) {
		cr_assert_eq(r, 0);
		io_uring_prep_fgetxattr(&p.req.sqe, fd, "user.ringvol", value, sizeof(value));
		cr_assert_eq(run(&p), 2);
		cr_assert_str_eq(value, "v1");
	}
	io_uring_prep_close(&p.req.sqe, fd);
	cr_assert_eq(run(&p), 0);
	cr_assert_lt(fcntl(fd, F_GETFD), 0);
	ring_close(ring);
}

Test(sim, names, .init = make_dir, .fini = remove_dir)
{
	open_sim((struct ring_sim){.seed = 1});
	struct probe p = {0};
	io_uring_prep_openat(&p.req.sqe, dir_fd, "a", O_CREAT | O_RDWR | O_CLOEXEC, 0600);
	int fd = run(&p);
	cr_assert_geq(fd, 0);
	close(fd);
	io_uring_prep_linkat(&p.req.sqe, dir_fd, "a", dir_fd, "b", 0);
	cr_assert_eq(run(&p), 0);
	io_uring_prep_renameat(&p.req.sqe, dir_fd, "a", dir_fd, "b", RENAME_NOREPLACE);
	cr_assert_eq(run(&p), -EEXIST);
	io_uring_prep_renameat(&p.req.sqe, dir_fd, "a", dir_fd, "c", RENAME_NOREPLACE);
	cr_assert_eq(run(&p), 0);
	io_uring_prep_symlinkat(&p.req.sqe, "c", dir_fd, "link");
	cr_assert_eq(run(&p), 0);
	io_uring_prep_mkdirat(&p.req.sqe, dir_fd, "x", 0700);
	cr_assert_eq(run(&p), 0);
	io_uring_prep_unlinkat(&p.req.sqe, dir_fd, "x", AT_REMOVEDIR);
	cr_assert_eq(run(&p), 0);
	io_uring_prep_unlinkat(&p.req.sqe, dir_fd, "a", 0);
	cr_assert_eq(run(&p), -ENOENT);
	p.req.sqe.opcode = 250;
	cr_assert_eq(run(&p), -EINVAL);
	ring_close(ring);
}

/* ---- work jobs are in the same book ---- */

struct job {
	struct work_job job;
	int id;
};

static int job_run(struct work_job *job)
{
	return -container_of(job, struct job, job)->id;
}

static void job_end(struct work_job *job, int res)
{
	cr_assert_eq(res, -container_of(job, struct job, job)->id);
	trace[trace_len++] = -res;
}

Test(sim, work_jobs_are_drawn_like_requests)
{
	struct work *work;
	open_sim((struct ring_sim){.seed = 77});
	cr_assert_eq(work_open(&work, ring, 4), 0);
	static struct job jobs[20];
	for (int i = 0; i < 20; i++) {
		jobs[i] = (struct job){.job = {.run = job_run, .on_end = job_end}, .id = i};
		cr_assert_eq(work_submit(work, &jobs[i].job), 0);
	}
	cr_assert_eq(work_queue_depth(work), 20);
	cr_assert_eq(trace_len, 0);
	cr_assert_eq(ring_sim_settle(ring, 1000), 0);
	cr_assert_eq(trace_len, 20);
	int in_order = 0;
	for (int i = 0; i < 20; i++)
		in_order += trace[i] == i;
	cr_assert_lt(in_order, 20);
	cr_assert_eq(work_queue_depth(work), 0);
	/* Those not drawn when it closes are dropped. */
	cr_assert_eq(work_submit(work, &jobs[0].job), 0);
	work_close(work);
	cr_assert_eq(ring_sim_settle(ring, 1000), 0);
	cr_assert_eq(trace_len, 20);
	ring_close(ring);
}

/* ---- cancellations that miss ---- */

Test(sim, what_was_cancelled_and_did_not_end_is_cancelled_again)
{
	enum { MISSED = 3 };
	struct probe read = {.id = 1}, other = {.id = 2};
	uint64_t counts[2];
	int fds[] = {eventfd(0, EFD_CLOEXEC), eventfd(0, EFD_CLOEXEC)};
	open_sim((struct ring_sim){.seed = 1, .missed_cancels = MISSED});
	io_uring_prep_read(&read.req.sqe, fds[0], &counts[0], sizeof(counts[0]), 0);
	io_uring_prep_read(&other.req.sqe, fds[1], &counts[1], sizeof(counts[1]), 0);
	submit(&read);
	submit(&other);
	ring_cancel(ring, &read.req);
	uint64_t start_ns = ring_now_ns(ring);
	/* Once it is asked, and as often as it did not help. */
	while (read.calls == 0) {
		cr_assert_eq(ring_turn(ring, true), 0);
		cr_assert_leq(ring_now_ns(ring) - start_ns, (MISSED + 1) * RING_CANCEL_MS * MS_NS);
	}
	cr_assert_eq(read.res, -ECANCELED);
	cr_assert_geq(ring_now_ns(ring) - start_ns, MISSED * RING_CANCEL_MS * MS_NS);
	cr_assert_eq(sim.missed_cancels, 0);
	cr_assert_eq(other.calls, 0, "nobody asked for its end");
	/* With nothing left to ask for, no timer is left either. */
	ring_cancel(ring, &other.req);
	cr_assert_eq(ring_sim_settle(ring, 1000), 0);
	cr_assert_eq(other.res, -ECANCELED);
	cr_assert_lt(ring_now_ns(ring) - start_ns, (MISSED + 1) * RING_CANCEL_MS * MS_NS);
	/* One that ends by itself meanwhile is not asked about any more. */
	sim.missed_cancels = 1;
	read.calls = 0;
	submit(&read);
	ring_cancel(ring, &read.req);
	cr_assert_eq(ring_turn(ring, false), 0);
	cr_assert_eq(read.calls, 0);
	cr_assert_eq(eventfd_write(fds[0], 7), 0);
	cr_assert_eq(ring_turn(ring, true), 0);
	cr_assert_eq(read.calls, 1);
	cr_assert_eq(read.res, (int)sizeof(counts[0]));
	start_ns = ring_now_ns(ring);
	cr_assert_eq(ring_sim_settle(ring, 1000), 0);
	cr_assert_lt(ring_now_ns(ring) - start_ns, RING_CANCEL_MS * MS_NS);
	ring_close(ring);
	close(fds[0]);
	close(fds[1]);
}
