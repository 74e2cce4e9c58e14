/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulated ring: an order book of requests and posts, and a virtual clock.
 *
 * A turn draws one to four entries from the book in seeded order, carries them out, and leaves
 * their completions on ring->done, where the common code dispatches them before the timers. An
 * entry that would block stays in the book. When all would block and the caller wants to wait, the
 * clock jumps to the next timer. Every draw costs some virtual microseconds, so that timers also
 * fire between completions. Nothing here can fail but for memory, which ends the process.
 */
#include "reactor/sim.h"

#include "base/when.h"
#include "reactor/ring_priv.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <time.h>

enum {
	SIM_START_NS = 1000000000, /* so that no time is 0 */
	SIM_BATCH_MAX = 4,
	SIM_STEP_NS_MAX = 50000,
};

/* splitmix64 */
uint64_t ring_sim_random(struct ring *ring)
{
	uint64_t z = ring->rng += 0x9E3779B97F4A7C15u;
	z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
	z = (z ^ z >> 27) * 0x94D049BB133111EBu;
	return z ^ z >> 31;
}

static bool one_in(struct ring *ring, unsigned every)
{
	return every != 0 && ring_sim_random(ring) % every == 0;
}

void ring_sim_open(struct ring *ring, struct ring_sim *sim)
{
	ring->sim = sim;
	ring->rng = sim->seed;
	ring->now_ns = SIM_START_NS;
	ring->features = (struct ring_features){
		.defer_taskrun = true,
		.single_issuer = true,
		.multishot_accept = true,
		.multishot_recv = true,
		.buf_ring = true,
		.direct_writes = true,
	};
}

static uint64_t timeout_due_ns(const struct ring *ring, const struct io_uring_sqe *sqe)
{
	const struct __kernel_timespec *ts = (const void *)(uintptr_t)sqe->addr;
	uint64_t ns = (uint64_t)ts->tv_sec * 1000000000u + (uint64_t)ts->tv_nsec;
	return sqe->timeout_flags & IORING_TIMEOUT_ABS ? ns : ring->now_ns + ns;
}

void ring_sim_add(struct ring *ring, struct ring_req *req)
{
	if (ring->book_len == ring->book_cap) {
		size_t cap = ring->book_cap != 0 ? ring->book_cap * 2 : 64;
		struct ring_req **book = reallocarray(ring->book, cap, sizeof(struct ring_req *));
		if (book == NULL)
			abort();
		ring->book = book;
		ring->book_cap = cap;
	}
	if (ring_req_state(req) == RING_QUEUED) {
		ring->stats.submitted++;
		if (req->sqe.opcode == IORING_OP_TIMEOUT && ring_req_note(req) == 0)
			ring_req_set(req, RING_QUEUED, timeout_due_ns(ring, &req->sqe));
	}
	ring->book[ring->book_len++] = req;
}

static void book_remove(struct ring *ring, size_t i)
{
	/* The order of the rest is kept, so that a run is a function of its seed alone. */
	ring->book_len--;
	for (; i < ring->book_len; i++)
		ring->book[i] = ring->book[i + 1];
}

void ring_sim_drop(struct ring *ring, struct ring_req *req)
{
	for (size_t i = 0; i < ring->book_len; i++)
		if (ring->book[i] == req) {
			book_remove(ring, i);
			return;
		}
}

/* IORING_OP_ASYNC_CANCEL prepared by an owner, by the address of the request. */
static int cancel_by_address(struct ring *ring, const struct io_uring_sqe *sqe)
{
	for (size_t i = 0; i < ring->book_len; i++)
		if ((uintptr_t)ring->book[i] == sqe->addr) {
			ring_cancel(ring, ring->book[i]);
			return 0;
		}
	return -ENOENT;
}

static bool would_block(const struct ring *ring, const struct ring_req *req)
{
	if (ring_req_state(req) == RING_POSTED || req->cancelled)
		return false;
	if (req->sqe.opcode == IORING_OP_TIMEOUT)
		return ring_req_note(req) > ring->now_ns;
	return !ring_sim_ready(&req->sqe);
}

