/* SPDX-License-Identifier: Apache-2.0 */
/* A list of free buffers, and counts: made when they are needed, freed when the last copy ends. */
#include "blockio/copy_buffers.h"
#include "blockio/copy.h"
#include "blockio/copy_walk.h"
#include "reactor/ring_bufs.h"

#include <assert.h>
#include <stdlib.h>

static struct {
	struct ring *ring;
	struct list free, waiting, lanes;
	unsigned made, in_flight;
	bool ready;
} buffers;

struct copy_lane *copy_buffers_enter(struct ring *ring, struct lane *of)
{
	if (!buffers.ready) {
		list_init(&buffers.free);
		list_init(&buffers.waiting);
		list_init(&buffers.lanes);
		buffers.ready = true;
	}
	assert(list_empty(&buffers.lanes) || buffers.ring == ring);
	buffers.ring = ring;
	list_for_each (l, &buffers.lanes) {
		struct copy_lane *lane = container_of(l, struct copy_lane, link);
		if (lane->of == of) {
			lane->copies++;
			return lane;
		}
	}
	struct copy_lane *lane = calloc(1, sizeof *lane);
	if (lane == NULL)
		return NULL;
	lane->of = of;
	lane->copies = 1;
	list_push(&buffers.lanes, &lane->link);
	return lane;
}

/* Free buffers above `keep` of all that were made. */
static void trim(unsigned keep)
{
	while (buffers.made > keep && !list_empty(&buffers.free)) {
		struct copy_buf *buf = container_of(list_pop(&buffers.free), struct copy_buf, link);
		ring_fixed_remove(buffers.ring, buf->fixed);
		free(buf->mem);
		free(buf);
		buffers.made--;
	}
}

void copy_buffers_trim(void)
{
	trim(COPY_BUFFERS);
}

void copy_buffers_leave(struct copy_lane *lane)
{
	if (--lane->copies == 0) {
		list_remove(&lane->link);
		free(lane);
	}
	if (list_empty(&buffers.lanes))
		trim(0);
}

static struct copy_buf *buffer_make(void)
{
	void *mem;
	struct copy_buf *buf = calloc(1, sizeof *buf);
	if (buf == NULL || posix_memalign(&mem, COPY_ALIGN, COPY_BUFFER_BYTES) != 0) {
		free(buf);
		return NULL;
	}
	buf->mem = mem;
	buf->fixed = -1;
	buffers.made++;
	return buf;
}

struct copy_buf *copy_buffers_take(struct copy_lane *lane)
{
	if (buffers.in_flight >= COPY_BUFFERS && lane->in_flight >= COPY_LANE_BUFFERS)
		return NULL;
	struct list *l = list_pop(&buffers.free);
	struct copy_buf *buf = l != NULL ? container_of(l, struct copy_buf, link) : buffer_make();
	if (buf == NULL)
		return NULL;
	buffers.in_flight++;
	lane->in_flight++;
	return buf;
}

void copy_buffers_give(struct copy_lane *lane, struct copy_buf *buf)
{
	buffers.in_flight--;
	lane->in_flight--;
	list_push_front(&buffers.free, &buf->link);
}

void copy_buffers_use(struct copy_buf *buf, uint32_t bytes)
{
	if (bytes == COPY_BUFFER_BYTES && ++buf->uses == 2)
		buf->fixed = ring_fixed_add(buffers.ring, buf->mem, COPY_BUFFER_BYTES);
}

struct list *copy_buffers_waiting(void)
{
	return &buffers.waiting;
}
