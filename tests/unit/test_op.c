/* SPDX-License-Identifier: Apache-2.0 */
/* The step engine, on simulated rings of many seeds and on the kernel's. */
#include "reactor/helper_child.h"
#include "reactor/op.h"
#include "simring/sim.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static struct reactor reactor;
static struct ring_sim sim;
static char trace[65536];
static int ended;

static int fn_triple(const void *req, size_t req_len, void *resp, size_t *resp_len)
{
	(void)req_len;
	*(int *)resp = *(const int *)req * 3;
	*resp_len = sizeof(int);
	return 0;
}

static helper_fn *const table[] = {fn_triple};

__attribute__((constructor)) static void maybe_helper(int argc, char **argv)
{
	if (argc == 3 && strcmp(argv[1], "helper") == 0)
		_exit(helper_main(atoi(argv[2]), table, 1));
}

static void open_reactor(struct ring_sim *with)
{
	reactor = (struct reactor){0};
	trace[0] = '\0';
	ended = 0;
	cr_assert_eq(ring_sim_open(&reactor.ring, with), 0);
	cr_assert_eq(work_open(&reactor.work, reactor.ring, 2), 0);
	cr_assert_eq(helpers_open(&reactor.helpers, reactor.ring, table, 1), 0);
}

static void open_sim(uint64_t seed)
{
	sim = (struct ring_sim){.seed = seed, .eintr_every = 3};
	open_reactor(&sim);
}

static void close_reactor(void)
{
	helpers_close(reactor.helpers);
	work_close(reactor.work);
	ring_close(reactor.ring);
}

static void note(const char *what)
{
	cr_assert_lt(strlen(trace) + strlen(what) + 1, sizeof(trace));
	strcat(strcat(trace, what), " ");
}

/* ---- whose threads ---- */

static sem_t gate;

static int pass_gate(void *arg)
{
	(void)arg;
	return sem_wait(&gate) < 0 ? -errno : 0;
}

static int pass(void *arg)
{
	(void)arg;
	return 0;
}

static int at_gate_run(struct op *op)
{
	return op_work(op, pass_gate, NULL);
}

static int pass_run(struct op *op)
{
	return op_work(op, pass, NULL);
}

static const struct op_step at_gate_steps[] = {{"wait at the gate", .run = at_gate_run}, {NULL}};
static const struct op_step pass_steps[] = {{"pass", .run = pass_run}, {NULL}};

static struct op inner[2];

static int inner_run(struct op *op)
{
	struct op *child = &inner[op->name[0] == 'o'];
	return op_child(op, child);
}

static const struct op_step outer_steps[] = {{"child", .run = inner_run}, {NULL}};

static const char *ended_names[8];

static void note_end(struct op *op)
{
	cr_assert_not(op_failed(op), "%s", op->err.message);
	ended_names[ended++] = op->name;
}

static void start_in(
	struct op *op, struct lane *lane, const char *name, const struct op_step *steps)
{
	op_init(op, &reactor, name, steps, note_end);
	op->lane = lane;
	op_start(op);
}

/* An operation's jobs are in its lane, those of a child in its parent's, unless it has its own. */
Test(op, jobs_wait_for_those_of_their_lane_alone)
{
	static struct op blocked[2], outer, other, none;
	struct lane *hangs, *well;
	open_reactor(NULL);
	sem_init(&gate, 0, 0);
	cr_assert_eq(ring_lane_open(&hangs, reactor.ring), 0);
	cr_assert_eq(ring_lane_open(&well, reactor.ring), 0);
	start_in(&blocked[0], hangs, "blocked", at_gate_steps);
	start_in(&blocked[1], hangs, "blocked", at_gate_steps);
	op_init(&inner[1], &reactor, "inner", pass_steps, NULL);
	start_in(&outer, hangs, "outer", outer_steps);
	while (work_queue_depth(reactor.work) < 3)
		cr_assert_eq(ring_turn(reactor.ring, false), 0);

	op_init(&inner[0], &reactor, "inner", pass_steps, NULL);
	inner[0].lane = well;
	start_in(&other, hangs, "with a child of another lane", outer_steps);
	while (ended < 1)
		cr_assert_eq(ring_turn(reactor.ring, true), 0);
	start_in(&none, NULL, "none", pass_steps);
	while (ended < 2)
		cr_assert_eq(ring_turn(reactor.ring, true), 0);
	cr_assert_str_eq(ended_names[0], "with a child of another lane");
	cr_assert_str_eq(ended_names[1], "none");
	cr_assert_eq(work_queue_depth(reactor.work), 3);
	sem_post(&gate);
	sem_post(&gate);
	while (ended < 5)
		cr_assert_eq(ring_turn(reactor.ring, true), 0);
	sem_destroy(&gate);
	close_reactor();
}

