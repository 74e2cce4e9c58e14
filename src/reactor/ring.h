/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The io_uring loop: caller-owned requests, completions reaped first and dispatched afterwards.
 *
 * A request is prepared with liburing's io_uring_prep_*() on `req->sqe` and handed over with
 * ring_submit(). It never fails there: when the submission queue is full the request waits in a
 * list and goes in with the next turn. The request, and all memory its SQE points to, must live
 * until its last completion, also after ring_cancel().
 *
 * Completions: the callback runs from ring_turn(), never inside the call that armed it. -EINTR and
 * -EAGAIN of a request that was not cancelled re-arm it here, unseen. -ECANCELED, -ENOBUFS and
 * every other errno reach the owner. A multishot request completes many times; the completion
 * without IORING_CQE_F_MORE is its last, and the owner arms it again if it wants more. The owner
 * may free or reuse a request from the callback of its last completion, not before.
 *
 * An engine (ring_engine.h) carries the requests out: the kernel's io_uring (ring_uring.h), or one
 * of the tests' own.
 */
#ifndef RINGVOL_REACTOR_RING_H
#define RINGVOL_REACTOR_RING_H

#include "base/hist.h"
#include "reactor/lane.h"
#include "reactor/ring_timer.h"

#include <liburing.h>
#include <stdbool.h>
#include <stdint.h>

struct ring;
struct ring_req;

/* res and flags are the CQE's. */
typedef void ring_fn(struct ring_req *req, int res, uint32_t flags);

/* Embed it; zero-initialised it is idle. */
struct ring_req {
	ring_fn *fn;
	struct io_uring_sqe sqe; /* prepared by the owner; user_data is the ring's */
	struct lane *lane;       /* the owner's choice; NULL: the shared lane */
	struct list link;        /* the ring's: waiting for its lane or a submission slot */
	bool armed;              /* from ring_submit() to the start of the last callback */
	bool cancelled;          /* ring_cancel() was called */
};

/* Requests in flight are cancelled and reaped, and their callbacks are not called. NULL is legal.
 */
void ring_close(struct ring *ring);

void ring_submit(struct ring *ring, struct ring_req *req);
/* Asks for the end of an armed request; it still completes, usually with -ECANCELED. If it does not
 * end, the ring asks again every RING_CANCEL_MS: what cannot be cancelled at one moment can be at
 * another. A request that is not armed is left alone. */
enum { RING_CANCEL_MS = 250 };
void ring_cancel(struct ring *ring, struct ring_req *req);
/* Ends an armed request at once and without its callback: afterwards its memory may go. This waits
 * for the kernel to let go of it. So it is only for requests that end promptly when cancelled
 * (sockets, polls, eventfds), when their owner closes. An idle request is left alone. */
void ring_discard(struct ring *ring, struct ring_req *req);
/* Completes an idle request with `res` in the next turn, without a system call. */
void ring_post(struct ring *ring, struct ring_req *req, int res);

/* One turn: submit, wait for a completion or the next timer (or not at all if wait is false), reap,
 * dispatch, run timers. What completed before a timer was due is dispatched before it, even if this
 * process stood still meanwhile: what was answered in time did not hang. So a turn that has waited
 * for a timer does not run it; the next turn does. Returns 0, or -errno when the ring is broken. */
int ring_turn(struct ring *ring, bool wait);
/* Turns until ring_stop(). */
int ring_run(struct ring *ring);
void ring_stop(struct ring *ring);

/* The engine's clock in nanoseconds as of the start of this turn: CLOCK_MONOTONIC. */
uint64_t ring_now_ns(const struct ring *ring);

/* What this kernel has, found by probing at ring_open(). */
struct ring_features {
	bool defer_taskrun, single_issuer, multishot_accept, multishot_recv, buf_ring;
	/* A direct write to a regular file waits for no other file's (but on btrfs), and never
	 * inside the call that submits it: Linux 6.12. Without it a frozen or hanging file system
	 * can hold up the writes to others, or the loop; buffered writes it can on all kernels. */
	bool direct_writes;
};
const struct ring_features *ring_features(const struct ring *ring);

struct ring_stats {
	uint64_t turns, submitted, completed, sq_full, rearmed;
	/* dispatch time of turns, waiting not counted; since start */
	uint64_t longest_turn_ns, turn_ns;
	struct hist turn;
};
const struct ring_stats *ring_stats(const struct ring *ring);

/*
 * A lane beside the shared one; the ring frees it when it closes. 0 or -ENOMEM.
 *
 * A request on a file may block in a thread of the kernel's, and on a disk that hangs it never
 * ends. So a lane has LANE_REQUESTS_MAX requests under way at once; its others wait for one of them
 * to end. The kernel may use that many threads for each lane, and starts them when it needs them.
 */
int ring_lane_open(struct lane **ret_lane, struct ring *ring);
/* The kernel counts its threads by the thread that submits. Whoever has another ring on this thread
 * adds here how many of that ring's requests may block. */
void ring_add_threads(struct ring *ring, unsigned count);

#endif
