/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An operation is a table of steps; the table reads as the story.
 *
 *   static const struct op_step steps[] = {
 *           {"open", .run = open_run, .end = open_end, .undo = open_undo},
 *           {"link", .run = link_run, .flags = OP_COMMIT},
 *           {"sync", .run = sync_run},
 *           {NULL},
 *   };
 *
 * Steps run in order. A step whose done() holds is skipped (and not undone). run() answers 0
 * (finished), a negative errno (failed), or OP_PENDING after it armed exactly one of the waits
 * below; the wait's result goes to end(), or without one a negative result is the step's failure.
 * When a step fails, the undo() of the steps before it that ran run in reverse order, unless the
 * step marked OP_COMMIT has succeeded. The failed step itself is never undone: it leaves nothing
 * or is harmless to leave (its EEXIST may be another's file).
 * An undo() may also answer OP_PENDING; its failure is remembered in no place but the debug log.
 *
 * A hop to a thread and back costs more than most calls made there, so jobs can go together: a step
 * marked OP_ALONG whose run() is an op_work() joins the job of the step before it. Its run() is
 * called when that one's is, and its job runs right after, on the same thread, unless an earlier
 * one failed. The ends then run in order on the loop. This asks three things of such steps:
 *   - run() only prepares, from what is known before the earlier jobs ran, and can be repeated: it
 *     is called again when the step is due if an earlier job failed and its end() recovered from
 *     it, or if it waits for anything else (that wait answers -EAGAIN the first time);
 *   - a done() between them that holds when asked early still holds when the jobs ended with 0;
 *   - the end() of a step that others go along with takes a result of 0 for success.
 *
 * Then on_end runs, from the loop, never inside op_start(). op->err says what failed.
 */
#ifndef RINGVOL_REACTOR_OP_H
#define RINGVOL_REACTOR_OP_H

#include "base/err.h"
#include "reactor/helper.h"
#include "reactor/proc.h"
#include "reactor/ring.h"
#include "reactor/work.h"

/* What an operation may wait for. Owned by main() or a test. */
struct reactor {
	struct ring *ring;
	struct work *work;
	struct helpers *helpers;
	/* Tests: called before a step's run(); a negative errno fails the step without running it.
	 */
	int (*op_fault)(void *arg, const char *op_name, const char *step_name);
	void *op_fault_arg;
	/* Tests: called before a job of op_work(), on its thread; a negative errno is its result.
	 */
	int (*job_fault)(void *arg, const char *op_name, const char *step_name);
	void *job_fault_arg;
	/* Called after each step that ran, for metrics; NULL: nobody listens. */
	void (*op_step_timed)(void *arg, const char *op_name, const char *step_name, uint64_t ns);
	void *op_step_timed_arg;
};

enum {
	OP_PENDING = 1,
	OP_JOBS_MAX = 5, /* that go together */
};
enum op_flags {
	OP_COMMIT = 1 << 0,
	OP_ALONG = 1 << 1,
};

struct op;

struct op_step {
	const char *name;
	int (*run)(struct op *op);
	int (*end)(struct op *op, int res);
	int (*undo)(struct op *op);
	bool (*done)(struct op *op);
	unsigned flags;
};

/* What op_work() was asked for, one of several that go together. */
struct op_job {
	int (*fn)(void *arg);
	void *arg;
	unsigned step;
	uint64_t end_ns;
};

/* Embed it. */
struct op {
	/* set by op_init() */
	struct reactor *reactor;
	const char *name;
	const struct op_step *steps;
	void (*on_end)(struct op *op); /* may free the op */
	/* Set it after op_init(): all waits of the operation are made in this lane. NULL: its
	 * parent's, or else the shared lane. */
	struct lane *lane;
	struct err err;
	/* private */
	unsigned at;  /* index of the current step */
	uint64_t ran; /* bit i: step i ran and is not undone; 64 steps at most */
	bool running, undoing, committed, waiting;
	uint64_t step_start_ns;
	struct op *child;
	struct op *parent;
	struct ring_req turn; /* op_start() and resumption */
	union {
		struct ring_req req;
		struct work_job job;
		struct helper_call call;
		struct ring_timer timer;
	} wait;
	struct op_job jobs[OP_JOBS_MAX];
	unsigned job_count, jobs_run;
	bool starting, gathering; /* in a run(): of this step, of one that goes along */
	uint64_t asked;           /* bit i: op_fault was asked about step i */
	unsigned fault_step;
	int fault;
	struct proc *proc;
};

void op_init(struct op *op, struct reactor *reactor, const char *name, const struct op_step *steps,
	void (*on_end)(struct op *op));
void op_start(struct op *op);
/* What is under way, for a person: the current step, behind a slash that of the child it runs, and
 * so on; "undo ..." while steps are undone. */
void op_print_step(const struct op *op, char *buf, size_t cap);
/* True once op->err is set. */
bool op_failed(const struct op *op);

/* ---- waits: arm one inside run() or undo(), and return what it returned ---- */

/* The SQE to prepare with io_uring_prep_*(), then op_submit(). */
struct io_uring_sqe *op_sqe(struct op *op);
int op_submit(struct op *op);
/* fn(arg) on a work thread, 0 or -errno; it must not touch the op. */
int op_work(struct op *op, int (*fn)(void *arg), void *arg);
/* A helper call; req and resp must live in the op's owner. */
int op_helper(struct op *op, unsigned fn, const char *key, const void *req, size_t req_len,
	void *resp, size_t resp_cap, uint64_t timeout_ms);
/* Runs a child process; `proc` has argv and timeout_ms set and lives until the step's end. */
int op_proc(struct op *op, struct proc *proc);
/* Runs another operation (already op_init()ed, its on_end is replaced) as this step; its error
 * becomes this step's. The owner of the child's memory frees it after the step's end. */
int op_child(struct op *op, struct op *child);
/* In a run() that is called early, to go along. One that would do more than op_work() answers
 * -EAGAIN then, and is called again when it is due. */
bool op_goes_along(const struct op *op);
int op_sleep(struct op *op, uint64_t delay_ms);
/* For anything else that ends later: the step ends when op_complete() is called, from the loop. */
int op_wait(struct op *op);
void op_complete(struct op *op, int res);

/* Shorthands for a step that fails: set op->err and return a negative errno. The step's name is
 * added by the engine. */
#define op_fail(op, code, ...)    err_set(&(op)->err, (code), __VA_ARGS__)
#define op_fail_sys(op, res, ...) err_sys(&(op)->err, (res), __VA_ARGS__)

#endif
