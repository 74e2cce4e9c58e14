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
 * Steps run in order. The engine first asks done(): a step that is done is skipped, and not undone.
 * run() answers 0 (finished), a negative errno (failed), or OP_PENDING after it armed exactly one
 * of the waits below. The wait's result goes to end(); a step without end() fails if it is
 * negative.
 *
 * When a step fails, the steps before it are undone in reverse order, unless the step marked
 * OP_COMMIT has succeeded. The failed step itself is never undone: it leaves nothing, or nothing
 * that harms (its EEXIST may be another's file). undo() may also answer OP_PENDING. If it fails,
 * only the debug log says so.
 *
 * A trip to a thread and back costs more than most calls made there. So a step can make a list of
 * short calls in one trip (op_calls()). Each is made right after the one before it. Then their ends
 * run in order on the loop, each like a step's. The first call that fails ends the trip. If its
 * end() recovers from that, the step has ended well, and a later step makes the calls that are
 * left. Else the step fails, and the calls before are undone in reverse order, unless one was the
 * commit.
 *
 * At last on_end runs, from the loop, never inside op_start(). op->err says what failed.
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
	const struct op_observer *observer; /* NULL: nobody observes */
};

/* Is told of every operation, for metrics and for tests. Any function may be NULL. step_name: the
 * call's, where a step makes a list of them. */
struct op_observer {
	/* Before a step, and before each further call that it is about to make. A negative errno
	 * fails it without running it. */
	int (*before)(void *arg, const char *op_name, const char *step_name);
	/* On the work thread, before a blocking call, but not before an undo's. A negative errno is
	 * the call's result, and it is not made. */
	int (*before_call)(void *arg, const char *op_name, const char *step_name);
	/* After what ran. */
	void (*after)(void *arg, const char *op_name, const char *step_name, uint64_t ns);
	void *arg;
};

enum {
	OP_PENDING = 1,
	OP_CALLS_MAX = 6, /* in one trip */
	OP_UNDOS_MAX = 4, /* calls of one operation that have an undo() */
};
enum op_flags {
	OP_COMMIT = 1 << 0,
};

struct op;

struct op_step {
	const char *name;
	int (*run)(struct op *op);
	int (*call)(struct op *op); /* in the place of run(): one blocking call, as op_call.fn */
	int (*end)(struct op *op, int res);
	int (*undo)(struct op *op);
	bool (*done)(struct op *op);
	unsigned flags;
};

/* One blocking call of a step that makes several. All but fn() run on the loop, and mean what they
 * mean in a step. */
struct op_call {
	const char *name;
	/* On a work thread: 0 or -errno. It finds its owner by the op, and touches nothing of the
	 * op itself. */
	int (*fn)(struct op *op);
	int (*end)(struct op *op, int res);
	int (*undo)(struct op *op);
	bool (*done)(struct op *op); /* asked before the trip */
	unsigned flags;
};

enum op_phase {
	OP_IDLE,      /* not started, or ended */
	OP_FORWARD,   /* steps run, and would be undone */
	OP_COMMITTED, /* steps run, and are not undone */
	OP_UNDOING,
	OP_ENDING, /* failed after the commit */
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
	enum op_phase phase;
	bool waiting; /* a wait is armed */
	unsigned at;  /* index of the current step */
	uint64_t ran; /* bit i: step i ran and is not undone; 64 steps at most */
	uint64_t start_ns;
	struct op *child;
	struct op *parent;
	struct op_all *all;   /* op_all.h's: of the children that run at once */
	struct ring_req turn; /* op_start() and resumption */
	union {
		struct ring_req req;
		struct work_job job;
		struct helper_call call;
		struct ring_timer timer;
	} wait;
	int (*work)(void *arg); /* op_work()'s */
	void *work_arg;
	/* op_calls()'s: those of the trip, and when each had ended */
	const struct op_call *calls[OP_CALLS_MAX];
	uint64_t ends_ns[OP_CALLS_MAX];
	unsigned call_count, calls_made, calls_ended;
	const struct op_call *call;    /* the one that ends now; NULL: the step itself */
	const struct op_call *refused; /* the observer fails it when its turn comes */
	int fault;                     /* the observer's last refusal, and... */
	const char *fault_name;        /* ...what it refused */
	struct {
		const struct op_call *call;
		unsigned step;
	} undos[OP_UNDOS_MAX]; /* calls that were made, have an undo() and are not undone */
	unsigned undo_count;
};

void op_init(struct op *op, struct reactor *reactor, const char *name, const struct op_step *steps,
	void (*on_end)(struct op *op));
void op_start(struct op *op);
/* What is under way, for a person: the current step, then behind a slash the step of the child it
 * runs, and so on; "undo ..." while steps are undone. */
void op_print_step(const struct op *op, char *buf, size_t cap);
/* From op_start() until on_end is called. */
bool op_running(const struct op *op);
/* True once op->err is set. */
bool op_failed(const struct op *op);

/* ---- waits: arm one inside run() or undo(), and return what it returned ---- */

/* The SQE to prepare with io_uring_prep_*(), then op_submit(). */
struct io_uring_sqe *op_sqe(struct op *op);
int op_submit(struct op *op);
/* fn(arg) on a work thread, 0 or -errno; it must not touch the op. */
int op_work(struct op *op, int (*fn)(void *arg), void *arg);
/* Makes the calls on a work thread, one after the other, up to the first that does not answer 0.
 * Those whose done() holds are left out; OP_CALLS_MAX may remain. Only in a step's run(). The last
 * call's end() may arm another wait, which that end() gets too. */
int op_calls(struct op *op, const struct op_call *calls, unsigned count);
/* A helper call; req and resp must live in the op's owner. */
int op_helper(struct op *op, unsigned fn, const char *key, const void *req, size_t req_len,
	void *resp, size_t resp_cap, uint64_t timeout_ms);
/* Runs a child process; `proc` has argv and timeout_ms set and lives until the step's end. */
int op_proc(struct op *op, struct proc *proc);
/* Runs another operation (already op_init()ed, its on_end is replaced) as this step; its error
 * becomes this step's. The owner of the child's memory frees it after the step's end. */
int op_child(struct op *op, struct op *child);
int op_sleep(struct op *op, uint64_t delay_ms);
/* For anything else that ends later: the step ends when op_complete() is called, from the loop. */
int op_wait(struct op *op);
void op_complete(struct op *op, int res);

/* Shorthands for a step that fails: set op->err and return a negative errno. The step's name is
 * added by the engine. */
#define op_fail(op, code, ...)    err_set(&(op)->err, (code), __VA_ARGS__)
#define op_fail_sys(op, res, ...) err_sys(&(op)->err, (res), __VA_ARGS__)

#endif