static int carry_out(struct ring *ring, struct ring_req *req, uint32_t *ret_flags)
{
	struct ring_sim *sim = ring->sim;
	const struct io_uring_sqe *sqe = &req->sqe;
	/* A cancelled request usually ends so, but it may also have been quicker. */
	if (req->cancelled && (ring_sim_random(ring) % 4 != 0 || sqe->opcode == IORING_OP_TIMEOUT ||
				      !ring_sim_ready(sqe)))
		return -ECANCELED;
	bool multishot = ring_req_multishot(req);
	if (!multishot && sqe->opcode != IORING_OP_TIMEOUT && ring_req_note(req) == 0 &&
		one_in(ring, sim->eintr_every)) {
		ring_req_set(req, RING_QUEUED, 1);
		return -EINTR;
	}
	uint64_t nth = sim->served++;
	int r = sim->fault != NULL ? sim->fault(sim->fault_arg, nth, sqe) : 0;
	if (r < 0)
		return r;
	if (sqe->opcode == IORING_OP_TIMEOUT)
		return -ETIME;
	if (sqe->opcode == IORING_OP_ASYNC_CANCEL)
		return cancel_by_address(ring, sqe);
	uint32_t len_max = UINT32_MAX;
	if (one_in(ring, sim->short_every) && ring_sim_may_be_short(sqe))
		len_max = 1 + (uint32_t)(ring_sim_random(ring) % (sqe->len - 1));
	r = ring_sim_execute(ring, sqe, len_max, ret_flags);
	/* A multishot goes on until it fails or the stream ends; an accept returns a descriptor. */
	if (multishot && !req->cancelled && (r > 0 || (r == 0 && sqe->opcode == IORING_OP_ACCEPT)))
		*ret_flags |= IORING_CQE_F_MORE;
	return r;
}

/* Draws one entry that can be served now; false when there is none. */
static bool draw(struct ring *ring)
{
	size_t count = ring->book_len;
	if (count == 0)
		return false;
	/* A random start and then all others once: cheap, and every entry can be the first. */
	size_t first = ring_sim_random(ring) % count;
	for (size_t k = 0; k < count; k++) {
		size_t i = (first + k) % count;
		struct ring_req *req = ring->book[i];
		if (would_block(ring, req))
			continue;
		ring->now_ns += 1000 + ring_sim_random(ring) % SIM_STEP_NS_MAX;
		book_remove(ring, i);
		uint32_t flags = 0;
		int res = ring_req_state(req) == RING_POSTED ? (int)(uint32_t)ring_req_note(req)
							     : carry_out(ring, req, &flags);
		if (flags & IORING_CQE_F_MORE)
			ring_sim_add(ring, req);
		ring_done_push(ring, req, res, flags);
		return true;
	}
	return false;
}

/* The next instant at which something can happen by itself; UINT64_MAX: none. */
static uint64_t next_event_ns(const struct ring *ring)
{
	uint64_t next_ns = ring_timer_next_ns(ring);
	for (size_t i = 0; i < ring->book_len; i++) {
		const struct ring_req *req = ring->book[i];
		if (ring_req_state(req) == RING_QUEUED && req->sqe.opcode == IORING_OP_TIMEOUT &&
			ring_req_note(req) < next_ns)
			next_ns = ring_req_note(req);
	}
	return next_ns;
}

void ring_sim_collect(struct ring *ring, bool wait)
{
	size_t before = ring->done_len, wanted = 1 + ring_sim_random(ring) % SIM_BATCH_MAX;
	while (ring->done_len - before < wanted && draw(ring))
		;
	ring->sim_stuck = false;
	if (ring->done_len != 0)
		return;
	uint64_t next_ns = next_event_ns(ring);
	if (next_ns <= ring->now_ns || !wait)
		return;
	if (next_ns != UINT64_MAX) {
		ring->now_ns = next_ns;
		return;
	}
	/* Whatever is armed waits for another thread or process: give it real time. */
	ring->sim_stuck = true;
	when_sleep_ms(1);
}

int ring_sim_settle(struct ring *ring, uint64_t limit_ms)
{
	assert(ring_simulated(ring));
	uint64_t end_ns = ring->now_ns + limit_ms * 1000000;
	for (;;) {
		if (ring->book_len == 0 && ring_timer_next_ns(ring) > end_ns)
			return 0;
		if (ring->now_ns > end_ns)
			return ring->book_len == 0 ? 0 : -ETIME;
		int r = ring_turn(ring, true);
		if (r < 0)
			return r;
		if (ring->sim_stuck)
			return -ETIME;
	}
}
