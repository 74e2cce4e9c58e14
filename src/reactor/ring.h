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
 * without IORING_CQE_F_MORE is its last, and re-arming is the owner's affair. The owner may free
 * or reuse a request from the callback of its last completion, not before.
 *
 * Requests are carried out by an engine (ring_engine.h): the kernel's io_uring, or one of the
 * tests' own.
 */
#ifndef RINGVOL_REACTOR_RING_H
#define RINGVOL_REACTOR_RING_H

#include "base/err.h"
#include "base/hist.h"
#include "reactor/lane.h"

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

struct ring_config {
	unsigned entries; /* submission queue, 0: 256 */
};

/* A ring on the kernel's io_uring. 0 or -errno: -EPERM when io_uring is disabled
 * (kernel.io_uring_disabled, seccomp), -ENOSYS. */
int ring_open(struct ring **ret_ring, const struct ring_config *config);
/* Says in *err why it failed with `res`, and the remedy, which differs with what forbids it. Reads
 * /proc. Returns res's errno. */
int ring_open_why(int res, struct err *err);
/* Requests in flight are cancelled and reaped, and their callbacks are not called. NULL is legal.
 */
void ring_close(struct ring *ring);

void ring_submit(struct ring *ring, struct ring_req *req);
/* Asks for the end of an armed request; it still completes, usually with -ECANCELED. A request
 * that is not armed is left alone. */
void ring_cancel(struct ring *ring, struct ring_req *req);
/* Completes an idle request with `res` in the next turn, without a system call. */
void ring_post(struct ring *ring, struct ring_req *req, int res);

/* One turn: submit, wait for a completion or the next timer (or not at all if wait is false), reap,
 * dispatch, run timers. What has completed before a timer is due goes before it, however long this
 * process did not run: what was answered in time did not hang. So the turn that has waited for a
 * timer only leads to the one that runs it. Returns 0, or -errno when the ring itself is broken. */
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

/* ---- lanes ---- */

/*
 * A request on a file may block in a thread of the kernel's, and on a disk that hangs it never
 * ends. So a lane has LANE_REQUESTS_MAX requests under way at once; its others wait for one of them
 * to end. The ring has that many threads for each lane, and starts them when they are needed.
 */
/* A lane beside the shared one. The ring frees it when it closes. 0 or -ENOMEM. */
int ring_lane_open(struct lane **ret_lane, struct ring *ring);
/* The kernel counts threads by the thread that submits: another ring of this one adds here how many
 * its requests may block. */
void ring_add_threads(struct ring *ring, unsigned count);

/* ---- provided buffers: one group, for receiving ---- */

struct ring_bufs;
/* count: a power of two. 0 or -errno. */
int ring_bufs_open(struct ring *ring, unsigned count, unsigned size_bytes, struct ring_bufs **ret);
void ring_bufs_close(struct ring_bufs *bufs);
/* The group id for sqe->buf_group, together with IOSQE_BUFFER_SELECT. */
int ring_bufs_group(const struct ring_bufs *bufs);
/* The buffer a completion's flags name (IORING_CQE_F_BUFFER set); its length is the CQE's res. */
uint8_t *ring_bufs_at(struct ring_bufs *bufs, uint32_t cqe_flags);
/* Gives that buffer back to the kernel. */
void ring_bufs_put(struct ring_bufs *bufs, uint32_t cqe_flags);

/* ---- registered buffers: for direct I/O with IORING_OP_READ_FIXED and _WRITE_FIXED ---- */

enum { RING_FIXED_MAX = 64 };
/* Pins [mem, mem + len) and returns its index (sqe->buf_index), or -errno: then the plain opcodes
 * do as well. The memory must stay until ring_fixed_remove(). */
int ring_fixed_add(struct ring *ring, void *mem, size_t len);
/* No transfer may use it any more. A negative index is left alone. */
void ring_fixed_remove(struct ring *ring, int index);

/* ---- timers ---- */

struct ring_timer;
typedef void ring_timer_fn(struct ring_timer *timer);

/* Embed it; zero-initialised it is idle. Arming and cancelling take effect at once: after
 * ring_timer_cancel() the callback does not run, and the memory may go. One armed from a callback
 * runs in a later turn, even with no delay. */
struct ring_timer {
	ring_timer_fn *fn;
	uint64_t due_ns;
	unsigned slot; /* the ring's: 1 + index in its heap, 0 when idle */
};

/* (Re-)arms the timer. Out of memory here ends the process: a lost deadline is a lost promise. */
void ring_timer_arm(struct ring *ring, struct ring_timer *timer, uint64_t delay_ms);
void ring_timer_cancel(struct ring *ring, struct ring_timer *timer);
bool ring_timer_armed(const struct ring_timer *timer);

#endif
