/* SPDX-License-Identifier: Apache-2.0 */
/* Timers, on the virtual clock where order is exact, and once on the kernel's ring. */
#include "base/clock.h"
#include "reactor/ring.h"
#include "reactor/ring_uring.h"
#include "simring/sim.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

struct probe {
	struct ring_timer timer;
	struct ring *ring;
	struct probe *cancels;
	unsigned rearm;
	uint64_t fired_ns;
	int id, fired;
};

static int order[64], order_len;

static void on_timer(struct ring_timer *timer)
{
	struct probe *p = container_of(timer, struct probe, timer);
	p->fired++;
	p->fired_ns = ring_now_ns(p->ring);
	if (order_len < 64)
		order[order_len++] = p->id;
	cr_assert_not(ring_timer_armed(timer));
	if (p->cancels != NULL)
		ring_timer_cancel(p->ring, &p->cancels->timer);
	if (p->rearm > 0) {
		p->rearm--;
		ring_timer_arm(p->ring, timer, 5);
	}
}

static struct ring_sim sim;

static struct ring *open_sim(uint64_t seed)
{
	struct ring *ring;
	sim = (struct ring_sim){.seed = seed};
	order_len = 0;
	cr_assert_eq(ring_sim_open(&ring, &sim), 0);
	return ring;
}

static void probes_init(struct probe *p, int count, struct ring *ring)
{
	memset(p, 0, sizeof(*p) * (size_t)count);
	for (int i = 0; i < count; i++)
		p[i] = (struct probe){.timer = {.fn = on_timer}, .ring = ring, .id = i};
}

Test(timer, fire_in_order_of_deadline_and_equal_ones_as_armed)
{
	struct ring *ring = open_sim(1);
	struct probe p[6];
	static const unsigned delays[] = {30, 10, 20, 10, 0, 30};
	static const int want[] = {4, 1, 3, 2, 0, 5};
	probes_init(p, 6, ring);
	for (int i = 0; i < 6; i++)
		ring_timer_arm(ring, &p[i].timer, delays[i]);
	uint64_t start_ns = ring_now_ns(ring);
	cr_assert_eq(ring_sim_settle(ring, 1000), 0);
	cr_assert_arr_eq(order, want, sizeof(want));
	for (int i = 0; i < 6; i++)
		cr_assert_geq(p[i].fired_ns - start_ns, delays[i] * 1000000ull);
	ring_close(ring);
}

Test(timer, cancel_takes_effect_at_once)
{
	struct ring *ring = open_sim(1);
	struct probe p[3];
	probes_init(p, 3, ring);
	for (int i = 0; i < 3; i++)
		ring_timer_arm(ring, &p[i].timer, 10);
	/* The first one's callback cancels the third, due in the same turn. */
	p[0].cancels = &p[2];
	ring_timer_cancel(ring, &p[1].timer);
	ring_timer_cancel(ring, &p[1].timer);
	cr_assert_not(ring_timer_armed(&p[1].timer));
	memset(&p[1], 0xEE, sizeof(p[1]));
	cr_assert_eq(ring_sim_settle(ring, 1000), 0);
	cr_assert_eq(p[0].fired, 1);
	cr_assert_eq(p[2].fired, 0);
	ring_close(ring);
}

Test(timer, rearming_moves_the_deadline)
{
	struct ring *ring = open_sim(1);
	struct probe p[2];
	static const int want[] = {1, 0, 0, 0};
	probes_init(p, 2, ring);
	ring_timer_arm(ring, &p[0].timer, 1);
	ring_timer_arm(ring, &p[1].timer, 20);
	ring_timer_arm(ring, &p[0].timer, 50);
	p[0].rearm = 2;
	cr_assert_eq(ring_sim_settle(ring, 1000), 0);
	cr_assert_eq(order_len, 4);
	cr_assert_arr_eq(order, want, sizeof(want));
	ring_close(ring);
}

static void on_forever(struct ring_timer *timer)
{
	struct probe *p = container_of(timer, struct probe, timer);
	p->fired++;
	ring_timer_arm(p->ring, timer, 0);
}

Test(timer, without_delay_waits_for_the_next_turn)
{
	struct ring *ring = open_sim(1);
	struct probe p = {.timer = {.fn = on_forever}, .ring = ring};
	ring_timer_arm(ring, &p.timer, 0);
	for (int turn = 1; turn <= 5; turn++) {
		cr_assert_eq(ring_turn(ring, false), 0);
		cr_assert_eq(p.fired, turn);
	}
	ring_timer_cancel(ring, &p.timer);
	ring_close(ring);
}

