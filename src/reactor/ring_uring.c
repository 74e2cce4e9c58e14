/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernel's io_uring as a ring's engine.
 *
 * The happy path of a turn: copy what waits into the submission queue, enter the kernel once to
 * submit and wait, copy every completion to ring->done and free its slot. A request that the engine
 * has is either on uring.queued or in the kernel, then perhaps also on uring.cancels and later on
 * ring.cancelled.
 *
 * A cancellation is an SQE of its own without user_data, so that its completion is dropped and it
 * refers to no memory. Order matters: it goes in before anything queued after it, because a
 * request's address may be in use again by then.
 *
 * It fails only when the ring cannot be set up, or the kernel refuses to be entered.
 */
#include "reactor/ring_uring.h"

#include "base/clock.h"
#include "base/fd.h"
#include "reactor/ring_bufs.h"
#include "reactor/ring_engine.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/uio.h>

enum {
	RING_ENTRIES_DEFAULT = 256,
	RING_ENTRIES_MAX = 4096,
	RING_CQ_PER_SQ = 16, /* completions the kernel can park before it has to allocate */
	RING_CQ_MAX = 65536,
	/* IORING_FEAT_MIN_TIMEOUT, Linux 6.12, which the liburing we build with (2.3) lacks. A name
	 * of our own, for a newer one has it as a macro. */
	RING_FEAT_MIN_TIMEOUT = 1 << 15,
};

struct uring {
	struct io_uring kernel;
	unsigned in_kernel;  /* requests submitted whose last completion was not reaped */
	struct list queued;  /* ring_req.link: waiting for a submission slot */
	struct list cancels; /* ring_req.link: in the kernel, cancellation not submitted yet */
	bool fixed_table;    /* the table of registered buffers is there */
};

static struct uring *uring_of(const struct ring *ring)
{
	return ring->engine_state;
}

static uint64_t uring_clock_ns(const struct ring *ring)
{
	(void)ring;
	return clock_monotonic_ns();
}

/* ---- submission ---- */

static bool push_request(struct ring *ring, struct ring_req *req)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&uring_of(ring)->kernel);
	if (sqe == NULL)
		return false;
	*sqe = req->sqe;
	sqe->user_data = (uintptr_t)req;
	ring_req_set(req, RING_IN_KERNEL, 0);
	uring_of(ring)->in_kernel++;
	ring->stats.submitted++;
	return true;
}

/* The request is on no list. */
static bool push_cancel(struct ring *ring, struct ring_req *req)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&uring_of(ring)->kernel);
	if (sqe == NULL)
		return false;
	io_uring_prep_cancel64(sqe, (uintptr_t)req, 0);
	sqe->user_data = 0;
	ring_cancel_sent(ring, req);
	return true;
}

/* Moves what waits for a slot into the submission queue, cancellations first. */
static void push_waiting(struct ring *ring)
{
	struct list *node;
	while ((node = list_pop(&uring_of(ring)->cancels)) != NULL) {
		if (!push_cancel(ring, container_of(node, struct ring_req, link))) {
			list_push_front(&uring_of(ring)->cancels, node);
			return;
		}
	}
	while (!list_empty(&uring_of(ring)->queued)) {
		if (!push_request(
			    ring, container_of(uring_of(ring)->queued.next, struct ring_req, link)))
			return;
		list_pop(&uring_of(ring)->queued);
	}
}

static void uring_start(struct ring *ring, struct ring_req *req)
{
	if (list_empty(&uring_of(ring)->queued) && list_empty(&uring_of(ring)->cancels) &&
		push_request(ring, req))
		return;
	ring->stats.sq_full++;
	ring_req_set(req, RING_QUEUED, 0);
	list_push(&uring_of(ring)->queued, &req->link);
}

static void uring_post(struct ring *ring, struct ring_req *req)
{
	list_push(&ring->posted, &req->link);
}

static bool uring_cancel(struct ring *ring, struct ring_req *req)
{
	struct uring *uring = uring_of(ring);
	list_remove(&req->link);
	if (ring_req_state(req) == RING_QUEUED)
		return true;
	if (!list_empty(&uring->cancels) || !push_cancel(ring, req))
		list_push(&uring->cancels, &req->link);
	return false;
}

/* ---- a turn ---- */

/* Copies all completions out and frees their slots. */
static void reap(struct ring *ring)
{
	struct io_uring_cqe *cqe;
	unsigned head, count = 0;
	io_uring_for_each_cqe(&uring_of(ring)->kernel, head, cqe)
	{
		count++;
		if (cqe->user_data == 0 || cqe->user_data == LIBURING_UDATA_TIMEOUT)
			continue;
		struct ring_req *req = (struct ring_req *)(uintptr_t)cqe->user_data;
		if (!(cqe->flags & IORING_CQE_F_MORE))
			uring_of(ring)->in_kernel--;
		ring_done_push(ring, req, cqe->res, cqe->flags);
	}
	io_uring_cq_advance(&uring_of(ring)->kernel, count);
}

