/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What carries a ring's requests out: one table of functions. The kernel's io_uring is the engine
 * of every ring that ring_open() makes (ring_uring.c); tests link one of their own. Here is also
 * the inside of a ring, which engines and the other files of src/reactor work on.
 *
 * The ring (ring.c) arms requests, keeps lanes, dispatches completions and runs timers. The engine
 * takes requests, and appends completions to ring->done (ring_done_push) in its turn. A request
 * that an engine has is armed; its state is RING_QUEUED or RING_IN_KERNEL, as the engine sets it.
 *
 * Only engines and src/reactor include this.
 */
#ifndef RINGVOL_REACTOR_RING_ENGINE_H
#define RINGVOL_REACTOR_RING_ENGINE_H

#include "reactor/ring.h"
#include "reactor/ring_chore.h"

#include <stddef.h>

struct ring_bufs;

struct ring_engine {
	/* There are no threads and no processes: work jobs, helper calls and children run on the
	 * loop's thread, when their posts are dispatched. */
	bool runs_inline;
	uint64_t (*clock_ns)(const struct ring *ring); /* now, not as of the start of the turn */
	/* Takes an armed request that is on no list. */
	void (*start)(struct ring *ring, struct ring_req *req);
	/* Takes a request in state RING_POSTED; it completes in the next turn. */
	void (*post)(struct ring *ring, struct ring_req *req);
	/* A request it has shall end; req->cancelled is set already. True: it was not started, and
	 * the engine has let go of it. False: it will complete, or the ring asks again some time
	 * after the engine has called ring_cancel_sent(). */
	bool (*cancel)(struct ring *ring, struct ring_req *req);
	/* Takes back a request it has started or posted, without a completion. */
	void (*discard)(struct ring *ring, struct ring_req *req);
	/* Starts what waits, waits for a completion or ring_timer_next_ns() if `wait` is set, and
	 * appends what has completed to ring->done. Sets ring->asked_ns and ring->now_ns. 0, or
	 * -errno when the ring is broken. */
	int (*turn)(struct ring *ring, bool wait);
	/* How many requests may block at once has risen to ring->threads. */
	void (*set_threads)(struct ring *ring);
	/* Fills or (mem NULL) empties a place of the registered buffers. 0 or -errno. */
	int (*set_fixed)(struct ring *ring, unsigned index, void *mem, size_t len);
	/* Provided buffers: bufs->data is there. 0 or -errno with nothing to close. */
	int (*open_bufs)(struct ring_bufs *bufs);
	void (*give_buf)(struct ring_bufs *bufs, unsigned id);
	void (*close_bufs)(struct ring_bufs *bufs);
	/* Takes back all it has and frees what is its own. */
	void (*close)(struct ring *ring);
};

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

	/* ring_req.link: ring_post(), where the engine leaves that to the ring */
	struct list posted;

	struct list cancelled; /* ring_req.link: asked to end, and have not yet */
	struct ring_timer cancel_timer;

	struct ring_done *done; /* reaped, in order; dispatched up to done_at */
	size_t done_at, done_len, done_cap;

	struct ring_timer_entry *timers; /* binary heap */
	unsigned timer_count, timer_cap;
	uint64_t timer_order;

	struct list bufs; /* ring_bufs.link */

	struct ring_chores chores;

	uint64_t fixed_taken; /* places of registered buffers in use, a bit each */
};

struct ring_bufs {
	struct ring *ring;
	struct list link; /* ring->bufs */
	int group;
	unsigned count, size_bytes;
	unsigned sharers; /* by ring_bufs_share(); 0: it has one owner */
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

/* A ring of this engine, with nothing probed and nothing armed. NULL when out of memory. */
struct ring *ring_new(const struct ring_engine *engine);
/* Frees a ring whose engine was never opened, or has been closed. */
void ring_free(struct ring *ring);
/* Appends a completion to ring->done. */
void ring_done_push(struct ring *ring, struct ring_req *req, int res, uint32_t flags);
/* Drops the completions of a request from ring->done; true if its last one was among them. */
bool ring_done_forget(struct ring *ring, const struct ring_req *req);
/* The engine has asked for the end of a request that is on no list; see ring_cancel(). */
void ring_cancel_sent(struct ring *ring, struct ring_req *req);
bool ring_req_multishot(const struct ring_req *req);

#endif
