/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The step engine. One function, drive(), moves an operation until it waits or ends: forward
 * through its steps, and after a failure before the commit back through the undos of those that
 * ran. Waits end in callbacks of the loop, each of which hands its result to finish_wait() and that
 * to drive() again: no step runs inside another's call, and a chain of steps that finish at once is
 * a loop and no recursion. Starting and op_complete() go through a posted request for the same
 * reason.
 *
 * The engine itself fails a step only when a wait cannot be armed (a queue at its limit).
 */
#include "reactor/op.h"

#include "base/log.h"
#include "reactor/ring_engine.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { OP_STEPS_MAX = 64 };

/* ---- the life of an operation ---- */

static const struct op_step *current(const struct op *op)
{
	return &op->steps[op->at];
}

/* The call that is due, or else the step. */
static const char *current_name(const struct op *op)
{
	return op->call != NULL ? op->call->name : current(op)->name;
}

/* What is current took from the start, or from the end of the call before it, till now. */
static void note_time(struct op *op, uint64_t now_ns)
{
	const struct op_observer *observer = op->reactor->observer;
	if (observer != NULL && observer->after != NULL)
		observer->after(observer->arg, op->name, current_name(op), now_ns - op->start_ns);
	op->start_ns = now_ns;
}

static void log_undo_failure(const struct op *op, int res)
{
	log_event(LOG_LEVEL_DEBUG, "undo failed",
		log_fields({"op", op->name}, {"step", current_name(op)},
			{"error", strerrordesc_np(-res)}));
}

/* Turns around: what is current failed with r. */
static void fail(struct op *op, int r)
{
	err_sys(&op->err, r, "%s: %s", op->name, current_name(op));
	op->err.step = current_name(op);
	op->call = NULL;
	op->phase = op->phase == OP_COMMITTED ? OP_ENDING : OP_UNDOING;
}

/* What is current succeeded. */
static void succeed(struct op *op, unsigned flags)
{
	/* What end() recovered from is no error of the operation's. */
	if (op_failed(op))
		err_clear(&op->err);
	if (flags & OP_COMMIT)
		op->phase = OP_COMMITTED;
}

/* The current step ran and ended with r. */
static void step_ended(struct op *op, int r)
{
	if (r < 0) {
		fail(op, r);
		return;
	}
	succeed(op, current(op)->flags);
	op->ran |= (uint64_t)1 << op->at;
	op->at++;
}

/* What the observer says of a step or call. Its last refusal stands: a call that was refused may
 * come again in a later step, if one before it in the trip failed. */
static int fault_of(struct op *op, const char *name)
{
	const struct op_observer *observer = op->reactor->observer;
	if (observer == NULL || observer->before == NULL)
		return 0;
	if (op->fault < 0 && strcmp(op->fault_name, name) == 0)
		return op->fault;
	int fault = observer->before(observer->arg, op->name, name);
	if (fault < 0) {
		op->fault = fault;
		op->fault_name = name;
	}
	return fault;
}

static int call_of_step(void *arg)
{
	struct op *op = arg;
	return current(op)->call(op);
}

/* Runs the current step. */
static void step_run(struct op *op)
{
	const struct op_step *step = current(op);
	assert(op->at < OP_STEPS_MAX);
	if (step->done != NULL && step->done(op)) {
		op->at++;
		return;
	}
	op->start_ns = ring_clock_ns(op->reactor->ring);
	int fault = fault_of(op, step->name);
	if (fault < 0) {
		fail(op, fault);
		return;
	}
	int r = step->call != NULL ? op_work(op, call_of_step, op) : step->run(op);
	/* OP_PENDING without a wait, or a wait without it, is a step that never ends. */
	assert((r == OP_PENDING) == op->waiting);
	if (op->waiting)
		return;
	note_time(op, ring_clock_ns(op->reactor->ring));
	step_ended(op, r);
}

/* Undoes the latest call or step that ran; false when there is none left. */
static bool undo_run(struct op *op)
{
	int (*undo)(struct op * op);
	unsigned last = op->undo_count - 1;
	op->call = NULL;
	if (op->undo_count > 0 && op->ran >> op->undos[last].step <= 1) {
		op->at = op->undos[last].step;
		op->call = op->undos[last].call;
		op->undo_count = last;
		undo = op->call->undo;
	} else if (op->ran != 0) {
		op->at = 63 - (unsigned)__builtin_clzll(op->ran);
		op->ran &= ~((uint64_t)1 << op->at);
		undo = current(op)->undo;
	} else {
		return false;
	}
	int r = undo != NULL ? undo(op) : 0;
	assert((r == OP_PENDING) == op->waiting);
	if (r < 0)
		log_undo_failure(op, r);
	return true;
}

/* Moves on until the operation waits or has ended. It may be freed afterwards. */
static void drive(struct op *op)
{
	while (!op->waiting) {
		bool on = op->phase == OP_FORWARD || op->phase == OP_COMMITTED;
		if (on && current(op)->name != NULL) {
			step_run(op);
		} else if (op->phase != OP_UNDOING || !undo_run(op)) {
			op->phase = OP_IDLE;
			op->on_end(op);
			return;
		}
	}
}