/* Errors of io_uring_enter() after which the completions in hand are to be served and the call made
 * again: nothing arrived, a signal, completions overflowed, no memory for a request just now. */
static bool is_transient(int r)
{
	return r == -ETIME || r == -EINTR || r == -EBUSY || r == -EAGAIN;
}

static int enter(struct ring *ring, bool wait)
{
	push_waiting(ring);
	uint64_t next_ns = ring_timer_next_ns(ring), now_ns = clock_monotonic_ns();
	ring->asked_ns = now_ns;
	if (!list_empty(&ring->posted) || !list_empty(&uring_of(ring)->queued) ||
		!list_empty(&uring_of(ring)->cancels) || ring->done_len != 0 || next_ns <= now_ns)
		wait = false;
	int r;
	if (!wait) {
		r = io_uring_submit_and_get_events(&uring_of(ring)->kernel);
	} else if (next_ns == UINT64_MAX) {
		r = io_uring_submit_and_wait(&uring_of(ring)->kernel, 1);
	} else {
		struct __kernel_timespec ts = {
			.tv_sec = (long long)((next_ns - now_ns) / 1000000000u),
			.tv_nsec = (long long)((next_ns - now_ns) % 1000000000u),
		};
		struct io_uring_cqe *cqe;
		r = io_uring_submit_and_wait_timeout(&uring_of(ring)->kernel, &cqe, 1, &ts, NULL);
	}
	return r < 0 && !is_transient(r) ? r : 0;
}

static int uring_turn(struct ring *ring, bool wait)
{
	int r = enter(ring, wait);
	if (r < 0)
		return r;
	reap(ring);
	ring->now_ns = clock_monotonic_ns();
	return 0;
}

static int wait_ms(struct ring *ring, unsigned ms)
{
	struct __kernel_timespec ts = {.tv_nsec = ms * 1000000L};
	struct io_uring_cqe *cqe;
	return io_uring_submit_and_wait_timeout(&uring_of(ring)->kernel, &cqe, 1, &ts, NULL);
}

static void uring_discard(struct ring *ring, struct ring_req *req)
{
	if (ring_req_state(req) != RING_IN_KERNEL || ring_done_forget(ring, req))
		return;
	req->cancelled = true;
	/* What else completes meanwhile stays in ring->done for the next turn. */
	for (int r = -ETIME; !ring_done_forget(ring, req); reap(ring)) {
		if (r == -ETIME) {
			(void)uring_cancel(ring, req);
			push_waiting(ring);
		}
		r = wait_ms(ring, RING_CANCEL_MS);
		if (r < 0 && !is_transient(r))
			abort(); /* the kernel keeps memory we are about to free */
	}
}

/* ---- threads and buffers ---- */

/* Operations on regular files that block (fsync above all) wait in kernel threads, 4 a CPU by
 * default: too few for syncs of many creates to share one flush of the log. Threads come when
 * needed and go after 5 s without work. */
static void uring_set_threads(struct ring *ring)
{
	(void)io_uring_register_iowq_max_workers(
		&uring_of(ring)->kernel, (unsigned[]){ring->threads, 0});
}

static int uring_set_fixed(struct ring *ring, unsigned index, void *mem, size_t len)
{
	struct uring *uring = uring_of(ring);
	struct iovec iov = {mem, len};
	__u64 no_tag = 0;
	int r = 0;
	if (!uring->fixed_table)
		r = io_uring_register_buffers_sparse(&uring->kernel, RING_FIXED_MAX);
	if (r < 0)
		return r;
	uring->fixed_table = true;
	r = io_uring_register_buffers_update_tag(&uring->kernel, index, &iov, &no_tag, 1);
	return r < 0 ? r : 0;
}

static size_t shared_bytes(const struct ring_bufs *bufs)
{
	return bufs->count * sizeof(struct io_uring_buf);
}

