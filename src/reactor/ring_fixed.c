/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Registered buffers: memory the kernel has looked up and pinned once, so that a direct transfer
 * need not do it page by page each time. The table of RING_FIXED_MAX empty places is registered
 * with the first buffer (Linux 5.19) and filled and emptied place by place. Fails with -ENOSPC when
 * all are taken, or with the errno of the registration
 * (-ENOMEM: RLIMIT_MEMLOCK without CAP_IPC_LOCK); who fails does without.
 */
#include "reactor/ring_priv.h"

#include <assert.h>
#include <errno.h>

int ring_fixed_add(struct ring *ring, void *mem, size_t len)
{
	_Static_assert(RING_FIXED_MAX == 64, "fixed_taken has a bit for each");
	if (ring->fixed_taken == UINT64_MAX)
		return -ENOSPC;
	unsigned index = (unsigned)__builtin_ctzll(~ring->fixed_taken);
	int r = ring->engine->set_fixed(ring, index, mem, len);
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
	if (ring->engine->set_fixed(ring, (unsigned)index, NULL, 0) == 0)
		ring->fixed_taken &= ~(UINT64_C(1) << index);
}