static int req_run(struct op *op)
{
	io_uring_prep_nop(op_sqe(op));
	int r = op_submit(op);
	cr_assert_eq(op->wait.req.lane, op->lane);
	return r;
}

static int job_step_run(struct op *op)
{
	int r = op_work(op, pass, NULL);
	cr_assert_eq(op->wait.job.lane, op->lane);
	return r;
}

static int call_run(struct op *op)
{
	static int request = 1, answer;
	int r = op_helper(op, 0, NULL, &request, sizeof(request), &answer, sizeof(answer), 10000);
	cr_assert_eq(op->wait.call.lane, op->lane);
	return r;
}

static int proc_run(struct op *op)
{
	static struct proc proc;
	proc = (struct proc){.argv = {"true", NULL}, .timeout_ms = 10000};
	int r = op_proc(op, &proc);
	cr_assert_eq(proc.lane, op->lane);
	return r;
}

/* Whatever an operation and its children wait for is counted by its lane. */
Test(op, all_that_is_waited_for_is_in_the_lane)
{
	static const struct op_step steps[] = {{"request", .run = req_run},
		{"job", .run = job_step_run}, {"call", .run = call_run},
		{"child process", .run = proc_run}, {NULL}};
	static struct op alone, outer;
	struct lane *lane;
	open_reactor(NULL);
	cr_assert_eq(ring_lane_open(&lane, reactor.ring), 0);
	start_in(&alone, lane, "alone", steps);
	while (ended < 1)
		cr_assert_eq(ring_turn(reactor.ring, true), 0);
	op_init(&inner[1], &reactor, "inner", steps, NULL);
	start_in(&outer, lane, "outer", outer_steps);
	while (ended < 2)
		cr_assert_eq(ring_turn(reactor.ring, true), 0);
	cr_assert_eq(inner[1].lane, lane);
	close_reactor();
}

/* ---- six steps, one of each wait ---- */

struct six {
	struct op op, child;
	struct proc proc;
	int in, out, ends;
	int undo_pending; /* every undo waits */
	uint64_t answer;
};

static struct six six;

static struct six *six_of(struct op *op)
{
	return container_of(op, struct six, op);
}

static int undo(struct op *op, const char *name)
{
	note(name);
	if (!six_of(op)->undo_pending)
		return 0;
	io_uring_prep_nop(op_sqe(op));
	return op_submit(op);
}

static int a_run(struct op *op)
{
	(void)op;
	note("a");
	return 0;
}

static int a_undo(struct op *op)
{
	return undo(op, "~a");
}

static int b_run(struct op *op)
{
	note("b");
	io_uring_prep_nop(op_sqe(op));
	return op_submit(op);
}

static int b_end(struct op *op, int res)
{
	(void)op;
	note("b.");
	return res;
}

static int b_undo(struct op *op)
{
	return undo(op, "~b");
}

static int c_work(void *arg)
{
	*(int *)arg += 1;
	return 0;
}

static int c_run(struct op *op)
{
	note("c");
	return op_work(op, c_work, &six_of(op)->in);
}

static int c_undo(struct op *op)
{
	return undo(op, "~c");
}

static int d_run(struct op *op)
{
	struct six *s = six_of(op);
	note("d");
	return op_helper(op, 0, "volume", &s->in, sizeof(s->in), &s->out, sizeof(s->out), 10000);
}