static int by_number(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
	return x < y ? -1 : x > y;
}

static uint64_t last_ns;
static int alive;

static void on_random(struct ring_timer *timer)
{
	cr_assert_geq(timer->due_ns, last_ns);
	last_ns = timer->due_ns;
	alive--;
}

Test(timer, random_arming_and_cancelling_keeps_the_heap_sorted)
{
	uint64_t seed = (uint64_t)time(NULL);
	fprintf(stderr, "seed %llu\n", (unsigned long long)seed);
	srandom((unsigned)seed);
	struct ring *ring = open_sim(seed);
	static struct ring_timer timers[500];
	for (int i = 0; i < 500; i++)
		timers[i] = (struct ring_timer){.fn = on_random};
	for (int i = 0; i < 5000; i++) {
		struct ring_timer *t = &timers[random() % 500];
		if (random() % 3 == 0)
			ring_timer_cancel(ring, t);
		else
			ring_timer_arm(ring, t, (uint64_t)random() % 1000);
	}
	uint64_t due[500];
	for (int i = 0; i < 500; i++)
		if (ring_timer_armed(&timers[i]))
			due[alive++] = timers[i].due_ns;
	qsort(due, (size_t)alive, sizeof(due[0]), by_number);
	int armed = alive;
	cr_assert_eq(ring_sim_settle(ring, 10000), 0);
	cr_assert_eq(alive, 0);
	cr_assert_eq(last_ns, due[armed - 1]);
	ring_close(ring);
}

Test(timer, absurd_delays_do_not_wrap)
{
	struct ring *ring = open_sim(1);
	struct probe p[2];
	probes_init(p, 2, ring);
	ring_timer_arm(ring, &p[0].timer, UINT64_MAX);
	ring_timer_arm(ring, &p[1].timer, 1);
	cr_assert_eq(ring_sim_settle(ring, 1000), 0);
	cr_assert_eq(p[0].fired, 0);
	cr_assert_eq(p[1].fired, 1);
	ring_timer_cancel(ring, &p[0].timer);
	ring_close(ring);
}

Test(timer, on_the_kernels_ring)
{
	struct ring *ring;
	order_len = 0;
	cr_assert_eq(ring_open(&ring, &(struct ring_config){0}), 0);
	struct probe p[3];
	static const int want[] = {1, 0};
	probes_init(p, 3, ring);
	ring_timer_arm(ring, &p[0].timer, 20);
	ring_timer_arm(ring, &p[1].timer, 5);
	ring_timer_arm(ring, &p[2].timer, 3600000);
	while (p[0].fired == 0)
		cr_assert_eq(ring_turn(ring, true), 0);
	cr_assert_eq(order_len, 2);
	cr_assert_arr_eq(order, want, sizeof(want));
	cr_assert_geq(p[0].fired_ns, p[0].timer.due_ns);
	ring_timer_cancel(ring, &p[2].timer);
	ring_close(ring);
}

/* ---- a deadline and what it is for, in one turn ---- */

struct waiter {
	struct ring_req recv;
	struct ring_timer deadline;
	struct ring *ring;
	int fds[2];
	int received, timed_out;
	char byte;
};

static struct waiter waiter;
static volatile sig_atomic_t in_time, alarmed;

static void on_received(struct ring_req *req, int res, uint32_t flags)
{
	(void)flags;
	struct waiter *w = container_of(req, struct waiter, recv);
	cr_assert(res == 1 || res == -ECANCELED);
	w->received += res == 1;
	ring_timer_cancel(w->ring, &w->deadline);
}

static void on_deadline(struct ring_timer *timer)
{
	container_of(timer, struct waiter, deadline)->timed_out++;
}

static void wait_for_byte(struct waiter *w, struct ring *ring, uint64_t timeout_ms)
{
	*w = (struct waiter){
		.recv = {.fn = on_received}, .deadline = {.fn = on_deadline}, .ring = ring};
	cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, w->fds), 0);
	io_uring_prep_recv(&w->recv.sqe, w->fds[0], &w->byte, 1, 0);
	ring_submit(ring, &w->recv);
	cr_assert_eq(ring_turn(ring, false), 0);
	ring_timer_arm(ring, &w->deadline, timeout_ms);
}