/* The end() of what is current; it may arm the next wait, which is how a step repeats one. */
static int run_end(struct op *op, int res)
{
	int (*end)(struct op * op, int res) = op->call != NULL ? op->call->end : current(op)->end;
	int r = end != NULL ? end(op, res) : res;
	assert(end == NULL || (r == OP_PENDING) == op->waiting);
	return r;
}

static void step_end(struct op *op, int res)
{
	int r = run_end(op, res);
	if (op->waiting)
		return;
	note_time(op, ring_clock_ns(op->reactor->ring));
	step_ended(op, r);
}

static void call_succeeded(struct op *op)
{
	succeed(op, op->call->flags);
	if (op->call->undo == NULL)
		return;
	assert(op->undo_count < OP_UNDOS_MAX);
	op->undos[op->undo_count].call = op->call;
	op->undos[op->undo_count++].step = op->at;
}

/* The calls that were made end, the last one with res. It comes here again if its end() waits. */
static void calls_end(struct op *op, int res)
{
	for (unsigned i = op->calls_ended; i < op->calls_made; op->calls_ended = ++i) {
		bool last = i + 1 == op->calls_made;
		op->call = op->calls[i];
		int r = run_end(op, last ? res : 0);
		/* What waits here would forget what the next call did. */
		assert(!op->waiting || last);
		if (op->waiting)
			return;
		note_time(op, last ? ring_clock_ns(op->reactor->ring) : op->ends_ns[i]);
		if (r < 0) {
			/* The same goes for what fails before the last call that was made. */
			assert(last);
			fail(op, r);
			return;
		}
		call_succeeded(op);
	}
	bool all = op->calls_made == op->call_count && res == 0;
	op->call = all ? op->refused : NULL;
	step_ended(op, op->call != NULL ? op->fault : 0);
}

/* The armed wait has ended with res. */
static void finish_wait(struct op *op, int res)
{
	assert(op->waiting);
	op->waiting = false;
	if (op->phase == OP_UNDOING && res < 0)
		log_undo_failure(op, res);
	else if (op->phase != OP_UNDOING && op->call != NULL)
		calls_end(op, res);
	else if (op->phase != OP_UNDOING)
		step_end(op, res);
	drive(op);
}

static void on_turn(struct ring_req *req, int res, uint32_t flags)
{
	(void)flags;
	struct op *op = container_of(req, struct op, turn);
	if (op->waiting)
		finish_wait(op, res);
	else
		drive(op);
}

void op_init(struct op *op, struct reactor *reactor, const char *name, const struct op_step *steps,
	void (*on_end)(struct op *op))
{
	*op = (struct op){
		.reactor = reactor,
		.name = name,
		.steps = steps,
		.on_end = on_end,
		.turn = {.fn = on_turn},
	};
}

void op_start(struct op *op)
{
	assert(op->phase == OP_IDLE && op->on_end != NULL);
	op->phase = OP_FORWARD;
	ring_post(op->reactor->ring, &op->turn, 0);
}

bool op_running(const struct op *op)
{
	return op->phase != OP_IDLE;
}

bool op_failed(const struct op *op)
{
	return op->err.code != ERR_OK;
}

/* ---- waits ---- */

static void begin_wait(struct op *op)
{
	assert(op->phase != OP_IDLE && !op->waiting);
	op->waiting = true;
}

/* A wait that could not be armed: r from submitting it. */
static int refuse_wait(struct op *op, int r, const char *what)
{
	op->waiting = false;
	if (op->phase == OP_UNDOING)
		return r;
	if (r == -EAGAIN)
		err_set(&op->err, ERR_NO_ROOM, "%s: %s: too many %s", op->name, current_name(op),
			what);
	return r;
}

static void on_req(struct ring_req *req, int res, uint32_t flags)
{
	(void)flags;
	finish_wait(container_of(req, struct op, wait.req), res);
}

struct io_uring_sqe *op_sqe(struct op *op)
{
	op->wait.req = (struct ring_req){.fn = on_req};
	return &op->wait.req.sqe;
}

int op_submit(struct op *op)
{
	begin_wait(op);
	op->wait.req.lane = op->lane;
	ring_submit(op->reactor->ring, &op->wait.req);
	return OP_PENDING;
}

/* ---- blocking calls ---- */

/* On the thread: what the observer says of a call. */
static int call_fault_of(const struct op *op, const char *name)
{
	const struct op_observer *observer = op->reactor->observer;
	if (observer == NULL || observer->before_call == NULL || op->phase == OP_UNDOING)
		return 0;
	return observer->before_call(observer->arg, op->name, name);
}

/* On the thread. */
static int on_work_run(struct work_job *job)
{
	struct op *op = container_of(job, struct op, wait.job);
	int res = call_fault_of(op, current_name(op));
	return res == 0 ? op->work(op->work_arg) : res;
}

