/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The loop: requests and their lanes, the dispatch of what has completed, one turn after the other.
 *
 * The happy path of a turn: the engine starts what waits, waits, and appends what has completed to
 * ring->done; then the callbacks run, then the timers that were due before the engine waited, then
 * chores (ring_chore.h).
 * Callbacks only queue. A request is in exactly one of: its lane's gate, the engine, ring->posted,
 * ring->done.
 *
 * It fails only when the engine does.
 */
#include "reactor/ring.h"

#include "base/log.h"
#include "reactor/ring_engine.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

/* ---- opening ---- */

void ring_add_threads(struct ring *ring, unsigned count)
{
	ring->threads += count;
	ring->engine->set_threads(ring);
}

int ring_lane_open(struct lane **ret_lane, struct ring *ring)
{
	struct lane *lane = calloc(1, sizeof(*lane));
	if (lane == NULL)
		return -ENOMEM;
	lane_init(lane);
	list_push(&ring->lanes, &lane->link);
	ring->lane_count++;
	ring_add_threads(ring, LANE_REQUESTS_MAX);
	*ret_lane = lane;
	return 0;
}

/* ---- lanes ---- */

/* The request is off its way into the kernel or back from there, and the next may go. */
static void leave_lane(struct ring *ring, struct ring_req *req)
{
	struct list *node = req->lane != NULL ? lane_leave(&req->lane->requests) : NULL;
	if (node == NULL)
		return;
	struct ring_req *next = container_of(node, struct ring_req, link);
	ring_req_set(next, RING_QUEUED, 0);
	ring->engine->start(ring, next);
}

/* ---- the owner's side ---- */

static void arm(struct ring_req *req)
{
	assert(!req->armed && req->fn != NULL);
	req->armed = true;
	req->cancelled = false;
	list_init(&req->link);
}

void ring_submit(struct ring *ring, struct ring_req *req)
{
	/* Links and suppressed completions would break re-arming and the count of what is out. */
	assert(!(req->sqe.flags & (IOSQE_IO_LINK | IOSQE_IO_HARDLINK | IOSQE_CQE_SKIP_SUCCESS)));
	arm(req);
	ring_req_set(req, RING_HELD, 0);
	if (req->lane != NULL && !lane_enter(&req->lane->requests, LANE_REQUESTS_MAX, &req->link))
		return;
	ring_req_set(req, RING_QUEUED, 0);
	ring->engine->start(ring, req);
}

static void post(struct ring *ring, struct ring_req *req, int res)
{
	ring_req_set(req, RING_POSTED, (uint32_t)res);
	ring->engine->post(ring, req);
}

void ring_post(struct ring *ring, struct ring_req *req, int res)
{
	arm(req);
	post(ring, req, res);
}

void ring_cancel(struct ring *ring, struct ring_req *req)
{
	if (!req->armed || req->cancelled)
		return;
	req->cancelled = true;
	switch (ring_req_state(req)) {
	case RING_HELD:
		list_remove(&req->link);
		post(ring, req, -ECANCELED);
		break;
	case RING_QUEUED:
	case RING_IN_KERNEL:
		if (ring->engine->cancel(ring, req)) {
			post(ring, req, -ECANCELED);
			leave_lane(ring, req);
		}
		break;
	case RING_POSTED:
		break;
	}
}

/* ---- completion ---- */

static void dispatch(struct ring *ring, struct ring_req *req, int res, uint32_t flags)
{
	bool posted = ring_req_state(req) == RING_POSTED;
	ring->stats.completed++;
	if (!(flags & IORING_CQE_F_MORE)) {
		if (!posted && (res == -EINTR || res == -EAGAIN) && !ring_req_multishot(req)) {
			if (!req->cancelled) {
				ring->stats.rearmed++;
				ring->engine->start(ring, req);
				return;
			}
			res = -ECANCELED;
		}
		list_remove(&req->link);
		req->armed = false;
		if (req->cancelled && list_empty(&ring->cancelled))
			ring_timer_cancel(ring, &ring->cancel_timer);
		if (!posted)
			leave_lane(ring, req);
	}
	req->fn(req, res, flags);
}

static void dispatch_posted(struct ring *ring)
{
	/* What these callbacks post waits for the next turn. */
	struct list due, *node;
	list_init(&due);
	list_splice(&due, &ring->posted);
	while ((node = list_pop(&due)) != NULL) {
		struct ring_req *req = container_of(node, struct ring_req, link);
		dispatch(ring, req, (int)(uint32_t)ring_req_note(req), 0);
	}
}

static void dispatch_done(struct ring *ring)
{
	/* By index, and each entry copied: a callback may discard requests, which clears and
	 * appends entries. */
	while (ring->done_at < ring->done_len) {
		struct ring_done done = ring->done[ring->done_at++];
		if (done.req != NULL)
			dispatch(ring, done.req, done.res, done.flags);
	}
	ring->done_at = ring->done_len = 0;
}

/* ---- turning ---- */

int ring_turn(struct ring *ring, bool wait)
{
	ring->stats.turns++;
	int r = ring->engine->turn(ring, wait && !ring_chores_due(ring));
	if (r < 0)
		return r;
	uint64_t start_ns = ring->now_ns, order = ring->timer_order;
	dispatch_posted(ring);
	dispatch_done(ring);
	ring_timer_run(ring, order);
	ring_chores_run(ring);
	log_flush(); /* before what was answered is sent */
	uint64_t spent_ns = ring_clock_ns(ring) - start_ns;
	ring->stats.turn.count[hist_bucket(spent_ns)]++;
	ring->stats.turn_ns += spent_ns;
	if (spent_ns > ring->stats.longest_turn_ns)
		ring->stats.longest_turn_ns = spent_ns;
	return 0;
}

int ring_run(struct ring *ring)
{
	int r = 0;
	log_hold();
	while (r == 0 && !ring->stop)
		r = ring_turn(ring, true);
	log_unhold();
	ring->stop = false;
	return r;
}

void ring_stop(struct ring *ring)
{
	ring->stop = true;
}

uint64_t ring_now_ns(const struct ring *ring)
{
	return ring->now_ns;
}

const struct ring_features *ring_features(const struct ring *ring)
{
	return &ring->features;
}

const struct ring_stats *ring_stats(const struct ring *ring)
{
	return &ring->stats;
}

/* ---- closing ---- */

void ring_discard(struct ring *ring, struct ring_req *req)
{
	assert(req->lane == NULL); /* what may hang does not end promptly */
	if (!req->armed)
		return;
	ring->engine->discard(ring, req);
	list_remove(&req->link);
	req->armed = false;
}

void ring_close(struct ring *ring)
{
	if (ring == NULL)
		return;
	ring->engine->close(ring);
	ring_free(ring);
}
