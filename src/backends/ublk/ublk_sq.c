/* SPDX-License-Identifier: Apache-2.0 */
/* Sets a ring up with an index array, which newer liburing would leave out, and enters it. */
#include "backends/ublk/ublk_sq.h"

#include "base/log.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

int ublk_sq_open(struct ublk_sq *sq)
{
	/* Linux 6.1 has all of these. */
	struct io_uring_params params = {
		.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN |
			 IORING_SETUP_SUBMIT_ALL | IORING_SETUP_CQSIZE,
		.cq_entries = UBLK_SQ_ENTRIES,
	};
	int fd = (int)syscall(SYS_io_uring_setup, UBLK_SQ_ENTRIES, &params);
	if (fd < 0)
		return -errno;
	*sq = (struct ublk_sq){.enter_fd = fd, .enter_flags = IORING_ENTER_GETEVENTS};
	int r = io_uring_queue_mmap(fd, &params, &sq->uring);
	if (r < 0) {
		close(fd);
		return r;
	}
	/* Saves looking up the ring's fd at each entry; without it nothing else changes. */
	if (io_uring_register_ring_fd(&sq->uring) == 1) {
		sq->enter_fd = sq->uring.enter_ring_fd;
		sq->enter_flags |= IORING_ENTER_REGISTERED_RING;
	}
	return 0;
}

void ublk_sq_close(struct ublk_sq *sq)
{
	io_uring_queue_exit(&sq->uring);
}

/* The one line of this layer that is not for debugging: nobody else can say it any more. */
_Noreturn static void give_up(const char *why)
{
	log_event(LOG_LEVEL_ERROR, "the data process ends; its devices wait for the next one",
		log_fields({"error", why}));
	abort();
}

static void enter(struct ublk_sq *sq, unsigned wait, unsigned flags, const void *arg, size_t len)
{
	unsigned pending = ublk_sq_pending(sq);
	__atomic_store_n(sq->uring.sq.ktail, sq->tail, __ATOMIC_RELEASE);
	long r = syscall(
		SYS_io_uring_enter, sq->enter_fd, pending, wait, sq->enter_flags | flags, arg, len);
	/* The completions in hand are to be served, memory is short for a moment, or the time is
	 * over. */
	if (r < 0 && errno != EINTR && errno != EBUSY && errno != EAGAIN && errno != ETIME)
		give_up(strerrordesc_np(errno));
	/* Memory was short in the middle: the rest is submitted when the ring is entered next. But
	 * a link does not reach that far: I/O that was to be followed by its commit is on its way
	 * alone (and tells its success to nobody), and the commit would tell the kernel that a
	 * request is done which may not have begun. Nothing that was not committed is lost with the
	 * process. */
	if (r > 0 && (unsigned)r < pending) {
		unsigned last = sq->tail - pending + (unsigned)r - 1;
		unsigned index = sq->uring.sq.array[last & (UBLK_SQ_ENTRIES - 1)];
		if (sq->uring.sq.sqes[index].flags & IOSQE_IO_LINK)
			give_up("no memory to submit a request's commit with its I/O; give the "
				"process more (a limit of its cgroup?)");
	}
}

void ublk_sq_enter(struct ublk_sq *sq, unsigned wait)
{
	enter(sq, wait, 0, NULL, 0);
}

void ublk_sq_enter_until(struct ublk_sq *sq, unsigned wait, uint64_t timeout_ns)
{
	struct __kernel_timespec timeout = {
		.tv_sec = (int64_t)(timeout_ns / 1000000000u),
		.tv_nsec = (long long)(timeout_ns % 1000000000u),
	};
	const struct io_uring_getevents_arg arg = {.ts = (uintptr_t)&timeout};
	enter(sq, wait, IORING_ENTER_EXT_ARG, &arg, sizeof(arg));
}