static int d_undo(struct op *op)
{
	return undo(op, "~d");
}

static int e_run(struct op *op)
{
	note("e");
	return op_sleep(op, 3);
}

static int e_undo(struct op *op)
{
	return undo(op, "~e");
}

static int f_run(struct op *op)
{
	struct six *s = six_of(op);
	note("f");
	s->proc = (struct proc){.argv = {"sh", "-c", "exit 0", NULL}, .timeout_ms = 10000};
	return op_proc(op, &s->proc);
}

static int f_undo(struct op *op)
{
	return undo(op, "~f");
}

static const struct op_step six_steps[] = {
	{"a", .run = a_run, .undo = a_undo},
	{"b", .run = b_run, .end = b_end, .undo = b_undo},
	{"c", .run = c_run, .undo = c_undo},
	{"d", .run = d_run, .undo = d_undo},
	{"e", .run = e_run, .undo = e_undo},
	{"f", .run = f_run, .undo = f_undo},
	{NULL},
};

static const struct op_step six_committing[] = {
	{"a", .run = a_run, .undo = a_undo},
	{"b", .run = b_run, .end = b_end, .undo = b_undo},
	{"c", .run = c_run, .undo = c_undo, .flags = OP_COMMIT},
	{"d", .run = d_run, .undo = d_undo},
	{"e", .run = e_run, .undo = e_undo},
	{"f", .run = f_run, .undo = f_undo},
	{NULL},
};

static void on_end(struct op *op)
{
	ended++;
	/* As an owner that frees it. */
	if (op == &six.op)
		six.ends++;
}

static void run_six(const struct op_step *steps)
{
	six = (struct six){.in = 13, .undo_pending = six.undo_pending};
	trace[0] = '\0';
	op_init(&six.op, &reactor, "six", steps, on_end);
	op_start(&six.op);
	cr_assert_str_eq(trace, "", "nothing runs inside op_start()");
	for (int i = 0; six.ends == 0; i++) {
		cr_assert_lt(i, 10000);
		cr_assert_eq(ring_turn(reactor.ring, true), 0);
	}
	for (int i = 0; i < 3; i++)
		cr_assert_eq(ring_turn(reactor.ring, false), 0);
	cr_assert_eq(six.ends, 1);
}

static const char *const success = "a b b. c d e f ";
static const char *const failed_at[] = {"", "a ~a ", "a b b. ~b ~a ", "a b b. c ~c ~b ~a ",
	"a b b. c d ~d ~c ~b ~a ", "a b b. c d e ~e ~d ~c ~b ~a "};
static const char *const failed_committing[] = {
	"", "a ~a ", "a b b. ~b ~a ", "a b b. c ", "a b b. c d ", "a b b. c d e "};

static int fault_at(void *arg, const char *op_name, const char *step_name)
{
	cr_assert_str_eq(op_name, "six");
	return strcmp(step_name, arg) == 0 ? -ENOSPC : 0;
}

static void fail_each(const struct op_step *steps, const char *const *want)
{
	reactor.observer = NULL;
	run_six(steps);
	cr_assert_str_eq(trace, success);
	cr_assert_not(op_failed(&six.op));
	cr_assert_eq(six.in, 14);
	cr_assert_eq(six.out, 42);
	for (int i = 0; i < 6; i++) {
		struct op_observer observer = {
			.before = fault_at, .arg = (void *)(uintptr_t)steps[i].name};
		reactor.observer = &observer;
		run_six(steps);
		cr_assert_str_eq(trace, want[i], "failing %s: %s", steps[i].name, trace);
		cr_assert(op_failed(&six.op));
		cr_assert_str_eq(six.op.err.step, steps[i].name);
		cr_assert_eq(six.op.err.code, ERR_NO_ROOM);
		cr_assert_eq(six.op.err.errnum, ENOSPC);
		char message[32];
		snprintf(message, sizeof(message), "six: %s: ", steps[i].name);
		cr_assert_eq(strncmp(six.op.err.message, message, strlen(message)), 0);
	}
	reactor.observer = NULL;
}