/* The ring of descriptors that is shared with the kernel (Linux 5.19) lies on pages of its own. */
static int uring_open_bufs(struct ring_bufs *bufs)
{
	void *shared = mmap(NULL, shared_bytes(bufs), PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (shared == MAP_FAILED)
		return -errno;
	struct io_uring_buf_reg reg = {
		.ring_addr = (uintptr_t)shared,
		.ring_entries = bufs->count,
		.bgid = (uint16_t)bufs->group,
	};
	int r = io_uring_register_buf_ring(&uring_of(bufs->ring)->kernel, &reg, 0);
	if (r < 0) {
		munmap(shared, shared_bytes(bufs));
		return r;
	}
	io_uring_buf_ring_init(shared);
	bufs->engine_state = shared;
	return 0;
}

static void uring_give_buf(struct ring_bufs *bufs, unsigned id)
{
	struct io_uring_buf_ring *shared = bufs->engine_state;
	io_uring_buf_ring_add(shared, bufs->data + (size_t)id * bufs->size_bytes, bufs->size_bytes,
		(unsigned short)id, io_uring_buf_ring_mask(bufs->count), 0);
	io_uring_buf_ring_advance(shared, 1);
}

static void uring_close_bufs(struct ring_bufs *bufs)
{
	io_uring_unregister_buf_ring(&uring_of(bufs->ring)->kernel, bufs->group);
	munmap(bufs->engine_state, shared_bytes(bufs));
}

/* ---- closing ---- */

/* The kernel may write to the memory of what it still has, so this waits for all of it. */
static void cancel_all(struct ring *ring)
{
	list_init(&uring_of(ring)->queued);
	list_init(&uring_of(ring)->cancels);
	reap(ring);
	while (uring_of(ring)->in_kernel != 0) {
		struct io_uring_sqe *sqe = io_uring_get_sqe(&uring_of(ring)->kernel);
		if (sqe != NULL) {
			io_uring_prep_cancel64(
				sqe, 0, IORING_ASYNC_CANCEL_ANY | IORING_ASYNC_CANCEL_ALL);
			sqe->user_data = 0;
		}
		/* Again after a while: a request can start waiting only after the cancellation. */
		int r = wait_ms(ring, 100);
		if (r < 0 && !is_transient(r))
			break;
		reap(ring);
		ring->done_at = ring->done_len = 0;
	}
}

static void uring_close(struct ring *ring)
{
	cancel_all(ring);
	io_uring_queue_exit(&uring_of(ring)->kernel);
	free(ring->engine_state);
}

static const struct ring_engine uring_engine = {
	.clock_ns = uring_clock_ns,
	.start = uring_start,
	.post = uring_post,
	.cancel = uring_cancel,
	.discard = uring_discard,
	.turn = uring_turn,
	.set_threads = uring_set_threads,
	.set_fixed = uring_set_fixed,
	.open_bufs = uring_open_bufs,
	.give_buf = uring_give_buf,
	.close_bufs = uring_close_bufs,
	.close = uring_close,
};

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
		r = io_uring_queue_init_params(entries, &uring_of(ring)->kernel, &params);
		ring->features.single_issuer = modes[i] & IORING_SETUP_SINGLE_ISSUER;
		ring->features.defer_taskrun = modes[i] & IORING_SETUP_DEFER_TASKRUN;
	}
	return r;
}

/* No opcode stands for provided buffers, so the probe is the registration of one. */
static bool has_buf_ring(struct ring *ring)
{
	struct ring_bufs *bufs;
	int r = ring_bufs_open(ring, 1, 64, &bufs);
	if (r == 0)
		ring_bufs_close(bufs);
	return r == 0;
}

static void probe_features(struct ring *ring)
{
	struct ring_features *f = &ring->features;
	struct io_uring_probe *probe = io_uring_get_probe_ring(&uring_of(ring)->kernel);
	if (probe != NULL) {
		/* Multishot is a flag and no opcode; it is told by an opcode of the same release:
		 * sockets (5.19) for accept, zero copy send (6.0) for receive. */
		f->multishot_accept = io_uring_opcode_supported(probe, IORING_OP_SOCKET);
		f->multishot_recv = io_uring_opcode_supported(probe, IORING_OP_SEND_ZC);
		io_uring_free_probe(probe);
	}
	f->buf_ring = has_buf_ring(ring);
	/* Told by a feature of the same release. */
	f->direct_writes = uring_of(ring)->kernel.features & RING_FEAT_MIN_TIMEOUT;
}

int ring_open(struct ring **ret_ring, const struct ring_config *config)
{
	unsigned entries = config->entries != 0 ? config->entries : RING_ENTRIES_DEFAULT;
	if (entries > RING_ENTRIES_MAX)
		return -EINVAL;
	struct ring *ring = ring_new(&uring_engine);
	struct uring *uring = calloc(1, sizeof(*uring));
	if (ring == NULL || uring == NULL) {
		free(ring);
		free(uring);
		return -ENOMEM;
	}
	ring->engine_state = uring;
	list_init(&uring->queued);
	list_init(&uring->cancels);
	int r = setup(ring, entries);
	if (r < 0) {
		free(uring);
		ring_free(ring);
		return r;
	}
	/* Saves looking up the ring's fd at each entry; without it nothing else changes. */
	(void)io_uring_register_ring_fd(&uring->kernel);
	ring_add_threads(ring, LANE_REQUESTS_MAX);
	probe_features(ring);
	ring->now_ns = clock_monotonic_ns();
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
