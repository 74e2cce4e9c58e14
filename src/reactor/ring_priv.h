/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the ring share, and what work, helper and proc need of it beyond ring.h.
 * Nobody outside src/reactor includes this.
 */
#ifndef RINGVOL_REACTOR_RING_PRIV_H
#define RINGVOL_REACTOR_RING_PRIV_H

#include "reactor/ring_engine.h"

#include <stddef.h>

/* A completion, reaped and not yet dispatched. req is NULL once it was discarded. */
struct ring_done {
	struct ring_req *req;
	int res;
	uint32_t flags;
};

struct ring_timer_entry {
	uint64_t due_ns, order; /* order: equal deadlines fire in the order they were armed */
	struct ring_timer *timer;
};

struct ring {
	const struct ring_engine *engine;
	void *engine_state; /* the engine's own */
	struct ring_features features;
	struct ring_stats stats;
	uint64_t now_ns;
	uint64_t asked_ns; /* before the kernel was entered in this turn */
	bool stop;

	struct lane shared;
	struct list lanes; /* lane.link: it and the others */
	unsigned lane_count;
	unsigned threads; /* the kernel's, for what blocks */

	struct list
		posted; /* ring_req.link: ring_post(), where the engine leaves that to the ring */

	struct ring_done *done; /* reaped, in order; dispatched up to done_at */
	size_t done_at, done_len, done_cap;

	struct ring_timer_entry *timers; /* binary heap */
	unsigned timer_count, timer_cap;
	uint64_t timer_order;

	struct list bufs; /* ring_bufs.link */
	int next_group;

	uint64_t fixed_taken; /* places of registered buffers in use, a bit each */
};

struct ring_bufs {
	struct ring *ring;
	struct list link; /* ring->bufs */
	int group;
	unsigned count, size_bytes;
	uint8_t *data;
	void *engine_state; /* the engine's own */
};

/*
 * While a request is armed, its own sqe.user_data (the submitted copy carries the address) is the
 * ring's notebook: the state in the two highest bits, below them a value: the result of a post,
 * else the engine's.
 */
enum ring_state {
	RING_HELD,   /* by its lane's gate */
	RING_QUEUED, /* the engine has it, and can still take it back */
	RING_IN_KERNEL,
	RING_POSTED,
};

static inline enum ring_state ring_req_state(const struct ring_req *req)
{
	return (enum ring_state)(req->sqe.user_data >> 62);
}

static inline uint64_t ring_req_note(const struct ring_req *req)
{
	return req->sqe.user_data & (UINT64_MAX >> 2);
}

static inline void ring_req_set(struct ring_req *req, enum ring_state state, uint64_t note)
{
	req->sqe.user_data = (uint64_t)state << 62 | note;
}

/* Ends an armed request at once and without its callback: afterwards its memory may go. It waits
 * for the kernel to let go, so it is only for requests that end promptly when cancelled (sockets,
 * polls, eventfds), when their owner is closed. An idle request is left alone. */
void ring_discard(struct ring *ring, struct ring_req *req);
/* The engine's clock now, not as of the start of the turn. */
static inline uint64_t ring_clock_ns(const struct ring *ring)
{
	return ring->engine->clock_ns(ring);
}
/* Whether work jobs, helper calls and children run on the loop's thread (ring_engine.h). */
static inline bool ring_runs_inline(const struct ring *ring)
{
	return ring->engine->runs_inline;
}

/* ring_timer.c */
uint64_t ring_timer_next_ns(const struct ring *ring); /* UINT64_MAX: none */
/* order: the ring's at the start of the turn; what was armed in it waits, even with no delay. */
void ring_timer_run(struct ring *ring, uint64_t order);

#endif