Test(op, every_step_failed_in_turn)
{
	for (uint64_t seed = 0; seed < 20; seed++) {
		open_sim(seed);
		six.undo_pending = seed % 2 != 0;
		fail_each(six_steps, failed_at);
		fail_each(six_committing, failed_committing);
		close_reactor();
	}
}

Test(op, every_step_failed_in_turn_on_the_kernels_ring, .timeout = 60)
{
	open_reactor(NULL);
	for (int pending = 0; pending < 2; pending++) {
		six.undo_pending = pending;
		fail_each(six_steps, failed_at);
		fail_each(six_committing, failed_committing);
	}
	close_reactor();
}

/* ---- small tables ---- */

struct small {
	struct op op, child;
	int rounds, todo;
	bool have;
	uint64_t delay_ms;
};

static struct small small;

static struct small *small_of(struct op *op)
{
	return container_of(op, struct small, op);
}

static void run_small(const struct op_step *steps)
{
	int before = ended;
	op_init(&small.op, &reactor, "small", steps, on_end);
	op_start(&small.op);
	for (int i = 0; ended == before; i++) {
		cr_assert_lt(i, 1000000);
		cr_assert_eq(ring_turn(reactor.ring, true), 0);
	}
}

static bool have(struct op *op)
{
	return small_of(op)->have;
}

static int fail_plain(struct op *op)
{
	(void)op;
	note("fail");
	return -EACCES;
}

static int x_undo(struct op *op)
{
	(void)op;
	note("~x");
	return -EIO;
}

static int x_run(struct op *op)
{
	(void)op;
	note("x");
	return 0;
}

static const struct op_step skipping[] = {
	{"x", .run = x_run, .undo = x_undo, .done = have},
	{"y", .run = x_run, .undo = x_undo},
	{"fail", .run = fail_plain, .undo = x_undo},
	{NULL},
};

Test(op, what_holds_is_skipped_and_not_undone)
{
	open_sim(1);
	small.have = true;
	run_small(skipping);
	cr_assert_str_eq(trace, "x fail ~x ");
	trace[0] = '\0';
	small.have = false;
	run_small(skipping);
	cr_assert_str_eq(trace, "x x fail ~x ~x ", "a failing undo does not stop the others");
	cr_assert_eq(small.op.err.code, ERR_INTERNAL);
	cr_assert_eq(small.op.err.errnum, EACCES);
	close_reactor();
}

static const struct op_step nothing[] = {{NULL}};

Test(op, no_steps_is_a_success)
{
	open_sim(1);
	run_small(nothing);
	cr_assert_not(op_failed(&small.op));
	close_reactor();
}

static int explain(struct op *op)
{
	return op_fail(op, ERR_NOT_FOUND, "volume %s does not exist", "v1");
}

static const struct op_step explaining[] = {{"look up", .run = explain}, {NULL}};

Test(op, a_steps_own_words_are_kept)
{
	open_sim(1);
	run_small(explaining);
	cr_assert_eq(small.op.err.code, ERR_NOT_FOUND);
	cr_assert_str_eq(small.op.err.message, "volume v1 does not exist");
	cr_assert_str_eq(small.op.err.step, "look up");
	close_reactor();
}

static int read_nothing(struct op *op)
{
	static char byte;
	io_uring_prep_read(op_sqe(op), -1, &byte, 1, 0);
	return op_submit(op);
}

static int forgive(struct op *op, int res)
{
	(void)op;
	cr_assert_eq(res, -EBADF);
	return 0;
}

static const struct op_step failing_wait[] = {{"read", .run = read_nothing}, {NULL}};
static const struct op_step forgiving[] = {{"read", .run = read_nothing, .end = forgive}, {NULL}};

Test(op, a_waits_result_is_the_steps_unless_its_end_says_otherwise)
{
	for (int simulated = 0; simulated < 2; simulated++) {
		sim = (struct ring_sim){.seed = 1};
		open_reactor(simulated ? &sim : NULL);
		run_small(failing_wait);
		cr_assert_eq(small.op.err.errnum, EBADF);
		cr_assert_str_eq(small.op.err.step, "read");
		run_small(forgiving);
		cr_assert_not(op_failed(&small.op));
		close_reactor();
	}
}

