/* SPDX-License-Identifier: Apache-2.0 */
/* What a kernel refuses to its ring, when it is opened and while it turns. The calls of liburing
 * are the test's own (the linker puts them there). */
#include "reactor/ring.h"
#include "reactor/ring_bufs.h"
#include "reactor/ring_uring.h"

#include "refused.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

static struct ring *ring;

/* ---- the calls ---- */

enum call { NOTHING, SETUP, GO_ON, WAIT, WAIT_SO_LONG, BUF_RING, TABLE, PLACE };

int __real_io_uring_queue_init_params(
	unsigned entries, struct io_uring *kernel, struct io_uring_params *params);
int __wrap_io_uring_queue_init_params(
	unsigned entries, struct io_uring *kernel, struct io_uring_params *params);
int __wrap_io_uring_queue_init_params(
	unsigned entries, struct io_uring *kernel, struct io_uring_params *params)
{
	return refuses(SETUP) ? -refused.with
			      : __real_io_uring_queue_init_params(entries, kernel, params);
}

int __real_io_uring_submit_and_get_events(struct io_uring *kernel);
int __wrap_io_uring_submit_and_get_events(struct io_uring *kernel);
int __wrap_io_uring_submit_and_get_events(struct io_uring *kernel)
{
	return refuses(GO_ON) ? -refused.with : __real_io_uring_submit_and_get_events(kernel);
}

int __real_io_uring_submit_and_wait(struct io_uring *kernel, unsigned count);
int __wrap_io_uring_submit_and_wait(struct io_uring *kernel, unsigned count);
int __wrap_io_uring_submit_and_wait(struct io_uring *kernel, unsigned count)
{
	return refuses(WAIT) ? -refused.with : __real_io_uring_submit_and_wait(kernel, count);
}

int __real_io_uring_submit_and_wait_timeout(struct io_uring *kernel, struct io_uring_cqe **cqe,
	unsigned count, struct __kernel_timespec *ts, sigset_t *mask);
int __wrap_io_uring_submit_and_wait_timeout(struct io_uring *kernel, struct io_uring_cqe **cqe,
	unsigned count, struct __kernel_timespec *ts, sigset_t *mask);
int __wrap_io_uring_submit_and_wait_timeout(struct io_uring *kernel, struct io_uring_cqe **cqe,
	unsigned count, struct __kernel_timespec *ts, sigset_t *mask)
{
	if (refuses(WAIT_SO_LONG))
		return -refused.with;
	return __real_io_uring_submit_and_wait_timeout(kernel, cqe, count, ts, mask);
}

int __real_io_uring_register_buf_ring(
	struct io_uring *kernel, struct io_uring_buf_reg *reg, unsigned flags);
int __wrap_io_uring_register_buf_ring(
	struct io_uring *kernel, struct io_uring_buf_reg *reg, unsigned flags);
int __wrap_io_uring_register_buf_ring(
	struct io_uring *kernel, struct io_uring_buf_reg *reg, unsigned flags)
{
	return refuses(BUF_RING) ? -refused.with
				 : __real_io_uring_register_buf_ring(kernel, reg, flags);
}

int __real_io_uring_register_buffers_sparse(struct io_uring *kernel, unsigned count);
int __wrap_io_uring_register_buffers_sparse(struct io_uring *kernel, unsigned count);
int __wrap_io_uring_register_buffers_sparse(struct io_uring *kernel, unsigned count)
{
	return refuses(TABLE) ? -refused.with
			      : __real_io_uring_register_buffers_sparse(kernel, count);
}

int __real_io_uring_register_buffers_update_tag(struct io_uring *kernel, unsigned at,
	const struct iovec *iov, const __u64 *tags, unsigned count);
int __wrap_io_uring_register_buffers_update_tag(struct io_uring *kernel, unsigned at,
	const struct iovec *iov, const __u64 *tags, unsigned count);
int __wrap_io_uring_register_buffers_update_tag(struct io_uring *kernel, unsigned at,
	const struct iovec *iov, const __u64 *tags, unsigned count)
{
	if (refuses(PLACE))
		return -refused.with;
	return __real_io_uring_register_buffers_update_tag(kernel, at, iov, tags, count);
}

static const char *disabled; /* what the sysctl says; NULL: there is none */

ssize_t __wrap_fd_read_file(int dirfd, const char *path, char *buf, size_t cap);
ssize_t __wrap_fd_read_file(int dirfd, const char *path, char *buf, size_t cap)
{
	cr_assert_eq(dirfd, AT_FDCWD);
	cr_assert_str_eq(path, "/proc/sys/kernel/io_uring_disabled");
	return disabled != NULL ? snprintf(buf, cap, "%s", disabled) : -ENOENT;
}

/* ---- requests ---- */

struct probe {
	struct ring_req req;
	int calls, res;
};

static void on_done(struct ring_req *req, int res, uint32_t flags)
{
	struct probe *p = container_of(req, struct probe, req);
	(void)flags;
	p->calls++;
	p->res = res;
}

