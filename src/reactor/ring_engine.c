/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an engine needs of its ring: the ring itself, the list of completions, and the requests that
 * were asked to end. The kernel may miss such a request (-ENOENT: just then it was between two of
 * its lists; -EALREADY: it runs) or have no memory to look for it. So the answer to a cancellation
 * counts for nothing: until the request ends, it is asked again. Out of memory for a completion,
 * the process ends: that request would never end.
 */
#include "reactor/ring_engine.h"

#include <stdlib.h>

static void on_cancel_timer(struct ring_timer *timer)
{
	struct ring *ring = container_of(timer, struct ring, cancel_timer);
	struct list again, *node;
	list_init(&again);
	list_splice(&again, &ring->cancelled);
	while ((node = list_pop(&again)) != NULL)
		(void)ring->engine->cancel(ring, container_of(node, struct ring_req, link));
}

void ring_cancel_sent(struct ring *ring, struct ring_req *req)
{
	list_push(&ring->cancelled, &req->link);
	if (!ring_timer_armed(&ring->cancel_timer))
		ring_timer_arm(ring, &ring->cancel_timer, RING_CANCEL_MS);
}

struct ring *ring_new(const struct ring_engine *engine)
{
	struct ring *ring = calloc(1, sizeof(*ring));
	if (ring == NULL)
		return NULL;
	ring->engine = engine;
	lane_init(&ring->shared);
	list_init(&ring->lanes);
	list_push(&ring->lanes, &ring->shared.link);
	ring->lane_count = 1;
	list_init(&ring->posted);
	list_init(&ring->cancelled);
	ring->cancel_timer.fn = on_cancel_timer;
	list_init(&ring->bufs);
	ring_chores_init(&ring->chores);
	return ring;
}

void ring_free(struct ring *ring)
{
	struct list *node;
	list_remove(&ring->shared.link);
	while ((node = list_pop(&ring->lanes)) != NULL)
		free(container_of(node, struct lane, link));
	free(ring->done);
	free(ring->timers);
	free(ring);
}

void ring_done_push(struct ring *ring, struct ring_req *req, int res, uint32_t flags)
{
	if (ring->done_len == ring->done_cap) {
		size_t cap = ring->done_cap != 0 ? ring->done_cap * 2 : 256;
		struct ring_done *done = reallocarray(ring->done, cap, sizeof(*done));
		if (done == NULL)
			abort(); /* a lost completion is a request that never ends */
		ring->done = done;
		ring->done_cap = cap;
	}
	ring->done[ring->done_len++] = (struct ring_done){.req = req, .res = res, .flags = flags};
}

/* What was received and is thrown away unseen: its buffer goes back. */
static void give_back(struct ring *ring, int group, uint32_t flags)
{
	list_for_each (node, &ring->bufs) {
		struct ring_bufs *bufs = container_of(node, struct ring_bufs, link);
		if (bufs->group == group)
			ring->engine->give_buf(bufs, flags >> IORING_CQE_BUFFER_SHIFT);
	}
}

bool ring_done_forget(struct ring *ring, const struct ring_req *req)
{
	bool last = false;
	for (size_t i = ring->done_at; i < ring->done_len; i++) {
		struct ring_done *done = &ring->done[i];
		if (done->req != req)
			continue;
		done->req = NULL;
		last |= !(done->flags & IORING_CQE_F_MORE);
		if ((done->flags & IORING_CQE_F_BUFFER) != 0)
			give_back(ring, req->sqe.buf_group, done->flags);
	}
	return last;
}

bool ring_req_multishot(const struct ring_req *req)
{
	switch (req->sqe.opcode) {
	case IORING_OP_ACCEPT:
		return req->sqe.ioprio & IORING_ACCEPT_MULTISHOT;
	case IORING_OP_RECV:
	case IORING_OP_RECVMSG:
		return req->sqe.ioprio & IORING_RECV_MULTISHOT;
	case IORING_OP_POLL_ADD:
		return req->sqe.len & IORING_POLL_ADD_MULTI;
	default:
		return false;
	}
}
