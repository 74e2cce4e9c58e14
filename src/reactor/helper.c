/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver's side of the helper processes.
 *
 * The happy path: a call is queued, an idle helper (or a new one: the socket holds its first
 * request until it reads) takes it, one message goes out, one comes back, the helper is idle again.
 * Each helper has a receive armed on its socket and a poll on its pidfd.
 *
 *   IDLE -> BUSY -> IDLE          a call
 *   BUSY -> HUNG                  it overstayed: answered, killed, and its key is hung
 *   IDLE, BUSY -> ENDING          it died, misbehaved, or is one too many
 *   HUNG, ENDING -> freed         its process has exited and its receive has completed
 *
 * A call can fail by its deadline (queued or running), by the death of its helper (-EPIPE), or at
 * once because its key is hung. If no helper can be started, calls wait for the next one that can.
 * Where a lane has all the helpers it may have, its calls wait for one of these.
 */
#include "reactor/helper.h"

#include "base/fd.h"
#include "reactor/ring_engine.h"
#include "reactor/spawn.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

enum {
	HELPER_IDLE_MS = 10000, /* above HELPER_WARM, an idle helper goes after this long */
	HELPER_START_MS = 1,    /* between two starts for calls that wait */
	HELPER_WARM_MS = 25,    /* between two that nobody waits for yet: the driver starts first */
	HELPER_RETRY_MS = 500,  /* after a failed start, or one that died before its first call */
	HELPER_CLOSE_MS = 2000, /* for all that were not hung to die */
};

enum slot_state { SLOT_IDLE, SLOT_BUSY, SLOT_HUNG, SLOT_ENDING };

struct helper_slot {
	struct helpers *helpers;
	struct list link; /* the list of its state */
	enum slot_state state;
	pid_t pid;
	int pidfd, fd;
	struct helper_call *call;   /* SLOT_BUSY */
	struct lane *lane;          /* its call's, until the call or the process has ended */
	bool served;                /* at least one call */
	bool exited;                /* and reaped */
	uint64_t since_ns;          /* idle: since when; busy and hung: when the call was sent */
	char key[HELPER_KEY_BYTES]; /* SLOT_HUNG, "": none */
	struct ring_req recv_req, exit_req;
	uint8_t message[HELPER_MESSAGE_BYTES];
};

struct helpers {
	struct ring *ring;
	helper_fn *const *table;
	unsigned count;
	struct list slots[SLOT_ENDING + 1]; /* by state; the idle ones latest first */
	unsigned slot_count[SLOT_ENDING + 1];
	struct list queue;      /* helper_call.link: no helper yet */
	struct list behind;     /* helper_call.link: another call for the same key goes first */
	struct list answering;  /* helper_call.link: the answer is posted (hung key; run inline) */
	unsigned queued;        /* on queue and behind */
	struct ring_timer tick; /* armed when there are helpers too many or too few */
};

static void helpers_dispatch(struct helpers *helpers);

/* The earliest wish counts. */
static void helpers_tick_in(struct helpers *helpers, uint64_t delay_ms)
{
	if (!ring_timer_armed(&helpers->tick) ||
		helpers->tick.due_ns > ring_clock_ns(helpers->ring) + delay_ms * 1000000)
		ring_timer_arm(helpers->ring, &helpers->tick, delay_ms);
}

/* ---- slots ---- */

static void slot_enter(struct helper_slot *slot, enum slot_state state)
{
	struct helpers *helpers = slot->helpers;
	list_remove(&slot->link);
	helpers->slot_count[slot->state]--;
	slot->state = state;
	helpers->slot_count[state]++;
	list_push_front(&helpers->slots[state], &slot->link);
}

static unsigned alive_count(const struct helpers *helpers)
{
	return helpers->slot_count[SLOT_IDLE] + helpers->slot_count[SLOT_BUSY];
}

static unsigned process_count(const struct helpers *helpers)
{
	return alive_count(helpers) + helpers->slot_count[SLOT_HUNG] +
	       helpers->slot_count[SLOT_ENDING];
}

static void slot_leave_lane(struct helper_slot *slot)
{
	if (slot->lane != NULL)
		slot->lane->helpers--;
	slot->lane = NULL;
}

