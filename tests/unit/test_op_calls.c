/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that go together: one trip to a thread, ends in order, each call still failed in turn. */
#include "base/log.h"
#include "full_queue.h"
#include "reactor/op.h"
#include "reactor/ring_engine.h"
#include "simring/sim.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

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

static void run_table(struct four how, const struct op_step *table)
{
	four = how;
	trace[0] = '\0';
	op_init(&four.op, &reactor, "four", table, on_end);
	op_start(&four.op);
	for (int i = 0; !four.ended; i++) {
		cr_assert_lt(i, 10000);
		cr_assert_eq(ring_turn(reactor.ring, true), 0);
	}
}

static void run_four(struct four how)
{
	run_table(how, steps);
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
	run_table((struct four){0}, table);
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

/* A call that is refused before any was made fails the step, under its own name. */
Test(op_calls, a_first_call_that_is_refused)
{
	world_open(true);
	reactor.observer = &(struct op_observer){.before = fault_at, .arg = (char[]){"a"}};
	run_steps(waiting_steps);
	cr_assert_str_eq(trace, "");
	cr_assert_eq(four.op.err.errnum, ENOSPC);
	cr_assert_str_eq(four.op.err.step, "a");
	world_close();
}

static const struct op_call last_call[] = {{"e", .fn = step_call}};

static int last_run(struct op *op)
{
	return op_calls(op, last_call, 1);
}

/* What was refused is of its own trip. */
Test(op_calls, a_refusal_does_not_fail_another_trip)
{
	static const struct op_step table[] = {{"a", .run = a_run}, {"e", .run = last_run}, {NULL}};
	world_open(true);
	reactor.observer = &(struct op_observer){.before = fault_at, .arg = (char[]){"d"}};
	run_table((struct four){.b_result = -EXDEV}, table);
	cr_assert_str_eq(trace, "a a! b! a. b. e! ");
	cr_assert_not(op_failed(&four.op), "%s", four.op.err.message);
	world_close();
}

static int recovers_later_end(struct op *op, int res)
{
	note("b", res == -EXDEV ? ":" : ".");
	return res == -EXDEV ? op_sleep(op, 1) : res;
}

static const struct op_call recovering_calls[] = {
	{"a", .fn = a_call, .end = a_end, .undo = a_undo},
	{"b", .fn = b_call, .end = recovers_later_end},
	{"e", .fn = step_call},
	{"d", .fn = d_call},
};

static int recovering_run(struct op *op)
{
	return op_calls(op, recovering_calls, 4);
}

/* The end that recovers may wait, too: what is behind it has not been tried. */
Test(op_calls, a_recovery_that_waits_leaves_the_refused_to_later_steps)
{
	static const struct op_step table[] = {
		{"both", .run = recovering_run}, {"e", .run = last_run}, {NULL}};
	world_open(true);
	reactor.observer = &(struct op_observer){.before = fault_at, .arg = (char[]){"d"}};
	run_table((struct four){.b_result = -EXDEV}, table);
	cr_assert_str_eq(trace, "a! b! a. b: b. e! ");
	cr_assert_not(op_failed(&four.op), "%s", four.op.err.message);
	run_table((struct four){0}, table);
	cr_assert_str_eq(
		trace, "a! b! e! a. b. ~a ", "behind what went well it is the step's failure");
	cr_assert_str_eq(four.op.err.step, "d");
	world_close();
}

/* ---- refused on the thread ---- */

static int fault_on_thread(void *arg, const char *op_name, const char *step_name)
{
	(void)op_name;
	const char *from = arg; /* this one, and all behind it */
	asked += asked > 0 || strcmp(step_name, from) == 0;
	return asked > 0 ? -EDQUOT : 0;
}

static int undo_work(void *arg)
{
	(void)arg;
	note("~e", "!");
	return 0;
}

static int working_undo(struct op *op)
{
	return op_work(op, undo_work, NULL);
}

/* It is not made, and what was made is undone whatever is refused. */
Test(op_calls, a_call_refused_on_its_thread)
{
	static const struct op_step table[] = {{"e", .call = step_call, .undo = working_undo},
		{"d", .call = d_call}, {"trip", .run = a_run}, {NULL}};
	static const char *const traces[][2] = {
		{"e", ""}, {"d", "e! ~e! "}, {"b", "e! d! a a! a. b. ~a ~e! "}};
	for (int simulated = 0; simulated < 2; simulated++) {
		world_open(simulated);
		for (size_t i = 0; i < sizeof(traces) / sizeof(traces[0]); i++) {
			struct op_observer observer = {.before_call = fault_on_thread,
				.arg = (void *)(uintptr_t)traces[i][0]};
			reactor.observer = &observer;
			asked = 0;
			run_table((struct four){0}, table);
			cr_assert_str_eq(trace, traces[i][1], "%s: %s", traces[i][0], trace);
			cr_assert_eq(four.op.err.errnum, EDQUOT);
			cr_assert_str_eq(four.op.err.step, traces[i][0]);
		}
		world_close();
	}
}

/* ---- what is told of an operation ---- */

static int seven_ms_call(struct op *op)
{
	op->reactor->ring->now_ns += 7000000;
	return 0;
}

static int two_ms_call(struct op *op)
{
	op->reactor->ring->now_ns += 2000000;
	return 0;
}

static const struct op_call timed_calls[] = {
	{"a", .fn = seven_ms_call}, {"b", .fn = two_ms_call}, {"c", .fn = seven_ms_call}};

static int timed_run(struct op *op)
{
	return op_calls(op, timed_calls, 3);
}

static void took_ms(void *arg, const char *op_name, const char *step_name, uint64_t ns)
{
	(void)arg;
	cr_assert_str_eq(op_name, "four");
	note(step_name, (char[]){(char)('0' + ns / 1000000), '\0'});
}

Test(op_calls, each_call_has_its_own_time)
{
	static const struct op_step table[] = {
		{"trip", .run = timed_run}, {"two", .call = two_ms_call}, {NULL}};
	world_open(true);
	reactor.observer = &(struct op_observer){.after = took_ms};
	run_steps(table);
	cr_assert_str_eq(trace, "a7 b2 c7 two2 ");
	world_close();
}

static int fails_undo(struct op *op)
{
	(void)op;
	return -EPERM;
}

static int fails_later_undo(struct op *op)
{
	static char byte;
	io_uring_prep_read(op_sqe(op), -1, &byte, 1, 0);
	return op_submit(op);
}

static int sleeping_undo(struct op *op)
{
	return op_sleep(op, 1);
}

/* The queue has no room for it. */
static int crowded_undo(struct op *op)
{
	cr_assert_eq(fill_queue(op->reactor->work), WORK_QUEUE_MAX);
	return op_work(op, undo_work, NULL);
}

static const struct op_call badly_undone_calls[] = {
	{"a", .fn = a_call, .undo = fails_undo},
	{"b", .fn = b_call, .undo = fails_later_undo},
	{"c", .fn = d_call, .undo = sleeping_undo},
};

static int badly_undone_run(struct op *op)
{
	return op_calls(op, badly_undone_calls, 3);
}

/* What stderr has got since, without time stamps. */
static const char *logged(int fd)
{
	static char text[2048];
	char raw[2048];
	ssize_t n = read(fd, raw, sizeof(raw) - 1);
	raw[n > 0 ? n : 0] = text[0] = '\0';
	for (char *line = strtok(raw, "\n"); line != NULL; line = strtok(NULL, "\n"))
		strcat(strcat(text, strstr(line, " level=") + 1), "\n");
	return text;
}

/* The latest first, a step behind its calls, whether they wait or not; each failure is told once,
 * under the name of what failed. */
Test(op_calls, undos_that_fail_are_told)
{
	static const struct op_step table[] = {
		{"trip", .run = badly_undone_run, .undo = fails_undo},
		{"e", .call = step_call, .undo = sleeping_undo},
		{"f", .call = step_call, .undo = crowded_undo},
		{"g", .call = step_call, .undo = a_undo},
		{"last", .run = failing_run},
		{NULL},
	};
	int ends[2];
	cr_assert_eq(pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
	cr_assert_eq(dup2(ends[1], STDERR_FILENO), STDERR_FILENO);
	log_open(LOG_LEVEL_DEBUG, LOG_FORMAT_LOGFMT);
	world_open(true);
	run_steps(table);
	cr_assert_eq(four.op.err.errnum, EIO);
	cr_assert_str_eq(four.op.err.step, "last");
#define TOLD(step, error)                                                                          \
	"level=debug msg=\"undo failed\" op=four step=" step " error=\"" error "\"\n"
	cr_assert_str_eq(logged(ends[0]),
		TOLD("f", "Resource temporarily unavailable") TOLD("b", "Bad file descriptor") TOLD(
			"a", "Operation not permitted") TOLD("trip", "Operation not permitted"));
	world_close();
}

static struct op inner;

static int wait_run(struct op *op)
{
	return op_wait(op);
}

static const struct op_step inner_steps[] = {{"within", .run = wait_run}, {NULL}};

static int inner_run(struct op *op)
{
	op_init(&inner, op->reactor, "inner", inner_steps, NULL);
	return op_child(op, &inner);
}

/* Its memory may go once it has ended. */
static int inner_end(struct op *op, int res)
{
	(void)op;
	memset(&inner, 0xEE, sizeof(inner));
	return res;
}

static void turn_until_waiting(struct op *op)
{
	for (int i = 0; !op->waiting; i++) {
		cr_assert_lt(i, 100);
		cr_assert_eq(ring_turn(reactor.ring, false), 0);
	}
}

static const char *under_way(size_t cap)
{
	static char text[64];
	memset(text, '#', sizeof(text) - 1);
	op_print_step(&four.op, text, cap);
	cr_assert_eq(text[cap], '#');
	return text;
}

static int waiting_undo(struct op *op)
{
	return op_wait(op);
}

Test(op_calls, what_is_under_way_is_told_while_it_is)
{
	static const struct op_step table[] = {
		{"outer", .run = inner_run, .end = inner_end, .undo = waiting_undo},
		{"behind", .run = wait_run}, {NULL}};
	world_open(true);
	four = (struct four){0};
	op_init(&four.op, &reactor, "four", table, on_end);
	op_start(&four.op);
	turn_until_waiting(&four.op);
	turn_until_waiting(&inner);
	cr_assert_str_eq(under_way(32), "outer/within");
	cr_assert_str_eq(under_way(13), "outer/within");
	cr_assert_str_eq(under_way(12), "outer/withi");
	cr_assert_str_eq(under_way(6), "outer");
	cr_assert_str_eq(under_way(1), "");
	under_way(0);
	op_complete(&inner, 0);
	while (four.op.at == 0)
		cr_assert_eq(ring_turn(reactor.ring, false), 0);
	cr_assert_str_eq(under_way(32), "behind", "the child has gone");
	op_complete(&four.op, -EIO);
	while (four.op.phase != OP_UNDOING)
		cr_assert_eq(ring_turn(reactor.ring, false), 0);
	cr_assert_str_eq(under_way(32), "undo outer");
	op_complete(&four.op, 0);
	while (!four.ended)
		cr_assert_eq(ring_turn(reactor.ring, false), 0);
	world_close();
}
