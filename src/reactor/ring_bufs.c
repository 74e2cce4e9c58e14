/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Provided buffers. One allocation holds the buffers; the ring of descriptors shared with the
 * kernel (Linux 5.19) is a page-aligned one of its own. The kernel takes buffers in the order they
 * were put; a completion names the one it filled, the owner gives it back. In a simulated
 * ring a stack of free ids stands in. Fails with -ENOMEM, or with the errno of the registration.
 */
#include "reactor/ring_priv.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { BUFS_MAX = 32768 };

struct ring_bufs {
	struct ring *ring;
	struct list link; /* ring->bufs */
	int group;
	unsigned count, size_bytes;
	uint8_t *data;
	struct io_uring_buf_ring *shared; /* NULL in a sim */
	size_t shared_bytes;
	uint16_t *free_ids; /* sim */
	unsigned free_count;
};

static unsigned buf_id(uint32_t cqe_flags)
{
	assert(cqe_flags & IORING_CQE_F_BUFFER);
	return cqe_flags >> IORING_CQE_BUFFER_SHIFT;
}

static int register_shared(struct ring_bufs *bufs)
{
	bufs->shared_bytes = bufs->count * sizeof(struct io_uring_buf);
	void *mem = mmap(NULL, bufs->shared_bytes, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (mem == MAP_FAILED)
		return -errno;
	struct io_uring_buf_reg reg = {
		.ring_addr = (uintptr_t)mem,
		.ring_entries = bufs->count,
		.bgid = (uint16_t)bufs->group,
	};
	int r = io_uring_register_buf_ring(&bufs->ring->uring, &reg, 0);
	if (r < 0) {
		munmap(mem, bufs->shared_bytes);
		return r;
	}
	bufs->shared = mem;
	io_uring_buf_ring_init(bufs->shared);
	return 0;
}

static void give(struct ring_bufs *bufs, unsigned id)
{
	if (bufs->shared == NULL) {
		assert(bufs->free_ids != NULL && bufs->free_count < bufs->count);
		bufs->free_ids[bufs->free_count++] = (uint16_t)id;
		return;
	}
	io_uring_buf_ring_add(bufs->shared, bufs->data + (size_t)id * bufs->size_bytes,
		bufs->size_bytes, (unsigned short)id, io_uring_buf_ring_mask(bufs->count), 0);
	io_uring_buf_ring_advance(bufs->shared, 1);
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
	int r = bufs->data != NULL ? 0 : -ENOMEM;
	if (r == 0 && ring_simulated(ring)) {
		bufs->free_ids = calloc(count, sizeof(*bufs->free_ids));
		r = bufs->free_ids != NULL ? 0 : -ENOMEM;
	} else if (r == 0) {
		r = register_shared(bufs);
	}
	if (r < 0) {
		ring_bufs_close(bufs);
		return r;
	}
	for (unsigned id = 0; id < count; id++)
		give(bufs, id);
	list_push(&ring->bufs, &bufs->link);
	*ret = bufs;
	return 0;
}

void ring_bufs_close(struct ring_bufs *bufs)
{
	if (bufs == NULL)
		return;
	if (bufs->shared != NULL) {
		io_uring_unregister_buf_ring(&bufs->ring->uring, bufs->group);
		munmap(bufs->shared, bufs->shared_bytes);
	}
	list_remove(&bufs->link);
	free(bufs->free_ids);
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
	give(bufs, buf_id(cqe_flags));
}

struct ring_bufs *ring_bufs_find(struct ring *ring, unsigned group)
{
	list_for_each (pos, &ring->bufs) {
		struct ring_bufs *bufs = container_of(pos, struct ring_bufs, link);
		if ((unsigned)bufs->group == group)
			return bufs;
	}
	return NULL;
}

uint8_t *ring_bufs_take(struct ring_bufs *bufs, unsigned *ret_size, uint32_t *ret_flags)
{
	if (bufs->free_count == 0)
		return NULL;
	unsigned id = bufs->free_ids[--bufs->free_count];
	*ret_size = bufs->size_bytes;
	*ret_flags = IORING_CQE_F_BUFFER | id << IORING_CQE_BUFFER_SHIFT;
	return bufs->data + (size_t)id * bufs->size_bytes;
}

void ring_bufs_untake(struct ring_bufs *bufs, uint32_t flags)
{
	give(bufs, buf_id(flags));
}

/* No opcode stands for the registration, so the probe is the registration of one buffer. */
int ring_bufs_probe(struct ring *ring)
{
	struct ring_bufs *bufs;
	int r = ring_bufs_open(ring, 1, 64, &bufs);
	if (r == 0)
		ring_bufs_close(bufs);
	return r;
}
