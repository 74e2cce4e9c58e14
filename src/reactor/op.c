/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The step engine. One function, drive(), moves an operation until it waits or ends: forward
 * through its steps, and after a failure before the commit back through the undos of those that
 * ran. Waits end in callbacks of the loop, each of which hands its result to finish_wait() and that
 * to drive() again: no step runs inside another's call, and a chain of steps that finish at once is
 * a loop and no recursion. Starting and op_complete() go through a posted request for the same
 * reason. Jobs that go together are gathered when the first of them is armed, and ended one after
 * the other.
 *
 * The engine itself fails a step only when a wait cannot be armed (a queue at its limit).
 */
#include "reactor/op.h"

#include "base/log.h"
#include "reactor/ring_priv.h"

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

static void note_time(struct op *op, uint64_t start_ns, uint64_t end_ns)
{
	const struct reactor *reactor = op->reactor;
	if (reactor->op_step_timed != NULL)
		reactor->op_step_timed(
			reactor->op_step_timed_arg, op->name, current(op)->name, end_ns - start_ns);
}

static void log_undo_failure(const struct op *op, int res)
{
	log_event(LOG_LEVEL_DEBUG, "undo failed",
		log_fields({"op", op->name}, {"step", current(op)->name},
			{"error", strerrordesc_np(-res)}));
}

/* The current step ran and ended with r. Moves on, or turns around. */
static void step_ended(struct op *op, int r)
{
	const struct op_step *step = current(op);
	if (r >= 0) {
		/* What end() recovered from is no error of the operation's. */
		if (op_failed(op))
			err_clear(&op->err);
		op->ran |= (uint64_t)1 << op->at;
		op->committed |= (step->flags & OP_COMMIT) != 0;
		op->at++;
		return;
	}
	err_sys(&op->err, r, "%s: %s", op->name, step->name);
	op->err.step = step->name;
	op->undoing = true;
}

/* Tests: what the hook says of a step, which is asked once, be the step run early or again. */
static int fault_of(struct op *op, unsigned at)
{
	const struct reactor *reactor = op->reactor;
	if (reactor->op_fault == NULL)
		return 0;
	if (!(op->asked & (uint64_t)1 << at)) {
		op->asked |= (uint64_t)1 << at;
		op->fault_step = at;
		op->fault = reactor->op_fault(reactor->op_fault_arg, op->name, op->steps[at].name);
	}
	return op->fault_step == at ? op->fault : 0;
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
	op->step_start_ns = ring_clock_ns(op->reactor->ring);
	int fault = fault_of(op, op->at);
	if (fault < 0) {
		step_ended(op, fault);
		return;
	}
	op->starting = true;
	int r = step->run(op);
	op->starting = false;
	/* OP_PENDING without a wait, or a wait without it, is a step that never ends. */
	assert((r == OP_PENDING) == op->waiting);
	if (op->waiting)
		return;
	note_time(op, op->step_start_ns, ring_clock_ns(op->reactor->ring));
	step_ended(op, r);
}

/* Undoes the latest step that ran; false when there is none left. */
static bool undo_run(struct op *op)
{
	if (op->committed || op->ran == 0)
		return false;
	op->at = 63 - (unsigned)__builtin_clzll(op->ran);
	op->ran &= ~((uint64_t)1 << op->at);
	const struct op_step *step = current(op);
	int r = step->undo != NULL ? step->undo(op) : 0;
	assert((r == OP_PENDING) == op->waiting);
	if (r < 0)
		log_undo_failure(op, r);
	return true;
}

/* Moves on until the operation waits or has ended. It may be freed afterwards. */
static void drive(struct op *op)
{
	while (!op->waiting) {
		if (!op->undoing && current(op)->name != NULL) {
			step_run(op);
		} else if (!op->undoing || !undo_run(op)) {
			op->running = false;
			op->on_end(op);
			return;
		}
	}
}

/* The current step's wait has ended with res; its end() may arm the next wait, which is how a step
 * repeats one. */
static void step_end(struct op *op, int res, uint64_t start_ns, uint64_t end_ns)
{
	const struct op_step *step = current(op);
	int r = res;
	if (step->end != NULL) {
		r = step->end(op, res);
		assert((r == OP_PENDING) == op->waiting);
	}
	if (op->waiting)
		return;
	note_time(op, start_ns, end_ns);
	step_ended(op, r);
}

/* The armed wait has ended with res. */
static void finish_wait(struct op *op, int res)
{
	assert(op->waiting);
	op->waiting = false;
	if (!op->undoing)
		step_end(op, res, op->step_start_ns, ring_clock_ns(op->reactor->ring));
	else if (res < 0)
		log_undo_failure(op, res);
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
	assert(!op->running && op->on_end != NULL);
	op->running = true;
	ring_post(op->reactor->ring, &op->turn, 0);
}

bool op_failed(const struct op *op)
{
	return op->err.code != ERR_OK;
}

/* ---- waits; all but op_work() refuse a step that would go along ---- */

static void begin_wait(struct op *op)
{
	assert(op->running && !op->waiting);
	op->waiting = true;
}