static void submit(struct probe *p)
{
	p->req.fn = on_done;
	ring_submit(ring, &p->req);
}

static void turn_until_done(const struct probe *p)
{
	for (int i = 0; p->calls == 0; i++) {
		cr_assert_lt(i, 1000);
		cr_assert_eq(ring_turn(ring, true), 0);
	}
}

static void complete_nop(void)
{
	struct probe p = {0};
	io_uring_prep_nop(&p.req.sqe);
	submit(&p);
	turn_until_done(&p);
	cr_assert_eq(p.res, 0);
}

static void open_ring(void)
{
	cr_assert_eq(ring_open(&ring, &(struct ring_config){0}), 0);
}

/* ---- opening ---- */

/* Each mode that the kernel does not know, up to the last, which all of them do. */
Test(ring_calls, a_ring_has_the_best_mode_there_is)
{
	for (unsigned unknown = 0; unknown <= 4; unknown++) {
		refuse(SETUP, 0, unknown, EINVAL);
		ring = NULL;
		int r = ring_open(&ring, &(struct ring_config){0});
		cr_assert_eq(refused.times, 0);
		cr_assert_eq(r, unknown < 4 ? 0 : -EINVAL);
		cr_assert_eq(ring != NULL, r == 0);
		if (r < 0)
			continue;
		cr_assert_eq(ring_features(ring)->defer_taskrun, unknown < 1);
		cr_assert_eq(ring_features(ring)->single_issuer, unknown < 2);
		complete_nop();
		ring_close(ring);
	}
}

Test(ring_calls, a_ring_that_is_refused)
{
	int before = open_fds();
	ring = NULL;
	refuse(SETUP, 0, 1, EPERM);
	cr_assert_eq(ring_open(&ring, &(struct ring_config){0}), -EPERM, "and no other mode");
	cr_assert_eq(ring_open(&ring, &(struct ring_config){.entries = 4097}), -EINVAL);
	cr_assert_null(ring);
	cr_assert_eq(open_fds(), before);
	cr_assert_eq(ring_open(&ring, &(struct ring_config){.entries = 4096}), 0);
	ring_close(ring);
}

Test(ring_calls, why_a_ring_is_refused)
{
#define SECCOMP "io_uring is not allowed here, probably by the container's seccomp profile: "
	static const struct {
		int res;
		const char *disabled;
		enum err_code code;
		const char *says;
	} cases[] = {
		{-EPERM, "0\n", ERR_PRECONDITION, SECCOMP},
		{-EPERM, NULL, ERR_PRECONDITION, SECCOMP},
		{-ENOSYS, "0\n", ERR_PRECONDITION, SECCOMP},
		{-ENOSYS, "2\n", ERR_PRECONDITION, SECCOMP},
		{-EPERM, "1\n", ERR_PRECONDITION,
			"io_uring is switched off on this node (kernel.io_uring_disabled is 1): "},
		{-EPERM, "2\n", ERR_PRECONDITION,
			"io_uring is switched off on this node (kernel.io_uring_disabled is 2): "},
		{-ENOMEM, "2\n", ERR_NO_ROOM, "io_uring cannot be set up: "},
		{-EINVAL, "0\n", ERR_INTERNAL, "io_uring cannot be set up: "},
	};
	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct err err = {0};
		disabled = cases[i].disabled;
		cr_assert_lt(ring_open_why(cases[i].res, &err), 0);
		cr_assert_eq(err.code, cases[i].code, "%s", err.message);
		cr_assert_eq(strncmp(err.message, cases[i].says, strlen(cases[i].says)), 0, "%s",
			err.message);
	}
}

/* ---- turning ---- */

static void on_time(struct ring_timer *timer)
{
	(void)timer;
}

static const enum call entries[] = {GO_ON, WAIT, WAIT_SO_LONG};

/* Enters the kernel so. */
static int turn_by(enum call entry)
{
	struct ring_timer timer = {.fn = on_time};
	if (entry == WAIT_SO_LONG)
		ring_timer_arm(ring, &timer, 3600000);
	int r = ring_turn(ring, entry != GO_ON);
	ring_timer_cancel(ring, &timer);
	return r;
}

Test(ring_calls, a_broken_ring_is_told)
{
	open_ring();
	for (unsigned i = 0; i < 3; i++) {
		refuse(entries[i], 0, 1, EBADF);
		cr_assert_eq(turn_by(entries[i]), -EBADF);
		cr_assert_eq(refused.times, 0);
		complete_nop();
	}
	refuse(WAIT, 0, 1, EBADF);
	cr_assert_eq(ring_run(ring), -EBADF);
	ring_close(ring);
}