static void waiter_end(struct waiter *w)
{
	ring_timer_cancel(w->ring, &w->deadline);
	ring_cancel(w->ring, &w->recv);
	while (w->recv.armed)
		cr_assert_eq(ring_turn(w->ring, true), 0);
	close(w->fds[0]);
	close(w->fds[1]);
}

/* The byte comes; then nothing runs here until the deadline has passed. */
static void comes_and_stalls(struct waiter *w)
{
	cr_assert_eq(write(w->fds[1], "x", 1), 1);
	in_time = clock_monotonic_ns() < w->deadline.due_ns;
	while (clock_monotonic_ns() <= w->deadline.due_ns)
		;
}

static void on_alarm(int sig)
{
	(void)sig;
	comes_and_stalls(&waiter);
	alarmed = 1;
}

Test(timer, what_came_in_time_goes_before_its_deadline)
{
	struct ring *ring;
	cr_assert_eq(ring_open(&ring, &(struct ring_config){0}), 0);
	wait_for_byte(&waiter, ring, 1);
	comes_and_stalls(&waiter);
	while (waiter.received + waiter.timed_out == 0)
		cr_assert_eq(ring_turn(ring, true), 0);
	cr_expect_eq(waiter.received, 1);
	cr_expect_eq(waiter.timed_out, 0);
	waiter_end(&waiter);
	ring_close(ring);
}

/* The same while the kernel waits for us, as when the process is stopped: it comes back with
 * nothing, and late. */
Test(timer, what_came_in_time_while_the_process_stood_still)
{
	struct ring *ring;
	struct sigaction action = {.sa_handler = on_alarm};
	cr_assert_eq(sigaction(SIGALRM, &action, NULL), 0);
	cr_assert_eq(ring_open(&ring, &(struct ring_config){0}), 0);
	/* On a busy machine the alarm itself may be late: then again, with more time. */
	for (uint64_t ms = 50; !in_time; ms *= 2) {
		if (ms != 50)
			waiter_end(&waiter);
		alarmed = 0;
		wait_for_byte(&waiter, ring, ms);
		struct itimerval soon = {.it_value.tv_usec = 10000};
		cr_assert_eq(setitimer(ITIMER_REAL, &soon, NULL), 0);
		while (waiter.received + waiter.timed_out == 0)
			cr_assert_eq(ring_turn(ring, true), 0);
		while (!alarmed) /* it is for this waiter */
			usleep(1000);
	}
	cr_expect_eq(waiter.received, 1);
	cr_expect_eq(waiter.timed_out, 0);
	waiter_end(&waiter);
	ring_close(ring);
}

/* Simulated time passes with what is served, and may pass the deadline with it. */
Test(timer, what_came_in_time_simulated)
{
	for (uint64_t seed = 0; seed < 200; seed++) {
		struct ring *ring = open_sim(seed);
		wait_for_byte(&waiter, ring, 0);
		cr_assert_eq(write(waiter.fds[1], "x", 1), 1);
		cr_assert_eq(ring_turn(ring, true), 0);
		cr_expect_eq(waiter.received, 1, "seed %llu", (unsigned long long)seed);
		cr_expect_eq(waiter.timed_out, 0, "seed %llu", (unsigned long long)seed);
		waiter_end(&waiter);
		ring_close(ring);
	}
}

static void on_armed_in_turn(struct ring_req *req, int res, uint32_t flags)
{
	(void)res;
	(void)flags;
	struct waiter *w = container_of(req, struct waiter, recv);
	w->received++;
	ring_timer_arm(w->ring, &w->deadline, 0);
}

Test(timer, armed_by_a_completion_without_delay_waits_for_the_next_turn)
{
	struct ring *ring = open_sim(1);
	struct waiter w = {
		.recv = {.fn = on_armed_in_turn}, .deadline = {.fn = on_deadline}, .ring = ring};
	ring_post(ring, &w.recv, 0);
	cr_assert_eq(ring_turn(ring, true), 0);
	cr_expect_eq(w.received, 1);
	cr_expect_eq(w.timed_out, 0);
	cr_assert_eq(ring_turn(ring, true), 0);
	cr_expect_eq(w.timed_out, 1);
	ring_close(ring);
}