/* A wait that could not be armed: r from submitting it. */
static int refuse_wait(struct op *op, int r, const char *what)
{
	op->waiting = false;
	if (op->undoing)
		return r;
	if (r == -EAGAIN)
		err_set(&op->err, ERR_NO_ROOM, "%s: %s: too many %s", op->name, current(op)->name,
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
	if (op->gathering)
		return -EAGAIN;
	begin_wait(op);
	op->wait.req.lane = op->lane;
	ring_submit(op->reactor->ring, &op->wait.req);
	return OP_PENDING;
}

/* Tests: what the job's calls say. Not those of an undo(). */
static int job_fault_of(const struct op *op, const struct op_job *job)
{
	const struct reactor *reactor = op->reactor;
	if (reactor->job_fault == NULL || op->undoing)
		return 0;
	return reactor->job_fault(reactor->job_fault_arg, op->name, op->steps[job->step].name);
}

/* On a thread. */
static int on_job_run(struct work_job *job)
{
	struct op *op = container_of(job, struct op, wait.job);
	int res = 0;
	for (unsigned i = 0; i < op->job_count && res == 0; i++) {
		res = job_fault_of(op, &op->jobs[i]);
		if (res == 0)
			res = op->jobs[i].fn(op->jobs[i].arg);
		op->jobs[i].end_ns = ring_clock_ns(op->reactor->ring);
		op->jobs_run = i + 1;
	}
	return res;
}

static void on_job_end(struct work_job *job, int res)
{
	struct op *op = container_of(job, struct op, wait.job);
	unsigned along = op->jobs_run - 1;
	for (unsigned i = 0; i < along; i++) {
		uint64_t end_ns = op->jobs[i].end_ns;
		op->at = op->jobs[i].step; /* what is between them is done */
		op->waiting = false;
		step_end(op, 0, op->step_start_ns, end_ns);
		/* An end() that fails or repeats here would forget what the next job did. */
		assert(!op->waiting && !op->undoing);
		op->step_start_ns = end_ns;
		op->waiting = true;
	}
	if (along > 0)
		op->at = op->jobs[along].step;
	finish_wait(op, res);
}

static void add_job(struct op *op, unsigned step, int (*fn)(void *arg), void *arg)
{
	op->jobs[op->job_count++] = (struct op_job){.fn = fn, .arg = arg, .step = step};
}

/* The steps that go along prepare their jobs. One that cannot, or waits for something else, is run
 * when it is due. */
static void gather(struct op *op)
{
	const struct op_step *step = current(op) + 1;
	for (; step->name != NULL && op->job_count < OP_JOBS_MAX; step++) {
		unsigned at = (unsigned)(step - op->steps);
		if (step->done != NULL && step->done(op))
			continue;
		if (!(step->flags & OP_ALONG) || fault_of(op, at) < 0)
			return;
		op->gathering = true;
		int r = step->run(op);
		op->gathering = false;
		if (r != OP_PENDING) {
			assert(r < 0);
			err_clear(&op->err);
			return;
		}
		op->jobs[op->job_count - 1].step = at;
	}
}

int op_work(struct op *op, int (*fn)(void *arg), void *arg)
{
	if (op->gathering) {
		add_job(op, 0, fn, arg);
		return OP_PENDING;
	}
	begin_wait(op);
	op->job_count = op->jobs_run = 0;
	add_job(op, op->at, fn, arg);
	if (op->starting)
		gather(op);
	op->wait.job = (struct work_job){.run = on_job_run, .on_end = on_job_end, .lane = op->lane};
	int r = work_submit(op->reactor->work, &op->wait.job);
	return r < 0 ? refuse_wait(op, r, "blocking calls") : OP_PENDING;
}

static void on_call_end(struct helper_call *call, int res)
{
	finish_wait(container_of(call, struct op, wait.call), res);
}

int op_helper(struct op *op, unsigned fn, const char *key, const void *req, size_t req_len,
	void *resp, size_t resp_cap, uint64_t timeout_ms)
{
	if (op->gathering)
		return -EAGAIN;
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
	struct op *op = proc->owner;
	op->proc = NULL;
	finish_wait(op, res);
}

int op_proc(struct op *op, struct proc *proc)
{
	if (op->gathering)
		return -EAGAIN;
	begin_wait(op);
	op->proc = proc;
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
		if (!op->undoing)
			op->err = child->err;
	}
	op_complete(op, res);
}

int op_child(struct op *op, struct op *child)
{
	if (op->gathering)
		return -EAGAIN;
	begin_wait(op);
	op->child = child;
	child->parent = op;
	child->on_end = on_child_end;
	if (child->lane == NULL)
		child->lane = op->lane;
	op_start(child);
	return OP_PENDING;
}

bool op_goes_along(const struct op *op)
{
	return op->gathering;
}

static void on_sleep_end(struct ring_timer *timer)
{
	finish_wait(container_of(timer, struct op, wait.timer), 0);
}

int op_sleep(struct op *op, uint64_t delay_ms)
{
	if (op->gathering)
		return -EAGAIN;
	begin_wait(op);
	op->wait.timer = (struct ring_timer){.fn = on_sleep_end};
	ring_timer_arm(op->reactor->ring, &op->wait.timer, delay_ms);
	return OP_PENDING;
}

int op_wait(struct op *op)
{
	if (op->gathering)
		return -EAGAIN;
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
			op->undoing ? "undo " : "", step != NULL ? step : "end");
		len += n > 0 ? (size_t)n : 0;
	}
}
