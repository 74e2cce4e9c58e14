/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The loop on the kernel's ring; the requests and their queues also serve the simulated one.
 *
 * The happy path of a turn: copy what waits into the submission queue, enter the kernel once to
 * submit and wait, copy every completion to ring->done and free its slot, run the callbacks, then
 * the timers that were due before the kernel was entered. Callbacks only queue. A request is on
 * exactly one of: its lane's gate, ring->queued, the kernel (perhaps also on ring->cancels),
 * ring->posted, ring->done.
 *
 * A cancellation is an SQE of its own without user_data, so that its completion is dropped and it
 * refers to no memory. Order matters: it goes in before anything queued after it, because a
 * request's address may be in use again by then.
 *
 * It fails only when the ring cannot be set up, or the kernel refuses to be entered.
 */
#include "reactor/ring.h"

#include "base/fd.h"
#include "base/log.h"
#include "base/when.h"
#include "reactor/ring_compat.h"
#include "reactor/ring_priv.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

uint64_t ring_clock_ns(const struct ring *ring)
{
	return ring_simulated(ring) ? ring->now_ns : when_monotonic_ns();
}

/* ---- opening ---- */

static int setup(struct ring *ring, unsigned entries)
{
	/* Best first. Linux 6.1 has all of them; a seccomp filter or an older kernel may not. */
	static const unsigned modes[] = {
		IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_SUBMIT_ALL,
		IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_COOP_TASKRUN | IORING_SETUP_SUBMIT_ALL,
		IORING_SETUP_COOP_TASKRUN | IORING_SETUP_SUBMIT_ALL,
		0,
	};
	int r = -EINVAL;
	for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]) && r == -EINVAL; i++) {
		struct io_uring_params params = {
			.flags = modes[i] | IORING_SETUP_CQSIZE | IORING_SETUP_CLAMP,
			.cq_entries = entries * RING_CQ_PER_SQ < RING_CQ_MAX
					      ? entries * RING_CQ_PER_SQ
					      : RING_CQ_MAX,
		};
		r = io_uring_queue_init_params(entries, &ring->uring, &params);
		ring->features.single_issuer = modes[i] & IORING_SETUP_SINGLE_ISSUER;
		ring->features.defer_taskrun = modes[i] & IORING_SETUP_DEFER_TASKRUN;
	}
	return r;
}

static void probe_features(struct ring *ring)
{
	struct ring_features *f = &ring->features;
	struct io_uring_probe *probe = io_uring_get_probe_ring(&ring->uring);
	if (probe != NULL) {
		/* Multishot is a flag and no opcode; it is told by an opcode of the same release:
		 * sockets (5.19) for accept, zero copy send (6.0) for receive. */
		f->multishot_accept = io_uring_opcode_supported(probe, IORING_OP_SOCKET);
		f->multishot_recv = io_uring_opcode_supported(probe, IORING_OP_SEND_ZC);
		io_uring_free_probe(probe);
	}
	f->buf_ring = ring_bufs_probe(ring) == 0;
	/* Told by a feature of the same release. */
	f->direct_writes = ring->uring.features & RING_FEAT_MIN_TIMEOUT;
}

/* Operations on regular files that block (fsync above all) wait in kernel threads, 4 a CPU by
 * default: too few for syncs of many creates to share one flush of the log. Threads come when
 * needed and go after 5 s without work. */
void ring_add_threads(struct ring *ring, unsigned count)
{
	ring->threads += count;
	if (!ring_simulated(ring))
		(void)io_uring_register_iowq_max_workers(
			&ring->uring, (unsigned[]){ring->threads, 0});
}

static void lane_init(struct ring_lane *lane)
{
	gate_init(&lane->requests, RING_LANE_MAX);
	gate_init(&lane->children, RING_LANE_CHILDREN);
}

int ring_lane_open(struct ring_lane **ret_lane, struct ring *ring)
{
	struct ring_lane *lane = calloc(1, sizeof(*lane));
	if (lane == NULL)
		return -ENOMEM;
	lane_init(lane);
	list_push(&ring->lanes, &lane->link);
	ring_add_threads(ring, RING_LANE_MAX);
	*ret_lane = lane;
	return 0;
}

int ring_open(struct ring **ret_ring, const struct ring_config *config)
{
	unsigned entries = config->entries != 0 ? config->entries : RING_ENTRIES_DEFAULT;
	if (entries > RING_ENTRIES_MAX)
		return -EINVAL;
	struct ring *ring = calloc(1, sizeof(*ring));
	if (ring == NULL)
		return -ENOMEM;
	lane_init(&ring->common);
	list_init(&ring->lanes);
	list_init(&ring->queued);
	list_init(&ring->cancels);
	list_init(&ring->posted);
	list_init(&ring->bufs);
	if (config->sim != NULL) {
		ring_sim_open(ring, config->sim);
		*ret_ring = ring;
		return 0;
	}
	int r = setup(ring, entries);
	if (r < 0) {
		free(ring);
		return r;
	}
	/* Saves looking up the ring's fd at each entry; without it nothing else changes. */
	(void)io_uring_register_ring_fd(&ring->uring);
	ring_add_threads(ring, RING_LANE_MAX);
	probe_features(ring);
	ring->now_ns = ring_clock_ns(ring);
	*ret_ring = ring;
	return 0;
}

