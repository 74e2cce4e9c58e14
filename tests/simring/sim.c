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
#include "simring/sim.h"

#include "base/clock.h"
#include "reactor/ring_uring.h"
#include "simring/private.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <time.h>

enum {
	SIM_START_NS = 1000000000, /* so that no time is 0 */
	SIM_BATCH_MAX = 4,
	SIM_STEP_NS_MAX = 50000,
};

struct book {
	struct ring_sim *sim;
	uint64_t rng;
	struct ring_req **reqs; /* requests and posts, in the order they came */
	size_t len, cap;
	const struct ring_req *missed; /* its cancellation did not find it */
	bool stuck;                    /* the last turn found nothing that can ever happen */
};

static struct book *book_of(const struct ring *ring)
{
	return ring->engine_state;
}

/* splitmix64 */
static uint64_t draw_random(struct ring *ring)
{
	uint64_t z = book_of(ring)->rng += 0x9E3779B97F4A7C15u;
	z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
	z = (z ^ z >> 27) * 0x94D049BB133111EBu;
	return z ^ z >> 31;
}

static bool one_in(struct ring *ring, unsigned every)
{
	return every != 0 && draw_random(ring) % every == 0;
}

static uint64_t timeout_due_ns(const struct ring *ring, const struct io_uring_sqe *sqe)
{
	const struct __kernel_timespec *ts = (const void *)(uintptr_t)sqe->addr;
	uint64_t ns = (uint64_t)ts->tv_sec * 1000000000u + (uint64_t)ts->tv_nsec;
	return sqe->timeout_flags & IORING_TIMEOUT_ABS ? ns : ring->now_ns + ns;
}

static void sim_start(struct ring *ring, struct ring_req *req)
{
	struct book *book = book_of(ring);
	if (book->len == book->cap) {
		size_t cap = book->cap != 0 ? book->cap * 2 : 64;
		struct ring_req **reqs = reallocarray(book->reqs, cap, sizeof(struct ring_req *));
		if (reqs == NULL)
			abort();
		book->reqs = reqs;
		book->cap = cap;
	}
	if (ring_req_state(req) == RING_QUEUED) {
		ring->stats.submitted++;
		if (req->sqe.opcode == IORING_OP_TIMEOUT && ring_req_note(req) == 0)
			ring_req_set(req, RING_QUEUED, timeout_due_ns(ring, &req->sqe));
	}
	book->reqs[book->len++] = req;
}

static void book_remove(struct book *book, size_t i)
{
	/* The order of the rest is kept, so that a run is a function of its seed alone. */
	book->len--;
	for (; i < book->len; i++)
		book->reqs[i] = book->reqs[i + 1];
}

/* A request that is to end is drawn like others, see carry_out(). */
static bool sim_cancel(struct ring *ring, struct ring_req *req)
{
	struct book *book = book_of(ring);
	bool missed = book->sim->missed_cancels > 0;
	book->sim->missed_cancels -= missed;
	book->missed = missed ? req : book->missed == req ? NULL : book->missed;
	list_remove(&req->link);
	ring_cancel_sent(ring, req);
	return false;
}

static bool is_cancelled(const struct ring *ring, const struct ring_req *req)
{
	return req->cancelled && book_of(ring)->missed != req;
}

static void sim_discard(struct ring *ring, struct ring_req *req)
{
	struct book *book = book_of(ring);
	for (size_t i = 0; i < book->len; i++)
		if (book->reqs[i] == req) {
			book_remove(book, i);
			break;
		}
	(void)ring_done_forget(ring, req);
}

/* IORING_OP_ASYNC_CANCEL prepared by an owner, by the address of the request. */
static int cancel_by_address(struct ring *ring, const struct io_uring_sqe *sqe)
{
	const struct book *book = book_of(ring);
	for (size_t i = 0; i < book->len; i++)
		if ((uintptr_t)book->reqs[i] == sqe->addr) {
			ring_cancel(ring, book->reqs[i]);
			return 0;
		}
	return -ENOENT;
}

static bool would_block(const struct ring *ring, const struct ring_req *req)
{
	if (ring_req_state(req) == RING_POSTED || is_cancelled(ring, req))
		return false;
	if (req->sqe.opcode == IORING_OP_TIMEOUT)
		return ring_req_note(req) > ring->now_ns;
	return !sim_ready(&req->sqe);
}

static int carry_out(struct ring *ring, struct ring_req *req, uint32_t *ret_flags)
{
	struct ring_sim *sim = book_of(ring)->sim;
	const struct io_uring_sqe *sqe = &req->sqe;
	/* A cancelled request usually ends so, but it may also have been quicker. */
	if (is_cancelled(ring, req) &&
		(draw_random(ring) % 4 != 0 || sqe->opcode == IORING_OP_TIMEOUT || !sim_ready(sqe)))
		return -ECANCELED;
	bool multishot = ring_req_multishot(req);
	if (!multishot && sqe->opcode != IORING_OP_TIMEOUT && ring_req_note(req) == 0 &&
		one_in(ring, sim->eintr_every)) {
		ring_req_set(req, RING_QUEUED, 1);
		return -EINTR;
	}
	uint64_t nth = sim->served++;
	int r = sim->fault != NULL ? sim->fault(sim->fault_arg, nth, sqe) : 0;
	if (r != 0)
		return r;
	if (sqe->opcode == IORING_OP_TIMEOUT)
		return -ETIME;
	if (sqe->opcode == IORING_OP_ASYNC_CANCEL)
		return cancel_by_address(ring, sqe);
	uint32_t len_max = UINT32_MAX;
	uint32_t unit = one_in(ring, sim->short_every) ? sim_short_unit(sqe) : 0;
	if (unit > 0 && sqe->len > unit)
		len_max = unit * (1 + (uint32_t)(draw_random(ring) % ((sqe->len - 1) / unit)));
	r = sim_execute(ring, sqe, len_max, ret_flags);
	/* A multishot goes on until it fails or the stream ends; an accept returns a descriptor. */
	if (multishot && !req->cancelled && (r > 0 || (r == 0 && sqe->opcode == IORING_OP_ACCEPT)))
		*ret_flags |= IORING_CQE_F_MORE;
	return r;
}

