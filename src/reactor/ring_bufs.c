/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Provided buffers: one allocation holds them. The engine takes buffers in the order they were put;
 * a completion names the one it filled, and the owner gives it back. Fails with -ENOMEM, or with
 * the errno of the registration.
 *
 * Registered buffers: memory the kernel has looked up and pinned once, so that a direct transfer
 * need not do it page by page each time. The table of RING_FIXED_MAX empty places is registered
 * with the first buffer (Linux 5.19) and filled and emptied place by place. Fails with -ENOSPC when
 * all are taken, or with the errno of the registration (-ENOMEM: RLIMIT_MEMLOCK without
 * CAP_IPC_LOCK). The caller does without, then.
 */
#include "reactor/ring_bufs.h"

#include "reactor/ring_engine.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

enum { BUFS_MAX = 32768 };

/* ---- provided ---- */

static unsigned buf_id(uint32_t cqe_flags)
{
	assert(cqe_flags & IORING_CQE_F_BUFFER);
	return cqe_flags >> IORING_CQE_BUFFER_SHIFT;
}

/* The lowest that nobody has, as groups come and go with connections. -1: all are taken. */
static int free_group(const struct ring *ring)
{
	for (int group = 0; group <= UINT16_MAX; group++) {
		bool taken = false;
		list_for_each (node, &ring->bufs)
			taken = taken || container_of(node, struct ring_bufs, link)->group == group;
		if (!taken)
			return group;
	}
	return -1;
}

int ring_bufs_open(struct ring *ring, unsigned count, unsigned size_bytes, struct ring_bufs **ret)
{
	if (count == 0 || (count & (count - 1)) != 0 || count > BUFS_MAX || size_bytes == 0)
		return -EINVAL;
	int group = free_group(ring);
	if (group < 0)
		return -ENOSPC;
	struct ring_bufs *bufs = calloc(1, sizeof(*bufs));
	if (bufs == NULL)
		return -ENOMEM;
	*bufs = (struct ring_bufs){
		.ring = ring,
		.count = count,
		.size_bytes = size_bytes,
		.group = group,
		.data = calloc(count, size_bytes),
	};
	list_init(&bufs->link);
	int r = bufs->data != NULL ? ring->engine->open_bufs(bufs) : -ENOMEM;
	if (r < 0) {
		free(bufs->data);
		free(bufs);
		return r;
	}
	for (unsigned id = 0; id < count; id++)
		ring->engine->give_buf(bufs, id);
	list_push(&ring->bufs, &bufs->link);
	*ret = bufs;
	return 0;
}

int ring_bufs_share(struct ring *ring, unsigned count, unsigned size_bytes, struct ring_bufs **ret)
{
	list_for_each (node, &ring->bufs) {
		struct ring_bufs *bufs = container_of(node, struct ring_bufs, link);
		if (bufs->sharers == 0 || bufs->count != count || bufs->size_bytes != size_bytes)
			continue;
		bufs->sharers++;
		*ret = bufs;
		return 0;
	}
	int r = ring_bufs_open(ring, count, size_bytes, ret);
	if (r == 0)
		(*ret)->sharers = 1;
	return r;
}

void ring_bufs_close(struct ring_bufs *bufs)
{
	if (bufs == NULL || (bufs->sharers > 0 && --bufs->sharers > 0))
		return;
	bufs->ring->engine->close_bufs(bufs);
	list_remove(&bufs->link);
	free(bufs->data);
	free(bufs);
}

int ring_bufs_group(const struct ring_bufs *bufs)
{
	return bufs->group;
}

uint8_t *ring_bufs_at(struct ring_bufs *bufs, uint32_t cqe_flags)
{
	unsigned id = buf_id(cqe_flags);
	assert(id < bufs->count);
	return bufs->data + (size_t)id * bufs->size_bytes;
}

void ring_bufs_put(struct ring_bufs *bufs, uint32_t cqe_flags)
{
	bufs->ring->engine->give_buf(bufs, buf_id(cqe_flags));
}

/* ---- registered ---- */

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
