/* SPDX-License-Identifier: Apache-2.0 */
/* Chores: behind everything else, a little in each turn, and not while calls are under way. */
#include "base/clock.h"
#include "reactor/ring.h"
#include "reactor/ring_chore.h"
#include "reactor/ring_uring.h"
#include "simring/sim.h"
#include "unit/sim_time.h"

#include <criterion/criterion.h>
#include <string.h>

struct probe {
	struct ring_chore chore;
	struct ring_req post;
	struct ring *ring;
	struct probe *cancels;
	unsigned again; /* times that it wants itself */
	bool burns;     /* the time of a turn */
	char id;
};

static char order[64];
static struct ring_sim sim;
static struct ring *ring;

static void note(char id)
{
	size_t at = strlen(order);
	cr_assert_lt(at + 1, sizeof(order));
	order[at] = id;
	order[at + 1] = '\0';
}

static void on_chore(struct ring_chore *chore)
{
	struct probe *p = container_of(chore, struct probe, chore);
	uint64_t begin_ns = clock_monotonic_ns();
	note(p->id);
	while (p->burns && clock_monotonic_ns() - begin_ns < RING_CHORES_TURN_NS)
		;
	if (p->cancels != NULL)
		ring_chore_cancel(&p->cancels->chore);
	if (p->again > 0) {
		p->again--;
		ring_chore_want(p->ring, chore);
	}
}

static void on_post(struct ring_req *req, int res, uint32_t flags)
{
	(void)res;
	(void)flags;
	note((char)(container_of(req, struct probe, post)->id - 'a' + 'A'));
}

static void probes_init(struct probe *p, int count)
{
	memset(p, 0, sizeof(*p) * (size_t)count);
	for (int i = 0; i < count; i++)
		p[i] = (struct probe){.chore.fn = on_chore,
			.post.fn = on_post,
			.ring = ring,
			.id = (char)('a' + i)};
}

static void turn(unsigned times)
{
	while (times-- > 0)
		cr_assert_eq(ring_turn(ring, false), 0);
}

static void open_sim(void)
{
	sim = (struct ring_sim){.seed = 1};
	order[0] = '\0';
	cr_assert_eq(ring_sim_open(&ring, &sim), 0);
}

static void open_kernel(void)
{
	order[0] = '\0';
	cr_assert_eq(ring_open(&ring, &(struct ring_config){0}), 0);
}

static void shut(void)
{
	ring_close(ring);
}

TestSuite(chore, .init = open_sim, .fini = shut);
TestSuite(chore_kernel, .init = open_kernel, .fini = shut, .timeout = 60);

Test(chore, runs_once_and_behind_what_has_completed)
{
	struct probe p[2];
	probes_init(p, 2);
	ring_chore_want(ring, &p[0].chore);
	ring_chore_want(ring, &p[0].chore);
	ring_post(ring, &p[1].post, 0);
	turn(3);
	cr_assert_str_eq(order, "Ba");
}

Test(chore, one_that_is_wanted_keeps_its_place)
{
	struct probe p[2];
	probes_init(p, 2);
	for (int i = 0; i < 3; i++)
		ring_chore_want(ring, &p[i % 2].chore);
	turn(2);
	cr_assert_str_eq(order, "ab");
}

Test(chore, one_that_wants_itself_waits_for_the_next_turn)
{
	struct probe p[2];
	probes_init(p, 2);
	p[0].again = 2;
	ring_chore_want(ring, &p[0].chore);
	ring_chore_want(ring, &p[1].chore);
	turn(1);
	cr_assert_str_eq(order, "ab");
	turn(1);
	cr_assert_str_eq(order, "aba");
	turn(5);
	cr_assert_str_eq(order, "abaa");
}

Test(chore, a_cancelled_one_does_not_run)
{
	struct probe p[3];
	probes_init(p, 3);
	ring_chore_cancel(&p[0].chore); /* idle */
	p[1].cancels = &p[2];
	for (int i = 0; i < 3; i++)
		ring_chore_want(ring, &p[i].chore);
	ring_chore_cancel(&p[0].chore);
	turn(2);
	cr_assert_str_eq(order, "b");
	ring_chore_want(ring, &p[2].chore);
	turn(1);
	cr_assert_str_eq(order, "bc");
}

/* And for its answer, which the kernel gets before. */
Test(chore, waits_for_an_urgent_call)
{
	struct probe p[1];
	probes_init(p, 1);
	cr_assert_not(ring_chores_wait(ring));
	ring_urgent_begin(ring);
	ring_urgent_begin(ring);
	cr_assert(ring_chores_wait(ring));
	ring_chore_want(ring, &p[0].chore);
	turn(20);
	ring_urgent_end(ring);
	turn(20);
	cr_assert_str_eq(order, "");
	ring_urgent_end(ring);
	cr_assert_not(ring_chores_wait(ring));
	turn(RING_CHORES_PAUSE);
	cr_assert_str_eq(order, "");
	turn(1);
	cr_assert_str_eq(order, "a");
}

static void on_time(struct ring_timer *timer)
{
	(void)timer;
}

static void wait_ms(uint64_t ms)
{
	struct ring_timer timer = {.fn = on_time};
	ring_timer_arm(ring, &timer, ms);
	cr_assert_eq(ring_sim_settle(ring, 2 * ms), 0);
}