/* Draws one entry that can be served now; false when there is none. */
static bool draw(struct ring *ring)
{
	struct book *book = book_of(ring);
	size_t count = book->len;
	if (count == 0)
		return false;
	/* A random start and then all others once: cheap, and every entry can be the first. */
	size_t first = draw_random(ring) % count;
	for (size_t k = 0; k < count; k++) {
		size_t i = (first + k) % count;
		struct ring_req *req = book->reqs[i];
		if (would_block(ring, req))
			continue;
		ring->now_ns += 1000 + draw_random(ring) % SIM_STEP_NS_MAX;
		book_remove(book, i);
		uint32_t flags = 0;
		int res = ring_req_state(req) == RING_POSTED ? (int)(uint32_t)ring_req_note(req)
							     : carry_out(ring, req, &flags);
		if (flags & IORING_CQE_F_MORE)
			sim_start(ring, req);
		ring_done_push(ring, req, res, flags);
		return true;
	}
	return false;
}

/* The next instant at which something can happen by itself; UINT64_MAX: none. */
static uint64_t next_event_ns(const struct ring *ring)
{
	const struct book *book = book_of(ring);
	uint64_t next_ns = ring_timer_next_ns(ring);
	for (size_t i = 0; i < book->len; i++) {
		const struct ring_req *req = book->reqs[i];
		if (ring_req_state(req) == RING_QUEUED && req->sqe.opcode == IORING_OP_TIMEOUT &&
			ring_req_note(req) < next_ns)
			next_ns = ring_req_note(req);
	}
	return next_ns;
}

static void collect(struct ring *ring, bool wait)
{
	size_t before = ring->done_len, wanted = 1 + draw_random(ring) % SIM_BATCH_MAX;
	while (ring->done_len - before < wanted && draw(ring))
		;
	book_of(ring)->stuck = false;
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
	book_of(ring)->stuck = true;
	clock_sleep_ms(1);
}

static int sim_turn(struct ring *ring, bool wait)
{
	collect(ring, wait);
	ring->asked_ns = ring->now_ns;
	return 0;
}

static uint64_t sim_clock_ns(const struct ring *ring)
{
	return ring->now_ns;
}

static void sim_set_threads(struct ring *ring)
{
	(void)ring;
}

static int sim_set_fixed(struct ring *ring, unsigned index, void *mem, size_t len)
{
	(void)ring;
	(void)index;
	(void)mem;
	(void)len;
	return 0;
}

static void sim_close(struct ring *ring)
{
	free(book_of(ring)->reqs);
	free(ring->engine_state);
}

static const struct ring_engine sim_engine = {
	.runs_inline = true,
	.clock_ns = sim_clock_ns,
	.start = sim_start,
	.post = sim_start,
	.cancel = sim_cancel,
	.discard = sim_discard,
	.turn = sim_turn,
	.set_threads = sim_set_threads,
	.set_fixed = sim_set_fixed,
	.open_bufs = sim_bufs_open,
	.give_buf = sim_bufs_give,
	.close_bufs = sim_bufs_close,
	.close = sim_close,
};

int ring_sim_open(struct ring **ret_ring, struct ring_sim *sim)
{
	if (sim == NULL)
		return ring_open(ret_ring, &(struct ring_config){0});
	struct ring *ring = ring_new(&sim_engine);
	struct book *book = calloc(1, sizeof(*book));
	if (ring == NULL || book == NULL) {
		free(ring);
		free(book);
		return -ENOMEM;
	}
	*book = (struct book){.sim = sim, .rng = sim->seed};
	ring->engine_state = book;
	ring->now_ns = SIM_START_NS;
	ring->features = (struct ring_features){
		.defer_taskrun = true,
		.single_issuer = true,
		.multishot_accept = true,
		.multishot_recv = true,
		.buf_ring = true,
		.direct_writes = true,
	};
	*ret_ring = ring;
	return 0;
}

int ring_sim_settle(struct ring *ring, uint64_t limit_ms)
{
	assert(ring->engine == &sim_engine);
	const struct book *book = book_of(ring);
	uint64_t end_ns = ring->now_ns + limit_ms * 1000000;
	for (;;) {
		if (book->len == 0 && list_empty(&ring->chores.wanted) &&
			ring_timer_next_ns(ring) > end_ns)
			return 0;
		if (ring->now_ns > end_ns)
			return book->len == 0 ? 0 : -ETIME;
		int r = ring_turn(ring, true);
		if (r < 0)
			return r;
		if (book->stuck)
			return -ETIME;
	}
}
