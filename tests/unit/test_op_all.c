/* SPDX-License-Identifier: Apache-2.0 */
/* Operations that run at once (reactor/op_all.h): their step ends with the last of them, and as the
 * first that failed. */
#include "reactor/op_all.h"
#include "simring/sim.h"

#include <criterion/criterion.h>
#include <errno.h>

enum { COUNT = 4 };

static struct reactor reactor;
static struct ring_sim sim = {.seed = 5};
static struct op op, children[COUNT];
static bool absent[COUNT];
static unsigned runs;
static struct op_all all;
static bool ended;

static struct op *nth(void *arg, unsigned i)
{
	cr_assert_eq(arg, &all);
	return absent[i] ? NULL : &children[i];
}

static int run_all(struct op *o)
{
	return op_all(o, &all, COUNT, nth, &all);
}

static int stay(struct op *o)
{
	runs++;
	return op_wait(o);
}

static void on_end(struct op *o)
{
	(void)o;
	ended = true;
}

static const struct op_step steps[] = {{"all", .run = run_all}, {NULL}};
static const struct op_step child_steps[] = {{"stay", .run = stay}, {NULL}};

static void setup(void)
{
	cr_assert_eq(ring_sim_open(&reactor.ring, &sim), 0);
	op_init(&op, &reactor, "parent", steps, on_end);
	for (unsigned i = 0; i < COUNT; i++)
		op_init(&children[i], &reactor, "child", child_steps, NULL);
}

static void teardown(void)
{
	ring_close(reactor.ring);
}

TestSuite(op_all, .init = setup, .fini = teardown);

static void turn(void)
{
	for (unsigned i = 0; i < 4; i++)
		cr_assert_eq(ring_turn(reactor.ring, false), 0);
}

static void start(void)
{
	op_start(&op);
	turn();
}

static void end_child(unsigned i, int res)
{
	cr_assert_not(ended);
	op_complete(&children[i], res);
	turn();
}

Test(op_all, ends_with_the_last)
{
	struct lane *lane, *own;
	cr_assert_eq(ring_lane_open(&lane, reactor.ring), 0);
	cr_assert_eq(ring_lane_open(&own, reactor.ring), 0);
	op.lane = lane;
	children[2].lane = own;
	absent[1] = true;
	start();
	cr_assert_eq(runs, COUNT - 1);
	cr_assert_eq(children[0].lane, lane);
	cr_assert_eq(children[2].lane, own);
	end_child(3, 0);
	end_child(0, 0);
	end_child(2, 0);
	cr_assert(ended);
	cr_assert_not(op_failed(&op));
}

Test(op_all, fails_as_the_first_that_does)
{
	start();
	end_child(1, 0);
	end_child(3, -ENOSPC);
	end_child(0, -EIO);
	end_child(2, 0);
	cr_assert(ended);
	cr_assert_eq(op.err.errnum, ENOSPC, "%s", op.err.message);
	cr_assert_str_eq(op.err.message, children[3].err.message);
}

Test(op_all, of_none)
{
	for (unsigned i = 0; i < COUNT; i++)
		absent[i] = true;
	start();
	cr_assert(ended);
	cr_assert_not(op_failed(&op));
	cr_assert_eq(runs, 0);
}
