/* SPDX-License-Identifier: Apache-2.0 */
/* A ring on the kernel's io_uring. */
#ifndef RINGVOL_REACTOR_RING_URING_H
#define RINGVOL_REACTOR_RING_URING_H

#include "base/err.h"
#include "reactor/ring.h"

struct ring_config {
	unsigned entries; /* submission queue, 0: 256 */
};

/* 0 or -errno: -EPERM when io_uring is disabled
 * (kernel.io_uring_disabled, seccomp), -ENOSYS. */
int ring_open(struct ring **ret_ring, const struct ring_config *config);
/* Says in *err why ring_open() failed with `res`, and the remedy. Reads /proc. Returns res's errno.
 */
int ring_open_why(int res, struct err *err);

#endif