/* ---- timing ---- */

static int timed_steps;

static void on_timed(void *arg, const char *op_name, const char *step_name, uint64_t ns)
{
	cr_assert_eq(arg, &timed_steps);
	cr_assert_str_eq(op_name, "small");
	timed_steps++;
	if (strcmp(step_name, "sleep") == 0)
		cr_assert_geq(ns, 5000000);
}

static int sleep_run(struct op *op)
{
	return op_sleep(op, small_of(op)->delay_ms);
}

static const struct op_step timed[] = {
	{"x", .run = x_run},
	{"skipped", .run = x_run, .done = have},
	{"sleep", .run = sleep_run},
	{"fail", .run = fail_plain},
	{"never", .run = x_run},
	{NULL},
};

Test(op, steps_that_ran_are_timed)
{
	open_sim(1);
	reactor.observer = &(struct op_observer){.after = on_timed, .arg = &timed_steps};
	small.have = true;
	small.delay_ms = 5;
	run_small(timed);
	cr_assert_eq(timed_steps, 3);
	close_reactor();
}

/* ---- children ---- */

static const struct op_step child_ok[] = {{"cx", .run = x_run}, {NULL}};
static const struct op_step child_bad[] = {
	{"cx", .run = x_run, .undo = x_undo}, {"ce", .run = explain}, {NULL}};
static const struct op_step child_plain[] = {{"cf", .run = fail_plain}, {NULL}};

static int child_run(struct op *op, const struct op_step *steps)
{
	struct small *s = small_of(op);
	op_init(&s->child, op->reactor, "child", steps, NULL);
	return op_child(op, &s->child);
}

static int child_ok_run(struct op *op)
{
	return child_run(op, child_ok);
}

static int child_bad_run(struct op *op)
{
	return child_run(op, child_bad);
}

static int child_plain_run(struct op *op)
{
	return child_run(op, child_plain);
}

static int child_forgive(struct op *op, int res)
{
	cr_assert_eq(res, -ENOENT);
	cr_assert(op_failed(op));
	return 0;
}

static int child_undo(struct op *op)
{
	note("~child");
	return child_run(op, child_bad);
}

static const struct op_step parent_ok[] = {{"p", .run = child_ok_run}, {"y", .run = x_run}, {NULL}};
static const struct op_step parent_bad[] = {
	{"y", .run = x_run, .undo = x_undo}, {"p", .run = child_bad_run}, {NULL}};
static const struct op_step parent_plain[] = {{"p", .run = child_plain_run}, {NULL}};
static const struct op_step parent_forgiving[] = {
	{"p", .run = child_bad_run, .end = child_forgive}, {NULL}};
static const struct op_step parent_undoing[] = {
	{"y", .run = x_run, .undo = x_undo},
	{"p", .run = child_ok_run, .undo = child_undo},
	{"fail", .run = fail_plain},
	{NULL},
};

Test(op, children)
{
	open_sim(1);
	run_small(parent_ok);
	cr_assert_not(op_failed(&small.op));
	cr_assert_str_eq(trace, "x x ");

	trace[0] = '\0';
	run_small(parent_bad);
	cr_assert_str_eq(trace, "x x ~x ~x ");
	cr_assert_eq(small.op.err.code, ERR_NOT_FOUND);
	cr_assert_str_eq(small.op.err.message, "volume v1 does not exist");
	cr_assert_str_eq(small.op.err.step, "p");

	run_small(parent_plain);
	cr_assert_eq(small.op.err.errnum, EACCES);
	cr_assert_eq(strncmp(small.op.err.message, "child: cf: ", 11), 0);

	run_small(parent_forgiving);
	cr_assert_not(op_failed(&small.op));

	trace[0] = '\0';
	run_small(parent_undoing);
	cr_assert_str_eq(trace, "x x fail ~child x ~x ~x ");
	cr_assert_eq(small.op.err.errnum, EACCES, "an undo's failure is not the operation's");
	close_reactor();
}