int ring_open_why(int res, struct err *err)
{
	char disabled[16] = "";
	(void)fd_read_file(
		AT_FDCWD, "/proc/sys/kernel/io_uring_disabled", disabled, sizeof(disabled));
	if (res == -EPERM && disabled[0] != '\0' && disabled[0] != '0')
		return err_set(err, ERR_PRECONDITION,
			"io_uring is switched off on this node (kernel.io_uring_disabled is %c): "
			"sysctl -w kernel.io_uring_disabled=0",
			disabled[0]);
	if (res == -EPERM || res == -ENOSYS)
		return err_set(err, ERR_PRECONDITION,
			"io_uring is not allowed here, probably by the container's seccomp "
			"profile: "
			"run it privileged or with a profile that has the io_uring_* calls, on "
			"Linux "
			"6.1 or newer");
	return err_sys(err, res, "io_uring cannot be set up");
}

/* ---- submission ---- */

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

static bool push_request(struct ring *ring, struct ring_req *req)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&ring->uring);
	if (sqe == NULL)
		return false;
	*sqe = req->sqe;
	sqe->user_data = (uintptr_t)req;
	ring_req_set(req, RING_IN_KERNEL, 0);
	ring->in_kernel++;
	ring->stats.submitted++;
	return true;
}

static bool push_cancel(struct ring *ring, struct ring_req *req)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&ring->uring);
	if (sqe == NULL)
		return false;
	io_uring_prep_cancel64(sqe, (uintptr_t)req, 0);
	sqe->user_data = 0;
	return true;
}

/* Moves what waits for a slot into the submission queue, cancellations first. */
static void push_waiting(struct ring *ring)
{
	while (!list_empty(&ring->cancels)) {
		if (!push_cancel(ring, container_of(ring->cancels.next, struct ring_req, link)))
			return;
		list_pop(&ring->cancels);
	}
	while (!list_empty(&ring->queued)) {
		if (!push_request(ring, container_of(ring->queued.next, struct ring_req, link)))
			return;
		list_pop(&ring->queued);
	}
}

/* The request is armed and on no list. */
static void start(struct ring *ring, struct ring_req *req)
{
	if (ring_simulated(ring)) {
		ring_sim_add(ring, req);
		return;
	}
	if (list_empty(&ring->queued) && list_empty(&ring->cancels) && push_request(ring, req))
		return;
	ring->stats.sq_full++;
	ring_req_set(req, RING_QUEUED, 0);
	list_push(&ring->queued, &req->link);
}

/* ---- lanes ---- */

/* The request is off its way into the kernel or back from there, and the next may go. */
static void lane_leave(struct ring *ring, struct ring_req *req)
{
	struct list *node = req->lane != NULL ? gate_leave(&req->lane->requests) : NULL;
	if (node == NULL)
		return;
	struct ring_req *next = container_of(node, struct ring_req, link);
	ring_req_set(next, RING_QUEUED, 0);
	start(ring, next);
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
	if (req->lane != NULL && !gate_enter(&req->lane->requests, &req->link))
		return;
	ring_req_set(req, RING_QUEUED, 0);
	start(ring, req);
}

static void post(struct ring *ring, struct ring_req *req, int res)
{
	ring_req_set(req, RING_POSTED, (uint32_t)res);
	if (ring_simulated(ring))
		ring_sim_add(ring, req);
	else
		list_push(&ring->posted, &req->link);
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
		if (ring_simulated(ring))
			break;
		list_remove(&req->link);
		post(ring, req, -ECANCELED);
		lane_leave(ring, req);
		break;
	case RING_IN_KERNEL:
		if (!list_empty(&ring->cancels) || !push_cancel(ring, req))
			list_push(&ring->cancels, &req->link);
		break;
	case RING_POSTED:
		break;
	}
}

/* ---- completion ---- */

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

/* Copies all completions out and frees their slots. */
static void reap(struct ring *ring)
{
	struct io_uring_cqe *cqe;
	unsigned head, count = 0;
	io_uring_for_each_cqe(&ring->uring, head, cqe)
	{
		count++;
		if (cqe->user_data == 0 || cqe->user_data == LIBURING_UDATA_TIMEOUT)
			continue;
		struct ring_req *req = (struct ring_req *)(uintptr_t)cqe->user_data;
		if (!(cqe->flags & IORING_CQE_F_MORE))
			ring->in_kernel--;
		ring_done_push(ring, req, cqe->res, cqe->flags);
	}
	io_uring_cq_advance(&ring->uring, count);
}

