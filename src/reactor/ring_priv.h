/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the ring share, and what work, helper and proc need of it beyond ring.h.
 * Nobody outside src/reactor includes this.
 */
#ifndef RINGVOL_REACTOR_RING_PRIV_H
#define RINGVOL_REACTOR_RING_PRIV_H

#include "base/gate.h"
#include "reactor/ring.h"
#include "reactor/sim.h"

#include <stddef.h>

enum {
	RING_ENTRIES_DEFAULT = 256,
	RING_ENTRIES_MAX = 4096,
	RING_CQ_PER_SQ = 16, /* completions the kernel can park before it has to allocate */
	RING_CQ_MAX = 65536,
};

struct ring_lane {
	struct list link;     /* ring.lanes */
	struct gate requests; /* by ring_req.link */
	struct gate children; /* by proc.link */
	unsigned helpers;     /* processes busy or hung with its calls */
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
	struct io_uring uring; /* not set up in a sim */
	struct ring_features features;
	struct ring_stats stats;
	uint64_t now_ns;
	uint64_t asked_ns; /* before the kernel was entered in this turn; in a sim now_ns */
	bool stop;
	unsigned in_kernel; /* requests submitted whose last completion was not reaped */

	struct ring_lane common; /* children of who has no lane */
	struct list lanes;       /* ring_lane.link */
	unsigned threads;        /* the kernel's, for what blocks */

	struct list queued;  /* ring_req.link: waiting for a submission slot */
	struct list cancels; /* ring_req.link: in the kernel, cancellation not submitted yet */
	struct list posted;  /* ring_req.link: ring_post() */

	struct ring_done *done; /* reaped, in order; dispatched up to done_at */
	size_t done_at, done_len, done_cap;

	struct ring_timer_entry *timers; /* binary heap */
	unsigned timer_count, timer_cap;
	uint64_t timer_order;

	struct list bufs; /* ring_bufs.link */
	int next_group;

	bool fixed_table;     /* ring_fixed.c: the table is registered */
	uint64_t fixed_taken; /* its places in use, a bit each */

	/* the simulated ring */
	struct ring_sim *sim;
	uint64_t rng;
	struct ring_req **book; /* the order book: requests and posts */
	size_t book_len, book_cap;
	bool sim_stuck; /* the last turn found nothing that can ever happen */
};

/*
 * While a request is armed, its own sqe.user_data (the submitted copy carries the address) is the
 * ring's notebook: the state in the two highest bits, below them a value: the result of a post, in
 * a sim the due time of a timeout or 1 once the request was interrupted.
 */
enum ring_state {
	RING_HELD,   /* by its lane's gate */
	RING_QUEUED, /* on ring->queued, or in the order book of a sim */
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

bool ring_req_multishot(const struct ring_req *req);
/* Appends a completion to ring->done. */
void ring_done_push(struct ring *ring, struct ring_req *req, int res, uint32_t flags);

/* Ends an armed request at once and without its callback: afterwards its memory may go. It waits
 * for the kernel to let go, so it is only for requests that end promptly when cancelled (sockets,
 * polls, eventfds), when their owner is closed. An idle request is left alone. */
void ring_discard(struct ring *ring, struct ring_req *req);
/* The clock now, not as of the start of the turn; virtual in a sim. */
uint64_t ring_clock_ns(const struct ring *ring);
static inline bool ring_simulated(const struct ring *ring)
{
	return ring->sim != NULL;
}

/* ring_timer.c */
uint64_t ring_timer_next_ns(const struct ring *ring); /* UINT64_MAX: none */
/* order: the ring's at the start of the turn; what was armed in it waits, even with no delay. */
void ring_timer_run(struct ring *ring, uint64_t order);

/* ring_bufs.c */
struct ring_bufs *ring_bufs_find(struct ring *ring, unsigned group);
/* A simulated receive takes a buffer; NULL: none left. */
uint8_t *ring_bufs_take(struct ring_bufs *bufs, unsigned *ret_size, uint32_t *ret_flags);
void ring_bufs_untake(struct ring_bufs *bufs, uint32_t flags);
int ring_bufs_probe(struct ring *ring);

/* ring_sim.c */
void ring_sim_open(struct ring *ring, struct ring_sim *sim);
void ring_sim_add(struct ring *ring, struct ring_req *req);
void ring_sim_drop(struct ring *ring, struct ring_req *req);
void ring_sim_collect(struct ring *ring, bool wait);
uint64_t ring_sim_random(struct ring *ring);

/* ring_sim_ops.c */
/* Whether the request can be carried out without blocking. */
bool ring_sim_ready(const struct io_uring_sqe *sqe);
/* Carries it out; *flags are the completion's. len_max bounds a transfer (UINT32_MAX: no bound). */
int ring_sim_execute(
	struct ring *ring, const struct io_uring_sqe *sqe, uint32_t len_max, uint32_t *ret_flags);
/* Whether a short transfer makes sense for it. */
bool ring_sim_may_be_short(const struct io_uring_sqe *sqe);

#endif