/* A loop: a child operation once for each round, armed again from the step's end. All steps finish
 * at once, so whatever recursed would do so 10,000 deep. */
static uintptr_t stack_low, stack_high;

static int loop_body(struct op *op)
{
	(void)op;
	uintptr_t here = (uintptr_t)__builtin_frame_address(0);
	stack_low = here < stack_low ? here : stack_low;
	stack_high = here > stack_high ? here : stack_high;
	return 0;
}

static const struct op_step loop_child[] = {
	{"l1", .run = loop_body}, {"l2", .run = loop_body}, {NULL}};

static int loop_run(struct op *op)
{
	return child_run(op, loop_child);
}

static int loop_end(struct op *op, int res)
{
	cr_assert_eq(res, 0);
	return ++small_of(op)->rounds < small_of(op)->todo ? loop_run(op) : 0;
}

static const struct op_step looping[] = {{"loop", .run = loop_run, .end = loop_end}, {NULL}};

Test(op, ten_thousand_rounds_in_constant_stack)
{
	for (int simulated = 0; simulated < 2; simulated++) {
		sim = (struct ring_sim){.seed = 1};
		open_reactor(simulated ? &sim : NULL);
		small = (struct small){.todo = 10000};
		stack_low = UINTPTR_MAX;
		stack_high = 0;
		run_small(looping);
		cr_assert_eq(small.rounds, 10000);
		cr_assert_lt(stack_high - stack_low, 1024);
		close_reactor();
	}
}

/* ---- waiting for something else ---- */

static struct op *waiter;

static int wait_run(struct op *op)
{
	waiter = op;
	return op_wait(op);
}

static int wait_end(struct op *op, int res)
{
	(void)op;
	cr_assert_eq(res, -EXDEV);
	note("woken");
	return 0;
}

static int wake_run(struct op *op)
{
	(void)op;
	op_complete(waiter, -EXDEV);
	note("completed");
	return 0;
}

static const struct op_step waiting[] = {{"wait", .run = wait_run, .end = wait_end}, {NULL}};
static const struct op_step waking[] = {{"wake", .run = wake_run}, {NULL}};

Test(op, completion_by_another_operation)
{
	open_sim(1);
	struct op other;
	op_init(&other, &reactor, "other", waiting, on_end);
	op_start(&other);
	cr_assert_eq(ring_sim_settle(reactor.ring, 100), 0);
	cr_assert_eq(ended, 0);
	run_small(waking);
	while (ended < 2)
		cr_assert_eq(ring_turn(reactor.ring, true), 0);
	cr_assert_str_eq(trace, "completed woken ");
	close_reactor();
}

/* ---- limits ---- */

static int work_run(struct op *op)
{
	return op_work(op, c_work, &small_of(op)->rounds);
}

static const struct op_step working[] = {{"x", .run = x_run}, {"work", .run = work_run}, {NULL}};

static sem_t gate;
static int jobs_ended;

static int job_run(struct work_job *job)
{
	(void)job;
	sem_wait(&gate);
	return 0;
}

static void job_end(struct work_job *job, int res)
{
	(void)job;
	jobs_ended += res == 0;
}

Test(op, a_full_queue_fails_the_step_with_no_room)
{
	static struct work_job jobs[WORK_QUEUE_MAX];
	open_reactor(NULL);
	sem_init(&gate, 0, 0);
	for (int i = 0; i < WORK_QUEUE_MAX; i++) {
		jobs[i] = (struct work_job){.run = job_run, .on_end = job_end};
		cr_assert_eq(work_submit(reactor.work, &jobs[i]), 0);
	}
	run_small(working);
	cr_assert_eq(small.op.err.code, ERR_NO_ROOM);
	cr_assert_str_eq(small.op.err.step, "work");
	for (int i = 0; i < WORK_QUEUE_MAX; i++)
		sem_post(&gate);
	while (jobs_ended < WORK_QUEUE_MAX)
		cr_assert_eq(ring_turn(reactor.ring, true), 0);
	run_small(working);
	cr_assert_not(op_failed(&small.op));
	close_reactor();
	sem_destroy(&gate);
}