/* Nothing came, a signal, completions that wait for room, no memory: the next turn tries again. */
Test(ring_calls, what_passes_is_no_failure)
{
	static const int passing[] = {ETIME, EINTR, EBUSY, EAGAIN};
	open_ring();
	for (unsigned i = 0; i < 12; i++) {
		struct probe p = {0};
		io_uring_prep_nop(&p.req.sqe);
		submit(&p);
		refuse(entries[i % 3], 0, 1, passing[i / 3]);
		cr_assert_eq(turn_by(entries[i % 3]), 0, "%s", strerrorname_np(passing[i / 3]));
		cr_assert_eq(refused.times, 0);
		cr_assert_eq(p.calls, 0);
		turn_until_done(&p);
	}
	ring_close(ring);
}

/* An armed read, which ends only when it is cancelled. */
static void submit_read(struct probe *p, int fd)
{
	static uint64_t count;
	io_uring_prep_read(&p->req.sqe, fd, &count, sizeof(count), 0);
	submit(p);
	cr_assert_eq(ring_turn(ring, false), 0);
}

Test(ring_calls, a_discard_waits_through_what_passes)
{
	static const int passing[] = {ETIME, EINTR, EBUSY, EAGAIN};
	int fd = eventfd(0, EFD_CLOEXEC);
	open_ring();
	for (unsigned i = 0; i < 4; i++) {
		struct probe p = {0};
		submit_read(&p, fd);
		refuse(WAIT_SO_LONG, 0, 2, passing[i]);
		ring_discard(ring, &p.req);
		cr_assert_not(p.req.armed);
		cr_assert_eq(p.calls, 0);
		cr_assert_eq(refused.times, 0);
		complete_nop();
	}
	ring_close(ring);
	close(fd);
}

/* Else the kernel would write to memory that is somebody else's by then. */
Test(ring_calls, a_discard_that_cannot_be_waited_for_ends_the_process, .signal = SIGABRT)
{
	int fd = eventfd(0, EFD_CLOEXEC);
	struct probe p = {0};
	open_ring();
	submit_read(&p, fd);
	refuse(WAIT_SO_LONG, 0, UINT32_MAX, EBADF);
	ring_discard(ring, &p.req);
}

/* ---- buffers ---- */

static unsigned long mapped_pages(void)
{
	unsigned long pages = 0;
	FILE *f = fopen("/proc/self/statm", "re");
	cr_assert(f != NULL && fscanf(f, "%lu", &pages) == 1);
	fclose(f);
	return pages;
}

/* Also where the kernel does not take them. */
Test(ring_calls, what_bufs_share_with_the_kernel_goes_with_them)
{
	struct ring_bufs *bufs;
	unsigned long before = 0;
	open_ring();
	for (unsigned i = 0; i < 200; i++) {
		cr_assert_eq(ring_bufs_open(ring, 1024, 1, &bufs), 0);
		ring_bufs_close(bufs);
		bufs = NULL;
		refuse(BUF_RING, 0, 1, ENOMEM);
		cr_assert_eq(ring_bufs_open(ring, 1024, 1, &bufs), -ENOMEM);
		cr_assert_null(bufs);
		if (i == 0)
			before = mapped_pages();
	}
	cr_assert_leq(mapped_pages(), before + 100); /* each would be four */
	ring_close(ring);
}

/* Reads with each of the registered ones what is in the file. */
static void read_fixed(int fd, uint8_t *mem, int index)
{
	struct probe p = {0};
	io_uring_prep_read_fixed(&p.req.sqe, fd, mem, 3, 0, index);
	submit(&p);
	turn_until_done(&p);
	cr_assert_eq(p.res, 3, "%s", strerrordesc_np(-p.res));
	cr_assert_arr_eq(mem, "abc", 3);
	memset(mem, 0, 3);
}

Test(ring_calls, buffers_are_registered_as_far_as_the_kernel_does)
{
	static uint8_t mem[3][4096] __attribute__((aligned(4096)));
	int fd = memfd_create("file", MFD_CLOEXEC);
	cr_assert_eq(write(fd, "abc", 3), 3);
	open_ring();
	refuse(TABLE, 0, 1, ENOMEM);
	cr_assert_eq(ring_fixed_add(ring, mem[0], sizeof(mem[0])), -ENOMEM);
	refuse(PLACE, 0, 1, ENOBUFS);
	cr_assert_eq(ring_fixed_add(ring, mem[0], sizeof(mem[0])), -ENOBUFS);
	/* None of them has a place. */
	for (int i = 0; i < 3; i++)
		cr_assert_eq(ring_fixed_add(ring, mem[i], sizeof(mem[i])), i);
	for (int i = 0; i < 3; i++)
		read_fixed(fd, mem[i], i);
	ring_fixed_remove(ring, 1);
	cr_assert_eq(ring_fixed_add(ring, mem[1], sizeof(mem[1])), 1);
	read_fixed(fd, mem[1], 1);
	/* What cannot be emptied is not used again. */
	refuse(PLACE, 0, 1, ENOMEM);
	ring_fixed_remove(ring, 1);
	cr_assert_eq(ring_fixed_add(ring, mem[1], sizeof(mem[1])), 3);
	ring_close(ring);
	close(fd);
}
