/* SPDX-License-Identifier: Apache-2.0 */
/* Sets a ring up with an index array, which newer liburing would leave out, and enters it. */
#include "blockio/ublk_sq.h"

#include <errno.h>
#include <stdlib.h>
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

void ublk_sq_enter(struct ublk_sq *sq, unsigned wait)
{
	__atomic_store_n(sq->uring.sq.ktail, sq->tail, __ATOMIC_RELEASE);
	long r = syscall(SYS_io_uring_enter, sq->enter_fd, ublk_sq_pending(sq), wait,
		sq->enter_flags, NULL, 0);
	/* The completions in hand are to be served, or memory is short for a moment. */
	if (r < 0 && errno != EINTR && errno != EBUSY && errno != EAGAIN)
		abort();
}
