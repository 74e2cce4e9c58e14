/* SPDX-License-Identifier: Apache-2.0 */
/* Provided buffers of a simulated ring: a stack of free ids for each group. */
#include "simring/private.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

struct stack {
	unsigned count;
	uint16_t ids[];
};

int sim_bufs_open(struct ring_bufs *bufs)
{
	struct stack *stack = malloc(sizeof(*stack) + bufs->count * sizeof(stack->ids[0]));
	if (stack == NULL)
		return -ENOMEM;
	stack->count = 0;
	bufs->engine_state = stack;
	return 0;
}

void sim_bufs_give(struct ring_bufs *bufs, unsigned id)
{
	struct stack *stack = bufs->engine_state;
	assert(stack->count < bufs->count);
	stack->ids[stack->count++] = (uint16_t)id;
}

void sim_bufs_close(struct ring_bufs *bufs)
{
	free(bufs->engine_state);
}

static struct ring_bufs *find(struct ring *ring, unsigned group)
{
	list_for_each (pos, &ring->bufs) {
		struct ring_bufs *bufs = container_of(pos, struct ring_bufs, link);
		if ((unsigned)bufs->group == group)
			return bufs;
	}
	return NULL;
}

uint8_t *sim_bufs_take(struct ring *ring, unsigned group, unsigned *ret_size, uint32_t *ret_flags)
{
	struct ring_bufs *bufs = find(ring, group);
	struct stack *stack = bufs == NULL ? NULL : bufs->engine_state;
	if (stack == NULL || stack->count == 0)
		return NULL;
	unsigned id = stack->ids[--stack->count];
	*ret_size = bufs->size_bytes;
	*ret_flags = IORING_CQE_F_BUFFER | id << IORING_CQE_BUFFER_SHIFT;
	return bufs->data + (size_t)id * bufs->size_bytes;
}

void sim_bufs_untake(struct ring *ring, unsigned group, uint32_t flags)
{
	sim_bufs_give(find(ring, group), flags >> IORING_CQE_BUFFER_SHIFT);
}
