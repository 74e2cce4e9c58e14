/* SPDX-License-Identifier: Apache-2.0 */
/* A line (reactor/line.h): who has a name waits for those of that name before, and for nobody else.
 */
#include "reactor/line.h"
#include "simring/sim.h"

#include <criterion/criterion.h>

enum { COUNT = 6 };

struct visitor {
	struct op op;
	struct line_place place;
	unsigned runs;
	bool ended;
};

static struct line line;
static struct reactor reactor;
static struct ring_sim sim = {.seed = 3};
static struct visitor all[COUNT];

static struct visitor *visitor_of(struct op *op)
{
	return container_of(op, struct visitor, op);
}

static int stay(struct op *op)
{
	visitor_of(op)->runs++;
	return op_wait(op);
}

static void on_end(struct op *op)
{
	visitor_of(op)->ended = true;
	line_leave(&line, &visitor_of(op)->place);
}

static void setup(void)
{
	line_init(&line);
	cr_assert_eq(ring_sim_open(&reactor.ring, &sim), 0);
}

static void teardown(void)
{
	ring_close(reactor.ring);
}

TestSuite(line, .init = setup, .fini = teardown);

static void turn(void)
{
	for (unsigned i = 0; i < 3; i++)
		cr_assert_eq(ring_turn(reactor.ring, false), 0);
}

static void join(unsigned i, const char *name)
{
	static const struct op_step steps[] = {{"stay", .run = stay}, {NULL}};
	op_init(&all[i].op, &reactor, "visitor", steps, on_end);
	line_join(&line, &all[i].place, &all[i].op, name);
	cr_assert_eq(all[i].runs, 0, "none runs inside the call");
}

static void leave(unsigned i)
{
	cr_assert_eq(all[i].runs, 1);
	op_complete(&all[i].op, 0);
	turn();
	cr_assert(all[i].ended);
}

/* Which of them have begun. */
static void begun(const char *want)
{
	char got[COUNT + 1] = "";
	turn();
	for (unsigned i = 0; i < COUNT; i++)
		got[i] = (char)('0' + all[i].runs);
	cr_assert_str_eq(got, want);
}

Test(line, each_waits_for_its_name_alone)
{
	cr_assert_not(line_has(&line, "a"));
	join(0, "a");
	join(1, "b");
	join(2, "a");
	join(3, "a");
	join(4, "b");
	cr_assert_eq(line.count, 5);
	begun("110000");
	cr_assert(line_has(&line, "a") && line_has(&line, "b") && !line_has(&line, "c"));
	leave(1);
	begun("110010");
	leave(0);
	begun("111010");
	leave(4);
	cr_assert(line_has(&line, "a") && !line_has(&line, "b"));
	join(5, "b");
	begun("111011");
	leave(2);
	begun("111111");
	leave(3);
	cr_assert(!line_has(&line, "a") && line_has(&line, "b"));
	leave(5);
	cr_assert_eq(line.count, 0);
	cr_assert_not(line_has(&line, "b"));
}
