/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that go together: one trip to a thread, ends in order, each call still failed in turn. */
#include "reactor/op.h"
#include "simring/sim.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

static struct reactor reactor;
static struct ring_sim sim;
static char trace[256]; /* what ran: "a" run(), "a!" the job, "a." end(), "~a" undo() */

static void note(const char *what, const char *mark)
{
	size_t len = strlen(trace);
	cr_assert_lt(len + 4, sizeof(trace));
	snprintf(trace + len, sizeof(trace) - len, "%s%s ", what, mark);
}

/* ---- three calls, and a copy between the last two that is only needed when sharing failed ---- */

struct four {
	struct op op;
	bool must_copy, nop_in_d, d_made;
	int b_result;
	bool ended;
};

static struct four four;

static struct four *four_of(struct op *op)
{
	return container_of(op, struct four, op);
}

static int a_call(struct op *op)
{
	(void)op;
	note("a", "!");
	return 0;
}

static int b_call(struct op *op)
{
	note("b", "!");
	return four_of(op)->b_result;
}

static int d_call(struct op *op)
{
	(void)op;
	note("d", "!");
	return 0;
}

static int a_end(struct op *op, int res)
{
	(void)op;
	note("a", ".");
	return res;
}

static int a_undo(struct op *op)
{
	(void)op;
	note("~a", "");
	return 0;
}

static int b_end(struct op *op, int res)
{
	note("b", ".");
	four_of(op)->must_copy = res == -EXDEV;
	return res == -EXDEV ? 0 : res;
}

static int b_undo(struct op *op)
{
	(void)op;
	note("~b", "");
	return 0;
}

static bool c_done(struct op *op)
{
	return !four_of(op)->must_copy;
}

static int c_run(struct op *op)
{
	note("c", "");
	io_uring_prep_nop(op_sqe(op));
	return op_submit(op);
}

static bool d_done(struct op *op)
{
	return four_of(op)->d_made;
}

static int d_end(struct op *op, int res)
{
	note("d", ".");
	four_of(op)->d_made = res == 0;
	return res;
}

static const struct op_call calls[] = {
	{"a", .fn = a_call, .end = a_end, .undo = a_undo},
	{"b", .fn = b_call, .end = b_end, .undo = b_undo},
	{"d", .fn = d_call, .end = d_end, .flags = OP_COMMIT},
};

static int a_run(struct op *op)
{
	note("a", "");
	return op_calls(op, calls, four_of(op)->nop_in_d ? 2 : 3);
}

static int d_run(struct op *op)
{
	note("d", "");
	if (!four_of(op)->nop_in_d)
		return op_calls(op, &calls[2], 1);
	io_uring_prep_nop(op_sqe(op));
	return op_submit(op);
}

static const struct op_step steps[] = {
	{"a", .run = a_run},
	{"c", .run = c_run, .done = c_done},
	{"d", .run = d_run, .end = d_end, .done = d_done, .flags = OP_COMMIT},
	{NULL},
};

static void on_end(struct op *op)
{
	four_of(op)->ended = true;
}

static void run_four(struct four how)
{
	four = how;
	trace[0] = '\0';
	op_init(&four.op, &reactor, "four", steps, on_end);
	op_start(&four.op);
	for (int i = 0; !four.ended; i++) {
		cr_assert_lt(i, 10000);
		cr_assert_eq(ring_turn(reactor.ring, true), 0);
	}
}

static void world_open(bool simulated)
{
	sim = (struct ring_sim){.seed = 1};
	reactor = (struct reactor){0};
	cr_assert_eq(ring_sim_open(&reactor.ring, simulated ? &sim : NULL), 0);
	cr_assert_eq(work_open(&reactor.work, reactor.ring, 2), 0);
}

static void world_close(void)
{
	work_close(reactor.work);
	ring_close(reactor.ring);
}

Test(op_calls, one_trip_and_ends_in_order)
{
	for (int simulated = 0; simulated < 2; simulated++) {
		world_open(simulated);
		run_four((struct four){0});
		cr_assert_str_eq(trace, "a a! b! d! a. b. d. ");
		cr_assert_not(op_failed(&four.op));
		world_close();
	}
}

/* What was not made is left to a later step when an end() recovered from a failure before it. */
Test(op_calls, recovery_leaves_the_rest_to_later_steps)
{
	world_open(true);
	run_four((struct four){.b_result = -EXDEV});
	cr_assert_str_eq(trace, "a a! b! a. b. c d d! d. ");
	cr_assert_not(op_failed(&four.op));
	world_close();
}

Test(op_calls, failure_undoes_what_ran)
{
	world_open(true);
	run_four((struct four){.b_result = -EIO});
	cr_assert_str_eq(trace, "a a! b! a. b. ~a ");
	cr_assert_str_eq(four.op.err.step, "b");
	cr_assert_eq(strncmp(four.op.err.message, "four: b: ", 9), 0, "%s", four.op.err.message);
	world_close();
}