static void slot_kill(struct helper_slot *slot)
{
	syscall(SYS_pidfd_send_signal, slot->pidfd, SIGKILL, NULL, 0);
}

/* Both requests have completed or were discarded. */
static void slot_free(struct helper_slot *slot)
{
	slot->helpers->slot_count[slot->state]--;
	slot_leave_lane(slot);
	list_remove(&slot->link);
	fd_close(&slot->fd);
	fd_close(&slot->pidfd);
	free(slot);
}

static bool key_in_flight(const struct helpers *helpers, const char *key);
static void key_released(struct helpers *helpers, const char *key);

static void slot_end_call(struct helper_slot *slot, int res)
{
	struct helper_call *call = slot->call;
	slot->call = NULL;
	ring_timer_cancel(slot->helpers->ring, &call->timer);
	key_released(slot->helpers, call->key);
	call->on_end(call, res);
}

/* The socket is of no use any more. A call in flight is answered by the caller. */
static void slot_retire(struct helper_slot *slot)
{
	if (slot->state == SLOT_IDLE || slot->state == SLOT_BUSY)
		slot_enter(slot, SLOT_ENDING);
	slot_kill(slot);
}

/* ---- answers and deaths ---- */

static void slot_arm_recv(struct helper_slot *slot)
{
	io_uring_prep_recv(&slot->recv_req.sqe, slot->fd, slot->message, sizeof(slot->message), 0);
	ring_submit(slot->helpers->ring, &slot->recv_req);
}

static void slot_on_answer(struct helper_slot *slot, size_t len)
{
	struct helper_answer answer;
	struct helper_call *call = slot->call;
	memcpy(&answer, slot->message, sizeof(answer));
	call->resp_len = len - sizeof(answer);
	if (call->resp_len > call->resp_cap)
		call->resp_len = call->resp_cap;
	if (call->resp_len != 0)
		memcpy(call->resp, slot->message + sizeof(answer), call->resp_len);
	slot->served = true;
	slot->since_ns = ring_now_ns(slot->helpers->ring);
	slot_enter(slot, SLOT_IDLE);
	slot_leave_lane(slot);
	slot_arm_recv(slot);
	struct helpers *helpers = slot->helpers;
	slot_end_call(slot, answer.res);
	helpers_dispatch(helpers);
}

static void slot_on_recv(struct ring_req *req, int res, uint32_t flags)
{
	(void)flags;
	struct helper_slot *slot = container_of(req, struct helper_slot, recv_req);
	struct helpers *helpers = slot->helpers;
	if (slot->state == SLOT_BUSY && res >= (int)sizeof(struct helper_answer)) {
		slot_on_answer(slot, (size_t)res);
		return;
	}
	/* End of file, or what no helper of ours says. One that dies before its first call may do
	 * so each time it is started, so its successor waits. */
	bool busy = slot->state == SLOT_BUSY;
	bool soon = slot->served || busy || slot->state == SLOT_HUNG;
	slot_retire(slot);
	if (busy)
		slot_end_call(slot, -EPIPE);
	if (slot->exited)
		slot_free(slot);
	if (soon)
		helpers_dispatch(helpers);
	else
		helpers_tick_in(helpers, list_empty(&helpers->queue) ? HELPER_RETRY_MS : 0);
}

static void slot_arm_exit(struct helper_slot *slot)
{
	io_uring_prep_poll_add(&slot->exit_req.sqe, slot->pidfd, POLLIN);
	ring_submit(slot->helpers->ring, &slot->exit_req);
}

static void slot_on_exit(struct ring_req *req, int res, uint32_t flags)
{
	(void)flags;
	struct helper_slot *slot = container_of(req, struct helper_slot, exit_req);
	if (res < 0) {
		/* The kernel would not poll (no memory); the pidfd must be watched nevertheless. */
		slot_arm_exit(slot);
		return;
	}
	while (waitpid(slot->pid, NULL, 0) < 0 && errno == EINTR)
		;
	slot->exited = true;
	if (slot->recv_req.armed) {
		/* Whoever may still hold its end: an answer given just before dying is received
		 * first, then the end. */
		shutdown(slot->fd, SHUT_RDWR);
		return;
	}
	struct helpers *helpers = slot->helpers;
	slot_free(slot);
	helpers_dispatch(helpers);
}

