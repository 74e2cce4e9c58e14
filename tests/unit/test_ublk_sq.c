/* SPDX-License-Identifier: Apache-2.0 */
/* The submission queue of ublk's threads when the kernel takes only a part. An entry that does not
 * exist makes it stop there, as one that it has no memory for does. */
#include "backends/ublk/ublk_sq.h"

#include <criterion/criterion.h>
#include <signal.h>
#include <string.h>

static void queue_nop(struct ublk_sq *sq, uint8_t flags, uint64_t user_data)
{
	*ublk_sq_next(sq) = (struct io_uring_sqe){
		.opcode = IORING_OP_NOP, .flags = flags, .user_data = user_data};
}

static void queue_stop(struct ublk_sq *sq)
{
	ublk_sq_push(sq, UBLK_SQ_ENTRIES);
}

static uint64_t take_next(struct ublk_sq *sq)
{
	struct io_uring_cqe *cqe;
	while (io_uring_peek_cqe(&sq->uring, &cqe) != 0)
		ublk_sq_enter(sq, 1);
	uint64_t user_data = cqe->user_data;
	cr_expect_eq(cqe->res, 0);
	io_uring_cqe_seen(&sq->uring, cqe);
	return user_data;
}

static void open_sq(struct ublk_sq *sq)
{
	int r = ublk_sq_open(sq);
	cr_assert_eq(r, 0, "%s", strerror(-r));
}

Test(ublk_sq, the_rest_is_submitted_next)
{
	struct ublk_sq sq;
	open_sq(&sq);
	queue_nop(&sq, IOSQE_IO_LINK, 1);
	queue_nop(&sq, 0, 2);
	queue_stop(&sq);
	queue_nop(&sq, IOSQE_IO_LINK, 3);
	queue_nop(&sq, 0, 4);
	ublk_sq_enter(&sq, 0);
	cr_expect_eq(ublk_sq_pending(&sq), 2);
	unsigned at[5] = {0}; /* when each came */
	for (unsigned i = 1; i <= 4; i++)
		at[take_next(&sq) % 5] = i;
	cr_expect(at[1] != 0 && at[1] < at[2] && at[3] != 0 && at[3] < at[4]);
	cr_expect_eq(ublk_sq_pending(&sq), 0);
	ublk_sq_close(&sq);
}

Test(ublk_sq, a_link_cut_in_two_ends_the_process, .signal = SIGABRT)
{
	struct ublk_sq sq;
	open_sq(&sq);
	queue_nop(&sq, 0, 1);
	queue_nop(&sq, IOSQE_IO_LINK, 2);
	queue_stop(&sq);
	queue_nop(&sq, 0, 3);
	ublk_sq_enter(&sq, 0);
	ublk_sq_close(&sq);
}

Test(ublk_sq, a_broken_ring_ends_the_process, .signal = SIGABRT)
{
	struct ublk_sq sq;
	open_sq(&sq);
	sq.enter_fd = -1;
	sq.enter_flags = IORING_ENTER_GETEVENTS;
	ublk_sq_enter(&sq, 0);
	ublk_sq_close(&sq);
}
