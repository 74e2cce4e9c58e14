/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What carries a ring's requests out: one table of functions. The kernel's io_uring is the engine
 * of every ring that ring_open() makes (ring_uring.c); tests link one of their own.
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

#include <stddef.h>

struct ring_engine {
	/* There are no threads and no processes: work jobs, helper calls and children run on the
	 * loop's thread, when their posts are dispatched. */
	bool runs_inline;
	uint64_t (*clock_ns)(const struct ring *ring); /* now, not as of the start of the turn */
	/* Takes an armed request that is on no list. */
	void (*start)(struct ring *ring, struct ring_req *req);
	/* Takes a request in state RING_POSTED; it completes in the next turn. */
	void (*post)(struct ring *ring, struct ring_req *req);
	/* A request it has started shall end; req->cancelled is set already. */
	void (*cancel)(struct ring *ring, struct ring_req *req);
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

/* A ring of this engine, with nothing probed and nothing armed. NULL when out of memory. */
struct ring *ring_new(const struct ring_engine *engine);
/* Frees a ring whose engine was never opened, or has been closed. */
void ring_free(struct ring *ring);
/* Appends a completion to ring->done. */
void ring_done_push(struct ring *ring, struct ring_req *req, int res, uint32_t flags);
/* Drops the completions of a request from ring->done; true if its last one was among them. */
bool ring_done_forget(struct ring *ring, const struct ring_req *req);
/* Ends a request that never reached the kernel: -ECANCELED in the next turn, and its lane goes on.
 */
void ring_req_unstart(struct ring *ring, struct ring_req *req);
bool ring_req_multishot(const struct ring_req *req);

#endif