/* ---- starting ---- */

static int helpers_start_one(struct helpers *helpers)
{
	if (process_count(helpers) >= HELPER_MAX)
		return -EAGAIN;
	struct helper_slot *slot = calloc(1, sizeof(*slot));
	if (slot == NULL)
		return -ENOMEM;
	int r = spawn_self("helper", &slot->pid, &slot->pidfd, &slot->fd);
	if (r < 0) {
		free(slot);
		return r;
	}
	slot->helpers = helpers;
	slot->recv_req.fn = slot_on_recv;
	slot->exit_req.fn = slot_on_exit;
	slot->since_ns = ring_now_ns(helpers->ring);
	slot->state = SLOT_IDLE;
	helpers->slot_count[SLOT_IDLE]++;
	list_push_front(&helpers->slots[SLOT_IDLE], &slot->link);
	slot_arm_recv(slot);
	slot_arm_exit(slot);
	return 0;
}

/* ---- calls ---- */

static struct helper_slot *slot_of(struct list *node)
{
	return container_of(node, struct helper_slot, link);
}

static bool same_key(const char *a, const char *b)
{
	return a != NULL && b != NULL && strcmp(a, b) == 0;
}

static bool slot_send(struct helper_slot *slot, const struct helper_call *call)
{
	struct helper_request request = {.fn = call->fn, .resp_cap = (uint32_t)call->resp_cap};
	struct iovec iov[] = {
		{&request, sizeof(request)},
		{(void *)(uintptr_t)call->req, call->req_len},
	};
	struct msghdr msg = {.msg_iov = iov, .msg_iovlen = 2};
	return sendmsg(slot->fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0;
}

/* ---- the number of helpers ---- */

/* The first call that may go, or NULL: the lanes of all that wait have as many as they may. */
static struct helper_call *helpers_next(const struct helpers *helpers)
{
	list_for_each (pos, &helpers->queue) {
		struct helper_call *call = container_of(pos, struct helper_call, link);
		if (call->lane == NULL || call->lane->helpers < LANE_HELPERS_MAX)
			return call;
	}
	return NULL;
}

static bool helpers_too_few(const struct helpers *helpers)
{
	return alive_count(helpers) < HELPER_WARM ||
	       (list_empty(&helpers->slots[SLOT_IDLE]) && helpers_next(helpers) != NULL);
}

/* Sets the tick for what is to be done about too few or too many. Starting one takes a millisecond
 * or more of the loop's time, so they are started one by one with turns between: calls that do not
 * hang are over long before, and a burst of them starts next to none. */
static void helpers_plan(struct helpers *helpers)
{
	if (helpers_too_few(helpers)) {
		unsigned delay_ms = list_empty(&helpers->queue) ? HELPER_WARM_MS : HELPER_START_MS;
		helpers_tick_in(helpers, alive_count(helpers) == 0 ? 0 : delay_ms);
		return;
	}
	uint64_t now_ns = ring_clock_ns(helpers->ring);
	while (alive_count(helpers) > HELPER_WARM && !list_empty(&helpers->slots[SLOT_IDLE])) {
		struct helper_slot *oldest = slot_of(helpers->slots[SLOT_IDLE].prev);
		uint64_t idle_ms = (now_ns - oldest->since_ns) / 1000000;
		if (idle_ms < HELPER_IDLE_MS) {
			helpers_tick_in(helpers, HELPER_IDLE_MS - idle_ms);
			return;
		}
		slot_retire(oldest);
	}
}

/* Gives waiting calls to idle helpers. */
static void helpers_dispatch(struct helpers *helpers)
{
	struct helper_call *call;
	while (!list_empty(&helpers->slots[SLOT_IDLE]) && (call = helpers_next(helpers)) != NULL) {
		struct helper_slot *slot = slot_of(helpers->slots[SLOT_IDLE].next);
		if (!slot_send(slot, call)) {
			/* It died idle, and the call was not begun: the next one takes it. */
			slot_retire(slot);
			continue;
		}
		list_remove(&call->link);
		helpers->queued--;
		slot->lane = call->lane;
		if (slot->lane != NULL)
			slot->lane->helpers++;
		slot->call = call;
		call->slot = slot;
		slot->since_ns = ring_clock_ns(helpers->ring);
		slot_enter(slot, SLOT_BUSY);
	}
	helpers_plan(helpers);
}

static void helpers_on_tick(struct ring_timer *timer)
{
	struct helpers *helpers = container_of(timer, struct helpers, tick);
	if (helpers_too_few(helpers) && helpers_start_one(helpers) < 0)
		helpers_tick_in(helpers, HELPER_RETRY_MS);
	else
		helpers_dispatch(helpers);
}

/* ---- the life of a call ---- */

/* A call's slot is the helper that runs it; while it is on a list (queue, answering), it has none
 * and the field holds the helpers. */
static void call_enlist(struct helpers *helpers, struct helper_call *call, struct list *list)
{
	call->slot = helpers;
	list_push(list, &call->link);
}

static void call_on_deadline(struct ring_timer *timer)
{
	struct helper_call *call = container_of(timer, struct helper_call, timer);
	if (!list_empty(&call->link)) {
		struct helpers *helpers = call->slot;
		list_remove(&call->link);
		helpers->queued--;
		if (!key_in_flight(helpers, call->key))
			key_released(helpers, call->key);
		call->on_end(call, -ETIMEDOUT);
		return;
	}
	struct helper_slot *slot = call->slot;
	struct helpers *helpers = slot->helpers;
	if (call->key != NULL)
		strcpy(slot->key, call->key);
	slot_enter(slot, SLOT_HUNG);
	slot_kill(slot);
	slot_end_call(slot, -ETIMEDOUT);
	helpers_dispatch(helpers);
}

/* Whether a call for this key is running or waits for a helper. */
static bool key_in_flight(const struct helpers *helpers, const char *key)
{
	if (key == NULL)
		return false;
	list_for_each (pos, &helpers->slots[SLOT_BUSY])
		if (same_key(slot_of(pos)->call->key, key))
			return true;
	list_for_each (pos, &helpers->queue)
		if (same_key(container_of(pos, struct helper_call, link)->key, key))
			return true;
	return false;
}

uint64_t helpers_hung_since(const struct helpers *helpers, const char *key)
{
	list_for_each (pos, &helpers->slots[SLOT_HUNG])
		if (same_key(slot_of(pos)->key, key))
			return slot_of(pos)->since_ns;
	return 0;
}

/* The call in flight for this key has ended: the next one may go, or, when the key hangs, all that
 * wait are answered like it. */
static void key_released(struct helpers *helpers, const char *key)
{
	if (key == NULL)
		return;
	bool hung = helpers_hung_since(helpers, key) != 0;
	list_for_each_safe (pos, &helpers->behind) {
		struct helper_call *call = container_of(pos, struct helper_call, link);
		if (!same_key(call->key, key))
			continue;
		list_remove(&call->link);
		if (!hung) {
			call_enlist(helpers, call, &helpers->queue);
			return;
		}
		helpers->queued--;
		ring_timer_cancel(helpers->ring, &call->timer);
		call_enlist(helpers, call, &helpers->answering);
		ring_post(helpers->ring, &call->posted, -ETIMEDOUT);
	}
}

unsigned helpers_hung_count(const struct helpers *helpers)
{
	return helpers->slot_count[SLOT_HUNG];
}

static void call_on_posted(struct ring_req *req, int res, uint32_t flags)
{
	(void)flags;
	struct helper_call *call = container_of(req, struct helper_call, posted);
	struct helpers *helpers = call->slot;
	list_remove(&call->link);
	if (ring_runs_inline(helpers->ring)) {
		helpers->queued--;
		call->resp_len = call->resp_cap;
		if (call->resp_cap != 0)
			memset(call->resp, 0, call->resp_cap);
		res = helpers->table[call->fn](
			call->req, call->req_len, call->resp, &call->resp_len);
	}
	call->on_end(call, res);
}

int helpers_submit(struct helpers *helpers, struct helper_call *call)
{
	assert(call->fn < helpers->count && call->on_end != NULL);
	assert(call->req_len <= HELPER_MESSAGE_BYTES - 16);
	assert(call->key == NULL || strlen(call->key) < HELPER_KEY_BYTES);
	if (helpers->queued >= HELPER_QUEUE_MAX)
		return -EAGAIN;
	call->resp_len = 0;
	list_init(&call->link);
	call->timer = (struct ring_timer){.fn = call_on_deadline};
	call->posted = (struct ring_req){.fn = call_on_posted};
	if (ring_runs_inline(helpers->ring) || helpers_hung_since(helpers, call->key) != 0) {
		helpers->queued += ring_runs_inline(helpers->ring);
		call_enlist(helpers, call, &helpers->answering);
		ring_post(helpers->ring, &call->posted, -ETIMEDOUT);
		return 0;
	}
	bool behind = key_in_flight(helpers, call->key);
	call_enlist(helpers, call, behind ? &helpers->behind : &helpers->queue);
	helpers->queued++;
	ring_timer_arm(helpers->ring, &call->timer, call->timeout_ms);
	helpers_dispatch(helpers);
	return 0;
}

/* ---- opening and closing ---- */

int helpers_open(struct helpers **ret, struct ring *ring, helper_fn *const *table, unsigned count)
{
	struct helpers *helpers = calloc(1, sizeof(*helpers));
	if (helpers == NULL)
		return -ENOMEM;
	*helpers = (struct helpers){
		.ring = ring, .table = table, .count = count, .tick.fn = helpers_on_tick};
	for (unsigned state = 0; state <= SLOT_ENDING; state++)
		list_init(&helpers->slots[state]);
	list_init(&helpers->queue);
	list_init(&helpers->behind);
	list_init(&helpers->answering);
	/* One must start now, or none ever will; the others follow when the loop runs. */
	int r = ring_runs_inline(ring) ? 0 : helpers_start_one(helpers);
	if (r < 0) {
		helpers_close(helpers);
		return r;
	}
	if (!ring_runs_inline(ring))
		helpers_plan(helpers);
	*ret = helpers;
	return 0;
}

/* Reaps a killed helper; one that cannot die yet is left to init, which inherits it. */
static void slot_close(struct helper_slot *slot, int wait_ms)
{
	ring_discard(slot->helpers->ring, &slot->recv_req);
	ring_discard(slot->helpers->ring, &slot->exit_req);
	if (slot->call != NULL)
		ring_timer_cancel(slot->helpers->ring, &slot->call->timer);
	if (!slot->exited) {
		struct pollfd pfd = {.fd = slot->pidfd, .events = POLLIN};
		(void)poll(&pfd, 1, wait_ms);
		waitpid(slot->pid, NULL, WNOHANG);
	}
	slot_free(slot);
}

void helpers_close(struct helpers *helpers)
{
	if (helpers == NULL)
		return;
	struct list *node;
	list_splice(&helpers->queue, &helpers->behind);
	while ((node = list_pop(&helpers->queue)) != NULL)
		ring_timer_cancel(
			helpers->ring, &container_of(node, struct helper_call, link)->timer);
	while ((node = list_pop(&helpers->answering)) != NULL)
		ring_discard(helpers->ring, &container_of(node, struct helper_call, link)->posted);
	ring_timer_cancel(helpers->ring, &helpers->tick);
	for (unsigned state = 0; state <= SLOT_ENDING; state++)
		list_for_each (pos, &helpers->slots[state])
			slot_kill(slot_of(pos));
	uint64_t end_ns = ring_clock_ns(helpers->ring) + HELPER_CLOSE_MS * 1000000ull;
	for (unsigned state = 0; state <= SLOT_ENDING; state++)
		list_for_each_safe (pos, &helpers->slots[state]) {
			uint64_t now_ns = ring_clock_ns(helpers->ring);
			bool wait = state != SLOT_HUNG && now_ns < end_ns;
			slot_close(slot_of(pos), wait ? (int)((end_ns - now_ns) / 1000000) : 0);
		}
	free(helpers);
}