/* On the thread. */
static int on_calls_run(struct work_job *job)
{
	struct op *op = container_of(job, struct op, wait.job);
	int res = 0;
	for (unsigned i = 0; i < op->call_count && res == 0; i++) {
		res = call_fault_of(op, op->calls[i]->name);
		if (res == 0)
			res = op->calls[i]->fn(op);
		op->ends_ns[i] = ring_clock_ns(op->reactor->ring);
		op->calls_made = i + 1;
	}
	return res;
}

static void on_job_end(struct work_job *job, int res)
{
	finish_wait(container_of(job, struct op, wait.job), res);
}

static int submit_job(struct op *op, int (*run)(struct work_job *job))
{
	begin_wait(op);
	op->wait.job = (struct work_job){.run = run, .on_end = on_job_end, .lane = op->lane};
	int r = work_submit(op->reactor->work, &op->wait.job);
	return r < 0 ? refuse_wait(op, r, "blocking calls") : OP_PENDING;
}

int op_work(struct op *op, int (*fn)(void *arg), void *arg)
{
	op->work = fn;
	op->work_arg = arg;
	return submit_job(op, on_work_run);
}

int op_calls(struct op *op, const struct op_call *calls, unsigned count)
{
	op->call_count = op->calls_made = op->calls_ended = 0;
	op->refused = NULL;
	for (const struct op_call *call = calls; call < calls + count; call++) {
		if (call->done != NULL && call->done(op))
			continue;
		/* A first call that has its step's name was asked about with the step. */
		bool asked = op->call_count == 0 && strcmp(call->name, current(op)->name) == 0;
		if (!asked && fault_of(op, call->name) < 0) {
			op->refused = call;
			break;
		}
		assert(op->call_count < OP_CALLS_MAX);
		op->calls[op->call_count++] = call;
	}
	op->call = op->call_count > 0 ? op->calls[0] : op->refused;
	if (op->call_count > 0)
		return submit_job(op, on_calls_run);
	return op->call != NULL ? op->fault : 0;
}

static void on_call_end(struct helper_call *call, int res)
{
	finish_wait(container_of(call, struct op, wait.call), res);
}

int op_helper(struct op *op, unsigned fn, const char *key, const void *req, size_t req_len,
	void *resp, size_t resp_cap, uint64_t timeout_ms)
{
	begin_wait(op);
	op->wait.call = (struct helper_call){
		.fn = fn,
		.key = key,
		.lane = op->lane,
		.req = req,
		.req_len = req_len,
		.resp = resp,
		.resp_cap = resp_cap,
		.timeout_ms = timeout_ms,
		.on_end = on_call_end,
	};
	int r = helpers_submit(op->reactor->helpers, &op->wait.call);
	return r < 0 ? refuse_wait(op, r, "helper calls") : OP_PENDING;
}

static void on_proc_end(struct proc *proc, int res)
{
	finish_wait(proc->owner, res);
}

int op_proc(struct op *op, struct proc *proc)
{
	begin_wait(op);
	proc->owner = op;
	proc->lane = op->lane;
	proc->on_end = on_proc_end;
	int r = proc_start(op->reactor->ring, proc);
	return r < 0 ? refuse_wait(op, r, "child processes") : OP_PENDING;
}

static void on_child_end(struct op *child)
{
	struct op *op = child->parent;
	int res = 0;
	op->child = NULL;
	if (op_failed(child)) {
		res = child->err.errnum > 0 ? -child->err.errnum : -EIO;
		if (op->phase != OP_UNDOING)
			op->err = child->err;
	}
	op_complete(op, res);
}

int op_child(struct op *op, struct op *child)
{
	begin_wait(op);
	op->child = child;
	child->parent = op;
	child->on_end = on_child_end;
	if (child->lane == NULL)
		child->lane = op->lane;
	op_start(child);
	return OP_PENDING;
}

static void on_sleep_end(struct ring_timer *timer)
{
	finish_wait(container_of(timer, struct op, wait.timer), 0);
}

int op_sleep(struct op *op, uint64_t delay_ms)
{
	begin_wait(op);
	op->wait.timer = (struct ring_timer){.fn = on_sleep_end};
	ring_timer_arm(op->reactor->ring, &op->wait.timer, delay_ms);
	return OP_PENDING;
}

int op_wait(struct op *op)
{
	begin_wait(op);
	return OP_PENDING;
}

void op_complete(struct op *op, int res)
{
	assert(op->waiting);
	ring_post(op->reactor->ring, &op->turn, res);
}

void op_print_step(const struct op *op, char *buf, size_t cap)
{
	size_t len = 0;
	if (cap > 0)
		buf[0] = '\0';
	for (; op != NULL && len < cap; op = op->child) {
		const char *step = op->steps[op->at].name;
		int n = snprintf(buf + len, cap - len, "%s%s%s", len == 0 ? "" : "/",
			op->phase == OP_UNDOING ? "undo " : "", step != NULL ? step : "end");
		len += n > 0 ? (size_t)n : 0;
	}
}
