/* SPDX-License-Identifier: Apache-2.0 */
/* Jobs that go together: one trip to a thread, ends in order, each step still failed in turn. */
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

/* ---- four steps; the third is a copy that is only needed when sharing failed ---- */

struct four {
	struct op op;
	bool must_copy, nop_in_d;
	int b_result;
	unsigned early; /* d_run() calls before d was due */
	bool ended;
};

static struct four four;

static struct four *four_of(struct op *op)
{
	return container_of(op, struct four, op);
}

static int a_job(void *arg)
{
	(void)arg;
	note("a", "!");
	return 0;
}

static int b_job(void *arg)
{
	note("b", "!");
	return ((struct four *)arg)->b_result;
}

static int d_job(void *arg)
{
	(void)arg;
	note("d", "!");
	return 0;
}

static int a_run(struct op *op)
{
	note("a", "");
	return op_work(op, a_job, four_of(op));
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

static int b_run(struct op *op)
{
	note("b", "");
	return op_work(op, b_job, four_of(op));
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

static int d_run(struct op *op)
{
	note("d", "");
	four_of(op)->early += op_goes_along(op);
	if (!four_of(op)->nop_in_d)
		return op_work(op, d_job, four_of(op));
	io_uring_prep_nop(op_sqe(op));
	return op_submit(op);
}

static int d_end(struct op *op, int res)
{
	(void)op;
	note("d", ".");
	return res;
}

static const struct op_step steps[] = {
	{"a", .run = a_run, .end = a_end, .undo = a_undo},
	{"b", .run = b_run, .end = b_end, .undo = b_undo, .flags = OP_ALONG},
	{"c", .run = c_run, .done = c_done},
	{"d", .run = d_run, .end = d_end, .flags = OP_ALONG | OP_COMMIT},
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

Test(op_along, one_trip_and_ends_in_order)
{
	for (int simulated = 0; simulated < 2; simulated++) {
		world_open(simulated);
		run_four((struct four){0});
		cr_assert_str_eq(trace, "a b d a! b! d! a. b. d. ");
		cr_assert_not(op_failed(&four.op));
		world_close();
	}
}

/* What goes along is run again when an end() recovered from a failure before it. */
Test(op_along, recovery_takes_the_steps_one_by_one)
{
	world_open(true);
	run_four((struct four){.b_result = -EXDEV});
	cr_assert_str_eq(trace, "a b d a! b! a. b. c d d! d. ");
	cr_assert_not(op_failed(&four.op));
	world_close();
}

Test(op_along, failure_undoes_what_ran)
{
	world_open(true);
	run_four((struct four){.b_result = -EIO});
	cr_assert_str_eq(trace, "a b d a! b! a. b. ~a ");
	cr_assert_str_eq(four.op.err.step, "b");
	world_close();
}

/* A step that waits for something else after all comes when it is due. */
Test(op_along, other_waits_stay_alone)
{
	world_open(true);
	run_four((struct four){.nop_in_d = true});
	cr_assert_str_eq(trace, "a b d a! b! a. b. d d. ");
	cr_assert_eq(four.early, 1);
	cr_assert_not(op_failed(&four.op));
	world_close();
}

static unsigned asked;

static int fault_at(void *arg, const char *op_name, const char *step_name)
{
	(void)op_name;
	asked++;
	return strcmp(step_name, arg) == 0 ? -ENOSPC : 0;
}

/* The hook is asked once about each step, and what ran before it has run. */
Test(op_along, every_step_failed_in_turn)
{
	static const struct {
		const char *step, *trace;
		unsigned asked;
	} cases[] = {
		{"a", "", 1},
		{"b", "a a! a. ~a ", 2},
		{"d", "a b a! b! a. b. ~b ~a ", 3},
		{"none", "a b d a! b! d! a. b. d. ", 3},
	};
	world_open(true);
	reactor.op_fault = fault_at;
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		reactor.op_fault_arg = (void *)(uintptr_t)cases[i].step;
		asked = 0;
		run_four((struct four){0});
		cr_assert_str_eq(trace, cases[i].trace, "%s: %s", cases[i].step, trace);
		cr_assert_eq(asked, cases[i].asked, "%s: %u", cases[i].step, asked);
		cr_assert_eq(op_failed(&four.op), strcmp(cases[i].step, "none") != 0);
	}
	reactor.op_fault_arg = (void *)(uintptr_t) "c";
	run_four((struct four){.b_result = -EXDEV});
	cr_assert_str_eq(trace, "a b d a! b! a. b. ~b ~a ");
	world_close();
}
