/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opcodes newer than the liburing we build with (2.3), as raw SQEs. Whether the running kernel has
 * them is in ring_features(): never prepare one without asking.
 */
#ifndef RINGVOL_REACTOR_RING_COMPAT_H
#define RINGVOL_REACTOR_RING_COMPAT_H

#include <liburing.h>

/* The enum's members are no preprocessor symbols, so these have names and values of our own. */
enum {
	RING_OP_FTRUNCATE = 55, /* Linux 6.9 */
};

/* Linux 6.9: ring_features()->ftruncate; where it is missing, op_work() with ftruncate(). */
static inline void ring_prep_ftruncate(struct io_uring_sqe *sqe, int fd, uint64_t len)
{
	io_uring_prep_rw(RING_OP_FTRUNCATE, sqe, fd, NULL, 0, len);
}

#endif