static void dispatch(struct ring *ring, struct ring_req *req, int res, uint32_t flags)
{
	bool posted = ring_req_state(req) == RING_POSTED;
	ring->stats.completed++;
	if (!(flags & IORING_CQE_F_MORE)) {
		if (!posted && (res == -EINTR || res == -EAGAIN) && !ring_req_multishot(req)) {
			if (!req->cancelled) {
				ring->stats.rearmed++;
				start(ring, req);
				return;
			}
			res = -ECANCELED;
		}
		list_remove(&req->link);
		req->armed = false;
		if (!posted)
			lane_leave(ring, req);
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

/* Errors of io_uring_enter() after which the completions in hand are to be served and the call made
 * again: nothing arrived, a signal, completions overflowed, no memory for a request just now. */
static bool is_transient(int r)
{
	return r == -ETIME || r == -EINTR || r == -EBUSY || r == -EAGAIN;
}

static int enter(struct ring *ring, bool wait)
{
	push_waiting(ring);
	uint64_t next_ns = ring_timer_next_ns(ring), now_ns = ring_clock_ns(ring);
	ring->asked_ns = now_ns;
	if (!list_empty(&ring->posted) || !list_empty(&ring->queued) ||
		!list_empty(&ring->cancels) || ring->done_len != 0 || next_ns <= now_ns)
		wait = false;
	int r;
	if (!wait) {
		r = io_uring_submit_and_get_events(&ring->uring);
	} else if (next_ns == UINT64_MAX) {
		r = io_uring_submit_and_wait(&ring->uring, 1);
	} else {
		struct __kernel_timespec ts = {
			.tv_sec = (long long)((next_ns - now_ns) / 1000000000u),
			.tv_nsec = (long long)((next_ns - now_ns) % 1000000000u),
		};
		struct io_uring_cqe *cqe;
		r = io_uring_submit_and_wait_timeout(&ring->uring, &cqe, 1, &ts, NULL);
	}
	return r < 0 && !is_transient(r) ? r : 0;
}

int ring_turn(struct ring *ring, bool wait)
{
	ring->stats.turns++;
	if (ring_simulated(ring)) {
		ring_sim_collect(ring, wait);
		ring->asked_ns = ring->now_ns;
	} else {
		int r = enter(ring, wait);
		if (r < 0)
			return r;
		reap(ring);
		ring->now_ns = ring_clock_ns(ring);
	}
	uint64_t start_ns = ring->now_ns, order = ring->timer_order;
	dispatch_posted(ring);
	dispatch_done(ring);
	ring_timer_run(ring, order);
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

/* Drops the reaped completions of a request; true when its last one was among them. */
static bool forget_done(struct ring *ring, const struct ring_req *req)
{
	bool last = false;
	for (size_t i = ring->done_at; i < ring->done_len; i++)
		if (ring->done[i].req == req) {
			ring->done[i].req = NULL;
			last |= !(ring->done[i].flags & IORING_CQE_F_MORE);
		}
	return last;
}

void ring_discard(struct ring *ring, struct ring_req *req)
{
	assert(req->lane == NULL); /* what may hang does not end promptly */
	if (!req->armed)
		return;
	if (ring_simulated(ring)) {
		ring_sim_drop(ring, req);
		(void)forget_done(ring, req);
	} else if (ring_req_state(req) == RING_IN_KERNEL && !forget_done(ring, req)) {
		ring_cancel(ring, req);
		/* What else completes meanwhile stays in ring->done for the next turn. */
		do {
			push_waiting(ring);
			int r = io_uring_submit_and_wait(&ring->uring, 1);
			if (r < 0 && !is_transient(r))
				abort(); /* the kernel keeps memory we are about to free */
			reap(ring);
		} while (!forget_done(ring, req));
	}
	list_remove(&req->link);
	req->armed = false;
}

/* The kernel may write to the memory of what it still has, so this waits for all of it. */
static void cancel_all(struct ring *ring)
{
	list_init(&ring->queued);
	list_init(&ring->cancels);
	reap(ring);
	while (ring->in_kernel != 0) {
		struct io_uring_sqe *sqe = io_uring_get_sqe(&ring->uring);
		if (sqe != NULL) {
			io_uring_prep_cancel64(
				sqe, 0, IORING_ASYNC_CANCEL_ANY | IORING_ASYNC_CANCEL_ALL);
			sqe->user_data = 0;
		}
		/* Again after a while: a request can start waiting only after the cancellation. */
		struct __kernel_timespec ts = {.tv_nsec = 100 * 1000000};
		struct io_uring_cqe *cqe;
		int r = io_uring_submit_and_wait_timeout(&ring->uring, &cqe, 1, &ts, NULL);
		if (r < 0 && !is_transient(r))
			break;
		reap(ring);
		ring->done_at = ring->done_len = 0;
	}
}

void ring_close(struct ring *ring)
{
	if (ring == NULL)
		return;
	if (!ring_simulated(ring)) {
		cancel_all(ring);
		io_uring_queue_exit(&ring->uring);
	}
	struct list *node;
	while ((node = list_pop(&ring->lanes)) != NULL)
		free(container_of(node, struct ring_lane, link));
	free(ring->book);
	free(ring->done);
	free(ring->timers);
	free(ring);
}