/* What cannot be taken back is kept small, for a call that comes may not be the last. */
Test(chore, small_while_calls_come)
{
	cr_assert_not(ring_chores_small(ring));
	for (unsigned i = 0; i < 2; i++) {
		ring_urgent_begin(ring);
		cr_assert(ring_chores_small(ring));
		ring_urgent_end(ring);
		wait_ms(RING_CHORES_SMALL_MS - 10);
		cr_assert(ring_chores_small(ring));
		turn(RING_CHORES_PAUSE);
	}
	wait_ms(20);
	cr_assert_not(ring_chores_small(ring));
}

Test(chore, does_not_wait_for_a_long_call)
{
	struct probe p[1];
	probes_init(p, 1);
	p[0].again = 3;
	uint64_t begin_ns = ring_now_ns(ring);
	ring_urgent_begin(ring); /* takes as long as it likes */
	ring_chore_want(ring, &p[0].chore);
	cr_assert_eq(ring_sim_settle(ring, 1000), 0);
	cr_assert_str_eq(order, "aaaa");
	cr_assert_geq(ring_now_ns(ring) - begin_ns, RING_CHORES_WAIT_MS * 1000000ull);
	cr_assert_lt(ring_now_ns(ring) - begin_ns, 2 * RING_CHORES_WAIT_MS * 1000000ull);
	/* Another one is urgent again. */
	ring_urgent_begin(ring);
	ring_chore_want(ring, &p[0].chore);
	turn(20);
	cr_assert_str_eq(order, "aaaa");
	ring_urgent_end(ring);
	turn(RING_CHORES_PAUSE + 1);
	cr_assert_str_eq(order, "aaaaa");
	/* The long one has ended: the next is counted from the start. */
	ring_urgent_end(ring);
	ring_urgent_begin(ring);
	cr_assert(ring_chores_wait(ring));
	ring_urgent_end(ring);
	turn(RING_CHORES_PAUSE);
}

/* How long a chore waits counts from where it is wanted and a call is under way. */
Test(chore, each_wait_is_as_long)
{
	struct probe p[1];
	probes_init(p, 1);
	ring_urgent_begin(ring);
	sim_pass_ms(ring, RING_CHORES_WAIT_MS / 2 + 1);
	ring_chore_want(ring, &p[0].chore);
	sim_pass_ms(ring, RING_CHORES_WAIT_MS / 2 + 1);
	cr_assert_str_eq(order, "");
	ring_urgent_end(ring);
	turn(RING_CHORES_PAUSE + 1);
	cr_assert_str_eq(order, "a");
	/* What was left of that wait is nothing to the next. */
	ring_urgent_begin(ring);
	ring_chore_want(ring, &p[0].chore);
	sim_pass_ms(ring, RING_CHORES_WAIT_MS / 2 + 1);
	cr_assert_str_eq(order, "a");
	sim_pass_ms(ring, RING_CHORES_WAIT_MS / 2 + 1);
	turn(1);
	cr_assert_str_eq(order, "aa");
	ring_urgent_end(ring);
}

/* Calls that end and begin all the time: their number never falls, and chores go on all the same.
 */
Test(chore, goes_on_under_a_flood_of_calls)
{
	struct probe p[1];
	probes_init(p, 1);
	p[0].again = 2;
	ring_urgent_begin(ring);
	ring_chore_want(ring, &p[0].chore);
	for (unsigned i = 0; i < 10000 && strlen(order) < 3; i++) {
		ring_urgent_begin(ring);
		cr_assert_eq(ring_turn(ring, true), 0);
		ring_urgent_end(ring);
	}
	cr_assert_str_eq(order, "aaa");
}

/* While one is due the loop does not sleep. What has taken its time leaves the rest to the next
 * turn, in front of what was wanted meanwhile. */
Test(chore_kernel, a_turn_has_time_for_so_much)
{
	struct probe p[3];
	probes_init(p, 3);
	p[0].burns = true;
	p[0].again = 1;
	for (int i = 0; i < 3; i++)
		ring_chore_want(ring, &p[i].chore);
	cr_assert_eq(ring_turn(ring, true), 0);
	cr_assert_str_eq(order, "a");
	/* A slow machine needs more than one turn for these. */
	for (int i = 0; i < 3 && strlen(order) < 4; i++)
		cr_assert_eq(ring_turn(ring, true), 0);
	cr_assert_str_eq(order, "abca");
}

/* For metrics: the time of all turns, that of the longest, and in which bucket each one is. */
Test(chore_kernel, what_turns_took_is_counted)
{
	struct probe p[1];
	probes_init(p, 1);
	p[0].burns = true;
	ring_chore_want(ring, &p[0].chore);
	turn(1);
	const struct ring_stats *stats = ring_stats(ring);
	uint64_t first_ns = stats->turn_ns, counted = 0;
	cr_assert_geq(first_ns, RING_CHORES_TURN_NS);
	cr_assert_eq(stats->longest_turn_ns, first_ns);
	cr_assert_eq(stats->turn.count[hist_bucket(first_ns)], 1);
	ring_chore_want(ring, &p[0].chore);
	turn(1);
	uint64_t second_ns = stats->turn_ns - first_ns;
	cr_assert_geq(second_ns, RING_CHORES_TURN_NS);
	cr_assert_eq(stats->longest_turn_ns, second_ns > first_ns ? second_ns : first_ns);
	cr_assert_geq(stats->turn.count[hist_bucket(second_ns)], 1);
	for (uint32_t i = 0; i < HIST_BUCKETS; i++)
		counted += stats->turn.count[i];
	cr_assert_eq(counted, stats->turns);
}

Test(chore, stands_behind_others_at_the_disk)
{
	struct io_uring_sqe sqe = {0};
	ring_sqe_chore(&sqe);
	cr_assert_eq(sqe.ioprio, 2 << 13 | 7); /* ioprio_set(2): best effort, the lowest of it */
}
