/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Provided buffers. One allocation holds them. The engine takes buffers in the order they were put;
 * a completion names the one it filled, and the owner gives it back. Fails with -ENOMEM, or with
 * the errno of the registration.
 */
#include "reactor/ring_priv.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

enum { BUFS_MAX = 32768 };

static unsigned buf_id(uint32_t cqe_flags)
{
	assert(cqe_flags & IORING_CQE_F_BUFFER);
	return cqe_flags >> IORING_CQE_BUFFER_SHIFT;
}

int ring_bufs_open(struct ring *ring, unsigned count, unsigned size_bytes, struct ring_bufs **ret)
{
	if (count == 0 || (count & (count - 1)) != 0 || count > BUFS_MAX || size_bytes == 0)
		return -EINVAL;
	if (ring->next_group > UINT16_MAX)
		return -ENOSPC;
	struct ring_bufs *bufs = calloc(1, sizeof(*bufs));
	if (bufs == NULL)
		return -ENOMEM;
	bufs->ring = ring;
	bufs->count = count;
	bufs->size_bytes = size_bytes;
	bufs->group = ring->next_group++;
	list_init(&bufs->link);
	bufs->data = calloc(count, size_bytes);
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

void ring_bufs_close(struct ring_bufs *bufs)
{
	if (bufs == NULL)
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