/* A step that waits for something else comes when it is due. */
Test(op_calls, other_waits_stay_alone)
{
	world_open(true);
	run_four((struct four){.nop_in_d = true});
	cr_assert_str_eq(trace, "a a! b! a. b. d d. ");
	cr_assert_not(op_failed(&four.op));
	world_close();
}

/* ---- what the last call's end() waits for, calls that are left out, times ---- */

static int last_waits_end(struct op *op, int res)
{
	if (!four_of(op)->must_copy) {
		four_of(op)->must_copy = true;
		note("b", ":");
		return op_sleep(op, 5);
	}
	note("b", ".");
	return res;
}

static bool left_out(struct op *op)
{
	(void)op;
	return true;
}

static const struct op_call waiting_calls[] = {
	{"a", .fn = a_call, .end = a_end, .undo = a_undo, .done = left_out},
	{"a", .fn = a_call, .end = a_end, .undo = a_undo},
	{"b", .fn = b_call, .end = last_waits_end, .undo = b_undo},
};

static int waiting_run(struct op *op)
{
	return op_calls(op, waiting_calls, 3);
}

static int failing_run(struct op *op)
{
	(void)op;
	return -EIO;
}

static int step_call(struct op *op)
{
	(void)op;
	note("e", "!");
	return 0;
}

static int step_undo(struct op *op)
{
	(void)op;
	note("~e", "");
	return 0;
}

static const struct op_step waiting_steps[] = {
	{"both", .run = waiting_run},
	{"e", .call = step_call, .undo = step_undo},
	{"last", .run = failing_run},
	{NULL},
};

static void took(void *arg, const char *op_name, const char *step_name, uint64_t ns)
{
	(void)arg;
	(void)op_name;
	note(step_name, ns >= 5000000 ? "+" : "-");
}

static void run_steps(const struct op_step *table)
{
	four = (struct four){0};
	trace[0] = '\0';
	op_init(&four.op, &reactor, "four", table, on_end);
	op_start(&four.op);
	for (int i = 0; !four.ended; i++) {
		cr_assert_lt(i, 10000);
		cr_assert_eq(ring_turn(reactor.ring, true), 0);
	}
}

Test(op_calls, the_last_end_may_wait_and_all_is_undone_in_turn)
{
	world_open(true);
	reactor.observer = &(struct op_observer){.after = took};
	run_steps(waiting_steps);
	cr_assert_str_eq(trace, "a! b! a. a- b: b. b+ e! e- last- ~e ~b ~a ", "%s", trace);
	world_close();
}

static unsigned asked;

static int fault_at(void *arg, const char *op_name, const char *step_name)
{
	(void)op_name;
	asked++;
	return strcmp(step_name, arg) == 0 ? -ENOSPC : 0;
}

/* The hook is asked once about each call of a trip, and what goes before it is made. */
Test(op_calls, every_call_failed_in_turn)
{
	static const struct {
		const char *step, *trace;
		unsigned asked;
	} cases[] = {
		{"a", "", 1},
		{"b", "a a! a. ~a ", 2},
		{"d", "a a! b! a. b. ~b ~a ", 3},
		{"none", "a a! b! d! a. b. d. ", 3},
	};
	world_open(true);
	struct op_observer observer = {.before = fault_at};
	reactor.observer = &observer;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		observer.arg = (void *)(uintptr_t)cases[i].step;
		asked = 0;
		run_four((struct four){0});
		cr_assert_str_eq(trace, cases[i].trace, "%s: %s", cases[i].step, trace);
		cr_assert_eq(asked, cases[i].asked, "%s: %u", cases[i].step, asked);
		bool fails = strcmp(cases[i].step, "none") != 0;
		cr_assert_eq(op_failed(&four.op), fails);
		if (fails)
			cr_assert_str_eq(four.op.err.step, cases[i].step);
	}
	observer.arg = (void *)(uintptr_t) "c";
	run_four((struct four){.b_result = -EXDEV});
	cr_assert_str_eq(trace, "a a! b! a. b. ~b ~a ");
	world_close();
}

static int fault_once(void *arg, const char *op_name, const char *step_name)
{
	(void)op_name;
	unsigned *left = arg;
	return strcmp(step_name, "d") == 0 && (*left)-- > 0 ? -ENOSPC : 0;
}

/* A refusal is not lost when the call comes again in a later step. */
Test(op_calls, a_refusal_stands)
{
	world_open(true);
	unsigned left = 1;
	reactor.observer = &(struct op_observer){.before = fault_once, .arg = &left};
	run_four((struct four){.b_result = -EXDEV});
	cr_assert_str_eq(trace, "a a! b! a. b. c ~b ~a ");
	cr_assert_str_eq(four.op.err.step, "d");
	world_close();
}
