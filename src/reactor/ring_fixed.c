/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Registered buffers: memory the kernel has looked up and pinned once, so that a direct transfer
 * need not do it page by page each time. The table of RING_FIXED_MAX empty places is registered
 * with the first buffer (Linux 5.19) and filled and emptied place by place. A simulated ring has
 * places too. Fails with -ENOSPC when all are taken, or with the errno of the registration
 * (-ENOMEM: RLIMIT_MEMLOCK without CAP_IPC_LOCK); who fails does without.
 */
#include "reactor/ring_priv.h"

#include <assert.h>
#include <errno.h>
#include <sys/uio.h>

static int update(struct ring *ring, unsigned index, void *mem, size_t len)
{
	struct iovec iov = {mem, len};
	__u64 no_tag = 0;
	if (ring_simulated(ring))
		return 0;
	int r = io_uring_register_buffers_update_tag(&ring->uring, index, &iov, &no_tag, 1);
	return r < 0 ? r : 0;
}

int ring_fixed_add(struct ring *ring, void *mem, size_t len)
{
	_Static_assert(RING_FIXED_MAX == 64, "fixed_taken has a bit for each");
	if (ring->fixed_taken == UINT64_MAX)
		return -ENOSPC;
	if (!ring->fixed_table && !ring_simulated(ring)) {
		int r = io_uring_register_buffers_sparse(&ring->uring, RING_FIXED_MAX);
		if (r < 0)
			return r;
		ring->fixed_table = true;
	}
	unsigned index = (unsigned)__builtin_ctzll(~ring->fixed_taken);
	int r = update(ring, index, mem, len);
	if (r < 0)
		return r;
	ring->fixed_taken |= UINT64_C(1) << index;
	return (int)index;
}

void ring_fixed_remove(struct ring *ring, int index)
{
	if (index < 0)
		return;
	assert(ring->fixed_taken >> index & 1);
	/* Emptying a place cannot fail but for memory; the buffer then stays pinned until the ring
	 * goes, and its place is not used again. */
	if (update(ring, (unsigned)index, NULL, 0) == 0)
		ring->fixed_taken &= ~(UINT64_C(1) << index);
}
